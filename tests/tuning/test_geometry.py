# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""The shape of a posterior around its mode: dense, of low rank, and after a polish."""

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import pytest

import numpyro
import numpyro.distributions as dist

from numpyro_dais import DAIS
from numpyro_dais.model.modes import find_modes
from numpyro_dais.model.problem import Problem
from numpyro_dais.model.traced import trace_target
from numpyro_dais.tuning.curvature import find_curvature
from numpyro_dais.tuning.geometry import dense_geometry, low_rank_geometry
from numpyro_dais.tuning.polish import leads_to, polish_peak

RNG = np.random.default_rng(7)


def rotated(num_dims, widths):
    """A Gaussian along random axes: its mean, its precision, and the functions of a search."""
    rng = np.random.default_rng(num_dims)
    basis = np.linalg.qr(rng.normal(size=(num_dims, num_dims)))[0]
    mean, precision = rng.normal(size=num_dims), (basis / widths**2) @ basis.T

    def density_fn(u):
        along = precision @ (mean - u)
        return -0.5 * float((mean - u) @ along), along

    return mean, precision, density_fn, lambda u, beta, v: v @ precision


def test_geometry_of_a_matrix():
    """Whitened offsets have the norm of Mahalanobis; all maps are inverse to each other."""
    root = RNG.normal(size=(6, 4))
    matrix = np.diag(10.0 ** np.arange(-3, 3)) + root[:, :1] @ root[:, :1].T
    dense = dense_geometry(matrix, np.full(6, 100.0))
    offset = RNG.normal(size=6)
    assert dense.is_positive
    np.testing.assert_allclose(dense.precision, matrix, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(dense.covariance @ matrix, np.eye(6), atol=1e-8)
    np.testing.assert_allclose(np.sum(dense.whiten(offset) ** 2), offset @ matrix @ offset)
    np.testing.assert_allclose(dense.unwhiten(dense.whiten(offset)), offset)
    np.testing.assert_allclose(dense.solve(matrix @ offset), offset)
    np.testing.assert_allclose(dense.log_volume, -0.5 * np.linalg.slogdet(matrix)[1])
    saddle = dense_geometry(np.diag([2.0, -3.0, 0.0]), np.ones(3))
    assert not saddle.is_positive
    np.testing.assert_allclose(np.diag(saddle.precision)[:2], [2.0, 3.0])
    assert 0 < saddle.precision[2, 2] < 1e-7


CASES = {
    "rows": RNG.normal(size=(5, 40)),
    "rows of equal size, whose axes have no order": np.eye(40)[:7] * 3.0,
    "no rows": np.zeros((0, 40)),
}


@pytest.mark.parametrize("rows", CASES.values(), ids=CASES)
def test_low_rank_is_exact_where_the_data_are_few(rows):
    """Unequal prior scales; a product for each row, and a few."""
    prior = np.exp(RNG.normal(size=40))
    matrix = np.diag(prior) + rows.T @ rows
    counted = []

    def products_fn(position, beta, directions):
        counted.extend(directions)
        return directions * prior + beta * (directions @ rows.T) @ rows

    geometry = low_rank_geometry(products_fn, np.zeros(40), prior**-0.5, 30)
    assert geometry.is_positive
    assert len(counted) < len(rows) + 10
    np.testing.assert_allclose(geometry.precision, matrix, atol=1e-6)
    np.testing.assert_allclose(geometry.log_volume, -0.5 * np.linalg.slogdet(matrix)[1], atol=1e-6)


def test_a_polish_reaches_the_mode_that_searches_stop_short_of():
    """Rotated, widths of 0.001 to 1: ends of searches are far apart, and lead to one mode."""
    mean, precision, density_fn, products_fn = rotated(20, np.geomspace(1e-3, 1, 20))
    starts = RNG.normal(size=(3, 20)) * 2

    def side_by_side(positions):
        values, gradients = zip(*map(density_fn, positions), strict=True)
        return np.array(values), np.stack(gradients)

    ends = find_modes(side_by_side, starts, np.zeros(20), np.ones(20), 3000).positions
    assert density_fn(ends[-1])[0] < -0.02
    hessians = []

    def geometry_fn(u):
        hessians.append(u)
        return dense_geometry(precision, np.ones(20))

    peak = polish_peak(density_fn, geometry_fn, products_fn, ends[-1])
    assert peak.is_found
    assert len(hessians) == 1
    np.testing.assert_allclose(peak.position, mean, atol=1e-6)
    assert all(leads_to(u, density_fn(u)[1], peak) for u in [*ends, *starts])
    elsewhere = mean + 5.0  # another mode has no slope
    assert not leads_to(elsewhere, np.zeros(20), peak)


def test_a_polish_with_a_rank_that_is_too_low():
    _, _, density_fn, products_fn = rotated(30, np.geomspace(0.01, 1, 30))
    peak = polish_peak(
        density_fn,
        lambda u: low_rank_geometry(products_fn, u, np.ones(30), 8),
        products_fn,
        np.zeros(30),
    )
    assert density_fn(peak.position)[0] > -1e-7  # nats, which is what a polish goes by


def test_a_polish_makes_a_new_geometry_only_where_it_differs(x64):
    """Poisson counts with logarithmic rates: from a far end in few Hessians, the last at the mode."""
    counts = np.array([1.0, 7.0, 40.0])

    def log_density(u):
        return jnp.sum(counts * u - jnp.exp(u) - 0.1 * (u - jnp.roll(u, 1)) ** 2)

    value_and_grad, hessian = jax.value_and_grad(log_density), jax.hessian(log_density)
    hessians = []

    def density_fn(u):
        value, gradient = value_and_grad(u)
        return float(value), np.asarray(gradient)

    def geometry_fn(u):
        hessians.append(u)
        return dense_geometry(-np.asarray(hessian(u)), np.ones(3))

    def products_fn(u, beta, v):
        return -v @ np.asarray(hessian(u))

    end = np.log(counts) + np.array([1.0, -0.5, 0.3])
    peak = polish_peak(density_fn, geometry_fn, products_fn, end)
    assert peak.is_found
    assert len(hessians) <= 4
    np.testing.assert_allclose(density_fn(peak.position)[1], 0.0, atol=1e-3)
    np.testing.assert_allclose(peak.geometry.precision, -hessian(peak.position), rtol=0.02)


def regression(x, y, scale):
    u = numpyro.sample("u", dist.Normal(0.5, scale).to_event(1))
    numpyro.sample("y", dist.Normal(x @ u, 0.5).to_event(1), obs=y)


def regression_data(num_rows, num_dims):
    rng = np.random.default_rng(3)
    scale = np.exp(rng.normal(size=num_dims))
    x = rng.normal(size=(num_rows, num_dims)) * np.geomspace(2.0, 0.02, num_rows)[:, None]
    y = x @ (0.5 + scale * rng.normal(size=num_dims)) + 0.5 * rng.normal(size=num_rows)
    covariance = (x * scale**2) @ x.T + 0.25 * np.eye(num_rows)
    law = dist.MultivariateNormal(0.5 * x.sum(axis=1), covariance)
    return tuple(map(jnp.asarray, (x, y, scale))), float(law.log_prob(y))


EXACT = {"dense": (130, 130, 20_000), "low rank": (12, 400, 3_000)}


@pytest.mark.parametrize(("num_rows", "num_dims", "budget"), EXACT.values(), ids=EXACT)
def test_gaussian_posteriors_in_many_dimensions(num_rows, num_dims, budget, x64):
    data, exact = regression_data(num_rows, num_dims)
    estimator = DAIS(regression, target_error=0.01, budget=budget)
    evidence = estimator.log_evidence(random.key(0), *data)
    assert abs(float(evidence) - exact) < 5 * float(evidence.standard_error) < 0.06
    assert evidence.num_gradients <= budget
    assert evidence.settings.num_steps == 0
    rank = evidence.settings.start.components.basis.shape[-1]
    assert rank == (130 if num_rows == 130 else 16)


def test_curvature_of_both_ends_of_a_path(x64):
    (x, y, scale), _ = regression_data(6, 9)
    problem = Problem(regression, args=(x, y, scale))
    target = trace_target(problem, random.key(0))
    draws = np.asarray(0.5 + scale * RNG.normal(size=(4, 9)))
    args = target, draws, np.full(9, 0.5), np.asarray(scale)
    curvature, cost = find_curvature(*args, 2000)
    posterior = np.diag(scale**-2.0) + 4 * np.asarray(x.T @ x)
    mode = np.linalg.solve(posterior, 0.5 * scale**-2.0 + 4 * np.asarray(x.T @ y))
    np.testing.assert_allclose(curvature.mode, mode, rtol=1e-5)
    np.testing.assert_allclose(curvature.start_precision, np.diag(scale**-2.0), atol=1e-10)
    np.testing.assert_allclose(curvature.posterior_precision, posterior, atol=1e-8)
    assert 18 < cost == curvature.num_gradients < 400
    assert find_curvature(*args, 20) == (None, 0.0)
