# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""The reported standard error allows for the tail of the weights, and warnings for what it cannot."""

import jax
import numpy as np
import pytest
from scipy.special import ndtri

from numpyro.infer.importance import _psis_khat

from numpyro_dais._util.tails import fit_tail, tail_error, upper_variance
from numpyro_dais._util.weights import log_mean_error
from numpyro_dais.model.problem import Problem
from tests import cases
from tests.helpers import make_evidence


def pareto(rng, shape, size):
    """Log weights of mean one whose tail has a shape."""
    return shape * rng.standard_exponential(size) + np.log1p(-shape)


def jackknife(evidence):
    return float(log_mean_error(np.asarray(evidence.log_weights, np.float64), np))


@pytest.mark.parametrize("size", [25, 100, 3_000])
def test_the_shape_is_that_of_numpyro(size):
    log_weights = pareto(np.random.default_rng(size), 0.6, size)
    assert fit_tail(log_weights).shape == pytest.approx(_psis_khat(log_weights), rel=1e-12)


def test_errors_of_heavy_tails_cover_the_truth():
    """Over 300 seeds of 1,024 weights: the jackknife's does not."""
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(300):
        evidence = make_evidence(pareto(rng, 0.7, 1024))
        rows.append((float(evidence), float(evidence.standard_error), jackknife(evidence)))
    truth, reported, by_jackknife = np.abs(np.array(rows)).T
    assert 0.88 < np.mean(truth < 2 * reported) < 0.99
    assert np.mean(truth < 2 * by_jackknife) < 0.8


def test_errors_of_light_tails_are_those_of_the_jackknife():
    rng = np.random.default_rng(1)
    evidences = [make_evidence(0.4 * rng.standard_normal(1024)) for _ in range(50)]
    ratios = np.array([float(e.standard_error) / jackknife(e) for e in evidences])
    assert np.all(ratios > 0.999)
    assert np.median(ratios) < 1.03
    assert np.max(ratios) < 1.2


def test_the_error_is_the_larger_of_two():
    rng = np.random.default_rng(2)
    heavy = make_evidence(pareto(rng, 0.5, 2_000))
    log_weights = np.asarray(heavy.log_weights, np.float64)
    of_tail = tail_error(log_weights, fit_tail(log_weights))
    assert of_tail > 1.1 * jackknife(heavy)
    assert float(heavy.standard_error) == pytest.approx(of_tail, rel=1e-5)


WITHOUT_TAIL = {
    "few weights": 0.5 * np.arange(24.0),
    "a tail without a mean": 2.0 * np.random.default_rng(3).standard_exponential(500),
    "an equal tail": np.where(np.arange(100) < 40, -1.0, 0.0),
    "weights of zero": np.where(np.arange(100) < 97, -np.inf, 0.1 * np.arange(100)),
}


@pytest.mark.parametrize("log_weights", WITHOUT_TAIL.values(), ids=WITHOUT_TAIL)
def test_without_a_tail_the_error_is_that_of_the_jackknife(log_weights):
    evidence = make_evidence(log_weights)
    assert float(evidence.standard_error) == pytest.approx(jackknife(evidence), rel=1e-5)


def test_a_traced_error_is_that_of_the_jackknife():
    evidence = make_evidence(pareto(np.random.default_rng(4), 0.6, 300))
    traced = jax.jit(lambda e: e.standard_error)(evidence)
    assert float(traced) == pytest.approx(jackknife(evidence), rel=1e-4)
    assert float(traced) < 0.9 * float(evidence.standard_error)


def test_each_element_and_each_run_has_its_own_tail():
    rng = np.random.default_rng(5)
    columns = np.stack([pareto(rng, shape, 400) for shape in (0.1, 0.5, 0.7)], axis=-1)
    problem = Problem(cases.normal_means, args=(np.zeros(3),), plate="data")
    plate = make_evidence(columns, problem)
    singles = [float(make_evidence(column).standard_error) for column in columns.T]
    np.testing.assert_allclose(plate.standard_error, singles, rtol=1e-5)
    batch = jax.vmap(lambda x: make_evidence(x, is_start_finite=np.ones(400, bool)))(columns.T)
    np.testing.assert_allclose(batch.standard_error, singles, rtol=1e-5)
    assert batch.khat.shape == (3,)


def test_what_a_fitted_tail_says_does_not_change_from_call_to_call():
    log_weights = pareto(np.random.default_rng(6), 0.5, 500)
    first, second = (make_evidence(log_weights).standard_error for _ in range(2))
    assert float(first) == float(second)


def test_upper_variance_is_that_of_normal_numbers():
    """Within five standard errors, each of 2 % here; whatever the lower part is."""
    normal = 1.5 * np.random.default_rng(7).standard_normal(20_000)
    assert upper_variance(normal) == pytest.approx(1.5**2, rel=0.1)
    bent = np.where(normal < 0, 20 * normal, normal)
    assert upper_variance(bent) == pytest.approx(upper_variance(normal))
    assert upper_variance(np.full(30, -np.inf)) == 0.0


def test_few_uneven_weights_are_a_warning():
    """Of 48 log-normal weights the mean is likely too low, whatever k-hat and ESS are."""
    quantiles = ndtri((np.arange(48) + 0.5) / 48)
    quantiles[-3:] = quantiles[-3]  # the largest were not met
    evidence = make_evidence(2.2 * quantiles)
    assert evidence.khat < 0.7
    assert float(evidence.ess) > 5
    (warning,) = evidence.warnings
    assert "standard deviation were 1.9, and 48 particles are too few" in warning
    assert "± unknown, at least" in str(evidence)
    assert not make_evidence(0.5 * quantiles).warnings
    assert not make_evidence(2.2 * np.repeat(quantiles, 3)).warnings


def test_the_error_of_a_heavy_tail_is_larger_and_a_very_heavy_one_is_a_warning():
    exponential = -np.log((np.arange(4_000) + 0.5) / 4_000)
    heavy = make_evidence(0.65 * exponential)
    assert 0.5 < heavy.khat < 0.7
    assert float(heavy.standard_error) > 1.2 * jackknife(heavy)
    assert not heavy.warnings
    (warning,) = make_evidence(1.2 * exponential).warnings
    assert "k-hat is 1.15" in warning
    assert "above 0.7: the weights are heavy-tailed and the error is not reliable" in warning
