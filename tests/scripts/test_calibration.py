# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Calibration of posterior probabilities: with exact evidences in place of DAIS the tests pass and find the planted error; their
level and power are what they say; and every exact evidence is that of its model, by quadrature.
"""

import json
import subprocess
import sys

import calibration
from calibration_pairs import PAIRS, draw_data, exact_hierarchical
import calibration_tables as tables
from fuzz_density import make_density
from fuzz_quadrature import integrate
import numpy as np
import pytest
from scipy.special import expit

NUM_DATASETS = 200


def exact_rows(name: str, num_datasets: int = NUM_DATASETS) -> list[dict]:
    """Rows as of a method that is exact, with small errors of its own."""
    rows = []
    for index in range(num_datasets):
        which, y = draw_data(name, index)
        exact = [fn(y) for fn in PAIRS[name].exact_fns]
        row = {"pair": name, "dataset": index, "model": which, "exact": exact}
        row |= {"log_evidence": exact, "standard_error": [0.004, 0.003], "warnings": [[], []]}
        rows.append(row)
    return rows


@pytest.fixture(scope="module")
def rows():
    return {name: exact_rows(name) for name in PAIRS}


@pytest.mark.parametrize("name", PAIRS)
def test_exact_probabilities_pass_and_the_planted_error_is_found(rows, name):
    data = tables.columns(rows[name])
    p = expit(data.log_odds)
    assert np.mean(p * (1 - p)) > 0.1
    assert tables.check(p, data.indicator).is_passed
    assert not tables.check(expit(data.log_odds + tables.PLANTED), data.indicator).is_passed
    assert tables.power(data.log_odds, tables.PLANTED) > 0.9


def test_level_and_power_are_what_they_say(rows):
    """Over many sets of indicators, drawn from the probabilities."""
    log_odds = tables.columns(rows["groups"]).exact_log_odds
    rng, num_runs = np.random.default_rng(3), 2000
    for error, largest in [(0.0, 1.3 * tables.LEVEL), (0.5, None)]:
        p, is_found, is_found_by_mean = expit(log_odds + error), [], []
        for _ in range(num_runs):
            result = tables.check(p, rng.uniform(size=len(p)) < expit(log_odds))
            is_found.append(not result.is_passed)
            is_found_by_mean.append(result.mean_p_value < tables.LEVEL / 2)
        expected = tables.power(log_odds, error)
        scale = np.sqrt(expected * (1 - expected) / num_runs)
        assert abs(np.mean(is_found_by_mean) - expected) < 4 * scale + 0.01
        if largest is not None:  # sums over bins are not quite normal
            assert np.mean(is_found) < largest + 3 * np.sqrt(tables.LEVEL / num_runs)
    assert tables.power(log_odds, 0.0) == pytest.approx(tables.LEVEL / 2)
    smallest = tables.smallest_found(log_odds)
    assert min(tables.power(log_odds, sign * smallest) for sign in (-1, 1)) >= 0.8


def test_overconfidence_is_found_by_bins():
    """Probabilities that are right on average, and too far from one half."""
    rng = np.random.default_rng(4)
    log_odds = rng.normal(0, 1.5, 1000)
    indicator = (rng.uniform(size=1000) < expit(log_odds)).astype(float)
    assert tables.check(expit(log_odds), indicator).is_passed
    result = tables.check(expit(2 * log_odds), indicator)
    assert result.mean_p_value > 0.01
    assert result.bins_p_value < 1e-6


def test_bins_hold_every_data_set_once_and_enough_variance():
    for p in (np.linspace(0, 1, 97), np.full(5, 0.5), np.array([1e-9, 0.5, 0.5, 0.5, 0.5, 0.999])):
        parts = tables.bins(p)
        assert sorted(np.concatenate(parts)) == list(range(len(p)))
        assert all(np.sum(p[part] * (1 - p[part])) >= tables.LEAST_VARIANCE for part in parts)


def quadrature(model, y, num_dims):
    density = make_density(model, y, is_centred=False)
    reference = integrate([density.log_joint_fn], num_dims)
    assert reference.reason is None
    return reference.log_integral


NUM_DIMS = {"regressions": (2, 3), "groups": (1, None), "components": (1, 2)}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", PAIRS)
def test_exact_evidences_are_those_of_the_models(name):
    _, y = draw_data(name, 1)
    for model, exact, num_dims in zip(
        PAIRS[name].models, PAIRS[name].exact_fns, NUM_DIMS[name], strict=True
    ):
        if num_dims is not None:
            assert quadrature(model, y, num_dims) == pytest.approx(exact(y), rel=0, abs=2e-4)


@pytest.mark.usefixtures("x64")
def test_hierarchical_evidence():
    """With two groups, in four dimensions."""
    y = draw_data("groups", 2)[1][:2]
    model = PAIRS["groups"].models[1]
    assert quadrature(model, y, 4) == pytest.approx(exact_hierarchical(y), rel=0, abs=5e-4)


def test_report_and_picture(rows, tmp_path):
    some = {"regressions": [dict(row) for row in rows["regressions"]]}
    some["regressions"][0]["log_evidence"] = [0.0, 1.0]
    text = tables.report(some)
    assert "one covariate or two: 200 data sets" in text
    assert "DAIS: passed" in text
    assert "log 2 left out: found, FAILED" in text
    assert "within two errors 199 of 200; silent failures 1; warnings 0" in text
    tables.draw(rows).savefig(tmp_path / "figure.png")


def test_script(tmp_path):
    """Data sets that are there are not run again; one that is missing is."""
    results, figure = tmp_path / "rows.jsonl", tmp_path / "figure.png"
    given = exact_rows("regressions", 20)
    results.write_text("".join(json.dumps(row) + "\n" for row in given[1:]), encoding="utf-8")
    command = [sys.executable, calibration.__file__, "--results", results, "--figure", figure]
    command += ["--pairs", "regressions", "--num-datasets", "20"]
    process = subprocess.run(command, capture_output=True, encoding="utf-8")
    assert process.returncode == 0, process.stderr
    written = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    assert written[:19] == given[1:]
    assert [row["dataset"] for row in written[19:]] == [0]
    new = written[-1]
    error = np.array(new["log_evidence"]) - new["exact"]
    assert np.all(np.abs(error) < np.maximum(5 * np.array(new["standard_error"]), 0.01))
    assert new["exact"] == given[0]["exact"]
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert "20 data sets" in figure.with_suffix(".md").read_text(encoding="utf-8")
