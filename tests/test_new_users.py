# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Ordinary and awkward uses that once gave a wrong number or a crash; tests are numbered as they were met.

Words of errors are in ``tests/estimators``, handlers and distributions in ``tests/model``.
"""

import os
import pickle
import signal
import subprocess
import sys
import textwrap

import arviz as az
import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, special, stats

import numpyro
from numpyro import handlers
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS, SVI
from numpyro.infer.autoguide import AutoDelta, AutoMultivariateNormal, AutoNormal
from numpyro.optim import Adam

from numpyro_dais import AIS, DAIS, DAVI, HAIS, ImportanceSampling
from tests import cases

Y = jnp.array([1.0, 2.0, 3.0])
EXACT = stats.multivariate_normal.logpdf(Y, np.zeros(3), np.eye(3) + 4.0)


def simple(y=Y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


SHORT = {"num_steps": 4, "step_size": 0.2, "num_particles": 256}


def assert_right(evidence, exact, most=0.05):
    """The estimate is the exact one within five errors, and the error small enough to see."""
    assert evidence.standard_error < most
    assert abs(float(evidence) - exact) < 5 * evidence.standard_error


# 1. Evidence from vmap.


def test_01_evidence_from_vmap():
    """Four keys are four evidences: each as without vmap, printed as a table, with draws of each."""
    keys, estimator = random.split(random.key(0), 4), DAIS(simple, **SHORT)
    batch = jax.vmap(estimator.log_evidence)(keys)
    one = estimator.log_evidence(keys[2])
    assert batch.batch_shape == (4,)
    for name in ("log_evidence", "standard_error", "lower_bound", "lower_bound_error", "ess"):
        assert getattr(batch, name).shape == (4,)
        np.testing.assert_allclose(getattr(batch, name)[2], getattr(one, name), rtol=1e-4)
    np.testing.assert_allclose(batch.khat[2], one.khat, rtol=1e-3)
    assert batch.num_particles == batch.num_weights == 256
    assert np.all(np.abs(batch.log_evidence - EXACT) < 5 * batch.standard_error)
    assert "of each of a batch of 4" in str(batch)
    assert "[3]" in str(batch)
    assert batch.samples(num_samples=50)["mu"].shape == (4, 50)
    assert batch.samples()["mu"].shape == (4, 256)
    mean, error = batch.expectation(lambda draw: draw["mu"])
    assert mean.shape == error.shape == (4,)
    with pytest.raises(TypeError, match="batch"):
        float(batch)
    with pytest.raises(ValueError, match="batch"):
        batch.to_arviz()


def test_01_evidence_from_two_vmaps_of_a_plate():
    """Axes of batches come first, elements of the plate last."""

    def run(key, y):
        return DAIS(
            cases.normal_means, plate="data", num_steps=2, step_size=0.2, num_particles=30
        ).log_evidence(key, y)

    y = jnp.array([[0.5, 1.5, 2.0], [1.0, 0.0, -1.0]])
    both = jax.vmap(jax.vmap(run, (0, None)), (None, 0))
    batch = both(random.split(random.key(1), 4), y)
    assert batch.log_evidence.shape == (2, 4, 3)
    one = run(random.split(random.key(1), 4)[3], y[1])
    np.testing.assert_allclose(batch.log_evidence[1, 3], one.log_evidence, rtol=1e-4)
    assert "batch of 2 x 4, and each of 3 elements" in str(batch)
    assert batch.samples(num_samples=7)["x"].shape == (2, 4, 7, 3)


def test_01_other_out_axes_are_an_error():
    batch = jax.vmap(DAIS(simple, **SHORT).log_evidence, out_axes=-1)(random.split(random.key(0)))
    with pytest.raises(ValueError, match="out_axes=0"):
        _ = batch.log_evidence


# 2. Handlers: tests/model/test_handlers.py.


# 3. and 4. Values for latent sites.


@pytest.mark.parametrize("num_steps", [0, 4])
def test_03_params_that_name_a_latent_site(num_steps):
    estimator = DAIS(simple, params={"mu": 2.0}, num_steps=num_steps, step_size=0.1)
    with pytest.raises(ValueError, match="'mu', which is a sample site"):
        estimator.log_evidence()


def test_03_unknown_params_are_listed():
    def model():
        scale = numpyro.param("scale", 1.0)
        numpyro.sample("x", dist.Normal(0.0, scale))
        numpyro.factor("data", 0.1)

    with pytest.raises(ValueError, match=r"no parameters of the model: \['scales'\].*\['scale'\]"):
        DAIS(model, params={"scales": 2.0}, **SHORT).log_evidence()


def test_03_params_of_a_fit_serve_model_and_guide():
    """A guide's parameter may have the name of a site of the model, and all may be passed on."""

    def guide(y=Y):
        loc = numpyro.param("y", 1.5)  # the name of the observed site
        numpyro.sample("mu", dist.Normal(loc, 1.0))

    params = {"y": jnp.array(1.8)}
    evidence = ImportanceSampling(
        simple, guide=guide, guide_params=params, params=params, num_particles=4000
    ).log_evidence()
    assert_right(evidence, EXACT)


