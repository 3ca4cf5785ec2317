# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Fixtures that several test files share."""

import jax
import matplotlib
import numpy as np
import pytest

from numpyro_dais.linear_regression import LinearRegression

matplotlib.use("Agg")


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
