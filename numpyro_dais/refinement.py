# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Settings improved by gradient ascent on the bound itself: what differentiability buys."""

from collections.abc import Callable
from typing import NamedTuple

import jax
from jax import random
import jax.numpy as jnp

from numpyro_dais.ascent import ascend
from numpyro_dais.settings import Settings

__all__ = ["NUM_ITERATIONS", "NUM_PARTICLES", "refine_settings"]

NUM_ITERATIONS = 100
NUM_PARTICLES = 8
_LEARNING_RATE = 0.03

# The log weights of particles: a key for each of them, and the settings of their chains.
WeightsFn = Callable[[jax.Array, Settings], jax.Array]


class _Params(NamedTuple):
    """What is learned, all in logarithms and zero at the beginning."""

    increments: jax.Array  # of the inverse temperatures, [num_steps]
    step_size: jax.Array  # [num_steps]
    scale: jax.Array  # of each coordinate, at all steps, [num_dims]


def refine_settings(
    rng_key: jax.Array, settings: Settings, num_dims: int, weights_fn: WeightsFn
) -> tuple[Settings, jax.Array]:
    """
    Returns settings with a better bound, and the bound along the way: schedule, step sizes and the scale of
    each coordinate are moved up the gradient of the mean log weight. An
    iteration with a gradient that is not finite is passed over. May be traced.

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
        elif preconditioner.ndim == 3 or preconditioner.shape == (num_dims, num_dims):
            preconditioner = scale[:, None] * preconditioner
        else:
            preconditioner = scale * preconditioner
        return settings._replace(
            betas=betas / betas[-1],
            step_size=settings.step_size * jnp.exp(params.step_size),
            preconditioner=preconditioner,
        )

    def bound_fn(params: _Params, key: jax.Array) -> jax.Array:
        return jnp.mean(weights_fn(random.split(key, NUM_PARTICLES), unpack(params)))

    zeros = jnp.zeros(settings.num_steps)
    begin = _Params(zeros, zeros, jnp.zeros(num_dims))
    params, bounds = ascend(rng_key, bound_fn, begin, NUM_ITERATIONS, _LEARNING_RATE)
    return unpack(params), bounds
