# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
All of NumPyro's distributions as latent sites: the exact evidence of each, or the error that says
why there is none.

Each name of ``numpyro.distributions.__all__`` is in one of these tables: :data:`CONTINUOUS` and
:data:`ENUMERATED` have sites with a known evidence; :data:`REFUSED` those that are no latent
sites, with the error; :data:`NO_DISTRIBUTIONS` what is none. An entry that the installed version
does not have is left out; a name without an entry is a failure.

Compiling an estimator for each of them would take minutes. So the two functions of a target that
all estimators are made of, its densities and its draws, are called as they are; an estimator is run
for some sites, on supports of several kinds.
"""

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

import numpyro
import numpyro.distributions as dist
from numpyro.infer.reparam import ProjectedNormalReparam

from numpyro_dais import DAIS
from numpyro_dais.model.problem import Problem
from numpyro_dais.model.target import make_target
from tests.helpers import assert_unbiased

NUM_DRAWS = 2_000


class Rule(NamedTuple):
    """Values ``[num_nodes, ...]`` with weights: the mean of a function is its weighted sum."""

    nodes: np.ndarray
    weights: np.ndarray


legendre_nodes = cache(np.polynomial.legendre.leggauss)


def legendre(low: float, high: float, num_nodes: int) -> Rule:
    """Returns the rule of Gauss and Legendre for an interval."""
    nodes, weights = legendre_nodes(num_nodes)
    half = (high - low) / 2
    return Rule(low + half * (nodes + 1), half * weights)


def by_quantiles(quantile_fn: Callable, num_nodes: int = 500) -> Rule:
    """Returns the rule of a distribution with this inverse of its distribution function."""
    nodes, weights = legendre(0.0, 1.0, num_nodes)
    return Rule(quantile_fn(nodes), weights)


def by_density(density_fn: Callable, low: float, high: float, num_nodes: int = 500) -> Rule:
    """Returns the rule of a distribution with a smooth density."""
    nodes, weights = legendre(low, high, num_nodes)
    return Rule(nodes, weights * density_fn(nodes))


def truncated(base: Any, low: float = -np.inf, high: float = np.inf) -> Rule:
    """Returns the rule of a distribution of SciPy between two bounds."""
    first, last = base.cdf(low), base.cdf(high)
    return by_quantiles(lambda u: base.ppf(first + u * (last - first)))


def normal(num_nodes: int = 20) -> Rule:
    """Returns the rule of the standard normal distribution."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(num_nodes)
    return Rule(nodes, weights / np.sqrt(2 * np.pi))


def product(transform_fn: Callable, *rules: Rule) -> Rule:
    """Returns the rule of a function of independent values, with its entries on the first axis."""
    grids = np.meshgrid(*(rule.nodes for rule in rules), indexing="ij")
    weights = np.meshgrid(*(rule.weights for rule in rules), indexing="ij")
    values = np.asarray(transform_fn(*(grid.ravel() for grid in grids)))
    return Rule(np.moveaxis(values, -1, 0), np.prod(weights, axis=0).ravel())


def gaussian(mean: Any, covariance: Any) -> Rule:
    """Returns the rule of a vector with a normal distribution; the covariance may be singular."""
    eigenvalues, vectors = np.linalg.eigh(np.asarray(covariance, float))
    is_used = eigenvalues > 1e-12
    factor = vectors[:, is_used] * np.sqrt(eigenvalues[is_used])
    num_nodes = {1: 40, 2: 40, 3: 16, 4: 10}[int(is_used.sum())]
    rules = [normal(num_nodes)] * int(is_used.sum())
    return product(lambda *z: np.asarray(mean)[:, None] + factor @ np.stack(z), *rules)


def mixed(probs: list[float], *rules: Rule) -> Rule:
    """Returns the rule of a mixture."""
    weights = [p * rule.weights for p, rule in zip(probs, rules, strict=True)]
    return Rule(np.concatenate([rule.nodes for rule in rules]), np.concatenate(weights))


def scipy_rule(base: Any) -> Callable[[], Rule]:
    """Returns a function that makes the rule of a distribution of SciPy."""
    return lambda: by_quantiles(base.ppf)


def scipy_sum(base: Any, low: int, high: int) -> Callable[[], Rule]:
    """Returns a function that makes the rule of a discrete distribution of SciPy."""
    values = np.arange(low, high + 1)
    return lambda: Rule(values.astype(float), base.pmf(values))


def same(x: Any) -> Any:
    return x


def line(*coefficients: float) -> Callable:
    """Returns a linear functional of vectors."""
    return lambda x: sum(c * x[..., i] for i, c in enumerate(coefficients))


def matrix_line(*coefficients: tuple[float, float]) -> Callable:
    """Returns a linear functional of matrices with two columns."""
    return lambda x: sum(
        c * x[..., i, j] for i, row in enumerate(coefficients) for j, c in enumerate(row)
    )


class Site(NamedTuple):
    """
    A latent site x and its datum, y ~ Normal(g(x), scale).

    :param make_fn: the distribution of x; a function, since not all versions have them all.
    :param rule_fn: its rule, by formulas of SciPy or of textbooks.
    :param y: the datum.
    :param scale: so wide that draws from the prior have weights of small variance.
    :param g: a function of arrays of NumPy and JAX.
    :param infer: of the site.
    :param reparam: if it takes one.
    :param reach: the largest unconstrained value that matters.
    """

    make_fn: Callable[[], dist.Distribution]
    rule_fn: Callable[[], Rule]
    y: float
    scale: float
    g: Callable = same
    infer: dict | None = None
    reparam: Any = None
    reach: float = 40.0


def log_evidence_of(site: Site) -> float:
    """Returns the exact log evidence of a site."""
    rule = site.rule_fn()
    np.testing.assert_allclose(rule.weights.sum(), 1.0, atol=1e-5)
    log_likelihood = stats.norm.logpdf(site.y, site.g(rule.nodes), site.scale)
    return float(special.logsumexp(log_likelihood, b=rule.weights))


def model_of(sites: dict[str, Site]) -> Callable:
    """Returns a model with these sites, independent of each other."""

    def model() -> None:
        for name, site in sites.items():
            config = {} if site.reparam is None else {name: site.reparam}
            with numpyro.handlers.reparam(config=config):
                x = numpyro.sample(name, site.make_fn(), infer=dict(site.infer or {}))
            numpyro.sample(f"y of {name}", dist.Normal(site.g(x), site.scale), obs=site.y)

    return model


