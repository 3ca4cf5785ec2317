# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""What a user has said about the chains of an estimator, and what that leaves to be found."""

import math
from typing import Any, NamedTuple

from numpyro.distributions import Distribution, constraints

from numpyro_dais._util.checks import check_count
from numpyro_dais.sampler.loop import Memory
from numpyro_dais.sampler.reversible.fixed_point import Ratio, rational_damping
from numpyro_dais.sampler.schedule import Schedule, linear
from numpyro_dais.sampler.settings import Settings, make_settings
from numpyro_dais.tuning.goal import DEFAULT_DAMPING

__all__ = [
    "ChainArguments",
    "check_anchors",
    "check_goal",
    "check_only_settings",
    "check_what",
    "resolve_betas",
    "resolve_chain",
    "resolve_num_steps",
]


class ChainArguments(NamedTuple):
    """
    Arguments of the chains, defaults filled in.

    :param num_steps: the number of steps.
    :param damping: a number, or one per step.
    :param schedule: a function of the number of steps, or the inverse temperatures themselves.
    :param preconditioner: as it was given, or None.
    :param settings: all of them, or None if a step size is still to be found.
    :param ratio: the damping as a fraction, which ``memory="reversible"`` needs.
    :param given_steps: the number of steps as it was given, or None.
    :param is_free: whether nothing but, perhaps, a number of steps was given.
    """

    num_steps: int
    damping: Any
    schedule: Schedule | Any
    preconditioner: Any
    settings: Settings | None
    ratio: Ratio | None
    given_steps: int | None
    is_free: bool

    def settings_at(self, step_size: Any) -> Settings:
        """Returns complete settings, from a step size."""
        betas = resolve_betas(self.schedule, self.num_steps)
        return make_settings(betas, step_size, self.damping, self.preconditioner)


def resolve_chain(
    num_steps: int | None,
    step_size: Any,
    damping: Any,
    schedule: Schedule | Any,
    preconditioner: Any,
    settings: Settings | None,
    memory: Memory,
) -> ChainArguments:
    """
    Returns the arguments of the chains, or says what is wrong with them. They are those of
    :class:`~numpyro_dais.estimators.dais.DAIS`, None where they were left out.
    """
    if settings is not None:
        check_only_settings(settings, num_steps, step_size, damping, schedule, preconditioner)
    others = (step_size, damping, schedule, preconditioner, settings)
    is_free = all(argument is None for argument in others)
    damping = DEFAULT_DAMPING if damping is None else damping
    schedule = linear if schedule is None else schedule
    ratio = None
    if memory == "reversible":
        damping, ratio = rational_damping(damping if settings is None else settings.damping)
    if settings is None:
        resolved_steps = resolve_num_steps(num_steps, schedule)
    else:
        resolved_steps = settings.num_steps
        settings = settings if ratio is None else settings._replace(damping=damping)
    chain = ChainArguments(
        resolved_steps, damping, schedule, preconditioner, settings, ratio, num_steps, is_free
    )
    if settings is None:
        # A stand-in step size has the other settings checked here, not in the run.
        checked = chain.settings_at(1.0 if step_size is None else step_size)
        settings = None if step_size is None else checked
    return chain._replace(settings=settings)


DEFAULT_NUM_STEPS = 256


MIN_BUDGET = 2_000  # gradients: a shorter pilot run sees nothing


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
                f"A start for potential_fn= must have all reals as its support; a {type(fn).__name__} has "
                f"{support}. Change variables, or write a NumPyro model, where this is done for you."
            )


def check_goal(target_error: Any, budget: Any, is_complete: bool) -> None:
    """Raises an error unless these can be a wanted error and a number of gradients, for a self-tuned run."""
    if is_complete and (target_error is not None or budget is not None):
        raise ValueError(
            "target_error= and budget= are for self-tuned runs; step_size= or settings= leave nothing to tune. "
            "Give num_steps= and num_particles= instead."
        )
    if target_error is not None and not (math.isfinite(target_error) and target_error > 0):
        raise ValueError(f"target_error must be positive, in nats; got {target_error}.")
    if budget is not None:
        check_count("budget", budget, MIN_BUDGET)


def check_anchors(anchor_every: Any, memory: str) -> None:
    """Raises an error unless states may be stored every so many steps in this memory mode."""
    if anchor_every is None:
        return
    check_count("anchor_every", anchor_every, 1)
    if memory != "reversible":
        raise ValueError(
            f"anchor_every= has no meaning with memory={memory!r}; leave it out, or use "
            "memory='reversible'."
        )


def resolve_num_steps(
    num_steps: int | None, schedule: Any, default: int = DEFAULT_NUM_STEPS
) -> int:
    """Returns the number of steps, as given, that of the schedule, or the default."""
    if num_steps is None:
        return default if callable(schedule) else len(schedule)
    check_count("num_steps", num_steps, 0)
    return num_steps


def resolve_betas(schedule: Any, num_steps: int) -> Any:
    """Returns the inverse temperatures of a schedule, one for each step."""
    betas = schedule(num_steps) if callable(schedule) else schedule
    if len(betas) != num_steps:
        raise ValueError(
            f"The schedule must have one beta per step; got {len(betas)} betas for {num_steps} steps. "
            "Leave num_steps out to take its length from the schedule."
        )
    return betas


def check_only_settings(settings: Any, *others: Any) -> None:
    """Raises an error unless complete settings are given, and alone."""
    if not isinstance(settings, Settings):
        raise TypeError(f"settings must come from `tune` or `make_settings`; got {settings!r}.")
    if any(other is not None for other in others):
        raise ValueError(
            "settings= already has num_steps, step_size, damping, schedule and preconditioner; do not "
            "give these beside it."
        )
