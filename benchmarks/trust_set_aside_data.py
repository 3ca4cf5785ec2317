# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Models of few parameters and ugly data among the set-aside targets of ``trust.py``: outliers, excess zeros, cutpoints, censoring,
separation, unit roots, breaks. Log evidences are closed forms or quadrature; data are drawn from fixed seeds.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats
from scipy.special import betaln, expit, gammaln, log_expit, logsumexp, xlogy
from trust_base import Axis, TrustTarget, log_box, log_normal, make

import numpyro
import numpyro.distributions as dist


def student_regression(x: jax.Array, y: jax.Array) -> None:
    a, b = (numpyro.sample(name, dist.Normal(0, 3)) for name in "ab")
    s = numpyro.sample("s", dist.HalfNormal(1))
    nu = numpyro.sample("nu", dist.Gamma(2, 0.1))
    numpyro.sample("y", dist.StudentT(nu, a + b * x, s).to_event(1), obs=y)


def outliers(_: Path | None = None, *, num_rows: int = 15) -> TrustTarget:
    rng = np.random.default_rng(400)
    x = np.linspace(-1, 1, num_rows)
    y = 1 + 2 * x + 0.4 * rng.standard_t(2, num_rows)

    def log_joint(a, b, log_s, log_nu):
        s, nu = np.exp(log_s), np.exp(log_nu)
        values = log_normal(a, 0, 9) + log_normal(b, 0, 9) + stats.halfnorm.logpdf(s) + log_s
        values = values + stats.gamma.logpdf(nu, 2, scale=10) + log_nu
        one = gammaln((nu + 1) / 2) - gammaln(nu / 2) - 0.5 * np.log(nu * np.pi) - log_s
        squares = 0.0
        for place, value in zip(x, y, strict=True):
            squares = squares + np.log1p((value - a - b * place) ** 2 / (nu * s**2))
        return values + num_rows * one - (nu + 1) / 2 * squares

    axes = Axis(-1.6, 3.6, 76), Axis(-2.4, 6.4, 76), Axis(-6, 2, 36), Axis(-9, 6, 28)
    # With few degrees of freedom and a small scale there are sharp edges along each datum's line, which grids miss.
    exact = log_box(log_joint, *axes), 5e-4
    return make("Student-t regression, 4-d", 4, student_regression, (x, y), *exact)


def logistic_growth(t: jax.Array, y: jax.Array) -> None:
    """The solution of x' = r x (1 - x / K), in noise."""
    K = numpyro.sample("K", dist.LogNormal(jnp.log(10.0), 0.5))
    r, start = (numpyro.sample(name, dist.LogNormal(0, 0.5)) for name in ("r", "start"))
    s2 = numpyro.sample("s2", dist.InverseGamma(2, 0.5))
    mean = K / (1 + (K / start - 1) * jnp.exp(-r * t))
    numpyro.sample("y", dist.Normal(mean, jnp.sqrt(s2)).to_event(1), obs=y)


def growth(_: Path | None = None, *, num_times: int = 8) -> TrustTarget:
    """The variance by closed form. The series ends before the capacity shows."""
    rng = np.random.default_rng(401)
    t = np.linspace(0, 3, num_times)
    y = 12 / (1 + 11 * np.exp(-0.9 * t)) + 0.4 * rng.standard_normal(num_times)

    def log_joint(log_k, log_r, log_start):
        values = log_normal(log_k, np.log(10), 0.25)
        values = values + log_normal(log_r, 0, 0.25) + log_normal(log_start, 0, 0.25)
        squares = 0.0
        for time, value in zip(t, y, strict=True):
            mean = np.exp(log_k) / (1 + np.expm1(log_k - log_start) * np.exp(-np.exp(log_r) * time))
            squares = squares + (value - mean) ** 2
        shape = 2 + num_times / 2
        values = values + 2 * np.log(0.5) + gammaln(shape) - shape * np.log(0.5 + squares / 2)
        return values - num_times / 2 * np.log(2 * np.pi)

    axes = Axis(-1, 5.6, 120), Axis(-3, 2.2, 150), Axis(-3, 2.5, 150)
    return make("logistic growth, 4-d", 4, logistic_growth, (t, y), log_box(log_joint, *axes))


