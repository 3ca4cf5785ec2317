# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Priors that are narrowed and widened: each distribution, in plates and dimensions, and at particles."""

from jax import random
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import numpyro
import numpyro.distributions as dist

from numpyro_dais.model.problem import Problem
from numpyro_dais.model.rescale import _FAMILIES, log_prior_ratios, rescaled
from numpyro_dais.model.traced import trace_target

SCALE = 1.7
TRIL = np.array([[1.0, 0.0], [0.4, 0.8]])

# The distribution, the place that it is widened about, and a value.
FAMILIES = {
    "AsymmetricLaplace": (dist.AsymmetricLaplace(0.4, 0.8, 1.3), 0.4, 1.1),
    "Cauchy": (dist.Cauchy(0.4, 0.8), 0.4, 1.1),
    "Exponential": (dist.Exponential(1.6), 0.0, 1.1),
    "Gamma": (dist.Gamma(2.5, 1.6), 0.0, 1.1),
    "Gumbel": (dist.Gumbel(0.4, 0.8), 0.4, 1.1),
    "HalfCauchy": (dist.HalfCauchy(0.8), 0.0, 1.1),
    "HalfNormal": (dist.HalfNormal(0.8), 0.0, 1.1),
    "InverseGamma": (dist.InverseGamma(2.5, 1.6), 0.0, 1.1),
    "Laplace": (dist.Laplace(0.4, 0.8), 0.4, 1.1),
    "Logistic": (dist.Logistic(0.4, 0.8), 0.4, 1.1),
    "MultivariateNormal": (
        dist.MultivariateNormal(np.array([0.4, -0.2]), TRIL @ TRIL.T),
        np.array([0.4, -0.2]),
        np.array([1.1, 0.3]),
    ),
    "MultivariateStudentT": (
        dist.MultivariateStudentT(4.0, np.array([0.4, -0.2]), TRIL),
        np.array([0.4, -0.2]),
        np.array([1.1, 0.3]),
    ),
    "Normal": (dist.Normal(0.4, 0.8), 0.4, 1.1),
    "SoftLaplace": (dist.SoftLaplace(0.4, 0.8), 0.4, 1.1),
    "StudentT": (dist.StudentT(4.0, 0.4, 0.8), 0.4, 1.1),
    "Weibull": (dist.Weibull(0.8, 1.6), 0.0, 1.1),
}


@pytest.mark.parametrize(("fn", "center", "value"), FAMILIES.values(), ids=FAMILIES)
def test_a_wider_distribution_is_the_old_one_stretched(fn, center, value):
    wider = rescaled(fn, SCALE, "x")
    stretched = center + SCALE * (value - center)
    expected = fn.log_prob(value) - np.size(value) * np.log(SCALE)
    np.testing.assert_allclose(wider.log_prob(stretched), expected, rtol=1e-5)


def test_a_lognormal_is_stretched_in_its_logarithm():
    wider = rescaled(dist.LogNormal(0.4, 0.8), SCALE, "x")
    expected = stats.lognorm(SCALE * 0.8, scale=np.exp(0.4)).logpdf(1.1)
    np.testing.assert_allclose(wider.log_prob(1.1), expected, rtol=1e-5)


def test_every_family_is_here():
    tested = {*FAMILIES, "LogNormal"}
    assert {family.__name__ for family in _FAMILIES} == tested


WRAPPED = {
    "expanded": dist.Normal(0.4, 0.8).expand([3]),
    "an event": dist.Normal(0.4, 0.8).expand([3]).to_event(1),
    "by parameters": dist.Normal(jnp.array([0.4, 0.2, 0.1]), jnp.array([0.8, 0.9, 1.0])),
    "twice": dist.Normal(jnp.zeros(3), 0.8).expand([2, 3]).to_event(1),
}


