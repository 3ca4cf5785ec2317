# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Reverse chains, Bennett's ratio, sandwiches and certificates."""

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import pytest

import numpyro
import numpyro.distributions as dist
from numpyro.infer.autoguide import AutoIAFNormal

from numpyro_dais import AIS, DAIS, HAIS
from numpyro_dais.linear_regression import LinearRegression
from numpyro_dais.results.bennett import bennett
from numpyro_dais.schedule import power
from tests import cases

ESTIMATORS = {
    "DAIS": (DAIS, {"num_steps": 6, "step_size": 0.3, "damping": 0.7}),
    "HAIS": (HAIS, {"num_steps": 6, "step_size": 0.3, "damping": 0.7}),
    "AIS": (AIS, {"num_steps": 4, "step_size": 0.15, "num_leapfrog": 4}),
}


def gamma_posterior(num_draws):
    shape, rate = cases.GAMMA
    total, n = float(cases.COUNTS.sum()), len(cases.COUNTS)
    return {"rate": random.gamma(random.key(11), shape + total, (num_draws,)) / (rate + n)}


@pytest.mark.parametrize(("kind", "kwargs"), ESTIMATORS.values(), ids=ESTIMATORS)
def test_reverse_weights_and_the_sandwich(kind, kwargs):
    """E[1/w] = 1/Z from exact draws, and the truth between the bounds, on a skewed posterior."""
    exact = cases.gamma_poisson_log_evidence()
    estimator = kind(cases.gamma_poisson, num_particles=20_000, **kwargs)
    evidence = estimator.sandwich(random.key(9), posterior_samples=gamma_posterior(20_000))
    inverse = np.exp(exact - np.asarray(evidence.reverse_log_weights, np.float64))
    error = inverse.std() / np.sqrt(len(inverse))
    assert abs(inverse.mean() - 1) < 5 * error
    assert error < 0.02
    assert inverse.std() > 0.05  # not a constant, which would hide a wrong sign
    assert evidence.lower_bound - 4 * evidence.lower_bound_error < exact
    assert evidence.upper_bound + 4 * evidence.upper_bound_error > exact
    assert evidence.upper_bound - evidence.lower_bound > 0.1
    assert abs(float(evidence) - exact) < 4 * evidence.standard_error
    forward = estimator.log_evidence(random.key(9)).standard_error
    assert evidence.standard_error < forward
    assert "upper bound" in repr(evidence)
    assert "if the 20000 posterior draws are exact and independent" in repr(evidence)


@pytest.fixture(params=["float32", "x64"])
def precision(request):
    with jax.enable_x64(request.param == "x64"):
        yield np.dtype("float64" if request.param == "x64" else "float32")


@pytest.mark.parametrize("kind", [DAIS, HAIS])
def test_sandwich_of_a_regression(kind, precision, regression_data):
    X, y = (jnp.array(x)[:12] for x in regression_data)
    exact = LinearRegression(
        X,
        y,
        noise_scale=0.8,
        prior_mean=cases.PRIOR_MEAN,
        prior_precision=cases.PRIOR_PRECISION,
    )
    covariance = np.linalg.inv(exact.posterior_precision)
    rng = np.random.default_rng(5)
    draws = rng.multivariate_normal(exact.posterior_mean, covariance, 4_000)
    schedule = lambda num_steps: power(num_steps, 2.0)  # noqa: E731
    estimator = kind(
        cases.regression, num_steps=60, num_particles=4_000, step_size=0.25, schedule=schedule
    )
    evidence = estimator.sandwich(random.key(3), X, y, posterior_samples={"w": draws})
    assert evidence.log_weights.dtype == evidence.reverse_log_weights.dtype == precision
    truth = exact.log_evidence
    inverse = np.exp(truth - np.asarray(evidence.reverse_log_weights, np.float64))
    assert abs(inverse.mean() - 1) < 5 * inverse.std() / np.sqrt(len(inverse))
    assert evidence.lower_bound - 4 * evidence.lower_bound_error < truth
    assert evidence.upper_bound + 4 * evidence.upper_bound_error > truth
    assert truth - evidence.lower_bound > 0.3
    assert abs(float(evidence) - truth) < 4 * evidence.standard_error


def test_sandwich_shrinks_with_the_number_of_steps():
    gaps = []
    for num_steps in (2, 30):
        estimator = DAIS(cases.gamma_poisson, num_steps=num_steps, step_size=0.3)
        evidence = estimator.sandwich(None, posterior_samples=gamma_posterior(500))
        gaps.append(float(evidence.upper_bound - evidence.lower_bound))
    assert gaps[0] > gaps[1] > 0


def test_sandwich_may_be_traced():
    estimator = DAIS(cases.gamma_poisson, num_steps=2, num_particles=1000, step_size=0.3)

    @jax.jit
    def sandwich(draws):
        evidence = estimator.sandwich(random.key(1), posterior_samples=draws)
        return evidence.lower_bound, evidence.upper_bound

    lower, upper = sandwich(gamma_posterior(1000))
    assert lower + 0.02 < cases.gamma_poisson_log_evidence() < upper - 0.02


