# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""NumPyro's handlers around a model, and inside of one: the right number, or an error that says why."""

from collections.abc import Callable
from typing import NamedTuple

from jax import random
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import gamma, multivariate_normal, norm

import numpyro
from numpyro import handlers
import numpyro.distributions as dist
from numpyro.infer.reparam import LocScaleReparam

from numpyro_dais import DAIS, ImportanceSampling

Y = np.array([1.0, 2.0, 3.0])
# Priors of two latent sites that are added up: unequal, and not around zero.
MU, NU = (0.0, 2.0), (0.5, 1.0)


def _evidence(mean, variance, y=Y):
    """Returns the log evidence of data around a normal mean, with unit noise."""
    return multivariate_normal.logpdf(y, np.full(3, mean), np.eye(3) + variance)


BOTH = _evidence(0.5, 5.0)
# With one of them fixed at 2: what is left, and with the density of the fixed one.
GIVEN_NU = _evidence(2.0, 4.0)
OBSERVED_NU = GIVEN_NU + norm.logpdf(2.0, *NU)


def _rest(mu, rate=1.0):
    nu = numpyro.sample("nu", dist.Normal(*NU))
    numpyro.sample("y", dist.Normal(mu + nu, rate), obs=jnp.asarray(Y))


def _outermost(handler):
    """Returns a model with a handler around it."""

    def model():
        _rest(numpyro.sample("mu", dist.Normal(*MU)))

    return handler(model)


def _inner(handler):
    """Returns a model with a handler around a part of it."""

    def model():
        mu = numpyro.sample("mu", dist.Normal(*MU))
        handler(lambda: _rest(mu))()

    return model


def _likelihood_only(handler):
    """Returns a model with a handler around its observed site."""

    def model():
        total = numpyro.sample("mu", dist.Normal(*MU)) + numpyro.sample("nu", dist.Normal(*NU))
        with handler:
            numpyro.sample("y", dist.Normal(total, 1.0), obs=jnp.asarray(Y))

    return model


def _with_param():
    """Has a parameter in the place of a latent site."""
    _rest(numpyro.param("mu", 0.3))


def _conjugate(strength):
    probability = numpyro.sample("probability", dist.Beta(strength, 2.0))
    numpyro.sample("success", dist.Bernoulli(probability), obs=1.0)


def _conjugate_inside():
    """A probability that ``collapse`` integrates out by itself, inside of a latent site's reach."""
    strength = numpyro.sample("strength", dist.Gamma(2.0, 1.5))
    with handlers.collapse():
        _conjugate(strength)


RECORDED = handlers.trace(handlers.seed(_outermost(lambda fn: fn), 1)).get_trace()
# A success has the mean probability of a Beta(strength, 2).
COLLAPSED = np.log(quad(lambda c: c / (c + 2) * gamma.pdf(c, 2.0, scale=1 / 1.5), 0.0, np.inf)[0])
SUBSTITUTED = "'nu' gets its value from a handler of the model's own"


class Row(NamedTuple):
    """A model with a handler, and its log evidence or the words of the error."""

    model: Callable
    expected: float | str


