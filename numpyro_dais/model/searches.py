# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Searches for minima side by side, by L-BFGS (Liu and Nocedal 1989).

The losses of many searches are computed at once, so that what an evaluation costs apart from its
arithmetic is shared. A search that has ended makes room for the next one; each takes its own steps
and stops by itself, so it ends where it would have ended alone.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

__all__ = ["NUM_LANES", "Ends", "LossesFn", "search_all"]

# The losses at positions ``[num_positions, num_dims]``, and their gradients.
LossesFn = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]

# Searches at a time. Fewer share the cost of an evaluation less, more are cut short where few can
# be paid for. A round number.
NUM_LANES = 16
# Iterations of a search: enough for any that ends, and few for one on a slope without an end, where
# SciPy would allow 15,000. A round number.
_MAX_ITERATIONS = 200
# Pairs of moves and changes of the gradient that are remembered: SciPy's 10.
_MEMORY = 10
# Evaluations in one line search, SciPy's 20 and some more; and those after which a step that goes
# down is long enough, though the slope at its end is as steep as before. Round numbers.
_MAX_LINE_STEPS, _MAX_GROWTHS = 30, 10
# The conditions of Wolfe: what a step must gain, and the slope that may be left, as shares of the
# slope at its beginning. SciPy's.
_GAIN, _SLOPE_LEFT = 1e-3, 0.9
# The largest share of the first slope that may be left with its sign turned, where the gain is
# below rounding and the slope has to tell (Hager and Zhang 2005): theirs.
_TURN = 0.8
# The next step of a line search, as shares of the interval that holds it, and as multiples of the
# last step where none does. Round numbers.
_INSIDE, _BEYOND = (1e-3, 0.9), (1.5, 4.0)
# The largest entry of a gradient that is zero: SciPy's.
_SMALL_GRADIENT = 1e-5
# Spacings of numbers that a loss may be wrong by. A round number.
_NUM_SPACINGS = 10.0


class Ends(NamedTuple):
    """
    Ends of searches.

    :param positions: ``[num_ends, num_dims]``.
    :param losses: ``[num_ends]``.
    """

    positions: np.ndarray
    losses: np.ndarray


def search_all(
    losses_fn: LossesFn, starts: np.ndarray, max_evaluations: int, tolerance: float
) -> Ends:
    """
    Returns the ends of searches from several positions. A search that is cut short, since the
    evaluations have been spent, counts if it is below all that have come to an end; one whose first
    loss is not finite does not.

    :param losses_fn: the losses and their gradients at up to ``NUM_LANES`` positions.
    :param starts: the positions, ``[num_starts, num_dims]``.
    :param max_evaluations: of single losses, in all.
    :param tolerance: a search ends where an iteration gains less than this share of the loss.
    """
    lanes = _Lanes(min(NUM_LANES, len(starts)), starts.shape[1], tolerance)
    waiting = list(starts[::-1])
    ends: list[tuple[np.ndarray, float]] = []
    while True:
        for lane in np.flatnonzero(~lanes.is_busy)[: len(waiting)]:
            lanes.begin(lane, waiting.pop())
        busy = np.flatnonzero(lanes.is_busy)
        max_evaluations -= len(busy)
        if not len(busy) or max_evaluations < 0:
            break
        ended = lanes.advance(busy, *losses_fn(lanes.trials[busy]))
        ends += [lanes.end(int(lane)) for lane in ended]
    lowest = min((loss for _, loss in ends), default=np.inf)
    ends += [lanes.end(int(lane)) for lane in busy if lanes.losses[lane] < lowest]
    positions = np.array([position for position, _ in ends]).reshape(-1, starts.shape[1])
    return Ends(positions, np.array([loss for _, loss in ends]))


