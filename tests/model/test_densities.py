# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""What a model's evidence is: closed forms, NumPyro's own densities, numerical traps and errors."""

from collections.abc import Callable
from functools import partial
import re
from typing import Any, NamedTuple

import jax
from jax import random
from jax.flatten_util import ravel_pytree
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, special, stats

import numpyro
from numpyro import handlers
from numpyro.contrib.control_flow import scan
import numpyro.distributions as dist
from numpyro.infer import Predictive, log_likelihood
from numpyro.infer.reparam import LocScaleReparam, TransformReparam
from numpyro.infer.util import initialize_model, potential_energy

from numpyro_dais import DAIS
from numpyro_dais.model.problem import Problem
from numpyro_dais.model.target import make_target

NUM_PARTICLES = 20_000


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


def beta_binomial(counts, successes):
    with numpyro.plate("groups", len(counts)):
        p = numpyro.sample("p", dist.Beta(2.0, 3.0))
        numpyro.sample("y", dist.Binomial(counts, p), obs=successes)


def exact_beta_binomial(counts, successes):
    n, k = np.asarray(counts), np.asarray(successes)
    return stats.betabinom.logpmf(k, n, 2.0, 3.0).sum()


def gamma_poisson(y):
    rate = numpyro.sample("rate", dist.Gamma(3.0, 2.0))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.Poisson(rate), obs=y)


def exact_gamma_poisson(y):
    y = np.asarray(y)
    a, b, n = 3.0, 2.0, len(y)
    return (
        a * np.log(b)
        - special.gammaln(a)
        + special.gammaln(a + y.sum())
        - (a + y.sum()) * np.log(b + n)
        - special.gammaln(y + 1).sum()
    )


ALPHA = np.array([1.5, 2.5, 4.0])


def dirichlet_multinomial(y):
    p = numpyro.sample("p", dist.Dirichlet(jnp.array(ALPHA)))
    numpyro.sample("y", dist.Multinomial(total_count=7, probs=p), obs=y)


def exact_dirichlet_multinomial(y):
    return stats.dirichlet_multinomial.logpmf(np.asarray(y, int), ALPHA, 7)


def dirichlet_categorical(y):
    p = numpyro.sample("p", dist.Dirichlet(jnp.array(ALPHA)))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.Categorical(p), obs=y)


def exact_dirichlet_categorical(y):
    counts = np.bincount(np.asarray(y), minlength=3)
    log_beta = lambda a: special.gammaln(a).sum() - special.gammaln(a.sum())  # noqa: E731
    return log_beta(ALPHA + counts) - log_beta(ALPHA)


def regression(X, y):
    variance = numpyro.sample("variance", dist.InverseGamma(5.0, 4.0))
    sigma = numpyro.deterministic("sigma", jnp.sqrt(variance))
    w = numpyro.sample("w", dist.Normal(0.0, sigma * jnp.array([0.6, 0.4])).to_event(1))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.Normal(X @ w, sigma), obs=y)


def exact_regression(X, y):
    X = np.asarray(X, float)
    shape = np.eye(len(y)) + X @ np.diag([0.36, 0.16]) @ X.T
    return stats.multivariate_t.logpdf(np.asarray(y), shape=4.0 / 5.0 * shape, df=10.0)


NOISE = np.array([1.1, 0.9, 1.6, 1.3])


def hierarchy(y):
    mu = numpyro.sample("mu", dist.Normal(1.0, 0.9))
    with numpyro.plate("groups", 4):
        theta = numpyro.sample("theta", dist.Normal(mu, 0.8))
        numpyro.sample("y", dist.Normal(theta, jnp.array(NOISE)), obs=y)


def exact_hierarchy(y):
    cov = 0.81 * np.ones((4, 4)) + 0.64 * np.eye(4) + np.diag(NOISE**2)
    return stats.multivariate_normal.logpdf(np.asarray(y), np.full(4, 1.0), cov)


def local_level(y):
    def step(x, y_t):
        x = numpyro.sample("x", dist.Normal(0.9 * x, 0.5))
        numpyro.sample("y", dist.Normal(x, 1.1), obs=y_t)
        return x, None

    scan(step, numpyro.sample("x0", dist.Normal(0.5, 1.0)), y)


def exact_local_level(y):
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


def exact_scan_positive(y):
    return stats.nbinom.logpmf(np.asarray(y), 2.0, 1.5 / 2.5).sum()


def mixture(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.5))
    with numpyro.plate("data", len(y)):
        z = numpyro.sample(
            "z", dist.Categorical(jnp.array([0.3, 0.7])), infer={"enumerate": "parallel"}
        )
        numpyro.sample("y", dist.Normal(jnp.where(z == 1, mu, -1.0), 1.2), obs=y)


