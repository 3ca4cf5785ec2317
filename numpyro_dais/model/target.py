# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""A problem as the chains see it: densities over flat positions, exact draws, and the way back."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jax import random
import jax.numpy as jnp
import numpy as np

from numpyro.distributions import Distribution
from numpyro.distributions.transforms import ComposeTransform

from numpyro_dais._util.numpyro_internals import unpack_fn
from numpyro_dais.model.density import ModelDensity, Position, make_layout
from numpyro_dais.model.dynamics import end_likelihood, step_likelihood
from numpyro_dais.model.guide import FLOW_GUIDES, flow_posterior
from numpyro_dais.model.inspection import inspect_model
from numpyro_dais.model.problem import Problem
from numpyro_dais.model.start import make_start
from numpyro_dais.model.subsampling import LikelihoodFn
from numpyro_dais.sampler.mixture import FittedStart
from numpyro_dais.sampler.path import DynamicsFn, LogDensities, Target

__all__ = ["coordinate_order", "make_target"]


def make_target(problem: Problem) -> Target:
    """
    Returns the target of a problem, or raises an error that says why there is none.

    :param problem: a model or potential function, its arguments and the start.
    """
    if problem.potential_fn is not None:
        return _potential_target(problem)
    density = ModelDensity(problem, inspect_model(problem))
    if isinstance(problem.guide, FLOW_GUIDES):
        return _flow_target(problem, density)
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

    return Target(
        sample_fn=lambda rng_key: density.layout.ravel(start.sample_fn(rng_key)),
        log_densities_fn=partial(with_likelihood, end_likelihood(problem, density)),
        constrain_fn=lambda position: density.constrain(density.layout.unravel(position)),
        ravel_fn=density.layout.ravel,
        dynamics_fn=_dynamics(problem, density, with_likelihood),
    )


def coordinate_order(problem: Problem) -> np.ndarray:
    """
    Returns the coordinates of a position in the order in which the model draws its sites: what others depend
    on comes first. Of a potential function, the order of its argument.

    :param problem: a problem without plates of its own.
    """
    if problem.potential_fn is not None:
        shape = jax.eval_shape(make_target(problem).sample_fn, random.key(0)).shape
        return np.arange(shape[0])
    structure = inspect_model(problem)
    layout = make_layout(structure.prototype)
    num_dims = sum(jnp.size(value) for value in structure.prototype.values())
    indices = layout.unravel(jnp.arange(num_dims, dtype=float))
    return np.concatenate([np.ravel(indices[name]) for name in structure.prototype]).astype(int)


def _dynamics(
    problem: Problem,
    density: ModelDensity,
    with_likelihood: Callable[[LikelihoodFn, jax.Array], LogDensities],
) -> DynamicsFn | None:
    likelihood_of = step_likelihood(problem, density)
    if likelihood_of is None:
        return None
    return lambda batch_key, index: partial(with_likelihood, likelihood_of(batch_key, index))


def _flow_target(problem: Problem, density: ModelDensity) -> Target:
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
    base, transform = posterior.base_dist, ComposeTransform(posterior.transforms)
    unpack = unpack_fn(problem.guide)

    def to_sites(noise: jax.Array) -> tuple[Position, jax.Array]:
        latent, intermediates = transform.call_with_intermediates(noise)
        return unpack(latent), transform.log_abs_det_jacobian(noise, latent, intermediates)

    def with_likelihood(likelihood_fn: LikelihoodFn, noise: jax.Array) -> LogDensities:
        values, log_det = to_sites(noise)
        trace = density.run(values)
        log_start = base.log_prob(noise)
        log_prior = density.log_prior(values, trace) + log_det
        return LogDensities(log_start, log_prior - log_start + likelihood_fn(values, trace))

    return Target(
        sample_fn=base.sample,
        log_densities_fn=partial(with_likelihood, end_likelihood(problem, density)),
        constrain_fn=lambda noise: density.constrain(to_sites(noise)[0]),
        ravel_fn=density.layout.ravel,
        dynamics_fn=_dynamics(problem, density, with_likelihood),
    )


def _potential_target(problem: Problem) -> Target:
    """A density given by its potential function, over an array or a dict of arrays."""
    start, potential_fn = problem.base_start, problem.potential_fn
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

    fitted = problem.start if isinstance(problem.start, FittedStart) else None

    def sample_fn(rng_key: jax.Array) -> jax.Array:
        if fitted is None:
            return layout.ravel(sample(rng_key))
        return fitted.sample(rng_key, lambda key: layout.ravel(sample(key)))

    def log_densities_fn(position: jax.Array) -> LogDensities:
        values = layout.unravel(position)
        log_q0 = log_start(values)
        if fitted is not None:
            log_q0 = fitted.log_density(position, log_q0)
        return LogDensities(log_q0, -potential_fn(values) - log_q0)

    return Target(
        sample_fn=sample_fn,
        log_densities_fn=log_densities_fn,
        constrain_fn=layout.unravel,
        ravel_fn=layout.ravel,
    )
