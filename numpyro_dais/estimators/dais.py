# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Differentiable annealed importance sampling: the main door of the package."""

from collections.abc import Callable
from copy import copy
from dataclasses import fields, replace
from functools import partial
import math
import os
from typing import Any

import jax

from numpyro.distributions import Distribution

from numpyro_dais._util.checks import check_count, check_optional_count
from numpyro_dais._util.journal import Journal
from numpyro_dais._util.progress import RoundsBar
from numpyro_dais.estimators.arguments import (
    Integrand,
    check_anchors,
    check_goal,
    check_islands,
    explain_keywords,
    resolve_chain,
)
from numpyro_dais.estimators.base import Estimator
from numpyro_dais.estimators.checkpoints import journal_of
from numpyro_dais.estimators.runner import RunConfig
from numpyro_dais.estimators.staged import StagedRunner
from numpyro_dais.model.dynamics import check_dynamics
from numpyro_dais.model.problem import Problem
from numpyro_dais.model.subsampling import Batches, warn_of_noise
from numpyro_dais.model.surrogate import QuadraticSurrogate
from numpyro_dais.model.traced import TracedTarget
from numpyro_dais.sampler.kernel import UNCORRECTED
from numpyro_dais.sampler.loop import Memory, check_memory
from numpyro_dais.sampler.schedule import Schedule
from numpyro_dais.sampler.settings import Settings
from numpyro_dais.tuning.goal import Goal
from numpyro_dais.tuning.tuner import Tools, Tuned, tune_all

__all__ = ["DAIS"]

# Chains that share a budget at least, so that there is an error bar.
_FEWEST_CHAINS = 32
# Numbers that the preconditioners of all steps may take, 64 MiB in float64.
_MAX_WORDS = 2**23
# Steps at most: an error that is not small by then has other reasons. A round number.
_MOST_STEPS = 2**14


