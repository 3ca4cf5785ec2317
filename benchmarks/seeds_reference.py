# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
The log evidence of the seeds data, to three digits
===================================================

Given the other five latents, the 21 random effects are independent, so that each can be integrated out by
Gauss-Hermite quadrature. What is left has no funnel, and importance sampling from a fit is precise. Prints an
estimate for each of two numbers of nodes and several seeds, and their mean: the reference in ``targets.py``.

    python benchmarks/seeds_reference.py --data DIRECTORY
"""

import argparse
from pathlib import Path

import jax
from jax import random
import jax.numpy as jnp
from jax.scipy.special import logsumexp
import numpy as np
from targets import load

import numpyro
import numpyro.distributions as dist

from numpyro_dais import DAIS


def make_model(num_nodes: int):
    nodes, weights = np.polynomial.hermite_e.hermegauss(num_nodes)
    log_weights = jnp.asarray(np.log(weights / weights.sum()))[:, None]

    def model(x1: jax.Array, x2: jax.Array, n: jax.Array, r: jax.Array) -> None:
        tau = numpyro.sample("tau", dist.Gamma(0.01, 0.01))
        a0, a1, a2, a12 = (
            numpyro.sample(name, dist.Normal(0, 10)) for name in ("a0", "a1", "a2", "a12")
        )
        effects = jnp.asarray(nodes)[:, None] / jnp.sqrt(tau)
        logits = a0 + a1 * x1 + a2 * x2 + a12 * x1 * x2 + effects
        log_likelihoods = dist.Binomial(n, logits=logits).log_prob(r) + log_weights
        numpyro.factor("r", logsumexp(log_likelihoods, axis=0).sum())

    return model


def main(args: argparse.Namespace) -> None:
    _, data = load(args.data, "seeds")
    values, errors = [], []
    for num_nodes in (60, 120):
        estimator = DAIS(make_model(num_nodes), target_error=1e-4, budget=args.budget)
        for seed in range(args.num_seeds):
            evidence = estimator.log_evidence(random.key(seed), *data)
            values.append(float(evidence.log_evidence))
            errors.append(float(evidence.standard_error))
            print(
                f"{num_nodes} nodes, seed {seed}: {values[-1]:.4f} ± {errors[-1]:.4f}", flush=True
            )
    # The same seeds with other nodes are no new draws: they tell that the nodes suffice.
    half = slice(None, args.num_seeds)
    mean = np.average(values[half], weights=1 / np.square(errors[half]))
    error = np.sum(1 / np.square(errors[half])) ** -0.5
    print(f"mean {mean:.4f} ± {error:.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="The log evidence of the seeds data.")
    parser.add_argument("--data", type=Path, required=True, help="directory of seeds.csv")
    parser.add_argument("--num-seeds", type=int, default=6)
    parser.add_argument("--budget", type=int, default=300_000)
    numpyro.enable_x64()
    main(parser.parse_args())
