# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Step sizes of corrected chains, for a wanted acceptance at each temperature."""

from collections.abc import Callable

import jax
from jax import random
import numpy as np

from numpyro_dais._util.concreteness import as_floats
from numpyro_dais._util.keys import named_key
from numpyro_dais.model.traced import TracedTarget
from numpyro_dais.sampler.settings import PartialSettings, Settings
from numpyro_dais.tuning.spread import start_unit

__all__ = ["first_settings", "tune_acceptance"]

# Sweeps, and the particles of each: more settle closer to the wanted acceptance, at as many chains.
# Round numbers.
_NUM_SWEEPS = 8
_NUM_PARTICLES = 8
# The first step size, in units of the start's spread; sweeps cross orders of magnitude from there.
_FIRST_STEP_SIZE = 0.5

# The mean acceptance of each step, from a key, settings and a number of particles.
AcceptanceFn = Callable[[jax.Array, Settings, int], np.ndarray]


def first_settings(rng_key: jax.Array, target: TracedTarget, given: PartialSettings) -> Settings:
    """
    Returns settings with a step size in units of the start's spread, from which an adaptation
    begins.

    :param rng_key: a JAX random key.
    :param target: the target.
    :param given: what was given.
    """
    return given.with_unit(lambda: start_unit(rng_key, target)).at(_FIRST_STEP_SIZE)


def tune_acceptance(
    rng_key: jax.Array,
    settings: Settings,
    target_acceptance: float,
    acceptance_fn: AcceptanceFn,
    gradients_per_step: int,
) -> Settings:
    """
    Returns settings whose step sizes, at each temperature and for each element of a plate, have
    about the target acceptance: each sweep of a few particles moves those of its own temperature.

    :param rng_key: a JAX random key.
    :param settings: where the adaptation begins.
    :param target_acceptance: the wanted acceptance.
    :param acceptance_fn: runs a sweep.
    :param gradients_per_step: of each particle.
    """
    sweep_key = named_key(rng_key, "sweeps")
    log_step_size = np.log(settings.step_size)
    for sweep in range(_NUM_SWEEPS):
        acceptance = acceptance_fn(random.fold_in(sweep_key, sweep), settings, _NUM_PARTICLES)
        excess = acceptance - target_acceptance
        if log_step_size.ndim < excess.ndim:  # the elements of a plate part company
            log_step_size = log_step_size[:, None]
        # Large steps at first, to cross orders of magnitude, then small ones, to settle.
        log_step_size = log_step_size + 3.0 * excess / (1 + sweep / 3)
        settings = settings._replace(step_size=as_floats(np.exp(log_step_size)))
    num_gradients = _NUM_SWEEPS * _NUM_PARTICLES * settings.num_steps * gradients_per_step
    return settings._replace(num_gradients=num_gradients)
