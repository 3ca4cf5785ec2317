# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Laplace's approximation around each mode of a posterior."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_dais._util.concreteness import as_floats
from numpyro_dais._util.programs import program
from numpyro_dais.model.traced import TracedTarget
from numpyro_dais.sampler.mixture import Component, Mixture
from numpyro_dais.sampler.path import Target, tempered_gradient
from numpyro_dais.tuning.geometry import Geometry, dense_geometry, low_rank_geometry
from numpyro_dais.tuning.polish import Peak, polish_peak

__all__ = [
    "DENSE_SHARE",
    "MAX_COUPLED_DIMS",
    "MAX_DENSE_DIMS",
    "Looks",
    "curvature_at",
    "gaussian_component",
    "laplace_mixture",
    "log_joint",
    "log_joint_and_gradient",
    "log_joints",
    "log_joints_and_gradients",
    "peak_component",
    "precision_products",
    "with_bend",
    "with_prior",
]

# Dimensions up to which a covariance is a coupling of coordinates, all of which can be fitted, and
# above which it is one of principal axes that stay as they are. A round number.
MAX_COUPLED_DIMS = 100
# Dimensions up to which all of a Hessian is computed: it takes the square of them in memory, 32
# MiB, and the cube in time, a few seconds. A round number.
MAX_DENSE_DIMS = 2048
# Of the budget, what a Hessian may cost: with a second one, and with what else a start costs, most
# of it is left.
DENSE_SHARE = 0.1
# Axes at most where it is not: of 20,000 dimensions they take 80 MiB. A round number.
_MAX_RANK = 512
# Directions at a time: as many as there are in few dimensions, and no large array in many.
_NUM_DIRECTIONS = 64
# Axes of a low rank are made as many as this, or twice, or four times, ... by axes that are zero:
# other data then have the same program. A round number.
_FEWEST_AXES = 16
# Nats: a mode whose share is smaller than exp of minus this does not count, since its 5e-5 of the
# evidence are below any error that is asked for. A round number.
_NATS_BELOW = 10.0


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


@program(is_brief=True)
def curvature_at(target: TracedTarget, position: jax.Array) -> jax.Array:
    """
    Returns minus the Hessian of the log joint density.

    :param target: the target.
    :param position: where.
    """
    directions = jnp.eye(position.size, dtype=position.dtype)
    return _products(target, position, jnp.ones(()), directions)


@program(is_brief=True)
def precision_products(
    target: TracedTarget, position: jax.Array, beta: jax.Array, directions: jax.Array
) -> jax.Array:
    r"""
    Returns minus the Hessian of :math:`\log f_\beta` times each of some directions; at
    :math:`\beta = 0` it is that of the start, at 1 that of the joint density.

    :param target: the target.
    :param position: where.
    :param beta: the inverse temperature.
    :param directions: ``[num_directions, num_dims]``.
    """
    return _products(target, position, beta, directions)


def _products(
    target: Target, position: jax.Array, beta: jax.Array, directions: jax.Array
) -> jax.Array:
    gradient_fn = tempered_gradient(target.log_densities_fn, beta)
    _, along_fn = jax.linearize(gradient_fn, position)
    return -jax.vmap(along_fn)(directions)


