# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Log evidences of ``set_aside.py`` by two other ways: at full size from the data, in other variables or another form, and
at small sizes from the models, as the mean likelihood of draws of the prior.
"""

from functools import partial
from itertools import pairwise

from dimension_targets import SizedTarget
import jax
from jax import random
import numpy as np
import pytest
from scipy import stats
from scipy.special import logsumexp
import set_aside

from numpyro import handlers

from numpyro_dais.model.target import make_target


def data(target: SizedTarget) -> list:
    return [np.asarray(x) if isinstance(x, jax.Array) else x for x in target.args]


def gauss(low, high, num_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and log weights of the Gauss-Legendre rule, for each of the intervals."""
    nodes, weights = np.polynomial.legendre.leggauss(num_nodes)
    low, high = np.asarray(low, float)[..., None], np.asarray(high, float)[..., None]
    half = (high - low) / 2
    return low + half * (1 + nodes), np.log(weights) + np.log(half)


def log_mvn(errors: np.ndarray, covariances: np.ndarray) -> np.ndarray:
    """Log densities of the rows of errors under each of the covariances, summed over the rows."""
    solved = np.linalg.solve(covariances, errors.T)
    squares = np.sum(errors.T * solved, axis=(-2, -1))
    num_rows, size = errors.shape
    log_det = np.linalg.slogdet(covariances)[1] + size * np.log(2 * np.pi)
    return -0.5 * (squares + num_rows * log_det)


def ranges(target: SizedTarget) -> float:
    """Polar coordinates around the first sensor."""
    (distances,) = data(target)
    (r, log_weights), angles = gauss(0, 14, 300), np.linspace(0, 2 * np.pi, 2000, endpoint=False)
    r, angles = r[:, None], angles[None]
    first, second = -2 + r * np.cos(angles), r * np.sin(angles)
    values = stats.norm.logpdf(first, 0.5, 3) + stats.norm.logpdf(second, 0.8, 3)
    values += stats.norm.logpdf(distances[0], r, 0.3)
    values += stats.norm.logpdf(distances[1], np.hypot(first - 3, second), 0.3)
    return logsumexp(values + np.log(r) + log_weights[:, None]) + np.log(2 * np.pi / 2000)


def g_prior(target: SizedTarget) -> float:
    """A multivariate t density of the data."""
    X, prior_tril, y = data(target)
    shape = np.eye(len(y)) + X @ prior_tril @ prior_tril.T @ X.T
    return stats.multivariate_t(shape=shape, df=0.6).logpdf(y)


def factor(target: SizedTarget) -> float:
    """Dense covariances of the rows."""
    scale, y = data(target)
    a, total = np.array([1.0, -0.5, 2.0]), []
    w, log_weights = gauss(-14, 14, 600)
    for value in w:
        rows = stats.multivariate_normal(
            0.1 * value * a, scale**2 * np.eye(3) + np.outer(value * a, value * a)
        )
        total.append(rows.logpdf(y).sum() + stats.norm.logpdf(value, 0.3, 2))
    return logsumexp(np.array(total) + log_weights)


def instruments(target: SizedTarget) -> float:
    """Over the probabilities of m and, given it, of h."""
    (y,) = data(target)
    u, log_weights = gauss(0, 1, 300)
    m = 3 * stats.norm.ppf(u)
    h = m[:, None] + 1.5 * stats.norm.ppf(u)
    total = log_weights.copy()
    for row in y:
        log_likelihood = -len(row) * (h + 0.5 * np.log(2 * np.pi))
        log_likelihood -= 0.5 * np.sum(row**2) * np.exp(-2 * h)
        total += logsumexp(log_likelihood + log_weights, axis=1)
    return logsumexp(total)


def studies(target: SizedTarget) -> float:
    """Over mu, too, and over the angle whose tangent is tau."""
    scale, y = data(target)
    u, log_weights = gauss(0, 1, 300)
    mu, log_mu_weights = gauss(-10, 20, 400)
    spread = np.hypot(5 * np.tan(np.pi / 2 * u)[:, None], scale)[:, None]
    values = stats.norm.logpdf(y, mu[:, None], spread).sum(axis=-1)
    values += stats.norm.logpdf(mu, 0, 10) + log_mu_weights + log_weights[:, None]
    return logsumexp(values)


