# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""The log evidences of ``dimension.py`` at small sizes, against importance sampling and its models' definitions in NumPy."""

from functools import partial
import json
from pathlib import Path
import subprocess
import sys

import dimension
import dimension_tables
import dimension_targets
from dimension_targets import SizedTarget
import jax
from jax import random
import jax.numpy as jnp
import numpy as np
from peer_methods import laplace_importance
import pytest
from scipy import stats

from numpyro_dais.model.target import make_target

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "dimension.py"


def importance(target: SizedTarget):
    return laplace_importance(target.target, num_draws=20_000)(random.key(0))


SMALL = {
    "correlated Gaussian": partial(dimension_targets.gaussian, 5),
    "low rank": partial(dimension_targets.low_rank, 8, 2),
    "skewed product": partial(dimension_targets.skewed, 5),
    "AR(2)": partial(dimension_targets.ar2, 30),
    "hierarchy": partial(dimension_targets.hierarchy, (2.9, -0.4, 1.7)),
}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("make", SMALL.values(), ids=SMALL)
def test_exact_log_evidence(make):
    target = make()
    draw = jax.eval_shape(make_target(target.target.problem).sample_fn, random.key(0))
    assert draw.shape == (target.num_dims,)
    result = importance(target)
    assert 0 < result.standard_error < 0.03
    assert abs(result.log_evidence - target.log_evidence) < 5 * result.standard_error


def test_published_hierarchy():
    assert dimension_targets.hierarchy().log_evidence == pytest.approx(-37.798306, abs=2e-6)


def densities(model, args, position):
    """The log prior and log likelihood of a position."""
    target = SizedTarget("", 0, model, args, np.nan, 0.0, "").target
    return make_target(target.problem).log_densities_fn(jnp.asarray(position))[:2]


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("is_whitened", [True, False])
def test_cox_process_is_its_definition(is_whitened):
    rng = np.random.default_rng(0)
    points = rng.uniform(size=(20, 2))
    points[0] = 1.0  # on the upper edge
    mean, scale_tril, counts = dimension_targets.cox_data(points, 3)
    cells = np.minimum(np.floor(3 * points), 2)
    places = np.array([(i, j) for i in range(3) for j in range(3)])
    np.testing.assert_array_equal(
        counts, [np.sum((cells == place).all(axis=1)) for place in places]
    )
    distances = np.hypot(*(places[:, None] - places).T)
    prior = stats.multivariate_normal(np.full(9, mean), 1.91 * np.exp(-33 * distances / 3))
    e = rng.standard_normal(9)
    f = mean + scale_tril @ e
    expected = stats.norm.logpdf(e).sum() if is_whitened else prior.logpdf(f)
    args = mean, jnp.asarray(scale_tril), jnp.asarray(counts)
    model = partial(dimension_targets.cox_process, is_whitened=is_whitened)
    found = densities(model, args, e if is_whitened else f)
    np.testing.assert_allclose(found, [expected, np.sum(f * counts - np.exp(f) / 9)], rtol=1e-9)


@pytest.mark.usefixtures("x64")
def test_turtles_are_their_definition():
    clutch, weight = np.array([0, 0, 1, 1, 2]), np.array([0.3, -1.2, 0.8, 0.1, -0.4])
    survived, s2 = np.array([1.0, 0.0, 1.0, 1.0, 0.0]), 0.6
    a, b = np.array([0.4, -0.7]), np.array([0.5, -1.1, 0.2])
    log_prior = stats.norm.logpdf(a, 0, 10**0.5).sum() + stats.norm.logpdf(b, 0, s2**0.5).sum()
    log_prior += -2 * np.log1p(s2) + np.log(s2)  # over log s2
    p = stats.norm.cdf(a[0] + a[1] * weight + b[clutch])
    args = tuple(map(jnp.asarray, (clutch, weight, survived)))
    position = np.concatenate([a, b, [np.log(s2)]])
    found = densities(partial(dimension_targets.turtles, 3), args, position)
    np.testing.assert_allclose(found, [log_prior, stats.bernoulli.logpmf(survived, p).sum()])


