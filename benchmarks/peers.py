# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Peers: DAIS with nothing said, next to what a user would pick instead
=====================================================================

The claim: ``DAIS(model).log_evidence(key, data)`` needs no settings, and for its cost is hard to beat. In one
run, on models with exact or long-run log evidence: DAIS, blackjax's adaptive tempered SMC, NumPyro's
NUTS followed by bridge sampling, Laplace importance sampling with a Student-t, AutoDAIS with importance
weights, HAIS, and NumPyro's NestedSampler (jaxns), each at sensible settings of its own
(``peer_methods.py``), over several seeds. Cost is counted in gradients, tuning and warm-up included, a
density without gradient as half of one.

    python benchmarks/peers.py --data DIRECTORY --results results.jsonl

where DIRECTORY holds ``sonar.csv``, ``ionosphere.csv`` (features, then ``y``) and ``seeds.csv``; without it these
are left out. ``dais@nuts`` among the methods is DAIS with the mean cost of ``nuts`` as its budget. Every run is a
line of the results; runs that are there already are not repeated, so a study may be interrupted,
continued, and extended. Tables are printed, and saved with a picture beside the results. The peers come
with ``pip install numpyro-dais[benchmarks]``; those that are not installed are left out.

References:

1. *Simulating ratios of normalizing constants via a simple identity: a theoretical exploration*,
   Xiao-Li Meng, Wing Hung Wong (1996)
2. *Sequential Monte Carlo samplers*, Pierre Del Moral, Arnaud Doucet, Ajay Jasra (2006)
"""

import argparse
import json
from pathlib import Path
import time
import traceback

from jax import random
import numpy as np
from peer_methods import METHODS, Result, RunFn, dais, is_installed
from peer_tables import cost, draw, label, summarise, tables
from targets import NEEDS_FILE, TARGETS, Target

import numpyro


def read_rows(path: Path) -> list[dict]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def make_run(method: str, target: Target, rows: list[dict]) -> RunFn:
    """The run of a method on a target, of which ``rows`` are the results so far."""
    if "@" not in method:
        return METHODS[method].make_run(target)
    peer = method.split("@")[1]
    costs = [cost(row) for row in rows if row["method"] == peer]
    if not costs:
        raise ValueError(f"{method!r} needs the cost of {peer!r} on this target; run that first.")
    return dais(target, budget=float(np.mean(costs)))


def timed(run: RunFn, seed: int) -> tuple[Result, float]:
    begin = time.perf_counter()
    result = run(random.key(seed))
    return result, time.perf_counter() - begin


def measure(name: str, target: Target, method: str, args: argparse.Namespace) -> None:
    """Appends a row for each seed that has none yet."""
    rows = [row for row in read_rows(args.results) if row["target"] == name]
    done = {row["seed"] for row in rows if row["method"] == method}
    missing = [seed for seed in range(args.num_seeds) if seed not in done]
    if not missing:
        return
    run = make_run(method, target, rows)
    first_seconds = None
    for seed in missing:
        if seed == missing[0]:
            _, first_seconds = timed(run, seed)  # compiles
        result, seconds = timed(run, seed)
        row = {"target": name, "method": method, "seed": seed, **result._asdict()}
        row |= {"seconds": seconds, "first_seconds": first_seconds}
        first_seconds = None
        with args.results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
    print(f"{name}, {label(method)}: {len(missing)} runs, the last in {seconds:.2f} s", flush=True)


def run_all(targets: dict[str, Target], args: argparse.Namespace) -> None:
    for method in args.methods:
        if not is_installed(method):
            print(f"{label(method)} is left out: its package is not installed")
            continue
        for name, target in targets.items():
            try:
                measure(name, target, method, args)
            except Exception:  # a peer that fails on a target must not end the study
                print(f"{name}, {label(method)} failed:\n{traceback.format_exc(limit=-3)}")


def main(args: argparse.Namespace) -> None:
    names = [name for name in args.targets if args.data is not None or name not in NEEDS_FILE]
    targets = {name: TARGETS[name](args.data) for name in names}
    if not args.tables_only:
        run_all(targets, args)
    summaries = {}
    for name, target in targets.items():
        rows = [row for row in read_rows(args.results) if row["target"] == name]
        rows = [row for row in rows if row["seed"] < args.num_seeds or args.tables_only]
        if rows:
            summaries[name] = summarise(rows, target)
    if not summaries:
        print("No results yet.")
        return
    print("\n" + tables(targets, summaries, is_markdown=False))
    text = tables(targets, summaries, is_markdown=True)
    args.results.with_suffix(".md").write_text(text, encoding="utf-8")
    draw(targets, summaries).savefig(args.results.with_suffix(".png"), dpi=160)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="DAIS next to its peers.")
    parser.add_argument("--data", type=Path, help="directory of the three CSV files")
    parser.add_argument(
        "--results", type=Path, default=Path("peers.jsonl"), help="one run per line"
    )
    parser.add_argument("--targets", nargs="+", default=list(TARGETS), choices=list(TARGETS))
    parser.add_argument(
        "--methods",
        nargs="+",
        default=[*METHODS, *(f"dais@{name}" for name in METHODS if name != "dais")],
        help=f"of {', '.join(METHODS)}; or dais@ one of these",
    )
    parser.add_argument("--num-seeds", type=int, default=10, help="of every method")
    parser.add_argument("--tables-only", action="store_true", help="run nothing")
    args = parser.parse_args()
    for method in args.methods:
        if method.removeprefix("dais@") not in METHODS:
            parser.error(f"unknown method {method!r}; known are {', '.join(METHODS)}")
    return args


if __name__ == "__main__":
    numpyro.enable_x64()
    main(parse_args())
