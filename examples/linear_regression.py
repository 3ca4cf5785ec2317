# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

r"""
Bayesian linear regression: the estimate against the exact evidence
===================================================================

Ten weights with standard normal priors, 10,000 observations with unit noise. Evidence, posterior and
even the *expected* bound of a chain of K steps are known in closed form here, so every number that
DAIS estimates can be checked.

The claim, in two parts:

1. With nothing said, ``DAIS(model)`` gives log p(D) within its own error bar.
2. The gap of the bound falls with the number of steps K exactly as the closed form says, for any
   damping, schedule and step sizes; how fast depends a lot on these. A constant step size
   :math:`\eta = 0.1 (K/10)^{-1/4}` with :math:`\beta_k = k/K` is compared with
   :math:`\eta_k = 1.5 (1 + \beta_k \lambda_{max})^{-1/2} (K/10)^{-1/4}`, which follows the curvature
   along the chain, with :math:`\beta_k = (k/K)^4`.

**References**

1. *Differentiable Annealed Importance Sampling and the Perils of Gradient Noise*,
   Guodong Zhang, Kyle Hsu, Jianing Li, Chelsea Finn, Roger Grosse (NeurIPS 2021)
2. *MCMC Variational Inference via Uncorrected Hamiltonian Annealing*,
   Tomas Geffner, Justin Domke (NeurIPS 2021)
"""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
import time
from typing import NamedTuple

import jax
from jax import random
from matplotlib.figure import Figure
import numpy as np

import numpyro
import numpyro.distributions as dist

from numpyro_dais import DAIS, Evidence
from numpyro_dais.linear_regression import LinearRegression
from numpyro_dais.schedule import fourth_root_step_size, linear, power


class Chain(NamedTuple):
    """The settings of a chain: inverse temperatures and step sizes, one per step, and the damping."""

    betas: np.ndarray
    step_size: np.ndarray
    damping: float


# The closed form, the number of steps and the damping -> a chain.
ChainFn = Callable[[LinearRegression, int, float], Chain]


def constant_step(regression: LinearRegression, num_steps: int, damping: float) -> Chain:
    step_size = np.full(num_steps, fourth_root_step_size(num_steps, 0.1))
    return Chain(linear(num_steps), step_size, damping)


def curvature_step(regression: LinearRegression, num_steps: int, damping: float) -> Chain:
    betas = power(num_steps, 4.0)
    largest = np.linalg.eigvalsh(regression.gram)[-1]
    step_size = fourth_root_step_size(num_steps, 1.5) / np.sqrt(1 + betas * largest)
    return Chain(betas, step_size, damping)


# What is compared: label -> the chain, its damping and its colour.
STUDIES: dict[str, tuple[ChainFn, float, str]] = {
    "constant step, damping 0": (constant_step, 0.0, "#d55e00"),
    "constant step, damping 0.9": (constant_step, 0.9, "#0072b2"),
    "curvature step, damping 0": (curvature_step, 0.0, "#009e73"),
}
SCHEDULE_LABELS = {constant_step: r"$\beta_k = k/K$", curvature_step: r"$\beta_k = (k/K)^4$"}


class Row(NamedTuple):
    """One line of the table; gaps are log p(D) minus what they are gaps of."""

    label: str
    num_steps: int
    bound_gap: float
    bound_error: float
    exact_gap: float
    estimate_gap: float


