# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

r"""The geometric path :math:`\log f_\beta = (1 - \beta) \log q_0 + \beta \log p(D, \cdot)`."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp

__all__ = [
    "DynamicsFn",
    "LogDensities",
    "LogDensitiesFn",
    "Target",
    "TargetFunctions",
    "annealed_log_weight",
    "at_start",
    "at_temperature",
    "tempered_gradient",
    "tempered_gradient_and_ratio",
]


class LogDensities(NamedTuple):
    r"""
    The two ends of the path at one position, as :math:`\log q_0(u)` and
    :math:`\log p(D, u) - \log q_0(u)`. For a prior start they are log prior and log likelihood.
    """

    log_start: jax.Array
    log_ratio: jax.Array


LogDensitiesFn = Callable[[jax.Array], LogDensities]
# Both log densities that a step follows, from the key of a chain's mini-batches and the step's
# index.
DynamicsFn = Callable[[jax.Array, jax.Array], LogDensitiesFn]


class Target(Protocol):
    """The functions that chains call."""

    @property
    def sample_fn(self) -> Callable[[jax.Array], jax.Array]:
        """
        An exact draw from the start, as a position ``[num_dims]`` (``[num_elements, num_dims]``
        with a plate), from a key.
        """

    @property
    def log_densities_fn(self) -> LogDensitiesFn:
        """Both ends of the path at a position; they enter the weights."""

    @property
    def dynamics_fn(self) -> DynamicsFn | None:
        """
        The two that a step's gradient follows instead, from the key of the chain's mini-batches and
        the step's index; None if they are the same.
        """


class TargetFunctions(NamedTuple):
    """A :class:`Target` that is made of its functions."""

    sample_fn: Callable[[jax.Array], jax.Array]
    log_densities_fn: LogDensitiesFn
    dynamics_fn: DynamicsFn | None = None


def tempered_gradient(
    log_densities_fn: LogDensitiesFn, beta: jax.Array
) -> Callable[[jax.Array], jax.Array]:
    r"""
    Returns the gradient of :math:`\log f_\beta` as a function of the position.

    :param log_densities_fn: both log densities; one value per element of a plate, each a function
        of that element's position only.
    :param beta: the inverse temperature.
    """

    gradient_fn = tempered_gradient_and_ratio(log_densities_fn, beta)
    return lambda position: gradient_fn(position)[0]


def tempered_gradient_and_ratio(
    log_densities_fn: LogDensitiesFn, beta: jax.Array
) -> Callable[[jax.Array], tuple[jax.Array, jax.Array]]:
    r"""
    Returns the gradient of :math:`\log f_\beta` and :math:`\log p(D, \cdot) - \log q_0` as a
    function of the position. The parameters are those of :func:`tempered_gradient`.
    """

    def log_tempered(position: jax.Array) -> tuple[jax.Array, jax.Array]:
        log_start, log_ratio = log_densities_fn(position)
        return jnp.sum(log_start + beta * log_ratio), log_ratio

    return jax.grad(log_tempered, has_aux=True)


def at_start(densities: LogDensities) -> LogDensities:
    r"""Returns the two terms of :math:`\log f_0`; the second is zero even if it is infinite."""
    return densities._replace(log_ratio=jnp.zeros_like(densities.log_ratio))


def at_temperature(densities: LogDensities, beta: jax.Array) -> LogDensities:
    r"""
    Returns the two terms :math:`\log q_0` and :math:`\beta \log p(D, \cdot) / q_0` of
    :math:`\log f_\beta`.
    """
    return densities._replace(log_ratio=beta * densities.log_ratio)


def annealed_log_weight(first: LogDensities, last: LogDensities, kinetic: jax.Array) -> jax.Array:
    r"""
    Returns the log weight :math:`\log f_{\beta'}(u') - \log f_\beta(u)`, plus its kinetic part, of
    an uncorrected chain or of a part of one.

    :param first: the two terms of the log density where it begins.
    :param last: the same where it ends.
    :param kinetic: the change of the momenta's log density.
    """
    # The ratio is a number of its own, not the difference of two large ones: without steps the
    # weight is exactly that of importance sampling.
    return (last.log_ratio - first.log_ratio) + ((last.log_start - first.log_start) + kinetic)
