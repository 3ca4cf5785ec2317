# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

r"""
A chain of any number of steps along a path that a pilot run has measured.

In units of the density's own width, a leapfrog step of size :math:`\eta` with refreshed momentum
does not leave the tempered density invariant, but one that is narrower: of a Gaussian, the variance
becomes :math:`1 - \eta^2/4` of its own. With :math:`\eta = \sqrt 2` a single step even forgets
where it began. Long steps mix best; the narrowing has to be paid for at both ends of the chain. It
costs least if what the particles are *really* distributed as moves at a constant speed (in the
metric in which the increments of the log weight have unit variance), from the start to the target:

1. the step size grows from 0 to :math:`\eta` at :math:`\beta = 0`, and the particles contract;
2. :math:`\beta` rises at a constant step size, up to the temperature whose narrowed density is as
   wide as the target;
3. the step size falls and :math:`\beta` rises to 1, such that the particles stay as wide as they
   are.

On Gaussian targets with the exact covariances, the gap of such a chain falls as 1/K and is within a
few per cent of that of the best schedule and step sizes, found by ascent on the exact bound.
"""

import numpy as np
from scipy.interpolate import PchipInterpolator

from numpyro_dais._util.concreteness import as_floats
from numpyro_dais.sampler.settings import Settings, diagonal_per_step, make_settings
from numpyro_dais.tuning.population import MeasuredPath

__all__ = ["anneal", "damping_of", "increasing"]

# The shortest step, as a share of the longest: shorter ones move nothing. A round number.
_FIRST_STEP = 0.15
# Points at which the path is tabulated: far finer than its levels are known.
_NUM_POINTS = 2001
# Of the steps, for the third phase, which covers no distance, but is no jump. A round number.
_LAST_SHARE = 0.02


def damping_of(step_size: float) -> float:
    r"""
    Returns the damping that goes with a step size in units of the density's width: none for steps
    that forget by themselves. Short steps lose about 0.3 of their momentum on a way of one width:
    measured on a log-Gaussian Cox process in 256 dimensions, 0.12 to 0.5 are equally good, 0.03 and
    1 are not, at any number of steps.

    :param step_size: :math:`\eta`.
    """
    return float(np.clip(1 - 0.3 * step_size - 0.35 * step_size**2, 0.0, 0.999))


def anneal(path: MeasuredPath, num_steps: int, step_size: float, damping: float) -> Settings:
    r"""
    Returns the settings of a chain along a path.

    :param path: what a pilot run has measured.
    :param num_steps: the number of steps :math:`K`, at least 1.
    :param step_size: :math:`\eta` in the middle of the chain, in units of the density's width;
        below 2.
    :param damping: of every step.
    """
    num_dims = path.scales.shape[1]
    grid = np.linspace(0.0, path.lengths[-1], _NUM_POINTS)
    log_variances = 2 * np.interp(grid, path.lengths, path.log_widths)
    contraction = -np.log1p(-(step_size**2) / 4)
    ramp = np.sqrt(num_dims / 2) * contraction  # how long the first phase is
    excess = log_variances - log_variances[-1]
    is_wider = excess >= contraction
    if is_wider.any():  # the second phase ends where the narrowed density has the target's width
        middle = grid[np.flatnonzero(is_wider)[-1]]
        last = 0.0
    else:  # the target is too wide: the particles have to expand again
        middle, last = grid[-1], ramp
    total = ramp + middle + last
    num_last = max(round(num_steps * last / total), round(_LAST_SHARE * num_steps), 1)
    num_first = num_steps - num_last
    along = np.arange(1, num_first + 1) / max(num_first, 1) * (ramp + middle)
    contractions = contraction * np.minimum(along / ramp, 1.0)
    lengths = np.maximum(along - ramp, 0.0)
    rest = np.arange(1, num_last + 1) / num_last
    if last:
        lengths_last = np.full(num_last, grid[-1])
        contractions_last = contraction * (1 - rest)
    else:
        lengths_last = middle + (grid[-1] - middle) * rest
        contractions_last = np.clip(np.interp(lengths_last, grid, excess), 0.0, contraction)
    lengths = np.append(lengths, lengths_last)
    contractions = np.append(contractions, contractions_last)
    step_sizes = np.maximum(2 * np.sqrt(-np.expm1(-contractions)), _FIRST_STEP * step_size)
    settings = make_settings(
        increasing(_betas_at(path, lengths)),
        np.minimum(step_sizes, step_size),
        damping,
        _scales_at(path, lengths),
    )
    return settings if path.basis is None else settings._replace(basis=as_floats(path.basis))


def _betas_at(path: MeasuredPath, lengths: np.ndarray) -> np.ndarray:
    """Inverse temperatures at lengths of the path: smooth in their logarithms, beyond the first."""
    is_further = np.append(np.diff(path.lengths) > 0, True)  # the last of those at one length
    places, levels = path.lengths[is_further], path.betas[is_further]
    if places[0] > 0:
        places, levels = np.append(0.0, places), np.append(0.0, levels)
    first = places[1]
    betas = levels[1] * lengths / first
    if len(levels) > 2:
        log_beta = PchipInterpolator(places[1:], np.log(levels[1:]))
        betas = np.where(lengths > first, np.exp(log_beta(np.maximum(lengths, first))), betas)
    return np.minimum(betas, 1.0)


def increasing(betas: np.ndarray) -> np.ndarray:
    """The same, with ties broken by amounts that do not matter, and a last one of exactly 1."""
    smallest = 1e-7 * max(betas[betas > 0].min(initial=1.0), 1e-20)
    betas = np.maximum(betas, smallest * np.arange(1, len(betas) + 1))
    rest = np.arange(len(betas))[::-1]
    betas = np.minimum(betas, 1.0 - 1e-7 * rest / len(betas))
    betas[-1] = 1.0
    return np.maximum.accumulate(betas)


def _scales_at(path: MeasuredPath, lengths: np.ndarray) -> np.ndarray:
    """Preconditioners at lengths of the path, between the two nearest temperatures."""
    upper = np.clip(np.searchsorted(path.lengths, lengths), 1, len(path.lengths) - 1)
    span = path.lengths[upper] - path.lengths[upper - 1]
    share = np.where(span > 0, (lengths - path.lengths[upper - 1]) / np.where(span > 0, span, 1), 1)
    if path.scales.ndim == 2:
        if np.all(path.scales == path.scales[0]):
            return path.scales[0]
        share = share[:, None]
        logs = np.log(path.scales)
        return diagonal_per_step(np.exp((1 - share) * logs[upper - 1] + share * logs[upper]))
    share = share[:, None, None]
    return (1 - share) * path.scales[upper - 1] + share * path.scales[upper]