def make_data(num_data: int = 10_000, num_dims: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Covariates and responses, which have nothing to do with each other."""
    rng = np.random.default_rng(0)
    X = 0.1 * rng.standard_normal((num_data, num_dims))
    return X, rng.standard_normal(num_data)


def model(X: jax.Array, y: jax.Array) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([X.shape[-1]]).to_event(1))
    numpyro.sample("y", dist.Normal(X @ w, 1.0), obs=y)


@partial(jax.jit, static_argnames="num_particles")
def run_chains(
    rng_key: jax.Array, X: jax.Array, y: jax.Array, chain: Chain, num_particles: int
) -> Evidence:
    """The result of given settings; compiled once for each number of steps."""
    estimator = DAIS(
        model,
        num_particles=num_particles,
        schedule=chain.betas,
        step_size=chain.step_size,
        damping=chain.damping,
    )
    return estimator.log_evidence(rng_key, X, y)


def headline(rng_key: jax.Array, X: np.ndarray, y: np.ndarray, exact: float) -> None:
    """Prints what DAIS says when nothing is said to it, beside the truth, and how long it took."""
    begin = time.perf_counter()
    evidence = DAIS(model).log_evidence(rng_key, X, y)
    seconds = time.perf_counter() - begin
    difference, error = float(evidence) - exact, float(evidence.standard_error)
    print(f"{evidence}\n")
    print(f"Estimate of the log evidence: {float(evidence):.4f}")
    print(f"Its standard error:           {error:.4f}")
    print(f"Exact log evidence:           {exact:.4f}")
    print(f"Difference: {difference:+.4f}, or {difference / error:+.1f} standard errors")
    print(f"Time, compilation included: {seconds:.1f} s\n")


def convergence_study(
    rng_key: jax.Array,
    regression: LinearRegression,
    X: np.ndarray,
    y: np.ndarray,
    num_steps_list: list[int],
    num_particles: int,
) -> list[Row]:
    """Monte-Carlo and exact gaps of every study at every number of steps."""
    exact = regression.log_evidence
    rng_keys = iter(random.split(rng_key, len(num_steps_list) * len(STUDIES)))
    rows = []
    for num_steps in num_steps_list:
        for label, (make_chain, damping, _) in STUDIES.items():
            chain = make_chain(regression, num_steps, damping)
            evidence = run_chains(next(rng_keys), X, y, chain, num_particles=num_particles)
            rows.append(
                Row(
                    label,
                    num_steps,
                    bound_gap=exact - float(evidence.lower_bound),
                    bound_error=float(evidence.lower_bound_error),
                    exact_gap=regression.expected_gap(*chain),
                    estimate_gap=exact - float(evidence.log_evidence),
                )
            )
    return rows


def print_table(rows: list[Row]) -> None:
    print("Gaps in nats: log p(D) minus the mean log weight, its exact expectation, and log p(D)")
    print("minus the log mean weight. (off: bound against its expectation, in standard errors)\n")
    print(
        f"{'settings':<28}{'K':>6}{'bound gap':>20}{'expected':>11}{'off':>6}{'estimate gap':>15}"
    )
    for row in sorted(rows, key=lambda row: list(STUDIES).index(row.label)):
        gap = f"{row.bound_gap:.2f} ± {row.bound_error:.2f}"
        off = (row.bound_gap - row.exact_gap) / row.bound_error
        print(
            f"{row.label:<28}{row.num_steps:>6}{gap:>20}{row.exact_gap:>11.2f}{off:>+6.1f}"
            f"{row.estimate_gap:>15.2f}"
        )


def plot(rows: list[Row], regression: LinearRegression) -> Figure:
    """The gap of the bound against K: dots are Monte Carlo, lines the closed form."""
    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    axes = figure.subplots()
    num_steps = sorted({row.num_steps for row in rows})
    # Inertia makes the gap oscillate at small K: draw it at every K there.
    dense = np.arange(num_steps[0], min(num_steps[-1], 60) + 1)
    sparse = np.geomspace(num_steps[0], num_steps[-1], 16).round().astype(int)
    grid = np.union1d(dense, sparse[sparse >= dense[-1]])
    for label, (make_chain, damping, color) in STUDIES.items():
        line = [regression.expected_gap(*make_chain(regression, int(K), damping)) for K in grid]
        axes.plot(
            grid, line, color=color, linewidth=1.5, label=f"{label}, {SCHEDULE_LABELS[make_chain]}"
        )
        dots = [row for row in rows if row.label == label]
        axes.errorbar(
            [row.num_steps for row in dots],
            [row.bound_gap for row in dots],
            yerr=[2 * row.bound_error for row in dots],
            fmt="o",
            color=color,
            markersize=5,
            capsize=3,
        )
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="number of steps $K$",
        ylabel=r"gap of the bound, $\log p(D) - \mathrm{E}[\log w]$ (nats)",
        title="Linear regression: closed form (lines) and DAIS (dots, ± 2 s.e.)",
    )
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.grid(alpha=0.4, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower left")
    return figure


def main(args: argparse.Namespace) -> None:
    numpyro.enable_x64()  # float32 resolves log densities of -14,204 to 0.001 only
    headline_key, study_key = random.split(random.key(args.seed))
    X, y = make_data()
    regression = LinearRegression(X, y)

    headline(headline_key, X, y, regression.log_evidence)
    rows = convergence_study(study_key, regression, X, y, args.num_steps, args.num_particles)
    print_table(rows)
    plot(rows, regression).savefig(args.output, dpi=160)
    print(f"\nPicture: {Path(args.output).resolve()}")


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="The evidence of a linear regression by DAIS, beside closed forms.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--num-particles", type=int, default=128, help="particles S of the convergence study"
    )
    parser.add_argument(
        "--num-steps",
        type=int,
        nargs="+",
        default=[10, 100, 1000],
        help="steps K of the convergence study",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the random key")
    parser.add_argument("--output", default="linear_regression.png", help="where the figure goes")
    return parser.parse_args()


if __name__ == "__main__":
    main(parse_args())