TABLE = {
    "seed, outermost": Row(_outermost(lambda fn: handlers.seed(fn, 0)), BOTH),
    "seed, inner": Row(_inner(lambda fn: handlers.seed(fn, 0)), BOTH),
    "substitute, outermost": Row(
        _outermost(lambda fn: handlers.substitute(fn, {"nu": 2.0})), SUBSTITUTED
    ),
    "substitute, inner": Row(_inner(lambda fn: handlers.substitute(fn, {"nu": 2.0})), SUBSTITUTED),
    "condition, outermost": Row(
        _outermost(lambda fn: handlers.condition(fn, {"nu": 2.0})), OBSERVED_NU
    ),
    "condition, inner": Row(_inner(lambda fn: handlers.condition(fn, {"nu": 2.0})), OBSERVED_NU),
    "block of a latent, outermost": Row(
        _outermost(lambda fn: handlers.block(fn, hide=["nu"])), "'nu' is hidden by `handlers.block`"
    ),
    "block of a latent, inner": Row(
        _inner(lambda fn: handlers.block(fn, hide=["nu"])), "'nu' is hidden by `handlers.block`"
    ),
    "mask, outermost": Row(_outermost(lambda fn: handlers.mask(fn, mask=False)), "'mu' is masked"),
    "mask, inner": Row(_inner(lambda fn: handlers.mask(fn, mask=False)), "'nu' is masked"),
    "mask of nothing, outermost": Row(_outermost(lambda fn: handlers.mask(fn, mask=True)), BOTH),
    "mask, of data": Row(
        _likelihood_only(handlers.mask(mask=jnp.array([True, True, False]))),
        multivariate_normal.logpdf(Y[:2], [0.5, 0.5], np.eye(2) + 5.0),
    ),
    "scale, outermost": Row(
        _outermost(lambda fn: handlers.scale(fn, scale=2.0)), "'mu' is under `handlers.scale`"
    ),
    "scale, inner": Row(
        _inner(lambda fn: handlers.scale(fn, scale=2.0)), "'nu' is under `handlers.scale`"
    ),
    # Twice the likelihood is that of half the variance, up to a constant.
    "scale, of data": Row(
        _likelihood_only(handlers.scale(scale=2.0)),
        multivariate_normal.logpdf(Y, np.full(3, 0.5), np.eye(3) / 2 + 5.0)
        - 1.5 * np.log(2 * np.pi)
        - 1.5 * np.log(2),
    ),
    "reparam, outermost": Row(
        _outermost(lambda fn: handlers.reparam(fn, config={"nu": LocScaleReparam(0.0)})), BOTH
    ),
    "reparam, inner": Row(
        _inner(lambda fn: handlers.reparam(fn, config={"nu": LocScaleReparam(0.0)})), BOTH
    ),
    "lift": Row(handlers.lift(_with_param, prior={"mu": dist.Normal(*MU)}), BOTH),
    "do, outermost": Row(_outermost(lambda fn: handlers.do(fn, {"nu": 2.0})), GIVEN_NU),
    "do, inner": Row(_inner(lambda fn: handlers.do(fn, {"nu": 2.0})), GIVEN_NU),
    "trace, outermost": Row(_outermost(handlers.trace), BOTH),
    "trace, inner": Row(_inner(handlers.trace), BOTH),
    "replay, outermost": Row(
        _outermost(lambda fn: handlers.replay(fn, RECORDED)),
        SUBSTITUTED.replace("nu", "mu"),
    ),
    "replay, inner": Row(_inner(lambda fn: handlers.replay(fn, RECORDED)), SUBSTITUTED),
    "collapse, outermost": Row(
        handlers.collapse(lambda: _conjugate(3.0)), "at least one latent sample site"
    ),
    "collapse, inner": Row(_conjugate_inside, COLLAPSED),
    "infer_config, outermost": Row(
        _outermost(lambda fn: handlers.infer_config(fn, config_fn=lambda _: {"note": 1})), BOTH
    ),
    "infer_config, inner": Row(
        _inner(lambda fn: handlers.infer_config(fn, config_fn=lambda _: {"note": 1})), BOTH
    ),
    "scope, outermost": Row(_outermost(lambda fn: handlers.scope(fn, prefix="a")), BOTH),
    "scope, inner": Row(_inner(lambda fn: handlers.scope(fn, prefix="a")), BOTH),
}
# Handlers that leave no data: the number is right, and says nothing.
WITHOUT_DATA = {
    "block of the data, outermost": _outermost(lambda fn: handlers.block(fn, hide=["y"])),
    "block of the data, inner": _inner(lambda fn: handlers.block(fn, hide=["y"])),
    "uncondition, outermost": _outermost(handlers.uncondition),
    "uncondition, inner": _inner(handlers.uncondition),
}


@pytest.mark.parametrize("row", TABLE.values(), ids=TABLE.keys())
def test_02_table_of_handlers(row):
    sampler = ImportanceSampling(row.model, num_particles=40_000)
    if isinstance(row.expected, str):
        with pytest.raises(ValueError, match=row.expected):
            sampler.log_evidence()
        return
    evidence = sampler.log_evidence(random.key(1))
    assert evidence.standard_error < 0.02
    assert abs(float(evidence) - row.expected) < 5 * evidence.standard_error


@pytest.mark.parametrize("model", WITHOUT_DATA.values(), ids=WITHOUT_DATA.keys())
def test_02_handlers_that_hide_the_data(model):
    with pytest.warns(UserWarning, match="no observed site"):
        evidence = ImportanceSampling(model, num_particles=100).log_evidence()
    assert abs(float(evidence)) < 1e-4


def test_02_table_is_complete():
    """Every handler of NumPyro is there, or is none for models."""
    listed = {name.split(",")[0].split()[0] for name in (*TABLE, *WITHOUT_DATA)}
    assert set(handlers.__all__) - listed == set()


def test_02_seed_inside_of_chains():
    """Chains of a seeded model are those of the model itself, for the same key."""
    arguments = {"num_steps": 3, "step_size": 0.2, "num_particles": 20}
    seeded, plain = (
        DAIS(_outermost(wrap), **arguments).log_evidence(random.key(3)).log_weights
        for wrap in (lambda fn: handlers.seed(fn, 0), lambda fn: fn)
    )
    np.testing.assert_array_equal(seeded, plain)
