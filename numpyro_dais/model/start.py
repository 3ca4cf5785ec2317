# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""The start of chains: a draw and its log density, in the unconstrained space of a model."""

from collections.abc import Callable
from typing import NamedTuple

import jax
from jax import random
import jax.numpy as jnp

import numpyro
from numpyro.distributions import Distribution

from numpyro_dais._util.checks import with_article
from numpyro_dais.model.density import ModelDensity, Position
from numpyro_dais.model.guide import Draw, Part, guide_part, pieces_of, traced_part
from numpyro_dais.model.inspection import Trace, check_site_names
from numpyro_dais.model.problem import Problem

__all__ = ["Start", "make_start"]

_ADD_TO_START = "Add a distribution for each"


class Start(NamedTuple):
    """
    The start of the chains.

    :param sample_fn: an exact draw, as unconstrained values by site.
    :param log_density_fn: its log density at unconstrained values, given the model's trace there.
    """

    sample_fn: Callable[[jax.Array], Position]
    log_density_fn: Callable[[Position, Trace], jax.Array]


def make_start(problem: Problem, density: ModelDensity) -> Start:
    """
    Returns the start of a problem with a model.

    :param problem: the problem; its guide is not a flow.
    :param density: of the problem's model.
    """
    if problem.guide is not None:
        parts = [guide_part(piece, problem, density) for piece in pieces_of(problem.guide)]
        return _combine(parts, density, "The guide", "Add a sample site for each")
    if isinstance(problem.start, str):
        return Start(density.sample, density.log_prior)
    if isinstance(problem.start, Distribution):
        if len(density.structure.prototype) > 1:
            return _vector_start(problem.start, density)
        (name,) = density.structure.prototype
        distributions = {name: problem.start}
    else:
        distributions = problem.start
    return _combine([_distributions_part(distributions, density)], density, "start=", _ADD_TO_START)


def _combine(parts: list[Part], density: ModelDensity, what: str, remedy: str) -> Start:
    def draw(rng_key: jax.Array) -> Draw:
        keys = random.split(rng_key, len(parts))
        draws = [part.sample_fn(key) for part, key in zip(parts, keys, strict=True)]
        position = {name: u for d in draws for name, u in d.position.items()}
        return Draw(position, {name: x for d in draws for name, x in d.values.items()})

    names = jax.eval_shape(draw, random.key(0))
    given = {*names.position, *names.values}
    check_site_names(what, given, set(density.structure.prototype), remedy)

    def sample_fn(rng_key: jax.Array) -> Position:
        position, values = draw(rng_key)
        return density.unconstrain(position, values) if values else position

    def log_density_fn(position: Position, trace: Trace) -> jax.Array:
        first, *others = [part.log_density_fn(position, trace) for part in parts]
        return sum(others, start=first)

    return Start(sample_fn, log_density_fn)


def _vector_start(start: Distribution, density: ModelDensity) -> Start:
    """A distribution over all unconstrained values as one vector."""
    if density.problem.plates:
        raise NotImplementedError(
            "With plate= the start must factorise over the plate; give start= as a dict with one "
            "distribution per site."
        )
    shape = jax.eval_shape(density.layout.ravel, density.structure.prototype).shape
    if start.shape() != shape:
        raise ValueError(
            f"start= must be a distribution over the {shape[0]} unconstrained values of the sites "
            f"{sorted(density.structure.prototype)} as one vector; got shape {start.shape()}. Give it that "
            "shape, or a dict with one distribution per site."
        )
    return Start(
        lambda rng_key: density.layout.unravel(start.sample(rng_key)),
        lambda position, _: jnp.sum(start.log_prob(density.layout.ravel(position))),
    )


def _distributions_part(start: dict[str, Distribution], density: ModelDensity) -> Part:
    """Distributions over the constrained values of sites, broadcast to the sites' shapes."""
    check_site_names("start=", set(start), set(density.structure.prototype), _ADD_TO_START)
    sites = density.run(density.structure.prototype)

    def broadcast(name: str) -> Distribution:
        value, event_dim = sites[name]["value"], sites[name]["fn"].event_dim
        batch_shape = jnp.shape(value)[: jnp.ndim(value) - event_dim]
        try:
            fn = start[name].expand(batch_shape)
            if fn.shape() == jnp.shape(value):
                return fn
        except ValueError:
            pass
        raise ValueError(
            f"start={{{name!r}: ...}} must fit the site's shape {jnp.shape(value)}; got "
            f"{with_article(type(start[name]).__name__)} of shape {start[name].shape()}."
        )

    fns = {name: broadcast(name) for name in start}

    def guide(*args: object, **kwargs: object) -> None:
        for name, fn in fns.items():
            numpyro.sample(name, fn)

    return traced_part(guide, density)
