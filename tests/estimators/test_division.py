# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""One budget for several models: who gets how much, from which runs, and what is refused."""

from dataclasses import replace
from itertools import product
import math
import warnings

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import numpyro
import numpyro.distributions as dist

from numpyro_dais import AIS, DAIS, ImportanceSampling, compare
from numpyro_dais.estimators.arguments import MIN_BUDGET
from numpyro_dais.estimators.division import Need, needs_of, share_of
from tests.helpers import make_evidence

Y = np.array([0.3, -1.1, 2.4, 0.9])


def normal(y, scale=1.0):
    mu = numpyro.sample("mu", dist.Normal(0.0, scale))
    numpyro.sample("y", dist.Normal(mu, 1.0).expand(np.shape(y)).to_event(1), obs=y)


def laplace(y):
    mu = numpyro.sample("mu", dist.Laplace(0.0, 1.0))
    numpyro.sample("y", dist.Normal(mu, 1.0).expand(np.shape(y)).to_event(1), obs=y)


def log_evidence_of_normal(scale=1.0):
    return stats.multivariate_normal(cov=np.eye(len(Y)) + scale**2).logpdf(Y)


def pilot(value, error, spent, goal=None):
    offsets = 20 * error * np.resize([1.0, -1.0], 400)
    evidence = make_evidence(value + offsets)
    return replace(evidence, num_gradients=spent, target_error=goal), float(evidence.standard_error)


@pytest.fixture(scope="module")
def compared():
    calls = []
    log_evidence = DAIS.log_evidence

    def spy(self, rng_key, *args, **kwargs):
        evidence = log_evidence(self, rng_key, *args, **kwargs)
        calls.append((self._goal.budget, random.key_data(rng_key).tolist(), evidence))
        return evidence

    with pytest.MonkeyPatch.context() as monkeypatch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        monkeypatch.setattr(DAIS, "log_evidence", spy)
        estimators = {"hard": DAIS(laplace, target_error=1e-4), "easy": DAIS(normal)}
        return compare(estimators, random.key(0), Y, budget=40_000), calls


def test_reported_runs_are_fresh_and_within_the_budget(compared):
    comparison, calls = compared
    keys = {tuple(key) for _, key, _ in calls}
    assert len(calls) == len(keys) == 4
    reported = [evidence for _, _, evidence in calls[2:]]
    assert {id(e) for e in reported} == {id(e) for e in comparison.evidences.values()}
    spent = [int(evidence.num_gradients) for _, _, evidence in calls]
    assert sum(spent) <= 40_000
    assert sum(spent[:2]) <= 0.2 * 40_000
    # The hard one gets what the easy one does not need.
    budgets = {name: evidence.num_gradients for name, evidence in comparison.evidences.items()}
    assert budgets["hard"] > 4 * budgets["easy"]


def test_numbers_are_right(compared):
    comparison, _ = compared
    easy = comparison.names.index("easy")
    error = abs(comparison.log_evidence[easy] - log_evidence_of_normal())
    assert error < 5 * comparison.standard_error[easy]
    assert comparison.standard_error[easy] < 0.01


def test_needs_are_errors_times_the_root_of_what_was_spent():
    (one, error), (two, other), (three, _) = (
        pilot(-1.0, 0.01, 1_000),
        pilot(-3.0, 0.02, 4_000, 0.01),
        pilot(-2.0, math.nan, 9_000, 0.01),
    )
    needs = needs_of({"one": one, "two": two, "three": three})
    scales = error * np.sqrt(1_000), other * np.sqrt(4_000)
    assert needs["one"].weight == pytest.approx(scales[0] * math.sqrt(2))  # in both factors
    assert needs["two"].weight == pytest.approx(scales[1])
    assert needs["two"].enough == pytest.approx((scales[1] / 0.01) ** 2)
    assert needs["one"].enough == math.inf  # without a goal
    assert needs["three"] == (needs["two"].weight, math.inf)  # it may be as bad as the worst


def test_shares_make_the_errors_of_bayes_factors_smallest(monkeypatch):
    """No other division of a grid gives a smaller sum of squared errors."""
    monkeypatch.setattr("numpyro_dais.estimators.division._EVEN_SHARE", 0.0)
    scales, left = np.array([3.0, 1.0, 8.0]), 300_000
    needs = [Need(scale, math.inf) for scale in scales * [math.sqrt(2), 1.0, 1.0]]
    shares = []
    for first in range(3):
        shares.append(share_of(left - sum(shares), needs[first:]))
    assert sum(shares) <= left

    def loss(shares):
        best, *others = scales**2 / np.asarray(shares)
        return sum(best + other for other in others)

    for low, high in product(range(5_000, 290_000, 5_000), repeat=2):
        if low + high < left:
            assert loss(shares) <= loss([low, high, left - low - high]) * (1 + 1e-4)


SHARES = {
    "even": ([Need(1.0, math.inf)] * 2, 50_000),
    "unknown": ([Need(0.0, math.inf)] * 4, 25_000),
    "a fifth is even": ([Need(0.0, math.inf), Need(1.0, math.inf)], 10_000),
    "a reserve for the others": ([Need(1e9, math.inf), Need(0.0, math.inf)], 90_000),
    "what others do not need": ([Need(1.0, math.inf), Need(9.0, 30_000.0)], 70_000),
    "the last": ([Need(1.0, 1.0)], 100_000),
}


