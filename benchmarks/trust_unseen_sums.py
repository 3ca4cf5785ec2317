# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Unseen targets of ``trust.py`` whose log evidences are closed forms, given at most a few parameters that have a grid, or sums of
such over all assignments of labels, states or regressors. Data are drawn from fixed seeds.
"""

from itertools import pairwise, product
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special, stats
from scipy.special import betaln, gammaln, logsumexp, multigammaln
from trust_base import Axis, TrustTarget, bounded, log_box, log_normal, make

import numpyro
import numpyro.distributions as dist


def log_gamma_poisson(total, exposure, shape: float, rate: float):
    """The log density of counts, without their factorials, given their sum; their rate is of a gamma distribution."""
    value = shape * np.log(rate) - gammaln(shape) + gammaln(shape + total)
    return value - (shape + total) * np.log(rate + exposure)


def marked_animals(y: jax.Array) -> None:
    """Four visits. Whether an animal is alive is summed over, from when it was marked on."""
    stays = numpyro.sample("stays", dist.Uniform(0, 1).expand([3]).to_event(1))
    is_seen = numpyro.sample("is_seen", dist.Uniform(0, 1).expand([3]).to_event(1))
    alive, dead = jnp.ones(len(y)), jnp.zeros(len(y))
    for visit in range(1, 4):
        is_marked = y[:, :visit].any(axis=1)
        p, stay = is_seen[visit - 1], stays[visit - 1]
        next_alive = alive * stay * jnp.where(y[:, visit], p, 1 - p)
        next_dead = jnp.where(y[:, visit], 0.0, dead + alive * (1 - stay))
        alive = jnp.where(is_marked, next_alive, alive)
        dead = jnp.where(is_marked, next_dead, dead)
    numpyro.factor("y", jnp.log(alive + dead).sum())


def recapture(_: Path | None = None, *, num_marked: tuple[int, ...] = (14, 10, 8)) -> TrustTarget:
    """
    The likelihood is a polynomial, which the rules integrate without error: only animals' next sightings, and that they
    are never seen again, matter. Of the last two parameters only the product does.
    """
    rng, histories = np.random.default_rng(720), []
    for first, number in enumerate(num_marked):
        for _animal in range(number):
            history, is_alive = np.arange(4) == first, True
            for visit in range(first + 1, 4):
                is_alive = is_alive and rng.uniform() < 0.75
                history[visit] = is_alive and rng.uniform() < 0.5
            histories.append(history)
    y = np.array(histories)
    next_seen, never = np.zeros((4, 4)), np.zeros(4)
    for history in y:
        seen = np.flatnonzero(history)
        never[seen[-1]] += 1
        for before, after in pairwise(seen):
            next_seen[before, after] += 1

    def log_joint(*values):
        stays, p = values[:3], values[3:]
        value, unseen = 0.0, 1.0
        for visit in (2, 1, 0):
            unseen = 1 - stays[visit] + stays[visit] * (1 - p[visit]) * unseen
            value = value + never[visit] * np.log(unseen)
        for before in range(3):
            way = 1.0
            for after in range(before + 1, 4):
                way = way * stays[after - 1]
                value = value + next_seen[before, after] * np.log(way * p[after - 1])
                way = way * (1 - p[after - 1])
        return value

    axes = [bounded(0, 1, number) for number in (8, 13, 17, 8, 13, 17)]
    exact = log_box(log_joint, *axes)
    return make("recapture, 6-d", 6, marked_animals, (y,), exact)


def hidden_regimes(y: jax.Array) -> None:
    """States of a Markov chain are summed over, forwards; their labels are free."""
    rows = numpyro.sample("rows", dist.Dirichlet(jnp.ones((3, 3))).to_event(1))
    rates = numpyro.sample("rates", dist.Gamma(2, 0.4).expand([3]).to_event(1))
    log_terms = dist.Poisson(rates).log_prob(y[:, None])

    def step(log_state: jax.Array, log_term: jax.Array) -> tuple[jax.Array, None]:
        log_next = jax.nn.logsumexp(log_state[:, None] + jnp.log(rows), axis=0)
        return log_next + log_term, None

    log_state, _ = jax.lax.scan(step, log_terms[0] - jnp.log(3.0), log_terms[1:])
    numpyro.factor("y", jax.nn.logsumexp(log_state))


def regimes(_: Path | None = None, *, num_times: int = 11) -> TrustTarget:
    """The sum over all paths of the states."""
    states = np.resize([0, 0, 0, 1, 1, 2, 2, 2, 0, 0, 1], num_times)
    y = np.random.default_rng(721).poisson(np.array([1.0, 4.0, 11.0])[states]).astype(float)
    paths = np.array(list(product(range(3), repeat=num_times)))
    is_in = paths[..., None] == np.arange(3)
    moves = np.einsum("pti,ptj->pij", is_in[:, :-1].astype(float), is_in[:, 1:].astype(float))
    terms = np.sum(gammaln(1 + moves), axis=(1, 2))
    terms += np.sum(gammaln(3) - gammaln(3 + moves.sum(axis=2)), axis=1)
    totals = np.einsum("ptk,t->pk", is_in, y)
    terms += log_gamma_poisson(totals, is_in.sum(axis=1), 2, 0.4).sum(axis=1)
    exact = logsumexp(terms) - np.log(3) - gammaln(y + 1).sum()
    return make("hidden regimes, 9-d", 9, hidden_regimes, (y,), exact)


def mixed_lines(X: jax.Array, y: jax.Array) -> None:
    share = numpyro.sample("share", dist.Beta(2, 2))
    w = numpyro.sample("w", dist.Normal(0, 2).expand([2, 2]).to_event(2))
    log_parts = dist.Normal(X @ w.T, 0.4).log_prob(y[:, None])
    log_shares = jnp.log(jnp.stack([share, 1 - share]))
    numpyro.factor("y", jax.nn.logsumexp(log_parts + log_shares, axis=1).sum())


def two_lines(_: Path | None = None, *, num_rows: int = 12) -> TrustTarget:
    """The sum over all assignments of rows to lines."""
    rng = np.random.default_rng(722)
    X = np.stack([np.ones(num_rows), rng.uniform(-1.5, 1.5, num_rows)], axis=1)
    w = np.array([[0.5, 1.2], [-0.4, -0.9]])[np.arange(num_rows) % 3 // 2]
    y = np.sum(X * w, axis=1) + 0.4 * rng.standard_normal(num_rows)
    is_first = np.array(list(product([1.0, 0.0], repeat=num_rows)))
    number = is_first.sum(axis=1)
    terms = betaln(2 + number, 2 + num_rows - number) - betaln(2, 2)
    for is_here in (is_first, 1 - is_first):
        precision = np.einsum("cn,ni,nj->cij", is_here, X, X) / 0.16 + np.eye(2) / 4
        pull = is_here @ (X * y[:, None]) / 0.16
        gain = np.sum(pull * np.linalg.solve(precision, pull[..., None])[..., 0], axis=1)
        terms += 0.5 * (gain - np.linalg.slogdet(4 * precision)[1] - is_here @ y**2 / 0.16)
    exact = logsumexp(terms) - 0.5 * num_rows * np.log(2 * np.pi * 0.16)
    return make("two lines, 5-d", 5, mixed_lines, (X, y), exact)


def spiked_regression(X: jax.Array, y: jax.Array) -> None:
    share = numpyro.sample("share", dist.Beta(1, 3))
    mixing = dist.Categorical(jnp.stack([share, 1 - share]))
    part = dist.Normal(0, jnp.array([2.0, 0.2]))
    with numpyro.plate("columns", X.shape[1]):
        b = numpyro.sample("b", dist.MixtureSameFamily(mixing, part))
    numpyro.sample("y", dist.Normal(X @ b, 1).to_event(1), obs=y)


def spikes(_: Path | None = None, *, num_rows: int = 20, num_columns: int = 8) -> TrustTarget:
    """The sum over all choices of columns with large coefficients; two columns nearly replace each other."""
    rng = np.random.default_rng(723)
    X = rng.standard_normal((num_rows, num_columns))
    X[:, 1] = X[:, 0] + 0.3 * X[:, 1]
    y = 1.2 * X[:, 0] - 0.9 * X[:, 2] + rng.standard_normal(num_rows)
    terms = []
    for choice in product([True, False], repeat=num_columns):
        covariance = np.eye(num_rows) + (X * np.where(choice, 4.0, 0.04)) @ X.T
        term = betaln(1 + sum(choice), 3 + num_columns - sum(choice)) - betaln(1, 3)
        terms.append(term + stats.multivariate_normal(cov=covariance).logpdf(y))
    name = f"spikes and slabs, {num_columns + 1}-d"
    return make(name, num_columns + 1, spiked_regression, (X, y), logsumexp(terms))


def wishart_precision(rate: jax.Array, y: jax.Array) -> None:
    precision = numpyro.sample("precision", dist.Wishart(len(rate) + 1.5, rate_matrix=rate))
    normal = dist.MultivariateNormal(jnp.zeros(len(rate)), precision_matrix=precision)
    numpyro.sample("y", normal.expand([len(y)]).to_event(1), obs=y)


def precision(_: Path | None = None, *, num_rows: int = 9, num_columns: int = 4) -> TrustTarget:
    rng = np.random.default_rng(724)
    tril = np.tril(0.6 * rng.standard_normal((num_columns, num_columns)), -1) + np.eye(num_columns)
    y = rng.standard_normal((num_rows, num_columns)) @ tril.T
    rate, freedom = np.diag(1.0 + np.arange(num_columns)), num_columns + 1.5
    after = freedom + num_rows
    exact = multigammaln(after / 2, num_columns) - multigammaln(freedom / 2, num_columns)
    exact += freedom / 2 * np.linalg.slogdet(rate)[1]
    exact -= after / 2 * np.linalg.slogdet(rate + y.T @ y)[1]
    exact -= y.size / 2 * np.log(np.pi)
    num_dims = num_columns * (num_columns + 1) // 2
    return make(f"precision matrix, {num_dims}-d", num_dims, wishart_precision, (rate, y), exact)


def gamma_rates(exposure: jax.Array, y: jax.Array) -> None:
    with numpyro.plate("units", len(y)):
        rate = numpyro.sample("rate", dist.Gamma(0.6, 0.2))
        numpyro.sample("y", dist.Poisson(exposure * rate), obs=y)


def rates(_: Path | None = None, *, num_units: int = 100) -> TrustTarget:
    """Logarithms of rates, of which many have a count of zero, are skewed."""
    rng = np.random.default_rng(725)
    exposure = rng.uniform(0.3, 3, num_units)
    y = rng.poisson(exposure * rng.gamma(0.6, 5, num_units)).astype(float)
    terms = log_gamma_poisson(y, exposure, 0.6, 0.2) + y * np.log(exposure) - gammaln(y + 1)
    name = f"gamma-Poisson rates, {num_units}-d"
    return make(name, num_units, gamma_rates, (exposure, y), terms.sum())


def normal_gamma(y: jax.Array) -> None:
    with numpyro.plate("groups", len(y)):
        precision = numpyro.sample("precision", dist.Gamma(1.5, 1))
        mean = numpyro.sample("mean", dist.Normal(0, 1 / jnp.sqrt(0.3 * precision)))
        scale = 1 / jnp.sqrt(precision)
        groups = dist.Normal(mean[:, None], scale[:, None]).expand(y.shape).to_event(1)
        numpyro.sample("y", groups, obs=y)


def means_and_precisions(_: Path | None = None, *, num_groups: int = 25) -> TrustTarget:
    """Three data of each group, which is a funnel of its own: Student's distribution of three correlated variables."""
    rng = np.random.default_rng(726)
    y = rng.standard_normal((num_groups, 1)) + rng.gamma(2, 0.5, (num_groups, 1)) * (
        rng.standard_normal((num_groups, 3))
    )
    shape = (np.eye(3) + 1 / 0.3) / 1.5
    exact = stats.multivariate_t(np.zeros(3), shape, df=3).logpdf(y).sum()
    name = f"means and precisions, {2 * num_groups}-d"
    return make(name, 2 * num_groups, normal_gamma, (y,), exact)


