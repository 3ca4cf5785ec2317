# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""The models, figures and processes of ``davi_defaults.py``."""

import argparse

import davi_defaults
import numpy as np
import pytest

from numpyro import handlers


def row(case, method, bound, exact=None, **kwargs):
    key = {"case": case, "guide": "AutoNormal", "learning_rate": 0.01, "method": method}
    found = {"bound": bound, "error": 0.01, "is_finite": True, "log_evidence": exact}
    return key | found | kwargs


def test_figures():
    rows = [
        row("a", "ELBO", -3.0, -1.0),
        row("a", "DAVI", -3.09, -1.0),  # below by less than the tolerance and three errors
        row("a", "DAVI, learned", -1.5, -1.0),
        row("b", "ELBO", -3.0),
        row("b", "DAVI", -3.2),
        row("b", "DAVI, learned", np.nan, is_finite=False),
        row("c", "ELBO", -1.05, -1.0),  # too small a gap to close
        row("c", "DAVI, learned", -1.0, -1.0),
    ]
    text = davi_defaults.report(rows)
    assert "not finite, or that failed: 1" in text
    assert "by more than the tolerance: 2 of 5" in text
    assert "median of 1: 75%" in text
    written = davi_defaults.table(rows, "python the_command.py")
    assert written.startswith("`python the_command.py`")
    first = "| a | AutoNormal | 0.01 | -3.000 (0.010) | -3.090 (0.010) | -1.500 (0.010) | -1.000 |"
    assert first in written
    assert (
        "| b | AutoNormal | 0.01 | -3.000 (0.010) | -3.200 (0.010) | nan (0.010) | - |" in written
    )
    assert "median of 1: 75%" in written


def test_sets_share_no_model():
    development, set_aside = (davi_defaults.SETS[name] for name in ("development", "set_aside"))
    assert len(development) == len(set_aside) == 10
    assert not set(development) & set(set_aside)


@pytest.mark.parametrize("name", davi_defaults.ALL_CASES)
def test_models_run_and_have_guides(name):
    """Models, not fits: those that are set aside are run last."""
    if name == "digits autoencoder":
        pytest.importorskip("sklearn")
    case = davi_defaults.ALL_CASES[name]()
    trace = handlers.trace(handlers.seed(case.model, 0)).get_trace(*case.args)
    observed = [site for site in trace.values() if site["type"] == "sample" and site["is_observed"]]
    assert observed
    assert all(np.all(np.isfinite(site["fn"].log_prob(site["value"]))) for site in observed)
    assert davi_defaults.guides_of(case, argparse.Namespace(quick=False))


def test_every_fit_of_a_small_model(tmp_path):
    """A reduced study: each method trains, none is below the ELBO, and nothing is done twice."""
    args = argparse.Namespace(quick=True, results=tmp_path / "fits.jsonl", seed=0)
    args.num_iterations, args.num_draws = 150, 400
    for _ in range(2):
        davi_defaults.run_case("counts", args)
    rows = davi_defaults.read_rows(args.results)
    assert [row["method"] for row in rows] == list(davi_defaults.METHODS)
    assert all(row["is_finite"] and row["num_lost"] == 0 for row in rows)
    elbo, *bounds = rows
    for found in bounds:
        error = np.hypot(elbo["error"], found["error"])
        assert found["bound"] > elbo["bound"] - 0.05 - 3 * error
        assert found["bound"] < found["log_evidence"] + 4 * found["error"]
