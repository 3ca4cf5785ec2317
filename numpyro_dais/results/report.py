# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Words about an evidence: the text that is printed, and the reasons not to trust it."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from numpyro_dais._util.tails import upper_variance
from numpyro_dais._util.weights import resolution
from numpyro_dais.model.inspection import missing_data
from numpyro_dais.results.diagnostics import FEWEST_FOR_TAIL, Check
from numpyro_dais.results.evidence import Evidence

__all__ = [
    "describe",
    "estimate",
    "find_faults",
    "is_error_known",
    "is_far_above",
    "is_tail_known",
    "share",
    "weight_unit",
    "with_error",
]

# The largest k-hat at which errors are to be trusted, by Vehtari et al. (2024). Of weights whose
# tail is one of Pareto, two errors with the tail's part cover the truth up to a k-hat of 1, in 94 %
# of runs and more (benchmarks/error_bars.py); those of fits to bent ridges and series, in
# benchmarks/trust.py, do not: with a k-hat of 0.75 to 0.82 they were four and more errors too low.
_KHAT_LIMIT = 0.7

# The same for a fit that a second look had no power to check: of the models of benchmarks/trust.py
# set aside last, three of 19 silent runs with a k-hat of 0.6 to 0.7 were 0.11 to 0.14 nats too low,
# by five to seven of their errors; all of them were such. Regressions and hierarchies in 19 to 53
# dimensions that are right are warned of, too: four more of 104.
_UNCHECKED_KHAT = 0.6

# Weights below which the variance of their logarithms is looked at, and what it may be; see
# numpyro_dais._util.tails.upper_variance. Of 32, 48 and 64 log-normal weights, of variances from
# 0.1 to 10, 92, 94 and 96 % of the runs without a warning have the truth within two errors; without
# this limit 89, 90 and 92 % would, and from 128 weights on 95 % do. The effective sample size does
# not tell them apart. A limit of 2 would warn of half of the runs whose variance is 2, of which
# 97 % are right. By benchmarks/error_bars.py.
_FEW_WEIGHTS, _MOST_VARIANCE = 128, 3.0

# The share of a standard error that may go missing with weights that are not finite before a
# warning says so: a round number, well below what an error bar shows.
_TOLERATED_LOSS = 0.1

# The smallest effective sample size (or number of effective pairs of both directions) without a
# warning. A round number: below it the error bar is itself an estimate from a handful of values.
_ESS_LIMIT = 5.0

# Errors, and nats, by which another estimate must lie above the reported one to be a warning. On
# 770 good fits of four conjugate models of tests/cases.py (gamma-Poisson, hierarchy, mixture and
# regression), with the default budget and with 60,000 gradients, one was above by three errors and
# none by this number. 0.05 nats are the least that the project calls a failure.
_FAR_ABOVE, _TOLERATED_DIFFERENCE = 3.5, 0.05

# Rounding of log weights is a fault if it is above a third of the standard error, where it would
# widen it by a twentieth, and above 1e-4 nats, less than anyone asks for. Round numbers.
_TOLERATED_ROUNDING = 1 / 3
_FINEST_RESOLUTION = 1e-4

# An error that is larger than its goal by less than this factor is as good as it. A round number.
_MISSED = 1.2

# The number of elements of a plate that are printed: a round number, a few lines of a terminal.
_NUM_SHOWN = 5

# An error is printed with two digits, by the custom of physics, and with 6 decimals at most. One
# that would not show in these is taken for zero.
_MAX_DECIMALS = 6
_SMALLEST_ERROR = 10.0**-_MAX_DECIMALS


def describe(evidence: Evidence) -> str:
    """
    Returns the text that is printed: the estimate, its error and bounds, cost, remarks and
    warnings.

    :param evidence: a result with concrete values.
    """
    if evidence.log_weights.ndim > 1:
        lines = _describe_many(evidence)
    else:
        lines = [
            f"{evidence.method}: log evidence {estimate(evidence)}",
            *_describe_lower_bound(evidence),
            *_describe_upper_bound(evidence),
            f"  {_cost(evidence)}; ESS {float(evidence.ess):.1f}, k-hat {_khat(evidence)}",
            *_describe_goal(evidence),
            *_describe_budget(evidence),
        ]
    lines += [f"  Note: {remark}" for remark in evidence.remarks]
    return "\n".join(lines + [f"  Warning: {fault}" for fault in evidence.warnings])


def find_faults(evidence: Evidence) -> tuple[str, ...]:
    """
    Returns the reasons not to trust a result, each with a remedy; none if all is well.

    :param evidence: a result with concrete values.
    """
    return (
        *evidence.notes,
        *_faults_of_data(evidence),
        *_faults_of_losses(evidence),
        *_faults_of_weights(evidence),
        *_faults_of_agreement(evidence),
        *_faults_of_rounding(evidence),
    )


