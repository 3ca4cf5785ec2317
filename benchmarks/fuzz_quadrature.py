# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
The log of an integral over up to four real coordinates, by adaptive cubature that says when it is not to be trusted.

A population, tempered from a wide Cauchy density, finds where the mass is, in one place or in several. Boxes are first
split until no box has more than a small share of it, and then where the difference of two embedded rules (degrees 7 and 5) is large. All of
the space is covered: coordinates are compactified such that tails like those of a Cauchy density become smooth. This is done
in two systems of coordinates, along the axes and along uncorrelated directions, and if need be in other variables; two must converge, all
that converge must agree, and the population's own estimate must not contradict them.

References:

1. *Remarks on algorithm 006: an adaptive algorithm for numerical integration over an N-dimensional rectangular region*,
   Alan C. Genz, Aftab A. Malik (1980)
"""

from collections.abc import Iterable
from itertools import combinations, product
from typing import NamedTuple

from fuzz_population import LogDensity, Population, tempered_population
import numpy as np

TOLERANCE = 1e-4  # of the rules' own error, relative, at which a cubature stops; it is some ten times the true one
ACCEPTED = 1e-3  # the largest of these errors, of a cubature that has run out of points
MAX_POINTS = 6_000_000  # of one cubature: some ten seconds
MAX_DISAGREEMENT = 1e-3  # of two cubatures, in nats
MAX_CONTRADICTION = (
    0.6  # of the population, whose error is about 0.05, and several times that with heavy tails
)
WIDTH = 3.0  # of the compactified coordinates, in standard deviations
NUM_IN_BOX = (
    64  # particles at most before rules are compared, unless they are spread over all of the box
)
UNSEEN = 2.0  # nats that a particle or scout may be above all nodes of its box
NEGLIGIBLE = 1e-7  # share of the integral, of a box as high as its highest scout
LOOSE = 4.0  # half widths of a box at most, in standard deviations of the particles in it; 1.7 if these fill it
SHARE = 0.6  # of the error, that the boxes that are split at a time have


class Reference(NamedTuple):
    """
    A log integral.

    :param log_integral: of the cubature that converged first.
    :param disagreement: the range of all that converged, in nats.
    :param reason: why the number is not to be used; None if it is.
    """

    log_integral: float
    disagreement: float
    num_points: int
    reason: str | None


class Coordinates(NamedTuple):
    """u = center + matrix w, with w = WIDTH s / (1 - s^2) for s between -1 and 1."""

    center: np.ndarray
    matrix: np.ndarray

    def place(self, s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Positions, and the log of the Jacobian's determinant."""
        room = np.maximum(1 - s**2, 1e-12)  # particles far out are at the end, after rounding
        u = self.center + (WIDTH * s / room) @ self.matrix.T
        log_det = np.linalg.slogdet(self.matrix)[1]
        return u, log_det + np.sum(np.log(WIDTH * (1 + s**2)) - 2 * np.log(room), axis=1)

    def inverse(self, u: np.ndarray) -> np.ndarray:
        w = np.linalg.solve(self.matrix, (u - self.center).T).T / WIDTH
        return 2 * w / (1 + np.sqrt(1 + 4 * w**2))


def coordinate_systems(x: np.ndarray, is_second: bool) -> list[Coordinates]:
    """
    Along the axes, and along directions that are not correlated.

    :param x: draws from the density.
    :param is_second: gives others, in another order and wider, so that their boxes are not the same.
    """
    center, order = np.median(x, axis=0), slice(None, None, -1 if is_second else 1)
    scale = np.ptp(np.quantile(x, [0.05, 0.95], axis=0), axis=0) / 3.29
    scale = np.maximum(scale, 1e-12) * (1.3 if is_second else 1.0)
    z = np.clip((x - center) / scale, -3, 3)
    covariance = np.atleast_2d(np.cov(z.T)) + 1e-6 * np.eye(x.shape[1])
    tril = np.linalg.cholesky(covariance[order, order])[order, order]
    shift = (-0.2 if is_second else 0.1) * scale
    return [
        Coordinates(center, np.diag(scale)),
        Coordinates(center + shift, scale[:, None] * tril),
    ]


class Rule(NamedTuple):
    """Nodes on the cube from -1 to 1, and weights of degrees 7 and 5 for its mean."""

    nodes: np.ndarray
    weights: np.ndarray
    low_weights: np.ndarray


