# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Dimension: what DAIS does from 4 to 20,000 dimensions, and its peers at equal gradients
=======================================================================================

The claim: chains earn their steps in any dimension, and never do worse than the paper's. On Cox processes,
Gaussians, skewed products, regressions, hierarchies and random effects of known log evidence
(``dimension_targets.py``): ``DAIS(model)``; and from the prior, with all of the budget, DAIS, HAIS, the paper's plain
chain (the best of six by its lower bound) and blackjax's adaptive tempered SMC (``dimension_methods.py``).

    python benchmarks/dimension.py --data DIRECTORY

where DIRECTORY holds ``pines.csv``, ``turtles.csv``, ``sonar.csv``, ``ionosphere.csv`` and ``seeds.csv``, or its
folders do; without it their targets are left out. Every run is a line of the results, and is not repeated, so that a
study may be interrupted, continued and extended. A target and method has a process of its own, hence a peak of memory,
and is ended after ``--max-seconds``, which the table then says; a larger number tries again. In 20,000 dimensions only the default is run. In float64, and once more in float32 for ``DAIS(model)``.

References:

1. *Differentiable Annealed Importance Sampling and the Perils of Gradient Noise*,
   Guodong Zhang, Kyle Hsu, Jianing Li, Chelsea Finn, Roger Grosse (NeurIPS 2021)
2. *Hamiltonian Annealed Importance Sampling for partition function estimation*,
   Jascha Sohl-Dickstein, Benjamin J. Culpepper (2012)
