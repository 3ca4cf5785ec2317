# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

r"""
Convergence: the gap of the bound with full gradients, with mini-batches, and a remedy
======================================================================================

How fast does the bound tighten as a chain takes more steps K? On a linear regression (10,000 rows, ten
weights) the *expected* gap log p(D) - E[log w] is known in closed form, with mini-batches too, so that
theory, closed form and the chains themselves can be laid on top of each other. Steps follow the
curvature along the chain, :math:`\eta_k = (1 + \beta_k \lambda_{max})^{-1/2} (K/10)^{-c}` with
:math:`\beta_k = k/K`, for three rates c.

The claim, in four parts:

1. With full gradients the gap falls, as :math:`K^{2c-1}` for large K (Theorem 1 of the paper). With
   partial refreshment it is smaller and, at these K, falls faster still.
2. With mini-batches it does not fall for any c: it grows as :math:`K^{1-2c}` (Theorem 2).
3. A remedy: dynamics that follow a quadratic surrogate of the log likelihood, with all the data at the
   two ends of the chain only. No step looks at a row, the weights stay unbiased, and the gap falls
   again, down to the divergence between surrogate and posterior. On a linear regression that surrogate
   is the log likelihood itself; the panel shows a logistic regression.
4. The gap is almost wholly its kinetic term, what a chain pays for on its way; at its end, mean and
   covariance are nearly right. The mean lags behind the minimum of the energy by :math:`K^{2c-1}` too
   (Lemma 1). Perfect transitions would leave a gap of O(1/K).

**References**

1. *Differentiable Annealed Importance Sampling and the Perils of Gradient Noise*,
   Guodong Zhang, Kyle Hsu, Jianing Li, Chelsea Finn, Roger Grosse (NeurIPS 2021)
2. *Surrogate Likelihoods for Variational Annealed Importance Sampling*,
   Martin Jankowiak, Du Phan (ICML 2022)
"""

import argparse
from functools import partial
import textwrap
import time
from typing import Any, NamedTuple
import warnings

import jax
from jax import random
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter
import numpy as np
from tqdm.auto import tqdm

import numpyro
import numpyro.distributions as dist

from numpyro_dais import DAIS
from numpyro_dais.linear_regression import GapAnatomy, LinearRegression
from numpyro_dais.model.surrogate import QuadraticSurrogate
from numpyro_dais.schedule import linear

# The rates c of the step size, and their colours.
RATES = {"1/4": (1 / 4, "#0072b2"), "1/3": (1 / 3, "#009e73"), "1/2": (1 / 2, "#d55e00")}
BATCH_SIZE = 100
REMEDY_RATE = "1/4"  # the paper's


class Study(NamedTuple):
    """One way to run chains of any length: a line of the figure for each rate."""

    title: str
    damping: float
    batch_size: int | None = None
    has_surrogate: bool = False
    is_logistic: bool = False


FULL = Study("full refreshment", 0.0)
PARTIAL = Study("partial refreshment, damping 0.9", 0.9)
MINIBATCH = Study(f"mini-batches of {BATCH_SIZE} rows", 0.0, BATCH_SIZE)
SURROGATE = Study("surrogate, linear regression", 0.0, has_surrogate=True)
LOGISTIC_FULL = Study("full gradients", 0.9, is_logistic=True)
LOGISTIC_MINIBATCH = Study("mini-batches", 0.9, BATCH_SIZE, is_logistic=True)
LOGISTIC_SURROGATE = Study("surrogate", 0.9, has_surrogate=True, is_logistic=True)
STUDIES = [
    FULL,
    PARTIAL,
    MINIBATCH,
    SURROGATE,
    LOGISTIC_FULL,
    LOGISTIC_MINIBATCH,
    LOGISTIC_SURROGATE,
]

