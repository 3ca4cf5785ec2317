# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Mixtures that follow their own weighted draws, and targets with many modes that need them."""

import warnings

from jax import random
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

import numpyro
import numpyro.distributions as dist

from numpyro_dais import DAIS
from numpyro_dais.tuning.adaptation import Gaussians, adapted, gaussians_of, mixture_of

MODES = Gaussians(
    np.log([0.3, 0.7]),
    np.array([[0.0, 1.0], [4.0, -2.0]]),
    np.array([[[1.0, 0.4], [0.4, 0.5]], [[0.3, -0.1], [-0.1, 2.0]]]),
)


def log_density_of(modes, draws):
    parts = [
        stats.multivariate_normal(mean, covariance).logpdf(draws) + log_share
        for log_share, mean, covariance in zip(*modes, strict=True)
    ]
    return np.logaddexp.reduce(parts)


def test_moments_of_a_mixture_are_those_that_it_was_made_of(x64):
    again = gaussians_of(mixture_of(MODES, jnp.arange(2)))
    for one, other in zip(again, MODES, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10)


def test_a_mixture_comes_to_its_target():
    """From other shares, means and widths; what moments of 20,000 weighted draws cannot know is left."""
    rng = np.random.default_rng(0)
    modes = Gaussians(
        np.log([0.6, 0.4]), MODES.means + 0.7, 2.0 * np.broadcast_to(np.eye(2), (2, 2, 2))
    )
    for _ in range(4):
        which = rng.choice(2, size=20_000, p=np.exp(modes.log_shares))
        lower = np.linalg.cholesky(modes.covariances)[which]
        draws = modes.means[which] + np.einsum("nij,nj->ni", lower, rng.normal(size=(20_000, 2)))
        log_weights = log_density_of(MODES, draws) - log_density_of(modes, draws)
        # A draw whose weight or place is not a number has no say.
        log_weights[:2], draws[2] = np.nan, np.inf
        modes = adapted(modes, draws, log_weights)
    np.testing.assert_allclose(np.exp(modes.log_shares), [0.3, 0.7], atol=0.03)
    np.testing.assert_allclose(modes.means, MODES.means, atol=0.06)
    np.testing.assert_allclose(modes.covariances, MODES.covariances, atol=0.1)


def eggbox():
    x = numpyro.sample("x", dist.Uniform(0.0, 10 * jnp.pi).expand([2]).to_event(1))
    numpyro.factor("peaks", (2 + jnp.prod(jnp.cos(x / 2))) ** 5)


def test_peaks_at_the_edge_of_a_prior_count_as_others_do():
    """Eighteen peaks, eight of them at an edge, two at a corner; quadrature over one period."""
    nodes = np.linspace(0, 2 * np.pi, 401)
    values = (2 + np.cos(nodes[:, None]) * np.cos(nodes)) ** 5
    inner = integrate.trapezoid(np.exp(values - 243), nodes, axis=1)
    exact = 243 + np.log(integrate.trapezoid(inner, nodes) / (2 * np.pi) ** 2)
    # Five half periods along each side: as many maxima as in an even number of them.
    evidence = DAIS(eggbox).log_evidence(random.key(1))
    error = max(float(evidence.standard_error), 2e-3)
    assert abs(float(evidence) - exact) < 5 * error
    assert evidence.settings.start.num_modes == 18
    assert "have met 18 modes" in evidence.settings.decision.lines[0]


@pytest.mark.parametrize("budget", [5_003, 20_011])
def test_searches_come_to_an_end_though_modes_are_met_once(budget):
    """As many modes as searches, and of any budget a rest that is too small for one more."""

    def model():
        x = numpyro.sample("x", dist.Uniform(0.0, 1.0).expand([3]).to_event(1))
        numpyro.factor("peaks", 20 * jnp.sum(jnp.cos(50 * jnp.pi * x)))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        evidence = DAIS(model, budget=budget).log_evidence(random.key(0))
    assert evidence.num_gradients <= budget
    assert np.isfinite(float(evidence))
