# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

r"""
The path of a Gaussian start and a Gaussian posterior, in closed form.

With precisions :math:`P_0` and :math:`P_1` the tempered density has :math:`(1 - \beta) P_0 +
\beta P_1`. One basis :math:`B` makes all of them diagonal, :math:`B^\top P_0 B = 1` and
:math:`B^\top P_1 B = \operatorname{diag}(\lambda)`, so that widths along its columns are
:math:`(1 - \beta + \beta \lambda)^{-1/2}`: a number for each dimension and temperature, and no
matrix for each.
"""

import math

import numpy as np
import scipy.linalg

from numpyro_dais.sampler.mixture import Mixture
from numpyro_dais.tuning.curvature import Curvature
from numpyro_dais.tuning.population import MeasuredPath

__all__ = ["along_axes", "constant_path", "curvature_path", "fitted_axes"]

# Temperatures at which the path is tabulated: it is smooth, and interpolated between them.
_NUM_LEVELS = 200
# The first temperature, as a share of the one at which the log weight gains a deviation of one.
_FIRST = 0.1


def curvature_path(curvature: Curvature, center: np.ndarray) -> MeasuredPath:
    r"""
    Returns the path between two Gaussians, as an infinite population would measure it.

    Its speed is the standard deviation of the log ratio of its ends, which is quadratic: with slope
    :math:`s` at the mean, :math:`\sum_j s_j^2 / p_j + \tfrac12 ((\lambda_j - 1) / p_j)^2` is the
    variance, where :math:`p = 1 - \beta + \beta \lambda`.

    :param curvature: precisions of start and posterior, and the mode.
    :param center: the mean of the start.
    """
    ratios, basis, axes = _joint_basis(curvature)
    shift = axes(curvature.mode - center)
    # Of the log ratio at the start's mean, in the basis.
    variance = np.sum((ratios * shift) ** 2 + 0.5 * (ratios - 1) ** 2)
    first = min(_FIRST / np.sqrt(max(variance, 1.0)), 0.1)
    betas = np.append(0.0, np.geomspace(first, 1.0, _NUM_LEVELS))
    precisions = (1 - betas)[:, None] + betas[:, None] * ratios
    means = betas[:, None] * ratios * shift / precisions
    slopes = means - ratios * (means - shift)
    variances = slopes**2 / precisions + 0.5 * ((ratios - 1) / precisions) ** 2
    speeds = np.sqrt(variances.sum(axis=1))
    lengths = np.append(0.0, np.cumsum((speeds[1:] + speeds[:-1]) / 2 * np.diff(betas)))
    scales = precisions**-0.5
    if basis is None:
        scales = scales / np.sqrt(curvature.start_precision)
    lengths = np.maximum(lengths, 1e-6 * betas)  # of a path that goes nowhere
    return MeasuredPath(
        betas, lengths, scales, 0.0, math.ceil(curvature.num_gradients), basis=basis
    )


def constant_path(scale: np.ndarray, basis: np.ndarray | None) -> MeasuredPath:
    """
    Returns the path of a start that is as wide as the target, of unknown length.

    :param scale: its standard deviations, ``[num_dims]``.
    :param basis: the axes along which these are; None for those of the positions.
    """
    return MeasuredPath(
        np.array([0.0, 1.0]), np.array([0.0, 1.0]), np.stack([scale, scale]), 0.0, 0, basis=basis
    )


def along_axes(path: MeasuredPath) -> MeasuredPath:
    """
    Returns a path with widths along fixed axes, in place of a matrix for each temperature: those
    that make the covariances at both of its ends diagonal.

    :param path: the path; one that has widths only stays as it is.
    """
    if path.scales.ndim == 2:
        return path
    covariances = path.scales @ np.swapaxes(path.scales, 1, 2)
    precisions = np.linalg.inv(covariances[[0, -1]])
    _, basis = scipy.linalg.eigh(precisions[1], precisions[0])
    inverse = np.linalg.inv(basis)
    variances = np.einsum("ij,ljk,ik->li", inverse, covariances, inverse)
    return path._replace(scales=np.sqrt(variances), basis=basis)


def fitted_axes(mixture: Mixture) -> np.ndarray | None:
    r"""
    Returns a square root :math:`B` of the covariance :math:`B B^\top` of a Gaussian that was fitted
    by its principal axes, ``[num_dims, num_dims]``; None for any other fit.

    :param mixture: the fit.
    """
    component = mixture.components
    if mixture.num_modes > 1 or component.basis is None or component.log_widths is None:
        return None
    vectors = np.asarray(component.basis[0], np.float64)
    log_widths = np.asarray(component.log_widths[0], np.float64)
    if vectors.shape[0] != vectors.shape[1]:
        return None
    scale = np.exp(np.asarray(component.log_scale[0], np.float64))
    axes = np.empty_like(vectors)
    axes[np.asarray(mixture.order)] = scale[:, None] * vectors * np.exp(log_widths)
    return axes


def _joint_basis(curvature: Curvature):  # type: ignore[no-untyped-def]
    """Ratios of precisions along joint axes, the axes, and a function to coordinates along them."""
    start, posterior = curvature.start_precision, curvature.posterior_precision
    if start.ndim == 1:
        return posterior / start, None, lambda x: x * np.sqrt(start)
    ratios, basis = scipy.linalg.eigh(posterior, start)
    return ratios, basis, lambda x: basis.T @ (start @ x)