def exact_mixture(y):
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


def exact_mixture_with_constraint(y):
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


def exact_masked(y):
    y = np.asarray(y)[MASK]
    cov = np.ones((3, 3)) + 1.44 * np.eye(3)
    return stats.multivariate_normal.logpdf(y, np.zeros(3), cov)


def obs_mask_positive(y):
    """Imputed values with a constrained support: their Jacobian belongs to the prior."""
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.5))
    with numpyro.plate("data", 4):
        numpyro.sample("y", dist.Exponential(rate), obs=y, obs_mask=jnp.array(MASK))


def exact_obs_mask_positive(y):
    y = np.asarray(y)[MASK]
    a, b = 2.0, 1.5
    total = special.gammaln(a + len(y)) - special.gammaln(a)
    return total + a * np.log(b) - (a + len(y)) * np.log(b + y.sum())


def dynamic_support(y):
    a = numpyro.sample("a", dist.Gamma(3.0, 1.0))
    b = numpyro.sample("b", dist.Uniform(0.0, a))
    numpyro.sample("y", dist.Normal(b, 0.9), obs=y)


def exact_dynamic_support(y):
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


def exact_transform_reparam(y):
    return log_integral(
        lambda z: stats.norm.logpdf(z, 0.2, 0.5) + stats.norm.logpdf(y, np.exp(z), 0.7), -6.0, 6.0
    )


def von_mises(y):
    theta = numpyro.sample("theta", dist.VonMises(0.5, 2.0))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.VonMises(theta, 1.0), obs=y)


def exact_von_mises(y):
    resultant = abs(2.0 * np.exp(0.5j) + 1.0 * np.exp(1j * np.asarray(y, float)).sum())
    log_norm = np.log(2 * np.pi * special.i0(2.0)) + len(y) * np.log(2 * np.pi * special.i0(1.0))
    return np.log(2 * np.pi * special.i0(resultant)) - log_norm


def zero_sum(y):
    z = numpyro.sample("z", dist.ZeroSumNormal(0.9, event_shape=(4,)))
    numpyro.sample("y", dist.Normal(z, 1.1).to_event(1), obs=y)


def exact_zero_sum(y):
    cov = 0.81 * (np.eye(4) - 0.25) + 1.21 * np.eye(4)
    return stats.multivariate_normal.logpdf(np.asarray(y), np.zeros(4), cov)


def lkj(y):
    chol = numpyro.sample("chol", dist.LKJCholesky(2, 4.0))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.MultivariateNormal(jnp.zeros(2), scale_tril=chol), obs=y)


def exact_lkj(y):
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


def exact_ordered(y):
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


def exact_truncated(y):
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


def exact_inner_key(y):
    shift = float(random.normal(random.key(0)))
    return stats.norm.logpdf(y, 0.3 + shift, np.sqrt(1.0 + 0.64))


def with_param(y):
    loc = numpyro.param("loc", -7.0)
    scale = numpyro.param("scale", 9.0, constraint=dist.constraints.positive)
    mu = numpyro.sample("mu", dist.Normal(loc, scale))
    numpyro.sample("y", dist.Normal(mu, 0.7), obs=y)


def exact_with_param(y):
    return stats.norm.logpdf(y, 0.6, np.sqrt(0.64 + 0.49))


def with_mutable(y):
    state = numpyro.primitives.mutable("state", {"loc": jnp.array(-7.0)})
    mu = numpyro.sample("mu", dist.Normal(state["loc"], 0.8))
    numpyro.sample("y", dist.Normal(mu, 0.7), obs=y)


def scaled(y):
    mu = numpyro.sample("mu", dist.Normal(0.3, 1.0))
    with numpyro.plate("data", len(y)), handlers.scale(scale=2.5):
        numpyro.sample("y", dist.Normal(mu, 1.6), obs=y)


def exact_scaled(y):
    y = np.asarray(y, float)[:, None]
    return log_integral(
        lambda mu: stats.norm.logpdf(mu, 0.3, 1.0) + 2.5 * stats.norm.logpdf(y, mu, 1.6).sum(0),
        -8.0,
        8.0,
    )


def with_factor(y):
    mu = numpyro.sample("mu", dist.Normal(0.3, 1.0))
    numpyro.factor("penalty", -0.6 * (mu - y) ** 2 + 2.0)


def exact_with_factor(y):
    width = np.sqrt(1.0 / 1.2)
    log_norm = 0.5 * np.log(2 * np.pi) + np.log(width)
    return 2.0 + log_norm + stats.norm.logpdf(y, 0.3, np.sqrt(1.0 + width**2))


