# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""An error budget: what is known of the error of an evidence, and what is not."""

from collections.abc import Iterator
from dataclasses import dataclass
import math
from typing import Any, NamedTuple

import numpy as np

from numpyro_dais._util.weights import log_mean_error
from numpyro_dais.results.evidence import Evidence
from numpyro_dais.sampler.findings import MissedMass, ModeCount, not_looked

__all__ = ["Check", "Diagnostics", "diagnose"]

# The fewest weights whose k-hat is worth a word: with 100 the tail has 20, and the standard error
# of k-hat is 0.3, so that light and heavy cannot be told apart below. A round number.
FEWEST_FOR_TAIL = 100
# Log evidences that differ by less, relative to their size, are the same number in float32.
_SAME = 1e-5
# A jackknife error that the tail widens by less is not worth a word. A round number.
_WIDER = 1.1
# The fewest particles of a round whose error is taken for known. Trials have 8 or 16, of the best
# of several candidates by their own weights: of 141 runs from the prior (conjugate models of
# tests/cases.py), theirs was above the result by more than three errors in 7.
_FEWEST_IN_ROUND = 25


class Check(NamedTuple):
    """
    Another estimate of the same log evidence, independent of the reported one.

    :param name: what it is of, in words.
    :param log_evidence: the estimate.
    :param standard_error: its own error; None if it is not known.
    :param difference: how far it lies above the reported estimate, in nats.
    :param num_errors: the same in units of both errors together; None if that is not known.
    """

    name: str
    log_evidence: float
    standard_error: float | None
    difference: float
    num_errors: float | None


@dataclass(frozen=True)
class Diagnostics:
    """
    An error budget: all that is known of the error of an evidence. It prints as a few lines.

    :param standard_error: the statistical error, that which is reported.
    :param jackknife_error: the part of it that the spread of the weights shows; what is above it,
        the tail of the weights leaves room for. With reverse chains, both are Bennett's.
    :param tail: the Pareto shape k-hat of the tail, or None for unknown: with fewer than a hundred
        weights it cannot be told.
    :param missed_mass: the outcome of a search for mass that a fitted start lacks.
    :param modes: the modes that searches have met; None if there was no search.
    :param island_spread: the standard deviation of the log estimates of islands; None without.
    :param checks: other estimates of the same number: earlier rounds of a self-tuned run,
        populations of the second look and of the pilot. Small differences say that they agree.
    """

    standard_error: Any
    jackknife_error: Any
    tail: Any
    missed_mass: MissedMass
    modes: ModeCount | None = None
    island_spread: float | None = None
    checks: tuple[Check, ...] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        """The budget in words: error, tail, missed mass and agreement."""
        return tuple(
            f"{name}: {words}"
            for name, words in (
                ("error", self._error_words),
                ("tail", self._tail_words),
                ("missed mass", self._missed_words),
                ("agreement", self._agreement_words),
            )
        )

    @property
    def short_lines(self) -> tuple[str, ...]:
        """Those of the lines that say more than the estimate itself does."""
        error, _, missed, agreement = self.lines
        has_checks = self.checks or self.island_spread is not None
        return (
            *((error,) if self._is_wider else ()),
            missed,
            *((agreement,) if has_checks else ()),
        )

    def __str__(self) -> str:
        return "\n".join(self.lines)

    @property
    def _is_wider(self) -> bool:
        """True if the tail has a part in the error that is worth a word."""
        spread = _WIDER * np.asarray(self.jackknife_error)
        return bool(np.any(np.asarray(self.standard_error) > spread))

    @property
    def _error_words(self) -> str:
        total, spread = (float(np.max(e)) for e in (self.standard_error, self.jackknife_error))
        if not math.isfinite(total):
            return "unknown"
        which = "largest: " if np.ndim(self.standard_error) else ""
        if self._is_wider:
            return f"{which}{spread:.2g} by the spread of the weights, {total:.2g} with their tail"
        return f"{which}{total:.2g} by the spread of the weights"

    @property
    def _tail_words(self) -> str:
        if self.tail is None:
            return "unknown, with so few weights"
        return f"k-hat {float(np.max(self.tail)):.2f}"

    @property
    def _missed_words(self) -> str:
        words = self.missed_mass.words
        return words if self.modes is None else f"{words}; {self.modes.words}"

    @property
    def _agreement_words(self) -> str:
        parts = (
            [] if self.island_spread is None else [f"islands spread by {self.island_spread:.2g}"]
        )
        rounds = [check for check in self.checks if check.name.startswith("round")]
        known = [c.num_errors for c in rounds if c.num_errors is not None]
        if known:
            of_rounds = "an earlier round" if len(known) == 1 else f"{len(known)} earlier rounds"
            parts.append(f"{of_rounds} within {max(map(abs, known)):.1f} errors")
        parts += [_words_of(check) for check in self.checks if check not in rounds]
        return "; ".join(parts) if parts else "nothing to compare with"


