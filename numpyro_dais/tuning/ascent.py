# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Stochastic gradient ascent that a draw which overflows does not spoil."""

from collections.abc import Callable
from typing import TypeVar

import jax
from jax import lax, random
import jax.numpy as jnp

from numpyro.optim import ClippedAdam

__all__ = ["ascend"]

Params = TypeVar("Params")

# The norm above which a gradient is clipped: far above that of a good one, so that only draws which
# nearly overflow feel it. A round number.
_CLIP_NORM = 10.0


def ascend(
    rng_key: jax.Array,
    bound_fn: Callable[[Params, jax.Array], jax.Array],
    params: Params,
    num_iterations: int,
    learning_rate: jax.Array | float,
) -> tuple[Params, jax.Array]:
    """
    Returns parameters with a higher bound, by Adam, and the bound along the way. The learning rate
    falls to zero as a cosine; an iteration whose gradient is not finite is passed over. May be
    traced.

    :param rng_key: a JAX random key.
    :param bound_fn: an estimate of the bound, from parameters and a key.
    :param params: where the ascent begins.
    :param num_iterations: the number of iterations.
    :param learning_rate: the first learning rate.
    """
    adam = ClippedAdam(
        lambda step: learning_rate * 0.5 * (1 + jnp.cos(jnp.pi * step / num_iterations)),
        clip_norm=_CLIP_NORM,
    )

    def loss_fn(params: Params, key: jax.Array) -> jax.Array:
        return -bound_fn(params, key)

    def body(state, key):  # type: ignore[no-untyped-def]
        loss, gradient = jax.value_and_grad(loss_fn)(adam.get_params(state), key)
        is_finite = jax.tree.reduce(
            jnp.logical_and, jax.tree.map(lambda x: jnp.all(jnp.isfinite(x)), gradient)
        )
        gradient = jax.tree.map(lambda x: jnp.where(is_finite, x, 0.0), gradient)
        return adam.update(gradient, state), -loss

    keys = random.split(rng_key, num_iterations)
    state, bounds = lax.scan(body, adam.init(params), keys)
    return adam.get_params(state), bounds
