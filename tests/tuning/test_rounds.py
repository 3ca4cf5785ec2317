# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Rounds of self-tuned chains: what is decided, kept and reported."""

from dataclasses import replace
from itertools import pairwise
import math
import warnings

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import pytest

import numpyro
import numpyro.distributions as dist

from numpyro_dais import DAIS, load_settings
from numpyro_dais.estimators.staged import StagedRunner
from numpyro_dais.sampler.mixture import Component, Mixture
from numpyro_dais.tuning import tuner
from numpyro_dais.tuning.curvature import Curvature
from numpyro_dais.tuning.curvature_path import along_axes, curvature_path, fitted_axes
from numpyro_dais.tuning.goal import Goal
from numpyro_dais.tuning.plan import MAX_WORDS, plan_chains, plan_draws, resampled
from numpyro_dais.tuning.population import MeasuredPath
from numpyro_dais.tuning.trials import Trial, barrier_of, measured_anew
from tests import cases

GOAL = Goal(None, None, 0.01, 100_000, True)


def skewed(counts):
    """Twenty skewed posteriors, each with a closed form."""
    with numpyro.plate("groups", len(counts)):
        rate = numpyro.sample("rate", dist.Gamma(2.0, 0.5))
        numpyro.sample("y", dist.Poisson(rate), obs=counts)


COUNTS = jnp.arange(20.0) % 7


def skewed_log_evidence():
    lgamma = np.vectorize(math.lgamma)
    counts = np.asarray(COUNTS)
    terms = lgamma(2 + counts) - lgamma(2.0) - lgamma(counts + 1)
    return float(np.sum(terms + 2 * np.log(0.5) - (2 + counts) * np.log(1.5)))


@pytest.fixture(scope="module")
def from_prior():
    return DAIS(skewed, start="prior", budget=20_000).log_evidence(random.key(0), COUNTS)


def test_rounds_are_kept_and_the_last_is_the_result(from_prior):
    *earlier, last = from_prior.history
    assert earlier
    assert float(from_prior) == pytest.approx(last.log_evidence, abs=1e-4)
    assert last.standard_error == pytest.approx(float(from_prior.standard_error), rel=1e-3)
    assert last.num_gradients == from_prior.num_gradients <= 20_000
    assert last.num_particles == from_prior.num_particles
    numbers = [(r.num_gradients, r.seconds) for r in from_prior.history]
    assert numbers == sorted(numbers)
    assert all(r.barrier > 0 for r in earlier)
    assert abs(float(from_prior) - skewed_log_evidence()) < 5 * last.standard_error


def test_what_was_decided_is_said_and_saved(from_prior, tmp_path):
    words = repr(from_prior.settings)
    assert "candidates at" in words
    assert "the plain chain, a = " in words
    assert "log weights had a variance of" in words
    from_prior.settings.save(tmp_path / "settings")
    assert repr(load_settings(tmp_path / "settings")) == words


def test_a_missed_goal_is_a_line_and_no_warning(from_prior):
    assert from_prior.is_goal_met is False
    assert "the goal of ± 0.005 was missed" in str(from_prior)
    assert not any("goal" in warning for warning in from_prior.warnings)
    met = replace(from_prior, target_error=10.0)
    assert met.is_goal_met is True
    assert "goal" not in str(met)
    evidence = DAIS(cases.beta_binomial, num_steps=20, step_size=0.3).log_evidence()
    assert evidence.is_goal_met is None
    assert evidence.history == ()


def test_rounds_are_drawn(from_prior):
    titles = [ax.get_title(loc="left") for ax in from_prior.plot().axes]
    assert titles[-2:] == ["Rounds: estimate ± 2 s.e.", "Decision"]


def test_time_that_is_up_ends_with_the_round():
    estimator = DAIS(skewed, start="prior", budget=20_000, max_seconds=1e-6)
    with pytest.warns(UserWarning, match="Time is up: this is the last round that was finished"):
        evidence = estimator.log_evidence(random.key(0), COUNTS)
    assert len(evidence.history) == 1
    assert evidence.num_particles == evidence.history[0].num_particles == 8
    assert np.isfinite(float(evidence))
    assert evidence.samples()["rate"].shape == (8, 20)


