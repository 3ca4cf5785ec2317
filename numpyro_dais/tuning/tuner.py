# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Self-tuning: a start, a schedule, step sizes, and numbers of steps and particles for a wanted error.

Everything here runs on the host, around compiled pieces, and spends gradients on one question:
which settings give the smallest error of the log evidence for what is left of the budget. Settings
are frozen before the reported run, whose randomness is fresh, so that its weights are unbiased
whatever was decided here.
"""

import math
from typing import NamedTuple

import jax
import numpy as np

from numpyro_dais._util.keys import named_key
from numpyro_dais._util.weights import relative_variance
from numpyro_dais.model.traced import TracedTarget
from numpyro_dais.sampler.settings import Settings, no_steps
from numpyro_dais.tuning.annealing import anneal, damping_of
from numpyro_dais.tuning.fitting import (
    BLOCK,
    LARGEST_KHAT,
    SAFETY,
    Fit,
    RunFn,
    find_start,
    judge_start,
)
from numpyro_dais.tuning.goal import DEFAULT_NUM_PARTICLES, Goal
from numpyro_dais.tuning.population import MeasuredPath, measure_path

__all__ = ["tune_all"]

# Nats: an error without steps which is good enough, since steps would cost a measured path first.
# A round number.
_GOOD_ENOUGH = 0.03
# Particles that are wanted with steps, and what a short budget may leave: fewer have no error bar.
_MIN_PARTICLES, _FEWEST_PARTICLES = 128, 32
# Particles at most: what they would add to the accuracy is far below any goal. A round number.
_MAX_PARTICLES = 2**18
# Of the budget, to measure the path: what is spent here is missing in the run. A round number.
_PATH_SHARE = 0.2
# Of the runs that compare step sizes, and of the one that plans: as short as their ranking allows.
_NUM_TRIAL_STEPS = 32
_NUM_TRIAL_PARTICLES = 16
_NUM_PLAN_PARTICLES = 48
# In units of the density's width: from the one that forgets a Gaussian in one step, down by factors
# of about two.
_STEP_SIZES = (1.4, 1.1, 0.8, 0.5, 0.3, 0.15, 0.07, 0.03)
# Dimensions above which a population of 72 knows too little of a covariance. A round number.
_MAX_DENSE_DIMS = 20


class _Trial(NamedTuple):
    """A short run: its step size and log weights."""

    step_size: float
    log_weights: np.ndarray

    @property
    def bound(self) -> float:
        """
        The mean log weight without the lowest quarter, where stray draws of a defensive start are.
        """
        mean = float(np.mean(self._upper))
        return mean if np.isfinite(mean) else -math.inf

    @property
    def _upper(self) -> np.ndarray:
        return np.sort(self.log_weights)[len(self.log_weights) // 4 :]

    @property
    def log_variance(self) -> float:
        """The variance of normal log weights that would have the same effective sample size."""
        if not np.all(np.isfinite(self._upper)):
            return 100.0
        spread = float(np.var(self._upper, ddof=1))
        spread *= 1.87  # which the upper three quarters of a normal's have less
        from_weights = math.log1p(relative_variance(self.log_weights))
        is_known = math.expm1(from_weights) < len(self.log_weights) / 5
        return max(min(from_weights, spread) if is_known else spread, 1e-4)


class _Plan(NamedTuple):
    """Numbers of steps and particles, and what they promise."""

    num_steps: int
    num_particles: int
    error: float
    cost: float


def tune_all(rng_key: jax.Array, target: TracedTarget, goal: Goal, run_fn: RunFn) -> Settings:
    """
    Returns settings for a goal.

    :param rng_key: a JAX random key.
    :param target: the target, with its own start.
    :param goal: what the settings are for.
    :param run_fn: runs particles.
    """
    fit, spent = None, 0.0
    if goal.is_start_free:
        fit, spent = find_start(named_key(rng_key, "fit"), target, goal, run_fn)
    mixture = None
    if fit is not None and fit.quality.khat < LARGEST_KHAT:
        mixture = fit.mixture
    if goal.num_steps is None and fit is not None and _is_good(fit, goal, spent):
        return _without_steps(fit, goal, spent)
    started = target.with_mixture(mixture)
    path = _measure(named_key(rng_key, "path"), started, goal, spent)
    if goal.num_steps is None and path.has_zeros:
        # A hard constraint has no mode to fit at its edge, and chains run against it; but draws of
        # the start, of weight zero or not, see all of it.
        own, own_cost = judge_start(named_key(rng_key, "own start"), target, run_fn)
        spent += own_cost
        if not path.is_seen or _is_good(own, goal, spent):
            return _without_steps(own, goal, spent + path.num_gradients)
        if fit is None or own.quality.score < fit.quality.score:
            fit = own
    trial, trial_cost = _find_step_size(named_key(rng_key, "trials"), started, path, run_fn)
    spent += path.num_gradients + trial_cost
    plan = _Plan(goal.num_steps or 0, goal.num_particles or DEFAULT_NUM_PARTICLES, 0.0, 0.0)
    if goal.num_steps is None:
        key = named_key(rng_key, "plan")
        plan, plan_cost = _make_plan(key, started, path, trial, goal, spent, run_fn)
        spent += plan_cost
        if fit is not None and _error_without_steps(fit, goal, spent) < plan.error:
            return _without_steps(fit, goal, spent)
    settings = anneal(path, plan.num_steps, trial.step_size, damping_of(trial.step_size))
    return settings._replace(
        start=mixture,
        num_particles=plan.num_particles,
        num_gradients=math.ceil(spent),
    )


def _measure(rng_key: jax.Array, target: TracedTarget, goal: Goal, spent: float) -> MeasuredPath:
    """The path as a population sees it, for a share of the budget."""
    num_particles = int(np.clip(72 * goal.budget / 1e5, 48, 512))
    return measure_path(
        rng_key,
        target,
        num_particles,
        int(max(_PATH_SHARE * goal.budget, 0.5 * (goal.budget - spent))),
        max_dense_dims=min(_MAX_DENSE_DIMS, num_particles // 8),
    )


def _find_step_size(
    rng_key: jax.Array, target: TracedTarget, path: MeasuredPath, run_fn: RunFn
) -> tuple[_Trial, float]:
    """
    The step size with the best bound in short runs with the same randomness, and what they cost.
    """
    best, cost = _Trial(_STEP_SIZES[-1], np.array([-np.inf])), 0.0
    for step_size in _STEP_SIZES:
        settings = anneal(path, _NUM_TRIAL_STEPS, step_size, damping_of(step_size))
        log_weights = run_fn(rng_key, target, settings, _NUM_TRIAL_PARTICLES)
        cost += _NUM_TRIAL_PARTICLES * (_NUM_TRIAL_STEPS + 0.5)
        trial = _Trial(step_size, log_weights)
        if trial.bound > best.bound:
            best = trial
        elif np.isfinite(best.bound):
            break
    return best, cost


def _make_plan(
    rng_key: jax.Array,
    target: TracedTarget,
    path: MeasuredPath,
    trial: _Trial,
    goal: Goal,
    spent: float,
    run_fn: RunFn,
) -> tuple[_Plan, float]:
    """
    Numbers of steps and particles, from a longer trial; the variance of log weights falls as 1/K.
    """
    wanted = _NUM_TRIAL_STEPS * trial.log_variance
    affordable = 0.1 * max(goal.budget - spent, 0.0) / _NUM_PLAN_PARTICLES
    num_steps = _power_of_two(min(max(wanted, 8.0), max(affordable, 8.0)))
    settings = anneal(path, num_steps, trial.step_size, damping_of(trial.step_size))
    log_weights = run_fn(rng_key, target, settings, _NUM_PLAN_PARTICLES)
    cost = _NUM_PLAN_PARTICLES * (num_steps + 0.5)
    scale = num_steps * _Trial(trial.step_size, log_weights).log_variance
    plans = []
    for exponent in range(3, 15):
        steps = 2**exponent
        variance = math.expm1(min(scale / steps, 500.0))
        num_particles, error = _plan_particles(variance, steps + 0.5, goal, spent + cost)
        plans.append(_Plan(steps, num_particles, error, num_particles * (steps + 0.5)))
    affordable_plans = [
        plan
        for plan in plans
        if spent + cost + plan.cost <= goal.budget and plan.num_particles >= _FEWEST_PARTICLES
    ] or plans[:1]
    good = [plan for plan in affordable_plans if plan.error <= goal.target_error]
    if good:
        return min(good, key=lambda plan: plan.cost), cost
    return min(affordable_plans, key=lambda plan: plan.error), cost


def _plan_particles(
    variance: float, cost_per_particle: float, goal: Goal, spent: float
) -> tuple[int, float]:
    """
    The number of particles for the wanted error, or as many as the budget allows, and their error.
    """
    variance = max(SAFETY * variance, 1e-12)
    affordable = max(int((goal.budget - spent) / cost_per_particle), 1)
    if affordable > BLOCK:
        affordable -= affordable % BLOCK
    wanted = math.ceil(min(variance / goal.target_error**2, _MAX_PARTICLES))
    # Without steps particles cost next to nothing, and more of them see more of the tail.
    fewest = _MIN_PARTICLES if cost_per_particle > 1 else BLOCK
    wanted = min(max(wanted, fewest), _MAX_PARTICLES)
    num_particles = min(_round_up(wanted), affordable)
    if goal.num_particles is not None:
        num_particles = goal.num_particles
    return num_particles, math.sqrt(variance / num_particles)


def _is_good(fit: Fit, goal: Goal, spent: float) -> bool:
    """True if particles without steps have an error that leaves nothing to be wanted."""
    return _error_without_steps(fit, goal, spent) <= max(goal.target_error, _GOOD_ENOUGH)


def _error_without_steps(fit: Fit, goal: Goal, spent: float) -> float:
    return _plan_particles(fit.quality.score, 0.5, goal, spent)[1]


def _without_steps(fit: Fit, goal: Goal, spent: float) -> Settings:
    num_particles, _ = _plan_particles(fit.quality.score, 0.5, goal, spent)
    return no_steps()._replace(
        start=fit.mixture, num_particles=num_particles, num_gradients=math.ceil(spent)
    )


def _round_up(number: int) -> int:
    """A number of particles for which a compiled program is likely to be there already."""
    if number > BLOCK:
        return -(-number // BLOCK) * BLOCK
    unit = max(2 ** (number.bit_length() - 3), 1)
    return -(-number // unit) * unit


def _power_of_two(value: float) -> int:
    return 2 ** math.floor(math.log2(value))
