# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

r"""The geometric path :math:`\log f_\beta = (1 - \beta) \log q_0 + \beta \log p(D, \cdot)`."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

__all__ = ["DynamicsFn", "LogDensities", "LogDensitiesFn", "tempered_gradient"]


class LogDensities(NamedTuple):
    r"""
    The two ends of the path at one position, as :math:`\log q_0(u)` and
    :math:`\log p(D, u) - \log q_0(u)`. For a prior start they are log prior and log likelihood.
    """

    log_start: jax.Array
    log_ratio: jax.Array


LogDensitiesFn = Callable[[jax.Array], LogDensities]
# What a step follows, from the key of a chain's mini-batches and the step's index.
DynamicsFn = Callable[[jax.Array, jax.Array], LogDensitiesFn]


def tempered_gradient(
    log_densities_fn: LogDensitiesFn, beta: jax.Array
) -> Callable[[jax.Array], jax.Array]:
    r"""
    Returns the gradient of :math:`\log f_\beta` as a function of the position.

    :param log_densities_fn: both log densities; one value per element of a plate, each a function
        of that element's position only.
    :param beta: the inverse temperature.
    """

    def log_tempered(position: jax.Array) -> jax.Array:
        log_start, log_ratio = log_densities_fn(position)
        return jnp.sum(log_start + beta * log_ratio)

    return jax.grad(log_tempered)
