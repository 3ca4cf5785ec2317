# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""What a user has said about the chains of an estimator, and what that leaves to be found."""

from typing import Any, NamedTuple

from numpyro_dais.chain import Memory
from numpyro_dais.fixed_point import Ratio, rational_damping
from numpyro_dais.goal import DEFAULT_DAMPING
from numpyro_dais.schedule import Schedule, linear
from numpyro_dais.settings import Settings, make_settings
from numpyro_dais.validation import check_only_settings, resolve_betas, resolve_num_steps

__all__ = ["ChainArguments", "resolve_chain"]


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
    :class:`~numpyro_dais.estimators.DAIS`, None where they were left out.
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
