# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Baselines on the targets of DAIS: importance sampling and annealing with Metropolis corrections."""

from collections.abc import Callable
from typing import Any, Literal

import jax
from jax import random
import jax.numpy as jnp
import numpy as np

from numpyro_dais._util.checks import check_count
from numpyro_dais.estimators.base import Estimator
from numpyro_dais.estimators.runner import StepSizeRule
from numpyro_dais.model.problem import Problem
from numpyro_dais.sampler.kernel import Transition
from numpyro_dais.sampler.settings import Settings
from numpyro_dais.tuning.spread import start_spread
from numpyro_dais.tuning.step_size import NUM_PILOT_PARTICLES

__all__ = ["AIS", "HAIS", "Adaptation", "ImportanceSampling"]

Adaptation = Literal["pilot", "online"]


_NUM_SWEEPS = 8


_INITIAL_SCALE = 0.5


class ImportanceSampling(Estimator):
    """
    Importance sampling from the start: DAIS without steps. With a fitted guide the expectation of
    :attr:`~numpyro_dais.results.evidence.Evidence.log_evidence` is the importance-weighted bound of IWAE.

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
