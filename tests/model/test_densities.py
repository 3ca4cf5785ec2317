# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Densities and evidence of models: closed forms, and NumPyro's own densities."""

from functools import partial

import jax
from jax import random
from jax.flatten_util import ravel_pytree
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import numpyro
from numpyro import handlers
from numpyro.contrib.control_flow import scan
import numpyro.distributions as dist
from numpyro.infer import Predictive, log_likelihood
from numpyro.infer.util import initialize_model, potential_energy

from numpyro_dais import DAIS
from numpyro_dais.model.problem import Problem
from numpyro_dais.model.target import make_target
from tests.cases import (
    ALPHA,
    CASES,
    MASK,
    WITH_GAP,
    loc_scale_reparam,
    obs_mask_positive,
    regression_of_unknown_noise,
)

NUM_PARTICLES = 20_000


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
    # In float32 a far cut of `ordered` leaves a category no probability at all: whether one in 20,000
    # draws does so is up to the rounding of this version of XLA.
    is_finite = np.isfinite(log_weights)
    assert np.sum(~is_finite) <= 1
    assert 0.3 < np.var(log_weights[is_finite]) < 2.0
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
    target = make_target(Problem(obs_mask_positive, args=(WITH_GAP,)))
    rate, imputed = 1.7, np.array([0.2, 0.9, 2.5, 1.1])
    u = jnp.log(jnp.array([rate, *imputed]))  # alphabetical: rate, y_unobserved
    log_start, log_ratio = jax.jit(target.log_densities_fn)(u)
    prior = stats.gamma.logpdf(rate, 2.0, scale=1 / 1.5) + np.log(rate)
    prior += np.sum(stats.expon.logpdf(imputed, scale=1 / rate) + np.log(imputed))
    observed = np.asarray(WITH_GAP)[MASK]
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
    with pytest.warns(UserWarning, match="no observed site"):
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
    target = make_target(Problem(regression_of_unknown_noise, args=CASES["regression"].args))
    values = target.constrain_fn(jnp.array([-0.7, 0.4, 1.2]))
    assert values.keys() == {"variance", "sigma", "w"}
    np.testing.assert_allclose(values["variance"], np.exp(-0.7), rtol=1e-6)
    np.testing.assert_allclose(values["sigma"], np.exp(-0.35), rtol=1e-6)
    np.testing.assert_allclose(values["w"], [0.4, 1.2], rtol=1e-6)
    numpyro_names = make_target(Problem(loc_scale_reparam, args=CASES["hierarchy"].args))
    assert numpyro_names.constrain_fn(jnp.zeros(5)).keys() == {"mu", "theta_decentered", "theta"}


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
