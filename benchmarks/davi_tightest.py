# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
The tightest bound of a single trajectory, next to what is published at the same number of steps
================================================================================================

Bayesian logistic regression on sonar (d=61) and ionosphere (d=35), a random-effects model of the seeds data (d=26), and a
funnel (d=10). Printed are the bounds (mean log weight of fresh trajectories) over several seeds, with their spread and the
standard error of each, beside those of UHA (the algorithm of DAVI), LDVI, CMCD and the rKL-LD bridge, of which the last
three train networks in every step.

    python benchmarks/davi_tightest.py DIRECTORY            # of sonar.csv, ionosphere.csv and seeds.csv

The recipe is the same for all targets, and all numbers in it are constants of this file:

1. fit the guide by the ELBO, with 16 draws per gradient and Adam from 0.02 down;
2. from its parameters (``init_params=``) fit ``DAVI(num_steps=K, num_estimates=4, step_size=0.1, learn=("schedule",
   "step_size"))``: the mean of four trajectories in every gradient, the guide at a learning rate of 0.001 and the settings
   of the chains at 0.02, both decayed to a fiftieth (``optax.multi_transform``).

The guide is a flow (``AutoIAFNormal`` with two layers, in whose noise the chains run); ``--starts full_rank`` is a Gaussian
with all correlations instead. What counts is little noise in what moves the guide: on sonar with 128 steps and a full-rank
start, one trajectory per gradient gives -109.31 after 1,000 iterations at a rate of 0.01 for everything (below the ELBO that
it began with, -109.03), -108.49 after 5,000 at 0.001 for the guide, and four give -108.46 after 2,000. There, and on seeds
with a flow, a learned damping changed nothing; on sonar a mass per step (-108.49), four importance-weighted particles in
place of the mean (-108.61) and an average of the last parameters did not pay, nor did, on seeds and the funnel with a
full-rank start and 32 steps, a learned potential in the steps (a network of position and step).

Every fit is a line of the results, and is not repeated, so that a study may be interrupted and continued; after a change of
the package, use another file (``--results``). Without DIRECTORY only the funnel is run. Times are CPU time of both fits, of
the fastest seed.

References:

1. *MCMC Variational Inference via Uncorrected Hamiltonian Annealing*, Tomas Geffner, Justin Domke (2021)
2. *Langevin Diffusion Variational Inference*, Tomas Geffner, Justin Domke (2023)
3. *Transport meets Variational Inference: Controlled Monte Carlo Diffusions*,
   Francisco Vargas, Shreyas Padhy, Denis Blessing, Nikolas Nüsken (2024)
