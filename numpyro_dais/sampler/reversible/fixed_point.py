# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

r"""
Arithmetic that loses nothing: fixed-point words, and a multiplication by a fraction that can be
undone.

A position is the start plus an integer number of units, a momentum an integer number of units.
Adding an integer is undone by subtracting it. Multiplying by :math:`n/d < 1` drops digits, and
dropped digits can be kept: write :math:`V = q d + r`, push the digit :math:`r` (base :math:`d`)
onto an integer, pop a digit :math:`s` (base :math:`n`) off it, and take :math:`V' = q n + s`. The
integer grows by :math:`\log_2(d/n)` bits each time (Maclaurin et al. 2015).
"""

from fractions import Fraction
from typing import Any, NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from numpyro_dais._util.concreteness import is_concrete

__all__ = [
    "MAX_DENOMINATOR",
    "Grid",
    "Ratio",
    "Words",
    "add",
    "decode_momentum",
    "decode_position",
    "encode_start",
    "make_grid",
    "momentum_unit",
    "multiply",
    "num_flush_steps",
    "rational_damping",
    "subtract",
    "undo_multiply",
]

# The largest denominator of a damping. Trades nearness to the damping that was asked for, to within
# 1/128, for words: a digit of a denominator has its size, and a momentum is rounded to within as
# many units as the numerator.
MAX_DENOMINATOR = 64

# Units per scale, as a power of two, by the bytes of a word. Trades resolution for range: what is
# left of a word is 256 scales in 32 bits and 2,048 in 64, of either sign and with a bit to add two
# of them.
_FRACTION_BITS = {4: 22, 8: 51}


class Ratio(NamedTuple):
    """
    A damping as a fraction; static.

    :param denominator: the denominator of every step.
    :param smallest: the smallest numerator of any step.
    :param numerator: the numerator of every step; None if steps differ, or it is learned.
    """

    denominator: int
    smallest: int
    numerator: int | None

    def numerator_at(self, damping: jax.Array, like: jax.Array) -> jax.Array:
        """
        Returns the numerator of a step.

        :param damping: the damping of the step, one of the fractions.
        :param like: gives the dtype.
        """
        if self.numerator is not None:
            return jnp.asarray(self.numerator, like.dtype)
        return jnp.round(damping * self.denominator).astype(like.dtype)


class Grid(NamedTuple):
    """
    The meaning of a position's words.

    :param origin: the position of the word 0.
    :param unit: the position's step from one word to the next, along each dimension; a power of
        two.
    """

    origin: jax.Array
    unit: jax.Array


class Words(NamedTuple):
    """
    A state in integers.

    :param position: in units from the origin of the grid.
    :param momentum: in units.
    :param digits: the digits that damping has dropped so far, packed, for each momentum.
    """

    position: jax.Array
    momentum: jax.Array
    digits: jax.Array


