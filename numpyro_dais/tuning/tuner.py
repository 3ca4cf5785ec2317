# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Self-tuning: a start, a schedule, step sizes, and numbers of steps and particles for a wanted error.

Everything here runs on the host, around compiled pieces, and spends gradients on one question:
which settings give the smallest error of the log evidence for what is left of the budget. It goes
in rounds of more and more steps. The errors of earlier rounds decide which one will be the last,
and with which settings; its randomness is fresh, and it is reported whatever it gives, so that its
weights are unbiased whatever was decided here.
"""

from collections.abc import Callable
from functools import partial
import math
from typing import NamedTuple

import jax
import numpy as np

from numpyro_dais._util.journal import Journal
from numpyro_dais._util.keys import named_key
from numpyro_dais._util.progress import RoundsBar
from numpyro_dais.model.traced import TracedTarget
from numpyro_dais.sampler.findings import Findings, MissedMass, ModeCount, not_looked
from numpyro_dais.sampler.mixture import Mixture
from numpyro_dais.sampler.particles import Run
from numpyro_dais.sampler.rounds import Round, round_of
from numpyro_dais.sampler.settings import Decision, Settings, no_steps
from numpyro_dais.tuning.candidates import LADDER, Candidate, along, plain_candidates
from numpyro_dais.tuning.curvature import find_curvature
from numpyro_dais.tuning.curvature_path import (
    along_axes,
    constant_path,
    curvature_path,
    fitted_axes,
)
from numpyro_dais.tuning.fitting import Found, find_start
from numpyro_dais.tuning.goal import DEFAULT_NUM_PARTICLES, Goal
from numpyro_dais.tuning.laplace import MAX_COUPLED_DIMS
from numpyro_dais.tuning.plan import (
    ISLAND_SIZE,
    MAX_WORDS,
    Plan,
    plan_chains,
    plan_draws,
    resampled,
    variance_at,
)
from numpyro_dais.tuning.population import MeasuredPath, measure_path
from numpyro_dais.tuning.quality import BLOCK, LARGEST_KHAT, DrawFn, Fit, judge_start
from numpyro_dais.tuning.spread import start_draws, start_spread
from numpyro_dais.tuning.trials import Trial, barrier_of, measured_anew

__all__ = ["Tools", "Tuned", "tune_all"]

_TIME_IS_UP = "Time is up"
_FULL = (
    "Searches have met more than {} modes, for which there was no room: draws of the fit miss the others, and the "
    "estimate is too low; use a larger budget=, or start='prior'."
)
_UNSEEN = "There are more modes than were found ({}), and the estimate is likely too low; use a larger budget=."
_RARE = (
    "Some modes were met many times as often as others ({}): another one, with about {:.0%} of the evidence, may have "
    "been missed; use a larger budget=."
)
_LACKING = (
    "The estimate may be too low: {}, and what was made of it has not mended that; use a larger budget=, or "
    "start='prior'."
)
_POOR = (
    "Particles begin at a fit that the posterior is not like (its draws have weights of a relative variance of {:.2g}, "
    "k-hat {:.2f}), and a second look had no power: what the fit lacks they may lack, too, and the estimate may be too "
    "low by more than its error; use a larger budget=, another parametrisation or a guide=."
)
# The score of a fit above which particles from it are not trusted without a second look: of the
# models of benchmarks/trust.py, chains from fits with 110 and more were 1.8 of their errors too low
# on average, by up to 4, and draws of one with 490 by 9; fits of regressions in 35 and 61
# dimensions have 6 to 35.
_POOR_SCORE = 100.0
# The share of searches that would meet another mode, above which that is a warning: as much of the
# evidence may be missing. A round number.
_MOST_UNSEEN = 0.05
# The share of the evidence that a mode which was not met may have, above which that is a warning. A
# round number: of eight modes, runs that lacked 4 % had 0.016, one that lacked 12 % had 0.034.
_MOST_RARE = 0.02
# Nats: an error without steps which is good enough, since steps would cost trials first. A round
# number.
_GOOD_ENOUGH = 0.03
# Of the gradients that the run may take: those of one trial; of a path that a population measures;
# of the curvature around a mode; and of all rounds before the last. Measured on a few targets.
_TRIAL_SHARE = 0.006
_PATH_SHARE = 0.08
_CURVATURE_SHARE = 0.08
_ROUND_SHARE = 0.065
# Of a run whose numbers are given, for all tuning. A round number.
_TUNING_SHARE = 0.12
# The k-hat of a fit without its tails up to which chains begin there. Measured on the models of the
# suite, with 400 steps: always without tails, three of them had rare large weights, and errors two
# to six times as large; always with tails, four that are nearly Gaussian had errors three to seven
# times as large, from stray draws.
_LIGHT_KHAT = 0.5
# Steps of a first trial: a few, or as many as rank candidates well.
_TRIAL_STEPS = 16, 64
# Particles of a trial: as many as run at a time; and of a round.
_NUM_TRIAL_PARTICLES = 8
_NUM_ROUND_PARTICLES = 16
# Of a step that is tried in the first round beside the one that was best with fewer steps. A longer
# one was tried, too, and chosen where its rare losses did not show: on a skewed product the error
# was twice as large.
_SHORTER = 0.6
# A step, in units of the width, that only a Gaussian allows. A round number.
_LONG = 0.8
# How many times as many steps the next round has: few rounds, and short ways to extrapolate.
_GROWTH = 4
# The variance of log weights in a first trial below which no other path is looked for: a run of a
# few times as many steps will do.
_SMALL_VARIANCE = 2.0
# The same in a last trial from which on resampling is not trusted to mend it. A round number: of
# the models in development, an autoregression whose error bars were too small was at 15 and more,
# hierarchies and products with good ones at 3 to 8.
_VERY_UNEQUAL = 10.0
# Dimensions above which a population of 72 knows too little of a covariance. A round number.
_MAX_MEASURED_DIMS = 10
# Draws that show the covariance of a fit, and dimensions up to which they do.
_MAX_DENSE_DIMS = 100


class Tools(NamedTuple):
    """
    The functions that tuning runs particles with.

    :param draw: particles without steps, from key, target, settings and their number.
    :param run: chains: the same to particles and to what each step saw of the path.
    :param num_rows: the largest number of steps.
    :param is_over: whether time is up.
    :param may_resample: whether particles may be resampled in islands.
    :param journal: keeps what each stage gives; what ``run`` gives it keeps in the journal itself.
    :param on_round: is told of each round: its steps, gradients so far, and its estimate.
    """

    draw: DrawFn
    run: Callable[[jax.Array, TracedTarget, Settings, int], tuple[Run, np.ndarray]]
    num_rows: int
    is_over: Callable[[], bool]
    may_resample: bool
    journal: Journal
    on_round: Callable[[int, int, str], None] | None = None


class Tuned(NamedTuple):
    """
    The result of tuning.

    :param settings: the settings of the last round.
    :param history: the rounds before it.
    :param finished: the last round itself, if it was run already: time is up.
    :param note: why, in words.
    :param findings: what was seen of the posterior on the way; None if no start was looked for.
    :param is_resampled: whether the particles of the last round are to be resampled in islands.
    :param run: what runs the chains of the last round; None for the estimator's own way.
    :param bar: the progress bar, if one is shown.
    :param target_error: the wanted error, if there is one.
    :param early: what to report if the last round is interrupted; None if nothing has finished.
    :param is_planned: whether this is where the rounds have led, and not an early end.
    """

    settings: Settings
    history: tuple[Round, ...] = ()
    finished: Run | None = None
    note: str = ""
    findings: Findings | None = None
    is_resampled: bool = False
    run: Callable[..., tuple[Run, np.ndarray]] | None = None
    bar: RoundsBar | None = None
    target_error: float | None = None
    early: Callable[[], "Tuned"] | None = None
    is_planned: bool = False


def tune_all(rng_key: jax.Array, target: TracedTarget, goal: Goal, tools: Tools) -> Tuned:
    """
    Returns settings for a goal.

    :param rng_key: a JAX random key.
    :param target: the target, with its own start.
    :param goal: what the settings are for.
    :param tools: runs particles.
    """
    tuner = _Tuner(rng_key, target, goal, tools)
    try:
        return tuner.tune()
    except KeyboardInterrupt:
        if not tuner.history:
            raise
        return tuner.finish_early("Interrupted")


class _Tuner:
    """One search for settings, what it has spent so far, and what it has seen."""

    def __init__(self, rng_key: jax.Array, target: TracedTarget, goal: Goal, tools: Tools) -> None:
        self.rng_key, self.target, self.goal, self.tools = rng_key, target, goal, tools
        self.spent = 0.0
        self.history: list[Round] = []
        self.words: list[str] = []
        self.last: Trial | Fit | None = None
        self.own: Fit | None = None
        self.fit_notes = ""
        self.found: Found | None = None
        self.pilot: float | None = None
        self.stage = tools.journal.stage
        # What the run itself may cost, of which tuning takes shares.
        self.size = float(goal.budget)
        if goal.num_steps is not None:
            number = goal.num_particles or DEFAULT_NUM_PARTICLES
            self.size = min(self.size, float(goal.num_steps * number))

    @property
    def left(self) -> float:
        """Gradients that are left."""
        return max(self.goal.budget - self.spent, 0.0)

    def tune(self) -> Tuned:
        """Returns the settings of the last round."""
        fit = self._fit()
        if fit is not None and self.goal.num_steps is None and self._is_good(fit):
            return self._without_steps(fit)
        if fit is not None and self._is_over():
            return self.finish_early(_TIME_IS_UP)
        trials = self._first_trials(fit)
        if self.goal.num_steps is None and self.own is not None and self._is_good(self.own):
            return self._without_steps(self.own)
        best = self._rounds(trials)
        if best is None:
            return self.finish_early(_TIME_IS_UP)
        plan = plan_chains(best, self.goal, self.left, self.tools.num_rows)
        if self.tools.may_resample and best[-1].candidate.start is None:
            num_dims = self.target.tracing.num_dims
            plan = resampled(plan, best, self.goal, self.left, num_dims)
        fits = [] if self.goal.num_steps is not None else [f for f in (fit, self.own) if f]
        for other in fits:
            if self._plan_draws(other).log_error < plan.log_error:
                return self._without_steps(other)
        return self._with_steps(best, plan)

    def _is_over(self) -> bool:
        """True if time is up: once that was decided, it stays."""
        is_over = self.stage("the clock", self.tools.is_over)
        if is_over:
            self.tools.journal.write()
        return is_over

    def finish_early(self, reason: str) -> Tuned:
        """
        Returns the last round that has finished as the result; of one without steps, which takes a
        moment, a fresh copy.

        :param reason: why, in words.
        """
        history = tuple(self.history)
        if isinstance(self.last, Fit):
            note = f"{reason}: this is the last round that was finished, of draws without steps."
            settings = self._settings(no_steps(), self.last.mixture, len(self.last.log_weights))
            return Tuned(settings, history, note=note, findings=self._findings(settings))
        assert self.last is not None
        trial = self.last
        note = (
            f"{reason}: this is the last round that was finished, of {trial.num_steps} steps; it was "
            "chosen among candidates by its own weights."
        )
        candidate = trial.candidate
        settings = candidate.at(trial.num_steps)
        settings = self._settings(settings, candidate.start, len(trial.log_weights))
        return Tuned(settings, history, trial.run, note, self._findings(settings))

    def _settings(self, chain: Settings, start: Mixture | None, num_particles: int) -> Settings:
        return chain._replace(
            start=start,
            num_particles=num_particles,
            num_gradients=math.ceil(self.spent),
            decision=Decision(*self.words),
        )

    def _tuned(self, settings: Settings, is_resampled: bool = False, note: str = "") -> Tuned:
        early = None if not self.history else partial(self.finish_early, "Interrupted")
        history = tuple(self.history)
        findings = self._findings(settings)
        return Tuned(
            settings, history, None, note, findings, is_resampled, early=early, is_planned=True
        )

    def _findings(self, settings: Settings) -> Findings | None:
        """All that was seen of the posterior, for a result with these settings."""
        if self.found is None:
            return None
        modes, mass = self.found.modes, _missed_mass(self.found, self.target.tracing.num_dims)
        count = ModeCount(modes.num_modes, modes.num_searches, modes.unseen_share)
        if settings.start is None:
            # The fit that was looked at is not what is reported.
            reason = "particles begin at the start itself, and not at a fit"
            mass = mass._replace(outcome="not looked", share=None, reason=reason)
        return Findings(mass, count if modes.num_searches else None, self.pilot)

    # --- starts ---------------------------------------------------------------------------------

    def _fit(self) -> Fit | None:
        if not self.goal.is_start_free:
            return None
        key = named_key(self.rng_key, "fit")
        found = find_start(key, self.target, self.goal, self.tools.draw, self.tools.journal)
        self.spent += found.num_gradients
        self.found = found
        if found.modes.num_searches:
            self.words.append(found.modes.words)
        self.fit_notes = _notes_on(found, self.target.tracing.num_dims)
        if found.look is not None:
            self.words.append(found.look.words)
        if found.fit is not None:
            self._keep(found.fit)
        return found.fit

    def _is_good(self, fit: Fit) -> bool:
        """True if particles without steps have an error that leaves nothing to be wanted."""
        return self._plan_draws(fit).error <= max(self.goal.target_error, _GOOD_ENOUGH)

    def _plan_draws(self, fit: Fit) -> Plan:
        num_dims = self.target.tracing.num_dims
        return plan_draws(fit.quality.score, self.goal, self.left, num_dims)

    def _without_steps(self, fit: Fit) -> Tuned:
        plan = self._plan_draws(fit)
        kind = "the start itself" if fit.mixture is None else fit.mixture.description
        variance, khat = fit.quality
        self.words.append(
            f"no steps: draws of {kind} have a relative variance of {variance:.2g} (k-hat "
            f"{khat:.2f}), and {plan.num_particles} of them an error of {plan.error:.2g}"
            + ("; memory has room for no more" if self._is_full(plan) else "")
        )
        note = "" if fit.mixture is None else self.fit_notes
        settings = self._settings(no_steps(), fit.mixture, plan.num_particles)
        return self._tuned(settings, note=note)

    def _is_full(self, plan: Plan) -> bool:
        """True if memory has room for no more draws, and they were wanted."""
        room = MAX_WORDS // self.target.tracing.num_dims
        is_wanted = (
            plan.error > self.goal.target_error and plan.num_particles < 2 * self.left - BLOCK
        )
        return is_wanted and plan.num_particles > room - BLOCK

    def _with_steps(self, trials: list[Trial], plan: Plan) -> Tuned:
        candidate = trials[-1].candidate
        seen = f"{trials[-1].log_variance:.2g} at {trials[-1].num_steps} steps"
        self.words.append(
            f"{plan.num_steps} steps of {candidate.words}: log weights had a variance of {seen}; "
            + (
                f"resampled in islands of {ISLAND_SIZE}, an error of {plan.error:.2g} is expected of {plan.num_particles}"
                if plan.is_resampled
                else f"an error of {plan.error:.2g} is expected of {plan.num_particles} particles"
            )
        )
        chain = candidate.at(plan.num_steps)
        settings = self._settings(chain, candidate.start, plan.num_particles)
        note = _note(trials[-1], plan) if candidate.start is None else self.fit_notes
        return self._tuned(settings, plan.is_resampled, note)

    # --- trials ---------------------------------------------------------------------------------

    def _first_trials(self, fit: Fit | None) -> list[Trial]:
        """Trials of all candidates, the best first."""
        wanted = _TRIAL_SHARE * self.size / _NUM_TRIAL_PARTICLES
        num_steps = int(np.clip(2 ** round(math.log2(max(wanted, 1.0))), *_TRIAL_STEPS))
        if self.goal.num_steps is not None:
            num_steps = min(num_steps, self.goal.num_steps)
        self.trial_steps = num_steps
        trials: list[Trial] = []
        if fit is not None and fit.mixture is not None and fit.quality.khat < LARGEST_KHAT:
            started = self._start_of_chains(fit.mixture)
            trials += self._climb(self._fit_path(started), started, "from the fit")
            if self._is_enough(_best(trials)):
                return self._ranked(trials)
        trials += self._from_own_start()
        return self._ranked(trials)

    def _start_of_chains(self, mixture: Mixture) -> TracedTarget:
        """The target with a fit alone as its start; with its tails where it needs them."""
        bare = self.target.with_mixture(mixture.bare())
        if mixture.components.basis is not None:  # in many dimensions tails are stray draws
            return bare
        judged = self._judged("bare", bare)
        if judged.quality.khat < _LIGHT_KHAT:
            return bare
        return self.target.with_mixture(mixture._replace(base_share=0.0))

    def _judged(self, name: str, target: TracedTarget) -> Fit:
        """A start without steps."""
        key = named_key(self.rng_key, name)
        judge = partial(judge_start, key, target, self.tools.draw)
        judged, cost = self.stage(f"a look at draws: {name}", judge)
        self.spent += cost
        return judged

    def _is_enough(self, trial: Trial) -> bool:
        """True if no other path needs to be looked for."""
        variance = trial.log_variance
        if self.goal.num_steps is not None:
            variance = variance_at(trial, self.goal.num_steps)
        return variance < _SMALL_VARIANCE

    def _from_own_start(self) -> list[Trial]:
        """Trials of candidates that begin at the target's own start."""
        target = self.target.with_mixture(None)
        draws = np.asarray(start_draws(named_key(self.rng_key, "draws"), target), np.float64)
        is_finite = np.all(np.isfinite(draws), axis=1)
        draws = draws[is_finite] if np.any(is_finite) else np.zeros_like(draws)
        unit = start_spread(draws)
        trials = []
        path = self._curvature_path(target, draws)
        if path is not None:
            trials += self._climb(path, target, "along the curvature")
        trials += [self._try(candidate) for candidate in plain_candidates(target, unit)]
        if self._is_enough(_best(trials)):
            return trials
        measure = partial(
            measure_path,
            named_key(self.rng_key, "path"),
            target,
            int(np.clip(72 * self.size / 1e5, 32, 512)),
            int(min(_PATH_SHARE * self.size, 0.5 * self.left)),
            max_dense_dims=_MAX_MEASURED_DIMS,
        )
        measured = self.stage("the measured path", measure)
        self.spent += measured.num_gradients
        self.pilot = measured.log_evidence if measured.is_seen else None
        if self.goal.num_steps is None and measured.has_zeros:
            # A hard constraint has no mode to fit at its edge, and chains run against it; but draws
            # of the start, of weight zero or not, see all of it.
            self.own = self._judged("own start", target)
        trials += self._climb(along_axes(measured), target, "along a measured path")
        return trials

    def _curvature_path(self, target: TracedTarget, draws: np.ndarray) -> MeasuredPath | None:
        most = _CURVATURE_SHARE * self.size
        center = np.median(draws, axis=0)
        look = partial(find_curvature, target, draws, center, start_spread(draws), most)
        found, cost = self.stage("the curvature", look)
        self.spent += cost
        return None if found is None else curvature_path(found, center)

    def _fit_path(self, started: TracedTarget) -> MeasuredPath:
        """The path from a fit, along the fit's own axes or those of its draws."""
        assert started.mixture is not None
        axes = fitted_axes(started.mixture)
        if axes is not None:
            return constant_path(np.ones(len(axes)), axes)
        draws = np.asarray(start_draws(named_key(self.rng_key, "fitted"), started), np.float64)
        if draws.shape[1] > _MAX_DENSE_DIMS:
            return constant_path(start_spread(draws), None)
        covariance = np.atleast_2d(np.cov(draws, rowvar=False))
        widths, axes = np.linalg.eigh(covariance)
        widths = np.sqrt(np.maximum(widths, 1e-8 * widths.max()))
        return constant_path(np.ones(len(widths)), axes * widths)

    def _climb(self, path: MeasuredPath, target: TracedTarget, family: str) -> list[Trial]:
        """Trials of a ladder of step sizes, from its middle to where the bound is highest."""
        trials: dict[int, Trial] = {}

        def look(place: int) -> float:
            if not 0 <= place < len(LADDER):
                return -math.inf
            if place not in trials:
                trials[place] = self._try(along(path, target, LADDER[place], family))
            return trials[place].bound

        place = len(LADDER) // 2 - 1
        direction = -1 if look(place - 1) > look(place) else 1
        while look(place + direction) > look(place) or (
            direction == 1 and not math.isfinite(look(place)) and place + 1 < len(LADDER)
        ):
            place += direction
        return list(trials.values())

    def _try(
        self,
        candidate: Candidate,
        num_steps: int | None = None,
        num_particles: int = _NUM_TRIAL_PARTICLES,
        key: str = "trials",
    ) -> Trial:
        settings = candidate.at(num_steps or self.trial_steps)
        run, log_ratios = self.tools.run(
            named_key(self.rng_key, key), candidate.target, settings, num_particles
        )
        self.spent += num_particles * (settings.num_steps + 1)
        return Trial(
            candidate,
            run,
            np.asarray(run.log_weights, np.float64),
            np.asarray(log_ratios, np.float64),
            np.asarray(settings.betas, np.float64),
        )

    def _ranked(self, trials: list[Trial]) -> list[Trial]:
        """Trials by their bound, one of each family."""
        ranked = sorted(trials, key=lambda trial: -trial.bound)
        families: dict[str, Trial] = {}
        for trial in ranked:
            families.setdefault(trial.candidate.family, trial)
        chosen = list(families.values())
        listed = "; ".join(f"{t.candidate.words} {t.bound:.5g}" for t in chosen[:4])
        self.words.append(
            f"best of {len(trials)} candidates at {chosen[0].num_steps} steps, by their bounds: {listed}"
        )
        self._keep(chosen[0])
        return chosen

    # --- rounds ---------------------------------------------------------------------------------

    def _rounds(self, trials: list[Trial]) -> list[Trial] | None:
        """Runs of the best candidate, of more and more steps; None if time is up."""
        first = trials[0].candidate
        seen, rivals = [trials[0]], [trial.candidate for trial in trials[:2]]
        # A step that is long already belongs to a Gaussian, whose best step does not shrink.
        is_long = first.path is not None and first.step_size > _LONG
        factor = _GROWTH**0.25 if is_long else _SHORTER
        rivals.append(first._replace(step_size=factor * first.step_size))
        number = 0
        while True:
            if self._is_over():
                return None
            num_steps = _GROWTH * seen[-1].num_steps
            if self.goal.num_steps is not None:
                num_steps = min(num_steps, self.goal.num_steps)
            cost = _NUM_ROUND_PARTICLES * num_steps * len(rivals)
            plan = plan_chains(seen, self.goal, self.left, self.tools.num_rows)
            share = len(rivals) * _ROUND_SHARE * self.size
            if cost > share or cost > 0.25 * self.left or num_steps == seen[-1].num_steps:
                return seen
            if self.goal.num_steps is not None and self.spent + cost > _TUNING_SHARE * self.size:
                return seen
            if cost > 0.5 * plan.cost or num_steps >= plan.num_steps:
                return seen
            number += 1
            results = [
                self._try(rival, num_steps, _NUM_ROUND_PARTICLES, f"round {number}")
                for rival in rivals
            ]
            best = _best(results)
            if best.candidate.family != seen[-1].candidate.family:
                seen = [t for t in trials if t.candidate.family == best.candidate.family][:1]
            self._keep(best)
            candidate = best.candidate
            if candidate.path is not None:
                candidate = candidate.with_path(measured_anew(candidate.path, best))
            seen.append(best._replace(candidate=candidate))
            rivals = [candidate]

    def _keep(self, last: Trial | Fit) -> None:
        """Keeps a round that has finished."""
        self.last = last
        num_steps, barrier = 0, math.nan
        if isinstance(last, Trial):
            num_steps, barrier = last.num_steps, barrier_of(last)
        seconds = self.stage("the time", self.tools.journal.seconds)
        found = round_of(last.log_weights, num_steps, self.spent, seconds, barrier)
        self.history.append(found)
        self.tools.journal.write()
        if self.tools.on_round is not None:
            words = f"{found.log_evidence:.2f} ± {found.standard_error:.2g}"
            self.tools.on_round(num_steps, found.num_gradients, words)


