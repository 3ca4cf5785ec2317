# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

r"""
One transition: a leapfrog step with a whitened momentum, then partial momentum refreshment.

The momentum :math:`v` is standard normal whatever the mass matrix; a preconditioner
:math:`L` with :math:`M^{-1} = L L^\top` carries the mass instead, and may change from step to step.
Positions and momenta have shape ``[..., num_dims]``; leading axes are independent elements of a plate.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

__all__ = ["ChainState", "Step", "apply", "apply_transpose", "dais_step", "leapfrog", "refresh"]

GradientFn: TypeAlias = Callable[[jax.Array], jax.Array]


class Step(NamedTuple):
    """Settings of one transition, or, stacked along a leading axis, of a chain."""

    beta: jax.Array
    step_size: jax.Array
    damping: jax.Array
    preconditioner: (
        jax.Array | None
    )  # None, diagonal [num_dims] or lower triangular [num_dims, num_dims]


class ChainState(NamedTuple):
    """What the next transition needs, and the kinetic part of the log weight so far."""

    position: jax.Array
    momentum: jax.Array
    log_weight: jax.Array


def apply(preconditioner: jax.Array | None, vector: jax.Array) -> jax.Array:
    """Returns :math:`L v`."""
    if preconditioner is None:
        return vector
    if preconditioner.ndim == 1:
        return preconditioner * vector
    return vector @ preconditioner.T


def apply_transpose(preconditioner: jax.Array | None, vector: jax.Array) -> jax.Array:
    r"""Returns :math:`L^\top g`."""
    if preconditioner is None or preconditioner.ndim == 1:
        return apply(preconditioner, vector)
    return vector @ preconditioner


def leapfrog(
    gradient_fn: GradientFn,
    position: jax.Array,
    momentum: jax.Array,
    step_size: jax.Array,
    preconditioner: jax.Array | None,
) -> tuple[jax.Array, jax.Array]:
    r"""
    Returns position and momentum after a drift-kick-drift leapfrog step, which costs one gradient,
    preserves volume and is undone by negating the momentum:

    .. math::

        u' = u + \tfrac{\eta}{2} L v, \qquad
        \hat v = v + \eta L^\top \nabla \log f(u'), \qquad
        \hat u = u' + \tfrac{\eta}{2} L \hat v .

    :param gradient_fn: the gradient of the log density.
    :param position: :math:`u`.
    :param momentum: :math:`v`.
    :param step_size: :math:`\eta`.
    :param preconditioner: :math:`L`; see :class:`Step`.
    """
    middle = position + 0.5 * step_size * apply(preconditioner, momentum)
    momentum = momentum + step_size * apply_transpose(preconditioner, gradient_fn(middle))
    return middle + 0.5 * step_size * apply(preconditioner, momentum), momentum


def refresh(noise: jax.Array, momentum: jax.Array, damping: jax.Array) -> jax.Array:
    r"""
    Returns :math:`\gamma v + \sqrt{1 - \gamma^2}\, \epsilon`, which leaves the standard normal invariant.

    :param noise: :math:`\epsilon`, standard normal.
    :param momentum: :math:`v`.
    :param damping: :math:`\gamma`; zero replaces the momentum altogether.
    """
    return damping * momentum + jnp.sqrt(1 - damping**2) * noise


def dais_step(
    noise: jax.Array, state: ChainState, step: Step, gradient_fn: GradientFn
) -> ChainState:
    r"""
    Returns the state after one transition of Algorithm 1 of the paper: leapfrog, the change
    :math:`\log N(\hat v) - \log N(v)` added to the log weight, refreshment.

    :param noise: standard normal, for the refreshment.
    :param state: the state before.
    :param step: settings of this step.
    :param gradient_fn: the gradient of the tempered log density at ``step.beta``.
    """
    position, momentum = leapfrog(
        gradient_fn, state.position, state.momentum, step.step_size, step.preconditioner
    )
    # (v - v')(v + v') rather than v^2 - v'^2: no cancellation when the kick is small.
    kinetic = jnp.sum((state.momentum - momentum) * (state.momentum + momentum), -1) / 2
    log_weight = state.log_weight + kinetic
    return ChainState(position, refresh(noise, momentum, step.damping), log_weight)