_X = np.array([[1.0, 0.3], [1.0, -1.2], [1.0, 1.1]])
_POINTS = jnp.array([[0.8, 1.1], [-1.3, -0.6], [0.4, 0.9]])
_WITH_GAP = jnp.array([0.9, np.nan, 0.2, 1.4])

CASES = {
    "beta_binomial": Case(
        beta_binomial,
        (jnp.array([2, 5, 3, 7, 9]), jnp.array([0, 4, 1, 2, 6])),
        exact_beta_binomial,
        0.5,
    ),
    "gamma_poisson": Case(gamma_poisson, (jnp.array([2, 0, 3]),), exact_gamma_poisson, 0.2),
    "dirichlet_multinomial": Case(
        dirichlet_multinomial, (jnp.array([4, 1, 2]),), exact_dirichlet_multinomial, 0.4
    ),
    "dirichlet_categorical": Case(
        dirichlet_categorical,
        (jnp.array([0, 2, 0, 1, 0]),),
        exact_dirichlet_categorical,
        0.4,
    ),
    "regression": Case(
        regression, (jnp.array(_X), jnp.array([0.4, -1.0, 1.7])), exact_regression, 0.1
    ),
    "hierarchy": Case(hierarchy, (jnp.array([0.2, 1.9, -0.7, 2.8]),), exact_hierarchy, 0.4, 30),
    "local_level": Case(
        local_level, (jnp.array([0.3, 1.2, 0.9, -0.4, -1.5]),), exact_local_level, 0.3, 30
    ),
    "scan_positive": Case(scan_positive, (jnp.array([0, 3, 1, 2]),), exact_scan_positive, 0.25),
    "mixture": Case(mixture, (jnp.array([1.3, -0.8, 2.2, 1.1]),), exact_mixture, 0.5),
    "mixture_with_constraint": Case(
        mixture_with_constraint, (jnp.array([3, 1, 2]),), exact_mixture_with_constraint, 0.2
    ),
    "masked": Case(masked, (_WITH_GAP.at[1].set(50.0),), exact_masked, 0.25),
    "obs_mask": Case(obs_mask, (_WITH_GAP,), exact_masked, 0.4),
    "obs_mask_positive": Case(obs_mask_positive, (_WITH_GAP,), exact_obs_mask_positive, 0.2),
    "dynamic_support": Case(dynamic_support, (1.7,), exact_dynamic_support, 0.15),
    "loc_scale_reparam": Case(
        loc_scale_reparam, (jnp.array([0.2, 1.9, -0.7, 2.8]),), exact_hierarchy, 0.4, 30
    ),
    "transform_reparam": Case(transform_reparam, (2.1,), exact_transform_reparam, 0.15, 6),
    "von_mises": Case(von_mises, (jnp.array([1.9, 1.2, 2.6]),), exact_von_mises, 0.15),
    "zero_sum": Case(zero_sum, (jnp.array([0.9, -1.6, 0.3, 0.1]),), exact_zero_sum, 0.25),
    "lkj": Case(lkj, (_POINTS,), exact_lkj, 0.1, 8),
    "ordered": Case(ordered, (jnp.array([2, 0, 2, 2, 1]),), exact_ordered, 0.25),
    "truncated": Case(truncated, (0.6,), exact_truncated, 0.15),
    "inner_key": Case(inner_key, (1.4,), exact_inner_key, 0.2),
    "param": Case(with_param, (1.9,), exact_with_param, 0.25, params={"loc": 0.6, "scale": 0.8}),
    "mutable": Case(
        with_mutable, (1.9,), exact_with_param, 0.25, params={"state": {"loc": jnp.array(0.6)}}
    ),
    "scaled": Case(scaled, (jnp.array([1.4, 0.1]),), exact_scaled, 0.25),
    "factor": Case(with_factor, (1.6,), exact_with_factor, 0.25),
}


@pytest.mark.parametrize("name", CASES)
def test_weights_are_unbiased(name):
    """The mean weight, divided by the exact evidence, is one within five standard errors."""
    case = CASES[name]
    dais = DAIS(
        case.model,
        num_steps=case.num_steps,
        step_size=case.step_size,
        damping=0.9,
        num_particles=NUM_PARTICLES,
        params=case.params,
    )
    evidence = dais.log_evidence(random.key(1), *case.args)
    log_weights = np.asarray(evidence.log_weights, float)
    assert 0.3 < np.var(log_weights) < 2.0
    weights = np.exp(log_weights - case.exact(*case.args))
    assert abs(weights.mean() - 1) < 5 * weights.std() / np.sqrt(NUM_PARTICLES)
    assert abs(float(evidence) - case.exact(*case.args)) < 5 * evidence.standard_error


