# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Calibration: are posterior probabilities of models what they say?
=================================================================

The claim: Bayes factors from ``DAIS(model)`` mean what users take them to mean. The model is drawn at random,
parameters and data from it, and the posterior probability of the second model computed. Its mean must be the prior
probability, and among data sets with probability near p a share p must come from that model. Three pairs of models
(``calibration_pairs.py``), both tests at a stated level and power (``calibration_tables.py``), and a planted error that they must find: the log evidence of
the second model without the log 2 of a half-normal prior.

    python benchmarks/calibration.py --num-datasets 200

Every data set is a line of the results and is not repeated, so that a study may be interrupted, continued and extended.
Exact evidences exist for all pairs, by closed form or quadrature; how far DAIS is from them is printed, too.

References:

1. *Workflow techniques for the robust use of Bayes factors*,
   Daniel J. Schad, Bruno Nicenboim, Paul-Christian Bürkner, Michael Betancourt, Shravan Vasishth (2022)
"""

import argparse
import json
from pathlib import Path
import time

from calibration_pairs import PAIRS, draw_data
from calibration_tables import draw, report
from jax import random
import jax.numpy as jnp
from tqdm import tqdm

import numpyro

from numpyro_dais import DAIS

FIGURES = Path(__file__).parent / "figures"


def read_rows(args: argparse.Namespace) -> dict[str, list[dict]]:
    """The rows of each pair that was asked for, as many as data sets were."""
    rows = []
    if args.results.exists():
        rows = [json.loads(line) for line in args.results.read_text(encoding="utf-8").splitlines()]
    rows = [row for row in rows if row["dataset"] < args.num_datasets]
    found = {name: [row for row in rows if row["pair"] == name] for name in args.pairs}
    return {name: of_pair for name, of_pair in found.items() if of_pair}


def run_dataset(name: str, index: int) -> dict:
    """Returns the row of a data set: the model it came from, and both log evidences, by DAIS and exact."""
    pair, (which, y) = PAIRS[name], draw_data(name, index)
    keys = random.split(random.key(index))
    results = [
        DAIS(model).log_evidence(rng_key, jnp.asarray(y))
        for model, rng_key in zip(pair.models, keys, strict=True)
    ]
    return {
        "pair": name,
        "dataset": index,
        "model": which,
        "log_evidence": [float(result.log_evidence) for result in results],
        "standard_error": [float(result.standard_error) for result in results],
        "warnings": [list(result.warnings) for result in results],
        "exact": [exact(y) for exact in pair.exact_fns],
    }


def run_pair(name: str, args: argparse.Namespace) -> None:
    """Appends a row for each data set that has none yet."""
    done = {row["dataset"] for row in read_rows(args).get(name, [])}
    missing = [index for index in range(args.num_datasets) if index not in done]
    for index in tqdm(missing, desc=PAIRS[name].title, disable=None):
        row = run_dataset(name, index)
        with args.results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def main(args: argparse.Namespace) -> None:
    numpyro.enable_x64()
    begin = time.perf_counter()
    if not args.tables_only:
        for name in args.pairs:
            run_pair(name, args)
        print(f"{(time.perf_counter() - begin) / 60:.1f} minutes in all")
    rows = read_rows(args)
    if not rows:
        print("No results yet.")
        return
    text = report(rows)
    print("\n" + text)
    args.figure.parent.mkdir(parents=True, exist_ok=True)
    args.figure.with_suffix(".md").write_text(f"```text\n{text}```\n", encoding="utf-8")
    draw(rows).savefig(args.figure, dpi=160)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Calibration of posterior model probabilities.")
    parser.add_argument("--pairs", nargs="+", default=list(PAIRS), choices=list(PAIRS))
    parser.add_argument("--num-datasets", type=int, default=200, help="of each pair")
    parser.add_argument("--results", type=Path, default=Path("calibration.jsonl"), help="the runs")
    parser.add_argument(
        "--figure",
        type=Path,
        default=FIGURES / "calibration.png",
        help="the table is put beside it",
    )
    parser.add_argument("--tables-only", action="store_true", help="run nothing")
    return parser.parse_args()


if __name__ == "__main__":
    main(parse_args())