def estimate(evidence: Evidence) -> str:
    """
    Returns the log evidence with its error, if that can be trusted.

    :param evidence: a result with concrete values and one number.
    """
    is_known = bool(is_error_known(evidence))
    return with_error(evidence.log_evidence, evidence.standard_error, is_known)


def is_error_known(evidence: Evidence) -> np.ndarray:
    """
    Returns whether the standard error is to be trusted, for each number of an evidence: neither
    lost weights nor a heavy tail speak against it.

    :param evidence: a result with concrete values.
    """
    is_known = np.full(np.shape(evidence.log_evidence), not any(_faults_of_losses(evidence)))
    if evidence.overlap is not None:
        return is_known & (np.asarray(evidence.overlap) >= _ESS_LIMIT)
    number = evidence.num_weights
    return is_known & is_tail_known(evidence.ess, evidence.khat, _upper_variance(evidence), number)


def is_tail_known(ess: Any, khat: Any, upper_variance: Any, num_weights: int) -> np.ndarray:
    """
    Returns whether weights are such that their standard error is to be trusted.

    :param ess: their effective sample size.
    :param khat: the shape of their tail; None for not known, where they are few.
    :param upper_variance: see :func:`numpyro_dais._util.tails.upper_variance`.
    :param num_weights: their number.
    """
    is_known = np.asarray(ess) >= _least_ess(num_weights)
    if khat is None:
        return is_known
    if num_weights < _FEW_WEIGHTS:
        is_known &= np.asarray(upper_variance) <= _MOST_VARIANCE
    return is_known & (np.asarray(khat) <= _KHAT_LIMIT)


def with_error(value: Any, error: Any, is_known: bool = True) -> str:
    """
    Returns a number with its error, as ``-31.307 ± 0.046``.

    :param value: the number.
    :param error: its standard error.
    :param is_known: whether the error is to be trusted; else it is the least that it can be.

    >>> with_error(-31.30671, 0.04619)
    '-31.307 ± 0.046'
    >>> with_error(-31.30671, 0.04619, is_known=False)
    '-31.307 ± unknown, at least 0.046'
    >>> with_error(-2.0, float("inf"))
    '-2.00 (error unknown)'
    """
    value, error = float(value), float(error)
    if not np.isfinite(error):
        return f"{value:.2f} (error unknown)"
    digits = 2
    if error >= _SMALLEST_ERROR:
        # Two digits of the error, and at most those of the value that it leaves.
        digits = int(np.clip(1 - np.floor(np.log10(error)), 0, _MAX_DECIMALS))
    unknown = "" if is_known else "unknown, at least "
    return f"{value:.{digits}f} ± {unknown}{error:.{digits}f}"


def share(value: float) -> str:
    """
    Returns a probability with three digits, never rounded to certainty.

    :param value: the probability.

    >>> share(0.25), share(1e-9), share(1 - 1e-9), share(1.0)
    ('0.250', '<0.001', '>0.999', '1.000')
    """
    if 0 < value < 0.0005:
        return "<0.001"
    return ">0.999" if 0.9995 <= value < 1 else f"{value:.3f}"


def weight_unit(evidence: Evidence) -> str:
    """Returns the word for that which has a weight."""
    return "particles" if evidence.island_size == 1 else "islands"


def _describe_goal(evidence: Evidence) -> Iterator[str]:
    """A goal that was missed: no fault, but not what was asked for, either."""
    goal = evidence.target_error
    # An error is itself known to a few per cent only.
    if goal is not None and float(evidence.standard_error) > _MISSED * goal:
        yield (
            f"  the goal of ± {goal:g} was missed: a larger budget= (or max_seconds=) may reach it"
        )


def _describe_budget(evidence: Evidence) -> Iterator[str]:
    """The error budget beside the size of the error, if tuning has looked."""
    if evidence.findings is not None:
        yield from (f"  {line}" for line in evidence.diagnostics.short_lines)


def _describe_lower_bound(evidence: Evidence) -> Iterator[str]:
    if evidence.settings.start is not None and not evidence.settings.num_steps:
        return  # the stray draws that keep the weights bounded make it meaningless
    bound = with_error(evidence.lower_bound, evidence.lower_bound_error)
    kind = "weight" if evidence.island_size == 1 else "estimate of the islands"
    yield f"  lower bound {bound} (mean log {kind})"
    if evidence.has_shared_batches:
        yield (
            "    (its error is over sequences of mini-batches, of which all particles share one: "
            "take several keys, or minibatch='particle')"
        )


def _describe_upper_bound(evidence: Evidence) -> Iterator[str]:
    if evidence.reverse_log_weights is not None:
        bound = with_error(evidence.upper_bound, evidence.upper_bound_error)
        yield f"  upper bound {bound} ({_describe_draws(evidence)})"


