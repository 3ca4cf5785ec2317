# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""The closed forms against independent ones, and the chains against the closed forms."""

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal

from numpyro_dais import DAIS, make_settings
from numpyro_dais.linear_regression import LinearRegression
from numpyro_dais.schedule import fourth_root_step_size, linear, power, sigmoid
from tests import models

LOWER = np.array([[0.6, 0.0, 0.0], [0.2, 0.5, 0.0], [-0.1, 0.15, 0.4]])


def paper_regression():
    rng = np.random.default_rng(0)
    return LinearRegression(0.1 * rng.standard_normal((10_000, 10)), rng.standard_normal(10_000))


def test_log_evidence_is_that_of_the_marginal_normal(regression, regression_data):
    X, y = regression_data
    covariance = X @ np.diag(1 / np.array([1.0, 2.0, 0.5])) @ X.T + 0.64 * np.eye(len(y))
    exact = multivariate_normal(X @ regression.prior_mean, covariance).logpdf(y)
    assert regression.log_evidence == pytest.approx(exact, abs=1e-9)


def test_spot_values_of_the_paper_regression():
    regression = paper_regression()
    assert regression.log_evidence == pytest.approx(-14204.893890, abs=1e-6)
    gaps = {(0.0, 10): 202.27398, (0.0, 1000): 49.94190, (0.9, 10): 170.12409, (0.9, 1000): 9.98223}
    for (damping, num_steps), gap in gaps.items():
        step_size = fourth_root_step_size(num_steps, 0.1)
        got = regression.expected_gap(linear(num_steps), step_size, damping)
        assert got == pytest.approx(gap, abs=1e-5)


def test_eigenbasis_and_dense_recursion_agree():
    regression = paper_regression()
    settings = (sigmoid(50), 0.1, 0.8)
    split = regression.expected_gap(*settings, gradient_noise=3.0)
    # A rotation that does nothing, but does not commute either: the dense recursion.
    dense = regression.expected_gap(
        *settings, preconditioner=np.diag(1 + 1e-11 * np.arange(10)), gradient_noise=3.0
    )
    assert split == pytest.approx(dense, abs=1e-6)


def test_gradient_noise_widens_the_gap():
    """Theorem 2 of the paper: by at least half the sum of eta^2 beta^2 tr(Sigma)."""
    regression = paper_regression()
    betas, step_size, sigma = linear(100), 0.05, 40.0
    exact = regression.expected_gap(betas, step_size, 0.9)
    noisy = regression.expected_gap(betas, step_size, 0.9, gradient_noise=sigma)
    assert noisy - exact > 0.5 * np.sum(step_size**2 * betas**2) * 10 * sigma


def test_expected_gap_with_gradient_noise_matches_simulation(regression):
    """The affine recursion in the obvious way, with NumPy's random numbers."""
    rng = np.random.default_rng(3)
    betas, eta, gamma, num_chains = power(6, 2.0), 0.25, 0.6, 200_000
    noise_scale = np.array([1.5, 0.5, 2.5])
    precision, gram, mean = regression.prior_precision, regression.gram, regression.prior_mean
    score = regression.posterior_precision @ (regression.posterior_mean - mean)
    u = rng.standard_normal((num_chains, 3)) / np.sqrt(np.diag(precision))  # from the prior mean
    v = rng.standard_normal((num_chains, 3))
    log_weights = 0.5 * np.einsum("ni,ij,nj->n", u, precision, u)
    for beta in betas:
        u = u + eta / 2 * v
        noise = noise_scale * rng.standard_normal((num_chains, 3))
        kicked = v + eta * (beta * score - u @ (precision + beta * gram) + beta * noise)
        u = u + eta / 2 * kicked
        log_weights += 0.5 * np.sum(v**2 - kicked**2, axis=1)
        v = gamma * kicked + np.sqrt(1 - gamma**2) * rng.standard_normal((num_chains, 3))
    lag = u - (regression.posterior_mean - mean)
    posterior = regression.posterior_precision
    log_weights -= 0.5 * np.einsum("ni,ij,nj->n", lag, posterior, lag)
    log_weights -= 0.5 * (np.linalg.slogdet(precision)[1] - np.linalg.slogdet(posterior)[1])
    gap = regression.expected_gap(betas, eta, gamma, gradient_noise=noise_scale**2)
    assert abs(-log_weights.mean() - gap) < 4 * log_weights.std() / np.sqrt(num_chains)


SCHEDULES = {"linear": linear, "power": lambda num_steps: power(num_steps, 2.5)}
PRECONDITIONERS = {
    "none": lambda num_steps: None,
    "diagonal": lambda num_steps: np.array([0.5, 1.2, 0.8]),
    "cholesky": lambda num_steps: LOWER,
    "changing diagonal": lambda num_steps: np.linspace([1.0, 0.9, 1.2], [0.3, 0.7, 0.4], num_steps),
    "changing cholesky": lambda num_steps: LOWER * np.linspace(1.5, 0.6, num_steps)[:, None, None],
}


@jax.jit
def bound(rng_key, settings, X, y):
    """Mean log weight and its error. Traced, since wide weights, and so warnings, are in order here."""
    estimator = DAIS(models.regression, settings=settings, num_particles=10_000)
    evidence = estimator.log_evidence(rng_key, X, y)
    return evidence.lower_bound, evidence.lower_bound_error


@pytest.mark.parametrize("preconditioner", PRECONDITIONERS.values(), ids=PRECONDITIONERS)
@pytest.mark.parametrize("num_steps", [1, 10, 100])
def test_mean_log_weight_is_the_expected_bound(
    regression, regression_data, num_steps, preconditioner
):
    """Within 4 standard errors, for three dampings and two schedules."""
    data = [jnp.array(x) for x in regression_data]
    scale = preconditioner(num_steps)
    step_size = 0.15 * (num_steps / 10) ** -0.25
    for damping in (0.0, 0.5, 0.9):
        for schedule in SCHEDULES.values():
            settings = make_settings(schedule(num_steps), step_size, damping, scale)
            mean, error = bound(random.key(17), settings, *data)
            exact = regression.expected_bound(
                schedule(num_steps), step_size, damping, preconditioner=scale
            )
            assert abs(mean - exact) < 4 * error
            assert error < 0.02 * (regression.log_evidence - exact)


def test_bad_shapes():
    with pytest.raises(ValueError, match=r"X must be \[n, d\] and y \[n\]; got shapes \(2, 1\)"):
        LinearRegression([[1.0], [2.0]], [1.0])
    with pytest.raises(ValueError, match="noise_scale must be positive; got 0"):
        LinearRegression([[1.0], [2.0]], [1.0, 2.0], noise_scale=0.0)
