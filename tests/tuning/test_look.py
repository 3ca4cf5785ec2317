# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""A second look: what a fit lacks is found, and nothing is where it lacks nothing."""

from jax import random
import jax.numpy as jnp
import numpy as np
import pytest

import numpyro
import numpyro.distributions as dist

from numpyro_dais import DAIS
from numpyro_dais.estimators.runner import RunConfig, run
from numpyro_dais.model.problem import Problem
from numpyro_dais.model.traced import trace_target
from numpyro_dais.tuning import fitting
from numpyro_dais.tuning.adaptation import Gaussians, mixture_of
from numpyro_dais.tuning.look import Look, second_look
from numpyro_dais.tuning.population import measure_path
from numpyro_dais.tuning.quality import judge_start

# Two modes of unequal shares, 4.6 and 3.4 standard deviations of the prior apart from each other:
# the evidence is one.
SHARES, PLACES, SCALE = np.array([0.7, 0.3]), np.array([[2.0, 2.0, 1.0], [-2.0, -1.0, -2.0]]), 0.4
START = dist.Normal(jnp.zeros(3), 2.0).to_event(1)


def potential(u):
    modes = dist.MixtureSameFamily(
        dist.Categorical(probs=jnp.asarray(SHARES)),
        dist.Normal(jnp.asarray(PLACES), SCALE).to_event(1),
    )
    return -modes.log_prob(u)


def draw(key, target, settings, number):
    return run(key, target, settings, number, RunConfig())


def test_a_look_counts_particles_by_their_founders():
    """Of 32 particles and more, resampled several times, few families are left."""
    target = trace_target(Problem(None, potential_fn=potential, start=START), random.key(0))
    covariances = np.broadcast_to(SCALE**2 * np.eye(3), (2, 3, 3))
    mixture = mixture_of(Gaussians(np.log(SHARES), PLACES, covariances), jnp.arange(3))
    started = target.with_mixture(mixture._replace(base_share=0.0))
    fit, _ = judge_start(random.key(1), started, draw)
    look = second_look(random.key(0), target, started, fit.log_weights, 10_000)
    path = measure_path(random.key(2), target, 64, 10_000, max_dense_dims=3)
    assert len(np.unique(path.founders)) < 40
    assert 3 < look.num_independent < 12 * 40
    assert look.smallest_share == pytest.approx(3 / look.num_independent)


def test_a_look_that_sees_nothing_is_given_up():
    """In 60 dimensions a population lags far behind: one of them is enough to know."""
    scale = 0.05

    def narrow(u):
        return -dist.Normal(jnp.full(60, 1.0), scale).to_event(1).log_prob(u)

    start = dist.Normal(jnp.zeros(60), 2.0).to_event(1)
    target = trace_target(Problem(None, potential_fn=narrow, start=start), random.key(0))
    one = Gaussians(np.zeros(1), np.ones((1, 60)), scale**2 * np.eye(60)[None])
    started = target.with_mixture(mixture_of(one, jnp.arange(60))._replace(base_share=0.0))
    fit, _ = judge_start(random.key(1), started, draw)
    look = second_look(random.key(0), target, started, fit.log_weights, 10_000)
    assert not look.has_power
    assert not look.is_found
    assert look.num_gradients < 4_000
    assert "no power" in look.words


@pytest.mark.parametrize("modes", [[0], [0, 1]], ids=["one mode", "both modes"])
def test_a_look_finds_what_a_fit_lacks(modes):
    target = trace_target(Problem(None, potential_fn=potential, start=START), random.key(0))
    covariances = np.broadcast_to(SCALE**2 * np.eye(3), (len(modes), 3, 3))
    shares = np.log(SHARES[modes] / SHARES[modes].sum())
    mixture = mixture_of(Gaussians(shares, PLACES[modes], covariances), jnp.arange(3))
    mixture = mixture._replace(base_share=0.0)
    started = target.with_mixture(mixture)
    fit, _ = judge_start(random.key(1), started, draw)
    looks = [
        second_look(random.key(seed), target, started, fit.log_weights, 10_000) for seed in range(5)
    ]
    assert all(look.has_power and look.num_gradients <= 10_000 for look in looks)
    # The populations know the evidence of both modes, whatever the fit is.
    assert all(abs(look.log_evidence) < 6 * look.standard_error < 3 for look in looks)
    if len(modes) == 2:
        assert not any(look.is_found for look in looks)
        assert "no mass that the fit lacks; it would have seen" in looks[0].words
        return
    assert all(look.is_found for look in looks)
    # The evidence outside, over that of the fit, which has a mode with 0.7 of it.
    shares = np.array([look.share for look in looks])
    assert abs(shares.mean() - 3 / 7) < 4 * shares.std(ddof=1) / np.sqrt(5)
    for look in looks:
        assert np.all(np.linalg.norm(look.places - PLACES[1], axis=1) < 8 * SCALE)
    assert "has found mass that the fit lacks" in looks[0].words


def test_a_mode_that_no_search_has_met_is_fitted_after_a_look(monkeypatch):
    """Searches begin next to one mode only; the reported weights know both."""

    def one_sided(rng_key, draws, num_dims):
        return PLACES[:1] + 0.1 * np.random.default_rng(0).standard_normal((32, 3))

    monkeypatch.setattr(fitting, "_search_starts", one_sided)
    evidence = DAIS(potential_fn=potential, start=START).log_evidence(random.key(3))
    assert abs(float(evidence)) < 5 * float(evidence.standard_error)
    assert evidence.settings.start.num_modes >= 2
    assert not evidence.warnings
    assert any("32 searches have met one mode" in line for line in evidence.settings.decision.lines)
    assert evidence.diagnostics.missed_mass.outcome == "none found"
    assert evidence.diagnostics.modes.words == "one mode in 32 searches"
    assert "missed mass: none above" in str(evidence)
    assert evidence.remarks == ()


def test_a_look_that_cannot_be_paid_or_sees_nothing_says_so():
    target = trace_target(Problem(None, potential_fn=potential, start=START), random.key(0))
    assert second_look(random.key(0), target, target, np.zeros(8), 500) is None
    blind = Look(0.0, 0, -np.inf, 64, False, np.zeros((0, 3)), 1.0)
    assert not blind.is_found
    assert "had no power" in blind.words
    # One population alone may be chance.
    assert not blind._replace(share=0.5, num_populations=1).is_found


def test_mass_that_stays_out_of_reach_is_a_warning(monkeypatch):
    """What is found is not mended: the second look, of the mended fit, says so again."""

    def model():
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(x, 1.0), obs=0.5)

    found = Look(0.3, 3, 0.0, 192, True, np.array([[1.0], [1.2]]), 10.0)
    monkeypatch.setattr(fitting, "second_look", lambda *args: found)
    with pytest.warns(UserWarning, match="may be too low: a second look.*about 30%"):
        evidence = DAIS(model).log_evidence(random.key(0))
    assert np.isfinite(float(evidence))
    assert evidence.settings.num_steps == 0
    assert evidence.diagnostics.missed_mass[:2] == ("found", 0.3)
    # Chains from the fit lack it as well.
    with pytest.warns(UserWarning, match="may be too low: a second look"):
        evidence = DAIS(model, num_steps=8, num_particles=64).log_evidence(random.key(0))
    assert evidence.settings.start is not None