def genz_malik(num_dims: int) -> Rule:
    n, eye = num_dims, np.eye(num_dims)
    near, far, corner = np.sqrt([9 / 70, 9 / 10, 9 / 19])
    pairs = [
        far * (a * eye[i] + b * eye[j])
        for i, j in combinations(range(n), 2)
        for a, b in product([-1, 1], repeat=2)
    ]
    axes = [sign * size * axis for size in (near, far) for axis in eye for sign in (-1, 1)]
    corners = [corner * np.array(signs) for signs in product([-1, 1], repeat=n)]
    nodes = np.array([np.zeros(n), *axes, *pairs, *corners])
    counts = [1, 2 * n, 2 * n, len(pairs), len(corners)]
    weights = [12824 - 9120 * n + 400 * n**2, 2940, 1820 - 400 * n, 200, 6859 / 2**n]
    low = [729 - 950 * n + 50 * n**2, 367.5, (265 - 100 * n) / 2, 25, 0]
    return Rule(nodes, np.repeat(weights, counts) / 19683, np.repeat(low, counts) / 729)


class Boxes(NamedTuple):
    """Boxes, what the rule says of each, and the axis along which it is least smooth."""

    leaf: np.ndarray  # of the tree of splits
    middle: np.ndarray
    half: np.ndarray
    value: np.ndarray
    error: np.ndarray
    axis: np.ndarray
    highest: np.ndarray  # log density among the nodes
    lowest: np.ndarray

    def at(self, index: np.ndarray) -> "Boxes":
        return Boxes(*(part[index] for part in self))

    def join(self, other: "Boxes") -> "Boxes":
        return Boxes(*map(np.concatenate, zip(self, other, strict=True)))


