# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
What all estimators share: what they were given, and what they can be asked for.

The work is done elsewhere: :mod:`~numpyro_dais.model.prepare` makes a problem ready,
:mod:`~numpyro_dais.tuning.step_size`, :mod:`~numpyro_dais.tuning.tuner` and :mod:`~numpyro_dais.tuning.refinement` find settings,
:mod:`~numpyro_dais.estimators.runner` runs particles, and :mod:`~numpyro_dais.model.posterior` has draws for those that go back.
"""

from collections.abc import Callable
from dataclasses import replace
import math
from typing import Any
import warnings

import jax
from jax import random
import numpy as np

from numpyro.distributions import Distribution
from numpyro.util import find_stack_level

from numpyro_dais._util.checks import check_count, check_key, check_on_host
from numpyro_dais._util.concreteness import is_concrete
from numpyro_dais._util.progress import ProgressBar
from numpyro_dais.estimators.arguments import check_anchors, check_goal, check_what, resolve_chain
from numpyro_dais.estimators.certify import certificate
from numpyro_dais.estimators.runner import Runner, StepSizeRule
from numpyro_dais.model.dynamics import check_dynamics, num_full_gradients
from numpyro_dais.model.guide import check_guide
from numpyro_dais.model.inspection import check_data
from numpyro_dais.model.posterior import posterior_draws
from numpyro_dais.model.prepare import Preparation
from numpyro_dais.model.problem import Problem
from numpyro_dais.model.subsampling import Batches
from numpyro_dais.model.surrogate import QuadraticSurrogate
from numpyro_dais.results.certificate import Certificate
from numpyro_dais.results.evidence import Evidence
from numpyro_dais.sampler.kernel import UNCORRECTED, Transition
from numpyro_dais.sampler.loop import Memory, check_memory
from numpyro_dais.sampler.particles import Run
from numpyro_dais.sampler.reversible.gradient import OVERFLOW_NOTE, Reversible
from numpyro_dais.sampler.schedule import Schedule
from numpyro_dais.sampler.settings import Settings
from numpyro_dais.tuning.fitting import with_fit
from numpyro_dais.tuning.goal import DEFAULT_BUDGET, DEFAULT_NUM_PARTICLES, DEFAULT_TARGET_ERROR
from numpyro_dais.tuning.refinement import Refiner, check_refinable
from numpyro_dais.tuning.step_size import tune_step_size

__all__ = ["Estimator"]


class Estimator:
    """
    The part of an estimator that does not depend on its kernel. The parameters are described in
    :class:`~numpyro_dais.estimators.dais.DAIS`.
    """

    transition: Transition = UNCORRECTED
    min_steps = 0

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
        chunk_size: int | None = None,
        progress_bar: bool = False,
    ) -> None:
        check_what(model, potential_fn, start, guide, plate)
        check_guide(guide, guide_params)
        for name, count in (("num_particles", num_particles), ("chunk_size", chunk_size)):
            if count is not None:
                check_count(name, count, 1)
        check_goal(target_error, budget, step_size is not None or settings is not None)
        check_memory(memory, self.transition)
        check_anchors(anchor_every, memory)
        self.batches = check_dynamics(minibatch, surrogate, memory, plate, model is not None)
        self.model = model
        self.potential_fn = potential_fn
        self.num_particles = num_particles
        self.target_error = DEFAULT_TARGET_ERROR if target_error is None else target_error
        self.budget = DEFAULT_BUDGET if budget is None else budget
        self.start = start
        self.keep_start = keep_start
        self.guide = guide
        self.guide_params = guide_params
        self.params = params
        self.plate = plate
        self.surrogate = surrogate
        self.memory: Memory = memory
        self.chunk_size = chunk_size
        self._chain = resolve_chain(
            num_steps, step_size, damping, schedule, preconditioner, settings, memory
        )
        self.num_steps = self._chain.num_steps
        check_count("num_steps", self.num_steps, self.min_steps)
        self.settings = self._chain.settings
        self._preparation = Preparation()
        self._runner = Runner(
            self.transition,
            memory,
            Reversible(self._chain.ratio, anchor_every=anchor_every),
            chunk_size,
            ProgressBar(type(self).__name__) if progress_bar else None,
            self._step_size_rule(),
        )
        self._refiner = Refiner(self._runner)

    def log_evidence(self, rng_key: jax.Array | None = None, *args: Any, **kwargs: Any) -> Evidence:
        """
        Returns the :class:`~numpyro_dais.results.evidence.Evidence` of the model at its arguments.

        With a step size (or ``settings``) given, this may be traced: :func:`jax.jit`,
        :func:`jax.vmap` and :func:`jax.grad` with respect to the arguments go straight through.
        Without, :meth:`tune` runs first, on part of the key; the reported run is independent of it.

        :param rng_key: a JAX random key; ``jax.random.key(0)`` if left out.
        :param args: arguments of the model.
        :param kwargs: keyword arguments of the model.
        """
        problem = self._problem(args, kwargs)
        rng_key = check_key(rng_key)
        problem = self._preparation.with_minibatch(rng_key, problem)
        problem = self._with_dynamics(rng_key, problem)
        evidence = self._estimate(rng_key, problem)
        _warn(evidence)
        return evidence

    def sandwich(
        self,
        rng_key: jax.Array | None = None,
        *args: Any,
        posterior_samples: dict | jax.Array | None = None,
        **kwargs: Any,
    ) -> Evidence:
        r"""
        Returns the evidence between two bounds, from chains in both directions.

        Beside forward chains from the start, reverse chains run from posterior draws back to it. Their mean
        log weight is an upper bound of :math:`\log p(D)` in expectation, and Bennett's acceptance ratio
        of both, the estimate, is more precise than forward chains alone. Without steps this is bridge
        sampling (for DAIS). With a step size and posterior draws given, this may be traced, as
        :meth:`log_evidence` may be.

        :param rng_key: a JAX random key; ``jax.random.key(0)`` if left out.
        :param args: arguments of the model.
        :param posterior_samples: exact and independent posterior draws: values of each latent site (of the
            argument of ``potential_fn``), along a leading axis. Left out, NUTS draws as many as there are
            particles; the upper bound is then approximate, and its error that of correlated draws.
        :param kwargs: keyword arguments of the model.
        """
        problem = self._problem(args, kwargs)
        rng_key = check_key(rng_key)
        forward_key, reverse_key, draws_key = random.split(rng_key, 3)
        problem = self._with_dynamics(rng_key, problem)
        if is_concrete(problem):
            self._preparation.check(problem)
        num_draws = self._num_particles(self.settings)
        draws = posterior_draws(draws_key, problem, posterior_samples, num_draws)
        evidence = self._estimate(forward_key, problem)
        settings = evidence.settings
        run = self._runner.run_reverse(reverse_key, evidence.problem, settings, draws.positions)
        num_gradients = self._num_gradients(problem, settings, len(run.log_weights))
        evidence = replace(
            evidence,
            reverse_log_weights=run.log_weights,
            num_chains=draws.num_chains,
            notes=evidence.notes + draws.notes,
            num_gradients=evidence.num_gradients + num_gradients + draws.num_gradients,
        )
        _warn(evidence)
        return evidence

    def certify(
        self, rng_key: jax.Array | None = None, *args: Any, num_datasets: int = 20, **kwargs: Any
    ) -> Certificate:
        """
        Returns bounds on data that the model itself has drawn (bidirectional Monte Carlo, Grosse et al.
        2015): latents and data are simulated together, so the latents are an exact posterior draw, one per
        data set. The gap of the bounds says how good these settings are on data of this shape.

        :param rng_key: a JAX random key; ``jax.random.key(0)`` if left out.
        :param args: arguments of the model; the values of its observed sites only give their shape.
        :param num_datasets: the number of simulated data sets, over which the errors are.
        :param kwargs: keyword arguments of the model.
        """
        check_count("num_datasets", num_datasets, 2)
        if self.batches is not None or self.surrogate is not None:
            raise NotImplementedError(
                "certify simulates all the data, many times; got minibatch= or surrogate=, which are for data "
                "too large for that. Certify settings on a part of the data, or use sandwich."
            )
        problem = self._problem(args, kwargs)
        rng_key = check_key(rng_key)
        self._preparation.check(problem)
        tune_key, simulation_key = random.split(rng_key)
        settings = self.settings
        if settings is None:  # a start fitted to these data is none for simulated ones
            settings = self._tune(tune_key, problem, is_start_free=False)
        num_particles = self._num_particles(settings)
        return certificate(
            simulation_key, problem, settings, self._runner, num_particles, num_datasets
        )

    def tune(
        self,
        rng_key: jax.Array | None = None,
        *args: Any,
        refine: bool = False,
        **kwargs: Any,
    ) -> Settings:
        """
        Returns complete settings, those given to the constructor among them. Runs on the host, around
        compiled pieces.

        If only numbers of steps and particles are given, or nothing, :class:`~numpyro_dais.estimators.dais.DAIS`
        also chooses a start, a schedule, step sizes and preconditioners; see :mod:`numpyro_dais.tuning.tuner`. Else one
        step size is found that is stable in short trials, in units of the start's spread.

        :param rng_key: a JAX random key; ``jax.random.key(0)`` if left out.
        :param args: arguments of the model.
        :param refine: whether schedule, step sizes and preconditioner are then improved by gradient ascent on
            the bound. It pays where the same settings serve many runs.
        :param kwargs: keyword arguments of the model.
        """
        if self.settings is not None and not refine:
            return self.settings
        problem = self._problem(args, kwargs)
        rng_key = check_key(rng_key)
        check_on_host("tune", (problem, rng_key))
        problem = self._with_dynamics(rng_key, problem)
        self._preparation.check(problem)
        tune_key, refine_key = random.split(rng_key)
        settings = self.settings
        if settings is None:
            settings = self._tune(tune_key, problem)
        if self.surrogate == "quadratic":
            num_gradients = settings.num_gradients + int(problem.surrogate.num_gradients)
            settings = settings._replace(num_gradients=num_gradients)
        if not refine:
            return settings
        check_refinable(type(self).__name__, self.transition, problem, settings)
        return self._refiner.refine(refine_key, with_fit(problem, settings.start), settings)

    def fit_surrogate(self, *args: Any, **kwargs: Any) -> QuadraticSurrogate:
        """
        Returns the surrogate that the steps follow with ``surrogate="quadratic"``, fitted to the model at its
        arguments. It may be given as ``surrogate=``, for other runs and under :func:`jax.jit`. Runs on the host.

        :param args: arguments of the model.
        :param kwargs: keyword arguments of the model.
        """
        problem = self._problem(args, kwargs)
        check_on_host("fit_surrogate", problem)
        return self._preparation.fit_surrogate(problem)

    def _problem(self, args: tuple, kwargs: dict) -> Problem:
        return Problem(
            self.model,
            potential_fn=self.potential_fn,
            start="prior" if isinstance(self.start, str) else self.start,
            guide=self.guide,
            guide_params=self.guide_params,
            params=self.params,
            plate=self.plate,
            args=args,
            kwargs=kwargs,
        )

    def _with_dynamics(self, rng_key: jax.Array, problem: Problem) -> Problem:
        """The problem with what the steps are to follow instead of the gradient on all the data."""
        return self._preparation.with_dynamics(rng_key, problem, self.batches, self.surrogate)

    def _estimate(self, rng_key: jax.Array, problem: Problem) -> Evidence:
        pilot_key, run_key = random.split(rng_key)
        settings = self.settings
        if is_concrete((problem, run_key, settings)):
            self._preparation.check(problem)
        elif settings is None:
            raise ValueError(
                "log_evidence needs complete settings under jit, vmap or grad, since a step size is "
                f"found on the host. Pass step_size=, or settings={type(self).__name__}(...).tune(rng_key, "
                "*args) from a call of `tune` on concrete arguments."
            )
        if settings is None:
            settings = self._tune(pilot_key, problem)
        problem = with_fit(problem, settings.start)
        num_particles = self._num_particles(settings)
        run = self._run(run_key, problem, settings, num_particles)
        has_model = self.model is not None and is_concrete((run, problem))
        if has_model and not np.any(np.isfinite(np.asarray(run.log_weights))):
            check_data(problem)
        notes: tuple[str, ...] = ()
        if self.memory == "reversible" and is_concrete(run.log_weights):
            notes = () if np.all(np.isfinite(np.asarray(run.log_weights))) else (OVERFLOW_NOTE,)
        return Evidence(
            log_weights=run.log_weights,
            positions=run.positions,
            is_start_finite=run.is_start_finite,
            settings=settings._replace(step_size=run.step_size),
            problem=problem,
            method=type(self).__name__,
            num_gradients=self._num_gradients(problem, settings, num_particles)
            + settings.num_gradients
            + (0 if problem.surrogate is None else problem.surrogate.num_gradients),
            acceptance=run.acceptance,
            notes=notes,
        )

    def _num_particles(self, settings: Settings | None) -> int:
        """As many as were asked for, or as the settings are for."""
        if self.num_particles is not None:
            return self.num_particles
        if settings is None or settings.num_particles is None:
            return DEFAULT_NUM_PARTICLES
        if not is_concrete(settings.num_particles):
            raise ValueError(
                "The number of particles sets the shape of the result, and these settings came through jit as "
                "an argument, which hides theirs. Pass num_particles=, or close over the settings."
            )
        return int(settings.num_particles)

    def _num_gradients(self, problem: Problem, settings: Settings, num_chains: int) -> int:
        num_gradients = num_chains * settings.num_steps * self.transition.num_leapfrog
        if not num_gradients:  # a density is half of a gradient
            num_gradients = math.ceil(num_chains / 2)
        return num_full_gradients(problem, num_gradients, num_chains)

    def _tune(self, rng_key: jax.Array, problem: Problem, is_start_free: bool = True) -> Settings:
        """A step size for everything else as it was given."""
        return tune_step_size(rng_key, problem, self._chain, self._runner)

    def _step_size_rule(self) -> StepSizeRule | None:
        """What adapts the step size in the reported run itself, if anything does."""
        return None

    def _run(
        self, rng_key: jax.Array, problem: Problem, settings: Settings, num_particles: int
    ) -> Run:
        """The particles that are reported."""
        return self._runner.run(rng_key, problem, settings, num_particles, has_bar=True)


def _warn(evidence: Evidence) -> None:
    if is_concrete(evidence) and evidence.warnings:
        warnings.warn(" ".join(evidence.warnings), stacklevel=find_stack_level() + 2)