"""

import argparse
from collections.abc import Callable
import json
from pathlib import Path
import time
from typing import Any, NamedTuple

from davi_vs_autodais import PUBLISHED, PUBLISHED_STEPS
import jax
from jax import lax, random
import numpy as np
import optax
from peers import read_rows
from targets import NEEDS_FILE, TARGETS, Target

from numpyro.infer import SVI, Trace_ELBO, autoguide

from numpyro_dais import DAVI

NAMES = ("sonar", "seeds", "ionosphere", "funnel")
STARTS: dict[str, Callable] = {
    "flow": lambda model: autoguide.AutoIAFNormal(model, num_flows=2),
    "full_rank": autoguide.AutoMultivariateNormal,
}
# Further bounds at the steps of PUBLISHED; None where there is no figure.
FURTHER = {
    "sonar": {"LDVI": (-116.27, -110.90, -109.11), "rKL-LD": (None, None, -108.83)},
    "ionosphere": {"LDVI": (-114.66, -112.57, -111.90)},
    "seeds": {"LDVI": (-74.96, -74.13, -73.71), "rKL-LD": (None, None, -73.48)},
    "funnel": {"CMCD": (None, None, -0.343), "rKL-LD": (None, None, -0.245)},
}
NUM_DRAWS = 16  # of the guide in each gradient of the ELBO
NUM_ESTIMATES = 4  # trajectories in each gradient of DAVI
FIRST_RATE, GUIDE_RATE, CHAIN_RATE = 0.02, 0.001, 0.02
STEP_SIZE = 0.1
LEARNED = ("schedule", "step_size")
FOUND = ("bound", "error", "elbo", "seconds")  # of a fit
TABLE = Path(__file__).parent / "figures" / "davi_tightest.md"


class Fit(NamedTuple):
    """The key of a line of the results."""

    target: str
    start: str
    num_steps: int
    seed: int


def adam(rate: float, num_iterations: int) -> optax.GradientTransformation:
    schedule = optax.cosine_decay_schedule(rate, num_iterations, alpha=0.02)
    return optax.chain(optax.clip_by_global_norm(100.0), optax.adam(schedule))


def two_rates(num_iterations: int) -> optax.GradientTransformation:
    """Slow for the guide, which is good already; fast for the chains, which know nothing yet."""
    rates = {
        "guide": adam(GUIDE_RATE, num_iterations),
        "chain": adam(CHAIN_RATE, num_iterations),
    }
    return optax.multi_transform(
        rates,
        lambda params: {name: "chain" if name.startswith("davi_") else "guide" for name in params},
    )


def keys_of(seed: int) -> jax.Array:
    """Of the first fit, of the second, and of the trajectories after it."""
    return random.split(random.key(seed), 3)


class Trainer:
    """``SVI.run`` that is compiled once for all seeds."""

    def __init__(self, svi: SVI, num_iterations: int, args: tuple) -> None:
        self.svi, self.args = svi, args

        def update(state: Any, _: None) -> Any:
            return svi.stable_update(state, *args)

        self._run = jax.jit(lambda state: lax.scan(update, state, None, length=num_iterations)[0])

    def __call__(
        self, rng_key: jax.Array, init_params: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        state = self.svi.init(rng_key, *self.args, init_params=init_params)
        return self.svi.get_params(self._run(state))


class Start:
    """A guide that is fitted by the ELBO, once for each seed."""

    def __init__(self, kind: str, target: Target, num_iterations: int) -> None:
        self.guide = STARTS[kind](target.model)
        optimiser = adam(FIRST_RATE, num_iterations)
        svi = SVI(target.model, self.guide, optimiser, Trace_ELBO(num_particles=NUM_DRAWS))
        # The first call of an autoguide takes a key more than the others: not that of a seed.
        svi.init(random.key(0), *target.args)
        self._train = Trainer(svi, num_iterations, target.args)
        self._fits: dict[int, tuple[dict[str, Any], float]] = {}

    def fit(self, seed: int) -> tuple[dict[str, Any], float]:
        """The parameters, and the CPU seconds that it took to find them."""
        if seed not in self._fits:
            begin = time.process_time()
            params = jax.block_until_ready(self._train(keys_of(seed)[0]))
            self._fits[seed] = params, time.process_time() - begin
        return self._fits[seed]


def bound(
    rng_key: jax.Array,
    davi: DAVI,
    guide: Any,
    params: dict[str, Any],
    target: Target,
    args: argparse.Namespace,
) -> tuple[float, float]:
    """The bound from fresh trajectories, and its standard error."""
    estimator = davi.estimator(
        target.model, guide, params, num_particles=args.num_trajectories, chunk_size=250
    )
    evidence = estimator.log_evidence(rng_key, *target.args)
    return float(evidence.lower_bound), float(evidence.lower_bound_error)


def run_cell(start: Start, keys: list[Fit], target: Target, args: argparse.Namespace) -> None:
    """Appends a line for each of the fits, which differ in their seed."""
    davi = DAVI(
        num_steps=keys[0].num_steps,
        num_estimates=NUM_ESTIMATES,
        step_size=STEP_SIZE,
        learn=LEARNED,
    )
    guide = davi.guide(start.guide)
    svi = SVI(target.model, guide, two_rates(args.num_iterations), davi)
    train = Trainer(svi, args.num_iterations, target.args)
    for key in keys:
        init_params, first_seconds = start.fit(key.seed)
        begin = time.process_time()
        params = jax.block_until_ready(train(keys_of(key.seed)[1], init_params))
        seconds = first_seconds + time.process_time() - begin
        last_key = keys_of(key.seed)[2]
        elbo, _ = bound(last_key, DAVI(num_steps=0), start.guide, init_params, target, args)
        value, error = bound(last_key, davi, guide, params, target, args)
        found = {"bound": value, "error": error, "elbo": elbo, "seconds": seconds}
        with args.results.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**key._asdict(), **found}) + "\n")
        print(f"{', '.join(map(str, key))}: {value:.3f} ({error:.3f})", flush=True)


def published(name: str, num_steps: int) -> dict[str, float]:
    """The figures for a target at a number of steps, by method."""
    if num_steps not in PUBLISHED_STEPS:
        return {}
    index = PUBLISHED_STEPS.index(num_steps)
    by_method = {**PUBLISHED.get(name, {}), **FURTHER[name]}
    return {
        method: figures[index]
        for method, figures in by_method.items()
        if figures[index] is not None
    }


def report(rows: list[dict], log_evidences: dict[str, float]) -> str:
    """The table, in Markdown, and what it comes to."""
    titles = "target, start, K, seeds, our bound, spread, lowest, standard error, published, log evidence, "
    titles += "ELBO of the start, CPU seconds"
    lines = ["| " + titles.replace(", ", " | ") + " |", "|---" * 12 + "|"]
    by_cell: dict[Fit, list[dict]] = {}
    for row in rows:
        by_cell.setdefault(key_of(row)._replace(seed=0), []).append(row)
    is_above: dict[tuple[str, int], list[bool]] = {}
    for cell in sorted(by_cell, key=place):
        own = {name: np.array([row[name] for row in by_cell[cell]]) for name in FOUND}
        bounds, figures = own["bound"], published(cell.target, cell.num_steps)
        words = [
            cell.target,
            cell.start.replace("_", " "),
            str(cell.num_steps),
            str(len(bounds)),
            f"{bounds.mean():.3f}",
            f"{bounds.std(ddof=1):.3f}" if len(bounds) > 1 else "-",
            f"{bounds.min():.3f}",
            f"{own['error'].mean():.3f}",
            ", ".join(f"{method} {figure:g}" for method, figure in figures.items()) or "-",
            f"{log_evidences[cell.target]:g}",
            f"{own['elbo'].mean():.3f}",
            f"{own['seconds'].min():.0f}",  # that of the first seed has compilation in it
        ]
        lines.append("| " + " | ".join(words) + " |")
        if figures:
            results = is_above.setdefault((cell.start, cell.num_steps), [])
            results.append(bool(bounds.min() > max(figures.values())))
    lines.append("")
    for (start, num_steps), results in is_above.items():
        lines.append(
            f"K = {num_steps}, {start.replace('_', ' ')}: every seed is above every published bound on {sum(results)} of "
            f"{len(results)} targets.\n"
        )
    return "\n".join(lines)


def place(cell: Fit) -> tuple[int, int, int]:
    """Of a line in the table."""
    return list(STARTS).index(cell.start), -cell.num_steps, NAMES.index(cell.target)


def key_of(row: dict) -> Fit:
    return Fit(*(row[name] for name in Fit._fields))


def main(args: argparse.Namespace) -> None:
    if args.quick:
        args.num_warmup, args.num_iterations, args.num_trajectories = 20, 20, 100
        args.table = args.results.with_suffix(".md")
    done = {key_of(row) for row in read_rows(args.results)}
    log_evidences = {}
    for name in args.targets:
        if args.directory is None and name in NEEDS_FILE:
            print(f"{name} is left out: it needs the directory of its data.")
            continue
        target = TARGETS[name](args.directory)
        log_evidences[name] = target.log_evidence
        for kind in args.starts:
            start = None
            for num_steps in args.num_steps:
                keys = [Fit(name, kind, num_steps, seed) for seed in range(args.num_seeds)]
                if missing := [key for key in keys if key not in done]:
                    start = start or Start(kind, target, args.num_warmup)
                    run_cell(start, missing, target, args)
    rows = [row for row in read_rows(args.results) if row["target"] in log_evidences]
    text = report(rows, log_evidences)
    args.table.write_text(text, encoding="utf-8")
    print("\n" + text)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Bounds of DAVI next to published ones.")
    parser.add_argument("directory", type=Path, nargs="?", help="of the three CSV files")
    parser.add_argument("--targets", nargs="+", default=list(NAMES), choices=NAMES)
    parser.add_argument("--starts", nargs="+", default=["flow"], choices=list(STARTS))
    parser.add_argument("--num-steps", type=int, nargs="+", default=[128], help="K")
    parser.add_argument("--num-seeds", type=int, default=3)
    parser.add_argument("--num-warmup", type=int, default=5000, help="of the ELBO")
    parser.add_argument("--num-iterations", type=int, default=3000, help="of DAVI")
    parser.add_argument("--num-trajectories", type=int, default=20_000, help="of each bound")
    parser.add_argument(
        "--results", type=Path, default=Path("davi_tightest.jsonl"), help="the fits"
    )
    parser.add_argument("--table", type=Path, default=TABLE, help="where it is saved")
    parser.add_argument("--quick", action="store_true", help="few iterations and trajectories")
    return parser.parse_args()


if __name__ == "__main__":
    main(parse_args())
