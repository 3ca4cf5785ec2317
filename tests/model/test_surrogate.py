# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Surrogate dynamics: unbiased whatever the surrogate, exact where it is exact; and the mode it needs."""

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import pytest

import numpyro
import numpyro.distributions as dist

from numpyro_dais import DAIS, HAIS, ImportanceSampling
from numpyro_dais.model import surrogate as surrogate_module
from numpyro_dais.model.modes import check_mode, find_mode, find_modes, polish_mode, spectrum_of
from numpyro_dais.model.surrogate import QuadraticSurrogate
from tests import models
from tests.model.test_minibatch import EXACT, TIMES, assert_unbiased, waiting

REGRESSION = {"num_steps": 6, "step_size": 0.1, "num_particles": 8}


def batched_regression(X, y, noise_scale=0.8):
    w = numpyro.sample(
        "w", dist.Normal(models.PRIOR_MEAN, 1 / jnp.sqrt(models.PRIOR_PRECISION)).to_event(1)
    )
    with numpyro.plate("rows", len(y), subsample_size=7) as index:
        numpyro.sample("y", dist.Normal(X[index] @ w, noise_scale), obs=y[index])


@pytest.mark.filterwarnings("ignore:The effective sample size")
def test_exact_for_linear_regression(regression_data, x64):
    """A quadratic likelihood is its own expansion: weights and gradients are those of the exact chain."""
    X, y = (jnp.asarray(values) for values in regression_data)
    exact = DAIS(models.regression, **REGRESSION)
    expected = exact.log_evidence(random.key(1), X, y)
    estimator = DAIS(batched_regression, surrogate="quadratic", **REGRESSION)
    evidence = estimator.log_evidence(random.key(1), X, y)
    np.testing.assert_allclose(evidence.log_weights, expected.log_weights, rtol=1e-10)
    surrogate = estimator.fit_surrogate(X, y)
    np.testing.assert_allclose(surrogate.hessian, -X.T @ X / 0.8**2, rtol=1e-10)
    # The fit, and the density at the end of each chain.
    assert evidence.num_gradients == 8 + int(surrogate.num_gradients)
    assert surrogate.num_gradients <= 4 * 5

    def bound(y, **kwargs):
        estimator = DAIS(batched_regression, surrogate=surrogate, **REGRESSION, **kwargs)
        return estimator.log_evidence(random.key(1), X, y).lower_bound

    value, gradient = jax.jit(jax.value_and_grad(bound))(y)
    np.testing.assert_allclose(value, expected.lower_bound, rtol=1e-10)
    # The surrogate is a constant here: the data enter through the exact density at the end.
    ends = evidence.positions @ X.T
    np.testing.assert_allclose(gradient, np.mean(ends - y, axis=0) / 0.8**2, rtol=1e-8)

    reversible = jax.value_and_grad(lambda y: bound(y, memory="reversible"))
    value, other = reversible(y)
    np.testing.assert_allclose(value, expected.lower_bound, rtol=1e-6)
    np.testing.assert_allclose(other, gradient, rtol=1e-4, atol=1e-5)


def test_unbiased_on_a_skewed_posterior():
    """
    Without a subsampled plate, self-tuned, the fit counted once; the expansion is around the mode of the
    posterior of log(rate), at (n + 1) / (0.5 + sum(y)).
    """
    estimator = DAIS(waiting, surrogate="quadratic", num_steps=16, num_particles=5000)
    evidence = estimator.log_evidence(random.key(0), TIMES, None)
    assert_unbiased(evidence.log_weights, EXACT)
    surrogate = estimator.fit_surrogate(TIMES, None)
    rate = (len(TIMES) + 1) / (0.5 + TIMES.sum())
    np.testing.assert_allclose(surrogate.center, [jnp.log(rate)], atol=1e-4)
    np.testing.assert_allclose(surrogate.gradient, [len(TIMES) - rate * TIMES.sum()], atol=1e-3)
    np.testing.assert_allclose(surrogate.hessian, [[-rate * TIMES.sum()]], rtol=1e-4)
    assert evidence.num_gradients < 5000 + int(surrogate.num_gradients) + 16 * 30

    wrong = surrogate._replace(center=surrogate.center + 0.4, hessian=surrogate.hessian / 2)
    poor = DAIS(waiting, surrogate=wrong, num_steps=16, step_size=0.1, num_particles=5000)
    assert_unbiased(poor.log_evidence(random.key(0), TIMES).log_weights, EXACT)


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
    ends = find_modes(density_fn, start[None], center, np.ones(2), 1000).positions
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


def test_new_data_do_not_compile_again():
    """Programs are shared by all data of a shape, and by all estimators of a model."""
    programs = [fn for fn in vars(surrogate_module).values() if hasattr(fn, "_cache_size")]
    assert len(programs) == 4
    first = DAIS(waiting).fit_surrogate(TIMES)
    sizes = [program._cache_size() for program in programs]
    second = DAIS(waiting).fit_surrogate(2 * TIMES)
    assert sizes == [program._cache_size() for program in programs]
    assert first.center != second.center


def unbounded(y):
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    numpyro.factor("growth", x**2)


BAD_ARGUMENTS = {
    "kind": (DAIS, {"surrogate": "cubic"}, ValueError, "'quadratic', or .*got 'cubic'"),
    "plate": (DAIS, {"plate": "rows"}, NotImplementedError, "surrogate= .* plate='rows'.*got both"),
    "HAIS": (HAIS, {}, TypeError, "has no argument 'surrogate': a Metropolis decision"),
    "importance": (ImportanceSampling, {}, TypeError, "has no argument 'surrogate'"),
}


@pytest.mark.parametrize(
    ("estimator", "kwargs", "kind", "message"), BAD_ARGUMENTS.values(), ids=BAD_ARGUMENTS
)
def test_arguments_that_do_not_go_with_it(estimator, kwargs, kind, message):
    with pytest.raises(kind, match=message):
        estimator(waiting, **{"surrogate": "quadratic", **kwargs})


def test_errors_of_the_fit():
    estimator = DAIS(waiting, surrogate="quadratic", num_steps=2, step_size=0.1)
    with pytest.raises(ValueError, match=r"fit_surrogate\(\*args\), and pass surrogate="):
        jax.jit(lambda y: estimator.log_evidence(random.key(0), y).log_evidence)(TIMES)
    with pytest.raises(ValueError, match="needs concrete arguments; call it outside jit"):
        jax.jit(estimator.fit_surrogate)(TIMES)
    with pytest.raises(NotImplementedError, match="certify simulates all the data"):
        estimator.certify(random.key(0), TIMES)
    with pytest.raises(ValueError, match=r"No mode was found.*A quadratic surrogate needs one"):
        DAIS(unbounded, surrogate="quadratic", step_size=0.1).log_evidence(None, TIMES)
    shape = QuadraticSurrogate(jnp.zeros(2), jnp.zeros(2), -jnp.eye(2))
    with pytest.raises(ValueError, match=r"surrogate= is over 2 .* the model has 1"):
        DAIS(waiting, surrogate=shape, num_steps=2, step_size=0.1).log_evidence(None, TIMES)
