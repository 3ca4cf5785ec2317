# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Log evidences of the targets of ``trust.py``: on finer grids, from the literature, and from the models, as the mean likelihood of
draws of the prior, at sizes at which these suffice. Nothing here runs DAIS, so that what is set aside stays so.
"""

from functools import partial

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
import targets
import trust
import trust_base
import trust_classics
import trust_latents
import trust_series
import trust_set_aside
import trust_set_aside_data as data
import trust_set_aside_latents as latents
import trust_set_aside_series as series
import trust_set_aside_shapes as shapes
import trust_targets
import trust_unseen
import trust_unseen_check

from numpyro import handlers
from numpyro.infer.util import log_density

from numpyro_dais.model.problem import Problem
from numpyro_dais.model.target import make_target

WITHOUT_FILE = {
    name: make
    for name, make in (trust_targets.TARGETS | trust_set_aside.TARGETS).items()
    if name not in trust_targets.NEEDS_FILE
}
# Published, or computed by others.
PUBLISHED = {
    **dict(
        zip(
            ["shells_2", "shells_5", "shells_10", "shells_30"],
            [-1.7456, -5.6736, -14.5905, -60.1278],
            strict=True,
        )
    ),
    "eggbox": 235.855940,
    "rosenbrock_2": -5.804132,
    "rosenbrock_3": -10.477029,
    "rosenbrock_5": -19.732429,
    "rosenbrock_10": -43.10836,
    "rosenbrock_20": -90.26547,
    "spike_and_slab": -11.533881,
    "two_bumps": -1.555126,
    "bernoulli_flat": -71.398962,
    "bernoulli_wrong": -71.445086,
    "hierarchy_zero": -37.534131,
    "hierarchy": -37.798306,
}
# Sizes at which draws of the prior suffice, where they do not at full size.
SMALL = {
    "spike_and_slab": partial(trust_classics.spike_and_slab, num_dims=2),
    "hierarchy_zero": partial(trust_classics.hierarchy_zero, y=(2.9, -0.4, 1.7)),
    "labels_3": partial(trust_latents.labels, 3, 5),
    "labels_4": partial(trust_latents.labels, 4, 5),
    "labels_5": partial(trust_latents.labels, 5, 4),
    "labels_6": partial(trust_latents.labels, 6, 4, scale=0.8, seed=900),
    "eight_modes": partial(trust_latents.eight_modes, num_dims=2),
    "local_level": partial(trust_series.level, num_times=5),
    "ar1": partial(trust_series.autoregression, num_times=4),
    "gaussian_process": partial(trust_series.process, num_places=3),
    "crescents": partial(shapes.curved_pairs, "crescent", (4.0,)),
    "hyperbolas": partial(shapes.curved_pairs, "hyperbola", (1.5,)),
    "twisted": partial(shapes.twisted, num_dims=3),
    "edges": partial(shapes.edges, data=(-0.15, 0.5)),
    "conflict": partial(shapes.conflict, data=(6.0,)),
    "ridge": partial(shapes.ridge, num_dims=4, scale=1.0),
    "coins": partial(data.coins, num_coins=2),
    "topics": partial(latents.topics, num_rows=3, num_words=3),
    "sign_flips": partial(latents.sign_flips, num_rows=2, scale=1.5),
    "slopes": partial(latents.slopes, num_groups=2),
    "crossed": partial(latents.crossed, num_rows=2, num_columns=2),
    "counts": partial(latents.counts, num_units=3),
    "successes": partial(latents.successes, num_units=5),
    "lasso": partial(latents.lasso, num_means=3),
    "sparse_rows": partial(latents.sparse_rows, num_rows=2, num_repeats=2),
    "hidden_counts": partial(series.SERIES["hidden_counts"], num_times=5),
    "rough": partial(series.rough, num_places=3),
    "trend": partial(series.trend, num_times=6),
}
# Checked by other tests: published ones above, those of other benchmarks beside these, and densities that are normalised.
ELSEWHERE = {
    *("shells_10", "shells_30", "rosenbrock_5", "rosenbrock_10", "rosenbrock_20", "hierarchy"),
    *("random_effects", "random_effects_centred", "funnel", "banana", "three_modes", "two_modes"),
    *("beta_binomial", "ranges", "factor", "g_prior", "instruments", "studies"),
}
# Of the unseen ones, some whose grids are soon done; trust_unseen_check.py has all of them.
UNSEEN_GRIDS = ("corner", "decay", "weights", "habitats", "schools", "curve_summed_out")
# Sizes at which draws of the prior suffice.
UNSEEN_SMALL = {
    "relapse": {"num_rows": 5},
    "recapture": {"num_marked": (3, 2, 2)},
    "regimes": {"num_times": 4},
    "bearings": {},
    "shift": {"num_times": 5},
    "precision": {"num_rows": 2, "num_columns": 2},
    "traits": {"num_rows": 2},
}
NUM_DRAWS = 40_000
MORE_DRAWS = {
    "spike_and_slab": 400_000,
    "successes": 400_000,
    "sparse_rows": 400_000,
    "random_walk": 1_000_000,
    "shells_5": 400_000,
    "eggbox": 160_000,
    "rosenbrock_3": 2_000_000,
}
# Places and scales of the likelihood's modes, and the scale of the prior. The needle is the second mode.
MODES = {
    "needle_in_six": (
        np.array([[0.0] * 6, [3.0, -2.0, 2.0, -3.0, 2.0, 1.0]]),
        np.array([1.5, 0.05]),
        5.0,
    ),
    "needle_in_tail": (np.array([[0.0] * 3, [9.0, 0.0, 0.0]]), np.array([1.0, 0.4]), 1.0),
    "needle_in_box": (np.array([[-3.0, 2.0], [6.0, -5.0]]), np.array([1.2, 0.005]), np.inf),
}
NEEDLES = {"needle_in_six": 0.4, "needle_in_tail": 0.3, "needle_in_box": 0.2}


def mean_weight(target, num_draws):
    """The mean likelihood of prior draws over the evidence, and its error."""

    def log_likelihood(rng_key):
        trace = handlers.trace(handlers.seed(target.model, rng_key)).get_trace(*target.args)
        sites = [site for site in trace.values() if site["type"] == "sample"]
        return sum(s["fn"].log_prob(s["value"]).sum() for s in sites if s["is_observed"])

    keys = random.split(random.key(1), num_draws)
    log_weights = jax.jit(lambda keys: jax.lax.map(log_likelihood, keys, batch_size=4000))(keys)
    weights = np.exp(np.asarray(log_weights) - target.log_evidence)
    return weights.mean(), weights.std(ddof=1) / np.sqrt(num_draws)


def test_names_are_of_one_set():
    assert len(trust.ALL_TARGETS) == sum(map(len, trust.SETS.values()))
    assert len(trust_set_aside.TARGETS) >= len(trust_targets.TARGETS)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", WITHOUT_FILE)
def test_finer_grids_change_nothing(name, monkeypatch):
    target = WITHOUT_FILE[name]()
    problem = Problem(model=target.model, args=target.args)
    draw = jax.eval_shape(make_target(problem).sample_fn, random.key(0))
    assert draw.shape == (target.num_dims,)
    assert target.is_needle == (name in NEEDLES)
    monkeypatch.setattr(trust_base, "FINENESS", 1.25)
    tolerance = max(target.reference_error, 1e-4)
    assert WITHOUT_FILE[name]().log_evidence == pytest.approx(target.log_evidence, abs=tolerance)


def test_targets_have_keys_of_their_own():
    keys = [trust.key_of(name, seed) for name in ("ring", "rates") for seed in (0, 1)]
    assert len({tuple(random.key_data(key).tolist()) for key in keys}) == 4


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", UNSEEN_GRIDS)
def test_finer_grids_change_nothing_unseen(name):
    target = trust_unseen.TARGETS[name]()
    problem = Problem(model=target.model, args=target.args)
    draw = jax.eval_shape(make_target(problem).sample_fn, random.key(0))
    assert draw.shape == (target.num_dims,)
    finer = trust_unseen_check.reference(name, 1.25, 1.1)
    assert finer.log_evidence == pytest.approx(target.log_evidence, rel=0, abs=1e-4)
    assert trust_base.FINENESS == trust_base.STRETCH == 1.0


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", UNSEEN_SMALL)
def test_mean_likelihood_of_prior_draws_unseen(name):
    mean, error = mean_weight(trust_unseen.TARGETS[name](**UNSEEN_SMALL[name]), NUM_DRAWS)
    assert error < 0.12
    assert abs(mean - 1) < 4 * error


@pytest.mark.parametrize("name", PUBLISHED)
def test_published(name):
    found = WITHOUT_FILE[name]().log_evidence
    assert found == pytest.approx(PUBLISHED[name], rel=0, abs=6e-5 if "shells" in name else 6e-6)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "name", [name for name in WITHOUT_FILE if name not in ELSEWHERE | NEEDLES.keys()]
)
def test_mean_likelihood_of_prior_draws(name):
    mean, error = mean_weight(
        SMALL.get(name, WITHOUT_FILE[name])(), MORE_DRAWS.get(name, NUM_DRAWS)
    )
    assert error < 0.12
    assert abs(mean - 1) < 4 * error


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", NEEDLES)
def test_prior_draws_miss_needles_only(name):
    mean, error = mean_weight(WITHOUT_FILE[name](), NUM_DRAWS)
    assert error < 0.06
    assert abs(mean - (1 - NEEDLES[name])) < 4 * error


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", NEEDLES)
def test_basins_of_needles_are_small(name):
    """Of draws of the prior, less than 1e-4 end at the narrow mode when they climb by mean shifts, which never overshoot."""
    target, (places, scales, prior_scale) = WITHOUT_FILE[name](), MODES[name]
    log_shares = np.log([1 - NEEDLES[name], NEEDLES[name]])
    if np.isfinite(prior_scale):
        variance = (scales**2 + prior_scale**2)[:, None]
        log_shares = log_shares - stats.norm.logpdf(places, 0, np.sqrt(variance)).sum(axis=1)
    site = handlers.trace(handlers.seed(target.model, random.key(0))).get_trace()["x"]
    x = np.asarray(site["fn"].sample(random.key(2), (200_000,)))
    for _ in range(20):
        squares = np.sum((x[:, None] - places) ** 2, axis=-1) / scales**2
        log_modes = log_shares - 0.5 * squares - places.shape[1] * np.log(scales)
        log_pulls = log_modes - 2 * np.log(scales)
        pulls = np.exp(log_pulls - log_pulls.max(axis=1, keepdims=True))
        x = pulls @ places / pulls.sum(axis=1, keepdims=True)
    is_needle = np.linalg.norm(x - places[1], axis=1) < 2 * scales[1]
    assert is_needle.mean() < 1e-4


@pytest.mark.usefixtures("x64")
def test_factor_model_is_its_definition():
    rng = np.random.default_rng(0)
    y, below, diagonal, s2 = (
        rng.standard_normal((5, 4)),
        rng.standard_normal(5),
        rng.uniform(0.5, 2, 2),
        rng.uniform(0.5, 2, 4),
    )
    B = np.array(
        [[diagonal[0], 0], [below[0], diagonal[1]], [below[1], below[2]], [below[3], below[4]]]
    )
    expected = stats.multivariate_normal(cov=B @ B.T + np.diag(s2)).logpdf(y).sum()
    expected += stats.norm.logpdf(below).sum() + stats.halfnorm.logpdf(diagonal).sum()
    expected += stats.invgamma.logpdf(s2, 1.1, scale=0.05).sum()
    values = {"below": jnp.asarray(below), "diagonal": jnp.asarray(diagonal), "s2": jnp.asarray(s2)}
    found, _ = log_density(trust_classics.factor_model, (2, jnp.asarray(y)), {}, values)
    np.testing.assert_allclose(found, expected, rtol=1e-10)


@pytest.mark.usefixtures("x64")
def test_random_effects_are_those_that_are_centred():
    group, y = jnp.arange(36) % 12, jnp.linspace(-2, 3, 36)
    scales = {"mu": jnp.array(0.7), "tau": jnp.array(0.4), "sigma": jnp.array(1.1)}
    z = jnp.linspace(-1, 1.5, 12)
    first, _ = log_density(trust_latents.intercepts_apart, (12, group, y), {}, {**scales, "z": z})
    values = {**scales, "theta": 0.7 + 0.4 * z}
    second, _ = log_density(targets.random_intercepts, (12, group, y), {}, values)
    np.testing.assert_allclose(first, second + 12 * np.log(0.4), rtol=1e-10)


FILES = {
    "pine regression": (
        trust_classics.pine_regression,
        trust_classics.log_pine_evidence,
        2500 + 900 * np.array([0.3, -0.5]),
    ),
    "probit": (
        trust_classics.probit,
        trust_classics.log_probit_evidence,
        np.array([1.0, 0.0, 1.0, 1.0]),
    ),
}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("model", "evidence_fn", "y"), FILES.values(), ids=FILES)
def test_models_of_files_at_small_size(model, evidence_fn, y):
    x = np.linspace(-1, 1, len(y))
    args = jnp.asarray(x), jnp.asarray(y)
    target = trust_base.make("", 0, model, args, evidence_fn(x, y))
    mean, error = mean_weight(target, NUM_DRAWS)
    assert error < 0.05
    assert abs(mean - 1) < 4 * error
