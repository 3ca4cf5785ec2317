# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

r"""
The tail of weights, and the error of their mean that it leaves room for.

Weights above a threshold :math:`u` follow a generalised Pareto distribution of shape :math:`k` and
scale :math:`\sigma`, about (Vehtari et al. 2024). With :math:`p` the share of the tail and
:math:`m` the mean of all other weights, the mean weight is

.. math::

    \mu = (1 - p) m + p \left( u + \frac{\sigma}{1 - k} \right).

A sample mean may be far from it because the largest weights have not been met; then its spread over
the sample, from which the jackknife's error comes, is too small as well. The fit is not: what it
leaves open of :math:`k`, :math:`\sigma`, :math:`p` and :math:`m` says how far :math:`\mu` may be
from the sample mean.
"""

from functools import cache
import math
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri

from numpyro_dais._util.numpyro_internals import fit_generalized_pareto
from numpyro_dais._util.weights import largest_or_zero, log_mean_error

__all__ = [
    "FEWEST_WEIGHTS",
    "Tail",
    "error_with_tail",
    "fit_tail",
    "pareto_khat",
    "tail_error",
    "tail_of",
    "upper_variance",
]

# The share of the weights that is their tail at most, and how many times the root of their number,
# by Vehtari et al. (2024).
_TAIL_SHARE, _TAIL_ROOTS = 0.2, 3.0
# The fewest weights of a tail that is fitted, by NumPyro.
_FEWEST_IN_TAIL = 5
# The fewest weights with a k-hat: the tail is their largest fifth, at least those five.
FEWEST_WEIGHTS = 25
# Log weights within so many neighbouring floating-point numbers count as equal. A round number, for
# rounding along a chain not to pass for a tail.
_EQUAL_WITHIN = 8
# The number of weights that the prior of k-hat is worth, a shape of 0.5, by Vehtari et al. (2024).
# It counts as knowledge of the shape, too. Priors of 0.3 and 0.4 were tried: errors of light tails
# are smaller by a sixth with 32 weights, and by nothing with 1,024; but where k-hat is up to 0.7,
# the coverage at two errors with 64 weights is 0.89 and 0.90, not 0.92 (benchmarks/error_bars.py).
_PRIOR_NUMBER = 10
# The shape below which the curvature of the likelihood does not say how well it is known.
_LEAST_SHAPE = -0.4
# The mean excess of the largest quarter of standard normal numbers over the others, a constant.
_NORMAL_EXCESS = 0.5966
# The probability within two errors, and the points that show it: with four times as many, errors
# change by less than 2 %.
_COVERAGE, _NUM_POINTS = 0.95, 1024


class Tail(NamedTuple):
    """
    The tail of some weights, these in units of the largest.

    :param shape: the Pareto shape k-hat.
    :param scale: the scale of what is above the threshold.
    :param threshold: the largest weight below the tail.
    :param number: the number of weights in it.
    """

    shape: float
    scale: float
    threshold: float
    number: int


def fit_tail(log_weights: np.ndarray) -> Tail | None:
    """
    Returns the generalised Pareto distribution of the largest weights, by Zhang and Stephens (2009)
    with the prior of Vehtari et al. (2024); None where too few are in the tail to tell.

    :param log_weights: ``[num_weights]``, some of them finite.
    """
    size = len(log_weights)
    log_weights = log_weights - largest_or_zero(log_weights, np)
    number = math.ceil(min(_TAIL_SHARE * size, _TAIL_ROOTS * math.sqrt(size)))
    if number >= size:
        return None
    cutoff = np.partition(log_weights, size - number - 1)[size - number - 1]
    cutoff = max(math.log(np.finfo(float).tiny), float(cutoff))
    above = log_weights[log_weights > cutoff]
    if len(above) < _FEWEST_IN_TAIL:
        return None
    threshold = math.exp(cutoff)
    shape, scale = fit_generalized_pareto(np.exp(above) - threshold)
    return Tail(shape, scale, threshold, len(above))


