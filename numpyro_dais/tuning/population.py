# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
A population along the path: how far apart its temperatures are, and how wide the density is at each.

A sequential sampler goes from the start to the target. Each next temperature is where the effective sample
size of the increment falls to a fixed share; particles are resampled and moved by Hamiltonian Monte Carlo with
Metropolis corrections. (Uncorrected moves inflate the population, which inflates the steps, which diverge.)
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
from jax import random
import jax.numpy as jnp
import numpy as np

from numpyro_dais.model.problem import Problem
from numpyro_dais.model.target import make_target
from numpyro_dais.sampler.chain import move_chains
from numpyro_dais.sampler.kernel import Step, Transition
from numpyro_dais.sampler.path import LogDensities

__all__ = ["PilotPath", "Population", "move_population", "run_pilot", "start_population"]

MOVE = Transition(is_corrected=True, num_leapfrog=2)
_ESS_SHARE = 0.5
_TARGET_ACCEPTANCE = 0.75
_MAX_LEVELS = 200
_MAX_STEP_SIZE = (
    0.765  # two steps of this size turn a Gaussian by a right angle: it forgets where it was
)
_SMOOTHING = 3  # levels on either side


class Population(NamedTuple):
    """Particles at one temperature, with both log densities."""

    positions: jax.Array
    densities: LogDensities


class PilotPath(NamedTuple):
    """
    What a pilot run has seen, at the start and at each of its temperatures.

    :param betas: inverse temperatures from 0 to 1, ``[num_levels]``.
    :param lengths: the length of the path up to each, in units in which the increments of a chain's log
        weight have variance one.
    :param scales: a square root of the covariance at each: ``[num_levels, num_dims]``, or lower triangular
        ``[num_levels, num_dims, num_dims]``.
    :param log_evidence: the sampler's own estimate.
    :param num_gradients: gradients, and half as many again for densities, that were spent.
    :param is_complete: whether it reached the target within its budget.
    """

    betas: np.ndarray
    lengths: np.ndarray
    scales: np.ndarray
    log_evidence: float
    num_gradients: int
    is_complete: bool

    @property
    def log_widths(self) -> np.ndarray:
        """The mean logarithm of the standard deviations at each temperature, along principal axes."""
        if self.scales.ndim == 2:
            return np.mean(np.log(self.scales), axis=-1)
        return np.mean(np.log(np.diagonal(self.scales, axis1=1, axis2=2)), axis=-1)


def start_population(rng_key: jax.Array, problem: Problem, num_particles: int) -> Population:
    """Returns exact draws from the start; one that is not finite is replaced by zero."""
    target = make_target(problem)
    positions = jax.vmap(target.sample_fn)(random.split(rng_key, num_particles))
    positions = jnp.where(jnp.isfinite(positions), positions, 0.0)
    return Population(positions, jax.vmap(target.log_densities_fn)(positions))


def move_population(
    rng_key: jax.Array,
    problem: Problem,
    population: Population,
    beta: jax.Array,
    step_size: jax.Array,
    scale: jax.Array,
) -> tuple[Population, jax.Array]:
    """
    Returns the population after one Hamiltonian move at a temperature, and its mean acceptance.

    :param rng_key: a JAX random key.
    :param problem: the problem.
    :param population: the population.
    :param beta: the inverse temperature.
    :param step_size: of the leapfrog steps, in units of ``scale``.
    :param scale: the preconditioner.
    """
    steps = Step(*(x[None] for x in (beta, beta, step_size, jnp.zeros_like(beta), scale)))
    positions, densities, acceptance = move_chains(
        rng_key, *population, make_target(problem).log_densities_fn, steps, MOVE
    )
    return Population(positions, densities), jnp.mean(acceptance)


def run_pilot(
    rng_key: jax.Array,
    population: Population,
    move_fn: Callable[..., tuple[Population, jax.Array]],
    max_gradients: int,
    is_dense: bool,
) -> PilotPath:
    """
    Returns what a population sees on its way from the start to the target.

    Runs on the host, around one compiled move. When the budget is short the rest of the way is gone in one
    leap, and the path is not complete.

    :param rng_key: a JAX random key.
    :param population: draws from the start.
    :param move_fn: moves a population: key, population, beta, step size and scale to the moved one and its
        acceptance.
    :param max_gradients: the budget.
    :param is_dense: whether covariances are full.
    """
    rng = np.random.default_rng(np.asarray(random.key_data(rng_key)).ravel().tolist())
    num_particles = len(population.positions)
    cost = num_particles * (MOVE.num_leapfrog + 0.5)
    num_gradients = num_particles * 0.5
    step_size, beta, log_evidence, is_complete = _MAX_STEP_SIZE, 0.0, 0.0, True
    betas, lengths = [0.0], [0.0]
    spreads = [_spread(population.positions, is_dense)]
    for level in range(_MAX_LEVELS):
        log_ratio = np.asarray(population.densities.log_ratio, np.float64)
        log_ratio = np.where(np.isfinite(log_ratio), log_ratio, -np.inf)
        if not np.any(np.isfinite(log_ratio)):
            is_complete = False
            break
        is_last = num_gradients + 2 * cost > max_gradients or level == _MAX_LEVELS - 1
        increment = 1.0 - beta if is_last else _next_increment(log_ratio, 1.0 - beta)
        log_increments = increment * log_ratio
        largest = log_increments.max()
        weights = np.exp(log_increments - largest)
        log_evidence += float(largest + np.log(weights.mean()))
        ess_share = weights.sum() ** 2 / np.sum(weights**2) / num_particles
        beta = 1.0 if increment >= 1.0 - beta else beta + increment
        ancestors = _systematic(rng, weights)
        population = jax.tree.map(lambda x, a=ancestors: x[a], population)
        scale = _spread(population.positions, is_dense).scale(num_particles)
        population, acceptance = move_fn(
            random.fold_in(rng_key, level),
            population,
            jnp.asarray(beta, float),
            jnp.asarray(step_size, float),
            jnp.asarray(scale, float),
        )
        num_gradients += cost
        step_size *= float(np.exp(np.clip(2 * (float(acceptance) - _TARGET_ACCEPTANCE), -1, 0.25)))
        step_size = min(step_size, _MAX_STEP_SIZE)
        betas.append(beta)
        lengths.append(lengths[-1] + np.sqrt(-np.log(ess_share)))
        spreads.append(_spread(population.positions, is_dense))
        if beta == 1.0:
            is_complete = ess_share > 0.5 * _ESS_SHARE
            break
    return PilotPath(
        np.array(betas),
        np.array(lengths),
        _smooth(spreads, num_particles),
        log_evidence,
        int(np.ceil(num_gradients)),
        is_complete,
    )