@pytest.mark.parametrize("num_steps", [0, 2])
def test_04_inner_substitute_of_a_latent_site(num_steps):
    def model():
        with handlers.substitute(data={"mu": 2.0}):
            simple()

    with pytest.raises(ValueError, match=r"'mu' gets its value from a handler.*handlers.condition"):
        DAIS(model, num_steps=num_steps, step_size=0.1).log_evidence()


# 5. Gradients of corrected chains.


@pytest.mark.parametrize("estimator", [HAIS, AIS])
@pytest.mark.parametrize("wrap", [lambda fn: fn, jax.jit], ids=["plain", "jit"])
def test_05_gradients_of_corrected_chains(estimator, wrap):
    """A derivative that leaves the decisions out would be wrong: an error names DAIS."""
    hais = estimator(simple, num_steps=2, step_size=0.3, num_particles=100)

    def value(shift):
        return hais.log_evidence(random.key(0), Y + shift).log_evidence

    with pytest.raises(NotImplementedError, match="Use DAIS"):
        jax.grad(wrap(value))(0.0)
    with pytest.raises(NotImplementedError, match="Use DAIS"):
        jax.jvp(wrap(value), (0.0,), (1.0,))
    assert np.isfinite(wrap(value)(0.0))


# 6. Draws and expectations.


@pytest.fixture(scope="module")
def uneven():
    """An importance sampler with an effective sample size far below the number of its particles."""
    return ImportanceSampling(simple, num_particles=6000).log_evidence(random.key(4))


def test_06_arviz_counts_no_draw_twice(uneven):
    """As many draws as the weights are worth; ArviZ finds no more in them."""
    data, ess = uneven.to_arviz(), float(uneven.ess)
    assert ess < 3000
    assert data["posterior"]["mu"].shape == (1, int(ess))
    assert float(az.summary(data)["ess_bulk"]["mu"]) < 1.1 * ess
    attributes = data["posterior"].attrs
    assert attributes["weights_effective_sample_size"] == pytest.approx(ess)
    assert attributes["weights_pareto_khat"] == pytest.approx(uneven.khat)
    assert data["importance"]["log_weight"].shape == (6000,)


def test_06_draws_are_systematic(uneven):
    """Each particle is drawn as often as its share of the draws, up to one."""
    draws = np.asarray(uneven.samples(random.key(1), 5000)["mu"])
    positions = np.asarray(uneven.positions[:, 0])
    counts = np.sum(draws == positions[:, None], axis=1)
    weights = np.exp(np.asarray(uneven.log_weights, np.float64))
    assert np.all(np.abs(counts - 5000 * weights / weights.sum()) < 1.01)


