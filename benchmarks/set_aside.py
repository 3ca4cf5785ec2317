# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Targets that were set aside while self-tuning was made, from 2 to 3,000 dimensions. Log evidences are closed forms or
quadrature, computed in float64 by NumPy; data are drawn from fixed seeds. ``tests/scripts/test_set_aside.py`` computes
each a second and a third way. Whoever changes the tuning after a look at the results needs new ones.
"""

from collections.abc import Callable
from pathlib import Path

from dimension_targets import SizedTarget, log_integral
import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats
from scipy.special import betaln, gammaln, log_ndtr, voigt_profile

import numpyro
import numpyro.distributions as dist

SENSORS = np.array([[-2.0, 0.0], [3.0, 0.0]])
LOADINGS = np.array([1.0, -0.5, 2.0])


def oscillator(
    num_times: int, transition: jax.Array, observed: jax.Array, scale: float, y: jax.Array
) -> None:
    """A damped rotation that noise drives, seen in its first coordinate, at some of the times."""
    z = numpyro.sample("z", dist.Normal(0, 1).expand([num_times, 2]).to_event(2))

    def step(x: jax.Array, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
        x = transition @ x + noise
        return x, x

    _, x = jax.lax.scan(step, jnp.zeros(2), z)
    numpyro.sample("y", dist.Normal(x[observed, 0], scale).to_event(1), obs=y)


def blurred_signal(A: jax.Array, prior_scale: jax.Array, scale: float, y: jax.Array) -> None:
    u = numpyro.sample("u", dist.Normal(0, prior_scale).to_event(1))
    numpyro.sample("y", dist.Normal(A @ u, scale).to_event(1), obs=y)


def sparse_means(scale: jax.Array, y: jax.Array) -> None:
    with numpyro.plate("means", len(y)):
        x = numpyro.sample("x", dist.Laplace(0, 0.5))
        numpyro.sample("y", dist.Normal(x, scale), obs=y)


def g_prior_regression(X: jax.Array, prior_tril: jax.Array, y: jax.Array) -> None:
    """Zellner's prior, vague in the coefficients and in the noise."""
    precision = numpyro.sample("precision", dist.Gamma(0.3, 0.3))
    tril = prior_tril / jnp.sqrt(precision)
    w = numpyro.sample("w", dist.MultivariateNormal(jnp.zeros(X.shape[1]), scale_tril=tril))
    numpyro.sample("y", dist.Normal(X @ w, precision**-0.5).to_event(1), obs=y)


def meta_analysis(scale: jax.Array, y: jax.Array) -> None:
    """Not centred."""
    mu = numpyro.sample("mu", dist.Normal(0, 10))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("studies", len(y)):
        z = numpyro.sample("z", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(mu + tau * z, scale), obs=y)


def nested_groups(scale: float, y: jax.Array) -> None:
    """Centred on both levels: groups (rows), and cells within them."""
    num_groups, num_cells = y.shape
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau_group = numpyro.sample("tau_group", dist.Exponential(1))
    tau_cell = numpyro.sample("tau_cell", dist.Exponential(1))
    group = numpyro.sample("group", dist.Normal(mu, tau_group).expand([num_groups]).to_event(1))
    mean = jnp.repeat(group[:, None], num_cells, axis=1)
    cell = numpyro.sample("cell", dist.Normal(mean, tau_cell).to_event(2))
    numpyro.sample("y", dist.Normal(cell, scale).to_event(2), obs=y)


def gamma_rates(exposure: jax.Array, counts: jax.Array) -> None:
    shape = numpyro.sample("shape", dist.Gamma(5, 5))
    inverse_scale = numpyro.sample("inverse_scale", dist.Gamma(2, 1))
    with numpyro.plate("units", len(counts)):
        rate = numpyro.sample("rate", dist.Gamma(shape, inverse_scale))
        numpyro.sample("count", dist.Poisson(exposure * rate), obs=counts)