def _words_of(check: Check) -> str:
    if check.num_errors is None:
        return f"{check.name} {check.difference:+.2f}"
    return f"{check.name} {check.difference:+.2g} ({check.num_errors:+.1f} errors)"


def diagnose(evidence: Evidence) -> Diagnostics:
    """
    Returns the error budget of a result.

    :param evidence: a result with concrete values.
    """
    findings = evidence.findings
    standard_error = jackknife = np.asarray(evidence.standard_error)
    log_weights = np.moveaxis(np.asarray(evidence.log_weights), len(evidence.batch_shape), 0)
    log_weights = log_weights.astype(np.float64)
    if evidence.reverse_log_weights is None:
        with np.errstate(all="ignore"):
            jackknife = np.minimum(log_mean_error(log_weights, np), standard_error)
    spread = None
    if evidence.island_size > 1 and log_weights.ndim == 1 and np.all(np.isfinite(log_weights)):
        spread = float(np.std(log_weights, ddof=1)) if len(log_weights) > 1 else None
    is_single = not np.ndim(standard_error)
    return Diagnostics(
        standard_error=float(standard_error) if is_single else standard_error,
        jackknife_error=float(jackknife) if is_single else jackknife,
        tail=evidence.khat if evidence.num_weights >= FEWEST_FOR_TAIL else None,
        missed_mass=not_looked("settings or a start were given")
        if findings is None
        else findings.missed_mass,
        modes=None if findings is None else findings.modes,
        island_spread=spread,
        checks=tuple(_checks(evidence)) if is_single else (),
    )


def _checks(evidence: Evidence) -> Iterator[Check]:
    """Other estimates of the same log evidence."""
    value, error = float(evidence.log_evidence), float(evidence.standard_error)
    if not math.isfinite(value):
        return

    def check(name: str, other: float, its_error: float | None) -> Check:
        both = math.hypot(error, math.inf if its_error is None else its_error)
        num_errors = (other - value) / both if 0 < both < math.inf else None
        return Check(name, other, its_error, other - value, num_errors)

    for number, one in enumerate(evidence.history):
        is_own = one.num_steps == evidence.settings.num_steps and (
            abs(one.log_evidence - value) <= _SAME * (1 + abs(value))
        )
        if not is_own and math.isfinite(one.log_evidence):
            is_known = math.isfinite(one.standard_error) and one.num_particles >= _FEWEST_IN_ROUND
            its_error = one.standard_error if is_known else None
            yield check(f"round {number + 1}", one.log_evidence, its_error)
    if evidence.findings is None:
        return
    mass, pilot = evidence.findings.missed_mass, evidence.findings.pilot
    if mass.log_evidence is not None:
        its_error = mass.standard_error
        yield check("populations from the prior", mass.log_evidence, its_error)
    if pilot is not None:
        yield check("the pilot's population", pilot, None)
