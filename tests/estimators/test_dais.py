# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""The estimator as a user meets it: tracing, keys, precision, memory, tuning."""

from functools import partial

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import pytest

import numpyro
import numpyro.distributions as dist

from numpyro_dais import DAIS, Settings
from numpyro_dais.estimators import runner
from numpyro_dais.linear_regression import LinearRegression
from numpyro_dais.model.problem import Problem
from numpyro_dais.model.target import make_target
from numpyro_dais.sampler import loop, noise
from numpyro_dais.schedule import fourth_root_step_size, linear
from tests import cases
from tests.cases import paper_data, paper_model


def one_normal():
    """A model that compiles fast."""
    x = numpyro.sample("x", dist.Normal(0.5, 1.0))
    numpyro.sample("y", dist.Normal(x, 0.7), obs=1.3)


EXPLICIT = {"num_steps": 20, "step_size": 0.15, "damping": 0.9}


@pytest.fixture
def data(regression_data):
    return [jnp.array(x) for x in regression_data]


@pytest.mark.parametrize("make_key", [random.key, random.PRNGKey], ids=["typed", "raw"])
def test_same_key_same_answer(make_key):
    estimator = DAIS(one_normal, num_particles=16, **EXPLICIT)
    first, second, other = (estimator.log_evidence(make_key(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.log_weights, second.log_weights)
    assert not np.any(first.log_weights == other.log_weights)
    reference = DAIS(one_normal, num_particles=16, **EXPLICIT).log_evidence(random.key(1))
    np.testing.assert_array_equal(first.log_weights, reference.log_weights)


def test_chunks_do_not_change_the_particles():
    whole, chunked = (
        DAIS(one_normal, num_particles=30, chunk_size=chunk_size, **EXPLICIT)
        for chunk_size in (None, 7)
    )
    np.testing.assert_allclose(
        whole.log_evidence().log_weights, chunked.log_evidence().log_weights, rtol=1e-5
    )


def test_blocks_share_a_program_and_do_not_change_the_particles(monkeypatch):
    num_runs = 0

    def model():
        nonlocal num_runs
        num_runs += 1
        one_normal()

    whole = DAIS(one_normal, num_particles=24, **EXPLICIT).log_evidence()
    monkeypatch.setattr(runner, "_MAX_CHUNK", 8)
    monkeypatch.setattr(runner, "_MIN_CHUNK", 8)
    estimator = DAIS(model, **EXPLICIT)
    counts = []
    for num_particles in (8, 24):
        estimator.num_particles = num_particles
        blocks = estimator.log_evidence()
        counts.append(num_runs)
    assert counts[0] == counts[1]
    np.testing.assert_allclose(blocks.log_weights, whole.log_weights, rtol=1e-5)
    np.testing.assert_allclose(blocks.positions, whole.positions, rtol=1e-5)


def test_progress_bar_is_not_for_trials(capsys):
    """Not even where trials have as many steps and particles as the run that is reported."""
    estimator = DAIS(one_normal, num_steps=50, num_particles=8, damping=0.9, progress_bar=True)
    estimator.log_evidence()
    jax.effects_barrier()
    assert capsys.readouterr().err.count("| 0/50") == 1  # as it opens


def test_progress_bar_opens_on_every_run(capsys):
    kwargs = {**EXPLICIT, "num_steps": 100}
    estimator = DAIS(one_normal, num_particles=30, chunk_size=15, progress_bar=True, **kwargs)
    silent = DAIS(one_normal, num_particles=30, chunk_size=15, **kwargs)
    for _ in range(2):
        evidence = estimator.log_evidence()
        jax.effects_barrier()
        assert "200/200" in capsys.readouterr().err
    np.testing.assert_array_equal(evidence.log_weights, silent.log_evidence().log_weights)


def test_a_second_call_and_new_data_do_not_run_the_model_again(data):
    num_runs = 0

    def model(X, y, num_rows):
        nonlocal num_runs
        num_runs += 1
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([X.shape[1]]).to_event(1))
        with numpyro.plate("rows", num_rows):  # needs a Python int
            numpyro.sample("y", dist.Normal(X @ w, 2.0), obs=y)

    estimator = DAIS(model, num_particles=8, num_steps=100, step_size=0.1)
    X, y = data
    first = estimator.log_evidence(random.key(0), X, y, len(y))
    seen = num_runs
    second = estimator.log_evidence(random.key(0), X, y, len(y))
    shifted = estimator.log_evidence(random.key(1), X, y + 1.0, len(y))
    assert num_runs == seen
    np.testing.assert_array_equal(first.log_weights, second.log_weights)
    assert not np.any(shifted.log_weights == first.log_weights)
    estimator.log_evidence(random.key(0), X[:20], y[:20], 20)
    assert num_runs > seen


def test_traces_do_not_depend_on_the_number_of_steps(data):
    counts = []
    for num_steps in (50, 200, 2000):
        num_runs = 0

        def model(X, y):
            nonlocal num_runs
            num_runs += 1
            cases.regression(X, y)

        estimator = DAIS(model, num_steps=num_steps, num_particles=4, step_size=0.05)
        jax.jit(lambda X, y, e=estimator: e.log_evidence(None, X, y).log_weights).lower(*data)
        counts.append(num_runs)
    assert counts[0] == counts[1] == counts[2]


def test_jit_and_vmap_agree_with_the_plain_call(data):
    X, y = data
    estimator = DAIS(cases.regression, num_particles=128, num_steps=200, step_size=0.08)
    keys = random.split(random.key(3), 2)
    offsets = jnp.array([0.0, 0.5])
    plain = [estimator.log_evidence(key, X, y + c) for key, c in zip(keys, offsets, strict=True)]
    jitted = jax.jit(estimator.log_evidence)(keys[1], X, y + 0.5)
    np.testing.assert_allclose(jitted.log_weights, plain[1].log_weights, rtol=1e-4)
    assert float(jitted) == pytest.approx(float(plain[1]), abs=1e-3)
    assert jitted.samples()["w"].shape == (128, 3)
    batched = jax.vmap(lambda key, c: estimator.log_evidence(key, X, y + c).log_evidence)
    np.testing.assert_allclose(
        batched(keys, offsets), [float(evidence) for evidence in plain], atol=1e-2
    )


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("memory", ["plain", "checkpoint"])
def test_gradient_matches_finite_differences(regression_data, memory):
    X, y = (jnp.array(x) for x in regression_data)
    estimator = DAIS(cases.regression, num_particles=4, memory=memory, **EXPLICIT)

    @jax.jit
    @jax.value_and_grad
    def bound(scales):
        return estimator.log_evidence(random.key(5), X, y, *scales).lower_bound

    scales = np.array([0.8, 1.1])
    _, gradient = bound(scales)
    for i in range(2):
        step = 1e-6 * np.eye(2)[i]
        numeric = (bound(scales + step)[0] - bound(scales - step)[0]) / 2e-6
        assert float(gradient[i]) == pytest.approx(float(numeric), rel=1e-5)


def test_gradient_matches_the_closed_form(regression_data):
    """In a noise scale and a prior scale, within 4 standard errors over particles."""
    X, y = (jnp.array(x) for x in regression_data)
    settings = (linear(30), 0.12, 0.9)

    def exact(noise_scale, prior_scale):
        regression = LinearRegression(
            *regression_data,
            noise_scale=noise_scale,
            prior_mean=cases.PRIOR_MEAN,
            prior_precision=cases.PRIOR_PRECISION / prior_scale**2,
        )
        return regression.expected_bound(*settings)

    estimator = DAIS(
        cases.regression, num_particles=1, schedule=settings[0], step_size=0.12, damping=0.9
    )

    def bound(scales, key):
        return estimator.log_evidence(key, X, y, *scales).lower_bound

    keys = random.split(random.key(6), 10_000)
    scales = jnp.array([0.8, 1.1])
    gradients = np.asarray(jax.jit(jax.vmap(jax.grad(bound), (None, 0)))(scales, keys), float)
    error = gradients.std(axis=0, ddof=1) / np.sqrt(len(keys))
    h = 1e-5
    expected = [
        (exact(0.8 + h, 1.1) - exact(0.8 - h, 1.1)) / (2 * h),
        (exact(0.8, 1.1 + h) - exact(0.8, 1.1 - h)) / (2 * h),
    ]
    assert np.all(np.abs(gradients.mean(axis=0) - expected) < 4 * error)
    assert np.all(error < 0.05 * np.abs(expected))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("num_steps", [64, 71], ids=["even", "with a rest"])
def test_memory_modes_give_one_gradient(regression_data, monkeypatch, num_steps):
    """Also where checkpoints are nested, in segments of two blocks of noise."""
    X, y = (jnp.array(x) for x in regression_data)
    monkeypatch.setattr(noise, "_MAX_LENGTH", 4)

    def gradient(memory, nest_above):
        monkeypatch.setattr(loop, "_NEST_ABOVE", nest_above)
        estimator = DAIS(
            cases.regression, num_particles=2, num_steps=num_steps, step_size=0.05, memory=memory
        )
        bound = lambda scale: estimator.log_evidence(None, X, y, scale).lower_bound  # noqa: E731
        return jax.jit(jax.value_and_grad(bound))(0.8)

    plain = gradient("plain", 10)
    np.testing.assert_allclose(gradient("products", 10), plain, rtol=1e-9)
    np.testing.assert_allclose(gradient("checkpoint", 1_000), plain, rtol=1e-9)
    np.testing.assert_allclose(gradient("checkpoint", 10), plain, rtol=1e-9)


def test_checkpoint_needs_less_memory(data, optimised):
    def temp_bytes(memory, num_steps):
        estimator = DAIS(
            cases.regression, num_particles=8, num_steps=num_steps, step_size=0.02, memory=memory
        )
        bound = lambda scale: estimator.log_evidence(None, *data, scale).lower_bound  # noqa: E731
        compiled = jax.jit(jax.grad(bound)).lower(0.8).compile(optimised)
        return compiled.memory_analysis().temp_size_in_bytes

    assert temp_bytes("checkpoint", 1000) < temp_bytes("plain", 1000) / 5
    # O(sqrt K) states; the settings themselves are a few numbers per step.
    assert temp_bytes("checkpoint", 32_000) < 8 * temp_bytes("checkpoint", 2_000)


def test_tune_returns_settings_that_log_evidence_takes(data):
    estimator = DAIS(cases.regression, num_steps=400)
    settings = estimator.tune(random.key(0), *data)
    assert isinstance(settings, Settings)
    assert settings.num_steps == 400
    assert settings.num_gradients > 0
    evidence = estimator.log_evidence(random.key(0), *data)
    np.testing.assert_array_equal(evidence.settings.step_size, settings.step_size)
    assert evidence.num_gradients == 400 * 128 + settings.num_gradients
    frozen = DAIS(cases.regression, settings=settings)
    again = jax.jit(frozen.log_evidence)(random.key(0), *data)
    np.testing.assert_allclose(again.log_weights, evidence.log_weights, rtol=1e-4)


def test_tuned_step_is_stable_whatever_the_scale(data):
    """The same problem in units of 1e-3 and 1e3 gets the same step in units of the start."""

    def model(X, y, unit):
        w = numpyro.sample("w", dist.Normal(cases.PRIOR_MEAN * unit, unit).to_event(1))
        numpyro.sample("y", dist.Normal(X @ w / unit, 0.8), obs=y)

    kwargs = {"num_steps": 64, "start": "prior"}
    tuned = [DAIS(model, **kwargs).tune(None, *data, unit) for unit in (1e-3, 1.0, 1e3)]
    # Rounding differs from unit to unit, and nothing else.
    np.testing.assert_allclose(tuned[0].step_size, tuned[1].step_size, rtol=1e-2)
    np.testing.assert_allclose(tuned[2].step_size, tuned[1].step_size, rtol=1e-2)
    masses = [inverse_mass(settings) for settings in tuned]
    for mass, unit in zip(masses[::2], (1e-3, 1e3), strict=True):
        np.testing.assert_allclose(mass / unit**2, masses[1], rtol=4e-2, atol=1e-3)


def inverse_mass(settings):
    """The matrices L L' of all steps."""
    num_dims = len(settings.basis)
    scales = np.asarray(settings.preconditioner, np.float64).reshape(-1, 1, num_dims)
    matrices = np.asarray(settings.basis, np.float64) * scales
    return matrices @ np.swapaxes(matrices, 1, 2)


def test_tracing_without_settings_names_tune(data):
    estimator = DAIS(cases.regression)
    with pytest.raises(ValueError, match=r"complete settings under jit.*`tune`"):
        jax.jit(estimator.log_evidence)(random.key(0), *data)
    with pytest.raises(ValueError, match="tune runs on the host"):
        jax.jit(estimator.tune)(random.key(0), *data)


def test_potential_function_over_an_array_and_a_dict():
    """A banana whose normalising constant is 2 pi 0.5."""

    def potential_fn(z):
        return 0.5 * (z[0] - 1) ** 2 + 0.5 * ((z[1] - 0.3 * z[0] ** 2) / 0.5) ** 2

    kwargs = {"num_steps": 100, "num_particles": 2_000, "step_size": 0.25}
    start = dist.Normal(jnp.zeros(2), 1.5)
    array = DAIS(potential_fn=potential_fn, start=start, **kwargs).log_evidence(random.key(2))
    by_name = DAIS(
        potential_fn=lambda z: potential_fn(jnp.array([z["a"], z["b"]])),
        start={"a": dist.Normal(0.0, 1.5), "b": dist.Normal(0.0, 1.5)},
        **kwargs,
    ).log_evidence(random.key(2))
    for evidence in (array, by_name):
        assert abs(float(evidence) - np.log(np.pi)) < 4 * evidence.standard_error
        assert evidence.standard_error < 0.05
    assert array.samples().shape == (2_000, 2)
    assert by_name.samples()["b"].shape == (2_000,)


def test_float32_keeps_the_digits_of_a_large_log_density(optimised):
    """Within 0.05 nats of x64 on the paper's regression, where one float32 unit is 0.001."""
    X, y = paper_data()
    exact = LinearRegression(X, y)
    curvature = np.linalg.eigvalsh(exact.gram)[-1]
    betas = linear(500)
    step_size = fourth_root_step_size(500, 1.0) / np.sqrt(1 + betas * curvature)
    kwargs = {"num_particles": 512, "schedule": betas, "step_size": step_size}
    arrays = jnp.array(X), jnp.array(y)
    # Traced: the weights are wide at this number of steps, and no warning is wanted.
    jit = partial(jax.jit, compiler_options=optimised)
    single = jit(DAIS(paper_model, **kwargs).log_evidence)(random.key(0), *arrays)
    bound = exact.expected_bound(betas, step_size, 0.9)
    assert abs(single.lower_bound - bound) < 4 * single.lower_bound_error
    # The end of the path, which is what is large, at the same positions in both precisions.
    target = make_target(Problem(paper_model, args=arrays))
    positions = np.asarray(single.positions)[:64]
    log_joint = sum(jit(jax.vmap(target.log_densities_fn))(positions))
    with jax.enable_x64(True):
        target = make_target(Problem(paper_model, args=(jnp.array(X), jnp.array(y))))
        reference = np.asarray(sum(jit(jax.vmap(target.log_densities_fn))(positions.astype(float))))
    assert np.max(np.abs(np.asarray(log_joint, np.float64) - reference)) < 0.01


def test_float32_estimate_is_that_of_x64(optimised):
    """From a start so good that the estimate has hardly any noise of its own."""
    X, y = paper_data()
    exact = LinearRegression(X, y)
    covariance = 1.2 * np.linalg.inv(exact.posterior_precision)
    kwargs = {"num_steps": 20, "num_particles": 1_000, "step_size": 0.03}

    @partial(jax.jit, compiler_options=optimised)
    def run(mean, covariance, X, y):
        start = dist.MultivariateNormal(mean, covariance_matrix=covariance)
        return DAIS(paper_model, start=start, **kwargs).log_evidence(None, X, y)

    for is_x64, tolerance in ((False, 0.05), (True, 0.02)):
        with jax.enable_x64(is_x64):
            evidence = run(exact.posterior_mean, covariance, X, y)
            assert evidence.warnings == ()
            assert evidence.standard_error < 0.01
            assert abs(float(evidence) - exact.log_evidence) < tolerance


def test_float32_that_cannot_resolve_the_error_says_so():
    def model():
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.factor("offset", -3e5 - 0.5 * x**2)

    estimator = DAIS(model, num_steps=200, num_particles=400, step_size=0.3)
    with pytest.warns(UserWarning, match=r"float32 resolves .* enable x64"):
        estimator.log_evidence()
    with jax.enable_x64(True):
        evidence = estimator.log_evidence()
        assert evidence.warnings == ()
        assert abs(float(evidence) - (-3e5 - 0.5 * np.log(2))) < 4 * evidence.standard_error


def test_plate_gives_one_evidence_per_element():
    y = jnp.array([0.3, -2.0, 4.0, 1.0])
    kwargs = {"num_steps": 50, "num_particles": 1_000, "step_size": 0.3}
    evidence = DAIS(cases.normal_means, plate="data", **kwargs).log_evidence(random.key(1), y)
    exact = dist.Normal(1.0, np.hypot(1.5, 0.5)).log_prob(y)
    assert evidence.log_weights.shape == (1_000, 4)
    assert np.all(np.abs(evidence.log_evidence - exact) < 4 * evidence.standard_error)
    assert np.all(evidence.standard_error < 0.05)
    # One number for all: the same model without plate=, whose weights are products.
    joint = DAIS(cases.normal_means, **kwargs).log_evidence(random.key(1), y)
    assert abs(float(joint) - exact.sum()) < 4 * joint.standard_error
    draws = evidence.samples(random.key(2), 3_000)
    posterior_mean = (y / 0.25 + 1 / 2.25) / (1 / 0.25 + 1 / 2.25)
    assert draws["twice"].shape == (3_000, 4)
    assert np.all(np.abs(draws["x"].mean(0) - posterior_mean) < 0.1)
    np.testing.assert_allclose(draws["twice"], 2 * draws["x"], rtol=1e-6)
