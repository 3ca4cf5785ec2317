# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
A population along the path: how far apart its temperatures are, and how wide the density is at
each.

A sequential sampler goes from the start to the target. Each next temperature is where the effective
sample size of the increment falls to a fixed share; particles are resampled and moved by
Hamiltonian Monte Carlo with Metropolis corrections. (Uncorrected moves inflate the population,
which inflates the steps, which diverge.)
"""

from typing import NamedTuple

import jax
from jax import random
import jax.numpy as jnp
import numpy as np

from numpyro_dais._util.keys import host_generator, named_key
from numpyro_dais._util.programs import program
from numpyro_dais._util.weights import ess, log_mean, robust_width, systematic, weight_shares
from numpyro_dais.model.traced import TracedTarget
from numpyro_dais.sampler.chain import move_chains
from numpyro_dais.sampler.kernel import Step, Transition
from numpyro_dais.sampler.path import LogDensities

__all__ = ["MeasuredPath", "Population", "measure_path", "move_population", "start_population"]

# One move at each temperature: two leapfrog steps, the fewest that can forget a position.
MOVE = Transition(is_corrected=True, num_leapfrog=2)
# The effective sample size after a step of the temperature, as a share: custom of the literature.
_ESS_SHARE = 0.5
# Of a move: below the 0.8 of long trajectories, since these are short. A round number.
_TARGET_ACCEPTANCE = 0.75
# Temperatures at most: a path that needs more is one that the budget ends first.
_MAX_LEVELS = 200
# Two steps of this size turn a Gaussian by a right angle: it forgets where it was.
_MAX_STEP_SIZE = 0.765
# Particles of positive density that a path needs to begin with: fewer are copies of a handful, and
# show no width. A round number.
_FEWEST_ALIVE = 8
# Levels on either side over which widths are smoothed: a few particles know a width to a tenth.
_SMOOTHING = 3


class Population(NamedTuple):
    """Particles at one temperature, with both log densities."""

    positions: jax.Array
    densities: LogDensities


class MeasuredPath(NamedTuple):
    """
    The path as a population has seen it, at the start and at each of its temperatures.

    :param betas: inverse temperatures from 0 to 1, ``[num_levels]``.
    :param lengths: the length of the path up to each, in units in which the increments of a chain's
        log weight have variance one.
    :param scales: a square root of the covariance at each: ``[num_levels, num_dims]``, or lower
        triangular ``[num_levels, num_dims, num_dims]``.
    :param log_evidence: the sampler's own estimate.
    :param num_gradients: gradients, and half as many again for densities, that were spent.
    :param is_seen: whether there was anything to see: if the density is zero nearly everywhere that
        the start goes, the path is one leap, as wide as the start.
    :param has_zeros: whether the density was zero at draws of the start.
    :param basis: axes along which scales of ``[num_levels, num_dims]`` are; None for those of the
        positions.
    :param positions: where the particles are at the end, ``[num_particles, num_dims]``; None if the
        path is not that of a population, or if that has seen nothing.
    :param founders: the draw of the start that each of them descends from; likewise.
    """

    betas: np.ndarray
    lengths: np.ndarray
    scales: np.ndarray
    log_evidence: float
    num_gradients: int
    is_seen: bool = True
    has_zeros: bool = False
    basis: np.ndarray | None = None
    positions: jax.Array | None = None
    founders: np.ndarray | None = None

    @property
    def log_widths(self) -> np.ndarray:
        """
        The mean logarithm of the standard deviations at each temperature, along principal axes.
        """
        if self.scales.ndim == 2:
            return np.mean(np.log(self.scales), axis=-1)
        return np.mean(np.log(np.diagonal(self.scales, axis1=1, axis2=2)), axis=-1)


@program("num_particles")
def start_population(rng_key: jax.Array, target: TracedTarget, num_particles: int) -> Population:
    """Returns exact draws from the start; one that is not finite is replaced by zero."""
    positions = jax.vmap(target.sample_fn)(random.split(rng_key, num_particles))
    positions = jnp.where(jnp.isfinite(positions), positions, 0.0)
    return Population(positions, jax.vmap(target.log_densities_fn)(positions))


@program()
def move_population(
    rng_key: jax.Array,
    target: TracedTarget,
    population: Population,
    ancestors: jax.Array,
    beta: jax.Array,
    step_size: jax.Array,
    scale: jax.Array,
) -> tuple[Population, jax.Array]:
    """
    Returns the population resampled and moved at a temperature, and the mean acceptance of the
    move.

    :param rng_key: a JAX random key.
    :param target: the target.
    :param population: the population.
    :param ancestors: indices of those that go on.
    :param beta: the inverse temperature.
    :param step_size: of the leapfrog steps, in units of ``scale``.
    :param scale: the preconditioner.
    """
    population = jax.tree.map(lambda x: x[ancestors], population)
    steps = Step(*(x[None] for x in (beta, beta, step_size, jnp.zeros_like(beta), scale)))
    positions, densities, acceptance = move_chains(
        rng_key, *population, target.log_densities_fn, steps, MOVE
    )
    return Population(positions, densities), jnp.mean(acceptance)


def measure_path(
    rng_key: jax.Array,
    target: TracedTarget,
    num_particles: int,
    max_gradients: int,
    max_dense_dims: int,
) -> MeasuredPath:
    """
    Returns what a population sees on its way from the start to the target.

    Runs on the host, around one compiled move. When the budget is short the rest of the way is gone
    in one leap, and the path is not complete.

    :param rng_key: a JAX random key.
    :param target: the target.
    :param num_particles: of the population.
    :param max_gradients: the budget.
    :param max_dense_dims: up to so many dimensions covariances are full.
    """
    rng = host_generator(rng_key)
    move_key = named_key(rng_key, "moves")
    population = start_population(named_key(rng_key, "start"), target, num_particles=num_particles)
    is_dense = population.positions.shape[-1] <= max_dense_dims
    cost = num_particles * (MOVE.num_leapfrog + 0.5)
    num_gradients = num_particles * 0.5
    step_size, beta, log_evidence = _MAX_STEP_SIZE, 0.0, 0.0
    betas, lengths = [0.0], [0.0]
    spreads = [_spread(population.positions, is_dense)]
    is_seen, has_zeros = True, False
    founders = np.arange(num_particles)
    for level in range(_MAX_LEVELS):
        log_ratio = np.asarray(population.densities.log_ratio, np.float64)
        log_ratio = np.where(np.isfinite(log_ratio), log_ratio, -np.inf)
        num_alive = int(np.sum(np.isfinite(log_ratio)))
        if not level:
            has_zeros = num_alive < num_particles
            is_seen = num_alive >= _FEWEST_ALIVE
        if not is_seen:
            betas, lengths, spreads = [0.0, 1.0], [0.0, 1.0], spreads * 2
        if not is_seen or not num_alive:
            break
        is_last = num_gradients + 2 * cost > max_gradients or level == _MAX_LEVELS - 1
        increment = 1.0 - beta if is_last else _next_increment(log_ratio, 1.0 - beta)
        log_increments = increment * log_ratio
        shares = weight_shares(log_increments, np)
        log_evidence += float(log_mean(log_increments, np))
        ess_share = float(ess(log_increments, np)) / num_particles
        beta = 1.0 if increment >= 1.0 - beta else beta + increment
        ancestors = systematic(rng.uniform(), shares, np)
        founders = founders[ancestors]
        positions = np.asarray(population.positions)[ancestors]
        scale = _spread(positions, is_dense).scale(num_particles)
        population, acceptance = move_population(
            random.fold_in(move_key, level),
            target,
            population,
            ancestors,
            *(np.asarray(x, positions.dtype) for x in (beta, step_size, scale)),
        )
        num_gradients += cost
        step_size *= float(np.exp(np.clip(2 * (float(acceptance) - _TARGET_ACCEPTANCE), -1, 0.25)))
        step_size = min(step_size, _MAX_STEP_SIZE)
        betas.append(beta)
        lengths.append(lengths[-1] + np.sqrt(max(-np.log(ess_share), 0.0)))  # but for rounding
        spreads.append(_spread(population.positions, is_dense))
        if beta == 1.0:
            break
    return MeasuredPath(
        np.array(betas),
        np.array(lengths),
        _smooth(spreads, num_particles),
        log_evidence,
        int(np.ceil(num_gradients)),
        is_seen,
        has_zeros,
        positions=population.positions if is_seen and betas[-1] == 1.0 else None,
        founders=founders if is_seen and betas[-1] == 1.0 else None,
    )


def _next_increment(log_ratio: np.ndarray, most: float) -> float:
    """The step of the temperature at which the effective sample size falls to its share."""

    def ess_share(increment: float) -> float:
        return float(ess(increment * log_ratio, np)) / len(log_ratio)

    if ess_share(most) >= _ESS_SHARE:
        return most
    low, high = np.log(1e-30), np.log(most)  # in logarithms: vague priors need tiny first steps
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if ess_share(np.exp(middle)) >= _ESS_SHARE else (low, middle)
    return float(np.exp(low))


class _Spread(NamedTuple):
    """Standard deviations of a population, and its correlations or None."""

    deviations: np.ndarray
    correlation: np.ndarray | None

    def scale(self, num_particles: float) -> np.ndarray:
        """
        A square root of the covariance, shrunk towards its diagonal as far as particles are few.
        """
        if self.correlation is None:
            return self.deviations
        num_dims = len(self.deviations)
        shrinkage = num_dims / (num_dims + num_particles)
        correlation = (1 - shrinkage) * self.correlation + shrinkage * np.eye(num_dims)
        return self.deviations[:, None] * np.linalg.cholesky(correlation)


def _spread(population: jax.Array, is_dense: bool) -> _Spread:
    """
    The spread of a population, in which neither heavy tails nor a stray particle count for much.
    """
    positions = np.asarray(population, np.float64)
    center = np.median(positions, axis=0)
    width = robust_width(positions)
    width = np.where(width > 0, width, positions.std(axis=0))
    width = np.where(width > 0, width, max(width.max(), 1e-6))
    clipped = np.clip((positions - center) / width, -4.0, 4.0)
    deviations = np.maximum(clipped.std(axis=0), 1e-3)
    if not is_dense:
        return _Spread(width * deviations, None)
    with np.errstate(all="ignore"):  # of particles that agree
        correlation = np.corrcoef(clipped, rowvar=False).reshape(len(width), len(width))
    correlation = np.nan_to_num(correlation)
    np.fill_diagonal(correlation, 1.0)
    return _Spread(width * deviations, correlation)


def _smooth(spreads: list[_Spread], num_particles: int) -> np.ndarray:
    """
    Scales at each level, averaged over its neighbours: a few particles know a scale to within a
    tenth.
    """
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
