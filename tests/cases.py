# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Models that several test files share, with the facts about them that are known exactly."""

from collections.abc import Callable
from typing import NamedTuple

from jax import random
import jax.numpy as jnp
import numpy as np
from scipy import integrate, special, stats

import numpyro
from numpyro import handlers
from numpyro.contrib.control_flow import scan
import numpyro.distributions as dist
from numpyro.infer.reparam import LocScaleReparam, TransformReparam

from numpyro_dais.linear_regression import LinearRegression

PRIOR_MEAN = jnp.array([0.5, -1.0, 0.25])
PRIOR_PRECISION = jnp.array([1.0, 2.0, 0.5])


def regression(X, y, noise_scale=0.8, prior_scale=1.0):
    """The model of the fixture ``regression``."""
    w = numpyro.sample(
        "w", dist.Normal(PRIOR_MEAN, prior_scale / jnp.sqrt(PRIOR_PRECISION)).to_event(1)
    )
    numpyro.sample("y", dist.Normal(X @ w, noise_scale), obs=y)


def paper_data():
    """The data of the paper's regression: 10,000 rows and 10 columns, and responses of pure noise."""
    rng = np.random.default_rng(0)
    return 0.1 * rng.standard_normal((10_000, 10)), rng.standard_normal(10_000)


def paper_model(X, y):
    """The paper's regression."""
    w = numpyro.sample("w", dist.Normal(jnp.zeros(X.shape[1]), 1).to_event(1))
    numpyro.sample("y", dist.Normal(X @ w, 1), obs=y)


def paper_regression():
    """The closed form of :func:`paper_model`."""
    return LinearRegression(*paper_data())


def beta_binomial(total_count=20, successes=15.0):
    """One probability, and no plate."""
    p = numpyro.sample("p", dist.Beta(2.0, 3.0))
    numpyro.sample("y", dist.Binomial(total_count, p), obs=successes)


# Five groups with skewed posteriors: their sizes and successes.
GROUPS = (jnp.array([20.0, 50.0, 100.0, 10.0, 200.0]), jnp.array([3.0, 40.0, 51.0, 0.0, 199.0]))


def grouped_beta_binomial(counts, successes):
    """One probability for each group."""
    with numpyro.plate("groups", len(counts)):
        p = numpyro.sample("p", dist.Beta(2.0, 3.0))
        numpyro.sample("y", dist.Binomial(counts, p), obs=successes)


def grouped_beta_binomial_log_evidence(counts, successes):
    n, k = np.asarray(counts, float), np.asarray(successes, float)
    return stats.betabinom.logpmf(k, n, 2.0, 3.0).sum()


def normal_means(y):
    """Local latents in a plate; y_i is marginally N(1, 1.5^2 + 0.5^2)."""
    with numpyro.plate("data", len(y)):
        x = numpyro.sample("x", dist.Normal(1.0, 1.5))
        numpyro.deterministic("twice", 2 * x)
        numpyro.sample("y", dist.Normal(x, 0.5), obs=y)


COUNTS = jnp.array([2.0, 0.0, 1.0])
GAMMA = (3.0, 2.0)


def gamma_poisson(counts=COUNTS):
    """A skewed posterior, without a plate: rate ~ Gamma(3 + sum(counts), 2 + n)."""
    rate = numpyro.sample("rate", dist.Gamma(*GAMMA))
    numpyro.sample("y", dist.Poisson(rate).expand(counts.shape).to_event(1), obs=counts)


def gamma_poisson_log_evidence(counts=COUNTS):
    counts = np.asarray(counts, float)
    (a, b), gammaln = GAMMA, special.gammaln
    shape, rate = a + counts.sum(), b + len(counts)  # of the posterior
    log_ratio = gammaln(shape) - shape * np.log(rate) - gammaln(a) + a * np.log(b)
    return float(log_ratio - gammaln(counts + 1).sum())