REAL_LINE = {
    "AsymmetricLaplace": Site(
        lambda: dist.AsymmetricLaplace(0.4, 0.8, 1.6),
        scipy_rule(stats.laplace_asymmetric(1.6, 0.4, 0.8)),
        y=-1.2,
        scale=2.0,
    ),
    "AsymmetricLaplaceQuantile": Site(
        lambda: dist.AsymmetricLaplaceQuantile(0.4, 0.5, 0.3),
        # Exponential to the left with mean scale / (1 - q), to the right with scale / q.
        lambda: by_quantiles(
            lambda u: np.where(
                u < 0.3,
                0.4 + 0.5 / 0.7 * np.log(np.minimum(u / 0.3, 1.0)),
                0.4 - 0.5 / 0.3 * np.log(np.minimum((1 - u) / 0.7, 1.0)),
            )
        ),
        y=2.5,
        scale=2.5,
    ),
    "Cauchy": Site(
        lambda: dist.Cauchy(0.5, 0.8),
        scipy_rule(stats.cauchy(0.5, 0.8)),
        y=1.2,
        scale=1.0,
        g=lambda x: x / (1 + x**2) ** 0.5,
        reach=1e5,
    ),
    "Gumbel": Site(
        lambda: dist.Gumbel(0.4, 0.9), scipy_rule(stats.gumbel_r(0.4, 0.9)), y=2.0, scale=1.8
    ),
    "Laplace": Site(
        lambda: dist.Laplace(-0.3, 0.9), scipy_rule(stats.laplace(-0.3, 0.9)), y=1.1, scale=2.0
    ),
    "Logistic": Site(
        lambda: dist.Logistic(0.3, 0.6), scipy_rule(stats.logistic(0.3, 0.6)), y=-0.8, scale=1.8
    ),
    "Normal": Site(
        lambda: dist.Normal(-0.4, 1.3), scipy_rule(stats.norm(-0.4, 1.3)), y=1.1, scale=1.7
    ),
    "SoftLaplace": Site(
        lambda: dist.SoftLaplace(0.3, 0.7), scipy_rule(stats.hypsecant(0.3, 0.7)), y=1.5, scale=1.8
    ),
    "StudentT": Site(
        lambda: dist.StudentT(5.0, 0.3, 0.9), scipy_rule(stats.t(5.0, 0.3, 0.9)), y=1.6, scale=2.0
    ),
    "MaskedDistribution": Site(
        lambda: dist.MaskedDistribution(dist.Normal(0.2, 0.8), True),
        scipy_rule(stats.norm(0.2, 0.8)),
        y=1.1,
        scale=1.2,
    ),
}

POSITIVE = {
    "Chi2": Site(lambda: dist.Chi2(3.5), scipy_rule(stats.chi2(3.5)), y=2.0, scale=4.0),
    "Exponential": Site(
        lambda: dist.Exponential(0.8), scipy_rule(stats.expon(scale=1 / 0.8)), y=2.0, scale=1.5
    ),
    "FoldedDistribution": Site(
        lambda: dist.FoldedDistribution(dist.Normal(0.6, 1.1)),
        lambda: by_density(stats.foldnorm(0.6 / 1.1, scale=1.1).pdf, 0.0, 10.0),
        y=1.9,
        scale=1.1,
    ),
    "Gamma": Site(
        lambda: dist.Gamma(2.5, 1.3), scipy_rule(stats.gamma(2.5, scale=1 / 1.3)), y=3.0, scale=2.0
    ),
    "Gompertz": Site(
        lambda: dist.Gompertz(0.6, 0.8),
        scipy_rule(stats.gompertz(0.6, scale=1 / 0.8)),
        y=1.9,
        scale=1.2,
    ),
    "HalfNormal": Site(
        lambda: dist.HalfNormal(1.4), scipy_rule(stats.halfnorm(scale=1.4)), y=1.9, scale=1.2
    ),
    "InverseGamma": Site(
        lambda: dist.InverseGamma(4.0, 3.0),
        scipy_rule(stats.invgamma(4.0, scale=3.0)),
        y=0.6,
        scale=0.9,
        g=lambda x: x / (1 + 0.2 * x),
    ),
    "LogNormal": Site(
        lambda: dist.LogNormal(0.2, 0.7),
        scipy_rule(stats.lognorm(0.7, scale=np.exp(0.2))),
        y=2.2,
        scale=2.0,
    ),
    "Weibull": Site(
        lambda: dist.Weibull(1.3, 1.7),
        scipy_rule(stats.weibull_min(1.7, scale=1.3)),
        y=1.8,
        scale=1.0,
    ),
    "LeftTruncatedGamma": Site(
        lambda: dist.LeftTruncatedGamma(dist.Gamma(2.0, 1.2), low=0.6),
        lambda: truncated(stats.gamma(2.0, scale=1 / 1.2), low=0.6),
        y=2.9,
        scale=1.8,
    ),
}


def bounded(x: Any) -> Any:
    """A function of positive values with long tails, which has bounds."""
    return x / (1 + x)


LONG_TAILS = {
    "Dagum": Site(
        lambda: dist.Dagum(1.5, 2.5, 0.8),
        scipy_rule(stats.burr(2.5, 1.5, scale=0.8)),
        y=0.8,
        scale=0.4,
        g=bounded,
    ),
    "HalfCauchy": Site(
        lambda: dist.HalfCauchy(0.9),
        scipy_rule(stats.halfcauchy(scale=0.9)),
        y=0.8,
        scale=0.5,
        g=bounded,
    ),
    "Levy": Site(
        lambda: dist.Levy(0.4, 0.7), scipy_rule(stats.levy(0.4, 0.7)), y=0.5, scale=0.4, g=bounded
    ),
    "LowerTruncatedPowerLaw": Site(
        lambda: dist.LowerTruncatedPowerLaw(-2.5, 0.6),
        lambda: by_quantiles(lambda u: 0.6 * (1 - u) ** (-1 / 1.5)),
        y=0.7,
        scale=0.3,
        g=bounded,
    ),
    "Pareto": Site(
        lambda: dist.Pareto(0.7, 2.2),
        scipy_rule(stats.pareto(2.2, scale=0.7)),
        y=0.7,
        scale=0.3,
        g=bounded,
    ),
    "LeftTruncatedDistribution": Site(
        lambda: dist.LeftTruncatedDistribution(dist.Cauchy(0.3, 0.9), low=-0.4),
        lambda: truncated(stats.cauchy(0.3, 0.9), low=-0.4),
        y=0.8,
        scale=0.6,
        g=lambda x: x / (1 + x**2) ** 0.5,
    ),
    "RightTruncatedDistribution": Site(
        lambda: dist.RightTruncatedDistribution(dist.Laplace(0.3, 0.9), high=0.8),
        lambda: truncated(stats.laplace(0.3, 0.9), high=0.8),
        y=0.4,
        scale=1.4,
    ),
    "MixtureGeneral": Site(
        lambda: dist.MixtureGeneral(
            dist.Categorical(jnp.array([0.3, 0.7])),
            [dist.Gamma(3.0, 2.0), dist.LogNormal(0.5, 0.4)],
        ),
        lambda: mixed(
            [0.3, 0.7],
            by_quantiles(stats.gamma(3.0, scale=0.5).ppf),
            by_quantiles(stats.lognorm(0.4, scale=np.exp(0.5)).ppf),
        ),
        y=2.4,
        scale=1.4,
    ),
    "Mixture": Site(
        lambda: dist.Mixture(
            dist.Categorical(jnp.array([0.6, 0.4])),
            [dist.Exponential(1.2), dist.HalfNormal(1.5)],
        ),
        lambda: mixed(
            [0.6, 0.4],
            by_quantiles(stats.expon(scale=1 / 1.2).ppf),
            by_quantiles(stats.halfnorm(scale=1.5).ppf),
        ),
        y=1.7,
        scale=1.2,
    ),
}

