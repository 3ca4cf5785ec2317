# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Laplace's approximation around each mode of a posterior."""

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from numpyro_dais._util.concreteness import as_floats
from numpyro_dais._util.programs import program
from numpyro_dais.model.modes import CurvatureFn, DensityFn, Modes, spectrum_of
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
    "log_joints",
    "log_joints_and_gradients",
]

# Dimensions up to which a covariance is full: it takes the square of them in memory and in fitted
# couplings, and a diagonal misses the correlations. A round number.
MAX_DENSE_DIMS = 100
# Modes that are kept: each costs a Hessian, and its density at every draw. A round number.
_MAX_MODES = 8
# Nats: a mode whose share is smaller than exp of minus this does not count, since its 5e-5 of the
# evidence are below any error that is asked for. A round number.
_NATS_BELOW = 10.0
# Nats by which the density must fall between two modes: less may be rounding along a ridge, and two
# Gaussians whose valley is shallower overlap. A round number.
_VALLEY = 1.0
# Points of the line between two ends at which the density is looked at, both included. More would
# see narrower valleys, at a gradient each. A round number.
_NUM_LINE_POINTS = 7
# An end is a known mode if it is within this squared distance, in units of the mode's width, and as
# much more for each dimension: far less than the distance of a draw, which is about the dimension.
# Round numbers.
_NEAR, _NEAR_PER_DIM = 1.0, 0.1
# The smallest curvature as a share of the largest: widths may differ by a factor of 10^4, and what
# is flatter becomes no wider than that. A round number.
_SMALLEST_SHARE = 1e-8


def log_joint(target: Target, position: jax.Array) -> jax.Array:
    """
    Returns the log joint density of a target at a position; minus infinity where it is undefined.
    """
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
def log_joints_and_gradients(
    target: TracedTarget, positions: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns the log joint density of a target at each of many positions, and its gradients."""
    values_and_gradients_fn = jax.vmap(jax.value_and_grad(log_joint, argnums=1), (None, 0))
    values, gradients = values_and_gradients_fn(target, positions)
    return values, gradients


@program(is_brief=True)
def log_joints(target: TracedTarget, positions: jax.Array) -> jax.Array:
    """Returns the log joint density of a target at each of many positions."""
    return jax.vmap(lambda position: log_joint(target, position))(positions)


@program("is_dense", is_brief=True)
def curvature_at(target: TracedTarget, position: jax.Array, is_dense: bool) -> jax.Array:
    """
    Returns minus the Hessian of the log joint density, or its diagonal.

    :param target: the target.
    :param position: where.
    :param is_dense: whether all of it is wanted.
    """
    gradient_fn = jax.grad(log_joint, argnums=1)

    def column(direction: jax.Array) -> jax.Array:
        return -jax.jvp(lambda u: gradient_fn(target, u), (position,), (direction,))[1]

    identity = jnp.eye(position.size, dtype=position.dtype)
    if is_dense:
        return jax.vmap(column)(identity)
    # One direction at a time: all at once would take the square of the memory.
    return lax.map(lambda direction: jnp.dot(direction, column(direction)), identity)


def laplace_mixture(
    modes: Modes,
    density_fn: DensityFn,
    curvature_fn: CurvatureFn,
    order: np.ndarray,
) -> Mixture:
    """
    Returns Laplace's approximation around each distinct mode. Shares are the approximate evidences
    of the modes; those without a noticeable one are left out.

    :param modes: ends of searches, the highest first.
    :param density_fn: the log density and its gradient.
    :param curvature_fn: minus the Hessian of the log density, or its diagonal.
    :param order: the order of the coordinates.
    """
    kept: list[tuple[Component, np.ndarray, np.ndarray, float]] = []
    for position, value in zip(modes.positions, modes.log_densities, strict=True):
        if any(_is_near(position, other, precision) for _, other, precision, _ in kept):
            continue
        if not all(_is_apart(density_fn, position, other) for _, other, _, _ in kept):
            continue
        if len(kept) == _MAX_MODES:
            break
        component, precision = _laplace(position, curvature_fn(position), order)
        log_evidence = value + float(np.sum(component.log_scale))
        kept.append((component, position, precision, log_evidence))
    log_evidences = np.nan_to_num([entry[3] for entry in kept], nan=-1e30, neginf=-1e30)
    is_kept = log_evidences > log_evidences.max() - _NATS_BELOW
    components = [entry[0] for entry, keep in zip(kept, is_kept, strict=True) if keep]
    log_shares = log_evidences[is_kept] - np.logaddexp.reduce(log_evidences[is_kept])
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *components)
    return Mixture(jax.device_put(order), stacked, as_floats(log_shares))


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
    """Returns Laplace's approximation, and its precision in the original order."""
    spectrum = spectrum_of(curvature).positive(_SMALLEST_SHARE)
    covariance = spectrum.inverse
    ordered = covariance[order] if covariance.ndim == 1 else covariance[np.ix_(order, order)]
    return gaussian_component(position[order], ordered), spectrum.matrix


def _is_apart(density_fn: DensityFn, one: np.ndarray, other: np.ndarray) -> bool:
    """Returns whether a valley lies between two ends of searches, and not a ridge below both."""
    shares = np.linspace(0, 1, _NUM_LINE_POINTS)
    values = [density_fn(one + share * (other - one))[0] for share in shares]
    return bool(min(values[1:-1]) < min(values[0], values[-1]) - _VALLEY)


def _is_near(position: np.ndarray, other: np.ndarray, precision: np.ndarray) -> bool:
    """Returns whether a search has ended at a mode that is known already."""
    offset = position - other
    along = precision * offset if precision.ndim == 1 else precision @ offset
    return float(offset @ along) < _NEAR + _NEAR_PER_DIM * len(position)