def interrupt_after(monkeypatch, number):
    """Raises what Ctrl-C does in a run of chains, once so many have finished; returns a counter."""
    run, counter = StagedRunner.__call__, []

    def interrupted(self, *args, **kwargs):
        counter.append(args)
        if len(counter) > number:
            raise KeyboardInterrupt
        return run(self, *args, **kwargs)

    monkeypatch.setattr(StagedRunner, "__call__", interrupted)
    return counter


def run_quietly(estimator, context):
    counter = interrupt_after(context, math.inf)
    quiet(estimator, random.key(0), COUNTS)
    return counter


def test_ctrl_c_gives_back_the_last_round(from_prior, monkeypatch):
    estimator = DAIS(skewed, start="prior", budget=20_000)
    with monkeypatch.context() as context:
        num_runs = len(run_quietly(estimator, context))
    interrupt_after(monkeypatch, num_runs - 1)  # in the last round
    with pytest.warns(UserWarning, match="Interrupted: this is the last round"):
        evidence = estimator.log_evidence(random.key(0), COUNTS)
    assert len(evidence.history) == len(from_prior.history) - 1
    assert float(evidence) == pytest.approx(evidence.history[-1].log_evidence, abs=1e-4)


def test_ctrl_c_before_the_first_round_is_one(monkeypatch):
    interrupt_after(monkeypatch, 2)
    with pytest.raises(KeyboardInterrupt):
        DAIS(skewed, start="prior", budget=20_000).log_evidence(random.key(0), COUNTS)


def test_the_bound_rises_with_the_number_of_steps():
    """With the rule of self-tuning, on a target whose steps cost a little each."""
    bounds = []
    for num_steps in (64, 256, 1024, 4096):
        estimator = DAIS(skewed, start="prior", num_steps=num_steps, num_particles=32)
        evidence = quiet(estimator, random.key(1), COUNTS)
        bounds.append((float(evidence.lower_bound), float(evidence.lower_bound_error)))
    for (low, first), (high, second) in pairwise(bounds):
        assert high > low - 2 * np.hypot(first, second)
    assert bounds[-1][0] > bounds[0][0] + 1.0


HEAVY = {"suite": 50, "all": 2000}


@pytest.mark.parametrize("number", HEAVY.values(), ids=HEAVY)
def test_complete_runs_are_unbiased(number):
    """
    Rounds included, on a conjugate model whose weights have a heavy tail: a sharp likelihood, few
    steps, and a budget that is soon spent. Mean of exp(estimate - log Z), 4 s.e.
    """

    def model():
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(x, 0.02), obs=1.5)

    exact = float(dist.Normal(0.0, math.sqrt(1 + 0.02**2)).log_prob(1.5))
    ratios = []
    for seed in range(number):
        estimator = DAIS(model, start="prior", budget=6_000, target_error=0.3)
        evidence = quiet(estimator, random.key(seed))
        ratios.append(math.exp(float(evidence) - exact))
    ratios = np.array(ratios)
    assert abs(ratios.mean() - 1) < 4 * ratios.std() / math.sqrt(number)


def quiet(estimator, *args):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few weights are a part of the test
        return estimator.log_evidence(*args)


# --- paths -----------------------------------------------------------------------------------------


def curvature_of(regression):
    precision = np.asarray(regression.posterior_precision, float)
    return Curvature(
        np.asarray(regression.posterior_mean, float),
        np.asarray(regression.prior_precision, float),
        precision,
        0,
    )


def test_preconditioners_of_all_temperatures_follow_from_two_precisions(regression):
    """L L' = ((1 - beta) P0 + beta P1)^-1 at every temperature; K x D numbers, and one basis."""
    curvature = curvature_of(regression)
    path = curvature_path(curvature, np.asarray(regression.prior_mean, float))
    assert path.scales.shape == (len(path.betas), 3)
    for beta, scale in list(zip(path.betas, path.scales, strict=True))[::50]:
        matrix = path.basis * scale
        precision = (1 - beta) * curvature.start_precision + beta * curvature.posterior_precision
        np.testing.assert_allclose(
            matrix @ matrix.T, np.linalg.inv(precision), rtol=1e-6, atol=1e-12
        )


