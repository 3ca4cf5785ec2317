# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Self-tuning: a start, a schedule, step sizes, and numbers of steps and particles for a wanted error.

Everything here runs on the host, around compiled pieces, and spends gradients on one question: which settings
give the smallest error of the log evidence for what is left of the budget. Settings are frozen before the
reported run, whose randomness is fresh, so that its weights are unbiased whatever was decided here.
"""

from collections.abc import Callable
from functools import partial
import math
from typing import NamedTuple
import warnings

import jax
from jax import random
import jax.numpy as jnp
import numpy as np

from numpyro_dais.annealing import anneal, damping_of
from numpyro_dais.fitted_start import BASE_SHARE, Component, FittedStart, Mixture
from numpyro_dais.numpyro_internals import psis_khat
from numpyro_dais.pilot import PilotPath, move_population, run_pilot, start_population
from numpyro_dais.problem import Problem
from numpyro_dais.settings import Settings, make_settings
from numpyro_dais.spread import start_spread
from numpyro_dais.start_fit import (
    NO_TILT,
    VARIATIONAL_DRAWS,
    Tilt,
    curvature_at,
    find_modes,
    gaussian_component,
    laplace_mixture,
    log_joint_and_gradient,
    neck_of,
    variational_fit,
)
from numpyro_dais.target import coordinate_order, make_target

__all__ = [
    "DEFAULT_BUDGET",
    "DEFAULT_DAMPING",
    "DEFAULT_NUM_PARTICLES",
    "DEFAULT_TARGET_ERROR",
    "Goal",
    "Tuner",
    "no_steps",
    "with_fit",
]

DEFAULT_DAMPING = 0.9
DEFAULT_NUM_PARTICLES = 128
DEFAULT_TARGET_ERROR = 0.005
DEFAULT_BUDGET = 100_000
_NUM_BASE_DRAWS = 256
_NUM_STARTS = 192
_SEARCH_SHARE = 0.03  # of the budget, for modes
_NUM_ITERATIONS = 500  # of a variational fit, which may be continued
_LEARNING_RATES = 0.06, 0.06, 0.06, 0.03
_HEAVY_KHAT = 0.3  # of a test, from which the variance may be much larger than it shows
_SUPPORT_SHARE = 0.15  # beside a variational fit
_GOOD_ENOUGH = 0.03  # nats without steps, for which these would cost a pilot run first
_START_KHAT_LIMIT = 1.0  # of a start that steps are to mend
_FIT_SHARE = 0.5  # of the budget
_SAFETY = 1.25  # of the number of particles: their variance is known from a test only
_MIN_PARTICLES, _FEWEST_PARTICLES = 128, 32  # wanted, and if the budget is short
_MAX_PARTICLES = 2**18
_BLOCK = 1024
_NUM_BLOCKS_OF_TEST = 4
_PILOT_SHARE = 0.2
_NUM_TRIAL_STEPS = 32
_NUM_TRIAL_PARTICLES = 16
_NUM_PLAN_PARTICLES = 48
_STEP_SIZES = (1.4, 1.1, 0.8, 0.5, 0.3, 0.15, 0.07, 0.03)
_MAX_DENSE_PILOT_DIMS = 20


class Goal(NamedTuple):
    """
    What settings are for; what is None is free.

    :param num_steps: the number of steps.
    :param num_particles: the number of particles.
    :param target_error: the wanted error of the log evidence, in nats.
    :param budget: gradients at most, all that is spent here included; a density counts as half of one.
    :param is_start_free: whether a fitted start may replace the given one.
    """

    num_steps: int | None
    num_particles: int | None
    target_error: float
    budget: int
    is_start_free: bool


class _Quality(NamedTuple):
    """
    What draws of a start say about it.

    :param variance: the relative variance of their weights.
    :param khat: the shape of their tail.
    """

    variance: float
    khat: float

    @property
    def score(self) -> float:
        """The variance, as it may be once the tail has shown: smaller is better."""
        return self.variance * math.exp(8 * max(self.khat - _HEAVY_KHAT, 0.0))


class _Fit(NamedTuple):
    """A start that was fitted, and how good it is."""

    mixture: Mixture
    quality: _Quality


class _Trial(NamedTuple):
    """A short run: its step size and log weights."""

    step_size: float
    log_weights: np.ndarray

    @property
    def bound(self) -> float:
        """The mean log weight without the lowest quarter, where stray draws of a defensive start are."""
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
        from_weights = math.log1p(_relative_variance(self.log_weights))
        is_known = math.expm1(from_weights) < len(self.log_weights) / 5
        return max(min(from_weights, spread) if is_known else spread, 1e-4)


class _Plan(NamedTuple):
    """Numbers of steps and particles, and what they promise."""

    num_steps: int
    num_particles: int
    error: float
    cost: float


class Tuner:
    """
    Finds the settings of an estimator's chains. One for each estimator, since it keeps compiled programs.

    :param run_fn: runs particles: key, problem, settings and their number to log weights.
    """

    def __init__(self, run_fn: Callable[[jax.Array, Problem, Settings, int], np.ndarray]) -> None:
        self._run_fn = run_fn
        self._draws = jax.jit(_draws, static_argnums=2)
        self._density = jax.jit(log_joint_and_gradient)
        self._curvature = jax.jit(curvature_at)
        self._variational = jax.jit(partial(variational_fit, num_iterations=_NUM_ITERATIONS))
        self._population = jax.jit(start_population, static_argnums=2)
        self._move = jax.jit(move_population)

    def tune(self, rng_key: jax.Array, problem: Problem, goal: Goal) -> Settings:
        """
        Returns settings for a goal.

        :param rng_key: a JAX random key.
        :param problem: what is to be integrated, from its own start.
        :param goal: what the settings are for.
        """
        fit_key, pilot_key, trial_key, plan_key = random.split(rng_key, 4)
        fit, spent = self._fit(fit_key, problem, goal) if goal.is_start_free else (None, 0.0)
        error = math.inf
        if fit is not None and goal.num_steps is None:
            num_particles, error = _plan_particles(fit.quality.score, 0.5, goal, spent)
            if error <= max(goal.target_error, _GOOD_ENOUGH):
                return _without_steps(fit, num_particles, spent)
        started, mixture = problem, None
        if fit is not None and fit.quality.khat < _START_KHAT_LIMIT:
            started, mixture = with_fit(problem, fit.mixture), fit.mixture
        path, cost = self._pilot(pilot_key, started, goal, spent)
        trial, trial_cost = self._search(trial_key, started, path)
        spent += cost + trial_cost
        plan = _Plan(goal.num_steps or 0, goal.num_particles or DEFAULT_NUM_PARTICLES, 0.0, 0.0)
        if goal.num_steps is None:
            plan, plan_cost = self._plan(plan_key, started, path, trial, goal, spent)
            spent += plan_cost
            if fit is not None and error < plan.error:
                num_particles, _ = _plan_particles(fit.quality.score, 0.5, goal, spent)
                return _without_steps(fit, num_particles, spent)
        settings = anneal(path, plan.num_steps, trial.step_size, damping_of(trial.step_size))
        return settings._replace(
            start=mixture,
            num_particles=plan.num_particles,
            num_gradients=math.ceil(spent),
        )

    def _fit(self, rng_key: jax.Array, problem: Problem, goal: Goal) -> tuple[_Fit | None, float]:
        """The best start that a part of the budget could find, and what it has cost."""
        keys = iter(random.split(rng_key, 16))
        most = _FIT_SHARE * goal.budget
        draws = np.asarray(self._draws(next(keys), problem, _NUM_BASE_DRAWS), np.float64)
        draws = draws[np.all(np.isfinite(draws), axis=1)]
        are_finite = len(draws) == _NUM_BASE_DRAWS
        order = coordinate_order(problem)
        num_dims = len(order)
        if 4 * num_dims > most:
            return None, 0.0
        center, spread = np.zeros(num_dims), np.ones(num_dims)
        if len(draws) >= _NUM_BASE_DRAWS // 2:
            center, spread = np.median(draws, axis=0), start_spread(draws)
        starts = _search_starts(next(keys), draws, num_dims)

        def density_fn(position: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = self._density(problem, jnp.asarray(position, float))
            return float(value), np.asarray(gradient, np.float64)

        def curvature_fn(position: np.ndarray) -> np.ndarray:
            return np.asarray(self._curvature(problem, jnp.asarray(position, float)))

        most_searches = int(_SEARCH_SHARE * goal.budget)
        modes = find_modes(density_fn, starts, center, spread, most_searches)
        spent = float(modes.num_evaluations)
        if not len(modes.positions):
            return None, spent
        mixture, num_hessians = laplace_mixture(modes, density_fn, curvature_fn, order)
        spent += num_hessians * num_dims
        laplace = _with_prior(jax.tree.map(lambda x: x[0], mixture.components))

        def test(mixture: Mixture, num_draws: int = _BLOCK) -> _Fit:
            nonlocal spent
            spent += num_draws / 2
            mixture = mixture._replace(base_share=BASE_SHARE if are_finite else 0.0)
            started = with_fit(problem, mixture)
            log_weights = self._run_fn(next(keys), started, no_steps(), num_draws)
            return _Fit(mixture, _quality(log_weights))

        def is_worth(fit: _Fit) -> bool:
            """Whether going on may save more than it costs."""
            cost = _NUM_ITERATIONS * VARIATIONAL_DRAWS
            needed = 0.5 * _SAFETY * fit.quality.score / goal.target_error**2
            return needed > 1.5 * cost and spent + cost < most

        def variational(
            begin: Component, rate: float, tilt: Tilt = NO_TILT
        ) -> tuple[Component, float]:
            """A fit, and its ELBO."""
            nonlocal spent
            spent += _NUM_ITERATIONS * VARIATIONAL_DRAWS
            component, elbos = self._variational(next(keys), problem, begin, order, rate, tilt)
            return component, float(np.mean(elbos[-_NUM_ITERATIONS // 5 :]))

        if mixture.num_modes > 1:  # a fit around one of them would look good, and miss the others
            fit = test(mixture)
            if (
                fit.quality.khat < _START_KHAT_LIMIT
            ):  # else they are no modes, but places on a ridge
                return fit, spent
        fit = first = test(_supported(laplace, laplace, order))
        fitted, elbo = laplace, -math.inf
        begins = [laplace, _broad(center[order], spread[order], laplace)]
        for rate in _LEARNING_RATES:
            if not is_worth(fit):
                break
            # The mode of a funnel is far from its mass: then begin at the middle of the start as well.
            begin = begins.pop(0) if begins else fitted
            other, other_elbo = variational(begin, rate)
            if not other_elbo < elbo:
                fitted, elbo = other, other_elbo
                fit = test(_supported(fitted, laplace, order))
            if fit.quality.khat < _HEAVY_KHAT and first.quality.khat < _START_KHAT_LIMIT:
                begins = []
        if fitted is not laplace:
            tilt, support = neck_of(fitted), laplace
            if tilt is not None and fit.quality.khat > _HEAVY_KHAT:
                support, _ = variational(fitted, _LEARNING_RATES[0], tilt)
            last = test(_supported(fitted, support, order), _NUM_BLOCKS_OF_TEST * _BLOCK)
            # A larger test sees more of the tail; only a much worse result speaks against the neck.
            fit = last if last.quality.score < 4 * fit.quality.score else fit
        return min(first, fit, key=lambda fit: fit.quality.score), spent

    def _pilot(
        self, rng_key: jax.Array, problem: Problem, goal: Goal, spent: float
    ) -> tuple[PilotPath, float]:
        start_key, pilot_key = random.split(rng_key)
        num_particles = int(np.clip(72 * goal.budget / 1e5, 48, 512))
        population = self._population(start_key, problem, num_particles)
        num_dims = population.positions.shape[-1]
        path = run_pilot(
            pilot_key,
            population,
            lambda key, *args: self._move(key, problem, *args),
            int(max(_PILOT_SHARE * goal.budget, 0.5 * (goal.budget - spent))),
            is_dense=num_dims <= min(_MAX_DENSE_PILOT_DIMS, num_particles // 8),
        )
        return path, path.num_gradients

    def _search(
        self, rng_key: jax.Array, problem: Problem, path: PilotPath
    ) -> tuple[_Trial, float]:
        """The step size with the best bound in short runs with the same randomness."""
        best, cost = _Trial(_STEP_SIZES[-1], np.array([-np.inf])), 0.0
        for step_size in _STEP_SIZES:
            settings = anneal(path, _NUM_TRIAL_STEPS, step_size, damping_of(step_size))
            log_weights = self._run_fn(rng_key, problem, settings, _NUM_TRIAL_PARTICLES)
            cost += _NUM_TRIAL_PARTICLES * (_NUM_TRIAL_STEPS + 0.5)
            trial = _Trial(step_size, log_weights)
            if trial.bound > best.bound:
                best = trial
            elif np.isfinite(best.bound):
                break
        return best, cost

    def _plan(
        self,
        rng_key: jax.Array,
        problem: Problem,
        path: PilotPath,
        trial: _Trial,
        goal: Goal,
        spent: float,
    ) -> tuple[_Plan, float]:
        """Numbers of steps and particles, from a longer trial; the variance of log weights falls as 1/K."""
        wanted = _NUM_TRIAL_STEPS * trial.log_variance
        affordable = 0.1 * max(goal.budget - spent, 0.0) / _NUM_PLAN_PARTICLES
        num_steps = _power_of_two(min(max(wanted, 8.0), max(affordable, 8.0)))
        settings = anneal(path, num_steps, trial.step_size, damping_of(trial.step_size))
        log_weights = self._run_fn(rng_key, problem, settings, _NUM_PLAN_PARTICLES)
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


def with_fit(problem: Problem, mixture: Mixture | None) -> Problem:
    """
    Returns the problem with a fitted start, if there is one.

    :param problem: the problem, with the start that the fit replaces.
    :param mixture: what was fitted.
    """
    if mixture is None:
        return problem
    return problem.replace(start=FittedStart(mixture, problem.base_start))


def no_steps() -> Settings:
    """Returns the settings of importance sampling."""
    return make_settings(np.zeros(0), 1.0, 0.0)


def _draws(rng_key: jax.Array, problem: Problem, num_draws: int) -> jax.Array:
    return jax.vmap(make_target(problem).sample_fn)(random.split(rng_key, num_draws))


def _search_starts(rng_key: jax.Array, draws: np.ndarray, num_dims: int) -> np.ndarray:
    """Where searches for modes begin: in turns in the cube from -2 to 2, as NumPyro's own, and at draws of the start."""
    num_starts = min(_NUM_STARTS, len(draws))
    cube = random.uniform(rng_key, (_NUM_STARTS, num_dims), minval=-2.0, maxval=2.0)
    starts = np.array(cube, np.float64)
    is_draw = np.arange(num_starts) % 4 != 0
    starts[:num_starts][is_draw] = draws[:num_starts][is_draw]
    return starts


