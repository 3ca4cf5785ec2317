# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Numbers of steps and particles for a wanted error, from what shorter runs have shown."""

import math
from typing import NamedTuple

import numpy as np

from numpyro_dais.tuning.goal import Goal
from numpyro_dais.tuning.quality import BLOCK, SAFETY
from numpyro_dais.tuning.trials import Trial, log_relative_variance

__all__ = [
    "ISLAND_SIZE",
    "LOOKS_COST",
    "MAX_WORDS",
    "NUM_LOOKS",
    "WIDTH",
    "Plan",
    "plan_chains",
    "plan_draws",
    "resampled",
    "variance_at",
]

# Particles of a chain at least: fewer have no error bar that one could trust. A round number.
_FEWEST = 32
# Islands at least, of a few of which an error bar can be made: with half as many steps and twice as
# many islands, models whose prior draws are stiff were worse off, and others not better.
_FEWEST_ISLANDS = 8
# How many times the variance of log weights, shared by all particles, the squared error of islands
# is: 0.04 on a hierarchy whose prior draws are stiff, 1 on a skewed product and 2 on a regression,
# all at 256 steps.
_ISLAND_VARIANCE = 2.0
# The variance of log weights that may be added between two looks, where it is the sum of a little
# for each dimension: with more, a few particles are left of an island each time. On a skewed
# product in 500 dimensions, with 3 and more, islands had twice the error of long chains. A variance
# of several nats for each dimension is that of stray draws, which are better left behind: of random
# intercepts, with 20 and more, long chains had three times the error of islands. A round number.
_LARGEST_LOOK = 2.0
# Steps that a chain of an island takes at least: fewer hardly move. A round number.
_FEWEST_STEPS = 64
# Numbers in the positions of all particles without steps at most, 768 MiB in float64: twice that,
# for a copy, and what else there is, stay below 2 GiB.
MAX_WORDS = 3 * 2**25
# Particles that run at a time: a vector for the processor, and few enough for a trial. Numbers of
# particles are multiples of it.
WIDTH = 8
# Particles of an island: what each mean weight owes to chance adds up, and must stay small against
# one in an island, or the islands' estimates are as unequal as weights without resampling. Islands
# of 8 were behind plain chains on a logistic regression in 50 dimensions.
ISLAND_SIZE = 32
# Looks at the weights of an island on its way, and gradients for each particle that they cost. A
# round number.
NUM_LOOKS = 24
LOOKS_COST = NUM_LOOKS // 2
# Of log weights, where some are not finite. A round number.
_LARGEST_VARIANCE = 1e6
# How the variance of log weights falls with the number of steps: as 1/K on Gaussians, as K to the
# -2/3 where each step costs a little. Between the two: a few particles do not tell.
_EXPONENT = 0.75


class Plan(NamedTuple):
    """
    Numbers of steps and particles, and what they promise.

    :param num_steps: the number of steps.
    :param num_particles: the number of particles.
    :param log_error: the logarithm of the error that is expected.
    :param cost: gradients.
    :param is_resampled: whether particles are resampled in islands.
    """

    num_steps: int
    num_particles: int
    log_error: float
    cost: float
    is_resampled: bool = False

    @property
    def error(self) -> float:
        """The error that is expected, in nats."""
        return math.exp(min(self.log_error, 700.0))


