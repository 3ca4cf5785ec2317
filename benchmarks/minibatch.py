# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Large data: mini-batch gradients against a surrogate
====================================================

On a logistic regression with 100,000 rows and 20 columns, chains to the posterior whose steps follow
mini-batches of 100 rows, or a quadratic surrogate of the log likelihood; the weights of both use all the data,
schedule and step sizes are the same. From the prior: beta_k = (k/K)^4 and eta_k = a (1 + beta_k lambda_max)^(-1/2)
(K/10)^(-1/4), with lambda_max the largest curvature of the likelihood at the mode. From nearby, a Laplace
approximation three times too wide: beta_k = k/K, in units of its covariance. The gap is log p(D), by importance
sampling from the Laplace approximation, minus the mean log weight. A third part gives the surrogate settings of
its own, those of ``numpyro_dais.tuning.annealing`` on its exact path.

The claims under test: the surrogate's gap falls from K = 100 to K = 1,000, towards its floor, the divergence
KL(surrogate's posterior || posterior); at K = 1,000 it is at most 1/50 of that of mini-batches, which does not
fall; and a step takes at most 1/10 of the time of one with the gradient on all the data.

    python benchmarks/minibatch.py

References:

1. *Differentiable Annealed Importance Sampling and the Perils of Gradient Noise*, Theorem 2,
   Guodong Zhang, Kyle Hsu, Jianing Li, Chelsea Finn, Roger Grosse (NeurIPS 2021)
2. *Surrogate Likelihoods for Variational Annealed Importance Sampling*,
   Martin Jankowiak, Du Phan (ICML 2022)
"""

import argparse
from collections.abc import Callable
import itertools
import time
from typing import Any, NamedTuple
import warnings

import jax
from jax import random
import jax.numpy as jnp
import numpy as np

import numpyro
import numpyro.distributions as dist

from numpyro_dais import DAIS, ImportanceSampling
from numpyro_dais.schedule import linear, power
from numpyro_dais.tuning.annealing import anneal
from numpyro_dais.tuning.population import MeasuredPath


def model(X, y, batch_size):
    w = numpyro.sample("w", dist.Normal(jnp.zeros(X.shape[1]), 1.0).to_event(1))
    with numpyro.plate("rows", len(y), subsample_size=batch_size) as index:
        rows, labels = (X, y) if batch_size is None else (X[index], y[index])
        numpyro.sample("y", dist.Bernoulli(logits=rows @ w), obs=labels)


def make_data(num_rows, num_columns):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((num_rows, num_columns)) * np.linspace(0.5, 1.5, num_columns)
    w = 0.5 * rng.standard_normal(num_columns)
    y = rng.random(num_rows) < 1 / (1 + np.exp(-X @ w))
    return jnp.asarray(X), jnp.asarray(y, float)


def say(text):
    print(text, flush=True)


class Course(NamedTuple):
    """Where chains begin, and how they go on."""

    start: Any
    make_betas: Callable[[int], np.ndarray]
    curvature_fn: Callable[[np.ndarray], np.ndarray]
    preconditioner: Any = None


def make_estimator(num_steps, course, args, **kwargs):
    betas = course.make_betas(num_steps)
    step_size = args.scale * course.curvature_fn(betas) ** -0.5 * (num_steps / 10) ** -0.25
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the warning is what this script is about
        return DAIS(
            model,
            num_steps=num_steps,
            schedule=betas,
            step_size=step_size,
            damping=args.damping,
            preconditioner=course.preconditioner,
            start=course.start,
            num_particles=args.num_particles,
            **kwargs,
        )


def gaussian_path(precision, share):
    """What a pilot run would measure from a Gaussian of this share of the target's precision to the target."""
    betas = np.linspace(0.0, 1.0, 201)
    levels = betas + (1 - betas) * share
    lengths = np.sqrt(len(precision) / 2) * np.log(levels / share)
    scales = np.linalg.cholesky(np.linalg.inv(precision)) / np.sqrt(levels)[:, None, None]
    return MeasuredPath(betas, lengths, scales, 0.0, 0)


def run(estimator, *data):
    """The evidence, and the seconds of the fastest of a few runs of the compiled program."""
    seconds = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(4):
            begin = time.perf_counter()
            evidence = estimator.log_evidence(random.key(1), *data)
            jax.block_until_ready(evidence.log_weights)
            seconds.append(time.perf_counter() - begin)
    return evidence, min(seconds)


def seconds_per_step(few, many):
    """The time of a step, without that of the ends, from runs with few and with many steps."""
    (first, short), (second, long) = few, many
    return (long - short) / (second.settings.num_steps - first.settings.num_steps)


def main(args):
    jax.config.update("jax_enable_x64", True)
    begin = time.perf_counter()
    X, y = make_data(args.num_rows, args.num_columns)
    data = X, y, args.batch_size
    say(f"{args.num_rows} rows, {args.num_columns} columns, mini-batches of {args.batch_size}")

    fit_begin = time.perf_counter()
    surrogate = DAIS(model).fit_surrogate(*data)
    seconds = time.perf_counter() - fit_begin
    say(
        f"surrogate: {int(surrogate.num_gradients)} full gradients, {seconds:.1f} s with compilation"
    )
    largest = -float(jnp.linalg.eigvalsh(surrogate.hessian)[0])

    # The surrogate's posterior: the prior is Gaussian, so it is the Laplace approximation.
    precision = jnp.eye(args.num_columns) - surrogate.hessian
    laplace = dist.MultivariateNormal(surrogate.center, precision_matrix=precision)
    sampler = ImportanceSampling(
        model, start=laplace, num_particles=args.num_draws, chunk_size=args.chunk_size
    )
    exact = sampler.log_evidence(random.key(2), X, y, None)
    log_evidence = float(exact)
    floor, floor_error = log_evidence - float(exact.lower_bound), float(exact.lower_bound_error)
    say(f"log evidence {log_evidence:.4f} ± {float(exact.standard_error):.4f}")
    say(f"floor of the surrogate, KL(its posterior || posterior): {floor:.4f} ± {floor_error:.4f}")

    nearby = dist.MultivariateNormal(surrogate.center, precision_matrix=precision / 9)
    courses = {
        "prior": Course("prior", power, lambda betas: 1 + betas * largest),
        "nearby": Course(
            nearby,
            linear,
            lambda betas: betas + (1 - betas) / 9,
            jnp.linalg.cholesky(jnp.linalg.inv(precision)),
        ),
    }
    say(
        f"\n{'start':<8}{'steps follow':<16}{'K':>7}{'gap (nats)':>12}{'error':>9}{'seconds':>9}"
        f"{'full gradients':>16}"
    )
    kinds = {
        "mini-batches": {"minibatch": "particle"},
        "shared batches": {"minibatch": "shared"},
        "surrogate": {"surrogate": surrogate},
    }
    rows, gaps = {}, {}
    for (where, course), (name, kwargs) in itertools.product(courses.items(), kinds.items()):
        for num_steps in [100, 1000] + ([10_000] if name == "surrogate" else []):
            evidence, seconds = run(make_estimator(num_steps, course, args, **kwargs), *data)
            gap = log_evidence - float(evidence.lower_bound)
            rows[where, name, num_steps], gaps[where, name, num_steps] = (evidence, seconds), gap
            say(
                f"{where:<8}{name:<16}{num_steps:>7}{gap:>12.4g}{float(evidence.lower_bound_error):>9.2g}"
                f"{seconds:>9.2f}{int(evidence.num_gradients):>16}"
            )
    say(
        "\nthe surrogate from nearby, with settings of numpyro_dais.tuning.annealing on its exact path"
    )
    tuned = {}
    for num_steps in (100, 1000, 10_000):
        settings = anneal(gaussian_path(precision, 1 / 9), num_steps, 1.4, 0.0)
        estimator = DAIS(
            model,
            settings=settings,
            start=nearby,
            num_particles=args.num_tuned,
            chunk_size=args.chunk_size,
            surrogate=surrogate,
        )
        evidence = estimator.log_evidence(random.key(1), *data)
        tuned[num_steps] = log_evidence - float(evidence.lower_bound)
        error = float(evidence.lower_bound_error)
        say(f"  K = {num_steps:>6}: gap {tuned[num_steps]:.4f} ± {error:.4f}")

    course = courses["prior"]
    full = [run(make_estimator(k, course, args), X, y, None) for k in args.full_steps]

    full_seconds = seconds_per_step(*full)
    say(f"\nmilliseconds per step of {args.num_particles} particles (ratio to the full gradient)")
    say(f"  full gradient   {1e3 * full_seconds:10.3f}")
    speedups = {}
    for name in kinds:
        most = 10_000 if name == "surrogate" else 1000
        own = seconds_per_step(rows["prior", name, 100], rows["prior", name, most])
        speedups[name] = full_seconds / own
        say(f"  {name:<16}{1e3 * own:10.3f} ({speedups[name]:.0f} times faster)")

    say("\nclaims")
    claims = {
        f"a surrogate step is {speedups['surrogate']:.0f} times faster than a full one (at least 10)": (
            speedups["surrogate"] >= 10
        )
    }
    claims[
        f"with tuned settings the surrogate's gap falls from {tuned[100]:.3g} (K = 100) to {tuned[1000]:.3g} (K = "
        f"1,000), and at K = 10,000 is within 4 errors of its floor: {tuned[10_000]:.4f}, {floor:.4f}"
    ] = tuned[1000] < tuned[100] and abs(tuned[10_000] - floor) < 4 * np.hypot(error, floor_error)
    for where in courses:
        own = {num_steps: gaps[where, "surrogate", num_steps] for num_steps in (100, 1000, 10_000)}
        ratio = gaps[where, "mini-batches", 1000] / own[1000]
        claims[
            f"{where}: the surrogate's gap falls from {own[100]:.3g} (K = 100) to {own[1000]:.3g} (K = 1,000) "
            f"and {own[10_000]:.3g} (K = 10,000); floor {floor:.2g}"
        ] = own[1000] < own[100]
        claims[
            f"{where}: mini-batches have {ratio:.3g} times the surrogate's gap at K = 1,000 (at least 50)"
        ] = ratio >= 50
    for claim, is_met in claims.items():
        say(f"  {'met   ' if is_met else 'MISSED'} {claim}")
    say(f"{time.perf_counter() - begin:.0f} s in all")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--num-rows", type=int, default=100_000)
    parser.add_argument("--num-columns", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=100)
    parser.add_argument("--num-particles", type=int, default=16)
    parser.add_argument("--num-tuned", type=int, default=256, help="particles with tuned settings")
    parser.add_argument("--num-draws", type=int, default=1000)
    parser.add_argument("--chunk-size", type=int, default=50)
    parser.add_argument("--scale", type=float, default=1.0, help="a in the step sizes")
    parser.add_argument("--damping", type=float, default=0.9)
    parser.add_argument("--full-steps", type=int, nargs=2, default=[2, 22])
    main(parser.parse_args())
