# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Models that were not run while the defaults of DAVI were developed; see ``davi_defaults.py``."""

from collections.abc import Callable

from davi_models import ERRORS, SCHOOLS, Case, regression, schools_evidence
import jax
import jax.numpy as jnp
import numpy as np
from scipy import special, stats

import numpyro
import numpyro.distributions as dist
from numpyro.distributions import constraints


def centred_schools() -> Case:
    """The eight schools, centred."""

    def model(y: jax.Array) -> None:
        mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
        tau = numpyro.sample("tau", dist.HalfNormal(5.0))
        with numpyro.plate("schools", 8):
            theta = numpyro.sample("theta", dist.Normal(mu, tau))
            numpyro.sample("y", dist.Normal(theta, jnp.asarray(ERRORS)), obs=y)

    return Case(model, (jnp.asarray(SCHOOLS),), schools_evidence())


def local_level() -> Case:
    """A random walk seen through noise, at fifty times."""
    rng = np.random.default_rng(10)
    y = np.cumsum(0.5 * rng.standard_normal(50)) + rng.standard_normal(50)

    def model(y: jax.Array) -> None:
        walk = numpyro.sample("walk", dist.GaussianRandomWalk(0.5, 50))
        numpyro.sample("y", dist.Normal(walk, 1.0).to_event(1), obs=y)

    times = np.arange(1, 51)
    covariance = 0.25 * np.minimum(times[:, None], times) + np.eye(50)
    exact = stats.multivariate_normal.logpdf(y, np.zeros(50), covariance)
    return Case(model, (jnp.asarray(y),), float(exact))


def volatility() -> Case:
    """Returns with a log volatility that walks, eighty times."""
    rng = np.random.default_rng(11)
    y = np.exp(0.5 * np.cumsum(0.3 * rng.standard_normal(80))) * rng.standard_normal(80)

    def model(y: jax.Array) -> None:
        step = numpyro.sample("step", dist.HalfNormal(0.5))
        z = numpyro.sample("z", dist.Normal(jnp.zeros(80), 1.0).to_event(1))
        scale = jnp.exp(0.5 * step * jnp.cumsum(z))
        numpyro.sample("y", dist.Normal(0.0, scale).to_event(1), obs=y)

    return Case(model, (jnp.asarray(y),))


def many_columns() -> Case:
    """Regression on two hundred columns."""
    return regression(np.random.default_rng(12).standard_normal((300, 200)) / 10, 13)


def proportions() -> Case:
    """Five proportions, conjugate."""
    y = np.array([12.0, 3.0, 0.0, 7.0, 1.0])

    def model(y: jax.Array) -> None:
        p = numpyro.sample("p", dist.Dirichlet(jnp.ones(5)))
        numpyro.sample("y", dist.Multinomial(23, p), obs=y)

    n = y.sum()
    exact = special.gammaln(n + 1) - special.gammaln(y + 1).sum() + special.gammaln(5)
    exact += special.gammaln(y + 1).sum() - special.gammaln(n + 5)
    return Case(model, (jnp.asarray(y),), float(exact))


def horseshoe() -> Case:
    """Regression with a horseshoe over ten columns."""
    rng = np.random.default_rng(14)
    X = rng.standard_normal((80, 10))
    y = X[:, 0] * 2.0 - X[:, 1] + rng.standard_normal(80)

    def model(X: jax.Array, y: jax.Array) -> None:
        tau = numpyro.sample("tau", dist.HalfCauchy(0.5))
        scale = numpyro.sample("scale", dist.HalfCauchy(jnp.ones(10)).to_event(1))
        z = numpyro.sample("z", dist.Normal(jnp.zeros(10), 1.0).to_event(1))
        numpyro.sample("y", dist.Normal(X @ (tau * scale * z), 1.0).to_event(1), obs=y)

    return Case(model, (jnp.asarray(X), jnp.asarray(y)))


