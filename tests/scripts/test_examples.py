# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Scripts in examples/ run, save a figure and print what they promise; code of README and docs runs too."""

import contextlib
from pathlib import Path
import re
import subprocess
import sys

import jax
import numpy as np
import pytest
from scipy import integrate, stats

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"

# Small arguments of each script, and what it must print. A script without an entry fails.
SCRIPTS = {
    "linear_regression.py": (
        ["--num-particles", "32", "--num-steps", "10", "20"],
        [
            "Exact log evidence:           -14204.8939",
            "standard errors",
            "Time",
            "damping 0.9",
            "Picture: ",
        ],
    ),
    "convergence_study.py": (
        ["--quick"],
        [
            "12 of 12 dots lie within 4 standard errors",
            "full refreshment                    1/4   -0.519   -0.500",
            "mini-batches of 100 rows            1/4   +0.467   +0.500",
            "constant along the chain",
            "floor",
        ],
    ),
    "davi_autoguide.py": (
        ["--num-dims", "3", "--sizes", "2", "--num-iterations", "20", "--sandwich-steps", "2"],
        ["Log evidence", "ELBO", "IWAE", "DAVI"],
    ),
    "empirical_bayes.py": (
        ["--num-steps", "2", "--num-iterations", "50"],
        ["0.345   1.255", "ELBO", "DAVI, K = 2"],
    ),
    "gaussian_process.py": (
        ["--num-points", "6", "--num-steps", "2", "--num-iterations", "20"],
        ["log evidence", "exact", "ELBO", "DAVI, K = 2"],
    ),
    "model_selection.py": (
        ["--num-particles", "64", "--num-steps", "32", "--sandwich-steps", "4"],
        ["log Bayes factor", "-30.903", "hierarchical, K = 32", "gap"],
    ),
    "ode_model.py": (
        ["--num-steps", "8", "--num-iterations", "600"],
        ["exact              0.715   -52.727", "ELBO", "DAVI, K = 8"],
    ),
    "vae/vae.py": (
        [
            "--num-train",
            "40",
            "--num-test",
            "15",
            "--batch-size",
            "20",
            "--num-epochs",
            "2",
            "--num-steps",
            "2",
            "--num-particles",
            "2",
            "--num-latents",
            "3",
            "--num-hidden",
            "4",
        ],
        ["Bound per training image", "Bound per test image (davi, 15 images)", "vae.npz"],
    ),
    "vae/vae_evaluate.py": (
        [
            "--num-train",
            "100",
            "--num-test",
            "6",
            "--num-epochs",
            "1",
            "--num-latents",
            "3",
            "--num-hidden",
            "4",
            "--train-steps",
            "2",
            "--train-particles",
            "2",
            "--methods",
            "IS",
            "DAIS",
            "--num-updates",
            "10",
            "--num-particles",
            "2",
            "--num-runs",
            "2",
            "--num-simulated",
            "3",
            "--chunk-size",
            "3",
        ],
        ["vae, 1 epochs", "iwae, 1 epochs", "davi, 1 epochs", "Sandwich", "width"],
    ),
}


def check_ode_model(output: str) -> None:
    """Columns: spread, bound, log evidence at the spread, and how far that is below the maximum."""
    lines = [line for line in output.splitlines() if line.startswith(("exact", "ELBO", "DAVI"))]
    rows = {line[:16].strip(): [float(word) for word in line[16:].split()] for line in lines}
    elbo, davi, exact = rows["ELBO"], rows["DAVI, K = 8"], rows["exact"]
    # Five standard deviations over ten seeds, which have 0.505 ± 0.005 and 0.642 ± 0.009, and bounds
    # of -62.5 ± 0.4 and -54.3 ± 0.15.
    assert elbo[0] < 0.53 < 0.597 < davi[0] < 0.687 < exact[0]
    assert elbo[1] < -60.5 < -55.05 < davi[1] < exact[1]
    assert elbo[3] > 0.9 > 0.3 > davi[3] > 0.0


# What the figures that a script prints must satisfy beside.
CLAIMS = {"ode_model.py": check_ode_model}

# Warnings are errors in a script too, but for those that say the arguments are too small.
WARNINGS = [
    "-W",
    "error",
    "-W",
    "ignore:The effective sample size",
    "-W",
    "ignore:k-hat is",
    "-W",
    "ignore:NUTS ha",
    "-W",
    "ignore:Forward and reverse weights hardly overlap",
]


