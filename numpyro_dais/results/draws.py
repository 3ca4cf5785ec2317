# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Posterior draws and expectations, from weighted particles."""

from collections.abc import Callable
from functools import partial
import math
from types import ModuleType
from typing import Any, NamedTuple

import jax
from jax import random
import jax.numpy as jnp
import numpy as np

from numpyro.util import is_prng_key

from numpyro_dais._util import weights
from numpyro_dais._util.checks import check_count
from numpyro_dais._util.concreteness import is_concrete, put_beside
from numpyro_dais._util.programs import program
from numpyro_dais.model.problem import Problem
from numpyro_dais.model.target import make_target
from numpyro_dais.model.traced import TracedFunction, trace_function, trace_target
from numpyro_dais.results.evidence import Evidence

__all__ = ["Expectation", "draw_samples", "expectation"]


class Expectation(NamedTuple):
    """
    Posterior expectations, each a tree of what the function returned.

    :param mean: the expectations.
    :param standard_error: their standard errors.
    """

    mean: Any
    standard_error: Any


def draw_samples(
    evidence: Evidence, rng_key: jax.Array | None = None, num_samples: int | None = None
) -> dict:
    """
    Returns posterior draws; see :meth:`~numpyro_dais.results.evidence.Evidence.samples`.

    :param evidence: a result.
    :param rng_key: the key of the resampling; a fixed one if left out.
    :param num_samples: the number of draws; as many as weights if left out.
    """
    if rng_key is None:
        rng_key = random.key(0)
    elif not is_prng_key(rng_key):
        raise ValueError(
            "The first argument of samples is a JAX random key, such as jax.random.key(0); got "
            f"{rng_key!r}. For a number of draws write num_samples=."
        )
    if is_concrete(evidence.log_weights) and not np.all(np.isfinite(evidence.log_evidence)):
        raise ValueError(
            "Every weight is zero, so there is nothing to draw from; see print(evidence)."
        )
    num_samples = check_count(
        "num_samples", evidence.num_weights if num_samples is None else num_samples, 0
    )
    if num_samples < 1:
        raise ValueError(f"num_samples must be at least 1; got {num_samples}.")
    draw_one = partial(_draw, num_samples=num_samples)
    return _over_batch(draw_one, evidence, rng_key)


def expectation(evidence: Evidence, fn: Callable[[dict], Any]) -> Expectation:
    """
    Returns posterior expectations; see
    :meth:`~numpyro_dais.results.evidence.Evidence.expectation`.

    :param evidence: a result.
    :param fn: a function of the values of one draw.
    """
    if evidence.batch_shape:
        batch: Expectation = jax.vmap(partial(expectation, fn=fn))(evidence)
        return batch
    shares = weights.weight_shares(evidence.log_weights)

    def summarise(values: jax.Array) -> tuple[jax.Array, jax.Array]:
        share = _beside(shares, values, evidence.problem.plate, len(evidence.problem.plates))
        # Where the weight is zero, so is the density, and a value may be anything.
        values = jnp.where(share > 0, values, 0.0)
        mean = jnp.sum(share * values, axis=0)
        return mean, jnp.sqrt(jnp.sum((share * (values - mean)) ** 2, axis=0))

    values = jax.vmap(fn)(_sites_at(evidence, evidence.positions))
    leaves, treedef = jax.tree.flatten(values)
    means, errors = zip(*map(summarise, leaves), strict=True)
    return Expectation(jax.tree.unflatten(treedef, means), jax.tree.unflatten(treedef, errors))


def _over_batch(
    draw_one: Callable[[Evidence, jax.Array], dict], evidence: Evidence, rng_key: jax.Array
) -> dict:
    """Draws of each run of a batch, with a key of its own."""
    if not evidence.batch_shape:
        return draw_one(evidence, rng_key)
    keys = random.split(rng_key, evidence.batch_shape[0])
    draws: dict = jax.vmap(partial(_over_batch, draw_one))(evidence, keys)
    return draws


def _draw(evidence: Evidence, rng_key: jax.Array, num_samples: int) -> dict:
    # NumPy chooses among concrete particles: nothing is compiled for that.
    xp = np if is_concrete(evidence) else jnp
    shares = weights.weight_shares(xp.asarray(evidence.log_weights), xp)
    uniform = xp.asarray(random.uniform(rng_key, shares.shape[1:]))
    indices = _ancestors(uniform, shares, num_samples, xp)
    positions = xp.asarray(evidence.positions)
    index = indices.reshape(*indices.shape, *(1,) * (positions.ndim - indices.ndim))
    chosen = xp.take_along_axis(positions, index, axis=0)
    return _sites_at(evidence, put_beside(chosen, evidence.log_weights) if xp is np else chosen)


def _ancestors(uniform: Any, shares: Any, num_samples: int, xp: ModuleType) -> Any:
    """Indices of particles, ``[num_samples]``, or for each element of a plate its own."""
    draw = partial(weights.systematic, xp=xp, num_draws=num_samples)
    if shares.ndim == 1:
        return draw(uniform, shares)
    if xp is jnp:
        return jax.vmap(draw, (0, 1), 1)(uniform, shares)
    return np.stack([draw(u, column) for u, column in zip(uniform, shares.T, strict=True)], axis=1)


def _sites_at(evidence: Evidence, positions: jax.Array) -> dict:
    """Values of the model's sites at many positions, by a program that results share."""
    problem = evidence.problem
    target = trace_target(problem, random.key(0))
    example = np.zeros(positions.shape[1:], positions.dtype)
    return _values_at(trace_function(target, problem, "sites", _sites_of, example), positions)


def _sites_of(problem: Problem, position: jax.Array) -> dict:
    values: dict = make_target(problem).constrain_fn(position)
    return values


@program(is_brief=True)
def _values_at(sites_fn: TracedFunction, positions: jax.Array) -> dict:
    values: dict = jax.vmap(sites_fn)(positions)
    return values


def _beside(
    shares: jax.Array, values: jax.Array, plate: str | tuple[str, ...] | None, num_plates: int
) -> jax.Array:
    """The weights of particles, and of elements of a plate, next to values of a function."""
    elements = values.shape[1 : 1 + num_plates]
    if num_plates and math.prod(elements) != shares.shape[-1]:
        raise ValueError(
            f"With plate={plate!r} the function of an expectation must return arrays whose first axes are those of "
            f"the plate, {shares.shape[-1]} elements; got shape {values.shape[1:]}."
        )
    trailing = (1,) * (values.ndim - 1 - num_plates)
    return shares.reshape(len(shares), *elements, *trailing)
