# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Hierarchies and other models with a latent for each unit among the unseen targets of ``trust.py``. Latents of units are
integrated in closed form or one by one, the two to four that are left by quadrature. Data are drawn from fixed seeds.
"""

from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats
from scipy.special import betaln, gammaln
from trust_base import (
    Axis,
    TrustTarget,
    bounded,
    log_around,
    log_box,
    log_effects,
    log_normal,
    make,
)

import numpyro
import numpyro.distributions as dist


def mixed_model(x: jax.Array, y: jax.Array) -> None:
    """An intercept and a slope for each group, centred."""
    mean = numpyro.sample("mean", dist.Normal(0, 5).expand([2]).to_event(1))
    spread = numpyro.sample("spread", dist.HalfCauchy(jnp.array([1.0, 0.5])).to_event(1))
    s = numpyro.sample("s", dist.HalfNormal(1))
    with numpyro.plate("groups", len(y)):
        b = numpyro.sample("b", dist.Normal(mean, spread).to_event(1))
        numpyro.sample("y", dist.Normal(b[:, :1] + b[:, 1:] * x, s).to_event(1), obs=y)


def log_same_mean(y: np.ndarray, variance: np.ndarray, mean_variance: float) -> np.ndarray:
    """The log density of normal variables of one variance and one mean, which is normal around zero."""
    square, size = np.sum((y - y.mean()) ** 2), len(y)
    value = log_normal(y.mean() * np.sqrt(size), 0, variance + size * mean_variance)
    return value - 0.5 * ((size - 1) * np.log(2 * np.pi * variance) + square / variance)


def groups(_: Path | None = None, *, num_groups: int = 24) -> TrustTarget:
    """Columns are orthogonal, so that means, slopes and the rest are independent given the scales."""
    rng, x = np.random.default_rng(741), np.array([-1.5, -0.5, 0.5, 1.5])
    b = np.array([1.0, -0.4]) + rng.standard_normal((num_groups, 2)) * [0.8, 0.15]
    y = b[:, :1] + b[:, 1:] * x + 0.6 * rng.standard_normal((num_groups, 4))
    along = [2 * y.mean(axis=1), y @ x / np.linalg.norm(x)]  # coordinates in an orthonormal basis
    rest = np.sum(y**2) - sum(part @ part for part in along)

    def log_joint(log_first, log_second, s):
        value = stats.halfnorm.logpdf(s)
        value = value - num_groups * np.log(2 * np.pi * s**2) - 0.5 * rest / s**2
        for log_spread, scale, part, square in zip(
            (log_first, log_second), (1, 0.5), along, (4, x @ x), strict=True
        ):
            spread = np.exp(log_spread)
            value = value + stats.halfcauchy.logpdf(spread, scale=scale) + log_spread
            value = value + log_same_mean(part, square * spread**2 + s**2, 25 * square)
        return value

    axes = Axis(-19, 3, 260), Axis(-19, 3, 220), Axis(0.2, 1.6, 50)
    num_dims = 2 * num_groups + 5
    name = f"mixed model, centred, {num_dims}-d"
    return make(name, num_dims, mixed_model, (x, y), log_box(log_joint, *axes))


def waiting_times(is_centred: bool, y: jax.Array) -> None:
    mu = numpyro.sample("mu", dist.Normal(0, 2))
    tau = numpyro.sample("tau", dist.HalfNormal(1))
    with numpyro.plate("units", len(y)):
        if is_centred:
            theta = numpyro.sample("theta", dist.Normal(mu, tau))
        else:
            theta = mu + tau * numpyro.sample("z", dist.Normal(0, 1))
        waits = dist.Exponential(jnp.exp(theta)[:, None]).expand(y.shape).to_event(1)
        numpyro.sample("y", waits, obs=y)


def frailty(is_centred: bool, _: Path | None = None, *, num_units: int = 20) -> TrustTarget:
    rng = np.random.default_rng(742)
    y = rng.exponential(np.exp(0.4 - 0.6 * rng.standard_normal((num_units, 1))), (num_units, 3))

    def log_terms(theta):
        return (3 * theta - np.exp(theta) * total for total in y.sum(axis=1))

    def log_joint(mu, tau):
        value = log_normal(mu, 0, 4) + stats.halfnorm.logpdf(tau)
        return value + log_effects(log_terms, mu, tau)

    exact = log_box(log_joint, Axis(-4, 4, 100), Axis(0, 4.5, 80, True))
    num_dims = num_units + 2
    name = f"waiting times, {'' if is_centred else 'not '}centred, {num_dims}-d"
    return make(name, num_dims, partial(waiting_times, is_centred), (y,), exact)


def sparse_counts(exposure: jax.Array, y: jax.Array) -> None:
    mu = numpyro.sample("mu", dist.Normal(0, 2))
    tau = numpyro.sample("tau", dist.HalfCauchy(0.5))
    with numpyro.plate("units", len(y)):
        z = numpyro.sample("z", dist.Normal(0, 1))
        numpyro.sample("y", dist.Poisson(exposure * jnp.exp(mu + tau * z)), obs=y)


def plankton(_: Path | None = None, *, num_units: int = 40) -> TrustTarget:
    """Counts are small, so that a scale of zero is possible."""
    rng = np.random.default_rng(743)
    exposure = np.resize([0.5, 1.0, 2.0], num_units)
    y = rng.poisson(exposure * np.exp(0.3 * rng.standard_normal(num_units))).astype(float)
    kinds, repeats = np.unique(np.stack([exposure, y]), axis=1, return_counts=True)

    def log_joint(mu, log_tau):
        tau = np.exp(log_tau)
        value = log_normal(mu, 0, 4) + stats.halfcauchy.logpdf(tau, scale=0.5) + log_tau
        for size, count, repeat in zip(*kinds, repeats, strict=True):

            def log_terms(theta, size=size, count=count):
                log_rate = np.log(size) + theta
                yield count * log_rate - np.exp(log_rate) - gammaln(count + 1)

            value = value + repeat * log_effects(log_terms, mu, tau)
        return value

    exact = log_box(log_joint, Axis(-7, 4, 130), Axis(-19, 2.2, 140))
    name = f"sparse counts, not centred, {num_units + 2}-d"
    return make(name, num_units + 2, sparse_counts, (exposure, y), exact)


def weighted_regression(x: jax.Array, y: jax.Array) -> None:
    """Student's distribution with four degrees of freedom, by a precision for each datum."""
    a, b = (numpyro.sample(name, dist.Normal(0, 3)) for name in "ab")
    s = numpyro.sample("s", dist.HalfNormal(1))
    with numpyro.plate("rows", len(y)):
        weight = numpyro.sample("weight", dist.Gamma(2, 2))
        numpyro.sample("y", dist.Normal(a + b * x, s / jnp.sqrt(weight)), obs=y)


