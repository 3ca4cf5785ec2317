# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Models that the defaults of DAVI are judged by while they are developed; see ``davi_defaults.py``."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import integrate, special, stats

import numpyro
import numpyro.distributions as dist
from numpyro.distributions import constraints

from numpyro_dais.linear_regression import LinearRegression


class Case(NamedTuple):
    """
    A model with its data.

    :param model: the model.
    :param args: its arguments.
    :param log_evidence: exact, where it is known.
    :param guide: a hand-written guide, if there is one.
    :param has_autoguides: whether autoguides apply.
    """

    model: Callable
    args: tuple = ()
    log_evidence: float | None = None
    guide: Callable | None = None
    has_autoguides: bool = True


def linear(X: jax.Array, y: jax.Array) -> None:
    """Linear regression with unit prior and noise."""
    w = numpyro.sample("w", dist.Normal(jnp.zeros(X.shape[1]), 1.0).to_event(1))
    numpyro.sample("y", dist.Normal(X @ w, 1.0).to_event(1), obs=y)


def regression(X: np.ndarray, seed: int) -> Case:
    """Linear regression on data drawn from the model, of known evidence."""
    rng = np.random.default_rng(seed)
    y = X @ rng.standard_normal(X.shape[1]) + rng.standard_normal(len(X))
    exact = float(LinearRegression(X, y).log_evidence)
    return Case(linear, (jnp.asarray(X), jnp.asarray(y)), exact)


def unequal_columns() -> Case:
    """Regression on columns of scales from 1 to 100."""
    X = np.random.default_rng(0).standard_normal((200, 5)) * np.geomspace(1, 100, 5)
    return regression(X, 1)


