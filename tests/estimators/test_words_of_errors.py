# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Errors that once were those of Python or JAX: each has a sentence of ours, before anything is traced."""

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import pytest

import numpyro
import numpyro.distributions as dist
from numpyro.infer import SVI, autoguide

from numpyro_dais import AIS, DAIS, DAVI, HAIS, ImportanceSampling, compare, schedule
from tests.cases import beta_binomial, normal_means
from tests.helpers import make_evidence

DATA = np.arange(20.0)
SHORT = {"num_steps": 3, "step_size": 0.1, "num_particles": 4}


def of_numpy():
    """A model that takes mini-batches of a NumPy array."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", 20, subsample_size=5) as indices:
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=DATA[indices])


def elements_of_numpy():
    with numpyro.plate("data", 20, subsample_size=5) as indices:
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=DATA[indices])


def through_numpy():
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(np.exp(mu), 1.0), obs=1.0)


def fit(model):
    svi = SVI(model, autoguide.AutoNormal(model), numpyro.optim.Adam(0.1), DAVI(minibatch=True))
    return svi.run(random.key(0), 2, progress_bar=False)


def reversible(y):
    estimator = DAIS(normal_means, **SHORT, damping=0.9, memory="reversible")
    return estimator.log_evidence(random.key(0), y).log_evidence


NAMES = "schedule must be one of 'linear', 'sigmoid', 'power', a function.*; got "
ASARRAY = r"Plate 'data' is subsampled.*y = jnp.asarray\(y\)"
WHOLE = "Plate 'data' takes 5 of 20 elements; the evidence needs all.*minibatch=True"
FORWARD = "memory='reversible' has a backward pass only.*jax.grad.*memory='checkpoint'"
TWO = {name: make_evidence(np.zeros(50)) for name in "ab"}
DRAWS = {"q": np.full(4, 0.5)}
Y = jnp.array([1.0, 2.0, 0.5])

FAULTS = {
    "13: schedule='cubic'": (
        lambda: DAIS(beta_binomial, schedule="cubic"),
        ValueError,
        NAMES + "'cubic'",
    ),
    "13: schedule='cubic', with num_steps": (
        lambda: HAIS(beta_binomial, schedule="cubic", num_steps=10),
        ValueError,
        NAMES + "'cubic'",
    ),
    "13: schedule=0.5": (lambda: DAIS(beta_binomial, schedule=0.5), ValueError, NAMES + "0.5"),
    "13: schedule=0.5, DAVI": (lambda: DAVI(schedule=0.5), ValueError, NAMES + "0.5"),
    "13: schedule of words": (lambda: AIS(beta_binomial, schedule=["a", "b"]), ValueError, NAMES),
    "13: step_size='auto'": (
        lambda: DAIS(beta_binomial, step_size="auto"),
        ValueError,
        "step_size must be a number, or one for each step; got 'auto'. Leave it out .*tuned",
    ),
    "13: step_size='auto', DAVI": (
        lambda: DAVI(step_size="auto"),
        ValueError,
        "step_size must be a number, or one for each step; got 'auto'",
    ),
    "13: damping='x'": (
        lambda: DAIS(beta_binomial, damping="x"),
        ValueError,
        r"damping must be a number, or one for each step; got 'x'. .*\[0, 1\)",
    ),
    "13: damping='x', reversible": (
        lambda: DAIS(beta_binomial, damping="x", memory="reversible"),
        ValueError,
        "damping must be a number",
    ),
    "13: damping='x', DAVI, reversible": (
        lambda: DAVI(damping="x", memory="reversible"),
        ValueError,
        "damping must be a number",
    ),
    "16: max_seconds=0": (
        lambda: DAIS(beta_binomial, max_seconds=0),
        ValueError,
        "max_seconds must be a positive number of seconds; got 0",
    ),
    "16: max_seconds beside a step size": (
        lambda: DAIS(beta_binomial, max_seconds=1.0, step_size=0.1),
        ValueError,
        "and so is max_seconds=; step_size= or settings= leave nothing to tune",
    ),
    "16: max_seconds of HAIS": (
        lambda: HAIS(beta_binomial, max_seconds=1.0),
        TypeError,
        "'max_seconds'.*only DAIS tunes itself",
    ),
    "13: target_error='small'": (
        lambda: DAIS(beta_binomial, target_error="small"),
        ValueError,
        r"target_error must be positive, in nats \(0.005 if left out\); got 'small'",
    ),
    "13: target_acceptance='high'": (
        lambda: HAIS(beta_binomial, target_acceptance="high"),
        ValueError,
        r"target_acceptance must be a number in \(0, 1\); got 'high'",
    ),
    "13: entropy_weight='none'": (
        lambda: DAVI(entropy_weight="none"),
        ValueError,
        "entropy_weight must be finite and at least 0; got 'none'",
    ),
    "13: max_step_size='large'": (
        lambda: DAVI(learn=("step_size",), step_size=0.1, max_step_size="large"),
        ValueError,
        "max_step_size must be above the initial step size 0.1; got 'large'",
    ),
    "13: learn=True": (
        lambda: DAVI(learn=True),
        ValueError,
        r"learn must be a tuple of names out of.*such as learn=\('step_size',\); got True",
    ),
    "18: max_step_size without step_size": (
        lambda: DAVI(learn=("step_size",), max_step_size=0.5),
        ValueError,
        "max_step_size= goes with step_size=; got max_step_size=0.5 alone.*Give step_size= as well",
    ),
    "18: settings without step_size": (
        lambda: DAVI(num_steps=4).settings({}),
        ValueError,
        "Without step_size= step sizes follow the curvature.*or give DAVI a step_size=",
    ),
    "13: another site in posterior_samples": (
        lambda: DAIS(beta_binomial, **SHORT).sandwich(posterior_samples=DRAWS),
        ValueError,
        r"posterior_samples must cover.*misses \['p'\].*Pass the draws of each, as `mcmc",
    ),
    "13: another site in start": (
        lambda: DAIS(beta_binomial, **SHORT, start={"q": dist.Normal()}).log_evidence(),
        ValueError,
        r"start= must cover.*misses \['p'\].*Add a distribution for each",
    ),
    "13: another site in the guide": (
        lambda: DAIS(
            beta_binomial,
            **SHORT,
            guide=lambda: numpyro.sample("q", dist.Normal()),
            guide_params={},
        ).log_evidence(),
        ValueError,
        r"The guide must cover.*misses \['p'\].*Add a sample site for each",
    ),
    "13: step_size=-0.1": (
        lambda: DAIS(beta_binomial, step_size=-0.1),
        ValueError,
        r"step_size must be finite and positive; got -0\.1\.$",
    ),
    "13: a step size below zero": (
        lambda: DAIS(beta_binomial, num_steps=2, step_size=[0.3, -0.7]),
        ValueError,
        r"got -0\.7\.$",
    ),
    "13: damping that rounds to one": (
        lambda: DAIS(beta_binomial, damping=0.9999999999),
        ValueError,
        r"damping must be finite and in \[0, 1\); got 0\.9999999999\.$",
    ),
    "13: an AutoDelta": (
        lambda: DAIS(beta_binomial, guide=autoguide.AutoDelta(beta_binomial), guide_params={}),
        NotImplementedError,
        "A chain cannot start at an AutoDelta: it is a point mass",
    ),
    "13: an InverseGamma": (
        lambda: DAIS(potential_fn=jnp.sum, start=dist.InverseGamma(2.0)),
        ValueError,
        "support; an InverseGamma has",
    ),
    "13: num_particles=1000.5": (
        lambda: DAIS(beta_binomial, num_particles=1e3 + 0.5),
        ValueError,
        r"num_particles must be an integer of at least 1; got 1000\.5",
    ),
    "13: num_particles=True": (
        lambda: DAIS(beta_binomial, num_particles=True),
        ValueError,
        "num_particles must be an integer of at least 1; got True",
    ),
    "13: num_steps=inf": (
        lambda: DAIS(beta_binomial, num_steps=np.inf),
        ValueError,
        "num_steps must be an integer of at least 0; got inf",
    ),
    "13: budget=1e3": (lambda: DAIS(beta_binomial, budget=1e3), ValueError, "least 2000; got 1000"),
    "13: jvp, reversible": (
        lambda: jax.jvp(reversible, (Y,), (Y,)),
        NotImplementedError,
        FORWARD,
    ),
    "13: jacfwd, reversible": (lambda: jax.jacfwd(reversible)(Y), NotImplementedError, FORWARD),
    "13: jit of jacfwd, reversible": (
        lambda: jax.jit(jax.jacfwd(reversible))(Y),
        NotImplementedError,
        FORWARD,
    ),
    "13: jvp of jit, reversible": (
        lambda: jax.jvp(jax.jit(reversible), (Y,), (Y,)),
        NotImplementedError,
        FORWARD,
    ),
    "13: NumPy data in a subsampled plate": (
        lambda: DAIS(of_numpy, **SHORT).log_evidence(),
        NotImplementedError,
        WHOLE,
    ),
    "13: NumPy data in a subsampled plate, self-tuned": (
        lambda: DAIS(of_numpy).log_evidence(),
        NotImplementedError,
        WHOLE,
    ),
    "13: NumPy data and minibatch=": (
        lambda: DAIS(of_numpy, **SHORT, minibatch=True).log_evidence(),
        ValueError,
        ASARRAY,
    ),
    "13: NumPy data and surrogate=": (
        lambda: DAIS(of_numpy, **SHORT, surrogate="quadratic").log_evidence(),
        ValueError,
        ASARRAY,
    ),
    "13: NumPy data and plate=": (
        lambda: DAIS(elements_of_numpy, **SHORT, plate="data").log_evidence(),
        ValueError,
        ASARRAY,
    ),
    "13: NumPy data and DAVI": (lambda: fit(of_numpy), ValueError, ASARRAY),
    "17: prior_sensitivity=2.0": (
        lambda: compare(TWO, prior_sensitivity=2.0),
        ValueError,
        r"prior_sensitivity must be names of latent sites, such as.*or a function.*; got 2\.0",
    ),
    "17: prior_sensitivity of another site": (
        lambda: compare(TWO, prior_sensitivity="q"),
        ValueError,
        r"prior_sensitivity must name continuous latent sites.*none has \['q'\]. They have .*\['p'\]",
    ),
    "17: prior_sensitivity of a Beta": (
        lambda: compare(TWO, prior_sensitivity=["p"]),
        ValueError,
        "needs priors with a scale.*; site 'p' has a Beta. Leave the site out, or give a function",
    ),
    "17: prior_sensitivity with an unknown model": (
        lambda: compare(TWO, prior_sensitivity=lambda factor: {"c": TWO["a"]}),
        ValueError,
        r"prior_sensitivity\(0.25\) must return evidences of the models \['a', 'b'\]; it has \['c'\]",
    ),
    "17: a picture that was not asked for": (
        lambda: compare(TWO).plot_sensitivity(),
        ValueError,
        r"plot_sensitivity draws what compare\(..., prior_sensitivity=...\) has found.*Name the",
    ),
    "13: a latent site in NumPy": (
        lambda: DAIS(through_numpy, **SHORT).log_evidence(),
        ValueError,
        "hands the value of a latent site .*to NumPy.*jnp.asarray",
    ),
}


@pytest.mark.parametrize(("call", "kind", "message"), FAULTS.values(), ids=FAULTS)
@pytest.mark.filterwarnings("ignore:With mini-batch gradients:UserWarning")
def test_a_fault_is_met_with_a_sentence(call, kind, message):
    with pytest.raises(kind, match=message):
        call()


@pytest.mark.parametrize("name", ["linear", "sigmoid", "power"])
def test_13_a_schedule_may_be_named(name):
    betas = getattr(schedule, name)(6)
    for make in (DAIS, HAIS, AIS):
        settings = make(beta_binomial, schedule=name, num_steps=6, step_size=0.1).settings
        np.testing.assert_allclose(settings.betas, betas, rtol=1e-6)
    np.testing.assert_allclose(
        DAVI(num_steps=6, schedule=name, step_size=0.1).settings({}).betas, betas, rtol=1e-6
    )


COUNTS = {
    "13: DAIS": lambda count: DAIS(
        beta_binomial,
        num_steps=count(8),
        num_particles=count(64),
        step_size=0.1,
        chunk_size=count(16),
        resample_at=(0.5,),
        num_islands=count(4),
    ),
    "13: anchor_every": lambda count: DAIS(
        beta_binomial,
        num_steps=count(8),
        num_particles=count(64),
        step_size=0.1,
        damping=0.9,
        memory="reversible",
        anchor_every=count(4),
    ),
    "13: budget": lambda count: DAIS(beta_binomial, budget=count(3_000), num_steps=count(4)),
    "13: HAIS": lambda count: HAIS(
        beta_binomial, num_steps=count(4), num_particles=count(32), chunk_size=count(8)
    ),
    "13: AIS": lambda count: AIS(
        beta_binomial, num_steps=count(4), num_particles=count(32), num_leapfrog=count(2)
    ),
    "13: importance": lambda count: ImportanceSampling(
        beta_binomial, num_particles=count(32), chunk_size=count(8)
    ),
}


@pytest.mark.parametrize("make", COUNTS.values(), ids=COUNTS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_whole_float_is_a_count(make):
    expected = make(int).log_evidence().log_weights
    for count in (float, np.float32):
        np.testing.assert_array_equal(make(count).log_evidence().log_weights, expected)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_13_whole_floats_in_certify_and_davi():
    certificate = DAIS(beta_binomial, **SHORT).certify(num_datasets=2.0)
    assert type(certificate.num_datasets) is int
    davi = DAVI(num_steps=4.0, num_particles=2.0, step_size=0.1)
    assert (type(davi.num_steps), type(davi.num_particles)) == (int, int)
    assert davi.settings({}, num_steps=6.0).num_steps == 6


def of_argument(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", 20, subsample_size=5) as indices:
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y[indices])


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_13_an_argument_of_numpy_has_mini_batches():
    """Arguments are traced, so that it does not matter to the model which library made them."""
    estimator = DAIS(of_argument, **SHORT, minibatch=True)
    one, other = (estimator.log_evidence(None, y) for y in (DATA, jnp.asarray(DATA)))
    np.testing.assert_array_equal(one.log_weights, other.log_weights)
