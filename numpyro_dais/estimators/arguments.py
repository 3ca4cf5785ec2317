# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Arguments of estimators: checked before anything runs, and with their defaults filled in."""

from collections.abc import Callable
from dataclasses import dataclass
import difflib
from functools import wraps
import inspect
from typing import Any, NamedTuple, ParamSpec

import numpy as np

from numpyro.distributions import Distribution, constraints

from numpyro_dais._util.checks import (
    check_count,
    check_number,
    check_optional_count,
    with_article,
)
from numpyro_dais.model.guide import check_guide
from numpyro_dais.model.problem import Problem
from numpyro_dais.sampler.loop import Memory
from numpyro_dais.sampler.reversible.fixed_point import Ratio, rational_damping
from numpyro_dais.sampler.schedule import Schedule, linear, resolve_schedule
from numpyro_dais.sampler.settings import (
    PartialSettings,
    Settings,
    check_damping,
    resolve_num_steps,
)
from numpyro_dais.tuning.goal import DEFAULT_BUDGET, DEFAULT_DAMPING, DEFAULT_TARGET_ERROR

__all__ = [
    "ChainArguments",
    "Integrand",
    "check_anchors",
    "check_goal",
    "check_islands",
    "check_keyword",
    "explain_keywords",
    "resolve_chain",
]

P = ParamSpec("P")

# With a step size given and nothing else: a moderate run.
DEFAULT_NUM_STEPS = 256
# Gradients: a shorter self-tuned run sees nothing.
MIN_BUDGET = 2_000
# Particles on an island: one alone is never resampled.
_LEAST_ON_ISLAND = 2

# Words of other libraries, and what they are called here.
_SYNONYMS = {
    "num_samples": "num_particles",
    "num_chains": "num_particles",
    "num_draws": "num_particles",
    "num_temperatures": "num_steps",
    "num_warmup": "budget",
    "betas": "schedule",
    "mass_matrix": "preconditioner",
    "tolerance": "target_error",
    "proposal": "guide",
}


def explain_keywords(
    **reasons: str,
) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """
    Returns a decorator of a constructor, which explains the keywords that it does not have: by the
    word that was meant, or by why a keyword of another estimator has no meaning. It also explains
    arguments by position that must be named.

    :param reasons: why, by the keyword of another estimator.
    """

    def decorate(init: Callable[P, None]) -> Callable[P, None]:
        _, *parameters = inspect.signature(init).parameters.values()
        known = [parameter.name for parameter in parameters]
        unnamed = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]

        @wraps(init)
        def checked(*args: P.args, **kwargs: P.kwargs) -> None:
            owner, values = type(args[0]).__name__, args[1:]
            for name in kwargs.keys() - known:
                raise TypeError(_explain(owner, name, known, reasons))
            for value in values[len(unnamed) :]:
                raise TypeError(_explain_position(owner, value, unnamed, known))
            init(*args, **kwargs)

        return checked

    return decorate


def _explain(owner: str, name: str, known: list[str], reasons: dict[str, str]) -> str:
    if name in reasons:
        return f"{owner} has no argument {name!r}: {reasons[name]}. Leave it out."
    meant = _SYNONYMS.get(name)
    if meant not in known:
        meant = next(iter(difflib.get_close_matches(name, known, n=1)), None)
    hint = f"Did you mean {meant!r}?" if meant else f"It has {', '.join(known)}."
    return f"{owner} has no argument {name!r}. {hint}"


def _explain_position(owner: str, value: Any, unnamed: list[str], known: list[str]) -> str:
    allowed = f"{unnamed[0]} only" if unnamed else "nothing"
    likely = [f"{name}=" for name in ("num_steps", "num_particles") if name in known]
    return (
        f"{owner} takes {allowed} by position, since numbers are easily mistaken for each other; got {value!r}. "
        f"Name it: {' or '.join(likely)}, or another of {owner}'s keywords."
    )


