# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""HAIS, AIS and importance sampling, on the targets of DAIS."""

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import numpyro
import numpyro.distributions as dist
from numpyro.infer.autoguide import AutoNormal

from numpyro_dais import AIS, DAIS, HAIS, ImportanceSampling
from numpyro_dais.model.problem import Problem
from numpyro_dais.model.target import make_target
from numpyro_dais.sampler.kernel import ChainState, Noise, Step, Transition, forward_step
from tests import cases

ESTIMATORS = {
    "HAIS": (HAIS, {"num_steps": 3, "step_size": 0.3, "damping": 0.7}),
    "AIS": (AIS, {"num_steps": 2, "step_size": 0.15, "num_leapfrog": 4}),
    "importance": (ImportanceSampling, {}),
}


@pytest.mark.parametrize(("kind", "kwargs"), ESTIMATORS.values(), ids=ESTIMATORS)
def test_weights_are_unbiased(kind, kwargs):
    exact = cases.gamma_poisson_log_evidence()
    estimator = kind(cases.gamma_poisson, num_particles=20_000, **kwargs)
    log_weights = np.asarray(estimator.log_evidence(random.key(3)).log_weights, np.float64)
    weights = np.exp(log_weights - exact)
    assert 0.3 < log_weights.var() < 2
    assert abs(weights.mean() - 1) < 5 * weights.std() / np.sqrt(len(weights))
    assert weights.std() / np.sqrt(len(weights)) < 0.02


@pytest.mark.parametrize("kind", [HAIS, AIS, ImportanceSampling])
@pytest.mark.parametrize("name", ["beta_binomial", "dirichlet_multinomial", "hierarchy"])
def test_weights_are_unbiased_on_the_targets_of_dais(kind, name):
    case = cases.CASES[name]
    kwargs = {"num_steps": case.num_steps, "step_size": case.step_size}
    if kind is AIS:
        kwargs = {"num_steps": 4, "step_size": case.step_size, "num_leapfrog": 4}
    kwargs = {} if kind is ImportanceSampling else kwargs
    estimator = kind(case.model, num_particles=20_000, **kwargs)
    # Traced, since importance sampling from the prior has wide weights, and no warning is wanted.
    evidence = jax.jit(estimator.log_evidence)(random.key(12), *case.args)
    weights = np.exp(np.asarray(evidence.log_weights, np.float64) - case.exact(*case.args))
    error = weights.std() / np.sqrt(len(weights))
    assert abs(weights.mean() - 1) < 5 * error
    assert 0.001 < error < 0.05


@pytest.mark.parametrize("kind", [HAIS, AIS])
def test_one_step_is_importance_sampling(kind):
    kwargs = {"num_steps": 1, "step_size": 0.3, "num_particles": 20}
    run = jax.jit(kind(cases.gamma_poisson, **kwargs).log_evidence)(random.key(1))
    reference = jax.jit(ImportanceSampling(cases.gamma_poisson, num_particles=20).log_evidence)(
        random.key(1)
    )
    np.testing.assert_allclose(run.log_weights, reference.log_weights, rtol=1e-5)


def test_importance_sampling_is_dais_without_steps():
    one = ImportanceSampling(cases.gamma_poisson).log_evidence(random.key(1))
    other = DAIS(cases.gamma_poisson, num_steps=0).log_evidence(random.key(1))
    np.testing.assert_array_equal(one.log_weights, other.log_weights)
    assert one.num_gradients == 64  # 128 densities, half a gradient each
    assert one.method == "ImportanceSampling"


def test_importance_sampling_from_a_guide_is_the_iwae_bound():
    """The guide is the exact posterior of x, so every weight is the evidence."""

    def model():
        x = numpyro.sample("x", dist.Normal(0.5, 1.0))
        numpyro.sample("y", dist.Normal(x, 0.7), obs=1.3)

    precision = 1 + 1 / 0.49
    params = {"x_auto_loc": jnp.array((0.5 + 1.3 / 0.49) / precision)}
    params["x_auto_scale"] = jnp.array(precision**-0.5)
    estimator = ImportanceSampling(model, guide=AutoNormal(model), guide_params=params)
    evidence = estimator.log_evidence()
    exact = dist.Normal(0.5, np.hypot(1.0, 0.7)).log_prob(1.3)
    np.testing.assert_allclose(evidence.log_weights, exact, rtol=1e-5)


@pytest.mark.parametrize("kind", [HAIS, AIS])
def test_a_constant_in_the_likelihood_only_shifts(kind):
    """An annealed sampler in a widely used library fails this."""

    def model(constant):
        cases.gamma_poisson()
        numpyro.factor("constant", constant)

    estimator = kind(model, num_steps=4, step_size=0.3, num_particles=50)
    plain, shifted = (estimator.log_evidence(random.key(2), c) for c in (0.0, 12.5))
    np.testing.assert_allclose(shifted.log_weights, plain.log_weights + 12.5, atol=1e-4)
    np.testing.assert_allclose(shifted.positions, plain.positions, atol=1e-4)
    np.testing.assert_allclose(shifted.acceptance, plain.acceptance, atol=1e-4)


TRANSITIONS = {
    "one leapfrog": (Transition(is_corrected=True), 0.9),
    "five leapfrogs": (Transition(is_corrected=True, num_leapfrog=5), 0.5),
}


