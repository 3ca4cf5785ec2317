# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""The loop over the steps of a chain, and the memory that its gradient takes."""

from collections.abc import Callable
import math
from typing import Any, Literal, TypeVar, get_args

import jax
from jax import lax
import jax.numpy as jnp

from numpyro_dais.sampler.kernel import (
    Noise,
    Step,
    Transition,
    split_preconditioner,
    with_preconditioner,
)
from numpyro_dais.sampler.noise import NoiseBlocks, even_length

__all__ = ["MEMORY_MODES", "Memory", "check_memory", "scan_segments", "scan_steps"]

Memory = Literal["plain", "products", "checkpoint", "reversible"]
MEMORY_MODES: tuple[str, ...] = get_args(Memory)

Carry = TypeVar("Carry")

# Steps above which a checkpointed chain recomputes whole segments. Trades memory, one state per
# step, for time, the forward pass once more (1.2 to 1.6 times the time in a trial). At 1,000 steps
# of 64 particles in 10 dimensions the states are 6 MB, which is not worth it.
_NEST_ABOVE = 1024


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
    step_fn: Callable[[Noise, Carry, jax.Array, Step], tuple[Carry, Any]],
    noise: NoiseBlocks,
    carry: Carry,
    steps: Step,
    memory: Memory,
    on_step: Callable[[jax.Array], None] | None = None,
    is_reverse: bool = False,
) -> tuple[Carry, Any]:
    """
    Returns the carry after all steps, and what each step gave beside it.

    ``"plain"`` stores every intermediate of every step for the backward pass: nothing is computed
    twice, O(K) memory with a large constant. ``"products"`` stores the results of matrix products
    and recomputes the rest, which is cheap in neural networks. ``"checkpoint"`` stores one state
    per step and recomputes inside it; above about a thousand steps segments of steps are recomputed
    as well, so that O(sqrt(K)) states are alive. Without differentiation all are the same program,
    and with the same noise.

    :param step_fn: one step: noise, carry, its index and its settings to the next carry and an
        output.
    :param noise: the noise of the steps, in the order in which they are taken.
    :param carry: the carry at the start.
    :param steps: settings, one per step along the leading axis.
    :param memory: ``"plain"``, ``"products"`` or ``"checkpoint"``.
    :param on_step: called with the index of each step.
    :param is_reverse: whether to begin with the last step.
    """
    steps, preconditioner = split_preconditioner(steps)
    num_steps = len(steps.beta)
    xs = jnp.arange(num_steps), steps
    if is_reverse:
        xs = jax.tree.map(lambda x: x[::-1], xs)
    is_nested = memory == "checkpoint" and num_steps > _NEST_ABOVE
    blocks_per_segment = _blocks_per_segment(num_steps, noise.length) if is_nested else 1

    def body(carry: Carry, xs: Any) -> tuple[Carry, Any]:
        noise, (index, step) = xs
        if on_step is not None:
            on_step(index)
        return step_fn(noise, carry, index, with_preconditioner(step, preconditioner))

    if memory != "plain":
        policy = jax.checkpoint_policies.dots_saveable if memory == "products" else None
        body = jax.checkpoint(body, prevent_cse=False, policy=policy)

    def segment(carry: Carry, xs: Any) -> tuple[Carry, Any]:
        index, inner = xs
        drawn = noise.draw(index * blocks_per_segment, len(inner[0]))
        return lax.scan(body, carry, (drawn, inner))

    if is_nested:
        segment = jax.checkpoint(segment, prevent_cse=False)
    return scan_segments(segment, carry, xs, blocks_per_segment * noise.length)


def scan_segments(
    segment_fn: Callable[[Carry, tuple[jax.Array, Any]], tuple[Carry, Any]],
    carry: Carry,
    steps: Any,
    length: int,
    reverse: bool = False,
) -> tuple[Carry, Any]:
    """
    Returns the carry after all segments, and what each step gave beside it, as :func:`jax.lax.scan`
    does.

    :param segment_fn: a segment: the carry, its index and its part of ``steps`` to the next carry,
        and outputs for each of the steps.
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


def _blocks_per_segment(num_steps: int, block_length: int) -> int:
    """Returns how many blocks of noise make a segment of about the square root of all steps."""
    num_blocks, num_left = divmod(num_steps, block_length)
    wanted = max(1, round(math.sqrt(num_steps) / block_length))
    # With steps left over there is a rest anyway, which takes what blocks are left with them.
    return wanted if num_left else even_length(num_blocks, wanted)
