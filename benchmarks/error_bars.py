# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Error bars: how often the truth is within two errors of the log of a mean weight
=================================================================================

Draws weights of mean one from many distributions, and compares the jackknife's standard error of the
log of their mean with the one that an ``Evidence`` reports, which allows for the tail of the weights.
Tables: coverage by k-hat and number of weights, by effective sample size where weights are few, and
of each distribution. "Silent" are the runs that would not have been warned of. Limits of these
warnings, in ``numpyro_dais/results/report.py``, were set by these tables, but for that of k-hat, which
``trust.py`` shows to be lower on weights of real fits.

"Rare" weights, those of a mode that one draw in hundreds meets, are in a table of their own: where
none was met, nothing in the weights tells of them, and no error bar can.

    python benchmarks/error_bars.py
"""

import argparse
from collections.abc import Callable
import itertools
import math
from typing import NamedTuple

import numpy as np
from scipy import stats

from numpyro_dais._util.tails import Tail, error_with_tail, fit_tail, upper_variance
from numpyro_dais._util.weights import ess, log_mean, log_mean_error
from numpyro_dais.results.report import is_tail_known

Draw = Callable[[np.random.Generator, int], np.ndarray]

SIZES = (32, 48, 64, 128, 256, 512, 1024, 4096, 16384, 65536)
# Runs of these sizes take longer, and are fewer by this factor.
LARGE, FEWER = 16384, 5
KHAT_EDGES = (-math.inf, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, math.inf)
ESS_EDGES = (1.0, 3.0, 5.0, 7.0, 10.0, 15.0, 25.0, 50.0, math.inf)
VARIANCE_EDGES = (0.0, 0.7, 1.5, 2.5, 4.0, 6.0, 8.0, math.inf)
# Weights are few up to this number.
FEW = 512


def lognormal(variance: float) -> Draw:
    scale = math.sqrt(variance)
    return lambda rng, size: scale * rng.standard_normal(size) - variance / 2


def pareto(shape: float) -> Draw:
    return lambda rng, size: shape * rng.standard_exponential(size) + math.log(1 - shape)


def gamma(rate: float, shape: float) -> Draw:
    """Skewed to the right: nearly Pareto, behind a body."""
    return lambda rng, size: rate * rng.gamma(shape, size=size) + shape * math.log(1 - rate)


def chi_squared(rate: float, num_dims: int) -> Draw:
    """Skewed to the left, as log weights of chains are."""
    log_mean = -num_dims / 2 * math.log(1 + 2 * rate)
    return lambda rng, size: -rate * rng.chisquare(num_dims, size) - log_mean


def narrow(scale: float, num_dims: int) -> Draw:
    """A standard normal seen from a narrower one."""
    factor = (1 - scale**2) / 2
    log_scale = num_dims * math.log(scale)
    return lambda rng, size: factor * rng.chisquare(num_dims, size) + log_scale


def student(num_freedoms: float, scale: float) -> Draw:
    """Student's t seen from a normal: far out the weights have no variance."""

    def draw(rng: np.random.Generator, size: int) -> np.ndarray:
        x = scale * rng.standard_normal(size)
        return stats.t.logpdf(x, num_freedoms) - stats.norm.logpdf(x, scale=scale)

    return draw


def rare(share: float, ratio: float) -> Draw:
    """A few weights that are larger by a ratio, such as those of another mode."""

    def draw(rng: np.random.Generator, size: int) -> np.ndarray:
        is_large = rng.random(size) < share
        log_weights = lognormal(0.1)(rng, size) + math.log(ratio) * is_large
        return log_weights - math.log1p(share * (ratio - 1))

    return draw


SMOOTH: dict[str, Draw] = {
    **{f"log-normal, variance {v:g}": lognormal(v) for v in (0.1, 0.3, 1, 2, 3, 4, 6, 8, 10)},
    **{f"Pareto, shape {k:g}": pareto(k) for k in (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)},
    **{f"log-gamma {r:g}, {s:g}": gamma(r, s) for r, s in ((0.3, 4), (0.5, 2), (0.7, 2))},
    **{f"minus chi-squared, {d}-d": chi_squared(0.5, d) for d in (1, 4, 16)},
    **{f"narrow {s:g}, {d}-d": narrow(s, d) for s, d in ((0.9, 5), (0.8, 10), (0.7, 1), (0.7, 5))},
    "Student's t(3)": student(3, 1.5),
}
RARE: dict[str, Draw] = {
    f"1 in {round(1 / p)} are {r:g} times as large": rare(p, r)
    for p, r in ((0.01, 10), (0.003, 100), (0.001, 30))
}