BETWEEN_BOUNDS = {
    "Beta": Site(lambda: dist.Beta(2.5, 1.7), scipy_rule(stats.beta(2.5, 1.7)), y=0.3, scale=0.4),
    "BetaProportion": Site(
        lambda: dist.BetaProportion(0.4, 5.0), scipy_rule(stats.beta(2.0, 3.0)), y=0.7, scale=0.35
    ),
    "DoublyTruncatedPowerLaw": Site(
        lambda: dist.DoublyTruncatedPowerLaw(-1.6, 0.5, 3.0),
        lambda: by_quantiles(lambda u: (0.5**-0.6 + u * (3.0**-0.6 - 0.5**-0.6)) ** (-1 / 0.6)),
        y=1.8,
        scale=1.2,
    ),
    "Kumaraswamy": Site(
        lambda: dist.Kumaraswamy(1.8, 2.6),
        lambda: by_quantiles(lambda u: (1 - (1 - u) ** (1 / 2.6)) ** (1 / 1.8)),
        y=0.7,
        scale=0.3,
    ),
    "LogUniform": Site(
        lambda: dist.LogUniform(0.4, 3.0), scipy_rule(stats.loguniform(0.4, 3.0)), y=2.1, scale=1.2
    ),
    "RelaxedBernoulli": Site(
        lambda: dist.RelaxedBernoulli(0.9, probs=0.35),
        lambda: by_quantiles(
            lambda u: special.expit((special.logit(0.35) + special.logit(u)) / 0.9)
        ),
        y=0.8,
        scale=0.5,
    ),
    "RelaxedBernoulliLogits": Site(
        lambda: dist.RelaxedBernoulliLogits(0.8, logits=0.5),
        lambda: by_quantiles(lambda u: special.expit((0.5 + special.logit(u)) / 0.8)),
        y=0.2,
        scale=0.5,
    ),
    "Uniform": Site(
        lambda: dist.Uniform(-0.7, 1.8), scipy_rule(stats.uniform(-0.7, 2.5)), y=1.6, scale=1.1
    ),
    "VonMises": Site(
        lambda: dist.VonMises(0.7, 1.5),
        lambda: by_density(stats.vonmises(1.5, 0.7).pdf, -np.pi, np.pi),
        y=1.8,
        scale=1.8,
    ),
    "TransformedDistribution": Site(
        lambda: dist.TransformedDistribution(
            dist.Beta(2.0, 3.0),
            dist.transforms.AffineTransform(1.0, -2.5, domain=dist.constraints.unit_interval),
        ),
        lambda: by_quantiles(lambda u: 1.0 - 2.5 * stats.beta(2.0, 3.0).ppf(u)),
        y=-0.7,
        scale=0.9,
    ),
}

TRUNCATED = {
    "RightTruncatedGamma": Site(
        lambda: dist.RightTruncatedGamma(dist.Gamma(2.0, 1.2), high=3.0),
        lambda: truncated(stats.gamma(2.0, scale=1 / 1.2), high=3.0),
        y=2.0,
        scale=1.2,
    ),
    "TruncatedCauchy": Site(
        lambda: dist.TruncatedCauchy(0.3, 0.8, low=-0.5, high=4.0),
        lambda: truncated(stats.cauchy(0.3, 0.8), -0.5, 4.0),
        y=1.5,
        scale=1.5,
    ),
    "TruncatedDistribution": Site(
        lambda: dist.TruncatedDistribution(dist.SoftLaplace(0.3, 0.7), low=-0.6, high=1.9),
        lambda: truncated(stats.hypsecant(0.3, 0.7), -0.6, 1.9),
        y=1.2,
        scale=1.0,
    ),
    "TruncatedGamma": Site(
        lambda: dist.TruncatedGamma(2.5, 1.4, low=0.5),
        lambda: truncated(stats.gamma(2.5, scale=1 / 1.4), low=0.5),
        y=2.4,
        scale=1.2,
    ),
    "TruncatedNormal": Site(
        lambda: dist.TruncatedNormal(0.4, 1.2, low=-0.3),
        lambda: truncated(stats.norm(0.4, 1.2), low=-0.3),
        y=1.9,
        scale=1.3,
    ),
    # Density and draws are NumPyro's approximations: eight terms of an infinite sum, with a mean
    # of 0.244 instead of 0.25. With a datum so wide that moves the log evidence by 0.002.
    "TruncatedPolyaGamma": Site(
        lambda: dist.TruncatedPolyaGamma(), lambda: by_density(polya_gamma, 1e-3, 2.5), 0.5, 1.0
    ),
    "TwoSidedTruncatedDistribution": Site(
        lambda: dist.TwoSidedTruncatedDistribution(dist.Logistic(0.3, 0.8), low=-0.8, high=2.5),
        lambda: truncated(stats.logistic(0.3, 0.8), -0.8, 2.5),
        y=1.6,
        scale=1.2,
    ),
    "TwoSidedTruncatedGamma": Site(
        lambda: dist.TwoSidedTruncatedGamma(dist.Gamma(1.8, 0.9), low=0.4, high=3.0),
        lambda: truncated(stats.gamma(1.8, scale=1 / 0.9), 0.4, 3.0),
        y=2.0,
        scale=1.1,
    ),
}


def polya_gamma(x: np.ndarray) -> np.ndarray:
    """Returns the density of PG(1, 0), an alternating series."""
    odd = 2.0 * np.arange(60)[:, None] + 1.0
    signs = np.where(np.arange(60) % 2, -1.0, 1.0)[:, None]
    return np.sum(signs * odd * np.exp(-(odd**2) / (8 * x)), 0) / np.sqrt(2 * np.pi * x**3)


