# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""The closed forms against independent ones, and the chains against the closed forms."""

from itertools import combinations, pairwise

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import block_diag
from scipy.stats import multivariate_normal

from numpyro_dais import DAIS, make_settings
from numpyro_dais.linear_regression import LinearRegression
from numpyro_dais.schedule import fourth_root_step_size, linear, power, sigmoid
from tests import cases
from tests.cases import paper_regression

LOWER = np.array([[0.6, 0.0, 0.0], [0.2, 0.5, 0.0], [-0.1, 0.15, 0.4]])


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


def simulate(regression, noise_fn, num_chains=200_000):
    """Returns settings of a chain, and minus its log weights by the obvious recursion."""
    rng = np.random.default_rng(3)
    betas, eta, gamma = power(6, 2.0), 0.25, 0.6
    precision, gram, mean = regression.prior_precision, regression.gram, regression.prior_mean
    score = regression.posterior_precision @ (regression.posterior_mean - mean)
    u = rng.standard_normal((num_chains, 3)) / np.sqrt(np.diag(precision))  # from the prior mean
    v = rng.standard_normal((num_chains, 3))
    log_weights = 0.5 * np.einsum("ni,ij,nj->n", u, precision, u)
    for beta in betas:
        u = u + eta / 2 * v
        kicked = v + eta * (beta * (score - u @ gram + noise_fn(rng, u)) - u @ precision)
        u = u + eta / 2 * kicked
        log_weights += 0.5 * np.sum(v**2 - kicked**2, axis=1)
        v = gamma * kicked + np.sqrt(1 - gamma**2) * rng.standard_normal((num_chains, 3))
    lag = u - (regression.posterior_mean - mean)
    posterior = regression.posterior_precision
    log_weights -= 0.5 * np.einsum("ni,ij,nj->n", lag, posterior, lag)
    log_weights -= 0.5 * (np.linalg.slogdet(precision)[1] - np.linalg.slogdet(posterior)[1])
    return (betas, eta, gamma), -log_weights


def test_expected_gap_with_gradient_noise_matches_simulation(regression):
    scale = np.array([1.5, 0.5, 2.5])
    settings, gaps = simulate(regression, lambda rng, u: scale * rng.standard_normal(u.shape))
    exact = regression.expected_gap(*settings, gradient_noise=scale**2)
    assert abs(gaps.mean() - exact) < 4 * gaps.std() / np.sqrt(len(gaps))


def test_expected_gap_with_minibatches_matches_simulation(regression_data):
    """Two of seven rows at a time, drawn without replacement for each chain."""
    X, y = regression_data[0][:7], regression_data[1][:7]
    regression = LinearRegression(X, y, noise_scale=0.8, prior_mean=[0.5, -1.0, 0.25])

    def noise(rng, u):
        gradients = X * (y - (u + regression.prior_mean) @ X.T)[:, :, None] / 0.64
        batch = rng.permuted(np.tile(np.arange(7), (len(u), 1)), axis=1)[:, :2, None]
        estimate = 7 / 2 * np.take_along_axis(gradients, batch, axis=1).sum(1)
        return estimate - gradients.sum(1)

    settings, gaps = simulate(regression, noise)
    exact = regression.expected_gap(*settings, batch_size=2)
    error = gaps.std() / np.sqrt(len(gaps))
    assert abs(gaps.mean() - exact) < 4 * error
    # The additive model and the noise with replacement are told apart.
    additive = regression.gradient_noise(2)
    for noise in (additive, additive * 6 / 5, regression.gradient_noise(3)):
        assert abs(exact - regression.expected_gap(*settings, gradient_noise=noise)) > 10 * error
    bound = regression.expected_bound(*settings, batch_size=2)
    assert bound == pytest.approx(regression.log_evidence - exact, abs=1e-9)


def test_all_rows_are_a_batch_without_noise(regression):
    settings = (sigmoid(20), 0.2, 0.8)
    full = regression.expected_gap(*settings, batch_size=regression.num_data)
    assert full == regression.expected_gap(*settings)
    np.testing.assert_array_equal(regression.gradient_noise(regression.num_data), 0.0)