def test_06_expectation(uneven):
    """Posterior moments in closed form, within errors that are right over many runs."""
    variance = 1 / (1 / 4 + 3)
    moments = uneven.expectation(lambda draw: {"first": draw["mu"], "square": draw["mu"] ** 2})
    exact = {"first": 6 * variance, "square": variance + (6 * variance) ** 2}
    for name, value in exact.items():
        assert abs(moments.mean[name] - value) < 5 * moments.standard_error[name]
    keys = random.split(random.key(5), 200)
    batch = jax.vmap(ImportanceSampling(simple, num_particles=400).log_evidence)(keys)
    mean, error = batch.expectation(lambda draw: draw["mu"])
    np.testing.assert_allclose(np.std(mean), np.sqrt(np.mean(error**2)), rtol=0.2)


def test_06_expectation_over_a_plate():
    """Elements have weights of their own; a function must keep them apart."""
    y = jnp.array([0.5, 1.5, 2.0])
    evidence = ImportanceSampling(
        cases.normal_means, plate="data", num_particles=4000
    ).log_evidence(None, y)
    mean, error = evidence.expectation(lambda draw: draw["x"])
    shares = jax.nn.softmax(evidence.log_weights, axis=0)
    np.testing.assert_allclose(mean, jnp.sum(shares * evidence.positions[..., 0], 0), rtol=1e-4)
    assert np.all(error < 0.1)
    with pytest.raises(ValueError, match="first axes are those of the plate"):
        evidence.expectation(lambda draw: draw["x"].sum())


# 7. and 8. Missing data.


def test_07_nan_in_the_data_under_jit():
    """What cannot be an error under jit is a warning of the result, which names the site."""
    data = Y.at[1].set(jnp.nan)
    estimator = DAIS(simple, **SHORT)
    evidence = jax.jit(estimator.log_evidence)(random.key(0), data)
    assert np.isneginf(evidence.log_evidence)
    assert any("'y' has 1 NaN among its data" in text for text in evidence.warnings)
    batch = jax.vmap(estimator.log_evidence, (None, 0))(random.key(0), jnp.stack([Y, data]))
    assert np.isfinite(batch.log_evidence[0])
    assert any("'y' has 1 NaN among its data" in text for text in batch.warnings)


@pytest.mark.parametrize(
    "model", [lambda: simple(None), handlers.block(simple, hide=["y"])], ids=["forgotten", "hidden"]
)
def test_08_no_observed_site(model):
    with pytest.warns(UserWarning, match="no observed site and no factor"):
        evidence = DAIS(model, num_steps=2, step_size=0.1, num_particles=50).log_evidence()
    assert any("no observed site" in text for text in evidence.warnings)


# 9. and 10. Zeros, and other crashes.


def _wall():
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    numpyro.factor("wall", jnp.where(x > 3.0, 0.0, -jnp.inf))


def _half():
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    numpyro.factor("wall", jnp.where(x > 0.4, x, -jnp.inf))


def _moving_bound():
    theta = numpyro.sample("theta", dist.Exponential(1.0))
    numpyro.sample("y", dist.Uniform(0.0, theta), obs=0.7)


def _two_moving_bounds():
    low = numpyro.sample("low", dist.Normal(0.0, 1.0))
    with handlers.mask(mask=jnp.array([True, True, False])):
        numpyro.sample("y", dist.Uniform(low, low + 2.0), obs=jnp.array([0.1, 0.9, 50.0]))


def _slice():
    x = numpyro.sample("x", dist.Exponential(1.0))
    numpyro.factor("slice", jnp.where((x > 0.2) & (x < 0.5), 0.0, -jnp.inf))


