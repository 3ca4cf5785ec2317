# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Numbers read off weights, and weights turned into draws.

A function that takes an array library takes it last: NumPy for concrete values, where compiling a
few operations one by one would take longer than the run, and JAX's for traced ones.
"""

import math
from types import ModuleType
from typing import Any

from jax import lax
import jax.numpy as jnp
from jax.scipy.special import logsumexp
import numpy as np

__all__ = [
    "ess",
    "largest_or_zero",
    "log_mean",
    "log_mean_error",
    "mean_log",
    "mean_log_error",
    "owners",
    "relative_variance",
    "resolution",
    "robust_width",
    "systematic",
    "weight_shares",
]

# The interquartile range of a standard normal, a constant of nature.
_NORMAL_RANGE = 1.349


def log_mean(log_weights: Any, xp: ModuleType = jnp) -> Any:
    """
    Returns the log of the mean weight, along the first axis. Where all weights are zero it is minus
    infinity, with a gradient of zero.
    """
    if xp is jnp:
        is_zero = jnp.all(jnp.isneginf(log_weights), axis=0)
        total = logsumexp(jnp.where(is_zero, 0.0, log_weights), axis=0)
        return jnp.where(is_zero, -jnp.inf, total) - math.log(len(log_weights))
    largest = largest_or_zero(log_weights, xp)
    return largest + xp.log(xp.mean(xp.exp(log_weights - largest), axis=0))


def log_mean_error(log_weights: Any, xp: ModuleType = jnp) -> Any:
    """
    Returns the jackknife standard error of :func:`log_mean`; infinite where it cannot be known, as
    with one weight. A single dominant weight makes it large; the delta method's stays below one.

    :param log_weights: ``[num_particles, ...]``.
    :param xp: the array library.
    """
    num_particles = len(log_weights)
    if num_particles == 1:
        return xp.full(log_weights.shape[1:], np.inf)
    shares = weight_shares(log_weights, xp)
    # The log of the mean without each particle, up to a constant.
    without = xp.log1p(-xp.minimum(shares, 1 - np.finfo(shares.dtype).eps))
    variance = (num_particles - 1) * xp.var(without, axis=0)
    return xp.where(xp.sum(shares, axis=0) > 0, xp.sqrt(variance), np.inf)


def mean_log(log_weights: Any, xp: ModuleType = jnp) -> Any:
    """Returns the mean log weight, along the first axis."""
    # Measured from the largest, so that float32 does not lose digits of a long sum.
    largest = largest_or_zero(log_weights, xp)
    return largest + xp.mean(log_weights - largest, axis=0)


def mean_log_error(log_weights: Any, xp: ModuleType = jnp) -> Any:
    """Returns the standard error of :func:`mean_log`; infinite with one weight or one of zero."""
    num_particles = len(log_weights)
    if num_particles == 1:
        return xp.full(log_weights.shape[1:], np.inf)
    is_finite = xp.all(xp.isfinite(log_weights), axis=0)
    mean = xp.where(is_finite, mean_log(log_weights, xp), 0.0)
    spread = xp.std(xp.where(is_finite, log_weights, 0.0) - mean, axis=0, ddof=1)
    return xp.where(is_finite, spread / np.sqrt(num_particles), np.inf)


def weight_shares(log_weights: Any, xp: ModuleType = jnp) -> Any:
    """Returns the weights divided by their sum, along the first axis; zeros where all are zero."""
    weights = xp.exp(log_weights - largest_or_zero(log_weights, xp))
    sums = xp.sum(weights, axis=0)
    return weights / xp.where(sums > 0, sums, 1.0)


def ess(log_weights: Any, xp: ModuleType = jnp) -> Any:
    r"""Returns the effective sample size :math:`(\sum w)^2 / \sum w^2`; 0 where all are zero."""
    squares = xp.sum(weight_shares(log_weights, xp) ** 2, axis=0)
    return xp.where(squares > 0, 1 / xp.where(squares > 0, squares, 1.0), 0.0)


def relative_variance(log_weights: np.ndarray) -> float:
    """Returns the variance of weights over their squared mean; infinite where all are zero."""
    size = float(ess(log_weights, np))
    return len(log_weights) / size - 1 if size else float("inf")


def resolution(log_weights: np.ndarray) -> float:
    """Returns the spacing of floating-point numbers at the size of the weights that count."""
    largest = largest_or_zero(log_weights, np)
    return float(np.finfo(log_weights.dtype).eps * np.max(np.abs(largest)))


def systematic(
    uniform: Any, shares: Any, xp: ModuleType = jnp, num_draws: int | None = None
) -> Any:
    """
    Returns ancestors by systematic resampling, in expectation each in proportion to its share.

    :param uniform: a uniform random number in [0, 1).
    :param shares: weights, of any positive sum, ``[num_particles]``.
    :param xp: the array library.
    :param num_draws: the number of ancestors; that of the particles if left out.
    """
    num_draws = len(shares) if num_draws is None else num_draws
    return owners((uniform + xp.arange(num_draws)) / num_draws, shares, xp)


def owners(points: Any, shares: Any, xp: ModuleType = jnp) -> Any:
    """
    Returns the particles whose shares, laid end to end, points of the unit interval fall into.

    :param points: numbers in [0, 1), ``[num_points]``; uniform ones give independent draws.
    :param shares: weights, of any positive sum, ``[num_particles]``.
    :param xp: the array library.
    """
    edges = xp.cumsum(shares)
    indices = xp.searchsorted(edges, points * edges[-1], side="right")
    return xp.minimum(indices, len(shares) - 1)


def robust_width(draws: Any) -> np.ndarray:
    """
    Returns the scale of a cloud along each dimension: the interquartile range in units of a
    normal's, which neither heavy tails nor stray draws spoil. Draws that are not finite do not
    count; the scale is zero where half of them agree.

    :param draws: ``[num_draws, num_dims]``.
    """
    draws = np.asarray(draws, np.float64)
    draws = np.where(np.isfinite(draws), draws, np.nan)
    draws = np.where(np.all(np.isnan(draws), axis=0), 0.0, draws)
    low, high = np.nanquantile(draws, [0.25, 0.75], axis=0)
    return (high - low) / _NORMAL_RANGE


def largest_or_zero(log_weights: Any, xp: ModuleType = jnp) -> Any:
    """Returns the largest log weight, or zero where none is finite; without a gradient."""
    largest = xp.max(log_weights, axis=0)
    largest = xp.where(xp.isfinite(largest), largest, 0.0)
    return largest if xp is np else lax.stop_gradient(largest)