def test_the_length_of_a_gaussian_path_is_that_of_its_log_ratio(regression):
    """The variance of the log ratio at some temperatures, from draws."""
    curvature = curvature_of(regression)
    center = np.asarray(regression.prior_mean, float)
    path = curvature_path(curvature, center)
    rng = np.random.default_rng(0)
    start, end = curvature.start_precision, curvature.posterior_precision
    speeds = np.diff(path.lengths) / np.diff(path.betas)
    for index in (20, 120, 180):
        beta = (path.betas[index] + path.betas[index + 1]) / 2
        precision = (1 - beta) * start + beta * end
        mean = np.linalg.solve(precision, (1 - beta) * start @ center + beta * end @ curvature.mode)
        draws = rng.multivariate_normal(mean, np.linalg.inv(precision), 200_000)
        log_ratio = 0.5 * np.einsum("ni,ij,nj->n", draws - center, start, draws - center)
        far = draws - curvature.mode
        log_ratio -= 0.5 * np.einsum("ni,ij,nj->n", far, end, far)
        assert speeds[index] == pytest.approx(log_ratio.std(), rel=0.03)


def test_matrices_of_a_path_become_axes():
    """Exactly so at both ends."""
    rng = np.random.default_rng(1)
    factors = rng.standard_normal((2, 3, 3)) + 2 * np.eye(3)
    scales = np.linalg.cholesky(factors @ np.swapaxes(factors, 1, 2))
    path = along_axes(MeasuredPath(np.array([0.0, 1.0]), np.array([0.0, 2.0]), scales, 0.0, 0))
    for scale, matrix in zip(path.scales, scales, strict=True):
        along = path.basis * scale
        np.testing.assert_allclose(along @ along.T, matrix @ matrix.T, rtol=1e-8)


def test_axes_of_a_fit_are_those_of_its_draws():
    """In an order of its own; the covariance of 100,000 draws."""
    rng = np.random.default_rng(3)
    vectors = np.linalg.qr(rng.standard_normal((3, 3)))[0]
    parts = rng.uniform(-0.5, 0.5, (3, 3))
    component = Component(parts[:1], parts[1:2], basis=vectors[None], log_widths=parts[2:])
    mixture = Mixture(jnp.array([2, 0, 1]), component, jnp.zeros(1)).bare()
    axes = fitted_axes(mixture)
    draws = jax.vmap(mixture.sample)(random.split(random.key(0), 100_000))
    np.testing.assert_allclose(axes @ axes.T, np.cov(draws, rowvar=False), atol=0.03)
    assert fitted_axes(mixture._replace(log_shares=jnp.zeros(2))) is None


def trial_of(log_weights, num_steps=48, log_ratios=None, betas=None):
    log_weights = np.asarray(log_weights, float)
    if log_ratios is None:
        log_ratios = np.zeros((num_steps, len(log_weights)))
    betas = np.linspace(0, 1, num_steps + 1)[1:] if betas is None else betas
    return Trial(None, None, log_weights, log_ratios, betas)


def test_a_path_is_longer_where_chains_have_felt_it():
    """Independent work of variance one in each step of the first half, and next to none later."""
    rng = np.random.default_rng(2)
    ratios = rng.standard_normal((48, 400)) * 48
    ratios[24:] *= 0.01
    trial = trial_of(rng.standard_normal(400), log_ratios=ratios)
    assert barrier_of(trial) == pytest.approx(np.sqrt(24 * 24), rel=0.4)
    levels = np.linspace(0, 1, 101)
    path = MeasuredPath(levels, 3 * levels, np.ones((101, 2)), 0.0, 0)
    again = measured_anew(path, trial)
    assert again.lengths[-1] == pytest.approx(3.0)
    assert again.lengths[50] > 0.65 * 3.0
    assert np.all(np.diff(again.lengths) > 0)


def test_islands_that_may_miss_the_same_mass_are_warned_of():
    spread = np.linspace(-3, 3, 16)
    goal = GOAL._replace(target_error=1e-3)
    for factor, is_warned in ((1.5, False), (3.5, True)):
        trial = trial_of(factor * spread)
        plan = resampled(plan_chains([trial], goal, 20_000, 64), [trial], goal, 20_000, 2)
        assert plan.is_resampled
        assert ("missed the same mass" in tuner._note(trial, plan)) == is_warned
        assert tuner._note(trial, plan._replace(is_resampled=False)) == ""


