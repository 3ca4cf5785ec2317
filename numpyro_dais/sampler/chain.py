# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""A whole chain, from the start to the target or back."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from numpyro_dais.sampler.begin import begin_chain
from numpyro_dais.sampler.kernel import (
    UNCORRECTED,
    ChainState,
    Noise,
    Step,
    Transition,
    forward_step,
    reverse_step,
)
from numpyro_dais.sampler.loop import Memory, check_memory, scan_steps
from numpyro_dais.sampler.noise import chain_noise
from numpyro_dais.sampler.path import (
    DynamicsFn,
    LogDensities,
    LogDensitiesFn,
    annealed_log_weight,
    at_start,
)
from numpyro_dais.sampler.reversible.gradient import Reversible, run_reversible

__all__ = ["ChainResult", "move_chains", "run_adaptive_chains", "run_chain", "run_reverse_chain"]


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
    Returns the end of one chain from the start to the target. Without corrections (Algorithm 1 of
    the paper) its log weight is

    .. math::

        \log w = \log p(D, u_K) - \log q_0(u_0) + \sum_{k=1}^K \log \frac{N(\hat v_k)}{N(v_{k-1})},

    and with them :math:`\log w = \sum_k (\beta_k - \beta_{k-1}) \log [p(D, u_{k-1}) /
    q_0(u_{k-1})]`. Either way :math:`E[w] = p(D)` at any number of steps and any settings fixed
    before the run, and, without corrections, whatever density's gradient the steps follow.

    :param rng_key: the key of the momenta, of the Metropolis decisions and of the chain's own
        mini-batches.
    :param position: an exact draw from the start.
    :param log_densities_fn: both ends of the path.
    :param steps: settings, one per step along the leading axis.
    :param memory: how the gradient of the chain is taken: as in :func:`scan_steps`, or
        ``"reversible"``, which stores next to nothing and runs the chain backwards; see
        :mod:`numpyro_dais.sampler.reversible.gradient`.
    :param transition: the kind of transitions.
    :param on_step: called with the index of each step, for a progress bar.
    :param reversible: options of that memory mode.
    :param dynamics_fn: the densities whose gradient each step of an uncorrected chain follows;
        those at the ends if left out. With ``"reversible"`` they are the same at every step.
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
        reversible,
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
    Returns the end of one chain from the target back to the start. From an exact draw of the
    posterior, its log weight, the one that the chain would have got forward, satisfies
    :math:`E[1/w] = 1/p(D)`, so its mean is an upper bound of :math:`\log p(D)` in expectation.

    Nobody differentiates these: ``memory="reversible"`` is the same as ``"checkpoint"`` here.

    :param position: an exact draw from the posterior.

    The other parameters are those of :func:`run_chain`.
    """
    if memory == "reversible":
        memory = "checkpoint"
    end = _run(
        reverse_step,
        rng_key,
        position,
        log_densities_fn,
        steps,
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
    densities = jax.vmap(log_densities_fn)(positions)
    begun = begin_chain(rng_key, positions, densities, transition)
    step_size = jnp.broadcast_to(steps.step_size[0], densities.log_start.shape[1:])

    def step_fn(noise: Noise, carry: Any, _: jax.Array, step: Step) -> Any:
        state, step_size = carry
        step = step._replace(step_size=step_size)
        state, acceptance = jax.vmap(
            lambda noise, state: forward_step(noise, state, step, log_densities_fn, transition)
        )(noise, state)
        assert acceptance is not None
        next_step_size = update_fn(step_size, jnp.mean(acceptance, axis=0))
        return (state, next_step_size), (acceptance, step_size)

    noise = chain_noise(begun.state, begun.noise_key, len(steps.beta), len(positions))
    (state, _), (acceptance, step_sizes) = scan_steps(
        step_fn, noise, (begun.state, step_size), steps, "plain"
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
    Returns positions after corrected transitions, the log densities there, and the acceptance of
    each, for the moves of a population between temperatures.

    :param rng_key: the key of all chains.
    :param positions: one per chain along the leading axis.
    :param densities: both log densities there.
    :param log_densities_fn: both ends of the path.
    :param steps: settings, one per transition along the leading axis.
    :param transition: the kind of transitions.
    """
    begun = begin_chain(rng_key, positions, densities, transition)

    def step_fn(noise: Noise, state: ChainState, _: jax.Array, step: Step) -> Any:
        return jax.vmap(
            lambda noise, state: forward_step(noise, state, step, log_densities_fn, transition)
        )(noise, state)

    noise = chain_noise(begun.state, begun.noise_key, len(steps.beta), len(positions))
    state, acceptance = scan_steps(step_fn, noise, begun.state, steps, "plain")
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
    first = log_densities_fn(position)
    begun = begin_chain(rng_key, position, first, transition)

    def densities_of(index: jax.Array) -> LogDensitiesFn:
        return begun.densities_at(index, log_densities_fn, dynamics_fn)

    def step_fn(noise: Noise, state: ChainState, index: jax.Array, step: Step) -> Any:
        return transition_fn(noise, state, step, densities_of(index), transition)

    num_steps, state, acceptance = len(steps.beta), begun.state, None
    is_forward = transition_fn is forward_step
    if num_steps and memory == "reversible":
        followed_fn = densities_of(jnp.asarray(0))
        options = reversible or Reversible()
        state = run_reversible(begun.noise_key, state, followed_fn, steps, options, on_step)
    elif num_steps:
        noise = chain_noise(state, begun.noise_key, num_steps)
        state, acceptance = scan_steps(
            step_fn, noise, state, steps, memory, on_step, is_reverse=not is_forward
        )
    if transition.is_corrected:
        return ChainResult(state.position, state.log_weight, acceptance)
    last = log_densities_fn(state.position) if num_steps else first
    start, end = (first, last) if is_forward else (last, first)
    log_weight = annealed_log_weight(at_start(start), end, state.log_weight)
    return ChainResult(state.position, log_weight, None)
