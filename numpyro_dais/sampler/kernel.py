# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

r"""
One transition: leapfrog steps with a whitened momentum, and partial momentum refreshment.

The momentum :math:`v` is standard normal whatever the mass matrix; a preconditioner :math:`L` with
:math:`M^{-1} = L L^\top` carries the mass instead, and may change from step to step. Positions and
momenta have shape ``[..., num_dims]``; leading axes are independent elements of a plate.

A transition is uncorrected (DAIS) or Metropolis-corrected (HAIS, AIS), and runs forward or in
reverse.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
from jax import lax
import jax.numpy as jnp

from numpyro_dais.sampler.path import (
    LogDensities,
    LogDensitiesFn,
    tempered_gradient,
    tempered_gradient_and_ratio,
)

__all__ = [
    "UNCORRECTED",
    "Axes",
    "ChainState",
    "Noise",
    "Step",
    "Transition",
    "apply",
    "apply_transpose",
    "drift",
    "forward_step",
    "kick",
    "kinetic_change",
    "leapfrog",
    "observed_step",
    "refresh",
    "reverse_step",
    "split_preconditioner",
    "with_matrices",
    "with_preconditioner",
]

GradientFn: TypeAlias = Callable[[jax.Array], jax.Array]


class Transition(NamedTuple):
    """
    The kind of a transition; static.

    :param is_corrected: whether a Metropolis decision follows the leapfrog steps.
    :param num_leapfrog: the number of leapfrog steps, one gradient each.
    """

    is_corrected: bool = False
    num_leapfrog: int = 1


UNCORRECTED = Transition()


class Axes(NamedTuple):
    """
    A preconditioner :math:`L = B diag(s)` whose axes are those of all steps.

    :param scale: :math:`s`, ``[num_dims]``, of one step; None where it is kept elsewhere.
    :param basis: :math:`B`, ``[num_dims, num_dims]``; its columns need not be orthogonal.
    """

    scale: jax.Array | None
    basis: jax.Array


# Of one step: None, diagonal [num_dims], lower triangular [num_dims, num_dims], or along axes.
Preconditioner: TypeAlias = jax.Array | Axes | None


class Step(NamedTuple):
    """
    Settings of one transition, or, stacked along a leading axis, of a chain; the leading axis of a
    preconditioner that all steps share is of length 1, and a basis that they share has none.
    """

    beta: jax.Array
    previous_beta: jax.Array
    step_size: jax.Array  # a number, or one per element of a plate
    damping: jax.Array
    preconditioner: Preconditioner
    max_kick: jax.Array | None = None  # no limit


class Noise(NamedTuple):
    """The randomness of one transition: normals, and logarithms of uniforms if corrected."""

    normal: jax.Array
    log_uniform: jax.Array | None


class ChainState(NamedTuple):
    """
    The state of a chain: all that its next transition needs, and the log weight so far.

    :param log_weight: of an uncorrected chain, its kinetic part.
    :param densities: both log densities at the position; kept by corrected chains only.
    """

    position: jax.Array
    momentum: jax.Array
    log_weight: jax.Array
    densities: LogDensities | None


def split_preconditioner(steps: Step) -> tuple[Step, Preconditioner]:
    """
    Returns the settings without what all steps share of their preconditioners, and that part.
    """
    preconditioner, basis = steps.preconditioner, None
    if isinstance(preconditioner, Axes):
        preconditioner, basis = preconditioner
    shared = None
    if preconditioner is not None and len(preconditioner) != len(steps.beta):
        shared, preconditioner = preconditioner[0], None
    steps = steps._replace(preconditioner=preconditioner)
    return steps, shared if basis is None else Axes(shared, basis)


def with_preconditioner(step: Step, shared: Preconditioner) -> Step:
    """Returns the settings of a transition with what :func:`split_preconditioner` took away."""
    if shared is None:
        return step
    if isinstance(shared, Axes) and shared.scale is None:
        assert not isinstance(step.preconditioner, Axes)
        shared = shared._replace(scale=step.preconditioner)
    return step._replace(preconditioner=shared)


def with_matrices(steps: Step) -> Step:
    """Returns the settings of a chain with matrices in place of a preconditioner along axes."""
    if not isinstance(steps.preconditioner, Axes):
        return steps
    scale, basis = steps.preconditioner
    if scale is None:
        return steps._replace(preconditioner=basis[None])
    return steps._replace(preconditioner=jnp.expand_dims(scale, 1) * basis)


def apply(preconditioner: Preconditioner, vector: jax.Array) -> jax.Array:
    """Returns :math:`L v`."""
    if preconditioner is None:
        return vector
    if isinstance(preconditioner, Axes):
        return apply(preconditioner.scale, vector) @ preconditioner.basis.T
    if preconditioner.ndim == 1:
        return preconditioner * vector
    return vector @ preconditioner.T


def apply_transpose(preconditioner: Preconditioner, vector: jax.Array) -> jax.Array:
    r"""Returns :math:`L^\top g`."""
    if isinstance(preconditioner, Axes):
        return apply(preconditioner.scale, vector @ preconditioner.basis)
    if preconditioner is None or preconditioner.ndim == 1:
        return apply(preconditioner, vector)
    return vector @ preconditioner


def leapfrog(
    gradient_fn: GradientFn,
    position: jax.Array,
    momentum: jax.Array,
    step_size: jax.Array,
    preconditioner: Preconditioner,
    max_kick: jax.Array | None = None,
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
    :param max_kick: the length at which the change of the momentum is cut off; see :func:`kick`.
    """
    middle = position + drift(momentum, step_size, preconditioner)
    momentum = momentum + kick(gradient_fn(middle), step_size, preconditioner, max_kick)
    return middle + drift(momentum, step_size, preconditioner), momentum


