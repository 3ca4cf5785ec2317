# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Gradients with lost particles: those of the others, by finite differences."""

from functools import partial

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import pytest

import numpyro
import numpyro.distributions as dist

from numpyro_dais import DAIS

# Sixteen particles, of which some are lost on purpose.
pytestmark = [
    pytest.mark.usefixtures("x64"),
    pytest.mark.filterwarnings("ignore:The effective sample size"),
    pytest.mark.filterwarnings("ignore:k-hat is"),
    pytest.mark.filterwarnings("ignore:.* weights were not finite"),
]


def bounded(y, a):
    """No number beyond 1.2: chains that step over it are lost, and so are their derivatives."""
    x = numpyro.sample("x", dist.Normal(a, 1.0))
    numpyro.factor("edge", jnp.where(x > 1.2, jnp.sqrt(1.2 - x), 0.3 * x * a))
    numpyro.sample("y", dist.Normal(x, 0.5), obs=y)


def bounded_in_a_plate(y, a):
    with numpyro.plate("data", len(y)):
        x = numpyro.sample("x", dist.Normal(a, 1.0))
        numpyro.factor("edge", jnp.where(x > 1.2, jnp.sqrt(1.2 - x), 0.3 * x * a))
        numpyro.sample("y", dist.Normal(x, 0.5), obs=y)


def means(y, a, is_rough):
    """If rough, finite everywhere, but for x above 0.5 its derivative by the argument is not."""
    with numpyro.plate("data", len(y)):
        x = numpyro.sample("x", dist.Normal(a, 1.0))
        if is_rough:
            numpyro.factor("rough", jnp.sqrt(jnp.where(x > 0.5, 0.0 * a, 1.0)))
        else:
            numpyro.factor("smooth", jnp.where(x > 0.5, 0.0, 1.0))
        numpyro.sample("y", dist.Normal(x, 0.5), obs=y)


def weights(model, a, y=0.7, num_particles=16, **kwargs):
    """Log weights and log evidence as functions of an argument."""
    settings = {"num_steps": 3, "step_size": 0.3, "damping": 0.875, "start": "prior"}
    estimator = DAIS(model, num_particles=num_particles, **settings, **kwargs)
    evidence = estimator.log_evidence(random.key(0), y, a)
    return evidence.log_evidence, evidence.log_weights


def log_evidence(model, **kwargs):
    return lambda a: jnp.sum(weights(model, a, **kwargs)[0])


def by_finite_differences(fn, a, step=1e-6):
    return (fn(a + step) - fn(a - step)) / (2 * step)


@pytest.mark.parametrize("memory", ["checkpoint", "plain"])
def test_gradient_is_that_of_the_others(memory):
    """The derivative of log((1/S) sum of the weights that are not lost)."""
    _, log_weights = weights(bounded, 0.2, memory=memory)
    assert 0 < np.sum(~np.isfinite(log_weights)) < 16
    fn = log_evidence(bounded, memory=memory)
    np.testing.assert_allclose(jax.grad(fn)(0.2), by_finite_differences(fn, 0.2), rtol=1e-6)


def test_reversible_memory_gives_the_same(optimised):
    """Finite differences would meet its roundings."""
    memories = "checkpoint", "reversible"
    slopes = [jax.grad(log_evidence(bounded, memory=m))(0.1) for m in memories]
    np.testing.assert_allclose(slopes[1], slopes[0], rtol=1e-6)


def test_under_other_transformations():
    fn = log_evidence(bounded)
    expected, slope_fn = by_finite_differences(fn, 0.2), jax.jit(jax.grad(fn))
    by_others = {
        "jit": slope_fn(0.2),
        "forward": jax.jit(lambda a: jax.jvp(fn, (a,), (1.0,))[1])(0.2),
        "vmap of grad": jax.jit(jax.vmap(jax.grad(fn)))(jnp.array([0.1, 0.2]))[1],
        "grad of vmap": jax.jit(jax.grad(lambda a: jax.vmap(lambda b: fn(a * b))(jnp.ones(2))[1]))(
            0.2
        ),
        "chunks": jax.jit(jax.grad(log_evidence(bounded, chunk_size=5)))(0.2),
    }
    for name, slope in by_others.items():
        np.testing.assert_allclose(slope, expected, rtol=1e-6, err_msg=name)
    curvature = by_finite_differences(slope_fn, 0.2, 1e-5)
    np.testing.assert_allclose(jax.jit(jax.hessian(fn))(0.2), curvature, rtol=1e-4)


def test_elements_of_a_plate_are_lost_one_by_one():
    y = jnp.array([0.7, 1.4, -0.2])
    _, log_weights = weights(bounded_in_a_plate, 0.2, y, plate="data")
    is_lost = ~np.isfinite(log_weights)
    assert is_lost.any()
    assert not is_lost.all(axis=0).any()
    assert (is_lost.any(axis=1) & ~is_lost.all(axis=1)).any()
    fn = log_evidence(bounded_in_a_plate, y=y, plate="data")
    np.testing.assert_allclose(jax.grad(fn)(0.2), by_finite_differences(fn, 0.2), rtol=1e-6)


def test_one_particle_that_is_lost_has_a_zero_gradient():
    def fn(a):
        return weights(bounded, a, num_particles=1)[0]

    # Everywhere in reach the density is no number, at the start as well.
    value, slope = jax.value_and_grad(fn)(9.0)
    assert value == -np.inf
    assert slope == 0


def test_a_finite_weight_without_a_gradient_keeps_its_weight():
    """Without steps, where the flaw is at the start; in a plate, element by element."""
    y = jnp.array([0.7, 1.4, -0.2])

    def estimate(a, is_rough):
        estimator = DAIS(
            means, num_steps=0, num_particles=16, step_size=0.3, start="prior", plate="data"
        )
        found = estimator.log_evidence(random.key(0), y, a, is_rough)
        return found.log_weights, (found.log_evidence, found.positions[..., 0])

    slopes, (log_evidences, positions) = jax.jacfwd(
        partial(estimate, is_rough=False), has_aux=True
    )(0.2)
    log_weights, _ = estimate(0.2, True)
    np.testing.assert_allclose(log_weights, estimate(0.2, False)[0])
    shares = np.exp(log_weights - log_evidences) / 16
    has_gradient = np.asarray(positions) <= 0.5
    assert 0 < has_gradient.sum() < has_gradient.size
    slope = jax.grad(lambda a: jnp.sum(estimate(a, True)[1][0]))(0.2)
    np.testing.assert_allclose(slope, np.sum(shares * slopes * has_gradient), rtol=1e-6)


def test_a_cotangent_that_is_no_number_is_not_hidden():
    """A fault of whoever uses the evidence, and not of its particles."""
    slope = jax.grad(lambda a: jnp.sqrt(0.0 * log_evidence(bounded)(a)))(0.2)
    assert np.isnan(slope)
