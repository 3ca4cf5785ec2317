# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Checks of what a user hands to an estimator: the rule, the value, the remedy."""

import math
from typing import Any

import jax
from jax import random
import numpy as np

from numpyro.distributions import Distribution, constraints
from numpyro.util import is_prng_key

from numpyro_dais.settings import Settings, is_concrete

__all__ = [
    "check_anchors",
    "check_count",
    "check_goal",
    "check_key",
    "check_on_host",
    "check_only_settings",
    "check_what",
    "resolve_betas",
    "resolve_num_steps",
]

DEFAULT_NUM_STEPS = 256
MIN_BUDGET = 2_000  # gradients: a shorter pilot run sees nothing


def check_what(model: Any, potential_fn: Any, start: Any, guide: Any, plate: Any) -> None:
    """Raises an error unless there is one thing to integrate, and a start for it."""
    if (model is None) == (potential_fn is None):
        raise ValueError("Give either a model or potential_fn=, and not both.")
    if model is not None and not callable(model):
        raise TypeError(
            f"model must be a NumPyro model, a callable with sample sites; got {model!r}."
        )
    if potential_fn is not None and not callable(potential_fn):
        raise TypeError(f"potential_fn must be callable; got {potential_fn!r}.")
    if guide is not None and not isinstance(start, str):
        raise ValueError("Give either guide= or start=, and not both.")
    is_dict = isinstance(start, dict) and all(isinstance(fn, Distribution) for fn in start.values())
    if not (is_dict or isinstance(start, Distribution) or start in ("auto", "prior")):
        raise ValueError(
            f"start must be 'auto', 'prior', a distribution, or a dict of distributions by site; got {start!r}."
        )
    if potential_fn is None:
        return
    if isinstance(start, str) or guide is not None or plate is not None:
        raise ValueError(
            "With potential_fn= the chains need start= as a distribution or a dict of distributions of "
            "the function's argument; guide= and plate= need a model."
        )
    for fn in start.values() if isinstance(start, dict) else [start]:
        support = fn.support
        while isinstance(support, constraints.independent):
            support = support.base_constraint
        if not (support is constraints.real or support is constraints.real_vector):
            raise ValueError(
                f"A start for potential_fn= must have all reals as its support; a {type(fn).__name__} has "
                f"{support}. Change variables, or write a NumPyro model, where this is done for you."
            )


def check_goal(target_error: Any, budget: Any, is_complete: bool) -> None:
    """Raises an error unless these can be a wanted error and a number of gradients, for a self-tuned run."""
    if is_complete and (target_error is not None or budget is not None):
        raise ValueError(
            "target_error= and budget= are for self-tuned runs; step_size= or settings= leave nothing to tune. "
            "Give num_steps= and num_particles= instead."
        )
    if target_error is not None and not (math.isfinite(target_error) and target_error > 0):
        raise ValueError(f"target_error must be positive, in nats; got {target_error}.")
    if budget is not None:
        check_count("budget", budget, MIN_BUDGET)


def check_anchors(anchor_every: Any, memory: str) -> None:
    """Raises an error unless states may be stored every so many steps in this memory mode."""
    if anchor_every is None:
        return
    check_count("anchor_every", anchor_every, 1)
    if memory != "reversible":
        raise ValueError(
            f"anchor_every= has no meaning with memory={memory!r}; leave it out, or use "
            "memory='reversible'."
        )


def check_count(name: str, value: Any, least: int) -> None:
    """Raises an error unless the value is an integer of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}; got {value!r}.")


def resolve_num_steps(
    num_steps: int | None, schedule: Any, default: int = DEFAULT_NUM_STEPS
) -> int:
    """Returns the number of steps, as given, that of the schedule, or the default."""
    if num_steps is None:
        return default if callable(schedule) else len(schedule)
    check_count("num_steps", num_steps, 0)
    return num_steps


def resolve_betas(schedule: Any, num_steps: int) -> Any:
    """Returns the inverse temperatures of a schedule, one for each step."""
    betas = schedule(num_steps) if callable(schedule) else schedule
    if len(betas) != num_steps:
        raise ValueError(
            f"The schedule must have one beta per step; got {len(betas)} betas for {num_steps} steps. "
            "Leave num_steps out to take its length from the schedule."
        )
    return betas


def check_only_settings(settings: Any, *others: Any) -> None:
    """Raises an error unless complete settings are given, and alone."""
    if not isinstance(settings, Settings):
        raise TypeError(f"settings must come from `tune` or `make_settings`; got {settings!r}.")
    if any(other is not None for other in others):
        raise ValueError(
            "settings= already has num_steps, step_size, damping, schedule and preconditioner; do not "
            "give these beside it."
        )


def check_key(rng_key: Any) -> jax.Array:
    """Returns the key, or a fixed one if it was left out."""
    if rng_key is None:
        return random.key(0)
    if not is_prng_key(rng_key):
        raise ValueError(
            "The first argument must be one JAX random key, such as jax.random.key(0), or None; got "
            f"{rng_key!r}. The model's arguments follow it. For several keys use jax.vmap."
        )
    return rng_key


def check_on_host(name: str, arguments: Any) -> None:
    """Raises an error if the arguments of a method that runs on the host are traced."""
    if not is_concrete(arguments):
        raise ValueError(
            f"{name} runs on the host and needs concrete arguments; call it outside jit."
        )
