# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""The reversible mode: exact inversion, exact gradients, and refusals where there is neither."""

from functools import partial

import jax
from jax import lax, random
import jax.numpy as jnp
import numpy as np
import pytest

import numpyro
import numpyro.distributions as dist
from numpyro.infer import SVI
from numpyro.infer.autoguide import AutoNormal

from numpyro_dais import DAIS, HAIS
from numpyro_dais.model.problem import Problem
from numpyro_dais.model.target import make_target
from numpyro_dais.sampler.chain import run_chain, run_reverse_chain
from numpyro_dais.sampler.kernel import ChainState, Step, drift, kick, kinetic_change, refresh
from numpyro_dais.sampler.noise import draw_chain_noise
from numpyro_dais.sampler.path import LogDensities, tempered_gradient
from numpyro_dais.sampler.reversible import passes
from numpyro_dais.sampler.reversible.fixed_point import (
    Ratio,
    Words,
    add,
    decode_momentum,
    decode_position,
    encode_start,
    make_grid,
    momentum_unit,
    multiply,
    num_flush_steps,
    rational_damping,
    undo_multiply,
)
from numpyro_dais.sampler.reversible.gradient import OVERFLOW_NOTE, Reversible, prepare, start_scale
from tests import cases

# Arithmetic


@pytest.mark.parametrize(
    ("damping", "expected"),
    [
        (0.5, (2, 1, 1)),
        (0.9, (10, 9, 9)),
        (0.98, (50, 49, 49)),
        (0.8999999761581421, (10, 9, 9)),
        (np.array([0.5, 0.9]), (64, 32, None)),
    ],
    ids=["half", "0.9", "0.98", "0.9 in float32", "steps differ"],
)
def test_damping_becomes_a_fraction(damping, expected):
    used, ratio = rational_damping(damping)
    assert ratio == expected
    numerators = used * ratio.denominator
    np.testing.assert_allclose(numerators, np.round(numerators), atol=1e-5)
    np.testing.assert_allclose(used, damping, atol=1 / 128)


def test_learned_damping_is_quantised_straight_through():
    used, slope = jax.jit(jax.value_and_grad(lambda gamma: rational_damping(gamma)[0]))(0.9)
    assert (float(used), float(slope)) == (58 / 64, 1.0)
    assert float(jax.jit(lambda gamma: rational_damping(gamma)[0])(0.2)) == 0.5


RATIOS = {
    "0.5": Ratio(2, 1, 1),
    "0.9": Ratio(10, 9, 9),
    "0.98": Ratio(50, 49, 49),
    "learned": Ratio(64, 32, None),
}


@pytest.mark.parametrize("num_bits", [32, 64])
@pytest.mark.parametrize("ratio", RATIOS.values(), ids=RATIOS)
def test_multiplication_is_undone_until_the_word_is_full(ratio, num_bits):
    """With the largest digits there are; one more step would not have fitted."""
    num_steps, largest = num_flush_steps(ratio, num_bits), 0
    for _ in range(num_steps):
        assert largest * ratio.denominator + ratio.denominator - 1 < 2**num_bits
        largest = (largest * ratio.denominator + ratio.denominator - 1) // ratio.smallest
    assert largest * ratio.denominator + ratio.denominator - 1 >= 2**num_bits
    with jax.enable_x64(num_bits == 64):
        key = random.key(num_steps)
        start = random.randint(key, (500,), -(2**29), 2**29, f"int{num_bits}")
        words, digits = start, jnp.zeros(500, f"uint{num_bits}")
        smallest = jnp.asarray(ratio.smallest, words.dtype)
        there, back = (jax.jit(fn, static_argnums=3) for fn in (multiply, undo_multiply))
        for _ in range(num_steps):
            before = words
            words, digits = there(words, digits, smallest, ratio.denominator)
            exact = np.asarray(before, float) * ratio.smallest / ratio.denominator
            assert np.max(np.abs(np.asarray(words, float) - exact)) < ratio.smallest
        for _ in range(num_steps):
            words, digits = back(words, digits, smallest, ratio.denominator)
    np.testing.assert_array_equal(words, start)
    assert not np.any(digits)


