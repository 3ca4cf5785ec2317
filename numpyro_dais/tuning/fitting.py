# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
The search for a start: modes, Laplace's approximation, variational fits, each judged by draws from it.

A start is good if its weights vary little and their tail is light. What the search may cost is a part of the
budget, and no fit is tried that could not save more than it costs.
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

from numpyro_dais._util.numpyro_internals import psis_khat
from numpyro_dais.model.modes import find_modes
from numpyro_dais.model.problem import Problem
from numpyro_dais.model.target import coordinate_order
from numpyro_dais.sampler.mixture import BASE_SHARE, Component, FittedStart, Mixture
from numpyro_dais.sampler.settings import Settings, no_steps
from numpyro_dais.tuning.goal import Goal
from numpyro_dais.tuning.laplace import (
    curvature_at,
    gaussian_component,
    laplace_mixture,
    log_joint_and_gradient,
)
from numpyro_dais.tuning.spread import NUM_START_DRAWS, start_draws, start_spread
from numpyro_dais.tuning.variational import (
    NO_TILT,
    VARIATIONAL_DRAWS,
    Tilt,
    neck_of,
    variational_fit,
)

__all__ = [
    "BLOCK",
    "LARGEST_KHAT",
    "SAFETY",
    "Fit",
    "Quality",
    "RunFn",
    "StartSearch",
    "relative_variance",
    "with_fit",
]

# Runs particles: key, problem, settings and their number to log weights.
RunFn = Callable[[jax.Array, Problem, Settings, int], np.ndarray]

BLOCK = 1024  # particles: numbers of blocks share a program
SAFETY = 1.25  # of a number of particles whose variance is known from a test only
LARGEST_KHAT = 1.0  # of a start that steps are to mend
_FIT_SHARE = 0.5  # of the budget
_SEARCH_SHARE = 0.03  # of the budget, for modes
_NUM_STARTS = 192
_NUM_ITERATIONS = 500  # of a variational fit, which may be continued
_FIT_COST = _NUM_ITERATIONS * VARIATIONAL_DRAWS
_LEARNING_RATES = 0.06, 0.06, 0.06, 0.03
_HEAVY_KHAT = 0.3  # of a test, from which the variance may be much larger than it shows
_SUPPORT_SHARE = 0.15  # beside a variational fit
_LAST_TEST = 4 * BLOCK


class Quality(NamedTuple):
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


class Fit(NamedTuple):
    """A start that was fitted, and how good it is."""

    mixture: Mixture
    quality: Quality


class StartSearch:
    """
    Finds a start. One for each estimator, since it keeps compiled programs.

    :param run_fn: runs particles.
    """

    def __init__(self, run_fn: RunFn) -> None:
        self.run_fn = run_fn
        self.draws = jax.jit(start_draws)
        self.density = jax.jit(log_joint_and_gradient)
        self.curvature = jax.jit(curvature_at)
        self.variational = jax.jit(partial(variational_fit, num_iterations=_NUM_ITERATIONS))

    def find(self, rng_key: jax.Array, problem: Problem, goal: Goal) -> tuple[Fit | None, float]:
        """
        Returns the best start that a part of the budget could find, if any, and what it has cost.

        :param rng_key: a JAX random key.
        :param problem: the problem, with the start that is to be replaced.
        :param goal: what the start is for.
        """
        order = coordinate_order(problem)
        if 4 * len(order) > _FIT_SHARE * goal.budget:
            return None, 0.0
        attempt = _Attempt(self, rng_key, problem, goal, order)
        return attempt.find(), attempt.spent


