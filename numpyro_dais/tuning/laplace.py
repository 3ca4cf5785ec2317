# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Laplace's approximation around each mode of a posterior."""

from collections.abc import Callable

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from numpyro_dais._util.concreteness import as_floats
from numpyro_dais._util.programs import program
from numpyro_dais.model.modes import DensityFn, Modes
from numpyro_dais.model.traced import TracedTarget
from numpyro_dais.sampler.mixture import Component, Mixture
from numpyro_dais.sampler.path import Target

__all__ = [
    "MAX_DENSE_DIMS",
    "curvature_at",
    "gaussian_component",
    "laplace_mixture",
    "log_joint",
    "log_joint_and_gradient",
]

MAX_DENSE_DIMS = 100  # of a full covariance


_MAX_MODES = 8


_NATS_BELOW = 10.0  # a mode whose share is smaller than exp of minus this does not count


_VALLEY = 1.0  # nats


def log_joint(target: Target, position: jax.Array) -> jax.Array:
    """Returns the log joint density of a target at a position; minus infinity where it is undefined."""
    log_start, log_ratio = target.log_densities_fn(position)
    value = log_start + log_ratio
    return jnp.where(jnp.isnan(value), -jnp.inf, value)


@program(is_brief=True)
def log_joint_and_gradient(
    target: TracedTarget, position: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns the log joint density of a target at a position, and its gradient."""
    value, gradient = jax.value_and_grad(log_joint, argnums=1)(target, position)
    return value, gradient


@program(is_brief=True)
def curvature_at(target: TracedTarget, position: jax.Array) -> jax.Array:
    """Returns minus the Hessian of the log joint density; its diagonal alone if it is large."""
    gradient_fn = jax.grad(log_joint, argnums=1)

    def column(direction: jax.Array) -> jax.Array:
        return -jax.jvp(lambda u: gradient_fn(target, u), (position,), (direction,))[1]

    identity = jnp.eye(position.size, dtype=position.dtype)
    if position.size <= MAX_DENSE_DIMS:
        return jax.vmap(column)(identity)
    # One direction at a time: all at once would take the square of the memory.
    return lax.map(lambda direction: jnp.dot(direction, column(direction)), identity)


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
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *components)
    return Mixture(jax.device_put(order), stacked, as_floats(log_shares)), num_hessians


def gaussian_component(loc: np.ndarray, covariance: np.ndarray) -> Component:
    """
    Returns a Gaussian as a mode.

    :param loc: its mean, ordered.
    :param covariance: ``[num_dims, num_dims]``, or its diagonal.
    """
    if covariance.ndim == 1:
        return Component(as_floats(loc), as_floats(np.log(covariance) / 2))
    lower = np.linalg.cholesky(covariance)
    scale = np.diag(lower)
    coupling = np.eye(len(loc)) - np.linalg.inv(lower / scale[:, None])
    return Component(as_floats(loc), as_floats(np.log(scale)), as_floats(coupling))


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