def _supported(fitted: Component, support: Component, order: np.ndarray) -> Mixture:
    """
    A fit with a share for another: a variational fit may leave out where the density is highest, or the neck of a
    funnel, and its own draws would not show it.
    """
    components = jax.tree.map(lambda *leaves: jnp.stack(leaves), fitted, support)
    log_shares = jnp.log(jnp.array([1 - _SUPPORT_SHARE, _SUPPORT_SHARE]))
    return Mixture(jnp.asarray(order), components, log_shares)


def _broad(center: np.ndarray, spread: np.ndarray, like: Component) -> Component:
    """A narrow start at the middle of the prior; or at zero, as NumPyro's, where that is vague."""
    center = np.where(spread < 10.0, center, 0.0)
    component = gaussian_component(center, np.minimum(spread, 0.3) ** 2)
    return _with_prior(component._replace(coupling=jax.tree.map(jnp.zeros_like, like.coupling)))


def _with_prior(component: Component) -> Component:
    """The same Gaussian, as a product of two that are equally wide, and with a shape to be fitted."""
    zeros = jnp.zeros((2, component.loc.size))
    component = component._replace(shape=zeros)
    if component.coupling is None:
        return component
    return component._replace(
        log_scale=component.log_scale + 0.5 * math.log(2.0),
        prior_coupling=component.coupling,
        slopes=jnp.zeros_like(component.coupling),
        gate=zeros,
    )


