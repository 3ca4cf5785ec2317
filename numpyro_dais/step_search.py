# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""One step size for a given schedule, found on the host by short runs of the compiled chain."""

from collections.abc import Callable

import jax
from jax import random
import numpy as np

from numpyro_dais.schedule import fourth_root_step_size
from numpyro_dais.settings import Settings, make_settings

__all__ = ["NUM_PILOT_PARTICLES", "stable_settings"]

NUM_PILOT_STEPS = 128
NUM_PILOT_PARTICLES = 8
_MAX_HALVINGS = 30

# The mean log weight of a short run with these settings.
TrialFn = Callable[[jax.Array, Settings], float]


def stable_settings(
    rng_key: jax.Array,
    trial_fn: TrialFn,
    make_betas: Callable[[int], np.ndarray],
    damping: float,
    spread: np.ndarray,
    num_steps: int,
) -> Settings:
    r"""
    Returns settings with a step size :math:`\eta = a (K/10)^{-1/4}` in units of the start's spread.

    From :math:`a = 1` on, :math:`a` is halved as long as that raises the mean log weight of a short
    trial with the same randomness; a trial that overflows counts as minus infinity.

    :param rng_key: the key of the trials.
    :param trial_fn: runs a trial.
    :param make_betas: the schedule for a number of steps.
    :param damping: the damping of every step.
    :param spread: the preconditioner, ``[num_dims]``.
    :param num_steps: the number of steps of the settings.
    """
    num_pilot_steps = min(num_steps, NUM_PILOT_STEPS)
    trial_key = random.fold_in(rng_key, 1)

    def settings_at(scale: float, num_steps: int, num_gradients: int = 0) -> Settings:
        step_size = fourth_root_step_size(num_steps, scale)
        return make_settings(make_betas(num_steps), step_size, damping, spread, num_gradients)

    scale, bound = 1.0, -np.inf
    num_trials = 0
    for _ in range(_MAX_HALVINGS):
        trial = trial_fn(trial_key, settings_at(scale, num_pilot_steps))
        num_trials += 1
        if trial <= bound and np.isfinite(bound):
            scale *= 2
            break
        bound, scale = trial, scale / 2
    num_gradients = num_trials * num_pilot_steps * NUM_PILOT_PARTICLES
    return settings_at(scale, num_steps, num_gradients)