@pytest.mark.parametrize(("needs", "share"), SHARES.values(), ids=SHARES)
def test_shares(needs, share):
    assert share_of(100_000, needs) == share


def test_a_share_is_enough_for_a_run():
    assert share_of(MIN_BUDGET, [Need(0.0, 1.0), Need(1.0, 1.0)]) == MIN_BUDGET


def test_the_order_of_models_is_of_no_account():
    estimators = {"a": DAIS(normal), "b": DAIS(laplace)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one = compare(estimators, random.key(1), Y, budget=8_000)
        two = compare(dict(reversed(estimators.items())), random.key(1), Y, budget=8_000)
    assert one.to_dict() == two.to_dict()


def test_progress(capsys):
    compare(
        {"narrow": DAIS(normal), "other": DAIS(laplace)},
        random.key(0),
        Y,
        budget=8_000,
        progress_bar=True,
    )
    shown = capsys.readouterr().err
    assert "/8000" in shown
    assert "run of other: -" in shown


def with_budget(y, budget):
    normal(y, budget)


EVIDENCE = make_evidence(np.zeros(50))
KEY = random.key(0)
TWO = {"a": DAIS(normal), "b": DAIS(normal)}
FAULTS = {
    "a mix": (
        lambda: compare({"a": EVIDENCE, "b": DAIS(normal)}, KEY, Y),
        "an evidence for each name, or an estimator for each; got both: 'a' has Evidence",
    ),
    "no key": (lambda: compare(TWO), "needs a random key; got None. Write compare"),
    "data in place of the key": (
        lambda: compare(TWO, Y),
        "The first argument must be one JAX random key",
    ),
    "a small budget": (
        lambda: compare(TWO, KEY, Y, budget=5_000),
        "budget must be an integer of at least 8000; got 5000. A pilot run and .* each of 2 models",
    ),
    "one model": (
        lambda: compare({"a": DAIS(normal)}, KEY, Y),
        r"at least 2 estimators; got \['a'\]. Add",
    ),
    "settings": (
        lambda: compare({**TWO, "c": DAIS(normal, step_size=0.1)}, KEY, Y),
        "between self-tuned estimators.*'c' is DAIS.*Run it alone",
    ),
    "AIS": (lambda: compare({**TWO, "c": AIS(normal)}, KEY, Y), "'c' is AIS.*Run it alone"),
    "importance sampling": (
        lambda: compare({**TWO, "c": ImportanceSampling(normal)}, KEY, Y),
        "'c' is ImportanceSampling",
    ),
    "a budget for evidences": (
        lambda: compare({"a": EVIDENCE, "b": EVIDENCE}, budget=10_000),
        "budget= and progress_bar= with estimators only.*got some of these with evidences",
    ),
    "a key for evidences": (
        lambda: compare({"a": EVIDENCE, "b": EVIDENCE}, KEY),
        "takes a random key, .* with estimators only",
    ),
    "the model's own budget": (
        lambda: compare({**TWO, "c": DAIS(with_budget)}, KEY, Y, budget=40_000),
        "budget= is an argument of compare and also one of the model.*got 40000",
    ),
    "probabilities": (
        lambda: compare(TWO, KEY, Y, prior_probabilities={"a": 1.0}),
        r"a dict with the models' names \['a', 'b'\]",
    ),
    "other data": (
        lambda: compare({"a": DAIS(normal), "b": DAIS(lambda y: normal(2 * y))}, KEY, Y),
        "Only evidences of the same data can be compared",
    ),
    "a name that is no text": (
        lambda: compare({1: DAIS(normal), "b": DAIS(normal)}, KEY, Y),
        "names must be text; got 1",
    ),
}


@pytest.mark.parametrize(("call", "message"), FAULTS.values(), ids=FAULTS)
def test_faults(call, message, monkeypatch):
    """Each before anything is run."""
    monkeypatch.setattr(DAIS, "log_evidence", lambda *_, **__: pytest.fail("a run"))
    with pytest.raises(ValueError, match=message):
        call()


def test_evidences_are_kept():
    evidences = {"a": EVIDENCE, "b": make_evidence(np.ones(50))}
    comparison = compare(evidences)
    assert list(comparison.evidences) == ["b", "a"]
    assert comparison.evidences["a"] is EVIDENCE


@pytest.mark.filterwarnings("ignore::UserWarning")  # of so few particles
def test_many_data_sets_are_one_program(counter):
    """Under vmap, with settings given; more data sets of these shapes compile nothing."""
    estimator = DAIS(counter.model, num_steps=4, step_size=0.1, num_particles=8)
    batch = jax.vmap(lambda key, y: estimator.log_evidence(key, y).log_evidence)
    keys, data = random.split(KEY, 3), jnp.arange(9.0).reshape(3, 3)
    others = jax.device_put(np.asarray(data) + 1.0)
    counter.read()
    run = jax.jit(batch)
    first = run(keys, data)
    assert counter.read()[0] == 1
    second = run(keys, others)
    assert counter.read() == (0, 0)
    np.testing.assert_allclose(batch(keys, data), first, rtol=1e-5)
    counter.read()
    np.testing.assert_allclose(batch(keys, others), second, rtol=1e-5)
    assert counter.read()[0] == 0
    for values, sets in ((first, data), (second, others)):
        one = [estimator.log_evidence(*pair) for pair in zip(keys, sets, strict=True)]
        np.testing.assert_allclose(values, [float(e.log_evidence) for e in one], rtol=1e-5)
