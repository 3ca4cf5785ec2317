# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Draws from a density over a few real coordinates, which tell the cubature of ``fuzz_quadrature.py`` where the mass is."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp

LogDensity = Callable[[np.ndarray], np.ndarray]

NUM_PARTICLES = 4096
NUM_MOVES = 6  # of the population at a temperature
SCOUT_FROM = 0.05  # the power of the density from which on the population's earlier places are kept
NUM_SNAPSHOTS = 4  # of the population at the end, to see little mass by
WIDTH = 3.0  # of the Cauchy density at the start


class Population(NamedTuple):
    """
    Draws from a density.

    :param particles: the draws.
    :param scouts: draws from the density at lower powers, which are around it.
    :param log_integral: an estimate of the log of the integral.
    """

    particles: np.ndarray
    scouts: np.ndarray
    log_integral: float


def tempered_population(
    log_density_fn: LogDensity, num_dims: int, rng: np.random.Generator
) -> Population:
    """
    Returns draws from a density over the reals by sequential Monte Carlo from a product of Cauchy densities, with moves
    along differences of other particles.
    """
    x = WIDTH * rng.standard_cauchy((NUM_PARTICLES, num_dims))

    def log_start(x):
        return -np.sum(np.log(np.pi * WIDTH * (1 + (x / WIDTH) ** 2)), axis=1)

    log_p, log_q, beta, log_integral = log_density_fn(x), log_start(x), 0.0, 0.0
    snapshots, scouts = [], []
    while beta < 1:
        difference = np.where(np.isfinite(log_p), log_p - log_q, -np.inf)
        if not np.any(np.isfinite(difference)):
            return Population(x, x, -np.inf)
        step = _temper(difference, 1 - beta)
        log_weights, beta = step * difference, beta + step
        log_integral += logsumexp(log_weights) - np.log(NUM_PARTICLES)
        weights = np.cumsum(np.exp(log_weights - logsumexp(log_weights)))
        places = (np.arange(NUM_PARTICLES) + rng.uniform()) / NUM_PARTICLES
        chosen = rng.permutation(np.minimum(np.searchsorted(weights, places), NUM_PARTICLES - 1))
        x, log_p, log_q = x[chosen], log_p[chosen], log_q[chosen]
        for move in range(NUM_MOVES if beta < 1 else NUM_SNAPSHOTS * NUM_MOVES):
            proposal = _propose(x, rng)
            new_p, new_q = log_density_fn(proposal), log_start(proposal)
            gain = beta * (new_p - log_p) + (1 - beta) * (new_q - log_q)
            is_taken = np.log(rng.uniform(size=NUM_PARTICLES)) < gain
            x = np.where(is_taken[:, None], proposal, x)
            log_p, log_q = np.where(is_taken, new_p, log_p), np.where(is_taken, new_q, log_q)
            snapshots += [x] if beta == 1 and move % NUM_MOVES == NUM_MOVES - 1 else []
        scouts += [x] if SCOUT_FROM < beta < 1 else []
    return Population(np.concatenate(snapshots), np.concatenate([*scouts, x]), float(log_integral))


def _temper(difference: np.ndarray, longest: float) -> float:
    """The step in temperature that leaves half of the effective particles."""

    def ess(step):
        w = np.maximum(step * (difference - difference.max()), -1e4)  # below which nothing counts
        return np.exp(2 * logsumexp(w) - logsumexp(2 * w))

    low, high = 0.0, longest
    if ess(longest) >= NUM_PARTICLES / 2:
        return longest
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if ess(middle) >= NUM_PARTICLES / 2 else (low, middle)
    return max(high, 1e-8)


def _propose(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Each particle, moved along the difference of two others; one in ten by all of it, from mode to mode."""
    size, num_dims = x.shape
    first, second = rng.integers(size, size=(2, size))
    length = np.where(rng.uniform(size=size) < 0.1, 1.0, 2.38 / np.sqrt(2 * num_dims))
    length *= np.exp(rng.uniform(-2, 0, size)) ** (length < 1)
    return x + length[:, None] * (x[first] - x[second]) * rng.normal(1, 0.01, x.shape)