def bounded(
    num_states: int, path: jax.Array, y: jax.Array, trials: jax.Array, successes: jax.Array
) -> None:
    """A Markov chain of unknown transitions, places in an interval, and probabilities."""
    concentration = jnp.full((num_states, num_states), 0.6)
    rows = numpyro.sample("rows", dist.Dirichlet(concentration).to_event(1))
    numpyro.sample("path", dist.Categorical(probs=rows[path[:-1]]).to_event(1), obs=path[1:])
    with numpyro.plate("places", len(y)):
        x = numpyro.sample("x", dist.Uniform(-1, 9))
        numpyro.sample("y", dist.Normal(x, 0.7), obs=y)
    with numpyro.plate("coins", len(trials)):
        p = numpyro.sample("p", dist.Beta(0.7, 0.7))
        numpyro.sample("successes", dist.Binomial(trials, p), obs=successes)


def one_factor(scale: float, y: jax.Array) -> None:
    """Only the weak means of the priors tell (w, f) from (-w, -f)."""
    w = numpyro.sample("w", dist.Normal(0.3, 2))
    f = numpyro.sample("f", dist.Normal(0.1, 1).expand([len(y)]).to_event(1))
    mean = w * f[:, None] * jnp.asarray(LOADINGS)
    numpyro.sample("y", dist.Normal(mean, scale).to_event(2), obs=y)


def two_ranges(distances: jax.Array) -> None:
    """Distances (rows) from two sensors (columns), which cannot tell a place from its mirror image."""
    x = numpyro.sample("x", dist.Normal(jnp.array([0.5, 0.8]), 3).to_event(1))
    mean = jnp.linalg.norm(x - jnp.asarray(SENSORS), axis=1)
    numpyro.sample("distances", dist.Normal(mean, 0.3).to_event(1), obs=distances)


def horseshoe_means(y: jax.Array) -> None:
    tau = numpyro.sample("tau", dist.HalfCauchy(0.5))
    with numpyro.plate("means", len(y)):
        local = numpyro.sample("local", dist.HalfCauchy(1))
        z = numpyro.sample("z", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(tau * local * z, 1), obs=y)


def heavy_product(places: jax.Array, delays: jax.Array, counts: jax.Array) -> None:
    """Heavy tails, a bound that data contradict, and counts with many zeros; all independent."""
    with numpyro.plate("cauchy", len(places)):
        x = numpyro.sample("x", dist.Cauchy(0, 1))
        numpyro.sample("place", dist.Normal(x, 1), obs=places)
    with numpyro.plate("exponential", len(delays)):
        t = numpyro.sample("t", dist.Exponential(1))
        numpyro.sample("delay", dist.Normal(t, 0.5), obs=delays)
    with numpyro.plate("log_normal", len(counts)):
        rate = numpyro.sample("rate", dist.LogNormal(0.5, 1.2))
        numpyro.sample("count", dist.Poisson(rate), obs=counts)


def log_scales(y: jax.Array) -> None:
    """Instruments (rows) of unknown precision: stiff where a draw of ``h`` is low."""
    m = numpyro.sample("m", dist.Normal(0, 3))
    h = numpyro.sample("h", dist.Normal(m, 1.5).expand([len(y)]).to_event(1))
    numpyro.sample("y", dist.Normal(0, jnp.exp(h)[:, None]).expand(y.shape).to_event(2), obs=y)


def smooth_curve(prior_tril: jax.Array, y: jax.Array) -> None:
    """A Gaussian process, not whitened, in noise of unknown scale."""
    f = numpyro.sample("f", dist.MultivariateNormal(jnp.zeros(len(y)), scale_tril=prior_tril))
    sigma = numpyro.sample("sigma", dist.LogNormal(-1, 1))
    numpyro.sample("y", dist.Normal(f, sigma).to_event(1), obs=y)


def make(name: str, num_dims: int, model: Callable, args: tuple, exact: float) -> SizedTarget:
    """A target, its arrays as JAX has them; sizes and scales stay numbers."""
    args = tuple(jnp.asarray(x) if isinstance(x, np.ndarray) else x for x in args)
    return SizedTarget(name, num_dims, model, args, float(exact), 0.0, "set aside")