def test_without_steps_it_is_bridge_sampling():
    """Against the fixed-point iteration of Meng and Wong, on densities evaluated by hand."""
    draws = gamma_posterior(300)
    estimator = DAIS(cases.gamma_poisson, num_steps=0, num_particles=200)
    evidence = estimator.sandwich(random.key(1), posterior_samples=draws)

    def log_likelihood(rate):
        return dist.Poisson(rate[:, None]).log_prob(cases.COUNTS).sum(-1)

    prior_rate = jnp.exp(evidence.positions[:, 0])  # without steps, the draws themselves
    forward = np.exp(np.asarray(log_likelihood(prior_rate), np.float64))
    reverse = np.exp(np.asarray(log_likelihood(draws["rate"]), np.float64))
    n, m, z = len(forward), len(reverse), 1e-4
    for _ in range(2_000):
        numerator = np.mean(forward / (m * forward / z + n))
        z = numerator / np.mean(1 / (m * reverse / z + n))
    assert float(evidence) == pytest.approx(np.log(z), abs=1e-4)


def test_bennett_error_bars():
    """Log weights that are normal in both directions, at equal and unequal numbers."""
    sd, num_seeds = 1.5, 400

    @jax.vmap
    def run(key):
        forward_key, reverse_key = random.split(key)
        forward = sd * random.normal(forward_key, (200,)) - sd**2 / 2
        reverse = sd * random.normal(reverse_key, (80,)) + sd**2 / 2
        return bennett(forward, reverse)

    result = run(random.split(random.key(2), num_seeds))
    spread = np.std(result.log_evidence)
    assert abs(np.mean(result.log_evidence)) < 5 * spread / np.sqrt(num_seeds)
    assert np.mean(result.standard_error) == pytest.approx(float(spread), rel=0.15)
    assert 0.9 < np.mean(np.abs(result.log_evidence) < 2 * result.standard_error) < 0.99


def test_sandwich_per_element_of_a_plate():
    y = jnp.array([0.3, -2.0, 4.0])
    precision = 1 / 2.25 + 1 / 0.25
    draws = (y / 0.25 + 1 / 2.25) / precision + precision**-0.5 * random.normal(
        random.key(3), (400, 3)
    )
    estimator = DAIS(
        cases.normal_means, plate="data", num_steps=10, num_particles=400, step_size=0.3
    )
    evidence = estimator.sandwich(random.key(4), y, posterior_samples={"x": draws})
    exact = dist.Normal(1.0, np.hypot(1.5, 0.5)).log_prob(y)
    assert evidence.upper_bound.shape == (3,)
    assert np.all(np.abs(evidence.log_evidence - exact) < 4 * evidence.standard_error)
    assert np.all(evidence.upper_bound + 4 * evidence.upper_bound_error > exact)


def test_sandwich_by_nuts_says_that_it_is_approximate():
    estimator = DAIS(cases.gamma_poisson, num_steps=10, num_particles=400, step_size=0.3)
    evidence = estimator.sandwich(random.key(6))
    exact = cases.gamma_poisson_log_evidence()
    assert evidence.num_chains == 4
    assert "posterior draws of 4 chains, taken as worth" in repr(evidence)
    assert abs(float(evidence) - exact) < 5 * evidence.standard_error
    # The draws are correlated: their error is larger than that of as many independent ones.
    independent = np.std(evidence.reverse_log_weights) / np.sqrt(400)
    assert evidence.upper_bound_error > independent
    assert evidence.num_gradients > 400 * 20 + 4 * 1_000


def test_divergences_are_reported():
    def funnel():
        scale = numpyro.sample("scale", dist.Normal(0.0, 3.0))
        numpyro.sample("x", dist.Normal(0.0, jnp.exp(scale / 2)).expand([9]).to_event(1))
        numpyro.sample("y", dist.Normal(scale, 5.0), obs=1.0)

    estimator = DAIS(funnel, num_steps=10, num_particles=100, step_size=0.1)
    with pytest.warns(UserWarning, match=r"NUTS (had \d+ divergent|has not converged)"):
        evidence = estimator.sandwich(random.key(0))
    assert any("NUTS" in note for note in evidence.notes)


def test_potential_function_needs_draws():
    start = dist.Normal(jnp.zeros(2), 1.5)
    estimator = DAIS(
        potential_fn=lambda z: 0.5 * jnp.sum((z - 0.5) ** 2),
        start=start,
        num_steps=5,
        step_size=0.4,
        num_particles=500,
    )
    draws = 0.5 + random.normal(random.key(1), (500, 2))
    evidence = estimator.sandwich(random.key(2), posterior_samples=draws)
    assert abs(float(evidence) - np.log(2 * np.pi)) < 4 * evidence.standard_error
    with pytest.raises(ValueError, match="pass posterior_samples="):
        estimator.sandwich(random.key(2))
    with pytest.raises(ValueError, match="certify simulates data from a model"):
        estimator.certify(random.key(2))


