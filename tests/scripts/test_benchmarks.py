# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
The comparison with peers runs, continues where it stopped, and draws its conclusions; warm calls are
timed.
"""

import argparse
import json
from pathlib import Path
import subprocess
import sys

import numpy as np
import old_and_new
import targets

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PEERS = BENCHMARKS / "peers.py"


def run_peers(results: Path, *arguments: str) -> str:
    command = [sys.executable, PEERS, "--results", results, "--targets", "hierarchy", *arguments]
    result = subprocess.run(command, capture_output=True, encoding="utf-8")
    assert result.returncode == 0, result.stderr
    assert "failed" not in result.stdout, result.stdout
    return result.stdout


def test_peers(tmp_path):
    results = tmp_path / "peers.jsonl"
    row = {"target": "hierarchy", "method": "smc_1k", "log_evidence": -39.7, "seconds": 1.0}
    row |= {"standard_error": None, "has_warning": None, "first_seconds": None}
    row |= {"num_gradients": 1000, "num_densities": 100}
    given = [{**row, "seed": seed, "log_evidence": -39.7 + 0.4 * seed} for seed in range(2)]
    results.write_text("".join(json.dumps(row) + "\n" for row in given), encoding="utf-8")
    text = run_peers(results, "--num-seeds", "2", "--methods", "smc_1k", "laplace", "dais")
    assert "linear-Gaussian hierarchy, 9-d: log evidence -39.298" in text
    # Errors of -0.402 and -0.002, either of which may be both of a bootstrap sample.
    assert "tempered SMC, 1k                        2      0.28 (0.0020 to 0.4)" in text
    assert "1,050" in text
    assert "DAIS: RMSE is" in text
    rows = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    assert rows[:2] == given  # what is there is not run again
    assert [(row["method"], row["seed"]) for row in rows[2:]] == [
        ("laplace", 0),
        ("laplace", 1),
        ("dais", 0),
        ("dais", 1),
    ]
    for row in rows[2:]:
        assert abs(row["log_evidence"] - -39.29797) < 4 * row["standard_error"]
        assert row["num_gradients"] > 0
    assert results.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert "| tempered SMC, 1k | 2 |" in results.with_suffix(".md").read_text(encoding="utf-8")


def test_warm_call():
    command = [sys.executable, BENCHMARKS / "warm_call.py", "--targets", "hierarchy", "seeds"]
    result = subprocess.run([*command, "--num-runs", "1"], capture_output=True, encoding="utf-8")
    assert result.returncode == 0, result.stderr
    assert "linear-Gaussian hierarchy, 9-d" in result.stdout
    assert "of 1" in result.stdout  # the other one needs its data


def test_old_and_new_runs_are_compared_seed_by_seed(tmp_path, capsys):
    """Errors of three times the size are worse, those of half the size are not."""
    exact = targets.TARGETS["mixture"](None).log_evidence
    errors = np.random.default_rng(0).standard_normal(20)

    def write(name, scale):
        rows = [
            {"target": "mixture", "method": "dais", "seed": seed, "log_evidence": exact + scale * e}
            | {"standard_error": scale, "num_gradients": 100, "num_densities": 0, "seconds": 1.0}
            for seed, e in enumerate(errors)
        ]
        path = tmp_path / name
        path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
        return path

    old, worse, better = (write(*pair) for pair in [("old", 0.01), ("worse", 0.03), ("new", 0.005)])
    for new, status, ratio in ((worse, 1, "3.00"), (better, 0, "0.50")):
        args = argparse.Namespace(old=old, new=new, data=None)
        assert old_and_new.main(args) == status
        assert ratio in capsys.readouterr().out


def test_rows(tmp_path):
    """Rows on disk, few of them; the files are removed at the end."""
    arguments = ["--num-rows", "20000", "--num-columns", "3", "--batch-size", "3000"]
    command = [sys.executable, BENCHMARKS / "rows.py", "--directory", tmp_path, *arguments]
    result = subprocess.run(command, capture_output=True, encoding="utf-8")
    assert result.returncode == 0, result.stderr
    assert "20000 rows, 3 columns, 0.00 GB on disk" in result.stdout
    assert "  met    anonymous memory of " in result.stdout
    assert "errors from the reference (at most 5)" in result.stdout
    assert "MISSED" not in result.stdout
    assert list(tmp_path.iterdir()) == []