def check_keyword(
    owner: str, keyword: str, value: Any, model: Callable | None, args: tuple
) -> None:
    """
    Raises an error if a keyword of ours is one of the model, too, which would not get it.

    :param owner: the function whose keyword it is.
    :param keyword: its name.
    :param value: what was given.
    :param model: the model; None if there is none.
    :param args: its arguments by position.
    """
    try:
        signature = inspect.signature(model)  # type: ignore[arg-type]
        given = signature.bind_partial(*args).arguments
    except (TypeError, ValueError):  # no signature, or arguments that do not fit it
        return
    if keyword in signature.parameters and keyword not in given:
        raise ValueError(
            f"{keyword}= is an argument of {owner} and also one of the model, which would not get it; got {value!r}. "
            f"Give the model's own by position, or wrap the model: lambda *args: model(*args, {keyword}=value)."
        )


@dataclass(frozen=True)
class Integrand:
    """
    A model or a potential function, and where chains start; the parameters are described in
    :class:`~numpyro_dais.estimators.dais.DAIS`.
    """

    model: Callable | None
    potential_fn: Callable | None
    start: Any
    guide: Callable | None
    guide_params: dict | None
    params: dict | None
    plate: str | tuple[str, ...] | None

    def __post_init__(self) -> None:
        check_what(self.model, self.potential_fn, self.start, self.guide, self.plate)
        check_guide(self.guide, self.guide_params)

    @property
    def is_start_given(self) -> bool:
        """True if the user has said where chains of a model start."""
        return self.guide is not None or not (self.start == "auto" or self.model is None)

    def problem(self, args: tuple, kwargs: dict) -> Problem:
        """Returns the problem at arguments of the model."""
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


class ChainArguments(NamedTuple):
    """
    Arguments of the chains, defaults filled in.

    :param given: all but the step size.
    :param settings: all of them, or None if a step size is still to be found.
    :param ratio: the damping as a fraction, which ``memory="reversible"`` needs.
    :param given_steps: the number of steps as it was given, or None.
    :param is_free: whether nothing but, perhaps, a number of steps was given.
    """

    given: PartialSettings
    settings: Settings | None
    ratio: Ratio | None = None
    given_steps: int | None = None
    is_free: bool = False

    @property
    def num_steps(self) -> int:
        """The number of steps."""
        return self.given.num_steps


def resolve_chain(
    num_steps: int | None,
    step_size: Any,
    damping: Any,
    schedule: Schedule | Any,
    preconditioner: Any,
    settings: Settings | None,
    memory: Memory = "checkpoint",
    min_steps: int = 0,
) -> ChainArguments:
    """
    Returns the arguments of the chains, or says what is wrong with them. They are those of
    :class:`~numpyro_dais.estimators.dais.DAIS`, None where they were left out.

    :param min_steps: the smallest number of steps that makes sense.
    """
    if settings is not None:
        check_only_settings(settings, num_steps, step_size, damping, schedule, preconditioner)
    others = (step_size, damping, schedule, preconditioner, settings)
    is_free = all(argument is None for argument in others)
    num_steps = check_optional_count("num_steps", num_steps, min_steps)
    damping = DEFAULT_DAMPING if damping is None else damping
    check_damping(damping)
    schedule = linear if schedule is None else resolve_schedule(schedule)
    ratio = None
    if memory == "reversible":
        damping, ratio = rational_damping(damping if settings is None else settings.damping)
    if settings is not None:
        settings = settings if ratio is None else settings._replace(damping=damping)
        given = PartialSettings(settings.num_steps, damping, schedule, preconditioner)
    else:
        resolved_steps = resolve_num_steps(num_steps, schedule, DEFAULT_NUM_STEPS)
        given = PartialSettings(resolved_steps, damping, schedule, preconditioner)
        # A stand-in step size has the other settings checked here, not in the run.
        checked = given.at(1.0 if step_size is None else step_size)
        settings = None if step_size is None else checked
    check_count("num_steps", given.num_steps, min_steps)
    return ChainArguments(given, settings, ratio, num_steps, is_free)