def row(method, seed, log_evidence, **kwargs):
    row = {"target": "a", "method": method, "variant": method, "precision": "float64", "seed": seed}
    row |= {"log_evidence": log_evidence, "lower_bound": None, "num_gradients": 100, "peak_mib": 9}
    return row | {"num_densities": 50, "seconds": 1.0, "is_first": False, **kwargs}


TARGET = SizedTarget("A", 3, None, (), 0.0, 0.3, "Gaussian")


def test_the_highest_bound_is_shown():
    rows = [row("plain", 0, 5.0, lower_bound=-3.0), row("plain", 0, -0.4, lower_bound=-2.0)]
    rows += [row("plain", 1, 0.3, lower_bound=-np.inf), row("plain", 1, np.nan, lower_bound=np.nan)]
    summary = dimension_tables.summarise(TARGET, rows)
    np.testing.assert_array_equal(summary.errors, [-0.4, 0.3])
    assert summary.rmse == pytest.approx(0.125**0.5)
    assert summary.cost == 125


def test_ratios_and_criteria():
    rows = [row("dais_prior", seed, error) for seed, error in enumerate((0.2, -0.4))]
    rows += [row("hais", seed, error) for seed, error in enumerate((0.1, -0.2, 9.0))]
    rows += [
        row("smc", 0, np.nan),
        row("plain", 0, 0.1),
        row("plain", None, None, reason="over 1 s"),
    ]
    rows += [row("dais", 0, 0.004)]
    text = dimension_tables.report({"a": TARGET}, rows, 1000)
    assert "| A | 2.00 (2.00 to 2.00) | 0.00 (0.00 to 0.00) | 2.00 (2.00 to 2.00) |" in text
    assert (
        "against HAIS: the interval reaches down to 1 on 0 of 1 targets; the largest ratio is 2.00"
        in text
    )
    assert "0.1 (1 seeds: over 1 s) · 125" in text
    assert "failed in 1 · 125" in text
    assert "RMSE 0.0040, wanted below 0.01, in 125 gradients, wanted below 10,030: met" in text
    assert dimension_tables.without_reference_error(0.5, 0.3) == pytest.approx(0.4)


def test_many_dimensions_keep_the_variant_that_was_best_first():
    rows = [
        row("plain", 0, 0.0, variant=name, lower_bound=at)
        for name, at in zip("abc", (-3, -1, -2), strict=True)
    ]
    variants = dict.fromkeys("abc")
    assert list(dimension.variants_of(1, variants, rows, num_dims=1000)) == ["b"]
    assert list(dimension.variants_of(0, variants, [], num_dims=1000)) == ["a", "b", "c"]
    assert list(dimension.variants_of(1, variants, rows, num_dims=999)) == ["a", "b", "c"]


def test_script(tmp_path):
    """Runs are not repeated, and those that are missing run in a process of their own."""
    results, figure = tmp_path / "rows.jsonl", tmp_path / "figure.png"
    given = row("dais", 0, -91.6, target="ar2", budget=960)
    given32 = {**given, "precision": "float32"}
    results.write_text(json.dumps(given) + "\n" + json.dumps(given32) + "\n", encoding="utf-8")
    command = [sys.executable, SCRIPT, "--results", results, "--figure", figure, "--budget", "960"]
    command += ["--targets", "ar2", "--num-seeds", "1", "--methods", "dais", "plain"]
    process = subprocess.run(command, capture_output=True, encoding="utf-8")
    assert process.returncode == 0, process.stderr
    rows = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    assert rows[:2] == [given, given32]
    assert len({row["variant"] for row in rows[2:]}) == len(rows[2:]) == 6
    assert {row["method"] for row in rows[2:]} == {"plain"}
    assert {row["num_gradients"] for row in rows[2:]} == {960}
    assert all(row["peak_mib"] > 50 for row in rows[2:])
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert "| AR(2), unknown noise | 4 |" in figure.with_suffix(".md").read_text(encoding="utf-8")