def rational_damping(damping: Any, is_learned: bool = False) -> tuple[jax.Array, Ratio]:
    r"""
    Returns the damping that a reversible chain uses instead of this one, and how it is a fraction.

    A number becomes the nearest fraction whose denominator is at most 64 (0.9 is 9/10). Numbers
    that differ from step to step become multiples of 1/64. So does a damping that is traced, as a
    learned one is, clipped to [1/2, 63/64]; its gradient is that of the damping itself
    (straight-through).

    :param damping: a number, or one per step.
    :param is_learned: whether to treat it as traced, though it may be known here and now.

    >>> damping, ratio = rational_damping(0.87)
    >>> ratio.numerator, ratio.denominator, round(float(damping), 4)
    (47, 54, 0.8704)
    """
    if is_learned or not is_concrete(damping):
        used = jnp.clip(jnp.round(damping * MAX_DENOMINATOR), MAX_DENOMINATOR // 2, 63)
        used = damping + lax.stop_gradient(used / MAX_DENOMINATOR - damping)
        return used, Ratio(MAX_DENOMINATOR, MAX_DENOMINATOR // 2, None)
    values = np.asarray(damping, float)
    smallest = 1 / MAX_DENOMINATOR
    is_bad = ~((values >= smallest) & (values <= 1 - smallest))
    if np.any(is_bad):
        raise ValueError(
            f"With memory='reversible' damping must lie between 1/{MAX_DENOMINATOR} and "
            f"{MAX_DENOMINATOR - 1}/{MAX_DENOMINATOR}, since what a small damping forgets of the momentum has to "
            f"be stored after all (all of it, at 0), and a large one needs a large denominator; got "
            f"{values[is_bad][0]}. Use memory='checkpoint'."
        )
    if values.size and np.all(values == values.flat[0]):
        fraction = Fraction(float(values.flat[0])).limit_denominator(MAX_DENOMINATOR)
        numerator, denominator = fraction.numerator, fraction.denominator
        values = np.full_like(values, numerator / denominator)
        return jnp.asarray(values, float), Ratio(denominator, numerator, numerator)
    numerators = np.round(values * MAX_DENOMINATOR)
    ratio = Ratio(MAX_DENOMINATOR, int(numerators.min(initial=MAX_DENOMINATOR - 1)), None)
    return jnp.asarray(numerators / MAX_DENOMINATOR, float), ratio


def num_flush_steps(ratio: Ratio, num_bits: int) -> int:
    """
    Returns the number of multiplications whose digits are sure to fit into one unsigned word.

    :param ratio: the fraction.
    :param num_bits: the size of a word.

    >>> num_flush_steps(Ratio(10, 9, 9), 32), num_flush_steps(Ratio(64, 32, None), 32)
    (173, 27)
    """
    largest, num_steps, denominator = 0, 0, ratio.denominator
    while largest * denominator + denominator - 1 < 2**num_bits:
        largest = (largest * denominator + denominator - 1) // ratio.smallest
        num_steps += 1
    return num_steps


def make_grid(origin: jax.Array, scale: jax.Array | None) -> Grid:
    """
    Returns the grid of a chain: fine against the scale, but not finer than the floating-point
    numbers at the start, so that a start far out in its tails has a range to match.

    :param origin: the start of the chain.
    :param scale: the spread of the start along each dimension; 1 if left out.
    """
    scale = jnp.ones_like(origin) if scale is None else jnp.broadcast_to(scale, origin.shape)
    size = jnp.maximum(scale.astype(origin.dtype), jnp.abs(origin) / 4)
    _, exponent = jnp.frexp(jnp.where(size > 0, size, 1.0))
    exponent = exponent - 1 - _FRACTION_BITS[origin.dtype.itemsize]
    return Grid(origin, jnp.ldexp(jnp.ones_like(origin), exponent))


def momentum_unit(dtype: Any) -> float:
    """Returns the unit of a momentum, whose scale is 1."""
    return 2.0 ** -_FRACTION_BITS[jnp.dtype(dtype).itemsize]


def encode_start(momentum: jax.Array) -> Words:
    """
    Returns the state at the origin of a grid.

    :param momentum: the momentum, to be rounded.
    """
    num_bits = 8 * momentum.dtype.itemsize
    zeros = jnp.zeros(momentum.shape, f"int{num_bits}")
    rounded, _ = add(zeros, momentum, momentum_unit(momentum.dtype))
    return Words(zeros, rounded, zeros.astype(f"uint{num_bits}"))


def decode_position(words: jax.Array, grid: Grid) -> jax.Array:
    """Returns the position of words."""
    # A unit is a power of two, so the product is exact: a fused multiply-add gives the same sum.
    return grid.origin + words.astype(grid.origin.dtype) * grid.unit


def decode_momentum(words: jax.Array) -> jax.Array:
    """Returns the momentum of words."""
    dtype = jnp.dtype(f"float{8 * words.dtype.itemsize}")
    return words.astype(dtype) * momentum_unit(dtype)


def add(
    words: jax.Array, change: jax.Array, unit: jax.Array | float
) -> tuple[jax.Array, jax.Array]:
    """
    Returns words plus a change, and whether each stays in range. A change that is not finite, or
    too large by itself, counts as none and as out of range.

    :param words: the words.
    :param change: a number, to be rounded to units.
    :param unit: what one unit is.
    """
    rounded, is_small = _round(change, unit, words.dtype)
    total = words + rounded
    return total, is_small & (jnp.abs(total) < _limit(words.dtype))


def subtract(words: jax.Array, change: jax.Array, unit: jax.Array | float) -> jax.Array:
    """Returns words minus a change: the inverse of :func:`add`, even out of range."""
    return words - _round(change, unit, words.dtype)[0]


def multiply(
    words: jax.Array, digits: jax.Array, numerator: jax.Array, denominator: int
) -> tuple[jax.Array, jax.Array]:
    """
    Returns words times a fraction, to within ``numerator`` units, and the digits with the dropped
    ones.

    :param words: the words.
    :param digits: unsigned words, with room for another digit; see :func:`num_flush_steps`.
    :param numerator: of the fraction.
    :param denominator: of the fraction.
    """
    return _exchange(words, digits, jnp.asarray(denominator, words.dtype), numerator)


def undo_multiply(
    words: jax.Array, digits: jax.Array, numerator: jax.Array, denominator: int
) -> tuple[jax.Array, jax.Array]:
    """Returns words and digits before :func:`multiply`."""
    return _exchange(words, digits, numerator, jnp.asarray(denominator, words.dtype))


def _exchange(
    words: jax.Array, digits: jax.Array, old_base: jax.Array, new_base: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns words with a digit in the old base pushed, and one in the new base popped."""
    quotient, pushed = jnp.divmod(words, old_base)
    digits = digits * old_base.astype(digits.dtype) + pushed.astype(digits.dtype)
    digits, popped = jnp.divmod(digits, new_base.astype(digits.dtype))
    return quotient * new_base + popped.astype(words.dtype), digits


def _round(
    change: jax.Array, unit: jax.Array | float, dtype: jnp.dtype
) -> tuple[jax.Array, jax.Array]:
    units = jnp.round(change / unit)
    is_small = jnp.abs(units) < _limit(dtype)
    return jnp.where(is_small, units, 0).astype(dtype), is_small


def _limit(dtype: jnp.dtype) -> int:
    """Returns a limit: two numbers below it in size have a sum that a word holds."""
    return 2 ** (8 * dtype.itemsize - 2)