COVARIANCE = np.array([[1.2, 0.5], [0.5, 0.8]])
ADJACENCY = np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
TRANSITION = np.array([[0.8, 0.3], [-0.2, 0.6]])
LOC = np.array([0.4, -0.6])
LOC3 = np.array([0.4, -0.6, 0.2])


def car_covariance() -> np.ndarray:
    return np.linalg.inv(1.3 * (np.diag(ADJACENCY.sum(0)) - 0.6 * ADJACENCY))


def state_space() -> Rule:
    """Returns the rule of two steps of a linear recursion from (0.5, -0.3), as matrices."""
    zero = np.zeros((2, 2))
    powers = np.block([[np.eye(2), zero], [TRANSITION, np.eye(2)]])
    covariance = powers @ np.kron(np.eye(2), 0.5 * COVARIANCE) @ powers.T
    first = TRANSITION @ np.array([0.5, -0.3])
    rule = gaussian(np.concatenate([first, TRANSITION @ first]), covariance)
    return Rule(rule.nodes.reshape(-1, 2, 2), rule.weights)


def diffusion(x: Any, _: Any) -> tuple[Any, Any]:
    """Returns drift and spread, both of which depend on the state."""
    return 0.4 - 0.8 * x, 0.5 + 0.2 / (1 + x**2)


def diffusion_rule() -> Rule:
    """Returns the rule of the path at the times 0, 0.5 and 1.3."""

    def path(*z: np.ndarray) -> list[np.ndarray]:
        states = [0.5 + 0.6 * z[0]]
        for width, noise in zip((0.5, 0.8), z[1:], strict=True):
            drift, spread = diffusion(states[-1], None)
            states.append(states[-1] + width * drift + np.sqrt(width) * spread * noise)
        return states

    return product(path, normal(), normal(), normal())


NORMAL_VECTORS = {
    "CAR": Site(
        lambda: dist.CAR(LOC3, 0.6, 1.3, ADJACENCY),
        lambda: gaussian(LOC3, car_covariance()),
        y=1.5,
        scale=1.2,
        g=line(1.0, -0.6, 0.3),
    ),
    "CirculantNormal": Site(
        lambda: dist.CirculantNormal(jnp.array(LOC3), jnp.array([1.0, 0.4, 0.4])),
        lambda: gaussian(LOC3, 0.6 * np.eye(3) + 0.4),
        y=1.5,
        scale=1.5,
        g=line(1.0, -0.6, 0.3),
    ),
    "EulerMaruyama": Site(
        lambda: dist.EulerMaruyama(np.array([0.0, 0.5, 1.3]), diffusion, dist.Normal(0.5, 0.6)),
        diffusion_rule,
        y=1.3,
        scale=1.2,
        g=line(0.5, -0.4, 1.0),
    ),
    "GaussianRandomWalk": Site(
        lambda: dist.GaussianRandomWalk(0.7, 3),
        lambda: gaussian(np.zeros(3), 0.49 * np.minimum.outer(np.arange(1, 4), np.arange(1, 4))),
        y=1.2,
        scale=1.4,
        g=line(0.5, -0.4, 1.0),
    ),
    "GaussianStateSpace": Site(
        lambda: dist.GaussianStateSpace(
            2,
            jnp.array(TRANSITION),
            covariance_matrix=jnp.array(0.5 * COVARIANCE),
            initial_value=jnp.array([0.5, -0.3]),
        ),
        state_space,
        y=1.2,
        scale=1.3,
        g=matrix_line((0.5, -0.4), (1.0, 0.3)),
    ),
    "LowRankMultivariateNormal": Site(
        lambda: dist.LowRankMultivariateNormal(
            jnp.array(LOC3), jnp.array([[0.6], [-0.3], [0.5]]), jnp.array([0.5, 0.8, 0.3])
        ),
        lambda: gaussian(
            LOC3, np.outer([0.6, -0.3, 0.5], [0.6, -0.3, 0.5]) + np.diag([0.5, 0.8, 0.3])
        ),
        y=1.6,
        scale=1.3,
        g=line(1.0, -0.6, 0.3),
    ),
    "MatrixNormal": Site(
        lambda: dist.MatrixNormal(
            jnp.array([[0.3, -0.2], [0.5, 0.1]]),
            jnp.array(np.linalg.cholesky(COVARIANCE)),
            jnp.array([[0.8, 0.0], [-0.3, 0.6]]),
        ),
        lambda: Rule(
            (
                rule := gaussian(
                    [0.3, -0.2, 0.5, 0.1], np.kron(COVARIANCE, [[0.64, -0.24], [-0.24, 0.45]])
                )
            ).nodes.reshape(-1, 2, 2),
            rule.weights,
        ),
        y=1.4,
        scale=1.4,
        g=matrix_line((1.0, -0.4), (0.5, 0.3)),
    ),
    "MultivariateNormal": Site(
        lambda: dist.MultivariateNormal(jnp.array(LOC), covariance_matrix=jnp.array(COVARIANCE)),
        lambda: gaussian(LOC, COVARIANCE),
        y=1.6,
        scale=1.3,
        g=line(1.0, -0.6),
    ),
    "MultivariateStudentT": Site(
        lambda: dist.MultivariateStudentT(
            6.0, jnp.array(LOC), jnp.array(np.linalg.cholesky(COVARIANCE))
        ),
        lambda: product(
            lambda a, b, c: LOC[:, None] + np.linalg.cholesky(COVARIANCE) @ [a, b] / np.sqrt(c / 6),
            normal(30),
            normal(30),
            by_quantiles(stats.chi2(6.0).ppf, 60),
        ),
        y=1.6,
        scale=1.6,
        g=line(1.0, -0.6),
    ),
    "ZeroSumNormal": Site(
        lambda: dist.ZeroSumNormal(0.9, event_shape=(3,)),
        lambda: gaussian(np.zeros(3), 0.81 * (np.eye(3) - 1 / 3)),
        y=1.2,
        scale=1.1,
        g=line(1.0, -0.6, 0.3),
    ),
}


def wishart(to_value_fn: Callable) -> Rule:
    """
    Returns the rule of a function of the Cholesky factor of a Wishart matrix with 5.5 degrees of
    freedom, by Bartlett's decomposition.
    """
    left = np.linalg.cholesky(0.3 * COVARIANCE)

    def value(first: np.ndarray, last: np.ndarray, below: np.ndarray) -> np.ndarray:
        zero = np.zeros_like(below)
        bartlett = np.array([[np.sqrt(first), zero], [below, np.sqrt(last)]])
        return np.moveaxis(to_value_fn(left @ np.moveaxis(bartlett, -1, 0)), 0, -1)

    squares = [by_quantiles(stats.chi2(df).ppf, 60) for df in (5.5, 4.5)]
    return product(value, *squares, normal(30))


