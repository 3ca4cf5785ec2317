# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Fits that follow their own draws, bend, and cover every mode that was met."""

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import pytest

import numpyro
import numpyro.distributions as dist

from numpyro_dais import DAIS
from numpyro_dais.estimators.runner import RunConfig, run
from numpyro_dais.model.problem import Problem
from numpyro_dais.model.traced import trace_target
from numpyro_dais.sampler.mixture import Mixture
from numpyro_dais.tuning.following import Past, followed
from numpyro_dais.tuning.laplace import gaussian_component, with_bend, with_prior
from numpyro_dais.tuning.quality import judge_start

START = dist.Normal(jnp.zeros(2), 3.0).to_event(1)


def banana(u):
    """A normalised density, bent and off the middle: the evidence is one."""
    x, y = u
    return -(dist.Normal(0.5, 1.0).log_prob(x) + dist.Normal(x**2 - 1.0, 0.3).log_prob(y))


LONG_START = dist.Normal(jnp.zeros(4), 3.0).to_event(1)


def ridge(u):
    """The same with two more coordinates, one of which bends the other way."""
    x, *_, z, t = u
    others = dist.Normal(1.0 - 0.5 * x**2, 0.2).log_prob(z) + dist.Normal(x, 0.5).log_prob(t)
    return banana(u[:2]) - others


def draw(key, target, settings, number):
    return run(key, target, settings, number, RunConfig())


def judged(target, loc, scale, seed):
    """A Gaussian that is no good fit, and its draws."""
    one = with_bend(with_prior(gaussian_component(np.array(loc), scale**2 * np.eye(2))))
    components = jax.tree.map(lambda leaf: np.asarray(leaf)[None], one)
    mixture = Mixture(jnp.arange(2), components, jnp.zeros(1))
    return judge_start(random.key(seed), target.with_mixture(mixture), draw)[0]


@pytest.fixture(scope="module")
def target():
    return trace_target(Problem(None, potential_fn=banana, start=START), random.key(0))


def test_draws_of_several_fits_have_weights_of_their_mean(target):
    """Each weight is p over the mean of the two densities, so that their mean is the evidence."""
    fits = [judged(target, [0.5, -0.5], 1.2, 1), judged(target, [0.0, 1.0], 2.0, 2)]
    past = Past(target)
    for fit in fits:
        past.add(fit)
    draws, log_weights = past.weighted()

    def log_density(mixture, u):
        return target.with_mixture(mixture).log_densities_fn(u).log_start

    log_starts = [jax.vmap(lambda u, fit=fit: log_density(fit.mixture, u))(draws) for fit in fits]
    expected = -jax.vmap(banana)(draws) - np.logaddexp(*np.asarray(log_starts)) + np.log(2)
    np.testing.assert_allclose(log_weights, expected, rtol=1e-3, atol=1e-3)
    weights = np.exp(log_weights)
    assert abs(weights.mean() - 1) < 5 * weights.std() / np.sqrt(len(weights))
    # No weight is larger than twice that which its own fit would have given it.
    own = np.concatenate([fit.log_weights for fit in fits])
    assert np.all(log_weights <= own + np.log(2) + 1e-3)


def test_a_fit_that_follows_its_draws_bends(target):
    fit = judged(target, [0.5, 0.0], 1.5, 3)
    before, past, mixture = fit.quality.variance, Past(target), fit.mixture
    for step in range(3):
        past.add(fit)
        mixture = followed(random.key(step), mixture, *past.weighted())
        fit, _ = judge_start(random.key(10 + step), target.with_mixture(mixture), draw)
    assert fit.quality.variance < 0.2 * before
    # In units of the widths, y rises with the square of x.
    assert float(mixture.components.bend[0, 1, 0]) > 0.2
    assert mixture.description == "a fitted bent Gaussian"


def test_a_fit_follows_draws_whose_weights_are_very_unequal(target):
    """A few of them have all of the weight, and some have none: it follows more than these."""
    fit = judged(target, [0.5, 0.0], 1.5, 3)
    log_weights = 20 * fit.log_weights
    log_weights[::7] = -np.inf
    mixture = followed(random.key(0), fit.mixture, fit.draws, log_weights)
    scales = np.exp(np.asarray(mixture.components.log_scale))
    assert np.all(np.isfinite(scales))
    assert np.all(scales > 0.05)


def test_a_bent_ridge_is_fitted():
    """By conditional Gaussians alone k-hat was 0.6 in twice as many gradients."""
    evidence = DAIS(potential_fn=ridge, start=LONG_START).log_evidence(random.key(1))
    assert evidence.settings.start.components.bend is not None
    assert abs(float(evidence)) < 4 * float(evidence.standard_error)
    assert float(evidence.standard_error) < 0.01
    assert evidence.khat < 0.5


def test_every_mode_that_was_met_is_covered():
    """Two shells, of which Laplace's approximation sees nothing; one of them has 0.7 of it."""
    num_dims = 8

    def log_likelihood(x):
        places = jnp.zeros((2, num_dims)).at[:, 0].set(jnp.array([-3.5, 3.5]))
        radii = jnp.linalg.norm(x - places, axis=1)
        heights = jnp.log(jnp.array([0.7, 0.3]))
        return jax.nn.logsumexp(heights + dist.Normal(2.0, 0.3).log_prob(radii))

    def model():
        x = numpyro.sample("x", dist.Uniform(-6.0, 6.0).expand([num_dims]).to_event(1))
        numpyro.factor("shells", log_likelihood(x))

    radius = np.linspace(0.01, 5.0, 20_001)
    log_area = np.log(2) + num_dims / 2 * np.log(np.pi) - jax.scipy.special.gammaln(num_dims / 2)
    density = np.exp(-0.5 * ((radius - 2) / 0.3) ** 2) / (0.3 * np.sqrt(2 * np.pi))
    inside = np.trapezoid(density * radius ** (num_dims - 1), radius)
    exact = float(np.log(inside) + log_area - num_dims * np.log(12))
    evidence = DAIS(model).log_evidence(random.key(0))
    assert abs(float(evidence) - exact) < 4 * float(evidence.standard_error)
    first = np.asarray(evidence.samples(random.key(1), 2_000)["x"])[:, 0]
    assert abs(np.mean(first < 0) - 0.7) < 0.1
