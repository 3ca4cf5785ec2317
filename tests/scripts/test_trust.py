# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""The counts, tables and processes of ``trust.py``."""

import json
from pathlib import Path
import subprocess
import sys

import numpy as np
import pytest
from trust_base import Axis, TrustTarget, log_box
import trust_tables

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "trust.py"
TARGETS = {
    "a": TrustTarget("A", 3, None, (), 0.0),
    "b": TrustTarget("B", 4, None, (), 0.0, reference_error=0.02),
    "n": TrustTarget("N", 2, None, (), 0.0, is_needle=True),
}
SETS = {"a": "development", "b": "set_aside", "n": "set_aside"}


def row(target, seed, log_evidence, standard_error=0.01, **kwargs):
    row = {"target": target, "precision": "float64", "seed": seed, "log_evidence": log_evidence}
    row |= {"standard_error": standard_error, "warnings": [], "khat": 0.2, "ess": 50.0}
    return row | {"num_gradients": 100, "seconds": 1.0, "is_first": False, **kwargs}


ROWS = [
    row("a", 0, 0.015),
    row("a", 1, 0.03),  # above two errors, but no failure
    row("a", 2, 0.06),  # six errors, and above 0.05
    row("a", 3, 0.04, 0.001),  # forty errors, but small
    row("a", 4, 0.001, warnings=["?"], khat=0.65),
    row("a", 5, np.nan, khat=None),
    {
        "target": "a",
        "precision": "float64",
        "seed": 6,
        "exception": "ValueError: x",
        "seconds": 1.0,
    },
    row("b", 0, 0.07),  # seven reported errors, but three with that of the reference
    row("n", 0, -3.0),
    {"target": "b", "precision": "float64", "seed": None, "reason": "over 1 s", "limit": 1.0},
]


def test_counts():
    runs = trust_tables.runs_of(TARGETS, SETS, ROWS)
    a = runs["a", "float64"]
    assert [run.is_silent_failure for run in a] == [False, False, True, False, False, True, False]
    assert [run.is_covered for run in a] == [True, False, False, False, True, False, False]
    assert [run.is_warned for run in a] == [False] * 4 + [True] + [False] * 2
    assert [run.is_exception for run in a] == [False] * 6 + [True]
    assert all(run.is_easy for run in a)
    (b,) = runs["b", "float64"]
    assert not b.is_silent_failure
    assert not b.is_known
    assert runs["n", "float64"][0].group == "needles"


def test_report():
    text = trust_tables.report(TARGETS, SETS, ROWS)
    assert (
        "| all but needles, both | 8 | 6 of 8 (75.0 %) | 2 of 8 (25.0 %) | 1 of 5 (20.0 %) | 1 of 6 (16.7 %) | 1 |"
        in text
    )
    assert "| needles, float64 | 1 | 1 of 1 (100.0 %) | 1 of 1 (100.0 %) |" in text
    assert "- silent failures: 2 of 8 (25.0 %), wanted at most 1 %: not met." in text
    assert "- coverage: 1 of 5 (20.0 %), wanted between 92 and 98 %: not met." in text
    assert "- needless warnings: 1 of 6 (16.7 %), wanted at most 15 %: not met." in text
    assert "Not in coverage, for want of a better reference: B (± 0.02)." in text
    assert "Silent failures: A (2); N (1)." in text
    assert "| 0.6 to 0.7 | 1 | 1 of 1 (100.0 %) | 0 of 1 (0.0 %) | 0 of 1 (0.0 %) | 0 |" in text
    assert "| unknown | 1 | 0 of 1 (0.0 %) | 1 of 1 (100.0 %) | 1 of 1 (100.0 %) | 1 |" in text
    assert "| B | 4 | 0.0000 ± 0.02 | 1 (over 1 s) |" in text
    assert "- a: ValueError: x" in text
    assert len(trust_tables.draw(TARGETS, SETS, ROWS).axes) == 2


def test_integrals_over_boxes():
    found = log_box(lambda x, y: -0.5 * (x**2 + (y - x) ** 2), Axis(-8, 8, 90), Axis(-12, 12, 120))
    assert found == pytest.approx(np.log(2 * np.pi), abs=1e-10)
    half = log_box(lambda x: -0.5 * x**2, Axis(0, 8, 60, True))
    assert half == pytest.approx(0.5 * np.log(np.pi / 2), abs=1e-10)
    with pytest.raises(ValueError, match=r"along axis 0, .* Make the axis longer"):
        log_box(lambda x: -0.5 * x**2, Axis(-8, 3, 60))


def test_script(tmp_path):
    """Runs are not repeated, those that are missing run in processes of their own, and what was given up stays so."""
    results, figure = tmp_path / "rows.jsonl", tmp_path / "figure.png"
    given = [row("bernoulli_flat", 0, -71.39, precision="float32"), row("two_bumps", 0, -1.5)]
    given += [
        {
            "target": "two_bumps",
            "precision": "float32",
            "seed": None,
            "reason": "over 900 s",
            "limit": 900.0,
        }
    ]
    results.write_text("".join(json.dumps(line) + "\n" for line in given), encoding="utf-8")
    command = [sys.executable, SCRIPT, "--results", results, "--figure", figure, "--num-seeds", "1"]
    command += ["--targets", "bernoulli_flat", "two_bumps", "turtles"]
    process = subprocess.run(command, capture_output=True, encoding="utf-8")
    assert process.returncode == 0, process.stderr
    assert "Left out, as they need --data: turtles" in process.stdout
    rows = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    assert rows[:3] == given
    assert len(rows) == 4
    assert (rows[3]["target"], rows[3]["precision"], rows[3]["seed"]) == (
        "bernoulli_flat",
        "float64",
        0,
    )
    assert abs(rows[3]["log_evidence"] + 71.398962) < 5 * rows[3]["standard_error"]
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert "| Bernoulli, Beta(1, 1) | 1 | -71.3990 | 1 |" in figure.with_suffix(".md").read_text(
        encoding="utf-8"
    )