def _notes_on(found: Found, num_dims: int) -> str:
    """Reasons why particles from a fit may lack mass that they do not show."""
    notes = []
    if found.modes.is_full:
        notes.append(_FULL.format(found.modes.num_modes))
    elif found.modes.unseen_share > _MOST_UNSEEN and found.modes.num_modes > 1:
        notes.append(_UNSEEN.format(found.modes.words))
    elif found.modes.rare_share > _MOST_RARE:
        notes.append(_RARE.format(found.modes.words, found.modes.rare_share))
    if found.look is not None and found.look.is_found:
        notes.append(_LACKING.format(found.look.words))
    has_looked = found.look is not None and (found.look.has_power or found.look.is_found)
    # In many dimensions no fit has weights of a small variance, and chains are for that.
    if found.fit is not None and num_dims <= MAX_COUPLED_DIMS and not has_looked:
        quality = found.fit.quality
        notes += [_POOR.format(*quality)] if quality.score >= _POOR_SCORE else []
    return " ".join(notes)


def _missed_mass(found: Found, num_dims: int) -> MissedMass:
    """The outcome of a second look, or why there was none."""
    look = found.look
    if look is None:
        if found.fit is None:
            return not_looked("there is no fit")
        if found.fit.quality.khat >= LARGEST_KHAT:
            return not_looked("the fit is too poor to be checked")
        if num_dims > MAX_COUPLED_DIMS:
            return not_looked(f"there are {num_dims} dimensions")
        return not_looked("the budget is too small")
    estimate = look.log_evidence, look.standard_error
    if look.is_found:
        return MissedMass("found", look.share, "", *estimate)
    if look.has_power:
        return MissedMass("none found", look.smallest_share, "", *estimate)
    return MissedMass("no power")


def _note(trial: Trial, plan: Plan) -> str:
    """A warning where islands may all miss the same mass, which their spread does not show."""
    if not plan.is_resampled or trial.log_variance < _VERY_UNEQUAL:
        return ""
    return (
        f"Without resampling, log weights had a variance of {trial.log_variance:.2g} at {trial.num_steps} steps: "
        "islands may have missed the same mass, and the error may be too small; start from a fit "
        "(start='auto') or a guide, or use a larger budget."
    )


def _best(trials: list[Trial]) -> Trial:
    return max(trials, key=lambda trial: trial.bound)