def test_every_script_is_tested():
    paths = [*EXAMPLES.glob("*.py"), *EXAMPLES.glob("vae/*.py")]
    scripts = {
        path.relative_to(EXAMPLES).as_posix()
        for path in paths
        if "__main__" in path.read_text(encoding="utf-8")
    }
    assert scripts == set(SCRIPTS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_runs(name, tmp_path):
    arguments, expected = SCRIPTS[name]
    figure = tmp_path / "figure.png"
    command = [sys.executable, *WARNINGS, EXAMPLES / name, *arguments, "--output", figure]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, encoding="utf-8")
    assert result.returncode == 0, result.stderr
    assert figure.read_bytes().startswith(b"\x89PNG")
    for text in expected:
        assert text in result.stdout
    if name in CLAIMS:
        CLAIMS[name](result.stdout)


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_explains_itself(name):
    """A script is a page: a title, the claim and references."""
    text = (EXAMPLES / name).read_text(encoding="utf-8")
    for part in ["=====", "claim", "**References**", "argparse", "def main(args"]:
        assert part in text


# Of two pages with the same block, the second gets what the first has computed.
_blocks: dict[str, dict] = {}


def run_page(path: str, directory: Path) -> dict:
    """
    Returns the names that the blocks of Python of a page define, run one after another in a directory; a block
    after the line ``% not run`` is left out.
    """
    text = (ROOT / path).read_text(encoding="utf-8")
    namespace: dict = {}
    for mark, block in re.findall(
        r"^(% not run\n)?```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE
    ):
        if mark:
            continue
        if block not in _blocks:
            before = dict(namespace)
            with contextlib.chdir(directory):
                exec(block, namespace)
            news = {k: v for k, v in namespace.items() if before.get(k, before) is not v}
            _blocks[block] = news
        namespace.update(_blocks[block])
    return namespace


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory):
    """The names of the README's example, and those of the quickstart's."""
    directory = tmp_path_factory.mktemp("pages")
    return {**run_page("README.md", directory), **run_page("docs/quickstart.md", directory)}


def test_quickstart(quickstart):
    y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    sigma = np.asarray(quickstart["sigma"], np.float64)

    def density(tau):
        """p(y, tau), with the means of the schools and their mean integrated out."""
        covariance = np.diag(sigma**2 + tau**2) + 5.0**2
        return stats.multivariate_normal(cov=covariance).pdf(y) * stats.halfcauchy.pdf(tau, 0, 5)

    # The density is about 1e-14, below the absolute tolerance of the integrator.
    exact = np.log(integrate.quad(lambda tau: 1e14 * density(tau), 0, np.inf)[0] / 1e14)
    evidence = quickstart["evidence"]
    assert abs(float(evidence) - exact) < 5 * float(evidence.standard_error)
    assert not evidence.warnings
    assert quickstart["draws"]["z"].shape == (1000, 8)
    num_particles = evidence.num_particles
    assert quickstart["data"]["posterior"]["tau"].shape == (1, int(evidence.ess))
    mean = (
        integrate.quad(lambda tau: 1e14 * tau * density(tau), 0, np.inf)[0] / 1e14 / np.exp(exact)
    )
    assert abs(quickstart["mean"] - mean) < 5 * quickstart["error"]
    assert quickstart["data"]["importance"]["log_weight"].shape == (num_particles,)
    no_pooling = stats.norm.logpdf(y, 0.0, np.sqrt(sigma**2 + 400.0)).sum()
    other = quickstart["other"]
    assert abs(float(other) - no_pooling) < 5 * other.standard_error
    assert quickstart["comparison"].names == ("hierarchical", "no pooling")


def test_transformations_of_the_quickstart(quickstart):
    scales, y = np.array([0.5, 1.0, 2.0, 4.0]), np.array([1.0, 2.0, 3.0])

    def exact(scale):
        return stats.multivariate_normal(cov=np.eye(3) + scale**2).logpdf(y)

    # The standard deviations over seeds are 0.06 and 0.04.
    np.testing.assert_allclose(quickstart["value"], exact(2.0), atol=0.3)
    np.testing.assert_allclose(quickstart["values"], [exact(scale) for scale in scales], atol=0.3)
    slope = (exact(2.0 + 1e-4) - exact(2.0 - 1e-4)) / 2e-4
    np.testing.assert_allclose(quickstart["slope"], slope, atol=0.2)