def shares_of_sites(counts: jax.Array) -> None:
    mean = numpyro.sample("mean", dist.Dirichlet(jnp.full(3, 3.0)))
    size = numpyro.sample("size", dist.LogNormal(2, 0.5))
    with numpyro.plate("sites", len(counts)):
        p = numpyro.sample("p", dist.Dirichlet(size * mean))
        numpyro.sample("counts", dist.Multinomial(counts.sum(axis=1), probs=p), obs=counts)


def habitats(_: Path | None = None, *, num_sites: int = 8) -> TrustTarget:
    """
    Shares of each site by closed form; their mean is made of two fractions. Nearly no shares are so small that one less the
    others is zero in float32: such mass would be lost in the transform to a simplex.
    """
    rng = np.random.default_rng(747)
    p = rng.dirichlet([3.5, 2.5, 2.0], num_sites)
    counts = np.array(
        [
            rng.multinomial(number, row)
            for number, row in zip(rng.integers(5, 15, num_sites), p, strict=True)
        ]
    )
    ways = gammaln(counts.sum(axis=1) + 1).sum() - gammaln(counts + 1).sum()

    def log_joint(first, second, log_size):
        mean, size = (first, (1 - first) * second, (1 - first) * (1 - second)), np.exp(log_size)
        value = log_normal(log_size, 2, 0.25) + gammaln(9) - 3 * np.log(2)
        value = value + 2 * sum(map(np.log, mean)) + np.log1p(-first) + ways
        for row in counts:
            value = value + gammaln(size) - gammaln(size + row.sum())
            for share, count in zip(mean, row, strict=True):
                value = value + gammaln(size * share + count) - gammaln(size * share)
        return value

    exact = log_box(log_joint, bounded(0, 1, 40), bounded(0, 1, 40), Axis(-1.5, 5.5, 40))
    num_dims = 2 * num_sites + 3
    model = shares_of_sites
    return make(f"shares of sites, {num_dims}-d", num_dims, model, (counts,), exact)


