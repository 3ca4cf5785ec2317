# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

r"""
Model selection: do eight schools share one effect?
===================================================

Eight schools measured what coaching does to test scores: an effect :math:`y_j` with a known standard
error :math:`\sigma_j` for each (Rubin 1981). Three models of the same eight numbers:

- *pooled*: one effect for all, :math:`\mu \sim N(0, 10)`;
- *unpooled*: each school for itself, :math:`\theta_j \sim N(0, 10)`;
- *hierarchical*: :math:`\theta_j = \mu + \tau z_j` with :math:`\mu \sim N(0, 10)`,
  :math:`\tau \sim \mathrm{HalfNormal}(10)` and :math:`z_j \sim N(0, 1)`, which has both as limits.

The claim, in two parts:

1. DAIS and ``compare`` rank the models as the exact evidences do, with differences that their error bars
   explain. The exact ones are closed forms for the first two, and an integral over :math:`\tau` for the
   third. (Pooling is ahead: eight noisy measurements do not ask for eight effects. It is not ahead by
   enough to dismiss the others.)
2. Chains run in both directions hold the evidence between two bounds, and the sandwich closes as the
   number of steps K grows. The reverse chains start at exact posterior draws, which exist here; for the
   hierarchical model with the most steps they start at draws by NUTS, which any model has.

**References**

1. *Estimation in Parallel Randomized Experiments*, Donald B. Rubin (Journal of Educational Statistics
   1981)
2. *Sandwiching the Marginal Likelihood Using Bidirectional Monte Carlo*,
   Roger Grosse, Zoubin Ghahramani, Ryan Adams (2015)
3. *Differentiable Annealed Importance Sampling and the Perils of Gradient Noise*,
   Guodong Zhang, Kyle Hsu, Jianing Li, Chelsea Finn, Roger Grosse (NeurIPS 2021)
"""

import argparse
from collections.abc import Callable

import jax
from jax import random
from matplotlib.figure import Figure
import numpy as np
from scipy import integrate, stats

import numpyro
import numpyro.distributions as dist

from numpyro_dais import DAIS, Comparison, Evidence, compare
from numpyro_dais.plots import plot_comparison, plot_sandwich
from numpyro_dais.schedule import linear

Y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
SIGMA = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
SCALE = 10.0  # of all priors


def pooled(sigma: jax.Array, y: jax.Array) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, SCALE))
    with numpyro.plate("schools", len(y)):
        numpyro.sample("y", dist.Normal(mu, sigma), obs=y)


def unpooled(sigma: jax.Array, y: jax.Array) -> None:
    with numpyro.plate("schools", len(y)):
        theta = numpyro.sample("theta", dist.Normal(0.0, SCALE))
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


def hierarchical(sigma: jax.Array, y: jax.Array) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, SCALE))
    tau = numpyro.sample("tau", dist.HalfNormal(SCALE))
    with numpyro.plate("schools", len(y)):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(mu + tau * z, sigma), obs=y)


MODELS: dict[str, Callable] = {
    "pooled": pooled,
    "unpooled": unpooled,
    "hierarchical": hierarchical,
}


def marginal_density(tau: float, shared_variance: float) -> float:
    """The density of y, whose means have a scale tau and a shared part, all integrated out."""
    covariance = np.diag(SIGMA**2 + tau**2) + shared_variance
    return stats.multivariate_normal(cov=covariance).pdf(Y)


def exact_log_evidences() -> dict[str, float]:
    # The densities are about 1e-13, below the absolute tolerance of the integrator.
    integral, _ = integrate.quad(
        lambda tau: 1e13 * marginal_density(tau, SCALE**2) * stats.halfnorm.pdf(tau, scale=SCALE),
        0,
        np.inf,
    )
    return {
        "pooled": np.log(marginal_density(0.0, SCALE**2)),
        "unpooled": np.log(marginal_density(SCALE, 0.0)),
        "hierarchical": np.log(integral / 1e13),
    }


def exact_draws(rng: np.random.Generator, name: str, num_draws: int) -> dict[str, np.ndarray]:
    """Independent posterior draws: y is normal given mu and tau, and tau has one dimension."""
    if name == "unpooled":
        variances = 1 / (SCALE**-2 + SIGMA**-2)
        shape = num_draws, len(Y)
        return {"theta": rng.normal(variances * Y / SIGMA**2, np.sqrt(variances), shape)}
    if name == "pooled":
        tau = np.zeros((num_draws, 1))
    else:
        # By the inverse of the distribution function, on a grid.
        grid = np.linspace(0.0, 8 * SCALE, 4001)
        densities = [marginal_density(x, SCALE**2) for x in grid] * stats.halfnorm.pdf(grid / SCALE)
        cumulative = integrate.cumulative_trapezoid(densities, grid, initial=0.0)
        tau = np.interp(rng.uniform(size=(num_draws, 1)), cumulative / cumulative[-1], grid)
    precision = 1 / (SIGMA**2 + tau**2)
    variance = 1 / (SCALE**-2 + precision.sum(1))
    mu = rng.normal(variance * (precision @ Y), np.sqrt(variance))
    if name == "pooled":
        return {"mu": mu}
    z_means, z_scales = tau * (Y - mu[:, None]) * precision, SIGMA * np.sqrt(precision)
    return {"mu": mu, "tau": tau[:, 0], "z": rng.normal(z_means, z_scales)}