def check_comparing(names: dict) -> None:
    assert names["comparison"].names == ("hierarchical", "no pooling")
    assert names["comparison"].sensitivity is not None
    y, sigma = np.asarray(names["scores"], float), np.asarray(names["sigma"], float)
    no_pooling = stats.norm.logpdf(y, 0.0, np.sqrt(sigma**2 + 400.0)).sum()
    # Of the hierarchy, by the integral of test_quickstart.
    assert abs(names["factor"].value - (-31.3113 - no_pooling)) < 5 * names["factor"].standard_error


def check_davi(names: dict) -> None:
    y, sigma = np.asarray(names["scores"], float), np.asarray(names["sigma"], float)
    schools = stats.norm.logpdf(y, 0.0, np.sqrt(sigma**2 + 400.0))
    np.testing.assert_allclose(names["final"].log_evidence, schools, atol=0.1)
    assert names["refined"]["theta"].shape == (1000, 8)


def check_from_draws(names: dict) -> None:
    evidence, bridge = names["evidence"], names["bridge"]
    assert abs(float(evidence) - float(bridge)) < 5 * (evidence - bridge).standard_error
    assert evidence.upper_bound > evidence.log_evidence - 5 * evidence.upper_bound_error


def check_minibatches(names: dict) -> None:
    assert not names["evidence"].warnings


def check_large_data(names: dict) -> None:
    assert (names["directory"] / "run.npz").exists()
    assert np.isfinite(float(names["evidence"]))


def check_estimators(names: dict) -> None:
    exact = stats.norm.logpdf(1.5, 0.0, np.sqrt(5.0))
    for estimator in names["estimators"]:
        evidence = estimator.log_evidence(jax.random.key(1), 1.5)
        assert abs(float(evidence) - exact) < 5 * evidence.standard_error


def check_results(names: dict) -> None:
    assert names["certificate"].gap > 0
    assert names["budget"].standard_error == names["evidence"].standard_error


def check_settings(names: dict) -> None:
    again = names["load_settings"](names["directory"] / "chain.npz")
    np.testing.assert_array_equal(again.betas, names["settings"].betas)


def check_plots(names: dict) -> None:
    assert (names["directory"] / "evidence.png").read_bytes().startswith(b"\x89PNG")


def check_linear_regression(names: dict) -> None:
    anatomy = names["anatomy"]
    gap = names["regression"].expected_gap(names["linear"](100), 0.1, 0.9)
    np.testing.assert_allclose(anatomy.mean + anatomy.covariance + anatomy.kinetic, gap)


# What the examples of a page must give; README and quickstart have tests of their own. A page without an
# entry, and with code, fails. Those that take longest run with ``-m slow``.
PAGES = {
    "api/estimators.md": check_estimators,
    "api/linear_regression.md": check_linear_regression,
    "api/plots.md": check_plots,
    "api/results.md": check_results,
    "api/settings.md": check_settings,
    "comparing.md": check_comparing,
    "davi.md": check_davi,
    "from_draws.md": check_from_draws,
    "large_data.md": check_large_data,
    "minibatches.md": check_minibatches,
}
# Those of the quickstart have tests above, the start page has the README's, and one needs several devices.
SHOWN_ELSEWHERE = {"index.md", "quickstart.md", "devices.md"}


@pytest.mark.parametrize("page", PAGES)
def test_code_of_a_page(page, tmp_path):
    names = run_page(f"docs/{page}", tmp_path)
    PAGES[page]({**names, "directory": tmp_path})


def test_every_page_with_code_is_run():
    docs = ROOT / "docs"
    pages = {
        path.relative_to(docs).as_posix()
        for path in docs.rglob("*.md")
        if re.search(r"(?<!% not run\n)^```python", path.read_text(encoding="utf-8"), re.MULTILINE)
        and not {"_build", "gallery"} & set(path.relative_to(docs).parts)
    }
    assert set(PAGES) <= pages <= set(PAGES) | SHOWN_ELSEWHERE


def test_the_start_page_shows_the_example_of_the_readme():
    def block(path):
        text = (ROOT / path).read_text(encoding="utf-8")
        return re.search(r"^```python\n(.*?)^print\(evidence\)", text, re.DOTALL | re.MULTILINE)[1]

    assert block("docs/index.md") == block("README.md")