# In `inner_key` NumPyro draws another key; the two `obs_mask` models have a test of their own.
DENSITY_CASES = [
    name for name in CASES if name not in ("inner_key", "obs_mask", "obs_mask_positive")
]


def numpyro_potential(name, model, args):
    """Unconstrained values of the latent sites and the potential function, both by NumPyro."""
    if name.startswith("mixture"):
        info = initialize_model(random.key(2), model, model_args=args)
        return info.param_info.z, info.potential_fn
    trace = handlers.trace(handlers.seed(model, random.key(2))).get_trace(*args)
    prototype = {
        name: dist.biject_to(site["fn"].support).inv(site["value"])
        for name, site in trace.items()
        if site["type"] == "sample" and not site["is_observed"]
    }
    return prototype, partial(potential_energy, model, args, {})


@pytest.mark.parametrize("name", DENSITY_CASES)
def test_joint_density_is_numpyro_potential(name):
    """Log start plus log ratio is minus NumPyro's own potential, at draws from the prior."""
    case = CASES[name]
    target = make_target(Problem(case.model, params=case.params, args=case.args))
    model = handlers.substitute(case.model, data=case.params or {})

    @jax.jit
    def both(rng_key):
        u = target.sample_fn(rng_key)
        prototype, potential_fn = numpyro_potential(name, model, case.args)
        flat, unravel = ravel_pytree(prototype)
        assert u.shape == flat.shape
        return sum(target.log_densities_fn(u)), -potential_fn(unravel(u))

    ours, theirs = both(random.key(3))
    np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-4)


def test_imputed_values_have_their_prior():
    """With `obs_mask`, observed entries of the imputed site have the site's density, and no data."""
    target = make_target(Problem(obs_mask_positive, args=(_WITH_GAP,)))
    rate, imputed = 1.7, np.array([0.2, 0.9, 2.5, 1.1])
    u = jnp.log(jnp.array([rate, *imputed]))  # alphabetical: rate, y_unobserved
    log_start, log_ratio = jax.jit(target.log_densities_fn)(u)
    prior = stats.gamma.logpdf(rate, 2.0, scale=1 / 1.5) + np.log(rate)
    prior += np.sum(stats.expon.logpdf(imputed, scale=1 / rate) + np.log(imputed))
    observed = np.asarray(_WITH_GAP)[MASK]
    np.testing.assert_allclose(log_start, prior, rtol=1e-5)
    np.testing.assert_allclose(
        log_ratio, stats.expon.logpdf(observed, scale=1 / rate).sum(), rtol=1e-5
    )


def no_data():
    """Every kind of constrained site, a plate and a scan, and nothing observed."""
    numpyro.sample("p", dist.Dirichlet(jnp.array(ALPHA)))
    a = numpyro.sample("a", dist.Gamma(3.0, 1.0))
    numpyro.sample("b", dist.Uniform(0.0, a))
    numpyro.sample("chol", dist.LKJCholesky(2, 1.5))
    numpyro.sample("theta", dist.VonMises(0.5, 2.0))
    with numpyro.plate("groups", 4):
        numpyro.sample("t", dist.TruncatedNormal(1.0, 1.5, low=0.3))
    scan(lambda c, _: (c, numpyro.sample("s", dist.Beta(2.0, 3.0))), 0.0, jnp.arange(3))


def no_data_enumerated():
    numpyro.sample("a", dist.Gamma(3.0, 1.0))
    numpyro.sample("z", dist.Bernoulli(0.25), infer={"enumerate": "parallel"})


@pytest.mark.parametrize("model", [no_data, no_data_enumerated], ids=["continuous", "enumerated"])
def test_without_data_there_is_nothing_to_temper(model):
    """The log ratio is exactly zero everywhere: no Jacobian is in it. So is the log evidence."""
    target = make_target(Problem(model))

    @jax.jit
    def log_densities(rng_key):
        draws = 1.5 * target.sample_fn(rng_key) + jnp.linspace(-1.0, 1.0, 5)[:, None]
        return jax.vmap(target.log_densities_fn)(draws)

    log_start, log_ratio = log_densities(random.key(0))
    assert np.all(log_ratio == 0.0)
    assert np.ptp(log_start) > 0.5
    evidence = DAIS(model, num_steps=0, num_particles=50).log_evidence(random.key(1))
    assert float(evidence) == 0.0
    assert np.all(evidence.log_weights == 0.0)


