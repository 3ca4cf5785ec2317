# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

r"""
The shape of a density around a mode, on the host and in double precision.

A precision is :math:`D^{-1} (I + V (w^{-2} - 1) V^\top) D^{-1}`, with a diagonal :math:`D`,
orthonormal columns :math:`V` and widths :math:`w`. As many columns as dimensions make it any
positive matrix; fewer make it diagonal plus low rank, which takes a product with the Hessian for
each column, and no square of the dimension.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

__all__ = ["Geometry", "ProductsFn", "dense_geometry", "low_rank_geometry"]

# Minus the Hessian of log start + beta log ratio at a position, times each of some directions: from
# the position, beta and the directions, ``[num_directions, num_dims]``.
ProductsFn = Callable[[np.ndarray, float, np.ndarray], np.ndarray]

# The smallest curvature as a share of the largest, in units of the diagonal: widths may differ by a
# factor of 10^4, and what is flatter becomes no wider than that. A round number.
_SMALLEST_SHARE = 1e-8
# Widths of the start beyond which a coordinate is flat, if it is also wider than 10^4 times the
# narrowest: then it becomes no wider. A round number.
_WIDEST = 100.0
# Nats that a fit may lose by what a low rank leaves out: below any error that is asked for.
_NATS_LEFT_OUT = 1e-3
# Two probes of a diagonal that differ by no more than this show a diagonal matrix, where they agree
# up to rounding. A round number.
_SAME = 1e-3
# Probes of the diagonal of a matrix that is not diagonal: it is then known to about a quarter of
# what surrounds it. A round number.
_NUM_PROBES = 16


class Geometry(NamedTuple):
    """
    A precision by its principal axes.

    :param scale: the diagonal of :math:`D`, ``[num_dims]``.
    :param basis: :math:`V`, ``[num_dims, rank]``.
    :param widths: :math:`w`, ``[rank]``.
    :param is_positive: whether the matrix was positive definite, and has not been made so.
    """

    scale: np.ndarray
    basis: np.ndarray
    widths: np.ndarray
    is_positive: bool

    @property
    def log_volume(self) -> float:
        """Half of the log determinant of the covariance."""
        return float(np.sum(np.log(self.scale)) + np.sum(np.log(self.widths)))

    @property
    def covariance(self) -> np.ndarray:
        """The inverse of the precision, ``[num_dims, num_dims]``."""
        return _assembled(self.scale, self.basis, self.widths**2)

    @property
    def precision(self) -> np.ndarray:
        """``[num_dims, num_dims]``."""
        return _assembled(1 / self.scale, self.basis, self.widths**-2.0)

    def solve(self, gradient: np.ndarray) -> np.ndarray:
        """Returns the covariance times a vector: Newton's step."""
        return self.scale * self.stretched(self.scale * gradient, self.widths**2)

    def whiten(self, offset: np.ndarray) -> np.ndarray:
        """Returns an offset in units of the widths: its squared norm is Mahalanobis's."""
        return self.stretched(offset / self.scale, 1 / self.widths)

    def unwhiten(self, noise: np.ndarray) -> np.ndarray:
        """Returns the offset that :meth:`whiten` takes to this."""
        return self.scale * self.stretched(noise, self.widths)

    def whiten_gradient(self, gradient: np.ndarray) -> np.ndarray:
        """Returns a gradient with respect to what :meth:`unwhiten` takes."""
        return self.stretched(self.scale * gradient, self.widths)

    def stretched(self, values: np.ndarray, factors: np.ndarray) -> np.ndarray:
        """Returns values, a vector or columns, multiplied by factors along the principal axes."""
        along = self.basis.T @ values
        factors = factors if values.ndim == 1 else factors[:, None]
        if self.basis.shape[0] == self.basis.shape[1]:
            return self.basis @ (factors * along)
        return values + self.basis @ ((factors - 1) * along)


