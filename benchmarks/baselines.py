# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Baselines: DAIS next to HAIS, AIS and importance sampling, at equal numbers of gradients
========================================================================================

Prints, and draws, the root mean squared error (RMSE) of the log evidence against the number of gradients
per particle, on a logistic regression (n=1000, d=50) and a Gaussian mixture of two modes (d=10). The claim
under test is the paper's: leaving out the Metropolis corrections, which makes DAIS differentiable, costs
no accuracy. Every method starts at the prior and finds its own step size; AIS takes ten leapfrog steps per
temperature, hence a tenth as many temperatures. Importance sampling takes no gradients: it gets one
draw for each gradient of the others.

    python benchmarks/baselines.py

References:

1. *Differentiable Annealed Importance Sampling and the Perils of Gradient Noise*,
   Guodong Zhang, Kyle Hsu, Jianing Li, Chelsea Finn, Roger Grosse (NeurIPS 2021)
2. *Hamiltonian Annealed Importance Sampling for partition function estimation*,
   Jascha Sohl-Dickstein, Benjamin J. Culpepper (2012)
3. *Annealed importance sampling*, Radford M. Neal (2001)
"""

import argparse
import time
from typing import Any, NamedTuple
import warnings

import jax
from jax import lax, random
import jax.numpy as jnp
from jax.scipy.stats import norm
import matplotlib
import numpy as np
from overhead import make_problems

import numpyro.distributions as dist

from numpyro_dais import AIS, DAIS, HAIS, ImportanceSampling

matplotlib.use("Agg")
import matplotlib.pyplot as plt

NUM_LEAPFROG = 10  # of AIS
STYLES = {
    "DAIS": {"color": "#d55e00", "marker": "o"},
    "HAIS": {"color": "#0072b2", "marker": "s"},
    "AIS": {"color": "#009e73", "marker": "^"},
    "importance sampling": {"color": "#777777", "marker": "x", "linestyle": "--"},
}


class Problem(NamedTuple):
    """What the estimators integrate, the arguments of the model, and the log evidence."""

    kwargs: dict[str, Any]
    data: tuple
    log_evidence: float


def gaussian_mixture(num_dims: int = 10) -> Problem:
    """0.7 N(1.5, 0.5^2) + 0.3 N(-2, 0.5^2) in every coordinate, normalised; starts at N(0, 2^2)."""

    def potential_fn(x):
        log_modes = jnp.stack([norm.logpdf(x, 1.5, 0.5).sum(), norm.logpdf(x, -2.0, 0.5).sum()])
        return -jax.nn.logsumexp(log_modes + jnp.log(jnp.array([0.7, 0.3])))

    start = dist.Normal(jnp.zeros(num_dims), 2).to_event(1)
    return Problem({"potential_fn": potential_fn, "start": start}, (), 0.0)


def logistic_regression(num_steps: int) -> Problem:
    """The logistic regression of ``overhead.py``, with a reference from a Laplace approximation on."""
    model, data = next(iter(make_problems().values()))
    X, y = (np.asarray(x, np.float64) for x in data)
    mode = np.zeros(X.shape[1])
    for _ in range(20):  # of Newton's method
        p = 1 / (1 + np.exp(-X @ mode))
        precision = np.eye(len(mode)) + (X.T * (p * (1 - p))) @ X
        mode = mode + np.linalg.solve(precision, X.T @ (y - p) - mode)
    scale_tril = np.linalg.cholesky(np.linalg.inv(precision))
    start = {"w": dist.MultivariateNormal(jnp.asarray(mode), scale_tril=jnp.asarray(scale_tril))}
    reference = DAIS(
        model, start=start, preconditioner=scale_tril, num_steps=num_steps, num_particles=256
    ).log_evidence(random.key(0), *data)
    check = ImportanceSampling(model, start=start, num_particles=4096, chunk_size=512)
    check = check.log_evidence(random.key(1), *data)
    print(
        "Reference of the logistic regression, from a Laplace approximation on: DAIS "
        f"{float(reference):.4f} ± {float(reference.standard_error):.4f} (used), importance sampling "
        f"{float(check):.4f} ± {float(check.standard_error):.4f}"
    )
    return Problem({"model": model}, data, float(reference))


def make_estimator(method: str, problem: Problem, num_gradients: int, num_particles: int):
    """An estimator with tuned settings, of so many gradients per particle."""
    if method == "importance sampling":
        return ImportanceSampling(
            **problem.kwargs, num_particles=num_gradients * num_particles, chunk_size=500
        )
    kinds = {"DAIS": DAIS, "HAIS": HAIS, "AIS": AIS}
    num_steps = num_gradients // NUM_LEAPFROG if method == "AIS" else num_gradients
    extra = {"num_leapfrog": NUM_LEAPFROG} if method == "AIS" else {}
    if method == "DAIS":  # which else may fit a start
        extra = {"keep_start": True} if "start" in problem.kwargs else {"start": "prior"}
    pilot = kinds[method](**problem.kwargs, **extra, num_steps=num_steps)
    settings = pilot.tune(random.key(0), *problem.data)
    return kinds[method](**problem.kwargs, **extra, num_particles=num_particles, settings=settings)


def root_mean_square(errors: np.ndarray) -> tuple[float, float]:
    """The root mean square of errors, and its standard error."""
    squares = errors**2
    root = np.sqrt(squares.mean())
    return root, squares.std(ddof=1) / np.sqrt(len(squares)) / (2 * root)


def measure(problem: Problem, args: argparse.Namespace) -> dict[str, np.ndarray]:
    """For each method ``[len(num_gradients), 3]``: RMSE, its standard error, and mean acceptance."""
    keys = random.split(random.key(1), args.num_seeds)
    results = {}
    for method in STYLES:
        rows = []
        for num_gradients in args.num_gradients:
            estimator = make_estimator(method, problem, num_gradients, args.num_particles)

            def estimate(rng_key, data, estimator=estimator):
                evidence = estimator.log_evidence(rng_key, *data)
                acceptance = jnp.nan if evidence.acceptance is None else evidence.acceptance
                return evidence.log_evidence, jnp.mean(acceptance)

            run = jax.jit(lambda keys, data, fn=estimate: lax.map(lambda k: fn(k, data), keys))
            estimates, acceptance = run(keys, problem.data)
            errors = np.asarray(estimates, np.float64) - problem.log_evidence
            rows.append((*root_mean_square(errors), float(np.mean(acceptance))))
        results[method] = np.array(rows)
    return results


def report(name: str, results: dict[str, np.ndarray], num_gradients: list[int]) -> None:
    best = np.min([rows[:, 0] for rows in results.values()], axis=0)
    print(f"\n{name}: RMSE ± standard error (ratio to the best)")
    print(f"{'gradients per particle':22}" + "".join(f"{count:>26}" for count in num_gradients))
    for method, rows in results.items():
        cells = [
            f"{value:.3g} ± {error:.1g} ({value / least:.2f})"
            for (value, error, _), least in zip(rows, best, strict=True)
        ]
        print(f"{method:22}" + "".join(f"{cell:>26}" for cell in cells))
        if np.all(np.isfinite(rows[:, 2])):
            print(f"{'  acceptance':22}" + "".join(f"{value:>26.2f}" for value in rows[:, 2]))


def draw(results: dict[str, dict[str, np.ndarray]], args: argparse.Namespace) -> None:
    fig, axes = plt.subplots(1, len(results), figsize=(8.4, 3.6), layout="constrained")
    for ax, (name, by_method) in zip(axes, results.items(), strict=True):
        for method, rows in by_method.items():
            value, error, _ = rows.T
            low = np.minimum(error, 0.7 * value)  # a bar that stays on a logarithmic axis
            ax.errorbar(
                args.num_gradients,
                value,
                yerr=[low, error],
                label=method,
                markersize=5,
                linewidth=1.5,
                elinewidth=0.9,
                capsize=2,
                **STYLES[method],
            )
        ax.set(xscale="log", yscale="log", title=name, xlabel="gradients per particle")
        ax.set_xticks(args.num_gradients, [str(count) for count in args.num_gradients])
        ax.minorticks_off()
        ax.grid(alpha=0.4, linewidth=0.5)
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("RMSE of log evidence (nats)")
    fig.legend(
        *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False
    )
    fig.savefig(args.output, dpi=160)


def main(args: argparse.Namespace) -> None:
    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # too few steps are part of the study
        problems = {
            "logistic regression, d=50, n=1000": logistic_regression(args.reference_steps),
            "two-mode Gaussian mixture, d=10": gaussian_mixture(),
        }
        print(f"{args.num_particles} particles, {args.num_seeds} seeds")
        results = {}
        for name, problem in problems.items():
            results[name] = measure(problem, args)
            report(name, results[name], args.num_gradients)
    draw(results, args)
    print(
        "\nTuned once for each number of gradients, which is not counted. Importance sampling: as many "
        f"draws as all particles have gradients.\n{time.perf_counter() - begin:.0f} s in all"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("--num-gradients", type=int, nargs="+", default=[30, 100, 300, 1000])
    parser.add_argument("--num-particles", type=int, default=32)
    parser.add_argument("--num-seeds", type=int, default=10)
    parser.add_argument("--reference-steps", type=int, default=200)
    parser.add_argument("--output", default="baselines.png")
    parser.add_argument("--quick", action="store_true", help="a smoke run")
    args = parser.parse_args()
    if args.quick:
        args.num_gradients, args.num_particles = [30], 8
        args.num_seeds, args.reference_steps = 3, 20
    main(args)