TIMES = jnp.array([2.0, 0.1, 1.0, 1.4, 0.3, 0.7, 3.0])
# Of the posterior of the rate, a Gamma: its shape and its rate.
TIMES_POSTERIOR = (len(TIMES) + 1, 0.5 + float(TIMES.sum()))


def waiting_times(times, batch_size=3):
    """A skewed posterior with a closed form, in mini-batches that do not divide the data."""
    rate = numpyro.sample("rate", dist.Exponential(0.5))
    numpyro.deterministic("twice", 2 * rate)
    with numpyro.plate("rows", len(times), subsample_size=batch_size):
        batch = numpyro.subsample(times, event_dim=0)
        numpyro.deterministic("residual", batch - rate)
        numpyro.sample("y", dist.Exponential(rate), obs=batch)


def waiting_times_log_evidence():
    shape, rate = TIMES_POSTERIOR
    return np.log(0.5) + special.gammaln(shape) - shape * np.log(rate)


class Case(NamedTuple):
    """
    A model with its exact log evidence, and settings at which weights are neither equal nor wild.

    :param model: a function of ``args``.
    :param args: its data.
    :param exact: the log evidence of the same data, by other means.
    :param step_size: found by hand, for ``num_steps`` steps.
    """

    model: Callable
    args: tuple
    exact: Callable[..., float]
    step_size: float
    num_steps: int = 16
    params: dict | None = None


def log_integral(log_integrand: Callable, low: float, high: float, num_nodes: int = 4001) -> float:
    """The log of an integral by Simpson's rule on a fine grid."""
    nodes = np.linspace(low, high, num_nodes)
    values = log_integrand(nodes)
    return float(np.log(integrate.simpson(np.exp(values - values.max()), x=nodes)) + values.max())


ALPHA = np.array([1.5, 2.5, 4.0])


def dirichlet_multinomial(y):
    p = numpyro.sample("p", dist.Dirichlet(jnp.array(ALPHA)))
    numpyro.sample("y", dist.Multinomial(total_count=7, probs=p), obs=y)


def dirichlet_multinomial_log_evidence(y):
    return stats.dirichlet_multinomial.logpmf(np.asarray(y, int), ALPHA, 7)


def dirichlet_categorical(y):
    p = numpyro.sample("p", dist.Dirichlet(jnp.array(ALPHA)))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.Categorical(p), obs=y)


def dirichlet_categorical_log_evidence(y):
    counts = np.bincount(np.asarray(y), minlength=3)
    log_beta = lambda a: special.gammaln(a).sum() - special.gammaln(a.sum())  # noqa: E731
    return log_beta(ALPHA + counts) - log_beta(ALPHA)


def regression_of_unknown_noise(X, y):
    """A conjugate regression, whose evidence is a Student t density."""
    variance = numpyro.sample("variance", dist.InverseGamma(5.0, 4.0))
    sigma = numpyro.deterministic("sigma", jnp.sqrt(variance))
    w = numpyro.sample("w", dist.Normal(0.0, sigma * jnp.array([0.6, 0.4])).to_event(1))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.Normal(X @ w, sigma), obs=y)


def regression_of_unknown_noise_log_evidence(X, y):
    X = np.asarray(X, float)
    shape = np.eye(len(y)) + X @ np.diag([0.36, 0.16]) @ X.T
    return stats.multivariate_t.logpdf(np.asarray(y), shape=4.0 / 5.0 * shape, df=10.0)


NOISE = np.array([1.1, 0.9, 1.6, 1.3])


def hierarchy(y):
    mu = numpyro.sample("mu", dist.Normal(1.0, 0.9))
    with numpyro.plate("groups", 4):
        theta = numpyro.sample("theta", dist.Normal(mu, 0.8))
        numpyro.sample("y", dist.Normal(theta, jnp.array(NOISE)), obs=y)


