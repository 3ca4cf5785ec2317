# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""A problem as the chains see it: densities over flat positions, exact draws, and the way back."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
from jax import random
import jax.numpy as jnp
import numpy as np

from numpyro.distributions import Distribution, Normal
from numpyro.distributions.transforms import ComposeTransform

from numpyro_dais._util.numpyro_internals import autoguide_posterior, unpack_fn
from numpyro_dais.model.density import ModelDensity, Position, make_layout
from numpyro_dais.model.dynamics import end_likelihood, step_likelihood
from numpyro_dais.model.guide import (
    FLOW_GUIDES,
    flow_posterior,
    guide_scale,
    position_order,
    set_up,
)
from numpyro_dais.model.inspection import ModelStructure, coordinates_of, inspect_model
from numpyro_dais.model.problem import Problem
from numpyro_dais.model.start import make_start
from numpyro_dais.model.subsampling import LikelihoodFn
from numpyro_dais.sampler.path import DynamicsFn, LogDensities, LogDensitiesFn

__all__ = ["ModelTarget", "coordinate_order", "make_target"]


class ModelTarget(NamedTuple):
    """
    A problem as chains see it, :class:`~numpyro_dais.sampler.path.Target`, and the way back.

    :param sample_fn: an exact draw from the start.
    :param log_densities_fn: both ends of the path.
    :param constrain_fn: the values of the model's sites at a position.
    :param ravel_fn: the position of unconstrained values by site.
    :param dynamics_fn: what steps follow instead, if anything.
    """

    sample_fn: Callable[[jax.Array], jax.Array]
    log_densities_fn: LogDensitiesFn
    constrain_fn: Callable[[jax.Array], Any]
    ravel_fn: Callable[[Any], jax.Array]
    dynamics_fn: DynamicsFn | None = None


def make_target(
    problem: Problem, structure: ModelStructure | None = None, is_in_noise: bool = False
) -> ModelTarget:
    """
    Returns the target of a problem, or raises an error that says why there is none.

    :param problem: a model or potential function, its arguments and the start.
    :param structure: of the model, if it is known already; it takes a run of the model to find.
    :param is_in_noise: whether positions are the noise behind a guide of :data:`DENSE_GUIDES`, in
        which its covariance is the unit. Chains are the same, and need no triangular solves.
    """
    if problem.potential_fn is not None:
        return _potential_target(problem)
    density = ModelDensity(problem, structure or inspect_model(problem))
    if isinstance(problem.guide, FLOW_GUIDES):
        return _flow_target(problem, density)
    if is_in_noise:
        return _noise_target(problem, density)
    start = make_start(problem, density)
    is_start_prior = problem.guide is None and isinstance(problem.start, str)

    def with_likelihood(likelihood_fn: LikelihoodFn, position: jax.Array) -> LogDensities:
        values = density.layout.unravel(position)
        trace = density.run(values)
        log_likelihood = likelihood_fn(values, trace)
        if is_start_prior:
            return LogDensities(density.log_prior(values, trace), log_likelihood)
        log_start = start.log_density_fn(values, trace)
        return LogDensities(
            log_start, density.log_prior(values, trace) - log_start + log_likelihood
        )

    return ModelTarget(
        sample_fn=lambda rng_key: density.layout.ravel(start.sample_fn(rng_key)),
        log_densities_fn=partial(with_likelihood, end_likelihood(problem, density)),
        constrain_fn=lambda position: density.constrain(density.layout.unravel(position)),
        ravel_fn=density.layout.ravel,
        dynamics_fn=_dynamics(problem, density, with_likelihood),
    )


def coordinate_order(structure: ModelStructure) -> np.ndarray:
    """
    Returns the coordinates of a position in the order in which the model draws its sites: what
    others depend on comes first.

    :param structure: of a model without plates of its own.
    """
    coordinates = coordinates_of(structure)
    return np.concatenate([coordinates[name] for name in structure.prototype])


def _dynamics(
    problem: Problem,
    density: ModelDensity,
    with_likelihood: Callable[[LikelihoodFn, jax.Array], LogDensities],
) -> DynamicsFn | None:
    likelihood_of = step_likelihood(problem, density)
    if likelihood_of is None:
        return None
    return lambda batch_key, index: partial(with_likelihood, likelihood_of(batch_key, index))