def plan_draws(score: float, goal: Goal, left: float, num_dims: int) -> Plan:
    """
    Returns the number of particles without steps.

    :param score: the relative variance of weights, as it may be.
    :param goal: the wanted error, and what is given.
    :param left: gradients that are left.
    :param num_dims: the dimension of a position: memory has room for so many only.
    """
    affordable = max(min(int(2 * left), MAX_WORDS // num_dims), 1)
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
    scale = _scale(trials)
    plans = []
    for num_steps in _numbers_of_steps(goal, num_rows, left):
        log_spread = log_relative_variance(scale / num_steps**_EXPONENT) + math.log(SAFETY)
        number = goal.num_particles or _num_particles(log_spread, num_steps, goal, left)
        log_error = 0.5 * (log_spread - math.log(number))
        plans.append(Plan(num_steps, number, log_error, number * (num_steps + 1)))
    affordable = [plan for plan in plans if plan.cost <= left] or plans[:1]
    good = [plan for plan in affordable if plan.log_error <= math.log(goal.target_error)]
    if good:
        return min(good, key=lambda plan: plan.cost)
    return min(affordable, key=lambda plan: plan.log_error)


def variance_at(trial: Trial, num_steps: int) -> float:
    """
    Returns the variance of log weights that is expected with another number of steps.

    :param trial: a run.
    :param num_steps: the number of steps.
    """
    return _scale([trial]) / num_steps**_EXPONENT


def resampled(plan: Plan, trials: list[Trial], goal: Goal, left: float, num_dims: int) -> Plan:
    """
    Returns a plan with resampling where that promises a smaller error: a product of many mean
    weights, each of which is well known, in place of one that is not.

    :param plan: the best without resampling.
    :param trials: runs of one candidate, of more and more steps.
    :param goal: the wanted error, and what is given.
    :param left: gradients that are left.
    :param num_dims: the dimension of a position.
    """
    is_given = goal.num_steps is not None or goal.num_particles is not None
    if is_given or plan.error <= goal.target_error:
        return plan
    smallest = _FEWEST_ISLANDS * ISLAND_SIZE
    affordable = int(left / smallest) - LOOKS_COST
    numbers = _numbers_of_steps(goal, affordable, left)
    numbers = [number for number in numbers if number >= _FEWEST_STEPS]
    if not numbers:
        return plan
    num_steps = numbers[-1]
    cost = num_steps + LOOKS_COST + 1
    number = int(left / cost) // ISLAND_SIZE * ISLAND_SIZE
    variance = _scale(trials) / num_steps**_EXPONENT
    if _LARGEST_LOOK * NUM_LOOKS < variance < num_dims:
        return plan
    variance *= _ISLAND_VARIANCE
    # An island's estimate is log-normal as a weight is, with the variance of its share.
    log_spread = log_relative_variance(variance / ISLAND_SIZE) + math.log(ISLAND_SIZE)
    log_error = 0.5 * (log_spread - math.log(number))
    other = Plan(num_steps, number, log_error, number * cost, True)
    return min(plan, other, key=lambda plan: plan.log_error)


def _numbers_of_steps(goal: Goal, num_rows: int, left: float) -> list[int]:
    """Numbers of steps to choose from, those that use up the budget among them."""
    if goal.num_steps is not None:
        return [goal.num_steps]
    powers = 2 ** np.arange(3, 30)
    between = 3 * powers // 2
    whole = [int(left / number - 1) // WIDTH * WIDTH for number in (_FEWEST, 3 * _FEWEST // 2)]
    numbers = sorted({*powers.tolist(), *between.tolist(), *whole})
    return [number for number in numbers if 0 < number <= num_rows]


def _num_particles(log_spread: float, num_steps: int, goal: Goal, left: float) -> int:
    affordable = max(int(left / (num_steps + 1)) // WIDTH * WIDTH, _FEWEST)
    log_wanted = log_spread - 2 * math.log(goal.target_error)
    if log_wanted > math.log(affordable):
        return affordable
    return max(math.ceil(math.exp(log_wanted) / WIDTH) * WIDTH, _FEWEST)


def _scale(trials: list[Trial]) -> float:
    """The variance of log weights times a power of the number of steps, from all runs."""
    logs = [
        # Where weights were lost, more steps are as good a hope as any.
        math.log(min(trial.log_variance, _LARGEST_VARIANCE)) + _EXPONENT * math.log(trial.num_steps)
        for trial in trials
    ]
    return math.exp(np.average(logs, weights=[len(trial.log_weights) for trial in trials]))