class Run(NamedTuple):
    """One set of weights: the error of their mean, both standard errors, and what tells of them."""

    family: str
    size: int
    error: float
    jackknife: float
    reported: float
    khat: float
    ess: float
    variance: float

    @property
    def is_silent(self) -> bool:
        """True if nothing would have been said against the error."""
        return bool(is_tail_known(self.ess, self.khat, self.variance, self.size))


def run(family: str, draw: Draw, size: int, seed: int) -> Run:
    rng = np.random.default_rng([size, seed, *family.encode()])
    log_weights = draw(rng, size)
    tail = fit_tail(log_weights) or Tail(math.inf, 0.0, 1.0, 0)
    return Run(
        family,
        size,
        float(log_mean(log_weights, np)),
        float(log_mean_error(log_weights, np)),
        error_with_tail(log_weights, tail),
        tail.shape,
        float(ess(log_weights, np)),
        upper_variance(log_weights),
    )


def run_all(families: dict[str, Draw], sizes: tuple[int, ...], num_runs: int) -> list[Run]:
    return [
        run(family, draw, size, seed)
        for size in sizes
        for family, draw in families.items()
        for seed in range(max(num_runs // FEWER, 1) if size >= LARGE else num_runs)
    ]


def row_of(label: str, runs: list[Run]) -> str:
    """Number of runs, coverage of both errors, the median of their ratio, and silent runs."""
    silent = [run for run in runs if run.is_silent]
    ratio = np.median([run.reported / run.jackknife for run in runs])
    cells = [f"{len(runs):>6}", _share(runs, "jackknife"), _share(runs, "reported")]
    cells += [f"{ratio:>9.2f}", f"{len(silent) / len(runs):>9.2f}", _share(silent, "reported")]
    return f"{label:<34}" + " ".join(cells)


def _share(runs: list[Run], name: str) -> str:
    if not runs:
        return f"{'-':>9}"
    return f"{np.mean([abs(run.error) <= 2 * getattr(run, name) for run in runs]):>9.3f}"


HEADER = f"{'':<34}" + " ".join(
    f"{name:>{width}}"
    for name, width in zip(
        ("runs", "jackknife", "reported", "ratio", "silent", "of these"),
        (6, 9, 9, 9, 9, 9),
        strict=True,
    )
)


def table(title: str, groups: dict[str, list[Run]], fewest: int) -> list[str]:
    rows = [row_of(label, runs) for label, runs in groups.items() if len(runs) >= fewest]
    return ["", title, HEADER, *rows]


def by_edges(runs: list[Run], name: str, edges: tuple[float, ...]) -> dict[str, list[Run]]:
    """Runs by number of weights, and by one of their numbers."""
    sizes = sorted({run.size for run in runs})
    pairs = list(itertools.pairwise(edges))
    return {
        f"{size:>6} weights, {name} {low:g} to {high:g}": [
            run for run in runs if run.size == size and low < getattr(run, name) <= high
        ]
        for size in sizes
        for low, high in pairs
    }


def by_family(runs: list[Run]) -> dict[str, list[Run]]:
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(f"{run.family}, {run.size}", []).append(run)
    return groups


def tables(smooth: list[Run], rare_runs: list[Run], fewest: int) -> str:
    few = [r for r in smooth if r.size <= FEW and r.family.startswith("log-normal")]
    lines = ["Coverage: the share of runs whose truth is within two errors."]
    lines += table("By k-hat, all but rare weights", by_edges(smooth, "khat", KHAT_EDGES), fewest)
    lines += table("By k-hat, rare weights", by_edges(rare_runs, "khat", KHAT_EDGES), fewest)
    all_ess = (0.0, math.inf)
    lines += table("Few log-normal weights", by_edges(few, "ess", all_ess), fewest)
    lines += table("Few log-normal weights, by ESS", by_edges(few, "ess", ESS_EDGES), fewest)
    title = "Few log-normal weights, by the variance that their largest quarter shows"
    lines += table(title, by_edges(few, "variance", VARIANCE_EDGES), fewest)
    lines += table(
        "Each distribution, with its number of weights", by_family(smooth + rare_runs), 1
    )
    return "\n".join(lines)


def main(args: argparse.Namespace) -> None:
    sizes = tuple(args.sizes)
    smooth, rare_runs = (run_all(kind, sizes, args.num_runs) for kind in (SMOOTH, RARE))
    print(tables(smooth, rare_runs, args.fewest))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="How often the truth is within two errors.")
    parser.add_argument("--num-runs", type=int, default=300, help="of each distribution and size")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="of weights")
    parser.add_argument("--fewest", type=int, default=50, help="runs of a line of a table")
    main(parser.parse_args())