def weights(_: Path | None = None, *, num_rows: int = 25) -> TrustTarget:
    rng = np.random.default_rng(744)
    x = np.linspace(-1, 1, num_rows)
    y = 0.5 - 1.5 * x + 0.5 * rng.standard_t(3, num_rows)

    def log_joint(a, b, log_s):
        value = log_normal(a, 0, 9) + log_normal(b, 0, 9)
        value = value + stats.halfnorm.logpdf(np.exp(log_s)) + log_s
        for place, datum in zip(x, y, strict=True):
            square = ((datum - a - b * place) / np.exp(log_s)) ** 2
            value = value + np.log(0.375) - log_s - 2.5 * np.log1p(square / 4)
        return value

    exact = log_around(log_joint, [0.5, -1.5, -0.7], 100, 16.0)
    name = f"weighted regression, {num_rows + 3}-d"
    return make(name, num_rows + 3, weighted_regression, (x, y), exact)


def errors_in_both(seen: jax.Array, y: jax.Array) -> None:
    a, m = (numpyro.sample(name, dist.Normal(0, 3)) for name in "am")
    b = numpyro.sample("b", dist.Normal(0, 2))
    s, t = (numpyro.sample(name, dist.HalfNormal(1)) for name in "st")
    with numpyro.plate("rows", len(y)):
        x = numpyro.sample("x", dist.Normal(m, t))
        numpyro.sample("seen", dist.Normal(x, 0.5), obs=seen)
        numpyro.sample("y", dist.Normal(a + b * x, s), obs=y)


def log_pair(squares: tuple, covariance: tuple, number: int) -> np.ndarray:
    """The log density of pairs of normal variables around zero, given sums of squares and products."""
    (first, both, second), (a, off, c) = squares, covariance
    det = a * c - off**2
    value = -0.5 * (c * first - 2 * off * both + a * second) / det
    return value - number * (np.log(2 * np.pi) + 0.5 * np.log(det))


