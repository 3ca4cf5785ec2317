# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""One step size for chains that are given but for it, found on the host by short runs of the compiled chain."""

from functools import partial

import jax
from jax import random
import numpy as np

from numpyro_dais.estimators.arguments import ChainArguments
from numpyro_dais.estimators.runner import Runner
from numpyro_dais.model.dynamics import num_full_gradients
from numpyro_dais.model.problem import Problem
from numpyro_dais.sampler.schedule import fourth_root_step_size, interpolate
from numpyro_dais.sampler.settings import Settings, make_settings
from numpyro_dais.tuning.spread import start_spread

__all__ = ["NUM_PILOT_PARTICLES", "tune_step_size"]

NUM_PILOT_STEPS = 128
NUM_PILOT_PARTICLES = 8
_MAX_HALVINGS = 30


def tune_step_size(
    rng_key: jax.Array, problem: Problem, chain: ChainArguments, runner: Runner
) -> Settings:
    r"""
    Returns settings with a step size :math:`\eta = a (K/10)^{-1/4}` in units of the start's spread, and
    everything else as it was given.

    From :math:`a = 1` on, :math:`a` is halved as long as that raises the mean log weight of a short
    trial with the same randomness; a trial that overflows counts as minus infinity.

    :param rng_key: a JAX random key.
    :param problem: what is integrated.
    :param chain: what was given.
    :param runner: runs the trials.
    """
    if chain.num_steps == 0:
        return chain.settings_at(1.0)
    spread = chain.preconditioner
    if spread is None:
        spread = start_spread(runner.draw_starts(rng_key, problem))
    make_betas = chain.schedule
    if not callable(make_betas):
        make_betas = partial(interpolate, np.asarray(make_betas, np.float64), is_zero_first=True)
    num_steps = min(chain.num_steps, NUM_PILOT_STEPS)
    betas, damping = make_betas(num_steps), float(np.mean(np.asarray(chain.damping)))
    trial_key = random.fold_in(rng_key, 1)

    def trial(scale: float) -> float:
        step_size = fourth_root_step_size(num_steps, scale)
        settings = make_settings(betas, step_size, damping, spread)
        run = runner.run(trial_key, problem, settings, NUM_PILOT_PARTICLES)
        return float(np.mean(np.asarray(run.log_weights)))

    scale, bound, num_trials = 1.0, -np.inf, 0
    for _ in range(_MAX_HALVINGS):
        mean = trial(scale)
        num_trials += 1
        if mean <= bound and np.isfinite(bound):
            scale *= 2
            break
        bound, scale = mean, scale / 2
    cost = num_full_gradients(problem, num_steps * NUM_PILOT_PARTICLES, NUM_PILOT_PARTICLES)
    step_size = fourth_root_step_size(chain.num_steps, scale)
    settings = chain._replace(preconditioner=spread).settings_at(step_size)
    return settings._replace(num_gradients=num_trials * cost)