def square(factor: np.ndarray) -> np.ndarray:
    return factor @ np.swapaxes(factor, -1, -2)


def inverse_square(factor: np.ndarray) -> np.ndarray:
    return np.linalg.inv(square(factor))


def inverse_factor(factor: np.ndarray) -> np.ndarray:
    return np.linalg.cholesky(inverse_square(factor))


def correlations(to_value_fn: Callable) -> Rule:
    """
    Returns the rule of a function of the Cholesky factor of an LKJ matrix of three rows, with
    concentration 2.5, by the beta distributions of its partial correlations.
    """

    def value(r12: np.ndarray, r13: np.ndarray, partial: np.ndarray) -> np.ndarray:
        zero, rest = np.zeros_like(r12), np.sqrt(1 - r13**2)
        rows = [
            [np.ones_like(r12), zero, zero],
            [r12, np.sqrt(1 - r12**2), zero],
            [r13, rest * partial, rest * np.sqrt(1 - partial**2)],
        ]
        return np.moveaxis(to_value_fn(np.moveaxis(np.array(rows), -1, 0)), 0, -1)

    rules = [by_quantiles(stats.beta(a, a, -1, 2).ppf, 40) for a in (3.0, 3.0, 2.5)]
    return product(value, *rules)


def simplex() -> Rule:
    """Returns the rule of a Dirichlet distribution, by breaking a stick."""
    first, second = stats.beta(1.5, 5.5), stats.beta(2.5, 3.0)
    return product(
        lambda a, b: [a, (1 - a) * b, (1 - a) * (1 - b)],
        by_quantiles(first.ppf, 100),
        by_quantiles(second.ppf, 100),
    )


CORRELATION = np.array([[1.0, 0.6], [0.6, 1.0]])


def copula(*marginals: Any) -> Rule:
    """Returns the rule of two values with a Gaussian copula."""
    rule = gaussian(np.zeros(2), CORRELATION)
    probs = np.minimum(special.ndtr(rule.nodes), 1 - 1e-15)
    return Rule(
        np.stack([m.ppf(p) for m, p in zip(marginals, probs.T, strict=True)], -1), rule.weights
    )


def torus(density_fn: Callable) -> Rule:
    """Returns the rule of two angles with this density."""
    angles = legendre(-np.pi, np.pi, 80)
    rule = product(lambda a, b: [a, b], angles, angles)
    return Rule(rule.nodes, rule.weights * density_fn(*rule.nodes.T))


def sine_density(phi: np.ndarray, psi: np.ndarray) -> np.ndarray:
    """Returns the density of SineBivariateVonMises, normalised by the series of its constant."""
    a, b, rho = 1.8, 1.2, 0.7
    i = np.arange(40)
    terms = special.binom(2 * i, i) * (rho**2 / (4 * a * b)) ** i
    constant = 4 * np.pi**2 * np.sum(terms * special.iv(i, a) * special.iv(i, b))
    x, y = phi - 0.4, psi + 0.6
    return np.exp(a * np.cos(x) + b * np.cos(y) + rho * np.sin(x) * np.sin(y)) / constant


def skewed_density(phi: np.ndarray, psi: np.ndarray) -> np.ndarray:
    """Returns the density of two independent angles, times one plus weighted sines."""
    base = stats.vonmises(1.5, 0.4).pdf(phi) * stats.vonmises(1.0, -0.6).pdf(psi)
    return base * (1 + 0.5 * np.sin(phi - 0.4) - 0.3 * np.sin(psi + 0.6))


def direction_rule() -> Rule:
    """Returns the rule of a normal vector divided by its length."""
    nodes, weights = legendre(-np.pi, np.pi, 200)
    along = 1.0 * np.cos(nodes) + 0.4 * np.sin(nodes)
    # The integral over the length, in closed form.
    density = (
        np.exp(-0.58) / (2 * np.pi) * (1 + along * special.ndtr(along) / stats.norm.pdf(along))
    )
    return Rule(np.stack([np.cos(nodes), np.sin(nodes)], -1), weights * density)


MATRICES = {
    "InverseWishart": Site(
        # Its scale is the inverse of the scale of the Wishart matrix.
        lambda: dist.InverseWishart(5.5, scale_matrix=jnp.linalg.inv(0.3 * COVARIANCE)),
        lambda: wishart(inverse_square),
        y=1.2,
        scale=1.5,
        g=matrix_line((1.0, -0.6), (0.0, 0.3)),
        reach=15.0,
    ),
    "InverseWishartCholesky": Site(
        lambda: dist.InverseWishartCholesky(5.5, scale_matrix=jnp.linalg.inv(0.3 * COVARIANCE)),
        lambda: wishart(inverse_factor),
        y=1.2,
        scale=1.0,
        g=matrix_line((1.0, 0.0), (-0.6, 0.3)),
    ),
    "Wishart": Site(
        lambda: dist.Wishart(5.5, scale_matrix=jnp.array(0.3 * COVARIANCE)),
        lambda: wishart(square),
        y=1.9,
        scale=1.5,
        g=matrix_line((1.0, -0.6), (0.0, 0.3)),
        reach=8.0,
    ),
    "WishartCholesky": Site(
        lambda: dist.WishartCholesky(5.5, scale_matrix=jnp.array(0.3 * COVARIANCE)),
        lambda: wishart(same),
        y=1.9,
        scale=0.8,
        g=matrix_line((1.0, 0.0), (-0.6, 0.3)),
    ),
    "LKJ": Site(
        lambda: dist.LKJ(3, 2.5),
        lambda: correlations(square),
        y=0.8,
        scale=0.7,
        g=lambda x: x[..., 1, 0] - 0.6 * x[..., 2, 0] + 0.4 * x[..., 2, 1],
        reach=8.0,
    ),
    "LKJCholesky": Site(
        lambda: dist.LKJCholesky(3, 2.5),
        lambda: correlations(same),
        y=0.8,
        scale=0.7,
        g=lambda x: x[..., 1, 0] - 0.6 * x[..., 2, 0] + 0.4 * x[..., 2, 2],
    ),
}

