# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Checks of what a user hands to an estimator: the rule, the value, the remedy."""

from collections.abc import Callable
import math
from pathlib import Path
import sys
from typing import Any

import jax
from jax import random
import jax.numpy as jnp
import numpy as np

from numpyro.util import is_prng_key

from numpyro_dais._util.concreteness import is_concrete

__all__ = [
    "are_numbers",
    "check_count",
    "check_key",
    "check_number",
    "check_numbers",
    "check_on_host",
    "check_optional_count",
    "user_stack_level",
    "with_article",
]

# Files of this package begin with it.
_PACKAGE = str(Path(__file__).parents[1])


def check_count(name: str, value: Any, least: int) -> int:
    """
    Returns the value as an integer, or raises an error unless it is a whole number of at least
    ``least``.

    >>> check_count("num_particles", 1e3, 1)
    1000
    """
    is_float = isinstance(value, (float, np.floating))
    is_whole = float(value).is_integer() if is_float else isinstance(value, (int, np.integer))
    if isinstance(value, bool) or not is_whole or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}; got {value!r}.")
    return int(value)


def check_optional_count(name: str, value: Any, least: int) -> int | None:
    """Returns None if the value was left out, and else what :func:`check_count` returns."""
    return None if value is None else check_count(name, value, least)


def check_number(name: str, value: Any, rule: str, is_valid: Callable[[float], bool]) -> float:
    """
    Returns the value as a float, or raises an error unless it is a finite number that is valid.

    :param name: of the argument.
    :param value: what was given.
    :param rule: for which numbers are valid, and why or what else to do, to go on with after "must
        be".
    :param is_valid: the rule.
    """
    is_number = np.ndim(value) == 0 and not isinstance(value, (str, bytes, bool))
    try:
        number = float(value) if is_number else math.nan
    except TypeError:
        number = math.nan
    if not (math.isfinite(number) and is_valid(number)):
        raise ValueError(f"{name} must be {rule}; got {value!r}.")
    return number


def check_numbers(name: str, value: Any, remedy: str) -> None:
    """
    Raises an error if a value is neither traced nor a number nor an array of numbers.

    :param name: of the argument.
    :param value: what was given.
    :param remedy: a sentence.
    """
    if not are_numbers(value):
        raise ValueError(f"{name} must be a number, or one for each step; got {value!r}. {remedy}")


def are_numbers(value: Any) -> bool:
    """Returns whether a value is traced, a real number, or an array of real numbers."""
    try:
        return not is_concrete(value) or np.asarray(value).dtype.kind not in "OSUbc"
    except ValueError:  # lists of unequal lengths
        return False


def with_article(name: str) -> str:
    """
    Returns the name of a class after its indefinite article.

    >>> with_article("AutoDelta"), with_article("Gamma"), with_article("Uniform")
    ('an AutoDelta', 'a Gamma', 'a Uniform')
    """
    return f"{'an' if name[0] in 'AEIO' else 'a'} {name}"


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
