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


# Of a worker, in bytes: two of them fit into the smallest machines that run this suite.
_MAX_MEMORY = 3 * 2**30
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