VECTORS = {
    "Dirichlet": Site(
        lambda: dist.Dirichlet(jnp.array([1.5, 2.5, 3.0])),
        simplex,
        y=0.5,
        scale=0.3,
        g=line(1.0, -0.6, 0.3),
    ),
    "GaussianCopula": Site(
        lambda: dist.GaussianCopula(
            dist.Exponential(jnp.array([0.8, 1.4])), correlation_matrix=jnp.array(CORRELATION)
        ),
        lambda: copula(stats.expon(scale=1 / 0.8), stats.expon(scale=1 / 1.4)),
        y=1.8,
        scale=1.4,
        g=line(1.0, -0.6),
    ),
    "GaussianCopulaBeta": Site(
        lambda: dist.GaussianCopulaBeta(
            jnp.array([2.0, 3.0]),
            jnp.array([3.0, 1.5]),
            correlation_cholesky=jnp.array(np.linalg.cholesky(CORRELATION)),
        ),
        lambda: copula(stats.beta(2.0, 3.0), stats.beta(3.0, 1.5)),
        y=0.4,
        scale=0.3,
        g=line(1.0, -0.6),
    ),
    "SineBivariateVonMises": Site(
        lambda: dist.SineBivariateVonMises(0.4, -0.6, 1.8, 1.2, correlation=0.7),
        lambda: torus(sine_density),
        y=1.8,
        scale=1.8,
        g=line(1.0, -0.6),
    ),
    "SineSkewed": Site(
        lambda: dist.SineSkewed(
            dist.VonMises(jnp.array([0.4, -0.6]), jnp.array([1.5, 1.0])).to_event(1),
            jnp.array([0.5, -0.3]),
        ),
        lambda: torus(skewed_density),
        y=1.8,
        scale=1.8,
        g=line(1.0, -0.6),
    ),
    "ExpandedDistribution": Site(
        lambda: dist.ExpandedDistribution(dist.Gamma(2.5, 1.3), (2,)),
        lambda: product(
            lambda a, b: [a, b], *[by_quantiles(stats.gamma(2.5, scale=1 / 1.3).ppf, 100)] * 2
        ),
        y=1.9,
        scale=2.0,
        g=line(1.0, -0.6),
    ),
    "Independent": Site(
        lambda: dist.Independent(dist.Beta(jnp.array([2.0, 3.0]), 2.5), 1),
        lambda: product(
            lambda a, b: [a, b],
            by_quantiles(stats.beta(2.0, 2.5).ppf, 100),
            by_quantiles(stats.beta(3.0, 2.5).ppf, 100),
        ),
        y=0.5,
        scale=0.3,
        g=line(1.0, -0.6),
    ),
    "MixtureSameFamily": Site(
        lambda: dist.MixtureSameFamily(
            dist.Categorical(jnp.array([0.3, 0.7])),
            dist.Beta(jnp.array([1.5, 4.0]), jnp.array([3.0, 2.0])),
        ),
        lambda: mixed(
            [0.3, 0.7],
            by_quantiles(stats.beta(1.5, 3.0).ppf),
            by_quantiles(stats.beta(4.0, 2.0).ppf),
        ),
        y=0.2,
        scale=0.4,
    ),
    "ProjectedNormal (reparametrised)": Site(
        lambda: dist.ProjectedNormal(jnp.array([1.0, 0.4])),
        direction_rule,
        y=-0.5,
        scale=0.9,
        g=line(1.0, -0.6),
        reparam=ProjectedNormalReparam(),
    ),
}

PARALLEL = {"enumerate": "parallel"}
PROBS = np.array([0.2, 0.5, 0.3])


def table_sum(probs: Any) -> Callable[[], Rule]:
    """Returns a function that makes the rule of 0, 1, ... with these probabilities."""
    return lambda: Rule(np.arange(len(probs), dtype=float), np.asarray(probs, float))


def zero_inflated(gate: float, base: Any, high: int) -> Callable[[], Rule]:
    """Returns a function that makes the rule of a distribution with additional zeros."""
    probs = (1 - gate) * base.pmf(np.arange(high + 1))
    probs[0] += gate
    return table_sum(probs)


def enumerated(
    make_fn: Callable, rule_fn: Callable[[], Rule], y: float, scale: float = 1.2
) -> Site:
    return Site(make_fn, rule_fn, y, scale, infer=PARALLEL)


ENUMERATED = {
    "Bernoulli": enumerated(lambda: dist.Bernoulli(0.3), table_sum([0.7, 0.3]), 0.9),
    "BernoulliLogits": enumerated(
        lambda: dist.BernoulliLogits(0.4), table_sum([special.expit(-0.4), special.expit(0.4)]), 0.2
    ),
    "BernoulliProbs": enumerated(lambda: dist.BernoulliProbs(0.6), table_sum([0.4, 0.6]), 0.1),
    "BetaBinomial": enumerated(
        lambda: dist.BetaBinomial(2.0, 3.0, 4), scipy_sum(stats.betabinom(4, 2.0, 3.0), 0, 4), 3.0
    ),
    "Binomial": enumerated(
        lambda: dist.Binomial(3, 0.3), scipy_sum(stats.binom(3, 0.3), 0, 3), 2.1
    ),
    "BinomialLogits": enumerated(
        lambda: dist.BinomialLogits(0.4, 3),
        scipy_sum(stats.binom(3, special.expit(0.4)), 0, 3),
        0.7,
    ),
    "BinomialProbs": enumerated(
        lambda: dist.BinomialProbs(0.6, 4), scipy_sum(stats.binom(4, 0.6), 0, 4), 1.2
    ),
    "Categorical": enumerated(lambda: dist.Categorical(jnp.array(PROBS)), table_sum(PROBS), 1.7),
    "CategoricalLogits": enumerated(
        lambda: dist.CategoricalLogits(jnp.array([0.3, -0.5, 0.8])),
        table_sum(special.softmax([0.3, -0.5, 0.8])),
        0.2,
    ),
    "CategoricalProbs": enumerated(
        lambda: dist.CategoricalProbs(jnp.array(PROBS[::-1])), table_sum(PROBS[::-1]), 1.9
    ),
    "DiscreteUniform": enumerated(
        lambda: dist.DiscreteUniform(0, 3), scipy_sum(stats.randint(0, 4), 0, 3), 2.3
    ),
    "OrderedLogistic": enumerated(
        lambda: dist.OrderedLogistic(0.3, jnp.array([-0.5, 0.8])),
        table_sum(np.diff(np.concatenate([[0.0], special.expit([-0.8, 0.5]), [1.0]]))),
        1.6,
    ),
    "ZeroInflatedDistribution": enumerated(
        lambda: dist.ZeroInflatedDistribution(dist.Bernoulli(0.8), gate=0.25),
        zero_inflated(0.25, stats.bernoulli(0.8), 1),
        0.8,
    ),
    "ZeroInflatedLogits": enumerated(
        lambda: dist.ZeroInflatedLogits(dist.Binomial(3, 0.6), gate_logits=-0.7),
        zero_inflated(special.expit(-0.7), stats.binom(3, 0.6), 3),
        2.2,
    ),
    "ZeroInflatedProbs": enumerated(
        lambda: dist.ZeroInflatedProbs(dist.Binomial(3, 0.4), 0.3),
        zero_inflated(0.3, stats.binom(3, 0.4), 3),
        1.9,
    ),
}


