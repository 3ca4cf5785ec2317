# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Settings improved by gradient ascent on the bound itself: the use of a bound with a gradient."""

from collections.abc import Callable
from typing import NamedTuple

import jax
from jax import random
import jax.numpy as jnp
import numpy as np

from numpyro_dais._util.keys import named_key
from numpyro_dais._util.programs import program
from numpyro_dais.model.traced import TracedTarget
from numpyro_dais.sampler.particles import run_particles
from numpyro_dais.sampler.settings import Settings
from numpyro_dais.tuning.ascent import ascend
from numpyro_dais.tuning.quality import RunFn

__all__ = ["refine", "refine_settings"]

# Iterations, and chains in each: what the gain costs, and how noisy its gradient is. Round numbers.
_NUM_ITERATIONS = 100
_NUM_PARTICLES = 8
# Chains with each of the settings that tell whether it was a gain. A round number.
_NUM_TESTS = 64
# The first learning rate, in logarithms of the settings: at most a factor of 20 over the ascent.
_LEARNING_RATE = 0.03

# The log weights of particles: a key for each of them, and the settings of their chains.
WeightsFn = Callable[[jax.Array, Settings], jax.Array]


class _Params(NamedTuple):
    """The parameters that are learned, all in logarithms and zero at the beginning."""

    increments: jax.Array  # of the inverse temperatures, [num_steps]
    step_size: jax.Array  # [num_steps]
    scale: jax.Array  # of each coordinate, at all steps, [num_dims]


def refine(rng_key: jax.Array, target: TracedTarget, settings: Settings, run_fn: RunFn) -> Settings:
    """
    Returns better settings, or those given if a test run says that they are not.

    :param rng_key: a JAX random key.
    :param target: the target, with the start that the settings are for.
    :param settings: settings of at least one step.
    :param run_fn: runs the chains that tell whether settings are better.
    """
    refined = _ascend(named_key(rng_key, "ascent"), target, settings.of_chain())
    test_key = named_key(rng_key, "test")
    before, after = (np.mean(run_fn(test_key, target, s, _NUM_TESTS)) for s in (settings, refined))
    # A derivative through a gradient is worth two more of them.
    num_chains = 3 * _NUM_ITERATIONS * _NUM_PARTICLES + 2 * _NUM_TESTS
    known = settings.num_gradients if isinstance(settings.num_gradients, int) else 0
    num_gradients = known + settings.num_steps * num_chains
    if not after > before:
        return settings._replace(num_gradients=num_gradients)
    return refined._replace(
        num_gradients=num_gradients, start=settings.start, num_particles=settings.num_particles
    )


@program()
def _ascend(rng_key: jax.Array, target: TracedTarget, settings: Settings) -> Settings:
    def weights_fn(keys: jax.Array, settings: Settings) -> jax.Array:
        return run_particles(keys, target, settings, "checkpoint").log_weights

    num_dims = jax.eval_shape(target.sample_fn, rng_key).shape[-1]
    return refine_settings(rng_key, settings, num_dims, weights_fn)[0]


def refine_settings(
    rng_key: jax.Array, settings: Settings, num_dims: int, weights_fn: WeightsFn
) -> tuple[Settings, jax.Array]:
    """
    Returns settings with a better bound, and the bound along the way: schedule, step sizes and the
    scale of each coordinate are moved up the gradient of the mean log weight. An iteration with a
    gradient that is not finite is passed over. May be traced.

    :param rng_key: a JAX random key.
    :param settings: where the ascent begins; at least one step, with a preconditioner.
    :param num_dims: the dimension of a position.
    :param weights_fn: runs chains.
    """
    log_increments = jnp.log(jnp.diff(settings.betas, prepend=0.0))

    def unpack(params: _Params) -> Settings:
        betas = jnp.cumsum(jax.nn.softmax(log_increments + params.increments))
        scale = jnp.exp(params.scale)
        preconditioner = settings.preconditioner
        if preconditioner is None:
            preconditioner = scale
        elif preconditioner.shape[-2:] == (num_dims, num_dims):
            preconditioner = scale[:, None] * preconditioner
        else:
            preconditioner = scale * preconditioner
        return settings._replace(
            betas=betas / betas[-1],
            step_size=settings.step_size * jnp.exp(params.step_size),
            preconditioner=preconditioner,
        )

    def bound_fn(params: _Params, key: jax.Array) -> jax.Array:
        return jnp.mean(weights_fn(random.split(key, _NUM_PARTICLES), unpack(params)))

    zeros = jnp.zeros(settings.num_steps)
    begin = _Params(zeros, zeros, jnp.zeros(num_dims))
    params, bounds = ascend(rng_key, bound_fn, begin, _NUM_ITERATIONS, _LEARNING_RATE)
    return unpack(params), bounds
