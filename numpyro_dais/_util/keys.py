# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Random keys by name, beside those that a key is split into."""

import zlib

import jax
from jax import random
import numpy as np

__all__ = ["host_generator", "named_key"]


def named_key(rng_key: jax.Array, name: str) -> jax.Array:
    """
    Returns a key for one purpose, which is none of those that the same key is split into.

    A small number folded in would not do: JAX's ``fold_in(key, i)`` is ``split(key, n)[i]``. The
    hash of a name is larger than any ``n``.

    :param rng_key: a JAX random key.
    :param name: the purpose.

    >>> keys = random.key_data(random.split(random.key(0)))
    >>> bool((random.key_data(random.fold_in(random.key(0), 1)) == keys[1]).all())
    True
    >>> bool((random.key_data(named_key(random.key(0), "mini-batch")) == keys).all(-1).any())
    False
    """
    return random.fold_in(rng_key, zlib.crc32(name.encode()))


def host_generator(rng_key: jax.Array) -> np.random.Generator:
    """
    Returns a NumPy generator for random numbers on the host, which JAX would compile a program for.

    :param rng_key: a concrete JAX random key, used for nothing else but to be folded.
    """
    return np.random.default_rng(np.asarray(random.key_data(rng_key)).ravel().tolist())