def bounds(target: SizedTarget) -> float:
    """One move after the other, as from an urn."""
    num_states, path, y, trials, successes = data(target)
    urns, total = np.full((num_states, num_states), 0.6), 0.0
    for before, after in pairwise(path):
        total += np.log(urns[before, after] / urns[before].sum())
        urns[before, after] += 1
    x, log_weights = gauss(-1, 9, 200)
    values = stats.norm.logpdf(y[:, None], x, 0.7) + np.log(0.1)
    total += logsumexp(values + log_weights, axis=1).sum()
    return total + stats.betabinom.logpmf(successes, trials, 0.7, 0.7).sum()


def horseshoe(target: SizedTarget) -> float:
    """Over the angles whose tangents are the scales."""
    (y,) = data(target)
    u, log_weights = gauss(0, 1, 400)
    tangent = np.tan(np.pi / 2 * u)
    scale = np.hypot(1, 0.5 * tangent[:, None] * tangent)
    total = log_weights.copy()
    for value in y:
        total += logsumexp(stats.norm.logpdf(value, 0, scale) + log_weights, axis=1)
    return logsumexp(total)


def nested(target: SizedTarget) -> float:
    """Dense covariances of all cells; over the scales themselves."""
    scale, y = data(target)
    num_groups, num_cells = y.shape
    blocks = np.kron(np.eye(num_groups), np.ones((num_cells, num_cells)))
    tau_group, log_group_weights = gauss(0, 3, 30)
    tau_cell, log_cell_weights = gauss(0.2, 2.5, 40)
    total = []
    for group, log_weight in zip(tau_group, log_group_weights, strict=True):
        diagonal = (tau_cell**2 + scale**2)[:, None, None] * np.eye(y.size)
        values = log_mvn(y.reshape(1, -1), 25 + group**2 * blocks + diagonal)
        total.append(logsumexp(values - tau_cell + log_cell_weights) - group + log_weight)
    return logsumexp(total)


def rates(target: SizedTarget) -> float:
    """Over the probabilities of the hyperparameters."""
    exposure, counts = data(target)
    u, log_weights = gauss(0, 1, 100)
    shape = stats.gamma.ppf(u, 5, scale=1 / 5)[:, None, None]
    inverse_scale = stats.gamma.ppf(u, 2)[:, None]
    values = stats.nbinom.logpmf(counts, shape, inverse_scale / (inverse_scale + exposure))
    return logsumexp(values.sum(axis=-1) + log_weights + log_weights[:, None])


def process(target: SizedTarget) -> float:
    """Dense covariances of the data; over sigma itself."""
    prior_tril, y = data(target)
    sigma, log_weights = gauss(0.1, 0.5, 80)
    noise = (sigma**2)[:, None, None] * np.eye(len(y))
    values = log_mvn(y[None], prior_tril @ prior_tril.T + noise)
    return logsumexp(values + stats.lognorm.logpdf(sigma, 1, scale=np.exp(-1)) + log_weights)


def state_space(target: SizedTarget) -> float:
    """The dense covariance of the data, from responses to a single shock."""
    num_times, transition, observed, scale, y = data(target)
    powers = np.array([np.linalg.matrix_power(transition, lag)[0] for lag in range(num_times)])
    lags = np.arange(num_times)[:, None] - np.arange(num_times)
    responses = np.where(lags[..., None] >= 0, powers[np.maximum(lags, 0)], 0)
    responses = responses[observed].reshape(len(observed), -1)
    covariance = responses @ responses.T + scale**2 * np.eye(len(y))
    return log_mvn(y[None], covariance)


def deconvolution(target: SizedTarget) -> float:
    """Bayes' rule at the posterior mean: prior times likelihood over posterior."""
    A, prior_scale, scale, y = data(target)
    precision = A.T @ A / scale**2 + np.diag(prior_scale**-2.0)
    mean = np.linalg.solve(precision, A.T @ y) / scale**2
    value = stats.norm.logpdf(mean, 0, prior_scale).sum()
    value += stats.norm.logpdf(y, A @ mean, scale).sum()
    log_det = np.linalg.slogdet(precision)[1]
    return value - 0.5 * (log_det - len(mean) * np.log(2 * np.pi))