def log_normals(y: np.ndarray, variance: np.ndarray, prior_scale: float) -> np.ndarray:
    """The log density of y_j ~ N(mu, variance_j) with mu ~ N(0, prior_scale^2), over the last axis."""
    precision = np.sum(1 / variance, axis=-1)
    center = np.sum(y / variance, axis=-1) / precision
    spread = np.sum((y - center[..., None]) ** 2 / variance, axis=-1)
    value = -0.5 * (spread + np.sum(np.log(2 * np.pi * variance), axis=-1))
    value += 0.5 * np.log(2 * np.pi / precision)
    return value + stats.norm.logpdf(center, 0, np.sqrt(prior_scale**2 + 1 / precision))


def kalman(
    num_times: int, transition: np.ndarray, observed: np.ndarray, scale: float, y: np.ndarray
) -> float:
    """The log density of the data of :func:`oscillator`, one after the other."""
    mean, covariance, log_density = np.zeros(2), np.zeros((2, 2)), 0.0
    data = dict(zip(observed.tolist(), y.tolist(), strict=True))
    for time in range(num_times):
        mean, covariance = transition @ mean, transition @ covariance @ transition.T + np.eye(2)
        if time in data:
            variance, error = covariance[0, 0] + scale**2, data[time] - mean[0]
            log_density += stats.norm.logpdf(error, 0, np.sqrt(variance))
            gain = covariance[:, 0] / variance
            mean, covariance = mean + gain * error, covariance - np.outer(gain, covariance[0])
    return log_density