def dense_geometry(matrix: np.ndarray, spread: np.ndarray) -> Geometry:
    """
    Returns the geometry of a matrix, which is made symmetric, and positive definite by the absolute
    values of its eigenvalues: at a mode they are so already, but a search may stop short of one.

    :param matrix: minus a Hessian, ``[num_dims, num_dims]``.
    :param spread: the width of the start, which says what is flat, ``[num_dims]``.
    """
    matrix = np.nan_to_num(np.asarray(matrix, np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    scale = _scale_of(np.diag(matrix), spread)
    scaled = scale[:, None] * (matrix + matrix.T) * (0.5 * scale)
    eigenvalues, basis = np.linalg.eigh(scaled)
    sizes = np.abs(eigenvalues)
    sizes = np.maximum(sizes, _SMALLEST_SHARE * sizes.max(initial=_SMALLEST_SHARE))
    return Geometry(scale, basis, sizes**-0.5, bool(np.all(eigenvalues > 0)))


def low_rank_geometry(
    products_fn: ProductsFn, position: np.ndarray, spread: np.ndarray, max_rank: int
) -> Geometry:
    r"""
    Returns the geometry at a position as a diagonal plus a low rank, by the method of Lanczos.

    Lanczos and not the pairs of a search by L-BFGS: these are few, at other positions, and none
    along axes in which the search began at the right place. The diagonal is that of the joint
    density if it is diagonal, else that of the start: products with random signs, multiplied by the
    signs, are the diagonal of a diagonal matrix exactly, and many priors have one. What the data
    add then has as many axes as there are data. Else it is a mean over several such probes
    (Hutchinson 1990). All axes are kept orthogonal. Lanczos ends where what is left costs a fit
    next to nothing, by a random probe of the rest, or at a largest rank.

    :param products_fn: minus the Hessian times directions.
    :param position: where, ``[num_dims]``.
    :param spread: the width of the start, ``[num_dims]``.
    :param max_rank: the largest rank, and about what it may cost.
    """
    generator = np.random.default_rng(0)
    num_dims = len(position)
    scale = _scale_of(_diagonal(products_fn, position, generator), spread)

    def apply(vector: np.ndarray) -> np.ndarray:
        product = scale * products_fn(position, 1.0, (scale * vector)[None])[0] - vector
        return np.nan_to_num(product, nan=0.0, posinf=0.0, neginf=0.0)

    vectors, images = _lanczos(apply, num_dims, min(max_rank, num_dims - 1), generator)
    if not len(vectors):
        return Geometry(scale, np.zeros((num_dims, 0)), np.zeros(0), True)
    projected = vectors @ images.T
    values, rotation = np.linalg.eigh((projected + projected.T) / 2)
    sizes = np.maximum(np.abs(1 + values), _SMALLEST_SHARE * np.max(np.abs(1 + values)))
    return Geometry(scale, vectors.T @ rotation, sizes**-0.5, bool(np.all(values > -1)))


def _lanczos(
    apply: Callable[[np.ndarray], np.ndarray],
    num_dims: int,
    max_rank: int,
    generator: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """
    Returns orthonormal rows and what a symmetric matrix makes of them. Where they are an invariant
    subspace, of a matrix with equal eigenvalues, they go on from a new random direction.
    """
    vectors, images = np.zeros((max_rank, num_dims)), np.zeros((max_rank, num_dims))
    rank, size, is_fresh = 0, 0.0, True
    vector = _unit(generator.standard_normal(num_dims))
    while rank < max_rank:
        image = apply(vector)
        norm = float(np.linalg.norm(image))
        size = max(size, norm)
        # The square of the norm of a random image is that of the matrix, per dimension; fits lose a
        # quarter of the latter. Below the rounding of float32 nothing is to be seen.
        if is_fresh and norm < max(np.sqrt(4 * _NATS_LEFT_OUT / num_dims), 1e-6 * size):
            break
        vectors[rank], images[rank] = vector, image
        rank += 1
        rest = image
        for _ in range(2):  # once leaves what has cancelled
            rest = rest - vectors[:rank].T @ (vectors[:rank] @ rest)
        is_fresh = float(np.linalg.norm(rest)) < max(1e-3 * norm, 1e-6 * size)
        if is_fresh:
            rest = generator.standard_normal(num_dims)
            for _ in range(2):
                rest = rest - vectors[:rank].T @ (vectors[:rank] @ rest)
        vector = _unit(rest)
    return vectors[:rank], images[:rank]


def _diagonal(
    products_fn: ProductsFn, position: np.ndarray, generator: np.random.Generator
) -> np.ndarray:
    """Returns the diagonal of the joint density's or the start's precision, or nearly so."""

    def probe(beta: float) -> np.ndarray:
        signs = generator.choice([-1.0, 1.0], len(position))
        return signs * products_fn(position, beta, signs[None])[0]

    for beta in (1.0, 0.0):
        one, other = probe(beta), probe(beta)
        if np.all(one > 0) and np.allclose(one, other, rtol=_SAME):
            return one
    return np.mean([probe(1.0) for _ in range(_NUM_PROBES)], axis=0)


def _assembled(scale: np.ndarray, basis: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """Returns the matrix with these factors along the axes, and 1 elsewhere, times the scales."""
    axes = scale[:, None] * basis
    if basis.shape[0] == basis.shape[1]:
        return (axes * factors) @ axes.T
    return np.diag(scale**2) + (axes * (factors - 1)) @ axes.T


def _scale_of(diagonal: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """Returns the width of each coordinate, given the others, from its curvature."""
    sizes = np.abs(np.nan_to_num(diagonal, nan=0.0, posinf=0.0, neginf=0.0))
    flat = np.minimum((_WIDEST * spread) ** -2.0, _SMALLEST_SHARE * (sizes.max() or 1.0))
    return np.asarray(np.maximum(sizes, flat) ** -0.5)


def _unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.linalg.norm(vector)