@pytest.mark.parametrize("name", ["mixture", "obs_mask"])
def test_constant_factor_shifts_the_weights(name):
    """`factor` with a constant is added to each log weight, and changes nothing else."""
    case = CASES[name]

    def shifted(*args):
        case.model(*args)
        numpyro.factor("c", 12.5)

    settings = {"num_steps": 5, "step_size": 0.2, "num_particles": 100}
    before = DAIS(case.model, **settings).log_evidence(random.key(4), *case.args)
    after = DAIS(shifted, **settings).log_evidence(random.key(4), *case.args)
    assert np.std(before.log_weights) > 0.1
    np.testing.assert_allclose(np.asarray(after.log_weights) - 12.5, before.log_weights, atol=2e-5)
    np.testing.assert_allclose(after.positions, before.positions, atol=1e-5)


ZERO_STEP_CASES = {
    "beta_binomial": ["p"],
    "dynamic_support": ["a", "b"],
    "local_level": ["x", "x0"],
}


@pytest.mark.parametrize("name", ZERO_STEP_CASES)
def test_zero_steps_are_importance_sampling(name):
    """
    Without steps the weights are NumPyro's likelihoods at the draws, and the draws are those of
    NumPyro's prior.
    """
    case, sites, num_draws = CASES[name], ZERO_STEP_CASES[name], 4000
    dais = DAIS(case.model, num_steps=0, num_particles=num_draws)
    evidence = dais.log_evidence(random.key(5), *case.args)

    @jax.jit
    def by_numpyro(positions, rng_key):
        draws = jax.vmap(make_target(evidence.problem).constrain_fn)(positions)
        draws = {site: draws[site] for site in sites}
        log_weights = log_likelihood(case.model, draws, *case.args)["y"]
        predictive = Predictive(case.model, num_samples=num_draws, return_sites=sites)
        return draws, log_weights, predictive(rng_key, *case.args)

    results = by_numpyro(evidence.positions, random.key(6))
    draws, log_weights, prior = jax.tree.map(np.asarray, results)
    by_hand = log_weights.reshape(num_draws, -1).sum(-1)
    np.testing.assert_allclose(evidence.log_weights, by_hand, rtol=1e-4, atol=1e-4)
    for site in sites:
        assert draws[site].shape == prior[site].shape
        error = np.sqrt((draws[site].var(0) + prior[site].var(0)) / num_draws) + 1e-6
        assert np.all(np.abs(draws[site].mean(0) - prior[site].mean(0)) < 5 * error)


def test_constrain_gives_latent_and_deterministic_sites():
    """`constrain_fn` returns sites by name, inside their supports, at any position."""
    target = make_target(Problem(regression, args=CASES["regression"].args))
    values = target.constrain_fn(jnp.array([-0.7, 0.4, 1.2]))
    assert values.keys() == {"variance", "sigma", "w"}
    np.testing.assert_allclose(values["variance"], np.exp(-0.7), rtol=1e-6)
    np.testing.assert_allclose(values["sigma"], np.exp(-0.35), rtol=1e-6)
    np.testing.assert_allclose(values["w"], [0.4, 1.2], rtol=1e-6)
    numpyro_names = make_target(Problem(loc_scale_reparam, args=CASES["hierarchy"].args))
    assert numpyro_names.constrain_fn(jnp.zeros(5)).keys() == {"mu", "theta_decentered", "theta"}


def test_underflowing_prior_draws_are_reported():
    """Gamma(0.02) draws below float32's range are counted, with their share and the remedy."""

    def model():
        numpyro.sample("x", dist.Gamma(0.02, 1.0))
        numpyro.factor("data", 0.5)

    dais = DAIS(model, num_steps=2, step_size=0.01, num_particles=2000)
    with pytest.warns(UserWarning, match=r"not finite \(1\d%\).*numpyro.enable_x64"):
        evidence = dais.log_evidence(random.key(7))
    num_bad = int(np.sum(~np.asarray(evidence.is_start_finite)))
    # The bounds are the least normal and the least subnormal number: what flushes is up to the machine.
    shares = stats.gamma.cdf([1e-45, 1.2e-38], 0.02)
    assert shares[0] - 0.04 < num_bad / 2000 < shares[1] + 0.04
    assert any(f"{num_bad} of 2000 draws" in text for text in evidence.warnings)
    assert int(evidence.num_nonfinite) >= num_bad
    assert np.isfinite(float(evidence))


def test_likelihood_that_vanishes_on_a_part():
    """Weights in the region of zero likelihood are zero and counted; the answer is the exact one."""

    def model():
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.factor("wall", jnp.where(x > 0.4, 0.0, -jnp.inf))

    dais = DAIS(model, num_steps=3, step_size=0.2, num_particles=4000)
    with pytest.warns(UserWarning, match="weights were not finite and count as zero"):
        evidence = dais.log_evidence(random.key(8))
    assert int(evidence.num_nonfinite) == np.sum(np.asarray(evidence.positions)[:, 0] <= 0.4)
    assert abs(float(evidence) - stats.norm.logsf(0.4)) < 5 * evidence.standard_error


