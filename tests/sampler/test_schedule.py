# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

import numpy as np
import pytest

from numpyro_dais.sampler.schedule import (
    fourth_root_step_size,
    interpolate,
    linear,
    power,
    sigmoid,
    validate_betas,
)

SCHEDULES = {
    "linear": linear,
    "power": power,
    "square": lambda num_steps: power(num_steps, exponent=2.0),
    "sigmoid": sigmoid,
    "steep": lambda num_steps: sigmoid(num_steps, steepness=10.0),
}
BAD_BETAS = {
    "repeated": ([0.5, 0.5, 1.0], r"increasing.*betas\[1\] = 0.5"),
    "decreasing": ([0.6, 0.5, 1.0], r"increasing.*betas\[1\] = 0.5"),
    "negative": ([-0.1, 0.5, 1.0], r"betas\[0\] = -0.1"),
    "nan": ([0.1, np.nan, 1.0], r"betas\[1\] = nan"),
    "short": ([0.1, 0.9], "end in 1.*0.9"),
    "beyond": ([0.5, 1.5], "end in 1.*1.5"),
    "matrix": ([[0.5, 1.0]], r"one array.*\(1, 2\)"),
}


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
@pytest.mark.parametrize("num_steps", [0, 1, 2, 7, 1000])
def test_schedules_are_valid(schedule, num_steps):
    betas = schedule(num_steps)
    assert betas.shape == (num_steps,)
    np.testing.assert_array_equal(validate_betas(betas), betas)


def test_schedules_are_refined_by_more_steps():
    for schedule in SCHEDULES.values():
        np.testing.assert_allclose(schedule(20)[1::2], schedule(10), rtol=1e-12)


@pytest.mark.parametrize(("betas", "message"), BAD_BETAS.values(), ids=BAD_BETAS)
def test_bad_betas(betas, message):
    with pytest.raises(ValueError, match=message):
        validate_betas(betas)


@pytest.mark.parametrize("schedule", [power, sigmoid])
@pytest.mark.parametrize("value", [0.0, -1.0, np.nan])
def test_bad_shape_parameters(schedule, value):
    with pytest.raises(ValueError, match="must be positive"):
        schedule(5, value)


def test_fourth_root_step_size():
    assert fourth_root_step_size(160_000, 0.3) == pytest.approx(0.3 * 16_000**-0.25)


@pytest.mark.parametrize("num_steps", [1, 2, 7, 300])
def test_interpolation_is_numpys(num_steps):
    betas, matrices = power(7), np.random.default_rng(0).normal(size=(7, 2, 3))
    at, knots = linear(num_steps), np.arange(8) / 7
    got = interpolate(betas, num_steps, is_zero_first=True)
    np.testing.assert_allclose(got, np.interp(at, knots, np.append(0.0, betas)), rtol=1e-12)
    np.testing.assert_array_equal(validate_betas(got), got)
    expected = [np.interp(at, knots, np.append(x[0], x)) for x in matrices.reshape(7, 6).T]
    got = interpolate(matrices, num_steps).reshape(num_steps, 6)
    np.testing.assert_allclose(got, np.transpose(expected), atol=1e-12)
