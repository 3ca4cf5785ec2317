# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

r"""
A census of modes: which ones searches have met, how often, and how many are still to be met.

Of :math:`n` searches, let :math:`n_1` have ended at a mode that no other one has met. Then
:math:`n_1 / n` estimates the share of further searches that would end at a mode not seen so far
(Good 1953, with Turing): while there are such modes, it is worth going on.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from numpyro_dais._util.weights import weight_shares
from numpyro_dais.model.modes import DensityFn, Modes
from numpyro_dais.tuning.polish import Peak, leads_to

__all__ = ["Census", "Count"]

# Nats by which the density must fall between two modes: less may be rounding along a ridge, and two
# Gaussians whose valley is shallower overlap. A round number.
_VALLEY = 1.0
# Points of the line between an end and a mode at which the density is looked at, and the number of
# modes for which that is done, those that are nearest. More would see narrower valleys and other
# ridges, at a gradient each. Round numbers.
_NUM_LINE_POINTS, _NUM_NEIGHBOURS = 5, 3
# Modes up to which one is kept whose polish has not come to a maximum: it may be one that rounding
# hides, or a place on a ridge that bends. A round number.
_MAX_DOUBTFUL = 8
# How many times as often one mode must have been met as another to be called uneven, and how often
# the other must be met to be enough. Round numbers: of eight modes, three were missed where the
# five others had been met 10 to 95 times; two or twenty-four equal ones are met within a factor of
# three to six of each other.
_UNEVEN, _OFTEN = 5.0, 16
# Nats below the highest from which on an end is no mode that could matter, whatever its width: the
# evidence of a mode is its height times a width, of a few nats for each dimension.
_FAR_BELOW, _FAR_BELOW_PER_DIM = 30.0, 2.0


class Count(NamedTuple):
    """
    The result of a census.

    :param num_searches: searches that have come to an end.
    :param num_modes: modes that they have met; none where they have ended at places, each of them
        another, that are no maxima, as on a ridge or down the neck of a funnel.
    :param num_once: those of them that one search alone has met.
    :param is_full: whether there was no room for another mode, which a search had met.
    :param is_uneven: whether some modes were met many times as often as another, which was met a
        few times only: then there may be such as were not met at all.
    :param rare_share: the share of the evidence that such a mode may have, about: of a mode that
        was met :math:`c` times, a share of :math:`1/c`; the largest of these.
    """

    num_searches: int = 0
    num_modes: int = 0
    num_once: int = 0
    is_full: bool = False
    is_uneven: bool = False
    rare_share: float = 0.0

    @property
    def unseen_share(self) -> float:
        """The share of further searches that would end at a mode not seen so far, about."""
        return self.num_once / max(self.num_searches, 1)

    @property
    def words(self) -> str:
        """The census in words."""
        if not self.num_modes:
            return f"{self.num_searches} searches have come to no maximum"
        modes = "one mode" if self.num_modes == 1 else f"{self.num_modes} modes"
        text = f"{self.num_searches} searches have met {modes}"
        if self.num_once and self.num_searches > 1:
            text += (
                f", {self.num_once} of them once: about {self.unseen_share:.1%} of further searches "
                "would meet another one"
            )
        return text


class Census:
    """
    Modes, and the ends of searches that belong to each.

    :param density_fn: the log density and its gradient.
    :param polish_fn: the mode near the end of a search.
    :param max_modes: modes at most: each costs a Hessian, and its density at every draw.
    """

    def __init__(
        self, density_fn: DensityFn, polish_fn: Callable[[np.ndarray], Peak], max_modes: int
    ) -> None:
        self._density_fn, self._polish_fn, self._max_modes = density_fn, polish_fn, max_modes
        self.peaks: list[Peak] = []
        self._numbers: list[int] = []
        self._is_full = False

    @property
    def count(self) -> Count:
        """The result so far."""
        num_once = sum(number == 1 for number in self._numbers)
        fewest, most = min(self._numbers, default=0), max(self._numbers, default=0)
        is_uneven = fewest < _OFTEN and most > _UNEVEN * fewest
        rare_share = 0.0
        if is_uneven:
            log_masses = np.nan_to_num([peak.log_mass for peak in self.peaks], nan=-np.inf)
            shares = weight_shares(log_masses, np)
            is_rare = np.array(self._numbers) < _OFTEN
            rare_share = float(np.max(shares / np.array(self._numbers), where=is_rare, initial=0.0))
        numbers = sum(self._numbers), len(self.peaks), num_once
        return Count(*numbers, self._is_full, is_uneven, rare_share)

    def meet(self, ends: Modes) -> None:
        """
        Counts the ends of some searches, and keeps those that are new modes.

        :param ends: the ends, the highest first.
        """
        for position, log_density in zip(ends.positions, ends.log_densities, strict=True):
            highest = max((peak.log_density for peak in self.peaks), default=-np.inf)
            room = _FAR_BELOW + _FAR_BELOW_PER_DIM * len(position)
            if log_density > highest - room:
                self._meet(position)

    def _meet(self, position: np.ndarray) -> None:
        # Before a Hessian is spent on it, and after: a polish may have gone to a known mode.
        place = self._place_of(position)
        if place is None and len(self.peaks) >= self._max_modes:
            self._is_full = True
            return
        if place is None:
            peak = self._polish_fn(position)
            place = None if peak.position is position else self._place_of(peak.position)
            if place is None and not peak.is_found and len(self.peaks) >= _MAX_DOUBTFUL:
                return
            if place is None:
                self.peaks.append(peak)
                self._numbers.append(0)
                place = len(self.peaks) - 1
        self._numbers[place] += 1

    def _place_of(self, position: np.ndarray) -> int | None:
        """The mode that an end belongs to: one that it leads to, or is on a ridge of."""
        log_density, gradient = self._density_fn(position)
        for place, peak in enumerate(self.peaks):
            if leads_to(position, gradient, peak):
                return place
        offsets = [peak.geometry.whiten(position - peak.position) for peak in self.peaks]
        nearest = np.argsort([float(np.sum(offset**2)) for offset in offsets])[:_NUM_NEIGHBOURS]
        for place in nearest:
            if not self._is_apart(position, log_density, self.peaks[place]):
                return int(place)
        return None

    def _is_apart(self, position: np.ndarray, log_density: float, peak: Peak) -> bool:
        """Returns whether a valley lies between an end and a mode, and not a ridge below both."""
        shares = np.arange(1, _NUM_LINE_POINTS + 1) / (_NUM_LINE_POINTS + 1)
        way = peak.position - position
        lowest = min(self._density_fn(position + share * way)[0] for share in shares)
        return bool(lowest < min(log_density, peak.log_density) - _VALLEY)