def _describe_draws(evidence: Evidence) -> str:
    """Says, for an upper bound, as what the posterior draws were taken."""
    assert evidence.reverse_log_weights is not None
    num_draws = len(evidence.reverse_log_weights)
    if evidence.num_chains is None:
        return f"if the {num_draws} posterior draws are exact and independent"
    number = float(np.min(evidence.num_effective_draws))
    chains = "one chain" if evidence.num_chains == 1 else f"{evidence.num_chains} chains"
    return (
        f"approximate: {num_draws} posterior draws of {chains}, taken as worth {number:.0f} "
        "independent ones"
    )


def _describe_many(evidence: Evidence) -> list[str]:
    """The numbers of a batch, of the elements of a plate, or of both, as a table."""
    values, errors = np.asarray(evidence.log_evidence), np.asarray(evidence.standard_error)
    is_known = is_error_known(evidence)
    places = list(np.ndindex(values.shape))
    shown = [
        f"    [{', '.join(map(str, i))}] {with_error(values[i], errors[i], bool(is_known[i]))}"
        for i in places[:_NUM_SHOWN]
    ]
    smallest_ess = float(np.min(np.asarray(evidence.ess)))
    each = " each" if evidence.batch_shape else ""
    return [
        f"{evidence.method}: log evidence {_describe_axes(evidence, values, errors)}",
        *shown,
        *(["    ..."] if len(places) > _NUM_SHOWN else []),
        f"  {_cost(evidence)}{each}; smallest ESS {smallest_ess:.1f}, largest k-hat {_khat(evidence)}",
    ]


def _describe_axes(evidence: Evidence, values: np.ndarray, errors: np.ndarray) -> str:
    plate = f"{values.shape[-1]} elements of plate {evidence.problem.plate!r}"
    if evidence.batch_shape:
        size = " x ".join(map(str, evidence.batch_shape))
        of_plate = f", and each of {plate}" if evidence.problem.plates else ""
        return f"of each of a batch of {size}{of_plate}"
    return f"of each of {plate}, sum {with_error(values.sum(), np.sqrt(np.sum(errors**2)))}"


def _cost(evidence: Evidence) -> str:
    num_steps, start = evidence.settings.num_steps, evidence.settings.start
    steps = f"{num_steps} steps" if num_steps else "no steps"
    origin = "" if start is None else f" from {start.description}"
    is_resampled = evidence.island_size > 1
    islands = f" resampled in {evidence.num_weights} islands" if is_resampled else ""
    num_gradients = int(np.max(evidence.num_gradients))
    return (
        f"{evidence.num_particles} particles{origin}{islands}, {steps}, {num_gradients} gradients"
    )


def _khat(evidence: Evidence) -> str:
    """The largest k-hat, if there are weights enough to tell."""
    if evidence.khat is None or evidence.num_weights < FEWEST_FOR_TAIL:
        return "unknown"
    return f"{float(np.max(evidence.khat)):.2f}"


def _faults_of_data(evidence: Evidence) -> Iterator[str]:
    """Missing data: an estimator finds them before it runs, but under ``jit`` it cannot."""
    is_lost = np.isneginf(np.asarray(evidence.log_evidence))
    if not np.any(is_lost) or evidence.problem.model is None:
        return
    problem = evidence.problem
    batch_index = tuple(np.argwhere(is_lost)[0][: len(evidence.batch_shape)])
    if batch_index:
        problem = jax.tree.map(lambda leaf: leaf[batch_index], problem)
    for name, number in missing_data(problem).items():
        yield (
            f"Observed site {name!r} has {number} NaN among its data, which makes the evidence zero; drop these "
            "entries or impute them: numpyro.sample(..., obs_mask=...)."
        )


def _faults_of_losses(evidence: Evidence) -> Iterator[str]:
    num_starts, num_all_weights = evidence.is_start_finite.size, evidence.log_weights.size
    num_bad_starts = int(np.sum(~np.asarray(evidence.is_start_finite)))
    num_lost = int(np.sum(evidence.num_lost))
    # What goes missing with them is no matter if it is far below the error.
    smallest_error = float(np.min(np.asarray(evidence.standard_error)))
    tolerated = _TOLERATED_LOSS * (smallest_error if np.isfinite(smallest_error) else 0.0)
    if num_bad_starts > tolerated * num_starts:
        yield (
            f"{num_bad_starts} of {num_starts} draws from the start were not finite "
            f"({num_bad_starts / num_starts:.0%}), and the estimate is too low by about their "
            "share; enable x64 with numpyro.enable_x64()."
        )
    elif num_lost > tolerated * num_all_weights:
        yield (
            f"{num_lost} of {num_all_weights} weights were not finite and count as zero, so "
            "the estimate may be too low; try a smaller step size, or x64."
        )


