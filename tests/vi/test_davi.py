# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""DAVI as a loss of SVI: identities, gradients, plates, mini-batches, learned settings, errors."""

from functools import partial

import flax.linen as nn
import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import special, stats

import numpyro
from numpyro.contrib.module import flax_module
import numpyro.distributions as dist
from numpyro.distributions import constraints
from numpyro.infer import SVI, Predictive, Trace_ELBO, autoguide
from numpyro.infer.util import log_density

from numpyro_dais import DAIS, DAVI
from numpyro_dais.linear_regression import LinearRegression
from tests.cases import normal_means

# A handful of particles is enough for an identity, and too few for an estimate.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The effective sample size"),
    pytest.mark.filterwarnings("ignore:k-hat is"),
]

ALL = ("schedule", "step_size", "damping", "mass")
Y = jnp.array([0.3, 2.0, -1.0, 4.0, 1.2, 0.1])
N, B = 6, 3


def means_guide(y):
    """Amortised by one weight; its scale is a parameter."""
    weight = numpyro.param("weight", 0.7)
    scale = numpyro.param("scale", 0.8, constraint=constraints.positive)
    with numpyro.plate("data", len(y)):
        numpyro.sample("x", dist.Normal(weight * y, scale))


def batched_means(y):
    with numpyro.plate("data", N, subsample_size=B):
        batch = numpyro.subsample(y, event_dim=0)
        x = numpyro.sample("x", dist.Normal(1.0, 1.5))
        numpyro.sample("y", dist.Normal(x, 0.5), obs=batch)


def batched_guide(y):
    weight = numpyro.param("weight", 0.7)
    with numpyro.plate("data", N, subsample_size=B):
        batch = numpyro.subsample(y, event_dim=0)
        numpyro.sample("x", dist.Normal(weight * batch, 0.8))


def skewed(y):
    """Two sites, one positive, in an order other than the alphabet's; a parameter of the model."""
    rate = numpyro.sample("rate", dist.Gamma(3.0, 2.0))
    mu = numpyro.sample("mu", dist.Normal(numpyro.param("prior_mean", 0.5), 1.0))
    numpyro.sample("y", dist.Normal(mu, 1 / jnp.sqrt(rate)).expand([len(y)]).to_event(1), obs=y)


def skewed_guide(y):
    """A site whose distribution leans on another one."""
    loc = numpyro.param("loc", jnp.array([0.4, 0.2]))
    rate = numpyro.sample("rate", dist.LogNormal(loc[0], 0.4))
    numpyro.sample("mu", dist.Normal(loc[1] + 0.3 * rate, 0.6))


def init_params(model, guide, loss, *args):
    """Parameters that SVI would start with."""
    svi = SVI(model, guide, optax.adam(1e-3), loss)
    return svi.get_params(svi.init(random.key(3), *args))


def jitted_loss(davi, rng_key, params, model, guide, *args):
    return jax.jit(lambda key, p, args: davi.loss(key, p, model, guide, *args))(
        rng_key, params, args
    )


GUIDES = {
    "AutoNormal": lambda: autoguide.AutoNormal(skewed, init_scale=0.4),
    "AutoMultivariateNormal": lambda: autoguide.AutoMultivariateNormal(skewed, init_scale=0.4),
    "AutoLowRankMultivariateNormal": lambda: autoguide.AutoLowRankMultivariateNormal(skewed),
    "AutoIAFNormal": lambda: autoguide.AutoIAFNormal(skewed, hidden_dims=[4], num_flows=1),
    "AutoGuideList": lambda: guide_list(),
    "hand_written": lambda: skewed_guide,
}


def guide_list():
    guide = autoguide.AutoGuideList(skewed)
    guide.append(autoguide.AutoNormal(numpyro.handlers.block(skewed, hide=["mu"]), prefix="a"))
    guide.append(
        autoguide.AutoDiagonalNormal(numpyro.handlers.block(skewed, hide=["rate"]), prefix="b")
    )
    return guide


