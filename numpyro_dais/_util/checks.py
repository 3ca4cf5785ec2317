# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Checks of what a user hands to an estimator: the rule, the value, the remedy."""

from pathlib import Path
import sys
from typing import Any

import jax
from jax import random
import jax.numpy as jnp
import numpy as np

from numpyro.util import is_prng_key

from numpyro_dais._util.concreteness import is_concrete

__all__ = ["check_count", "check_key", "check_on_host", "user_stack_level"]

# Files of this package begin with it.
_PACKAGE = str(Path(__file__).parents[1])


def check_count(name: str, value: Any, least: int) -> None:
    """Raises an error unless the value is an integer of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}; got {value!r}.")


def check_key(rng_key: Any) -> jax.Array:
    """
    Returns the key, typed as :func:`jax.random.key` makes them, or a fixed one if it was left out.
    """
    if rng_key is None:
        return random.key(0)
    if not is_prng_key(rng_key):
        raise ValueError(
            "The first argument must be one JAX random key, such as jax.random.key(0), or None; got "
            f"{rng_key!r}. The model's arguments follow it. For several keys use jax.vmap."
        )
    is_typed = jnp.issubdtype(rng_key.dtype, jax.dtypes.prng_key)
    return rng_key if is_typed else random.wrap_key_data(rng_key)


def check_on_host(name: str, arguments: Any) -> None:
    """Raises an error if the arguments of a method that runs on the host are traced."""
    if not is_concrete(arguments):
        raise ValueError(
            f"{name} runs on the host and needs concrete arguments; call it outside jit."
        )


def user_stack_level() -> int:
    """
    Returns the ``stacklevel`` with which a warning is shown at the line that called this package.
    """
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    return level