def michaelis_menten(x: jax.Array, y: jax.Array) -> None:
    top, half = (numpyro.sample(name, dist.HalfNormal(10)) for name in ("top", "half"))
    numpyro.sample("y", dist.Normal(top * x / (half + x), 0.1).to_event(1), obs=y)


def enzyme(_: Path | None = None, *, num_rows: int = 10) -> TrustTarget:
    """Concentrations are so low that only the ratio of the parameters shows: a curved ridge."""
    x = np.linspace(0.2, 2, num_rows)
    y = 8 * x / (6 + x) + 0.1 * np.random.default_rng(402).standard_normal(num_rows)

    def log_joint(half, ratio):
        top = ratio * (half + 1)
        values = stats.halfnorm.logpdf(top, scale=10) + stats.halfnorm.logpdf(half, scale=10)
        values = values + np.log(half + 1)
        for place, value in zip(x, y, strict=True):
            values = values + log_normal(value, top * place / (half + place), 0.01)
        return values

    axes = Axis(0, 60, 300, True), Axis(0.6, 1.8, 200)
    return make("Michaelis-Menten, 2-d", 2, michaelis_menten, (x, y), log_box(log_joint, *axes))


def zero_inflated(y: jax.Array) -> None:
    gate = numpyro.sample("gate", dist.Beta(1, 1))
    rate = numpyro.sample("rate", dist.Gamma(2, 1))
    numpyro.sample("y", dist.ZeroInflatedPoisson(gate, rate).expand(y.shape).to_event(1), obs=y)


def excess_zeros(_: Path | None = None, *, num_rows: int = 20) -> TrustTarget:
    """The sum over the number of zeros that are not of the Poisson distribution."""
    rng = np.random.default_rng(403)
    y = np.where(rng.uniform(size=num_rows) < 0.6, 0, rng.poisson(0.8, num_rows)).astype(float)
    num_zeros, total = int(np.sum(y == 0)), y.sum()
    k = np.arange(num_zeros + 1)
    terms = gammaln(num_zeros + 1) - gammaln(k + 1) - gammaln(num_zeros - k + 1)
    terms += betaln(1 + k, 1 + num_rows - k)
    terms += gammaln(2 + total) - (2 + total) * np.log(1 + num_rows - k)
    exact = logsumexp(terms) - gammaln(y + 1).sum()
    return make("zero-inflated counts, 2-d", 2, zero_inflated, (y,), exact)


def zero_inflated_regression(x: jax.Array, y: jax.Array) -> None:
    a = numpyro.sample("a", dist.Normal(0, 1.5))
    b = numpyro.sample("b", dist.Normal(0, 1))
    c = numpyro.sample("c", dist.Normal(0, 1.5))
    rate, gate = jnp.exp(a + b * x), jax.nn.sigmoid(c)
    numpyro.sample("y", dist.ZeroInflatedPoisson(gate, rate).to_event(1), obs=y)


def zero_regression(_: Path | None = None, *, num_rows: int = 20) -> TrustTarget:
    rng = np.random.default_rng(404)
    x = rng.standard_normal(num_rows)
    y = np.where(rng.uniform(size=num_rows) < 0.5, 0, rng.poisson(np.exp(0.3 + 0.6 * x)))
    y = y.astype(float)

    def log_joint(a, b, c):
        values = log_normal(a, 0, 2.25) + log_normal(b, 0, 1) + log_normal(c, 0, 2.25)
        for place, value in zip(x, y, strict=True):
            log_rate = a + b * place
            log_poisson = value * log_rate - np.exp(log_rate) - gammaln(value + 1)
            term = log_expit(-c) + log_poisson
            values = values + (np.logaddexp(log_expit(c), term) if value == 0 else term)
        return values

    axes = Axis(-9, 6, 80), Axis(-6, 6, 80), Axis(-9, 9, 60)
    exact = log_box(log_joint, *axes)
    return make("zero-inflated regression, 3-d", 3, zero_inflated_regression, (x, y), exact)