def hierarchy_log_evidence(y):
    cov = 0.81 * np.ones((4, 4)) + 0.64 * np.eye(4) + np.diag(NOISE**2)
    return stats.multivariate_normal.logpdf(np.asarray(y), np.full(4, 1.0), cov)


def local_level(y):
    def step(x, y_t):
        x = numpyro.sample("x", dist.Normal(0.9 * x, 0.5))
        numpyro.sample("y", dist.Normal(x, 1.1), obs=y_t)
        return x, None

    scan(step, numpyro.sample("x0", dist.Normal(0.5, 1.0)), y)


def local_level_log_evidence(y):
    """The Kalman filter."""
    mean, variance, log_evidence = 0.5, 1.0, 0.0
    for value in np.asarray(y, float):
        mean, variance = 0.9 * mean, 0.81 * variance + 0.25
        total = variance + 1.21
        log_evidence += stats.norm.logpdf(value, mean, np.sqrt(total))
        gain = variance / total
        mean, variance = mean + gain * (value - mean), (1 - gain) * variance
    return log_evidence


def scan_positive(y):
    """A constrained site inside `scan`, whose Jacobian is recorded step by step."""

    def step(carry, y_t):
        rate = numpyro.sample("rate", dist.Gamma(2.0, 1.5))
        numpyro.sample("y", dist.Poisson(rate), obs=y_t)
        return carry, None

    scan(step, 0.0, y)


def scan_positive_log_evidence(y):
    return stats.nbinom.logpmf(np.asarray(y), 2.0, 1.5 / 2.5).sum()


def mixture(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.5))
    with numpyro.plate("data", len(y)):
        z = numpyro.sample(
            "z", dist.Categorical(jnp.array([0.3, 0.7])), infer={"enumerate": "parallel"}
        )
        numpyro.sample("y", dist.Normal(jnp.where(z == 1, mu, -1.0), 1.2), obs=y)


def mixture_log_evidence(y):
    y = np.asarray(y, float)[:, None]

    def log_joint(mu):
        parts = 0.3 * stats.norm.pdf(y, -1.0, 1.2) + 0.7 * stats.norm.pdf(y, mu, 1.2)
        return stats.norm.logpdf(mu, 0.0, 1.5) + np.log(parts).sum(0)

    return log_integral(log_joint, -12.0, 12.0)


def mixture_with_constraint(y):
    """A discrete site outside plates, and a continuous one with a Jacobian."""
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    z = numpyro.sample("z", dist.Bernoulli(0.25), infer={"enumerate": "parallel"})
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.Poisson(rate * (1.0 + 2.0 * z)), obs=y)


def mixture_with_constraint_log_evidence(y):
    y = np.asarray(y)[:, None]

    def log_joint(rate):
        first = stats.poisson.logpmf(y, rate).sum(0) + np.log(0.75)
        second = stats.poisson.logpmf(y, 3.0 * rate).sum(0) + np.log(0.25)
        return stats.gamma.logpdf(rate, 2.0) + np.logaddexp(first, second)

    return log_integral(log_joint, 1e-6, 30.0, 20001)


MASK = np.array([True, False, True, True])


def masked(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", 4), handlers.mask(mask=jnp.array(MASK)):
        numpyro.sample("y", dist.Normal(mu, 1.2), obs=y)


def obs_mask(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", 4):
        numpyro.sample("y", dist.Normal(mu, 1.2), obs=y, obs_mask=jnp.array(MASK))


def masked_log_evidence(y):
    y = np.asarray(y)[MASK]
    cov = np.ones((3, 3)) + 1.44 * np.eye(3)
    return stats.multivariate_normal.logpdf(y, np.zeros(3), cov)


def obs_mask_positive(y):
    """Imputed values with a constrained support: their Jacobian belongs to the prior."""
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.5))
    with numpyro.plate("data", 4):
        numpyro.sample("y", dist.Exponential(rate), obs=y, obs_mask=jnp.array(MASK))


