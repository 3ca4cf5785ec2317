# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""One evidence for each element of a plate."""

from collections.abc import Callable
from typing import NamedTuple

import jax
from jax import random
from jax.flatten_util import ravel_pytree
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import numpyro
from numpyro import handlers
import numpyro.distributions as dist

from numpyro_dais import DAIS
from numpyro_dais.model.problem import Problem
from numpyro_dais.model.target import make_target


def student(x):
    with numpyro.plate("data", len(x)):
        tau = numpyro.sample("tau", dist.Gamma(2.5, 2.5))
        numpyro.sample("x", dist.Normal(0.0, tau**-0.5), obs=x)


X_STUDENT = np.array([0.1, -2.3, 3.6, 1.0])


def exact_student():
    return stats.t.logpdf(X_STUDENT, 5.0)


COV = np.array([[1.0, 0.6], [0.6, 0.8]])
Y_EVENTS = np.array([[0.4, -0.2], [1.8, 1.1], [-0.9, 0.7]])
SPREADS = np.array([0.8, 1.1, 0.5])


def two_local_sites(y):
    """A vector and a scalar latent per element, the second after a transform with a Jacobian."""
    with numpyro.plate("data", 3):
        z = numpyro.sample("z", dist.MultivariateNormal(jnp.array([0.2, -0.1]), jnp.array(COV)))
        s = numpyro.sample("s", dist.LogNormal(0.1, jnp.array(SPREADS)))
        numpyro.sample("y", dist.Normal(z + jnp.log(s)[:, None], 0.9).to_event(1), obs=y)


def exact_two_local_sites():
    return [
        stats.multivariate_normal.logpdf(y, [0.3, 0.0], COV + spread**2 + 0.81 * np.eye(2))
        for y, spread in zip(Y_EVENTS, SPREADS, strict=True)
    ]


Y_NESTED = np.array([[0.3, -1.0, 0.8], [2.0, 1.1, 0.2]])


def nested_plates(y):
    """The plate of the elements is at dimension -2; inside it one at -1, with an unplated-in-it site."""
    with numpyro.plate("rows", 2, dim=-2):
        mu = numpyro.sample("mu", dist.Normal(0.5, 1.0))
        with numpyro.plate("columns", 3, dim=-1):
            theta = numpyro.sample("theta", dist.Normal(mu, 0.7))
            numpyro.sample("y", dist.Normal(theta, 1.1), obs=y)
        numpyro.factor("shift", 0.25)


def exact_nested_plates():
    cov = np.ones((3, 3)) + (0.49 + 1.21) * np.eye(3)
    return [0.25 + stats.multivariate_normal.logpdf(row, np.full(3, 0.5), cov) for row in Y_NESTED]


class PlateCase(NamedTuple):
    """A model in a plate and the exact log evidence of each element."""

    model: Callable
    data: np.ndarray
    exact: Callable
    plate: str
    step_size: float


PLATE_CASES = {
    "student": PlateCase(student, X_STUDENT, exact_student, "data", 0.15),
    "two_local_sites": PlateCase(two_local_sites, Y_EVENTS, exact_two_local_sites, "data", 0.25),
    "nested_plates": PlateCase(nested_plates, Y_NESTED, exact_nested_plates, "rows", 0.3),
}


@pytest.mark.parametrize("name", PLATE_CASES)
def test_plate_gives_the_evidence_of_each_element(name):
    """One log evidence per element, unbiased; the densities add up to those of the whole model."""
    model, data, exact, plate, step_size = PLATE_CASES[name]
    data = jnp.array(data)
    dais = DAIS(model, num_steps=16, step_size=step_size, num_particles=8000, plate=plate)
    evidence = dais.log_evidence(random.key(11), data)
    assert evidence.log_weights.shape == (8000, len(data))
    error = np.asarray(evidence.standard_error)
    assert np.all(error < 0.05)
    assert np.all(np.abs(np.asarray(evidence.log_evidence) - exact()) < 4 * error)

    @jax.jit
    def both(rng_key):
        local = make_target(Problem(model, plate=plate, args=(data,)))
        whole = make_target(Problem(model, args=(data,)))
        position = local.sample_fn(rng_key)
        values = local.constrain_fn(position)
        trace = handlers.trace(handlers.seed(model, random.key(2))).get_trace(data)
        z = {
            name: dist.biject_to(site["fn"].support).inv(values[name])
            for name, site in trace.items()
            if site["type"] == "sample" and not site["is_observed"]
        }
        return local.log_densities_fn(position), whole.log_densities_fn(ravel_pytree(z)[0])

    ours, total = jax.tree.map(np.asarray, both(random.key(3)))
    np.testing.assert_allclose(ours.log_start.sum(), total.log_start, rtol=1e-5)
    np.testing.assert_allclose(ours.log_ratio.sum(), total.log_ratio, rtol=1e-5)