class Looks:
    """
    The density of a target around positions, as functions on the host, and what they have cost.

    :param target: the target.
    :param spread: the width of its start, ``[num_dims]``.
    :param budget: gradients that all is to cost in the end; a part of it decides how much of a
        Hessian can be known.
    :param num_lanes: positions that are looked at side by side, at most.
    """

    def __init__(
        self, target: TracedTarget, spread: np.ndarray, budget: float, num_lanes: int = 1
    ) -> None:
        self.target = target
        self.spread = spread
        self.num_gradients = 0.0
        self.num_lanes = num_lanes
        self.num_dims = len(spread)
        self.is_dense = self.num_dims <= min(MAX_DENSE_DIMS, DENSE_SHARE * budget)
        self.max_rank = int(min(_MAX_RANK, DENSE_SHARE * budget / 2))

    @property
    def cost_of_geometry(self) -> int:
        """Gradients at most, for one."""
        return self.num_dims if self.is_dense else self.max_rank

    def densities_fn(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the log joint densities at up to ``num_lanes`` positions, and their gradients."""
        self.num_gradients += len(positions)
        # Always as many, so that one program serves all.
        padded = np.resize(self._floats(positions), (self.num_lanes, self.num_dims))
        values, gradients = log_joints_and_gradients(self.target, padded)
        return np.asarray(values)[: len(positions)], np.asarray(gradients)[: len(positions)]

    def density_fn(self, position: np.ndarray) -> tuple[float, np.ndarray]:
        """Returns the log joint density and its gradient."""
        values, gradients = self.densities_fn(position[None])
        return float(values[0]), gradients[0].astype(np.float64)

    def products_fn(self, position: np.ndarray, beta: float, directions: np.ndarray) -> np.ndarray:
        """Returns minus the Hessian of a tempered density times directions."""
        self.num_gradients += len(directions)
        at, share = self._floats(position), self._floats(np.asarray(beta))
        # All in chunks of one size, for one program.
        size = 1
        if self.is_dense:
            size = self.num_dims if self.num_dims <= 2 * _NUM_DIRECTIONS else _NUM_DIRECTIONS
        products = []
        for begin in range(0, len(directions), size):
            chunk = self._floats(directions[begin : begin + size])
            padded = np.pad(chunk, ((0, size - len(chunk)), (0, 0)))
            found = precision_products(self.target, at, share, padded)
            products.append(np.asarray(found, np.float64)[: len(chunk)])
        return np.concatenate(products)

    def hessian_fn(self, position: np.ndarray, beta: float) -> np.ndarray:
        """Returns minus the Hessian of a tempered density."""
        return self.products_fn(position, beta, np.eye(self.num_dims))

    def geometry_fn(self, position: np.ndarray) -> Geometry:
        """Returns the geometry of the joint density."""
        if self.is_dense:
            return dense_geometry(self.hessian_fn(position, 1.0), self.spread)
        return low_rank_geometry(self.products_fn, position, self.spread, self.max_rank)

    def polish(self, position: np.ndarray) -> Peak:
        """Returns the mode near the end of a search."""
        return polish_peak(self.density_fn, self.geometry_fn, self.products_fn, position)

    def _floats(self, values: np.ndarray) -> np.ndarray:
        return np.asarray(values, jnp.result_type(float))


def laplace_mixture(peaks: list[Peak], order: np.ndarray) -> Mixture:
    """
    Returns Laplace's approximation around each of some modes. Shares are the approximate evidences
    of the modes; those without a noticeable one are left out.

    :param peaks: the modes, at least one.
    :param order: the order of the coordinates.
    """
    log_masses = np.nan_to_num([peak.log_mass for peak in peaks], nan=-1e30, neginf=-1e30)
    is_kept = log_masses > log_masses.max() - _NATS_BELOW
    kept = [peak for peak, keep in zip(peaks, is_kept, strict=True) if keep]
    rank = max(_num_axes(peak.geometry) for peak in kept)
    components = [peak_component(peak, order, rank) for peak in kept]
    log_shares = log_masses[is_kept] - np.logaddexp.reduce(log_masses[is_kept])
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *components)
    return Mixture(jax.device_put(order), stacked, as_floats(log_shares))


def peak_component(peak: Peak, order: np.ndarray, num_axes: int) -> Component:
    """
    Returns Laplace's approximation around a mode.

    :param peak: the mode.
    :param order: the order of the coordinates.
    :param num_axes: how many principal axes it is to have, at least as many as the mode has.
    """
    loc, geometry = peak.position[order], peak.geometry
    if len(order) <= MAX_COUPLED_DIMS and geometry.basis.shape[1] == len(order):
        return gaussian_component(loc, geometry.covariance[np.ix_(order, order)])
    more = num_axes - len(geometry.widths)
    return Component(
        as_floats(loc),
        as_floats(np.log(geometry.scale[order])),
        basis=as_floats(np.pad(geometry.basis[order], ((0, 0), (0, more)))),
        log_widths=as_floats(np.pad(np.log(geometry.widths), (0, more))),
    )


def _num_axes(geometry: Geometry) -> int:
    """Returns how many axes a component is to have."""
    num_dims, rank = geometry.basis.shape
    if rank == num_dims:
        return rank
    return int(min(_FEWEST_AXES * 2 ** np.ceil(np.log2(max(rank / _FEWEST_AXES, 1))), num_dims - 1))


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


def with_prior(component: Component) -> Component:
    """
    Returns the same Gaussians, each as a product of two that are equally wide, and with a shape to
    be fitted: all starts then share one program.

    :param component: Gaussians, one or several.
    """
    zeros = as_floats(np.stack([np.zeros(component.loc.shape)] * 2, axis=-2))
    component = component._replace(shape=zeros)
    if component.coupling is None:
        return component
    return component._replace(
        log_scale=as_floats(np.asarray(component.log_scale) + 0.5 * np.log(2.0)),
        prior_coupling=component.coupling,
        slopes=as_floats(np.zeros(component.coupling.shape)),
        gate=zeros,
    )


def with_bend(component: Component) -> Component:
    """
    Returns the same modes with a bend to be fitted.

    :param component: modes with a coupling, one or several.
    """
    coupling: Any = component.coupling
    return component._replace(bend=as_floats(np.zeros(coupling.shape)))