def pass_rates(trials: jax.Array, y: jax.Array) -> None:
    mean = numpyro.sample("mean", dist.Uniform(0, 1))
    size = numpyro.sample("size", dist.LogNormal(1, 1))
    with numpyro.plate("schools", len(y)):
        p = numpyro.sample("p", dist.Beta(mean * size, (1 - mean) * size))
        numpyro.sample("y", dist.Binomial(trials, probs=p), obs=y)


def schools(_: Path | None = None, *, num_schools: int = 50) -> TrustTarget:
    """Rates of each school by closed form."""
    rng = np.random.default_rng(748)
    trials = rng.integers(3, 13, num_schools)
    y = rng.binomial(trials, rng.beta(3.5, 1.5, num_schools))
    ways = np.sum(np.log(special.comb(trials, y)))

    def log_joint(mean, log_size):
        value = log_normal(log_size, 1, 1) + ways
        first, second = mean * np.exp(log_size), (1 - mean) * np.exp(log_size)
        for number, count in zip(trials, y, strict=True):
            value = value + betaln(first + count, second + number - count) - betaln(first, second)
        return value

    exact = log_box(log_joint, bounded(0, 1, 80), Axis(-5, 8.5, 80))
    num_dims, args = num_schools + 2, (trials * 1.0, y * 1.0)
    return make(f"pass rates, {num_dims}-d", num_dims, pass_rates, args, exact)


SUMS = {
    "recapture": recapture,
    "regimes": regimes,
    "two_lines": two_lines,
    "spikes": spikes,
    "precision": precision,
    "rates": rates,
    "means_and_precisions": means_and_precisions,
    "habitats": habitats,
    "schools": schools,
}
