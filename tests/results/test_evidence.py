# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""The numbers and words that are read off log weights."""

import inspect
import re
import subprocess
import sys

import arviz as az
import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import pytest

import numpyro
import numpyro.distributions as dist

from numpyro_dais import DAIS, Evidence
from numpyro_dais.linear_regression import LinearRegression
from numpyro_dais.schedule import power
from tests import cases
from tests.helpers import make_evidence


@pytest.fixture(scope="module")
def evidence():
    return DAIS(cases.beta_binomial, num_steps=20, num_particles=200, step_size=0.3).log_evidence()


def test_numbers_are_those_of_the_weights():
    log_weights = np.array([0.3, -1.0, 0.7, 0.1])
    evidence = make_evidence(log_weights)
    weights = np.exp(log_weights)
    assert float(evidence) == pytest.approx(np.log(weights.mean()), abs=1e-6)
    assert float(evidence.lower_bound) == pytest.approx(log_weights.mean(), abs=1e-6)
    assert float(evidence.lower_bound_error) == pytest.approx(log_weights.std(ddof=1) / 2, rel=1e-5)
    assert float(evidence.ess) == pytest.approx(weights.sum() ** 2 / (weights**2).sum(), rel=1e-5)
    without = [np.log(np.delete(weights, i).mean()) for i in range(4)]
    jackknife = np.sqrt(3 / 4 * np.sum((without - np.mean(without)) ** 2))
    assert float(evidence.standard_error) == pytest.approx(jackknife, rel=1e-4)
    assert evidence.khat is None
    assert evidence.upper_bound is None
    assert evidence.acceptance is None


def test_bound_keeps_its_digits_in_float32():
    rng = np.random.default_rng(0)
    log_weights = (-14_204 + 0.001 * rng.standard_normal(5_000)).astype(np.float32)
    exact = np.mean(log_weights.astype(np.float64))
    assert abs(float(make_evidence(log_weights).lower_bound) - exact) < 2e-3


def test_khat_tells_heavy_tails_from_light_ones():
    rng = np.random.default_rng(1)
    light = make_evidence(0.3 * rng.standard_normal(2_000))
    heavy = make_evidence(1.5 * rng.standard_exponential(2_000))  # Pareto weights of shape 1.5
    assert light.khat < 0.5
    assert heavy.khat == pytest.approx(1.5, abs=0.3)
    assert light.warnings == ()
    assert any("k-hat" in text or "effective" in text for text in heavy.warnings)


def test_equal_weights_are_no_fault():
    evidence = make_evidence(np.full(100, -3.0))
    assert evidence.khat == 0.0
    assert float(evidence.standard_error) == pytest.approx(0.0, abs=1e-6)
    assert evidence.warnings == ()
    assert "-3.00 ± 0.00" in repr(evidence)


def test_one_particle_has_no_error_bar():
    evidence = make_evidence([-2.0])
    assert np.isinf(evidence.standard_error)
    assert np.isinf(evidence.lower_bound_error)
    assert "-2.00 (error unknown)" in repr(evidence)


FAULTS = {
    "few particles": (np.array([50.0] + 99 * [0.0]), None, "effective sample size is 1.0 of 100"),
    "non-finite": (np.array([-np.inf] + 99 * [0.0]), None, "1 of 100 weights were not finite"),
    "all zero": (np.full(100, -np.inf), None, "100 of 100 weights were not finite"),
    "bad start": (np.zeros(100), np.arange(100) >= 18, r"18 of 100 draws.*\(18%\).*x64"),
    "precision": (-1e6 + 0.1 * np.arange(100), None, "float32 resolves.*enable x64"),
}


@pytest.mark.parametrize(("log_weights", "is_finite", "message"), FAULTS.values(), ids=FAULTS)
def test_faults_are_said_in_words(log_weights, is_finite, message):
    evidence = make_evidence(log_weights, is_start_finite=is_finite)
    text = " ".join(evidence.warnings)
    assert re.search(message, text)
    assert text.split(";")[0] in repr(evidence).replace("\n  Warning: ", " ")


def test_a_loss_far_below_the_error_is_no_fault():
    """One zero in ten thousand weights whose error is a hundredth."""
    log_weights = np.log(np.random.default_rng(0).gamma(1.0, size=10_000))
    log_weights[0] = -np.inf
    evidence = make_evidence(log_weights, is_start_finite=np.arange(10_000) > 0)
    assert evidence.num_nonfinite == 1
    assert not evidence.warnings


def test_nothing_is_nan_when_every_weight_is_zero():
    evidence = make_evidence(np.full(30, -np.inf))
    assert float(evidence) == -np.inf
    assert float(evidence.lower_bound) == -np.inf
    assert np.isinf(evidence.standard_error)
    assert float(evidence.ess) == 0.0
    assert evidence.num_nonfinite == 30
    with pytest.raises(ValueError, match="nothing to draw from"):
        evidence.samples()


def test_reading_the_numbers_compiles_nothing(caplog):
    """Of a shape that nothing else has compiled for."""
    evidence = make_evidence(np.sin(np.arange(37.0)))
    with jax.log_compiles():
        repr(evidence)
        assert int(evidence.num_nonfinite) == 0
        assert not [record for record in caplog.records if "Compiling" in record.getMessage()]
        jax.jit(lambda x: x + 1)(evidence.log_weights)
    assert [record for record in caplog.records if "Compiling" in record.getMessage()]


def test_plots_are_the_only_part_that_needs_matplotlib():
    program = "import sys; sys.modules['matplotlib'] = None; import numpyro_dais.plots"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_print_is_for_a_person(evidence):
    lines = repr(evidence).splitlines()
    assert lines[0].startswith(f"DAIS: log evidence {float(evidence):.2f}"[:-1])
    assert "±" in lines[0]
    assert "lower bound" in lines[1]
    assert "200 particles, 20 steps, 4000 gradients; ESS" in lines[2]