def test_infinite_density_counts_as_zero():
    """A truncated normal far in its tail has log density +inf in float32: no such weight survives."""

    def model():
        mu = numpyro.sample("mu", dist.Normal(0.0, 6.0))
        numpyro.sample("y", dist.TruncatedNormal(mu, 1.0, low=8.0), obs=8.5)

    dais = DAIS(model, num_steps=0, num_particles=1000)
    with pytest.warns(UserWarning, match="weights were not finite and count as zero"):
        evidence = dais.log_evidence(random.key(9))
    log_prob = jax.jit(lambda mu: dist.TruncatedNormal(mu, 1.0, low=8.0).log_prob(8.5))
    is_infinite = ~np.isfinite(log_prob(evidence.positions[:, 0]))
    assert 100 < int(is_infinite.sum()) < 900
    assert int(evidence.num_nonfinite) == int(is_infinite.sum())
    assert np.all(np.isneginf(np.asarray(evidence.log_weights)[is_infinite]))
    assert np.isfinite(float(evidence))


def _latent_under_mask():
    with handlers.mask(mask=jnp.array([True, False])):
        numpyro.sample("theta", dist.Normal(jnp.zeros(2), 1.0))


def _latent_masked_by_hand():
    numpyro.sample("theta", dist.Normal(jnp.zeros(2), 1.0).mask(False).to_event(1))


def _latent_under_scale():
    with handlers.scale(scale=3.0):
        numpyro.sample("theta", dist.Normal(0.0, 1.0))


def _improper():
    numpyro.sample("theta", dist.ImproperUniform(dist.constraints.positive, (), ()))


def _improper_in_plate():
    with numpyro.plate("data", 3):
        numpyro.sample("theta", dist.ImproperUniform(dist.constraints.real, (), ()))


def _subsampled():
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", 10, subsample_size=4) as index:
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=jnp.arange(10.0)[index])


def _python_if():
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    if x > 0:
        numpyro.factor("extra", 1.0)


def _discrete_unmarked():
    numpyro.sample("mu", dist.Normal(0.0, 1.0))
    numpyro.sample("z", dist.Bernoulli(0.4))


def _poisson_latent():
    numpyro.sample("mu", dist.Normal(0.0, 1.0))
    numpyro.sample("z", dist.Poisson(2.0), infer={"enumerate": "parallel"})


def _only_discrete():
    numpyro.sample("z", dist.Bernoulli(0.4), infer={"enumerate": "parallel"})


def _no_latent():
    numpyro.sample("y", dist.Normal(0.0, 1.0), obs=0.3)


def _delta_latent():
    numpyro.sample("mu", dist.Normal(0.0, 1.0))
    numpyro.sample("fixed", dist.Delta(1.5))


def _delta_latent_in_plate():
    numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", 3):
        numpyro.sample("fixed", dist.Delta(1.5))


NAN_DATA = jnp.array([0.1, jnp.nan, jnp.nan])


def _nan_data():
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    numpyro.sample("counts", dist.Normal(mu, 1.0), obs=NAN_DATA)


def _nan_numpy_data():
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    numpyro.sample("counts", dist.Normal(mu, 1.0), obs=np.asarray(NAN_DATA))


def _plate_enumerated():
    with numpyro.plate("data", 3):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        z = numpyro.sample("z", dist.Bernoulli(0.4), infer={"enumerate": "parallel"})
        numpyro.sample("y", dist.Normal(mu + z, 1.0), obs=jnp.arange(3.0))


class Fault(NamedTuple):
    """A problem without an answer; the message holds each of ``texts``."""

    model: Callable
    texts: tuple[str, ...]
    args: tuple = ()
    settings: dict[str, Any] = {}  # noqa: RUF012
    error: type[Exception] = ValueError


