# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Latent structure among the set-aside targets of ``trust.py``: mixtures, factors, random effects, sparse means, series and curves.
Log evidences are closed forms or quadrature; data are drawn from fixed seeds.
"""

from functools import partial
from itertools import product
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats
from scipy.special import betaln, erfcx, gammaln, log_expit, logsumexp
from trust_base import Axis, TrustTarget, grid, log_box, log_effects, log_normal, make

import numpyro
import numpyro.distributions as dist


def two_topics(counts: jax.Array) -> None:
    """Each row of counts is of one of two topics."""
    num_words = counts.shape[1]
    share = numpyro.sample("share", dist.Beta(2, 2))
    topics = numpyro.sample("topics", dist.Dirichlet(jnp.ones((2, num_words))).to_event(1))
    log_rows = counts @ jnp.log(topics).T + jnp.log(jnp.stack([share, 1 - share]))
    numpyro.factor("counts", jax.nn.logsumexp(log_rows, axis=1).sum())


def topics(_: Path | None = None, *, num_rows: int = 8, num_words: int = 4) -> TrustTarget:
    """The sum over all assignments of rows to topics; without multinomial coefficients."""
    rng = np.random.default_rng(500)
    p = rng.dirichlet(np.ones(num_words), 2)
    kinds = np.arange(num_rows) % 3 == 0
    counts = np.array([rng.multinomial(12, p[int(kind)]) for kind in kinds]).astype(float)
    terms = []
    for choice in product([True, False], repeat=num_rows):
        is_first = np.array(choice)
        term = betaln(2 + is_first.sum(), 2 + np.sum(~is_first)) - betaln(2, 2)
        for rows in (counts[is_first], counts[~is_first]):
            totals = 1 + rows.sum(axis=0)
            term += gammaln(num_words) + gammaln(totals).sum() - gammaln(totals.sum())
        terms.append(term)
    num_dims = 2 * (num_words - 1) + 1
    name = f"Dirichlet-multinomial mixture, {num_dims}-d"
    return make(name, num_dims, two_topics, (counts,), logsumexp(terms))


def two_parts(y: jax.Array) -> None:
    share = numpyro.sample("share", dist.Beta(1, 1))
    mu = numpyro.sample("mu", dist.Normal(0, 4).expand([2]).to_event(1))
    mixture = dist.MixtureSameFamily(
        dist.Categorical(jnp.stack([share, 1 - share])), dist.Normal(mu, 1)
    )
    numpyro.sample("y", mixture.expand(y.shape).to_event(1), obs=y)


def normal_part(y: np.ndarray, prior_variance: float) -> float:
    """The log density of y_i ~ N(mu, 1), mu ~ N(0, prior_variance)."""
    variance = 1 / (1 / prior_variance + len(y))
    value = -0.5 * (len(y) * np.log(2 * np.pi) + y @ y)
    return value + 0.5 * (np.log(variance / prior_variance) + variance * y.sum() ** 2)


def unknown_share(_: Path | None = None, *, num_rows: int = 10) -> TrustTarget:
    """One part has little: modes with both parts, and with one of them left without data."""
    rng = np.random.default_rng(501)
    y = rng.standard_normal(num_rows) + np.where(np.arange(num_rows) < num_rows // 5, 3.5, -0.5)
    terms = []
    for choice in product([True, False], repeat=num_rows):
        is_first = np.array(choice)
        term = betaln(1 + is_first.sum(), 1 + np.sum(~is_first))
        terms.append(term + normal_part(y[is_first], 16) + normal_part(y[~is_first], 16))
    return make("mixture of unknown share, 3-d", 3, two_parts, (y,), logsumexp(terms))


def three_parts(y: jax.Array) -> None:
    s2 = numpyro.sample("s2", dist.InverseGamma(2, 1))
    mu = numpyro.sample("mu", dist.Normal(0, 2.5 * jnp.sqrt(s2)).expand([3]).to_event(1))
    mixing = dist.Categorical(logits=jnp.zeros(3))
    mixture = dist.MixtureSameFamily(mixing, dist.Normal(mu, jnp.sqrt(s2)))
    numpyro.sample("y", mixture.expand(y.shape).to_event(1), obs=y)


def unknown_width(_: Path | None = None, *, num_rows: int = 8) -> TrustTarget:
    """Assignments have closed forms with the variance, too, whose prior is conjugate."""
    rng = np.random.default_rng(502)
    y = np.resize([-2.0, 0.3, 2.5], num_rows) + 0.5 * rng.standard_normal(num_rows)
    members = np.array(list(product(range(3), repeat=num_rows)))[..., None] == np.arange(3)
    count, total = members.sum(axis=1), np.einsum("cnk,n->ck", members, y)
    squares = y @ y - np.sum(total**2 / (count + 2.5**-2), axis=1)
    shape = 2 + num_rows / 2
    terms = gammaln(shape) - shape * np.log(1 + squares / 2) - gammaln(2)
    terms -= 0.5 * np.log1p(2.5**2 * count).sum(axis=1)
    exact = logsumexp(terms) - num_rows * np.log(3 * np.sqrt(2 * np.pi))
    return make("mixture of unknown width, 4-d", 4, three_parts, (y,), exact)


def two_factors(scale: float, y: jax.Array) -> None:
    """Each factor loads on two columns; signs of loadings and factors are free."""
    w = numpyro.sample("w", dist.Normal(0, 1.5).expand([2, 2]).to_event(2))
    f = numpyro.sample("f", dist.Normal(0, 1).expand([len(y), 2]).to_event(2))
    numpyro.sample("y", dist.Normal(f[..., None] * w, scale).to_event(3), obs=y)


def sign_flips(_: Path | None = None, *, num_rows: int = 8, scale: float = 0.5) -> TrustTarget:
    """Rows are normal given loadings, for each factor apart; these have a grid."""
    rng = np.random.default_rng(503)
    w = np.array([[1.2, -0.8], [0.9, 1.5]])
    y = rng.standard_normal((num_rows, 2, 1)) * w + scale * rng.standard_normal((num_rows, 2, 2))
    exact = 0.0
    for factor in range(2):
        rows = y[:, factor]

        def log_joint(first, second, rows=rows):
            square = first**2 + second**2
            along = sum((first * a + second * b) ** 2 for a, b in rows) / (square + scale**2)
            value = -0.5 * num_rows * (np.log(square + scale**2) + np.log(scale**2))
            value = value - num_rows * np.log(2 * np.pi)
            value = value - 0.5 * (np.sum(rows**2) - along) / scale**2
            return value + log_normal(first, 0, 2.25) + log_normal(second, 0, 2.25)

        exact += log_box(log_joint, Axis(-9, 9, 200), Axis(-9, 9, 200))
    num_dims = 2 * num_rows + 4
    name = f"sign flips of two factors, {num_dims}-d"
    return make(name, num_dims, partial(two_factors, scale), (y,), exact)


def correlated_slopes(times: jax.Array, scale: float, y: jax.Array) -> None:
    """An intercept and a slope for each row, correlated; centred."""
    s = numpyro.sample("s", dist.HalfNormal(1).expand([2]).to_event(1))
    tril = numpyro.sample("tril", dist.LKJCholesky(2, 2.0))
    b = numpyro.sample(
        "b", dist.MultivariateNormal(0.0, scale_tril=s[:, None] * tril).expand([len(y)]).to_event(1)
    )
    numpyro.sample("y", dist.Normal(b[:, :1] + b[:, 1:] * times, scale).to_event(2), obs=y)


def slopes(_: Path | None = None, *, num_groups: int = 8) -> TrustTarget:
    """Effects by closed form given both scales and the correlation, whose density is 3/4 (1 - rho^2)."""
    rng, scale, times = np.random.default_rng(504), 0.5, np.array([-1.0, -0.3, 0.4, 1.1])
    b = rng.standard_normal((num_groups, 2)) @ np.array([[0.9, -0.5], [0.0, 0.3]])
    y = b[:, :1] + b[:, 1:] * times + scale * rng.standard_normal((num_groups, 4))
    T = np.stack([np.ones(4), times], axis=1)
    gram = np.linalg.inv(T.T @ T)
    fitted, noise = y @ T @ gram, scale**2 * gram
    rest = np.sum((y - fitted @ T.T) ** 2)
    constant = -num_groups * (np.log(2 * np.pi * scale**2) - 0.5 * np.linalg.slogdet(gram)[1])
    constant -= rest / (2 * scale**2)

    def log_joint(first, second, rho):
        value = stats.halfnorm.logpdf(first) + stats.halfnorm.logpdf(second)
        value = value + np.log(0.75 * (1 - rho**2))
        a, c = first**2 + noise[0, 0], second**2 + noise[1, 1]
        off = rho * first * second + noise[0, 1]
        det = a * c - off**2
        for u, v in fitted:
            value = value - 0.5 * (c * u**2 - 2 * off * u * v + a * v**2) / det
        return value - num_groups * (np.log(2 * np.pi) + 0.5 * np.log(det)) + constant

    axis = Axis(0, 7, 90, True)
    exact = log_box(log_joint, axis, axis, Axis(-1, 1, 60, True, True))
    num_dims = 2 * num_groups + 3
    args = times, scale, y
    return make(f"correlated effects, {num_dims}-d", num_dims, correlated_slopes, args, exact)


def crossed_effects(y: jax.Array) -> None:
    """Rows and columns have effects; not centred."""
    num_rows, num_columns = y.shape
    m = numpyro.sample("m", dist.Normal(0, 3))
    s = numpyro.sample("s", dist.HalfNormal(1).expand([3]).to_event(1))
    a = numpyro.sample("a", dist.Normal(0, 1).expand([num_rows]).to_event(1))
    b = numpyro.sample("b", dist.Normal(0, 1).expand([num_columns]).to_event(1))
    mean = m + s[0] * a[:, None] + s[1] * b
    numpyro.sample("y", dist.Normal(mean, s[2]).to_event(2), obs=y)


def crossed(_: Path | None = None, *, num_rows: int = 5, num_columns: int = 4) -> TrustTarget:
    """In contrasts of rows, of columns and of both, which are independent given the scales."""
    rng = np.random.default_rng(505)
    y = 1 + 0.7 * rng.standard_normal((num_rows, 1)) + 0.1 * rng.standard_normal(num_columns)
    y = y + 0.4 * rng.standard_normal(y.shape)
    of_rows, of_columns = y.mean(axis=1) - y.mean(), y.mean(axis=0) - y.mean()
    rest = np.sum((y - y.mean() - of_rows[:, None] - of_columns) ** 2)
    squares = [num_columns * of_rows @ of_rows, num_rows * of_columns @ of_columns, rest]
    free = [num_rows - 1, num_columns - 1, (num_rows - 1) * (num_columns - 1)]

    def log_joint(first, second, third):
        value = sum(map(stats.halfnorm.logpdf, (first, second, third)))
        noise = third**2
        variances = [num_columns * first**2 + noise, num_rows * second**2 + noise, noise]
        total = variances[0] + variances[1] - noise + 9 * y.size
        value = value + log_normal(y.mean() * np.sqrt(y.size), 0, total)
        for square, number, variance in zip(squares, free, variances, strict=True):
            value = value - 0.5 * (number * np.log(2 * np.pi * variance) + square / variance)
        return value

    axis = Axis(0, 7, 90, True)
    exact = log_box(log_joint, axis, axis, Axis(0, 7, 240, True))
    num_dims = num_rows + num_columns + 4
    return make(f"crossed effects, {num_dims}-d", num_dims, crossed_effects, (y,), exact)


def count_effects(y: jax.Array) -> None:
    mu = numpyro.sample("mu", dist.Normal(0, 2))
    tau = numpyro.sample("tau", dist.HalfNormal(1))
    with numpyro.plate("units", len(y)):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Poisson(jnp.exp(theta)), obs=y)


def share_effects(trials: jax.Array, y: jax.Array) -> None:
    mu = numpyro.sample("mu", dist.Normal(0, 2))
    tau = numpyro.sample("tau", dist.HalfCauchy(1))
    with numpyro.plate("units", len(y)):
        z = numpyro.sample("z", dist.Normal(0, 1))
        numpyro.sample("y", dist.Binomial(trials, logits=mu + tau * z), obs=y)


def counts(_: Path | None = None, *, num_units: int = 12) -> TrustTarget:
    rng = np.random.default_rng(506)
    y = rng.poisson(np.exp(0.5 + 0.8 * rng.standard_normal(num_units))).astype(float)

    def log_terms(theta):
        return (value * theta - np.exp(theta) - gammaln(value + 1) for value in y)

    def log_joint(mu, tau):
        value = log_normal(mu, 0, 4) + stats.halfnorm.logpdf(tau)
        return value + log_effects(log_terms, mu, tau)

    exact = log_box(log_joint, Axis(-6, 6, 70), Axis(0, 6, 60, True))
    num_dims = num_units + 2
    return make(f"Poisson effects, centred, {num_dims}-d", num_dims, count_effects, (y,), exact)


def successes(_: Path | None = None, *, num_units: int = 10) -> TrustTarget:
    rng = np.random.default_rng(507)
    trials = rng.integers(4, 15, num_units).astype(float)
    p = 1 / (1 + np.exp(0.5 - 0.5 * rng.standard_normal(num_units)))
    y = rng.binomial(trials.astype(int), p).astype(float)
    ways = gammaln(trials + 1) - gammaln(y + 1) - gammaln(trials - y + 1)

    def log_terms(theta):
        for number, value, way in zip(trials, y, ways, strict=True):
            yield value * log_expit(theta) + (number - value) * log_expit(-theta) + way

    def log_joint(mu, log_tau):
        tau = np.exp(log_tau)
        value = log_normal(mu, 0, 4) + stats.halfcauchy.logpdf(tau) + log_tau
        return value + log_effects(log_terms, mu, tau, 241)

    exact = log_box(log_joint, Axis(-9, 8, 90), Axis(-19, 5, 150))
    num_dims = num_units + 2
    name = f"binomial effects, not centred, {num_dims}-d"
    return make(name, num_dims, share_effects, (trials, y), exact)


def lasso_means(y: jax.Array) -> None:
    width = numpyro.sample("width", dist.HalfCauchy(1))
    with numpyro.plate("means", len(y)):
        b = numpyro.sample("b", dist.Laplace(0, width))
        numpyro.sample("y", dist.Normal(b, 1), obs=y)


def lasso(_: Path | None = None, *, num_means: int = 20) -> TrustTarget:
    """Means by closed form, both halves of the prior apart; the width has a grid."""
    rng = np.random.default_rng(508)
    y = rng.standard_normal(num_means) + np.where(np.arange(num_means) < num_means // 6, 4, 0)

    def log_joint(log_width):
        rate = np.exp(-log_width)[:, None]
        halves = [np.log(erfcx((rate + sign * y) / np.sqrt(2))) for sign in (-1, 1)]
        value = np.log(rate / 4) - 0.5 * y**2 + np.logaddexp(*halves)
        prior = stats.halfcauchy.logpdf(np.exp(log_width)) + log_width
        return prior + value.sum(axis=1)

    exact = log_box(log_joint, Axis(-20, 6, 300))
    return make(f"Laplace means, {num_means + 1}-d", num_means + 1, lasso_means, (y,), exact)


def noisy_horseshoe(y: jax.Array) -> None:
    sigma = numpyro.sample("sigma", dist.HalfNormal(2))
    tau = numpyro.sample("tau", dist.HalfCauchy(1))
    size = len(y)
    local = numpyro.sample("local", dist.HalfCauchy(1).expand([size]).to_event(1))
    z = numpyro.sample("z", dist.Normal(0, 1).expand([size]).to_event(1))
    numpyro.sample(
        "y", dist.Normal((tau * local * z)[:, None], sigma).expand(y.shape).to_event(2), obs=y
    )


def sparse_rows(_: Path | None = None, *, num_rows: int = 10, num_repeats: int = 3) -> TrustTarget:
    """A horseshoe with noise of unknown scale: that and the global scale have a grid, the local ones are integrals."""
    rng = np.random.default_rng(509)
    means = np.where(np.arange(num_rows) < 2, 5.0, 0.0)
    y = means[:, None] + 0.8 * rng.standard_normal((num_rows, num_repeats))
    center, within = y.mean(axis=1), np.sum((y - y.mean(axis=1, keepdims=True)) ** 2)
    nodes = grid(-25, 25, 301)
    log_prior = stats.halfcauchy.logpdf(np.exp(nodes)) + nodes + np.log(nodes[1] - nodes[0])
    num_free = num_rows * (num_repeats - 1)

    def log_joint(sigma, log_tau):
        value = stats.halfnorm.logpdf(sigma, scale=2)
        value = value + stats.halfcauchy.logpdf(np.exp(log_tau)) + log_tau
        value = value - 0.5 * (num_free * np.log(2 * np.pi * sigma**2) + within / sigma**2)
        value = value - 0.5 * num_rows * np.log(num_repeats)
        variance = np.exp(2 * (log_tau[..., None] + nodes)) + sigma[..., None] ** 2 / num_repeats
        for mean in center:
            value = value + logsumexp(log_prior + log_normal(mean, 0, variance), axis=-1)
        return value

    exact = log_box(log_joint, Axis(0, 13, 130, True), Axis(-19, 12, 100))
    num_dims = 2 * num_rows + 2
    return make(f"noisy horseshoe, {num_dims}-d", num_dims, noisy_horseshoe, (y,), exact)


LATENTS = {
    "topics": topics,
    "unknown_share": unknown_share,
    "unknown_width": unknown_width,
    "sign_flips": sign_flips,
    "slopes": slopes,
    "crossed": crossed,
    "counts": counts,
    "successes": successes,
    "lasso": lasso,
    "sparse_rows": sparse_rows,
}
