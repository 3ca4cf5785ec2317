# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Compiled programs: how many there are, who shares them, and what they keep alive."""

from functools import partial
import gc
import weakref

from jax import random
import jax.numpy as jnp
import numpy as np
import pytest

import numpyro
import numpyro.distributions as dist

from numpyro_dais import AIS, DAIS, HAIS, ImportanceSampling
from numpyro_dais._util import programs
from tests.helpers import Counter

DATA = jnp.array([1.0, 2.0, 3.5])
NEW_DATA = jnp.array([0.5, -1.0, 2.0])


DRAWS = {"mu": jnp.array([0.9, 1.4, 2.0, 1.1]), "sigma": jnp.array([1.0, 1.3, 0.8, 2.0])}

# With so few particles every run has something to warn of.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

CALLS = {
    "self-tuned": lambda model, y: DAIS(model, budget=5_000).log_evidence(random.key(1), y),
    "settings": lambda model, y: DAIS(
        model, num_steps=4, step_size=0.1, num_particles=8
    ).log_evidence(random.key(1), y),
    "step size left out": lambda model, y: DAIS(
        model, num_steps=4, damping=0.5, num_particles=8
    ).log_evidence(random.key(1), y),
    "islands": lambda model, y: DAIS(
        model, num_steps=4, step_size=0.1, num_particles=8, resample_at=(0.5,), num_islands=2
    ).log_evidence(random.key(1), y),
    "HAIS": lambda model, y: HAIS(model, num_steps=4, num_particles=8).log_evidence(
        random.key(1), y
    ),
    "AIS": lambda model, y: AIS(
        model, num_steps=4, num_leapfrog=2, num_particles=8, adaptation="online"
    ).log_evidence(random.key(1), y),
    "importance": lambda model, y: ImportanceSampling(model, num_particles=8).log_evidence(
        random.key(1), y
    ),
    "sandwich": lambda model, y: DAIS(model, num_steps=4, step_size=0.1, num_particles=8).sandwich(
        random.key(1), y, posterior_samples=DRAWS
    ),
    "certify": lambda model, y: DAIS(model, num_steps=4, step_size=0.1, num_particles=8).certify(
        random.key(1), y, num_datasets=2
    ),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_new_object_compiles_nothing_and_runs_the_model_once(call, counter):
    call(counter.model, DATA)
    num_compilations, num_runs = counter.read()
    assert num_compilations > 0
    assert num_runs <= 15  # for certify, which traces the simulation, too; 3 for most
    call(counter.model, NEW_DATA)
    assert counter.read() == (0, 1)


def test_a_second_call_runs_the_model_no_more(counter):
    estimator = DAIS(counter.model, num_steps=4, step_size=0.1, num_particles=8)
    first = float(estimator.log_evidence(random.key(1), DATA))
    counter.read()
    assert float(estimator.log_evidence(random.key(1), NEW_DATA)) != first
    assert counter.read() == (0, 0)


def test_programs_of_a_first_self_tuned_call(counter):
    """Six programs that matter, and a few of one operation: JAX's own for keys."""
    estimator = DAIS(counter.model, budget=60_000)
    estimator.log_evidence(random.key(1), DATA)
    assert counter.read()[0] <= 16


SCALE = 2.0
OFFSETS = np.zeros(3)


class Reader:
    """A model that reads a global number, a global array and an attribute."""

    shift = 0.0

    def __call__(self, y):
        mu = numpyro.sample("mu", dist.Normal(self.shift, SCALE))
        numpyro.sample("y", dist.Normal(mu + OFFSETS, 1.0), obs=y)

    def exact(self, y):
        covariance = np.eye(3) + SCALE**2
        residual = np.asarray(y) - OFFSETS - self.shift
        log_det = np.linalg.slogdet(2 * np.pi * covariance)[1]
        return -0.5 * (log_det + residual @ np.linalg.solve(covariance, residual))


def test_a_change_of_what_a_model_reads_is_noticed(monkeypatch):
    model = Reader()

    def check():
        evidence = ImportanceSampling(model, num_particles=2_000).log_evidence(None, DATA)
        assert abs(float(evidence) - model.exact(DATA)) < 5 * float(evidence.standard_error)
        return float(evidence)

    values = [check()]
    monkeypatch.setitem(globals(), "SCALE", 5.0)
    values.append(check())
    monkeypatch.setitem(globals(), "OFFSETS", np.array([1.0, 0.0, -2.0]))
    values.append(check())
    model.shift = -3.0
    values.append(check())
    assert len(set(values)) == len(values)


def closing_over(y):
    def model():
        mu = numpyro.sample("mu", dist.Normal(0.5, 2.0))
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)

    return model


def test_a_model_and_the_data_that_it_closes_over_can_be_freed():
    y = jnp.array([1.0, 2.0, 3.5]) + 0.25
    model = closing_over(y)
    estimator = DAIS(model, num_steps=4, step_size=0.1, num_particles=8)
    evidence = estimator.log_evidence()
    refs = weakref.ref(y), weakref.ref(model)
    del estimator, evidence, y, model
    gc.collect()
    assert [ref() for ref in refs] == [None, None]


def test_arguments_are_not_kept_alive():
    y = DATA + 0.25
    estimator = DAIS(Counter().model, num_steps=4, step_size=0.1, num_particles=8)
    evidence = estimator.log_evidence(None, y)
    ref = weakref.ref(y)
    del evidence, y
    gc.collect()
    assert ref() is None


class Unhashable:
    """A model that no cache can hold."""

    __hash__ = None

    def __eq__(self, other):
        return True

    def __call__(self, y):
        mu = numpyro.sample("mu", dist.Normal(0.5, 2.0))
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def test_models_and_arguments_that_cannot_be_hashed():
    def model(y, options):
        Unhashable()(y)

    class Options:
        __hash__ = None

    kwargs = {"num_steps": 4, "step_size": 0.1, "num_particles": 8}
    hashed = DAIS(partial(model, options=None), **kwargs).log_evidence(None, DATA)
    for other in (
        DAIS(Unhashable(), **kwargs).log_evidence(None, DATA),
        DAIS(model, **kwargs).log_evidence(None, DATA, Options()),
    ):
        np.testing.assert_allclose(other.log_weights, hashed.log_weights, rtol=1e-6)


def test_bound_methods_share_programs(counter):
    """Each access makes a new bound method; what counts is the object behind it."""
    assert counter.model is not counter.model
    kwargs = {"num_steps": 3, "step_size": 0.1, "num_particles": 8}
    DAIS(counter.model, **kwargs).log_evidence(None, DATA)
    counter.read()
    DAIS(counter.model, **kwargs).log_evidence(None, DATA)
    assert counter.read() == (0, 1)


def test_legacy_keys_give_the_same_numbers():
    estimator = DAIS(Counter().model, num_steps=3, step_size=0.1, num_particles=8)
    one = estimator.log_evidence(random.key(3), DATA).log_weights
    other = estimator.log_evidence(random.PRNGKey(3), DATA).log_weights
    np.testing.assert_array_equal(one, other)


@pytest.mark.usefixtures("optimised")
def test_an_option_that_xla_does_not_know_is_left_out(monkeypatch, request):
    """Options of XLA come and go with versions of jaxlib, which refuses those it does not know."""
    known = dict(programs._BRIEF)
    monkeypatch.setattr(programs, "_BRIEF", {**known, "xla_of_another_version": True})
    request.addfinalizer(programs._known_options.cache_clear)
    programs._known_options.cache_clear()
    assert programs._known_options() == known
    assert programs.program(is_brief=True)(lambda x: 2 * x)(jnp.ones(())) == 2
