# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

r"""
Surrogate dynamics: steps that need no data, between end points that use all of it.

The steps of a chain may follow any differentiable density whatsoever; the weight stays unbiased for
:math:`p(D)` as long as the two ends are exact. Mini-batch gradients make use of that, but their noise leaves a
gap that no number of steps closes. A deterministic surrogate of the likelihood leaves none of that kind: as
the steps become many the gap falls to :math:`KL(\tilde p \,\|\, p)`, from the surrogate's posterior to the true one,
which with much data is small. The surrogate here is the quadratic expansion of the log likelihood around the
mode of the posterior, whose error falls with the size of the data; prior and Jacobians stay exact.

**References**

1. *Surrogate Likelihoods for Variational Annealed Importance Sampling*,
   Martin Jankowiak, Du Phan (ICML 2022)
"""

from typing import Any, NamedTuple

import jax
from jax import random
import jax.numpy as jnp

from numpyro_dais.model.density import ModelDensity, Position
from numpyro_dais.model.inspection import Trace, inspect_model
from numpyro_dais.model.modes import Mode, find_mode
from numpyro_dais.model.problem import Problem
from numpyro_dais.model.start import make_start
from numpyro_dais.model.subsampling import LikelihoodFn, full_likelihood

__all__ = ["QuadraticSurrogate", "check_surrogate", "fit_quadratic", "quadratic_likelihood"]

_NUM_DRAWS = 101


class QuadraticSurrogate(NamedTuple):
    r"""
    A quadratic log likelihood of the unconstrained values :math:`u` (sites in alphabetical order), up to a
    constant:

    .. math::

        \tilde\ell(u) = g^\top (u - c) + \tfrac12 (u - c)^\top H (u - c) .

    :param center: :math:`c`, the mode of the posterior.
    :param gradient: :math:`g`, of the log likelihood there.
    :param hessian: :math:`H`, likewise; its positive eigenvalues are set to zero, since a likelihood that grows
        quadratically would carry particles away.
    :param num_gradients: full-data gradients that the fit took; a Hessian counts as one for each dimension.
    """

    center: jax.Array
    gradient: jax.Array
    hessian: jax.Array
    num_gradients: int | jax.Array = 0

    def log_likelihood(self, position: jax.Array) -> jax.Array:
        r"""Returns :math:`\tilde\ell` at a position ``[num_dims]``."""
        offset = position - self.center
        return jnp.dot(self.gradient + self.hessian @ offset / 2, offset)


def check_surrogate(surrogate: Any) -> None:
    """Raises an error unless this can be the surrogate of an estimator."""
    is_named = isinstance(surrogate, str) and surrogate == "quadratic"
    if not (surrogate is None or is_named or isinstance(surrogate, QuadraticSurrogate)):
        raise ValueError(
            f"surrogate must be 'quadratic', or what `fit_surrogate` has returned; got {surrogate!r}."
        )


def fit_quadratic(problem: Problem) -> tuple[QuadraticSurrogate, Mode]:
    """
    Returns the quadratic expansion of the log likelihood around the mode of the posterior, and that mode.

    The search begins at the median of the start. May be traced; whether it has succeeded is in the mode.

    :param problem: a problem with a model.
    """
    density = ModelDensity(problem, inspect_model(problem))
    plate = problem.data_plate
    likelihood_fn = density.log_likelihood if plate is None else full_likelihood(density, plate)

    def log_prior_fn(position: jax.Array) -> jax.Array:
        values = density.layout.unravel(position)
        return density.log_prior(values, density.run(values))

    def log_joint_fn(position: jax.Array) -> jax.Array:
        values = density.layout.unravel(position)
        trace = density.run(values)
        return density.log_prior(values, trace) + likelihood_fn(values, trace)

    sample_fn = make_start(problem, density).sample_fn
    keys = random.split(random.key(0), _NUM_DRAWS)
    draws = jax.vmap(lambda key: density.layout.ravel(sample_fn(key)))(keys)
    mode = find_mode(log_joint_fn, jnp.median(draws, axis=0))
    # The prior needs no data: its share of the derivatives costs next to nothing.
    gradient = mode.gradient - jax.grad(log_prior_fn)(mode.position)
    hessian = -mode.precision - jax.hessian(log_prior_fn)(mode.position)
    surrogate = QuadraticSurrogate(mode.position, gradient, _concave(hessian), mode.num_gradients)
    return surrogate, mode


def quadratic_likelihood(surrogate: QuadraticSurrogate, density: ModelDensity) -> LikelihoodFn:
    """
    Returns the surrogate as a function of unconstrained values by site.

    :param surrogate: the surrogate.
    :param density: of the model.
    """
    num_dims = density.layout.ravel(density.structure.prototype).size
    if surrogate.center.shape != (num_dims,):
        raise ValueError(
            f"surrogate= is over {surrogate.center.size} unconstrained values; the model has {num_dims}. Fit it "
            "to this model: DAIS(model).fit_surrogate(*args)."
        )

    def likelihood_fn(values: Position, trace: Trace) -> jax.Array:
        return surrogate.log_likelihood(density.layout.ravel(values))

    return likelihood_fn


def _concave(hessian: jax.Array) -> jax.Array:
    eigenvalues, eigenvectors = jnp.linalg.eigh((hessian + hessian.T) / 2)
    return (eigenvectors * jnp.minimum(eigenvalues, 0.0)) @ eigenvectors.T
