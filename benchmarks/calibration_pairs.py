# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Pairs of models for ``calibration.py``, with draws of data from each and exact log evidences, by NumPy in float64. Data of a
pair always have the same shape, so that programs are compiled once, and are few, so that neither model is certain.
"""

from collections.abc import Callable
from typing import NamedTuple

from dimension_targets import log_integral
import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

import numpyro
import numpyro.distributions as dist

# A fixed design: 12 rows, two covariates that are not quite orthogonal.
COVARIATES = np.stack([np.linspace(-1, 1, 12), np.cos(np.linspace(0, 5, 12))], axis=1)
REGRESSION_SCALES = np.array([1.5, 1.0, 0.8])  # of intercept and coefficients, in the prior
NUM_GROUPS, NUM_IN_GROUP = 6, 3
MEAN_SCALE, TAU_SCALE = 2.0, 1.0
NUM_POINTS, CENTER_SCALE = 12, 1.5
TAU_NODES = np.linspace(-16, 4, 801)  # log tau
CENTER_NODES = np.linspace(-9, 9, 361)


class Pair(NamedTuple):
    """
    Two models of the same data, of equal prior probability.

    :param models: the NumPyro models, called with the data.
    :param simulate_fns: data from each model, parameters drawn from its prior.
    :param exact_fns: the log evidence of the data under each.
    """

    title: str
    models: tuple[Callable, Callable]
    simulate_fns: tuple[Callable[[np.random.Generator], np.ndarray], ...]
    exact_fns: tuple[Callable[[np.ndarray], float], ...]


def regression(X: np.ndarray, y: jax.Array) -> None:
    """Known noise, of standard deviation one."""
    scales = REGRESSION_SCALES[: X.shape[1]]
    w = numpyro.sample("w", dist.Normal(0, scales).to_event(1))
    numpyro.sample("y", dist.Normal(X @ w, 1).to_event(1), obs=y)


def one_covariate(y: jax.Array) -> None:
    regression(design(1), y)


def two_covariates(y: jax.Array) -> None:
    regression(design(2), y)


def design(num_covariates: int) -> np.ndarray:
    return np.column_stack([np.ones(len(COVARIATES)), COVARIATES[:, :num_covariates]])


def simulate_regression(num_covariates: int) -> Callable:
    def simulate(rng):
        X = design(num_covariates)
        w = REGRESSION_SCALES[: X.shape[1]] * rng.standard_normal(X.shape[1])
        return X @ w + rng.standard_normal(len(X))

    return simulate


def exact_regression(num_covariates: int) -> Callable:
    def exact(y):
        X = design(num_covariates) * REGRESSION_SCALES[: num_covariates + 1]
        return float(stats.multivariate_normal(cov=np.eye(len(X)) + X @ X.T).logpdf(y))

    return exact


def pooled(y: jax.Array) -> None:
    """All groups have one mean."""
    mu = numpyro.sample("mu", dist.Normal(0, MEAN_SCALE))
    numpyro.sample("y", dist.Normal(mu, 1).expand(y.shape).to_event(2), obs=y)


def hierarchical(y: jax.Array) -> None:
    """Each group has its own, around a common one."""
    mu = numpyro.sample("mu", dist.Normal(0, MEAN_SCALE))
    tau = numpyro.sample("tau", dist.HalfNormal(TAU_SCALE))
    with numpyro.plate("groups", y.shape[0]):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(theta[:, None], 1).expand(y.shape).to_event(1), obs=y)


def simulate_groups(is_hierarchical: bool) -> Callable:
    def simulate(rng):
        mu, tau = MEAN_SCALE * rng.standard_normal(), TAU_SCALE * abs(rng.standard_normal())
        theta = mu + is_hierarchical * tau * rng.standard_normal((NUM_GROUPS, 1))
        return theta + rng.standard_normal((NUM_GROUPS, NUM_IN_GROUP))

    return simulate


def log_groups(y: np.ndarray, tau: np.ndarray) -> np.ndarray:
    """The log density of the groups for each tau, by that of deviations within groups, of their means, and of the mean of these."""
    means, (num_groups, num_in_group) = y.mean(axis=1), y.shape
    num_within = num_groups * (num_in_group - 1)
    value = -0.5 * (num_within * np.log(2 * np.pi) + np.sum((y - means[:, None]) ** 2))
    value -= 0.5 * num_groups * np.log(num_in_group)
    variance = tau**2 + 1 / num_in_group
    spread = np.sum((means - means.mean()) ** 2)
    value = value - 0.5 * ((num_groups - 1) * np.log(2 * np.pi * variance) + spread / variance)
    value -= 0.5 * np.log(num_groups)
    scale = np.sqrt(MEAN_SCALE**2 + variance / num_groups)
    return value + stats.norm.logpdf(means.mean(), 0, scale)


def exact_hierarchical(y: np.ndarray) -> float:
    """Means by closed form given tau, which is left to quadrature over its logarithm."""
    tau = np.exp(TAU_NODES)
    log_prior = stats.halfnorm.logpdf(tau, scale=TAU_SCALE) + TAU_NODES
    return float(log_integral(log_groups(y, tau) + log_prior, TAU_NODES))


def one_component(y: jax.Array) -> None:
    m = numpyro.sample("m", dist.Normal(0, CENTER_SCALE))
    numpyro.sample("y", dist.Normal(m, 1).expand(y.shape).to_event(1), obs=y)


def two_components(y: jax.Array) -> None:
    """Equal shares and free labels: two modes, or one."""
    m = numpyro.sample("m", dist.Normal(0, CENTER_SCALE).expand([2]).to_event(1))
    mixing = dist.Categorical(jnp.array([0.5, 0.5]))
    parts = dist.MixtureSameFamily(mixing, dist.Normal(m, 1))
    numpyro.sample("y", parts.expand(y.shape).to_event(1), obs=y)


def simulate_components(num_components: int) -> Callable:
    def simulate(rng):
        m = CENTER_SCALE * rng.standard_normal(num_components)
        return m[rng.integers(num_components, size=NUM_POINTS)] + rng.standard_normal(NUM_POINTS)

    return simulate


def exact_one_component(y: np.ndarray) -> float:
    covariance = np.eye(len(y)) + CENTER_SCALE**2
    return float(stats.multivariate_normal(cov=covariance).logpdf(y))


def exact_two_components(y: np.ndarray) -> float:
    """Both centers by quadrature."""
    log_prior = stats.norm.logpdf(CENTER_NODES, 0, CENTER_SCALE)
    values = log_prior[:, None] + log_prior
    for value in y:
        density = 0.5 * stats.norm.pdf(value, CENTER_NODES)
        values += np.log(density[:, None] + density)
    return float(log_integral(log_integral(values, CENTER_NODES), CENTER_NODES))


PAIRS = {
    "regressions": Pair(
        "one covariate or two",
        (one_covariate, two_covariates),
        (simulate_regression(1), simulate_regression(2)),
        (exact_regression(1), exact_regression(2)),
    ),
    "groups": Pair(
        "pooled or hierarchical",
        (pooled, hierarchical),
        (simulate_groups(False), simulate_groups(True)),
        (lambda y: float(log_groups(y, np.zeros(()))), exact_hierarchical),
    ),
    "components": Pair(
        "one component or two",
        (one_component, two_components),
        (simulate_components(1), simulate_components(2)),
        (exact_one_component, exact_two_components),
    ),
}


def draw_data(name: str, index: int) -> tuple[int, np.ndarray]:
    """Returns the model that a data set comes from, 0 or 1 with equal probability, and the data."""
    rng = np.random.default_rng([list(PAIRS).index(name), index])
    which = int(rng.integers(2))
    return which, PAIRS[name].simulate_fns[which](rng)
