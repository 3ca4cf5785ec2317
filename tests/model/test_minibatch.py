# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Mini-batch DAIS: exact ends, unbiased weights, honest errors."""

import functools
import itertools
import warnings

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import pytest

import numpyro
from numpyro import handlers
import numpyro.distributions as dist
from numpyro.infer.util import log_density

from numpyro_dais import AIS, DAIS, HAIS, ImportanceSampling
from numpyro_dais.estimators import runner
from numpyro_dais.model.problem import Problem
from numpyro_dais.model.subsampling import draw_batch, draw_minibatch, find_data_plate
from numpyro_dais.model.target import make_target
from tests.cases import TIMES, TIMES_POSTERIOR, waiting_times, waiting_times_log_evidence
from tests.helpers import assert_unbiased

EXACT = waiting_times_log_evidence()


def minibatched(*args, minibatch=True, **kwargs):
    with pytest.warns(UserWarning, match="does not tighten"):
        return DAIS(*args, minibatch=minibatch, **kwargs)


def test_subsets_are_uniform():
    """Every subset of either kind of draw is as likely as any other, by a chi-square of five sigma."""
    for size, batch_size in ((5, 2), (4, 3)):
        keys = random.split(random.key(size), 20_000)
        draws = np.asarray(jax.vmap(lambda key, n=size, b=batch_size: draw_batch(key, n, b))(keys))
        subsets = list(itertools.combinations(range(size), batch_size))
        counts = [np.sum(np.all(draws == subset, axis=1)) for subset in subsets]
        assert sum(counts) == len(draws)
        expected = len(draws) / len(subsets)
        statistic = np.sum((np.array(counts) - expected) ** 2) / expected
        df = len(subsets) - 1
        assert statistic < df + 5 * np.sqrt(2 * df)


def test_the_randomness_of_a_minibatch_is_not_that_of_the_run():
    """Not drawn with a key that the run's is split into: ``fold_in(key, 1)`` is ``split(key)[1]``."""
    key, sizes = random.key(5), {"rows": (60, 30)}
    drawn = draw_minibatch(key, Problem(waiting_times), sizes).subsample["rows"]
    for other in (key, *random.split(key, 3)):
        run_key = random.fold_in(other, 0)
        with handlers.seed(rng_seed=run_key), numpyro.plate("rows", *sizes["rows"]) as indices:
            assert set(np.asarray(drawn)) != set(np.asarray(indices))


@functools.cache
def unbiased_estimator(minibatch):
    """One for several tests, so that its program is compiled once."""
    return minibatched(
        waiting_times,
        minibatch=minibatch,
        num_steps=8,
        step_size=0.15,
        damping=0.5,
        num_particles=5000,
    )


@pytest.mark.parametrize("minibatch", [True, "particle"], ids=["shared", "particle"])
def test_weights_are_unbiased(minibatch):
    """Over batch sequences, and shared: for the one sequence of a run, too."""
    estimator = unbiased_estimator(minibatch)
    evidence = estimator.log_evidence(random.key(3), TIMES)
    assert_unbiased(evidence.log_weights, EXACT)
    # A step costs 3/7 of a gradient, the density at the end as much as one.
    assert evidence.num_gradients == int(np.ceil(8 * 5000 * 3 / 7)) + 5000
    assert set(evidence.samples()) == {"rate", "twice"}
    if minibatch is True:
        assert evidence.lower_bound_error == np.inf
        assert np.isfinite(evidence.standard_error)
        assert "over sequences of mini-batches" in repr(evidence)
        assert "error unknown" in repr(evidence)
    else:
        assert 0 < evidence.lower_bound_error < 0.2
        assert "sequences" not in repr(evidence)


