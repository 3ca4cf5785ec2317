# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""The estimators of the evidence: DAIS, and the baselines on the same targets."""

from collections.abc import Callable
from dataclasses import replace
import math
from typing import Any

import jax
import numpy as np

from numpyro_dais.estimators.base import Estimator
from numpyro_dais.model.problem import Problem
from numpyro_dais.model.subsampling import warn_of_noise
from numpyro_dais.model.target import make_target
from numpyro_dais.results.certificate import Certificate
from numpyro_dais.results.evidence import Evidence
from numpyro_dais.sampler.islands import check_islands, run_islands
from numpyro_dais.sampler.particles import Run
from numpyro_dais.sampler.settings import Settings
from numpyro_dais.tuning.goal import Goal
from numpyro_dais.tuning.tuner import Tuner

__all__ = ["DAIS"]


class DAIS(Estimator):
    r"""
    Differentiable annealed importance sampling: the evidence of a NumPyro model.

    With nothing but the model given, it tunes itself: part of the budget goes into a start fitted to the
    posterior, or into a pilot run that measures the path from the prior; see :mod:`numpyro_dais.tuning.tuner`.

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
    :param schedule: a function of the number of steps (:mod:`numpyro_dais.sampler.schedule`), or the inverse
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
        data. Or what :meth:`fit_surrogate` has returned. See :mod:`numpyro_dais.model.surrogate`.
    :param memory: how :func:`jax.grad` goes through a chain: ``"checkpoint"`` recomputes each step,
        ``"plain"`` stores everything, ``"products"`` the results of matrix products, ``"reversible"`` next to
        nothing and runs the chain backwards, in integers; see :mod:`numpyro_dais.sampler.reversible.gradient` for when to
        choose which.
    :param anchor_every: with ``"reversible"``, store a state every so many steps; only needed if a warning
        says so.
    :param resample_at: inverse temperatures in (0, 1), increasing: after the first step at or above each, particles
        are resampled by weight, those of each island among themselves. Each island's estimate is unbiased, and
        is what ``log_weights`` then holds, with one posterior draw each. Which particles are chosen is not
        differentiated, so gradients are biased. See :mod:`numpyro_dais.sampler.islands`.
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