3. *Sequential Monte Carlo samplers*, Pierre Del Moral, Arnaud Doucet, Ajay Jasra (2006)
"""

import argparse
import json
from pathlib import Path
import resource
import sys
import time
from typing import NamedTuple

from cells import run_process
from dimension_methods import LABELS, METHODS, Variants, can_run
from dimension_tables import best_variants, draw, report
from dimension_targets import NEEDS_FILE, TARGETS, SizedTarget
from peers import read_rows, timed

import numpyro

FIGURES = Path(__file__).parent / "figures"
LARGE = 1000  # dimensions from which there are fewer seeds, and one plain chain after the first
NUM_LARGE_SEEDS = 3
NUM_FLOAT32_SEEDS = 3
FLOAT32_METHODS = ("dais",)
DEFAULT_ONLY = ("low_rank_20000",)  # from the prior, a run takes minutes
QUICK_TARGETS = ["ar2", "hierarchical_normal", "gaussian_30", "skewed_50", "cox_16"]


class Cell(NamedTuple):
    """The runs of one process."""

    target: str
    method: str
    precision: str


def cells(args: argparse.Namespace) -> list[Cell]:
    """All that is to run, targets in their order, the default first."""
    methods = [method for method in args.methods if can_run(method)]
    for method in set(args.methods) - set(methods):
        print(f"{LABELS[method]} is left out: its package is not installed")
    in_float32 = [method for method in methods if method in FLOAT32_METHODS]
    return [
        Cell(target, method, precision)
        for target in args.targets
        for precision, names in [("float64", methods), ("float32", in_float32)]
        for method in names
        if method == "dais" or target not in DEFAULT_ONLY
    ]


def rows_of(cell: Cell, args: argparse.Namespace) -> list[dict]:
    rows = [row for row in read_rows(args.results) if row["budget"] == args.budget]
    return [row for row in rows if (row["target"], row["method"], row["precision"]) == tuple(cell)]


def write(cell: Cell, row: dict, args: argparse.Namespace) -> None:
    with args.results.open("a", encoding="utf-8") as file:
        file.write(json.dumps({**cell._asdict(), "budget": args.budget, **row}) + "\n")


def seeds_of(cell: Cell, target: SizedTarget, num_seeds: int) -> range:
    limits = [num_seeds]
    limits += [NUM_LARGE_SEEDS] * (target.num_dims >= LARGE)
    limits += [NUM_FLOAT32_SEEDS] * (cell.precision == "float32")
    return range(min(limits))


def peak_memory() -> float:
    """The most that this process has held so far, in MiB."""
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def variants_of(seed: int, variants: Variants, rows: list[dict], num_dims: int) -> Variants:
    """Those that a seed runs: all, or in many dimensions the one that was best with the first seed."""
    best = [row["variant"] for row in best_variants(rows) if row["seed"] == 0]
    return {best[0]: variants[best[0]]} if seed > 0 and num_dims >= LARGE and best else variants


def run_cell(cell: Cell, args: argparse.Namespace) -> None:
    """Appends the rows of each seed that has none yet; the first run is the one that compiles."""
    numpyro.enable_x64(cell.precision == "float64")
    target = TARGETS[cell.target](args.data)
    variants = METHODS[cell.method](target.target, args.budget)
    is_first = True
    for seed in seeds_of(cell, target, args.num_seeds):
        rows = rows_of(cell, args)
        if any(row["seed"] == seed for row in rows):
            continue
        found = []
        for name, run in variants_of(seed, variants, rows, target.num_dims).items():
            result, seconds = timed(run, seed)
            row = {"variant": name, "seed": seed, **result._asdict()}
            row |= {"seconds": seconds, "is_first": is_first, "peak_mib": round(peak_memory())}
            found.append(row)
            is_first = False
        for row in found:  # all or none, so that a seed that is there is complete
            write(cell, row, args)


def start_cell(cell: Cell, target: SizedTarget, args: argparse.Namespace) -> None:
    """Runs a cell in a process of its own, and notes why it ended if that was too early."""
    rows = rows_of(cell, args)
    is_given_up = any(row.get("limit", 0.0) >= args.max_seconds for row in rows)
    done = {row["seed"] for row in rows}
    if is_given_up or done.issuperset(seeds_of(cell, target, args.num_seeds)):
        return
    command = [sys.executable, __file__, "--cell", *cell, "--results", args.results]
    command += ["--num-seeds", args.num_seeds, "--budget", args.budget]
    command += ["--data", args.data] if args.data is not None else []
    reason = run_process(command, ", ".join(cell), args.max_seconds)
    if reason is not None:
        write(cell, {"seed": None, "reason": reason, "limit": args.max_seconds}, args)


def main(args: argparse.Namespace) -> None:
    if args.cell is not None:
        run_cell(Cell(*args.cell), args)
        return
    args.targets = [n for n in args.targets if args.data is not None or n not in NEEDS_FILE]
    numpyro.enable_x64()
    targets = {name: TARGETS[name](args.data) for name in args.targets}
    begin = time.perf_counter()
    if not args.tables_only:
        for cell in cells(args):
            start_cell(cell, targets[cell.target], args)
        print(f"{(time.perf_counter() - begin) / 60:.0f} minutes in all")
    rows = [row for row in read_rows(args.results) if row["budget"] == args.budget]
    rows = [row for row in rows if row["target"] in targets]
    if not rows:
        print("No results yet.")
        return
    text = report(targets, rows, args.budget)
    print("\n" + text)
    args.figure.parent.mkdir(parents=True, exist_ok=True)
    args.figure.with_suffix(".md").write_text(text, encoding="utf-8")
    draw(targets, rows).savefig(args.figure, dpi=160)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="DAIS and its peers, from few dimensions to many.")
    parser.add_argument("--data", type=Path, help="directory of the CSV files")
    parser.add_argument("--results", type=Path, default=Path("dimension.jsonl"), help="the runs")
    parser.add_argument("--targets", nargs="+", default=list(TARGETS), choices=list(TARGETS))
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--num-seeds", type=int, default=10, help="of every method")
    parser.add_argument("--budget", type=int, default=100_000, help="gradients of a run")
    parser.add_argument(
        "--max-seconds", type=float, default=600.0, help="of all seeds of a target and method"
    )
    parser.add_argument("--figure", type=Path, help="the table is put beside it")
    parser.add_argument("--tables-only", action="store_true", help="run nothing")
    parser.add_argument("--quick", action="store_true", help="few targets, seeds and gradients")
    parser.add_argument("--cell", nargs=3, help=argparse.SUPPRESS)  # of a process started here
    args = parser.parse_args()
    if args.quick:
        if args.targets == list(TARGETS):
            args.targets = QUICK_TARGETS
        args.num_seeds, args.budget = min(args.num_seeds, 2), min(args.budget, 20_000)
        args.max_seconds = min(args.max_seconds, 60.0)
    if args.figure is None:
        args.figure = Path("dimension_quick.png") if args.quick else FIGURES / "dimension.png"
    return args


if __name__ == "__main__":
    main(parse_args())
