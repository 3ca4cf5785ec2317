# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""What all estimators share: what they integrate, their settings, and runs of their chains."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
import math
from typing import Any
import warnings

import jax
from jax import random
import jax.numpy as jnp
import numpy as np

from numpyro.distributions import Distribution
from numpyro.util import find_stack_level

from numpyro_dais.bidirectional import Certificate, certificate, posterior_draws
from numpyro_dais.chain import Memory, check_memory
from numpyro_dais.data_plate import Batches, find_data_plate
from numpyro_dais.dynamics import check_dynamics, num_full_gradients, with_data_plate
from numpyro_dais.evidence import Evidence
from numpyro_dais.fixed_point import rational_damping
from numpyro_dais.guide import check_guide
from numpyro_dais.inspection import check_data
from numpyro_dais.kernel import UNCORRECTED, Transition
from numpyro_dais.laplace import check_mode
from numpyro_dais.minibatch import draw_minibatch, subsampled_sizes
from numpyro_dais.particles import Run, join_runs, run_particles, run_reverse_particles
from numpyro_dais.problem import DataPlate, Problem
from numpyro_dais.progress import ProgressBar
from numpyro_dais.refinement import NUM_ITERATIONS, NUM_PARTICLES, refine_settings
from numpyro_dais.reversible import OVERFLOW_NOTE, Reversible
from numpyro_dais.schedule import Schedule, interpolate, linear
from numpyro_dais.settings import Settings, is_concrete, make_settings
from numpyro_dais.spread import start_spread
from numpyro_dais.step_search import NUM_PILOT_PARTICLES, stable_settings
from numpyro_dais.surrogate import QuadraticSurrogate, fit_quadratic
from numpyro_dais.target import Target, make_target
from numpyro_dais.tuning import (
    DEFAULT_BUDGET,
    DEFAULT_DAMPING,
    DEFAULT_NUM_PARTICLES,
    DEFAULT_TARGET_ERROR,
    with_fit,
)
from numpyro_dais.validation import (
    check_count,
    check_goal,
    check_key,
    check_only_settings,
    check_what,
    resolve_betas,
    resolve_num_steps,
)

__all__ = ["Estimator"]

_NUM_SPREAD_DRAWS = 256
_NUM_REFINE_TESTS = 64
_MIN_CHUNK, _MAX_CHUNK = 128, 1024  # particles
_MAX_CHUNK_WORDS = 2**25