def obs_mask_positive_log_evidence(y):
    y = np.asarray(y)[MASK]
    a, b = 2.0, 1.5
    total = special.gammaln(a + len(y)) - special.gammaln(a)
    return total + a * np.log(b) - (a + len(y)) * np.log(b + y.sum())


def dynamic_support(y):
    a = numpyro.sample("a", dist.Gamma(3.0, 1.0))
    b = numpyro.sample("b", dist.Uniform(0.0, a))
    numpyro.sample("y", dist.Normal(b, 0.9), obs=y)


def dynamic_support_log_evidence(y):
    def log_joint(a):
        mass = stats.norm.cdf((a - y) / 0.9) - stats.norm.cdf(-y / 0.9)
        return stats.gamma.logpdf(a, 3.0) + np.log(mass / a)

    return log_integral(log_joint, 1e-6, 40.0, 20001)


def loc_scale_reparam(y):
    with handlers.reparam(config={"theta": LocScaleReparam(0.0)}):
        hierarchy(y)


def transform_reparam(y):
    with handlers.reparam(config={"x": TransformReparam()}):
        x = numpyro.sample(
            "x",
            dist.TransformedDistribution(dist.Normal(0.2, 0.5), dist.transforms.ExpTransform()),
        )
    numpyro.sample("y", dist.Normal(x, 0.7), obs=y)


def transform_reparam_log_evidence(y):
    return log_integral(
        lambda z: stats.norm.logpdf(z, 0.2, 0.5) + stats.norm.logpdf(y, np.exp(z), 0.7), -6.0, 6.0
    )


def von_mises(y):
    theta = numpyro.sample("theta", dist.VonMises(0.5, 2.0))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.VonMises(theta, 1.0), obs=y)


def von_mises_log_evidence(y):
    resultant = abs(2.0 * np.exp(0.5j) + 1.0 * np.exp(1j * np.asarray(y, float)).sum())
    log_norm = np.log(2 * np.pi * special.i0(2.0)) + len(y) * np.log(2 * np.pi * special.i0(1.0))
    return np.log(2 * np.pi * special.i0(resultant)) - log_norm


def zero_sum(y):
    z = numpyro.sample("z", dist.ZeroSumNormal(0.9, event_shape=(4,)))
    numpyro.sample("y", dist.Normal(z, 1.1).to_event(1), obs=y)


def zero_sum_log_evidence(y):
    cov = 0.81 * (np.eye(4) - 0.25) + 1.21 * np.eye(4)
    return stats.multivariate_normal.logpdf(np.asarray(y), np.zeros(4), cov)


def lkj(y):
    chol = numpyro.sample("chol", dist.LKJCholesky(2, 4.0))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.MultivariateNormal(jnp.zeros(2), scale_tril=chol), obs=y)


def lkj_log_evidence(y):
    y = np.asarray(y, float)

    def log_joint(angle):
        rho = np.sin(angle)  # removes the end points' singularities
        squares = (y[:, :1] ** 2 + y[:, 1:] ** 2 - 2 * rho * y[:, :1] * y[:, 1:]).sum(0)
        log_lik = -0.5 * squares / (1 - rho**2) - len(y) * (
            np.log(2 * np.pi) + 0.5 * np.log1p(-(rho**2))
        )
        return 3.0 * np.log1p(-(rho**2)) + np.log(np.cos(angle)) + log_lik

    # The density of rho is (1 - rho^2)^(eta - 1) / (2^(2 eta - 1) B(eta, eta)), eta = 4.
    log_norm = 7.0 * np.log(2.0) + special.betaln(4.0, 4.0)
    return log_integral(log_joint, -np.pi / 2 + 1e-4, np.pi / 2 - 1e-4, 20001) - log_norm


