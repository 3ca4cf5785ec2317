# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Numbers read off weights, and weights turned into draws.

Each function takes the array library as its last argument: NumPy for concrete values, where compiling a few
operations one by one would take longer than the run, and JAX's for traced ones.
"""

from types import ModuleType
from typing import Any
import warnings

from jax import lax
import jax.numpy as jnp
from jax.scipy.special import logsumexp
import numpy as np

from numpyro_dais._util.numpyro_internals import psis_khat

__all__ = [
    "ess",
    "largest_or_zero",
    "log_mean",
    "pareto_khat",
    "relative_variance",
    "robust_width",
    "systematic",
    "weight_shares",
]

# The interquartile range of a standard normal.
_NORMAL_RANGE = 1.349


def log_mean(log_weights: Any, xp: ModuleType = jnp) -> Any:
    """Returns the log of the mean weight, along the first axis."""
    if xp is jnp:
        return logsumexp(log_weights, axis=0) - np.log(len(log_weights))
    largest = largest_or_zero(log_weights, xp)
    return largest + xp.log(xp.mean(xp.exp(log_weights - largest), axis=0))


def weight_shares(log_weights: Any, xp: ModuleType = jnp) -> Any:
    """Returns the weights divided by their sum, along the first axis; zeros where all are zero."""
    weights = xp.exp(log_weights - largest_or_zero(log_weights, xp))
    sums = xp.sum(weights, axis=0)
    return weights / xp.where(sums > 0, sums, 1.0)


def ess(log_weights: Any, xp: ModuleType = jnp) -> Any:
    r"""Returns the effective sample size :math:`(\sum w)^2 / \sum w^2`; 0 where all weights are zero."""
    squares = xp.sum(weight_shares(log_weights, xp) ** 2, axis=0)
    return xp.where(squares > 0, 1 / xp.where(squares > 0, squares, 1.0), 0.0)


def relative_variance(log_weights: np.ndarray) -> float:
    """Returns the variance of weights in units of their squared mean; infinite where all are zero."""
    size = float(ess(log_weights, np))
    return len(log_weights) / size - 1 if size else float("inf")


def pareto_khat(log_weights: np.ndarray) -> float:
    """Returns the Pareto shape of the weights' tail; infinite where too few are in it to tell."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # too few tail samples: infinity says so
        return float(psis_khat(log_weights))


def systematic(uniform: Any, shares: Any, xp: ModuleType = jnp) -> Any:
    """
    Returns ancestors by systematic resampling, in expectation each in proportion to its share.

    :param uniform: a uniform random number in [0, 1).
    :param shares: weights, of any positive sum, ``[num_particles]``.
    :param xp: the array library.
    """
    number = len(shares)
    edges = xp.cumsum(shares)
    points = (uniform + xp.arange(number)) / number * edges[-1]
    return xp.minimum(xp.searchsorted(edges, points, side="right"), number - 1)


def robust_width(draws: Any) -> np.ndarray:
    """
    Returns the scale of a cloud along each dimension: the interquartile range in units of a normal's, which
    neither heavy tails nor stray draws spoil. Not-finite draws do not count; zero where half of them agree.

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
