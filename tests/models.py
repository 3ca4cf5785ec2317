# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Models that several test files share, with the facts about them that are known exactly."""

import jax.numpy as jnp
from scipy.special import betaln, gammaln

import numpyro
import numpyro.distributions as dist

PRIOR_MEAN = jnp.array([0.5, -1.0, 0.25])
PRIOR_PRECISION = jnp.array([1.0, 2.0, 0.5])


def regression(X, y, noise_scale=0.8, prior_scale=1.0):
    """The model of the fixture ``regression``."""
    w = numpyro.sample(
        "w", dist.Normal(PRIOR_MEAN, prior_scale / jnp.sqrt(PRIOR_PRECISION)).to_event(1)
    )
    numpyro.sample("y", dist.Normal(X @ w, noise_scale), obs=y)


def beta_binomial(total_count=20, successes=15.0):
    p = numpyro.sample("p", dist.Beta(2.0, 3.0))
    numpyro.sample("y", dist.Binomial(total_count, p), obs=successes)


def beta_binomial_log_evidence(total_count=20, successes=15.0):
    failures = total_count - successes
    log_choose = gammaln(total_count + 1) - gammaln(successes + 1) - gammaln(failures + 1)
    return log_choose + betaln(2 + successes, 3 + failures) - betaln(2, 3)


def normal_means(y):
    """Local latents in a plate; y_i is marginally N(1, 1.5^2 + 0.5^2)."""
    with numpyro.plate("data", len(y)):
        x = numpyro.sample("x", dist.Normal(1.0, 1.5))
        numpyro.deterministic("twice", 2 * x)
        numpyro.sample("y", dist.Normal(x, 0.5), obs=y)


COUNTS = jnp.array([2.0, 0.0, 1.0])
GAMMA = (3.0, 2.0)


def gamma_poisson(counts=COUNTS):
    """A skewed posterior: rate ~ Gamma(3 + sum(counts), 2 + n)."""
    rate = numpyro.sample("rate", dist.Gamma(*GAMMA))
    numpyro.sample("y", dist.Poisson(rate).expand(counts.shape).to_event(1), obs=counts)


def gamma_poisson_log_evidence(counts=COUNTS):
    shape, rate = GAMMA
    total, n = float(counts.sum()), len(counts)
    log_factorials = sum(gammaln(float(count) + 1) for count in counts)
    prior = shape * jnp.log(rate) - gammaln(shape)
    return float(
        prior + gammaln(shape + total) - (shape + total) * jnp.log(rate + n) - log_factorials
    )
