# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Resampling on the way: unbiased islands, and what does not go with them."""

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp

from numpyro_dais import AIS, DAIS, HAIS, ImportanceSampling
from numpyro_dais._util.weights import systematic, weight_shares
from numpyro_dais.estimators.runner import island_size
from numpyro_dais.model.target import make_target
from numpyro_dais.sampler.islands import (
    Island,
    island_log_weights,
    resample,
    resampling_steps,
    run_islands,
)
from numpyro_dais.sampler.kernel import ChainState
from numpyro_dais.sampler.particles import run_particles
from numpyro_dais.sampler.path import LogDensities
from tests.cases import beta_binomial, gamma_poisson, gamma_poisson_log_evidence, normal_means

# Few and rough steps: without resampling the weights are uneven.
ROUGH = {"schedule": [0.05, 0.2, 0.45, 0.7, 1.0], "step_size": 0.4, "damping": 0.5}
RESAMPLE_AT = (0.1, 0.4)
NUM_ISLANDS, ISLAND_SIZE = 512, 4


@pytest.fixture(scope="module")
def estimator():
    return DAIS(
        gamma_poisson,
        num_particles=NUM_ISLANDS * ISLAND_SIZE,
        num_islands=NUM_ISLANDS,
        resample_at=RESAMPLE_AT,
        **ROUGH,
    )


@pytest.fixture(scope="module")
def evidence(estimator):
    return estimator.log_evidence(random.key(1))


def test_islands_are_unbiased(evidence):
    ratios = np.exp(np.asarray(evidence.log_weights) - gamma_poisson_log_evidence())
    assert evidence.log_weights.shape == (NUM_ISLANDS,)
    assert abs(ratios.mean() - 1) < 5 * ratios.std() / np.sqrt(NUM_ISLANDS)
    assert 0.01 < ratios.std() < 0.5


def test_a_part_of_the_weights_may_stay_with_the_particles(x64):
    """
    Whatever part that is, resampling keeps the weighted mean of any function of the particles, in
    expectation over its random number: here over 4,000 keys.
    """
    rng = np.random.default_rng(0)
    log_weights, kept, value = (jnp.asarray(rng.normal(size=8)) for _ in range(3))
    zeros = jnp.zeros(8)
    state = ChainState(value[:, None], zeros[:, None], log_weights, None)
    nowhere = LogDensities(zeros, zeros)
    island = Island(state, nowhere, jnp.asarray(0.7))

    def means(key):
        again = resample(key, island, nowhere, kept)
        weights = jnp.exp(again.log_evidence + island_log_weights(again, nowhere))
        return jnp.stack([jnp.mean(weights), jnp.mean(weights * again.state.position[:, 0])])

    found = np.asarray(jax.vmap(means)(random.split(random.key(0), 4000)))
    weights = np.exp(0.7 + log_weights)
    exact = np.stack([np.mean(weights), np.mean(weights * value)])
    errors = found.std(axis=0) / np.sqrt(len(found))
    assert np.all(abs(found.mean(axis=0) - exact) < 5 * errors)
    assert np.all(errors < 0.01 * exact[0])  # as fine as a part of the weights that is forgotten


def test_positions_of_islands_are_posterior_draws(evidence):
    # rate ~ Gamma(6, 5) given the counts; positions are its logarithm.
    rates = np.exp(np.asarray(evidence.positions)[:, 0])
    shares = np.exp(np.asarray(evidence.log_weights, np.float64) - logsumexp(evidence.log_weights))
    mean, error = 6 / 5, np.sqrt(6 / 25 / float(evidence.ess))
    assert abs(np.sum(shares * rates) - mean) < 5 * error
    assert evidence.samples()["rate"].shape == (NUM_ISLANDS,)


def test_printing_says_that_weights_are_those_of_islands(evidence):
    assert evidence.num_particles == NUM_ISLANDS * ISLAND_SIZE
    assert evidence.num_weights == NUM_ISLANDS
    # Five steps, and two resamplings at half a gradient.
    assert evidence.num_gradients == NUM_ISLANDS * ISLAND_SIZE * (5 + 1)
    assert "mean log estimate of the islands" in repr(evidence)
    assert "2048 particles resampled in 512 islands, 5 steps" in repr(evidence)


def test_without_resampling_steps_particles_are_those_of_the_plain_run(evidence):
    settings, run_key = evidence.settings, random.split(random.key(1))[1]
    target, num_particles = make_target(evidence.problem), evidence.num_particles

    @jax.jit
    def run_both(key):
        plain = run_particles(random.split(key, num_particles), target, settings, "plain")
        return plain, run_islands(
            key, target, settings, "plain", (), num_particles, NUM_ISLANDS, islands_at_a_time=128
        )

    plain, run = run_both(run_key)
    by_island = np.asarray(plain.log_weights, np.float64).reshape(NUM_ISLANDS, ISLAND_SIZE)
    means = logsumexp(by_island, axis=1) - np.log(ISLAND_SIZE)
    np.testing.assert_allclose(run.log_weights, means, rtol=1e-5, atol=1e-5)
    positions = np.asarray(plain.positions).reshape(NUM_ISLANDS, ISLAND_SIZE)
    distances = np.min(np.abs(positions - np.asarray(run.positions)), axis=1)
    np.testing.assert_allclose(distances, 0.0, atol=1e-5)
    # The same randomness, resampled.
    assert np.mean(np.abs(evidence.log_weights - means) > 1e-3) > 0.9


TUNED = {20: (16, 8), 9: (6, 3), 3: (2, 1), 1: (1, 1)}


