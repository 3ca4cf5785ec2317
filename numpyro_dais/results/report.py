# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Words about an evidence: the text that is printed, and the reasons not to trust it."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from numpyro_dais._util.weights import resolution
from numpyro_dais.results.bennett import bennett
from numpyro_dais.results.evidence import Evidence

__all__ = ["describe", "find_faults", "share", "weight_unit", "with_error"]

# The largest k-hat at which errors are still to be trusted, by Vehtari et al. (2024).
_KHAT_LIMIT = 0.7

# The share of a standard error that may go missing with weights that are not finite before a
# warning says so: a round number, well below what an error bar shows.
_TOLERATED_LOSS = 0.1

# The smallest effective sample size (or number of effective pairs of both directions) without a
# warning. A round number: below it the error bar is itself an estimate from a handful of values.
_ESS_LIMIT = 5.0

# Rounding of log weights is a fault if it is above a third of the standard error, where it would
# widen it by a twentieth, and above 1e-4 nats, less than anyone asks for. Round numbers.
_TOLERATED_ROUNDING = 1 / 3
_FINEST_RESOLUTION = 1e-4

# The number of elements of a plate that are printed: a round number, a few lines of a terminal.
_NUM_SHOWN = 5

# An error is printed with two digits, by the custom of physics, and with 6 decimals at most. One
# that would not show in these is taken for zero.
_MAX_DECIMALS = 6
_SMALLEST_ERROR = 10.0**-_MAX_DECIMALS


def describe(evidence: Evidence) -> str:
    """
    Returns the text that is printed: the estimate, its error and bounds, cost, and warnings.

    :param evidence: a result with concrete values.
    """
    if evidence.log_weights.ndim > 1:
        lines = _describe_elements(evidence)
    else:
        value = with_error(evidence.log_evidence, evidence.standard_error)
        lines = [
            f"{evidence.method}: log evidence {value}",
            *_describe_lower_bound(evidence),
            *_describe_upper_bound(evidence),
            f"  {_cost(evidence)}; ESS {float(evidence.ess):.1f}, k-hat {_number(evidence.khat)}",
        ]
    return "\n".join(lines + [f"  Warning: {fault}" for fault in evidence.warnings])


def find_faults(evidence: Evidence) -> tuple[str, ...]:
    """
    Returns the reasons not to trust a result, each with a remedy; none if all is well.

    :param evidence: a result with concrete values.
    """
    return (
        *evidence.notes,
        *_faults_of_losses(evidence),
        *_faults_of_weights(evidence),
        *_faults_of_rounding(evidence),
    )


def with_error(value: Any, error: Any) -> str:
    """
    Returns a number with its error, as ``-31.307 ± 0.046``.

    :param value: the number.
    :param error: its standard error.

    >>> with_error(-31.30671, 0.04619)
    '-31.307 ± 0.046'
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
    return f"{value:.{digits}f} ± {error:.{digits}f}"


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
    if evidence.upper_bound is not None:
        bound = with_error(evidence.upper_bound, evidence.upper_bound_error)
        kind = "exact draws" if evidence.num_chains is None else "approximate: draws by NUTS"
        yield f"  upper bound {bound} ({kind})"


def _describe_elements(evidence: Evidence) -> list[str]:
    values, errors = np.asarray(evidence.log_evidence), np.asarray(evidence.standard_error)
    total = with_error(values.sum(), np.sqrt(np.sum(errors**2)))
    shown = [with_error(*pair) for pair in zip(values, errors, strict=True)][:_NUM_SHOWN]
    smallest_ess = float(np.min(np.asarray(evidence.ess)))
    largest_khat = _number(None if evidence.khat is None else np.max(evidence.khat))
    return [
        f"{evidence.method}: log evidence of each of {len(values)} elements of plate "
        f"{evidence.problem.plate!r}, sum {total}",
        *[f"    [{i}] {text}" for i, text in enumerate(shown)],
        *(["    ..."] if len(values) > _NUM_SHOWN else []),
        f"  {_cost(evidence)}; smallest ESS {smallest_ess:.1f}, largest k-hat {largest_khat}",
    ]


def _cost(evidence: Evidence) -> str:
    num_steps, start = evidence.settings.num_steps, evidence.settings.start
    steps = f"{num_steps} steps" if num_steps else "no steps"
    origin = "" if start is None else f" from {start.description}"
    is_resampled = evidence.island_size > 1
    islands = f" resampled in {evidence.num_weights} islands" if is_resampled else ""
    return (
        f"{evidence.num_particles} particles{origin}{islands}, {steps}, "
        f"{int(evidence.num_gradients)} gradients"
    )


def _number(value: Any) -> str:
    return "not available" if value is None else f"{float(value):.2f}"


def _faults_of_losses(evidence: Evidence) -> Iterator[str]:
    num_particles, num_all_weights = evidence.num_particles, evidence.log_weights.size
    num_bad_starts = int(np.sum(~np.asarray(evidence.is_start_finite)))
    num_nonfinite = int(evidence.num_nonfinite)
    # What goes missing with them is no matter if it is far below the error.
    smallest_error = float(np.min(np.asarray(evidence.standard_error)))
    tolerated = _TOLERATED_LOSS * (smallest_error if np.isfinite(smallest_error) else 0.0)
    if num_bad_starts > tolerated * num_particles:
        yield (
            f"{num_bad_starts} of {num_particles} draws from the start were not finite "
            f"({num_bad_starts / num_particles:.0%}), and the estimate is too low by about their "
            "share; enable x64 with numpyro.enable_x64()."
        )
    elif num_nonfinite > tolerated * num_all_weights:
        yield (
            f"{num_nonfinite} of {num_all_weights} weights were not finite and count as zero, so "
            "the estimate may be too low; try a smaller step size, or x64."
        )


def _faults_of_weights(evidence: Evidence) -> Iterator[str]:
    num_weights, ess = evidence.num_weights, np.min(np.asarray(evidence.ess))
    if evidence.reverse_log_weights is not None:
        overlap = bennett(evidence.log_weights, evidence.reverse_log_weights).overlap
        if (num_pairs := float(np.min(np.asarray(overlap)))) < _ESS_LIMIT:
            yield (
                f"Forward and reverse weights hardly overlap ({num_pairs:.1f} effective pairs): "
                "trust the bounds, not the estimate between them; use more steps or a fitted guide."
            )
    elif ess < min(_ESS_LIMIT, num_weights / 2):
        yield (
            f"The effective sample size is {ess:.1f} of {num_weights} {weight_unit(evidence)}: the "
            "estimate is likely too low and its error too small; use more steps or start from a "
            "fitted guide."
        )
    elif evidence.khat is not None and np.any(np.asarray(evidence.khat) > _KHAT_LIMIT):
        yield (
            f"k-hat is {np.max(evidence.khat):.2f}, above {_KHAT_LIMIT}: the weights are "
            "heavy-tailed and the error is not reliable; use more steps or start from a fitted "
            "guide."
        )


def _faults_of_rounding(evidence: Evidence) -> Iterator[str]:
    log_weights = np.asarray(evidence.log_weights)
    rounding = resolution(log_weights)
    # That of the forward weights, which may be large where Bennett's ratio has a small one.
    error = np.min(np.asarray(replace(evidence, reverse_log_weights=None).standard_error))
    tolerated = max(_TOLERATED_ROUNDING * error, _FINEST_RESOLUTION)
    if log_weights.dtype == np.float32 and rounding > tolerated:
        yield (
            f"float32 resolves log weights of this size to {rounding:.2g} only, which is not small "
            f"against the error of {error:.2g}; enable x64 with numpyro.enable_x64()."
        )
