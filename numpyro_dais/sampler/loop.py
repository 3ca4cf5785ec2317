# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""A loop over segments of steps."""

from collections.abc import Callable
import math
from typing import Any, Literal, TypeVar, get_args

import jax
from jax import lax, random
import jax.numpy as jnp

from numpyro_dais.sampler.kernel import (
    ChainState,
    Noise,
    Transition,
)

__all__ = [
    "MEMORY_MODES",
    "Memory",
    "check_memory",
    "draw_chain_noise",
    "scan_segments",
    "scan_steps",
    "segment_length",
]

Carry = TypeVar("Carry")


def segment_length(num_steps: int, wanted: int) -> int:
    """
    Returns a length of at most ``wanted`` that divides the steps without a rest, if there is one not
    much shorter.
    """
    longest = min(num_steps, wanted)
    divisors = (n for n in range(longest, longest // 4, -1) if num_steps % n == 0)
    return next(divisors, longest)


def scan_segments(
    segment_fn: Callable[[Carry, tuple[jax.Array, Any]], tuple[Carry, Any]],
    carry: Carry,
    steps: Any,
    length: int,
    reverse: bool = False,
) -> tuple[Carry, Any]:
    """
    Returns the carry after all segments, and what each step gave beside it, as :func:`jax.lax.scan` does.

    :param segment_fn: a segment: the carry, its index and its part of ``steps`` to the next carry, and
        outputs for each of the steps.
    :param carry: the carry at the start.
    :param steps: arrays with one entry per step.
    :param length: the number of steps in a segment; the last one takes what is left.
    :param reverse: whether to begin with the last segment.
    """
    num_steps = len(jax.tree.leaves(steps)[0])
    num_segments, num_left = divmod(num_steps, length)
    split = num_steps - num_left
    whole = jax.tree.map(lambda x: x[:split].reshape(-1, length, *x.shape[1:]), steps)
    rest = jnp.asarray(num_segments), jax.tree.map(lambda x: x[split:], steps)
    last = None
    if num_left and reverse:
        carry, last = segment_fn(carry, rest)
    carry, outputs = lax.scan(segment_fn, carry, (jnp.arange(num_segments), whole), reverse=reverse)
    outputs = jax.tree.map(lambda y: y.reshape(split, *y.shape[2:]), outputs)
    if num_left and not reverse:
        carry, last = segment_fn(carry, rest)
    if num_left:
        outputs = jax.tree.map(lambda *ys: jnp.concatenate(ys), outputs, last)
    return carry, outputs


Memory = Literal["plain", "products", "checkpoint", "reversible"]


MEMORY_MODES: tuple[str, ...] = get_args(Memory)


State = TypeVar("State")


# Up to this many steps one state per step costs less than running the forward pass twice.
_NEST_ABOVE = 1024


# Noise is drawn for this many steps at a time, which halves its cost on a CPU.
NOISE_BLOCK = 32


# So many numbers at a time at most where every word counts.
NOISE_SIZE = 2**16


def check_memory(memory: Memory, transition: Transition) -> None:
    """
    Raises an error if chains of such transitions cannot be run with this memory mode.

    :param memory: the memory mode.
    :param transition: the kind of transitions.
    """
    if memory not in MEMORY_MODES:
        raise ValueError(f"memory must be one of {list(MEMORY_MODES)}; got {memory!r}.")
    if memory == "reversible" and transition.is_corrected:
        raise NotImplementedError(
            "memory='reversible' runs a chain backwards, and a Metropolis decision cannot be undone; got "
            "corrected transitions. Use DAIS, or memory='checkpoint'."
        )


def scan_steps(
    step_fn: Callable[[Noise, State, Any], tuple[State, Any]],
    draw_noise: Callable[[jax.Array, int], Noise],
    state: State,
    steps: Any,
    memory: Memory,
) -> tuple[State, Any]:
    """
    Returns the state after all steps, and what each step gave beside it.

    ``"plain"`` stores every intermediate of every step for the backward pass: nothing is computed
    twice, O(K) memory with a large constant. ``"products"`` stores the results of matrix products and
    recomputes the rest, which is cheap in neural networks. ``"checkpoint"`` stores one state per step and
    recomputes inside it; above about a thousand steps segments of steps are recomputed as well, so
    that O(sqrt(K)) states are alive. Without differentiation all are the same program.

    :param step_fn: one step: noise, state and an entry of ``steps`` to the next state and an output.
    :param draw_noise: the noise of a segment, from its index and length.
    :param state: the state at the start.
    :param steps: what differs between the steps, stacked along the leading axis.
    :param memory: ``"plain"``, ``"products"`` or ``"checkpoint"``.
    """
    num_steps = len(jax.tree.leaves(steps)[0])
    is_nested = memory == "checkpoint" and num_steps > _NEST_ABOVE
    length = segment_length(num_steps, math.isqrt(num_steps) if is_nested else NOISE_BLOCK)

    def body(state: State, xs: Any) -> tuple[State, Any]:
        return step_fn(xs[0], state, xs[1])

    if memory != "plain":
        policy = jax.checkpoint_policies.dots_saveable if memory == "products" else None
        body = jax.checkpoint(body, prevent_cse=False, policy=policy)

    def segment(state: State, xs: Any) -> tuple[State, Any]:
        index, steps = xs
        num_steps = len(jax.tree.leaves(steps)[0])
        noise = draw_noise(index, num_steps)
        return lax.scan(body, state, (noise, steps))

    if is_nested:
        segment = jax.checkpoint(segment, prevent_cse=False)

    return scan_segments(segment, state, steps, length)


def draw_chain_noise(
    state: ChainState, rng_key: jax.Array, index: jax.Array, num_steps: int
) -> Noise:
    """
    Returns the noise of a segment of steps.

    :param state: a state of the chains, for its shapes.
    :param rng_key: the key of the noise.
    :param index: that of the segment.
    :param num_steps: its length.
    """
    normal_key, momentum = random.fold_in(rng_key, index), state.momentum
    log_uniform = None
    if state.densities is not None:
        normal_key, uniform_key = random.split(normal_key)
        shape = (num_steps, *state.log_weight.shape)
        log_uniform = -random.exponential(uniform_key, shape, momentum.dtype)
    # Drawn flat: with its final shape it takes XLA five times as long to compile.
    normal = random.normal(normal_key, (num_steps * momentum.size,), momentum.dtype)
    return Noise(normal.reshape(num_steps, *momentum.shape), log_uniform)
