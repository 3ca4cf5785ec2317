# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""A whole chain: the loop over the steps is one thing, how its gradient is taken another."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
from jax import random
import jax.numpy as jnp

from numpyro_dais.sampler.kernel import (
    UNCORRECTED,
    ChainState,
    Noise,
    Step,
    Transition,
    forward_step,
    reverse_step,
    split_preconditioner,
    with_preconditioner,
)
from numpyro_dais.sampler.loop import (
    NOISE_BLOCK,
    NOISE_SIZE,
    Memory,
    check_memory,
    draw_chain_noise,
    scan_steps,
)
from numpyro_dais.sampler.path import (
    DynamicsFn,
    LogDensities,
    LogDensitiesFn,
    annealed_log_weight,
    at_start,
)
from numpyro_dais.sampler.reversible.gradient import Reversible, run_reversible

__all__ = [
    "ChainResult",
    "batch_key_of",
    "move_chains",
    "run_adaptive_chains",
    "run_chain",
    "run_reverse_chain",
]


# Folded into a chain's key for that of its mini-batches; 0 and 1 are what splitting it in two gives.
_BATCHES = 2


class ChainResult(NamedTuple):
    """
    The end of a chain.

    :param position: the last position.
    :param log_weight: the log weight.
    :param acceptance: the acceptance probability of each transition, if they are corrected.
    """

    position: jax.Array
    log_weight: jax.Array
    acceptance: jax.Array | None


def run_chain(
    rng_key: jax.Array,
    position: jax.Array,
    log_densities_fn: LogDensitiesFn,
    steps: Step,
    memory: Memory,
    transition: Transition = UNCORRECTED,
    on_step: Callable[[jax.Array], None] | None = None,
    reversible: Reversible | None = None,
    dynamics_fn: DynamicsFn | None = None,
) -> ChainResult:
    r"""
    Returns the end of one chain from the start to the target. Without corrections (Algorithm 1 of the
    paper) its log weight is

    .. math::

        \log w = \log p(D, u_K) - \log q_0(u_0) + \sum_{k=1}^K \log \frac{N(\hat v_k)}{N(v_{k-1})},

    and with them :math:`\log w = \sum_k (\beta_k - \beta_{k-1}) \log [p(D, u_{k-1}) / q_0(u_{k-1})]`. Either way
    :math:`E[w] = p(D)` at any number of steps and any settings fixed before the run, and, without
    corrections, whatever density's gradient the steps follow.

    :param rng_key: the key of the momenta, of the Metropolis decisions and of the chain's own mini-batches.
    :param position: an exact draw from the start.
    :param log_densities_fn: both ends of the path.
    :param steps: settings, one per step along the leading axis.
    :param memory: how the gradient of the chain is taken: as in :func:`scan_steps`, or ``"reversible"``,
        which stores next to nothing and runs the chain backwards; see :mod:`numpyro_dais.sampler.reversible.gradient`.
    :param transition: the kind of transitions.
    :param on_step: called with the index of each step, for a progress bar.
    :param reversible: options of that memory mode.
    :param dynamics_fn: the densities whose gradient each step of an uncorrected chain follows; those at the
        ends if left out. With ``"reversible"`` they are the same at every step.
    """
    return _run(
        forward_step,
        rng_key,
        position,
        log_densities_fn,
        steps,
        memory,
        transition,
        on_step,
        reversible or Reversible(),
        dynamics_fn,
    )


def run_reverse_chain(
    rng_key: jax.Array,
    position: jax.Array,
    log_densities_fn: LogDensitiesFn,
    steps: Step,
    memory: Memory,
    transition: Transition = UNCORRECTED,
    dynamics_fn: DynamicsFn | None = None,
) -> ChainResult:
    r"""
    Returns the end of one chain from the target back to the start. From an exact draw of the posterior,
    its log weight, the one that the chain would have got forward, satisfies :math:`E[1/w] = 1/p(D)`, so
    its mean is an upper bound of :math:`\log p(D)` in expectation.

    Nobody differentiates these: ``memory="reversible"`` is the same as ``"checkpoint"`` here.

    :param position: an exact draw from the posterior.

    The other parameters are those of :func:`run_chain`.
    """
    reversed_steps = jax.tree.map(lambda x: x[::-1], steps)
    if memory == "reversible":
        memory = "checkpoint"
    end = _run(
        reverse_step,
        rng_key,
        position,
        log_densities_fn,
        reversed_steps,
        memory,
        transition,
        dynamics_fn=dynamics_fn,
    )
    acceptance = None if end.acceptance is None else end.acceptance[::-1]
    return end._replace(acceptance=acceptance)