def tail_of(log_weights: np.ndarray, resolution: float) -> Tail:
    """
    Returns the tail of any weights: of infinite shape where it cannot be fitted; of shape zero, and
    of no weight, where those in it are equal, as inside of a hard constraint.

    :param log_weights: ``[num_weights]``.
    :param resolution: the spacing of floating-point numbers that the log weights were computed in.
    """
    finite = log_weights[np.isfinite(log_weights)]
    fitted = None
    if len(finite):
        number = min(math.ceil(_TAIL_SHARE * len(log_weights)), len(finite))
        largest = np.partition(finite, len(finite) - number)[-number:]
        if np.ptp(largest) <= _EQUAL_WITHIN * resolution:
            return Tail(0.0, 0.0, 1.0, 0)
        fitted = fit_tail(log_weights)
    return Tail(math.inf, 0.0, 1.0, 0) if fitted is None else fitted


def pareto_khat(log_weights: np.ndarray) -> float:
    """Returns the Pareto shape of the weights' tail; infinite where too few are in it to tell."""
    tail = fit_tail(log_weights)
    return math.inf if tail is None else tail.shape


def tail_error(log_weights: np.ndarray, tail: Tail) -> float:
    r"""
    Returns half of the distance from the log of the mean weight within which
    :math:`\log \mu` lies with a probability of 0.95, by the fit of the tail: its shape and scale
    normal around the fit, with the covariance of maximum likelihood and a shape below one, the
    share of the tail and the mean of all other weights normal, too. Infinite if the fit has no
    mean, zero if it is of no weight.

    :param log_weights: ``[num_weights]``.
    :param tail: their tail.
    """
    if not tail.shape < 1:
        return math.inf
    if not tail.number:
        return 0.0
    size, number = len(log_weights), tail.number
    weights = np.exp(log_weights - largest_or_zero(log_weights, np))
    body = weights[weights <= tail.threshold]
    for_shape, for_scale, for_share, for_body = _normal_points()
    shape = max(tail.shape, _LEAST_SHAPE)
    spread = (1 + shape) / math.sqrt(number + _PRIOR_NUMBER)
    shapes = shape + spread * ndtri(ndtr(for_shape) * ndtr((1 - shape) / spread))
    # Given the shape, by its regression on it.
    deviation = math.sqrt((1 + 2 * shape) / number)
    scales = tail.scale * np.exp((shape - shapes) / (1 + shape) + deviation * for_scale)
    share = number / size
    shares = np.clip(share + math.sqrt(share * (1 - share) / size) * for_share, 0.0, 1.0)
    bodies = np.mean(body) + np.std(body) / math.sqrt(len(body)) * for_body
    bodies = np.maximum(bodies, 0.0)
    means = (1 - shares) * bodies + shares * (tail.threshold + scales / (1 - shapes))
    with np.errstate(divide="ignore"):  # a mean of zero is infinitely far
        distances = np.abs(np.log(means / np.mean(weights)))
    return float(np.quantile(distances, _COVERAGE)) / 2


def upper_variance(log_weights: np.ndarray) -> float:
    """
    Returns the variance of normal log weights whose largest quarter is as far above the others as
    theirs is, on average: what is far below, as with a wide start, does not count. Nor do weights
    of zero.

    :param log_weights: ``[num_weights]``.
    """
    finite = log_weights[np.isfinite(log_weights)]
    if not len(finite):
        return 0.0
    excess = np.maximum(finite - np.quantile(finite, 0.75), 0.0)
    return float(4 * np.mean(excess) / _NORMAL_EXCESS) ** 2


def error_with_tail(log_weights: np.ndarray, tail: Tail) -> float:
    """
    Returns the larger of the jackknife's error of the log of the mean weight and that of the tail;
    the jackknife's alone if the fit of the tail has no mean.

    :param log_weights: ``[num_weights]``.
    :param tail: their tail.
    """
    jackknife, of_tail = float(log_mean_error(log_weights, np)), tail_error(log_weights, tail)
    return max(jackknife, of_tail) if math.isfinite(of_tail) else jackknife


@cache
def _normal_points() -> np.ndarray:
    """Points that fill a normal distribution of four dimensions evenly (Roberts 2018)."""
    ratio = 1.0
    for _ in range(40):  # the root of x^5 = x + 1
        ratio = (1 + ratio) ** (1 / 5)
    steps = ratio ** -np.arange(1.0, 5.0)
    return ndtri((0.5 + steps[:, None] * np.arange(1, _NUM_POINTS + 1)) % 1)
