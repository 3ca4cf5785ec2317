# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""The gap between log evidence and lower bound of a finished run, split up by its steps."""

import jax
from jax import random
import numpy as np

from numpyro_dais._util.programs import program
from numpyro_dais._util.weights import log_mean, mean_log
from numpyro_dais.model.traced import TracedTarget, trace_target
from numpyro_dais.results.evidence import Evidence
from numpyro_dais.sampler.contributions import stopped_log_weights
from numpyro_dais.sampler.settings import Settings

__all__ = ["gap_contributions"]

# Particles that run again: more make the contributions less noisy, and a plot slower. A round
# number.
_NUM_PARTICLES = 256


def gap_contributions(evidence: Evidence, num_particles: int = _NUM_PARTICLES) -> np.ndarray:
    """
    Returns what each step adds to the gap between log evidence and lower bound, in nats,
    ``[num_steps]``: that of fresh particles, with the settings of the run and a key of their own.
    NaN where a weight was not finite. See :mod:`numpyro_dais.sampler.contributions` for the gap of
    chains that stop early.

    :param evidence: the result of an uncorrected estimator, without a plate.
    :param num_particles: the number of particles that run again.
    """
    if evidence.acceptance is not None:
        raise NotImplementedError(
            "Contributions to the gap are those of uncorrected chains; got an evidence of "
            f"{evidence.method}. Look at evidence.acceptance, or use DAIS."
        )
    rng_keys = random.split(random.key(0), num_particles)
    settings = evidence.settings
    target = trace_target(evidence.problem, rng_keys).with_mixture(settings.start)
    stopped = _stopped(rng_keys, target, settings.of_chain())
    log_weights = np.asarray(stopped, np.float64)
    with np.errstate(all="ignore"):
        gaps = log_mean(log_weights, np) - mean_log(log_weights, np)
    return np.diff(gaps, prepend=0.0)


@program()
def _stopped(rng_keys: jax.Array, target: TracedTarget, settings: Settings) -> jax.Array:
    return stopped_log_weights(rng_keys, target, settings)
