# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Defaults of DAVI: does it train by itself, and is its bound tighter than the ELBO?
===================================================================================

The claim: ``DAVI()`` in place of ``Trace_ELBO()`` trains from a cold start with every guide that has a density, at the
learning rates that people use, and its bound is not below the ELBO's. Measured on 20 models with autoguides and hand-written
guides, at Adam 0.01 and 0.05: the bound at the average of the parameters over the last tenth of the iterations, from fresh
draws, for the ELBO, for ``DAVI()`` with the plain guide, and with ``davi.guide``.

    python benchmarks/davi_defaults.py                      # development models (davi_models.py)
    python benchmarks/davi_defaults.py --set set_aside      # those that are run last (davi_set_aside.py)
    python benchmarks/davi_defaults.py --quick              # three models, one guide, few iterations
    python benchmarks/davi_defaults.py --table bounds.md    # the bounds as a Markdown table, too

Every fit is a line of the results, and is not repeated, so that a study may be interrupted and continued; after a change of
the package, use another file (``--results``). A model has a process of its own, which is ended after ``--max-seconds``.
"""

import argparse
import json
from pathlib import Path
import shlex
import sys
import time
from typing import Any, NamedTuple

from cells import run_process
import davi_models
import davi_set_aside
import jax
from jax import lax, random
import jax.numpy as jnp
import numpy as np
from peers import read_rows

import numpyro
from numpyro import handlers
from numpyro.infer import SVI, Trace_ELBO, autoguide

from numpyro_dais import DAVI

SETS = {"development": davi_models.CASES, "set_aside": davi_set_aside.CASES}
ALL_CASES = {name: make for cases in SETS.values() for name, make in cases.items()}
LEARNING_RATES = (0.01, 0.05)
METHODS = ("ELBO", "DAVI", "DAVI, learned")
QUICK = ("correlated columns", "hierarchy", "counts")
# A bound that is lower by less is not called lower: a twentieth of a nat decides nothing.
TOLERANCE = 0.05
# Nats: the largest error of a bound that counts as chance. A round number.
LARGEST_ERROR = 1.0
# Gaps of the ELBO below this have no share that is worth closing.
SMALLEST_GAP = 0.1


class Fit(NamedTuple):
    """The key of a line of the results."""

    case: str
    guide: str
    learning_rate: float
    method: str


def guide_list(model: Any, args: tuple) -> autoguide.AutoGuideList:
    """The first site with a guide of its own, and the others with another."""
    trace = handlers.trace(handlers.seed(model, 0)).get_trace(*args)
    sites = [n for n, s in trace.items() if s["type"] == "sample" and not s["is_observed"]]
    guide = autoguide.AutoGuideList(model)
    guide.append(autoguide.AutoNormal(handlers.block(model, hide=sites[1:]), prefix="first"))
    if len(sites) > 1:
        rest = handlers.block(model, hide=sites[:1])
        guide.append(autoguide.AutoDiagonalNormal(rest, prefix="others"))
    return guide


GUIDES = {
    "AutoNormal": lambda model, args: autoguide.AutoNormal(model),
    "AutoMultivariateNormal": lambda model, args: autoguide.AutoMultivariateNormal(model),
    "AutoLowRank": lambda model, args: autoguide.AutoLowRankMultivariateNormal(model),
    "AutoIAFNormal": lambda model, args: autoguide.AutoIAFNormal(model),
    "AutoGuideList": guide_list,
}


def num_latents(case: davi_models.Case) -> int:
    trace = handlers.trace(handlers.seed(case.model, 0)).get_trace(*case.args)
    sites = [s for s in trace.values() if s["type"] == "sample" and not s["is_observed"]]
    return sum(np.size(site["value"]) for site in sites)


def guides_of(case: davi_models.Case, args: argparse.Namespace) -> list[str]:
    """The guides that apply: a flow, like a low rank, needs two dimensions."""
    names = list(GUIDES) if case.has_autoguides else []
    if num_latents(case) < 2:
        names = [name for name in names if name not in ("AutoIAFNormal", "AutoLowRank")]
    if args.quick:
        return names[:1]
    return names + (["hand-written"] if case.guide is not None else [])


def fit(case: davi_models.Case, fit: Fit, args: argparse.Namespace) -> dict[str, Any]:
    """The bound after training, from fresh draws, and what went wrong."""
    guide = case.guide
    if fit.guide != "hand-written":
        guide = GUIDES[fit.guide](case.model, case.args)
    loss: Any = Trace_ELBO() if fit.method == "ELBO" else DAVI()
    if fit.method == "DAVI, learned":
        guide = loss.guide(guide)
    begin = time.perf_counter()
    svi = SVI(case.model, guide, numpyro.optim.Adam(fit.learning_rate), loss)
    state = svi.init(random.key(args.seed), *case.args)
    num_averaged = max(args.num_iterations // 10, 1)

    def body(carry: Any, index: jax.Array) -> Any:
        state, average = carry
        state, value = svi.update(state, *case.args)
        share = (index >= args.num_iterations - num_averaged) / num_averaged
        params = svi.optim.get_params(state.optim_state)
        return (state, jax.tree.map(lambda a, p: a + share * p, average, params)), value

    zeros = jax.tree.map(jnp.zeros_like, svi.optim.get_params(state.optim_state))
    indices = jnp.arange(args.num_iterations)
    run = jax.jit(lambda state: lax.scan(body, (state, zeros), indices))
    (_, average), losses = run(state)
    params = svi.constrain_fn(average)
    keys = random.split(random.key(args.seed + 1), args.num_draws)

    def bound(key: jax.Array) -> jax.Array:
        return -loss.loss(key, params, case.model, guide, *case.args)

    bounds = np.asarray(jax.jit(lambda keys: lax.map(bound, keys, batch_size=100))(keys), float)
    return {
        "bound": float(bounds.mean()),
        "error": float(bounds.std(ddof=1) / np.sqrt(len(bounds))),
        "is_finite": all(bool(np.all(np.isfinite(leaf))) for leaf in jax.tree.leaves(params)),
        "num_lost": int(np.sum(~np.isfinite(np.asarray(losses)))),
        "seconds": time.perf_counter() - begin,
    }


def key_of(row: dict) -> Fit:
    return Fit(*(row[name] for name in Fit._fields))


def run_case(name: str, args: argparse.Namespace) -> None:
    """Appends a line for each fit of a model that has none yet; an exception is an answer, too."""
    case = ALL_CASES[name]()
    done = {key_of(row) for row in read_rows(args.results)}
    rates = LEARNING_RATES[:1] if args.quick else LEARNING_RATES
    fits = [
        Fit(name, guide, r, m) for guide in guides_of(case, args) for r in rates for m in METHODS
    ]
    for key in fits:
        if key in done:
            continue
        try:
            row = fit(case, key, args)
        except Exception as error:
            row = {"exception": f"{type(error).__name__}: {error}"[:500]}
        row["log_evidence"] = case.log_evidence
        with args.results.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**key._asdict(), **row}) + "\n")


def report(rows: list[dict]) -> str:
    """The bounds, and the three figures of the claim."""
    by_key = {key_of(row): row for row in rows}
    lines = [f"{'model, guide, learning rate':58}" + "".join(f"{m:>24}" for m in METHODS)]
    kept, low, shares, num_bad = 0, [], [], 0
    for key in dict.fromkeys(key._replace(method="ELBO") for key in by_key):
        found = [by_key.get(key._replace(method=method)) for method in METHODS]
        title = f"{key.case}, {key.guide}, {key.learning_rate:g}"
        lines.append(f"{title:58}" + "".join(f"{words(row):>24}" for row in found))
        elbo = found[0]
        for method, row in zip(METHODS[1:], found[1:], strict=True):
            if row is None:
                continue
            if not row.get("is_finite"):
                num_bad += 1
            if elbo is None or "bound" not in elbo:
                continue
            kept += 1
            # An error that is itself large is that of a bound which has gone astray, and excuses nothing.
            error = min(row.get("error", 0.0), LARGEST_ERROR)
            margin = TOLERANCE + 3 * np.hypot(elbo["error"], error)
            if not row.get("bound", -np.inf) >= elbo["bound"] - margin:
                low.append(f"{title}, {method}: {words(row)}, ELBO {words(elbo)}")
            exact = row["log_evidence"]
            is_learned = method == METHODS[-1] and "bound" in row
            if is_learned and exact is not None and exact - elbo["bound"] > SMALLEST_GAP:
                shares.append((row["bound"] - elbo["bound"]) / (exact - elbo["bound"]))
    lines += ["", f"Fits of DAVI whose parameters are not finite, or that failed: {num_bad}"]
    lines.append(f"Fits of DAVI below the ELBO by more than the tolerance: {len(low)} of {kept}")
    lines += [f"  {line}" for line in low]
    if shares:
        lines.append(
            f"Share of the ELBO's gap closed, median of {len(shares)}: {np.median(shares):.0%}"
        )
    return "\n".join(lines) + "\n"


def table(rows: list[dict], command: str) -> str:
    """The bounds of :func:`report` as a Markdown table, below the command."""
    by_key = {key_of(row): row for row in rows}
    titles = ["model", "guide", "learning rate", *METHODS, "log evidence"]
    lines = [f"`{command}`", "", f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for key in dict.fromkeys(key._replace(method="ELBO") for key in by_key):
        found = [by_key.get(key._replace(method=method)) for method in METHODS]
        exact = next(row["log_evidence"] for row in found if row is not None)
        last = "-" if exact is None else f"{exact:.3f}"
        cells = [key.case, key.guide, f"{key.learning_rate:g}", *map(words, found), last]
        lines.append(f"| {' | '.join(cells)} |")
    summary = report(rows).split("\n\n", 1)[1]
    return "\n".join([*lines, "", "```", summary.rstrip(), "```"]) + "\n"


def words(row: dict | None) -> str:
    if row is None:
        return "-"
    return "failed" if "bound" not in row else f"{row['bound']:.3f} ({row['error']:.3f})"


def main(args: argparse.Namespace) -> None:
    if args.quick:
        args.num_iterations, args.num_draws = (
            min(args.num_iterations, 100),
            min(args.num_draws, 100),
        )
    if args.case is not None:
        run_case(args.case, args)
        return
    names = (
        list(QUICK)
        if args.quick
        else args.models or list(ALL_CASES if args.set == "all" else SETS[args.set])
    )
    for name in names:
        command = [sys.executable, __file__, "--case", name, "--results", args.results]
        command += ["--num-iterations", args.num_iterations, "--num-draws", args.num_draws]
        command += ["--seed", args.seed, *(["--quick"] if args.quick else [])]
        run_process(command, name, args.max_seconds)
    rows = [row for row in read_rows(args.results) if row["case"] in names]
    if args.table is not None and rows:
        args.table.write_text(table(rows, args.command), encoding="utf-8")
    print("\n" + report(rows) if rows else "No results yet.")


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="DAVI with its defaults next to the ELBO.")
    parser.add_argument(
        "--results", type=Path, default=Path("davi_defaults.jsonl"), help="the fits"
    )
    parser.add_argument("--table", type=Path, help="a Markdown file for the bounds")
    parser.add_argument("--set", default="development", choices=[*SETS, "all"])
    parser.add_argument("--models", nargs="+", choices=list(ALL_CASES), metavar="NAME")
    parser.add_argument("--num-iterations", type=int, default=2000, help="of each fit")
    parser.add_argument("--num-draws", type=int, default=2000, help="of each bound")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-seconds", type=float, default=900.0, help="of all fits of a model")
    parser.add_argument("--quick", action="store_true", help="three models, few iterations")
    parser.add_argument("--case", help=argparse.SUPPRESS)  # of a process started here
    args = parser.parse_args()
    given = [word for word in sys.argv[1:] if word not in ("--table", str(args.table))]
    args.command = shlex.join(["python", "benchmarks/davi_defaults.py", *given])
    return args


if __name__ == "__main__":
    main(parse_args())
