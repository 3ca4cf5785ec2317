# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Where a chain loses precision, and the picture of it."""

from dataclasses import replace

from jax import random
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest
from scipy.special import logsumexp

from numpyro_dais import DAIS, HAIS
from numpyro_dais.linear_regression import LinearRegression
from numpyro_dais.model.target import make_target
from numpyro_dais.plots import plot_evidence
from numpyro_dais.results.gap import gap_contributions
from numpyro_dais.sampler.contributions import stopped_log_weights
from numpyro_dais.sampler.particles import run_particles
from numpyro_dais.schedule import linear
from tests import cases

NUM_STEPS = 24


@pytest.fixture(scope="module")
def data(regression_data):
    return [jnp.array(x) for x in regression_data]


@pytest.fixture(scope="module")
def evidence(data):
    estimator = DAIS(
        cases.regression, num_steps=NUM_STEPS, num_particles=128, step_size=0.15, damping=0.6
    )
    return estimator.log_evidence(random.key(1), *data)


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def test_stopped_chains_end_as_whole_ones_and_are_unbiased_on_the_way(
    evidence, regression, regression_data
):
    keys = random.split(random.key(3), 512)
    target, settings = make_target(evidence.problem), evidence.settings
    stopped = np.asarray(stopped_log_weights(keys, target, settings), np.float64)
    whole = run_particles(keys, target, settings, "plain").log_weights
    np.testing.assert_allclose(stopped[:, -1], whole, rtol=1e-5, atol=1e-4)
    # f_beta is prior times likelihood^beta: a regression with its noise scaled, but for the constant.
    beta, n = linear(NUM_STEPS)[NUM_STEPS // 2], len(regression_data[1])
    tempered = LinearRegression(
        *regression_data,
        noise_scale=0.8 / np.sqrt(beta),
        prior_mean=[0.5, -1.0, 0.25],
        prior_precision=[1.0, 2.0, 0.5],
    )
    log_constant = n / 2 * (np.log(2 * np.pi * 0.64 / beta) - beta * np.log(2 * np.pi * 0.64))
    ratios = np.exp(stopped[:, NUM_STEPS // 2] - tempered.log_evidence - log_constant)
    assert abs(ratios.mean() - 1) < 5 * ratios.std() / np.sqrt(len(ratios))
    assert ratios.std() < 3  # the test can see a bias


def test_contributions_add_up_to_the_gap(evidence, regression):
    contributions = gap_contributions(evidence)
    keys = random.split(random.key(0), 256)
    run = run_particles(keys, make_target(evidence.problem), evidence.settings, "plain")
    log_weights = np.asarray(run.log_weights, np.float64)
    gap = logsumexp(log_weights) - np.log(256) - log_weights.mean()
    assert contributions.shape == (NUM_STEPS,)
    np.testing.assert_allclose(contributions.sum(), gap, rtol=1e-4, atol=1e-4)
    bound = regression.expected_bound(linear(NUM_STEPS), 0.15, 0.6)
    assert abs(log_weights.mean() - bound) < 5 * log_weights.std() / 16


def test_contributions_refuse_corrected_chains(evidence):
    corrected = replace(evidence, acceptance=jnp.ones(NUM_STEPS), method="HAIS")
    with pytest.raises(NotImplementedError, match=r"uncorrected chains; got.*HAIS.*acceptance"):
        gap_contributions(corrected)


def titles(figure):
    return [ax.get_title(loc="left") for ax in figure.axes]


def test_plot_of_a_run(evidence):
    figure = evidence.plot()
    schedule, step_size, gap, weights = figure.axes
    np.testing.assert_allclose(schedule.lines[0].get_ydata(), linear(NUM_STEPS), rtol=1e-6)
    np.testing.assert_allclose(step_size.lines[0].get_ydata(), 0.15, rtol=1e-6)
    np.testing.assert_allclose(step_size.lines[1].get_ydata(), 0.6, rtol=1e-6)
    total = sum(bar.get_height() * bar.get_width() for bar in gap.patches)
    np.testing.assert_allclose(total, gap_contributions(evidence).sum(), rtol=1e-5)
    assert titles(figure)[2] == "Contribution to the gap"
    marks = [line.get_xdata()[0] for line in weights.lines]
    np.testing.assert_allclose(marks[0], float(evidence.log_evidence))
    figure.canvas.draw()


def test_15_a_plot_is_shown_once(evidence, tmp_path):
    """A notebook shows the figure that a cell returns, and those that pyplot knows."""
    figure = evidence.plot()
    assert plt.get_fignums() == []
    figure.savefig(tmp_path / "run.png")
    assert (tmp_path / "run.png").stat().st_size > 1_000


def test_plot_of_a_bad_run_says_so(evidence):
    log_weights = evidence.log_weights.at[0].add(50.0).at[1].set(-jnp.inf)
    acceptance = jnp.linspace(0.2, 0.9, NUM_STEPS)
    bad = replace(evidence, log_weights=log_weights, acceptance=acceptance, method=HAIS.__name__)
    figure = plot_evidence(bad)
    assert titles(figure)[2] == "Acceptance"
    for fault in bad.warnings:
        assert fault[:30] in figure.get_supxlabel()
    assert any("1 of weight zero" in text.get_text() for text in figure.axes[3].texts)
    figure.canvas.draw()


def test_plot_without_steps_says_what_the_start_is(evidence):
    empty = evidence.settings._replace(
        betas=jnp.zeros(0), step_size=jnp.zeros(0), damping=jnp.zeros(0)
    )
    figure = replace(evidence, settings=empty).plot()
    assert len(figure.axes) == 2
    assert (
        "importance sampling\nfrom the estimator's own start" in figure.axes[0].texts[0].get_text()
    )


def test_plot_refuses_plates(evidence):
    problem = evidence.problem.replace(plate="data")
    batch = replace(evidence, log_weights=jnp.zeros((4, 3)), problem=problem)
    with pytest.raises(ValueError, match=r"plot_evidence needs one number per model.*plate 'data'"):
        batch.plot()