CONTINUOUS = {
    **REAL_LINE,
    **POSITIVE,
    **LONG_TAILS,
    **BETWEEN_BOUNDS,
    **TRUNCATED,
    **NORMAL_VECTORS,
    **MATRICES,
    **VECTORS,
}


class Refusal(NamedTuple):
    """A distribution that cannot be that of a latent site ``x``, and the error."""

    make_fn: Callable[[], dist.Distribution]
    message: str


def endless(make_fn: Callable, name: str) -> Refusal:
    """A discrete distribution that is not enumerated."""
    return Refusal(make_fn, rf"'x' is discrete \({name}\) and cannot be enumerated\. Sum it out")


ATOM = r"'x' \(\w+\) is zero with a positive probability .* Give the zero a site of its own"
CENSORED = r"'x' has an? \w+CensoredDistribution, which is for data.* Give it the base distribution"

REFUSED = {
    "BetaNegativeBinomial": endless(
        lambda: dist.BetaNegativeBinomial(2.0, 3.0, 4.0), "BetaNegativeBinomial"
    ),
    "Delta": Refusal(lambda: dist.Delta(1.5), r"'x' has a Delta .*numpyro\.deterministic"),
    "DirichletMultinomial": endless(
        lambda: dist.DirichletMultinomial(jnp.array([1.5, 2.5]), 3), "DirichletMultinomial"
    ),
    "DiscreteUniform (not from zero)": Refusal(
        lambda: dist.DiscreteUniform(1, 4),
        r"'x' is discrete with values from 1 on.* DiscreteUniform\(0, high - low\)",
    ),
    "GammaPoisson": endless(lambda: dist.GammaPoisson(2.0, 1.5), "GammaPoisson"),
    "Geometric": endless(lambda: dist.Geometric(0.3), "GeometricProbs"),
    "GeometricLogits": endless(lambda: dist.GeometricLogits(0.3), "GeometricLogits"),
    "GeometricProbs": endless(lambda: dist.GeometricProbs(0.3), "GeometricProbs"),
    "HurdleDistribution": Refusal(
        lambda: dist.HurdleDistribution(dist.Weibull(1.3, 1.7), gate=0.3), ATOM
    ),
    "HurdleGamma": Refusal(lambda: dist.HurdleGamma(0.3, 2.0, 1.5), ATOM),
    "HurdleLogNormal": Refusal(lambda: dist.HurdleLogNormal(0.3, 0.2, 0.5), ATOM),
    "HurdleLogits": Refusal(lambda: dist.HurdleLogits(dist.Exponential(0.8), -0.7), ATOM),
    "HurdleLogits (discrete)": endless(
        lambda: dist.HurdleLogits(dist.Poisson(2.0), -0.7), "HurdleLogits"
    ),
    "HurdleNegativeBinomial2": endless(
        lambda: dist.HurdleNegativeBinomial2(0.3, 2.0, 1.5), "HurdleProbs"
    ),
    "HurdlePoisson": endless(lambda: dist.HurdlePoisson(0.3, 2.0), "HurdlePoisson"),
    # NumPyro enumerates no hurdle, even if its base has a finite support.
    "HurdleProbs": endless(lambda: dist.HurdleProbs(dist.Binomial(3, 0.4), 0.3), "HurdleProbs"),
    "ImproperUniform": Refusal(
        lambda: dist.ImproperUniform(dist.constraints.positive, (), ()),
        r"'x' has an improper prior.* Give it a proper prior",
    ),
    "IntervalCensoredDistribution": Refusal(
        lambda: dist.IntervalCensoredDistribution(dist.Normal(0.3, 1.2), False, False), CENSORED
    ),
    "LeftCensoredDistribution": Refusal(
        lambda: dist.LeftCensoredDistribution(dist.Normal(0.3, 1.2), True), CENSORED
    ),
    "MaskedDistribution (hidden)": Refusal(
        lambda: dist.MaskedDistribution(dist.Normal(0.3, 1.2), False), "'x' is masked.*obs_mask"
    ),
    "Mixture (discrete)": endless(
        lambda: dist.Mixture(
            dist.Categorical(jnp.array(PROBS[:2] / 0.7)), [dist.Poisson(1.0), dist.Geometric(0.4)]
        ),
        "MixtureGeneral",
    ),
    "Multinomial": endless(lambda: dist.Multinomial(3, probs=jnp.array(PROBS)), "MultinomialProbs"),
    "MultinomialLogits": endless(
        lambda: dist.MultinomialLogits(jnp.array(PROBS), 3), "MultinomialLogits"
    ),
    "MultinomialProbs": endless(
        lambda: dist.MultinomialProbs(jnp.array(PROBS), 3), "MultinomialProbs"
    ),
    "NegativeBinomial": endless(
        lambda: dist.NegativeBinomial(3.0, probs=0.4), "NegativeBinomialProbs"
    ),
    "NegativeBinomial2": endless(lambda: dist.NegativeBinomial2(2.0, 1.5), "NegativeBinomial2"),
    "NegativeBinomialLogits": endless(
        lambda: dist.NegativeBinomialLogits(3.0, 0.4), "NegativeBinomialLogits"
    ),
    "NegativeBinomialProbs": endless(
        lambda: dist.NegativeBinomialProbs(3.0, 0.4), "NegativeBinomialProbs"
    ),
    "Poisson": endless(lambda: dist.Poisson(2.0), "Poisson"),
    # NumPyro has no map from vectors to the sphere; the remedy has an evidence above.
    "ProjectedNormal": Refusal(
        lambda: dist.ProjectedNormal(jnp.array([1.0, 0.4])),
        r"spherical sample site 'x'.*handlers\.reparam\(config=.*ProjectedNormalReparam",
    ),
    "RightCensoredDistribution": Refusal(
        lambda: dist.RightCensoredDistribution(dist.Normal(0.3, 1.2), True), CENSORED
    ),
    "Unit": Refusal(lambda: dist.Unit(0.7), r"'x' has a Unit .*numpyro\.factor"),
    "ZeroInflatedNegativeBinomial2": endless(
        lambda: dist.ZeroInflatedNegativeBinomial2(2.0, 1.5, gate=0.3), "ZeroInflatedProbs"
    ),
    "ZeroInflatedPoisson": endless(
        lambda: dist.ZeroInflatedPoisson(0.3, 2.0), "ZeroInflatedPoisson"
    ),
}

