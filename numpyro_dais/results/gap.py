# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Contributions of the steps of a finished run to the gap of its bound."""

import jax
from jax import random
import numpy as np
from scipy.special import logsumexp

from numpyro_dais._util.programs import program
from numpyro_dais.model.traced import TracedTarget, trace_target
from numpyro_dais.results.evidence import Evidence
from numpyro_dais.sampler.contributions import stopped_log_weights
from numpyro_dais.sampler.settings import Settings

__all__ = ["gap_contributions"]

_NUM_PARTICLES = 256


def gap_contributions(evidence: Evidence, num_particles: int = _NUM_PARTICLES) -> np.ndarray:
    """
    Returns what each step adds to the gap between log evidence and lower bound, in nats, ``[num_steps]``; of
    fresh particles with the settings of the run, and a key of their own. NaN where one was not finite.

    :param evidence: the result of an uncorrected estimator, without a plate.
    :param num_particles: how many particles run again.
    """
    if evidence.acceptance is not None:
        raise NotImplementedError(
            f"Contributions to the gap are those of uncorrected chains; got an evidence of {evidence.method}. Look at "
            "evidence.acceptance, or use DAIS."
        )
    rng_keys = random.split(random.key(0), num_particles)
    settings = evidence.settings
    target = trace_target(evidence.problem, rng_keys).with_mixture(settings.start)
    stopped = _stopped(rng_keys, target, settings.of_chain())
    log_weights = np.asarray(stopped, np.float64)
    with np.errstate(invalid="ignore"):
        gaps = logsumexp(log_weights, axis=0) - np.log(num_particles) - np.mean(log_weights, axis=0)
    return np.diff(gaps, prepend=0.0)


@program()
def _stopped(rng_keys: jax.Array, target: TracedTarget, settings: Settings) -> jax.Array:
    return stopped_log_weights(rng_keys, target, settings)