@pytest.mark.parametrize(("transition", "step_size"), TRANSITIONS.values(), ids=TRANSITIONS)
def test_corrected_transitions_leave_the_tempered_density_invariant(transition, step_size):
    """
    From exact draws of a skewed f_beta, one transition with many rejections: the same distribution of
    the position, of the momentum, and no correlation between them. Without the negation on rejection,
    the last of these fails.
    """
    num_draws, beta = 100_000, 0.6
    target = make_target(Problem(cases.gamma_poisson))
    shape = cases.GAMMA[0] + beta * float(cases.COUNTS.sum())
    exact = stats.gamma(shape, scale=1 / (cases.GAMMA[1] + beta * len(cases.COUNTS)))
    keys = random.split(random.key(4), 4)
    rate = random.gamma(keys[0], shape, (num_draws,)) * exact.kwds["scale"]
    position = jnp.log(rate)[:, None]
    momentum, noise = (random.normal(key, (num_draws, 1)) for key in keys[1:3])
    log_uniform = -random.exponential(keys[3], (num_draws,))
    step = Step(*map(jnp.asarray, (beta, 0.5, step_size, 0.95)), None)

    @jax.jit
    @jax.vmap
    def transit(position, momentum, normal, log_uniform):
        densities = target.log_densities_fn(position)
        state = ChainState(position, momentum, jnp.zeros(()), densities)
        noise = Noise(normal, log_uniform)
        return forward_step(noise, state, step, target.log_densities_fn, transition)

    state, acceptance = transit(position, momentum, noise, log_uniform)
    assert 0.4 < acceptance.mean() < 0.9
    moved = np.asarray(jnp.exp(state.position[:, 0]), np.float64)
    velocity = np.asarray(state.momentum[:, 0], np.float64)
    assert stats.kstest(moved, exact.cdf).pvalue > 1e-3
    assert stats.kstest(velocity, stats.norm.cdf).pvalue > 1e-3
    standardised = (np.log(moved) - np.log(rate).mean()) / np.log(rate).std()
    for function in (lambda u: u, lambda u: u**2, lambda u: np.abs(u)):
        value = function(standardised) - function(standardised).mean()
        error = np.std(value * velocity) / np.sqrt(num_draws)
        assert abs(np.mean(value * velocity)) < 4.5 * error


@pytest.mark.parametrize(("kind", "target"), [(HAIS, 0.9), (AIS, 0.65)], ids=["HAIS", "AIS"])
def test_pilot_reaches_the_target_acceptance_for_each_element(kind, target):
    """Scales from 0.01 to 100, each with a step size of its own."""
    scales = jnp.array([0.01, 1.0, 100.0])

    def model(y):
        with numpyro.plate("data", 3):
            x = numpyro.sample("x", dist.Normal(scales, scales))
            numpyro.sample("y", dist.Normal(x, 0.3 * scales), obs=y)

    y = scales * jnp.array([0.5, 2.0, 1.0])
    estimator = kind(model, plate="data", num_steps=40, num_particles=200)
    evidence = estimator.log_evidence(random.key(5), y)
    assert evidence.acceptance.shape == (40, 3)
    assert evidence.settings.step_size.shape == (40, 3)
    assert np.all(np.abs(evidence.acceptance.mean(0) - target) < 0.12)
    exact = dist.Normal(scales, scales * np.hypot(1.0, 0.3)).log_prob(y)
    assert np.all(np.abs(evidence.log_evidence - exact) < 4 * evidence.standard_error)
    assert np.all(evidence.standard_error < 0.1)


def test_frozen_settings_give_the_same_run():
    estimator = HAIS(cases.gamma_poisson, num_steps=20, num_particles=64)
    settings = estimator.tune(random.key(6))
    frozen = HAIS(cases.gamma_poisson, settings=settings, num_particles=64)
    np.testing.assert_allclose(
        estimator.log_evidence(random.key(6)).log_weights,
        frozen.log_evidence(random.key(6)).log_weights,
        rtol=1e-5,
    )
    assert settings.num_gradients == 8 * 8 * 20


def test_online_rule_moves_by_two_percent():
    estimator = AIS(
        cases.gamma_poisson, num_steps=30, num_leapfrog=3, num_particles=64, adaptation="online"
    )
    evidence = estimator.log_evidence(random.key(7))
    ratios = np.asarray(evidence.settings.step_size[1:] / evidence.settings.step_size[:-1])
    assert np.all(np.isclose(ratios, 1.02, rtol=1e-4) | np.isclose(ratios, 0.98, rtol=1e-4))
    is_high = np.asarray(evidence.acceptance[:-1]) > 0.65
    np.testing.assert_array_equal(is_high, ratios > 1)
    exact = cases.gamma_poisson_log_evidence()
    assert abs(float(evidence) - exact) < 5 * evidence.standard_error


ERRORS = {
    "HAIS without steps": (HAIS, {"num_steps": 0}, "num_steps.*at least 1; got 0"),
    "AIS with damping": (AIS, {"damping": 0.5}, "AIS has no argument 'damping': .*fully"),
    "AIS without leapfrogs": (AIS, {"num_leapfrog": 0}, "num_leapfrog.*at least 1; got 0"),
    "importance with steps": (ImportanceSampling, {"num_steps": 5}, "has no argument 'num_steps'"),
    "acceptance": (HAIS, {"target_acceptance": 1.0}, r"target_acceptance.*\(0, 1\); got 1"),
    "adaptation": (AIS, {"adaptation": "never"}, "'pilot' or 'online'; got 'never'"),
    "online, one particle": (
        AIS,
        {"adaptation": "online", "num_particles": 1},
        "needs at least 2; got num_particles=1",
    ),
    "online, chunks": (HAIS, {"adaptation": "online", "chunk_size": 5}, "leave chunk_size out"),
}


@pytest.mark.parametrize(("kind", "kwargs", "message"), ERRORS.values(), ids=ERRORS)
def test_bad_arguments(kind, kwargs, message):
    with pytest.raises((ValueError, TypeError), match=message):
        kind(cases.gamma_poisson, **kwargs)
