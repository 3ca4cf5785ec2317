# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
The search for a start: modes, Laplace's approximation, variational fits, each judged by draws from
it.

A start is good if its weights vary little and their tail is light. What the search may cost is a
part of the budget, and no fit is tried that could not save more than it costs.
"""

from collections.abc import Callable
import math
from typing import NamedTuple

import jax
import numpy as np

from numpyro_dais._util.concreteness import as_floats
from numpyro_dais._util.keys import host_generator, named_key
from numpyro_dais._util.weights import pareto_khat, relative_variance
from numpyro_dais.model.modes import find_modes
from numpyro_dais.model.searches import NUM_LANES
from numpyro_dais.model.traced import TracedTarget
from numpyro_dais.sampler.mixture import BASE_SHARE, TAIL_SHARE, Component, Mixture
from numpyro_dais.sampler.settings import Settings, no_steps
from numpyro_dais.tuning.goal import Goal
from numpyro_dais.tuning.laplace import (
    MAX_COUPLED_DIMS,
    Looks,
    gaussian_component,
    laplace_mixture,
    log_joints,
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
    "find_start",
    "judge_start",
]

# Runs particles: key, target, settings and their number to log weights.
RunFn = Callable[[jax.Array, TracedTarget, Settings, int], np.ndarray]

# The thresholds, shares and rates below were set by trials on the targets of benchmarks/peers.py;
# none is derived, and other targets may want others.

# Particles of a test. Whole numbers of such blocks share a program with the reported run.
BLOCK = 1024
# A variance that is known from one test only is taken to be larger by this factor.
SAFETY = 1.25
# The k-hat of a start beyond which steps are not trusted to mend it: weights without a mean.
LARGEST_KHAT = 1.0
# Of the budget, for all fits together, and for the searches for modes: the rest is for particles.
_FIT_SHARE = 0.5
_SEARCH_SHARE = 0.03
# Searches at most: three modes of unequal basins were missed with 16. In many dimensions they are
# few, since each takes up to hundreds of gradients and modes are not found by chance.
_NUM_STARTS, _NUM_HIGH_STARTS = 192, 4
# Of the budget, for the curvatures of all modes together.
_HESSIAN_SHARE = 0.2
# Of one variational fit, which may be continued while that pays.
_NUM_ITERATIONS = 500
# Of one fit after the other, in units of the scale at its beginning; the last is for settling.
_LEARNING_RATES = 0.06, 0.06, 0.06, 0.03
# Likewise in many dimensions, where the axes stay, and half of the iterations do. Measured on Cox
# processes of 256 and 1600 dimensions: with twice as many, and with rates of 0.005 to 0.05, the
# ELBO is the same to 0.2 nats.
_HIGH_LEARNING_RATES, _NUM_HIGH_ITERATIONS = (0.02, 0.01), 250
# The k-hat of a test from which on the variance may be much larger than it shows.
_HEAVY_KHAT = 0.3
# The k-hat of a fit in many dimensions above which its axes are given up. A round number: beyond it
# the error of a mean is not known.
_HOPELESS_KHAT = 0.7
# Of the draws, for what a variational fit began at, or for the neck of a funnel.
_SUPPORT_SHARE = 0.15
# Draws of the last test, which sees more of the tail.
_LAST_TEST = 4 * BLOCK
# Weights above zero that a test of the start needs: fewer have no tail to be seen.
_FEWEST_IN_TEST = 25
# Nats: weights that differ by less are equal, and have no tail. A round number.
_EQUAL_WITHIN = 1e-3
# Draws of the start, in blocks, that are tried where no search has begun at a positive density.
_MORE_BLOCKS = 16
# As many of these are enough to begin searches at. A round number.
_FEWEST_POSITIVE = 8


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
        return self.variance * float(np.exp(min(8 * max(self.khat - _HEAVY_KHAT, 0.0), 100.0)))


class Fit(NamedTuple):
    """
    A start, and how good it is.

    :param mixture: what was fitted; None for the target's own start.
    :param quality: its quality.
    :param log_weights: of the draws that have shown it.
    """

    mixture: Mixture | None
    quality: Quality
    log_weights: np.ndarray


def find_start(
    rng_key: jax.Array, target: TracedTarget, goal: Goal, run_fn: RunFn
) -> tuple[Fit | None, float]:
    """
    Returns the best start that a part of the budget could find, if any, and what it has cost.

    :param rng_key: a JAX random key.
    :param target: the target, with the start that is to be replaced.
    :param goal: what the start is for.
    :param run_fn: runs particles.
    """
    attempt = _Attempt(rng_key, target, goal, run_fn, target.tracing.order)
    return attempt.find(), attempt.spent


def judge_start(rng_key: jax.Array, target: TracedTarget, run_fn: RunFn) -> tuple[Fit, float]:
    """
    Returns the target's own start and how good it is without steps, and what the test has cost.

    :param rng_key: a JAX random key.
    :param target: the target, with its own start.
    :param run_fn: runs particles.
    """
    log_weights = run_fn(rng_key, target.with_mixture(None), no_steps(), BLOCK)
    finite = log_weights[np.isfinite(log_weights)]
    quality = Quality(math.inf, math.inf)
    # Weights of zero, where a hard constraint has a zero, are a part of the variance.
    if len(finite) >= _FEWEST_IN_TEST:
        quality = Quality(relative_variance(log_weights), _tail(finite))
    return Fit(None, quality, log_weights), BLOCK / 2


class _Attempt:
    """One search, and what it has spent so far."""

    def __init__(
        self,
        rng_key: jax.Array,
        target: TracedTarget,
        goal: Goal,
        run_fn: RunFn,
        order: np.ndarray,
    ) -> None:
        self.rng_key = rng_key
        self.target = target
        self.goal = goal
        self.run_fn = run_fn
        self.order = order
        self.spent = 0.0
        self.num_fits = self.num_tests = 0
        self.num_dims = len(order)
        is_high = self.num_dims > MAX_COUPLED_DIMS
        self._take_iterations(_NUM_HIGH_ITERATIONS if is_high else _NUM_ITERATIONS)
        draws = np.asarray(start_draws(named_key(rng_key, "draws"), target), np.float64)
        self.draws = draws[np.all(np.isfinite(draws), axis=1)]
        # Of the start, where enough of it is finite.
        self.center, self.spread = np.zeros(self.num_dims), np.ones(self.num_dims)
        if len(self.draws) >= NUM_START_DRAWS // 2:
            self.center, self.spread = np.median(self.draws, axis=0), start_spread(self.draws)

    def _take_iterations(self, num_iterations: int) -> None:
        self.num_iterations = num_iterations
        self.fit_cost = num_iterations * VARIATIONAL_DRAWS

    def find(self) -> Fit | None:
        """Returns the best start found; None if not even a mode was."""
        mixture = self._laplace()
        if mixture is None:
            return None
        mixture = mixture._replace(components=_with_prior(mixture.components))
        if mixture.num_modes > 1:  # a fit around one of them would look good, and miss the others
            fit = self._test(mixture)
            if fit.quality.khat < LARGEST_KHAT:  # else they are no modes, but places on a ridge
                return fit
        return self._fit_one_mode(jax.tree.map(lambda x: x[0], mixture.components))

    def _laplace(self) -> Mixture | None:
        """Laplace's approximation around each mode that is found."""
        starts = _search_starts(named_key(self.rng_key, "searches"), self.draws, self.num_dims)
        looks = Looks(self.target, self.spread, self.goal.budget, min(NUM_LANES, len(starts)))
        most = int(_SEARCH_SHARE * self.goal.budget)
        modes = find_modes(looks.densities_fn, starts, self.center, self.spread, most)
        if not len(modes.positions) and len(starts := self._positive_draws()):
            modes = find_modes(looks.densities_fn, starts, self.center, self.spread, most)
        mixture = None
        if len(modes.positions):
            max_modes = _HESSIAN_SHARE * self.goal.budget / looks.cost_of_geometry
            mixture = laplace_mixture(
                modes, looks.density_fn, looks.polish, self.order, max(int(max_modes), 1)
            )
        self.spent += looks.num_gradients
        return mixture

    def _positive_draws(self) -> np.ndarray:
        """Draws of the start at which the density is above zero, if some are found."""
        found = np.zeros((0, self.num_dims))
        for block in range(_MORE_BLOCKS):
            draws = start_draws(named_key(self.rng_key, f"more draws {block}"), self.target)
            self.spent += len(draws) / 2
            is_positive = np.isfinite(np.asarray(log_joints(self.target, draws)))
            found = np.concatenate([found, np.asarray(draws, np.float64)[is_positive]])
            if len(found) >= _FEWEST_POSITIVE:
                break
        return found

    def _fit_one_mode(self, laplace: Component) -> Fit:
        """
        Variational fits, from Laplace's approximation and elsewhere, continued while that pays.
        """
        fit = first = self._test(self._supported(laplace, laplace))
        fitted, elbo = laplace, -math.inf
        is_high = laplace.basis is not None
        begins = [laplace] if is_high else [laplace, self._broad(laplace)]
        rates = list(_HIGH_LEARNING_RATES if is_high else _LEARNING_RATES)
        while rates and self._is_worth(fit):
            rate = rates.pop(0)
            # The mode of a funnel is far from its mass: then begin at the middle of the start, too.
            begin = begins.pop(0) if begins else fitted
            other, other_elbo = self._variational(begin, rate)
            if not other_elbo < elbo:
                fitted, elbo = other, other_elbo
                fit = self._test(self._supported(fitted, laplace))
            if fit.quality.khat < _HEAVY_KHAT and first.quality.khat < LARGEST_KHAT:
                begins = []
            if is_high and fit.quality.khat < _HEAVY_KHAT:
                break
            if is_high and fit.quality.khat > _HOPELESS_KHAT:
                # Its axes are those of no mode, but of a place where the density has no bound.
                is_high, begins, rates = False, [self._broad(laplace)], list(_LEARNING_RATES)
                self._take_iterations(_NUM_ITERATIONS)
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
        self.spent += self.fit_cost
        self.num_fits += 1
        component, elbos = variational_fit(
            named_key(self.rng_key, f"fit {self.num_fits}"),
            self.target,
            begin,
            self.order,
            rate,
            tilt,
            num_iterations=self.num_iterations,
        )
        component, elbos = jax.tree.map(np.asarray, (component, elbos))
        return component, float(np.mean(elbos[-self.num_iterations // 5 :]))

    def _test(self, mixture: Mixture, num_draws: int = BLOCK) -> Fit:
        self.spent += num_draws / 2
        is_finite = len(self.draws) == NUM_START_DRAWS
        # In many dimensions stray draws have weights of zero and bound nothing that is seen: with a
        # share that falls as one over the dimension the bound on weights, of a nat or so for each
        # dimension, is larger by the logarithm of it.
        shrinkage = min(MAX_COUPLED_DIMS / self.num_dims, 1.0)
        mixture = mixture._replace(
            base_share=shrinkage * BASE_SHARE if is_finite else 0.0,
            tail_share=shrinkage * TAIL_SHARE,
        )
        self.num_tests += 1
        test_key = named_key(self.rng_key, f"test {self.num_tests}")
        started = self.target.with_mixture(mixture)
        log_weights = self.run_fn(test_key, started, no_steps(), num_draws)
        return Fit(mixture, _quality(log_weights), log_weights)

    def _is_worth(self, fit: Fit) -> bool:
        """True if going on may save more than it costs, and can be paid for."""
        needed = 0.5 * SAFETY * fit.quality.score / self.goal.target_error**2
        return needed > 1.5 * self.fit_cost and self._is_affordable()

    def _is_affordable(self) -> bool:
        return self.spent + self.fit_cost < _FIT_SHARE * self.goal.budget

    def _supported(self, fitted: Component, support: Component) -> Mixture:
        """
        A fit with a share for another: a variational fit may leave out where the density is
        highest, or the neck of a funnel, and its own draws would not show it. In many dimensions a
        fit is alone: it keeps the axes of where it began, and twice the matrices take twice the
        time.
        """
        if fitted.basis is not None:
            components = jax.tree.map(lambda leaf: np.asarray(leaf)[None], fitted)
            return Mixture(jax.device_put(self.order), components, as_floats(np.zeros(1)))
        components = jax.tree.map(lambda *leaves: np.stack(leaves), fitted, support)
        return Mixture(
            jax.device_put(self.order),
            components,
            as_floats(np.log([1 - _SUPPORT_SHARE, _SUPPORT_SHARE])),
        )

    def _broad(self, like: Component) -> Component:
        """
        A narrow Gaussian at the middle of the start; or at zero, as NumPyro's, where that is vague.
        """
        center, spread = self.center[self.order], self.spread[self.order]
        component = gaussian_component(
            np.where(spread < 10.0, center, 0.0), np.minimum(spread, 0.3) ** 2
        )
        coupling = None if like.coupling is None else as_floats(np.zeros(like.coupling.shape))
        log_widths = None if like.log_widths is None else as_floats(np.zeros(like.log_widths.shape))
        component = component._replace(coupling=coupling, basis=like.basis, log_widths=log_widths)
        return _with_prior(component)


def _search_starts(rng_key: jax.Array, draws: np.ndarray, num_dims: int) -> np.ndarray:
    """
    Beginnings of searches: in turns in the cube from -2 to 2, as NumPyro's own, and draws of the
    start.
    """
    most = _NUM_STARTS if num_dims <= MAX_COUPLED_DIMS else _NUM_HIGH_STARTS
    num_starts = min(most, len(draws))
    starts = host_generator(rng_key).uniform(-2.0, 2.0, (most, num_dims))
    is_draw = np.arange(num_starts) % 4 != 0
    starts[:num_starts][is_draw] = draws[:num_starts][is_draw]
    return starts


def _with_prior(component: Component) -> Component:
    """
    The same Gaussians, each as a product of two that are equally wide, and with a shape to be
    fitted: all starts then share one program.
    """
    zeros = as_floats(np.stack([np.zeros(component.loc.shape)] * 2, axis=-2))
    component = component._replace(shape=zeros)
    if component.coupling is None:
        return component
    return component._replace(
        log_scale=as_floats(np.asarray(component.log_scale) + 0.5 * np.log(2.0)),
        prior_coupling=component.coupling,
        slopes=as_floats(np.zeros(component.coupling.shape)),
        gate=zeros,
    )


def _quality(log_weights: np.ndarray) -> Quality:
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
