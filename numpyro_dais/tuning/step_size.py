# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""One step size for chains that are given but for it, found by short runs of the compiled chain."""

from collections.abc import Callable

import jax
import numpy as np

from numpyro_dais._util.keys import named_key
from numpyro_dais.model.traced import TracedTarget
from numpyro_dais.sampler.schedule import fourth_root_step_size, interpolate
from numpyro_dais.sampler.settings import PartialSettings, Settings, make_settings
from numpyro_dais.tuning.quality import RunFn
from numpyro_dais.tuning.spread import start_unit

__all__ = ["tune_step_size"]

# Of a trial: long enough that a step which is too large explodes, and eight particles see it.
_NUM_TRIAL_STEPS = 128
_NUM_TRIAL_PARTICLES = 8
# From 1 down to 1e-9 of the start's spread: a posterior that is narrower still needs a fit.
_MAX_HALVINGS = 30


def tune_step_size(
    rng_key: jax.Array,
    target: TracedTarget,
    given: PartialSettings,
    run_fn: RunFn,
    cost_fn: Callable[[Settings, int], int],
) -> Settings:
    r"""
    Returns settings with a step size :math:`\eta = a (K/10)^{-1/4}` in units of the start's spread,
    and everything else as it was given.

    From :math:`a = 1` on, :math:`a` is halved as long as that raises the mean log weight of a short
    trial with the same randomness; a trial that overflows counts as minus infinity.

    :param rng_key: a JAX random key.
    :param target: the target.
    :param given: what was given.
    :param run_fn: runs the trials.
    :param cost_fn: gradients that a run costs, from its settings and number of particles.
    """
    if given.num_steps == 0:
        return given.at(1.0)
    given = given.with_unit(lambda: start_unit(rng_key, target))
    num_steps = min(given.num_steps, _NUM_TRIAL_STEPS)
    if callable(given.schedule):
        betas = given.schedule(num_steps)
    else:
        betas = interpolate(np.asarray(given.schedule, np.float64), num_steps, is_zero_first=True)
    damping = float(np.mean(np.asarray(given.damping)))
    trial_key = named_key(rng_key, "trials")

    def trial_settings(scale: float) -> Settings:
        step_size = fourth_root_step_size(num_steps, scale)
        return make_settings(betas, step_size, damping, given.preconditioner)

    scale, bound, num_trials = 1.0, -np.inf, 0
    for _ in range(_MAX_HALVINGS):
        log_weights = run_fn(trial_key, target, trial_settings(scale), _NUM_TRIAL_PARTICLES)
        mean = float(np.mean(log_weights))
        num_trials += 1
        if mean <= bound and np.isfinite(bound):
            scale *= 2
            break
        bound, scale = mean, scale / 2
    settings = given.at(fourth_root_step_size(given.num_steps, scale))
    cost = cost_fn(trial_settings(scale), _NUM_TRIAL_PARTICLES)
    return settings._replace(num_gradients=num_trials * cost)