NO_DISTRIBUTIONS = {
    "Distribution": "the class that all others are derived from; it cannot be drawn from",
    "biject_to": "a registry of maps to supports",
    "constraints": "a module of supports",
    "kl_divergence": "a function of two distributions",
    "transforms": "a module of maps",
}


def is_installed(entry: str) -> bool:
    """Returns whether this version of NumPyro has the distribution of an entry."""
    # NumPyro draws from it with functions of another library, which is optional.
    if entry == "GaussianCopulaBeta" and find_spec("tensorflow_probability") is None:
        return False
    return entry.split(" ")[0] in dist.__all__


def installed(table: dict[str, Any]) -> list[str]:
    """Returns the entries of a table that are tested."""
    return [entry for entry in table if is_installed(entry)]


def test_every_name_has_an_entry():
    """Each name of NumPyro's is in one of the tables, and no entry is there twice."""
    entries = [*CONTINUOUS, *ENUMERATED, *REFUSED, *NO_DISTRIBUTIONS]
    assert len(entries) == len(set(entries))
    assert set(dist.__all__) - {entry.split(" ")[0] for entry in entries} == set()


def grid(num_dims: int, reach: float) -> tuple[jax.Array, np.ndarray]:
    """
    Returns positions and the logs of their weights: the trapezoidal rule after a substitution that
    puts most of them near zero, in each dimension.
    """
    num_nodes = {1: 1000, 2: 64, 3: 32, 4: 20}[num_dims]
    nodes, spacing = np.linspace(-np.arcsinh(reach), np.arcsinh(reach), num_nodes, retstep=True)
    rules = [Rule(np.sinh(nodes), np.cosh(nodes) * spacing)] * num_dims
    rule = product(lambda *u: list(u), *rules)
    return jnp.asarray(rule.nodes), np.log(rule.weights)


TFP = pytest.mark.filterwarnings("ignore:jax.core.pytype_aval_mappings:DeprecationWarning")


@TFP
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("entry", installed(CONTINUOUS))
def test_densities_and_draws_have_the_exact_evidence(entry):
    """
    Over unconstrained values the prior integrates to one, and prior times likelihood to the
    evidence: a Jacobian that is missing, or has the wrong sign, shows in full. At draws from the
    prior the likelihood has the evidence as its mean, within five standard errors.
    """
    site = CONTINUOUS[entry]
    target = make_target(Problem(model_of({entry: site})))

    @jax.jit
    def evaluate(rng_key):
        draws = jax.vmap(target.sample_fn)(random.split(rng_key, NUM_DRAWS))
        positions, log_weights = grid(draws.shape[-1], site.reach)
        densities = jax.vmap(target.log_densities_fn)(jnp.concatenate([draws, positions]))
        return *densities, log_weights

    log_start, log_ratio, log_weights = jax.tree.map(np.asarray, evaluate(random.key(1)))
    assert np.all(np.isfinite(log_start[:NUM_DRAWS]))
    exact = log_evidence_of(site)
    assert_unbiased(log_ratio[:NUM_DRAWS], exact)
    log_prior = log_start[NUM_DRAWS:] + log_weights
    assert abs(special.logsumexp(log_prior)) < 1e-3
    assert abs(special.logsumexp(log_prior + log_ratio[NUM_DRAWS:]) - exact) < 1e-3


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("entry", installed(ENUMERATED))
def test_enumerated_sites_are_summed_exactly(entry):
    """The likelihood of a site that is summed out is its evidence, wherever the others are."""
    site = ENUMERATED[entry]

    def model():
        numpyro.sample("other", dist.Gamma(2.0, 3.0))
        model_of({entry: site})()

    log_densities_fn = jax.jit(make_target(Problem(model)).log_densities_fn)
    log_start, log_ratio = log_densities_fn(jnp.array([0.4]))
    np.testing.assert_allclose(log_ratio, log_evidence_of(site), rtol=1e-9)
    prior = stats.gamma.logpdf(np.exp(0.4), 2.0, scale=1 / 3) + 0.4
    np.testing.assert_allclose(log_start, prior, rtol=1e-9)


# Their supports: one bound, fixed or a parameter; two bounds; a simplex; a subspace.
TOGETHER = {
    entry: CONTINUOUS[entry]
    for entry in (
        "Weibull",
        "Pareto",
        "Kumaraswamy",
        "Dirichlet",
        "ZeroSumNormal",
    )
}
# Moving far enough that a Jacobian that is missing shows: it takes the log evidence down by 0.3.
STEP_SIZES = {"at rest": 1e-9, "moving": 0.3}


@cache
def together() -> Callable:
    """Returns a model with all of these sites, the same one each time."""
    return model_of(TOGETHER)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("step_size", STEP_SIZES.values(), ids=STEP_SIZES)
def test_estimates_are_unbiased(step_size):
    """
    The evidence of a model with sites on all kinds of supports is the product of theirs. At rest,
    chains are importance sampling from the prior, in the same program.
    """
    dais = DAIS(
        together(), num_steps=8, step_size=step_size, damping=0.9, num_particles=5000, start="prior"
    )
    evidence = dais.log_evidence(random.key(2))
    exact = sum(log_evidence_of(site) for site in TOGETHER.values())
    assert evidence.standard_error < 0.02
    assert abs(float(evidence) - exact) < 5 * evidence.standard_error


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("entry", installed(REFUSED))
def test_refusals_name_the_site_and_the_remedy(entry):
    """A distribution that is not for latent sites is refused, and so is one in a plate."""
    refusal = REFUSED[entry]

    def model():
        numpyro.sample("mu", dist.Normal(0.0, 1.0))
        numpyro.sample("x", refusal.make_fn(), infer=PARALLEL)

    def model_with_plate():
        with numpyro.plate("rows", 2):
            model()

    for fn in (model, model_with_plate):
        with pytest.raises(ValueError, match=f"(?s){refusal.message}"):
            DAIS(fn, num_steps=1, step_size=0.1, num_particles=4).log_evidence(random.key(0))


@pytest.mark.parametrize("name", installed(NO_DISTRIBUTIONS))
def test_the_rest_are_no_distributions(name):
    """The entries without a test of their own are what the table says."""
    thing = getattr(dist, name)
    if thing is dist.Distribution:
        with pytest.raises(NotImplementedError):
            thing().sample(random.key(0))
    else:
        assert not (isinstance(thing, type) and issubclass(thing, dist.Distribution))
