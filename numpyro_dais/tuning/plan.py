# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Numbers of steps and particles for a wanted error, from what shorter runs have shown."""

import math
from typing import NamedTuple

import numpy as np

from numpyro_dais.tuning.fitting import BLOCK, SAFETY
from numpyro_dais.tuning.goal import Goal
from numpyro_dais.tuning.trials import Trial, log_relative_variance

__all__ = ["Plan", "plan_chains", "plan_draws"]

# Particles of a chain at least: fewer have no error bar that one could trust. A round number.
_FEWEST = 32
# Particles come in multiples of what runs at a time; see numpyro_dais.estimators.staged.
_UNIT = 8
# How the variance of log weights falls with the number of steps where no two runs have shown it: as
# 1/K on Gaussians, as K to the -2/3 where each step costs a little; and what noise may claim.
_EXPONENT, _EXPONENTS = 0.75, (0.4, 1.0)


class Plan(NamedTuple):
    """
    Numbers of steps and particles, and what they promise.

    :param num_steps: the number of steps.
    :param num_particles: the number of particles.
    :param log_error: the logarithm of the error that is expected.
    :param cost: gradients.
    """

    num_steps: int
    num_particles: int
    log_error: float
    cost: float

    @property
    def error(self) -> float:
        """The error that is expected, in nats."""
        return math.exp(min(self.log_error, 700.0))


def plan_draws(score: float, goal: Goal, left: float) -> Plan:
    """
    Returns the number of particles without steps.

    :param score: the relative variance of weights, as it may be.
    :param goal: the wanted error, and what is given.
    :param left: gradients that are left.
    """
    affordable = max(int(2 * left), 1)
    if affordable > BLOCK:
        affordable -= affordable % BLOCK
    variance = min(max(SAFETY * score, 1e-12), 1e300)
    wanted = min(variance / goal.target_error**2, 1e15)
    # They cost next to nothing, and more of them see more of the tail.
    wanted = max(math.ceil(wanted / BLOCK) * BLOCK, BLOCK)
    number = min(wanted, affordable) if goal.num_particles is None else goal.num_particles
    return Plan(0, number, 0.5 * math.log(variance / number), 0.5 * number)


def plan_chains(trials: list[Trial], goal: Goal, left: float, num_rows: int) -> Plan:
    """
    Returns numbers of steps and particles: the cheapest that promise the wanted error, or the best
    that can be paid.

    :param trials: runs of one candidate, of more and more steps.
    :param goal: the wanted error, and what is given.
    :param left: gradients that are left.
    :param num_rows: the largest number of steps.
    """
    last = trials[-1]
    exponent = _exponent(trials)
    plans = []
    for num_steps in _numbers_of_steps(goal, num_rows):
        log_variance = last.log_variance * (last.num_steps / num_steps) ** exponent
        log_spread = log_relative_variance(min(log_variance, 1e6)) + math.log(SAFETY)
        number = goal.num_particles or _num_particles(log_spread, num_steps, goal, left)
        log_error = 0.5 * (log_spread - math.log(number))
        plans.append(Plan(num_steps, number, log_error, number * (num_steps + 1)))
    affordable = [plan for plan in plans if plan.cost <= left] or plans[:1]
    good = [plan for plan in affordable if plan.log_error <= math.log(goal.target_error)]
    if good:
        return min(good, key=lambda plan: plan.cost)
    return min(affordable, key=lambda plan: plan.log_error)


def _numbers_of_steps(goal: Goal, num_rows: int) -> list[int]:
    if goal.num_steps is not None:
        return [goal.num_steps]
    powers = 2 ** np.arange(3, 30)
    between = 3 * powers // 2
    numbers = sorted({*powers.tolist(), *between.tolist()})
    return [number for number in numbers if number <= num_rows]


def _num_particles(log_spread: float, num_steps: int, goal: Goal, left: float) -> int:
    affordable = max(int(left / (num_steps + 1)) // _UNIT * _UNIT, _FEWEST)
    log_wanted = log_spread - 2 * math.log(goal.target_error)
    if log_wanted > math.log(affordable):
        return affordable
    return max(math.ceil(math.exp(log_wanted) / _UNIT) * _UNIT, _FEWEST)


def _exponent(trials: list[Trial]) -> float:
    if len(trials) < 2:
        return _EXPONENT
    before, last = trials[-2:]
    ratio = before.log_variance / last.log_variance
    if not 0 < ratio < math.inf or before.num_steps == last.num_steps:
        return _EXPONENT
    measured = math.log(ratio) / math.log(last.num_steps / before.num_steps)
    return float(np.clip(measured, *_EXPONENTS))