def _least_ess(num_weights: int) -> float:
    return min(_ESS_LIMIT, num_weights / 2)


def _upper_variance(evidence: Evidence) -> np.ndarray:
    log_weights = np.asarray(evidence.log_weights, np.float64)
    log_weights = np.moveaxis(log_weights, len(evidence.batch_shape), 0)
    columns = log_weights.reshape(len(log_weights), -1).T
    return np.array([upper_variance(column) for column in columns]).reshape(log_weights.shape[1:])


def _faults_of_weights(evidence: Evidence) -> Iterator[str]:
    num_weights, ess = evidence.num_weights, np.min(np.asarray(evidence.ess))
    if evidence.overlap is not None:
        if (num_pairs := float(np.min(np.asarray(evidence.overlap)))) < _ESS_LIMIT:
            yield (
                f"Forward and reverse weights hardly overlap ({num_pairs:.1f} effective pairs): "
                "trust the bounds, not the estimate between them; use more steps or a fitted guide."
            )
    elif ess == 0:
        yield (
            f"Every weight is zero: no density above zero was met by {num_weights} {weight_unit(evidence)}. Look "
            "for data outside of their support, or start where the density is above zero (guide= or start=)."
        )
    elif ess < _least_ess(num_weights):
        yield (
            f"The effective sample size is {ess:.1f} of {num_weights} {weight_unit(evidence)}: the "
            "estimate is likely too low and its error too small; use more steps or start from a "
            "fitted guide."
        )
    elif evidence.khat is not None and np.any(np.asarray(evidence.khat) > _KHAT_LIMIT):
        yield (
            f"k-hat is {np.max(evidence.khat):.2f}, above {_KHAT_LIMIT:g}: the weights are "
            "heavy-tailed and the error is not reliable; use more steps or start from a fitted "
            "guide."
        )
    elif not np.all(is_tail_known(ess, evidence.khat, _upper_variance(evidence), num_weights)):
        spread = float(np.sqrt(np.max(_upper_variance(evidence))))
        yield (
            f"The largest log weights spread as if their standard deviation were {spread:.1f}, and {num_weights} "
            f"{weight_unit(evidence)} are too few for that: the estimate is likely too low and its error too small; "
            "use more particles, more steps or a fitted guide."
        )
    elif _is_unchecked(evidence):
        yield (
            f"k-hat is {_khat(evidence)}, above {_UNCHECKED_KHAT:g}, and a second look from the prior had no "
            "power: what the fit lacks has not been seen, and the estimate may be too low by more than its error; use "
            "a larger budget=, another parametrisation or a guide=."
        )


def _is_unchecked(evidence: Evidence) -> bool:
    """True if weights are heavy, and those of a fit that a second look could not check."""
    findings = evidence.findings
    if evidence.khat is None or evidence.num_weights < FEWEST_FOR_TAIL or findings is None:
        return False
    is_heavy = np.any(np.asarray(evidence.khat) > _UNCHECKED_KHAT)
    return bool(is_heavy) and findings.missed_mass.outcome == "no power"


def _faults_of_agreement(evidence: Evidence) -> Iterator[str]:
    """Another estimate above this one, by more than chance: what it has met, this one has not."""
    above = [check for check in evidence.diagnostics.checks if is_far_above(check)]
    if above:
        check = max(above, key=lambda check: check.difference)
        value = with_error(check.log_evidence, check.standard_error)
        yield (
            f"Another estimate, of {check.name}, is {value}: above this one by {check.difference:.2g} nats, or "
            f"{check.num_errors:.1f} errors of both. Mass may be missing here; use a larger budget=, or start='prior'."
        )


def is_far_above(check: Check) -> bool:
    """
    Returns whether another estimate lies above the reported one by more than chance.

    :param check: the other estimate.
    """
    is_known = check.num_errors is not None and check.num_errors > _FAR_ABOVE
    return is_known and check.difference > _TOLERATED_DIFFERENCE


def _faults_of_rounding(evidence: Evidence) -> Iterator[str]:
    log_weights = np.asarray(evidence.log_weights)
    rounding = resolution(np.moveaxis(log_weights, len(evidence.batch_shape), 0))
    # That of the forward weights, which may be large where Bennett's ratio has a small one.
    error = np.min(np.asarray(replace(evidence, reverse_log_weights=None).standard_error))
    tolerated = max(_TOLERATED_ROUNDING * error, _FINEST_RESOLUTION)
    if log_weights.dtype == np.float32 and rounding > tolerated:
        yield (
            f"float32 resolves log weights of this size to {rounding:.2g} only, which is not small "
            f"against the error of {error:.2g}; enable x64 with numpyro.enable_x64()."
        )