def ordinal_regression(x: jax.Array, y: jax.Array) -> None:
    b = numpyro.sample("b", dist.Normal(0, 2))
    steps = dist.Normal(0, 1).expand([3]).to_event(1)
    ordered = dist.transforms.OrderedTransform()
    cuts = numpyro.sample("cuts", dist.TransformedDistribution(steps, ordered))
    numpyro.sample("y", dist.OrderedLogistic(b * x, cuts).to_event(1), obs=y)


def ordinal(_: Path | None = None) -> TrustTarget:
    """Three groups and four grades, one of which nobody got; over what the cutpoints are made from."""
    x, y = (
        np.repeat([-1.0, 0.0, 1.0], 8),
        np.array([0] * 6 + [1] * 2 + [0] * 3 + [1] * 4 + [3] + [1] * 3 + [3] * 5),
    )

    def log_joint(z, second, third, b):
        values = log_normal(z, 0, 1) + log_normal(second, 0, 1) + log_normal(third, 0, 1)
        values = values + log_normal(b, 0, 4)
        cuts = [z, z + np.exp(second), z + np.exp(second) + np.exp(third)]
        for place in (-1.0, 0.0, 1.0):
            counts = np.bincount(y[x == place], minlength=4)
            below = [0.0, *(expit(cut - b * place) for cut in cuts)]
            above = [*(expit(b * place - cut) for cut in cuts), 0.0]
            for grade in (0, 1, 3):
                # The smaller tails are exact; the difference is taken among them.
                between = 1 - below[grade] - above[grade]
                values = values + xlogy(counts[grade], np.maximum(between, 1e-300))
        return values

    axes = Axis(-7, 4.5, 44), Axis(-6.5, 4.5, 40), Axis(-6.5, 4.5, 40), Axis(-6, 13, 50)
    exact = log_box(log_joint, *axes)
    return make("ordinal regression, 4-d", 4, ordinal_regression, (x, y), exact)