def ordered(y):
    base = dist.Normal(jnp.array([-0.5, 0.3]), jnp.array([1.0, 0.6])).to_event(1)
    cuts = numpyro.sample(
        "cuts", dist.TransformedDistribution(base, dist.transforms.OrderedTransform())
    )
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.OrderedLogistic(0.4, cuts), obs=y)


def ordered_log_evidence(y):
    nodes, weights = np.polynomial.hermite_e.hermegauss(120)
    first = (-0.5 + nodes)[:, None]
    second = first + np.exp(0.3 + 0.6 * nodes)[None, :]
    below = [special.expit(first - 0.4), special.expit(second - 0.4)]
    probs = np.stack(np.broadcast_arrays(below[0], below[1] - below[0], 1 - below[1]))
    likelihood = np.prod(probs[np.asarray(y)], axis=0)
    return np.log(np.einsum("i,j,ij", weights, weights, likelihood) / (2 * np.pi))


def truncated(y):
    x = numpyro.sample("x", dist.TruncatedNormal(1.0, 1.5, low=0.3))
    numpyro.sample("y", dist.Normal(x, 0.7), obs=y)


def truncated_log_evidence(y):
    return log_integral(
        lambda x: (
            stats.truncnorm.logpdf(x, -0.7 / 1.5, np.inf, 1.0, 1.5) + stats.norm.logpdf(y, x, 0.7)
        ),
        0.3,
        15.0,
        20001,
    )


def inner_key(y):
    shift = random.normal(numpyro.prng_key())
    mu = numpyro.sample("mu", dist.Normal(0.3, 1.0))
    numpyro.sample("y", dist.Normal(mu + shift, 0.8), obs=y)


def inner_key_log_evidence(y):
    shift = float(random.normal(random.key(0)))
    return stats.norm.logpdf(y, 0.3 + shift, np.sqrt(1.0 + 0.64))


def with_param(y):
    loc = numpyro.param("loc", -7.0)
    scale = numpyro.param("scale", 9.0, constraint=dist.constraints.positive)
    mu = numpyro.sample("mu", dist.Normal(loc, scale))
    numpyro.sample("y", dist.Normal(mu, 0.7), obs=y)


def with_param_log_evidence(y):
    return stats.norm.logpdf(y, 0.6, np.sqrt(0.64 + 0.49))


def with_mutable(y):
    state = numpyro.primitives.mutable("state", {"loc": jnp.array(-7.0)})
    mu = numpyro.sample("mu", dist.Normal(state["loc"], 0.8))
    numpyro.sample("y", dist.Normal(mu, 0.7), obs=y)


def scaled(y):
    mu = numpyro.sample("mu", dist.Normal(0.3, 1.0))
    with numpyro.plate("data", len(y)), handlers.scale(scale=2.5):
        numpyro.sample("y", dist.Normal(mu, 1.6), obs=y)


def scaled_log_evidence(y):
    y = np.asarray(y, float)[:, None]
    return log_integral(
        lambda mu: stats.norm.logpdf(mu, 0.3, 1.0) + 2.5 * stats.norm.logpdf(y, mu, 1.6).sum(0),
        -8.0,
        8.0,
    )


def with_factor(y):
    mu = numpyro.sample("mu", dist.Normal(0.3, 1.0))
    numpyro.factor("penalty", -0.6 * (mu - y) ** 2 + 2.0)


def with_factor_log_evidence(y):
    width = np.sqrt(1.0 / 1.2)
    log_norm = 0.5 * np.log(2 * np.pi) + np.log(width)
    return 2.0 + log_norm + stats.norm.logpdf(y, 0.3, np.sqrt(1.0 + width**2))


_X = np.array([[1.0, 0.3], [1.0, -1.2], [1.0, 1.1]])
_POINTS = jnp.array([[0.8, 1.1], [-1.3, -0.6], [0.4, 0.9]])
WITH_GAP = jnp.array([0.9, np.nan, 0.2, 1.4])

