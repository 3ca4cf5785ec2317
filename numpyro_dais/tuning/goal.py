# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""What self-tuning is to reach, and with what."""

from typing import NamedTuple

__all__ = [
    "DEFAULT_BUDGET",
    "DEFAULT_DAMPING",
    "DEFAULT_NUM_PARTICLES",
    "DEFAULT_TARGET_ERROR",
    "Goal",
]

DEFAULT_DAMPING = 0.9
DEFAULT_NUM_PARTICLES = 128
DEFAULT_TARGET_ERROR = 0.005
DEFAULT_BUDGET = 100_000


class Goal(NamedTuple):
    """
    What settings are for; what is None is free.

    :param num_steps: the number of steps.
    :param num_particles: the number of particles.
    :param target_error: the wanted error of the log evidence, in nats.
    :param budget: gradients at most, all that is spent here included; a density counts as half of one.
    :param is_start_free: whether a fitted start may replace the given one.
    """

    num_steps: int | None
    num_particles: int | None
    target_error: float
    budget: int
    is_start_free: bool
