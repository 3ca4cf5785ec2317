# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Defaults of DAVI: steps that follow the curvature, from a cold start, with every kind of guide."""

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import pytest

import numpyro
import numpyro.distributions as dist
from numpyro.distributions import constraints
from numpyro.infer import SVI, autoguide

from numpyro_dais import DAVI
from numpyro_dais.linear_regression import LinearRegression
from numpyro_dais.model.problem import Problem
from numpyro_dais.model.target import make_target
from numpyro_dais.sampler.particles import particle_keys, run_particles
from numpyro_dais.vi.steps import Curvature, measure_curvature, stable_steps
from tests.cases import normal_means

pytestmark = [
    pytest.mark.filterwarnings("ignore:The effective sample size"),
    pytest.mark.filterwarnings("ignore:k-hat is"),
]

rng = np.random.default_rng(0)
# Columns of scales 1 to 100: a step of 0.1 in units of a new guide is a hundred times too long.
X = jnp.asarray(rng.standard_normal((50, 3)) * np.array([1.0, 10.0, 100.0]))
Y = X @ jnp.array([0.5, -1.0, 0.8]) + jnp.asarray(rng.standard_normal(50))


def regression(X, y):
    w = numpyro.sample("w", dist.Normal(jnp.zeros(3), 1.0).to_event(1))
    numpyro.sample("y", dist.Normal(X @ w, 1.0).to_event(1), obs=y)


def hand_written(X, y):
    loc = numpyro.param("loc", jnp.zeros(3))
    scale = numpyro.param("scale", 0.1 * jnp.ones(3), constraint=constraints.positive)
    numpyro.sample("w", dist.Normal(loc, scale).to_event(1))


def hierarchy(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfNormal(5.0))
    with numpyro.plate("groups", 20):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(theta, 0.1), obs=y)


def listed(model):
    guide = autoguide.AutoGuideList(model)
    guide.append(autoguide.AutoNormal(model))
    return guide


GUIDES = {
    "AutoNormal": autoguide.AutoNormal,
    "AutoMultivariateNormal": autoguide.AutoMultivariateNormal,
    "AutoLowRankMultivariateNormal": autoguide.AutoLowRankMultivariateNormal,
    "AutoIAFNormal": autoguide.AutoIAFNormal,
    "AutoGuideList": listed,
    "hand_written": lambda _: hand_written,
}


def train(model, guide, davi, args, num_iterations=30, learning_rate=0.05):
    svi = SVI(model, guide, numpyro.optim.Adam(learning_rate), davi)
    return svi.run(random.key(0), num_iterations, *args, progress_bar=False)


@pytest.mark.parametrize("name", GUIDES)
def test_first_losses_are_finite_with_every_guide(name):
    """With a step of 0.1 the first loss is 1e23 or infinite; here each is finite, and they fall."""
    davi, guide = DAVI(), GUIDES[name](regression)
    result = train(regression, guide, davi, (X, Y))
    assert np.all(np.isfinite(result.losses))
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(result.params))
    assert np.mean(result.losses[-5:]) < np.mean(result.losses[:5])
    assert not any(name.startswith("davi") for name in result.params)


def test_a_given_step_size_stays_as_given():
    result = train(regression, autoguide.AutoNormal(regression), DAVI(step_size=10.0), (X, Y), 3)
    assert not np.any(np.isfinite(result.losses))
    # Its gradient was zero, so that nothing was spoilt.
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(result.params))


def test_learned_settings_from_a_cold_start():
    """The hierarchy whose losses were infinite from the first iteration on."""
    y = jnp.asarray(np.random.default_rng(1).normal(1.0, 1.5, 20))
    davi = DAVI()
    result = train(hierarchy, davi.guide(autoguide.AutoNormal(hierarchy)), davi, (y,))
    assert np.all(np.isfinite(result.losses))
    assert {"davi_schedule", "davi_step_size", "davi_mass_tau"} <= set(result.params)
    assert set(davi.learned(result.params)) == {"schedule", "step_size", "mass"}
    assert np.all(result.params["davi_step_size"] < 2)  # the limit of stability


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("is_full", [False, True])
def test_curvature_is_the_largest_eigenvalue(is_full):
    """In units of the guide; a power iteration comes from below."""
    kind = autoguide.AutoMultivariateNormal if is_full else autoguide.AutoDiagonalNormal
    guide = kind(regression, init_scale=0.3)
    args = jnp.asarray(X, float), jnp.asarray(Y, float)
    params = (
        SVI(regression, guide, numpyro.optim.Adam(0.1), DAVI())
        .run(random.key(0), 1, *args, progress_bar=False)
        .params
    )
    unit = params["auto_scale_tril"] if is_full else params["auto_scale"]
    problem = Problem(regression, guide=guide, guide_params=params, params=params, args=args)
    found = jax.jit(lambda: measure_curvature(make_target(problem), unit))()
    matrix = np.asarray(unit) if is_full else np.diag(np.asarray(unit))
    precision = np.eye(3) + np.asarray(X, float).T @ np.asarray(X, float)
    largest = np.linalg.eigvalsh(matrix.T @ precision @ matrix)[-1]
    np.testing.assert_allclose(found.end, largest, rtol=1e-3)
    np.testing.assert_allclose(found.start, 1.0, rtol=1e-6)


