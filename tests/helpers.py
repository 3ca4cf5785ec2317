# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Results that several test files make, and what they assert of weights."""

import jax.numpy as jnp
import numpy as np

import numpyro
import numpyro.distributions as dist

from numpyro_dais import Evidence, make_settings
from numpyro_dais.model.problem import Problem
from tests.cases import beta_binomial


def make_evidence(log_weights, problem=None, is_start_finite=None):
    """Returns the evidence of these log weights, as a run of DAIS would."""
    log_weights = jnp.asarray(log_weights, float)
    if is_start_finite is None:
        is_start_finite = np.ones(len(log_weights), bool)
    return Evidence(
        log_weights=log_weights,
        positions=jnp.zeros((*log_weights.shape, 1)),
        is_start_finite=jnp.asarray(is_start_finite),
        settings=make_settings([0.5, 1.0], 0.1, 0.9),
        problem=problem or Problem(beta_binomial),
        method="DAIS",
        num_gradients=2 * len(log_weights),
    )


def assert_unbiased(log_weights, log_evidence):
    """The mean weight within five standard errors of the evidence, and the errors small enough to see."""
    weights = np.exp(np.asarray(log_weights, np.float64) - log_evidence)
    error = weights.std(ddof=1) / np.sqrt(weights.size)
    assert error < 0.05
    assert abs(weights.mean() - 1) < 5 * error


class Counter:
    """Compilations, and runs of its model, since it was last read."""

    def __init__(self):
        self.num_compilations = 0
        self.num_runs = 0

    def on_event(self, name, _, **__):
        self.num_compilations += name == "/jax/core/compile/backend_compile_duration"

    def read(self):
        counts = self.num_compilations, self.num_runs
        self.num_compilations = self.num_runs = 0
        return counts

    def model(self, y, scale=2.0):
        self.num_runs += 1
        mu = numpyro.sample("mu", dist.Normal(0.5, scale))
        sigma = numpyro.sample("sigma", dist.Gamma(3.0, 2.0))
        numpyro.sample("y", dist.Normal(mu, sigma), obs=y)