class Cubature:
    """Adaptive cubature of exp(log density - shift) over all of the space, in given coordinates."""

    def __init__(
        self, log_density_fn: LogDensity, coordinates: Coordinates, population: Population
    ) -> None:
        self.log_density_fn, self.coordinates = log_density_fn, coordinates
        self.num_particles, self.num_dims = population.particles.shape
        self.rule, self.num_points = genz_malik(self.num_dims), 0
        # Particles come first, scouts after them.
        seen = np.concatenate([population.particles, population.scouts])
        self.seen = coordinates.inverse(seen)
        self.log_heights = self.log_values(self.seen)
        self.shift = float(np.max(self.log_heights))
        self.places = np.zeros(len(self.seen), int)  # leaves that they are in
        self.num_leaves = 1

    def log_values(self, s: np.ndarray) -> np.ndarray:
        u, log_jacobian = self.coordinates.place(s)
        self.num_points += len(s)
        return self.log_density_fn(u) + log_jacobian

    def evaluate(self, leaf: np.ndarray, middle: np.ndarray, half: np.ndarray) -> Boxes:
        nodes, weights, low_weights = self.rule
        num_dims = self.num_dims
        s = middle[:, None] + half[:, None] * nodes
        log_f = self.log_values(s.reshape(-1, num_dims)).reshape(len(middle), -1)
        f = np.exp(log_f - self.shift)
        volume = np.prod(2 * half, axis=1)
        value, low = volume * (f @ weights), volume * (f @ low_weights)
        on_axes = f[:, 1 : 4 * num_dims + 1].reshape(-1, 2, num_dims, 2).sum(axis=-1)
        on_axes -= 2 * f[:, :1, None]
        bends = np.abs(
            on_axes[:, 0] - on_axes[:, 1] / 7
        )  # fourth differences: 1/7 is (9/70) / (9/10)
        # Where all bend alike, the widest: an axis along which nodes see nothing would never be split.
        bends += 1e-3 * half / half.max(axis=1, keepdims=True) * f.max(axis=1, keepdims=True)
        extremes = log_f.max(axis=1), log_f.min(axis=1)
        return Boxes(
            leaf, middle, half, value, np.abs(value - low), bends.argmax(axis=1), *extremes
        )

    def split(self, boxes: Boxes, is_chosen: np.ndarray, axis: np.ndarray) -> Boxes:
        """Boxes of which some are replaced by their halves along an axis; particles are told apart."""
        chosen, axis = boxes.at(is_chosen), axis[is_chosen]
        step = np.eye(self.num_dims)[axis] * chosen.half / 2
        leaf = self.num_leaves + np.arange(2 * len(axis))
        lower_leaf = np.full(self.num_leaves, -1)
        lower_leaf[chosen.leaf] = leaf[: len(axis)]
        rows = np.zeros(self.num_leaves, int)
        rows[chosen.leaf] = np.arange(len(axis))
        moved = np.flatnonzero(lower_leaf[self.places] >= 0)
        row = rows[self.places[moved]]
        is_upper = self.seen[moved, axis[row]] > chosen.middle[row, axis[row]]
        self.places[moved] = leaf[row + len(axis) * is_upper]
        self.num_leaves += len(leaf)
        middle = np.concatenate([chosen.middle - step, chosen.middle + step])
        halves = self.evaluate(leaf, middle, np.concatenate(2 * [chosen.half - step]))
        return boxes.at(~is_chosen).join(halves)

    def overlooked(self, boxes: Boxes) -> tuple[np.ndarray, np.ndarray]:
        """Boxes whose nodes may not have seen what particles have, and the axes to split them along."""
        size, places = self.num_leaves, self.places[: self.num_particles]
        counts = np.bincount(places, minlength=size)
        mean, square = (
            np.stack(
                [np.bincount(places, x**power, size) for x in self.seen.T[:, : len(places)]], -1
            )
            / np.maximum(counts, 1)[:, None]
            for power in (1, 2)
        )
        spread = np.sqrt(np.maximum(square - mean**2, 0))[boxes.leaf] + 1e-9
        highest = np.full(size, -np.inf)
        np.maximum.at(highest, self.places, self.log_heights)
        highest, count, ratio = highest[boxes.leaf], counts[boxes.leaf], boxes.half / spread
        total = max(boxes.value.sum(), 1e-300)
        with np.errstate(over="ignore"):
            share = np.exp(highest - self.shift) * np.prod(2 * boxes.half, axis=1) / total
        is_unseen = (highest > boxes.highest + UNSEEN) & (share > NEGLIGIBLE)
        is_crowded = (count > NUM_IN_BOX) & np.any(ratio > 2, axis=1)
        is_loose = (count >= 3) & np.any(ratio > LOOSE, axis=1)
        expected = np.maximum(boxes.value / total * self.num_particles, 0)
        is_rough = boxes.highest > boxes.lowest + 1
        is_short = is_rough & (count - expected > 4 * np.sqrt(expected + 1))
        is_found = is_unseen | is_crowded | is_loose | is_short
        widest = np.argmax(boxes.half, axis=1)
        axis = np.where(count > 1, np.argmax(ratio, axis=1), widest)
        return is_found & (boxes.half.max(axis=1) > 1e-9), axis

    def run(self) -> tuple[float, float]:
        """The log integral and the relative error that the rules say it has."""
        root = np.zeros(1, int), np.zeros((1, self.num_dims)), np.ones((1, self.num_dims))
        boxes, is_looking = self.evaluate(*root), True
        while self.num_points < MAX_POINTS:
            if is_looking:
                is_chosen, axis = self.overlooked(boxes)
                is_looking = bool(is_chosen.any())
                if not is_looking and boxes.error.sum() <= TOLERANCE * boxes.value.sum():
                    break
            if not is_looking:
                order = np.argsort(boxes.error)[::-1]
                large = np.searchsorted(np.cumsum(boxes.error[order]), SHARE * boxes.error.sum())
                is_chosen, axis = np.zeros(len(order), bool), boxes.axis
                is_chosen[order[: large + 1]] = True
            boxes = self.split(boxes, is_chosen, axis)
            is_looking = is_looking or boxes.error.sum() <= TOLERANCE * boxes.value.sum()
        total = boxes.value.sum()
        if not total > 0 or (is_looking and self.num_points >= MAX_POINTS):
            return -np.inf, np.inf
        return float(np.log(total) + self.shift), float(boxes.error.sum() / total)


def integrate(log_density_fns: Iterable[LogDensity], num_dims: int, seed: int = 0) -> Reference:
    """
    Returns the log of an integral over the reals, or the reason why it is not known.

    :param log_density_fns: the integrand in two sets of variables, or the same twice. The second is used if fewer than two
        cubatures converge in the first.
    """
    found, num_points, rough = [], 0, -np.inf
    for index, log_density_fn in enumerate(log_density_fns):
        rng = np.random.default_rng([seed, index])
        population = tempered_population(log_density_fn, num_dims, rng)
        rough = max(rough, population.log_integral)
        if not np.isfinite(population.log_integral):
            continue
        for coordinates in coordinate_systems(population.particles, index > 0):
            cubature = Cubature(log_density_fn, coordinates, population)
            value, error = cubature.run()
            num_points += cubature.num_points
            found += [value] if error <= ACCEPTED else []
        if len(found) >= 2:
            break
    if len(found) < 2:
        reason = "cubature did not converge" if np.isfinite(rough) else "no mass was found"
        return Reference(np.nan, np.nan, num_points, reason)
    disagreement, reason = float(np.ptp(found)), None
    if disagreement > MAX_DISAGREEMENT:
        reason = "cubatures disagree"
    elif abs(found[0] - rough) > MAX_CONTRADICTION:
        reason = "the population contradicts cubature"
    return Reference(found[0], disagreement, num_points, reason)
