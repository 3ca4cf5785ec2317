# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""A factor that no argument enters gets a note, and no warning."""

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import pytest

import numpyro
import numpyro.distributions as dist
from numpyro.handlers import scale as scaled

from numpyro_dais import DAIS
from numpyro_dais.model.dependence import dependents, is_among
from numpyro_dais.model.problem import Problem
from numpyro_dais.model.traced import trace_target

Y = jnp.array([0.3, -1.1, 2.4])
NUMPY_Y = np.array([0.3, -1.1, 2.4])


def observe(mu, y):
    numpyro.sample("y", dist.Normal(mu, 1.0).expand(jnp.shape(y)).to_event(), obs=y)


def penalised(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    numpyro.factor("penalty", -(mu**2))
    observe(mu, y)


def of_hyperparameters(y, scale):
    """The draws of the latents depend on an argument, and so do their supports; the factor does not."""
    mu = numpyro.sample("mu", dist.Normal(0.0, scale))
    tau = numpyro.sample("tau", dist.Uniform(0.0, scale))
    numpyro.factor("penalty", -(mu**2) * tau)
    observe(mu, y)


def after_the_data(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    observe(mu, y)
    numpyro.factor("penalty", -jnp.abs(mu))


def in_a_plate(y):
    with numpyro.plate("data", len(y)):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        numpyro.factor("penalty", -(mu**2))
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def of_a_global(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    numpyro.factor("others", dist.Normal(mu, 1.0).log_prob(NUMPY_Y).sum())
    observe(mu, y)


def constant(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    numpyro.factor("constant", 12.5)
    observe(mu, y)


def of_a_size(y, size):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    numpyro.factor("size", -size * mu**2)
    observe(mu, y)


def of_a_parameter(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    numpyro.factor("penalty", -numpyro.param("weight", 1.0) * mu**2)
    observe(mu, y)


def two_of_three(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    numpyro.factor("b", mu)
    numpyro.factor("data", -jnp.sum((y - mu) ** 2))
    numpyro.factor("a", -(mu**2))
    observe(mu, y)


def enumerated(y):
    z = numpyro.sample("z", dist.Bernoulli(jax.nn.sigmoid(y[0])), infer={"enumerate": "parallel"})
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    numpyro.factor("penalty", -(mu**2) * z)
    observe(mu, y)


def only_factors(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    numpyro.factor("penalty", -(mu**2))
    numpyro.factor("data", -jnp.sum((y - mu) ** 2))


def of_data(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    numpyro.factor("more", -jnp.sum((y - mu) ** 2))
    observe(mu, y)


def by_compiled_code(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    numpyro.factor("more", jax.jit(lambda mu: jax.lax.map(lambda x: -((x - mu) ** 2), y).sum())(mu))
    observe(mu, y)


def of_the_prior_scale(y, scale):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    numpyro.factor("penalty", -scale * mu**2)
    observe(mu, y)


def of_a_mask(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.handlers.mask(mask=y[0] > 0):
        numpyro.factor("penalty", -(mu**2))
    observe(mu, y)


def of_a_scale(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with scaled(scale=y[0]):
        numpyro.factor("penalty", -(mu**2))
    observe(mu, y)


def of_a_deterministic_site(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    residual = numpyro.deterministic("residual", y - mu)
    numpyro.factor("penalty", -jnp.abs(residual).max())
    observe(mu, y)


def of_a_minibatch(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", 3, subsample_size=2) as indices:
        numpyro.factor("more", -((Y[indices] - mu) ** 2))
    observe(mu, y)


def no_factor(y):
    observe(numpyro.sample("mu", dist.Normal(0.0, 1.0)), y)


FREE = {
    "a penalty": (Problem(penalised, args=(Y,)), ("penalty",)),
    "data by keyword": (Problem(penalised, kwargs={"y": Y}), ("penalty",)),
    "data as NumPy arrays": (Problem(penalised, args=(NUMPY_Y,)), ("penalty",)),
    "hyperparameters": (Problem(of_hyperparameters, args=(Y, 2.0)), ("penalty",)),
    "after the data": (Problem(after_the_data, args=(Y,)), ("penalty",)),
    "in a plate": (Problem(in_a_plate, args=(Y,)), ("penalty",)),
    "a global, which may be data": (Problem(of_a_global, args=(Y,)), ("others",)),
    "a constant": (Problem(constant, args=(Y,)), ("constant",)),
    "a whole number, which is not traced": (Problem(of_a_size, args=(Y, 3)), ("size",)),
    "a parameter": (Problem(of_a_parameter, args=(Y,), params={"weight": 2.0}), ("penalty",)),
    "two of three": (Problem(two_of_three, args=(Y,)), ("b", "a")),
    "an enumerated site": (Problem(enumerated, args=(Y,)), ("penalty",)),
    "a start that is given": (
        Problem(penalised, args=(Y,), start={"mu": dist.Normal(1.0, 2.0)}),
        ("penalty",),
    ),
}
BOUND = {
    "factors only": Problem(only_factors, args=(Y,)),
    "data": Problem(of_data, args=(Y,)),
    "data by keyword": Problem(of_data, kwargs={"y": Y}),
    "data, in compiled code": Problem(by_compiled_code, args=(Y,)),
    "an argument of the prior": Problem(of_the_prior_scale, args=(Y, 2.0)),
    "a float": Problem(of_a_size, args=(Y, 3.0)),
    "a mask": Problem(of_a_mask, args=(Y,)),
    "a scale": Problem(of_a_scale, args=(Y,)),
    "a deterministic site": Problem(of_a_deterministic_site, args=(Y,)),
    "elements of a global": Problem(
        of_a_minibatch, args=(Y,), subsample={"data": jnp.array([0, 2])}
    ),
    "no factor": Problem(no_factor, args=(Y,)),
}


def found(problem):
    return trace_target(problem, random.key(0)).tracing.structure.free_factors


@pytest.mark.parametrize(("problem", "names"), FREE.values(), ids=FREE)
def test_a_factor_that_no_argument_enters_is_found(problem, names):
    assert found(problem) == names


@pytest.mark.parametrize("problem", BOUND.values(), ids=BOUND)
def test_a_factor_that_an_argument_enters_is_not(problem):
    assert found(problem) == ()


SETTINGS = {"num_steps": 8, "num_particles": 64, "step_size": 0.2}
NOTE = "  Note: No array and no float among the model's arguments enters factor 'penalty'. If this "


def notes(evidence):
    lines = repr(evidence).splitlines()
    return [line for line in lines if line.startswith("  Note") and "second look" not in line]


def test_a_note_is_printed_and_is_no_warning():
    """Python warnings are errors in this suite, so none is given."""
    evidence = DAIS(penalised, **SETTINGS).log_evidence(random.key(0), Y)
    (note,) = notes(evidence)
    assert note.startswith(NOTE)
    assert "is not normalised unless you have seen to that: subtract" in note
    assert evidence.remarks == (note.removeprefix("  Note: "),)
    assert evidence.warnings == ()


def test_several_factors_share_a_note():
    evidence = DAIS(two_of_three, **SETTINGS).log_evidence(random.key(0), Y)
    assert ["enters factors 'b', 'a'. If" in note for note in notes(evidence)] == [True]


def test_no_note_without_need():
    evidence = DAIS(of_data, **SETTINGS).log_evidence(random.key(0), Y)
    assert notes(evidence) == []
    assert evidence.remarks == ()


def test_a_density_without_a_model_has_no_note():
    estimator = DAIS(potential_fn=lambda x: x**2, start=dist.Normal(0.0, 1.0), **SETTINGS)
    assert estimator.log_evidence().remarks == ()


def test_a_note_outlives_compilation():
    estimator = DAIS(penalised, **SETTINGS)
    compiled = jax.jit(estimator.log_evidence)(random.key(0), Y)
    assert len(notes(compiled)) == 1
    keys = random.split(random.key(0), 3)
    assert len(notes(jax.vmap(estimator.log_evidence, (0, None))(keys, Y))) == 1


def test_a_model_that_was_seen_before_keeps_its_note():
    for _ in range(2):
        assert len(notes(DAIS(penalised, **SETTINGS).log_evidence(random.key(0), Y))) == 1


def test_the_remedy_of_the_note():
    """The evidence under the normalised prior is the ratio of those with and without the data."""

    def normalised(y):
        observe(numpyro.sample("mu", dist.Normal(0.0, 3**-0.5)), y)

    def without_data():
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        numpyro.factor("penalty", -(mu**2))

    with_data = DAIS(penalised).log_evidence(random.key(0), Y)
    without = DAIS(without_data).log_evidence(random.key(1))
    exact = DAIS(normalised).log_evidence(random.key(2), Y)
    assert notes(without) == []
    difference = with_data - without
    error = np.hypot(difference.standard_error, exact.standard_error)
    assert error < 0.02
    assert abs(float(difference) - float(exact)) < 5 * error
    assert abs(float(with_data) - float(exact)) > 20 * error


def test_dependence_by_hand():
    def fn(a, b):
        c = a + 1.0
        d = c * b
        return c, d, jnp.sin(b), 2.0

    jaxpr = jax.make_jaxpr(fn)(1.0, 2.0).jaxpr
    (a, b), outputs = jaxpr.invars, jaxpr.outvars
    for sources, cuts, expected in (
        ([a], [], [True, True, False, False]),
        ([b], [], [False, True, True, False]),
        ([a, b], [], [True, True, True, False]),
        ([a], [outputs[0]], [False, False, False, False]),
        ([outputs[0]], [], [True, True, False, False]),
        ([], [], [False] * 4),
    ):
        variables = dependents(jaxpr, sources, cuts)
        assert [is_among(output, variables) for output in outputs] == expected
