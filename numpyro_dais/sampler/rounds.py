# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Rounds: the results of a self-tuned run on its way."""

from typing import Any, NamedTuple

import numpy as np

from numpyro_dais._util.tails import FEWEST_WEIGHTS, error_with_tail, tail_of
from numpyro_dais._util.weights import log_mean, log_mean_error, mean_log, resolution

__all__ = ["Round", "round_of"]


class Round(NamedTuple):
    """
    One round of a self-tuned run; the last one is the result.

    :param num_steps: the number of steps of its chains.
    :param num_particles: the number of its particles.
    :param num_gradients: gradients that were spent up to its end, all tuning included.
    :param seconds: seconds up to its end.
    :param log_evidence: its estimate.
    :param standard_error: of the estimate, with what the tail of its weights leaves open.
    :param lower_bound: the mean log weight.
    :param barrier: the length of the path as its chains have felt it; see
        :func:`numpyro_dais.tuning.trials.barrier_of`. NaN without steps.
    """

    num_steps: int
    num_particles: int
    num_gradients: int
    seconds: float
    log_evidence: float
    standard_error: float
    lower_bound: float
    barrier: float


def round_of(
    log_weights: Any,
    num_steps: int,
    num_gradients: float,
    seconds: float,
    barrier: float = float("nan"),
    num_particles: int | None = None,
) -> Round:
    """
    Returns a round of a run.

    :param log_weights: of its particles, or islands.
    :param num_steps: the number of steps.
    :param num_gradients: gradients that were spent up to its end.
    :param seconds: seconds up to its end.
    :param barrier: the length of the path.
    :param num_particles: the number of particles, if it is not that of the weights.
    """
    spacing = resolution(np.asarray(log_weights))
    log_weights = np.asarray(log_weights, np.float64)
    with np.errstate(all="ignore"):
        error = float(log_mean_error(log_weights, np))
        if len(log_weights) >= FEWEST_WEIGHTS:
            error = error_with_tail(log_weights, tail_of(log_weights, spacing))
        return Round(
            num_steps,
            len(log_weights) if num_particles is None else num_particles,
            int(np.ceil(num_gradients)),
            seconds,
            float(log_mean(log_weights, np)),
            error,
            float(mean_log(log_weights, np)),
            barrier,
        )
