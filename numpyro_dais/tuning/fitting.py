# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
The search for a start: modes, Laplace's approximation, variational fits, each judged by draws from
it.

A start is good if its weights vary little and their tail is light. What the search may cost is a
part of the budget, and no fit is tried that could not save more than it costs.
"""

from functools import partial
import math
from typing import Any, NamedTuple

import jax
import numpy as np

from numpyro_dais._util.concreteness import as_floats
from numpyro_dais._util.journal import NO_JOURNAL, Journal
from numpyro_dais._util.keys import host_generator, named_key
from numpyro_dais.model.modes import find_modes
from numpyro_dais.model.searches import NUM_LANES
from numpyro_dais.model.traced import TracedTarget
from numpyro_dais.sampler.mixture import BASE_SHARE, Component, Mixture
from numpyro_dais.sampler.settings import no_steps
from numpyro_dais.tuning.adaptation import adapted, gaussians_of, mixture_of
from numpyro_dais.tuning.census import Census, Count
from numpyro_dais.tuning.extension import extended
from numpyro_dais.tuning.following import Past, followed
from numpyro_dais.tuning.goal import Goal
from numpyro_dais.tuning.laplace import (
    MAX_COUPLED_DIMS,
    Looks,
    gaussian_component,
    laplace_mixture,
    log_joints,
    with_bend,
    with_prior,
)
from numpyro_dais.tuning.look import Look, second_look
from numpyro_dais.tuning.quality import (
    BLOCK,
    HEAVY_KHAT,
    HOPELESS_KHAT,
    LARGEST_KHAT,
    SAFETY,
    DrawFn,
    Fit,
    has_more_mass,
    quality_of,
    weighted_draws,
)
from numpyro_dais.tuning.spread import NUM_START_DRAWS, start_draws, start_spread
from numpyro_dais.tuning.variational import (
    NO_TILT,
    VARIATIONAL_DRAWS,
    Tilt,
    is_funnel,
    neck_of,
    noise_at,
    variational_fit,
)

__all__ = ["Found", "find_start"]

# The thresholds, shares and rates below were set by trials on the targets of benchmarks/peers.py;
# none is derived, and other targets may want others.

# Of the budget, for all fits together, and for the searches for modes: the rest is for particles.
# The second share of searches is for those that go on while modes turn up that were met once only.
_FIT_SHARE = 0.5
_SEARCH_SHARE, _LONG_SEARCH_SHARE = 0.03, 0.1
# Searches at most: three modes of unequal basins were missed with 16. In many dimensions they are
# few, since each takes up to hundreds of gradients and modes are not found by chance.
_NUM_STARTS, _NUM_HIGH_STARTS = 192, 4
# Searches that are added at a time while modes are met once only, or much less often than others,
# and how often: a budget without end is not for them. Round numbers.
_MORE_STARTS, _MAX_BATCHES = 64, 64
# Of the budget, for all modes together; and gradients that one takes beside its curvature, for a
# polish and for lines to its neighbours, about.
_HESSIAN_SHARE, _COST_OF_MODE = 0.2, 30
# Numbers in the matrices of all modes at most, by which every draw is multiplied: 2,600 modes of 10
# dimensions, 26 of 100. A round number.
_MAX_MODE_WORDS = 2**18
# Of one variational fit, which may be continued while that pays.
_NUM_ITERATIONS = 500
# The k-hat of Laplace's approximation beyond which a fit begins elsewhere first: around the end of
# a search down a neck, or at a mode far from the mass. Of twelve such fits, to hierarchies, funnels
# and products of scales with 3 and more, none was better than the one that began at the middle of
# the start, and six had diverged.
_ASTRAY_KHAT = 2.0
# Of one fit after the other, in units of the scale at its beginning; the last is for settling.
_LEARNING_RATES = 0.06, 0.06, 0.06, 0.03
# Likewise in many dimensions, where the axes stay, and half of the iterations do. Measured on Cox
# processes of 256 and 1600 dimensions: with twice as many, and with rates of 0.005 to 0.05, the
# ELBO is the same to 0.2 nats.
_HIGH_LEARNING_RATES, _NUM_HIGH_ITERATIONS = (0.02, 0.01), 250
# Fits around modes that others do not cover, at most. A round number.
_MAX_COVERED = 4
# Steps of a fit that follows its draws, at most, and how many of them may be in vain. The first go
# by few draws of a bad fit, and are often no better; with one or two, bent ridges stayed bad.
_MAX_FOLLOWED, _MAX_IN_VAIN = 8, 4
# Modes of a mixture that follows its draws, at most: with 157 in five dimensions it took half a
# minute. A round number.
_MAX_FOLLOWED_MODES = 32
# Weights above zero that can be followed, at least. A round number.
_FEWEST_FOLLOWED = 100
# Dimensions up to which a fit follows its draws before all variational fits are done, which cost
# more: above, matrices have too many elements for a few thousand draws. A round number.
_MAX_FIRST_FOLLOWED = 12
# A fit follows its draws where their k-hat is larger or, in few dimensions, where those that it
# needs cost more than a share of the budget: following takes seconds, and draws do not. At a k-hat
# of 0.3 regressions in 50 and 61 dimensions took ten times as long for the same error, and the
# first call of the eight schools three times as long as NUTS.
_FOLLOWED_KHAT, _CHEAP_SHARE = 0.5, 0.25
# Of the draws of a fit that follows its own: the share whose noise is Student-t, since what it
# follows has heavy weights. A round number.
_WIDE_TAIL_SHARE = 0.15
# Steps of a mixture towards the posterior, and the share of its score that another step must leave
# for one more to be worth its draws. Round numbers.
_MAX_ADAPTATIONS, _ADAPTED = 4, 0.8
# Of the budget, for a second look, and for another one that checks what was made of what it found.
_LOOK_SHARES = 0.1, 0.05
# Of the draws, for what a variational fit began at, or for the neck of a funnel.
_SUPPORT_SHARE = 0.15
# Draws of the last test, which sees more of the tail.
_LAST_TEST = 4 * BLOCK
# Draws of the start, in blocks, that are tried where no search has begun at a positive density.
_MORE_BLOCKS = 16
# As many of these are enough to begin searches at. A round number.
_FEWEST_POSITIVE = 8


class Found(NamedTuple):
    """
    The result of a search for a start.

    :param fit: the best start; None if not even a mode was found.
    :param num_gradients: what the search has cost.
    :param modes: a count of those that searches have met.
    :param look: what a second look has seen; None if there was none.
    """

    fit: Fit | None
    num_gradients: float
    modes: Count
    look: Look | None = None


def find_start(
    rng_key: jax.Array,
    target: TracedTarget,
    goal: Goal,
    draw_fn: DrawFn,
    journal: Journal = NO_JOURNAL,
) -> Found:
    """
    Returns the best start that a part of the budget could find, if any.

    :param rng_key: a JAX random key.
    :param target: the target, with the start that is to be replaced.
    :param goal: what the start is for.
    :param draw_fn: runs particles.
    :param journal: keeps what each stage gives.
    """
    attempt = _Attempt(rng_key, target, goal, draw_fn, target.tracing.order, journal)
    fit = attempt.look_again(attempt.find())
    return Found(fit, attempt.spent, attempt.count, attempt.look)


class _Attempt:
    """One search, and what it has spent so far."""

    def __init__(
        self,
        rng_key: jax.Array,
        target: TracedTarget,
        goal: Goal,
        draw_fn: DrawFn,
        order: np.ndarray,
        journal: Journal,
    ) -> None:
        self.rng_key = rng_key
        self.target = target
        self.goal = goal
        self.draw_fn = draw_fn
        self.order = order
        self.stage = journal.stage
        self.spent = 0.0
        self.count = Count()
        self.look: Look | None = None
        # Whether a search has come to a maximum; else its end may be a place on a ridge, or on a
        # slope without an end.
        self.has_peak = False
        self.num_fits = self.num_tests = 0
        self.num_dims = len(order)
        is_high = self.num_dims > MAX_COUPLED_DIMS
        self._take_iterations(_NUM_HIGH_ITERATIONS if is_high else _NUM_ITERATIONS)
        self.draws = self._finite_draws("draws")
        # Of the start, where enough of it is finite.
        self.center, self.spread = np.zeros(self.num_dims), np.ones(self.num_dims)
        if len(self.draws) >= NUM_START_DRAWS // 2:
            self.center, self.spread = np.median(self.draws, axis=0), start_spread(self.draws)

    def _finite_draws(self, name: str) -> np.ndarray:
        """Draws of the start, those that are finite."""
        draws = np.asarray(start_draws(named_key(self.rng_key, name), self.target), np.float64)
        return draws[np.all(np.isfinite(draws), axis=1)]

    def _take_iterations(self, num_iterations: int) -> None:
        self.num_iterations = num_iterations
        self.fit_cost = num_iterations * VARIATIONAL_DRAWS

    def find(self) -> Fit | None:
        """Returns the best start found; None if not even a mode was."""
        mixture = self._laplace()
        if mixture is None:
            return None
        first = with_prior(jax.tree.map(lambda x: x[0], mixture.components))
        if mixture.num_modes == 1:
            return self._fit_one_mode(first)
        # Without a peak they are ends down the neck of a funnel, each of them elsewhere.
        one = None if self.has_peak else self._fit_one_mode(first)
        if one is not None and one.quality.khat < HOPELESS_KHAT:
            self.count = Count(self.count.num_searches)
            return one
        # A fit around one of them would look good, and miss the others.
        several = self._fit_many_modes(mixture)
        if mixture.components.coupling is not None and self._is_worth(several):
            several = self._better(several, self._cover(mixture) or several)
        several = self._followed(several)
        if several.quality.khat < HOPELESS_KHAT:
            return several
        # Else they may be no modes, but places on a ridge.
        if one is None and self._is_affordable():
            one = self._fit_one_mode(first)
        return several if one is None else self._better(several, one)

    def _better(self, one: Fit, other: Fit) -> Fit:
        """The fit that has met more mass, or has the better score."""
        for fit, rival in ((one, other), (other, one)):
            if has_more_mass(fit, rival):
                return fit
        return min(one, other, key=lambda fit: fit.quality.score)

    def _cover(self, mixture: Mixture) -> Fit | None:
        """
        Variational fits around modes, one after the other, of which each is left out that an
        earlier fit has room for: many modes may be places of one shell or ridge. None if one of
        the fits has failed.
        """
        components = with_prior(mixture.components)
        every = [jax.tree.map(lambda x, i=i: x[i], components) for i in range(mixture.num_modes)]
        log_shares = np.asarray(mixture.log_shares, np.float64)
        left = list(np.argsort(-log_shares))
        fitted: list[Component] = []
        elbos: list[float] = []
        while left and len(fitted) < _MAX_COVERED and self._is_affordable():
            component, elbo = self._variational(every[left.pop(0)], _LEARNING_RATES[0])
            if not np.isfinite(elbo):
                return None
            fitted.append(component)
            elbos.append(elbo)
            with np.errstate(over="ignore"):  # as far as can be is not covered
                squares = np.sum(np.asarray(noise_at(component, components.loc)) ** 2, axis=1)
            left = [mode for mode in left if not squares[mode] < _covered(self.num_dims)]
        seen = np.setdiff1d(np.arange(mixture.num_modes), left)
        unit = np.logaddexp.reduce(elbos) - np.logaddexp.reduce(log_shares[seen])
        log_masses = np.append(elbos, log_shares[left] + unit)
        stacked = jax.tree.map(
            lambda *leaves: np.stack(leaves), *fitted, *(every[mode] for mode in left)
        )
        log_masses -= np.logaddexp.reduce(log_masses)
        return self._test(Mixture(mixture.order, stacked, as_floats(log_masses)), _LAST_TEST)

    def _fit_many_modes(self, mixture: Mixture) -> Fit:
        """Laplace's approximation around several modes, which follows its draws while that pays."""
        fit = self._test(_with_priors(mixture))
        if mixture.components.coupling is None:
            return fit
        gaussians = gaussians_of(mixture)
        for _ in range(_MAX_ADAPTATIONS):
            is_good = fit.quality.khat < HEAVY_KHAT and self._needed(fit) < _LAST_TEST
            if is_good or self.spent + _LAST_TEST > _FIT_SHARE * self.goal.budget:
                break
            gaussians = adapted(gaussians, fit.draws[:, self.order], fit.log_weights)
            other = self._test(_with_priors(mixture_of(gaussians, mixture.order)), _LAST_TEST)
            if not other.quality.score < _ADAPTED * fit.quality.score:
                return min(fit, other, key=lambda fit: fit.quality.score)
            fit = other
        return fit

    def look_again(self, fit: Fit | None) -> Fit | None:
        """
        Returns the fit with what a second look has found that it lacks, checked by another one.

        :param fit: the fit, if there is one.
        """
        if fit is None or fit.quality.khat >= LARGEST_KHAT or self.num_dims > MAX_COUPLED_DIMS:
            return fit
        for number, share in enumerate(_LOOK_SHARES):
            assert fit.mixture is not None
            key = named_key(self.rng_key, f"look {number}")
            started = self.target.with_mixture(fit.mixture)
            most = share * self.goal.budget
            look_fn = partial(second_look, key, self.target, started, fit.log_weights, most)
            look = self.stage("a second look", look_fn)
            if look is None:
                break
            self.look = look
            self.spent += look.num_gradients
            if not look.is_found or share == _LOOK_SHARES[-1]:
                break
            cost = _SEARCH_SHARE * self.goal.budget
            looks = Looks(self.target, self.spread, self.goal.budget, NUM_LANES)
            mixture = extended(fit.mixture, look, looks, self.center, int(cost))
            self.spent += looks.num_gradients
            fit = self._followed(self._test(mixture, _LAST_TEST))
        return fit

    def _laplace(self) -> Mixture | None:
        """Laplace's approximation around each mode that is found."""
        mixture, self.spent, self.count, self.has_peak = self.stage("the modes", self._searched)
        return mixture

    def _searched(self) -> tuple[Mixture | None, float, Count, bool]:
        """The same, with all that was spent so far, the count, and whether one is a maximum."""
        starts = _search_starts(named_key(self.rng_key, "searches"), self.draws, self.num_dims)
        looks = Looks(self.target, self.spread, self.goal.budget, min(NUM_LANES, len(starts)))
        most = _HESSIAN_SHARE * self.goal.budget / (looks.cost_of_geometry + _COST_OF_MODE)
        most = min(most, _MAX_MODE_WORDS / self.num_dims**2)
        census = Census(looks.density_fn, looks.polish, max(int(most), 1))

        def search(starts: np.ndarray, max_gradients: float) -> None:
            where = self.center, self.spread
            census.meet(find_modes(looks.densities_fn, starts, *where, int(max_gradients)))

        first, all_searches = (
            share * self.goal.budget for share in (_SEARCH_SHARE, _LONG_SEARCH_SHARE)
        )
        search(starts, first)
        if not census.peaks and len(starts := self._positive_draws()):
            search(starts, first)
        if self.num_dims <= MAX_COUPLED_DIMS:
            for batch in range(_MAX_BATCHES):
                left, count = all_searches - looks.num_gradients, census.count
                if left < _MORE_STARTS or not (count.num_once or count.is_uneven):
                    break
                search(self._more_starts(batch), left)
        spent = self.spent + looks.num_gradients
        has_peak = any(peak.is_found for peak in census.peaks)
        mixture = laplace_mixture(census.peaks, self.order) if census.peaks else None
        return mixture, spent, census.count, has_peak

    def _more_starts(self, batch: int) -> np.ndarray:
        """Beginnings of more searches."""
        draws = self._finite_draws(f"more starts {batch}")
        key = named_key(self.rng_key, f"more searches {batch}")
        return _search_starts(key, draws, self.num_dims)[:_MORE_STARTS]

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
        is_astray = not is_high and first.quality.khat > _ASTRAY_KHAT
        if is_astray:
            begins.reverse()
        while rates and self._is_worth(fit):
            rate = rates.pop(0)
            # The mode of a funnel is far from its mass: then begin at the middle of the start, too.
            begin = begins.pop(0) if begins else fitted
            other, other_elbo = self._variational(begin, rate)
            if other_elbo > elbo:  # and a number
                fitted, elbo = other, other_elbo
                fit = self._test(self._supported(fitted, laplace))
            if fit.quality.khat < HEAVY_KHAT and first.quality.khat < LARGEST_KHAT:
                begins = []
            if is_astray and begins and math.isfinite(elbo):
                begins, rates = [], rates[1:]
            if is_high and fit.quality.khat < HEAVY_KHAT:
                break
            if is_high and fit.quality.khat > HOPELESS_KHAT:
                # Its axes are those of no mode, but of a place where the density has no bound.
                is_high, begins, rates = False, [self._broad(laplace)], list(_LEARNING_RATES)
                self._take_iterations(_NUM_ITERATIONS)
            # A funnel is in the family without a bend, and its neck wants a fit of its own.
            may_bend = self.num_dims <= _MAX_FIRST_FOLLOWED and not is_funnel(fitted)
            if not begins and may_bend and len(rates) == 2:
                fit = self._followed(fit)
                if self._is_good(fit):
                    return fit
        best = min(first, fit, key=lambda fit: fit.quality.score)
        if fitted is laplace:
            return best
        support = self._neck(fitted, fit) or laplace
        last = self._test(self._supported(fitted, support), _LAST_TEST)
        # A larger test sees more of the tail; only a much worse result speaks against the neck.
        if last.quality.score < 4 * best.quality.score:
            best = last
        return self._followed(best)

    def _followed(self, fit: Fit) -> Fit:
        """A fit that follows its draws, and those of its steps on the way, while that pays."""
        assert fit.mixture is not None
        is_large = fit.mixture.num_modes > _MAX_FOLLOWED_MODES
        num_positive = np.count_nonzero(np.isfinite(fit.log_weights))
        is_lost = num_positive < _FEWEST_FOLLOWED
        is_rigid = fit.mixture.components.slopes is None
        if is_large or is_lost or is_rigid or self._is_good(fit):
            return fit
        components = with_bend(fit.mixture.components)
        mixture = fit.mixture._replace(components=components, tail_share=_WIDE_TAIL_SHARE)
        past, num_in_vain = Past(self.target), 0
        past.add(fit)
        for _ in range(_MAX_FOLLOWED):
            cost = self.spent + _LAST_TEST / 2
            if num_in_vain == _MAX_IN_VAIN or cost > _FIT_SHARE * self.goal.budget:
                break
            key = named_key(self.rng_key, f"follow {self.num_tests}")
            mixture = followed(key, mixture, *past.weighted())
            past.add(self._test(mixture, _LAST_TEST))
            before, fit = fit, past.judged()
            num_in_vain = 0 if fit.mixture is not before.mixture else num_in_vain + 1
            has_gained = fit.quality.score < _ADAPTED * before.quality.score
            if self._is_good(fit) and not has_gained:
                break
        return fit

    def _neck(self, fitted: Component, fit: Fit) -> Component | None:
        """A fit of the neck, if the fit of the whole has one, and a tail that may come from it."""
        tilt = neck_of(fitted)
        if tilt is None or fit.quality.khat <= HEAVY_KHAT or not self._is_affordable():
            return None
        neck, elbo = self._variational(fitted, _LEARNING_RATES[0], tilt)
        return neck if math.isfinite(elbo) else None

    def _variational(
        self, begin: Component, rate: float, tilt: Tilt = NO_TILT
    ) -> tuple[Component, float]:
        """A fit, and its ELBO."""
        self.spent += self.fit_cost
        self.num_fits += 1

        def fit() -> Any:
            fitted = variational_fit(
                named_key(self.rng_key, f"fit {self.num_fits}"),
                self.target,
                begin,
                self.order,
                rate,
                tilt,
                num_iterations=self.num_iterations,
            )
            return jax.tree.map(np.asarray, fitted)

        component, elbos = self.stage(f"fit {self.num_fits}", fit)
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
            tail_share=shrinkage * mixture.tail_share,
        )
        self.num_tests += 1
        test_key = named_key(self.rng_key, f"test {self.num_tests}")
        started = self.target.with_mixture(mixture)
        draw = partial(self.draw_fn, test_key, started, no_steps(), num_draws)
        log_weights, draws = weighted_draws(self.stage(f"test {self.num_tests}", draw))
        return Fit(mixture, quality_of(log_weights), log_weights, draws)

    def _is_worth(self, fit: Fit) -> bool:
        """True if going on may save more than it costs, and can be paid for."""
        return self._needed(fit) > 1.5 * self.fit_cost and self._is_affordable()

    def _needed(self, fit: Fit) -> float:
        """Gradients that draws of a fit would cost, as many as the goal asks for."""
        return 0.5 * SAFETY * fit.quality.score / self.goal.target_error**2

    def _is_good(self, fit: Fit) -> bool:
        """True if too little is to be gained by following the draws of a fit."""
        is_cheap = self._needed(fit) < _CHEAP_SHARE * self.goal.budget
        is_high = self.num_dims > _MAX_FIRST_FOLLOWED
        return fit.quality.khat < _FOLLOWED_KHAT and (is_cheap or is_high)

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
        return with_prior(component)


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


def _with_priors(mixture: Mixture) -> Mixture:
    return mixture._replace(components=with_prior(mixture.components))


def _covered(num_dims: int) -> float:
    """The square of the noise up to which a place is one of a fit: four deviations of it."""
    return num_dims + 4 * math.sqrt(2 * num_dims)
