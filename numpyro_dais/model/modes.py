# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Modes of a density and the curvature around them, on the host and in double precision.

A search goes by the values of the density and stops short of the mode, the more so where they are
rounded; a polish goes by gradients and curvature alone, and ends at it.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from numpyro_dais.model.searches import search_all

__all__ = [
    "CurvatureFn",
    "DensitiesFn",
    "DensityFn",
    "Mode",
    "Modes",
    "Place",
    "Spectrum",
    "check_mode",
    "find_mode",
    "find_modes",
    "polish_mode",
    "spectrum_of",
    "step_uphill",
]

# The log density at a position, and its gradient.
DensityFn = Callable[[np.ndarray], tuple[float, np.ndarray]]
# The same at positions side by side, ``[num_positions, num_dims]``.
DensitiesFn = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
# Minus the Hessian of the log density at a position, or its diagonal.
CurvatureFn = Callable[[np.ndarray], np.ndarray]

# The gain of an iteration below which a search ends, as a share of the log density: SciPy's own.
_TOLERANCE = 1e7 * float(np.finfo(np.float64).eps)
# Likewise where a polish follows, which is better at it; also above the rounding of float32, where
# a search at its end tries in vain. A measured choice: of 2e-9 to 1e-3 it took the fewest gradients
# in all on six regressions, in float32 and float64.
_POLISHED_TOLERANCE = 1e-6
# Evaluations of a search that a polish follows: no limit but on a slope without an end. Measured,
# regressions with 6 to 50 coefficients take 11 to 17.
_MAX_EVALUATIONS = 1000
# Newton steps of a polish, a Hessian each. From the end of a search it takes one or two; the others
# are for a search that has stopped early. A round number.
_MAX_POLISHES = 20
# Trials of one such step, each half as long as the one before: what is too long by more than a
# million has no direction. A round number.
_MAX_TRIALS = 20
# A step is too long if the slope along it has turned round by more than this share of what it was.
# Below 1, so that the gain by the trapezoid rule, the mean of both slopes, is positive; above 0, so
# that rounding of a slope of nearly zero does not reject a full step. Half way between.
_LARGEST_TURN = 0.5
# Nats: closer to the mode than this is close enough to stop. It is 0.014 % of a standard deviation,
# and float32 comes that close on 100,000 rows.
_FINE = 1e-8
# Nats: further away than this, the mode has not been found. A round number, below any error that is
# reported.
_COARSE = 1e-3


class Modes(NamedTuple):
    """
    Local maxima of a density.

    :param positions: ``[num_modes, num_dims]``, the highest first.
    :param log_densities: ``[num_modes]``.
    """

    positions: np.ndarray
    log_densities: np.ndarray