HARD = {
    "slice of equal weights": (_slice, np.log(np.exp(-0.2) - np.exp(-0.5)), 0.05),
    "wall at 3": (_wall, stats.norm.logsf(3.0), 0.2),
    "wall at 0.4": (
        _half,
        np.log(integrate.quad(lambda x: np.exp(x) * stats.norm.pdf(x), 0.4, 20)[0]),
        0.05,
    ),
    "Uniform(0, theta)": (_moving_bound, np.log(special.exp1(0.7)), 0.05),
    "Uniform(low, low + 2), masked": (
        _two_moving_bounds,
        np.log(stats.norm.cdf(0.1) - stats.norm.cdf(-1.1)) - 2 * np.log(2.0),
        0.05,
    ),
}


@pytest.mark.parametrize(("model", "exact", "most"), HARD.values(), ids=HARD.keys())
def test_09_hard_constraints_by_default(model, exact, most):
    """Exact zeros are a part of the answer: the right number, and no warning."""
    assert_right(DAIS(model).log_evidence(random.key(0)), exact, most)


@pytest.mark.parametrize("estimator", [DAIS, HAIS, AIS])
def test_10_chains_against_a_wall(estimator):
    """Draws of zero density have weight zero, and no warning is about x64 or step sizes."""
    evidence = estimator(_half, num_steps=3, step_size=0.2, num_particles=4000).log_evidence()
    assert_right(evidence, HARD["wall at 0.4"][1])
    assert evidence.num_nonfinite > 1000
    assert evidence.num_lost == 0


def test_09_likelihood_of_zero_everywhere():
    def model():
        numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.factor("nothing", -jnp.inf)

    with pytest.warns(UserWarning, match="Every weight is zero"):
        evidence = DAIS(model).log_evidence()
    assert np.isneginf(evidence.log_evidence)
    assert "error unknown" in str(evidence)


def test_09_infinite_data():
    with pytest.warns(UserWarning, match="Every weight is zero"):
        evidence = DAIS(simple).log_evidence(None, Y.at[0].set(jnp.inf))
    assert np.isneginf(evidence.log_evidence)


def test_09_empty_data():
    assert_right(DAIS(simple).log_evidence(None, jnp.zeros(0)), 0.0)


def _shell():
    x = numpyro.sample("x", dist.Uniform(-3.0, 3.0).expand([10]).to_event(1))
    radius = jnp.sqrt(jnp.sum(x**2))
    numpyro.factor("shell", dist.Normal(2.0, 0.1).log_prob(radius))


def test_09_shells_of_heavy_tails():
    """A shell in ten dimensions, of which no Gaussian covers much: a number, right or warned."""
    area = 2 * np.pi**5 / special.gamma(5)
    exact = np.log(area * (2.0**9) / 6.0**10)  # up to the curvature of the shell, 10 %
    with pytest.warns(UserWarning, match=r"effective sample size|k-hat"):
        evidence = DAIS(_shell, budget=5_000).log_evidence()
    assert np.isfinite(evidence.log_evidence)
    assert float(evidence) < exact + 2.0


def _thirty_two():
    x = numpyro.sample("x", dist.Normal(0.0, 1.0).expand([32]).to_event(1))
    numpyro.factor("data", -0.5 * jnp.sum((x - 1.0) ** 2))


def test_09_as_many_latents_as_steps():
    """A preconditioner says whether it is one matrix or a diagonal per step."""
    exact = -16 * np.log(2.0) - 32 * 0.25
    evidence = DAIS(_thirty_two, start="prior", num_steps=32, num_particles=500).log_evidence()
    assert abs(float(evidence) - exact) < 5 * evidence.standard_error
    guide = AutoMultivariateNormal(_thirty_two)
    svi = SVI(_thirty_two, guide, Adam(0.01), loss=DAVI(num_steps=32, step_size=0.05))
    assert np.all(np.isfinite(svi.run(random.key(0), 3, progress_bar=False).losses))