def test_gradient_noise_is_that_of_all_batches(regression_data):
    """Every mini-batch of three rows, one by one."""
    X, y = regression_data[0][:7], regression_data[1][:7]
    regression = LinearRegression(X, y, noise_scale=0.8, prior_mean=0.3)
    gradients = X * (y - X @ regression.posterior_mean)[:, None] / 0.64
    batches = [gradients[list(rows)].sum(0) * 7 / 3 for rows in combinations(range(7), 3)]
    np.testing.assert_allclose(
        regression.gradient_noise(3), np.cov(np.transpose(batches), bias=True)
    )


def test_closed_form_is_double_precision_and_concrete():
    """In float32 and float64 mode, and where a program is being traced, the number is the same."""
    regression = paper_regression()
    settings = (linear(1000), 0.05, 0.9)  # more steps than a chunk has
    gap = regression.expected_gap(*settings)
    with jax.enable_x64(True):
        assert regression.expected_gap(*settings) == gap
    traced = []
    jax.eval_shape(lambda: traced.append(regression.expected_gap(*settings)))
    assert traced == [gap]


def joint_chain(regression, betas, step_size):
    """Means of u after each step, and means and covariances of (u, momentum) before refreshment."""
    dims = regression.num_dims
    score = regression.posterior_precision @ (regression.posterior_mean - regression.prior_mean)
    mean, covariance = np.zeros(2 * dims), np.eye(2 * dims)
    covariance[:dims, :dims] = np.linalg.inv(regression.prior_precision)
    for beta in betas:
        drift, kick = np.eye(2 * dims), np.eye(2 * dims)
        drift[:dims, dims:] = step_size / 2 * np.eye(dims)
        kick[dims:, :dims] = -step_size * (regression.prior_precision + beta * regression.gram)
        leapfrog = drift @ kick @ drift
        mean = leapfrog @ mean + drift @ np.concatenate([0 * score, step_size * beta * score])
        covariance = leapfrog @ covariance @ leapfrog.T
        yield mean, covariance
        mean = np.concatenate([mean[:dims], 0 * score])  # full refreshment
        covariance = block_diag(covariance[:dims, :dims], np.eye(dims))


def test_anatomy_of_the_gap(regression):
    """The kinetic term, with full refreshment: what each position tells about its momentum."""
    betas, step_size = power(12, 2.0), 0.3
    anatomy = regression.gap_anatomy(betas, step_size, 0.0)
    steps = list(joint_chain(regression, betas, step_size))
    kinetic = 0.0
    for (mean, covariance), beta, lag in zip(steps, betas, anatomy.lag, strict=True):
        uu, uv, vv = covariance[:3, :3], covariance[:3, 3:], covariance[3:, 3:]
        conditional = vv - uv.T @ np.linalg.solve(uu, uv)
        energy = np.trace(vv) + mean[3:] @ mean[3:] - 3
        kinetic += (energy - np.linalg.slogdet(conditional)[1]) / 2
        precision = regression.prior_precision + beta * regression.gram
        shift = regression.posterior_mean - regression.prior_mean
        minimum = np.linalg.solve(precision, beta * regression.posterior_precision @ shift)
        assert lag == pytest.approx(np.linalg.norm(mean[:3] - minimum), rel=1e-9)
    last = steps[-1][0][:3] + regression.prior_mean, steps[-1][1][:3, :3]
    posterior = regression.posterior_mean, np.linalg.inv(regression.posterior_precision)
    centred = (posterior[0], last[1])
    assert anatomy.kinetic == pytest.approx(kinetic, rel=1e-9)
    assert anatomy.covariance == pytest.approx(divergence(*centred, *posterior), rel=1e-9)
    assert anatomy.mean + anatomy.covariance == pytest.approx(
        divergence(*last, *posterior), rel=1e-9
    )
    assert anatomy.gap == pytest.approx(regression.expected_gap(betas, step_size, 0.0), abs=1e-12)


def divergence(mean, covariance, other_mean, other_covariance):
    """KL(N(mean, covariance) || N(other_mean, other_covariance))"""
    precision = np.linalg.inv(other_covariance)
    shift = other_mean - mean
    energy = np.trace(precision @ covariance) + shift @ precision @ shift
    log_volume = np.linalg.slogdet(precision @ covariance)[1]
    return (energy - len(mean) - log_volume) / 2


