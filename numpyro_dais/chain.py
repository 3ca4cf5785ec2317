# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""A whole chain: the loop over the steps is one thing, how its gradient is taken another."""

from collections.abc import Callable
import math
from typing import Any, Literal, get_args

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
# Noise is drawn for this many steps at a time, which halves its cost on a CPU.
_NOISE_BLOCK = 32


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

    def step_fn(noise: jax.Array, state: ChainState, xs: tuple[jax.Array, Step]) -> ChainState:
        index, step = xs
        if on_step is not None:
            on_step(index)
        return dais_step(noise, state, step, tempered_gradient(log_densities_fn, step.beta))

    num_steps = len(steps.beta)
    if num_steps:
        state = scan_steps(step_fn, refresh_key, state, (jnp.arange(num_steps), steps), memory)
    end = log_densities_fn(state.position)
    # The ratio is a number of its own, not the difference of two large ones: without steps the
    # weight is exactly that of importance sampling.
    log_weight = end.log_ratio + ((end.log_start - start.log_start) + state.log_weight)
    return state.position, log_weight


def scan_steps(
    step_fn: Callable[[jax.Array, ChainState, Any], ChainState],
    rng_key: jax.Array,
    state: ChainState,
    steps: Any,
    memory: Memory,
) -> ChainState:
    """
    Returns the state after all steps.

    ``"plain"`` stores every intermediate of every step for the backward pass: fastest to
    differentiate, O(K) memory with a large constant. ``"checkpoint"`` stores one state per step and
    recomputes inside it; above about a thousand steps segments of steps are recomputed as well, so
    that O(sqrt(K)) states are alive. Without differentiation all are the same program.

    :param step_fn: one step: noise, state and an entry of ``steps`` to the next state.
    :param rng_key: the key of the noise.
    :param state: the state at the start.
    :param steps: what differs between the steps, stacked along the leading axis.
    :param memory: ``"plain"`` or ``"checkpoint"``.
    """
    num_steps = len(jax.tree.leaves(steps)[0])
    is_nested = memory == "checkpoint" and num_steps > _NEST_ABOVE
    length = _segment_length(num_steps, math.isqrt(num_steps) if is_nested else _NOISE_BLOCK)

    def body(state: ChainState, xs: Any) -> tuple[ChainState, None]:
        return step_fn(xs[0], state, xs[1]), None

    if memory == "checkpoint":
        body = jax.checkpoint(body, prevent_cse=False)

    def segment(state: ChainState, xs: Any) -> tuple[ChainState, None]:
        index, steps = xs
        num_steps = len(jax.tree.leaves(steps)[0])
        momentum = state.momentum
        # Drawn flat: with its final shape it takes XLA five times as long to compile.
        flat = random.normal(
            random.fold_in(rng_key, index), (num_steps * momentum.size,), momentum.dtype
        )
        return lax.scan(body, state, (flat.reshape(num_steps, *momentum.shape), steps))

    if is_nested:
        segment = jax.checkpoint(segment, prevent_cse=False)

    num_segments, num_left = divmod(num_steps, length)
    split = num_steps - num_left
    segments = jax.tree.map(lambda x: x[:split].reshape(-1, length, *x.shape[1:]), steps)
    state, _ = lax.scan(segment, state, (jnp.arange(num_segments), segments))
    if num_left:
        left = jax.tree.map(lambda x: x[split:], steps)
        state, _ = segment(state, (jnp.asarray(num_segments), left))
    return state


def _segment_length(num_steps: int, wanted: int) -> int:
    """A length of about ``wanted`` that divides the steps without a rest, if there is one."""
    longest = min(num_steps, wanted)
    divisors = (n for n in range(longest, longest // 4, -1) if num_steps % n == 0)
    return next(divisors, longest)
