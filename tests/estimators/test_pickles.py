# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Point 15: estimators and results go through pickle, as worker processes need them."""

import pickle

from jax import random
import jax.numpy as jnp
import numpy as np
import pytest

import numpyro
import numpyro.distributions as dist

from numpyro_dais import AIS, DAIS, DAVI, HAIS, ImportanceSampling
from tests.cases import beta_binomial, normal_means

# With so few particles every run has something to warn of.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

Y = jnp.arange(20.0) / 4


def subsampled(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", 20, subsample_size=5) as indices:
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y[indices])


SHORT = {"num_steps": 3, "step_size": 0.1, "num_particles": 8}
ESTIMATORS = {
    "15: settings": (lambda: DAIS(beta_binomial, **SHORT, schedule="power"), ()),
    "15: self-tuned": (lambda: DAIS(beta_binomial, budget=3_000), ()),
    "15: reversible": (lambda: DAIS(beta_binomial, **SHORT, damping=0.9, memory="reversible"), ()),
    "15: mini-batches": (lambda: DAIS(subsampled, **SHORT, minibatch=True), (Y,)),
    "15: surrogate": (lambda: DAIS(subsampled, **SHORT, surrogate="quadratic"), (Y,)),
    "15: plate": (lambda: DAIS(normal_means, **SHORT, plate="data"), (Y[:3],)),
    "15: HAIS": (lambda: HAIS(beta_binomial, num_steps=3, num_particles=8), ()),
    "15: AIS": (lambda: AIS(beta_binomial, num_steps=3, num_particles=8), ()),
    "15: importance": (lambda: ImportanceSampling(beta_binomial, num_particles=8), ()),
}


def pickled(value):
    return pickle.loads(pickle.dumps(value))


@pytest.mark.parametrize(("make", "args"), ESTIMATORS.values(), ids=ESTIMATORS)
def test_an_estimator_and_its_result_are_pickled(make, args):
    """An estimator before and after a call: what it has traced by then is left behind."""
    estimator = make()
    before = pickled(estimator)
    evidence = estimator.log_evidence(random.key(2), *args)
    for other in (before, pickled(estimator)):
        again = other.log_evidence(random.key(2), *args)
        np.testing.assert_array_equal(again.log_weights, evidence.log_weights)
    draws = evidence.samples(random.key(3), 5)
    loaded = pickled(evidence)
    assert str(loaded) == str(evidence)
    for name, values in loaded.samples(random.key(3), 5).items():
        np.testing.assert_array_equal(values, draws[name])


def test_15_a_loss_is_pickled():
    davi = pickled(DAVI(num_steps=3, learn=("step_size",), schedule="sigmoid"))
    assert (davi.num_steps, davi.learn) == (3, ("step_size",))
