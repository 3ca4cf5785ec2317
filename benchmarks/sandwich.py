# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Sandwich: what reverse chains add to an estimate of the evidence
================================================================

Two comparisons, against exact values throughout.

1. Bayesian linear regression (d=5 and d=20, ten rows for each), at several numbers of gradients and so of forward gaps, log
   evidence minus mean log weight: the root mean squared error (RMSE) of S forward chains over that of
   ``sandwich`` with S/2 forward chains and S/2 reverse chains from exact posterior draws. Both take
   the same number of gradients; the exact draws are free, which only a conjugate posterior allows.
2. A mixture with two modes 22 posterior standard deviations apart (5-d), and a funnel (10-d): the sandwich
   from exact draws, next to plain bridge sampling between the start and draws of NUTS, which is the same
   method without steps, ``DAIS(num_steps=0).sandwich``. The chains of the sandwich take about as many
   gradients as NUTS does, warm-up included. A third method runs the sandwich from the draws of
   NUTS, which can be done without exact draws and costs both.

    python benchmarks/sandwich.py

References:

1. *Efficient estimation of free energy differences from Monte Carlo data*,
   Charles H. Bennett (1976)
2. *Sandwiching the marginal likelihood using bidirectional Monte Carlo*,
   Roger B. Grosse, Zoubin Ghahramani, Ryan P. Adams (2015)
