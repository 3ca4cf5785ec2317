# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Searches for a mode, and its curvature made fit for use."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from numpyro_dais.model.modes import check_mode, find_mode, find_modes, polish_mode, spectrum_of


def on_host(log_density):
    """The functions that a search on the host takes."""
    value_and_grad = jax.jit(jax.value_and_grad(log_density))
    hessian = jax.jit(jax.hessian(log_density))

    def density_fn(position):
        value, gradient = value_and_grad(jnp.asarray(position, float))
        return float(value), np.asarray(gradient, np.float64)

    return density_fn, lambda position: -np.asarray(hessian(jnp.asarray(position, float)))


def test_mode_of_a_difficult_density(x64):
    """From a far start, where curvature has the wrong sign, to a maximum known in closed form."""

    def log_density(u):
        return -jnp.exp(u[0]) + 3 * u[0] - jnp.log1p((u[1] - u[0]) ** 2) - 50 * u[2] ** 4 + u[2]

    density_fn, curvature_fn = on_host(log_density)
    expected = [np.log(3), np.log(3), 200 ** (-1 / 3)]
    calls = {"gradients": 0, "Hessians": 0}

    def counted_density_fn(position):
        calls["gradients"] += 1
        return density_fn(position)

    def counted_curvature_fn(position):
        calls["Hessians"] += 1
        return curvature_fn(position)

    start = np.array([-6.0, 40.0, 2.0])
    mode = find_mode(counted_density_fn, counted_curvature_fn, start, np.ones(3))
    assert mode.is_found
    np.testing.assert_allclose(mode.position, expected, rtol=1e-4)
    np.testing.assert_allclose(mode.precision, -jax.hessian(log_density)(mode.position))
    assert mode.num_gradients == calls["gradients"] + 3 * calls["Hessians"] < 100

    # The polish alone: from a place where the curvature has the wrong sign along two coordinates.
    start = np.array([0.0, 3.0, 0.3])
    assert np.linalg.eigvalsh(curvature_fn(start))[0] < 0
    polished = polish_mode(density_fn, curvature_fn, start)
    assert polished.is_found
    np.testing.assert_allclose(polished.position, expected, rtol=1e-4)

    slope_fns = on_host(lambda u: u[0] - jnp.sum(u[1:] ** 2))
    slope = find_mode(*slope_fns, np.zeros(2), np.ones(2))
    assert not slope.is_found
    with pytest.raises(ValueError, match=r"No mode was found in \d+ gradients: .*Try again\."):
        check_mode(slope, "Try again.")


def test_mode_of_a_rounded_density():
    """Values rounded to hundredths of nats, as in float32 on 100,000 rows, do not hide the mode."""
    precision = np.array([[20_000.0, 9000.0], [9000.0, 5000.0]])
    center = np.array([0.7, -1.3])

    def density_fn(position):
        offset = position - center
        skew = 3000.0 * np.array([offset[0] ** 2, 0.0])
        value = -60_000.0 - offset @ precision @ offset / 2 - 1000.0 * offset[0] ** 3
        gradient = -precision @ offset - skew
        return float(np.round(value, 2)), gradient.astype(np.float32).astype(np.float64)

    def curvature_fn(position):
        skew = np.array([6000.0 * (position - center)[0], 0.0])
        return (precision + np.diag(skew)).astype(np.float32)

    start = center + np.array([0.05, 0.02])

    def densities_fn(positions):
        value, gradient = density_fn(positions[0])
        return np.array([value]), gradient[None]

    ends = find_modes(densities_fn, start[None], center, np.ones(2), 1000).positions
    mode = polish_mode(density_fn, curvature_fn, ends[0])
    assert mode.is_found
    assert mode.decrement < 1e-8
    np.testing.assert_allclose(mode.position, center, atol=1e-5)
    assert find_mode(density_fn, curvature_fn, start, np.ones(2)).is_found


def test_curvature_made_fit_for_use():
    """Absolute values, and a floor, or no positive ones, along the matrix's own directions."""
    angle = 0.3
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    saddle = spectrum_of(turn @ np.diag([4.0, -0.5]) @ turn.T)
    np.testing.assert_allclose(saddle.matrix, turn @ np.diag([4.0, -0.5]) @ turn.T, atol=1e-12)
    positive = saddle.positive(0.25)
    np.testing.assert_allclose(positive.matrix, turn @ np.diag([4.0, 1.0]) @ turn.T, atol=1e-12)
    np.testing.assert_allclose(positive.inverse @ positive.matrix, np.eye(2), atol=1e-12)
    np.testing.assert_allclose(
        saddle.concave().matrix, turn @ np.diag([0.0, -0.5]) @ turn.T, atol=1e-12
    )
    diagonal = spectrum_of(np.array([4.0, -2.0, np.nan])).positive(0.25)
    np.testing.assert_allclose(diagonal.matrix, [4.0, 2.0, 1.0])
    np.testing.assert_allclose(diagonal.inverse, [0.25, 0.5, 1.0])