FAULTS = {
    "mask": Fault(_latent_under_mask, ("'theta' is masked", "Mask observed sites only")),
    "mask_of_distribution": Fault(_latent_masked_by_hand, ("'theta' is masked", "obs_mask")),
    "scale": Fault(_latent_under_scale, ("'theta'", "scale = 3.0", "Scale observed sites only")),
    "improper": Fault(_improper, ("'theta' has an improper prior", "proper start")),
    "improper_in_plate": Fault(_improper_in_plate, ("'theta' has an improper prior",)),
    "subsampled_plate": Fault(
        _subsampled, ("'data' takes 4 of 10", "subsample_size out"), error=NotImplementedError
    ),
    "missing_params": Fault(with_param, ("['loc', 'scale']", "params={...}"), (1.0,)),
    "some_params_missing": Fault(
        with_param, ("['scale']", "params={...}"), (1.0,), {"params": {"loc": 1.0}}
    ),
    "missing_mutable": Fault(with_mutable, ("['state']", "params={...}"), (1.0,)),
    "python_if": Fault(_python_if, ("latent site", "jnp.where")),
    "discrete_unmarked": Fault(_discrete_unmarked, ("'z' is discrete", "infer={'enumerate'")),
    "not_enumerable": Fault(_poisson_latent, ("'z' is discrete (Poisson)", "Sum it out")),
    "only_discrete": Fault(_only_discrete, ("['z'] are all discrete", "log_density")),
    "no_latent": Fault(_no_latent, ("at least one latent", "log_density")),
    "delta": Fault(_delta_latent, ("'fixed' has a Delta", "numpyro.deterministic")),
    "delta_in_plate": Fault(_delta_latent_in_plate, ("'fixed' has a Delta",)),
    "nan_data": Fault(_nan_data, ("'counts' has 2 NaN", "obs_mask")),
    "nan_numpy_data": Fault(_nan_numpy_data, ("'counts' has 2 NaN", "obs_mask")),
    "nan_argument": Fault(hierarchy, ("'y' has 1 NaN",), (_WITH_GAP,)),
    "unknown_plate": Fault(
        beta_binomial,
        ("'rows' is not a plate", "['groups']"),
        CASES["beta_binomial"].args,
        {"plate": "rows"},
    ),
    "site_outside_plate": Fault(
        hierarchy,
        ("'groups'", "'mu' is outside", "leave plate= out"),
        CASES["hierarchy"].args,
        {"plate": "groups"},
    ),
    "plate_with_enumeration": Fault(
        _plate_enumerated,
        ("plate='data'", "['z']", "Leave plate= out"),
        settings={"plate": "data"},
        error=NotImplementedError,
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_errors_name_the_site_and_the_remedy(name):
    """A model whose evidence is undefined is refused before anything is compiled."""
    fault = FAULTS[name]
    dais = DAIS(fault.model, num_steps=2, step_size=0.1, num_particles=4, **fault.settings)
    with pytest.raises(fault.error) as caught:
        dais.log_evidence(random.key(0), *fault.args)
    for text in fault.texts:
        assert text in str(caught.value)


@pytest.mark.parametrize("is_extra_on_odd_runs", [True, False])
def test_sites_that_come_and_go(is_extra_on_odd_runs):
    """Latent sites must be the same in every run of the model."""
    num_runs = 0

    def model():
        nonlocal num_runs
        num_runs += 1
        numpyro.sample("mu", dist.Normal(0.0, 1.0))
        if num_runs % 2 == is_extra_on_odd_runs:
            numpyro.sample("extra", dist.Normal(0.0, 1.0))

    with pytest.raises(ValueError, match=re.escape("'extra' appears in some runs")):
        DAIS(model, num_steps=1, step_size=0.1).log_evidence(random.key(0))


def test_masked_nan_is_no_error():
    """NaN under a mask is not data; and a mask that hides nothing leaves a latent site alone."""
    problem = Problem(masked, args=(_WITH_GAP,))
    log_start, log_ratio = jax.jit(make_target(problem).log_densities_fn)(jnp.array([0.3]))
    expected = stats.norm.logpdf(np.asarray(_WITH_GAP)[MASK], 0.3, 1.2).sum()
    np.testing.assert_allclose(log_ratio, expected, rtol=1e-5)

    def all_true():
        with handlers.mask(mask=True), numpyro.plate("data", 3):
            numpyro.sample("x", dist.Normal(0.2, 1.5))

    log_start, _ = jax.jit(make_target(Problem(all_true)).log_densities_fn)(jnp.arange(3.0))
    np.testing.assert_allclose(
        log_start, stats.norm.logpdf(np.arange(3), 0.2, 1.5).sum(), rtol=1e-5
    )


CLOSURE = np.array([0.4, -1.3, 2.0])


def test_data_in_the_models_closure():
    """Floating-point data need not be an argument."""

    def model():
        mu = numpyro.sample("mu", dist.Normal(0.3, 1.0))
        numpyro.sample("y", dist.Normal(mu, 1.5).expand([3]).to_event(1), obs=CLOSURE)

    evidence = DAIS(model, num_steps=4, step_size=0.3, num_particles=2000).log_evidence()
    cov = np.ones((3, 3)) + 2.25 * np.eye(3)
    exact = stats.multivariate_normal.logpdf(CLOSURE, np.full(3, 0.3), cov)
    assert abs(float(evidence) - exact) < 5 * evidence.standard_error


def student(x):
    with numpyro.plate("data", len(x)):
        tau = numpyro.sample("tau", dist.Gamma(2.5, 2.5))
        numpyro.sample("x", dist.Normal(0.0, tau**-0.5), obs=x)


X_STUDENT = np.array([0.1, -2.3, 3.6, 1.0])


def exact_student():
    return stats.t.logpdf(X_STUDENT, 5.0)


COV = np.array([[1.0, 0.6], [0.6, 0.8]])
Y_EVENTS = np.array([[0.4, -0.2], [1.8, 1.1], [-0.9, 0.7]])
SPREADS = np.array([0.8, 1.1, 0.5])


def two_local_sites(y):
    """A vector and a scalar latent per element, the second after a transform with a Jacobian."""
    with numpyro.plate("data", 3):
        z = numpyro.sample("z", dist.MultivariateNormal(jnp.array([0.2, -0.1]), jnp.array(COV)))
        s = numpyro.sample("s", dist.LogNormal(0.1, jnp.array(SPREADS)))
        numpyro.sample("y", dist.Normal(z + jnp.log(s)[:, None], 0.9).to_event(1), obs=y)


def exact_two_local_sites():
    return [
        stats.multivariate_normal.logpdf(y, [0.3, 0.0], COV + spread**2 + 0.81 * np.eye(2))
        for y, spread in zip(Y_EVENTS, SPREADS, strict=True)
    ]


Y_NESTED = np.array([[0.3, -1.0, 0.8], [2.0, 1.1, 0.2]])


def nested_plates(y):
    """The plate of the elements is at dimension -2; inside it one at -1, with an unplated-in-it site."""
    with numpyro.plate("rows", 2, dim=-2):
        mu = numpyro.sample("mu", dist.Normal(0.5, 1.0))
        with numpyro.plate("columns", 3, dim=-1):
            theta = numpyro.sample("theta", dist.Normal(mu, 0.7))
            numpyro.sample("y", dist.Normal(theta, 1.1), obs=y)
        numpyro.factor("shift", 0.25)


def exact_nested_plates():
    cov = np.ones((3, 3)) + (0.49 + 1.21) * np.eye(3)
    return [0.25 + stats.multivariate_normal.logpdf(row, np.full(3, 0.5), cov) for row in Y_NESTED]


class PlateCase(NamedTuple):
    """A model in a plate and the exact log evidence of each element."""

    model: Callable
    data: np.ndarray
    exact: Callable
    plate: str
    step_size: float


PLATE_CASES = {
    "student": PlateCase(student, X_STUDENT, exact_student, "data", 0.15),
    "two_local_sites": PlateCase(two_local_sites, Y_EVENTS, exact_two_local_sites, "data", 0.25),
    "nested_plates": PlateCase(nested_plates, Y_NESTED, exact_nested_plates, "rows", 0.3),
}


@pytest.mark.parametrize("name", PLATE_CASES)
def test_plate_gives_the_evidence_of_each_element(name):
    """One log evidence per element, unbiased; the densities add up to those of the whole model."""
    model, data, exact, plate, step_size = PLATE_CASES[name]
    data = jnp.array(data)
    dais = DAIS(model, num_steps=16, step_size=step_size, num_particles=8000, plate=plate)
    evidence = dais.log_evidence(random.key(11), data)
    assert evidence.log_weights.shape == (8000, len(data))
    error = np.asarray(evidence.standard_error)
    assert np.all(error < 0.05)
    assert np.all(np.abs(np.asarray(evidence.log_evidence) - exact()) < 4 * error)

    @jax.jit
    def both(rng_key):
        local = make_target(Problem(model, plate=plate, args=(data,)))
        whole = make_target(Problem(model, args=(data,)))
        position = local.sample_fn(rng_key)
        values = local.constrain_fn(position)
        trace = handlers.trace(handlers.seed(model, random.key(2))).get_trace(data)
        z = {
            name: dist.biject_to(site["fn"].support).inv(values[name])
            for name, site in trace.items()
            if site["type"] == "sample" and not site["is_observed"]
        }
        return local.log_densities_fn(position), whole.log_densities_fn(ravel_pytree(z)[0])

    ours, total = jax.tree.map(np.asarray, both(random.key(3)))
    np.testing.assert_allclose(ours.log_start.sum(), total.log_start, rtol=1e-5)
    np.testing.assert_allclose(ours.log_ratio.sum(), total.log_ratio, rtol=1e-5)
