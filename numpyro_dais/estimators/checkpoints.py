# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Checkpoints of self-tuned runs: the journal of a call, and what it must have in common with the file
that it goes on from.
"""

from collections.abc import Callable
import hashlib
from importlib.metadata import version
import os
from typing import Any

import jax

from numpyro_dais._util.checks import check_on_host
from numpyro_dais._util.devices import home_of
from numpyro_dais._util.journal import Journal
from numpyro_dais.estimators.arguments import check_keyword
from numpyro_dais.model.problem import Problem
from numpyro_dais.model.traced import TracedTarget, digest_of, text_of

__all__ = ["check_checkpoint", "journal_of"]

# The first letters of a digest, as people are shown it.
_NUM_LETTERS = 12
# Programs of other versions may round differently.
_LIBRARIES = ("numpyro_dais", "numpyro", "jax", "jaxlib")


def check_checkpoint(checkpoint: Any, model: Callable | None, args: tuple) -> None:
    """
    Raises an error unless this can be the path of a checkpoint, and is not meant for the model.

    :param checkpoint: what the user gave.
    :param model: the model; None if there is none.
    :param args: its arguments by position.
    """
    check_keyword("log_evidence", "checkpoint", checkpoint, model, args)
    if checkpoint is not None and not isinstance(checkpoint, (str, os.PathLike)):
        raise TypeError(f"checkpoint must be the path of a file; got {checkpoint!r}.")


def journal_of(
    checkpoint: str | os.PathLike,
    rng_key: jax.Array,
    problem: Problem,
    target: TracedTarget,
    settings: dict[str, Any],
) -> Journal:
    """
    Returns the journal of a call, which begins with what the file holds, if there is one.

    :param checkpoint: the path of the file.
    :param rng_key: the key of the call.
    :param problem: the problem, with concrete arguments.
    :param target: of the problem.
    :param settings: whatever else decides about the run, by name.
    """
    check_on_host("log_evidence with checkpoint=", (problem, rng_key))
    identity = {
        **{f"the version of {name}": version(name) for name in _LIBRARIES},
        "the kind of device": jax.devices()[0].device_kind,
        "the precision": "64 bits" if jax.config.read("jax_enable_x64") else "32 bits",
        **_identity_of(problem, target),
        "the random key": _digest((digest_of(rng_key), str(rng_key.dtype))),
        **{f"the setting {name}": str(value) for name, value in settings.items()},
    }
    return Journal(checkpoint, identity, home_of(None, (rng_key, problem)))


def _identity_of(problem: Problem, target: TracedTarget) -> dict[str, str]:
    """The model by the text of its densities, and its arrays by their digests."""
    functions, constants = target.tracing.functions, target.constants
    text = {name: text_of(function.jaxpr) for name, function in functions.items()}
    closed_over = {name: list(map(digest_of, arrays)) for name, arrays in constants.items()}
    identity = {
        "the traced model": _digest(text),
        "the arrays that the model closes over": _digest(closed_over),
    }
    parts: dict[str, list] = {}
    for part, leaf in zip(problem.parts_of_leaves, jax.tree.leaves(problem), strict=True):
        parts.setdefault(part, []).append(leaf)
    for part, leaves in parts.items():
        shapes = ", ".join(str(jax.typeof(leaf)) for leaf in leaves)
        identity[f"the shapes of {part}"] = shapes
        identity[f"the values of {part}"] = _digest([digest_of(leaf) for leaf in leaves])
    return identity


def _digest(value: Any) -> str:
    return hashlib.blake2b(repr(value).encode()).hexdigest()[:_NUM_LETTERS]