def with_extras(data, batch_size):
    """A second site in the plate, one of two dimensions, a transposed one, and likelihood outside of it."""
    x, y, z = data
    w = numpyro.sample("w", dist.Normal(0.3, 1.0).expand([2]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(2.0))
    numpyro.sample("outside", dist.Normal(w[0], 0.5), obs=1.0)
    numpyro.factor("penalty", -scale * w[1] ** 2)
    rows = numpyro.plate("rows", len(y), subsample_size=batch_size, dim=-2)
    with numpyro.plate("columns", 2, dim=-1), rows as index:
        numpyro.sample("z", dist.Normal(w, scale), obs=z[index])
    with rows as index:
        mean = x[index] @ w
        numpyro.sample("y", dist.StudentT(4.0, mean[:, None], scale), obs=y[index][:, None])
        with handlers.scale(scale=0.5):
            numpyro.factor("bump", -jnp.cos(mean)[:, None])


def extras_data(size=8):
    rng = np.random.default_rng(2)
    return tuple(jnp.asarray(rng.normal(0.5, 1.0, shape)) for shape in ((size, 2), size, (size, 2)))


@pytest.mark.parametrize("batch_size", [3, 4])
def test_density_in_chunks_is_numpyros(batch_size, x64):
    """At the ends the density is that of the model without subsampling, with its gradient."""
    data = extras_data()
    estimator = DAIS(with_extras, surrogate="quadratic")
    problem = estimator._integrand.problem((data, batch_size), {})
    plate = find_data_plate(problem, "")
    problem = problem.replace(data_plate=plate, subsample={"rows": jnp.arange(batch_size)})
    target = make_target(problem)

    def joint(position):
        return sum(target.log_densities_fn(position))

    def expected(position):
        values = {"w": position[1:], "scale": jnp.exp(position[0])}
        return log_density(with_extras, (data, None), {}, values)[0] + position[0]

    position = jnp.array([0.2, -0.7, 0.4])
    (value, gradient), wanted = jax.jit(
        lambda u: (jax.value_and_grad(joint)(u), jax.value_and_grad(expected)(u))
    )(position)
    np.testing.assert_allclose(value, wanted[0], rtol=1e-12)
    np.testing.assert_allclose(gradient, wanted[1], rtol=1e-10)


def test_equal_rows_give_the_full_batch(x64):
    """Where every mini-batch has the mean gradient of the data, weights are those of the full batch."""
    times = jnp.full(4, 1.0)
    settings = {"num_steps": 8, "step_size": 0.2, "num_particles": 6}
    full = DAIS(waiting_times, **settings).log_evidence(random.key(1), times, None)
    evidence = minibatched(waiting_times, **settings).log_evidence(random.key(1), times)
    np.testing.assert_allclose(evidence.log_weights, full.log_weights, rtol=1e-12)


def test_steps_see_fresh_batches_and_the_reverse_chain_the_same():
    """The dynamics of a step are a function of the key and the index; sharing is as asked for."""
    gradients = {}
    for minibatch in ("shared", "particle"):
        estimator = minibatched(waiting_times, minibatch=minibatch, num_steps=6, step_size=0.1)
        problem = estimator._integrand.problem((TIMES,), {})
        target = make_target(estimator._with_dynamics(random.key(0), problem))

        @jax.jit
        def gradient(seed, index, target=target):
            fn = target.dynamics_fn(random.key(seed), index)
            return jax.grad(lambda position: sum(fn(position)))(jnp.zeros(1))[0]

        gradients[minibatch] = np.array([[gradient(s, k) for k in range(6)] for s in range(2)])
    assert len(set(gradients["shared"][0])) > 3
    np.testing.assert_array_equal(*gradients["shared"])
    assert np.any(gradients["particle"][0] != gradients["particle"][1])


def test_sandwich_and_gradient():
    """Reverse chains see the sequence of the forward ones; the estimate is differentiable in the data."""
    shape, rate = TIMES_POSTERIOR
    draws = np.random.default_rng(0).gamma(shape, 1 / rate, 5000)
    estimator = unbiased_estimator(True)
    posterior_samples = {"rate": jnp.asarray(draws, jnp.float32)}
    evidence = estimator.sandwich(random.key(2), TIMES, posterior_samples=posterior_samples)
    assert abs(float(evidence) - EXACT) < 5 * evidence.standard_error
    assert evidence.standard_error < 0.03
    assert evidence.lower_bound < EXACT < evidence.upper_bound
    with pytest.raises(ValueError, match=r"'rows'.*posterior_samples="):
        estimator.sandwich(random.key(2), TIMES)
    with pytest.raises(NotImplementedError, match="certify simulates all the data"):
        estimator.certify(random.key(2), TIMES)

    def bound(shift):
        return estimator.log_evidence(random.key(0), TIMES * (1 + shift)).log_evidence

    slope = (bound(0.05) - bound(-0.05)) / 0.1
    np.testing.assert_allclose(jax.grad(bound)(0.0), slope, rtol=0.01)


def two_plates(counts):
    rate = numpyro.sample("rate", dist.Gamma(3.0, 2.0))
    for name in ("a", "b"):
        with numpyro.plate(name, len(counts), subsample_size=2):
            numpyro.sample(
                f"y_{name}", dist.Poisson(rate), obs=numpyro.subsample(counts, event_dim=0)
            )


def local_latent(counts):
    with numpyro.plate("rows", len(counts), subsample_size=2):
        rate = numpyro.sample("rate", dist.Gamma(3.0, 2.0))
        numpyro.sample("y", dist.Poisson(rate), obs=numpyro.subsample(counts, event_dim=0))


def imputed(counts):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", len(counts), subsample_size=2):
        y = numpyro.subsample(counts, event_dim=0)
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y, obs_mask=y > 0)