CASES = {
    "beta_binomial": Case(
        grouped_beta_binomial,
        (jnp.array([2, 5, 3, 7, 9]), jnp.array([0, 4, 1, 2, 6])),
        grouped_beta_binomial_log_evidence,
        0.5,
    ),
    "gamma_poisson": Case(gamma_poisson, (jnp.array([2, 0, 3]),), gamma_poisson_log_evidence, 0.2),
    "dirichlet_multinomial": Case(
        dirichlet_multinomial, (jnp.array([4, 1, 2]),), dirichlet_multinomial_log_evidence, 0.4
    ),
    "dirichlet_categorical": Case(
        dirichlet_categorical,
        (jnp.array([0, 2, 0, 1, 0]),),
        dirichlet_categorical_log_evidence,
        0.4,
    ),
    "regression": Case(
        regression_of_unknown_noise,
        (jnp.array(_X), jnp.array([0.4, -1.0, 1.7])),
        regression_of_unknown_noise_log_evidence,
        0.1,
    ),
    "hierarchy": Case(
        hierarchy, (jnp.array([0.2, 1.9, -0.7, 2.8]),), hierarchy_log_evidence, 0.4, 30
    ),
    "local_level": Case(
        local_level, (jnp.array([0.3, 1.2, 0.9, -0.4, -1.5]),), local_level_log_evidence, 0.3, 30
    ),
    "scan_positive": Case(
        scan_positive, (jnp.array([0, 3, 1, 2]),), scan_positive_log_evidence, 0.25
    ),
    "mixture": Case(mixture, (jnp.array([1.3, -0.8, 2.2, 1.1]),), mixture_log_evidence, 0.5),
    "mixture_with_constraint": Case(
        mixture_with_constraint, (jnp.array([3, 1, 2]),), mixture_with_constraint_log_evidence, 0.2
    ),
    "masked": Case(masked, (WITH_GAP.at[1].set(50.0),), masked_log_evidence, 0.25),
    "obs_mask": Case(obs_mask, (WITH_GAP,), masked_log_evidence, 0.4),
    "obs_mask_positive": Case(obs_mask_positive, (WITH_GAP,), obs_mask_positive_log_evidence, 0.2),
    "dynamic_support": Case(dynamic_support, (1.7,), dynamic_support_log_evidence, 0.15),
    "loc_scale_reparam": Case(
        loc_scale_reparam, (jnp.array([0.2, 1.9, -0.7, 2.8]),), hierarchy_log_evidence, 0.4, 30
    ),
    "transform_reparam": Case(transform_reparam, (2.1,), transform_reparam_log_evidence, 0.15, 6),
    "von_mises": Case(von_mises, (jnp.array([1.9, 1.2, 2.6]),), von_mises_log_evidence, 0.15),
    "zero_sum": Case(zero_sum, (jnp.array([0.9, -1.6, 0.3, 0.1]),), zero_sum_log_evidence, 0.25),
    "lkj": Case(lkj, (_POINTS,), lkj_log_evidence, 0.1, 8),
    "ordered": Case(ordered, (jnp.array([2, 0, 2, 2, 1]),), ordered_log_evidence, 0.25),
    "truncated": Case(truncated, (0.6,), truncated_log_evidence, 0.15),
    "inner_key": Case(inner_key, (1.4,), inner_key_log_evidence, 0.2),
    "param": Case(
        with_param, (1.9,), with_param_log_evidence, 0.25, params={"loc": 0.6, "scale": 0.8}
    ),
    "mutable": Case(
        with_mutable,
        (1.9,),
        with_param_log_evidence,
        0.25,
        params={"state": {"loc": jnp.array(0.6)}},
    ),
    "scaled": Case(scaled, (jnp.array([1.4, 0.1]),), scaled_log_evidence, 0.25),
    "factor": Case(with_factor, (1.6,), with_factor_log_evidence, 0.25),
}
