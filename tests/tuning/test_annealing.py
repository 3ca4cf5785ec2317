# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Chains along a measured path, and what ascent on the bound adds to them."""

from jax import random
import jax.numpy as jnp
import numpy as np
import pytest

from numpyro_dais import DAIS
from numpyro_dais.tuning.annealing import anneal, damping_of
from numpyro_dais.tuning.population import MeasuredPath
from tests import cases


def exact_path(regression):
    """What an infinite pilot run would measure on a linear regression."""
    basis = np.linalg.eigh(regression.gram)
    betas = np.append(0.0, np.geomspace(1e-4, 1, 400))
    precisions = regression.prior_precision[0, 0] + betas[:, None] * basis.eigenvalues
    score = basis.eigenvectors.T @ (
        regression.posterior_precision @ (regression.posterior_mean - regression.prior_mean)
    )
    means = betas[:, None] * score / precisions
    slopes = score - basis.eigenvalues * means
    variances = np.sum(slopes**2 / precisions + 0.5 * (basis.eigenvalues / precisions) ** 2, axis=1)
    speeds = np.sqrt(variances)
    lengths = np.append(0.0, np.cumsum((speeds[1:] + speeds[:-1]) / 2 * np.diff(betas)))
    covariances = np.einsum("ij,lj,kj->lik", basis.eigenvectors, 1 / precisions, basis.eigenvectors)
    scales = np.sqrt(np.diagonal(covariances, axis1=1, axis2=2))
    return MeasuredPath(betas, lengths, scales, 0.0, 0)


def gap_of(regression, settings):
    arrays = (settings.betas, settings.step_size, settings.damping)
    if settings.basis is not None:
        num_dims = len(settings.basis)
        scales = np.asarray(settings.preconditioner, np.float64).reshape(-1, 1, num_dims)
        settings = settings._replace(preconditioner=settings.basis * scales)
    return regression.expected_gap(
        *(np.asarray(x, np.float64) for x in arrays),
        preconditioner=np.asarray(settings.preconditioner, np.float64),
    )


@pytest.fixture(scope="module")
def paper():
    return cases.paper_regression()


def test_gap_along_an_exact_path_falls_as_one_over_k(paper):
    path = exact_path(paper)
    gaps = [gap_of(paper, anneal(path, K, 1.4, damping_of(1.4))) for K in (64, 256, 1024)]
    assert (
        gaps[0] < 1.05
    )  # ascent on the bound itself ended at 1.29 with diagonal settings of its own
    np.testing.assert_allclose(np.log2(np.array(gaps[:-1]) / gaps[1:]), 2.0, atol=0.1)


def test_steps_of_every_length_give_valid_settings(paper):
    path = exact_path(paper)
    for step_size in (0.05, 0.5, 1.4):
        for num_steps in (1, 2, 7, 100):
            settings = anneal(path, num_steps, step_size, 0.5)
            assert settings.num_steps == num_steps
            assert settings.betas[-1] == 1
            assert np.all(np.diff(np.asarray(settings.betas)) >= 0)
            assert np.max(settings.step_size) <= step_size * (1 + 1e-6)
            assert settings.preconditioner.shape == (num_steps, 10)


def test_pilot_of_the_paper_regression(paper):
    """At K = 256 the expected gap is at most 0.5 nats, for a pilot run of at most 4,000 gradients."""
    estimator = DAIS(cases.paper_model, num_steps=256, start="prior")
    settings = estimator.tune(random.key(1), *map(jnp.asarray, cases.paper_data()))
    assert settings.num_gradients <= 4000
    assert gap_of(paper, settings) < 0.5
    assert settings.start is None


def test_refinement_improves_the_bound(regression, regression_data):
    data = [jnp.asarray(x) for x in regression_data]
    estimator = DAIS(cases.regression, schedule=np.linspace(0.125, 1, 8), step_size=0.05)
    refined = estimator.tune(random.key(0), *data, refine=True)
    before = regression.expected_gap(np.linspace(0.125, 1, 8), 0.05, 0.9)
    assert gap_of(regression, refined) < 0.7 * before
    assert refined.num_gradients > 0