def counts_of_unequal_columns() -> Case:
    """Overdispersed counts on columns of scales 0.1 to 30."""
    rng = np.random.default_rng(15)
    scales = np.array([0.1, 1.0, 5.0, 30.0])
    X = rng.standard_normal((150, 4)) * scales
    rate = np.exp(1.0 + X @ (0.3 * rng.standard_normal(4) / scales))
    y = rng.poisson(rate * rng.gamma(3.0, 1 / 3, 150))

    def model(X: jax.Array, y: jax.Array) -> None:
        w = numpyro.sample("w", dist.Normal(jnp.zeros(4), 1.0).to_event(1))
        a = numpyro.sample("a", dist.Normal(0.0, 2.0))
        shape = numpyro.sample("shape", dist.Gamma(2.0, 0.5))
        mean = jnp.exp(jnp.clip(a + X @ w, -20.0, 20.0))
        numpyro.sample("y", dist.NegativeBinomial2(mean, shape).to_event(1), obs=y)

    return Case(model, (jnp.asarray(X), jnp.asarray(y, float)))


def heavy_tails() -> Case:
    """A line through points with outliers, with a hand-written guide."""
    rng = np.random.default_rng(16)
    x = np.linspace(0, 10, 40)
    y = 1.0 + 0.5 * x + 0.3 * rng.standard_t(2.0, 40)

    def model(x: jax.Array, y: jax.Array) -> None:
        a = numpyro.sample("a", dist.Normal(0.0, 5.0))
        b = numpyro.sample("b", dist.Normal(0.0, 5.0))
        sigma = numpyro.sample("sigma", dist.HalfNormal(2.0))
        numpyro.sample("y", dist.StudentT(3.0, a + b * x, sigma).to_event(1), obs=y)

    def guide(x: jax.Array, y: jax.Array) -> None:
        loc = numpyro.param("loc", jnp.zeros(3))
        scale = numpyro.param("scale", 0.1 * jnp.ones(3), constraint=constraints.positive)
        slope = numpyro.param("slope", 0.0)
        b = numpyro.sample("b", dist.Normal(loc[0], scale[0]))
        numpyro.sample("a", dist.Normal(loc[1] + slope * b, scale[1]))
        numpyro.sample("sigma", dist.LogNormal(loc[2], scale[2]))

    return Case(model, (jnp.asarray(x), jnp.asarray(y)), guide=guide)


def process_classification() -> Case:
    """A Gaussian process behind forty binary outcomes."""
    rng = np.random.default_rng(17)
    x = np.linspace(-3, 3, 40)
    y = rng.random(40) < special.expit(3 * np.sin(2 * x))

    def model(x: jax.Array, y: jax.Array) -> None:
        length = numpyro.sample("length", dist.LogNormal(0.0, 0.5))
        scale = numpyro.sample("scale", dist.HalfNormal(2.0))
        z = numpyro.sample("z", dist.Normal(jnp.zeros(40), 1.0).to_event(1))
        distance = (x[:, None] - x) / length
        kernel = jnp.exp(-0.5 * distance**2) + 1e-4 * jnp.eye(40)
        f = scale * jnp.linalg.cholesky(kernel) @ z
        numpyro.sample("y", dist.Bernoulli(logits=f).to_event(1), obs=y)

    return Case(model, (jnp.asarray(x), jnp.asarray(y, float)))


def decay() -> Case:
    """A differential equation with two unknown rates, by Euler's method."""
    rng = np.random.default_rng(18)

    def solve(rates: jax.Array) -> jax.Array:
        def step(state: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
            flow = jnp.stack([-rates[0] * state[0], rates[0] * state[0] - rates[1] * state[1]])
            state = state + 0.1 * flow
            return state, state[1]

        return jax.lax.scan(step, jnp.array([5.0, 0.0]), None, length=60)[1][::3]

    y = np.asarray(solve(jnp.array([1.0, 0.4]))) * np.exp(0.1 * rng.standard_normal(20))

    def model(y: jax.Array) -> None:
        rates = numpyro.sample("rates", dist.LogNormal(jnp.zeros(2), 0.7).to_event(1))
        sigma = numpyro.sample("sigma", dist.HalfNormal(0.5))
        mean = jnp.log(jnp.maximum(solve(rates), 1e-3))
        numpyro.sample("y", dist.LogNormal(mean, sigma).to_event(1), obs=y)

    return Case(model, (jnp.asarray(y),))


CASES: dict[str, Callable[[], Case]] = {
    "centred schools": centred_schools,
    "local level": local_level,
    "volatility": volatility,
    "many columns": many_columns,
    "proportions": proportions,
    "horseshoe": horseshoe,
    "counts of unequal columns": counts_of_unequal_columns,
    "heavy tails": heavy_tails,
    "process classification": process_classification,
    "decay": decay,
}