def drift(momentum: jax.Array, step_size: jax.Array, preconditioner: Preconditioner) -> jax.Array:
    r"""Returns the change :math:`\tfrac{\eta}{2} L v` of the position in half a leapfrog step."""
    return 0.5 * jnp.asarray(step_size)[..., None] * apply(preconditioner, momentum)


def kick(
    gradient: jax.Array,
    step_size: jax.Array,
    preconditioner: Preconditioner,
    max_kick: jax.Array | None = None,
) -> jax.Array:
    r"""
    Returns the change :math:`\eta L^\top g` of the momentum in a leapfrog step, cut off at a
    length. Cut or not it is a function of the position, so that volume is preserved and weights
    stay unbiased.

    :param gradient: :math:`g`.
    :param step_size: :math:`\eta`.
    :param preconditioner: :math:`L`; see :class:`Step`.
    :param max_kick: the length, of each element of a plate; none if left out.
    """
    change = jnp.asarray(step_size)[..., None] * apply_transpose(preconditioner, gradient)
    if max_kick is None:
        return change
    # Relative to the largest coordinate: squares of large numbers are infinite.
    largest = jnp.max(jnp.abs(change), -1, keepdims=True)
    largest = lax.stop_gradient(jnp.where(largest > 0, largest, 1.0))
    squares = jnp.sum((change / largest) ** 2, -1, keepdims=True)
    is_long = squares > (max_kick / largest) ** 2
    length = largest * jnp.sqrt(jnp.where(is_long, squares, 1.0))
    return jnp.where(is_long, max_kick / length, 1.0) * change


def refresh(noise: jax.Array, momentum: jax.Array, damping: jax.Array) -> jax.Array:
    r"""
    Returns :math:`\gamma v + \sqrt{1 - \gamma^2}\, \epsilon`, which leaves the standard normal
    invariant.

    :param noise: :math:`\epsilon`, standard normal.
    :param momentum: :math:`v`.
    :param damping: :math:`\gamma`; zero replaces the momentum altogether.
    """
    return damping * momentum + jnp.sqrt(1 - damping**2) * noise


def forward_step(
    noise: Noise,
    state: ChainState,
    step: Step,
    log_densities_fn: LogDensitiesFn,
    transition: Transition,
) -> tuple[ChainState, jax.Array | None]:
    r"""
    Returns the state after one transition, and its acceptance probability if it is corrected.

    Uncorrected, this is a step of Algorithm 1 of the paper: leapfrog, the change :math:`\log N(\hat
    v) - \log N(v)` added to the log weight, refreshment. Corrected, the log weight gains
    :math:`\log f_k(u) - \log f_{k-1}(u)` *before* the position moves.

    :param noise: the randomness of the transition.
    :param state: the state before.
    :param step: settings of this step.
    :param log_densities_fn: both ends of the path.
    :param transition: the kind of transition.
    """
    if transition.is_corrected:
        state = _anneal(state, step)
        state, acceptance = _corrected_move(noise, state, step, log_densities_fn, transition)
        momentum = refresh(noise.normal, state.momentum, step.damping)
        return state._replace(momentum=momentum), acceptance
    gradient_fn = tempered_gradient(log_densities_fn, step.beta)
    return _uncorrected_step(noise, state, step, gradient_fn, transition), None