def find_modes(
    densities_fn: DensitiesFn,
    starts: np.ndarray,
    center: np.ndarray,
    scale: np.ndarray,
    max_evaluations: int,
    tolerance: float = _TOLERANCE,
) -> Modes:
    """
    Returns the ends of searches from several positions, by L-BFGS.

    :param densities_fn: log densities and their gradients, at up to
        :data:`~numpyro_dais.model.searches.NUM_LANES` positions.
    :param starts: the positions, ``[num_starts, num_dims]``.
    :param center: the origin of the units in which steps are taken.
    :param scale: these units.
    :param max_evaluations: after which searches that still run are given up; they count if they are
        above all that have come to an end.
    :param tolerance: a search ends where an iteration gains less than this share of the log
        density.
    """

    def losses_fn(scaled: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values, gradients = densities_fn(center + scale * scaled)
        return -values, -gradients * scale.astype(gradients.dtype)

    ends = search_all(losses_fn, (starts - center) / scale, max_evaluations, tolerance)
    order = np.argsort(ends.losses)
    return Modes(center + scale * ends.positions[order], -ends.losses[order])


class Place(NamedTuple):
    """
    A position, and the log density and its gradient there.
    """

    position: np.ndarray
    log_density: float
    gradient: np.ndarray


class Mode(NamedTuple):
    r"""
    A local maximum of a log density.

    :param position: of the maximum, ``[num_dims]``.
    :param gradient: of the log density there, which is nearly zero.
    :param precision: minus its Hessian there, ``[num_dims, num_dims]``, or the diagonal.
    :param decrement: the nats between the position and the maximum, by a quadratic expansion.
    :param is_found: whether these are few, and the precision is positive definite.
    :param num_gradients: gradients of the log density that were spent; a Hessian counts as
        ``num_dims``.
    """

    position: np.ndarray
    gradient: np.ndarray
    precision: np.ndarray
    decrement: float
    is_found: bool
    num_gradients: int


def find_mode(
    density_fn: DensityFn, curvature_fn: CurvatureFn, start: np.ndarray, scale: np.ndarray
) -> Mode:
    """
    Returns a local maximum: the end of one search, polished; :func:`check_mode` tells a failure.

    :param density_fn: the log density and its gradient.
    :param curvature_fn: minus the Hessian of the log density, or its diagonal.
    :param start: the position at which the search begins.
    :param scale: the units in which its steps are taken.
    """
    num_evaluations = 0

    def counted_fn(positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        nonlocal num_evaluations
        num_evaluations += 1
        value, gradient = density_fn(positions[0])
        return np.array([value]), np.asarray(gradient)[None]

    modes = find_modes(counted_fn, start[None], start, scale, _MAX_EVALUATIONS, _POLISHED_TOLERANCE)
    end = modes.positions[0] if len(modes.positions) else start
    mode = polish_mode(density_fn, curvature_fn, end)
    return mode._replace(num_gradients=num_evaluations + mode.num_gradients)


def polish_mode(density_fn: DensityFn, curvature_fn: CurvatureFn, position: np.ndarray) -> Mode:
    r"""
    Returns the maximum near the end of a search, by Newton's method.

    With gradient :math:`g` and precision :math:`H` a step is :math:`H^{-1} g`, and the decrement
    :math:`\tfrac12 g^\top H^{-1} g` says how far it is to the maximum. Where the density is not
    log-concave, :math:`H` is made positive, so that every step goes uphill. Steps are judged by
    their slopes: near a mode, values of the density are equal up to rounding long before gradients
    are.

    :param density_fn: the log density and its gradient.
    :param curvature_fn: minus the Hessian of the log density, or its diagonal.
    :param position: the position at which the polish begins, ``[num_dims]``.
    """
    look = _Look.at(position, density_fn(position)[1], curvature_fn)
    num_gradients = 1 + position.size
    for _ in range(_MAX_POLISHES):
        if not look.decrement > _FINE:  # NaN has nowhere to go, either
            break
        end, num_trials = step_uphill(density_fn, look.position, look.step, 2 * look.decrement)
        num_gradients += num_trials
        if end is None:
            break
        moved = _Look.at(end.position, end.gradient, curvature_fn)
        num_gradients += position.size
        # So near, only rounding keeps a step from being a gain: this is as near as it gets.
        if look.decrement < _COARSE and not moved.decrement < look.decrement:
            break
        look = moved
    is_found = look.is_peak and look.decrement < _COARSE
    return Mode(
        look.position, look.gradient, look.precision, look.decrement, is_found, num_gradients
    )


def check_mode(mode: Mode, remedy: str) -> None:
    """
    Raises an error if the mode was not found.

    :param mode: a mode, found or not.
    :param remedy: what the user can do about it.
    """
    if mode.is_found:
        return
    raise ValueError(
        f"No mode was found in {mode.num_gradients} gradients: the search ended "
        f"{mode.decrement:.2g} nats below a maximum (by its curvature there, which must be positive in "
        f"every direction). {remedy}"
    )


class Spectrum(NamedTuple):
    """
    A symmetric matrix by its eigenvalues; a diagonal one by its entries.

    :param eigenvalues: ``[num_dims]``.
    :param eigenvectors: in columns; None for a diagonal matrix, which stays ``[num_dims]``.
    """

    eigenvalues: np.ndarray
    eigenvectors: np.ndarray | None

    @property
    def matrix(self) -> np.ndarray:
        """The matrix, or its diagonal."""
        if self.eigenvectors is None:
            return self.eigenvalues
        return (self.eigenvectors * self.eigenvalues) @ self.eigenvectors.T

    @property
    def inverse(self) -> np.ndarray:
        """The inverse, or its diagonal."""
        if self.eigenvectors is None:
            return 1 / self.eigenvalues
        return (self.eigenvectors / self.eigenvalues) @ self.eigenvectors.T

    def positive(self, smallest_share: float) -> "Spectrum":
        """
        Returns the spectrum with the eigenvalues' absolute values, and none next to nothing: at a
        maximum, curvatures are like that already, but a search may stop short of one.

        :param smallest_share: the least that an eigenvalue may be, as a share of the largest.
        """
        sizes = np.abs(np.nan_to_num(self.eigenvalues, nan=1.0, posinf=1.0, neginf=1.0))
        smallest = smallest_share * max(sizes.max(), smallest_share)
        return self._replace(eigenvalues=np.maximum(sizes, smallest))

    def concave(self) -> "Spectrum":
        """Returns the spectrum with zeros for positive eigenvalues: the nearest that is concave."""
        return self._replace(eigenvalues=np.minimum(self.eigenvalues, 0.0))


def spectrum_of(matrix: np.ndarray) -> Spectrum:
    """
    Returns the spectrum of a matrix, which is made symmetric, or of a diagonal.

    :param matrix: ``[num_dims, num_dims]``, or ``[num_dims]``.
    """
    matrix = np.asarray(matrix, np.float64)
    if matrix.ndim == 1:
        return Spectrum(matrix, None)
    return Spectrum(*np.linalg.eigh((matrix + matrix.T) / 2))


class _Look(NamedTuple):
    """A position of a polish, the step to come, and the nats that it promises."""

    position: np.ndarray
    gradient: np.ndarray
    precision: np.ndarray
    step: np.ndarray
    decrement: float
    is_peak: bool

    @classmethod
    def at(cls, position: np.ndarray, gradient: np.ndarray, curvature_fn: CurvatureFn) -> "_Look":
        """Returns the look at a position; its decrement is NaN where a derivative is not finite."""
        precision = np.asarray(curvature_fn(position))
        rounding = float(np.finfo(precision.dtype).eps)
        precision = precision.astype(np.float64)
        if not _is_finite(precision, gradient):
            step = np.full_like(position, np.nan)
            return cls(position, gradient, precision, step, np.nan, False)
        spectrum = spectrum_of(precision)
        inverse = spectrum.positive(rounding).inverse
        step = inverse * gradient if inverse.ndim == 1 else inverse @ gradient
        is_peak = bool(np.all(spectrum.eigenvalues > 0))
        return cls(position, gradient, precision, step, float(gradient @ step) / 2, is_peak)


def step_uphill(
    density_fn: DensityFn, position: np.ndarray, step: np.ndarray, slope: float
) -> tuple[Place | None, int]:
    """
    Returns the end of a step that is not too long, None if every trial was too long, and the number
    of trials.

    :param density_fn: the log density and its gradient.
    :param position: where the step begins.
    :param step: its first trial; each other one is half as long as the one before.
    :param slope: the gradient there times the step, which is positive.
    """
    for count in range(_MAX_TRIALS):
        trial = position + 0.5**count * step
        value, gradient = density_fn(trial)
        if _is_finite(value, gradient) and gradient @ step > -_LARGEST_TURN * slope:
            return Place(trial, value, gradient), count + 1
    return None, _MAX_TRIALS


def _is_finite(*values: float | np.ndarray) -> bool:
    return all(bool(np.all(np.isfinite(value))) for value in values)
