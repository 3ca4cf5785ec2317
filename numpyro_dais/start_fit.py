# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Fits of a start to the posterior: its modes, Laplace's approximation around them, a variational fit."""

from collections.abc import Callable
import math
from typing import NamedTuple

import jax
from jax import lax, random
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize

from numpyro_dais.ascent import ascend
from numpyro_dais.fitted_start import Component, Mixture, from_noise, to_noise
from numpyro_dais.problem import Problem
from numpyro_dais.target import make_target

__all__ = [
    "MAX_DENSE_DIMS",
    "NO_TILT",
    "VARIATIONAL_DRAWS",
    "Modes",
    "Tilt",
    "curvature_at",
    "find_modes",
    "gaussian_component",
    "laplace_mixture",
    "log_joint",
    "log_joint_and_gradient",
    "neck_of",
    "variational_fit",
]

MAX_DENSE_DIMS = 100  # of a full covariance
VARIATIONAL_DRAWS = 16  # in one iteration
_MAX_ITERATIONS = 200  # of a search for a mode
_MAX_MODES = 8
_NATS_BELOW = 10.0  # a mode whose share is smaller than exp of minus this does not count
_VALLEY = 1.0  # nats
_NECK = 4.0  # standard deviations from the middle
_SMALL_INFLUENCE = 0.1  # a sum of squares of changes of log widths

# The log density at a position, and its gradient.
DensityFn = Callable[[np.ndarray], tuple[float, np.ndarray]]


class Modes(NamedTuple):
    """
    Local maxima of a density.

    :param positions: ``[num_modes, num_dims]``, the highest first.
    :param log_densities: ``[num_modes]``.
    :param num_evaluations: of the density with its gradient.
    """

    positions: np.ndarray
    log_densities: np.ndarray
    num_evaluations: int


class Tilt(NamedTuple):
    """
    A Gaussian factor in one coordinate, which draws a fit to where it would not go.

    :param axis: the coordinate, in the order of the fit.
    :param center: its mean.
    :param precision: the inverse of its variance; 0 for none.
    """

    axis: jax.Array | int
    center: jax.Array | float
    precision: jax.Array | float

    def log_factor(self, ordered: jax.Array) -> jax.Array:
        """Returns its logarithm at ordered coordinates."""
        return -0.5 * self.precision * (ordered[self.axis] - self.center) ** 2


NO_TILT = Tilt(0, 0.0, 0.0)


def neck_of(component: Component) -> Tilt | None:
    """
    Returns the factor that draws a fit into the neck of a funnel: along the coordinate on which the widths of others
    depend most, to the side where they are narrow. None if no width depends on any.

    :param component: a fit of the whole.
    """
    if component.slopes is None:
        return None
    slopes = np.tril(component.slopes, -1)
    influence = np.sum(slopes**2, axis=0)
    axis = int(np.argmax(influence))
    if influence[axis] < _SMALL_INFLUENCE:
        return None
    side = -float(np.sign(np.sum(slopes[:, axis])))
    near, far = (
        float(from_noise(component, jnp.zeros_like(component.loc).at[axis].set(z * side))[axis])
        for z in (_NECK - 1, _NECK)
    )
    return Tilt(axis, far, (far - near) ** -2)


def log_joint(problem: Problem, position: jax.Array) -> jax.Array:
    """Returns the log joint density of the problem at a position; minus infinity where it is undefined."""
    log_start, log_ratio = make_target(problem).log_densities_fn(position)
    value = log_start + log_ratio
    return jnp.where(jnp.isnan(value), -jnp.inf, value)


