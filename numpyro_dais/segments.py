# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""A loop over segments of steps."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
from jax import lax
import jax.numpy as jnp

__all__ = ["scan_segments", "segment_length"]

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