def gauges(_: Path | None = None, *, num_rows: int = 18) -> TrustTarget:
    """Rows are pairs with a normal mean, given the slope and both scales."""
    rng = np.random.default_rng(745)
    x = 1 + 0.9 * rng.standard_normal(num_rows)
    seen = x + 0.5 * rng.standard_normal(num_rows)
    y = -0.5 + 0.8 * x + 0.4 * rng.standard_normal(num_rows)
    u, v = seen.mean(), y.mean()
    within = tuple(part * num_rows for part in np.cov(seen, y, ddof=0)[[0, 0, 1], [0, 1, 1]])
    between = tuple(num_rows * part for part in (u**2, u * v, v**2))

    def log_joint(b, s, t):
        value = log_normal(b, 0, 4) + stats.halfnorm.logpdf(s) + stats.halfnorm.logpdf(t)
        covariance = t**2 + 0.25, b * t**2, b**2 * t**2 + s**2
        value = value + log_pair(within, covariance, num_rows - 1)
        of_mean = (9, 9 * b, 9 + 9 * b**2)
        total = tuple(c + num_rows * p for c, p in zip(covariance, of_mean, strict=True))
        return value + log_pair(between, total, 1)

    axes = Axis(-9, 11, 450), Axis(0, 6, 80, True), Axis(0, 6, 80, True)
    num_dims = num_rows + 5
    name = f"errors in both variables, {num_dims}-d"
    return make(name, num_dims, errors_in_both, (seen, y), log_box(log_joint, *axes))


def correlated_traits(y: jax.Array) -> None:
    s = numpyro.sample("s", dist.HalfNormal(1.5))
    tril = numpyro.sample("tril", dist.LKJCholesky(3, 2.0))
    z = numpyro.sample("z", dist.Normal(0, 1).expand(y.shape).to_event(2))
    numpyro.sample("y", dist.Normal(s * z @ tril.T, 0.5).to_event(2), obs=y)


def log_partial(angle: np.ndarray, shape: float) -> np.ndarray:
    """The log density of an angle whose sine is a partial correlation, which has a symmetric beta distribution."""
    constant = (2 * shape - 1) * np.log(2) + betaln(shape, shape)
    return (2 * shape - 1) * np.log(np.cos(angle)) - constant


def traits(_: Path | None = None, *, num_rows: int = 10) -> TrustTarget:
    """Rows are normal, given the scale and the correlations; these are made of two and a partial one."""
    rng = np.random.default_rng(746)
    tril = np.array([[1.0, 0, 0], [0.7, 0.7, 0], [-0.4, 0.3, 0.85]])
    y = rng.standard_normal((num_rows, 3)) @ tril.T + 0.5 * rng.standard_normal((num_rows, 3))
    S = y.T @ y

    def log_joint(s, first, second, third):
        value = stats.halfnorm.logpdf(s, scale=1.5) + log_partial(first, 2.5)
        value = value + log_partial(second, 2.5) + log_partial(third, 2)
        r12, r13 = np.sin(first), np.sin(second)
        r23 = r12 * r13 + np.sin(third) * np.cos(first) * np.cos(second)
        d, a, b, c = s**2 + 0.25, s**2 * r12, s**2 * r13, s**2 * r23
        det = d**3 + 2 * a * b * c - d * (a**2 + b**2 + c**2)
        trace = S[0, 0] * (d**2 - c**2) + S[1, 1] * (d**2 - b**2) + S[2, 2] * (d**2 - a**2)
        trace = trace + 2 * (S[0, 1] * (b * c - a * d) + S[0, 2] * (a * c - b * d))
        trace = trace + 2 * S[1, 2] * (a * b - c * d)
        return value - 0.5 * (num_rows * np.log((2 * np.pi) ** 3 * det) + trace / det)

    angle = bounded(-np.pi / 2, np.pi / 2, 34)
    exact = log_box(log_joint, Axis(0, 9, 80, True), angle, angle, angle)
    num_dims = 3 * num_rows + 4
    return make(f"correlated traits, {num_dims}-d", num_dims, correlated_traits, (y,), exact)


LATENTS = {
    "groups": groups,
    "waiting_times": partial(frailty, False),
    "waiting_times_centred": partial(frailty, True),
    "plankton": plankton,
    "weights": weights,
    "gauges": gauges,
    "traits": traits,
}
