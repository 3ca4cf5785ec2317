# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Estimators of the evidence."""

from collections.abc import Callable
from functools import partial
import math
from typing import Any
import warnings

import jax
from jax import lax, random
import jax.numpy as jnp
import numpy as np

from numpyro.distributions import Distribution, constraints
from numpyro.util import find_stack_level, is_prng_key

from numpyro_dais.chain import MEMORY_MODES, Memory, run_chain
from numpyro_dais.evidence import Evidence
from numpyro_dais.problem import Problem
from numpyro_dais.progress import ProgressBar
from numpyro_dais.schedule import Schedule, linear
from numpyro_dais.settings import Settings, is_concrete, make_settings
from numpyro_dais.start import check_guide
from numpyro_dais.target import Target, make_target
from numpyro_dais.tuning import (
    DEFAULT_DAMPING,
    NUM_PILOT_PARTICLES,
    stable_settings,
    start_spread,
)

__all__ = ["DAIS"]

_DEFAULT_NUM_STEPS = 256
_NUM_SPREAD_DRAWS = 256


class DAIS:
    r"""
    Differentiable annealed importance sampling: the evidence of a NumPyro model.

    Particles start at exact draws of a tractable density :math:`q_0`, the prior or a fitted guide, and
    are carried to :math:`p(D, u)` along :math:`f_\beta = q_0^{1-\beta} p(D, \cdot)^\beta` by leapfrog steps
    with partial momentum refreshment, without Metropolis corrections. Each particle's weight is
    unbiased for :math:`p(D)`, and a differentiable function of everything that goes into it.

    The estimate comes with an error bar, but the error bar itself comes from the weights: read the
    warnings. Gradients of a particle whose density was not finite are NaN.

    **References**

    1. *Differentiable Annealed Importance Sampling and the Perils of Gradient Noise*,
       Guodong Zhang, Kyle Hsu, Jianing Li, Chelsea Finn, Roger Grosse (NeurIPS 2021)
    2. *MCMC Variational Inference via Uncorrected Hamiltonian Annealing*,
       Tomas Geffner, Justin Domke (NeurIPS 2021)

    :param model: a NumPyro model. Discrete latent sites marked for enumeration are summed out.
    :param potential_fn: instead of a model, minus the log of any density over an array or a dict of
        arrays, known up to a constant; the constant is what is estimated. Needs ``start``.
    :param num_steps: the number of steps :math:`K`, one gradient each; 256 unless ``schedule`` or
        ``settings`` says otherwise. With 0 this is importance sampling.
    :param num_particles: the number of particles :math:`S`.
    :param step_size: :math:`\eta`, a number or one per step. Left out, :meth:`tune` finds it.
    :param damping: :math:`\gamma` in [0, 1), a number or one per step; 0 refreshes the momentum fully.
    :param schedule: a function of the number of steps (:mod:`numpyro_dais.schedule`), or the inverse
        temperatures themselves, increasing and ending in 1.
    :param preconditioner: :math:`L` with :math:`M^{-1} = L L^\top`: a diagonal ``[num_dims]`` or a
        lower triangular ``[num_dims, num_dims]``, with a leading axis of length :math:`K` to change it
        along the chain. Unconstrained values are in alphabetical order of the sites.
    :param settings: all of the above at once, as :meth:`tune` returns them.
    :param start: ``"prior"``; a dict with a distribution over the values of each latent site; or one
        distribution, over the only latent site or else over all unconstrained values as a vector.
    :param guide: start at a fitted guide instead.
    :param guide_params: the guide's parameters, ``svi_result.params``.
    :param params: values of the model's ``param`` (and ``mutable``) sites.
    :param plate: the name of a plate that holds every site: gives one evidence per element.
    :param memory: how :func:`jax.grad` goes through a chain: ``"checkpoint"`` recomputes each step,
        ``"plain"`` stores everything, a little faster with far more memory.
    :param chunk_size: how many particles run at a time; all if left out.
    :param progress_bar: whether to show a progress bar.

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

    def __init__(
        self,
        model: Callable | None = None,
        *,
        potential_fn: Callable | None = None,
        num_steps: int | None = None,
        num_particles: int = 128,
        step_size: Any = None,
        damping: Any = None,
        schedule: Schedule | Any = None,
        preconditioner: Any = None,
        settings: Settings | None = None,
        start: str | Distribution | dict[str, Distribution] = "prior",
        guide: Callable | None = None,
        guide_params: dict | None = None,
        params: dict | None = None,
        plate: str | None = None,
        memory: Memory = "checkpoint",
        chunk_size: int | None = None,
        progress_bar: bool = False,
    ) -> None:
        _check_what(model, potential_fn, start, guide, plate)
        check_guide(guide, guide_params)
        _check_count("num_particles", num_particles, 1)
        if chunk_size is not None:
            _check_count("chunk_size", chunk_size, 1)
        if memory not in MEMORY_MODES:
            raise ValueError(f"memory must be one of {list(MEMORY_MODES)}; got {memory!r}.")
        self.model = model
        self.potential_fn = potential_fn
        self.num_particles = num_particles
        self.start = start
        self.guide = guide
        self.guide_params = guide_params
        self.params = params
        self.plate = plate
        self.memory: Memory = memory
        self.chunk_size = chunk_size
        self.step_size = step_size
        self.damping = DEFAULT_DAMPING if damping is None else damping
        self.schedule = linear if schedule is None else schedule
        self.preconditioner = preconditioner
        if settings is None:
            self.num_steps = _resolve_num_steps(num_steps, self.schedule)
            # A stand-in step size has the other settings checked here, not in the run.
            checked = self._settings(1.0 if step_size is None else step_size)
            self.settings = None if step_size is None else checked
        else:
            _check_only_settings(settings, num_steps, step_size, damping, schedule, preconditioner)
            self.num_steps = settings.num_steps
            self.settings = settings
        self._progress_bar = ProgressBar(type(self).__name__) if progress_bar else None
        self._jitted_run = jax.jit(self._run, static_argnames="num_particles")
        self._jitted_draws = jax.jit(_start_draws)
        self._checked: set = set()

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
        pilot_key, run_key = random.split(_check_key(rng_key))
        settings = self.settings
        is_traced = not is_concrete((problem, run_key, settings))
        if not is_traced:
            self._check(problem)
        elif settings is None:
            raise ValueError(
                "log_evidence needs complete settings under jit, vmap or grad, since a step size is "
                f"found on the host. Pass step_size=, or settings={type(self).__name__}(...).tune(rng_key, "
                "*args) from a call of `tune` on concrete arguments."
            )
        if settings is None:
            settings = self._tune(pilot_key, problem)
        log_weights, positions, is_start_finite = self._jitted_run(
            run_key, problem, settings, num_particles=self.num_particles
        )
        evidence = Evidence(
            log_weights=log_weights,
            positions=positions,
            is_start_finite=is_start_finite,
            settings=settings,
            problem=problem,
            method=type(self).__name__,
            num_gradients=settings.num_steps * self.num_particles + settings.num_gradients,
        )
        if is_concrete(evidence) and evidence.warnings:
            warnings.warn(" ".join(evidence.warnings), stacklevel=find_stack_level() + 1)
        return evidence

    def tune(self, rng_key: jax.Array | None = None, *args: Any, **kwargs: Any) -> Settings:
        """
        Returns complete settings: those given to the constructor, and for a step size left out one
        that is stable in short trials, in units of the start's spread (which then is the
        preconditioner, unless one was given). Runs on the host, around compiled pieces.

        :param rng_key: a JAX random key; ``jax.random.key(0)`` if left out.
        :param args: arguments of the model.
        :param kwargs: keyword arguments of the model.
        """
        if self.settings is not None:
            return self.settings
        problem = self._problem(args, kwargs)
        rng_key = _check_key(rng_key)
        if not is_concrete((problem, rng_key)):
            raise ValueError(
                "tune runs on the host and needs concrete arguments; call it outside jit."
            )
        self._check(problem)
        return self._tune(random.split(rng_key)[0], problem)

    def _tune(self, rng_key: jax.Array, problem: Problem) -> Settings:
        if self.num_steps == 0:
            return self._settings(1.0)
        spread = self.preconditioner
        if spread is None:
            spread = start_spread(self._jitted_draws(rng_key, problem))

        def trial_fn(key: jax.Array, settings: Settings) -> float:
            log_weights, _, _ = self._jitted_run(
                key, problem, settings, num_particles=NUM_PILOT_PARTICLES
            )
            return float(np.mean(log_weights))

        make_betas = self.schedule
        if not callable(make_betas):
            make_betas = partial(_interpolate, np.asarray(make_betas, np.float64))
        damping = float(np.mean(np.asarray(self.damping)))
        tuned = stable_settings(rng_key, trial_fn, make_betas, damping, spread, self.num_steps)
        return make_settings(
            tuned.betas if callable(self.schedule) else self.schedule,
            tuned.step_size,
            self.damping,
            spread,
            tuned.num_gradients,
        )

    def _settings(self, step_size: Any) -> Settings:
        betas = self.schedule(self.num_steps) if callable(self.schedule) else self.schedule
        if len(betas) != self.num_steps:
            raise ValueError(
                f"The schedule must have one beta per step; got {len(betas)} betas for {self.num_steps} "
                "steps. Leave num_steps out to take its length from the schedule."
            )
        return make_settings(betas, step_size, self.damping, self.preconditioner)

    def _problem(self, args: tuple, kwargs: dict) -> Problem:
        return Problem(
            self.model,
            potential_fn=self.potential_fn,
            start=self.start,
            guide=self.guide,
            guide_params=self.guide_params,
            params=self.params,
            plate=self.plate,
            args=args,
            kwargs=kwargs,
        )

    def _check(self, problem: Problem) -> None:
        """Raises the errors of a bad problem before it is compiled; once for each shape of arguments."""
        leaves, treedef = jax.tree.flatten(problem)
        signature = treedef, tuple((jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves)
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
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Log weights, last positions and whether the start was finite, for independent particles."""
        target = make_target(problem)
        num_chunks = 1 if self.chunk_size is None else math.ceil(num_particles / self.chunk_size)
        on_step = None
        if self._progress_bar is not None and num_particles == self.num_particles:
            on_step = self._progress_bar.make_callback(settings.num_steps, num_chunks)

        def particle(key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
            start_key, chain_key = random.split(key)
            start = target.sample_fn(start_key)
            is_finite = jnp.all(jnp.isfinite(start))
            position, log_weight = run_chain(
                chain_key,
                jnp.where(jnp.isfinite(start), start, 0.0),
                target.log_densities_fn,
                settings.steps(start.shape[-1]),
                self.memory,
                on_step,
            )
            is_valid = jnp.isfinite(log_weight) & jnp.all(jnp.isfinite(start), -1)
            return jnp.where(is_valid, log_weight, -jnp.inf), position, is_finite

        keys = random.split(rng_key, num_particles)
        if num_chunks == 1:
            return jax.vmap(particle)(keys)
        return lax.map(particle, keys, batch_size=self.chunk_size)


def _start_draws(rng_key: jax.Array, problem: Problem) -> jax.Array:
    keys = random.split(rng_key, _NUM_SPREAD_DRAWS)
    return jax.vmap(make_target(problem).sample_fn)(keys)


def _log_densities_at_draw(problem: Problem) -> Any:
    target: Target = make_target(problem)
    return target.log_densities_fn(target.sample_fn(random.key(0)))


def _interpolate(betas: np.ndarray, num_steps: int) -> np.ndarray:
    """A given schedule at another number of steps."""
    knots = np.arange(len(betas) + 1) / len(betas)
    return np.interp(linear(num_steps), knots, np.append(0.0, betas))


def _is_floating(leaf: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(leaf), jnp.floating)


def _check_what(model: Any, potential_fn: Any, start: Any, guide: Any, plate: Any) -> None:
    if (model is None) == (potential_fn is None):
        raise ValueError("Give either a model or potential_fn=, and not both.")
    if model is not None and not callable(model):
        raise TypeError(
            f"model must be a NumPyro model, a callable with sample sites; got {model!r}."
        )
    if potential_fn is not None and not callable(potential_fn):
        raise TypeError(f"potential_fn must be callable; got {potential_fn!r}.")
    if guide is not None and not isinstance(start, str):
        raise ValueError("Give either guide= or start=, and not both.")
    is_dict = isinstance(start, dict) and all(isinstance(fn, Distribution) for fn in start.values())
    if not (is_dict or isinstance(start, Distribution) or start == "prior"):
        raise ValueError(
            f"start must be 'prior', a distribution, or a dict of distributions by site; got {start!r}."
        )
    if potential_fn is None:
        return
    if isinstance(start, str) or guide is not None or plate is not None:
        raise ValueError(
            "With potential_fn= the chains need start= as a distribution or a dict of distributions of "
            "the function's argument; guide= and plate= need a model."
        )
    for fn in start.values() if isinstance(start, dict) else [start]:
        support = fn.support
        while isinstance(support, constraints.independent):
            support = support.base_constraint
        if not (support is constraints.real or support is constraints.real_vector):
            raise ValueError(
                f"A start for potential_fn= must have all reals as its support; a {type(fn).__name__} has "
                f"{support}. Change variables, or write a NumPyro model, where this is done for you."
            )


def _check_count(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}; got {value!r}.")


def _resolve_num_steps(num_steps: int | None, schedule: Any) -> int:
    if num_steps is None:
        return _DEFAULT_NUM_STEPS if callable(schedule) else len(schedule)
    _check_count("num_steps", num_steps, 0)
    return num_steps


def _check_only_settings(settings: Any, *others: Any) -> None:
    if not isinstance(settings, Settings):
        raise TypeError(f"settings must come from `tune` or `make_settings`; got {settings!r}.")
    if any(other is not None for other in others):
        raise ValueError(
            "settings= already has num_steps, step_size, damping, schedule and preconditioner; do not "
            "give these beside it."
        )


def _check_key(rng_key: Any) -> jax.Array:
    if rng_key is None:
        return random.key(0)
    if not is_prng_key(rng_key):
        raise ValueError(
            "The first argument must be one JAX random key, such as jax.random.key(0), or None; got "
            f"{rng_key!r}. The model's arguments follow it. For several keys use jax.vmap."
        )
    return rng_key