def check_islands(
    resample_at: Any,
    num_islands: int,
    num_steps: int | None,
    num_particles: int | None,
    memory: Memory,
    refused: dict[str, Any],
) -> tuple[float, ...]:
    """
    Returns the inverse temperatures at which particles are resampled, or raises an error.

    :param resample_at: what the user asked for.
    :param num_islands: the number of islands.
    :param num_steps: the number of steps, or None.
    :param num_particles: the number of particles, or None.
    :param memory: the memory mode.
    :param refused: values of ``plate``, ``minibatch`` and ``surrogate``, which do not go with
        resampling.
    """
    betas = np.atleast_1d(np.asarray(resample_at, np.float64))
    is_good = betas.ndim == 1 and np.all((betas > 0) & (betas < 1)) and np.all(np.diff(betas) > 0)
    if not is_good:
        raise ValueError(
            f"resample_at must be inverse temperatures in (0, 1), increasing; got {resample_at!r}. Leave it out to "
            "run without resampling."
        )
    if not len(betas):
        return ()
    if num_steps == 0:
        raise ValueError("resample_at needs steps to resample between; got num_steps=0.")
    if num_particles is not None and (
        num_particles % num_islands or num_particles < _LEAST_ON_ISLAND * num_islands
    ):
        raise ValueError(
            f"num_particles must be a multiple of num_islands={num_islands}, with at least {_LEAST_ON_ISLAND} on "
            f"each; got {num_particles}. Change one of the two."
        )
    for name, value in refused.items():
        if value:
            raise NotImplementedError(
                f"resample_at= does not go with {name}={value!r}: {_NOT_RESAMPLED[name]}. Leave one of them out."
            )
    if memory == "reversible":
        raise NotImplementedError(
            "memory='reversible' runs a chain backwards, and a resampling cannot be undone; got resample_at=. Use "
            "memory='checkpoint'."
        )
    return tuple(betas.tolist())


_NOT_RESAMPLED = {
    "plate": "each element would need a resampling of its own",
    "minibatch": "the density of all the data is needed along the chain",
    "surrogate": "the density of all the data is needed along the chain",
}


def check_what(model: Any, potential_fn: Any, start: Any, guide: Any, plate: Any) -> None:
    """Raises an error unless there is one thing to integrate, and a start for it."""
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
    if not (is_dict or isinstance(start, Distribution) or start in ("auto", "prior")):
        raise ValueError(
            f"start must be 'auto', 'prior', a distribution, or a dict of distributions by site; got {start!r}."
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
                f"A start for potential_fn= must have all reals as its support; {with_article(type(fn).__name__)} has "
                f"{support}. Change variables, or write a NumPyro model, where this is done for you."
            )


def check_goal(
    target_error: Any, budget: Any, max_seconds: Any, is_complete: bool
) -> tuple[float, int, float | None]:
    """
    Returns the wanted error, the number of gradients and the time of a self-tuned run, defaults
    filled in, or says what is wrong with them.
    """
    if is_complete and any(given is not None for given in (target_error, budget, max_seconds)):
        raise ValueError(
            "target_error= and budget= are for self-tuned runs, and so is max_seconds=; step_size= or settings= "
            "leave nothing to tune. Give num_steps= and num_particles= instead."
        )
    if target_error is None:
        target_error = DEFAULT_TARGET_ERROR
    rule = f"positive, in nats ({DEFAULT_TARGET_ERROR} if left out)"
    target_error = check_number("target_error", target_error, rule, lambda value: value > 0)
    budget = DEFAULT_BUDGET if budget is None else budget
    if max_seconds is not None:
        rule = "a positive number of seconds"
        max_seconds = check_number("max_seconds", max_seconds, rule, lambda value: value > 0)
    return target_error, check_count("budget", budget, MIN_BUDGET), max_seconds


def check_anchors(anchor_every: Any, memory: str) -> int | None:
    """
    Returns how often states are stored, or raises an error unless they may be in this memory mode.
    """
    if anchor_every is None:
        return None
    if memory != "reversible":
        raise ValueError(
            f"anchor_every= has no meaning with memory={memory!r}; leave it out, or use "
            "memory='reversible'."
        )
    return check_count("anchor_every", anchor_every, 1)


def check_only_settings(settings: Any, *others: Any) -> None:
    """Raises an error unless complete settings are given, and alone."""
    if not isinstance(settings, Settings):
        raise TypeError(f"settings must come from `tune` or `make_settings`; got {settings!r}.")
    if any(other is not None for other in others):
        raise ValueError(
            "settings= already has num_steps, step_size, damping, schedule and preconditioner; do not "
            "give these beside it."
        )
