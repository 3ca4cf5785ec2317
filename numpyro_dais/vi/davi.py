# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Differentiable annealed variational inference: DAIS as a loss for SVI."""

from collections.abc import Callable, Collection
from typing import Any
import warnings

import jax
from jax import lax, random
import jax.numpy as jnp
import numpy as np

from numpyro import handlers
from numpyro.infer import autoguide
from numpyro.infer.elbo import ELBO

from numpyro_dais._util.checks import check_count, check_number
from numpyro_dais._util.keys import named_key
from numpyro_dais._util.programs import program
from numpyro_dais._util.weights import log_mean
from numpyro_dais.estimators.arguments import explain_keywords
from numpyro_dais.model.dynamics import check_dynamics, with_data_plate
from numpyro_dais.model.guide import DENSE_GUIDES, check_guide, guide_scale, pieces_of, seeded_trace
from numpyro_dais.model.inspection import trace_model
from numpyro_dais.model.problem import Problem
from numpyro_dais.model.subsampling import (
    Batches,
    draw_minibatch,
    find_data_plate,
    minibatch_scale,
    subsampled_sizes,
    warn_of_noise,
)
from numpyro_dais.model.target import ModelTarget, make_target
from numpyro_dais.model.traced import TracedTarget
from numpyro_dais.sampler.kernel import UNCORRECTED
from numpyro_dais.sampler.loop import Memory, check_memory
from numpyro_dais.sampler.particles import Run, particle_keys, run_particles
from numpyro_dais.sampler.path import Target
from numpyro_dais.sampler.reversible.fixed_point import rational_damping
from numpyro_dais.sampler.reversible.gradient import Reversible
from numpyro_dais.sampler.schedule import Schedule, linear, resolve_schedule
from numpyro_dais.sampler.settings import (
    Settings,
    check_damping,
    interpolate_settings,
    make_settings,
    resolve_betas,
    resolve_num_steps,
)
from numpyro_dais.tuning.goal import DEFAULT_DAMPING
from numpyro_dais.vi.diagnostics import Diagnostics, make_diagnostics, warn_of_lost
from numpyro_dais.vi.fitted import FittedDAIS
from numpyro_dais.vi.learned import LEARNABLE, LearnableSettings, LearnedGuide, schedule_entropy
from numpyro_dais.vi.plates import independent_plates
from numpyro_dais.vi.steps import follow_curvature, unit_in_noise

__all__ = ["DAVI"]

# Learned step sizes stay below this multiple of the initial one, so that a bad gradient explodes
# nothing for good. A round number.
_CAP = 10.0
# Step sizes that are left out, times the square root of the largest curvature: 2 is where a
# leapfrog step is no longer stable. Trades how far a chain gets for what its steps cost, and for
# the curvature that it may meet beside the one that was measured. Out of 0.2, 0.35, 0.5, 0.7 and 1
# the second and third were best on regressions and hierarchies with 8 steps.
_SHARE = 0.4
# What they stay below where they are learned.
_MAX_SHARE = 1.6
# What is learned with `davi.guide` if nothing is said. Measured in 2,000 iterations: each pays on
# regressions with correlated columns, all three more; damping beside them costs more than it gains.
_LEARNED = ("schedule", "step_size", "mass")