def _next_increment(log_ratio: np.ndarray, most: float) -> float:
    """How far the temperature may go before the effective sample size falls to its share."""

    def ess_share(increment: float) -> float:
        weights = np.exp(increment * log_ratio - np.max(increment * log_ratio))
        return float(weights.sum() ** 2 / np.sum(weights**2) / len(weights))

    if ess_share(most) >= _ESS_SHARE:
        return most
    low, high = np.log(1e-30), np.log(most)  # in logarithms: vague priors need tiny first steps
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if ess_share(np.exp(middle)) >= _ESS_SHARE else (low, middle)
    return float(np.exp(low))


def _systematic(rng: np.random.Generator, weights: np.ndarray) -> np.ndarray:
    """Ancestors, by systematic resampling."""
    points = (rng.uniform() + np.arange(len(weights))) / len(weights)
    edges = np.cumsum(weights) / np.sum(weights)
    return np.minimum(np.searchsorted(edges, points), len(weights) - 1)


class _Spread(NamedTuple):
    """Standard deviations of a population, and its correlations or None."""

    deviations: np.ndarray
    correlation: np.ndarray | None

    def scale(self, num_particles: float) -> np.ndarray:
        """A square root of the covariance, shrunk towards its diagonal as far as particles are few."""
        if self.correlation is None:
            return self.deviations
        num_dims = len(self.deviations)
        shrinkage = num_dims / (num_dims + num_particles)
        correlation = (1 - shrinkage) * self.correlation + shrinkage * np.eye(num_dims)
        return self.deviations[:, None] * np.linalg.cholesky(correlation)


def _spread(population: jax.Array, is_dense: bool) -> _Spread:
    """The spread of a population, in which neither heavy tails nor a stray particle count for much."""
    positions = np.asarray(population, np.float64)
    center = np.median(positions, axis=0)
    low, high = np.quantile(positions, [0.25, 0.75], axis=0)
    width = (high - low) / 1.349
    width = np.where(width > 0, width, positions.std(axis=0))
    width = np.where(width > 0, width, max(width.max(), 1e-6))
    clipped = np.clip((positions - center) / width, -4.0, 4.0)
    deviations = np.maximum(clipped.std(axis=0), 1e-3)
    if not is_dense:
        return _Spread(width * deviations, None)
    correlation = np.corrcoef(clipped, rowvar=False).reshape(len(width), len(width))
    correlation = np.nan_to_num(correlation)
    np.fill_diagonal(correlation, 1.0)
    return _Spread(width * deviations, correlation)


def _smooth(spreads: list[_Spread], num_particles: int) -> np.ndarray:
    """Scales at each level, averaged over its neighbours: a few particles know a scale to within a tenth."""
    levels = np.arange(len(spreads))
    weights = np.maximum(1 - np.abs(levels[:, None] - levels) / (_SMOOTHING + 1), 0.0)
    # Straight lines through the neighbours, so that a trend is not flattened at the ends.
    logs = np.log([spread.deviations for spread in spreads])
    deviations = np.exp(
        np.stack([_line_at(levels, logs, w, level) for level, w in enumerate(weights)])
    )
    raw = [spread.correlation for spread in spreads if spread.correlation is not None]
    if not raw:
        return deviations
    weights = weights / weights.sum(axis=1, keepdims=True)
    num_effective = num_particles / np.sum(weights**2, axis=1)
    correlations = np.tensordot(weights, np.stack(raw), axes=1)
    return np.stack(
        [
            _Spread(*entry).scale(number)
            for *entry, number in zip(deviations, correlations, num_effective, strict=True)
        ]
    )


def _line_at(xs: np.ndarray, ys: np.ndarray, weights: np.ndarray, x: float) -> np.ndarray:
    """The value at x of the weighted least-squares line through points; ys may be vectors."""
    weights = weights / weights.sum()
    mean_x, mean_y = weights @ xs, weights @ ys
    variance = weights @ (xs - mean_x) ** 2
    if variance == 0:
        return mean_y
    slope = (weights * (xs - mean_x)) @ (ys - mean_y) / variance
    return mean_y + slope * (x - mean_x)
