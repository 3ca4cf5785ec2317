# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Baselines on the targets of DAIS: importance sampling, and annealing with Metropolis corrections.
"""

from collections.abc import Callable
from typing import Any, Literal, get_args

import jax
import numpy as np

from numpyro.distributions import Distribution

from numpyro_dais._util.checks import check_count, check_number, check_optional_count
from numpyro_dais._util.journal import Journal
from numpyro_dais.estimators.arguments import (
    ChainArguments,
    Integrand,
    explain_keywords,
    resolve_chain,
)
from numpyro_dais.estimators.base import Estimator
from numpyro_dais.estimators.runner import RunConfig, run
from numpyro_dais.model.problem import Problem
from numpyro_dais.model.traced import TracedTarget
from numpyro_dais.sampler.kernel import Transition
from numpyro_dais.sampler.schedule import Schedule
from numpyro_dais.sampler.settings import Settings
from numpyro_dais.tuning.acceptance import first_settings, tune_acceptance
from numpyro_dais.tuning.tuner import Tuned

__all__ = ["AIS", "HAIS", "ImportanceSampling"]

Adaptation = Literal["pilot", "online"]

# Why keywords of DAIS, or of each other, have no meaning for a baseline.
_NO_STEPS = "importance sampling takes no steps"
_NOT_TUNED = "only DAIS tunes itself"
_NOT_DIFFERENTIATED = "a Metropolis decision has no gradient, so there is none to take"
_NEEDS_ALL_DATA = "a Metropolis decision needs the density of all the data at every step"
_NOT_RESAMPLED = "only DAIS resamples on its way"
_OF_CORRECTED = {
    "target_error": _NOT_TUNED,
    "budget": _NOT_TUNED,
    "max_seconds": _NOT_TUNED,
    "keep_start": _NOT_TUNED,
    "memory": _NOT_DIFFERENTIATED,
    "anchor_every": _NOT_DIFFERENTIATED,
    "minibatch": _NEEDS_ALL_DATA,
    "surrogate": _NEEDS_ALL_DATA,
    "resample_at": _NOT_RESAMPLED,
    "num_islands": _NOT_RESAMPLED,
}
_OF_IMPORTANCE_SAMPLING = {
    **dict.fromkeys(
        (
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
            "resample_at",
            "num_islands",
            "num_leapfrog",
            "target_acceptance",
            "adaptation",
            "progress_bar",
        ),
        _NO_STEPS,
    ),
    **dict.fromkeys(("target_error", "budget", "max_seconds", "keep_start"), _NOT_TUNED),
}


class ImportanceSampling(Estimator):
    """
    Importance sampling from the start: DAIS without steps. With a fitted guide the expectation of
    :attr:`~numpyro_dais.results.evidence.Evidence.log_evidence` is the importance-weighted bound of
    IWAE.

    **References**

    1. *Importance Weighted Autoencoders*, Yuri Burda, Roger Grosse, Ruslan Salakhutdinov (ICLR
       2016)

    :param model: a NumPyro model.

    The other parameters are those of :class:`~numpyro_dais.estimators.dais.DAIS`.
    """

    @explain_keywords(**_OF_IMPORTANCE_SAMPLING)
    def __init__(
        self,
        model: Callable | None = None,
        *,
        potential_fn: Callable | None = None,
        num_particles: int | None = None,
        start: str | Distribution | dict[str, Distribution] = "auto",
        guide: Callable | None = None,
        guide_params: dict | None = None,
        params: dict | None = None,
        plate: str | tuple[str, ...] | None = None,
        chunk_size: int | None = None,
    ) -> None:
        integrand = Integrand(model, potential_fn, start, guide, guide_params, params, plate)
        chain = resolve_chain(0, 1.0, None, None, None, None)
        num_particles = check_optional_count("num_particles", num_particles, 1)
        chunk_size = check_optional_count("chunk_size", chunk_size, 1)
        super().__init__(integrand, chain, num_particles, RunConfig(chunk_size=chunk_size))


class _Corrected(Estimator):
    """
    Annealing with Metropolis-corrected transitions, whose step size is adapted to an acceptance.
    """

    def __init__(
        self,
        integrand: Integrand,
        chain: ChainArguments,
        num_particles: int | None,
        transition: Transition,
        target_acceptance: float,
        adaptation: Adaptation,
        chunk_size: int | None,
        progress_bar: bool,
    ) -> None:
        num_particles = check_optional_count("num_particles", num_particles, 1)
        chunk_size = check_optional_count("chunk_size", chunk_size, 1)
        target_acceptance = check_number(
            "target_acceptance", target_acceptance, "a number in (0, 1)", lambda x: 0 < x < 1
        )
        if adaptation not in get_args(Adaptation):
            raise ValueError(f"adaptation must be 'pilot' or 'online'; got {adaptation!r}.")
        if adaptation == "online":
            _check_online(num_particles, chunk_size)
        self.target_acceptance = target_acceptance
        self.adaptation = adaptation
        is_online = adaptation == "online" and chain.settings is None
        config = RunConfig(
            transition,
            # Nobody differentiates these chains: all memory modes are one program.
            memory="plain",
            chunk_size=chunk_size,
            bar_title=type(self).__name__ if progress_bar else None,
            online_acceptance=target_acceptance if is_online else None,
        )
        super().__init__(integrand, chain, num_particles, config)

    def _tune(
        self,
        rng_key: jax.Array,
        problem: Problem,
        target: TracedTarget,
        is_start_free: bool = True,
        may_resample: bool = False,
        journal: Journal | None = None,
    ) -> Tuned:
        settings = first_settings(rng_key, target, self._chain.given)
        if self.adaptation == "online":
            return Tuned(settings)

        def acceptance_fn(key: jax.Array, settings: Settings, num_particles: int) -> np.ndarray:
            particles = run(key, target, settings, num_particles, self._trial_config)
            return np.asarray(particles.acceptance)

        tuned = tune_acceptance(
            rng_key,
            settings,
            self.target_acceptance,
            acceptance_fn,
            self._config.transition.num_leapfrog,
        )
        return Tuned(tuned)


def _check_online(num_particles: int | None, chunk_size: int | None) -> None:
    if num_particles == 1:
        raise ValueError(
            "On-line adaptation follows the mean acceptance over particles and needs at least 2; got "
            "num_particles=1. Use more, or adaptation='pilot'."
        )
    if chunk_size is not None:
        raise ValueError(
            "On-line adaptation follows all particles at once; leave chunk_size out, or use "
            "adaptation='pilot'."
        )


class HAIS(_Corrected):
    r"""
    Hamiltonian annealed importance sampling: the leapfrog steps and partial refreshment of
    :class:`~numpyro_dais.estimators.dais.DAIS`, each followed by a Metropolis decision; on
    rejection the momentum is negated.

    The weight gains :math:`\log f_k - \log f_{k-1}` before each transition. A left-out step size is
    adapted along a pilot run, to ``target_acceptance`` at each temperature (and for each element of
    a plate), and then frozen, so weights are unbiased. Its estimates cannot be differentiated.

    **References**

    1. *Hamiltonian Annealed Importance Sampling for partition function estimation*,
       Jascha Sohl-Dickstein, Benjamin J. Culpepper (2012)

    :param model: a NumPyro model.
    :param num_steps: the number of steps, at least one.
    :param target_acceptance: the acceptance that the step size is adapted to.
    :param adaptation: ``"pilot"``; or ``"online"``, which multiplies the step size of the reported
        run itself by 1.02 above the target acceptance and by 0.98 below. Particles then share
        information through the step size, and their weights are not exactly unbiased.

    The other parameters are those of :class:`~numpyro_dais.estimators.dais.DAIS`.
    """

    @explain_keywords(
        num_leapfrog="a step of HAIS is one leapfrog step; AIS takes several", **_OF_CORRECTED
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
        target_acceptance: float = 0.9,
        adaptation: Adaptation = "pilot",
        start: str | Distribution | dict[str, Distribution] = "auto",
        guide: Callable | None = None,
        guide_params: dict | None = None,
        params: dict | None = None,
        plate: str | tuple[str, ...] | None = None,
        chunk_size: int | None = None,
        progress_bar: bool = False,
    ) -> None:
        integrand = Integrand(model, potential_fn, start, guide, guide_params, params, plate)
        chain = resolve_chain(
            num_steps, step_size, damping, schedule, preconditioner, settings, min_steps=1
        )
        super().__init__(
            integrand,
            chain,
            num_particles,
            Transition(is_corrected=True),
            target_acceptance,
            adaptation,
            chunk_size,
            progress_bar,
        )


class AIS(_Corrected):
    """
    Annealed importance sampling with Hamiltonian Monte Carlo transitions: at each temperature a
    fresh momentum, ``num_leapfrog`` leapfrog steps and a Metropolis decision. The step size is
    found as for :class:`HAIS`; estimates cannot be differentiated.

    **References**

    1. *Annealed importance sampling*, Radford M. Neal (2001)

    :param model: a NumPyro model.
    :param num_steps: the number of temperatures, at least one.
    :param num_leapfrog: leapfrog steps, and so gradients, per temperature.
    :param target_acceptance: the acceptance that the step size is adapted to.
    :param adaptation: see :class:`HAIS`; ``"online"`` is the paper's rule.

    The other parameters are those of :class:`~numpyro_dais.estimators.dais.DAIS`.
    """

    @explain_keywords(damping="AIS refreshes the momentum fully", **_OF_CORRECTED)
    def __init__(
        self,
        model: Callable | None = None,
        *,
        potential_fn: Callable | None = None,
        num_steps: int | None = None,
        num_particles: int | None = None,
        num_leapfrog: int = 10,
        step_size: Any = None,
        schedule: Schedule | Any = None,
        preconditioner: Any = None,
        settings: Settings | None = None,
        target_acceptance: float = 0.65,
        adaptation: Adaptation = "pilot",
        start: str | Distribution | dict[str, Distribution] = "auto",
        guide: Callable | None = None,
        guide_params: dict | None = None,
        params: dict | None = None,
        plate: str | tuple[str, ...] | None = None,
        chunk_size: int | None = None,
        progress_bar: bool = False,
    ) -> None:
        num_leapfrog = check_count("num_leapfrog", num_leapfrog, 1)
        integrand = Integrand(model, potential_fn, start, guide, guide_params, params, plate)
        damping = 0.0 if settings is None else None
        chain = resolve_chain(
            num_steps, step_size, damping, schedule, preconditioner, settings, min_steps=1
        )
        super().__init__(
            integrand,
            chain,
            num_particles,
            Transition(is_corrected=True, num_leapfrog=num_leapfrog),
            target_acceptance,
            adaptation,
            chunk_size,
            progress_bar,
        )