@pytest.mark.parametrize("name", GUIDES)
def test_loss_is_minus_the_evidence_of_dais(name):
    """Same key, same settings, same weights; with learned settings, and a gradient for each."""
    guide = GUIDES[name]()
    davi = DAVI(num_steps=3, num_particles=4, step_size=0.2, learn=ALL)
    params = init_params(skewed, davi.guide(guide), davi, Y)

    def loss(params):
        return davi.loss(random.key(7), params, skewed, davi.guide(guide), Y)

    value, slopes = jax.jit(jax.value_and_grad(loss))(params)
    estimator = davi.estimator(skewed, guide, params, num_particles=4)
    evidence = estimator.log_evidence(random.key(7), Y)
    np.testing.assert_allclose(value, -evidence.log_evidence, rtol=2e-5)
    assert all(np.all(np.isfinite(slope)) for slope in jax.tree.leaves(slopes))
    assert {"davi_schedule", "davi_step_size", "davi_damping", "prior_mean"} <= set(slopes)
    assert all(np.any(slopes[name] != 0) for name in slopes if name.startswith("davi"))


def test_the_loss_is_a_mean_of_estimates():
    """Of importance-weighted bounds, one per element of the plate; not the bound of all particles."""
    davi = DAVI(num_steps=3, num_particles=2, num_estimates=3, step_size=0.2)
    params = init_params(normal_means, means_guide, davi, Y)
    loss = jitted_loss(davi, random.key(7), params, normal_means, means_guide, Y)
    estimator = davi.estimator(normal_means, means_guide, params, num_particles=6)
    evidence = estimator.log_evidence(random.key(7), Y)
    bounds = special.logsumexp(np.reshape(evidence.log_weights, (2, 3, -1)), axis=0) - np.log(2)
    np.testing.assert_allclose(loss, -bounds.mean(axis=0).sum(), rtol=1e-5)
    assert abs(loss + evidence.log_evidence.sum()) > 1e-2


def test_loss_of_a_minibatch_is_scaled_after_the_log_mean_exp():
    davi = DAVI(num_steps=3, num_particles=4, step_size=0.2)
    params = {"weight": jnp.array(0.7)}
    loss = jitted_loss(davi, random.key(7), params, batched_means, batched_guide, Y)
    estimator = davi.estimator(batched_means, batched_guide, params, num_particles=4, plate="data")
    evidence = estimator.log_evidence(random.key(7), Y)
    assert evidence.log_weights.shape == (4, B)
    np.testing.assert_allclose(loss, -N / B * evidence.log_evidence.sum(), rtol=1e-5)


def test_a_minibatch_is_one_for_all_particles_and_steps():
    """At the exact posterior every weight is the evidence of the elements drawn, and nothing else."""

    def exact_guide(y):
        precision = 1 / 1.5**2 + 1 / 0.5**2
        with numpyro.plate("data", N, subsample_size=B):
            batch = numpyro.subsample(y, event_dim=0)
            mean = (1.0 / 1.5**2 + batch / 0.5**2) / precision
            numpyro.sample("x", dist.Normal(mean, precision**-0.5))

    davi = DAVI(num_steps=0, num_particles=3)
    loss = jax.jit(lambda key: davi.loss(key, {}, batched_means, exact_guide, Y))
    losses = np.array([loss(random.key(seed)) for seed in range(60)])
    log_evidences = stats.norm.logpdf(np.asarray(Y), 1.0, np.sqrt(1.5**2 + 0.5**2))
    subsets = [sum(log_evidences[[i, j, k]]) for i in range(N) for j in range(i) for k in range(j)]
    distances = np.abs(-losses[:, None] * B / N - np.array(subsets))
    assert distances.min(axis=1).max() < 1e-4
    assert len(set(distances.argmin(axis=1))) > 10
    error = losses.std() / np.sqrt(60)
    assert abs(losses.mean() + log_evidences.sum()) < 4 * error


IDENTITIES = {
    "AutoNormal": (
        normal_means,
        lambda: autoguide.AutoNormal(normal_means, init_scale=0.5),
        1.0,
        True,
    ),
    "AutoMultivariateNormal": (
        normal_means,
        lambda: autoguide.AutoMultivariateNormal(normal_means, init_scale=0.5),
        1.0,
        False,
    ),
    "hand_written": (normal_means, lambda: means_guide, 1.0, True),
    "subsampled": (batched_means, lambda: batched_guide, N / B, True),
}