@pytest.mark.parametrize("fn", WRAPPED.values(), ids=WRAPPED)
def test_plates_and_dimensions_are_kept(fn):
    wider = rescaled(fn, SCALE, "x")
    assert (wider.batch_shape, wider.event_shape) == (fn.batch_shape, fn.event_shape)
    value = fn.sample(random.key(0))
    base = {"loc": np.asarray(fn.mean), "scale": SCALE * np.sqrt(np.asarray(fn.variance))}
    expected = stats.norm.logpdf(value, **base).sum(tuple(range(len(fn.batch_shape), value.ndim)))
    np.testing.assert_allclose(wider.log_prob(value), expected, rtol=1e-5)


def hierarchy(y, width):
    mu = numpyro.sample("mu", dist.Normal(0.5, width))
    tau = numpyro.sample("tau", dist.HalfNormal(2.0))
    with numpyro.plate("groups", 2):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
    numpyro.sample("weights", dist.Gamma(2.0, 3.0).expand([2]).to_event(1))
    numpyro.sample("y", dist.Normal(theta, 1.0), obs=y)


def ratios(problem, positions, names, scales):
    target = trace_target(problem, random.key(0))
    return log_prior_ratios(problem, target, jnp.asarray(positions, float), names, scales)


PARTS = {
    "mu": lambda x, s: stats.norm.logpdf(x["mu"], 0.5, 3.0 * s),
    "tau": lambda x, s: stats.halfnorm.logpdf(x["tau"], scale=2.0 * s),
    "theta": lambda x, s: stats.norm.logpdf(x["theta"], x["mu"], s * x["tau"]).sum(),
    "weights": lambda x, s: stats.gamma.logpdf(x["weights"], 2.0, scale=s / 3.0).sum(),
}


@pytest.mark.parametrize(
    "names", [("mu",), ("tau",), ("theta",), ("weights",), ("tau", "mu"), tuple(PARTS)], ids=str
)
def test_the_ratio_of_priors_at_particles(names):
    """Positions have sites in alphabetical order: mu, tau, theta, weights; positive ones are logarithms."""
    problem = Problem(hierarchy, args=(jnp.array([0.2, 1.0]), 3.0))
    positions = np.random.default_rng(0).normal(size=(5, 6))
    scales = (0.5, 1.0, 3.0)
    found = ratios(problem, positions, names, scales)
    assert found.shape == (3, 5)
    for u, column in zip(positions, found.T, strict=True):
        x = {"mu": u[0], "tau": np.exp(u[1]), "theta": u[2:4], "weights": np.exp(u[4:])}
        expected = [sum(PARTS[n](x, s) - PARTS[n](x, 1.0) for n in names) for s in scales]
        np.testing.assert_allclose(column, expected, rtol=1e-4, atol=1e-4)


def mixture(y, has_own_location):
    z = numpyro.sample("z", dist.Bernoulli(0.3), infer={"enumerate": "parallel"})
    numpyro.sample("mu", dist.Normal(jnp.where(z, 1.0, 0.0) if has_own_location else 0.0, 2.0))
    nu = numpyro.sample("nu", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(nu + z, 1.0), obs=y)


def test_enumerated_sites_that_the_prior_does_not_depend_on():
    problem = Problem(mixture, args=(0.4, False))
    positions = np.array([[0.3, 0.1], [-1.2, 0.4]])
    expected = stats.norm.logpdf(positions[:, 0], 0.0, 4.0) - stats.norm.logpdf(
        positions[:, 0], 0.0, 2.0
    )
    np.testing.assert_allclose(ratios(problem, positions, ("mu",), (2.0,))[0], expected, rtol=1e-4)


def test_a_prior_that_depends_on_an_enumerated_site_is_refused():
    problem = Problem(mixture, args=(0.4, True))
    message = r"site 'mu' depends on enumerated sites \(of \['z'\]\).*Give a function of the factor"
    with pytest.raises(NotImplementedError, match=message):
        ratios(problem, np.zeros((2, 2)), ("nu", "mu"), (2.0,))
    assert ratios(problem, np.zeros((2, 2)), ("nu",), (2.0,)).shape == (1, 2)