def test_words_do_not_wrap():
    largest = jnp.array([2**30 - 1, -(2**30) + 1, 5], jnp.int32)
    unit = momentum_unit(jnp.float32)
    _, is_valid = add(largest, jnp.array([2 * unit, -2 * unit, 2 * unit]), unit)
    assert is_valid.tolist() == [False, False, True]
    words, is_valid = add(largest, jnp.array([jnp.nan, jnp.inf, 1e30]), unit)
    assert not np.any(is_valid)
    np.testing.assert_array_equal(words, largest)


# Round trips


def hierarchical():
    y = jnp.array([2.8, 0.8, -0.3, 0.7, -0.1, 0.1, 1.8, 1.2])
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    tau = numpyro.sample("tau", dist.HalfNormal(1.0))
    with numpyro.plate("schools", len(y)):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(mu + tau * z, 1.3), obs=y)


def decoder():
    """A small VAE: one latent vector per image, each with its own weight."""
    images = jnp.array([[1.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 0.0], [1.0, 1.0, 0.0, 1.0]])
    weights = jnp.array([[0.6, -1.0, 0.3, 0.7], [-0.4, 0.9, 1.3, -0.1]])
    with numpyro.plate("batch", len(images)):
        z = numpyro.sample("z", dist.Normal(jnp.zeros(2), 1).to_event(1))
        logits = jnp.tanh(z) @ weights
        numpyro.sample("x", dist.Bernoulli(logits=logits).to_event(1), obs=images)


def simplex():
    p = numpyro.sample("p", dist.Dirichlet(jnp.array([1.0, 2.0, 3.0, 0.5])))
    numpyro.sample("counts", dist.Multinomial(21, p), obs=jnp.array([3.0, 9.0, 1.0, 8.0]))


def mixture():
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(2)))
    centres = numpyro.sample("centres", dist.Normal(0, 2).expand([2]).to_event(1))
    components = dist.Normal(centres, 0.5)
    y = jnp.array([-1.1, -0.9, -0.4, 1.3, 1.7, 2.0])
    fn = dist.MixtureSameFamily(dist.Categorical(weights), components)
    numpyro.sample("y", fn.expand([6]).to_event(1), obs=y)


def regression():
    X = jnp.array([[0.5, -1.0, 0.2], [1.5, 0.3, -0.4], [-0.7, 0.8, 1.1], [0.1, 0.2, 0.9]])
    cases.regression(X, jnp.array([0.3, -0.2, 1.4, 0.8]))


MODELS = {
    "regression": (regression, None),
    "hierarchical": (hierarchical, None),
    "VAE": (decoder, "batch"),
    "simplex": (simplex, None),
    "mixture": (mixture, None),
}
DAMPINGS = jnp.array([0.5, 0.9, 0.98])
IN_FIFTIETHS = Ratio(50, 25, None)  # all of them in one program


@pytest.fixture(scope="module", params=MODELS)
def problem(request):
    """Log densities, and a start of the right shape (drawing from it would take long to compile)."""
    model, plate = MODELS[request.param]
    target = make_target(Problem(model, plate=plate))
    shape = jax.eval_shape(target.sample_fn, random.key(0)).shape
    position, momentum = random.normal(random.key(3), (2, *shape))
    return target.log_densities_fn, ChainState(position, momentum, jnp.zeros(shape[:-1]), None)


def make_steps(num_steps, step_size, damping, preconditioner=None):
    betas = jnp.linspace(0, 1, num_steps + 1)
    full = partial(jnp.full, num_steps)
    return Step(betas[1:], betas[:-1], full(step_size), full(damping), preconditioner)