class _Attempt:
    """One search, and what it has spent so far."""

    def __init__(
        self,
        programs: StartSearch,
        rng_key: jax.Array,
        problem: Problem,
        goal: Goal,
        order: np.ndarray,
    ) -> None:
        self.programs = programs
        self.problem = problem
        self.goal = goal
        self.keys = iter(random.split(rng_key, 16))
        self.spent = 0.0
        self.order = order
        draws = np.asarray(programs.draws(next(self.keys), problem), np.float64)
        self.draws = draws[np.all(np.isfinite(draws), axis=1)]
        # Of the start, where enough of it is finite.
        self.center, self.spread = np.zeros(len(self.order)), np.ones(len(self.order))
        if len(self.draws) >= NUM_START_DRAWS // 2:
            self.center, self.spread = np.median(self.draws, axis=0), start_spread(self.draws)

    def find(self) -> Fit | None:
        """Returns the best start found; None if not even a mode was."""
        mixture = self._laplace()
        if mixture is None:
            return None
        if mixture.num_modes > 1:  # a fit around one of them would look good, and miss the others
            fit = self._test(mixture)
            if fit.quality.khat < LARGEST_KHAT:  # else they are no modes, but places on a ridge
                return fit
        return self._fit_one_mode(_with_prior(jax.tree.map(lambda x: x[0], mixture.components)))

    def _laplace(self) -> Mixture | None:
        """Laplace's approximation around each mode that is found."""

        def density_fn(position: np.ndarray) -> tuple[float, np.ndarray]:
            self.spent += 1
            value, gradient = self.programs.density(self.problem, jnp.asarray(position, float))
            return float(value), np.asarray(gradient, np.float64)

        def curvature_fn(position: np.ndarray) -> np.ndarray:
            self.spent += len(position)
            return np.asarray(self.programs.curvature(self.problem, jnp.asarray(position, float)))

        starts = _search_starts(next(self.keys), self.draws, len(self.order))
        most = int(_SEARCH_SHARE * self.goal.budget)
        modes = find_modes(density_fn, starts, self.center, self.spread, most)
        if not len(modes.positions):
            return None
        mixture, _ = laplace_mixture(modes, density_fn, curvature_fn, self.order)
        return mixture

    def _fit_one_mode(self, laplace: Component) -> Fit:
        """Variational fits, from Laplace's approximation and elsewhere, continued while that pays."""
        fit = first = self._test(self._supported(laplace, laplace))
        fitted, elbo = laplace, -math.inf
        begins = [laplace, self._broad(laplace)]
        for rate in _LEARNING_RATES:
            if not self._is_worth(fit):
                break
            # The mode of a funnel is far from its mass: then begin at the middle of the start as well.
            begin = begins.pop(0) if begins else fitted
            other, other_elbo = self._variational(begin, rate)
            if not other_elbo < elbo:
                fitted, elbo = other, other_elbo
                fit = self._test(self._supported(fitted, laplace))
            if fit.quality.khat < _HEAVY_KHAT and first.quality.khat < LARGEST_KHAT:
                begins = []
        if fitted is not laplace:
            support = self._neck(fitted, fit) or laplace
            last = self._test(self._supported(fitted, support), _LAST_TEST)
            # A larger test sees more of the tail; only a much worse result speaks against the neck.
            fit = last if last.quality.score < 4 * fit.quality.score else fit
        return min(first, fit, key=lambda fit: fit.quality.score)

    def _neck(self, fitted: Component, fit: Fit) -> Component | None:
        """A fit of the neck, if the fit of the whole has one, and a tail that may come from it."""
        tilt = neck_of(fitted)
        if tilt is None or fit.quality.khat <= _HEAVY_KHAT or not self._is_affordable():
            return None
        return self._variational(fitted, _LEARNING_RATES[0], tilt)[0]

    def _variational(
        self, begin: Component, rate: float, tilt: Tilt = NO_TILT
    ) -> tuple[Component, float]:
        """A fit, and its ELBO."""
        self.spent += _FIT_COST
        component, elbos = self.programs.variational(
            next(self.keys), self.problem, begin, self.order, rate, tilt
        )
        return component, float(np.mean(elbos[-_NUM_ITERATIONS // 5 :]))

    def _test(self, mixture: Mixture, num_draws: int = BLOCK) -> Fit:
        self.spent += num_draws / 2
        is_finite = len(self.draws) == NUM_START_DRAWS
        mixture = mixture._replace(base_share=BASE_SHARE if is_finite else 0.0)
        started = with_fit(self.problem, mixture)
        log_weights = self.programs.run_fn(next(self.keys), started, no_steps(), num_draws)
        return Fit(mixture, _quality(log_weights))

    def _is_worth(self, fit: Fit) -> bool:
        """Whether going on may save more than it costs, and can be paid for."""
        needed = 0.5 * SAFETY * fit.quality.score / self.goal.target_error**2
        return needed > 1.5 * _FIT_COST and self._is_affordable()

    def _is_affordable(self) -> bool:
        return self.spent + _FIT_COST < _FIT_SHARE * self.goal.budget

    def _supported(self, fitted: Component, support: Component) -> Mixture:
        """
        A fit with a share for another: a variational fit may leave out where the density is highest, or the neck of
        a funnel, and its own draws would not show it.
        """
        components = jax.tree.map(lambda *leaves: jnp.stack(leaves), fitted, support)
        log_shares = jnp.log(jnp.array([1 - _SUPPORT_SHARE, _SUPPORT_SHARE]))
        return Mixture(jnp.asarray(self.order), components, log_shares)

    def _broad(self, like: Component) -> Component:
        """A narrow Gaussian at the middle of the start; or at zero, as NumPyro's, where that is vague."""
        center, spread = self.center[self.order], self.spread[self.order]
        component = gaussian_component(
            np.where(spread < 10.0, center, 0.0), np.minimum(spread, 0.3) ** 2
        )
        coupling = jax.tree.map(jnp.zeros_like, like.coupling)
        return _with_prior(component._replace(coupling=coupling))


def with_fit(problem: Problem, mixture: Mixture | None) -> Problem:
    """
    Returns the problem with a fitted start, if there is one.

    :param problem: the problem, with the start that the fit replaces.
    :param mixture: what was fitted.
    """
    if mixture is None:
        return problem
    return problem.replace(start=FittedStart(mixture, problem.base_start))


def relative_variance(log_weights: np.ndarray) -> float:
    """Returns the variance of weights whose mean is one."""
    weights = np.exp(log_weights - np.max(log_weights))
    return float(np.var(weights) / np.mean(weights) ** 2)


def _search_starts(rng_key: jax.Array, draws: np.ndarray, num_dims: int) -> np.ndarray:
    """Where searches for modes begin: in turns in the cube from -2 to 2, as NumPyro's own, and at draws of the start."""
    num_starts = min(_NUM_STARTS, len(draws))
    cube = random.uniform(rng_key, (_NUM_STARTS, num_dims), minval=-2.0, maxval=2.0)
    starts = np.array(cube, np.float64)
    is_draw = np.arange(num_starts) % 4 != 0
    starts[:num_starts][is_draw] = draws[:num_starts][is_draw]
    return starts


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


def _quality(log_weights: np.ndarray) -> Quality:
    log_weights = np.where(np.isfinite(log_weights), log_weights, -np.inf)
    finite = log_weights[np.isfinite(log_weights)]
    if len(finite) < len(log_weights) / 2:
        return Quality(math.inf, math.inf)
    if np.ptp(finite) < 1e-3:
        return Quality(float(np.var(finite)), 0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        khat = float(psis_khat(np.where(np.isfinite(log_weights), log_weights, finite.min())))
    return Quality(relative_variance(log_weights), khat)
