# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Fuzz: DAIS with nothing said on random small models, next to numerical quadrature
=================================================================================

The claim: when no warning is shown, the answer is right, also on models that nobody has chosen. Every seed is a model of
one to four latent sites (``fuzz_models.py``), whose log evidence is known from adaptive cubature (``fuzz_quadrature.py``).
Counted are how often the truth lies within two reported errors, silent failures (no warning, an error above
four reported ones and 0.05 nats), warnings, exceptions, and NaN presented as an answer.

    python benchmarks/fuzz.py --num-models 1000 --workers 2

A model whose reference is not known to 1e-3 nats is drawn again, and the reason counted. Every model is a line of the
results and is not repeated, so that a study may be interrupted, continued and extended; the line has the text of the model.
``--show 17`` prints the model of seed 17 and its reference, ``--first 17 --num-models 1`` runs it.

References:

1. *Remarks on algorithm 006: an adaptive algorithm for numerical integration over an N-dimensional rectangular region*,
   Alan C. Genz, Aftab A. Malik (1980)
"""

import argparse
from concurrent.futures import ProcessPoolExecutor, as_completed
import json
import multiprocessing
import os
from pathlib import Path
import sys
import time
import traceback
from typing import NamedTuple
import warnings

from fuzz_density import make_density
from fuzz_models import FuzzModel, make_model
from fuzz_quadrature import Reference, integrate
from fuzz_tables import NAN, SILENT, report, verdict
import jax
from jax import random
from tqdm import tqdm

from numpyro_dais import DAIS

MAX_ATTEMPTS = 20  # models of a seed; one in twenty has no reference
MODELS_PER_PROCESS = 50  # after which a worker is replaced, and its memory given back
# A worker has one core; read by XLA when a process makes its first array.
ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


class Case(NamedTuple):
    """A model of a seed with its reference, and why models before it were not used."""

    model: FuzzModel
    reference: Reference
    redrawn: tuple[str, ...]


def find_reference(model: FuzzModel) -> Reference:
    """Returns the log evidence of a model by quadrature, in variables of real sites of two kinds."""
    is_centred = (False, True)  # the second is compiled if it is needed only
    densities = (make_density(model.fn, model.y, is_centred=x).log_joint_fn for x in is_centred)
    return integrate(densities, model.num_dims)


def make_case(seed: int) -> Case:
    """Returns the first model of a seed whose log evidence is known."""
    reasons = []
    for attempt in range(MAX_ATTEMPTS):
        with jax.enable_x64(True):
            model = make_model(seed, attempt)
            if model is None:
                reasons.append("no finite data")
                continue
            reference = find_reference(model)
        if reference.reason is None:
            return Case(model, reference, tuple(reasons))
        reasons.append(f"{reference.reason} ({', '.join(model.tags)})")
    raise RuntimeError(f"Seed {seed} has no model with a reference in {MAX_ATTEMPTS} attempts.")


def run_dais(model: FuzzModel, seed: int, is_float32: bool) -> dict:
    """Returns what DAIS says of a model; an exception is part of that."""
    with jax.enable_x64(not is_float32), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            evidence = DAIS(model.fn).log_evidence(random.key(seed), model.y)
            result = {
                "log_evidence": float(evidence.log_evidence),
                "standard_error": float(evidence.standard_error),
                "warnings": list(evidence.warnings),
                "khat": None if evidence.khat is None else float(evidence.khat),
                "num_gradients": int(evidence.num_gradients),
            }
        except Exception:  # what the fuzz is looking for
            return {"exception": traceback.format_exc(limit=-4)}
    said = {str(warning.message) for warning in caught if warning.category is UserWarning}
    return result | {"other_warnings": sorted(said - {" ".join(result["warnings"])})}


def run_seed(seed: int, is_float32: bool) -> dict:
    """Returns the row of a seed."""
    begin = time.perf_counter()
    case = make_case(seed)
    middle = time.perf_counter()
    row = {"seed": seed, "precision": "float32" if is_float32 else "float64"}
    row |= {"num_dims": case.model.num_dims, "tags": case.model.tags, "redrawn": case.redrawn}
    row |= {"truth": case.reference.log_integral, "disagreement": case.reference.disagreement}
    row |= run_dais(case.model, seed, is_float32)
    row |= {"reference_seconds": middle - begin, "seconds": time.perf_counter() - middle}
    return row | {"source": case.model.source}


def run_alone(seed: int, is_float32: bool) -> dict:
    """Returns the row of a seed, in a worker; programs are forgotten, since no other model has the same."""
    row = run_seed(seed, is_float32)
    jax.clear_caches()
    return row


def read_rows(args: argparse.Namespace) -> list[dict]:
    """Rows of the seeds and the precision that were asked for."""
    if not args.results.exists():
        return []
    rows = [json.loads(line) for line in args.results.read_text(encoding="utf-8").splitlines()]
    precision = "float32" if args.float32 else "float64"
    seeds = range(args.first, args.first + args.num_models)
    return [row for row in rows if row["precision"] == precision and row["seed"] in seeds]


def run_all(args: argparse.Namespace) -> None:
    """Appends a row for each seed that has none yet."""
    done = {row["seed"] for row in read_rows(args)}
    seeds = [s for s in range(args.first, args.first + args.num_models) if s not in done]
    flags = os.environ.get("XLA_FLAGS", "")
    if "intra_op_parallelism_threads" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {ONE_THREAD}".strip()
    pool = ProcessPoolExecutor(
        args.workers,
        mp_context=multiprocessing.get_context("spawn"),
        max_tasks_per_child=MODELS_PER_PROCESS,
    )
    with pool, args.results.open("a", encoding="utf-8") as file:
        futures = [pool.submit(run_alone, seed, args.float32) for seed in seeds]
        for future in tqdm(as_completed(futures), total=len(futures), disable=None):
            file.write(json.dumps(future.result()) + "\n")
            file.flush()


def main(args: argparse.Namespace) -> int:
    """Returns the exit status: 1 if ``--max-silent`` was given and the models did not pass."""
    if args.show is not None:
        case = make_case(args.show)
        print(case.model.source)
        print(f"{', '.join(case.model.tags)}; {case.model.num_dims} free dimensions")
        print(f"log evidence {case.reference.log_integral:.5f}; drawn again: {list(case.redrawn)}")
        return 0
    begin = time.perf_counter()
    if not args.tables_only:
        run_all(args)
    rows = read_rows(args)
    if not rows:
        print("No results yet.")
        return 0
    print(report(rows))
    if not args.tables_only:
        print(f"{(time.perf_counter() - begin) / 60:.1f} minutes with {args.workers} workers")
    if args.max_silent is None:
        return 0
    found = [verdict(row) for row in rows]
    num_bad = sum(what in ("exception", NAN) for what in found)
    return int(num_bad > 0 or found.count(SILENT) > args.max_silent)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="DAIS on random models, against quadrature.")
    parser.add_argument("--num-models", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="seed of the first model")
    parser.add_argument("--workers", type=int, default=2, help="processes, of one core each")
    parser.add_argument("--results", type=Path, default=Path("fuzz.jsonl"), help="the runs")
    parser.add_argument("--float32", action="store_true", help="DAIS in single precision")
    parser.add_argument("--tables-only", action="store_true", help="run nothing")
    parser.add_argument("--show", type=int, help="print the model of this seed and its reference")
    parser.add_argument(
        "--max-silent",
        type=int,
        help="fail if there are more silent failures, or any exception or NaN",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main(parse_args()))