@pytest.mark.parametrize("name", IDENTITIES)
@pytest.mark.filterwarnings("ignore:Only 'the guide' is outside")
def test_without_steps_it_is_the_importance_weighted_bound(name):
    """Drawn and weighted by NumPyro itself; for one particle, the ELBO in expectation."""
    model, make_guide, scale, is_local = IDENTITIES[name]
    guide = make_guide()
    params = init_params(model, guide, Trace_ELBO(), Y)
    num_particles = 5
    davi = DAVI(num_steps=0, num_particles=num_particles)
    loss = jitted_loss(davi, random.key(1), params, model, guide, Y)
    estimator = davi.estimator(
        model, guide, params, num_particles=num_particles, plate="data" if is_local else None
    )
    evidence = estimator.log_evidence(random.key(1), Y)
    subsample = evidence.problem.subsample

    def log_weights_of(position):
        x = position.reshape(-1)
        data = {**params, **subsample, "x": x}
        by_element = []
        for fn in (model, guide):
            if isinstance(guide, autoguide.AutoContinuous) and fn is guide:
                posterior = numpyro.handlers.substitute(guide._get_posterior, data=params)()
                by_element.append(posterior.log_prob(x))
                continue
            seeded = numpyro.handlers.seed(numpyro.handlers.substitute(fn, data=data), 0)
            trace = numpyro.handlers.trace(seeded).get_trace(Y)
            sites = [site for site in trace.values() if site["type"] == "sample"]
            by_element.append(sum(site["fn"].log_prob(site["value"]) for site in sites))
        joint, start = by_element
        return joint - start if is_local else joint.sum() - start.sum()

    one, elbo = DAVI(num_steps=0), Trace_ELBO()

    @jax.jit
    def by_numpyro(positions, keys):
        losses = jax.vmap(lambda k: [fn.loss(k, params, model, guide, Y) for fn in (one, elbo)])
        return jax.vmap(log_weights_of)(positions), losses(keys)

    keys = random.split(random.key(2), 4000)
    results = jax.tree.map(np.asarray, by_numpyro(evidence.positions, keys))
    log_weights, (ours, theirs) = results
    bounds = special.logsumexp(log_weights, axis=0) - np.log(num_particles)
    np.testing.assert_allclose(loss, -scale * np.sum(bounds), rtol=1e-5)
    error = np.sqrt((ours.var() + theirs.var()) / len(keys))
    assert abs(ours.mean() - theirs.mean()) < 4 * error


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("memory", ["plain", "checkpoint"])
def test_gradients_match_finite_differences(memory):
    davi = DAVI(num_steps=3, num_particles=2, step_size=0.3, learn=ALL, memory=memory)
    davi.entropy_weight = 0.0  # it has a gradient, and no value
    guide = davi.guide(autoguide.AutoMultivariateNormal(skewed, init_scale=0.4))
    params = init_params(skewed, guide, davi, Y)

    @jax.jit
    @jax.value_and_grad
    def loss(params):
        return davi.loss(random.key(7), params, skewed, guide, Y)

    _, slopes = loss(params)
    rng = np.random.default_rng(0)
    for name, value in params.items():
        direction = rng.standard_normal(np.shape(value))
        ahead, behind = (
            loss({**params, name: value + sign * 1e-5 * direction})[0] for sign in (1, -1)
        )
        slope = np.sum(np.asarray(slopes[name]) * direction)
        np.testing.assert_allclose(slope, (ahead - behind) / 2e-5, rtol=1e-5, atol=1e-7)


