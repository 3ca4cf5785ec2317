# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

r"""
Annealing schedules and step sizes: plain functions of the number of steps.

A schedule is an array of inverse temperatures :math:`0 \le \beta_1 < \dots < \beta_K = 1`; the
start, :math:`\beta_0 = 0`, is left out. They are computed in float64 on the host, so that
:math:`\beta_K` is exactly one whatever precision JAX runs in.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from numpyro_dais._util.checks import are_numbers

__all__ = [
    "Schedule",
    "fourth_root_step_size",
    "interpolate",
    "linear",
    "power",
    "resolve_schedule",
    "sigmoid",
    "validate_betas",
]

Schedule: TypeAlias = Callable[[int], NDArray[np.float64]]


def linear(num_steps: int) -> NDArray[np.float64]:
    r"""
    Returns :math:`\beta_k = k / K`, the schedule of the paper's analysis.

    :param num_steps: the number of steps :math:`K`.

    >>> linear(4).tolist()
    [0.25, 0.5, 0.75, 1.0]
    """
    return np.arange(1, num_steps + 1) / max(num_steps, 1)


def power(num_steps: int, exponent: float = 4.0) -> NDArray[np.float64]:
    r"""
    Returns :math:`\beta_k = (k / K)^p`, which dwells near the start where a vague prior meets a
    sharp likelihood.

    :param num_steps: the number of steps :math:`K`.
    :param exponent: the power :math:`p > 0`.

    >>> power(4, exponent=2.0).tolist()
    [0.0625, 0.25, 0.5625, 1.0]
    """
    if not exponent > 0:
        raise ValueError(f"The exponent of a power schedule must be positive; got {exponent}.")
    return linear(num_steps) ** exponent


def sigmoid(num_steps: int, steepness: float = 4.0) -> NDArray[np.float64]:
    r"""
    Returns :math:`\beta_k = (s_k - s_0) / (s_K - s_0)` with
    :math:`s_k = (1 + e^{-\delta (2k/K - 1)})^{-1}`, which dwells near both ends.

    :param num_steps: the number of steps :math:`K`.
    :param steepness: the steepness :math:`\delta > 0`.

    >>> sigmoid(2).tolist()
    [0.5, 1.0]
    """
    if not steepness > 0:
        raise ValueError(f"The steepness of a sigmoid schedule must be positive; got {steepness}.")
    levels = 1 / (1 + np.exp(-steepness * (2 * np.append(0.0, linear(num_steps)) - 1)))
    betas: NDArray[np.float64] = (levels[1:] - levels[0]) / (levels[-1] - levels[0])
    return betas


_NAMED: dict[str, Schedule] = {"linear": linear, "sigmoid": sigmoid, "power": power}


def resolve_schedule(schedule: Any) -> Any:
    """
    Returns the schedule of a name, or the schedule itself: a function or inverse temperatures.

    :param schedule: what the user asked for.

    >>> resolve_schedule("linear")(2).tolist()
    [0.5, 1.0]
    """
    if isinstance(schedule, str) and schedule in _NAMED:
        return _NAMED[schedule]
    if callable(schedule) or (are_numbers(schedule) and np.ndim(schedule) > 0):
        return schedule
    names = ", ".join(repr(name) for name in _NAMED)
    raise ValueError(
        f"schedule must be one of {names}, a function of the number of steps, or the inverse temperatures "
        f"themselves, one per step and ending in 1; got {schedule!r}."
    )


def fourth_root_step_size(num_steps: int, scale: float = 0.08) -> float:
    r"""
    Returns :math:`\eta = a (K / 10)^{-1/4}`, the scaling under which the gap falls fastest
    (Theorem 1 of the paper).

    :param num_steps: the number of steps :math:`K`.
    :param scale: the step size :math:`a` at ten steps.

    >>> fourth_root_step_size(10)
    0.08
    """
    return float(scale * (max(num_steps, 1) / 10) ** -0.25)


def interpolate(values: Any, num_steps: int, is_zero_first: bool = False) -> Any:
    r"""
    Returns a setting of each step for another number of steps: as a function of :math:`k/K`, linear
    between the steps that it is known for. Its values may be traced.

    :param values: one for each step, along the first axis; a NumPy or JAX array.
    :param num_steps: the number of steps wanted.
    :param is_zero_first: whether the setting is zero at :math:`k = 0`, as inverse temperatures are,
        or else what it is at the first step.

    >>> interpolate(np.array([0.2, 1.0]), 4, is_zero_first=True).tolist()
    [0.1, 0.2, 0.6, 1.0]
    >>> interpolate(np.array([0.2, 1.0]), 4).tolist()
    [0.2, 0.2, 0.6, 1.0]
    """
    # In integers, so that the last step keeps its value exactly.
    place = np.arange(1, num_steps + 1) * len(values)
    after = -(-place // num_steps)
    shape = (-1, *(1,) * (values.ndim - 1))
    share = (place / num_steps - (after - 1)).reshape(shape)
    before = values[np.maximum(after - 2, 0)]
    if is_zero_first:
        before = before * (after > 1).reshape(shape)
    return (1 - share) * before + share * values[after - 1]


def validate_betas(betas: ArrayLike) -> NDArray[np.float64]:
    """
    Returns ``betas`` as a float64 array, or says what is wrong with them.

    :param betas: inverse temperatures, one per step.
    """
    values = np.asarray(betas, dtype=np.float64)
    if values.ndim != 1:
        raise ValueError(
            f"A schedule must be one array of inverse temperatures; got shape {values.shape}."
        )
    if values.size == 0:
        return values
    previous = np.append(-np.inf, values[:-1])
    if not (np.all(np.isfinite(values)) and np.all(values > previous) and values[0] >= 0):
        index = int(np.argmax(~(np.isfinite(values) & (values > previous) & (values >= 0))))
        raise ValueError(
            "The betas of a schedule must be increasing, from at least 0 to 1; "
            f"betas[{index}] = {values[index]} breaks this. Sort them and drop repeated values."
        )
    if values[-1] != 1:
        raise ValueError(
            f"The betas of a schedule must end in 1, the target itself; got {values[-1]}. "
            "Divide them by their last value."
        )
    return values
