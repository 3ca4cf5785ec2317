# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

r"""
Chains that may be the best for a target: ways to choose a start, a schedule, steps and a metric.

Uncorrected leapfrog steps of a density that is not Gaussian cost a little each, for ever, so a step
belongs to a number of steps: every candidate shrinks its own as :math:`K^{-1/4}` (Theorem 1 of the
paper). They are compared by runs with the same randomness, not by what theory promises.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from numpyro_dais.model.traced import TracedTarget
from numpyro_dais.sampler.mixture import Mixture
from numpyro_dais.sampler.schedule import fourth_root_step_size, linear, power
from numpyro_dais.sampler.settings import Settings, make_settings
from numpyro_dais.tuning.annealing import anneal, damping_of
from numpyro_dais.tuning.goal import DEFAULT_DAMPING
from numpyro_dais.tuning.population import MeasuredPath

__all__ = ["LADDER", "REFERENCE_STEPS", "Candidate", "along", "plain_candidates"]

# The number of steps at which step sizes of a ladder are named.
REFERENCE_STEPS = 64
# In units of the density's width, at that number: from the one that forgets a Gaussian in one step,
# down by factors of about two.
LADDER = (1.4, 0.9, 0.55, 0.3, 0.15, 0.07, 0.03)
# Of the paper's plain chain, at ten steps and in units of the start's spread.
_PLAIN_SCALES = (0.3, 0.1, 0.03)


class Candidate(NamedTuple):
    """
    A way to choose the settings of a chain for any number of steps.

    :param words: what it is, for people.
    :param family: which candidates differ from it by their step size only.
    :param target: the target, with the start that it is for.
    :param step_size: at ``REFERENCE_STEPS`` steps.
    :param make: the settings, from a number of steps and a step size.
    :param path: the path that the chain follows; None for a plain chain.
    """

    words: str
    family: str
    target: TracedTarget
    step_size: float
    make: Callable[[int, float], Settings]
    path: MeasuredPath | None = None

    @property
    def start(self) -> Mixture | None:
        """The fitted start, if it has one."""
        return self.target.mixture

    def at(self, num_steps: int) -> Settings:
        """Returns the settings of a chain of so many steps."""
        return self.make(num_steps, self.step_size_at(num_steps))

    def step_size_at(self, num_steps: int) -> float:
        """Returns the step size of a chain of so many steps."""
        return self.step_size * (num_steps / REFERENCE_STEPS) ** -0.25

    def with_path(self, path: MeasuredPath) -> "Candidate":
        """Returns the candidate on a path that was measured anew."""
        return along(path, self.target, self.step_size, self.family)


def along(path: MeasuredPath, target: TracedTarget, step_size: float, family: str) -> Candidate:
    """
    Returns chains along a path, with steps in units of its widths.

    :param path: the path.
    :param target: the target, with its start.
    :param step_size: at ``REFERENCE_STEPS`` steps.
    :param family: what the path is, in words.
    """

    def make(num_steps: int, step_size: float) -> Settings:
        step_size = min(step_size, LADDER[0])
        return anneal(path, num_steps, step_size, damping_of(step_size))

    words = f"{family}, step {step_size:.2g}"
    return Candidate(words, family, target, step_size, make, path)


def plain_candidates(target: TracedTarget, unit: np.ndarray) -> list[Candidate]:
    r"""
    Returns the paper's chains: :math:`\eta = a (K/10)^{-1/4}` in units of the start's spread, the
    paper's damping, and a linear or fourth-power schedule.

    :param target: the target, with its start.
    :param unit: the start's spread, ``[num_dims]``.
    """
    candidates = []
    for name, schedule in {"linear": linear, "fourth-power": power}.items():

        def make(num_steps: int, step_size: float, schedule: Any = schedule) -> Settings:
            return make_settings(schedule(num_steps), step_size, DEFAULT_DAMPING, unit)

        for scale in _PLAIN_SCALES:
            words = f"the plain chain, a = {scale}, {name} schedule"
            step_size = fourth_root_step_size(REFERENCE_STEPS, scale)
            candidates.append(Candidate(words, f"plain, {name}", target, step_size, make))
    return candidates
