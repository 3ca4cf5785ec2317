# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""The table of ``davi_tightest.py``, and a small run of it."""

import argparse

import davi_tightest
import pytest


def row(target, num_steps, seed, bound):
    key = {"target": target, "start": "flow", "num_steps": num_steps, "seed": seed}
    return key | {"bound": bound, "error": 0.005, "elbo": -120.0, "seconds": 60.0}


def test_report():
    rows = [
        row("sonar", 128, 0, -108.6),
        row("sonar", 128, 1, -108.8),
        row("seeds", 128, 0, -73.5),  # below the best one
        row("sonar", 16, 0, -109.0),  # nothing to compare it with
    ]
    text = davi_tightest.report(rows, {"sonar": -108.39, "seeds": -73.407})
    assert "| sonar | flow | 128 | 2 | -108.700 | 0.141 | -108.800 | 0.005 | UHA -110.57" in text
    assert "rKL-LD -108.83 | -108.39 |" in text
    assert "K = 128, flow: every seed is above every published bound on 1 of 2 targets" in text
    assert "K = 16, flow:" not in text


@pytest.mark.filterwarnings("ignore:The effective sample size")
def test_a_small_run_is_not_repeated(tmp_path, capsys):
    args = argparse.Namespace(directory=None, targets=["funnel"], starts=["full_rank"])
    args.num_steps, args.num_seeds, args.quick = [2], 1, True
    args.results = tmp_path / "fits.jsonl"
    for _ in range(2):
        davi_tightest.main(args)
    (found,) = davi_tightest.read_rows(args.results)
    assert found["elbo"] - 5 < found["bound"] < 4 * found["error"]
    assert "| funnel | full rank | 2 | 1 |" in capsys.readouterr().out
    assert args.results.with_suffix(".md").exists()
