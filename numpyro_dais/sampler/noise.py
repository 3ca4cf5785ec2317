# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
The noise of chains, drawn for a block of steps at a time.

The numbers of a block follow from the key and the block's index, and the length of a block from the
number of steps and the size of a chain. How a gradient is taken has no part in either: a key has
one answer, whatever the memory mode.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
from jax import lax, random
import jax.numpy as jnp

from numpyro_dais.sampler.kernel import ChainState, Noise

__all__ = [
    "NoiseBlocks",
    "block_length",
    "chain_noise",
    "draw_chain_noise",
    "even_length",
    "noise_of_each",
]

# Steps in a block at most. Trades memory, a buffer of so many steps, for calls of the generator: in
# few dimensions a call costs more than its numbers, and blocks of 32 halved the cost of noise on a
# CPU against one call per step. Another value gives other numbers for every key.
_MAX_LENGTH = 32

# Numbers in a block at most, for each chain: a buffer of 256 kB in float32, where 32 steps would be
# the most that a reversible chain keeps. It shortens blocks above 2,048 dimensions only, where a
# call of the generator has thousands of numbers to pay for itself. Another value changes numbers
# there.
_MAX_SIZE = 2**16


class NoiseBlocks(NamedTuple):
    """
    The noise of chains that take their steps together.

    :param draw_fn: the noise of a block, from its index and its number of steps.
    :param length: the number of steps in a block; the last one takes what is left.
    """

    draw_fn: Callable[[jax.Array, int], Noise]
    length: int

    def draw(self, first: jax.Array, num_steps: int) -> Noise:
        """
        Returns the noise of successive steps, stacked along the leading axis.

        :param first: the index of the block that they begin with.
        :param num_steps: their number.
        """
        num_blocks, num_left = divmod(num_steps, self.length)
        parts = []
        if num_blocks == 1:
            parts.append(self.draw_fn(first, self.length))
        elif num_blocks:
            indices = first + jnp.arange(num_blocks)
            # One after the other: not every generator gives the same numbers side by side.
            blocks = lax.map(lambda index: self.draw_fn(index, self.length), indices)
            parts.append(jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), blocks))
        if num_left:
            parts.append(self.draw_fn(first + num_blocks, num_left))
        return jax.tree.map(lambda *xs: jnp.concatenate(xs), *parts)


def even_length(num_steps: int, wanted: int) -> int:
    """
    Returns a length of at most ``wanted`` that divides the steps without a rest, if there is one
    not much shorter.

    >>> even_length(1000, 32), even_length(1009, 32)
    (25, 32)
    """
    # A rest is a second program to compile; down to a quarter of the length it is worth avoiding.
    longest = min(num_steps, wanted)
    divisors = (n for n in range(longest, longest // 4, -1) if num_steps % n == 0)
    return next(divisors, longest)


def block_length(num_steps: int, size: int) -> int:
    """
    Returns the number of steps in a block of noise.

    :param num_steps: the number of steps of a chain.
    :param size: the numbers in a chain's momentum, of all elements of a plate.

    >>> block_length(1000, 10), block_length(1000, 10_000)
    (25, 5)
    """
    return even_length(num_steps, min(_MAX_LENGTH, max(1, _MAX_SIZE // max(size, 1))))


def chain_noise(
    state: ChainState, rng_key: jax.Array, num_steps: int, num_chains: int = 1
) -> NoiseBlocks:
    """
    Returns the noise of a chain, or of chains that share a key.

    :param state: a state, for its shapes.
    :param rng_key: the key of the noise.
    :param num_steps: the number of steps.
    :param num_chains: the number of chains in the state.
    """

    def draw_fn(index: jax.Array, num_steps: int) -> Noise:
        return draw_chain_noise(state, rng_key, index, num_steps)

    return NoiseBlocks(draw_fn, block_length(num_steps, state.momentum.size // num_chains))


def draw_chain_noise(
    state: ChainState, rng_key: jax.Array, index: jax.Array, num_steps: int
) -> Noise:
    """
    Returns the noise of a block of steps.

    :param state: a state of the chains, for its shapes.
    :param rng_key: the key of the noise.
    :param index: that of the block.
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


def noise_of_each(states: ChainState, noise_keys: jax.Array, num_steps: int) -> NoiseBlocks:
    """
    Returns the noise of chains that have a key each, as if each ran on its own.

    :param states: of the chains, along the leading axis; for their shapes.
    :param noise_keys: the keys.
    :param num_steps: the number of steps.
    """
    one = jax.tree.map(lambda x: x[0], states)

    def draw_fn(index: jax.Array, num_steps: int) -> Noise:
        def draw(key: jax.Array) -> Noise:
            return draw_chain_noise(one, key, index, num_steps)

        return jax.vmap(draw, out_axes=1)(noise_keys)

    return NoiseBlocks(draw_fn, block_length(num_steps, one.momentum.size))