def _flow_target(problem: Problem, density: ModelDensity) -> ModelTarget:
    """
    Chains in the noise space of a flow, where the start is standard normal: inverting the flow at
    every step is avoided, and the path is the one in the space of the sites, pulled back.
    """
    if problem.plates:
        raise ValueError(
            f"With plate={problem.plate!r} the guide must factorise over that plate; a "
            f"{type(problem.guide).__name__} does not. Use AutoNormal, or leave plate= out."
        )
    posterior = flow_posterior(problem)
    transform = ComposeTransform(posterior.transforms)
    unpack = unpack_fn(problem.guide)

    def to_sites(noise: jax.Array) -> tuple[Position, jax.Array]:
        latent, intermediates = transform.call_with_intermediates(noise)
        return unpack(latent), transform.log_abs_det_jacobian(noise, latent, intermediates)

    return _pulled_back(problem, density, posterior.base_dist, to_sites)


def _noise_target(problem: Problem, density: ModelDensity) -> ModelTarget:
    """Chains in the noise space of a Gaussian guide, in the order of positions."""
    guide = set_up(problem.guide, problem)
    scale, order = guide_scale(guide, problem.guide_params), position_order(guide)
    assert scale is not None
    loc = autoguide_posterior(guide, problem.guide_params).mean[order]
    log_det = jnp.sum(jnp.log(jnp.abs(jnp.diagonal(scale))))
    base = Normal(jnp.zeros_like(loc), 1.0).to_event(1)

    def to_sites(noise: jax.Array) -> tuple[Position, jax.Array]:
        return density.layout.unravel(loc + scale @ noise), log_det

    def sample_fn(rng_key: jax.Array) -> jax.Array:
        """The noise behind the draw that a start makes of the same key, in a position's order."""
        (guide_key,) = random.split(rng_key, 1)
        return base.sample(guide_key)[order]

    return _pulled_back(problem, density, base, to_sites)._replace(sample_fn=sample_fn)


def _pulled_back(
    problem: Problem,
    density: ModelDensity,
    base: Distribution,
    to_sites: Callable[[jax.Array], tuple[Position, jax.Array]],
) -> ModelTarget:
    """
    A target over noise, from the map to unconstrained values by site and its log determinant.
    """

    def with_likelihood(likelihood_fn: LikelihoodFn, noise: jax.Array) -> LogDensities:
        values, log_det = to_sites(noise)
        trace = density.run(values)
        log_start = base.log_prob(noise)
        log_prior = density.log_prior(values, trace) + log_det
        return LogDensities(log_start, log_prior - log_start + likelihood_fn(values, trace))

    return ModelTarget(
        sample_fn=base.sample,
        log_densities_fn=partial(with_likelihood, end_likelihood(problem, density)),
        constrain_fn=lambda noise: density.constrain(to_sites(noise)[0]),
        ravel_fn=density.layout.ravel,
        dynamics_fn=_dynamics(problem, density, with_likelihood),
    )


def _potential_target(problem: Problem) -> ModelTarget:
    """A density given by its potential function, over an array or a dict of arrays."""
    start, potential_fn = problem.start, problem.potential_fn
    assert potential_fn is not None
    is_distribution = lambda leaf: isinstance(leaf, Distribution)  # noqa: E731

    def sample(rng_key: jax.Array) -> Any:
        fns, treedef = jax.tree.flatten(start, is_leaf=is_distribution)
        keys = random.split(rng_key, len(fns))
        draws = [fn.sample(key) for fn, key in zip(fns, keys, strict=True)]
        return jax.tree.unflatten(treedef, draws)

    def log_start(values: Any) -> jax.Array:
        log_probs = jax.tree.map(
            lambda fn, value: jnp.sum(fn.log_prob(value)), start, values, is_leaf=is_distribution
        )
        return jax.tree.reduce(jnp.add, log_probs)

    shapes = jax.eval_shape(sample, random.key(0))
    layout = make_layout(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes))

    def log_densities_fn(position: jax.Array) -> LogDensities:
        values = layout.unravel(position)
        log_q0 = log_start(values)
        return LogDensities(log_q0, -potential_fn(values) - log_q0)

    return ModelTarget(
        sample_fn=lambda rng_key: layout.ravel(sample(rng_key)),
        log_densities_fn=log_densities_fn,
        constrain_fn=layout.unravel,
        ravel_fn=layout.ravel,
    )
