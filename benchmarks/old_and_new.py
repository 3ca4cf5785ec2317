# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Old and new: did a change make ``DAIS(model)`` worse on any target of ``peers.py``?
===================================================================================

The claim: no target has become worse. Run the same seeds with both commits, each from its own checkout,

    python benchmarks/peers.py --data DIRECTORY --methods dais --num-seeds 20 --results old.jsonl
    python benchmarks/peers.py --data DIRECTORY --methods dais --num-seeds 20 --results new.jsonl

and compare them:

    python benchmarks/old_and_new.py old.jsonl new.jsonl --data DIRECTORY

It prints the ratio of root mean squared errors, new over old, with a 95 % bootstrap interval over paired seeds, and
costs, seconds and coverage of both. It ends with status 1 if an interval lies above 1.
"""

import argparse
from pathlib import Path
import sys

import numpy as np
from peer_tables import bootstrap_roots, cost, interval, number, root_mean_square
from peers import read_rows
from targets import NEEDS_FILE, TARGETS


def rows_of(path: Path, target: str) -> dict[int, dict]:
    """The runs of DAIS on a target, by seed."""
    rows = [row for row in read_rows(path) if row["target"] == target and row["method"] == "dais"]
    return {row["seed"]: row for row in rows}


def compare(target: str, exact: float, args: argparse.Namespace) -> tuple[str, bool] | None:
    """A line of the table, and whether the new runs are worse; None without seeds that both have."""
    old, new = (rows_of(path, target) for path in (args.old, args.new))
    seeds = sorted(old.keys() & new.keys())
    if not seeds:
        return None
    errors = [
        np.array([rows[seed]["log_evidence"] - exact for seed in seeds]) for rows in (old, new)
    ]
    ratios = np.divide(*map(bootstrap_roots, errors[::-1]))
    low, high = interval(ratios)
    roots = [root_mean_square(each) for each in errors]
    columns = [
        f"{target:18s} {len(seeds):3d}",
        f"{number(roots[0]):>8s} {number(roots[1]):>8s}",
        f"{roots[1] / roots[0]:6.2f} ({low:.2f} to {high:.2f})",
    ]
    for rows, each in zip((old, new), errors, strict=True):
        of_seeds = [rows[seed] for seed in seeds]
        covered = np.mean(np.abs(each) < 2 * np.array([row["standard_error"] for row in of_seeds]))
        seconds = np.median([row["seconds"] for row in of_seeds])
        columns.append(
            f"{np.mean([cost(row) for row in of_seeds]):8,.0f} {seconds:6.2f} s {covered:5.0%}"
        )
    return "  ".join(columns), low > 1


def main(args: argparse.Namespace) -> int:
    names = [name for name in TARGETS if args.data is not None or name not in NEEDS_FILE]
    print(
        "target, seeds, RMSE old, new, ratio (95 % interval), gradients, seconds, covered: old, new"
    )
    num_worse = 0
    for name in names:
        found = compare(name, TARGETS[name](args.data).log_evidence, args)
        if found is not None:
            print(found[0])
            num_worse += found[1]
    print(f"{num_worse} intervals lie above 1.")
    return int(num_worse > 0)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="DAIS before and after a change, on the targets of peers.py."
    )
    parser.add_argument("old", type=Path, help="results of peers.py with the old commit")
    parser.add_argument("new", type=Path, help="results of peers.py with the new commit")
    parser.add_argument("--data", type=Path, help="directory of the three CSV files")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main(parse_args()))