class DAVI(ELBO):
    r"""
    Differentiable annealed variational inference: a bound on the evidence for SVI, tighter than the
    ELBO.

    Particles start at draws of the guide and are carried towards the posterior by the chains of
    :class:`~numpyro_dais.estimators.dais.DAIS`, whose weights :math:`w` are unbiased for the
    evidence. The loss is minus the importance-weighted bound

    .. math::

        \mathcal L = E \Big[ \log \frac1S \sum_{s=1}^S w_s \Big] \le \log p(D),

    differentiable in the parameters of the model, of the guide, and of the chain itself. Without
    steps it is the ELBO (:math:`S = 1`) or the bound of importance weighted autoencoders.

    Where plates hold every site of model and guide, as in a variational autoencoder, there is one
    bound for each of their elements, and the loss is minus their sum; if such a plate is
    subsampled, one mini-batch serves all particles and steps, and the sum is multiplied by N/B. A
    subsampled plate around the data of global latents needs ``minibatch=True``.

    **References**

    1. *Differentiable Annealed Importance Sampling and the Perils of Gradient Noise*,
       Guodong Zhang, Kyle Hsu, Jianing Li, Chelsea Finn, Roger Grosse (NeurIPS 2021)
    2. *MCMC Variational Inference via Uncorrected Hamiltonian Annealing*,
       Tomas Geffner, Justin Domke (NeurIPS 2021)

    :param num_steps: the number of steps :math:`K`, one gradient each.
    :param num_particles: the number of importance-weighted particles :math:`S`.
    :param num_estimates: the number of estimates of the bound whose mean is the loss, each with
        particles of its own. Several make gradients less noisy and leave the bound as it is; more
        particles would make it another one.
    :param step_size: :math:`\eta`, a number or one per step; where learned, its initial value. Left
        out, it follows the curvature between guide and posterior, so that steps are stable from the
        first iteration on; see :mod:`numpyro_dais.vi.steps`.
    :param damping: :math:`\gamma` in [0, 1), a number or, unless it is learned, one per step.
    :param schedule: ``"linear"``, ``"sigmoid"`` or ``"power"``, a function of the number of steps,
        or the inverse temperatures themselves.
    :param learn: what SVI learns beside model and guide, any of ``"schedule"``, ``"step_size"``,
        ``"damping"`` and ``"mass"`` (diagonal). Needs :meth:`guide`. Left out, the schedule, the
        step size and the mass with :meth:`guide`, and nothing with a plain guide; ``()`` is
        nothing.
    :param entropy_weight: of a bonus for even schedules, which enters through its gradient only:
        minus the loss stays a bound.
    :param max_step_size: what learned step sizes stay below; ten times ``step_size`` if left out.
    :param is_mass_per_step: whether a learned mass differs from step to step.
    :param is_whitened: whether the covariance of a Gaussian autoguide is the unit of positions, so
        that step sizes have no dimension. Not in elements of a plate, which share their settings;
        and where mass and a given step size are learned, which does the same for single
        coordinates, only the covariance of a full-rank guide.
    :param memory: how gradients go through the chains; see
        :class:`~numpyro_dais.estimators.dais.DAIS`.
    :param minibatch: for global latents with data in one subsampled plate: ``True`` or ``"shared"``
        gives each step a fresh mini-batch, ``"particle"`` a fresh one for each particle. One
        particle ends at the density of one more mini-batch, scaled by N/B, so that the loss is
        unbiased for minus the bound and costs no pass over the data; several end at that of all the
        data, in chunks. The bound does not tighten as the number of steps grows (Theorem 2 of [1]).

    **Example**

    >>> from jax import random
    >>> import numpyro, numpyro.distributions as dist
    >>> from numpyro.infer import SVI
    >>> from numpyro.infer.autoguide import AutoNormal
    >>> from numpyro_dais import DAVI
    >>> def model():
    ...     p = numpyro.sample("p", dist.Beta(2.0, 3.0))
    ...     numpyro.sample("y", dist.Binomial(10, p), obs=7.0)
    >>> guide, davi = AutoNormal(model), DAVI(num_steps=4, learn=("step_size",))
    >>> svi = SVI(model, davi.guide(guide), numpyro.optim.Adam(0.02), loss=davi)
    >>> result = svi.run(random.key(0), 500, progress_bar=False)
    >>> abs(result.losses[-100:].mean() - 2.527) < 0.05  # exact: -log C(10, 7) B(9, 6) / B(2, 3)
    Array(True, dtype=bool)
    """

    # Discrete sites marked for enumeration are summed out.
    can_infer_discrete = True

    @explain_keywords(
        vectorize_particles="particles always run side by side",
        multi_sample_guide="every particle has a draw of the guide of its own",
        guide="the guide is an argument of SVI",
        plate="plates that hold every site are found without it",
        preconditioner="the unit is that of the guide, or is learned with learn=('mass',)",
        surrogate="only DAIS has surrogates",
    )
    def __init__(
        self,
        *,
        num_steps: int | None = None,
        num_particles: int = 1,
        num_estimates: int = 1,
        step_size: Any = None,
        damping: Any = DEFAULT_DAMPING,
        schedule: Schedule | Any = linear,
        learn: tuple[str, ...] | None = None,
        entropy_weight: float = 0.01,
        max_step_size: float | None = None,
        is_mass_per_step: bool = False,
        is_whitened: bool = True,
        memory: Memory = "checkpoint",
        minibatch: bool | Batches = False,
    ) -> None:
        super().__init__(num_particles=check_count("num_particles", num_particles, 1))
        schedule = resolve_schedule(schedule)
        num_steps = resolve_num_steps(num_steps, schedule, default=8)
        check_memory(memory, UNCORRECTED)
        self.batches = check_dynamics(minibatch, None, memory, None)
        entropy_weight = check_number(
            "entropy_weight", entropy_weight, "finite and at least 0", lambda weight: weight >= 0
        )
        betas = resolve_betas(schedule, num_steps)
        ratio = None
        check_damping(damping)
        if memory == "reversible":
            damping, ratio = rational_damping(damping)
        self.is_curvature_followed = step_size is None
        initial = make_settings(betas, _SHARE if step_size is None else step_size, damping)
        is_optional = learn is None
        if learn is None:
            learn = _learnable_by_default(initial)
        _check_learn(learn, initial)
        cap = _max_step_size(max_step_size, step_size, initial, learn)
        self.num_steps = num_steps
        self.num_estimates = check_count("num_estimates", num_estimates, 1)
        self.entropy_weight = entropy_weight
        self.is_whitened = is_whitened
        self.memory: Memory = memory
        self._ratio = ratio
        self._learnable = LearnableSettings(
            initial, tuple(learn), cap, is_mass_per_step, is_optional
        )
        if self.batches is not None:
            warn_of_noise("keep the steps few, or use all the data at every step")

    @property
    def learn(self) -> tuple[str, ...]:
        """The names of the settings that SVI learns, with :meth:`guide`."""
        return self._learnable.learn

    def guide(self, guide: Callable) -> LearnedGuide:
        """
        Returns the guide with the learned settings among its parameters, for SVI.

        :param guide: an autoguide or a hand-written guide.
        """
        return LearnedGuide(guide, self._learnable)

    def learned(self, params: dict[str, Any]) -> dict[str, Any]:
        """
        Returns the learned settings by their names in ``learn``: the inverse temperatures, the step
        sizes, the damping, and the mass of each site.

        :param params: ``svi_result.params``.
        """
        return self._learnable.values(params)

    def settings(
        self, params: dict[str, Any], guide: Callable | None = None, num_steps: int | None = None
    ) -> Settings:
        """
        Returns all settings of the chains, the learned ones among them, where the step size is
        given. One that follows the curvature depends on the arguments of the model, too:
        ``davi.estimator(model, guide, params).tune(None, *args)`` returns it with the others.

        :param params: ``svi_result.params``.
        :param guide: a guide whose covariance is the unit of positions.
        :param num_steps: another number of steps, to which they are interpolated.
        """
        if self.is_curvature_followed:
            raise ValueError(
                "Without step_size= step sizes follow the curvature of the model at its arguments. Call "
                "davi.estimator(model, guide, params).tune(None, *args), or give DAVI a step_size=."
            )
        return self._settings(params, guide, num_steps)

    def _settings(
        self,
        params: dict[str, Any],
        guide: Any,
        num_steps: int | None = None,
        unit: jax.Array | None = None,
    ) -> Settings:
        """
        The settings; step sizes that follow the curvature as multiples of what it allows, in a unit
        that is given or that of the guide.
        """
        learn = self._learnable.learned(params)
        is_scaled = guide is not None and self.is_whitened and unit is None
        scale = guide_scale(_unwrap(guide), params) if is_scaled else unit
        if is_scaled and scale is not None and self.is_curvature_followed:
            # Steps are as long as the curvature allows, whatever the unit. With a gradient through
            # the unit alone a narrower guide would seem to have shorter steps, and stay wide.
            scale = lax.stop_gradient(scale)
        is_diagonal = scale is not None and scale.ndim == 1
        if is_diagonal and "mass" in learn and not self.is_curvature_followed:
            scale = None
        settings = self._learnable.settings(params, scale)
        if self.memory == "reversible" and "damping" in learn:
            used, _ = rational_damping(settings.damping, is_learned=True)
            settings = settings._replace(damping=used)
        if num_steps is None:
            return settings
        num_steps = check_count("num_steps", num_steps, 0)
        is_changing = "mass" in learn and self._learnable.is_mass_per_step
        return interpolate_settings(settings, num_steps, is_changing)

    def _settings_at(
        self,
        params: dict[str, Any],
        problem: Problem,
        target: Target,
        num_steps: int | None = None,
        is_in_noise: bool = False,
    ) -> Settings:
        """The settings at arguments of the model."""
        # Elements of a plate share their settings: the guide's scale of each is no unit for them.
        has_unit = not (problem.plates or is_in_noise)
        guide = problem.guide if has_unit else None
        settings = self._settings(params, guide, num_steps)
        if not self.is_curvature_followed or not settings.num_steps:
            return settings
        settings = follow_curvature(settings, target, self.is_whitened and has_unit)
        if not is_in_noise:
            return settings
        scale = guide_scale(problem.guide, params)
        assert scale is not None
        with_unit = self._settings(params, None, num_steps, unit_in_noise(scale))
        return settings._replace(preconditioner=with_unit.preconditioner)

    def loss_with_mutable_state(
        self,
        rng_key: jax.Array,
        param_map: dict[str, Any],
        model: Callable,
        guide: Callable,
        *args: Any,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """
        Returns minus the bound, and the new values of ``mutable`` sites, as
        ``{"loss", "mutable_state"}``.

        :param rng_key: a JAX random key.
        :param param_map: values of the parameters of model, guide and loss.
        :param model: a NumPyro model.
        :param guide: a guide, or :meth:`guide` of it.
        :param args: arguments of model and guide.
        :param kwargs: keyword arguments of model and guide.
        """
        problem, scale = self._problem(rng_key, param_map, model, guide, args, kwargs)
        learn = self._learnable.learned(param_map)
        # The same chains as with the guide's covariance for a unit, in less time: no solves.
        is_in_noise = (
            self.is_whitened and not problem.plates and isinstance(problem.guide, DENSE_GUIDES)
        )
        target = make_target(problem, is_in_noise=is_in_noise)
        settings = self._settings_at(param_map, problem, target, is_in_noise=is_in_noise)
        _, run_key = random.split(rng_key)  # as in DAIS: same key, same weights
        run = run_particles(
            particle_keys(run_key, self.num_estimates * self.num_particles),
            target,
            settings,
            self.memory,
            reversible=self._reversible(param_map),
        )
        shape = self.num_particles, self.num_estimates, *run.log_weights.shape[1:]
        bounds = jnp.mean(log_mean(run.log_weights.reshape(shape)), axis=0)
        loss = -scale * jnp.sum(bounds)
        if "schedule" in learn:
            entropy = schedule_entropy(param_map)
            weight = self.entropy_weight * scale * bounds.size
            loss = loss - weight * (entropy - lax.stop_gradient(entropy))
        return {"loss": loss, "mutable_state": _mutable_state(problem, target, run) or None}

    def estimator(
        self,
        model: Callable,
        guide: Callable,
        params: dict[str, Any],
        num_steps: int | None = None,
        **kwargs: Any,
    ) -> FittedDAIS:
        """
        Returns a :class:`~numpyro_dais.estimators.dais.DAIS` that starts at the fitted guide with
        the learned settings, for the evidence with an error bar.

        :param model: the model.
        :param guide: the guide, or :meth:`guide` of it.
        :param params: ``svi_result.params``.
        :param num_steps: the number of steps, to which the settings are interpolated; that of the
            loss if left out.
        :param kwargs: further arguments of DAIS, such as ``num_particles``; ``minibatch`` is that
            of the loss if left out, and plates that hold every site of model and guide have an
            evidence for each of their elements, as in the loss, unless ``plate`` names others
            (``()`` for none).
        """
        guide = _unwrap(guide)
        plate = kwargs.pop("plate", None)
        if self.batches is not None and kwargs.get("surrogate") is None:
            kwargs.setdefault("minibatch", self.batches)
        has_data_plate = bool(kwargs.get("minibatch") or kwargs.get("surrogate"))
        return FittedDAIS(
            model,
            lambda problem, target: _settings_program(
                params, problem, target, davi=self, num_steps=num_steps
            ),
            has_own_plates=plate is None and not has_data_plate,
            plate=plate or None,
            settings=self._settings(params, None, num_steps),
            guide=guide,
            guide_params=params,
            params=params,
            **kwargs,
        )

    def posterior(
        self,
        rng_key: jax.Array,
        params: dict[str, Any],
        model: Callable,
        guide: Callable,
        *args: Any,
        num_samples: int = 1000,
        num_steps: int | None = None,
        **kwargs: Any,
    ) -> dict[str, jax.Array]:
        """
        Returns posterior draws that the chains have refined: constrained values by site, resampled
        by weight, as :class:`~numpyro.infer.util.Predictive` takes them. For the weights themselves
        and for ArviZ see :meth:`estimator`.

        :param rng_key: a JAX random key.
        :param params: ``svi_result.params``.
        :param model: the model.
        :param guide: the guide, or :meth:`guide` of it.
        :param args: arguments of the model.
        :param num_samples: the number of draws, and of the particles behind them.
        :param num_steps: the number of steps; see :meth:`estimator`.
        :param kwargs: keyword arguments of the model.
        """
        num_samples = check_count("num_samples", num_samples, 1)
        run_key, sample_key = random.split(rng_key)
        with warnings.catch_warnings():
            # Of mini-batches: the constructor of this loss has said it.
            warnings.simplefilter("ignore")
            estimator = self.estimator(model, guide, params, num_steps, num_particles=num_samples)
        evidence = estimator.log_evidence(run_key, *args, **kwargs)
        return evidence.samples(sample_key, num_samples)

    def diagnostics(
        self,
        rng_key: jax.Array,
        params: dict[str, Any],
        model: Callable,
        guide: Callable,
        *args: Any,
        num_samples: int = 100,
        **kwargs: Any,
    ) -> Diagnostics:
        """
        Returns how many particles are lost at some parameters, and how many have no gradient; with
        a warning if there are any. A lost particle counts as zero in the loss, which is then a
        looser bound, and has no part in its gradient.

        :param rng_key: a JAX random key.
        :param params: ``svi_result.params``, or ``svi.get_params(state)``.
        :param model: the model.
        :param guide: the guide, or :meth:`guide` of it.
        :param args: arguments of the model.
        :param num_samples: the number of particles to look at.
        :param kwargs: keyword arguments of the model.
        """
        num_samples = check_count("num_samples", num_samples, 1)

        def look(params: dict[str, Any], key: jax.Array) -> Any:
            problem, _ = self._problem(rng_key, params, model, guide, args, kwargs)
            target = make_target(problem)
            settings = self._settings_at(params, problem, target)
            run = run_particles(
                key[None],
                target,
                settings,
                self.memory,
                reversible=self._reversible(params),
                is_gradient_masked=False,
            )
            log_weights = run.log_weights[0]
            is_finite = jnp.isfinite(log_weights)
            total = jnp.sum(jnp.where(is_finite, log_weights, 0.0))
            return total, (log_weights, settings.step_size)

        def one(key: jax.Array) -> Any:
            slopes, found = jax.grad(look, has_aux=True, allow_int=True)(params, key)
            floats = [x for x in jax.tree.leaves(slopes) if x.dtype != jax.dtypes.float0]
            is_smooth = [jnp.all(jnp.isfinite(x)) for x in floats]
            return jnp.all(jnp.asarray(is_smooth)), found

        keys = particle_keys(random.split(rng_key)[1], num_samples)
        has_gradient, (log_weights, step_size) = jax.jit(lambda keys: lax.map(one, keys))(keys)
        found = make_diagnostics(has_gradient, log_weights, step_size[0])
        warn_of_lost(found)
        return found

    def _reversible(self, params: dict[str, Any]) -> Reversible:
        """The options of ``memory="reversible"``."""
        is_learned = "damping" in self._learnable.learned(params)
        return Reversible(None if is_learned else self._ratio)

    def _problem(
        self,
        rng_key: jax.Array,
        params: dict[str, Any],
        model: Callable,
        guide: Callable,
        args: tuple,
        kwargs: dict,
    ) -> tuple[Problem, float]:
        """The problem of the chains, on one mini-batch, and N/B."""
        guide = _unwrap(guide)
        check_guide(guide, params)
        _check_can_be_fitted(guide)
        problem = Problem(
            model,
            guide=guide,
            guide_params=params,
            params=params,
            prng_key=named_key(rng_key, "model"),
            args=args,
            kwargs=kwargs,
        )
        if self.batches is not None:
            return self._with_batches(rng_key, problem), 1.0
        sizes = subsampled_sizes(problem)
        problem = draw_minibatch(rng_key, problem, sizes)
        plates = independent_plates(problem, self.num_particles, sizes)
        return problem.replace(plate=plates or None), minibatch_scale(sizes)

    def _with_batches(self, rng_key: jax.Array, problem: Problem) -> Problem:
        plate = find_data_plate(problem, "minibatch=")
        problem = with_data_plate(rng_key, problem, plate, self.batches)
        assert problem.data_plate is not None
        # The log of a mean of several weights is not linear in them: noise in the last term would
        # bias it.
        return problem.replace(
            data_plate=problem.data_plate._replace(is_end_exact=self.num_particles > 1)
        )


def _unwrap(guide: Any) -> Any:
    return guide.guide if isinstance(guide, LearnedGuide) else guide


@program("davi", "num_steps")
def _settings_program(
    params: dict[str, Any],
    problem: Problem,
    target: TracedTarget,
    davi: DAVI,
    num_steps: int | None,
) -> Settings:
    """The settings of a fit at arguments of the model."""
    return davi._settings_at(params, problem, target, num_steps)


def _learnable_by_default(initial: Settings) -> tuple[str, ...]:
    """Those of the settings that are learned by default which can be."""
    if not initial.num_steps:
        return ()
    is_number = bool(jnp.all(initial.damping == initial.damping[0]) & (initial.damping[0] > 0))
    can_be = {"schedule": bool(initial.betas[0] > 0), "damping": is_number}
    return tuple(name for name in _LEARNED if can_be.get(name, True))


def _max_step_size(
    given: float | None, step_size: Any, initial: Settings, learn: tuple[str, ...]
) -> float:
    """The number that learned step sizes stay below."""
    if step_size is None:
        if given is not None:
            raise ValueError(
                f"max_step_size= goes with step_size=; got max_step_size={given!r} alone. Left out, step sizes stay "
                "where a leapfrog step is stable. Give step_size= as well, or neither."
            )
        return _MAX_SHARE
    largest = np.max(initial.step_size, initial=0.0)
    if given is None:
        return _CAP * float(largest)
    if not (initial.num_steps and "step_size" in learn):
        return given
    rule = f"above the initial step size {largest!s}"
    return check_number("max_step_size", given, rule, lambda x: x > largest)


def _check_learn(learn: Any, initial: Settings) -> None:
    is_listed = isinstance(learn, Collection) and not isinstance(learn, str)
    if not is_listed or not set(learn) <= set(LEARNABLE):
        raise ValueError(
            f"learn must be a tuple of names out of {list(LEARNABLE)}, such as learn=('step_size',); got {learn!r}."
        )
    if learn and initial.num_steps == 0:
        raise ValueError(f"With num_steps=0 there is nothing to learn; got learn={learn!r}.")
    if "schedule" in learn and not initial.betas[0] > 0:
        raise ValueError("A learned schedule must start above 0; got a first beta of 0. Drop it.")
    if "damping" in learn and not (jnp.all(initial.damping == initial.damping[0])):
        raise ValueError(
            "A learned damping is one number; got one per step. Give its initial value."
        )
    if "damping" in learn and not initial.damping[0] > 0:
        raise ValueError(
            "A learned damping lies in (0, 1); got 0 as its initial value. Start above, or leave 'damping' "
            "out of learn=."
        )


def _check_can_be_fitted(guide: Any) -> None:
    for piece in pieces_of(guide):
        if isinstance(piece, autoguide.AutoLaplaceApproximation):
            raise NotImplementedError(
                "An AutoLaplaceApproximation has no density while it is fitted. Fit it with Trace_ELBO, then "
                "start at it: DAIS(model, guide=..., guide_params=...). Or fit an AutoMultivariateNormal."
            )


def _mutable_state(problem: Problem, target: ModelTarget, run: Run) -> dict[str, Any]:
    """
    The ``mutable`` sites after one run of the guide, and of the model where the first particle
    ended.
    """
    traces = [seeded_trace(piece, problem) for piece in pieces_of(problem.guide)]
    traces.append(trace_model(problem, random.key(0)))
    if not any(site["type"] == "mutable" for trace in traces for site in trace.values()):
        return {}
    values = target.constrain_fn(lax.stop_gradient(run.positions[0]))
    model = handlers.substitute(handlers.seed(problem.prepared_model, random.key(0)), data=values)
    traces[-1] = handlers.trace(model).get_trace(*problem.args, **problem.kwargs)
    return {
        name: site["value"]
        for trace in traces
        for name, site in trace.items()
        if site["type"] == "mutable"
    }
