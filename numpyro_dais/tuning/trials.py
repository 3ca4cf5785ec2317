# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Short runs of chains, and what they tell of longer ones."""

import math
from typing import NamedTuple

import numpy as np

from numpyro_dais.sampler.particles import Run
from numpyro_dais.tuning.candidates import Candidate
from numpyro_dais.tuning.population import MeasuredPath

__all__ = ["Trial", "barrier_of", "log_relative_variance", "measured_anew"]

# Parts of a path of which contributions are measured: more are noisier. A round number.
_NUM_PARTS = 24
# Of the old speed of a path in the new one, in logarithms: contributions are known from a few
# particles. A round number.
_INERTIA = 0.5
# The least share of the mean contribution that a part is taken to have: measured ones may be
# negative. A round number.
_LEAST_SHARE = 0.05
# How many times the loss of particles counts, and nats below the others where one is lost. Round
# numbers.
_LOSS_FACTOR, _FAR_BELOW = 10.0, 20.0
# Nats that a particle may lie apart from the others in one step: those of stray ones say nothing of
# the path. A round number.
_LARGEST_WORK = 30.0
# Particles that show contributions: fewer show nothing. A round number.
_FEWEST_PARTICLES = 4


class Trial(NamedTuple):
    """
    A short run.

    :param candidate: whose chains they were.
    :param run: the particles.
    :param log_weights: their log weights, ``[num_particles]``.
    :param log_ratios: what each step saw, ``[num_steps, num_particles]``.
    :param betas: the schedule.
    """

    candidate: Candidate
    run: Run
    log_weights: np.ndarray
    log_ratios: np.ndarray
    betas: np.ndarray

    @property
    def num_steps(self) -> int:
        """The number of steps."""
        return len(self.betas)

    @property
    def bound(self) -> float:
        """
        The mean log weight without the lowest eighth, where stray draws of a start are, and with
        what particles that have exploded take from the estimate, several times over: it is a bias,
        and no error bar shows it.
        """
        upper = self._upper
        if not np.all(np.isfinite(upper)):
            return -math.inf
        lowest = np.median(self.log_weights) - max(_FAR_BELOW, 6 * float(np.std(upper)))
        share = np.mean(self.log_weights > lowest)
        return float(np.mean(upper) + _LOSS_FACTOR * np.log(share))

    @property
    def _upper(self) -> np.ndarray:
        return np.sort(self.log_weights)[len(self.log_weights) // 8 :]

    @property
    def log_variance(self) -> float:
        """The variance of log weights, those of stray particles left out."""
        if not np.all(np.isfinite(self._upper)):
            return math.inf
        spread = float(np.var(self._upper, ddof=1))
        spread *= 1.36  # which the upper seven eighths of a normal's have less
        return max(spread, 1e-4)


def log_relative_variance(log_variance: float) -> float:
    """
    Returns the logarithm of the relative variance of weights that are log-normal, however large.

    :param log_variance: the variance of their logarithms.
    """
    if log_variance > 30.0:
        return log_variance
    return math.log(math.expm1(log_variance))


def barrier_of(trial: Trial) -> float:
    r"""
    Returns the length of the path as chains have felt it: :math:`\sum_i \sqrt{c_i n_i}`, with what
    each part of the path adds to the variance of the log weights, and its number of steps. It does
    not depend on the number of steps as long as chains keep up; divided by its square root, it is
    the deviation of log weights at a constant speed.

    :param trial: a run of chains.
    """
    return float(np.sum(_part_lengths(trial)[1]))


def measured_anew(path: MeasuredPath, trial: Trial) -> MeasuredPath:
    """
    Returns the path with lengths as chains have felt them, for a schedule of constant speed.

    :param path: the path that the chains followed.
    :param trial: a run of chains.
    """
    edges, lengths = _part_lengths(trial)
    betas = np.append(0.0, trial.betas)[edges]
    old = np.diff(np.interp(betas, path.betas, path.lengths))
    old = old / old.sum()
    new = lengths / lengths.sum()
    mixed = np.maximum(old, 1e-12) ** _INERTIA * np.maximum(new, 1e-12) ** (1 - _INERTIA)
    # Each part of the path is stretched as a whole, and keeps its shape inside.
    parts = np.clip(np.searchsorted(betas, path.betas, side="right") - 1, 0, len(mixed) - 1)
    stretch = mixed / np.maximum(old, 1e-12)
    steps = np.diff(path.lengths) * stretch[parts[1:]]
    return path._replace(lengths=np.append(0.0, np.cumsum(steps)) * path.lengths[-1] / steps.sum())


def _part_lengths(trial: Trial) -> tuple[np.ndarray, np.ndarray]:
    """Edges of parts, in steps, and the length of each."""
    num_parts = min(_NUM_PARTS, trial.num_steps)
    edges = np.linspace(0, trial.num_steps, num_parts + 1).round().astype(int)
    order = np.argsort(trial.log_weights)[len(trial.log_weights) // 4 :]
    is_whole = np.all(np.isfinite(trial.log_ratios), axis=0)
    order = order[np.isfinite(trial.log_weights[order]) & is_whole[order]]
    if len(order) < _FEWEST_PARTICLES:
        return edges, np.diff(edges).astype(float)
    work = np.diff(trial.betas, prepend=0.0)[:, None] * trial.log_ratios[:, order]
    work = np.clip(work - np.median(work, axis=1, keepdims=True), -_LARGEST_WORK, _LARGEST_WORK)
    variances = np.append(0.0, np.cumsum(work, axis=0).var(axis=1))[edges]
    contributions = np.diff(variances)
    least = _LEAST_SHARE * max(float(variances[-1]), 1e-12) / num_parts
    return edges, np.sqrt(np.maximum(contributions, least) * np.diff(edges))