def heavy(target: SizedTarget) -> float:
    """Integrals over each of the latents, around where the data put it."""
    places, delays, counts = data(target)
    x, log_weights = gauss(places - 12, places + 12, 300)
    values = stats.cauchy.logpdf(x) + stats.norm.logpdf(places[:, None], x)
    total = logsumexp(values + log_weights, axis=1).sum()
    t, log_weights = gauss(0 * delays, np.maximum(delays, 0) + 6, 200)
    values = stats.norm.logpdf(delays[:, None], t, 0.5) - t
    total += logsumexp(values + log_weights, axis=1).sum()
    root, log_weights = gauss(0, 30, 600)
    values = stats.lognorm.logpdf(root**2, 1.2, scale=np.exp(0.5)) + np.log(2 * root)
    values = values + stats.poisson.logpmf(counts[:, None], root**2)
    return total + logsumexp(values + log_weights, axis=1).sum()


def laplace(target: SizedTarget) -> float:
    """Integrals over each of the latents, below and above zero."""
    scale, y = data(target)
    halves = []
    for sign in (-1, 1):
        x, log_weights = gauss(0 * y, np.maximum(sign * y, 0) + 10 * scale, 150)
        values = -x / 0.5 + stats.norm.logpdf(sign * y[:, None], x, scale[:, None])
        halves.append(logsumexp(values + log_weights, axis=1))
    return np.sum(np.logaddexp(*halves))


SECOND_WAYS = {
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
NUM_DRAWS = 40_000
MORE_DRAWS = {"process": 160_000}
# Sizes at which draws of the prior suffice.
SMALL = {
    "ranges": set_aside.ranges,
    "g_prior": partial(set_aside.g_prior, num_columns=2, num_rows=4, g=9.0),
    "factor": partial(set_aside.factor, num_rows=2, scale=1.5),
    "instruments": partial(set_aside.instruments, num_rows=2, num_repeats=3),
    "studies": partial(set_aside.studies, num_studies=2),
    "bounds": partial(set_aside.bounds, num_states=2, num_times=4, num_others=1, seed=11),
    "horseshoe": partial(set_aside.horseshoe, num_means=2),
    "nested": partial(set_aside.nested, num_groups=2, num_cells=2, scale=1.5),
    "rates": partial(set_aside.rates, num_units=2),
    "process": partial(set_aside.process, num_places=2),
    "state_space": partial(set_aside.state_space, num_times=6, scale=2.0),
    "deconvolution": partial(set_aside.deconvolution, num_dims=5, num_rows=3, scale=1.0),
    "heavy": partial(set_aside.heavy, num_dims=3, seed=5),
    "laplace": partial(set_aside.laplace, num_dims=2),
}


def test_every_target_has_both_ways():
    assert list(SECOND_WAYS) == list(SMALL) == list(set_aside.TARGETS)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", SECOND_WAYS)
def test_second_way(name):
    target = set_aside.TARGETS[name]()
    draw = jax.eval_shape(make_target(target.target.problem).sample_fn, random.key(0))
    assert draw.shape == (target.num_dims,)
    assert SECOND_WAYS[name](target) == pytest.approx(target.log_evidence, rel=0, abs=1e-6)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", SMALL)
def test_mean_likelihood_of_prior_draws(name):
    target = SMALL[name]()

    def log_likelihood(rng_key):
        trace = handlers.trace(handlers.seed(target.model, rng_key)).get_trace(*target.args)
        sites = [site for site in trace.values() if site["type"] == "sample"]
        return sum(s["fn"].log_prob(s["value"]).sum() for s in sites if s["is_observed"])

    keys = random.split(random.key(1), MORE_DRAWS.get(name, NUM_DRAWS))
    log_weights = jax.jit(jax.vmap(log_likelihood))(keys)
    weights = np.exp(np.asarray(log_weights) - target.log_evidence)
    error = weights.std(ddof=1) / np.sqrt(weights.size)
    assert error < 0.04
    assert abs(weights.mean() - 1) < 4 * error