def test_a_warning_is_raised_once_and_says_the_same():
    def model():
        x = numpyro.sample("x", dist.Normal(0.0, 10.0))
        numpyro.sample("y", dist.Normal(x, 0.01), obs=25.0)

    estimator = DAIS(model, num_steps=0, num_particles=50, start="prior")
    with pytest.warns(UserWarning, match="effective sample size") as record:
        evidence = estimator.log_evidence()
    assert len(record) == 1
    assert str(record[0].message) == " ".join(evidence.warnings)


def test_samples_are_posterior_draws():
    evidence = DAIS(
        cases.beta_binomial, num_steps=30, num_particles=4_000, step_size=0.3
    ).log_evidence()
    p = np.asarray(evidence.samples(random.key(4), 4_000)["p"])
    mean, variance = 17 / 25, 17 * 8 / (25**2 * 26)  # Beta(17, 8)
    assert abs(p.mean() - mean) < 5 * np.sqrt(2 * variance / 4_000)
    assert p.var() == pytest.approx(variance, rel=0.15)


def test_a_pytree_through_jit_and_vmap(evidence):
    doubled = jax.jit(lambda e: jax.tree.map(lambda x: x, e))(evidence)
    np.testing.assert_array_equal(doubled.log_weights, evidence.log_weights)
    assert doubled.samples(num_samples=3)["p"].shape == (3,)
    assert isinstance(doubled, Evidence)

    @jax.jit
    def run(key):
        return DAIS(cases.beta_binomial, num_steps=5, num_particles=8, step_size=0.3).log_evidence(
            key
        )

    batch = jax.vmap(run)(random.split(random.key(0), 3))
    assert batch.log_weights.shape == (3, 8)


def test_host_side_fields_under_tracing(evidence):
    for name in ("khat", "warnings"):
        with pytest.raises(ValueError, match=f"Evidence.{name} is computed on the host"):
            jax.jit(lambda e, name=name: len(str(getattr(e, name))))(evidence)


def test_float_of_a_plate_says_what_to_do():
    y = jnp.array([0.5, 1.5, 2.0])
    evidence = DAIS(
        cases.normal_means, plate="data", num_steps=20, num_particles=100, step_size=0.4
    ).log_evidence(None, y)
    with pytest.raises(TypeError, match="one value per element"):
        float(evidence)
    text = repr(evidence)
    assert "each of 3 elements of plate 'data'" in text
    assert evidence.khat.shape == (3,)


def test_to_arviz(evidence):
    data = evidence.to_arviz(random.key(1), 50)
    is_tree = "data" in inspect.signature(az.from_dict).parameters
    assert type(data).__name__ == ("DataTree" if is_tree else "InferenceData")
    posterior = data["posterior"]
    assert posterior["p"].dims == ("chain", "draw")
    assert posterior["p"].shape == (1, 50)
    assert posterior["p"].dtype.kind == "f"
    assert posterior.attrs["log_evidence"] == pytest.approx(float(evidence))
    assert posterior.attrs["log_evidence_standard_error"] == pytest.approx(
        float(evidence.standard_error)
    )
    np.testing.assert_array_equal(data["importance"]["log_weight"], evidence.log_weights)
    assert float(data["importance"]["log_evidence"]) == pytest.approx(float(evidence))
    assert np.isfinite(float(az.summary(data, kind="stats").iloc[0, 0]))


def test_to_arviz_of_a_plate():
    y = jnp.array([0.5, 1.5, 2.0])
    evidence = DAIS(
        cases.normal_means, plate="data", num_steps=20, num_particles=100, step_size=0.4
    ).log_evidence(None, y)
    data = evidence.to_arviz()
    assert data["posterior"]["twice"].shape == (1, int(np.min(evidence.ess)), 3)
    assert data["importance"]["log_weight"].shape == (100, 3)
    assert data["importance"]["log_evidence"].shape == (3,)


COVERAGE = {
    "standard deviation 1, 256 particles": (256, 250, 0.2, 1.0, (0.90, 0.99)),
    "standard deviation 1.5, 64 particles": (64, 110, 0.25, 1.5, (0.85, 1.0)),
}


@pytest.mark.parametrize(
    ("num_particles", "num_steps", "step_size", "largest_sd", "coverage"),
    COVERAGE.values(),
    ids=COVERAGE,
)
def test_error_bars_cover_the_truth(
    num_particles, num_steps, step_size, largest_sd, coverage, regression_data
):
    """Over 200 seeds on a conjugate regression, estimate ± 2 errors."""
    X, y = (jnp.array(x)[:12] for x in regression_data)
    exact = LinearRegression(
        X,
        y,
        noise_scale=0.8,
        prior_mean=cases.PRIOR_MEAN,
        prior_precision=cases.PRIOR_PRECISION,
    ).log_evidence
    estimator = DAIS(
        cases.regression,
        num_particles=num_particles,
        num_steps=num_steps,
        step_size=step_size,
        schedule=lambda num_steps: power(num_steps, 2.0),
    )

    @jax.jit
    @jax.vmap
    def run(key):
        evidence = estimator.log_evidence(key, X, y)
        return evidence.log_evidence, evidence.standard_error, jnp.std(evidence.log_weights)

    estimates, errors, spreads = run(random.split(random.key(8), 200))
    assert largest_sd / 2 < np.mean(spreads) <= largest_sd
    is_covered = np.abs(estimates - exact) < 2 * errors
    assert coverage[0] <= np.mean(is_covered) <= coverage[1]
