# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""The fit of a quadratic surrogate of the likelihood, around the mode of the posterior."""

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_dais._util.concreteness import as_floats
from numpyro_dais._util.programs import program
from numpyro_dais.model.density import ModelDensity
from numpyro_dais.model.inspection import inspect_model
from numpyro_dais.model.modes import Mode, find_mode, spectrum_of
from numpyro_dais.model.problem import Problem
from numpyro_dais.model.surrogate import QuadraticSurrogate
from numpyro_dais.model.traced import TracedFunction, TracedTarget, trace_function
from numpyro_dais.tuning.laplace import curvature_at, log_joint_and_gradient
from numpyro_dais.tuning.spread import start_draws, start_spread

__all__ = ["fit_quadratic"]


def fit_quadratic(
    rng_key: jax.Array, problem: Problem, target: TracedTarget
) -> tuple[QuadraticSurrogate, Mode]:
    """
    Returns the quadratic expansion of the log likelihood around the mode of the posterior, and that
    mode, which says whether it was found. The search begins at the median of the start.

    :param rng_key: a JAX random key.
    :param problem: a problem with a model and concrete arguments.
    :param target: of the problem.
    """
    dtype = jnp.result_type(float)

    def density_fn(position: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = log_joint_and_gradient(target, position.astype(dtype))
        return float(value), np.asarray(gradient, np.float64)

    def curvature_fn(position: np.ndarray) -> np.ndarray:
        return np.asarray(curvature_at(target, position.astype(dtype)))

    draws = np.asarray(start_draws(rng_key, target), np.float64)
    mode = find_mode(density_fn, curvature_fn, np.median(draws, axis=0), start_spread(draws))
    position = as_floats(mode.position)
    # The prior needs no data: its share of the derivatives costs next to nothing.
    log_prior_fn = trace_function(target, problem, "log prior", _log_prior, position)
    prior_gradient, prior_hessian = map(np.asarray, _derivatives(log_prior_fn, position))
    hessian = spectrum_of(-mode.precision - prior_hessian).concave().matrix
    surrogate = QuadraticSurrogate(
        position,
        as_floats(mode.gradient - prior_gradient),
        as_floats(hessian),
        # An array: a Python int would be static, and each number of gradients a program of its own.
        jax.device_put(np.asarray(mode.num_gradients)),
    )
    return surrogate, mode


def _log_prior(problem: Problem, position: jax.Array) -> jax.Array:
    density = ModelDensity(problem, inspect_model(problem))
    values = density.layout.unravel(position)
    return density.log_prior(values, density.run(values))


@program(is_brief=True)
def _derivatives(fn: TracedFunction, position: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The gradient and the Hessian of a function."""
    return jax.grad(fn)(position), jax.hessian(fn)(position)