def _network():
    from flax import linen as nn

    from numpyro.contrib.module import random_flax_module

    x = jnp.linspace(-1.0, 1.0, 5)[:, None]
    layer = nn.Dense(1)
    net = random_flax_module("net", layer, prior=dist.Normal(0.3, 1.0), input_shape=(1, 1))
    numpyro.sample("y", dist.Normal(net(x)[:, 0], 0.5), obs=jnp.array([0.1, 0.4, -0.2, 0.6, 1.0]))


def test_09_random_flax_module():
    """A layer with sampled weights is a linear regression."""
    x = np.linspace(-1.0, 1.0, 5)
    X = np.stack([np.ones(5), x], axis=1)
    exact = stats.multivariate_normal.logpdf(
        [0.1, 0.4, -0.2, 0.6, 1.0], X @ [0.3, 0.3], 0.25 * np.eye(5) + X @ X.T
    )
    assert_right(ImportanceSampling(_network, num_particles=20_000).log_evidence(), exact)


def test_09_numpy_indices_under_davi():
    """A hierarchical model that indexes with a NumPy array from outside."""
    group = np.array([0, 1, 1, 2])

    def model(y):
        with numpyro.plate("groups", 3):
            b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(b[jnp.asarray(group)], 1.0), obs=y)

    svi = SVI(model, AutoNormal(model), Adam(0.01), loss=DAVI(num_steps=2))
    losses = svi.run(random.key(0), 3, jnp.arange(4.0), progress_bar=False).losses
    assert np.all(np.isfinite(losses))


def test_09_enumerated_sites_that_share_a_dict():
    """NumPyro writes into the dict of a site, and so into that of the other."""
    infer = {"enumerate": "parallel"}

    def model():
        mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
        first = numpyro.sample("first", dist.Bernoulli(0.3), infer=infer)
        second = numpyro.sample("second", dist.Bernoulli(0.6), infer=infer)
        numpyro.sample("y", dist.Normal(mu + first - second, 1.0), obs=0.7)

    shifts = {1.0: 0.3 * 0.4, 0.0: 0.3 * 0.6 + 0.7 * 0.4, -1.0: 0.7 * 0.6}
    density = sum(p * stats.norm.pdf(0.7, shift, np.sqrt(5.0)) for shift, p in shifts.items())
    evidence = ImportanceSampling(model, num_particles=4000).log_evidence()
    assert_right(evidence, np.log(density))


# 11. Ctrl-C.


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_11_interrupt_while_compiling():
    """The interpreter ends without a segmentation fault, after a KeyboardInterrupt."""
    script = textwrap.dedent(
        """
        import os, signal, threading, time
        import jax, jax.numpy as jnp
        from numpyro_dais._util.programs import program

        @program()
        def slow(x):
            for i in range(400):
                x = jnp.sin(x) @ x + jnp.cumsum(i * x, 0)
            return x

        def interrupt(*_, **__):
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()

        jax.monitoring.register_event_duration_secs_listener(
            lambda name, *_, **__: "jaxpr_to_mlir" in name and interrupt()
        )
        x = jnp.ones((4, 4))
        try:
            slow(x)
            print("not interrupted")
        except KeyboardInterrupt:
            print("interrupted")
        """
    )
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120
    )
    assert run.returncode != -signal.SIGSEGV, run.stderr
    assert run.returncode == 0, run.stderr
    assert run.stdout.split()[-1] == "interrupted"


# 12. Draws that a user already has.


