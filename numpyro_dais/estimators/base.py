# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
The calls that all estimators share.

The work is done elsewhere: :mod:`~numpyro_dais.model.prepare` makes a problem ready,
:mod:`numpyro_dais.tuning` finds settings, :mod:`~numpyro_dais.estimators.runner` runs particles,
and :mod:`~numpyro_dais.model.posterior` has draws for those that go back.
"""

from dataclasses import replace
import math
import os
from typing import Any
import warnings

import jax
from jax import random
import numpy as np

from numpyro.infer import MCMC

from numpyro_dais._util.checks import check_count, check_key, check_on_host, user_stack_level
from numpyro_dais._util.concreteness import is_concrete
from numpyro_dais._util.journal import Journal
from numpyro_dais.estimators.arguments import ChainArguments, Integrand
from numpyro_dais.estimators.certify import certificate
from numpyro_dais.estimators.checkpoints import check_checkpoint
from numpyro_dais.estimators.runner import (
    RunConfig,
    island_size,
    num_island_particles,
    resampling_cost,
    run,
    run_reverse,
)
from numpyro_dais.model.dynamics import num_full_gradients
from numpyro_dais.model.edges import note_on_edges
from numpyro_dais.model.factors import remark_on_factors
from numpyro_dais.model.inspection import NO_DATA_NOTE, check_data
from numpyro_dais.model.modes import check_mode
from numpyro_dais.model.posterior import posterior_draws
from numpyro_dais.model.prepare import Preparation
from numpyro_dais.model.problem import Problem
from numpyro_dais.model.subsampling import Batches
from numpyro_dais.model.surrogate import QuadraticSurrogate
from numpyro_dais.model.traced import TracedTarget
from numpyro_dais.results.certificate import Certificate
from numpyro_dais.results.evidence import Evidence
from numpyro_dais.sampler.particles import Run
from numpyro_dais.sampler.reversible.gradient import OVERFLOW_NOTE
from numpyro_dais.sampler.rounds import round_of
from numpyro_dais.sampler.settings import Settings
from numpyro_dais.tuning.goal import DEFAULT_NUM_PARTICLES
from numpyro_dais.tuning.plan import ISLAND_SIZE, LOOKS_COST
from numpyro_dais.tuning.refinement import refine
from numpyro_dais.tuning.step_size import tune_step_size
from numpyro_dais.tuning.surrogate_fit import fit_quadratic
from numpyro_dais.tuning.tuner import Tuned

__all__ = ["Estimator"]


class Estimator:
    """
    The part of an estimator that does not depend on its kernel.

    :param integrand: what is integrated, and where chains start.
    :param chain: what was said about the chains.
    :param num_particles: the number of particles, or None.
    :param config: the static configuration of runs.
    :param batches: how the steps see mini-batches; None for not at all.
    :param surrogate: what the steps follow instead of the likelihood, if anything.
    """

    def __init__(
        self,
        integrand: Integrand,
        chain: ChainArguments,
        num_particles: int | None,
        config: RunConfig,
        batches: Batches | None = None,
        surrogate: str | QuadraticSurrogate | None = None,
    ) -> None:
        counts = {"num_particles": num_particles, "chunk_size": config.chunk_size}
        for name, count in counts.items():
            if count is not None:
                check_count(name, count, 1)
        self.model = integrand.model
        self.num_steps = chain.num_steps
        self.num_particles = num_particles
        self.settings = chain.settings
        self._integrand = integrand
        self._chain = chain
        self._config = config
        self._batches = batches
        self._surrogate = surrogate
        self._preparation = Preparation()

    def log_evidence(
        self,
        rng_key: jax.Array | None = None,
        *args: Any,
        checkpoint: str | os.PathLike | None = None,
        **kwargs: Any,
    ) -> Evidence:
        """
        Returns the :class:`~numpyro_dais.results.evidence.Evidence` of the model at its arguments.

        With a step size (or ``settings``) given, this may be traced: :func:`jax.jit`,
        :func:`jax.vmap` and :func:`jax.grad` with respect to the arguments go straight through.
        Without, :meth:`tune` runs first, on part of the key; the reported run is independent of it.

        :param rng_key: a JAX random key; ``jax.random.key(0)`` if left out.
        :param args: arguments of the model.
        :param checkpoint: the path of a file, of a self-tuned run: it is written when a round has
            finished and, in a long one, also between blocks of particles. The same call after an
            interruption goes on from there, and gives the same numbers as without one. A file of
            another model, data, key, settings or versions is refused.
        :param kwargs: keyword arguments of the model.
        """
        if checkpoint is not None:
            check_checkpoint(checkpoint, self.model, args)
        problem = self._problem(args, kwargs)
        rng_key = check_key(rng_key)
        problem = self._preparation.with_minibatch(rng_key, problem)
        problem = self._with_dynamics(rng_key, problem)
        journal = self._journal(checkpoint, rng_key, problem)
        evidence, _ = self._estimate(rng_key, problem, may_resample=True, journal=journal)
        _warn(evidence)
        return evidence

    def sandwich(
        self,
        rng_key: jax.Array | None = None,
        *args: Any,
        posterior_samples: MCMC | dict | jax.Array | None = None,
        num_chains: int | None = None,
        **kwargs: Any,
    ) -> Evidence:
        r"""
        Returns the evidence between two bounds, from chains in both directions.

        Beside forward chains from the start, reverse chains run from posterior draws back to it.
        Their mean log weight is an upper bound of :math:`\log p(D)` in expectation, and Bennett's
        acceptance ratio of both, the estimate, is more precise than forward chains alone. Without
        steps this is bridge sampling (for DAIS). With a step size and posterior draws given, this
        may be traced, as :meth:`log_evidence` may be.

        :param rng_key: a JAX random key; ``jax.random.key(0)`` if left out.
        :param args: arguments of the model.
        :param posterior_samples: posterior draws: an ``MCMC`` object after its run, whose chains
            say how many independent draws they are worth; or values of each latent site (of the
            argument of ``potential_fn``), along a leading axis, others being left alone. Left out,
            NUTS draws as many as there are particles.
        :param num_chains: the number of Markov chains that values as ``mcmc.get_samples()`` gives
            them are of, one after another; if left out, they are taken to be exact and independent.
            Draws of chains make the upper bound approximate, and have an error of their own.
        :param kwargs: keyword arguments of the model.

        **Example**: evidence from draws that one already has

        >>> from jax import random
        >>> import numpyro, numpyro.distributions as dist
        >>> from numpyro.infer import MCMC, NUTS
        >>> from numpyro_dais import DAIS
        >>> def model():
        ...     p = numpyro.sample("p", dist.Beta(2.0, 3.0))
        ...     numpyro.sample("y", dist.Binomial(10, p), obs=7.0)
        >>> mcmc = MCMC(NUTS(model), num_warmup=500, num_samples=1000, progress_bar=False)
        >>> mcmc.run(random.key(0))
        >>> evidence = DAIS(model, num_steps=0).sandwich(posterior_samples=mcmc)
        >>> bool(abs(evidence.log_evidence - -2.527) < 5 * evidence.standard_error)  # exact: -2.527
        True
        """
        self._refuse_resampling("sandwich")
        problem = self._problem(args, kwargs)
        rng_key = check_key(rng_key)
        forward_key, reverse_key, draws_key = random.split(rng_key, 3)
        problem = self._with_dynamics(rng_key, problem)
        target = self._preparation.target(problem, rng_key)
        num_draws = self._num_particles(self._settings(problem, target))
        draws = posterior_draws(
            draws_key, problem, target, posterior_samples, num_draws, num_chains
        )
        evidence, target = self._estimate(forward_key, problem, target)
        settings = evidence.settings
        reverse = run_reverse(
            reverse_key, target, settings.of_chain(), draws.positions, config=self._config
        )
        num_gradients = self._num_gradients(problem, settings, len(reverse.log_weights))
        evidence = replace(
            evidence,
            reverse_log_weights=reverse.log_weights,
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
        Returns bounds on data that the model itself has drawn (bidirectional Monte Carlo, Grosse et
        al. 2015): latents and data are simulated together, so the latents are an exact posterior
        draw, one per data set. The gap of the bounds says how good these settings are on data of
        this shape.

        :param rng_key: a JAX random key; ``jax.random.key(0)`` if left out.
        :param args: arguments of the model; the values of its observed sites only give their shape.
        :param num_datasets: the number of simulated data sets, over which the errors are.
        :param kwargs: keyword arguments of the model.
        """
        self._refuse_resampling("certify")
        check_count("num_datasets", num_datasets, 2)
        if self._batches is not None or self._surrogate is not None:
            raise NotImplementedError(
                "certify simulates all the data, many times; got minibatch= or surrogate=, which are for data "
                "too large for that. Certify settings on a part of the data, or use sandwich."
            )
        problem = self._problem(args, kwargs)
        rng_key = check_key(rng_key)
        target = self._preparation.target(problem, rng_key)
        tune_key, simulation_key = random.split(rng_key)
        settings = self._settings(problem, target)
        if settings is None:  # a start fitted to these data is none for simulated ones
            tuned = self._tune(tune_key, problem, target, is_start_free=False)
            settings = _settings_of(tuned)
        num_particles = self._num_particles(settings)
        return certificate(
            simulation_key,
            problem,
            target,
            settings,
            self._config,
            num_particles,
            num_datasets,
        )

    def tune(
        self,
        rng_key: jax.Array | None = None,
        *args: Any,
        refine: bool = False,
        **kwargs: Any,
    ) -> Settings:
        """
        Returns complete settings, those given to the constructor among them. Runs on the host,
        around compiled pieces.

        If only numbers of steps and particles are given, or nothing,
        :class:`~numpyro_dais.estimators.dais.DAIS` also chooses a start, a schedule, step sizes and
        preconditioners; see :mod:`numpyro_dais.tuning.tuner`. Else one step size is found that is
        stable in short trials, in units of the start's spread.

        :param rng_key: a JAX random key; ``jax.random.key(0)`` if left out.
        :param args: arguments of the model.
        :param refine: whether schedule, step sizes and preconditioner are then improved by gradient
            ascent on the bound. It pays where the same settings serve many runs.
        :param kwargs: keyword arguments of the model.
        """
        if self.settings is not None and self._has_fixed_settings and not refine:
            return self.settings
        problem = self._problem(args, kwargs)
        rng_key = check_key(rng_key)
        check_on_host("tune", (problem, rng_key))
        problem = self._with_dynamics(rng_key, problem)
        target = self._preparation.target(problem, rng_key)
        tune_key, refine_key = random.split(rng_key)
        settings = self._settings(problem, target)
        if settings is None:
            settings = _settings_of(self._tune(tune_key, problem, target))
        if self._surrogate == "quadratic":
            num_gradients = settings.num_gradients + int(problem.surrogate.num_gradients)
            settings = settings._replace(num_gradients=num_gradients)
        if not refine:
            return settings
        return self._refine(refine_key, target, settings)

    def fit_surrogate(self, *args: Any, **kwargs: Any) -> QuadraticSurrogate:
        """
        Returns the surrogate that the steps follow with ``surrogate="quadratic"``, fitted to the
        model at its arguments. It may be given as ``surrogate=``, for other runs and under
        :func:`jax.jit`. Runs on the host.

        :param args: arguments of the model.
        :param kwargs: keyword arguments of the model.
        """
        problem = self._problem(args, kwargs)
        check_on_host("fit_surrogate", problem)
        return self._fit_surrogate(self._preparation.with_data_plate(random.key(0), problem, None))

    # Whether settings that are given are the same for all arguments of the model.
    _has_fixed_settings = True

    @property
    def _method(self) -> str:
        """The name of the method, for people."""
        return type(self).__name__

    def _problem(self, args: tuple, kwargs: dict) -> Problem:
        """The problem at arguments of the model."""
        return self._integrand.problem(args, kwargs)

    def _settings(self, problem: Problem, target: TracedTarget) -> Settings | None:
        """The settings of the chains at arguments of the model, or None if they are not known."""
        return self.settings

    @property
    def _trial_config(self) -> RunConfig:
        """
        Of the runs that find settings: no bar, and no resampling, of which tuning knows nothing.
        """
        return replace(self._config, bar_title=None, resample_at=())

    def _with_dynamics(self, rng_key: jax.Array, problem: Problem) -> Problem:
        """The problem with what the steps are to follow instead of the gradient on all the data."""
        if self._batches is None and self._surrogate is None:
            return problem
        problem = self._preparation.with_data_plate(rng_key, problem, self._batches)
        surrogate = self._surrogate
        if isinstance(surrogate, str):
            surrogate = self._fit_surrogate(problem)
        return problem if surrogate is None else problem.replace(surrogate=surrogate)

    def _fit_surrogate(self, problem: Problem) -> QuadraticSurrogate:
        if not is_concrete(problem):
            raise ValueError(
                "surrogate='quadratic' is fitted on the host, which jit, vmap and grad do not allow. Fit it on "
                "concrete arguments, surrogate = DAIS(model).fit_surrogate(*args), and pass surrogate=surrogate."
            )
        # A fixed key: the surrogate depends on the data only.
        rng_key = random.key(0)
        target = self._preparation.target(problem, rng_key)
        surrogate, mode = fit_quadratic(rng_key, problem, target)
        check_mode(
            mode,
            "A quadratic surrogate needs one: reparametrise the model, start near the posterior (guide=), or "
            "leave surrogate= out.",
        )
        return surrogate

    def _journal(
        self, checkpoint: str | os.PathLike | None, rng_key: jax.Array, problem: Problem
    ) -> Journal:
        """The journal of a call, which only a run in rounds has a use for."""
        if checkpoint is not None:
            raise NotImplementedError(
                "checkpoint= keeps the rounds of a self-tuned run, DAIS(model).log_evidence(..., checkpoint=...), and "
                f"this {self._method} has none: it is another estimator, or has settings, a plate, mini-batches, a "
                "surrogate, memory='reversible' or no steps. Leave checkpoint= out."
            )
        return Journal()

    def _estimate(
        self,
        rng_key: jax.Array,
        problem: Problem,
        target: TracedTarget | None = None,
        may_resample: bool = False,
        journal: Journal | None = None,
    ) -> tuple[Evidence, TracedTarget]:
        journal = Journal() if journal is None else journal
        tune_key, run_key = random.split(rng_key)
        if self.settings is None and not is_concrete((problem, run_key)):
            raise ValueError(
                "log_evidence needs complete settings under jit, vmap or grad, since a step size is "
                f"found on the host. Pass step_size=, or settings={type(self).__name__}(...).tune(rng_key, "
                "*args) from a call of `tune` on concrete arguments."
            )
        if target is None:
            target = self._preparation.target(problem, rng_key)
        settings = self._settings(problem, target)
        if settings is not None:
            tuned = Tuned(settings)
        else:
            tuned = self._tune(
                tune_key, problem, target, may_resample=may_resample, journal=journal
            )
        try:
            return self._report(run_key, problem, target, tuned, journal)
        except KeyboardInterrupt:
            if tuned.early is None:
                raise
        finally:
            if tuned.bar is not None:
                tuned.bar.close()
        early = tuned.early()._replace(run=tuned.run, target_error=tuned.target_error)
        return self._report(run_key, problem, target, early, journal)

    def _report(
        self,
        run_key: jax.Array,
        problem: Problem,
        target: TracedTarget,
        tuned: Tuned,
        journal: Journal,
    ) -> tuple[Evidence, TracedTarget]:
        """The evidence from the last round."""
        settings, config = tuned.settings, self._config
        target = target.with_mixture(settings.start)
        num_particles = self._num_particles(settings)
        if tuned.finished is not None:
            num_particles = len(tuned.finished.log_weights)
        particles = tuned.finished
        size = island_size(config, num_particles) if config.has_islands(settings) else 1
        if tuned.is_resampled:
            size = ISLAND_SIZE
        num_gradients = settings.num_gradients
        if particles is None:
            particles = self._run(run_key, target, tuned, num_particles, journal)
            journal.write()
            num_gradients += self._num_gradients(problem, settings, num_particles)
            num_gradients += num_particles * LOOKS_COST if tuned.is_resampled else 0
        has_model = self.model is not None and is_concrete((particles, problem))
        if has_model and not np.any(np.isfinite(np.asarray(particles.log_weights))):
            check_data(problem)
        structure = target.tracing.structure
        has_data = structure is None or structure.has_data
        notes: tuple[str, ...] = () if has_data else (NO_DATA_NOTE,)
        notes += (tuned.note,) if tuned.note else ()
        free = () if structure is None else structure.free_factors
        history = tuned.history
        if tuned.target_error is not None and tuned.finished is None:
            counts = settings.num_steps, num_gradients, journal.seconds()
            history += (round_of(particles.log_weights, *counts, num_particles=num_particles),)
        if config.memory == "reversible" and is_concrete(particles.log_weights):
            is_good = np.isfinite(np.asarray(particles.log_weights)) | particles.is_zero
            notes += () if np.all(is_good) else (OVERFLOW_NOTE,)
        evidence = Evidence(
            log_weights=particles.log_weights,
            positions=particles.positions,
            is_start_finite=particles.is_start_finite,
            settings=settings._replace(step_size=particles.step_size),
            problem=problem,
            method=self._method,
            num_gradients=num_gradients
            + (0 if problem.surrogate is None else problem.surrogate.num_gradients),
            acceptance=particles.acceptance,
            notes=notes,
            island_size=size,
            is_zero=particles.is_zero,
            history=history,
            target_error=tuned.target_error,
            remarks=(remark_on_factors(free),) if free else (),
            findings=tuned.findings,
        )
        if structure is not None and structure.rounded and is_concrete(particles):
            draws = np.asarray(particles.positions), np.asarray(particles.log_weights)
            error = float(np.min(evidence.standard_error))
            if note := note_on_edges(structure, *draws, error):
                evidence = replace(evidence, notes=(*notes, note))
        return evidence, target

    def _run(
        self,
        rng_key: jax.Array,
        target: TracedTarget,
        tuned: Tuned,
        num_particles: int,
        journal: Journal,
    ) -> Run:
        """The particles that are reported."""
        settings, config = tuned.settings, self._config
        if tuned.run is None or not settings.num_steps or config.has_islands(settings):

            def run_all() -> Run:
                return run(rng_key, target, settings, num_particles, config, has_bar=True)

            # An early end is no stage of the run, which may go on from the one before.
            return journal.stage("the last round", run_all) if tuned.is_planned else run_all()
        return tuned.run(rng_key, target, settings, num_particles)[0]

    def _num_particles(self, settings: Settings | None) -> int:
        """As many as were asked for, or as the settings are for."""
        number = self.num_particles
        if number is None and (settings is None or settings.num_particles is None):
            number = DEFAULT_NUM_PARTICLES
        is_planned = number is None
        if number is None:
            assert settings is not None
            if not is_concrete(settings.num_particles):
                raise ValueError(
                    "The number of particles sets the shape of the result, and these settings came through jit as "
                    "an argument, which hides theirs. Pass num_particles=, or close over the settings."
                )
            number = int(settings.num_particles)  # type: ignore[arg-type]
        if self._config.has_islands(settings):
            return num_island_particles(self._config, settings, number, is_planned)
        return number

    def _num_gradients(self, problem: Problem, settings: Settings, num_chains: int) -> int:
        num_gradients = num_chains * settings.num_steps * self._config.transition.num_leapfrog
        if not num_gradients:  # a density is half of a gradient
            num_gradients = math.ceil(num_chains / 2)
        number = num_full_gradients(problem, num_gradients, num_chains)
        if self._config.has_islands(settings):
            number += math.ceil(number * resampling_cost(self._config, settings))
        return number

    def _tune(
        self,
        rng_key: jax.Array,
        problem: Problem,
        target: TracedTarget,
        is_start_free: bool = True,
        may_resample: bool = False,
        journal: Journal | None = None,
    ) -> Tuned:
        """
        A step size for everything else as it was given; or, where all is free, whatever serves the
        goal: another start, and resampling, if they may.
        """

        def cost_fn(settings: Settings, num_particles: int) -> int:
            number = num_particles * settings.num_steps
            return num_full_gradients(problem, number, num_particles)

        given = self._chain.given
        return Tuned(tune_step_size(rng_key, target, given, self._run_trial, cost_fn))

    def _refine(self, rng_key: jax.Array, target: TracedTarget, settings: Settings) -> Settings:
        if (
            self._config.transition.is_corrected
            or self._integrand.plate is not None
            or not settings.num_steps
        ):
            raise NotImplementedError(
                "refine=True is for chains of DAIS with at least one step and without plate=: it differentiates "
                f"the bound of one chain; got {type(self).__name__} with {settings.num_steps} steps. Leave it out."
            )
        return refine(rng_key, target.with_mixture(settings.start), settings, self._run_trial)

    def _run_trial(
        self, rng_key: jax.Array, target: TracedTarget, settings: Settings, num_particles: int
    ) -> np.ndarray:
        """Log weights of a run that finds settings."""
        particles = self._draw(rng_key, target, settings, num_particles)
        return np.asarray(particles.log_weights, np.float64)

    def _draw(
        self, rng_key: jax.Array, target: TracedTarget, settings: Settings, num_particles: int
    ) -> Run:
        """A run that finds settings."""
        return run(rng_key, target, settings, num_particles, self._trial_config)

    def _refuse_resampling(self, name: str) -> None:
        if self._config.resample_at:
            raise NotImplementedError(
                f"{name} runs chains in both directions, and there is no reverse of a resampling; got resample_at="
                f"{self._config.resample_at}. Leave it out."
            )


def _settings_of(tuned: Tuned) -> Settings:
    """The settings alone: no round follows, so the progress bar has come to its end."""
    if tuned.bar is not None:
        tuned.bar.close()
    return tuned.settings


def _warn(evidence: Evidence) -> None:
    if is_concrete(evidence) and evidence.warnings:
        warnings.warn(" ".join(evidence.warnings), stacklevel=user_stack_level())