@pytest.mark.parametrize("num_steps", [10, 1_000, 15_000])
def test_round_trip_is_exact(problem, num_steps, optimised):
    """Forward and backward in two compiled programs, one chain for each damping."""
    log_densities_fn, state = problem
    jit = partial(jax.jit, compiler_options=optimised)

    def setup(damping):
        steps = make_steps(num_steps, 0.05, damping)
        return prepare(state, log_densities_fn, steps, Reversible(IN_FIFTIETHS))

    @jit
    @jax.vmap
    def there(damping):
        return passes.forward_pass(*setup(damping), random.key(5))

    @jit
    @jax.vmap
    def back(damping, saved, cotangents):
        statics, inputs, grid = setup(damping)
        is_perturbed = jax.tree.map(lambda x: x is inputs.position, inputs)
        rest = random.key(5), saved, cotangents, is_perturbed
        rebuilt = passes.backward_pass(statics, inputs, grid, *rest)
        # With gradients only once: they double the time it takes to compile.
        return rebuilt if num_steps == 1_000 else rebuilt._replace(gradients=None)

    end, saved = there(DAMPINGS)
    assert np.all(np.isfinite(end.log_weight))
    rebuilt = back(DAMPINGS, saved, jax.tree.map(jnp.ones_like, end))
    np.testing.assert_array_equal(rebuilt.start.momentum, saved.start)
    assert not np.any(rebuilt.start.position)
    assert not np.any(rebuilt.start.digits)
    assert np.any(saved.end.position)


# Gradients

NUM_STEPS = 24
DATA = {
    "X": np.array([[0.5, -1.0, 0.2], [1.5, 0.3, -0.4], [-0.7, 0.8, 1.1], [0.1, 0.2, 0.9]]),
    "y": np.array([0.3, -0.2, 1.4, 0.8]),
    "loc": np.array([0.1, -0.4, 0.3]),  # of the start, as of a guide
    "log_scale": np.array([-0.2, 0.1, 0.4]),
    "betas": np.linspace(0, 1, NUM_STEPS + 1)[1:] ** 2,
    "step_size": np.linspace(0.1, 0.2, NUM_STEPS),
    "damping": np.array(0.83),
    "preconditioner": np.array([0.8, 1.0, 1.3]),
}


def make_chain(values):
    """A start, log densities and settings that depend on everything."""

    def log_densities_fn(position):
        fn = dist.Normal(values["loc"], jnp.exp(values["log_scale"]))
        log_start = fn.log_prob(position).sum()
        log_joint = jax.nn.log_sigmoid(values["X"] @ position * values["y"]).sum()
        return LogDensities(log_start, log_joint - 0.5 * jnp.sum(position**2) - log_start)

    noise = random.normal(random.key(1), (3,), values["loc"].dtype)
    position = values["loc"] + jnp.exp(values["log_scale"]) * noise
    previous = jnp.append(0.0, values["betas"][:-1])
    damping = jnp.broadcast_to(values["damping"], NUM_STEPS)
    L = values["preconditioner"][None]
    steps = Step(values["betas"], previous, values["step_size"], damping, L)
    return position, log_densities_fn, steps


def straight_through(value, proxy):
    """A value with the gradient of another."""
    return proxy + lax.stop_gradient(value - proxy)