class DAIS(Estimator):
    r"""
    Differentiable annealed importance sampling: the evidence of a NumPyro model.

    With nothing but the model given, it tunes itself: part of the budget goes into a start fitted
    to the posterior, or into rounds of more and more steps, which find out what chains are best;
    see :mod:`numpyro_dais.tuning.tuner`. Rounds are kept in ``evidence.history``, and what was
    decided, and why, in ``evidence.settings``.

    Particles start at exact draws of a tractable density :math:`q_0`, the prior or a fit, and are
    carried to :math:`p(D, u)` along :math:`f_\beta = q_0^{1-\beta} p(D, \cdot)^\beta` by leapfrog
    steps with partial momentum refreshment, without Metropolis corrections. Each particle's weight
    is unbiased for :math:`p(D)`, and a differentiable function of everything that goes into it.

    The estimate comes with an error bar, but the error bar itself comes from the weights: read the
    warnings. A particle whose density was not finite has weight zero, and no part in gradients.

    **References**

    1. *Differentiable Annealed Importance Sampling and the Perils of Gradient Noise*,
       Guodong Zhang, Kyle Hsu, Jianing Li, Chelsea Finn, Roger Grosse (NeurIPS 2021)
    2. *MCMC Variational Inference via Uncorrected Hamiltonian Annealing*,
       Tomas Geffner, Justin Domke (NeurIPS 2021)

    :param model: a NumPyro model. Discrete latent sites marked for enumeration are summed out.
    :param potential_fn: instead of a model, minus the log of any density over an array or a dict of
        arrays, known up to a constant; the constant is what is estimated. Needs ``start``.
    :param num_steps: the number of steps :math:`K`, one gradient each. With 0 this is importance
        sampling from the start as given. Left out it is chosen for ``target_error``; with
        ``step_size`` it is 256, or as ``schedule`` says.
    :param num_particles: the number of particles :math:`S`; left out likewise, or 128.
    :param step_size: :math:`\eta`, a number or one per step. Left out, :meth:`tune` finds it.
    :param damping: :math:`\gamma` in [0, 1), a number or one per step; 0 refreshes the momentum
        fully.
    :param schedule: ``"linear"``, ``"sigmoid"`` or ``"power"``; a function of the number of steps
        (:mod:`numpyro_dais.sampler.schedule`); or the inverse temperatures themselves, increasing
        and ending in 1.
    :param preconditioner: :math:`L` with :math:`M^{-1} = L L^\top`: a diagonal ``[num_dims]`` or a
        lower triangular ``[num_dims, num_dims]``, with a leading axis of length :math:`K` to change
        it along the chain. Unconstrained values are in alphabetical order of the sites.
    :param settings: all of the above at once, as :meth:`tune` returns them.
    :param target_error: the standard error of the log evidence, in nats, that a self-tuned run aims
        at; 0.005 if left out.
    :param budget: gradients that a self-tuned run may spend, tuning included, a density counting as
        half of one; 100,000 if left out.
    :param max_seconds: a self-tuned run ends after the round that passes this time, and gives that
        back with a note. Ctrl-C does the same with the last round that has finished.
    :param start: ``"auto"``, in a self-tuned run a fit where that helps, else the prior;
        ``"prior"``; a dict with a distribution over the values of each latent site; or one
        distribution, over the only latent site or else over all unconstrained values as a vector.
    :param keep_start: with ``potential_fn``, whether a self-tuned run must begin at ``start``
        itself, which else a fit may replace.
    :param guide: start at a fitted guide instead.
    :param guide_params: the guide's parameters, ``svi_result.params``.
    :param params: values of the model's ``param`` (and ``mutable``) sites.
    :param plate: the name of a plate that holds every site (or names of several): gives one
        evidence per element. Of a subsampled plate, per element of one mini-batch, drawn with the
        key.
    :param minibatch: for data in one subsampled plate,
        ``numpyro.plate(name, N, subsample_size=B)``, with all latents outside: each step sees a
        fresh mini-batch, ``True`` or ``"shared"`` for one sequence that all particles share,
        ``"particle"`` for one each; the weights use all the data, in chunks, and stay unbiased. The
        bound does not tighten as the number of steps grows (Theorem 2 of [1]).
    :param surrogate: the remedy for large data: ``"quadratic"`` has the steps follow the exact
        prior and a quadratic expansion of the log likelihood around the mode, fitted first; the
        weights use all the data. Or what :meth:`fit_surrogate` has returned. See
        :mod:`numpyro_dais.model.surrogate`.
    :param memory: how :func:`jax.grad` goes through a chain: ``"checkpoint"`` recomputes each step,
        ``"plain"`` stores everything, ``"products"`` the results of matrix products,
        ``"reversible"`` next to nothing and runs the chain backwards, in integers; see
        :mod:`numpyro_dais.sampler.reversible.gradient` for when to choose which.
    :param anchor_every: with ``"reversible"``, store a state every so many steps; only needed if a
        warning says so.
    :param resample_at: inverse temperatures in (0, 1), increasing: after the first step at or above
        each, particles are resampled by weight, those of each island among themselves. Each
        island's estimate is unbiased, and is what ``log_weights`` then holds, with one posterior
        draw each. Which particles are chosen is not differentiated, so gradients are biased. See
        :mod:`numpyro_dais.sampler.islands`.
    :param num_islands: with ``resample_at``, into how many independent islands particles are
        divided, over which the error is.
    :param chunk_size: how many particles run at a time; as many as memory surely has room for if
        left out.
    :param progress_bar: whether to show a progress bar; of a self-tuned run, with the estimate of
        each round.

    **Example**

    >>> import jax.numpy as jnp, numpyro, numpyro.distributions as dist
    >>> from numpyro_dais import DAIS
    >>> def model():
    ...     p = numpyro.sample("p", dist.Beta(2.0, 3.0))
    ...     numpyro.sample("y", dist.Binomial(10, p), obs=7.0)
    >>> evidence = DAIS(model).log_evidence()
    >>> abs(float(evidence) - -2.527) < 0.1  # exact: log C(10, 7) B(9, 6) / B(2, 3)
    True
    """

    @explain_keywords(
        target_acceptance="chains of DAIS are not corrected, so nothing is rejected",
        adaptation="only HAIS and AIS adapt step sizes to an acceptance",
        num_leapfrog="a step of DAIS is one leapfrog step; take more steps",
    )
    def __init__(
        self,
        model: Callable | None = None,
        *,
        potential_fn: Callable | None = None,
        num_steps: int | None = None,
        num_particles: int | None = None,
        step_size: Any = None,
        damping: Any = None,
        schedule: Schedule | Any = None,
        preconditioner: Any = None,
        settings: Settings | None = None,
        target_error: float | None = None,
        budget: int | None = None,
        max_seconds: float | None = None,
        start: str | Distribution | dict[str, Distribution] = "auto",
        keep_start: bool = False,
        guide: Callable | None = None,
        guide_params: dict | None = None,
        params: dict | None = None,
        plate: str | tuple[str, ...] | None = None,
        minibatch: bool | Batches = False,
        surrogate: str | QuadraticSurrogate | None = None,
        memory: Memory = "checkpoint",
        anchor_every: int | None = None,
        resample_at: tuple[float, ...] = (),
        num_islands: int = 8,
        chunk_size: int | None = None,
        progress_bar: bool = False,
    ) -> None:
        num_particles = check_optional_count("num_particles", num_particles, 1)
        num_islands = check_count("num_islands", num_islands, 1)
        refused = {"plate": plate, "minibatch": minibatch, "surrogate": surrogate}
        resample_at = check_islands(
            resample_at, num_islands, num_steps, num_particles, memory, refused
        )
        integrand = Integrand(model, potential_fn, start, guide, guide_params, params, plate)
        is_complete = step_size is not None or settings is not None
        target_error, budget, max_seconds = check_goal(
            target_error, budget, max_seconds, is_complete
        )
        check_memory(memory, UNCORRECTED)
        batches = check_dynamics(minibatch, surrogate, memory, plate, model is not None)
        chain = resolve_chain(
            num_steps, step_size, damping, schedule, preconditioner, settings, memory
        )
        config = RunConfig(
            memory=memory,
            ratio=chain.ratio,
            anchor_every=check_anchors(anchor_every, memory),
            chunk_size=check_optional_count("chunk_size", chunk_size, 1),
            bar_title=type(self).__name__ if progress_bar else None,
            resample_at=resample_at,
            num_islands=num_islands if resample_at else 1,
        )
        super().__init__(integrand, chain, num_particles, config, batches, surrogate)
        self._goal = Goal(
            chain.given_steps,
            num_particles,
            target_error,
            budget,
            is_start_free=not (integrand.is_start_given or keep_start),
        )
        self._max_seconds = max_seconds
        if batches is not None:
            warn_of_noise("surrogate='quadratic' is the remedy")

    def _with_budget(self, budget: int) -> "DAIS":
        """The same estimator with another budget; what is known of its problems is shared."""
        other = copy(self)
        other._goal = self._goal._replace(budget=budget)
        return other

    @property
    def _has_rounds(self) -> bool:
        """True if everything is found in rounds, and not a step size alone."""
        has_plain_chains = (
            self._integrand.plate is None
            and self._batches is None
            and self._surrogate is None
            and self._config.memory != "reversible"
        )
        return self._chain.is_free and has_plain_chains and self._chain.given_steps != 0

    def _journal(
        self, checkpoint: str | os.PathLike | None, rng_key: jax.Array, problem: Problem
    ) -> Journal:
        if checkpoint is None or not self._has_rounds:
            return super()._journal(checkpoint, rng_key, problem)
        target = self._preparation.target(problem, rng_key)
        settings = {**self._goal._asdict(), "max_seconds": self._max_seconds}
        config = replace(self._config, bar_title=None)
        settings.update((field.name, getattr(config, field.name)) for field in fields(config))
        return journal_of(checkpoint, rng_key, problem, target, settings)

    def _tune(
        self,
        rng_key: jax.Array,
        problem: Problem,
        target: TracedTarget,
        is_start_free: bool = True,
        may_resample: bool = False,
        journal: Journal | None = None,
    ) -> Tuned:
        if not self._has_rounds:
            return super()._tune(rng_key, problem, target)
        journal = Journal() if journal is None else journal
        goal = self._goal._replace(is_start_free=self._goal.is_start_free and is_start_free)
        title = self._config.bar_title
        bar = None if title is None else RoundsBar(title, goal.budget)
        runner = StagedRunner(_num_rows(goal, target), bar, journal)
        most = math.inf if self._max_seconds is None else self._max_seconds
        tools = Tools(
            draw=self._draw,
            run=runner,
            num_rows=runner.num_rows,
            is_over=lambda: journal.seconds() > most,
            may_resample=may_resample and not self._config.resample_at,
            journal=journal,
            on_round=None if bar is None else bar.show,
        )
        try:
            tuned = tune_all(rng_key, target, goal, tools)
        except BaseException:
            if bar is not None:
                bar.close()
            raise
        run_fn = partial(runner, is_resampled=tuned.is_resampled, is_reported=True)
        return tuned._replace(run=run_fn, bar=bar, target_error=_target_error_of(goal))


def _target_error_of(goal: Goal) -> float | None:
    """The wanted error, unless numbers that are given leave no room for one."""
    return goal.target_error if goal.num_particles is None else None


def _num_rows(goal: Goal, target: TracedTarget) -> int:
    """The largest number of steps that the budget may be spent on."""
    affordable = max(goal.budget // _FEWEST_CHAINS, 64)
    room = max(_MAX_WORDS // target.tracing.num_dims, 64)
    return max(min(affordable, room, _MOST_STEPS), goal.num_steps or 0)