@pytest.fixture(scope="module")
def chains():
    mcmc = MCMC(
        NUTS(simple),
        num_warmup=300,
        num_samples=500,
        num_chains=2,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(random.key(0))
    return mcmc


def test_12_draws_of_mcmc(chains):
    """An MCMC object says how many draws it is worth; arrays are what one says of them."""
    estimator = DAIS(simple, num_steps=0, num_particles=2000)
    given = estimator.sandwich(random.key(1), posterior_samples=chains)
    assert_right(given, EXACT)
    assert "1000 posterior draws of 2 chains, taken as worth" in str(given)
    assert given.num_effective_draws < 900
    arrays = chains.get_samples()
    said = estimator.sandwich(random.key(1), posterior_samples=arrays, num_chains=2.0)
    np.testing.assert_allclose(said.standard_error, given.standard_error, rtol=1e-5)
    unsaid = estimator.sandwich(random.key(1), posterior_samples=arrays)
    assert "if the 1000 posterior draws are exact and independent" in str(unsaid)
    assert unsaid.upper_bound_error < given.upper_bound_error
    with pytest.raises(ValueError, match="num_chains must divide"):
        estimator.sandwich(random.key(1), posterior_samples=arrays, num_chains=3)
    with pytest.raises(ValueError, match="call its run first"):
        estimator.sandwich(posterior_samples=MCMC(NUTS(simple), num_warmup=1, num_samples=1))


# 13. and 14. Words: tests/estimators/test_words_of_errors.py. Here, those of a result.


def test_13_samples_wants_a_key(uneven):
    with pytest.raises(ValueError, match=r"JAX random key.*got 100.*num_samples="):
        uneven.samples(100)


# 15. Small comforts of a result.


def test_15_formats_and_differences(uneven):
    other = ImportanceSampling(simple, num_particles=500).log_evidence(random.key(9))
    assert f"{uneven:.3f}" == f"{float(uneven):.3f}"
    factor = uneven - other
    np.testing.assert_allclose(factor.value, uneven.log_evidence - other.log_evidence)
    expected = np.hypot(uneven.standard_error, other.standard_error)
    np.testing.assert_allclose(factor.standard_error, expected, rtol=1e-6)
    assert "log Bayes factor" in str(factor)
    assert f"{factor:.2f}" == f"{float(factor):.2f}"
    shifted = ImportanceSampling(simple, num_particles=500).log_evidence(None, Y + 1)
    with pytest.raises(ValueError, match="same data"):
        _ = uneven - shifted


def test_15_evidence_pickles(uneven):
    again = pickle.loads(pickle.dumps(uneven))
    np.testing.assert_array_equal(again.log_weights, uneven.log_weights)
    assert str(again) == str(uneven)


def test_15_results_stay_with_their_data():
    """On two devices, everything is where the data are."""
    script = textwrap.dedent(
        """
        import jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist
        from numpyro_dais import DAIS

        def model(y):
            mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
            numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)

        second = jax.devices()[1]
        y = jax.device_put(jnp.array([1.0, 2.0, 3.0]), second)
        for arguments in ({}, {"num_steps": 2, "step_size": 0.1, "num_particles": 2000}):
            evidence = DAIS(model, **arguments).log_evidence(None, y)
            numbers = evidence.log_evidence, evidence.standard_error, evidence.ess, evidence.num_lost
            for leaf in (evidence.log_weights, evidence.positions, *numbers):
                assert leaf.devices() == {second}, (arguments, leaf.devices())
            assert evidence.samples()["mu"].devices() == {second}
        """
    )
    flags = "--xla_force_host_platform_device_count=2"
    run = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "XLA_FLAGS": flags},
    )
    assert run.returncode == 0, run.stderr


# 16. An error bar that is known to be wrong is not printed as one.


def test_16_error_that_is_not_known():
    def model():
        x = numpyro.sample("x", dist.Gamma(0.01, 0.01))
        numpyro.factor("data", -0.5 * (x - 1.0) ** 2)

    with pytest.warns(UserWarning, match="draws from the start were not finite"):
        evidence = ImportanceSampling(model, num_particles=2000).log_evidence()
    assert f"± unknown, at least {evidence.standard_error:.2f}" in str(evidence)
    assert not np.isfinite(evidence.standard_error) or evidence.standard_error > 0


def test_13_autodelta_is_refused_in_words():
    with pytest.raises((ValueError, NotImplementedError), match="start at an AutoDelta"):
        DAIS(simple, guide=AutoDelta(simple), guide_params={"mu_auto_loc": 1.0}).log_evidence()