def observed_step(
    noise: Noise, state: ChainState, step: Step, log_densities_fn: LogDensitiesFn
) -> tuple[ChainState, jax.Array]:
    r"""
    Returns the state after one uncorrected transition, and :math:`\log p(D, u') - \log q_0(u')` at
    the point :math:`u'` in its middle, where the gradient is taken, so that it costs nothing.

    The parameters are those of :func:`forward_step`.
    """
    log_ratios = []
    both_fn = tempered_gradient_and_ratio(log_densities_fn, step.beta)

    def gradient_fn(position: jax.Array) -> jax.Array:
        gradient, log_ratio = both_fn(position)
        log_ratios.append(log_ratio)
        return gradient

    state = _uncorrected_step(noise, state, step, gradient_fn, UNCORRECTED)
    return state, log_ratios[0]


def _uncorrected_step(
    noise: Noise, state: ChainState, step: Step, gradient_fn: GradientFn, transition: Transition
) -> ChainState:
    moved = _move(state, step, gradient_fn, transition)
    log_weight = state.log_weight + kinetic_change(state.momentum, moved.momentum)
    momentum = refresh(noise.normal, moved.momentum, step.damping)
    return moved._replace(momentum=momentum, log_weight=log_weight)


def reverse_step(
    noise: Noise,
    state: ChainState,
    step: Step,
    log_densities_fn: LogDensitiesFn,
    transition: Transition,
) -> tuple[ChainState, jax.Array | None]:
    """
    Returns the state after the reverse of a transition: refresh, negate, move, negate; the log
    weight gains what it would have gained forward. The parameters are those of
    :func:`forward_step`.
    """
    refreshed = refresh(noise.normal, state.momentum, step.damping)
    state = state._replace(momentum=-refreshed)
    if transition.is_corrected:
        state, acceptance = _corrected_move(noise, state, step, log_densities_fn, transition)
        return _anneal(state._replace(momentum=-state.momentum), step), acceptance
    moved = _move(state, step, tempered_gradient(log_densities_fn, step.beta), transition)
    log_weight = state.log_weight + kinetic_change(moved.momentum, refreshed)
    return moved._replace(momentum=-moved.momentum, log_weight=log_weight), None


def _anneal(state: ChainState, step: Step) -> ChainState:
    assert state.densities is not None
    increment = (step.beta - step.previous_beta) * state.densities.log_ratio
    return state._replace(log_weight=state.log_weight + increment)


def _move(
    state: ChainState, step: Step, gradient_fn: GradientFn, transition: Transition
) -> ChainState:
    def body(_: jax.Array, point: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        return leapfrog(gradient_fn, *point, step.step_size, step.preconditioner, step.max_kick)

    point = state.position, state.momentum
    if transition.num_leapfrog == 1:
        point = body(jnp.asarray(0), point)
    else:
        point = lax.fori_loop(0, transition.num_leapfrog, body, point)
    return state._replace(position=point[0], momentum=point[1])


def _corrected_move(
    noise: Noise,
    state: ChainState,
    step: Step,
    log_densities_fn: LogDensitiesFn,
    transition: Transition,
) -> tuple[ChainState, jax.Array]:
    """Returns the move if it is accepted, else the same position with the momentum negated."""
    assert state.densities is not None
    assert noise.log_uniform is not None
    moved = _move(state, step, tempered_gradient(log_densities_fn, step.beta), transition)
    moved = moved._replace(densities=log_densities_fn(moved.position))
    change = jax.tree.map(jnp.subtract, moved.densities, state.densities)
    log_ratio = change.log_start + step.beta * change.log_ratio
    log_ratio = log_ratio + kinetic_change(state.momentum, moved.momentum)
    log_ratio = jnp.where(jnp.isnan(log_ratio), -jnp.inf, log_ratio)
    is_accepted = noise.log_uniform < log_ratio
    stay = state._replace(momentum=-state.momentum)

    def choose(new: jax.Array, old: jax.Array) -> jax.Array:
        return jnp.where(
            is_accepted.reshape(is_accepted.shape + (1,) * (new.ndim - is_accepted.ndim)), new, old
        )

    return jax.tree.map(choose, moved, stay), jnp.exp(jnp.minimum(log_ratio, 0.0))


def kinetic_change(before: jax.Array, after: jax.Array) -> jax.Array:
    """Returns the log density of one momentum, ``after``, minus that of another, ``before``."""
    # (v - v')(v + v') rather than v^2 - v'^2: no cancellation when the kick is small.
    return jnp.sum((before - after) * (before + after), -1) / 2