GAP_LABEL = r"gap, $\log p(D) - \mathrm{E}[\log w]$ (nats)"
# What lines and dots are, whatever their colour.
KEY = [
    Line2D([], [], color="0.3", linewidth=1.5, label="closed form"),
    Line2D([], [], color="0.3", linestyle="", marker="o", markersize=5, label="DAIS"),
    Line2D([], [], color="0.3", linewidth=1, linestyle="--", label="theory's slope"),
]
# Titles and captions of the panels.
CAPTIONS = [
    (
        "Full refreshment",
        """Linear regression, damping 0. Lines: closed form. Dots: DAIS, 100 chains, ± 2 s.e. Dashes:
        the theory's slopes $2c-1$, moved down.""",
    ),
    (
        "Partial refreshment",
        """As (a), with damping 0.9. The slopes are asymptotic: at these $K$ the gap still falls faster
        than the dashes say.""",
    ),
    (
        f"Mini-batches of {BATCH_SIZE}",
        """As (a), each gradient from 100 of the 10,000 rows, drawn anew for each chain and step. No $c$
        lets the gap fall: it grows as $K^{1-2c}$ (dashes).""",
    ),
    (
        "The remedy: surrogate dynamics",
        """Logistic regression with 1,000 rows, $c=1/4$, damping 0.9. Steps on
        a quadratic surrogate see no rows ($D^2$ operations instead of $ND$), the ends of the chain all of
        them. Line: closed form of the surrogate's chain plus its floor, valid for large $K$.""",
    ),
    (
        "Anatomy of the gap",
        """Case (a), $c=1/4$: the kinetic term, and the divergence of the last mean and covariance from
        the posterior's. Perfect transitions would have a gap of $O(1/K)$.""",
    ),
    (
        "The lag of Lemma 1",
        """Case (a): the distance between the chain's mean and the minimum of the energy at its
        temperature, averaged over its steps. It shrinks as $K^{2c-1}$ (dashes), like the gap.""",
    ),
]


class Dot(NamedTuple):
    """A Monte-Carlo gap beside its expectation, if known, and the seconds that a step took."""

    study: Study
    rate: str
    num_steps: int
    gap: float
    error: float
    expected: float
    seconds: float


class Problem(NamedTuple):
    """
    Data, the exact or a very accurate log evidence, and what the dynamics are made of.

    :param oracle: the closed form: of the regression, or of the surrogate's chains.
    :param floor: the divergence of the surrogate's posterior from the posterior.
    """

    data: tuple[np.ndarray, np.ndarray]
    log_evidence: float
    oracle: LinearRegression
    surrogate: QuadraticSurrogate
    floor: float