@pytest.mark.usefixtures("x64")
def test_chains_in_noise_have_the_gradient_of_a_fixed_unit():
    """Of a full-rank guide: as those in positions, whose unit is its scale without a gradient."""
    guide, davi = autoguide.AutoMultivariateNormal(regression, init_scale=0.3), DAVI(num_steps=2)
    whole = davi.guide(guide)
    args = jnp.asarray(X, float), jnp.asarray(Y, float)
    svi = SVI(regression, whole, numpyro.optim.Adam(0.1), davi)
    params = svi.get_params(svi.init(random.key(0), *args))
    params["auto_scale_tril"] = 0.01 * jnp.array([[2.0, 0, 0], [1, 1, 0], [-1, 0.3, 0.5]])
    params["davi_mass_w"] = jnp.array([0.5, 1.0, 3.0])

    def in_positions(params):
        problem = Problem(regression, guide=guide, guide_params=params, params=params, args=args)
        target = make_target(problem)
        settings = davi._settings_at(params, problem, target)
        keys = particle_keys(random.split(random.key(5))[1], 1)
        return -run_particles(keys, target, settings, "checkpoint").log_weights[0]

    def in_noise(params):
        return davi.loss(random.key(5), params, regression, whole, *args)

    expected, slopes = jax.jit(jax.value_and_grad(in_positions))(params)
    found, own = jax.jit(jax.value_and_grad(in_noise))(params)
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    for name in ("auto_loc", "auto_scale_tril", "davi_mass_w", "davi_step_size"):
        # Above its diagonal a triangular matrix has no entries.
        is_entry = np.tril(np.ones(3)) if name == "auto_scale_tril" else 1.0
        np.testing.assert_allclose(is_entry * own[name], is_entry * slopes[name], rtol=1e-7)


def test_steps_along_the_path():
    curvature = Curvature(jnp.array(1.0), jnp.array(25.0))
    steps = stable_steps(curvature, jnp.array([0.0, 0.5, 1.0]), 0.4 * jnp.ones(3))
    np.testing.assert_allclose(steps, 0.4 / np.sqrt([1.0, 13.0, 25.0]), rtol=1e-6)
    flat = stable_steps(Curvature(jnp.array(1.0), jnp.array(0.0)), jnp.ones(1), jnp.ones(1))
    np.testing.assert_allclose(flat, np.sqrt(10), rtol=1e-6)
    # A chain that knows nothing of its curvature stays where it is.
    unknown = Curvature(jnp.array(1.0), jnp.array([jnp.nan, 4.0]))
    steps = stable_steps(unknown, jnp.ones(1), jnp.ones(1))
    np.testing.assert_allclose(steps, [[0.0, 0.5]])


def test_weights_are_unbiased_with_steps_by_rule():
    """From a guide with wrong means and scales, whose steps depend on it."""
    small = X / jnp.array([1.0, 10.0, 100.0])
    y = small @ jnp.array([0.5, -1.0, 0.8])
    exact = LinearRegression(np.asarray(small, float), np.asarray(y, float)).log_evidence
    guide, davi = autoguide.AutoNormal(regression), DAVI(num_steps=4)
    train(regression, guide, davi, (small, y), 1)
    params = {
        "w_auto_loc": jnp.array([0.4, -0.9, 0.75]),
        "w_auto_scale": jnp.array([0.3, 0.25, 0.35]),
    }
    estimator = davi.estimator(regression, guide, params, num_particles=20_000)
    evidence = estimator.log_evidence(random.key(1), small, y)
    ratios = np.exp(np.asarray(evidence.log_weights, np.float64) - exact)
    error = ratios.std() / np.sqrt(len(ratios))
    assert error < 0.02
    assert abs(ratios.mean() - 1) < 5 * error
    loss = davi.loss(random.key(1), params, regression, guide, small, y)
    one = davi.estimator(regression, guide, params, num_particles=1)
    same = one.log_evidence(random.key(1), small, y)
    np.testing.assert_allclose(loss, -same.log_evidence, rtol=1e-5)
    settings = one.tune(None, small, y)
    assert np.ptp(settings.step_size) > 0
    np.testing.assert_allclose(same.settings.step_size, settings.step_size, rtol=1e-5)


