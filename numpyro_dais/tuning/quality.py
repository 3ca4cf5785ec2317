# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""The quality of a start, as draws of it show it."""

from collections.abc import Callable
import math
from typing import NamedTuple

import jax
import numpy as np

from numpyro_dais._util.tails import pareto_khat
from numpyro_dais._util.weights import log_mean, log_mean_error, relative_variance
from numpyro_dais.model.traced import TracedTarget
from numpyro_dais.sampler.mixture import Mixture
from numpyro_dais.sampler.particles import Run
from numpyro_dais.sampler.settings import Settings, no_steps

__all__ = [
    "BLOCK",
    "HEAVY_KHAT",
    "HOPELESS_KHAT",
    "LARGEST_KHAT",
    "SAFETY",
    "DrawFn",
    "Fit",
    "Quality",
    "RunFn",
    "has_more_mass",
    "judge_start",
    "quality_of",
    "weighted_draws",
]

# Runs particles: key, target, settings and their number to log weights, or to all of their run.
RunFn = Callable[[jax.Array, TracedTarget, Settings, int], np.ndarray]
DrawFn = Callable[[jax.Array, TracedTarget, Settings, int], Run]

# Particles of a test. Whole numbers of such blocks share a program with the reported run.
BLOCK = 1024
# A variance that is known from one test only is taken to be larger by this factor.
SAFETY = 1.25
# The k-hat of a start beyond which steps are not trusted to mend it: weights without a mean.
LARGEST_KHAT = 1.0
# The k-hat of a test from which on the variance may be much larger than it shows.
HEAVY_KHAT = 0.3
# The k-hat of a fit in many dimensions above which its axes are given up. A round number: beyond it
# the error of a mean is not known.
HOPELESS_KHAT = 0.7
# Nats of mass that a fit around one mode may lack, and not be wrong: below any error bar of a
# mixture that is no good. A round number.
_MISSED = 0.05
# Weights above zero that a test of the start needs: fewer have no tail to be seen.
_FEWEST_IN_TEST = 25
# Nats: weights that differ by less are equal, and have no tail. A round number.
_EQUAL_WITHIN = 1e-3


class Quality(NamedTuple):
    """
    The quality of a start, as draws of it show it.

    :param variance: the relative variance of their weights.
    :param khat: the shape of their tail.
    """

    variance: float
    khat: float

    @property
    def score(self) -> float:
        """The variance, as it may be once the tail has shown: smaller is better."""
        return self.variance * float(np.exp(min(8 * max(self.khat - HEAVY_KHAT, 0.0), 100.0)))


class Fit(NamedTuple):
    """
    A start, and how good it is.

    :param mixture: what was fitted; None for the target's own start.
    :param quality: its quality.
    :param log_weights: of the draws that have shown it.
    :param draws: where these are, ``[num_draws, num_dims]``.
    """

    mixture: Mixture | None
    quality: Quality
    log_weights: np.ndarray
    draws: np.ndarray


def judge_start(rng_key: jax.Array, target: TracedTarget, draw_fn: DrawFn) -> tuple[Fit, float]:
    """
    Returns the start of a target and how good it is without steps, and what the test has cost.

    :param rng_key: a JAX random key.
    :param target: the target, with its start.
    :param draw_fn: runs particles.
    """
    log_weights, draws = weighted_draws(draw_fn(rng_key, target, no_steps(), BLOCK))
    finite = log_weights[np.isfinite(log_weights)]
    quality = Quality(math.inf, math.inf)
    # Weights of zero, where a hard constraint has a zero, are a part of the variance.
    if len(finite) >= _FEWEST_IN_TEST:
        quality = Quality(relative_variance(log_weights), _tail(finite))
    return Fit(target.mixture, quality, log_weights, draws), BLOCK / 2


def has_more_mass(one: Fit, other: Fit) -> bool:
    """
    Returns whether draws of one fit have met mass that those of another have not.

    :param one: the fit.
    :param other: the other.
    """
    error = float(np.hypot(*(log_mean_error(fit.log_weights, np) for fit in (one, other))))
    more = float(log_mean(one.log_weights, np) - log_mean(other.log_weights, np))
    return more > max(_MISSED, 2 * error) if np.isfinite(error) else more > _MISSED


def weighted_draws(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """
    Returns log weights and positions of particles.

    :param run: the particles.
    """
    return np.asarray(run.log_weights, np.float64), np.asarray(run.positions, np.float64)


def quality_of(log_weights: np.ndarray) -> Quality:
    """
    Returns the quality of a start whose density is positive everywhere.

    :param log_weights: of draws of it.
    """
    log_weights = np.where(np.isfinite(log_weights), log_weights, -np.inf)
    finite = log_weights[np.isfinite(log_weights)]
    if len(finite) < len(log_weights) / 2:
        return Quality(math.inf, math.inf)
    if np.ptp(finite) < _EQUAL_WITHIN:
        return Quality(float(np.var(finite)), 0.0)
    return Quality(
        relative_variance(log_weights),
        _tail(np.where(np.isfinite(log_weights), log_weights, finite.min())),
    )


def _tail(log_weights: np.ndarray) -> float:
    """The shape of the tail of weights above zero; none where they are equal."""
    return 0.0 if np.ptp(log_weights) < _EQUAL_WITHIN else pareto_khat(log_weights)
