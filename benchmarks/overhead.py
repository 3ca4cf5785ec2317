# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Overhead: what DAIS costs beyond the gradients that it evaluates
=================================================================

Prints the wall time of ``DAIS.log_evidence`` over that of the same number of bare gradients of
NumPyro's ``potential_fn``, vmapped over particles in a loop that carries each gradient into the next
position. Both programs are compiled before, run in turn, and the shortest of the repeats counts.

    python benchmarks/overhead.py
"""

import argparse
from collections.abc import Callable
import time

import jax
from jax import lax, random
import jax.numpy as jnp
import numpy as np

import numpyro
import numpyro.distributions as dist
from numpyro.infer.util import initialize_model

from numpyro_dais import DAIS


def logistic_regression(X, y):
    w = numpyro.sample("w", dist.Normal(jnp.zeros(X.shape[1]), 1).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)


def linear_regression(X, y):
    w = numpyro.sample("w", dist.Normal(jnp.zeros(X.shape[1]), 1).to_event(1))
    numpyro.sample("y", dist.Normal(X @ w, 1), obs=y)


def make_problems() -> dict[str, tuple[Callable, tuple[jax.Array, jax.Array]]]:
    rng = np.random.default_rng(0)
    X_logistic = rng.standard_normal((1000, 50))
    y_logistic = rng.random(1000) < 1 / (1 + np.exp(-X_logistic @ rng.standard_normal(50)))
    rng = np.random.default_rng(0)
    X_linear, y_linear = 0.1 * rng.standard_normal((10_000, 10)), rng.standard_normal(10_000)
    return {
        "logistic regression, d=50, n=1000": (
            logistic_regression,
            (jnp.array(X_logistic), jnp.array(y_logistic, float)),
        ),
        "paper's regression, d=10, n=10000": (
            linear_regression,
            (jnp.array(X_linear), jnp.array(y_linear)),
        ),
    }


def bare_gradients(
    model, data, num_steps: int, num_particles: int
) -> Callable[[jax.Array], jax.Array]:
    """A function of a key that evaluates the gradients and nothing else."""
    num_dims = data[0].shape[1]

    @jax.jit
    def run(rng_key, *data):
        potential_fn = initialize_model(
            random.key(0), model, model_args=data, validate_grad=False
        ).potential_fn
        gradient_fn = jax.vmap(jax.grad(lambda w: potential_fn({"w": w})))
        position = random.normal(rng_key, (num_particles, num_dims))
        step = lambda _, position: position - 1e-4 * gradient_fn(position)  # noqa: E731
        return lax.fori_loop(0, num_steps, step, position)

    return lambda rng_key: run(rng_key, *data)


def seconds(run: Callable[[], jax.Array]) -> float:
    begin = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - begin


def main(args: argparse.Namespace) -> None:
    print(f"K={args.num_steps}, S={args.num_particles}, best of {args.num_repeats}")
    for name, (model, data) in make_problems().items():
        estimator = DAIS(
            model,
            num_steps=args.num_steps,
            num_particles=args.num_particles,
            step_size=0.01,
            damping=0.9,
        )
        bare = bare_gradients(model, data, args.num_steps, args.num_particles)
        runs = {
            "DAIS": lambda key, e=estimator, d=data: e.log_evidence(key, *d).log_weights,
            "gradients": bare,
        }
        times: dict[str, list[float]] = {method: [] for method in runs}
        for repeat in range(args.num_repeats + 1):  # the first compiles
            for method, run in runs.items():
                elapsed = seconds(lambda run=run, repeat=repeat: run(random.key(repeat)))
                if repeat:
                    times[method].append(elapsed)
        dais, gradients = min(times["DAIS"]), min(times["gradients"])
        print(
            f"{name}: log_evidence {dais:.3f} s, bare gradients {gradients:.3f} s, "
            f"ratio {dais / gradients:.3f}"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("--num-steps", type=int, default=1000)
    parser.add_argument("--num-particles", type=int, default=64)
    parser.add_argument("--num-repeats", type=int, default=5)
    main(parser.parse_args())