@pytest.mark.usefixtures("x64")
def test_reversible_memory_gives_the_same_gradient():
    """At a damping of 7/8, which needs no rounding."""

    def slopes(memory):
        davi = DAVI(
            num_steps=3,
            num_particles=2,
            step_size=0.3,
            damping=0.875,
            learn=ALL,
            memory=memory,
        )
        guide = davi.guide(autoguide.AutoMultivariateNormal(skewed, init_scale=0.4))
        params = init_params(skewed, guide, davi, Y)
        loss = jax.grad(lambda params: davi.loss(random.key(7), params, skewed, guide, Y))
        return jax.jit(loss)(params), davi.settings(params)

    (expected, _), (got, settings) = slopes("checkpoint"), slopes("reversible")
    np.testing.assert_allclose(settings.damping, 0.875)
    for name in expected:
        np.testing.assert_allclose(got[name], expected[name], rtol=1e-6, atol=1e-8)


def test_entropy_enters_through_its_gradient_only():
    with_bonus, without = (
        DAVI(num_steps=4, learn=("schedule",), entropy_weight=weight) for weight in (0.5, 0.0)
    )
    guide = with_bonus.guide(means_guide)
    logits = jnp.array([0.3, -0.2, 0.5, 0.0])
    params = {**init_params(normal_means, guide, with_bonus, Y), "davi_schedule": logits}

    def loss(davi):
        loss = jax.value_and_grad(lambda p: davi.loss(random.key(0), p, normal_means, guide, Y))
        return jax.jit(loss)(params)

    (value, slopes), (expected, expected_slopes) = loss(with_bonus), loss(without)
    assert float(value) == float(expected)

    def entropy(logits):
        return -jnp.sum(jax.nn.softmax(logits) * jax.nn.log_softmax(logits))

    difference = np.asarray(slopes["davi_schedule"]) - np.asarray(expected_slopes["davi_schedule"])
    slope = np.asarray(jax.jit(jax.grad(entropy))(logits))
    # One bonus for each of the six elements of the plate.
    np.testing.assert_allclose(difference, -0.5 * N * slope, rtol=1e-3, atol=1e-5)


