# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Trust: is DAIS right when it shows no warning?
==============================================

The claim: when ``DAIS(model)`` shows no warning, its answer is right, and it seldom warns of a right answer. Measured on
targets of known log evidence, with defaults, in float64 and with fewer seeds in float32: errors, reported errors, warnings,
costs; hence silent failures, coverage of silent runs, needless warnings, and coverage by k-hat and by effective sample size,
from which thresholds of warnings are set.

    python benchmarks/trust.py --data DIRECTORY                    # development targets (trust_targets.py)
    python benchmarks/trust.py --data DIRECTORY --set set_aside    # those set aside at first, seen since (trust_set_aside.py)
    python benchmarks/trust.py --set unseen                        # those that are run last (trust_unseen.py)

where DIRECTORY holds ``turtles.csv``, ``radiata_pine.csv`` and ``exchange_rates.csv``, or its folders do; without it their
targets are left out. Every run is a line of the results, and is not repeated, so that a study may be interrupted, continued and
extended; after a change of the package, use another file (``--results``). A target and precision has a process of its own,
which is ended after ``--max-seconds``; what had finished by then counts, and the table says why there is no more. A larger
number tries again. ``--num-workers`` processes run at a time, each on one thread.

References:

1. *Differentiable Annealed Importance Sampling and the Perils of Gradient Noise*,
   Guodong Zhang, Kyle Hsu, Jianing Li, Chelsea Finn, Roger Grosse (NeurIPS 2021)
2. *Pareto Smoothed Importance Sampling*,
   Aki Vehtari, Daniel Simpson, Andrew Gelman, Yuling Yao, Jonah Gabry (2024)
