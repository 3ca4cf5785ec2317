# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Chains taken some steps at a time, along axes of their own, and in islands: identities first."""

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import pytest

from numpyro_dais import make_settings
from numpyro_dais.estimators import staged
from numpyro_dais.estimators.runner import RunConfig, run
from numpyro_dais.estimators.staged import StagedRunner
from numpyro_dais.model.problem import Problem
from numpyro_dais.model.traced import trace_target
from tests import cases

KEY = random.key(3)
NUM_STEPS = 80  # more than a call takes at first, and no multiple of a block of noise


@pytest.fixture(scope="module")
def target():
    args = tuple(map(np.asarray, cases.GROUPS))
    return trace_target(Problem(cases.grouped_beta_binomial, args=args), KEY)


def settings_of(num_dims, **changes):
    rng = np.random.default_rng(0)
    scales = rng.uniform(0.5, 1.5, (NUM_STEPS, 1, num_dims))
    betas = np.linspace(0, 1, NUM_STEPS + 1)[1:] ** 2
    basis = np.eye(num_dims) + 0.3 * rng.standard_normal((num_dims, num_dims))
    settings = make_settings(betas, rng.uniform(0.1, 0.3, NUM_STEPS), 0.8, scales)
    return settings._replace(basis=jax.device_put(basis.astype(settings.betas.dtype)), **changes)


def test_a_basis_is_as_good_as_its_matrices(target):
    """L = B diag(s), in the chain that all estimators run."""
    along = settings_of(5)
    matrices = np.asarray(along.preconditioner) * np.asarray(along.basis)
    dense = along._replace(preconditioner=jax.device_put(matrices), basis=None)
    one, other = (run(KEY, target, s, 16, RunConfig()).log_weights for s in (along, dense))
    np.testing.assert_allclose(one, other, rtol=1e-4)


def test_stages_give_the_weights_of_whole_chains(target, monkeypatch):
    """However many steps a call takes, and with rows to spare; the last block is not whole."""
    monkeypatch.setattr(staged, "_SECONDS", 0.0)
    settings = settings_of(5)
    parts = StagedRunner(200)(KEY, target, settings, 11)
    # The noise of a chain comes in blocks that divide its steps, so settings go on beyond the last
    # one, where whole chains do not.
    whole = run(KEY, target, settings, 11, RunConfig())
    assert parts.run.log_weights.shape == (11,)
    assert parts.log_ratios.shape == (NUM_STEPS, 11)
    monkeypatch.setattr(staged, "_SECONDS", 1e6)
    at_once = StagedRunner(200)(KEY, target, settings, 11)
    np.testing.assert_allclose(parts.run.log_weights, at_once.run.log_weights, rtol=1e-5)
    # Other noise, the same starts and settings.
    assert abs(np.mean(whole.log_weights) - np.mean(parts.run.log_weights)) < 2.0


def test_stages_of_whole_blocks_are_bit_for_bit_those_of_a_chain(target):
    settings = settings_of(5)
    settings = settings._replace(
        betas=settings.betas[:64] / settings.betas[63],
        step_size=settings.step_size[:64],
        damping=settings.damping[:64],
        preconditioner=settings.preconditioner[:64],
    )
    parts = StagedRunner(128)(KEY, target, settings, 8)
    whole = run(KEY, target, settings, 8, RunConfig())
    np.testing.assert_allclose(parts.run.log_weights, whole.log_weights, rtol=2e-4, atol=2e-4)
    np.testing.assert_allclose(parts.run.positions, whole.positions, rtol=1e-3, atol=1e-3)


def test_resampled_islands_are_unbiased(x64):
    """A skewed target with steps so few that islands are resampled: 5 s.e. of 128 of them."""
    counts = jnp.array([9.0, 14.0, 11.0])
    target = trace_target(Problem(cases.gamma_poisson, args=(counts,)), KEY)
    settings = make_settings(np.linspace(0, 1, 17)[1:] ** 2, 0.05, 0.5)
    runner = StagedRunner(64)
    islands = runner(KEY, target, settings, 128 * 32, is_resampled=True)
    assert islands.run.log_weights.shape == (128,)
    weights = np.exp(np.asarray(islands.run.log_weights) - cases.gamma_poisson_log_evidence(counts))
    assert abs(weights.mean() - 1) < 5 * weights.std() / np.sqrt(128)
    plain = runner(KEY, target, settings, 128 * 32)
    means = np.exp(np.asarray(plain.run.log_weights)).reshape(128, 32).mean(axis=1)
    assert not np.allclose(
        np.log(means), islands.run.log_weights
    )  # there was something to resample
    # The islands' draws are of the posterior, whose mean is known; some islands weigh next to nothing.
    rate = np.exp(np.asarray(islands.run.positions)[:, 0])
    mean, deviation = 37 / 5, np.sqrt(37) / 5
    num_effective = weights.sum() ** 2 / np.sum(weights**2)
    assert abs(np.average(rate, weights=weights) - mean) < 5 * deviation / np.sqrt(num_effective)