@pytest.mark.parametrize(("number", "expected"), TUNED.items())
def test_few_tuned_particles_make_fewer_islands_and_keep_the_budget(evidence, number, expected):
    settings = evidence.settings._replace(num_particles=number)
    estimator = DAIS(gamma_poisson, settings=settings, resample_at=RESAMPLE_AT)
    num_particles = estimator._num_particles(settings)
    size = island_size(estimator._config, num_particles)
    assert (num_particles, num_particles // size) == expected
    num_gradients = estimator._num_gradients(evidence.problem, settings, num_particles)
    assert num_gradients <= max(number, 1.2) * 5


def test_islands_are_traced_and_have_finite_gradients():
    def bound(scale, key):
        settings = {**ROUGH, "step_size": 0.4 * scale}
        estimator = DAIS(
            gamma_poisson, num_particles=8, num_islands=2, resample_at=(0.1,), **settings
        )
        return estimator.log_evidence(key).lower_bound

    value, gradient = jax.jit(jax.value_and_grad(bound))(jnp.asarray(1.0), random.key(4))
    assert np.isfinite(value)
    assert np.isfinite(gradient)
    assert gradient != 0


def test_a_start_that_is_not_finite_has_no_offspring(evidence):
    problem, settings = evidence.problem, evidence.settings
    target = make_target(problem)
    bad = target._replace(sample_fn=lambda key: target.sample_fn(key) * _bad(key))
    run = jax.jit(lambda key: run_islands(key, bad, settings, "plain", (0.1,), 512, 2, 2))(
        random.key(5)
    )
    share = np.mean(np.asarray(run.is_start_finite))
    assert 0.3 < share < 0.7
    error = np.abs(np.asarray(run.log_weights) - np.log(share) - gamma_poisson_log_evidence())
    assert np.all(error < 0.3)


def _bad(key):
    """Infinity for half of the keys."""
    return jnp.where(random.bernoulli(random.fold_in(key, 7)), jnp.inf, 1.0)


def test_systematic_resampling_draws_in_proportion():
    log_weights = jnp.log(jnp.array([0.0, 0.3, 0.45, 0.25, 0.0]))
    uniforms = random.uniform(random.key(6), (4000,))
    ancestors = jax.vmap(lambda uniform: systematic(uniform, weight_shares(log_weights)))(uniforms)
    counts = np.stack([np.sum(np.asarray(ancestors) == i, axis=1) for i in range(5)], 1)
    expected = 5 * np.exp(np.asarray(log_weights))
    assert np.all(np.abs(counts - expected) < 1)  # what systematic resampling is for
    np.testing.assert_allclose(counts.mean(0), expected, atol=5 * 0.5 / np.sqrt(4000))


def test_resampling_steps_are_the_first_at_or_above():
    betas = jnp.array([0.05, 0.2, 0.45, 0.7, 1.0])
    flags = resampling_steps(betas, (0.01, 0.03, 0.2, 0.5, 0.9))
    np.testing.assert_array_equal(flags, [True, True, False, True, False])


REFUSED = {
    "above one": (DAIS, {"resample_at": (0.5, 1.0)}, ValueError, r"in \(0, 1\).*got \(0.5, 1.0\)"),
    "order": (DAIS, {"resample_at": (0.5, 0.1)}, ValueError, r"increasing; got \(0.5, 0.1\)"),
    "no steps": (DAIS, {"resample_at": 0.5, "num_steps": 0}, ValueError, "got num_steps=0"),
    "islands": (DAIS, {"resample_at": 0.5, "num_islands": 0}, ValueError, "num_islands.*got 0"),
    "not a multiple": (
        DAIS,
        {"resample_at": 0.5, "num_particles": 30},
        ValueError,
        "multiple of num_islands=8.*got 30",
    ),
    "lonely": (
        DAIS,
        {"resample_at": 0.5, "num_particles": 8},
        ValueError,
        "at least 2 on each; got 8",
    ),
    "surrogate": (
        DAIS,
        {"resample_at": 0.5, "surrogate": "quadratic"},
        NotImplementedError,
        "surrogate='quadratic': the density of all the data",
    ),
    "reversible": (
        DAIS,
        {"resample_at": 0.5, "memory": "reversible"},
        NotImplementedError,
        "cannot be undone.*memory='checkpoint'",
    ),
    "HAIS": (HAIS, {"resample_at": 0.5}, TypeError, "'resample_at': only DAIS resamples"),
    "AIS": (AIS, {"num_islands": 4}, TypeError, "'num_islands': only DAIS resamples"),
    "IS": (ImportanceSampling, {"resample_at": 0.5}, TypeError, "'resample_at': .*no steps"),
}


@pytest.mark.parametrize(("estimator", "kwargs", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_refused(estimator, kwargs, error, message):
    with pytest.raises(error, match=message):
        estimator(beta_binomial, **kwargs)


def test_plates_and_minibatches_are_refused():
    with pytest.raises(NotImplementedError, match="plate='data': each element"):
        DAIS(normal_means, plate="data", resample_at=0.5)
    with pytest.raises(NotImplementedError, match="minibatch=True: the density"):
        DAIS(normal_means, minibatch=True, resample_at=0.5)


@pytest.mark.parametrize("method", ["sandwich", "certify"])
def test_there_is_no_way_back(estimator, method):
    with pytest.raises(NotImplementedError, match=rf"{method} runs chains in both.*\(0.1, 0.4\)"):
        getattr(estimator, method)()