def test_closes_the_gap_of_a_mean_field_guide(optimised):
    """Correlated covariates, where a diagonal guide leaves a gap; the evidence is known exactly."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((60, 4)) @ np.linalg.cholesky(0.05 * np.eye(4) + 0.95).T
    y = X @ np.array([0.5, -0.3, 0.8, 0.1]) + rng.standard_normal(60)
    exact = LinearRegression(X, y).log_evidence
    X, y = jnp.array(X), jnp.array(y)

    def model():
        w = numpyro.sample("w", dist.Normal(jnp.zeros(4), 1).to_event(1))
        numpyro.sample("y", dist.Normal(X @ w, 1).to_event(1), obs=y)

    guide = autoguide.AutoDiagonalNormal(model, init_scale=0.3)

    def fit(guide, loss, num_iterations, **kwargs):
        svi = SVI(model, guide, optax.adam(optax.cosine_decay_schedule(0.02, num_iterations)), loss)
        result = svi.run(random.key(0), num_iterations, progress_bar=False, **kwargs)
        evaluate = jax.vmap(lambda key: loss.loss(key, result.params, model, guide))
        return result.params, -float(jnp.mean(jax.jit(evaluate)(random.split(random.key(9), 2000))))

    params, elbo = fit(guide, Trace_ELBO(num_particles=4), 1500)
    davi = DAVI(num_steps=32, num_particles=4, learn=("schedule", "step_size"))
    params, bound = fit(davi.guide(guide), davi, 1000, init_params=params)
    assert exact - elbo > 1
    assert exact - bound < 0.15 * (exact - elbo)
    evidence = davi.estimator(model, guide, params, num_steps=64, num_particles=200).log_evidence()
    assert abs(float(evidence) - exact) < 4 * evidence.standard_error
    assert evidence.num_gradients == 64 * 200


def test_every_door_of_svi():
    """init, update, stable_update, evaluate and run; under jit, in forward mode, and with both kinds of optimisers."""
    davi = DAVI(num_steps=2, num_particles=2, learn=("step_size",))
    svi = SVI(normal_means, davi.guide(means_guide), optax.adam(0.01), davi)
    state = svi.init(random.key(0), Y)
    forward = partial(svi.update, forward_mode_differentiation=True)
    (by_reverse, loss), (stable, _), (by_forward, _) = (
        jax.jit(update)(state, Y) for update in (svi.update, svi.stable_update, forward)
    )
    np.testing.assert_allclose(loss, jax.jit(svi.evaluate)(state, Y), rtol=1e-5)
    for other in (stable, by_forward):
        for name, value in svi.get_params(by_reverse).items():
            np.testing.assert_allclose(svi.get_params(other)[name], value, rtol=1e-3, atol=1e-5)
    svi = SVI(normal_means, davi.guide(means_guide), numpyro.optim.Adam(0.01), davi)
    result = svi.run(random.key(0), 20, Y, progress_bar=False)
    assert np.mean(result.losses[-5:]) < np.mean(result.losses[:5])


class Network(nn.Module):
    """A network with state: batch normalisation."""

    @nn.compact
    def __call__(self, x):
        x = nn.BatchNorm(use_running_average=False, momentum=0.5)(nn.Dense(3)(x))
        return nn.Dense(1)(jnp.tanh(x))[..., 0]


def test_mutable_state_of_a_flax_module():
    X = random.normal(random.key(4), (8, 2)) + 1.5
    y = jnp.arange(8.0) / 4

    def model(X, y):
        network = flax_module("network", Network(), input_shape=(8, 2), mutable=["batch_stats"])
        noise = numpyro.sample("noise", dist.LogNormal(-0.5, 0.5))
        numpyro.sample("y", dist.Normal(network(X), noise).to_event(1), obs=y)

    davi = DAVI(num_steps=2, num_particles=3, learn=("step_size",))
    svi = SVI(model, davi.guide(autoguide.AutoNormal(model)), optax.adam(0.02), davi)
    state = svi.init(random.key(0), X, y)
    before = state.mutable_state["network$state"]["batch_stats"]["BatchNorm_0"]["mean"]
    update = jax.jit(svi.update)
    losses = []
    for _ in range(30):
        state, loss = update(state, X, y)
        losses.append(loss)
    after = state.mutable_state["network$state"]["batch_stats"]["BatchNorm_0"]["mean"]
    assert np.all(np.isfinite(after))
    assert np.all(before != after)
    assert np.mean(losses[-5:]) < np.mean(losses[:5])
    # Half of the last batch's mean and half of the mean before, again and again.
    hidden = nn.Dense(3).apply({"params": svi.get_params(state)["network$params"]["Dense_0"]}, X)
    np.testing.assert_allclose(after, hidden.mean(axis=0), atol=0.2)


def test_two_plates_give_a_bound_for_each_pair():
    y = Y.reshape(2, 3)

    def model(y):
        with numpyro.plate("rows", 2, dim=-2), numpyro.plate("columns", 3, dim=-1):
            x = numpyro.sample("x", dist.Normal(jnp.ones(2), 1.5).to_event(1))
            numpyro.sample("y", dist.Normal(x.sum(-1), 0.5), obs=y)

    davi = DAVI(num_steps=2, num_particles=3, step_size=0.2)
    guide = autoguide.AutoNormal(model, init_scale=0.5)
    params = init_params(model, guide, davi, y)
    loss = jitted_loss(davi, random.key(0), params, model, guide, y)
    estimator = davi.estimator(model, guide, params, num_particles=3, plate=("columns", "rows"))
    evidence = estimator.log_evidence(random.key(0), y)
    assert evidence.log_weights.shape == (3, 6)
    np.testing.assert_allclose(loss, -evidence.log_evidence.sum(), rtol=1e-5)
    # Each pair has its own posterior: x_1 + x_2 has mean 2 + 4.5 / 4.75 (y - 2).
    mean = 2 + 4.5 / 4.75 * (y - 2)
    params = {
        "x_auto_loc": mean[..., None] / 2 + jnp.array([0.2, 0.1]),
        "x_auto_scale": params["x_auto_scale"] + 0.5,
    }
    draws = davi.posterior(random.key(1), params, model, guide, y, num_samples=400)
    total = draws["x"].sum(-1)
    error = 4 * np.sqrt(4.5 * 0.25 / 4.75 / 100)
    np.testing.assert_allclose(total.mean(axis=0), mean, atol=error)


def test_one_site_outside_of_the_plate_is_named():
    def model(y):
        normal_means(y)
        numpyro.factor("outside", 0.5)

    davi, params = DAVI(num_steps=1, num_particles=2), {"weight": 0.7, "scale": 0.8}
    with pytest.warns(UserWarning, match="Only 'outside' is outside of plate 'data'"):
        loss = jitted_loss(davi, random.key(0), params, model, means_guide, Y)
    evidence = davi.estimator(model, means_guide, params, num_particles=2)
    np.testing.assert_allclose(loss, -evidence.log_evidence(random.key(0), Y).log_evidence, 1e-5)


def test_an_amortised_guide_runs_once():
    """Its network is not part of the chain, unless its sites lean on each other."""
    num_calls = 0

    def counting(y):
        nonlocal num_calls
        num_calls += 1
        means_guide(y)

    params = {"weight": 0.7, "scale": 0.8}
    estimator = DAIS(normal_means, num_steps=2, step_size=0.1, guide=counting, guide_params=params)
    from numpyro_dais.model.target import make_target

    target = make_target(estimator._integrand.problem((Y,), {}))
    num_calls_before = num_calls
    target.log_densities_fn(target.ravel_fn({"x": Y}))
    assert num_calls == num_calls_before


def test_guide_whose_sites_lean_on_each_other():
    from numpyro_dais.model.target import make_target

    params = {"loc": jnp.array([0.4, 0.2]), "prior_mean": 0.5}
    estimator = DAIS(
        skewed, num_steps=2, step_size=0.1, guide=skewed_guide, guide_params=params, params=params
    )
    target = make_target(estimator._integrand.problem((Y,), {}))
    rate, mu = 1.7, -0.4
    log_start = jax.jit(target.log_densities_fn)(jnp.array([mu, np.log(rate)])).log_start
    expected = stats.norm.logpdf(np.log(rate), 0.4, 0.4) + stats.norm.logpdf(
        mu, 0.2 + 0.3 * rate, 0.6
    )
    np.testing.assert_allclose(log_start, expected, rtol=1e-5)


def test_learned_settings_are_readable_and_interpolated():
    davi = DAVI(num_steps=4, learn=ALL, step_size=0.2, damping=0.8)
    guide = davi.guide(autoguide.AutoMultivariateNormal(skewed, init_scale=0.5))
    params = init_params(skewed, guide, davi, Y)
    params["davi_schedule"] = jnp.log(jnp.array([0.1, 0.2, 0.3, 0.4]))
    params["davi_mass_rate"] = jnp.array(4.0)
    learned = davi.learned(params)
    np.testing.assert_allclose(learned["schedule"], [0.1, 0.3, 0.6, 1.0], rtol=1e-5)
    np.testing.assert_allclose(learned["step_size"], 0.2, rtol=1e-5)
    np.testing.assert_allclose(learned["damping"], 0.8, rtol=1e-5)
    assert {name: float(mass) for name, mass in learned["mass"].items()} == {"mu": 1, "rate": 4}
    # Positions are (mu, log rate); the guide packs its sites in another order.
    settings = davi.settings(params, guide)
    np.testing.assert_allclose(
        settings.preconditioner @ settings.preconditioner.T, [[0.25, 0], [0, 0.0625]], rtol=1e-5
    )
    longer = davi.settings(params, guide, num_steps=8)
    np.testing.assert_allclose(longer.betas[1::2], settings.betas, rtol=1e-5)
    np.testing.assert_allclose(longer.betas[0], 0.05, rtol=1e-5)
    np.testing.assert_allclose(longer.step_size, 0.2 * 2**-0.25, rtol=1e-5)
    assert float(longer.betas[-1]) == 1


def test_mass_belongs_to_a_coordinate_not_to_a_datum():
    for is_per_step, shape in [(False, ()), (True, (2,))]:
        davi = DAVI(num_steps=2, learn=("mass", "step_size"), is_mass_per_step=is_per_step)
        params = init_params(batched_means, davi.guide(batched_guide), davi, Y)
        assert params["davi_mass_x"].shape == shape
        assert params["davi_step_size"].shape == (2,)
        guide = davi.guide(batched_guide)
        assert np.isfinite(jitted_loss(davi, random.key(0), params, batched_means, guide, Y))


def test_posterior_draws_for_predictive():
    """Refined from a guide with a wrong mean; the posterior of w is known."""
    X = jnp.array([[1.0], [2.0], [-1.0]])
    y = jnp.array([1.0, 3.0, -0.5])

    def model(X, y=None):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(w * X[:, 0], 0.5).to_event(1), obs=y)

    guide = autoguide.AutoNormal(model)
    davi = DAVI(num_steps=16, step_size=0.3)
    init_params(model, guide, davi, X, y)
    params = {"w_auto_loc": jnp.array(1.2), "w_auto_scale": jnp.array(0.4)}
    draws = davi.posterior(random.key(0), params, model, guide, X, y, num_samples=2000)
    precision = 1 + 6 / 0.25
    mean = (1.0 + 6.0 + 0.5) / 0.25 / precision
    np.testing.assert_allclose(draws["w"].mean(), mean, atol=5 * np.sqrt(1 / precision / 500))
    np.testing.assert_allclose(draws["w"].std(), precision**-0.5, rtol=0.1)
    predictions = Predictive(model, draws)(random.key(1), X)
    np.testing.assert_allclose(predictions["y"].mean(axis=0), mean * X[:, 0], atol=0.1)


def test_discrete_sites_are_summed_out():
    def model():
        x = numpyro.sample("x", dist.Normal(0.5, 1.0))
        z = numpyro.sample("z", dist.Bernoulli(0.3), infer={"enumerate": "parallel"})
        numpyro.sample("y", dist.Normal(x + 2 * z, 0.5), obs=1.2)

    def guide():
        numpyro.sample("x", dist.Normal(0.8, 0.9))

    davi = DAVI(num_steps=4, num_particles=20_000, step_size=0.2)
    loss = float(jax.jit(lambda key: davi.loss(key, {}, model, guide))(random.key(0)))
    scale = np.sqrt(1.25)
    exact = np.log(0.7 * stats.norm.pdf(1.2, 0.5, scale) + 0.3 * stats.norm.pdf(1.2, 2.5, scale))
    np.testing.assert_allclose(-loss, exact, atol=0.03)


CONSTRUCTOR_ERRORS = {
    "learn": ({"learn": ("schedule", "stepsize")}, r"names out of \['schedule'.*stepsize"),
    "learn_string": ({"learn": "schedule"}, "tuple of names"),
    "learn_nothing": ({"learn": ("schedule",), "num_steps": 0}, "nothing to learn"),
    "particles": ({"num_particles": 0}, "num_particles must be an integer of at least 1; got 0"),
    "steps": ({"num_steps": -1}, "num_steps must be an integer of at least 0; got -1"),
    "step_size": ({"step_size": -0.1}, "step_size must be finite and positive"),
    "damping": ({"damping": 1.0}, r"damping must be finite and in \[0, 1\)"),
    "damping_per_step": (
        {"damping": np.linspace(0.5, 0.9, 8), "learn": ("damping",)},
        "one number",
    ),
    "damping_zero": ({"damping": 0.0, "learn": ("damping",)}, r"\(0, 1\); got 0"),
    "schedule_zero": ({"schedule": [0.0, 1.0], "learn": ("schedule",)}, "must start above 0"),
    "schedule": ({"schedule": [0.5, 1.0], "num_steps": 3}, "2 betas for 3 steps"),
    "cap": (
        {"step_size": 0.1, "learn": ("step_size",), "max_step_size": 0.01},
        "above the initial step size",
    ),
    "entropy": ({"entropy_weight": -1.0}, "entropy_weight must be finite"),
    "memory": ({"memory": "none"}, "memory must be one of"),
}


@pytest.mark.parametrize(("kwargs", "message"), CONSTRUCTOR_ERRORS.values(), ids=CONSTRUCTOR_ERRORS)
def test_bad_arguments(kwargs, message):
    with pytest.raises(ValueError, match=message):
        DAVI(**kwargs)


def global_latent(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", N, subsample_size=B):
        batch = numpyro.subsample(y, event_dim=0)
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=batch)


def other_size(y):
    with numpyro.plate("data", N, subsample_size=2):
        numpyro.sample("x", dist.Normal(0.0, 1.0))


def wrong_name(y):
    with numpyro.plate("data", len(y)):
        numpyro.sample("z", dist.Normal(0.0, 1.0))


def auxiliary(y):
    with numpyro.plate("data", len(y)):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0), infer={"is_auxiliary": True})
        numpyro.sample("x", dist.Normal(z, 1.0))


LOSS_ERRORS = {
    "AutoDelta": (
        normal_means,
        autoguide.AutoDelta(normal_means),
        NotImplementedError,
        "a point mass",
    ),
    "AutoDAIS": (
        normal_means,
        autoguide.AutoDAIS(normal_means),
        NotImplementedError,
        "integral over chains",
    ),
    "AutoLaplace": (
        normal_means,
        autoguide.AutoLaplaceApproximation(normal_means),
        NotImplementedError,
        "no density while it is fitted",
    ),
    "auxiliary": (normal_means, auxiliary, NotImplementedError, "'z' is auxiliary"),
    "other_latents": (normal_means, wrong_name, ValueError, r"misses \['x'\]"),
    "global_latent": (
        global_latent,
        autoguide.AutoNormal(global_latent),
        NotImplementedError,
        "'data' is subsampled, but 'mu' is outside",
    ),
    "minibatch_sizes": (batched_means, other_size, ValueError, r"\(6, 3\) elements in the model"),
}


@pytest.mark.parametrize(
    ("model", "guide", "kind", "message"), LOSS_ERRORS.values(), ids=LOSS_ERRORS
)
def test_losses_that_cannot_be(model, guide, kind, message):
    davi = DAVI(num_steps=2)
    if isinstance(guide, autoguide.AutoGuide):
        params = init_params(model, guide, Trace_ELBO(), Y)
    else:
        params = {}
    with pytest.raises(kind, match=message):
        davi.loss(random.key(0), params, model, guide, Y)


def test_forgotten_wrapper():
    davi = DAVI(num_steps=2, learn=("step_size",))
    svi = SVI(normal_means, means_guide, optax.adam(0.01), davi)
    with pytest.raises(ValueError, match=r"davi\.guide\(guide\)"):
        svi.run(random.key(0), 1, Y, progress_bar=False)


def test_model_of_the_shared_file_is_exact_at_its_posterior():
    """Each datum's posterior as the guide: the loss is minus the log evidence, with or without steps."""
    precision = 1 / 1.5**2 + 1 / 0.5**2

    def guide(y):
        with numpyro.plate("data", len(y)):
            mean = (1.0 / 1.5**2 + y / 0.5**2) / precision
            numpyro.sample("x", dist.Normal(mean, precision**-0.5))

    exact = stats.norm.logpdf(np.asarray(Y), 1.0, np.sqrt(1.5**2 + 0.5**2)).sum()
    for davi in (DAVI(num_steps=0, num_particles=2), DAVI(num_steps=30, step_size=0.02)):
        loss = jitted_loss(davi, random.key(0), {}, normal_means, guide, Y)
        np.testing.assert_allclose(loss, -exact, rtol=2e-3)


def test_joint_density_is_numpyros():
    """The bound without steps against NumPyro's own densities, at a draw that is known."""
    params = {"loc": jnp.array([0.4, 0.2]), "prior_mean": jnp.array(0.5)}
    davi = DAVI(num_steps=0)
    loss = jitted_loss(davi, random.key(5), params, skewed, skewed_guide, Y)
    estimator = davi.estimator(skewed, skewed_guide, params, num_particles=1)
    mu, log_rate = estimator.log_evidence(random.key(5), Y).positions[0]
    values = {"mu": mu, "rate": np.exp(log_rate)}

    @jax.jit
    def log_densities(values):
        return [log_density(fn, (Y,), {}, {**params, **values})[0] for fn in (skewed, skewed_guide)]

    joint, start = log_densities(values)
    np.testing.assert_allclose(loss, start - joint, rtol=1e-5)
