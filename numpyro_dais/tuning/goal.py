# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""The goal of self-tuning: an accuracy, a budget, and what the user has fixed."""

from typing import NamedTuple

__all__ = [
    "DEFAULT_BUDGET",
    "DEFAULT_DAMPING",
    "DEFAULT_NUM_PARTICLES",
    "DEFAULT_TARGET_ERROR",
    "Goal",
]

# The paper's, for chains whose momentum is to survive some ten steps.
DEFAULT_DAMPING = 0.9
# Particles of a chain with a given step size: enough for a k-hat, and a second on a laptop.
DEFAULT_NUM_PARTICLES = 128
# Nats: below what any decision between models can depend on.
DEFAULT_TARGET_ERROR = 0.005
# Gradients: what NUTS spends on a small model in a few seconds.
DEFAULT_BUDGET = 100_000


class Goal(NamedTuple):
    """
    A purpose of settings; what is None is free.

    :param num_steps: the number of steps.
    :param num_particles: the number of particles.
    :param target_error: the wanted error of the log evidence, in nats.
    :param budget: gradients at most, all that is spent here included; a density counts as half of
        one.
    :param is_start_free: whether a fitted start may replace the given one.
    """

    num_steps: int | None
    num_particles: int | None
    target_error: float
    budget: int
    is_start_free: bool
