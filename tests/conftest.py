# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Fixtures that several test files share."""

# ruff: noqa: E402
import gc
import os
from pathlib import Path

# Two workers on two cores: a second thread of BLAS for a matrix of ten rows would wait for a core.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# The suite compiles hundreds of small programs and runs each for a moment. What is tested is what they
# compute, so XLA may leave its costly passes out, here and in the scripts that the suite starts. Its
# older way of emitting code, in one piece, takes a third of the time that the default takes. Set before
# anything is imported: whatever makes an array has XLA read its flags, once and for all.
_XLA_FLAGS = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
_XLA_DEFAULTS = {"xla_cpu_use_fusion_emitters": True, "xla_cpu_parallel_codegen_split_count": 32}
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_XLA_FLAGS}".strip()
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "True"

import jax
import matplotlib
import numpy as np
import pytest

from numpyro_dais.linear_regression import LinearRegression
from tests.helpers import Counter

matplotlib.use("Agg")

# Tracing makes many small objects that live long: looking through them is a twentieth of the time.
gc.freeze()
gc.set_threshold(20_000, 50, 50)


# Tests that take longest, each of code that quicker ones run, too: further lengths, guides and scripts of
# a kind. `python -m pytest -m slow` runs them; CI does. A name stands for all that begin with it.
_SLOW = (
    "closed_form/test_linear_regression.py::test_mean_log_weight_is_the_expected_bound[100-changing",
    "closed_form/test_linear_regression.py::test_mean_log_weight_is_the_expected_bound[100-diagonal",
    "closed_form/test_linear_regression.py::test_mean_log_weight_is_the_expected_bound[100-none",
    "estimators/test_baselines.py::test_weights_are_unbiased_on_the_targets_of_dais[dirichlet",
    "estimators/test_baselines.py::test_weights_are_unbiased_on_the_targets_of_dais[hierarchy",
    "estimators/test_bidirectional.py::test_divergences_are_reported",
    "estimators/test_bidirectional.py::test_sandwich_of_a_regression[x64",
    "estimators/test_bidirectional.py::test_sandwich_shrinks_with_the_number_of_steps",
    "estimators/test_dais.py::test_checkpoint_needs_less_memory",
    "estimators/test_dais.py::test_float32_estimate_is_that_of_x64",
    "estimators/test_dais.py::test_memory_modes_give_one_gradient[with a rest",
    "estimators/test_dais.py::test_tune_returns_settings_that_log_evidence_takes",
    "estimators/test_pickles.py::test_an_estimator_and_its_result_are_pickled[15: reversible",
    "estimators/test_pickles.py::test_an_estimator_and_its_result_are_pickled[15: settings",
    "estimators/test_words_of_errors.py::test_a_whole_float_is_a_count[13: budget",
    "model/test_guides.py::test_flows_run_in_noise_space[AutoBNAFNormal",
    "model/test_guides.py::test_guide_start[AutoBNAFNormal",
    "model/test_guides.py::test_guide_start[AutoDiagonalNormal",
    "model/test_guides.py::test_guide_start[AutoIAFNormal",
    "model/test_guides.py::test_guide_start[AutoLaplaceApproximation",
    "model/test_guides.py::test_laplace_is_gaussian_at_the_mode",
    "model/test_minibatch.py::test_sandwich_and_gradient",
    "model/test_surrogate.py::test_unbiased_on_a_skewed_posterior",
    "results/test_evidence.py::test_error_bars_cover_the_truth[standard deviation 1, 256",
    "sampler/test_islands.py::test_without_resampling_steps_particles_are_those_of_the_plain_run",
    "sampler/test_reversible.py::test_gradients_are_those_of_the_quantised_chain[float32",
    "sampler/test_reversible.py::test_gradients_through_the_estimator",
    "sampler/test_reversible.py::test_round_trip_is_exact[VAE",
    "sampler/test_reversible.py::test_round_trip_is_exact[hierarchical-10",
    "sampler/test_reversible.py::test_round_trip_is_exact[mixture-10",
    "sampler/test_reversible.py::test_round_trip_is_exact[simplex-15000",
    "sampler/test_reversible.py::test_round_trip_is_exact[simplex-1000",
    "scripts/test_benchmarks.py::test_peers",
    "scripts/test_benchmarks.py::test_rows",
    "scripts/test_dimension.py::test_script",
    "scripts/test_examples.py::test_code_of_a_page[from_draws",
    "scripts/test_examples.py::test_code_of_a_page[large_data",
    "scripts/test_examples.py::test_code_of_a_page[minibatches",
    "scripts/test_examples.py::test_script_runs[convergence_study.py",
    "scripts/test_examples.py::test_code_of_a_page[comparing.md",
    "scripts/test_examples.py::test_script_runs[davi_autoguide.py",
    "scripts/test_examples.py::test_script_runs[empirical_bayes.py",
    "scripts/test_examples.py::test_script_runs[gaussian_process.py",
    "scripts/test_examples.py::test_script_runs[model_selection.py",
    "scripts/test_examples.py::test_script_runs[ode_model.py",
    "scripts/test_examples.py::test_script_runs[vae/vae.py",
    "scripts/test_examples.py::test_script_runs[vae/vae_evaluate.py",
    "scripts/test_trust.py::test_script",
    "scripts/test_trust_targets.py::test_mean_likelihood_of_prior_draws",
    "scripts/test_vae.py::test_resumed_training_is_the_same_bit_for_bit",
    "sampler/test_lost.py::test_under_other_transformations",
    "test_docs.py::test_the_notebook_runs",
    "tuning/test_rounds.py::test_complete_runs_are_unbiased[all",
    "tuning/test_rounds.py::test_given_numbers_from_a_fit_do_no_harm[all",
    "vi/test_davi.py::test_closes_the_gap_of_a_mean_field_guide",
    "vi/test_davi.py::test_two_plates_give_a_bound_for_each_pair",
    "vi/test_davi_minibatch.py::test_davi_is_unbiased_for_its_bound",
)


