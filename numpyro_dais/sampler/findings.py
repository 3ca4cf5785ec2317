# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Findings: all that tuning has seen of a posterior beside settings for it, in plain numbers and words
that a result keeps and no program depends on.
"""

from typing import Literal, NamedTuple

__all__ = ["Findings", "MissedMass", "ModeCount", "not_looked"]

_LOOK = "a second look from the prior"


class MissedMass(NamedTuple):
    """
    The outcome of a search for mass that a fitted start lacks.

    :param outcome: ``"found"``; ``"none found"``; ``"no power"``, if the particles that were to
        find it did not get there; or ``"not looked"``.
    :param share: of what was found, the evidence over that of the fit; of what was not, the
        smallest share of the evidence that would most likely have been seen; else None.
    :param reason: why nothing was looked for, in words.
    :param log_evidence: the estimate of the populations that have looked; None without power.
    :param standard_error: of this estimate, over populations.
    """

    outcome: Literal["found", "none found", "no power", "not looked"]
    share: float | None = None
    reason: str = ""
    log_evidence: float | None = None
    standard_error: float | None = None

    @property
    def words(self) -> str:
        """The outcome in words."""
        if self.outcome == "found":
            return f"about {self.share:.0%} of what the fit has, found outside of it by {_LOOK}"
        if self.outcome == "none found":
            return f"none above {self.share:.0%} of the evidence, by {_LOOK}"
        if self.outcome == "no power":
            return f"unknown; {_LOOK} had no power"
        return f"not looked for: {self.reason}"


class ModeCount(NamedTuple):
    """
    The modes that searches have met.

    :param num_modes: their number; none where searches have ended at no maximum.
    :param num_searches: the number of searches.
    :param unseen_share: the share of further searches that would meet another one, about.
    """

    num_modes: int
    num_searches: int
    unseen_share: float

    @property
    def words(self) -> str:
        """The count in words."""
        modes = {0: "no maximum", 1: "one mode"}.get(self.num_modes, f"{self.num_modes} modes")
        text = f"{modes} in {self.num_searches} searches"
        if self.unseen_share and self.num_searches > 1:
            text += f", of more {self.unseen_share:.1%} would meet another"
        return text


class Findings(NamedTuple):
    """
    All that tuning has seen.

    :param missed_mass: the outcome of a second look.
    :param modes: the modes that searches have met; None if there was no search.
    :param pilot: the estimate of the log evidence of the population that has measured a path; None
        if none did.
    """

    missed_mass: MissedMass
    modes: ModeCount | None = None
    pilot: float | None = None


def not_looked(reason: str) -> MissedMass:
    """
    Returns the outcome of no look.

    :param reason: why there was none, in words.
    """
    return MissedMass("not looked", reason=reason)
