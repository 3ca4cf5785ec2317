# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Series in time and a curve among the set-aside targets of ``trust.py``: counts, successes, outliers, a trend. States are summed out by
a filter on a grid or in closed form; what is left is quadrature. Data are drawn from fixed seeds.
"""

from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats
from scipy.special import gammaln, log_expit
from trust_base import Axis, TrustTarget, grid, log_box, log_normal, make
from trust_series import filter_on_grid, stationary

import numpyro
import numpyro.distributions as dist

PHI = {"counts": 0.9, "successes": 0.8, "returns": 0.95}


def series(kind: str, is_centred: bool, y: jax.Array) -> None:
    """A stationary AR(1) of known correlation and unknown mean and spread is all that data depend on."""
    mu, spread = (
        numpyro.sample("mu", dist.Normal(0, 2)),
        numpyro.sample("spread", dist.HalfNormal(1)),
    )
    size, phi = len(y), PHI[kind]
    if is_centred:
        lags = np.abs(np.arange(size)[:, None] - np.arange(size))
        tril = spread * jnp.linalg.cholesky(phi**lags)
        x = numpyro.sample("x", dist.MultivariateNormal(jnp.full(size, mu), scale_tril=tril))
    else:
        z = numpyro.sample("z", dist.Normal(0, 1).expand([size]).to_event(1))
        x = mu + spread * stationary(phi, z)
    if kind == "counts":
        observed = dist.Poisson(jnp.exp(x))
    elif kind == "successes":
        observed = dist.Bernoulli(logits=x)
    else:
        observed = dist.StudentT(4, 0, jnp.exp(x / 2))
    numpyro.sample("y", observed.to_event(1), obs=y)


def log_datum(kind: str, value: float, x: np.ndarray) -> np.ndarray:
    """The log density of a datum of :func:`series` given its state."""
    if kind == "counts":
        return value * x - np.exp(x) - gammaln(value + 1)
    if kind == "successes":
        return log_expit((2 * value - 1) * x)
    return np.log(0.375) - 2.5 * np.log1p(value**2 * np.exp(-x) / 4) - x / 2


def hidden(
    kind: str, is_centred: bool, seed: int, _: Path | None = None, *, num_times: int = 20
) -> TrustTarget:
    rng, phi = np.random.default_rng(seed), PHI[kind]
    states = [rng.standard_normal()]
    for shock in rng.standard_normal(num_times - 1):
        states.append(phi * states[-1] + np.sqrt(1 - phi**2) * shock)
    x = 0.5 + 0.9 * np.array(states)
    if kind == "counts":
        y = rng.poisson(np.exp(x)).astype(float)
    elif kind == "successes":
        y = (rng.uniform(size=num_times) < 1 / (1 + np.exp(-x))).astype(float)
    else:
        y = np.exp(x / 2) * rng.standard_t(4, num_times)
    nodes = grid(-7, 7, 121)

    def log_joint(mu: np.ndarray, spread: np.ndarray) -> np.ndarray:
        x = mu[..., None] + spread[..., None] * nodes
        terms = [log_datum(kind, value, x) for value in y]
        log_prior = log_normal(mu, 0, 4) + stats.halfnorm.logpdf(spread)
        return log_prior + filter_on_grid(terms, phi, nodes)

    exact = log_box(log_joint, Axis(-11, 11.5, 240), Axis(0, 6.5, 48, True))
    num_dims = num_times + 2
    name = f"hidden series of {kind}, {'' if is_centred else 'not '}centred, {num_dims}-d"
    return make(name, num_dims, partial(series, kind, is_centred), (y,), exact)


def rough_curve(distances: jax.Array, y: jax.Array) -> None:
    """A Matern process of unknown length, not whitened, in noise of unknown scale."""
    length = numpyro.sample("length", dist.LogNormal(-1, 1))
    noise = numpyro.sample("noise", dist.HalfNormal(0.5))
    scaled = jnp.sqrt(3.0) * distances / length
    kernel = (1 + scaled) * jnp.exp(-scaled) + 1e-4 * jnp.eye(len(y))
    f = numpyro.sample("f", dist.MultivariateNormal(jnp.zeros(len(y)), covariance_matrix=kernel))
    numpyro.sample("y", dist.Normal(f, noise).to_event(1), obs=y)


def rough(_: Path | None = None, *, num_places: int = 15) -> TrustTarget:
    """The curve in the eigenbasis of its covariance, one for each length."""
    rng = np.random.default_rng(604)
    places = np.sort(rng.uniform(0, 1, num_places))
    y = np.cos(6 * places) + 0.25 * rng.standard_normal(num_places)
    distances = np.abs(places[:, None] - places)

    def log_joint(log_length: np.ndarray, noise: np.ndarray) -> np.ndarray:
        scaled = np.sqrt(3) * distances / np.exp(log_length)[..., None]
        kernels = (1 + scaled) * np.exp(-scaled) + 1e-4 * np.eye(num_places)
        eigenvalues, vectors = np.linalg.eigh(kernels)
        projected = np.einsum("lij,i->lj", vectors, y)
        values = log_normal(log_length, -1, 1) + stats.halfnorm.logpdf(noise, scale=0.5)
        variance = eigenvalues[:, None] + noise[..., None] ** 2
        return values + log_normal(projected[:, None], 0, variance).sum(axis=-1)

    exact = log_box(log_joint, Axis(-8, 6.5, 160), Axis(0, 3.5, 160, True))
    name = f"rough curve, {num_places + 2}-d"
    return make(name, num_places + 2, rough_curve, (distances, y), exact)


def trend_tril(num_times: int) -> np.ndarray:
    """A walk whose steps are a walk, as a matrix times independent variables."""
    walk = np.tril(np.ones((num_times, num_times)))
    return walk @ walk / num_times


def smooth_trend(y: jax.Array) -> None:
    level = numpyro.sample("level", dist.Normal(0, 3))
    drift = numpyro.sample("drift", dist.HalfCauchy(1))
    noise = numpyro.sample("noise", dist.HalfNormal(1))
    z = numpyro.sample("z", dist.Normal(0, 1).expand([len(y)]).to_event(1))
    mean = level + drift * (jnp.asarray(trend_tril(len(y))) @ z)
    numpyro.sample("y", dist.Normal(mean, noise).to_event(1), obs=y)


def trend(_: Path | None = None, *, num_times: int = 18) -> TrustTarget:
    """Dense covariances of the data, for each pair of scales."""
    rng = np.random.default_rng(605)
    y = 0.05 * np.arange(num_times) + 0.4 * rng.standard_normal(num_times)
    tril = trend_tril(num_times)
    curved = tril @ tril.T

    def log_joint(log_drift: np.ndarray, noise: np.ndarray) -> np.ndarray:
        drift = np.exp(log_drift)
        values = stats.halfcauchy.logpdf(drift) + log_drift + stats.halfnorm.logpdf(noise)
        covariance = drift[..., None, None] ** 2 * curved + 9
        covariance = covariance + noise[..., None, None] ** 2 * np.eye(num_times)
        chol = np.linalg.cholesky(covariance)
        white = np.linalg.solve(chol, y[:, None])[..., 0]
        log_det = np.log(np.diagonal(chol, axis1=-2, axis2=-1)).sum(axis=-1)
        return values - log_det - 0.5 * (np.sum(white**2, axis=-1) + num_times * np.log(2 * np.pi))

    exact = log_box(log_joint, Axis(-18, 5, 110), Axis(0, 7, 160, True))
    name = f"smooth trend, not centred, {num_times + 3}-d"
    return make(name, num_times + 3, smooth_trend, (y,), exact)


SERIES = {
    "hidden_counts": partial(hidden, "counts", False, 601),
    "hidden_successes": partial(hidden, "successes", True, 602),
    "hidden_returns": partial(hidden, "returns", False, 603),
    "rough": rough,
    "trend": trend,
}
