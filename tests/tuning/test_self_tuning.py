# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Self-tuned runs: precise answers, goals and budgets, awkward models, and settings used again."""

from functools import partial
import re
import warnings

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import numpyro
import numpyro.distributions as dist

from numpyro_dais import AIS, DAIS, HAIS, ImportanceSampling, load_settings, make_settings
from numpyro_dais.tuning.annealing import anneal
from numpyro_dais.tuning.population import MeasuredPath
from tests.cases import GROUPS, grouped_beta_binomial, grouped_beta_binomial_log_evidence


@pytest.fixture(scope="module")
def tuned_groups():
    estimator = DAIS(grouped_beta_binomial)
    return estimator, estimator.log_evidence(random.key(1), *GROUPS)


def test_nothing_said_gives_a_precise_answer(tuned_groups):
    evidence = tuned_groups[1]
    exact = grouped_beta_binomial_log_evidence(*GROUPS)
    error = float(evidence.standard_error)
    assert abs(float(evidence) - exact) < 4 * error
    assert error < 0.006
    # Of which a second look takes a tenth of the budget at the most.
    assert evidence.num_gradients <= 20_000 + 10_000
    assert not evidence.warnings
    assert re.search("particles from a fitted (conditional )?Gaussian, no steps", str(evidence))


def test_settings_are_printed_saved_and_used_again(tuned_groups, tmp_path):
    evidence = tuned_groups[1]
    settings = evidence.settings
    assert re.match(
        "Settings without steps\n  start: a fitted (conditional )?Gaussian; for ", repr(settings)
    )
    settings.save(tmp_path / "settings.npz")
    loaded = load_settings(tmp_path / "settings.npz")
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6), loaded, settings)
    assert loaded.num_particles == evidence.num_particles
    again = DAIS(grouped_beta_binomial, settings=loaded, num_particles=1024)
    plain = again.log_evidence(random.key(2), *GROUPS)
    assert plain.num_particles == 1024

    def log_evidence(successes):
        return again.log_evidence(random.key(2), GROUPS[0], successes).log_evidence

    value, slope = jax.jit(jax.value_and_grad(log_evidence))(GROUPS[1])
    np.testing.assert_allclose(value, plain.log_evidence, rtol=1e-5)
    assert np.all(np.isfinite(slope))
    np.savez(tmp_path / "other.npz", x=np.zeros(1))
    with pytest.raises(ValueError, match="holds no settings"):
        load_settings(tmp_path / "other.npz")


NAMES = {"15: x": "x", "15: x.npz": "x.npz", "15: a name with a dot": "x.settings"}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_settings_are_found_under_the_name_they_were_saved_with(name, tmp_path):
    settings = make_settings([0.5, 1.0], 0.1, 0.9)
    file = tmp_path / f"{name.removesuffix('.npz')}.npz"
    for path in (tmp_path / name, str(tmp_path / name)):
        settings.save(path)
        assert list(tmp_path.iterdir()) == [file]
        for other in (path, file):
            jax.tree.map(np.testing.assert_array_equal, load_settings(other), settings)
        file.unlink()


def test_15_settings_that_are_not_there(tmp_path):
    message = r"no file of settings '.*x\.npz' or '.*x'. Write it with Settings.save"
    with pytest.raises(FileNotFoundError, match=message):
        load_settings(tmp_path / "x")


def test_a_budget_is_kept_and_a_looser_goal_costs_less(tuned_groups):
    precise = tuned_groups[1]
    loose = DAIS(grouped_beta_binomial, target_error=0.05, budget=5_000)
    evidence = loose.log_evidence(random.key(1), *GROUPS)
    assert evidence.num_gradients <= 5_000
    assert evidence.num_gradients < precise.num_gradients / 3
    assert evidence.standard_error < 0.06


def test_weights_of_a_fitted_start_are_unbiased_with_steps(tuned_groups):
    """A fit that is off, as a start of chains: 5 s.e."""
    mixture = tuned_groups[1].settings.start
    components = mixture.components
    off = mixture._replace(components=components._replace(log_scale=components.log_scale + 0.4))
    steps = anneal(
        MeasuredPath(*(np.array(x) for x in ([0, 1], [0, 1])), np.ones((2, 5)), 0, 0),
        4,
        0.3,
        0.5,
    )
    estimator = DAIS(
        grouped_beta_binomial, settings=steps._replace(start=off), num_particles=20_000
    )
    log_weights = np.asarray(estimator.log_evidence(random.key(4), *GROUPS).log_weights)
    exact = grouped_beta_binomial_log_evidence(*GROUPS)
    weights = np.exp(log_weights - exact)
    assert abs(weights.mean() - 1) < 5 * weights.std() / np.sqrt(len(weights))


def test_two_modes_are_both_found():
    def model(y):
        x = numpyro.sample("x", dist.Normal(0.0, 3.0).expand([3]).to_event(1))
        near = dist.Normal(x, 0.5).to_event(1).log_prob(y) + jnp.log(0.7)
        far = dist.Normal(-x, 0.5).to_event(1).log_prob(y) + jnp.log(0.3)
        numpyro.factor("likelihood", jnp.logaddexp(near, far))

    evidence = DAIS(model, target_error=0.02).log_evidence(random.key(0), jnp.full(3, 2.5))
    exact = 3 * stats.norm(0, np.sqrt(9.25)).logpdf(2.5)
    assert abs(float(evidence) - exact) < 4 * float(evidence.standard_error) < 0.1
    signs = np.sign(evidence.samples(random.key(1), 2000)["x"][:, 0])
    assert abs(np.mean(signs > 0) - 0.7) < 0.06