"""

import argparse
from collections.abc import Callable
import time
from typing import NamedTuple

import jax
from jax import lax, random
import jax.numpy as jnp
from jax.scipy.stats import norm
import numpy as np

import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS

from numpyro_dais import AIS, DAIS, HAIS
from numpyro_dais.linear_regression import LinearRegression

NUM_CHAINS = 4  # of NUTS, per seed


def rmse(estimates, truth: float) -> float:
    return float(np.sqrt(np.mean((np.asarray(estimates, np.float64) - truth) ** 2)))


class Target(NamedTuple):
    """A density with a known constant and exact draws."""

    potential_fn: Callable[[jax.Array], jax.Array]
    start: dist.Distribution
    sample_fn: Callable[[jax.Array], jax.Array]
    log_evidence: float


def mixture(num_dims: int = 5, datum: float = 2.5) -> Target:
    """N(x; 0, 3^2) prior, likelihood 0.7 N(y; x, 0.5^2) + 0.3 N(y; -x, 0.5^2)."""

    def potential_fn(x):
        log_modes = jnp.stack([norm.logpdf(datum, x, 0.5).sum(), norm.logpdf(datum, -x, 0.5).sum()])
        log_likelihood = jax.nn.logsumexp(log_modes + jnp.log(jnp.array([0.7, 0.3])))
        return -log_likelihood - norm.logpdf(x, 0, 3).sum()

    variance = 1 / (1 / 9 + 4)

    def sample_fn(rng_key):
        sign_key, noise_key = random.split(rng_key)
        sign = jnp.where(random.bernoulli(sign_key, 0.7), 1.0, -1.0)
        noise = random.normal(noise_key, (num_dims,))
        return sign * 4 * variance * datum + jnp.sqrt(variance) * noise

    log_evidence = num_dims * float(norm.logpdf(datum, 0, 9.25**0.5))
    start = dist.Normal(jnp.zeros(num_dims), 3).to_event(1)
    return Target(potential_fn, start, sample_fn, log_evidence)


def funnel(num_dims: int = 10) -> Target:
    """v ~ N(0, 3^2) and x_i ~ N(0, e^v), normalised."""

    def potential_fn(x):
        v, rest = x[0], x[1:]
        return -norm.logpdf(v, 0, 3) - norm.logpdf(rest, 0, jnp.exp(v / 2)).sum()

    def sample_fn(rng_key):
        noise = random.normal(rng_key, (num_dims,))
        v = 3 * noise[:1]
        return jnp.concatenate([v, jnp.exp(v / 2) * noise[1:]])

    start = dist.Normal(jnp.zeros(num_dims), 1).to_event(1)
    return Target(potential_fn, start, sample_fn, 0.0)


def regression(X: np.ndarray, y: np.ndarray) -> Target:
    """y ~ N(X w, 1) with w ~ N(0, I)."""
    exact = LinearRegression(X, y)
    mean, precision = exact.posterior_mean, exact.posterior_precision
    factor = jnp.asarray(np.linalg.cholesky(np.linalg.inv(precision)), float)

    def potential_fn(w):
        return -norm.logpdf(w).sum() - norm.logpdf(jnp.asarray(y), jnp.asarray(X) @ w).sum()

    def sample_fn(rng_key):
        return jnp.asarray(mean, float) + factor @ random.normal(rng_key, mean.shape)

    start = dist.Normal(jnp.zeros(X.shape[1]), 1).to_event(1)
    return Target(potential_fn, start, sample_fn, exact.log_evidence)


def sandwiches(estimator, keys: jax.Array, draws: jax.Array) -> tuple[np.ndarray, float]:
    """One estimate per seed, ``draws`` being ``[num_seeds, num_draws, num_dims]``, and its gradients."""

    def estimate(inputs):
        evidence = estimator.sandwich(inputs[0], posterior_samples=inputs[1])
        return evidence.log_evidence, evidence.num_gradients

    estimates, num_gradients = jax.jit(lambda *inputs: lax.map(estimate, inputs))(keys, draws)
    return np.asarray(estimates), float(np.mean(num_gradients))


def exact_draws(target: Target, keys: jax.Array, num_draws: int) -> jax.Array:
    """Independent draws for each seed, ``[num_seeds, num_draws, num_dims]``."""

    def draw(rng_key):
        return jax.vmap(target.sample_fn)(random.split(random.fold_in(rng_key, 1), num_draws))

    return jax.jit(jax.vmap(draw))(keys)


def compare_directions(num_dims: int, args: argparse.Namespace) -> None:
    """Prints the error of forward chains and of both directions, at equal numbers of particles."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((10 * num_dims, num_dims)) + 0.3
    y = X @ np.resize([0.6, -0.4, 0.2, 0.8, 0.0], num_dims) + rng.standard_normal(10 * num_dims)
    target = regression(X, y)
    keys = random.split(random.key(1), args.num_seeds)
    half = args.num_particles // 2
    draws = exact_draws(target, keys, half)
    print(
        f"\nLinear regression, {num_dims}-d, exact log evidence {target.log_evidence:.3f}; {2 * half} forward chains against "
        f"{half} + {half} in both directions (reverse ones from exact draws), {args.num_seeds} seeds"
    )
    print(
        f"{'':6}{'steps':>6}{'gap, nats':>11}{'forward':>9}{'sandwich':>10}{'ratio':>7}{'error':>7}"
    )
    what = {"potential_fn": target.potential_fn, "start": target.start}
    for method, make_estimator, num_leapfrog in [
        ("DAIS", DAIS, 1),
        ("HAIS", HAIS, 1),
        ("AIS", AIS, 10),
    ]:
        for num_gradients in args.num_gradients:
            num_steps = max(num_gradients // num_leapfrog, 1)
            settings = make_estimator(**what, num_steps=num_steps).tune(random.key(0))
            forward = make_estimator(**what, num_particles=2 * half, settings=settings)
            both = make_estimator(**what, num_particles=half, settings=settings)

            def estimate(rng_key, forward=forward):
                evidence = forward.log_evidence(rng_key)
                return evidence.log_evidence, evidence.lower_bound

            ones, bounds = jax.jit(lambda keys, fn=estimate: lax.map(fn, keys))(keys)
            twos = sandwiches(both, keys, draws)[0]
            one, two = rmse(ones, target.log_evidence), rmse(twos, target.log_evidence)
            error = ratio_error(ones, twos, target.log_evidence)
            gap = target.log_evidence - float(jnp.mean(bounds))
            print(
                f"{method:6}{num_steps:6}{gap:11.2f}{one:9.3f}{two:10.3f}{two / one:7.2f}{error:7.2f}"
            )


def ratio_error(ones, twos, truth: float, num_resamples: int = 1000) -> float:
    """The standard error of the ratio of two RMSEs over the same seeds, by the bootstrap."""
    squares = (np.stack([ones, twos]).astype(np.float64) - truth) ** 2
    picks = np.random.default_rng(0).integers(
        squares.shape[1], size=(num_resamples, squares.shape[1])
    )
    means = squares[:, picks].mean(axis=-1)
    return float(np.std(np.sqrt(means[1] / means[0]), ddof=1))


def nuts_draws(
    rng_key: jax.Array, target: Target, num_seeds: int, num_warmup: int, num_samples: int
) -> tuple[np.ndarray, float]:
    """Draws ``[num_seeds, num_draws, num_dims]`` of NUTS, and the gradients of a seed."""
    init_key, run_key = random.split(rng_key)
    mcmc = MCMC(
        NUTS(potential_fn=target.potential_fn),
        num_warmup=num_warmup,
        num_samples=num_samples,
        num_chains=num_seeds * NUM_CHAINS,  # independent, each with its own adaptation
        chain_method="vectorized",
        progress_bar=False,
    )
    init = target.start.sample(init_key, (num_seeds * NUM_CHAINS,))
    mcmc.warmup(run_key, init_params=init, extra_fields=("num_steps",), collect_warmup=True)
    num_gradients = np.sum(mcmc.get_extra_fields()["num_steps"])
    mcmc.run(mcmc.last_state.rng_key, init_params=init, extra_fields=("num_steps",))
    num_gradients += np.sum(mcmc.get_extra_fields()["num_steps"])
    draws = np.asarray(mcmc.get_samples())
    return draws.reshape(num_seeds, -1, draws.shape[-1]), float(num_gradients) / num_seeds


def compare_draws(name: str, target: Target, args: argparse.Namespace) -> None:
    """Prints a table of sandwiches from exact draws and from those of NUTS."""
    keys = random.split(random.key(2), args.num_repeats)
    size = args.num_chains
    mcmc_draws, nuts_gradients = nuts_draws(
        random.key(3), target, args.num_repeats, args.num_warmup, args.num_samples
    )
    num_draws = mcmc_draws.shape[1]
    all_exact = exact_draws(target, keys, num_draws)
    num_steps = max(round(nuts_gradients / (2 * size)), 1)
    what = {"potential_fn": target.potential_fn, "start": target.start}
    settings = DAIS(**what, num_steps=num_steps).tune(random.key(0))
    dais = DAIS(**what, num_particles=size, settings=settings)
    bridge = DAIS(**what, num_steps=0, step_size=1.0, num_particles=num_draws)
    short_bridge = DAIS(**what, num_steps=0, step_size=1.0, num_particles=size)
    thinning = num_draws // size
    methods = [
        ("sandwich, exact draws", dais, all_exact[:, :size], 0.0),
        ("sandwich, NUTS draws", dais, mcmc_draws[:, ::thinning][:, :size], nuts_gradients),
        ("bridge, NUTS draws", bridge, mcmc_draws, nuts_gradients),
        ("bridge, exact draws", bridge, all_exact, 0.0),
        (f"bridge, {size} exact draws", short_bridge, all_exact[:, :size], 0.0),
    ]
    rows = []
    for method, estimator, draws, draw_gradients in methods:
        estimates, chain_gradients = sandwiches(estimator, keys, jnp.asarray(draws))
        gradients = draw_gradients + chain_gradients
        error = rmse(estimates, target.log_evidence)
        bias = float(np.mean(estimates)) - target.log_evidence
        rows.append((method, error, bias, gradients))
    first = rows[0][1]
    print(
        f"\n{name}: exact log evidence {target.log_evidence:.3f}, {args.num_repeats} seeds; sandwich: {size} + "
        f"{size} chains of {num_steps} steps; bridge: {num_draws} + {num_draws} draws"
    )
    print(f"{'':24}{'RMSE':>8}{'bias':>9}{'gradients':>11}{'RMSE / first':>14}")
    for method, error, bias, gradients in rows:
        print(f"{method:24}{error:8.4f}{bias:9.4f}{gradients:11.0f}{error / first:14.2f}")


def main(args: argparse.Namespace) -> None:
    begin = time.perf_counter()
    for num_dims in args.num_dims:
        compare_directions(num_dims, args)
    for name, target in {"Mixture, 5-d": mixture(), "Funnel, 10-d": funnel()}.items():
        compare_draws(name, target, args)
    print(
        "\nExact draws are independent, come for free and are no option in practice; with them the upper "
        f"bound holds. Those of NUTS ({NUM_CHAINS} chains from draws of the start, {args.num_warmup} of warm-up, "
        f"{args.num_samples} kept) are correlated and need not have found every mode, or the neck of the "
        "funnel. Gradients include warm-up and tuning. Bridge sampling also evaluates the density at every "
        "draw of both sides, which is not counted."
    )
    print(f"{time.perf_counter() - begin:.0f} s in all")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("--num-seeds", type=int, default=100, help="of the linear regression")
    parser.add_argument("--num-particles", type=int, default=100, help="of the linear regression")
    parser.add_argument(
        "--num-dims", type=int, nargs="+", default=[5, 20], help="of the linear regression"
    )
    parser.add_argument(
        "--num-gradients",
        type=int,
        nargs="+",
        default=[100, 300, 1000, 3000],
        help="of each chain, in the linear regression",
    )
    parser.add_argument("--num-repeats", type=int, default=20, help="seeds of mixture and funnel")
    parser.add_argument("--num-chains", type=int, default=128, help="in each direction")
    parser.add_argument("--num-warmup", type=int, default=500, help="of each NUTS chain")
    parser.add_argument("--num-samples", type=int, default=500, help="of each NUTS chain")
    parser.add_argument("--quick", action="store_true", help="a smoke run")
    args = parser.parse_args()
    if args.quick:
        args.num_seeds, args.num_repeats, args.num_chains = 10, 2, 32
        args.num_gradients, args.num_dims = [100], [5]
        args.num_warmup, args.num_samples = 50, 50
    main(args)