def pytest_collection_modifyitems(items):
    """Marks the slow tests, and those that start programs with several devices."""
    for item in items:
        if item.nodeid.startswith("tests/multidevice/"):
            item.add_marker(pytest.mark.multidevice)
        if item.nodeid.removeprefix("tests/").startswith(_SLOW):
            item.add_marker(pytest.mark.slow)


# Of a worker, in bytes: two of them fit into the 16 GiB of the machines that run this suite. With less, the
# caches are cleared after every file in the end, since what is freed is not given back.
_MAX_MEMORY = 5 * 2**30
_MEMORY = Path("/proc/self/statm")


@pytest.fixture(autouse=True, scope="module")
def bounded_memory():
    """Clears JAX's caches once they are large: programs of hundreds of tests would fill the memory."""
    yield
    pages = int(_MEMORY.read_text().split()[1]) if _MEMORY.exists() else 0
    if pages * os.sysconf("SC_PAGE_SIZE") > _MAX_MEMORY:
        jax.clear_caches()


@pytest.fixture
def optimised():
    """
    Compiles with optimisations, for long runs. With these ``compiler_options`` of :func:`jax.jit` as for
    a user, for tests of the compiled programs themselves.
    """
    jax.config.update("jax_disable_most_optimizations", False)
    yield _XLA_DEFAULTS
    jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture
def counter():
    """Counts compilations, and runs of a model of its own."""
    counter = Counter()
    jax.monitoring.register_event_duration_secs_listener(counter.on_event)
    yield counter
    jax.monitoring.clear_event_listeners()


@pytest.fixture
def x64():
    """Runs a test in double precision."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="session")
def regression_data():
    """Covariates with unequal eigenvalues and responses with a mean: nothing is symmetric."""
    rng = np.random.default_rng(7)
    X = rng.standard_normal((40, 3)) * np.array([0.2, 0.6, 1.1]) + np.array([0.0, 0.1, 0.3])
    return X, X @ np.array([1.0, -0.5, 0.3]) + 0.7 * rng.standard_normal(40) + 0.2


@pytest.fixture(scope="session")
def regression(regression_data):
    """A regression with a non-zero prior mean and unequal prior precisions."""
    return LinearRegression(
        *regression_data,
        noise_scale=0.8,
        prior_mean=[0.5, -1.0, 0.25],
        prior_precision=[1.0, 2.0, 0.5],
    )