def run_adaptive_chains(
    rng_key: jax.Array,
    positions: jax.Array,
    log_densities_fn: LogDensitiesFn,
    steps: Step,
    transition: Transition,
    update_fn: Callable[[jax.Array, jax.Array], jax.Array],
) -> tuple[ChainResult, jax.Array]:
    """
    Returns the ends of corrected chains whose step size follows their mean acceptance, and the step
    size that was used at each step (for each element of a plate its own).

    Since the step size depends on the particles, their weights are not exactly unbiased.

    :param rng_key: the key of all chains.
    :param positions: exact draws from the start, one per chain along the leading axis.
    :param log_densities_fn: both ends of the path.
    :param steps: settings; of the step sizes only the first counts.
    :param transition: the kind of transitions.
    :param update_fn: the next step size, from the last one and its mean acceptance.
    """
    initial_key, noise_key = random.split(rng_key)
    densities = jax.vmap(log_densities_fn)(positions)
    momenta = random.normal(initial_key, positions.shape, positions.dtype)
    state = ChainState(positions, momenta, jnp.zeros_like(densities.log_start), densities)
    step_size = jnp.broadcast_to(steps.step_size[0], state.log_weight.shape[1:])
    steps, preconditioner = split_preconditioner(steps)

    def step_fn(noise: Noise, carry: Any, step: Step) -> Any:
        state, step_size = carry
        step = with_preconditioner(step, preconditioner)._replace(step_size=step_size)
        state, acceptance = jax.vmap(
            lambda noise, state: forward_step(noise, state, step, log_densities_fn, transition)
        )(noise, state)
        assert acceptance is not None
        next_step_size = update_fn(step_size, jnp.mean(acceptance, axis=0))
        return (state, next_step_size), (acceptance, step_size)

    draw_noise = partial(draw_chain_noise, state, noise_key)
    (state, _), (acceptance, step_sizes) = scan_steps(
        step_fn, draw_noise, (state, step_size), steps, "plain"
    )
    acceptance = jnp.moveaxis(acceptance, 0, 1)
    return ChainResult(state.position, state.log_weight, acceptance), step_sizes


def move_chains(
    rng_key: jax.Array,
    positions: jax.Array,
    densities: LogDensities,
    log_densities_fn: LogDensitiesFn,
    steps: Step,
    transition: Transition,
) -> tuple[jax.Array, LogDensities, jax.Array]:
    """
    Returns positions after corrected transitions, the log densities there, and the acceptance of each, for
    the moves of a population between temperatures.

    :param rng_key: the key of all chains.
    :param positions: one per chain along the leading axis.
    :param densities: both log densities there.
    :param log_densities_fn: both ends of the path.
    :param steps: settings, one per transition along the leading axis.
    :param transition: the kind of transitions.
    """
    initial_key, noise_key = random.split(rng_key)
    momenta = random.normal(initial_key, positions.shape, positions.dtype)
    state = ChainState(positions, momenta, jnp.zeros_like(densities.log_start), densities)
    steps, preconditioner = split_preconditioner(steps)

    def step_fn(noise: Noise, state: ChainState, step: Step) -> Any:
        step = with_preconditioner(step, preconditioner)
        return jax.vmap(
            lambda noise, state: forward_step(noise, state, step, log_densities_fn, transition)
        )(noise, state)

    draw_noise = partial(draw_chain_noise, state, noise_key)
    state, acceptance = scan_steps(step_fn, draw_noise, state, steps, "plain")
    assert state.densities is not None
    return state.position, state.densities, acceptance


def _run(
    transition_fn: Callable,
    rng_key: jax.Array,
    position: jax.Array,
    log_densities_fn: LogDensitiesFn,
    steps: Step,
    memory: Memory,
    transition: Transition,
    on_step: Callable[[jax.Array], None] | None = None,
    reversible: Reversible | None = None,
    dynamics_fn: DynamicsFn | None = None,
) -> ChainResult:
    check_memory(memory, transition)
    initial_key, noise_key = random.split(rng_key)
    first = log_densities_fn(position)
    momentum = random.normal(initial_key, position.shape, position.dtype)
    densities = first if transition.is_corrected else None
    state = ChainState(position, momentum, jnp.zeros_like(first.log_start), densities)

    steps, preconditioner = split_preconditioner(steps)
    batch_key = batch_key_of(rng_key)

    def densities_of(index: jax.Array) -> LogDensitiesFn:
        return log_densities_fn if dynamics_fn is None else dynamics_fn(batch_key, index)

    def step_fn(noise: Noise, state: ChainState, xs: tuple[jax.Array, Step]) -> Any:
        index, step = xs
        if on_step is not None:
            on_step(index)
        step = with_preconditioner(step, preconditioner)
        return transition_fn(noise, state, step, densities_of(index), transition)

    num_steps, acceptance = len(steps.beta), None
    draw_noise = partial(draw_chain_noise, state)
    if num_steps and memory == "reversible":
        assert reversible is not None
        max_length = min(NOISE_BLOCK, max(1, NOISE_SIZE // momentum.size))
        state = run_reversible(
            noise_key,
            state,
            densities_of(jnp.asarray(0)),
            steps,
            preconditioner,
            draw_noise,
            max_length,
            reversible,
            on_step,
        )
    elif num_steps:
        indices = jnp.arange(num_steps)
        xs = indices if transition_fn is forward_step else indices[::-1], steps
        state, acceptance = scan_steps(step_fn, partial(draw_noise, noise_key), state, xs, memory)
    if transition.is_corrected:
        return ChainResult(state.position, state.log_weight, acceptance)
    last = log_densities_fn(state.position) if num_steps else first
    start, end = (first, last) if transition_fn is forward_step else (last, first)
    log_weight = annealed_log_weight(at_start(start), end, state.log_weight)
    return ChainResult(state.position, log_weight, None)


def batch_key_of(rng_key: jax.Array) -> jax.Array:
    """Returns the key of a chain's own mini-batches, from the chain's."""
    return random.fold_in(rng_key, _BATCHES)
