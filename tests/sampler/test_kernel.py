# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import pytest

from numpyro_dais.sampler.kernel import (
    ChainState,
    Noise,
    Step,
    Transition,
    apply,
    apply_transpose,
    forward_step,
    kick,
    leapfrog,
    refresh,
    reverse_step,
)
from numpyro_dais.sampler.path import LogDensities
from numpyro_dais.sampler.settings import make_settings

LOWER = np.array([[1.0, 0.0, 0.0], [0.4, 0.7, 0.0], [-0.2, 0.1, 1.3]])
PRECONDITIONERS = {"none": None, "diagonal": np.array([0.5, 1.0, 2.0]), "cholesky": LOWER}
MATRICES = {"none": np.eye(3), "diagonal": np.diag([0.5, 1.0, 2.0]), "cholesky": LOWER}

pytestmark = pytest.mark.usefixtures("x64")


def log_density(position):
    """An asymmetric, correlated density."""
    a, b, c = position
    return -jnp.cosh(a - 0.3 * b) - 0.5 * (b - c) ** 2 + 0.4 * a - jnp.exp(0.5 * c)


gradient_fn = jax.grad(log_density)


@pytest.fixture
def point():
    return jnp.array([0.3, -0.7, 0.2]), jnp.array([-0.4, 1.1, 0.6])


@pytest.mark.parametrize("kind", PRECONDITIONERS)
def test_preconditioners_are_the_matrices_they_stand_for(kind, point):
    preconditioner = None if kind == "none" else jnp.array(PRECONDITIONERS[kind])
    np.testing.assert_allclose(apply(preconditioner, point[0]), MATRICES[kind] @ point[0])
    np.testing.assert_allclose(
        apply_transpose(preconditioner, point[0]), MATRICES[kind].T @ point[0]
    )
    # Leading axes are elements of a plate.
    both = jnp.stack(point)
    np.testing.assert_allclose(apply(preconditioner, both), both @ MATRICES[kind].T)
    np.testing.assert_allclose(apply_transpose(preconditioner, both), both @ MATRICES[kind])


@pytest.mark.parametrize("kind", PRECONDITIONERS)
def test_leapfrog_by_hand(kind, point):
    u, v = map(np.asarray, point)
    L, eta = MATRICES[kind], 0.3
    middle = u + eta / 2 * L @ v
    momentum = v + eta * L.T @ np.asarray(gradient_fn(jnp.array(middle)))
    preconditioner = None if kind == "none" else jnp.array(PRECONDITIONERS[kind])
    got = leapfrog(gradient_fn, *point, eta, preconditioner)
    np.testing.assert_allclose(got[0], middle + eta / 2 * L @ momentum, rtol=1e-12)
    np.testing.assert_allclose(got[1], momentum, rtol=1e-12)


@pytest.mark.parametrize("kind", PRECONDITIONERS)
def test_negated_momentum_undoes_leapfrog(kind, point):
    preconditioner = None if kind == "none" else jnp.array(PRECONDITIONERS[kind])
    position, momentum = leapfrog(gradient_fn, *point, 0.3, preconditioner)
    position, momentum = leapfrog(gradient_fn, position, -momentum, 0.3, preconditioner)
    np.testing.assert_allclose(position, point[0], atol=1e-14)
    np.testing.assert_allclose(-momentum, point[1], atol=1e-14)


@pytest.mark.parametrize("kind", PRECONDITIONERS)
def test_leapfrog_preserves_volume(kind, point):
    preconditioner = None if kind == "none" else jnp.array(PRECONDITIONERS[kind])

    def step(state):
        return jnp.concatenate(leapfrog(gradient_fn, state[:3], state[3:], 0.5, preconditioner))

    jacobian = jax.jacobian(step)(jnp.concatenate(point))
    assert np.linalg.det(jacobian) == pytest.approx(1.0, abs=1e-12)


def test_kicks_that_are_cut_off(point):
    """Short ones are as ever, long ones as long as allowed, and the leapfrog keeps its volume."""
    gradients = jnp.array([[0.3, -0.4, 0.0], [3.0, -4.0, 0.0], [0.0, 0.0, 0.0], [1e200, 0.0, 0.0]])
    found = kick(gradients, jnp.ones(4), None, 2.0)
    expected = [[0.3, -0.4, 0.0], [1.2, -1.6, 0.0], [0.0, 0.0, 0.0], [2.0, 0.0, 0.0]]
    np.testing.assert_allclose(found, expected)
    slopes = jax.vmap(jax.jacobian(lambda x: kick(x, jnp.asarray(1.0), None, 2.0)))(gradients)
    np.testing.assert_allclose(slopes[np.array([0, 2])], [np.eye(3)] * 2)
    unit = np.array([0.6, -0.8, 0.0])
    np.testing.assert_allclose(slopes[1], 0.4 * (np.eye(3) - np.outer(unit, unit)), atol=1e-12)

    def flow(state):
        return jnp.concatenate(leapfrog(gradient_fn, state[:3], state[3:], 0.5, None, 0.2))

    state = jnp.concatenate(point)
    assert jnp.linalg.norm(kick(gradient_fn(point[0]), 0.5, None)) > 0.2
    assert np.linalg.det(jax.jacobian(flow)(state)) == pytest.approx(1.0, abs=1e-12)


def test_leapfrog_energy_error_is_third_order(point):
    def energy_error(eta):
        position, momentum = leapfrog(gradient_fn, *point, eta, None)
        before = log_density(point[0]) - jnp.sum(point[1] ** 2) / 2
        return abs(float(log_density(position) - jnp.sum(momentum**2) / 2 - before))

    assert energy_error(0.01) / energy_error(0.005) == pytest.approx(8.0, rel=0.05)