class Estimator:
    """
    The part of an estimator that does not depend on its kernel. The parameters are described in
    :class:`~numpyro_dais.estimators.DAIS`.
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
        if num_particles is not None:
            check_count("num_particles", num_particles, 1)
        check_goal(target_error, budget, step_size is not None or settings is not None)
        if chunk_size is not None:
            check_count("chunk_size", chunk_size, 1)
        check_memory(memory, self.transition)
        self.batches = check_dynamics(minibatch, surrogate, memory, plate)
        if model is None and (self.batches is not None or surrogate is not None):
            raise ValueError(
                "minibatch= and surrogate= need a model, whose likelihood they know from its prior; got "
                "potential_fn=."
            )
        if anchor_every is not None:
            check_count("anchor_every", anchor_every, 1)
            if memory != "reversible":
                raise ValueError(
                    f"anchor_every= has no meaning with memory={memory!r}; leave it out, or use "
                    "memory='reversible'."
                )
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
        self.step_size = step_size
        self.damping = DEFAULT_DAMPING if damping is None else damping
        ratio = None
        if memory == "reversible":
            given = self.damping if settings is None else settings.damping
            self.damping, ratio = rational_damping(given)
            settings = None if settings is None else settings._replace(damping=self.damping)
        self._reversible = Reversible(ratio, anchor_every=anchor_every)
        self._wanted_steps = num_steps
        chain_arguments = (step_size, damping, schedule, preconditioner, settings)
        self._is_free = all(argument is None for argument in chain_arguments)
        self.schedule = linear if schedule is None else schedule
        self.preconditioner = preconditioner
        if settings is None:
            self.num_steps = resolve_num_steps(num_steps, self.schedule)
            # A stand-in step size has the other settings checked here, not in the run.
            checked = self._settings(1.0 if step_size is None else step_size)
            self.settings = None if step_size is None else checked
        else:
            check_only_settings(settings, num_steps, step_size, damping, schedule, preconditioner)
            self.num_steps = settings.num_steps
            self.settings = settings
        check_count("num_steps", self.num_steps, self.min_steps)
        self._progress_bar = ProgressBar(type(self).__name__) if progress_bar else None
        self._jitted_run = jax.jit(self._run, static_argnames="num_particles")
        self._jitted_block = jax.jit(self._block)
        self._jitted_refine = jax.jit(self._refinement)
        self._jitted_reverse_run = jax.jit(self._reverse_run)
        self._jitted_draws = jax.jit(_start_draws)
        self._jitted_fit = jax.jit(fit_quadratic)
        self._checked: set = set()
        self._sizes: dict = {}
        self._data_plates: dict = {}

    def log_evidence(self, rng_key: jax.Array | None = None, *args: Any, **kwargs: Any) -> Evidence:
        """
        Returns the :class:`~numpyro_dais.evidence.Evidence` of the model at its arguments.

        With a step size (or ``settings``) given, this may be traced: :func:`jax.jit`,
        :func:`jax.vmap` and :func:`jax.grad` with respect to the arguments go straight through.
        Without, :meth:`tune` runs first, on part of the key; the reported run is independent of it.

        :param rng_key: a JAX random key; ``jax.random.key(0)`` if left out.
        :param args: arguments of the model.
        :param kwargs: keyword arguments of the model.
        """
        problem = self._problem(args, kwargs)
        rng_key = check_key(rng_key)
        if self.plate is not None and (sizes := self._subsampled_sizes(problem)):
            problem = draw_minibatch(rng_key, problem, sizes)
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
            self._check(problem)
        num_draws = self._num_particles(self.settings)
        draws = posterior_draws(draws_key, problem, posterior_samples, num_draws)
        evidence = self._estimate(forward_key, problem)
        settings = evidence.settings
        run = self._jitted_reverse_run(
            reverse_key, evidence.problem, settings.of_chain(), draws.positions
        )
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
        self._check(problem)
        tune_key, simulation_key = random.split(rng_key)
        settings = self.settings
        if (
            settings is None
        ):  # from the prior: a start fitted to these data is none for simulated ones
            settings = self._tune(tune_key, problem, is_start_free=False)
        return certificate(simulation_key, self, problem, settings, num_datasets)

    def _estimate(self, rng_key: jax.Array, problem: Problem) -> Evidence:
        pilot_key, run_key = random.split(rng_key)
        settings = self.settings
        if is_concrete((problem, run_key, settings)):
            self._check(problem)
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
        run = self._run_all(run_key, problem, settings, num_particles)
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

    def fit_surrogate(self, *args: Any, **kwargs: Any) -> QuadraticSurrogate:
        """
        Returns the surrogate that the steps follow with ``surrogate="quadratic"``, fitted to the model at its
        arguments. It may be given as ``surrogate=``, for other runs and under :func:`jax.jit`. Runs on the host.

        :param args: arguments of the model.
        :param kwargs: keyword arguments of the model.
        """
        problem = self._problem(args, kwargs)
        if not is_concrete(problem):
            raise ValueError(
                "fit_surrogate runs on the host and needs concrete arguments; call it outside jit."
            )
        plate = self._data_plate(problem, "surrogate=")
        return self._fit(with_data_plate(random.key(0), problem, plate, None))

    def _fit(self, problem: Problem) -> QuadraticSurrogate:
        self._check(problem)
        surrogate, mode = self._jitted_fit(problem)
        check_mode(
            mode,
            "A quadratic surrogate needs one: reparametrise the model, start near the posterior (guide=), or "
            "leave surrogate= out.",
        )
        return surrogate

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

        If only numbers of steps and particles are given, or nothing, :class:`~numpyro_dais.estimators.DAIS`
        also chooses a start, a schedule, step sizes and preconditioners; see :mod:`numpyro_dais.tuning`. Else one
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
        if not is_concrete((problem, rng_key)):
            raise ValueError(
                "tune runs on the host and needs concrete arguments; call it outside jit."
            )
        problem = self._with_dynamics(rng_key, problem)
        self._check(problem)
        tune_key, refine_key = random.split(rng_key)
        settings = self.settings
        if settings is None:
            settings = self._tune(tune_key, problem)
        if self.surrogate == "quadratic":
            num_gradients = settings.num_gradients + int(problem.surrogate.num_gradients)
            settings = settings._replace(num_gradients=num_gradients)
        return self._refine(refine_key, problem, settings) if refine else settings

    def _refine(self, rng_key: jax.Array, problem: Problem, settings: Settings) -> Settings:
        """Better settings, unless a test run says that they are not."""
        if self.transition.is_corrected or problem.plates or not settings.num_steps:
            raise NotImplementedError(
                "refine=True is for chains of DAIS with at least one step and without plate=: it differentiates "
                f"the bound of one chain; got {type(self).__name__} with {settings.num_steps} steps. Leave it out."
            )
        if not isinstance(settings.num_gradients, int):
            settings = settings._replace(num_gradients=0)
        ascent_key, test_key = random.split(rng_key)
        problem = with_fit(problem, settings.start)
        refined = self._jitted_refine(ascent_key, problem, settings.of_chain())
        keys = random.split(test_key, _NUM_REFINE_TESTS)
        runs = [self._jitted_block(keys, problem, s.of_chain()) for s in (settings, refined)]
        before, after = (np.mean(np.asarray(run.log_weights)) for run in runs)
        # A derivative through a gradient is worth two more of them.
        num_steps = 3 * NUM_ITERATIONS * NUM_PARTICLES + 2 * _NUM_REFINE_TESTS
        num_gradients = settings.num_gradients + settings.num_steps * num_steps
        if not after > before:
            return settings._replace(num_gradients=num_gradients)
        return refined._replace(
            num_gradients=num_gradients, start=settings.start, num_particles=settings.num_particles
        )

    def _refinement(self, rng_key: jax.Array, problem: Problem, settings: Settings) -> Settings:
        target = make_target(problem)

        def weights_fn(keys: jax.Array, settings: Settings) -> jax.Array:
            return run_particles(keys, target, settings, "checkpoint").log_weights

        num_dims = jax.eval_shape(target.sample_fn, rng_key).shape[-1]
        return refine_settings(rng_key, settings, num_dims, weights_fn)[0]

    def _tune(self, rng_key: jax.Array, problem: Problem, is_start_free: bool = True) -> Settings:
        """A step size for everything else as it was given."""
        if self.num_steps == 0:
            return self._settings(1.0)
        spread = self.preconditioner
        if spread is None:
            spread = start_spread(self._jitted_draws(rng_key, problem))

        num_gradients = 0

        def trial_fn(key: jax.Array, settings: Settings) -> float:
            nonlocal num_gradients
            num_gradients += num_full_gradients(
                problem, settings.num_steps * NUM_PILOT_PARTICLES, NUM_PILOT_PARTICLES
            )
            run = self._jitted_run(
                key, problem, settings.of_chain(), num_particles=NUM_PILOT_PARTICLES
            )
            return float(np.mean(np.asarray(run.log_weights)))

        make_betas = self.schedule
        if not callable(make_betas):
            make_betas = partial(
                interpolate, np.asarray(make_betas, np.float64), is_zero_first=True
            )
        damping = float(np.mean(np.asarray(self.damping)))
        tuned = stable_settings(rng_key, trial_fn, make_betas, damping, spread, self.num_steps)
        return make_settings(
            tuned.betas if callable(self.schedule) else self.schedule,
            tuned.step_size,
            self.damping,
            spread,
            num_gradients,
        )

    def _settings(self, step_size: Any) -> Settings:
        betas = resolve_betas(self.schedule, self.num_steps)
        return make_settings(betas, step_size, self.damping, self.preconditioner)

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

    def _subsampled_sizes(self, problem: Problem) -> dict[str, tuple[int, int]]:
        """The subsampled plates of a problem; looked for once for each shape of arguments."""
        signature = _signature(problem)
        if signature not in self._sizes:
            self._sizes[signature] = subsampled_sizes(problem)
        return self._sizes[signature]

    def _data_plate(self, problem: Problem, option: str) -> DataPlate | None:
        """The plate around the data; looked for once for each shape of arguments."""
        signature = _signature(problem)
        if signature not in self._data_plates:
            self._data_plates[signature] = find_data_plate(problem, option)
        return self._data_plates[signature]

    def _with_dynamics(self, rng_key: jax.Array, problem: Problem) -> Problem:
        """The problem with what the steps are to follow instead of the gradient on all the data."""
        if self.batches is None and self.surrogate is None:
            return problem
        plate = self._data_plate(problem, "surrogate=" if self.batches is None else "minibatch=")
        problem = with_data_plate(rng_key, problem, plate, self.batches)
        if self.surrogate is None:
            return problem
        if isinstance(self.surrogate, QuadraticSurrogate):
            return problem.replace(surrogate=self.surrogate)
        if not is_concrete(problem):
            raise ValueError(
                "surrogate='quadratic' is fitted on the host, which jit, vmap and grad do not allow. Fit it on "
                "concrete arguments, surrogate = DAIS(model).fit_surrogate(*args), and pass surrogate=surrogate."
            )
        return problem.replace(surrogate=self._fit(problem))

    def _check(self, problem: Problem) -> None:
        """Raises the errors of a bad problem before it is compiled; once for each shape of arguments."""
        signature = _signature(problem)
        leaves = jax.tree.leaves(problem)
        has_nan = any(np.any(np.isnan(np.asarray(leaf))) for leaf in leaves if _is_floating(leaf))
        if signature in self._checked and not has_nan:
            return
        try:
            # Abstractly, which compiles nothing, yet around the data as they are.
            jax.eval_shape(lambda: _log_densities_at_draw(problem))
        except jax.errors.ConcretizationTypeError as error:
            raise ValueError(
                "The model's Python control flow depends on the value of a latent site or of an array "
                "argument, which JAX cannot trace. Use `jnp.where`, `lax.cond` or "
                "`numpyro.contrib.control_flow.cond`; pass sizes as Python ints."
            ) from error
        self._checked.add(signature)

    def _run(
        self, rng_key: jax.Array, problem: Problem, settings: Settings, *, num_particles: int
    ) -> Run:
        """Independent particles from the start."""
        chunk_size = _chunk_size(problem) if self.chunk_size is None else self.chunk_size
        num_chunks = math.ceil(num_particles / chunk_size)
        on_step = None
        if self._progress_bar is not None and num_particles == self._num_particles(self.settings):
            on_step = self._progress_bar.make_callback(settings.num_steps, num_chunks)
        return run_particles(
            random.split(rng_key, num_particles),
            make_target(problem),
            settings,
            self.memory,
            self.transition,
            chunk_size,
            on_step,
            self._reversible,
        )

    def _run_all(
        self, rng_key: jax.Array, problem: Problem, settings: Settings, num_particles: int
    ) -> Run:
        """
        All particles. Many of them run in blocks, on the host where that is possible: blocks of one size share
        a compiled program, whatever the number of particles.
        """
        block = _chunk_size(problem)
        is_whole = num_particles <= block or self.chunk_size is not None
        if (
            is_whole
            or self._progress_bar is not None
            or not is_concrete((problem, rng_key, settings))
        ):
            return self._jitted_run(
                rng_key, problem, settings.of_chain(), num_particles=num_particles
            )
        keys = random.split(rng_key, num_particles)
        runs = [
            self._jitted_block(keys[first : first + block], problem, settings.of_chain())
            for first in range(0, num_particles, block)
        ]
        return join_runs(runs)

    def _block(self, rng_keys: jax.Array, problem: Problem, settings: Settings) -> Run:
        return run_particles(
            rng_keys,
            make_target(problem),
            settings,
            self.memory,
            self.transition,
            reversible=self._reversible,
        )

    def _reverse_run(
        self, rng_key: jax.Array, problem: Problem, settings: Settings, positions: jax.Array
    ) -> Run:
        """Independent particles from draws of the posterior back to the start."""
        target = make_target(problem)
        return run_reverse_particles(
            rng_key, target, settings, positions, self.memory, self.transition
        )


def _signature(problem: Problem) -> Any:
    """What a compiled program depends on."""
    leaves, treedef = jax.tree.flatten(problem)
    return treedef, tuple((jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves)


def _chunk_size(problem: Problem) -> int:
    """As many particles at a time as memory surely has room for."""
    leaves = jax.tree.leaves((problem.args, problem.kwargs))
    rows = [max(1, jnp.size(leaf) // max(jnp.shape(leaf)[-1:], default=1)) for leaf in leaves]
    sizes = [
        jnp.size(leaf) if jnp.ndim(leaf) < 2 else row
        for leaf, row in zip(leaves, rows, strict=True)
    ]
    return max(min(_MAX_CHUNK, _MAX_CHUNK_WORDS // max(sizes, default=1)), _MIN_CHUNK)


def _warn(evidence: Evidence) -> None:
    if is_concrete(evidence) and evidence.warnings:
        warnings.warn(" ".join(evidence.warnings), stacklevel=find_stack_level() + 2)


def _start_draws(rng_key: jax.Array, problem: Problem) -> jax.Array:
    keys = random.split(rng_key, _NUM_SPREAD_DRAWS)
    return jax.vmap(make_target(problem).sample_fn)(keys)


def _log_densities_at_draw(problem: Problem) -> Any:
    target: Target = make_target(problem)
    position = target.sample_fn(random.key(0))
    densities = target.log_densities_fn(position)
    if target.dynamics_fn is None:
        return densities
    return densities, target.dynamics_fn(random.key(0), jnp.asarray(0))(position)


def _is_floating(leaf: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