def test_certificate_is_the_divergence_of_prior_and_posterior_without_steps():
    """
    Without steps the weight is the likelihood: at the latents that made the data its expected log is
    -1/2 + c, at fresh ones -4.75 / 0.5 + c, with c = -log(0.5 sqrt(2 pi)).
    """
    y = jnp.zeros(3)
    estimator = DAIS(cases.normal_means, num_steps=0, num_particles=50, plate="data")
    got = estimator.certify(random.key(3), y, num_datasets=400)
    c = -np.log(0.5 * np.sqrt(2 * np.pi))
    assert abs(got.upper_bound - (-0.5 + c)) < 4 * got.upper_bound_error
    assert abs(got.lower_bound - (-9.5 + c)) < 4 * got.lower_bound_error
    assert abs(got.gap - 9.0) < 4 * got.gap_error
    assert got.gap_error < 1.0
    assert "400 simulated data sets: gap" in str(got)


def test_certificate_of_an_amortised_guide():
    """A guide that is the posterior of the data it is given leaves no gap, on simulated data too."""
    precision = 1 / 1.5**2 + 1 / 0.5**2

    def guide(y):
        with numpyro.plate("data", len(y)):
            mean = (1.0 / 1.5**2 + y / 0.5**2) / precision
            numpyro.sample("x", dist.Normal(mean, precision**-0.5))

    kwargs = {"guide": guide, "guide_params": {}, "plate": "data"}
    estimator = DAIS(cases.normal_means, num_steps=0, num_particles=3, step_size=1.0, **kwargs)
    result = estimator.certify(random.key(0), jnp.zeros(2), num_datasets=4)
    assert abs(result.gap) < 1e-5
    assert result.lower_bound_error > 0.01


def test_certificate_shrinks_with_steps():
    few = HAIS(cases.gamma_poisson, num_particles=20, num_steps=3, step_size=0.3)
    many = HAIS(cases.gamma_poisson, num_particles=20, num_steps=60, step_size=0.3)
    assert 0 < many.certify(num_datasets=30).gap < few.certify(num_datasets=30).gap


def no_data():
    numpyro.sample("x", dist.Normal(0.0, 1.0))


def only_a_factor():
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    numpyro.factor("likelihood", -(x**2))


@pytest.mark.parametrize(
    ("model", "message"),
    [(no_data, "it has no observed sites"), (only_a_factor, r"factor sites \['likelihood'\]")],
    ids=["no data", "factor"],
)
def test_certify_needs_data_that_can_be_simulated(model, message):
    with pytest.raises(ValueError, match=message):
        DAIS(model, num_steps=2, step_size=0.1).certify()


def test_certify_needs_two_data_sets():
    with pytest.raises(ValueError, match=r"num_datasets.*at least 2; got 1"):
        DAIS(cases.gamma_poisson, num_steps=2, step_size=0.1).certify(num_datasets=1)


BAD_SAMPLES = {
    "missing": ({}, "one leading axis of draws"),
    "other site": ({"p": np.ones(5)}, r"misses \['rate'\]"),
    "extra site": ({"rate": np.ones(5), "p": np.ones(5)}, r"that the model does not: \['p'\]"),
    "wrong shape": ({"rate": np.ones((5, 2))}, r"\[num_draws, \*\(\)\]; got \(5, 2\)"),
    "no axis": ({"rate": 1.0}, "one leading axis of draws"),
    "outside": ({"rate": np.array([1.0, -2.0, 3.0])}, "'rate'.*1 draws outside the support"),
}


@pytest.mark.parametrize(("samples", "message"), BAD_SAMPLES.values(), ids=BAD_SAMPLES)
def test_bad_posterior_samples(samples, message):
    estimator = DAIS(cases.gamma_poisson, num_steps=0, num_particles=100)
    with pytest.raises(ValueError, match=message):
        estimator.sandwich(posterior_samples=samples)


def test_flows_cannot_be_reversed():
    def model():
        x = numpyro.sample("x", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
        numpyro.sample("y", dist.Normal(x.sum(), 1.0), obs=0.5)

    guide = AutoIAFNormal(model)
    svi = numpyro.infer.SVI(model, guide, numpyro.optim.Adam(1e-2), numpyro.infer.Trace_ELBO())
    params = svi.get_params(svi.init(random.key(0)))
    estimator = DAIS(model, guide=guide, guide_params=params, num_steps=2, step_size=0.1)
    with pytest.raises(NotImplementedError, match=r"AutoIAFNormal.*invert the flow"):
        estimator.sandwich()


def test_directions_that_do_not_meet_have_an_infinite_error():
    result = bennett(np.full(4, -2000.0), np.full(4, 2000.0))
    assert np.isinf(result.standard_error)
