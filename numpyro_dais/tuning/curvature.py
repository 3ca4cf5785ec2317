# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""The curvature of both ends of a path at the mode of the posterior, as chains need it."""

from typing import NamedTuple

import numpy as np

from numpyro_dais.model.modes import find_modes
from numpyro_dais.model.traced import TracedTarget
from numpyro_dais.tuning.laplace import DENSE_SHARE, MAX_DENSE_DIMS, Looks
from numpyro_dais.tuning.polish import Peak

__all__ = ["Curvature", "find_curvature"]

# Searches: the first begins at the middle of the start, where a mode is nearest, and others at
# draws, for a density that is zero there. A round number.
_NUM_SEARCHES = 3
# Evaluations of one search. Measured, densities of up to 2,000 dimensions take 15 to 300.
_MAX_EVALUATIONS = 300
# Probes of a diagonal: with random signs each is the diagonal, and as much of the rest by chance.
_NUM_PROBES = 16


class Curvature(NamedTuple):
    """
    Precisions at the mode of the posterior, in the order of a position's coordinates.

    :param mode: its position, ``[num_dims]``.
    :param start_precision: minus the Hessian of the log density of the start,
        ``[num_dims, num_dims]``; in more than ``MAX_DENSE_DIMS`` dimensions, about its diagonal,
        ``[num_dims]``. From draws of the start where that is not positive definite.
    :param posterior_precision: likewise for the log joint density.
    :param num_gradients: what they have cost.
    """

    mode: np.ndarray
    start_precision: np.ndarray
    posterior_precision: np.ndarray
    num_gradients: float


def find_curvature(
    target: TracedTarget,
    draws: np.ndarray,
    center: np.ndarray,
    spread: np.ndarray,
    max_gradients: float,
) -> tuple[Curvature | None, float]:
    """
    Returns the curvature of both ends of a path, and what it has cost: None if it would cost too
    much, or if no mode was found around which the posterior is concave.

    :param target: the target, with its own start.
    :param draws: of the start, finite ones, ``[num_draws, num_dims]``.
    :param center: of the start, ``[num_dims]``.
    :param spread: its width, ``[num_dims]``.
    :param max_gradients: gradients at most, but for a few steps of a polish.
    """
    num_dims = len(center)
    is_dense = num_dims <= MAX_DENSE_DIMS
    # A search, and a Hessian of each end; another of the posterior where the first was not at the
    # mode is worth what it costs.
    if (2 * num_dims if is_dense else 8 * _NUM_PROBES) + _MAX_EVALUATIONS > max_gradients:
        return None, 0.0
    looks = Looks(target, spread, max_gradients / DENSE_SHARE)
    peak = _search(looks, np.concatenate([center[None], draws[: _NUM_SEARCHES - 1]]), center)
    if peak is None:
        return None, looks.num_gradients
    if is_dense:
        start = looks.hessian_fn(peak.position, 0.0)
        posterior = peak.geometry.precision
    else:
        start, posterior = (_diagonal(looks, peak.position, beta) for beta in (0.0, 1.0))
        posterior = np.where(posterior > 0, posterior, peak.geometry.scale**-2)
    start = (start + start.T) / 2
    if not _is_positive(start):
        start = np.diag(spread**-2.0) if is_dense else spread**-2.0
    return Curvature(peak.position, start, posterior, looks.num_gradients), looks.num_gradients


def _search(looks: Looks, starts: np.ndarray, center: np.ndarray) -> Peak | None:
    """Returns the mode at the end of the first search that has one."""
    for start in starts:
        ends = find_modes(looks.densities_fn, start[None], center, looks.spread, _MAX_EVALUATIONS)
        for end in ends.positions:
            peak = looks.polish(end)
            if peak.is_found:
                return peak
    return None


def _diagonal(looks: Looks, position: np.ndarray, beta: float) -> np.ndarray:
    """Returns about the diagonal of a precision (Hutchinson 1990); exactly, if it is diagonal."""
    signs = np.random.default_rng(2).choice([-1.0, 1.0], (_NUM_PROBES, len(position)))
    return np.mean(signs * looks.products_fn(position, beta, signs), axis=0)


def _is_positive(precision: np.ndarray) -> bool:
    if not np.all(np.isfinite(precision)):
        return False
    if precision.ndim == 1:
        return bool(np.all(precision > 0))
    try:
        np.linalg.cholesky(precision)
    except np.linalg.LinAlgError:
        return False
    return True