def test_plans():
    spread = np.linspace(-3, 3, 16)
    good, bad = trial_of(0.01 * spread), trial_of(40 * spread)
    assert plan_chains([good], GOAL, 90_000, 2048).cost < 10_000
    # However hopeless, the most steps are the best that can be done; so, where weights were lost.
    lost = trial_of(np.where(spread < 0, -np.inf, spread))
    for trial in (bad, lost):
        plan = plan_chains([trial], GOAL, 90_000, 2048)
        assert plan.num_steps >= 1024
        assert 32 * plan.num_steps <= plan.cost <= 90_000
        islands = resampled(plan, [trial], GOAL, 90_000, 2)
        assert islands.is_resampled
        assert islands.num_particles % 32 == 0
        assert islands.cost <= 90_000
    # A sum over many dimensions: between two looks an island would be left with one particle.
    assert not resampled(
        plan_chains([bad], GOAL, 90_000, 2048), [bad], GOAL, 90_000, 9999
    ).is_resampled
    given = GOAL._replace(num_steps=100, num_particles=50)
    plan = plan_chains([bad], given, 90_000, 2048)
    assert (plan.num_steps, plan.num_particles) == (100, 50)
    assert not resampled(plan, [bad], given, 90_000, 2).is_resampled
    # Nor where weights are nearly equal, so that resampling would only add its own noise.
    finer = GOAL._replace(target_error=1e-6)
    for trial, is_better in ((good, False), (trial_of(1.5 * spread), True)):
        plan = plan_chains([trial], finer, 90_000, 2048)
        assert resampled(plan, [trial], finer, 90_000, 2).is_resampled == is_better


def test_draws_without_steps_fit_into_memory():
    free = Goal(None, None, 1e-4, 10**7, True)
    few, many = (plan_draws(10.0, free, 5e6, num_dims) for num_dims in (10, 100_000))
    assert few.num_particles * 10 <= MAX_WORDS
    assert many.num_particles <= MAX_WORDS // 100_000
    assert many.log_error > few.log_error
    assert (
        plan_draws(1.0, GOAL, 90_000, 10).num_particles == 13 * 1024
    )  # as many as the goal asks for


def test_no_array_has_a_matrix_for_each_step():
    """In 60 dimensions, with as many steps as the budget allows."""

    def model(y):
        x = numpyro.sample("x", dist.Normal(0.0, 1.0).expand([60]).to_event(1))
        numpyro.sample("y", dist.Poisson(jnp.exp(x)).to_event(1), obs=y)

    estimator = DAIS(model, start="prior", num_steps=200, num_particles=64)
    settings = estimator.tune(random.key(0), jnp.arange(60.0) % 3)
    sizes = [np.size(leaf) for leaf in (settings.preconditioner, settings.basis, settings.betas)]
    assert max(sizes) <= max(200 * 60, 60 * 60)


def test_more_budget_is_used_until_the_goal_is_met():
    evidence = DAIS(skewed, budget=400_000, target_error=0.002).log_evidence(random.key(2), COUNTS)
    assert 30_000 < evidence.num_gradients <= 400_000
    assert float(evidence.standard_error) < 0.0025
    assert abs(float(evidence) - skewed_log_evidence()) < 5 * float(evidence.standard_error)


def test_a_sandwich_has_chains_that_are_not_resampled():
    """Else forward weights would be those of islands, and reverse ones of single chains."""
    estimator = DAIS(skewed, start="prior", budget=20_000)
    draws = np.random.default_rng(0).gamma(2 + np.asarray(COUNTS), 1 / 1.5, (64, 20))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        evidence = estimator.sandwich(
            random.key(0), COUNTS, posterior_samples={"rate": jnp.asarray(draws, float)}
        )
    assert evidence.island_size == 1
    assert abs(float(evidence) - skewed_log_evidence()) < 5 * float(evidence.standard_error)


GIVEN = {"suite": ("von_mises", 4), **{f"all, {name}": (name, 20) for name in cases.CASES}}


@pytest.mark.parametrize("case", GIVEN)
def test_given_numbers_from_a_fit_do_no_harm(case, x64):
    """
    Four hundred steps from a fitted start, whose tails are too light for some of the models and
    stray draws for others.
    """
    name, num_seeds = GIVEN[case]
    model, args, exact_fn, *_, params = cases.CASES[name]
    estimator = DAIS(model, num_steps=400, num_particles=256, params=params)
    errors = [
        float(estimator.log_evidence(random.key(seed), *args)) - exact_fn(*args)
        for seed in range(num_seeds)
    ]
    assert np.sqrt(np.mean(np.square(errors))) < 0.02