def correlated_columns() -> Case:
    """Regression on four correlated columns, with a guide that knows no correlation."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((60, 4)) @ np.linalg.cholesky(0.05 * np.eye(4) + 0.95).T

    def guide(X: jax.Array, y: jax.Array) -> None:
        loc = numpyro.param("loc", jnp.zeros(4))
        scale = numpyro.param("scale", 0.3 * jnp.ones(4), constraint=constraints.positive)
        numpyro.sample("w", dist.Normal(loc, scale).to_event(1))

    return regression(X, 2)._replace(guide=guide)


def logistic_regression() -> Case:
    """Thirty covariates, 200 rows."""

    def model(X: jax.Array, y: jax.Array) -> None:
        w = numpyro.sample("w", dist.Normal(jnp.zeros(X.shape[1]), 1.0).to_event(1))
        numpyro.sample("y", dist.Bernoulli(logits=X @ w).to_event(1), obs=y)

    rng = np.random.default_rng(3)
    X = rng.standard_normal((200, 30)) @ np.linalg.cholesky(0.5 * np.eye(30) + 0.5).T
    y = rng.random(200) < special.expit(X @ rng.standard_normal(30))
    return Case(model, (jnp.asarray(X), jnp.asarray(y, float)))


def normal_hierarchy_evidence(
    groups: list[np.ndarray], sigma: Any, mu_sd: float, tau_sd: float
) -> float:
    """The log evidence of groups with means of one normal, with a half-normal scale, by quadrature."""
    sigma = np.broadcast_to(sigma, len(groups))

    def log_likelihood(mu: np.ndarray, tau: float) -> np.ndarray:
        total = np.zeros_like(mu)
        for y, s in zip(groups, sigma, strict=True):
            n, mean = len(y), np.mean(y)
            within = stats.norm.logpdf(y, mean, s).sum() - stats.norm.logpdf(0, 0, s / np.sqrt(n))
            total = total + within + stats.norm.logpdf(mean, mu, np.sqrt(s**2 / n + tau**2))
        return total

    mus = np.linspace(-6 * mu_sd, 6 * mu_sd, 4001)
    log_taus = np.linspace(np.log(1e-4 * tau_sd), np.log(8 * tau_sd), 601)
    rows = []
    for log_tau in log_taus:
        tau = np.exp(log_tau)
        values = log_likelihood(mus, tau) + stats.norm.logpdf(mus, 0, mu_sd)
        prior = stats.halfnorm.logpdf(tau, scale=tau_sd) + log_tau
        rows.append(special.logsumexp(values) + np.log(mus[1] - mus[0]) + prior)
    rows = np.array(rows)
    largest = rows.max()
    below = stats.halfnorm.cdf(np.exp(log_taus[0]), scale=tau_sd)
    first = rows[0] - stats.halfnorm.logpdf(np.exp(log_taus[0]), scale=tau_sd) - log_taus[0]
    area = integrate.simpson(np.exp(rows - largest), x=log_taus) + below * np.exp(first - largest)
    return float(largest + np.log(area))


def hierarchy() -> Case:
    """Twenty groups with a normal mean each, centred."""
    rng = np.random.default_rng(4)
    y = rng.normal(1.0, 1.5, 20)[:, None] + rng.normal(0.0, 1.0, (20, 10))

    def model(y: jax.Array) -> None:
        mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
        tau = numpyro.sample("tau", dist.HalfNormal(5.0))
        with numpyro.plate("groups", 20, dim=-2):
            theta = numpyro.sample("theta", dist.Normal(mu, tau))
            with numpyro.plate("rows", 10, dim=-1):
                numpyro.sample("y", dist.Normal(theta, 1.0), obs=y)

    exact = normal_hierarchy_evidence(list(y), 1.0, 5.0, 5.0)
    return Case(model, (jnp.asarray(y),), exact)


SCHOOLS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def schools_evidence() -> float:
    """The log evidence of the eight schools."""
    return normal_hierarchy_evidence([np.array([y]) for y in SCHOOLS], ERRORS, 5.0, 5.0)


def eight_schools() -> Case:
    """The eight schools, not centred."""

    def model(y: jax.Array) -> None:
        mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
        tau = numpyro.sample("tau", dist.HalfNormal(5.0))
        with numpyro.plate("schools", 8):
            z = numpyro.sample("z", dist.Normal(0.0, 1.0))
            numpyro.sample("y", dist.Normal(mu + tau * z, jnp.asarray(ERRORS)), obs=y)

    return Case(model, (jnp.asarray(SCHOOLS),), schools_evidence())


def poisson_effects() -> Case:
    """Counts with thirty random effects."""
    rng = np.random.default_rng(5)
    y = rng.poisson(np.exp(1.0 + 0.7 * rng.standard_normal(30))[:, None], (30, 4))

    def model(y: jax.Array) -> None:
        mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
        tau = numpyro.sample("tau", dist.HalfNormal(1.0))
        with numpyro.plate("groups", 30, dim=-2):
            effect = numpyro.sample("effect", dist.Normal(0.0, tau))
            with numpyro.plate("rows", 4, dim=-1):
                numpyro.sample("y", dist.Poisson(jnp.exp(mu + effect)), obs=y)

    return Case(model, (jnp.asarray(y, float),))


def mixture() -> Case:
    """Two normals with unknown means, weight and scale."""
    rng = np.random.default_rng(6)
    y = np.where(rng.random(80) < 0.3, rng.normal(-2.0, 0.7, 80), rng.normal(1.5, 0.7, 80))

    def model(y: jax.Array) -> None:
        means = numpyro.sample(
            "means",
            dist.TransformedDistribution(
                dist.Normal(jnp.zeros(2), 3.0).to_event(1), dist.transforms.OrderedTransform()
            ),
        )
        weight = numpyro.sample("weight", dist.Beta(2.0, 2.0))
        scale = numpyro.sample("scale", dist.HalfNormal(2.0))
        kinds = dist.Categorical(jnp.stack([weight, 1 - weight]))
        with numpyro.plate("rows", 80):
            numpyro.sample("y", dist.MixtureSameFamily(kinds, dist.Normal(means, scale)), obs=y)

    return Case(model, (jnp.asarray(y),))


def counts() -> Case:
    """One rate, conjugate."""
    y = np.array([4.0, 7.0, 5.0, 9.0, 3.0])

    def model(y: jax.Array) -> None:
        rate = numpyro.sample("rate", dist.Gamma(2.0, 0.5))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Poisson(rate), obs=y)

    def guide(y: jax.Array) -> None:
        loc = numpyro.param("loc", 0.0)
        scale = numpyro.param("scale", 0.5, constraint=constraints.positive)
        numpyro.sample("rate", dist.LogNormal(loc, scale))

    a, b, n = 2.0, 0.5, len(y)
    exact = a * np.log(b) - special.gammaln(a) + special.gammaln(a + y.sum())
    exact -= (a + y.sum()) * np.log(b + n) + special.gammaln(y + 1).sum()
    return Case(model, (jnp.asarray(y),), float(exact), guide)


def network() -> Case:
    """A network of eight hidden units on one input: 25 weights and a noise scale."""
    rng = np.random.default_rng(7)
    x = np.linspace(-2, 2, 60)
    y = np.sin(2 * x) + 0.2 * rng.standard_normal(60)

    def model(x: jax.Array, y: jax.Array) -> None:
        w1 = numpyro.sample("w1", dist.Normal(jnp.zeros(8), 1.0).to_event(1))
        b1 = numpyro.sample("b1", dist.Normal(jnp.zeros(8), 1.0).to_event(1))
        w2 = numpyro.sample("w2", dist.Normal(jnp.zeros(8), 1.0).to_event(1))
        b2 = numpyro.sample("b2", dist.Normal(0.0, 1.0))
        sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
        mean = jnp.tanh(x[:, None] * w1 + b1) @ w2 + b2
        numpyro.sample("y", dist.Normal(mean, sigma).to_event(1), obs=y)

    return Case(model, (jnp.asarray(x), jnp.asarray(y)))


def digits_autoencoder() -> Case:
    """A variational autoencoder of 8 x 8 digits: two latents for each, decoder and encoder learned."""
    from sklearn.datasets import load_digits

    images = jnp.asarray((load_digits().data[:500] > 7).astype(float))

    def layer(name: str, num_in: int, num_out: int) -> tuple[jax.Array, jax.Array]:
        rng = np.random.default_rng(sum(map(ord, name)))
        weights = jnp.asarray(rng.standard_normal((num_in, num_out)) / np.sqrt(num_in))
        return numpyro.param(f"{name}_w", weights), numpyro.param(f"{name}_b", jnp.zeros(num_out))

    def model(y: jax.Array) -> None:
        (w1, b1), (w2, b2) = layer("decode1", 2, 32), layer("decode2", 32, 64)
        with numpyro.plate("images", len(y)):
            z = numpyro.sample("z", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
            logits = jnp.tanh(z @ w1 + b1) @ w2 + b2
            numpyro.sample("y", dist.Bernoulli(logits=logits).to_event(1), obs=y)

    def guide(y: jax.Array) -> None:
        (w1, b1), (w2, b2) = layer("encode1", 64, 32), layer("encode2", 32, 4)
        out = jnp.tanh(y @ w1 + b1) @ w2 + b2
        with numpyro.plate("images", len(y)):
            numpyro.sample("z", dist.Normal(out[:, :2], jnp.exp(out[:, 2:])).to_event(1))

    return Case(model, (images,), guide=guide, has_autoguides=False)


CASES: dict[str, Callable[[], Case]] = {
    "unequal columns": unequal_columns,
    "correlated columns": correlated_columns,
    "logistic regression": logistic_regression,
    "hierarchy": hierarchy,
    "eight schools": eight_schools,
    "Poisson effects": poisson_effects,
    "mixture": mixture,
    "counts": counts,
    "network": network,
    "digits autoencoder": digits_autoencoder,
}