def state_space(_: Path | None = None, *, num_times: int = 250, scale: float = 0.3) -> SizedTarget:
    rng = np.random.default_rng(101)
    cos, sin = np.cos(0.3), np.sin(0.3)
    transition = 0.97 * np.array([[cos, -sin], [sin, cos]])
    gap = range(num_times // 2, num_times // 2 + num_times // 6)
    observed = np.array([time for time in range(num_times) if time not in gap])
    states = [np.zeros(2)]
    for noise in rng.standard_normal((num_times, 2)):
        states.append(transition @ states[-1] + noise)
    y = np.array(states)[1 + observed, 0] + scale * rng.standard_normal(len(observed))
    args = num_times, transition, observed, scale, y
    return make("oscillator, filtered", 2 * num_times, oscillator, args, kalman(*args))


def deconvolution(
    _: Path | None = None, *, num_dims: int = 700, num_rows: int = 500, scale: float = 0.01
) -> SizedTarget:
    """Neighbours are hard to tell apart, and their prior widths differ by three orders of magnitude."""
    rng = np.random.default_rng(102)
    places, centers = np.linspace(0, num_dims, num_dims), np.linspace(0, num_dims, num_rows)
    A = stats.norm.pdf(centers[:, None], places, 2)
    prior_scale = rng.permutation(np.logspace(-2, 1, num_dims))
    y = A @ (prior_scale * rng.standard_normal(num_dims)) + scale * rng.standard_normal(num_rows)
    covariance = scale**2 * np.eye(num_rows) + (A * prior_scale**2) @ A.T
    exact = stats.multivariate_normal(cov=covariance).logpdf(y)
    args = A, prior_scale, scale, y
    return make("blurred signal", num_dims, blurred_signal, args, exact)


def laplace(_: Path | None = None, *, num_dims: int = 3000) -> SizedTarget:
    """The two halves of the prior, each by completing the square."""
    rng = np.random.default_rng(103)
    scale = np.exp(rng.uniform(np.log(0.1), np.log(2), num_dims))
    y = rng.laplace(0, 0.5, num_dims) + scale * rng.standard_normal(num_dims)
    rate = 2.0
    halves = [rate * x + log_ndtr(-rate * scale - x / scale) for x in (y, -y)]
    exact = np.log(rate / 2) + 0.5 * (rate * scale) ** 2 + np.logaddexp(*halves)
    return make("Laplace prior", num_dims, sparse_means, (scale, y), exact.sum())


def g_prior(
    _: Path | None = None, *, num_columns: int = 12, num_rows: int = 30, g: float = 1e4
) -> SizedTarget:
    rng = np.random.default_rng(104)
    common = rng.standard_normal((num_rows, 1))
    X = common + 0.1 * rng.standard_normal((num_rows, num_columns))
    y = X @ rng.standard_normal(num_columns) + 0.5 * rng.standard_normal(num_rows)
    prior_tril = np.linalg.cholesky(g * np.linalg.inv(X.T @ X))
    fitted = X @ np.linalg.lstsq(X, y, rcond=None)[0]
    a, b = 0.3 + num_rows / 2, 0.3 + 0.5 * (y @ y - g / (1 + g) * fitted @ fitted)
    exact = 0.3 * np.log(0.3) - gammaln(0.3) + gammaln(a) - a * np.log(b)
    exact -= 0.5 * (num_rows * np.log(2 * np.pi) + num_columns * np.log1p(g))
    args = X, prior_tril, y
    return make("vague g-prior", num_columns + 1, g_prior_regression, args, exact)


def studies(_: Path | None = None, *, num_studies: int = 40) -> SizedTarget:
    """Effects by closed form given tau, which is left to quadrature over its logarithm."""
    rng = np.random.default_rng(105)
    scale = np.exp(rng.normal(0.5, 0.7, num_studies))
    y = 4 + 0.8 * rng.standard_normal(num_studies) + scale * rng.standard_normal(num_studies)
    log_tau = np.linspace(-30, 20, 4001)
    tau = np.exp(log_tau)
    values = log_normals(y, tau[:, None] ** 2 + scale**2, 10)
    values += stats.halfcauchy.logpdf(tau, scale=5) + log_tau
    exact = log_integral(values, log_tau)
    return make("meta-analysis", num_studies + 2, meta_analysis, (scale, y), exact)


def nested(
    _: Path | None = None, *, num_groups: int = 20, num_cells: int = 5, scale: float = 0.4
) -> SizedTarget:
    """Both scales by quadrature over their logarithms: given them, means of groups are normal."""
    rng = np.random.default_rng(106)
    y = 1.5 + 0.3 * rng.standard_normal((num_groups, 1))
    y = y + 0.8 * rng.standard_normal((num_groups, num_cells))
    y += scale * rng.standard_normal(y.shape)
    nodes = np.linspace(-25, 5, 601)
    tau, means = np.exp(nodes), y.mean(axis=1)
    within, num_free = np.sum((y - means[:, None]) ** 2), num_groups * (num_cells - 1)
    variance = tau**2 + scale**2  # of cells, given their group
    log_within = -0.5 * (num_free * np.log(2 * np.pi * variance) + within / variance)
    log_within -= 0.5 * num_groups * np.log(num_cells)
    of_means = tau[:, None] ** 2 + variance / num_cells
    values = log_normals(means, np.repeat(of_means[..., None], num_groups, axis=-1), 5)
    log_prior = -tau + nodes
    exact = log_integral(values + log_within + log_prior, nodes)
    exact = log_integral(exact + log_prior, nodes)
    num_dims = 3 + num_groups * (num_cells + 1)
    return make("nested groups, centred", num_dims, nested_groups, (scale, y), exact)


def rates(_: Path | None = None, *, num_units: int = 150) -> SizedTarget:
    """Counts are negative binomial given the two hyperparameters, whose logarithms have a grid."""
    rng = np.random.default_rng(107)
    t = np.exp(rng.normal(0, 1, num_units))
    y = rng.poisson(t * rng.gamma(0.7, 2, num_units)).astype(float)
    nodes = np.linspace(-30, 7, 1201)
    a, b = np.exp(nodes)[:, None], np.exp(nodes)
    log_total = np.log(b[:, None] + t)
    values = np.sum(gammaln(a + y) - gammaln(a), axis=1)[:, None] + num_units * a * nodes
    values -= log_total @ y + a * log_total.sum(axis=1)
    values += np.sum(y * np.log(t) - gammaln(y + 1))
    values += stats.gamma.logpdf(a, 5, scale=1 / 5) + nodes[:, None]
    values += stats.gamma.logpdf(b, 2) + nodes
    exact = log_integral(log_integral(values, nodes), nodes)
    return make("Gamma rates", num_units + 2, gamma_rates, (t, y), exact)


def bounds(
    _: Path | None = None,
    *,
    num_states: int = 8,
    num_times: int = 120,
    num_others: int = 10,
    seed: int = 108,
) -> SizedTarget:
    rng = np.random.default_rng(seed)
    rows, path = rng.dirichlet(np.full(num_states, 0.6), num_states), [0]
    for _time in range(num_times):
        path.append(int(rng.choice(num_states, p=rows[path[-1]])))
    moves = np.zeros((num_states, num_states))
    np.add.at(moves, (path[:-1], path[1:]), 1)
    y = rng.uniform(-2.5, 10.5, num_others)  # some are out of bounds
    trials = rng.integers(1, 60, num_others).astype(float)
    successes = rng.binomial(trials.astype(int), rng.beta(0.7, 0.7, num_others)).astype(float)
    exact = np.sum(gammaln(moves + 0.6) - gammaln(0.6))
    exact += np.sum(gammaln(0.6 * num_states) - gammaln(0.6 * num_states + moves.sum(axis=1)))
    exact += np.sum(np.log((stats.norm.cdf((9 - y) / 0.7) - stats.norm.cdf((-1 - y) / 0.7)) / 10))
    exact += np.sum(betaln(successes + 0.7, trials - successes + 0.7) - betaln(0.7, 0.7))
    exact += np.sum(-np.log1p(trials) - betaln(successes + 1, trials - successes + 1))
    num_dims = num_states * (num_states - 1) + 2 * num_others
    args = num_states, np.array(path), y, trials, successes
    return make("bounded supports", num_dims, bounded, args, exact)


def factor(_: Path | None = None, *, num_rows: int = 25, scale: float = 0.5) -> SizedTarget:
    """Rows are normal given w, with a covariance of rank one and a diagonal; w has a grid."""
    rng = np.random.default_rng(109)
    f = rng.standard_normal((num_rows, 1))
    y = 1.3 * f * LOADINGS + scale * rng.standard_normal((num_rows, len(LOADINGS)))
    w = np.linspace(-25, 25, 4001)
    square, errors = LOADINGS @ LOADINGS, y - 0.1 * w[:, None, None] * LOADINGS
    variance = scale**2 + w**2 * square  # along the loadings
    values = -0.5 * num_rows * (np.log(variance) + (len(LOADINGS) - 1) * np.log(scale**2))
    values -= 0.5 * y.size * np.log(2 * np.pi)
    along = np.sum((errors @ LOADINGS) ** 2, axis=1) / square
    values -= 0.5 * (along / variance + (np.sum(errors**2, axis=(1, 2)) - along) / scale**2)
    exact = log_integral(values + stats.norm.logpdf(w, 0.3, 2), w)
    return make("one factor, two modes", num_rows + 1, one_factor, (scale, y), exact)


def ranges(_: Path | None = None) -> SizedTarget:
    distances = np.array([4.9, 3.9])
    nodes = np.linspace(-12, 12, 801)
    x = np.stack(np.meshgrid(nodes, nodes, indexing="ij"), axis=-1)
    values = stats.norm.logpdf(x, [0.5, 0.8], 3).sum(axis=-1)
    for sensor, distance in zip(SENSORS, distances, strict=True):
        values += stats.norm.logpdf(distance, np.linalg.norm(x - sensor, axis=-1), 0.3)
    exact = log_integral(log_integral(values, nodes), nodes)
    return make("two ranges, two modes", 2, two_ranges, (distances,), exact)


def horseshoe(_: Path | None = None, *, num_means: int = 40) -> SizedTarget:
    """Local scales by quadrature given the global one, which has a grid, too; both in logarithms."""
    rng = np.random.default_rng(111)
    y = rng.standard_normal(num_means)
    y[: num_means // 8] += 4 * rng.standard_normal(num_means // 8)
    log_tau, log_local = np.linspace(-30, 30, 401), np.linspace(-30, 30, 401)[:, None]
    log_prior = stats.halfcauchy.logpdf(np.exp(log_local)) + log_local
    values = stats.halfcauchy.logpdf(np.exp(log_tau), scale=0.5) + log_tau
    scale = np.sqrt(1 + np.exp(2 * (log_tau + log_local)))
    for value in y:
        log_joint = log_prior + stats.norm.logpdf(value, 0, scale)
        values += log_integral(log_joint.T, log_local[:, 0])
    exact = log_integral(values, log_tau)
    return make("horseshoe", 2 * num_means + 1, horseshoe_means, (y,), exact)


def heavy(_: Path | None = None, *, num_dims: int = 1000, seed: int = 112) -> SizedTarget:
    """A Voigt profile, an exponentially modified normal, and quadrature over the log rate."""
    rng = np.random.default_rng(seed)
    sizes = [len(part) for part in np.array_split(np.arange(num_dims), 3)]
    places = rng.standard_cauchy(sizes[0]) + rng.standard_normal(sizes[0])
    delays = rng.exponential(1, sizes[1]) + 0.5 * rng.standard_normal(sizes[1])
    counts = rng.poisson(np.exp(rng.normal(0.5, 1.2, sizes[2]))).astype(float)
    exact = np.log(voigt_profile(places, 1, 1)).sum()
    exact += np.sum(0.125 - delays + log_ndtr(2 * delays - 0.5))
    nodes = np.linspace(-15, 15, 2001)
    values = stats.norm.logpdf(nodes, 0.5, 1.2)
    values = values + stats.poisson.logpmf(counts[:, None], np.exp(nodes))
    exact += log_integral(values, nodes).sum()
    return make("heavy tails and bounds", num_dims, heavy_product, (places, delays, counts), exact)


def instruments(_: Path | None = None, *, num_rows: int = 30, num_repeats: int = 4) -> SizedTarget:
    """Given m, rows are independent integrals over h; m has a grid, too."""
    rng = np.random.default_rng(113)
    h = 0.5 + 1.5 * rng.standard_normal((num_rows, 1))
    y = np.exp(h) * rng.standard_normal((num_rows, num_repeats))
    m, h = np.linspace(-25, 25, 301), np.linspace(-30, 30, 1001)
    log_prior = stats.norm.logpdf(h, m[:, None], 1.5)
    values = stats.norm.logpdf(m, 0, 3)
    for row in y:
        log_likelihood = stats.norm.logpdf(row[:, None], 0, np.exp(h)).sum(axis=0)
        values += log_integral(log_prior + log_likelihood, h)
    return make("log scales", num_rows + 1, log_scales, (y,), log_integral(values, m))


def process(_: Path | None = None, *, num_places: int = 200) -> SizedTarget:
    """The curve in the eigenbasis of its covariance; sigma by quadrature over its logarithm."""
    rng = np.random.default_rng(114)
    places = np.sort(rng.uniform(0, 1, num_places))
    distances = np.sqrt(3) / 0.3 * np.abs(places[:, None] - places)
    covariance = 4 * (1 + distances) * np.exp(-distances) + 1e-4 * np.eye(num_places)
    prior_tril = np.linalg.cholesky(covariance)
    y = prior_tril @ rng.standard_normal(num_places) + 0.2 * rng.standard_normal(num_places)
    eigenvalues, vectors = np.linalg.eigh(covariance)
    log_sigma = np.linspace(-12, 10, 2001)
    variance = eigenvalues + np.exp(2 * log_sigma)[:, None]
    values = stats.norm.logpdf(vectors.T @ y, 0, np.sqrt(variance)).sum(axis=1)
    exact = log_integral(values + stats.norm.logpdf(log_sigma, -1, 1), log_sigma)
    return make("Gaussian process", num_places + 1, smooth_curve, (prior_tril, y), exact)


# By name: the target; the directory of data files, that those of ``dimension.py`` are given, is of no use to them.
TARGETS: dict[str, Callable[..., SizedTarget]] = {
    "ranges": ranges,
    "g_prior": g_prior,
    "factor": factor,
    "instruments": instruments,
    "studies": studies,
    "bounds": bounds,
    "horseshoe": horseshoe,
    "nested": nested,
    "rates": rates,
    "process": process,
    "state_space": state_space,
    "deconvolution": deconvolution,
    "heavy": heavy,
    "laplace": laplace,
}