class _Lanes:
    """
    Searches that run now, one in each lane. Where a search has not begun, its loss is infinite and
    its step goes nowhere.
    """

    def __init__(self, num_lanes: int, num_dims: int, tolerance: float) -> None:
        self.tolerance = tolerance
        self.is_busy = np.zeros(num_lanes, bool)
        self.positions, self.gradients, self.directions = np.zeros((3, num_lanes, num_dims))
        self.losses, self.slopes, self.steps = np.zeros((3, num_lanes))
        # The ends of the interval in which a line search looks, and loss and slope at the lower.
        self.low, self.low_losses, self.low_slopes, self.high = np.zeros((4, num_lanes))
        self.num_trials, self.num_iterations = np.zeros((2, num_lanes), int)
        self.moves, self.turns = np.zeros((2, _MEMORY, num_lanes, num_dims))
        self.weights = np.zeros((_MEMORY, num_lanes))

    @property
    def trials(self) -> np.ndarray:
        """The positions at which losses are wanted next, ``[num_lanes, num_dims]``."""
        return self.positions + self.steps[:, None] * self.directions

    def begin(self, lane: int, start: np.ndarray) -> None:
        """Begins a search."""
        self.is_busy[lane] = True
        self.positions[lane], self.losses[lane] = start, np.inf
        self.directions[lane] = self.steps[lane] = self.slopes[lane] = 0.0
        self.num_iterations[lane] = -1
        self.weights[:, lane] = 0.0

    def end(self, lane: int) -> tuple[np.ndarray, float]:
        """Returns the position and the loss of a search."""
        return self.positions[lane].copy(), float(self.losses[lane])

    def advance(self, busy: np.ndarray, losses: np.ndarray, gradients: np.ndarray) -> np.ndarray:
        """
        Advances searches by one evaluation, and returns the lanes of those that have ended.

        :param busy: their lanes.
        :param losses: at their trials, as their gradients.
        """
        rounding = _NUM_SPACINGS * float(np.finfo(losses.dtype).eps)
        losses, gradients = losses.astype(np.float64), gradients.astype(np.float64)
        is_finite = np.isfinite(losses) & np.all(np.isfinite(gradients), axis=1)
        losses = np.where(is_finite, losses, np.inf)
        gradients = np.where(is_finite[:, None], gradients, 0.0)
        is_first = self.num_iterations[busy] < 0
        is_down, is_flat = self._judge(busy, losses, gradients, rounding)
        is_accepted = np.where(is_first, is_finite, is_down & is_flat)
        is_over = np.zeros(len(busy), bool)
        is_over[is_accepted] = self._accept(
            busy[is_accepted], losses[is_accepted], gradients[is_accepted], rounding
        )
        self.is_busy[busy[is_first & ~is_finite]] = False
        rest = ~is_accepted & ~is_first
        is_over[rest] = self._try_again(busy[rest], losses[rest], gradients[rest], is_down[rest])
        self.is_busy[busy[is_over]] = False
        return busy[is_over]

    def _judge(
        self, busy: np.ndarray, losses: np.ndarray, gradients: np.ndarray, rounding: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns whether a trial goes down far enough, and whether the slope there is flat."""
        first, steps = self.slopes[busy], self.steps[busy]
        slopes = np.sum(gradients * self.directions[busy], axis=1)
        with np.errstate(invalid="ignore"):
            gains = self.losses[busy] - losses
            is_equal = gains >= -rounding * np.abs(self.losses[busy])
            is_down = (gains >= -_GAIN * steps * first) | (is_equal & (slopes <= -_TURN * first))
        is_flat = (slopes >= _SLOPE_LEFT * first) | (self.num_trials[busy] >= _MAX_GROWTHS)
        return is_down & np.isfinite(losses), is_flat

    def _accept(
        self, lanes: np.ndarray, losses: np.ndarray, gradients: np.ndarray, rounding: float
    ) -> np.ndarray:
        """Goes to the trials, and returns whether searches end there."""
        moves = self.steps[lanes, None] * self.directions[lanes]
        self._remember(lanes, moves, gradients - self.gradients[lanes])
        with np.errstate(invalid="ignore"):
            gains = self.losses[lanes] - losses
            sizes = np.maximum(np.maximum(np.abs(self.losses[lanes]), np.abs(losses)), 1.0)
            is_over = gains <= max(self.tolerance, rounding) * sizes
        is_over &= self.num_iterations[lanes] >= 0  # a first loss is no gain
        self.positions[lanes] += moves
        self.losses[lanes], self.gradients[lanes] = losses, gradients
        self.num_iterations[lanes] += 1
        is_over |= np.max(np.abs(gradients), axis=1) <= _SMALL_GRADIENT
        self._set_out(lanes)
        return is_over | (self.num_iterations[lanes] >= _MAX_ITERATIONS)

    def _remember(self, lanes: np.ndarray, moves: np.ndarray, turns: np.ndarray) -> None:
        """Keeps moves and changes of the gradient, where the slope has risen along the move."""
        products = np.sum(moves * turns, axis=1)
        promised = -np.sum(moves * self.gradients[lanes], axis=1)
        is_kept = products > np.finfo(np.float64).eps * promised  # SciPy's rule
        lanes = lanes[is_kept]
        for memory, news in (
            (self.moves, moves[is_kept]),
            (self.turns, turns[is_kept]),
            (self.weights, 1 / products[is_kept]),
        ):
            memory[:-1, lanes] = memory[1:, lanes]
            memory[-1, lanes] = news

    def _set_out(self, lanes: np.ndarray) -> None:
        """Begins line searches from where the searches are."""
        directions = -self._newton(lanes)
        slopes = np.sum(directions * self.gradients[lanes], axis=1)
        is_steepest = ~(slopes < 0) | (self.weights[-1, lanes] == 0)
        gradients = self.gradients[lanes]
        squares = np.sum(gradients**2, axis=1)
        self.directions[lanes] = np.where(is_steepest[:, None], -gradients, directions)
        self.slopes[lanes] = self.low_slopes[lanes] = np.where(is_steepest, -squares, slopes)
        lengths = np.sqrt(np.maximum(squares, np.finfo(np.float64).tiny))
        self.steps[lanes] = np.where(is_steepest, np.minimum(1.0, 1 / lengths), 1.0)
        self.low[lanes], self.high[lanes] = 0.0, np.inf
        self.low_losses[lanes] = self.losses[lanes]
        self.num_trials[lanes] = 0

    def _newton(self, lanes: np.ndarray) -> np.ndarray:
        """The gradients times the inverse Hessians as the memory has them, by two loops."""
        moves, turns = self.moves[:, lanes], self.turns[:, lanes]
        weights = self.weights[:, lanes, None]
        known = [index for index in range(_MEMORY) if np.any(weights[index])]
        steps, shares = self.gradients[lanes], {}
        for index in reversed(known):
            shares[index] = weights[index] * np.sum(moves[index] * steps, axis=1, keepdims=True)
            steps = steps - shares[index] * turns[index]
        curvatures = weights[-1] * np.sum(turns[-1] ** 2, axis=1, keepdims=True)
        steps = steps / np.where(curvatures > 0, curvatures, 1.0)
        for index in known:
            back = weights[index] * np.sum(turns[index] * steps, axis=1, keepdims=True)
            steps = steps + (shares[index] - back) * moves[index]
        return steps

    def _try_again(
        self, lanes: np.ndarray, losses: np.ndarray, gradients: np.ndarray, is_down: np.ndarray
    ) -> np.ndarray:
        """Sets the next steps of line searches, and returns whether they are at their end."""
        slopes = np.sum(gradients * self.directions[lanes], axis=1)
        steps, low = self.steps[lanes], self.low[lanes]
        width = steps - low
        inside = _lowest(losses - self.low_losses[lanes], self.low_slopes[lanes], slopes, width)
        with np.errstate(all="ignore"):
            beyond = slopes / (self.low_slopes[lanes] - slopes)  # where slopes on a line are zero
        beyond = np.where(beyond > 0, beyond, _BEYOND[1])
        short, far = lanes[is_down], lanes[~is_down]
        self.high[far] = steps[~is_down]
        self.low[short], self.low_losses[short] = steps[is_down], losses[is_down]
        self.low_slopes[short] = slopes[is_down]
        within = low + width * np.clip(inside, *_INSIDE)
        outside = steps + width * np.clip(beyond, *_BEYOND)
        middle = 0.5 * (self.low[lanes] + self.high[lanes])
        outside = np.where(np.isfinite(self.high[lanes]), middle, outside)
        self.steps[lanes] = np.where(is_down, outside, within)
        self.num_trials[lanes] += 1
        return self._give_up(lanes[self.num_trials[lanes] >= _MAX_LINE_STEPS], lanes)

    def _give_up(self, stuck: np.ndarray, lanes: np.ndarray) -> np.ndarray:
        """Forgets the memory of line searches that have failed, and ends those that have none."""
        has_memory = self.weights[-1, stuck] > 0
        again = stuck[has_memory]
        self.weights[:, again] = 0.0
        self._set_out(again)
        return np.isin(lanes, stuck[~has_memory])


def _lowest(
    rises: np.ndarray, first_slopes: np.ndarray, last_slopes: np.ndarray, widths: np.ndarray
) -> np.ndarray:
    """
    Returns where, as a share of an interval whose end is too high, a loss may be lowest: by a cubic
    and a parabola, as in SciPy (Moré and Thuente 1994); a tenth of it where that is unknown.
    """
    with np.errstate(all="ignore"):
        parabola = -0.5 * first_slopes * widths / (rises - first_slopes * widths)
        theta = first_slopes + last_slopes - 3 * rises / widths
        root = np.sqrt(np.maximum(theta**2 - first_slopes * last_slopes, 0.0))
        cubic = (root - first_slopes + theta) / (2 * root - first_slopes + last_slopes)
        share = np.where(cubic < parabola, cubic, 0.5 * (cubic + parabola))
    return np.where(np.isfinite(rises) & (share > 0), share, 0.1)