def test_a_funnel_is_integrated_from_its_mouth_to_its_neck():
    """Five dimensions with a closed form: normalised, and far from any Gaussian."""

    def potential_fn(x):
        widths = jnp.exp(x[0] / 2)
        return -dist.Normal(0, 3).log_prob(x[0]) - dist.Normal(0, widths).log_prob(x[1:]).sum()

    start = dist.Normal(jnp.zeros(5), 1.0).to_event(1)
    estimator = DAIS(potential_fn=potential_fn, start=start, target_error=0.01)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a heavy tail
        evidence = estimator.log_evidence(random.key(0))
    assert abs(float(evidence)) < 4 * float(evidence.standard_error) < 0.1
    assert "from a fitted conditional Gaussian, no steps" in str(evidence)
    assert evidence.num_gradients <= 100_000


def cauchy(y):
    location = numpyro.sample("location", dist.Cauchy(0.0, 1.0))
    numpyro.sample("y", dist.StudentT(2.0, location, 1.0), obs=y)


def many_scales():
    small = numpyro.sample("small", dist.Normal(0.0, 1e-4))
    large = numpyro.sample("large", dist.Normal(0.0, 1e4))
    numpyro.sample("a", dist.Normal(small, 1e-4), obs=2e-4)
    numpyro.sample("b", dist.Normal(large, 2e4), obs=1e4)


def half_forbidden():
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    numpyro.factor("wall", jnp.where(x > 0, dist.Normal(x, 0.5).log_prob(1.0), -jnp.inf))


def thousand():
    x = numpyro.sample("x", dist.Normal(0.0, 1.0).expand([1000]).to_event(1))
    numpyro.sample("y", dist.Normal(x, 1.0).to_event(1), obs=jnp.full(1000, 0.5))


def quadrature(density):
    grid = np.linspace(-200, 200, 4_000_001)
    return np.log(np.trapezoid(density(grid), grid))


AWKWARD = {
    "a Cauchy prior": (
        lambda: cauchy(jnp.array(30.0)),
        quadrature(lambda x: stats.cauchy.pdf(x) * stats.t.pdf(30 - x, 2)),
    ),
    "scales from 1e-4 to 1e4": (
        many_scales,
        stats.norm(0, np.sqrt(2) * 1e-4).logpdf(2e-4) + stats.norm(0, np.sqrt(5) * 1e4).logpdf(1e4),
    ),
    "a likelihood of zero on half of the space": (
        half_forbidden,
        quadrature(lambda x: np.where(x > 0, stats.norm.pdf(x) * stats.norm.pdf(1 - x, 0, 0.5), 0)),
    ),
    "a thousand dimensions": (thousand, 1000 * stats.norm(0, np.sqrt(2)).logpdf(0.5)),
}


@pytest.mark.parametrize(("model", "exact"), AWKWARD.values(), ids=AWKWARD)
def test_awkward_models_get_a_good_answer_or_a_warning(model, exact, recwarn):
    evidence = DAIS(model, target_error=0.05, budget=20_000).log_evidence(random.key(0))
    assert np.isfinite(float(evidence))
    # Of which a second look takes a tenth of the budget at the most.
    assert evidence.num_gradients <= 20_000 + 10_000
    is_good = abs(float(evidence) - exact) < 5 * float(evidence.standard_error)
    assert is_good or evidence.warnings


def test_certify_and_guides_keep_their_start(tuned_groups):
    estimator = DAIS(
        grouped_beta_binomial, start={"p": dist.Beta(2.0, 2.0)}, num_steps=8, num_particles=64
    )
    assert estimator.tune(random.key(0), *GROUPS).start is None


ERRORS = {
    "an error of zero": (
        lambda: DAIS(grouped_beta_binomial, target_error=0.0),
        "target_error must be positive",
    ),
    "a tiny budget": (
        lambda: DAIS(grouped_beta_binomial, budget=10),
        "budget must be an integer of at least 2000",
    ),
    "a goal for HAIS": (
        lambda: HAIS(grouped_beta_binomial, budget=5000),
        "has no argument 'budget'",
    ),
    "a goal for AIS": (
        lambda: AIS(grouped_beta_binomial, target_error=0.1),
        "has no argument 'target_error'",
    ),
    "a goal without chains": (
        lambda: ImportanceSampling(grouped_beta_binomial, budget=5000),
        "has no argument 'budget'",
    ),
    "a goal beside settings": (
        lambda: DAIS(grouped_beta_binomial, step_size=0.1, target_error=0.1),
        "target_error= and budget= are for self-tuned runs",
    ),
    "refinement of HAIS": (
        lambda: HAIS(grouped_beta_binomial, num_steps=2, step_size=0.1).tune(
            random.key(0), *GROUPS, refine=True
        ),
        "refine=True is for chains of DAIS",
    ),
}


@pytest.mark.parametrize(("call", "message"), ERRORS.values(), ids=ERRORS)
def test_errors(call, message):
    with pytest.raises((ValueError, TypeError, NotImplementedError), match=message):
        call()
