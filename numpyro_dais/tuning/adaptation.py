# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

r"""
A mixture of Gaussians that follows its own weighted draws (Cappé et al. 2008).

Laplace's approximation takes a mode for as wide as its top, and knows the share of a mode by its
height and that width. Draws of the mixture know better: with weights :math:`w`, and the probability
:math:`\rho_d(x)` that a draw is of mode :math:`d`, one step of expectation maximisation for the
divergence from the posterior is

.. math::

    \alpha_d = \sum_i \bar w_i \rho_d(x_i), \quad
    \mu_d = \frac{1}{\alpha_d} \sum_i \bar w_i \rho_d(x_i) x_i, \quad
    \Sigma_d = \frac{1}{\alpha_d} \sum_i \bar w_i \rho_d(x_i) (x_i - \mu_d)(x_i - \mu_d)^\top .

It is for a mixture of several modes in a few dimensions, where draws are many for each.
"""

from typing import NamedTuple

import jax
import numpy as np

from numpyro_dais._util.concreteness import as_floats
from numpyro_dais._util.weights import weight_shares
from numpyro_dais.sampler.mixture import Component, Mixture
from numpyro_dais.tuning.laplace import gaussian_component

__all__ = ["Gaussians", "adapted", "gaussians_of", "mixture_of"]

# Draws that the old mean and covariance of a mode count for, for each dimension: a mode that few
# draws have seen stays as it was. A round number.
_OLD_DRAWS = 4.0
# The share of a mode at least, as one of all modes: else it could never come back. A round number.
_LEAST_SHARE = 0.1


class Gaussians(NamedTuple):
    """
    Modes by their moments, in ordered coordinates.

    :param log_shares: ``[num_modes]``.
    :param means: ``[num_modes, num_dims]``.
    :param covariances: ``[num_modes, num_dims, num_dims]``.
    """

    log_shares: np.ndarray
    means: np.ndarray
    covariances: np.ndarray


def gaussians_of(mixture: Mixture) -> Gaussians:
    """
    Returns the moments of a mixture of Gaussians with couplings.

    :param mixture: the mixture.
    """
    components = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), mixture.components)
    couplings = np.tril(components.coupling, -1)
    scales = np.exp(components.log_scale)
    lower = scales[:, :, None] * np.linalg.inv(np.eye(scales.shape[1]) - couplings)
    covariances = lower @ np.swapaxes(lower, 1, 2)
    return Gaussians(np.asarray(mixture.log_shares, np.float64), components.loc, covariances)


def mixture_of(gaussians: Gaussians, order: jax.Array) -> Mixture:
    """
    Returns the mixture of modes with these moments.

    :param gaussians: the moments.
    :param order: the order of the coordinates.
    """
    pairs = zip(gaussians.means, gaussians.covariances, strict=True)
    components: list[Component] = [gaussian_component(*pair) for pair in pairs]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *components)
    return Mixture(order, stacked, as_floats(gaussians.log_shares))


def adapted(gaussians: Gaussians, draws: np.ndarray, log_weights: np.ndarray) -> Gaussians:
    """
    Returns the modes after one step towards the posterior.

    :param gaussians: the modes.
    :param draws: ordered coordinates of draws, ``[num_draws, num_dims]``.
    :param log_weights: of the draws.
    """
    is_good = np.isfinite(log_weights) & np.all(np.isfinite(draws), axis=1)
    draws, log_weights = draws[is_good], log_weights[is_good]
    num_draws, num_dims = draws.shape
    # No single draw decides: weights are cut off where it would count for a root of all.
    shares = weight_shares(log_weights, np)
    shares = np.minimum(shares, 1 / np.sqrt(num_draws))
    shares = shares / shares.sum()
    log_densities = np.stack(
        [
            _log_normal(draws, *pair)
            for pair in zip(gaussians.means, gaussians.covariances, strict=True)
        ]
    )
    log_parts = gaussians.log_shares[:, None] + log_densities
    counts = np.exp(log_parts - np.logaddexp.reduce(log_parts, axis=0)) * shares * num_draws
    means, covariances = np.empty_like(gaussians.means), np.empty_like(gaussians.covariances)
    old = _OLD_DRAWS * num_dims
    for mode, count in enumerate(counts):
        total = count.sum() + old
        mean = (count @ draws + old * gaussians.means[mode]) / total
        offsets, shift = draws - mean, gaussians.means[mode] - mean
        spread = (offsets.T * count) @ offsets
        means[mode] = mean
        covariances[mode] = spread + old * (gaussians.covariances[mode] + np.outer(shift, shift))
        covariances[mode] /= total
    new = counts.sum(axis=1) / num_draws
    new = np.maximum(new, _LEAST_SHARE / len(new))
    return Gaussians(np.log(new / new.sum()), means, covariances)


def _log_normal(draws: np.ndarray, mean: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    lower = np.linalg.cholesky(covariance)
    noise = np.linalg.solve(lower, (draws - mean).T)
    log_det = np.sum(np.log(np.diag(lower)))
    return -0.5 * np.sum(noise**2, axis=0) - log_det - 0.5 * len(mean) * np.log(2 * np.pi)