def log_joint_and_gradient(problem: Problem, position: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the log joint density of the problem at a position, and its gradient."""
    value, gradient = jax.value_and_grad(log_joint, argnums=1)(problem, position)
    return value, gradient


def curvature_at(problem: Problem, position: jax.Array) -> jax.Array:
    """Returns minus the Hessian of the log joint density; its diagonal alone if it is large."""
    gradient_fn = jax.grad(log_joint, argnums=1)

    def column(direction: jax.Array) -> jax.Array:
        return -jax.jvp(lambda u: gradient_fn(problem, u), (position,), (direction,))[1]

    identity = jnp.eye(position.size, dtype=position.dtype)
    if position.size <= MAX_DENSE_DIMS:
        return jax.vmap(column)(identity)
    # One direction at a time: all at once would take the square of the memory.
    return lax.map(lambda direction: jnp.dot(direction, column(direction)), identity)


def find_modes(
    density_fn: DensityFn,
    starts: np.ndarray,
    center: np.ndarray,
    scale: np.ndarray,
    max_evaluations: int,
) -> Modes:
    """
    Returns the maxima that searches from several positions have found, each once.

    :param density_fn: the log density and its gradient.
    :param starts: where the searches begin, ``[num_starts, num_dims]``.
    :param center: the origin of the units in which steps are taken.
    :param scale: these units.
    :param max_evaluations: after which no search begins, and the last one ends.
    """
    num_evaluations = 0

    def loss_fn(scaled: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal num_evaluations
        num_evaluations += 1
        value, gradient = density_fn(center + scale * scaled)
        if not (np.isfinite(value) and np.all(np.isfinite(gradient))):
            return 1e30, np.zeros_like(scaled)
        return -value, -gradient * scale

    ends, values = [], []
    for start in starts:
        if num_evaluations >= max_evaluations:
            break
        begin = (start - center) / scale
        left = max_evaluations - num_evaluations
        options = {"maxiter": _MAX_ITERATIONS, "maxls": 30, "maxfun": left}
        result = minimize(loss_fn, begin, jac=True, method="L-BFGS-B", options=options)
        if np.isfinite(result.fun) and result.fun < 1e29:
            ends.append(center + scale * result.x)
            values.append(-float(result.fun))
    order = np.argsort(values)[::-1]
    num_dims = starts.shape[1]
    return Modes(
        np.array(ends).reshape(-1, num_dims)[order], np.array(values)[order], num_evaluations
    )


def laplace_mixture(
    modes: Modes,
    density_fn: DensityFn,
    curvature_fn: Callable[[np.ndarray], np.ndarray],
    order: np.ndarray,
) -> tuple[Mixture, int]:
    """
    Returns Laplace's approximation around each distinct mode, and the number of Hessians it took. Shares are
    the approximate evidences of the modes; those without a noticeable one are left out.

    :param modes: ends of searches, the highest first.
    :param density_fn: the log density and its gradient.
    :param curvature_fn: minus the Hessian of the log density, or its diagonal.
    :param order: the order of the coordinates.
    """
    kept: list[tuple[Component, np.ndarray, np.ndarray, float]] = []
    num_hessians = 0
    for position, value in zip(modes.positions, modes.log_densities, strict=True):
        if any(_is_near(position, other, precision) for _, other, precision, _ in kept):
            continue
        if not all(_is_apart(density_fn, position, other) for _, other, _, _ in kept):
            continue
        if len(kept) == _MAX_MODES:
            break
        num_hessians += 1
        component, precision = _laplace(position, curvature_fn(position), order)
        log_evidence = value + float(np.sum(component.log_scale))
        kept.append((component, position, precision, log_evidence))
    log_evidences = np.nan_to_num([entry[3] for entry in kept], nan=-1e30, neginf=-1e30)
    is_kept = log_evidences > log_evidences.max() - _NATS_BELOW
    components = [entry[0] for entry, keep in zip(kept, is_kept, strict=True) if keep]
    log_shares = log_evidences[is_kept] - np.logaddexp.reduce(log_evidences[is_kept])
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *components)
    return Mixture(jnp.asarray(order), stacked, jnp.asarray(log_shares, float)), num_hessians


def gaussian_component(loc: np.ndarray, covariance: np.ndarray) -> Component:
    """
    Returns a Gaussian as a mode.

    :param loc: its mean, ordered.
    :param covariance: ``[num_dims, num_dims]``, or its diagonal.
    """
    if covariance.ndim == 1:
        return Component(jnp.asarray(loc, float), jnp.asarray(np.log(covariance) / 2, float))
    lower = np.linalg.cholesky(covariance)
    scale = np.diag(lower)
    coupling = np.eye(len(loc)) - np.linalg.inv(lower / scale[:, None])
    return Component(
        jnp.asarray(loc, float), jnp.asarray(np.log(scale), float), jnp.asarray(coupling, float)
    )


def variational_fit(
    rng_key: jax.Array,
    problem: Problem,
    component: Component,
    order: jax.Array,
    learning_rate: jax.Array,
    tilt: Tilt,
    num_iterations: int,
) -> tuple[Component, jax.Array]:
    r"""
    Returns a mode that has been fitted by ascent on the ELBO, and the ELBO along the way.

    Gradients go through the draws only, not through the density of the mode at them: they have no noise once
    the fit is exact (Roeder, Wu and Duvenaud 2017). The learning rate falls to zero as a cosine.

    :param rng_key: a JAX random key.
    :param problem: the problem, whose joint density is to be fitted.
    :param component: where the fit begins; what is None in it stays so.
    :param order: the order of the coordinates.
    :param learning_rate: of Adam, in units of the scale at the beginning.
    :param tilt: a factor of the joint density.
    :param num_iterations: each with ``VARIATIONAL_DRAWS`` gradients.
    """
    unit = jnp.exp(component.log_scale)
    num_dims = component.loc.size

    def unpack(params: Component) -> Component:
        slopes = params.slopes
        return params._replace(
            loc=component.loc + unit * params.loc,
            log_scale=component.log_scale + params.log_scale,
            # Many slopes add up in one exponent: the more there are, the smaller their steps.
            slopes=None if slopes is None else slopes / math.sqrt(num_dims),
        )

    def bound_fn(params: Component, key: jax.Array) -> jax.Array:
        fitted = unpack(params)
        fixed = lax.stop_gradient(fitted)

        def elbo(noise: jax.Array) -> jax.Array:
            ordered = from_noise(fitted, noise)
            back, log_det = to_noise(fixed, ordered)
            log_q = log_det - 0.5 * jnp.sum(back**2) - 0.5 * num_dims * math.log(2 * math.pi)
            position = jnp.zeros_like(ordered).at[order].set(ordered)
            return log_joint(problem, position) + tilt.log_factor(ordered) - log_q

        return jnp.mean(jax.vmap(elbo)(random.normal(key, (VARIATIONAL_DRAWS, num_dims))))

    zeros = jnp.zeros_like(component.loc)
    slopes = None if component.slopes is None else component.slopes * math.sqrt(num_dims)
    begin = component._replace(loc=zeros, log_scale=zeros, slopes=slopes)
    params, elbos = ascend(rng_key, bound_fn, begin, num_iterations, learning_rate)
    return unpack(params), elbos


def _laplace(
    position: np.ndarray, curvature: np.ndarray, order: np.ndarray
) -> tuple[Component, np.ndarray]:
    """Laplace's approximation, and its precision in the original order."""
    curvature = np.asarray(curvature, np.float64)
    if curvature.ndim == 1:
        diagonal = _positive(curvature)
        return gaussian_component(position[order], 1 / diagonal[order]), diagonal
    eigenvalues, eigenvectors = np.linalg.eigh((curvature + curvature.T) / 2)
    eigenvalues = _positive(eigenvalues)
    covariance = (eigenvectors / eigenvalues) @ eigenvectors.T
    precision = (eigenvectors * eigenvalues) @ eigenvectors.T
    return gaussian_component(position[order], covariance[np.ix_(order, order)]), precision


def _positive(curvature: np.ndarray) -> np.ndarray:
    """Curvatures made positive: a maximum has no others, but a search may stop short of one."""
    sizes = np.abs(np.nan_to_num(curvature, nan=1.0, posinf=1.0, neginf=1.0))
    return np.maximum(sizes, 1e-8 * max(sizes.max(), 1e-8))


def _is_apart(density_fn: DensityFn, one: np.ndarray, other: np.ndarray) -> bool:
    """Whether the density has a valley between two ends of searches, and not a ridge that both lie on."""
    values = [density_fn(one + share * (other - one))[0] for share in np.linspace(0, 1, 7)]
    return bool(min(values[1:-1]) < min(values[0], values[-1]) - _VALLEY)


def _is_near(position: np.ndarray, other: np.ndarray, precision: np.ndarray) -> bool:
    """Whether a search has ended at a mode that is known already."""
    offset = position - other
    along = precision * offset if precision.ndim == 1 else precision @ offset
    return float(offset @ along) < 1.0 + 0.1 * len(position)
