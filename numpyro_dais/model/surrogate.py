# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

r"""
Surrogate dynamics: steps that need no data, between end points that use all of it.

The steps of a chain may follow any differentiable density whatsoever; the weight stays unbiased for
:math:`p(D)` as long as the two ends are exact. Mini-batch gradients make use of that, but their
noise leaves a gap that no number of steps closes. A deterministic surrogate of the likelihood
leaves none of that kind: as the steps become many the gap falls to :math:`KL(\tilde p \,\|\, p)`,
from the surrogate's posterior to the true one, which with much data is small. The surrogate here is
the quadratic expansion of the log likelihood around the mode of the posterior, whose error falls
with the size of the data; prior and Jacobians stay exact.

**References**

1. *Surrogate Likelihoods for Variational Annealed Importance Sampling*,
   Martin Jankowiak, Du Phan (ICML 2022)
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax import random
import jax.numpy as jnp
import numpy as np

from numpyro_dais.model.density import ModelDensity, Position
from numpyro_dais.model.inspection import Trace, inspect_model
from numpyro_dais.model.modes import Mode, find_mode, spectrum_of
from numpyro_dais.model.problem import Problem
from numpyro_dais.model.start import make_start
from numpyro_dais.model.subsampling import LikelihoodFn, full_likelihood

__all__ = ["QuadraticSurrogate", "check_surrogate", "fit_quadratic", "quadratic_likelihood"]

# Draws of the start whose median the search begins at: odd, so that it is one of them along each
# axis, and enough to be well inside. A round number.
_NUM_DRAWS = 101


class QuadraticSurrogate(NamedTuple):
    r"""
    A quadratic log likelihood of the unconstrained values :math:`u` (sites in alphabetical order),
    up to a constant:

    .. math::

        \tilde\ell(u) = g^\top (u - c) + \tfrac12 (u - c)^\top H (u - c) .

    :param center: :math:`c`, the mode of the posterior.
    :param gradient: :math:`g`, of the log likelihood there.
    :param hessian: :math:`H`, likewise; its positive eigenvalues are set to zero, since a
        likelihood that grows quadratically would carry particles away.
    :param num_gradients: full-data gradients that the fit took; a Hessian counts as one for each
        dimension.
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
    Returns the quadratic expansion of the log likelihood around the mode of the posterior, and that
    mode, which says whether it was found.

    The search runs on the host, from the median of the start and in units of its spread, around
    programs that are compiled once for all data of a shape.

    :param problem: a problem with a model and concrete arguments.
    """

    def density_fn(position: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = _joint_and_gradient(problem, jnp.asarray(position, float))
        return float(value), np.asarray(gradient, np.float64)

    def curvature_fn(position: np.ndarray) -> np.ndarray:
        return -np.asarray(_joint_hessian(problem, jnp.asarray(position, float)))

    center, spread = (np.asarray(x, np.float64) for x in _center_and_spread(problem))
    mode = find_mode(density_fn, curvature_fn, center, spread)
    position = jnp.asarray(mode.position, float)
    # The prior needs no data: its share of the derivatives costs next to nothing.
    prior_gradient, prior_hessian = _prior_derivatives(problem, position)
    hessian = spectrum_of(-mode.precision - np.asarray(prior_hessian)).concave().matrix
    surrogate = QuadraticSurrogate(
        position,
        jnp.asarray(mode.gradient - np.asarray(prior_gradient), float),
        jnp.asarray(hessian, float),
        # An array: a Python int would be static, and each number of gradients a program of its own.
        jnp.asarray(mode.num_gradients),
    )
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


def _density(problem: Problem) -> ModelDensity:
    return ModelDensity(problem, inspect_model(problem))


def _log_joint(problem: Problem, position: jax.Array) -> jax.Array:
    """Returns the log joint density with all the data, in chunks where they are in a data plate."""
    density, plate = _density(problem), problem.data_plate
    likelihood_fn = density.log_likelihood if plate is None else full_likelihood(density, plate)
    values = density.layout.unravel(position)
    trace = density.run(values)
    return density.log_prior(values, trace) + likelihood_fn(values, trace)


def _log_prior(problem: Problem, position: jax.Array) -> jax.Array:
    density = _density(problem)
    values = density.layout.unravel(position)
    return density.log_prior(values, density.run(values))


@jax.jit
def _center_and_spread(problem: Problem) -> tuple[jax.Array, jax.Array]:
    """Returns the median of the start, and its interquartile range (1 where that is zero)."""
    density = _density(problem)
    sample_fn = make_start(problem, density).sample_fn
    keys = random.split(random.key(0), _NUM_DRAWS)
    draws = jax.vmap(lambda key: density.layout.ravel(sample_fn(key)))(keys)
    low, median, high = jnp.quantile(draws, jnp.array([0.25, 0.5, 0.75]), axis=0)
    return median, jnp.where(high > low, high - low, 1.0)


@jax.jit
def _joint_and_gradient(problem: Problem, position: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jax.value_and_grad(_log_joint, argnums=1)(problem, position)


@jax.jit
def _joint_hessian(problem: Problem, position: jax.Array) -> jax.Array:
    return _hessian(_log_joint)(problem, position)


@jax.jit
def _prior_derivatives(problem: Problem, position: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the gradient and the Hessian of the log prior density."""
    gradient = jax.grad(_log_prior, argnums=1)(problem, position)
    return gradient, _hessian(_log_prior)(problem, position)


def _hessian(fn: Callable[[Problem, jax.Array], jax.Array]) -> Callable[..., jax.Array]:
    return jax.jacfwd(jax.grad(fn, argnums=1), argnums=1)
