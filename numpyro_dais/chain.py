# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""A whole chain: the loop over the steps is one thing, how its gradient is taken another."""

from collections.abc import Callable
import math
from typing import Literal, TypeVar, get_args

import jax
from jax import lax, random
import jax.numpy as jnp

from numpyro_dais.kernel import ChainState, Step, dais_step
from numpyro_dais.path import LogDensitiesFn, tempered_gradient

__all__ = ["MEMORY_MODES", "Memory", "run_chain", "scan_steps"]

Memory = Literal["plain", "checkpoint"]
MEMORY_MODES: tuple[str, ...] = get_args(Memory)

# Up to this many steps one state per step costs less than running the forward pass twice.
_NEST_ABOVE = 1024

State = TypeVar("State")
Steps = TypeVar("Steps")


def scan_steps(
    step_fn: Callable[[State, Steps], State], state: State, steps: Steps, memory: Memory
) -> State:
    """
    Returns the state after all steps.

    ``"plain"`` stores every intermediate of every step for the backward pass: fastest to
    differentiate, O(K) memory with a large constant. ``"checkpoint"`` stores one state per step and
    recomputes inside it; above about a thousand steps the states are nested in segments, so that
    O(sqrt(K)) of them are alive. Without differentiation the two are the same program.

    :param step_fn: one step.
    :param state: the state at the start.
    :param steps: what differs between the steps, stacked along the leading axis.
    :param memory: ``"plain"`` or ``"checkpoint"``.
    """

    def body(state: State, step: Steps) -> tuple[State, None]:
        return step_fn(state, step), None

    if memory == "plain":
        return lax.scan(body, state, steps)[0]

    body = jax.checkpoint(body, prevent_cse=False)
    num_steps = len(jax.tree.leaves(steps)[0])
    if num_steps <= _NEST_ABOVE:
        return lax.scan(body, state, steps)[0]

    length = math.isqrt(num_steps)
    num_nested = num_steps - num_steps % length
    nested = jax.tree.map(lambda x: x[:num_nested].reshape(-1, length, *x.shape[1:]), steps)
    remaining = jax.tree.map(lambda x: x[num_nested:], steps)

    @jax.checkpoint
    def segment(state: State, steps: Steps) -> tuple[State, None]:
        return lax.scan(body, state, steps)

    state, _ = lax.scan(segment, state, nested)
    return lax.scan(body, state, remaining)[0]


def run_chain(
    rng_key: jax.Array,
    position: jax.Array,
    log_densities_fn: LogDensitiesFn,
    steps: Step,
    memory: Memory,
    on_step: Callable[[jax.Array], None] | None = None,
) -> tuple[jax.Array, jax.Array]:
    r"""
    Returns the last position and the log weight of one chain (Algorithm 1 of the paper)

    .. math::

        \log w = \log p(D, u_K) - \log q_0(u_0) + \sum_{k=1}^K \log \frac{N(\hat v_k)}{N(v_{k-1})},

    for which :math:`E[w] = p(D)` at any number of steps and any settings fixed before the run.

    :param rng_key: the key of the momenta.
    :param position: an exact draw from the start.
    :param log_densities_fn: both ends of the path.
    :param steps: settings, one per step along the leading axis.
    :param memory: how the gradient of the chain is taken; see :func:`scan_steps`.
    :param on_step: called with the index of each step, for a progress bar.
    """
    initial_key, refresh_key = random.split(rng_key)
    start = log_densities_fn(position)
    momentum = random.normal(initial_key, position.shape, position.dtype)
    state = ChainState(position, momentum, jnp.zeros_like(start.log_start))

    def step_fn(state: ChainState, xs: tuple[jax.Array, Step]) -> ChainState:
        index, step = xs
        if on_step is not None:
            on_step(index)
        gradient_fn = tempered_gradient(log_densities_fn, step.beta)
        return dais_step(random.fold_in(refresh_key, index), state, step, gradient_fn)

    num_steps = len(steps.beta)
    if num_steps:
        state = scan_steps(step_fn, state, (jnp.arange(num_steps), steps), memory)
    end = log_densities_fn(state.position)
    # The ratio is a number of its own, not the difference of two large ones: without steps the
    # weight is exactly that of importance sampling.
    log_weight = end.log_ratio + ((end.log_start - start.log_start) + state.log_weight)
    return state.position, log_weight