def quantised_log_weight(values):
    """The chain in words, differentiated by JAX: each rounding has slope 1."""
    position, log_densities_fn, steps = make_chain(values)
    momentum_key, noise_key = random.split(random.key(2))
    momentum = random.normal(momentum_key, position.shape, position.dtype)
    damping, ratio = rational_damping(steps.damping)
    grid = lax.stop_gradient(make_grid(position, None))
    unit, words = momentum_unit(position.dtype), encode_start(momentum)
    state = ChainState(position, momentum, jnp.zeros((), position.dtype), None)
    noise = draw_chain_noise(state, noise_key, jnp.asarray(0), NUM_STEPS).normal

    def advance(carry, xs):
        words, u, v, log_weight = carry
        step, noise = xs
        settings = step.step_size, steps.preconditioner[0]
        gradient_fn = tempered_gradient(log_densities_fn, step.beta)
        v = straight_through(decode_momentum(words.momentum), v)
        middle, _ = add(words.position, drift(v, *settings), grid.unit)
        u = straight_through(decode_position(middle, grid), u + drift(v, *settings))
        change = kick(gradient_fn(u), *settings)
        kicked, _ = add(words.momentum, change, unit)
        v_hat = straight_through(decode_momentum(kicked), v + change)
        end, _ = add(middle, drift(v_hat, *settings), grid.unit)
        u = straight_through(decode_position(end, grid), u + drift(v_hat, *settings))
        numerator = ratio.numerator_at(step.damping, kicked)
        damped, digits = multiply(kicked, words.digits, numerator, ratio.denominator)
        refreshed, _ = add(damped, refresh(noise, jnp.zeros(3), step.damping), unit)
        log_weight = log_weight + kinetic_change(v, v_hat)
        v = refresh(noise, v_hat, step.damping)
        return (Words(end, refreshed, digits), u, v, log_weight), None

    xs = steps._replace(damping=damping, preconditioner=None), noise
    (_, u, _, log_weight), _ = lax.scan(advance, (words, position, momentum, state.log_weight), xs)
    first, last = log_densities_fn(position), log_densities_fn(u)
    return last.log_ratio + last.log_start - first.log_start + log_weight


def log_weight(values, memory, anchor_every=None):
    position, log_densities_fn, steps = make_chain(values)
    if memory == "plain":
        steps = steps._replace(damping=rational_damping(steps.damping)[0])
    options = Reversible(anchor_every=anchor_every)
    end = run_chain(random.key(2), position, log_densities_fn, steps, memory, reversible=options)
    return end.log_weight


def value_and_gradient(fn):
    values = jax.tree.map(lambda x: jnp.asarray(x, float), DATA)
    value, gradients = jax.jit(jax.value_and_grad(fn))(values)
    return {"value": value} | gradients


def assert_all_close(actual, expected, rtol):
    for name in expected:
        scale = np.max(np.abs(expected[name]))
        np.testing.assert_allclose(
            actual[name], expected[name], atol=rtol * scale, rtol=0, err_msg=name
        )
        assert scale > 1e-4, name


@pytest.mark.parametrize("is_double", [False, True], ids=["float32", "x64"])
def test_gradients_are_those_of_the_quantised_chain(is_double):
    with jax.enable_x64(is_double):
        reversible = value_and_gradient(partial(log_weight, memory="reversible"))
        quantised = value_and_gradient(quantised_log_weight)
        plain = value_and_gradient(partial(log_weight, memory="plain"))
    assert_all_close(reversible, quantised, 1e-9 if is_double else 1e-4)
    assert_all_close(reversible, plain, 1e-9 if is_double else 1e-3)


PRECONDITIONERS = {
    "matrix": np.array([[[1.0, 0.0, 0.0], [0.3, 0.8, 0.0], [-0.2, 0.1, 1.2]]]),
    "diagonals": np.linspace(0.5, 1.5, NUM_STEPS)[:, None] * np.array([1.0, 0.7, 1.2]),
}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("kind", PRECONDITIONERS)
def test_gradients_of_preconditioners(kind):
    def run(preconditioner, memory):
        position, log_densities_fn, steps = make_chain(jax.tree.map(jnp.asarray, DATA))
        damping, ratio = rational_damping(0.9)
        steps = steps._replace(
            damping=jnp.broadcast_to(damping, NUM_STEPS), preconditioner=preconditioner
        )
        options = Reversible(ratio)
        return run_chain(
            random.key(2), position, log_densities_fn, steps, memory, reversible=options
        ).log_weight

    gradient = jax.jit(jax.grad(run), static_argnums=1)
    preconditioner = jnp.asarray(PRECONDITIONERS[kind])
    expected = gradient(preconditioner, "plain")
    np.testing.assert_allclose(gradient(preconditioner, "reversible"), expected, rtol=1e-8)