def test_the_estimator_finds_plates_by_itself():
    y = jnp.array([0.3, 2.0, -1.0])
    guide, davi = autoguide.AutoNormal(normal_means), DAVI(num_particles=3)
    params = train(normal_means, guide, davi, (y,), 1).params
    evidence = davi.estimator(normal_means, guide, params, num_particles=3).log_evidence(
        random.key(4), y
    )
    assert evidence.log_weights.shape == (3, 3)
    loss = davi.loss(random.key(4), params, normal_means, guide, y)
    np.testing.assert_allclose(loss, -evidence.log_evidence.sum(), rtol=1e-5)
    joint = davi.estimator(normal_means, guide, params, num_particles=3, plate=())
    assert joint.log_evidence(random.key(4), y).log_weights.shape == (3,)


def test_the_estimator_computes_no_draw_of_the_prior():
    """The first draw of so wide a prior rounds to zero, which is no scale."""

    def model(y):
        precision = numpyro.sample("precision", dist.Gamma(1e-4, 1e-4))
        numpyro.sample("y", dist.Normal(0.0, precision), obs=y)

    guide, davi = autoguide.AutoNormal(model), DAVI(num_steps=0)
    params = {"precision_auto_loc": jnp.array(0.0), "precision_auto_scale": jnp.array(0.1)}
    with numpyro.validation_enabled():
        evidence = davi.estimator(model, guide, params, num_particles=2).log_evidence(None, 1.0)
    assert np.all(np.isfinite(evidence.log_weights))


def test_what_is_learned():
    guide = autoguide.AutoNormal(regression)
    for davi, learned in [
        (DAVI(), {"davi_schedule", "davi_step_size", "davi_mass_w"}),
        (DAVI(learn=()), set()),
        (DAVI(num_steps=0), set()),
        (DAVI(learn=("damping",)), {"davi_damping"}),
    ]:
        params = train(regression, davi.guide(guide), davi, (X, Y), 1).params
        assert {name for name in params if name.startswith("davi")} == learned


def test_errors_of_step_sizes_by_rule():
    with pytest.raises(ValueError, match=r"estimator\(model, guide, params\)\.tune"):
        DAVI().settings({})
    with pytest.raises(ValueError, match="max_step_size= goes with step_size="):
        DAVI(max_step_size=1.0)


def test_diagnostics_count_lost_particles():
    guide = autoguide.AutoNormal(regression)
    good, bad = DAVI(), DAVI(step_size=10.0)
    params = train(regression, guide, good, (X, Y), 1).params
    found = good.diagnostics(random.key(0), params, regression, guide, X, Y, num_samples=10)
    assert found[:3] == (10, 0, 0)
    assert found.step_size.shape == (8,)
    with pytest.warns(UserWarning, match="10 of 10 weights are not finite"):
        found = bad.diagnostics(random.key(0), params, regression, guide, X, Y, num_samples=10)
    assert found[:3] == (10, 10, 0)


def rough(a):
    """Finite, but above 0.5 its derivative by the parameter of the model is not."""
    scale = numpyro.param("scale", 1.0)
    x = numpyro.sample("x", dist.Normal(0.0, scale))
    numpyro.factor("rough", jnp.sqrt(jnp.where(x > 0.5, 0.0 * scale, 1.0)))


def test_diagnostics_count_particles_without_a_gradient():
    guide, davi = autoguide.AutoNormal(rough, init_scale=1.0), DAVI(num_steps=0)
    params = train(rough, guide, davi, (1.0,), 1).params
    with pytest.warns(UserWarning, match="have no finite gradient"):
        found = davi.diagnostics(random.key(0), params, rough, guide, 1.0, num_samples=40)
    assert found.num_lost == 0
    assert 0 < found.num_without_gradient < 40


def test_guides_that_are_chains_themselves():
    guide = autoguide.AutoSemiDAIS(
        normal_means, lambda *args: 0.0, autoguide.AutoNormal(normal_means)
    )
    with pytest.raises(
        NotImplementedError, match="AutoSemiDAIS: its density is itself an integral"
    ):
        DAVI().loss(random.key(0), {}, normal_means, guide, jnp.zeros(3))