"""

import argparse
from concurrent.futures import ThreadPoolExecutor
import json
import os
from pathlib import Path
import sys
import time
from typing import NamedTuple
import warnings
import zlib

from cells import run_process
import jax
from jax import random
from peers import read_rows
from trust_base import TrustTarget
import trust_set_aside
from trust_tables import draw, report
import trust_targets
import trust_unseen

import numpyro

from numpyro_dais import DAIS

FIGURES = Path(__file__).parent / "figures"
SETS = {
    "development": trust_targets.TARGETS,
    "set_aside": trust_set_aside.TARGETS,
    "unseen": trust_unseen.TARGETS,
}
ALL_TARGETS = {name: make for targets in SETS.values() for name, make in targets.items()}
PRECISIONS = ("float64", "float32")
# Two processes on two cores: each of them on one, or they would wait for each other.
ONE_THREAD = {
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "OPENBLAS_NUM_THREADS": "1",
}


class Cell(NamedTuple):
    """The runs of one process."""

    target: str
    precision: str


def set_of(name: str) -> str:
    """The set that a target is of."""
    return next(label for label, targets in SETS.items() if name in targets)


def names_of(args: argparse.Namespace) -> list[str]:
    """The targets that are asked for, without those whose data files are not there."""
    names = list(ALL_TARGETS if args.set == "all" else SETS[args.set])
    names = args.targets or names
    needs_file = set(trust_targets.NEEDS_FILE) if args.data is None else set()
    left_out = [name for name in names if name in needs_file]
    if left_out:
        print(f"Left out, as they need --data: {', '.join(left_out)}")
    return [name for name in names if name not in needs_file]


def rows_of(cell: Cell, args: argparse.Namespace) -> list[dict]:
    rows = read_rows(args.results)
    return [row for row in rows if (row["target"], row["precision"]) == tuple(cell)]


def write(cell: Cell, row: dict, args: argparse.Namespace) -> None:
    with args.results.open("a", encoding="utf-8") as file:
        file.write(json.dumps({**cell._asdict(), **row}) + "\n")


def seeds_of(cell: Cell, args: argparse.Namespace) -> range:
    is_double = cell.precision == "float64"
    return range(args.num_seeds if is_double else min(args.num_float32_seeds, args.num_seeds))


def key_of(name: str, seed: int) -> jax.Array:
    """The key of a run. With the same draws for every target, errors of different targets would be correlated."""
    return random.fold_in(random.key(seed), zlib.crc32(name.encode()))


def run(target: TrustTarget, rng_key: jax.Array) -> dict:
    """What a user sees of one run with defaults; an exception is an answer, too."""
    begin = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # they are in the result
            evidence = DAIS(target.model).log_evidence(rng_key, *target.args)
        seconds = time.perf_counter() - begin
    except Exception as error:
        seconds = time.perf_counter() - begin
        return {"exception": f"{type(error).__name__}: {error}"[:500], "seconds": seconds}
    return {
        "log_evidence": float(evidence),
        "standard_error": float(evidence.standard_error),
        "warnings": list(evidence.warnings),
        "khat": None if evidence.khat is None else float(evidence.khat),
        "ess": float(evidence.ess),
        "num_gradients": int(evidence.num_gradients),
        "num_steps": int(evidence.settings.num_steps),
        "num_weights": int(evidence.log_weights.size),
        "missed_mass": evidence.diagnostics.missed_mass.outcome,
        "seconds": seconds,
    }


def run_cell(cell: Cell, args: argparse.Namespace) -> None:
    """Appends the row of each seed that has none yet; the first run is the one that compiles."""
    numpyro.enable_x64(cell.precision == "float64")
    target = ALL_TARGETS[cell.target](args.data)
    done = {row["seed"] for row in rows_of(cell, args)}
    missing = [seed for seed in seeds_of(cell, args) if seed not in done]
    for seed in missing:
        row = {
            "seed": seed,
            **run(target, key_of(cell.target, seed)),
            "is_first": seed == missing[0],
        }
        write(cell, row, args)


def start_cell(cell: Cell, args: argparse.Namespace) -> None:
    """Runs a cell in a process of its own, and notes why it ended if that was too early."""
    rows = rows_of(cell, args)
    is_given_up = any(row.get("limit", 0.0) >= args.max_seconds for row in rows)
    if is_given_up or {row["seed"] for row in rows}.issuperset(seeds_of(cell, args)):
        return
    command = [sys.executable, __file__, "--cell", *cell, "--results", args.results]
    command += ["--num-seeds", args.num_seeds, "--num-float32-seeds", args.num_float32_seeds]
    command += ["--data", args.data] if args.data is not None else []
    reason = run_process(command, ", ".join(cell), args.max_seconds, {**ONE_THREAD, **os.environ})
    if reason is not None:
        write(cell, {"seed": None, "reason": reason, "limit": args.max_seconds}, args)


def main(args: argparse.Namespace) -> None:
    if args.cell is not None:
        run_cell(Cell(*args.cell), args)
        return
    names = names_of(args)
    if not args.tables_only:
        begin = time.perf_counter()
        cells = [Cell(name, precision) for name in names for precision in PRECISIONS]
        with ThreadPoolExecutor(args.num_workers) as pool:
            list(pool.map(lambda cell: start_cell(cell, args), cells))
        print(f"{(time.perf_counter() - begin) / 60:.0f} minutes in all")
    rows = [row for row in read_rows(args.results) if row["target"] in names]
    if not rows:
        print("No results yet.")
        return
    numpyro.enable_x64()
    found = {row["target"] for row in rows}
    targets = {name: ALL_TARGETS[name](args.data) for name in names if name in found}
    sets = {name: set_of(name) for name in targets}
    text = report(targets, sets, rows)
    print("\n" + text)
    args.figure.parent.mkdir(parents=True, exist_ok=True)
    args.figure.with_suffix(".md").write_text(text, encoding="utf-8")
    draw(targets, sets, rows).savefig(args.figure, dpi=160)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Whether DAIS is right when it is silent.")
    parser.add_argument("--data", type=Path, help="directory of the CSV files")
    parser.add_argument("--results", type=Path, default=Path("trust.jsonl"), help="the runs")
    parser.add_argument("--set", default="development", choices=[*SETS, "all"])
    parser.add_argument(
        "--targets", nargs="+", choices=list(ALL_TARGETS), help="instead of a set", metavar="NAME"
    )
    parser.add_argument("--num-seeds", type=int, default=10, help="in float64")
    parser.add_argument("--num-float32-seeds", type=int, default=3)
    parser.add_argument(
        "--max-seconds", type=float, default=300.0, help="of all seeds of a target and precision"
    )
    parser.add_argument("--num-workers", type=int, default=2, help="processes at a time")
    parser.add_argument(
        "--figure", type=Path, default=FIGURES / "trust.png", help="the table is put beside it"
    )
    parser.add_argument("--tables-only", action="store_true", help="run nothing")
    parser.add_argument("--cell", nargs=2, help=argparse.SUPPRESS)  # of a process started here
    return parser.parse_args()


if __name__ == "__main__":
    main(parse_args())
