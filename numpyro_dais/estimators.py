# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""The estimators of the evidence: DAIS, and the baselines on the same targets."""

from collections.abc import Callable
from dataclasses import replace
import math
from typing import Any, Literal

import jax
from jax import random
import jax.numpy as jnp
import numpy as np

from numpyro_dais.bidirectional import Certificate
from numpyro_dais.data_plate import warn_of_noise
from numpyro_dais.estimator import Estimator
from numpyro_dais.evidence import Evidence
from numpyro_dais.goal import Goal
from numpyro_dais.islands import check_islands, run_islands
from numpyro_dais.kernel import Transition
from numpyro_dais.particles import Run
from numpyro_dais.problem import Problem
from numpyro_dais.runner import StepSizeRule
from numpyro_dais.settings import Settings
from numpyro_dais.spread import start_spread
from numpyro_dais.step_search import NUM_PILOT_PARTICLES
from numpyro_dais.target import make_target
from numpyro_dais.tuning import Tuner
from numpyro_dais.validation import check_count

__all__ = ["AIS", "DAIS", "HAIS", "ImportanceSampling"]

Adaptation = Literal["pilot", "online"]
_NUM_SWEEPS = 8
_INITIAL_SCALE = 0.5


class DAIS(Estimator):
    r"""
    Differentiable annealed importance sampling: the evidence of a NumPyro model.

    With nothing but the model given, it tunes itself: part of the budget goes into a start fitted to the
    posterior, or into a pilot run that measures the path from the prior; see :mod:`numpyro_dais.tuning`.

    Particles start at exact draws of a tractable density :math:`q_0`, the prior or a fit, and are carried to :math:`p(D, u)` along :math:`f_\beta = q_0^{1-\beta} p(D, \cdot)^\beta` by leapfrog steps
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
    :param num_steps: the number of steps :math:`K`, one gradient each. With 0 this is importance sampling from
        the start as given. Left out it is chosen for ``target_error``; with ``step_size`` it is 256, or as ``schedule`` says.
    :param num_particles: the number of particles :math:`S`; left out likewise, or 128.
    :param step_size: :math:`\eta`, a number or one per step. Left out, :meth:`tune` finds it.
    :param damping: :math:`\gamma` in [0, 1), a number or one per step; 0 refreshes the momentum fully.
    :param schedule: a function of the number of steps (:mod:`numpyro_dais.schedule`), or the inverse
        temperatures themselves, increasing and ending in 1.
    :param preconditioner: :math:`L` with :math:`M^{-1} = L L^\top`: a diagonal ``[num_dims]`` or a
        lower triangular ``[num_dims, num_dims]``, with a leading axis of length :math:`K` to change it
        along the chain. Unconstrained values are in alphabetical order of the sites.
    :param settings: all of the above at once, as :meth:`tune` returns them.
    :param target_error: the standard error of the log evidence, in nats, that a self-tuned run aims at; 0.005
        if left out.
    :param budget: gradients that a self-tuned run may spend, tuning included, a density counting as half of
        one; 100,000 if left out.
    :param start: ``"auto"``, in a self-tuned run a fit where that helps, else the prior; ``"prior"``; a dict with a distribution over the values of each latent site; or one
        distribution, over the only latent site or else over all unconstrained values as a vector.
    :param keep_start: with ``potential_fn``, whether a self-tuned run must begin at ``start`` itself, which else
        a fit may replace.
    :param guide: start at a fitted guide instead.
    :param guide_params: the guide's parameters, ``svi_result.params``.
    :param params: values of the model's ``param`` (and ``mutable``) sites.
    :param plate: the name of a plate that holds every site (or names of several): gives one evidence per
        element. Of a subsampled plate, per element of one mini-batch, drawn with the key.
    :param minibatch: for data in one subsampled plate, ``numpyro.plate(name, N, subsample_size=B)``, with all
        latents outside: each step sees a fresh mini-batch, ``True`` or ``"shared"`` for one sequence that all
        particles share, ``"particle"`` for one each; the weights use all the data, in chunks, and stay
        unbiased. The bound does not tighten as the number of steps grows (Theorem 2 of [1]).
    :param surrogate: the remedy for large data: ``"quadratic"`` has the steps follow the exact prior and a
        quadratic expansion of the log likelihood around the mode, fitted first; the weights use all the
        data. Or what :meth:`fit_surrogate` has returned. See :mod:`numpyro_dais.surrogate`.
    :param memory: how :func:`jax.grad` goes through a chain: ``"checkpoint"`` recomputes each step,
        ``"plain"`` stores everything, ``"products"`` the results of matrix products, ``"reversible"`` next to
        nothing and runs the chain backwards, in integers; see :mod:`numpyro_dais.reversible` for when to
        choose which.
    :param anchor_every: with ``"reversible"``, store a state every so many steps; only needed if a warning
        says so.
    :param resample_at: inverse temperatures in (0, 1), increasing: after the first step at or above each, particles
        are resampled by weight, those of each island among themselves. Each island's estimate is unbiased, and
        is what ``log_weights`` then holds, with one posterior draw each. Which particles are chosen is not
        differentiated, so gradients are biased. See :mod:`numpyro_dais.islands`.
    :param num_islands: with ``resample_at``, into how many independent islands particles are divided, over
        which the error is.
    :param chunk_size: how many particles run at a time; as many as memory surely has room for if left out.
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
        resample_at: tuple[float, ...] = (),
        num_islands: int = 8,
        **kwargs: Any,
    ) -> None:
        self.resample_at = check_islands(resample_at, num_islands, kwargs)
        super().__init__(model, **kwargs)
        self.num_islands = num_islands
        self._tuner = Tuner(self._run_log_weights)
        if self.batches is not None:
            warn_of_noise("surrogate='quadratic' is the remedy")
        self._jitted_islands = jax.jit(self._run_islands, static_argnames="num_particles")

    def _tune(self, rng_key: jax.Array, problem: Problem, is_start_free: bool = True) -> Settings:
        has_plain_chains = (
            self.plate is None
            and self.batches is None
            and self.surrogate is None
            and self.memory != "reversible"
        )
        if not (self._chain.is_free and has_plain_chains) or self._chain.given_steps == 0:
            return super()._tune(rng_key, problem)
        is_given = self.guide is not None or not (self.start == "auto" or self.model is None)
        is_start_free = is_start_free and not (is_given or self.keep_start)
        goal = Goal(
            self._chain.given_steps,
            self.num_particles,
            self.target_error,
            self.budget,
            is_start_free,
        )
        return self._tuner.tune(rng_key, problem, goal)

    def sandwich(self, *args: Any, **kwargs: Any) -> Evidence:
        self._refuse_resampling("sandwich")
        return super().sandwich(*args, **kwargs)

    sandwich.__doc__ = Estimator.sandwich.__doc__

    def certify(self, *args: Any, **kwargs: Any) -> Certificate:
        self._refuse_resampling("certify")
        return super().certify(*args, **kwargs)

    certify.__doc__ = Estimator.certify.__doc__

    def _refuse_resampling(self, name: str) -> None:
        if self.resample_at:
            raise NotImplementedError(
                f"{name} runs chains in both directions, and there is no reverse of a resampling; got resample_at="
                f"{self.resample_at}. Leave it out."
            )

    def _estimate(self, rng_key: jax.Array, problem: Problem) -> Evidence:
        evidence = super()._estimate(rng_key, problem)
        if not self._has_islands(evidence.settings):
            return evidence
        num_particles = self._num_particles(evidence.settings)
        return replace(evidence, island_size=num_particles // self._num_islands(num_particles))

    def _has_islands(self, settings: Settings | None) -> bool:
        return bool(self.resample_at) and (settings is None or settings.num_steps > 0)

    def _num_particles(self, settings: Settings | None) -> int:
        number = super()._num_particles(settings)
        if not self._has_islands(settings):
            return number
        if self.num_particles is None and settings is not None and settings.num_particles:
            # Tuning knows nothing of islands, and its budget is to be kept.
            number = max(int(number / (1 + self._resampling_cost(settings))), 1)
        return number - number % self._num_islands(number)

    def _num_islands(self, num_particles: int) -> int:
        """As many as were asked for, or fewer where tuning has left too few particles for them."""
        return min(self.num_islands, max(num_particles // 2, 1))

    def _resampling_cost(self, settings: Settings) -> float:
        """A density, half of a gradient, for each resampling: as a share of what the steps cost."""
        return len(self.resample_at) / 2 / settings.num_steps

    def _num_gradients(self, problem: Problem, settings: Settings, num_chains: int) -> int:
        number = super()._num_gradients(problem, settings, num_chains)
        if self._has_islands(settings):
            number += math.ceil(number * self._resampling_cost(settings))
        return number

    def _run(
        self, rng_key: jax.Array, problem: Problem, settings: Settings, num_particles: int
    ) -> Run:
        if not self._has_islands(settings):
            return super()._run(rng_key, problem, settings, num_particles)
        return self._jitted_islands(
            rng_key, problem, settings.of_chain(), num_particles=num_particles
        )

    def _run_islands(
        self, rng_key: jax.Array, problem: Problem, settings: Settings, *, num_particles: int
    ) -> Run:
        """Independent islands from the start."""
        num_islands = self._num_islands(num_particles)
        at_a_time = self._runner.chunk_size_of(problem) * num_islands // num_particles
        at_a_time = min(max(at_a_time, 1), num_islands)
        num_chunks = math.ceil(num_islands / at_a_time)
        return run_islands(
            rng_key,
            make_target(problem),
            settings,
            self.memory,
            self.resample_at,
            num_particles,
            num_islands,
            at_a_time,
            self._runner.make_on_step(settings.num_steps, num_chunks),
        )

    def _run_log_weights(
        self, rng_key: jax.Array, problem: Problem, settings: Settings, num_particles: int
    ) -> np.ndarray:
        run = self._runner.run(rng_key, problem, settings, num_particles)
        return np.asarray(run.log_weights, np.float64)


class ImportanceSampling(Estimator):
    """
    Importance sampling from the start: DAIS without steps. With a fitted guide the expectation of
    :attr:`~numpyro_dais.evidence.Evidence.log_evidence` is the importance-weighted bound of IWAE.

    **References**

    1. *Importance Weighted Autoencoders*, Yuri Burda, Roger Grosse, Ruslan Salakhutdinov (ICLR 2016)

    :param model: a NumPyro model.
    :param kwargs: those of :class:`DAIS` that say what is integrated, where particles start and how many
        there are: ``potential_fn``, ``num_particles``, ``start``, ``guide``, ``guide_params``,
        ``params``, ``plate``, ``chunk_size``.
    """

    def __init__(self, model: Callable | None = None, **kwargs: Any) -> None:
        refused = _CHAIN_ARGUMENTS | _ISLANDS | {"progress_bar"}
        _refuse(kwargs, refused, "importance sampling takes no steps")
        _refuse(kwargs, _GOAL, "only DAIS tunes itself")
        super().__init__(model, num_steps=0, step_size=1.0, **kwargs)


class _Corrected(Estimator):
    """Annealing with Metropolis-corrected transitions, whose step size is adapted to an acceptance."""

    min_steps = 1

    def __init__(
        self,
        model: Callable | None,
        transition: Transition,
        target_acceptance: float,
        adaptation: Adaptation,
        kwargs: dict,
    ) -> None:
        _refuse(kwargs, _ISLANDS, "only DAIS resamples on its way")
        _refuse(kwargs, _GOAL, "only DAIS tunes itself")
        _refuse(
            kwargs,
            {"minibatch", "surrogate"},
            "a Metropolis decision needs the density of all the data at every step",
        )
        if not 0 < target_acceptance < 1:
            raise ValueError(f"target_acceptance must lie in (0, 1); got {target_acceptance}.")
        if adaptation not in ("pilot", "online"):
            raise ValueError(f"adaptation must be 'pilot' or 'online'; got {adaptation!r}.")
        self.transition = transition
        self.target_acceptance = target_acceptance
        self.adaptation = adaptation
        super().__init__(model, **kwargs)
        if adaptation == "online":
            self._check_online()

    def _check_online(self) -> None:
        if self.num_particles == 1:
            raise ValueError(
                "On-line adaptation follows the mean acceptance over particles and needs at least 2; got "
                "num_particles=1. Use more, or adaptation='pilot'."
            )
        if self.chunk_size is not None:
            raise ValueError(
                "On-line adaptation follows all particles at once; leave chunk_size out, or use "
                "adaptation='pilot'."
            )

    def _tune(self, rng_key: jax.Array, problem: Problem, is_start_free: bool = True) -> Settings:
        spread = self._chain.preconditioner
        if spread is None:
            spread = start_spread(self._runner.draw_starts(rng_key, problem))
        settings = self._chain._replace(preconditioner=spread).settings_at(_INITIAL_SCALE)
        if self.adaptation == "online":
            return settings
        return self._pilot(random.fold_in(rng_key, 1), problem, settings)

    def _pilot(self, rng_key: jax.Array, problem: Problem, settings: Settings) -> Settings:
        """
        Settings whose step sizes, at each temperature and for each element of a plate, have about the
        target acceptance: each sweep of a few particles moves those of its own temperature.
        """
        log_step_size = np.log(settings.step_size)
        for sweep in range(_NUM_SWEEPS):
            sweep_key = random.fold_in(rng_key, sweep)
            run = self._runner.run(sweep_key, problem, settings, NUM_PILOT_PARTICLES)
            excess = np.asarray(run.acceptance) - self.target_acceptance
            if log_step_size.ndim < excess.ndim:  # the elements of a plate part company
                log_step_size = log_step_size[:, None]
            # Large steps at first, to cross orders of magnitude, then small ones, to settle.
            log_step_size = log_step_size + 3.0 * excess / (1 + sweep / 3)
            settings = settings._replace(step_size=jnp.exp(log_step_size))
        num_gradients = _NUM_SWEEPS * NUM_PILOT_PARTICLES * settings.num_steps
        num_gradients *= self.transition.num_leapfrog
        return settings._replace(num_gradients=num_gradients)

    def _step_size_rule(self) -> StepSizeRule | None:
        if self.adaptation == "pilot" or self.settings is not None:
            return None
        target_acceptance = self.target_acceptance
        return lambda step_size, acceptance: (
            step_size * jnp.where(acceptance > target_acceptance, 1.02, 0.98)
        )


class HAIS(_Corrected):
    r"""
    Hamiltonian annealed importance sampling: the leapfrog steps and partial refreshment of
    :class:`DAIS`, each followed by a Metropolis decision; on rejection the momentum is negated.

    The weight gains :math:`\log f_k - \log f_{k-1}` before each transition. A left-out step size is
    adapted along a pilot run, to ``target_acceptance`` at each temperature (and for each element of a
    plate), and then frozen, so weights are unbiased. Its estimates cannot be differentiated.

    **References**

    1. *Hamiltonian Annealed Importance Sampling for partition function estimation*,
       Jascha Sohl-Dickstein, Benjamin J. Culpepper (2012)

    :param model: a NumPyro model.
    :param target_acceptance: the acceptance that the step size is adapted to.
    :param adaptation: ``"pilot"``; or ``"online"``, which multiplies the step size of the reported run
        itself by 1.02 above the target acceptance and by 0.98 below. Particles then share information
        through the step size, and their weights are not exactly unbiased.
    :param kwargs: as for :class:`DAIS`; at least one step.
    """

    def __init__(
        self,
        model: Callable | None = None,
        *,
        target_acceptance: float = 0.9,
        adaptation: Adaptation = "pilot",
        **kwargs: Any,
    ) -> None:
        transition = Transition(is_corrected=True)
        super().__init__(model, transition, target_acceptance, adaptation, kwargs)


class AIS(_Corrected):
    """
    Annealed importance sampling with Hamiltonian Monte Carlo transitions: at each temperature a fresh
    momentum, ``num_leapfrog`` leapfrog steps and a Metropolis decision. The step size is found as for
    :class:`HAIS`; estimates cannot be differentiated.

    **References**

    1. *Annealed importance sampling*, Radford M. Neal (2001)

    :param model: a NumPyro model.
    :param num_leapfrog: leapfrog steps, and so gradients, per temperature.
    :param target_acceptance: the acceptance that the step size is adapted to.
    :param adaptation: see :class:`HAIS`; ``"online"`` is the paper's rule.
    :param kwargs: as for :class:`DAIS`, without ``damping``; at least one step.
    """

    def __init__(
        self,
        model: Callable | None = None,
        *,
        num_leapfrog: int = 10,
        target_acceptance: float = 0.65,
        adaptation: Adaptation = "pilot",
        **kwargs: Any,
    ) -> None:
        check_count("num_leapfrog", num_leapfrog, 1)
        _refuse(kwargs, {"damping"}, "AIS refreshes the momentum fully")
        if kwargs.get("settings") is None:
            kwargs["damping"] = 0.0
        transition = Transition(is_corrected=True, num_leapfrog=num_leapfrog)
        super().__init__(model, transition, target_acceptance, adaptation, kwargs)


_ISLANDS = {"resample_at", "num_islands"}
_GOAL = {"target_error", "budget", "keep_start"}
_CHAIN_ARGUMENTS = {
    "num_steps",
    "step_size",
    "damping",
    "schedule",
    "preconditioner",
    "settings",
    "memory",
    "anchor_every",
    "minibatch",
    "surrogate",
}


def _refuse(kwargs: dict, names: set[str], reason: str) -> None:
    if given := sorted(names & kwargs.keys()):
        raise ValueError(f"{given[0]}= has no meaning here: {reason}. Leave it out.")