def make_data(num_data: int = 10_000, num_dims: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Covariates and responses, which have nothing to do with each other."""
    rng = np.random.default_rng(0)
    X = 0.1 * rng.standard_normal((num_data, num_dims))
    return X, rng.standard_normal(num_data)


def make_logistic_data(num_data: int = 1000, num_dims: int = 10) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    X = rng.standard_normal((num_data, num_dims))
    logits = X @ np.linspace(-1.5, 1.5, num_dims)
    return X, (rng.random(num_data) < 1 / (1 + np.exp(-logits))).astype(int)


def model(X: jax.Array, y: jax.Array, batch_size: int | None, is_logistic: bool) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([X.shape[-1]]).to_event(1))
    with numpyro.plate("rows", len(y), subsample_size=batch_size):
        X, y = numpyro.subsample(X, event_dim=1), numpyro.subsample(y, event_dim=0)
        likelihood = dist.Bernoulli(logits=X @ w) if is_logistic else dist.Normal(X @ w, 1.0)
        numpyro.sample("y", likelihood, obs=y)


def linear_problem() -> Problem:
    X, y = make_data()
    oracle = LinearRegression(X, y)
    surrogate = DAIS(model).fit_surrogate(X, y, batch_size=None, is_logistic=False)
    return Problem((X, y), oracle.log_evidence, oracle, surrogate, floor=0.0)


def logistic_problem(num_draws: int) -> Problem:
    """The surrogate's posterior is normal: importance sampling from it gives evidence and floor."""
    X, y = make_logistic_data()
    surrogate = DAIS(model).fit_surrogate(X, y, batch_size=None, is_logistic=True)
    center, hessian = np.asarray(surrogate.center), np.asarray(surrogate.hessian)
    root = np.linalg.cholesky(-hessian)
    # The regression with the same log likelihood, up to a constant.
    score = np.asarray(surrogate.gradient) - hessian @ center
    oracle = LinearRegression(root.T, np.linalg.solve(root, score))
    factor = np.linalg.inv(np.linalg.cholesky(oracle.posterior_precision))
    log_weights = []
    for rng_key in random.split(random.key(0), num_draws // 1000):
        noise = np.asarray(random.normal(rng_key, (1000, len(center))))
        w = oracle.posterior_mean + noise @ factor
        logits = w @ X.T
        log_joint = np.sum(y * logits - np.logaddexp(0, logits), -1) - np.sum(w**2, -1) / 2
        log_weights.append(log_joint + np.sum(noise**2, -1) / 2 + np.linalg.slogdet(factor)[1])
    flat = np.concatenate(log_weights)
    log_evidence = np.log(np.mean(np.exp(flat - flat.max()))) + flat.max()
    return Problem((X, y), log_evidence, oracle, surrogate, floor=log_evidence - flat.mean())


def make_steps(problem: Problem, num_steps: int, rate: str) -> tuple[np.ndarray, np.ndarray]:
    """Inverse temperatures, and step sizes that follow the curvature along the chain."""
    betas = linear(num_steps)
    largest = np.linalg.eigvalsh(problem.oracle.gram)[-1]
    return betas, (1 + betas * largest) ** -0.5 * (num_steps / 10) ** -RATES[rate][0]


@partial(jax.jit, static_argnames=("study", "num_particles"))
def run_chains(
    rng_key: jax.Array,
    data: tuple[jax.Array, jax.Array],
    surrogate: QuadraticSurrogate,
    betas: jax.Array,
    step_size: jax.Array,
    damping: jax.Array,
    study: Study,
    num_particles: int,
) -> tuple[jax.Array, jax.Array]:
    """The mean log weight and its standard error; compiled once for each number of steps."""
    estimator = DAIS(
        model,
        num_particles=num_particles,
        schedule=betas,
        step_size=step_size,
        damping=damping,
        minibatch=False if study.batch_size is None else "particle",
        surrogate=surrogate if study.has_surrogate else None,
    )
    evidence = estimator.log_evidence(
        rng_key, *data, batch_size=study.batch_size, is_logistic=study.is_logistic
    )
    return evidence.lower_bound, evidence.lower_bound_error


def monte_carlo(
    rng_key: jax.Array,
    problem: Problem,
    study: Study,
    num_steps: int,
    rate: str,
    num_particles: int,
) -> Dot:
    steps = make_steps(problem, num_steps, rate)
    # Title and damping are not part of the compiled program.
    kind = study._replace(title="", damping=0.0)
    start = time.perf_counter()
    bound, error = run_chains(
        rng_key, problem.data, problem.surrogate, *steps, study.damping, kind, num_particles
    )
    gap = problem.log_evidence - float(bound)
    seconds = (time.perf_counter() - start) / num_steps
    expected = expected_gap(problem, study, num_steps, rate)
    return Dot(study, rate, num_steps, gap, float(error), expected, seconds)


def expected_gap(problem: Problem, study: Study, num_steps: int, rate: str) -> float:
    """The closed form; of a logistic regression for long chains of the surrogate only, else unknown."""
    if study.is_logistic and not study.has_surrogate:
        return np.nan
    steps = make_steps(problem, num_steps, rate)
    gap = problem.oracle.expected_gap(*steps, study.damping, batch_size=study.batch_size)
    return gap + problem.floor


class Lines(NamedTuple):
    """
    Closed forms on a grid of numbers of steps.

    :param gaps: of each study at each rate.
    :param anatomy: of :data:`FULL` at each rate.
    :param perfect: gaps of perfect transitions.
    """

    grid: np.ndarray
    gaps: dict[tuple[Study, str], np.ndarray]
    anatomy: dict[str, list[GapAnatomy]]
    perfect: np.ndarray


def draw_lines(linear_: Problem, logistic: Problem, max_steps: int) -> Lines:
    num_points = 1 + round(4 * np.log10(max_steps / 10))
    grid = np.geomspace(10, max_steps, num_points).round().astype(int)
    gaps = {}
    kinds = [(study, rate) for study in (FULL, PARTIAL, MINIBATCH) for rate in RATES]
    for study, rate in tqdm([*kinds, (LOGISTIC_SURROGATE, REMEDY_RATE)], desc="closed forms"):
        problem = logistic if study.is_logistic else linear_
        gaps[study, rate] = np.array([expected_gap(problem, study, K, rate) for K in grid])
    oracle = linear_.oracle
    anatomy = {
        rate: [oracle.gap_anatomy(*make_steps(linear_, K, rate), FULL.damping) for K in grid]
        for rate in RATES
    }
    return Lines(grid, gaps, anatomy, np.array([oracle.perfect_gap(linear(K)) for K in grid]))


def draw_dots(linear_: Problem, logistic: Problem, args: argparse.Namespace) -> list[Dot]:
    """Every Monte-Carlo run; those with the same program in a row."""
    plan = [
        (study, num_steps, rate)
        for study in (FULL, PARTIAL, MINIBATCH)
        for num_steps in args.num_steps
        for rate in RATES
    ]
    plan += [(SURROGATE, args.surrogate_steps[-1], rate) for rate in RATES]
    for study in (LOGISTIC_FULL, LOGISTIC_MINIBATCH, LOGISTIC_SURROGATE):
        sizes = args.surrogate_steps if study.has_surrogate else args.remedy_steps
        plan += [(study, num_steps, REMEDY_RATE) for num_steps in sizes]
    rng_keys = random.split(random.key(args.seed), len(plan))
    return [
        monte_carlo(
            rng_key,
            logistic if study.is_logistic else linear_,
            study,
            num_steps,
            rate,
            args.num_particles,
        )
        for rng_key, (study, num_steps, rate) in zip(rng_keys, tqdm(plan, desc="DAIS"), strict=True)
    ]


def print_dots(dots: list[Dot]) -> None:
    print(
        "\nGaps in nats, by Monte Carlo and in closed form (off: their difference in standard errors)\n"
    )
    print(f"{'gradients':<34}{'c':>5}{'K':>8}{'Monte Carlo':>22}{'expected':>12}{'off':>6}")
    rates = list(RATES)
    for dot in sorted(dots, key=lambda dot: (STUDIES.index(dot.study), rates.index(dot.rate))):
        name = dot.study.title + (", logistic" if dot.study.is_logistic else "")
        line = f"{name:<34}{dot.rate:>5}{dot.num_steps:>8}{f'{dot.gap:.3f} ± {dot.error:.3f}':>22}"
        if not dot.study.is_logistic:
            line += f"{dot.expected:>12.3f}{(dot.gap - dot.expected) / dot.error:>+6.1f}"
        print(line)
    offs = [abs(dot.gap - dot.expected) / dot.error for dot in dots if not dot.study.is_logistic]
    num_within = sum(off < 4 for off in offs)
    print(
        f"\n{num_within} of {len(offs)} dots lie within 4 standard errors of the closed form; the largest "
        f"difference is {max(offs):.1f}."
    )


def print_slopes(lines: Lines, oracle: LinearRegression) -> None:
    first, last = (lines.grid[index] for index in (-5, -1))
    print(f"\nSlopes of the closed form from K = {first} to {last}\n")
    print(f"{'gradients':<34}{'c':>5}{'slope':>9}{'theory':>9}")
    for (study, rate), gaps in lines.gaps.items():
        if not study.is_logistic:
            slope = np.log(gaps[-1] / gaps[-5]) / np.log(last / first)
            theory = theory_slope(study, rate)
            print(f"{study.title:<34}{rate:>5}{slope:>+9.3f}{theory:>+9.3f}")
    constant = [
        oracle.expected_gap(linear(K), 0.1 * (K / 10) ** -0.25, 0.0) for K in (last, 10 * last)
    ]
    print(
        f"\nWith a step size constant along the chain, 0.1 (K/10)^(-1/4), the slope from K = {last} to "
        f"{10 * last} is {np.log10(constant[1] / constant[0]):+.3f}: not yet the theory's -0.500."
    )


def theory_slope(study: Study, rate: str) -> float:
    slope = 2 * RATES[rate][0] - 1
    return slope if study.batch_size is None else 0.0 - slope


def print_costs(dots: list[Dot], num_particles: int) -> None:
    print(f"\nMilliseconds per step of {num_particles} chains on 10,000 rows, compiled")
    for study in (FULL, MINIBATCH, SURROGATE):
        # The first rate of each number of steps is compiled, the last one only runs.
        last = max(dot.num_steps for dot in dots if dot.study == study)
        seconds = min(dot.seconds for dot in dots if (dot.study, dot.num_steps) == (study, last))
        print(f"{study.title:<34}{1000 * seconds:>9.3f}")


def plot(lines: Lines, dots: list[Dot], floor: float) -> Figure:
    figure = Figure(figsize=(13, 10))
    panels = figure.subplots(2, 3)
    figure.subplots_adjust(
        left=0.06, right=0.985, top=0.965, bottom=0.165, wspace=0.27, hspace=0.52
    )
    for axes, study in zip(panels[0], (FULL, PARTIAL, MINIBATCH), strict=True):
        plot_study(axes, study, lines, dots)
    plot_remedy(panels[1, 0], lines, dots, floor)
    plot_anatomy(panels[1, 1], lines)
    plot_lag(panels[1, 2], lines)
    for axes, letter, (title, caption) in zip(panels.flat, "abcdef", CAPTIONS, strict=True):
        axes.set_title(f"({letter}) {title}", loc="left", fontweight="bold", fontsize=12)
        axes.set(xscale="log", yscale="log")
        axes.set_xlabel("number of steps $K$", fontsize=11)
        axes.yaxis.label.set_size(11)
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.grid(alpha=0.4, linewidth=0.5)
        axes.spines[["top", "right"]].set_visible(False)
        text = textwrap.fill(" ".join(caption.split()), 54, break_on_hyphens=False)
        axes.text(-0.1, -0.19, text, transform=axes.transAxes, va="top", fontsize=9.5)
    return figure


def plot_study(axes: Axes, study: Study, lines: Lines, dots: list[Dot]) -> None:
    for rate, (_, color) in RATES.items():
        gaps = lines.gaps[study, rate]
        axes.plot(lines.grid, gaps, color=color, linewidth=1.5, label=f"$c = {rate}$")
        plot_slope(axes, lines.grid, gaps, theory_slope(study, rate), color)
        plot_dots(axes, [dot for dot in dots if dot.study == study and dot.rate == rate], color)
    axes.set_ylabel(GAP_LABEL)
    if study == FULL:
        add_legend(axes, handles=[*axes.get_legend_handles_labels()[0], *KEY], loc="lower left")


def add_legend(axes: Axes, **kwargs: Any) -> None:
    axes.legend(frameon=False, fontsize=10, **kwargs)


def plot_slope(axes: Axes, grid: np.ndarray, line: np.ndarray, slope: float, color: str) -> None:
    """A dashed line below the end of another."""
    end = grid[grid >= grid[-1] / 100]
    axes.plot(end, 0.7 * line[-1] * (end / end[-1]) ** slope, "--", color=color, linewidth=1)


def plot_dots(axes: Axes, dots: list[Dot], color: str, marker: str = "o", **kwargs: Any) -> None:
    axes.errorbar(
        [dot.num_steps for dot in dots],
        [dot.gap for dot in dots],
        yerr=[2 * dot.error for dot in dots],
        fmt=marker,
        color=color,
        markersize=5,
        capsize=3,
        **kwargs,
    )


def plot_remedy(axes: Axes, lines: Lines, dots: list[Dot], floor: float) -> None:
    styles = {
        LOGISTIC_MINIBATCH: ("#d55e00", "s"),
        LOGISTIC_FULL: ("#009e73", "^"),
        LOGISTIC_SURROGATE: ("#0072b2", "o"),
    }
    for study, (color, marker) in styles.items():
        own = [dot for dot in dots if dot.study == study]
        plot_dots(axes, own, color, marker, label=study.title)
    color = styles[LOGISTIC_SURROGATE][0]
    axes.plot(lines.grid, lines.gaps[LOGISTIC_SURROGATE, REMEDY_RATE], color=color, linewidth=1.5)
    axes.axhline(floor, color="0.3", linestyle=":", label=f"surrogate's floor, {floor:.3f}")
    axes.set_ylabel(GAP_LABEL)
    axes.set_ylim(floor / 3, 5e5)  # room for the legend
    add_legend(axes, loc="upper right")


def plot_anatomy(axes: Axes, lines: Lines) -> None:
    curves = {
        name: [getattr(anatomy, name) for anatomy in lines.anatomy[REMEDY_RATE]]
        for name in ("kinetic", "covariance", "mean")
    }
    curves["perfect, $O(1/K)$"] = list(lines.perfect)
    colors = ["#0072b2", "#e69f00", "#cc79a7", "0.3"]
    for (name, values), color in zip(curves.items(), colors, strict=True):
        is_term = name in GapAnatomy._fields
        index = len(lines.grid) // 2 if is_term else 3 * len(lines.grid) // 4
        axes.plot(lines.grid, values, "-" if is_term else ":", color=color, linewidth=1.5)
        axes.annotate(
            name,
            (lines.grid[index], values[index]),
            xytext=(4, 4) if is_term else (-4, -4),
            ha="left" if is_term else "right",
            va="bottom" if is_term else "top",
            textcoords="offset points",
            color=color,
        )
    axes.set_ylabel("part of the gap (nats)")


def plot_lag(axes: Axes, lines: Lines) -> None:
    for rate, (value, color) in RATES.items():
        lag = np.array([np.mean(anatomy.lag) for anatomy in lines.anatomy[rate]])
        axes.plot(lines.grid, lag, color=color, linewidth=1.5, label=f"$c = {rate}$")
        plot_slope(axes, lines.grid, lag, 2 * value - 1, color)
    axes.set_ylabel("lag, averaged along the chain (prior s.d.)")
    add_legend(axes, loc="lower left")


def main(args: argparse.Namespace) -> None:
    numpyro.enable_x64()  # the log weights are sums over 10,000 rows
    warnings.filterwarnings("ignore", message="With mini-batch gradients the bound")
    linear_, logistic = linear_problem(), logistic_problem(args.num_draws)
    lines = draw_lines(linear_, logistic, args.max_steps)
    dots = draw_dots(linear_, logistic, args)
    print_dots(dots)
    print_slopes(lines, linear_.oracle)
    print_costs(dots, args.num_particles)
    print(f"\nThe surrogate's floor on the logistic regression: {logistic.floor:.4f} nats")
    plot(lines, dots, logistic.floor).savefig(args.output, dpi=160)
    print(f"\nSaved {args.output}")


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="The gap of the bound against the number of steps: theory, closed form and DAIS.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--num-particles", type=int, default=100, help="particles S of every run")
    parser.add_argument(
        "--num-steps",
        type=int,
        nargs="+",
        default=[10, 32, 100, 316, 1000],
        help="steps K of the dots",
    )
    parser.add_argument(
        "--surrogate-steps",
        type=int,
        nargs="+",
        default=[10, 100, 1000, 10_000, 100_000],
        help="steps K of the dots of the surrogate",
    )
    parser.add_argument(
        "--remedy-steps",
        type=int,
        nargs="*",
        default=[10, 100, 1000],
        help="steps K of the dots that the surrogate is compared with",
    )
    parser.add_argument(
        "--num-draws", type=int, default=50_000, help="draws for the logistic regression's evidence"
    )
    parser.add_argument("--max-steps", type=int, default=100_000, help="largest K of the lines")
    parser.add_argument("--quick", action="store_true", help="a small figure, in seconds")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random key")
    parser.add_argument("--output", default="convergence_study.png", help="where the figure goes")
    args = parser.parse_args()
    if args.quick:
        args.num_steps, args.surrogate_steps, args.remedy_steps = [10], [10], []
        args.num_draws, args.max_steps = 1000, 1000
    return args


if __name__ == "__main__":
    main(parse_args())