def _quality(log_weights: np.ndarray) -> _Quality:
    log_weights = np.where(np.isfinite(log_weights), log_weights, -np.inf)
    finite = log_weights[np.isfinite(log_weights)]
    if len(finite) < len(log_weights) / 2:
        return _Quality(math.inf, math.inf)
    if np.ptp(finite) < 1e-3:
        return _Quality(float(np.var(finite)), 0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        khat = float(psis_khat(np.where(np.isfinite(log_weights), log_weights, finite.min())))
    return _Quality(_relative_variance(log_weights), khat)


def _relative_variance(log_weights: np.ndarray) -> float:
    weights = np.exp(log_weights - np.max(log_weights))
    return float(np.var(weights) / np.mean(weights) ** 2)


def _plan_particles(
    variance: float, cost_per_particle: float, goal: Goal, spent: float
) -> tuple[int, float]:
    """The number of particles for the wanted error, or as many as the budget allows, and their error."""
    variance = max(_SAFETY * variance, 1e-12)
    affordable = max(int((goal.budget - spent) / cost_per_particle), 1)
    if affordable > _BLOCK:
        affordable -= affordable % _BLOCK
    wanted = math.ceil(variance / goal.target_error**2)
    wanted = min(max(wanted, _MIN_PARTICLES), _MAX_PARTICLES)
    num_particles = min(_round_up(wanted), affordable)
    if goal.num_particles is not None:
        num_particles = goal.num_particles
    return num_particles, math.sqrt(variance / num_particles)


def _without_steps(fit: _Fit, num_particles: int, spent: float) -> Settings:
    return no_steps()._replace(
        start=fit.mixture, num_particles=num_particles, num_gradients=math.ceil(spent)
    )


def _round_up(number: int) -> int:
    """A number of particles for which a compiled program is likely to be there already."""
    if number > _BLOCK:
        return -(-number // _BLOCK) * _BLOCK
    unit = max(2 ** (number.bit_length() - 3), 1)
    return -(-number // unit) * unit


def _power_of_two(value: float) -> int:
    return 2 ** math.floor(math.log2(value))