@pytest.mark.usefixtures("x64")
def test_gradients_through_the_estimator():
    """Of float beside integer data, model and guide parameters, under jit, with a rest of steps."""

    def model(X, counts):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
        bias = numpyro.param("bias", 0.2)
        numpyro.sample("y", dist.Poisson(jnp.exp(X @ w + bias)), obs=counts)

    guide = AutoNormal(model)
    X, counts = jnp.asarray(DATA["X"]), jnp.array([1, 0, 3, 2])
    svi = SVI(model, guide, numpyro.optim.Adam(0.1), numpyro.infer.Trace_ELBO())
    params = svi.get_params(svi.init(random.key(0), X, counts))

    def bound(params, X, key, memory):
        estimator = DAIS(
            model,
            num_steps=67,
            num_particles=2,
            step_size=0.05,
            damping=0.9,
            guide=guide,
            guide_params=params,
            params={"bias": params["bias"]},
            memory=memory,
        )
        return estimator.log_evidence(key, X, counts).log_evidence

    def gradient(memory):
        return jax.jit(jax.grad(partial(bound, memory=memory), (0, 1)))(params, X, random.key(1))

    actual, expected = gradient("reversible"), gradient("plain")
    assert len(jax.tree.leaves(actual)) == 4
    for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-7, atol=1e-9)


def test_inside_svi_update(regression_data):
    class NegativeBound(numpyro.infer.elbo.ELBO):
        def loss(self, rng_key, param_map, model, guide, *args):
            estimator = DAIS(
                model,
                num_steps=8,
                num_particles=2,
                step_size=0.05,
                guide=guide,
                guide_params=param_map,
                memory="reversible",
            )
            return -estimator.log_evidence(rng_key, *args).log_evidence

    X, y = (jnp.array(x) for x in regression_data)
    guide = AutoNormal(cases.regression)
    svi = SVI(cases.regression, guide, numpyro.optim.Adam(0.02), NegativeBound())
    result = svi.run(random.key(0), 60, X, y, progress_bar=False)
    losses = np.asarray(result.losses)
    assert np.all(np.isfinite(losses))
    assert losses[-10:].mean() < losses[:10].mean() - 1


# Scale and range


def test_words_follow_the_scale_of_the_start():
    """Parameters of size 1e3 and 1e-3 side by side."""
    scale = jnp.array([1e3, 1e-3, 1.0])

    def model(X, y):
        w = numpyro.sample("w", dist.Normal(0, scale).to_event(1))
        numpyro.sample("y", dist.Normal(X @ (w / scale), 0.5), obs=y)

    weights = {}
    for memory in ("plain", "reversible"):
        estimator = DAIS(
            model,
            num_steps=96,
            num_particles=128,
            step_size=0.1,
            preconditioner=scale,
            memory=memory,
        )
        data = DATA["X"].astype(np.float32), DATA["y"].astype(np.float32)
        weights[memory] = estimator.log_evidence(random.key(1), *data).log_weights
    np.testing.assert_allclose(weights["reversible"], weights["plain"], atol=2e-3)


def test_start_far_out_in_its_tails():
    """Far out a unit is no finer than floating point, and the range reaches back to the centre."""
    grid = make_grid(jnp.array([0.0, 3e6, -3e6]), jnp.ones(3))
    np.testing.assert_array_equal(jnp.log2(grid.unit) % 1, 0)
    position, is_valid = add(jnp.zeros(3, jnp.int32), -grid.origin, grid.unit)
    assert np.all(is_valid)
    np.testing.assert_allclose(decode_position(position, grid), 0.0, atol=0.25)
    scale = start_scale(lambda key: random.cauchy(key, (1000,)) * jnp.array(50.0))
    assert 50 / 4 < float(jnp.median(scale)) < 50 * 4


def test_overflow_is_reported():
    estimator = DAIS(regression, num_steps=40, num_particles=4, step_size=1e4, memory="reversible")
    with pytest.warns(UserWarning, match="weights were not finite"):
        evidence = estimator.log_evidence()
    assert evidence.num_nonfinite == 4
    assert OVERFLOW_NOTE in evidence.warnings


