# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Surrogate dynamics: unbiased whatever the surrogate, exact where it is exact."""

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import pytest

import numpyro
import numpyro.distributions as dist

from numpyro_dais import DAIS, HAIS, ImportanceSampling
from numpyro_dais.model.surrogate import QuadraticSurrogate
from tests import cases
from tests.cases import TIMES, waiting_times, waiting_times_log_evidence
from tests.helpers import assert_unbiased

EXACT = waiting_times_log_evidence()
REGRESSION = {"num_steps": 6, "step_size": 0.1, "num_particles": 8}


def batched_regression(X, y, noise_scale=0.8):
    w = numpyro.sample(
        "w", dist.Normal(cases.PRIOR_MEAN, 1 / jnp.sqrt(cases.PRIOR_PRECISION)).to_event(1)
    )
    with numpyro.plate("rows", len(y), subsample_size=7) as index:
        numpyro.sample("y", dist.Normal(X[index] @ w, noise_scale), obs=y[index])


@pytest.mark.filterwarnings("ignore:The effective sample size")
def test_exact_for_linear_regression(regression_data, x64):
    """A quadratic likelihood is its own expansion: weights and gradients are those of the exact chain."""
    X, y = (jnp.asarray(values) for values in regression_data)
    exact = DAIS(cases.regression, **REGRESSION)
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
    estimator = DAIS(waiting_times, surrogate="quadratic", num_steps=16, num_particles=5000)
    evidence = estimator.log_evidence(random.key(0), TIMES, None)
    assert_unbiased(evidence.log_weights, EXACT)
    surrogate = estimator.fit_surrogate(TIMES, None)
    rate = (len(TIMES) + 1) / (0.5 + TIMES.sum())
    np.testing.assert_allclose(surrogate.center, [jnp.log(rate)], atol=1e-4)
    np.testing.assert_allclose(surrogate.gradient, [len(TIMES) - rate * TIMES.sum()], atol=1e-3)
    np.testing.assert_allclose(surrogate.hessian, [[-rate * TIMES.sum()]], rtol=1e-4)
    assert evidence.num_gradients < 5000 + int(surrogate.num_gradients) + 16 * 30

    wrong = surrogate._replace(center=surrogate.center + 0.4, hessian=surrogate.hessian / 2)
    poor = DAIS(waiting_times, surrogate=wrong, num_steps=16, step_size=0.1, num_particles=5000)
    assert_unbiased(poor.log_evidence(random.key(0), TIMES).log_weights, EXACT)


def test_new_data_do_not_compile_again(counter):
    """Programs are shared by all data of a shape, and by all estimators of a model."""
    others = 2 * TIMES
    first = DAIS(waiting_times).fit_surrogate(TIMES)
    assert counter.read()[0] > 0
    second = DAIS(waiting_times).fit_surrogate(others)
    assert counter.read()[0] == 0
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
        estimator(waiting_times, **{"surrogate": "quadratic", **kwargs})


def test_errors_of_the_fit():
    estimator = DAIS(waiting_times, surrogate="quadratic", num_steps=2, step_size=0.1)
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
        DAIS(waiting_times, surrogate=shape, num_steps=2, step_size=0.1).log_evidence(None, TIMES)
