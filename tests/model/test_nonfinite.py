# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Draws, densities and data that are not finite."""

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import numpyro
from numpyro import handlers
import numpyro.distributions as dist

from numpyro_dais import DAIS
from numpyro_dais.model.problem import Problem
from numpyro_dais.model.target import make_target
from tests.cases import MASK, WITH_GAP, masked


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
    """Weights in the region of zero likelihood are zero, and counted, and no fault."""

    def model():
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.factor("wall", jnp.where(x > 0.4, 0.0, -jnp.inf))

    dais = DAIS(model, num_steps=3, step_size=0.2, num_particles=4000)
    evidence = dais.log_evidence(random.key(8))
    assert int(evidence.num_lost) == 0
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


def test_masked_nan_is_no_error():
    """NaN under a mask is not data; and a mask that hides nothing leaves a latent site alone."""
    problem = Problem(masked, args=(WITH_GAP,))
    log_start, log_ratio = jax.jit(make_target(problem).log_densities_fn)(jnp.array([0.3]))
    expected = stats.norm.logpdf(np.asarray(WITH_GAP)[MASK], 0.3, 1.2).sum()
    np.testing.assert_allclose(log_ratio, expected, rtol=1e-5)

    def all_true():
        with handlers.mask(mask=True), numpyro.plate("data", 3):
            numpyro.sample("x", dist.Normal(0.2, 1.5))

    log_start, _ = jax.jit(make_target(Problem(all_true)).log_densities_fn)(jnp.arange(3.0))
    np.testing.assert_allclose(
        log_start, stats.norm.logpdf(np.arange(3), 0.2, 1.5).sum(), rtol=1e-5
    )