def test_weights_are_unbiased():
    estimator = DAIS(
        cases.gamma_poisson,
        num_steps=16,
        num_particles=4_000,
        step_size=0.2,
        damping=0.87,
        memory="reversible",
    )
    evidence = estimator.log_evidence(random.key(2))
    weights = np.exp(evidence.log_weights - cases.gamma_poisson_log_evidence())
    error = weights.std(ddof=1) / np.sqrt(len(weights))
    assert abs(weights.mean() - 1) < 5 * error
    assert error < 0.05
    np.testing.assert_allclose(evidence.settings.damping, 47 / 54)


# The self-check


def break_rounding(monkeypatch):
    """Lets the backward pass be off by one unit of the momentum, every step."""

    def off_by_one(*args):
        words, digits = undo_multiply(*args)
        return words + 1, digits

    monkeypatch.setattr(passes, "undo_multiply", off_by_one)


def gradient_of_anchored(anchor_every=None):
    values = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), DATA)
    fn = partial(log_weight, memory="reversible", anchor_every=anchor_every)
    gradients = jax.jit(jax.vmap(jax.grad(fn)))(jax.tree.map(lambda x: jnp.stack([x, x]), values))
    jax.effects_barrier()
    return gradients


def test_a_wrong_start_poisons_the_gradient(monkeypatch):
    break_rounding(monkeypatch)
    with pytest.warns(UserWarning, match="bit for bit.*anchor_every=") as record:
        gradients = gradient_of_anchored()
    assert len(record) == 1
    assert all(np.all(np.isnan(x)) for x in jax.tree.leaves(gradients))


def test_anchors_bound_the_damage(monkeypatch):
    expected = gradient_of_anchored(anchor_every=6)
    break_rounding(monkeypatch)
    repaired = gradient_of_anchored(anchor_every=6)
    for name in expected:
        scale = np.max(np.abs(expected[name]))
        np.testing.assert_allclose(repaired[name], expected[name], atol=1e-3 * scale, rtol=0)
        assert np.any(repaired[name] != expected[name]), name


# Refusals

REFUSALS = {
    "zero damping": (DAIS, {"damping": 0.0}, ValueError, "between 1/64 and 63/64.*got 0.0"),
    "large damping": (DAIS, {"damping": 0.999}, ValueError, "got 0.999.*memory='checkpoint'"),
    "Metropolis": (HAIS, {}, TypeError, "'memory': a Metropolis decision has no gradient"),
    "anchors": (DAIS, {"memory": "plain", "anchor_every": 5}, ValueError, "anchor_every= has no"),
    "anchor count": (DAIS, {"anchor_every": 0}, ValueError, "anchor_every must be .* got 0"),
}


@pytest.mark.parametrize(("kind", "kwargs", "error", "message"), REFUSALS.values(), ids=REFUSALS)
def test_refusals(kind, kwargs, error, message):
    with pytest.raises(error, match=message):
        kind(cases.beta_binomial, **({"memory": "reversible"} | kwargs))


def test_second_derivatives_are_refused():
    values = jax.tree.map(lambda x: jnp.asarray(x, float), DATA)

    def slope(damping):
        fn = lambda y: log_weight(values | {"y": y, "damping": damping}, "reversible")  # noqa: E731
        return jax.grad(fn)(values["y"]).sum()

    with pytest.raises(NotImplementedError, match="first derivatives only"):
        jax.eval_shape(jax.grad(slope), values["damping"])


def test_reverse_chains_are_those_of_other_modes():
    position, log_densities_fn, steps = make_chain(jax.tree.map(jnp.asarray, DATA))

    @partial(jax.jit, static_argnums=0)
    def log_weight(memory):
        key = random.key(2)
        return run_reverse_chain(key, position, log_densities_fn, steps, memory).log_weight

    assert float(log_weight("reversible")) == float(log_weight("checkpoint"))