@pytest.mark.parametrize("damping", [0.0, 0.5, 0.9])
def test_refreshment_leaves_the_standard_normal_invariant(damping):
    momentum, noise = random.normal(random.key(1), (2, 200_000))
    refreshed = refresh(noise, momentum, damping)
    assert abs(refreshed.mean()) < 5 / np.sqrt(200_000)
    assert abs(refreshed.var() - 1) < 5 * np.sqrt(2 / 200_000)
    correlation = np.corrcoef(momentum, refreshed)[0, 1]
    assert abs(correlation - damping) < 5 / np.sqrt(200_000)


def log_densities_fn(position):
    return LogDensities(-0.5 * jnp.sum(position**2), log_density(position) + 0.5 * position[0])


def make_step(beta=0.6, previous_beta=0.4, step_size=0.3, damping=0.9):
    return Step(*map(jnp.asarray, (beta, previous_beta, step_size, damping)), None)


def tempered(position, beta):
    log_start, log_ratio = log_densities_fn(position)
    return log_start + beta * log_ratio


def test_uncorrected_weight_is_the_change_of_the_momentum_density(point):
    state = ChainState(*point, jnp.array(2.0), None)
    noise = Noise(jnp.zeros(3), None)
    after, acceptance = forward_step(noise, state, make_step(), log_densities_fn, Transition())
    gradient = jax.grad(lambda u: tempered(u, 0.6))
    _, momentum = leapfrog(gradient, *point, 0.3, None)
    expected = 2.0 - jnp.sum(momentum**2) / 2 + jnp.sum(point[1] ** 2) / 2
    assert float(after.log_weight) == pytest.approx(float(expected), abs=1e-13)
    np.testing.assert_allclose(after.momentum, 0.9 * momentum)
    assert acceptance is None


@pytest.mark.parametrize("is_accepted", [True, False], ids=["accepted", "rejected"])
@pytest.mark.parametrize("num_leapfrog", [1, 3])
def test_corrected_step_by_hand(point, is_accepted, num_leapfrog):
    transition = Transition(is_corrected=True, num_leapfrog=num_leapfrog)
    state = ChainState(*point, jnp.array(2.0), log_densities_fn(point[0]))
    noise = Noise(jnp.zeros(3), jnp.array(-50.0 if is_accepted else 50.0))
    after, acceptance = forward_step(noise, state, make_step(), log_densities_fn, transition)
    position, momentum = point
    for _ in range(num_leapfrog):
        gradient = jax.grad(lambda u: tempered(u, 0.6))
        position, momentum = leapfrog(gradient, position, momentum, 0.3, None)
    energy = lambda u, v: tempered(u, 0.6) - jnp.sum(v**2) / 2  # noqa: E731
    ratio = jnp.exp(energy(position, momentum) - energy(*point))
    assert float(acceptance) == pytest.approx(float(jnp.minimum(ratio, 1)), rel=1e-10)
    # The weight is taken before the move, so it does not see it.
    gained = tempered(point[0], 0.6) - tempered(point[0], 0.4)
    assert float(after.log_weight) == pytest.approx(float(2.0 + gained), abs=1e-12)
    expected = (position, momentum) if is_accepted else (point[0], -point[1])
    np.testing.assert_allclose(after.position, expected[0], rtol=1e-12)
    np.testing.assert_allclose(after.momentum, 0.9 * expected[1], rtol=1e-12)
    np.testing.assert_allclose(
        jax.tree.leaves(after.densities), jax.tree.leaves(log_densities_fn(after.position))
    )


def test_reverse_undoes_an_uncorrected_step(point):
    """Without refreshment, back to the same place with the same weight, gained a second time."""
    step, noise = make_step(damping=1.0), Noise(jnp.zeros(3), None)
    state = ChainState(*point, jnp.array(0.0), None)
    there, _ = forward_step(noise, state, step, log_densities_fn, Transition())
    back, _ = reverse_step(noise, there, step, log_densities_fn, Transition())
    np.testing.assert_allclose(back.position, point[0], atol=1e-14)
    np.testing.assert_allclose(back.momentum, point[1], atol=1e-14)
    assert float(back.log_weight) == pytest.approx(2 * float(there.log_weight), abs=1e-13)


SHAPES = {
    "diagonal": ((3,), (1, 3)),
    "matrix": ((3, 3), (1, 3, 3)),
    "diagonals": ((5, 3), (5, 3)),
    "matrices": ((5, 3, 3), (5, 3, 3)),
}


@pytest.mark.parametrize(("shape", "stacked"), SHAPES.values(), ids=SHAPES)
def test_preconditioners_are_stacked_by_step(shape, stacked):
    settings = make_settings(np.linspace(0.2, 1, 5), 0.1, 0.9, np.ones(shape))
    assert settings.steps(num_dims=3).preconditioner.shape == stacked


@pytest.mark.parametrize(
    ("shape", "num_steps", "message"),
    [((2,), 5, r"shape \(3,\) or \(3, 3\)"), ((3, 3), 3, "one matrix or one diagonal per step")],
    ids=["wrong size", "ambiguous"],
)
def test_bad_preconditioners(shape, num_steps, message):
    settings = make_settings(np.linspace(0.2, 1, num_steps), 0.1, 0.9, np.ones(shape))
    with pytest.raises(ValueError, match=message):
        settings.steps(num_dims=3)