def test_perfect_gap(regression):
    def tempered(beta):
        precision = regression.prior_precision + beta * regression.gram
        shift = regression.posterior_mean - regression.prior_mean
        score = beta * regression.posterior_precision @ shift
        return np.linalg.solve(precision, score), np.linalg.inv(precision)

    path = [tempered(beta) for beta in [0.0, *sigmoid(7)]]
    expected = sum(divergence(*a, *b) for a, b in pairwise(path))
    assert regression.perfect_gap(sigmoid(7)) == pytest.approx(expected, rel=1e-9)
    ratio = regression.perfect_gap(linear(10_000)) / regression.perfect_gap(linear(20_000))
    assert ratio == pytest.approx(2.0, rel=1e-3)


def curvature_chain(regression, num_steps, exponent):
    """The step sizes of the paper's study: they follow the curvature along the chain."""
    betas = linear(num_steps)
    largest = np.linalg.eigvalsh(regression.gram)[-1]
    return betas, (1 + betas * largest) ** -0.5 * (num_steps / 10) ** -exponent


EXPONENTS = [1 / 4, 1 / 3, 1 / 2]


@pytest.mark.parametrize("exponent", EXPONENTS)
def test_slope_of_full_gradients(exponent):
    """Theorem 1 of the paper: the gap falls as K^(2c - 1)."""
    regression = paper_regression()
    gaps = [
        regression.expected_gap(*curvature_chain(regression, num_steps, exponent), 0.0)
        for num_steps in (1000, 10_000, 100_000)
    ]
    np.testing.assert_allclose(np.diff(np.log10(gaps)), 2 * exponent - 1, atol=0.02)


@pytest.mark.parametrize(
    ("damping", "expected"),
    [(0.0, [5.24794, 1.65241, 0.52208]), (0.9, [2.41170, 0.32065, 0.05103])],
)
def test_spot_values_of_the_study(damping, expected):
    regression = paper_regression()
    for num_steps, gap in zip((1000, 10_000, 100_000), expected, strict=True):
        got = regression.expected_gap(*curvature_chain(regression, num_steps, 0.25), damping)
        assert got == pytest.approx(gap, abs=1e-5)


@pytest.mark.parametrize("exponent", EXPONENTS)
def test_slope_of_minibatches(exponent):
    """Theorem 2: the gap does not fall; it grows as K^(1 - 2c), and is flat at c = 1/2 only."""
    regression = paper_regression()
    noise = regression.gradient_noise(100)
    gaps = []
    for num_steps in (1000, 3000, 10_000):
        settings = (*curvature_chain(regression, num_steps, exponent), 0.0)
        gap = regression.expected_gap(*settings, batch_size=100)
        additive = regression.expected_gap(*settings, gradient_noise=noise)
        betas, step_size, _ = settings
        bound = 0.5 * np.sum(step_size**2 * betas**2) * np.trace(noise)
        assert gap - regression.expected_gap(*settings) > bound
        assert 0.98 < additive / gap < 0.999
        gaps.append(gap)
    slopes = np.diff(np.log(gaps)) / np.diff(np.log([1000, 3000, 10_000]))
    np.testing.assert_allclose(slopes, 1 - 2 * exponent, atol=0.02)
    if exponent == 1 / 2:
        assert max(gaps) < 1.01 * min(gaps)


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
    """Returns the mean log weight and its error; traced, since wide weights would warn here."""
    estimator = DAIS(cases.regression, settings=settings, num_particles=10_000)
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


def test_bad_arguments():
    with pytest.raises(ValueError, match=r"X must be \[n, d\] and y \[n\]; got shapes \(2, 1\)"):
        LinearRegression([[1.0], [2.0]], [1.0])
    regression = LinearRegression([[1.0], [2.0]], [1.0, 2.0])
    for batch_size in (0, 3):
        with pytest.raises(ValueError, match=f"between 1 and the 2 rows of X; got {batch_size}"):
            regression.expected_gap(linear(2), 0.1, 0.0, batch_size=batch_size)
    with pytest.raises(ValueError, match=r"each of the 2 betas; got shape \(3, 1\)"):
        regression.expected_gap(linear(2), 0.1, 0.0, preconditioner=np.ones((3, 1)))
    with pytest.raises(ValueError, match="Leave one out"):
        regression.expected_gap(linear(2), 0.1, 0.0, batch_size=1, gradient_noise=1.0)
    with pytest.raises(ValueError, match="noise_scale must be positive; got 0"):
        LinearRegression([[1.0], [2.0]], [1.0, 2.0], noise_scale=0.0)
