# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""The study of error bars runs, and its weights have a mean of one."""

from pathlib import Path
import subprocess
import sys

import error_bars
import numpy as np
import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "error_bars.py"
# Tails that are too heavy for a mean over some weights to be near its expectation.
HEAVY = (
    "variance 4",
    "variance 6",
    "variance 8",
    "variance 10",
    "0.6",
    "0.7",
    "0.8",
    "0.9",
    "t(3)",
)


def test_script():
    command = [
        sys.executable,
        SCRIPT,
        "--num-runs",
        "20",
        "--sizes",
        "64",
        "1024",
        "--fewest",
        "5",
    ]
    result = subprocess.run(command, capture_output=True, encoding="utf-8")
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    titles = (
        "By k-hat, all",
        "By k-hat, rare",
        "Few log-normal weights, by ESS",
        "Each distribution",
    )
    for title in titles:
        (place,) = [i for i, line in enumerate(lines) if line.startswith(title)]
        assert lines[place + 1].split() == [
            "runs",
            "jackknife",
            "reported",
            "ratio",
            "silent",
            "of",
            "these",
        ]
        assert lines[place + 2].strip()
    (light,) = [line.split() for line in lines if line.startswith("log-normal, variance 0.1, 1024")]
    assert light[4] == "20"
    assert 0.99 < float(light[7]) < 1.1


FAMILIES = error_bars.SMOOTH | error_bars.RARE


LIGHT = [name for name in FAMILIES if not any(part in name for part in HEAVY)]


@pytest.mark.parametrize("name", LIGHT)
def test_weights_have_a_mean_of_one(name):
    """Within five standard errors, by 400,000 of them."""
    weights = np.exp(FAMILIES[name](np.random.default_rng(0), 400_000))
    error = weights.std() / np.sqrt(weights.size)
    assert error < 0.03
    assert abs(weights.mean() - 1) < 5 * error


def test_coverage_counts_runs_within_two_errors():
    run = error_bars.Run("a", 100, 0.1, 0.04, 0.06, 0.3, 50.0, 0.5)
    far = run._replace(error=-0.13)
    heavy = far._replace(khat=1.4)
    cells = error_bars.row_of("label", [run, far, heavy, heavy]).split()
    assert cells == ["label", "4", "0.000", "0.250", "1.50", "0.50", "0.500"]