def wide_logistic(X: jax.Array, y: jax.Array) -> None:
    w = numpyro.sample("w", dist.Normal(0, 10).expand([X.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=X @ w).to_event(1), obs=y)


def log_logistic_evidence(X: np.ndarray, y: np.ndarray, axes: list[Axis]) -> float:
    def log_joint(*w):
        values = sum(log_normal(part, 0, 100) for part in w)
        for row, value in zip(X, y, strict=True):
            values = values + log_expit((2 * value - 1) * sum(map(np.multiply, row, w)))
        return values

    return log_box(log_joint, *axes)


def separated(_: Path | None = None) -> TrustTarget:
    """A line separates the classes: the likelihood grows for ever, and the prior alone ends it."""
    x = np.array([-2.0, -1.2, -0.7, -0.3, 0.2, 0.6, 1.1, 1.9])
    X, y = np.stack([np.ones(8), x], axis=1), (x > 0).astype(float)
    exact = log_logistic_evidence(X, y, [Axis(-60, 60, 500), Axis(-20, 70, 400)])
    return make("separated classes, 2-d", 2, wide_logistic, (X, y), exact)


def collinear(_: Path | None = None, *, num_rows: int = 30) -> TrustTarget:
    """Two columns that are nearly one, so that their difference is as the prior has it; over sum and difference."""
    rng = np.random.default_rng(405)
    first = rng.standard_normal(num_rows)
    X = np.stack([np.ones(num_rows), first, first + 0.05 * rng.standard_normal(num_rows)], axis=1)
    y = (rng.uniform(size=num_rows) < expit(X @ [0.5, 1.0, 0.5])).astype(float)
    # Normal priors do not change under rotation.
    rotation = np.array([[1, 0, 0], [0, 1, 1], [0, 1, -1]]) / np.array([[1], [2**0.5], [2**0.5]])
    axes = [Axis(-10, 14, 100), Axis(-10, 24, 120), Axis(-65, 65, 100)]
    exact = log_logistic_evidence(X @ rotation.T, y, axes)
    return make("collinear columns, 3-d", 3, wide_logistic, (X, y), exact)


def weibull(times: jax.Array, is_seen: jax.Array) -> None:
    """Times of those that were not seen to end are lower bounds."""
    shape = numpyro.sample("shape", dist.LogNormal(0, 0.7))
    scale = numpyro.sample("scale", dist.LogNormal(0, 1))
    hazard = jnp.log(shape / scale) + (shape - 1) * jnp.log(times / scale)
    numpyro.factor("times", jnp.sum(is_seen * hazard - (times / scale) ** shape))


def censored(_: Path | None = None, *, num_rows: int = 15) -> TrustTarget:
    times = 2 * np.random.default_rng(406).weibull(1.5, num_rows)
    is_seen, times = (times < 1.2).astype(float), np.minimum(times, 1.2)

    def log_joint(log_shape, log_scale):
        values = log_normal(log_shape, 0, 0.49) + log_normal(log_scale, 0, 1)
        for time, seen in zip(times, is_seen, strict=True):
            power = np.exp(log_shape) * (np.log(time) - log_scale)
            values = values + seen * (log_shape - np.log(time) + power) - np.exp(power)
        return values

    exact = log_box(log_joint, Axis(-4.5, 3, 150), Axis(-3, 7, 200))
    return make("censored times, 2-d", 2, weibull, (times, is_seen), exact)


def overdispersed(x: jax.Array, y: jax.Array) -> None:
    a, b = numpyro.sample("a", dist.Normal(0, 2)), numpyro.sample("b", dist.Normal(0, 1))
    c = numpyro.sample("c", dist.Gamma(1, 0.2))
    numpyro.sample("y", dist.NegativeBinomial2(jnp.exp(a + b * x), c).to_event(1), obs=y)


def negative_binomial(_: Path | None = None, *, num_rows: int = 15) -> TrustTarget:
    rng = np.random.default_rng(407)
    x = rng.standard_normal(num_rows)
    y = rng.poisson(np.exp(0.8 + 0.4 * x) * rng.gamma(1.0, 1.0, num_rows)).astype(float)

    def log_joint(a, b, log_c):
        c = np.exp(log_c)
        values = log_normal(a, 0, 4) + log_normal(b, 0, 1) + np.log(0.2) - 0.2 * c + log_c
        for place, value in zip(x, y, strict=True):
            log_mean = a + b * place
            log_total = np.logaddexp(log_mean, log_c)
            values = values + value * (log_mean - log_total) + c * (log_c - log_total)
            values = values + gammaln(value + c) - gammaln(c) - gammaln(value + 1)
        return values

    exact = log_box(log_joint, Axis(-8, 10, 130), Axis(-6, 6, 90), Axis(-7, 6, 80))
    return make("overdispersed counts, 3-d", 3, overdispersed, (x, y), exact)


def gamma_sizes(y: jax.Array) -> None:
    shape, rate = (numpyro.sample(name, dist.Gamma(2, 0.1)) for name in ("shape", "rate"))
    numpyro.sample("y", dist.Gamma(shape, rate).expand(y.shape).to_event(1), obs=y)


def sizes(_: Path | None = None, *, num_rows: int = 40) -> TrustTarget:
    """The rate by closed form, given the shape."""
    y = np.random.default_rng(408).gamma(30, 0.1, num_rows)

    def log_joint(log_shape):
        shape = np.exp(log_shape)
        total = 2 + num_rows * shape
        values = stats.gamma.logpdf(shape, 2, scale=10) + log_shape + 2 * np.log(0.1)
        values += gammaln(total) - total * np.log(0.1 + y.sum())
        return values + (shape - 1) * np.log(y).sum() - num_rows * gammaln(shape)

    exact = log_box(log_joint, Axis(-2, 7, 300))
    return make("gamma sizes, 2-d", 2, gamma_sizes, (y,), exact)


def unit_root(y: jax.Array) -> None:
    phi = numpyro.sample("phi", dist.Uniform(-1, 1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2))
    numpyro.sample("y", dist.Normal(phi * y[:-1], sigma).to_event(1), obs=y[1:])


def random_walk(_: Path | None = None, *, num_times: int = 60) -> TrustTarget:
    """A walk that drifts away: the likelihood's mode is beyond the bound of phi."""
    y = 5 + np.cumsum(0.15 + 0.5 * np.random.default_rng(409).standard_normal(num_times))
    before, after = y[:-1], y[1:]

    def log_joint(phi, sigma):
        squares = after @ after - 2 * phi * (before @ after) + phi**2 * (before @ before)
        values = stats.halfnorm.logpdf(sigma, scale=2) - np.log(2) - squares / (2 * sigma**2)
        return values - len(after) / 2 * np.log(2 * np.pi * sigma**2)

    exact = log_box(log_joint, Axis(0.7, 1, 80, False, True), Axis(0.25, 1.5, 80))
    return make("unit root, 2-d", 2, unit_root, (y,), exact)


def sparse_coins(trials: jax.Array, successes: jax.Array) -> None:
    with numpyro.plate("coins", len(trials)):
        p = numpyro.sample("p", dist.Beta(0.2, 0.2))
        numpyro.sample("successes", dist.Binomial(trials, p), obs=successes)


def coins(_: Path | None = None, *, num_coins: int = 6) -> TrustTarget:
    """None or all, and priors with poles at both bounds."""
    trials = np.array([3.0, 10.0, 40.0, 5.0, 20.0, 8.0])[:num_coins]
    successes = np.array([0.0, 10.0, 0.0, 5.0, 19.0, 4.0])[:num_coins]
    exact = stats.betabinom.logpmf(successes, trials, 0.2, 0.2).sum()
    return make(f"sparse coins, {num_coins}-d", num_coins, sparse_coins, (trials, successes), exact)


def sparse_shares(counts: jax.Array) -> None:
    p = numpyro.sample("p", dist.Dirichlet(jnp.full(len(counts), 0.1)))
    numpyro.sample("counts", dist.Multinomial(counts.sum().astype(int), p), obs=counts)


def shares(_: Path | None = None) -> TrustTarget:
    """Most kinds were never seen."""
    counts = np.array([7, 0, 2, 0, 0, 1, 0, 0])
    exact = stats.dirichlet_multinomial.logpmf(counts, np.full(8, 0.1), counts.sum())
    return make("sparse shares, 7-d", 7, sparse_shares, (counts,), exact)


def change_point(y: jax.Array) -> None:
    """The time of the change is summed over."""
    rates = numpyro.sample("rates", dist.Gamma(1.5, 0.5).expand([2]).to_event(1))
    terms = y[:, None] * jnp.log(rates) - rates - jax.lax.lgamma(y + 1.0)[:, None]
    sums = jnp.cumsum(terms, axis=0)
    log_paths = sums[:-1, 0] + sums[-1, 1] - sums[:-1, 1]
    numpyro.factor("y", jax.nn.logsumexp(log_paths) - jnp.log(len(y) - 1.0))


def change(_: Path | None = None, *, num_times: int = 20) -> TrustTarget:
    """A weak change, so that several times are likely, and some say the opposite; closed forms for each."""
    rng = np.random.default_rng(410)
    y = np.concatenate([rng.poisson(2.0, num_times // 2), rng.poisson(3.5, num_times // 2)]) * 1.0

    def log_part(part):
        value = 1.5 * np.log(0.5) - gammaln(1.5) + gammaln(1.5 + part.sum())
        return value - (1.5 + part.sum()) * np.log(0.5 + len(part)) - gammaln(part + 1).sum()

    terms = [log_part(y[:time]) + log_part(y[time:]) for time in range(1, num_times)]
    exact = logsumexp(terms) - np.log(num_times - 1)
    return make("change point, 2-d", 2, change_point, (y,), exact)


DATA = {
    "outliers": outliers,
    "growth": growth,
    "enzyme": enzyme,
    "excess_zeros": excess_zeros,
    "zero_regression": zero_regression,
    "ordinal": ordinal,
    "separated": separated,
    "collinear": collinear,
    "censored": censored,
    "negative_binomial": negative_binomial,
    "sizes": sizes,
    "random_walk": random_walk,
    "coins": coins,
    "shares": shares,
    "change": change,
}