def sandwiches(
    rng_key: jax.Array,
    estimators: dict[str, DAIS],
    evidences: dict[str, Evidence],
    args: argparse.Namespace,
) -> dict[str, Evidence]:
    """Bounds from both sides: with few steps of the sizes found before, then with all."""
    rng = np.random.default_rng(args.seed)
    keys = iter(random.split(rng_key, len(MODELS) * (len(args.sandwich_steps) + 1)))
    bounds = {}
    for name, model in MODELS.items():
        settings = evidences[name].settings
        for num_steps in args.sandwich_steps:
            estimator = DAIS(
                model,
                num_steps=num_steps,
                num_particles=args.num_particles,
                step_size=settings.step_size[0],
                preconditioner=settings.preconditioner,
            )
            draws = exact_draws(rng, name, args.num_particles)
            bounds[f"{name}, K = {num_steps}"] = estimator.sandwich(
                next(keys), SIGMA, Y, posterior_samples=draws
            )
        # Left out, posterior draws come from NUTS: what one does without a closed form.
        is_conjugate = name != "hierarchical"
        draws = exact_draws(rng, name, args.num_particles) if is_conjugate else None
        bounds[f"{name}, K = {args.num_steps}"] = estimators[name].sandwich(
            next(keys), SIGMA, Y, posterior_samples=draws
        )
    return bounds


def print_exact(comparison: Comparison, exact: dict[str, float]) -> None:
    print("Beside the exact evidences (off: in standard errors):\n")
    print(f"{'model':<14}{'exact':>9}{'estimate':>10}{'difference':>12}{'off':>6}")
    for name, row in comparison.to_dict().items():
        difference = row["log_evidence"] - exact[name]
        print(
            f"{name:<14}{exact[name]:>9.3f}{row['log_evidence']:>10.3f}{difference:>+12.3f}"
            f"{difference / row['standard_error']:>+6.1f}"
        )


def print_sandwiches(bounds: dict[str, Evidence], exact: dict[str, float]) -> None:
    print("Bounds of the log evidence from chains in both directions:\n")
    print(f"{'model':<23}{'lower bound':>18}{'exact':>9}{'upper bound':>18}{'gap':>7}")
    for label, evidence in bounds.items():
        lower, upper = float(evidence.lower_bound), float(evidence.upper_bound)
        print(
            f"{label:<23}"
            f"{f'{lower:.3f} ± {float(evidence.lower_bound_error):.3f}':>18}"
            f"{exact[label.split(',')[0]]:>9.3f}"
            f"{f'{upper:.3f} ± {float(evidence.upper_bound_error):.3f}':>18}"
            f"{upper - lower:>7.3f}"
        )


def plot(comparison: Comparison, bounds: dict[str, Evidence], exact: dict[str, float]) -> Figure:
    """Left: the models side by side. Right: the bounds closing, with the exact evidences."""
    figure = Figure(figsize=(11.0, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    plot_comparison(comparison, left)
    plot_sandwich(bounds, right)
    for axes, labels in [(left, comparison.names), (right, bounds)]:
        values = [exact[label.split(",")[0]] for label in labels]
        axes.plot(values, range(len(values)), "kx", markersize=6, zorder=5, label="exact")
    left.set_title("Eight schools, three models")
    for axes in (left, right):
        axes.legend(frameon=False, loc="lower left" if axes is right else "lower right")
    right.set_title("Bounds from both sides close with K")
    return figure


def main(args: argparse.Namespace) -> None:
    estimate_key, sandwich_key = random.split(random.key(args.seed))
    keys = dict(zip(MODELS, random.split(estimate_key, len(MODELS)), strict=True))
    exact = exact_log_evidences()

    estimators = {
        # A given schedule leaves one step size to be found, from the prior, which shorter chains can share.
        name: DAIS(
            model, num_steps=args.num_steps, num_particles=args.num_particles, schedule=linear
        )
        for name, model in MODELS.items()
    }
    evidences = {
        name: estimator.log_evidence(keys[name], SIGMA, Y) for name, estimator in estimators.items()
    }
    comparison = compare(evidences)
    print(f"Three models of the eight schools, K = {args.num_steps}\n")
    print(comparison, end="\n\n")
    print_exact(comparison, exact)

    bounds = sandwiches(sandwich_key, estimators, evidences, args)
    print()
    print_sandwiches(bounds, exact)
    plot(comparison, bounds, exact).savefig(args.output, dpi=160)
    print(f"\nSaved {args.output}")


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Three models of the eight schools, compared by their evidence.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--num-particles", type=int, default=256, help="particles S of every run")
    parser.add_argument("--num-steps", type=int, default=256, help="steps K of the comparison")
    parser.add_argument(
        "--sandwich-steps", type=int, nargs="+", default=[16], help="smaller K of the bounds"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the random key")
    parser.add_argument("--output", default="model_selection.png", help="where the figure goes")
    return parser.parse_args()


if __name__ == "__main__":
    main(parse_args())
