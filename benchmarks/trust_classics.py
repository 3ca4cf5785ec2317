# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Classics among the development targets of ``trust.py``: those of the literature on nested sampling, and models whose
Bayes factors are published. Log evidences are closed forms or quadrature but for the turtles (published Bayes factor, to
the digits shown) and the factor models of exchange rates, which are published with an error.
"""

from functools import partial
from pathlib import Path

import dimension_targets
from dimension_targets import HIERARCHICAL_DATA, find
import jax
import jax.numpy as jnp
from jax.scipy.special import log_ndtr
from jax.scipy.stats import norm
import numpy as np
from scipy import special, stats
from trust_base import Axis, TrustTarget, adopt, bounded, in_bell, in_box, log_box, log_normal, make

import numpyro
import numpyro.distributions as dist

# By the number of factors: log evidence, published by Lopes and West (2004), and its error. An interval that was published is
# taken for 95 %. With one factor there is none: 0.0025 is a guess, and importance sampling gave -1014.272 and -1014.273, with
# errors of 0.004 and 0.005. With two the published interval is +-0.005, but adaptive importance sampling from two modes gave
# -903.32, -903.26, -903.26, -903.22 and -903.21 (+-0.01) in its rounds, not settled yet, with a fifth of it at the second mode:
# the published number looks like that of the first mode alone. Until there is a better reference its error is that
# difference, and the target is left out of coverage. Three factors were not checked.
EXCHANGE_RATES = {1: (-1014.271, 0.0025), 2: (-903.452, 0.25), 3: (-905.271, 0.08)}
LOG_SPIKE = np.log(9e10)  # height of the spike over the slab


def shells_log_likelihood(x: jax.Array) -> jax.Array:
    centers = jnp.zeros((2, x.shape[0])).at[:, 0].set(jnp.array([-3.5, 3.5]))
    radii = jnp.linalg.norm(x - centers, axis=1)
    return jax.nn.logsumexp(norm.logpdf(radii, 2, 0.1))


def shells(num_dims: int, _: Path | None = None) -> TrustTarget:
    """Over the radius: the two do not touch each other, nor the sides of the box."""

    def log_density(radius: np.ndarray) -> np.ndarray:
        return log_normal(radius, 2, 0.01) + (num_dims - 1) * np.log(radius)

    log_area = np.log(2) + num_dims / 2 * np.log(np.pi) - special.gammaln(num_dims / 2)
    exact = log_box(log_density, Axis(1, 3.2, 200)) + log_area
    exact += np.log(2) - num_dims * np.log(12)
    model = partial(in_box, num_dims, -6.0, 6.0, shells_log_likelihood)
    return make(f"Gaussian shells, {num_dims}-d", num_dims, model, (), exact)


def eggbox_log_likelihood(x: jax.Array) -> jax.Array:
    return (2 + jnp.prod(jnp.cos(x / 2))) ** 5


def eggbox(_: Path | None = None) -> TrustTarget:
    high = 10 * np.pi
    axis = bounded(0, high, 800)
    exact = log_box(lambda x, y: (2 + np.cos(x / 2) * np.cos(y / 2)) ** 5, axis, axis)
    model = partial(in_box, 2, 0.0, high, eggbox_log_likelihood)
    return make("eggbox, 2-d", 2, model, (), exact - 2 * np.log(high))


def rosenbrock_log_likelihood(x: jax.Array) -> jax.Array:
    return -jnp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


def rosenbrock(num_dims: int, _: Path | None = None) -> TrustTarget:
    """From the last coordinate to the first: each depends on its neighbours only."""
    x, log_weights = bounded(-5, 5, 1000).rule()
    kernel = np.exp(-100 * (x - x[:, None] ** 2) ** 2 - (1 - x[:, None]) ** 2 + log_weights)
    tail, exact = np.ones(len(x)), 0.0
    for _coordinate in range(num_dims - 1):
        tail = kernel @ tail
        exact += np.log(tail.max())
        tail /= tail.max()
    exact += np.log(np.exp(log_weights) @ tail) - num_dims * np.log(10)
    model = partial(in_box, num_dims, -5.0, 5.0, rosenbrock_log_likelihood)
    return make(f"Rosenbrock, {num_dims}-d", num_dims, model, (), exact)


def spike_log_likelihood(x: jax.Array) -> jax.Array:
    square = jnp.sum(x**2)
    return jnp.logaddexp(-square / 2, LOG_SPIKE - square / 0.02)


def spike_and_slab(_: Path | None = None, *, num_dims: int = 10) -> TrustTarget:
    """No needle: both have one mode, and all gradients lead to it."""
    sides = [
        np.log(scale * np.sqrt(2 * np.pi) * special.erf(5 / scale / np.sqrt(2)) / 10)
        for scale in (1, 0.1)
    ]
    exact = np.logaddexp(num_dims * sides[0], LOG_SPIKE + num_dims * sides[1])
    model = partial(in_box, num_dims, -5.0, 5.0, spike_log_likelihood)
    return make(f"spike and slab, {num_dims}-d", num_dims, model, (), exact)


def bumps_log_likelihood(x: jax.Array) -> jax.Array:
    return -5 * jnp.sum((x**2 - 1) ** 2)


def two_bumps(_: Path | None = None) -> TrustTarget:
    exact = log_box(lambda x: log_normal(x, 0, 1) - 5 * (x**2 - 1) ** 2, Axis(-3, 3, 200))
    return make("two bumps, 1-d", 1, partial(in_bell, 1, 1.0, bumps_log_likelihood), (), exact)


def coin(a: float, b: float, y: jax.Array) -> None:
    p = numpyro.sample("p", dist.Beta(a, b))
    numpyro.sample("y", dist.Bernoulli(p).expand(y.shape).to_event(1), obs=y)


def bernoulli(a: float, b: float, _: Path | None = None, *, num_tosses: int = 100) -> TrustTarget:
    y = np.repeat([0.0, 1.0], num_tosses // 2)
    exact = special.betaln(a + y.sum(), b + np.sum(1 - y)) - special.betaln(a, b)
    return make(f"Bernoulli, Beta({a:g}, {b:g})", 1, coin, (a, b, y), exact)


def probit(x: jax.Array, y: jax.Array) -> None:
    a0, a1 = (numpyro.sample(name, dist.Normal(0, jnp.sqrt(10.0))) for name in ("a0", "a1"))
    z = a0 + a1 * x
    logits = log_ndtr(z) - log_ndtr(-z)  # of Phi(z), to the last digit in both tails
    numpyro.sample("y", dist.Bernoulli(logits=logits).to_event(1), obs=y)


def log_probit_evidence(x: np.ndarray, y: np.ndarray, num_nodes: int = 120) -> float:
    """Over the two coefficients, the first at the mean of x, where they are hardly correlated."""
    center, spread = x.mean(), 2 * y - 1

    def log_joint(at_mean: np.ndarray, slope: np.ndarray) -> np.ndarray:
        values = log_normal(at_mean - slope * center, 0, 10) + log_normal(slope, 0, 10)
        for place, sign in zip(x - center, spread, strict=True):
            values = values + special.log_ndtr(sign * (at_mean + slope * place))
        return values

    at_mean = Axis(-1.2, 1.4, num_nodes) if len(x) > 100 else Axis(-60, 60, 6 * num_nodes)
    slope = Axis(-0.8, 1.6, num_nodes) if len(x) > 100 else Axis(-20, 20, 6 * num_nodes)
    return log_box(log_joint, at_mean, slope)


def turtles_pooled(directory: Path | None) -> TrustTarget:
    path = find(directory, "turtles.csv")
    survived, weight, _ = np.genfromtxt(path, delimiter=",", skip_header=1).T
    exact = log_probit_evidence(weight, survived)
    return make("turtles, no clutches, 2-d", 2, probit, (weight, survived), exact)


def turtles_by_clutch(directory: Path | None) -> TrustTarget:
    return adopt(dimension_targets.turtles_target(directory), "turtles, clutches, 34-d")


def pine_regression(x: jax.Array, y: jax.Array) -> None:
    a = numpyro.sample("a", dist.Normal(3000, 1000))
    b = numpyro.sample("b", dist.Normal(185, 100))
    s2 = numpyro.sample("s2", dist.InverseGamma(3, 180_000))
    numpyro.sample("y", dist.Normal(a + b * x, jnp.sqrt(s2)).to_event(1), obs=y)


def log_pine_evidence(x: np.ndarray, y: np.ndarray) -> float:
    """x has mean zero, so that intercept and slope are independent given s2, which is left to quadrature."""
    n, square = len(y), x @ x

    def log_joint(log_s2: np.ndarray) -> np.ndarray:
        s2 = np.exp(log_s2)
        slope, rest = x @ y / square, np.sum((y - y.mean() - x * (x @ y / square)) ** 2)
        values = stats.invgamma.logpdf(s2, 3, scale=180_000) + log_s2
        values += -0.5 * ((n - 2) * np.log(2 * np.pi * s2) + rest / s2)
        values += log_normal(y.mean(), 3000, 1e6 + s2 / n) - 0.5 * np.log(n)
        return values + log_normal(slope, 185, 1e4 + s2 / square) - 0.5 * np.log(square)

    return log_box(log_joint, Axis(6, 22, 300))


def radiata_pine(column: int, directory: Path | None) -> TrustTarget:
    table = np.genfromtxt(find(directory, "radiata_pine.csv"), delimiter=",", skip_header=1)
    y, x = table[:, 0], table[:, column] - table[:, column].mean()
    what = "density" if column == 1 else "adjusted density"
    return make(f"radiata pine, {what}, 3-d", 3, pine_regression, (x, y), log_pine_evidence(x, y))


def hierarchical_zero(y: jax.Array) -> None:
    """Around a mean that is known to be zero."""
    tau2 = numpyro.sample("tau2", dist.InverseGamma(1, 1))
    with numpyro.plate("groups", len(y)):
        theta = numpyro.sample("theta", dist.Normal(0, jnp.sqrt(tau2)))
        numpyro.sample("y", dist.Normal(theta, 1), obs=y)


def hierarchy_zero(
    _: Path | None = None, *, y: tuple[float, ...] = HIERARCHICAL_DATA
) -> TrustTarget:
    data = np.array(y)

    def log_joint(log_tau2: np.ndarray) -> np.ndarray:
        values = -np.exp(-log_tau2) - log_tau2
        return values + log_normal(data, 0, 1 + np.exp(log_tau2)[..., None]).sum(axis=-1)

    exact = log_box(log_joint, Axis(-6, 25, 600))
    name = "hierarchical normal, mean 0, 21-d"
    return make(name, len(y) + 1, hierarchical_zero, (data,), exact)


def hierarchy(_: Path | None = None) -> TrustTarget:
    return adopt(dimension_targets.hierarchy(), "hierarchical normal, 22-d")


def factor_model(num_factors: int, y: jax.Array) -> None:
    """Loadings are lower triangular, with a positive diagonal."""
    num_series = y.shape[1]
    rows, columns = np.tril_indices(num_series, -1, num_factors)
    diagonal = numpyro.sample("diagonal", dist.HalfNormal(1).expand([num_factors]).to_event(1))
    below = numpyro.sample("below", dist.Normal(0, 1).expand([len(rows)]).to_event(1))
    s2 = numpyro.sample("s2", dist.InverseGamma(1.1, 0.05).expand([num_series]).to_event(1))
    B = jnp.zeros((num_series, num_factors)).at[rows, columns].set(below)
    B = B.at[np.arange(num_factors), np.arange(num_factors)].set(diagonal)
    covariance = B @ B.T + jnp.diag(s2)
    with numpyro.plate("times", len(y)):
        numpyro.sample("y", dist.MultivariateNormal(0.0, covariance_matrix=covariance), obs=y)


def exchange_rates(num_factors: int, directory: Path | None) -> TrustTarget:
    y = np.genfromtxt(find(directory, "exchange_rates.csv"), delimiter=",")
    num_dims = 6 + sum(6 - i for i in range(num_factors))
    model = partial(factor_model, num_factors)
    plural = "s" if num_factors > 1 else ""
    name = f"exchange rates, {num_factors} factor{plural}, {num_dims}-d"
    return make(name, num_dims, model, (y,), *EXCHANGE_RATES[num_factors])


CLASSICS = {
    **{f"shells_{size}": partial(shells, size) for size in (2, 5, 10, 30)},
    "eggbox": eggbox,
    **{f"rosenbrock_{size}": partial(rosenbrock, size) for size in (2, 3, 5, 10, 20)},
    "spike_and_slab": spike_and_slab,
    "two_bumps": two_bumps,
    "bernoulli_flat": partial(bernoulli, 1.0, 1.0),
    "bernoulli_wrong": partial(bernoulli, 2.0, 5.0),
    "turtles_pooled": turtles_pooled,
    "turtles": turtles_by_clutch,
    "radiata_x": partial(radiata_pine, 1),
    "radiata_z": partial(radiata_pine, 2),
    "hierarchy_zero": hierarchy_zero,
    "hierarchy": hierarchy,
    **{f"exchange_{size}": partial(exchange_rates, size) for size in (1, 2, 3)},
}
NEEDS_FILE = tuple(
    name for name in CLASSICS if name.split("_")[0] in ("turtles", "radiata", "exchange")
)