def discrete(counts):
    rate = numpyro.sample("rate", dist.Gamma(3.0, 2.0))
    kind = numpyro.sample("kind", dist.Bernoulli(0.5), infer={"enumerate": "parallel"})
    with numpyro.plate("rows", len(counts), subsample_size=2):
        y = numpyro.subsample(counts, event_dim=0)
        numpyro.sample("y", dist.Poisson(rate * (1 + kind)), obs=y)


BAD_MODELS = {
    "B > N": (
        waiting_times,
        (9,),
        ValueError,
        "'rows' has 7 elements and subsample_size=9; .* smaller",
    ),
    "no subsampled plate": (
        waiting_times,
        (None,),
        ValueError,
        "needs a subsampled plate.*has none",
    ),
    "two plates": (two_plates, (), NotImplementedError, r"one subsampled plate.*\['a', 'b'\]"),
    "local latent": (local_latent, (), NotImplementedError, "'rows', but 'rate' is inside"),
    "imputed": (
        imputed,
        (),
        NotImplementedError,
        "obs_mask of 'y' makes its missing values latent",
    ),
    "discrete": (discrete, (), NotImplementedError, "discrete latent sites; got 'kind'"),
}


@pytest.mark.parametrize(("model", "args", "kind", "message"), BAD_MODELS.values(), ids=BAD_MODELS)
def test_models_that_cannot_be_taken_in_batches(model, args, kind, message, monkeypatch):
    estimator = minibatched(model, num_steps=2, step_size=0.1)
    monkeypatch.setattr(runner, "_forward", None)
    with pytest.raises(kind, match=message):
        estimator.log_evidence(None, TIMES, *args)


BAD_ARGUMENTS = {
    "kind": (DAIS, {"minibatch": "fresh"}, ValueError, "'shared'.*'particle'; got 'fresh'"),
    "plate": (DAIS, {"plate": "rows"}, NotImplementedError, "minibatch= .* plate='rows'.*got both"),
    "surrogate": (DAIS, {"surrogate": "quadratic"}, ValueError, "got both. Take surrogate="),
    "reversible": (
        DAIS,
        {"memory": "reversible"},
        NotImplementedError,
        "same densities at every step",
    ),
    "HAIS": (HAIS, {}, TypeError, "has no argument 'minibatch': a Metropolis decision"),
    "AIS": (AIS, {}, TypeError, "has no argument 'minibatch': a Metropolis decision"),
    "importance": (ImportanceSampling, {}, TypeError, "has no argument 'minibatch'"),
}


@pytest.mark.parametrize(
    ("estimator", "kwargs", "kind", "message"), BAD_ARGUMENTS.values(), ids=BAD_ARGUMENTS
)
def test_arguments_that_do_not_go_with_it(estimator, kwargs, kind, message):
    with pytest.raises(kind, match=message):
        estimator(waiting_times, **{"minibatch": True, **kwargs})


def test_potential_functions_have_no_batches():
    with pytest.raises(ValueError, match=r"need a model.*got potential_fn="):
        DAIS(potential_fn=jnp.sum, start=dist.Normal(0.0, 1.0), minibatch=True)


def test_one_warning_for_each_estimator():
    """One sentence that cites the theorem and names the remedy, at the line of the caller."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        estimator = DAIS(
            waiting_times, minibatch=True, num_steps=2, step_size=0.01, num_particles=16
        )
        for seed in range(2):
            estimator.log_evidence(random.key(seed), TIMES)
    messages = [str(warning.message) for warning in caught if "tighten" in str(warning.message)]
    assert len(messages) == 1
    assert "Theorem 2 of Zhang et al. 2021" in messages[0]
    assert "surrogate='quadratic'" in messages[0]
    assert caught[0].filename == __file__
