# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
The last way from the end of a search to a mode, where a Hessian costs as much as a search.

One Hessian serves many steps: Newton's steps with a matrix from nearby (chords) cost a gradient
each, and get to a mode as surely, if not as fast. A new one is made only where a probe says that it
would differ.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from numpyro_dais.model.modes import DensityFn, Place, step_uphill
from numpyro_dais.tuning.geometry import Geometry, ProductsFn

__all__ = ["GeometryFn", "Peak", "leads_to", "polish_peak"]

# The geometry of a density at a position.
GeometryFn = Callable[[np.ndarray], Geometry]

# Nats: closer to the mode than this is close enough. As in model/modes.py.
_FINE = 1e-8
# Nats: further away than this, the mode has not been found. Likewise.
_COARSE = 1e-3
# Geometries of one polish: the first, one nearer to the mode, and one at it, with one to spare for
# an end that is far off. A round number.
_MAX_GEOMETRIES = 4
# Steps with one geometry; with one that is right to a half, 25 are a factor of 10^7 in distance.
_MAX_CHORDS = 25
# Of the nats to the mode, what a step may leave; with more, another geometry is worth its cost.
_SLOW = 0.5
# Nats that a fit loses by the geometry of another position, from which on it is made anew.
_STALE = 1e-3
# Products of one step by conjugate gradients, and the share of the decrement that it may leave: as
# good as a full step. Round numbers.
_MAX_CONJUGATES, _LEFT_BY_CONJUGATES = 100, 1e-6
# An end is a known mode if it is within this squared distance, in units of the mode's width, and as
# much more for each dimension: far less than the distance of a draw, which is about the dimension.
# Round numbers.
_NEAR, _NEAR_PER_DIM = 1.0, 0.1


class Peak(NamedTuple):
    """
    A mode, or what a search took for one.

    :param position: ``[num_dims]``.
    :param log_density: there.
    :param geometry: there, or so near to it that there is no difference.
    :param is_found: whether the position is a maximum.
    """

    position: np.ndarray
    log_density: float
    geometry: Geometry
    is_found: bool

    @property
    def log_mass(self) -> float:
        """The log evidence by Laplace's approximation, up to a constant of the dimension."""
        return self.log_density + self.geometry.log_volume


def polish_peak(
    density_fn: DensityFn, geometry_fn: GeometryFn, products_fn: ProductsFn, position: np.ndarray
) -> Peak:
    """
    Returns the mode near the end of a search; the end itself where the density is not concave.

    :param density_fn: the log density and its gradient.
    :param geometry_fn: its geometry at a position.
    :param products_fn: its curvature times directions.
    :param position: the end of a search, ``[num_dims]``.
    """
    place = Place(position, *density_fn(position))
    geometry = geometry_fn(position)
    signs = np.random.default_rng(1).choice([-1.0, 1.0], len(position))

    def probe() -> np.ndarray:
        product = products_fn(place.position, 1.0, geometry.unwhiten(signs)[None])[0]
        return geometry.whiten_gradient(product)

    for count in range(_MAX_GEOMETRIES):
        if not geometry.is_positive or not _decrement(geometry, place) > _FINE:
            break
        before = probe()
        place = _follow_chords(density_fn, geometry, place)
        # With precision I + E in these units a fit loses a quarter of the squared norm of E, which
        # is that of its product with random signs on average.
        loss = np.sum((probe() - before) ** 2) / 4
        if loss > _STALE and count < _MAX_GEOMETRIES - 1:
            other = geometry_fn(place.position)
            if not other.is_positive:
                break
            geometry = other
        elif _decrement(geometry, place) > _FINE:
            # Right where it was made, it is of too low a rank for chords.
            place = _follow_conjugates(density_fn, geometry, products_fn, place)
    is_found = geometry.is_positive and _decrement(geometry, place) < _COARSE
    return Peak(place.position, place.log_density, geometry, is_found)


def leads_to(position: np.ndarray, gradient: np.ndarray, peak: Peak) -> bool:
    """
    Returns whether a search has ended at a known mode, or short of it, where Newton's step with the
    geometry of the mode leads to it.

    :param position: the end of the search.
    :param gradient: of the log density there.
    :param peak: the mode.
    """
    near = _NEAR + _NEAR_PER_DIM * len(position)
    offset = position - peak.position
    if float(np.sum(peak.geometry.whiten(offset) ** 2)) < near:
        return True
    if not peak.is_found:
        return False
    offset = offset + peak.geometry.solve(gradient)
    return float(np.sum(peak.geometry.whiten(offset) ** 2)) < near


def _follow_chords(density_fn: DensityFn, geometry: Geometry, place: Place) -> Place:
    """Returns the end of steps with one geometry, as long as they gain fast."""
    decrement = _decrement(geometry, place)
    for _ in range(_MAX_CHORDS):
        step = geometry.solve(place.gradient)
        end, _ = step_uphill(density_fn, place.position, step, 2 * decrement)
        if end is None:
            break
        after = _decrement(geometry, end)
        # So near, only rounding keeps a step from being a gain: this is as near as it gets.
        if decrement < _COARSE and not after < decrement:
            break
        place, before, decrement = end, decrement, after
        if not _FINE < after < _SLOW * before:
            break
    return place


def _follow_conjugates(
    density_fn: DensityFn, geometry: Geometry, products_fn: ProductsFn, place: Place
) -> Place:
    """
    Returns the end of one step of Newton's, by conjugate gradients, for which the geometry is the
    preconditioner: a product with the Hessian for each axis that it does not know.
    """
    step, residual = np.zeros_like(place.position), place.gradient
    direction = conditioned = geometry.solve(residual)
    size = first = float(residual @ conditioned)
    for _ in range(_MAX_CONJUGATES):
        product = products_fn(place.position, 1.0, direction[None])[0]
        curvature = float(direction @ product)
        if not curvature > 0 or not size > _LEFT_BY_CONJUGATES * first:
            break
        step = step + size / curvature * direction
        residual = residual - size / curvature * product
        conditioned = geometry.solve(residual)
        size, before = float(residual @ conditioned), size
        direction = conditioned + size / before * direction
    slope = float(place.gradient @ step)
    end = step_uphill(density_fn, place.position, step, slope)[0] if slope > 0 else None
    return place if end is None else end


def _decrement(geometry: Geometry, place: Place) -> float:
    """Returns the nats between a place and the mode, by the geometry."""
    return float(np.sum(geometry.whiten_gradient(place.gradient) ** 2)) / 2
