# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Bad settings: each error states the rule, the value received and the remedy."""

from jax import random
import jax.numpy as jnp
import numpy as np
import pytest

import numpyro
import numpyro.distributions as dist
from numpyro.infer.autoguide import AutoNormal

from numpyro_dais import DAIS, make_settings
from numpyro_dais.estimators import runner
from tests.cases import beta_binomial

START = dist.Normal(jnp.zeros(2), 1.0)
SETTINGS = make_settings([0.5, 1.0], 0.1, 0.9)

CONSTRUCTOR = {
    "not a model": ((3,), {}, TypeError, "model must be a NumPyro model.*got 3"),
    "nothing": ((), {}, ValueError, "either a model or potential_fn="),
    "both": ((beta_binomial,), {"potential_fn": jnp.sum}, ValueError, "and not both"),
    "K < 0": ((beta_binomial,), {"num_steps": -1}, ValueError, "num_steps.*at least 0; got -1"),
    "K not an int": ((beta_binomial,), {"num_steps": 2.5}, ValueError, "num_steps.*got 2.5"),
    "S < 1": ((beta_binomial,), {"num_particles": 0}, ValueError, "num_particles.*1; got 0"),
    "chunk": ((beta_binomial,), {"chunk_size": 0}, ValueError, "chunk_size.*1; got 0"),
    "step size zero": (
        (beta_binomial,),
        {"step_size": 0.0},
        ValueError,
        "step_size.*positive; got 0",
    ),
    "step size nan": ((beta_binomial,), {"step_size": np.nan}, ValueError, "step_size.*got nan"),
    "step size inf": ((beta_binomial,), {"step_size": np.inf}, ValueError, "step_size.*got inf"),
    "step sizes": (
        (beta_binomial,),
        {"num_steps": 3, "step_size": [0.1, 0.1]},
        ValueError,
        r"step_size.*each of the 3 steps; got shape \(2,\)",
    ),
    "damping one": ((beta_binomial,), {"damping": 1.0}, ValueError, r"damping.*\[0, 1\); got 1"),
    "damping negative": ((beta_binomial,), {"damping": -0.1}, ValueError, "damping.*got -0.1"),
    "betas repeated": (
        (beta_binomial,),
        {"schedule": [0.5, 0.5, 1.0]},
        ValueError,
        r"increasing.*betas\[1\] = 0.5 .*Sort",
    ),
    "betas short": (
        (beta_binomial,),
        {"schedule": [0.5, 0.9]},
        ValueError,
        "end in 1.*0.9.*Divide",
    ),
    "schedule length": (
        (beta_binomial,),
        {"schedule": [0.5, 1.0], "num_steps": 3},
        ValueError,
        "2 betas for 3 steps",
    ),
    "memory": ((beta_binomial,), {"memory": "disk"}, ValueError, "memory must be one of.*'disk'"),
    "start": ((beta_binomial,), {"start": "posterior"}, ValueError, "start must be.*'posterior'"),
    "start of numbers": ((beta_binomial,), {"start": {"p": 0.5}}, ValueError, "start must be"),
    "guide and start": (
        (beta_binomial,),
        {"guide": AutoNormal(beta_binomial), "guide_params": {}, "start": START},
        ValueError,
        "either guide= or start=",
    ),
    "guide without parameters": (
        (beta_binomial,),
        {"guide": AutoNormal(beta_binomial)},
        ValueError,
        "guide needs the values.*guide_params=",
    ),
    "parameters without guide": ((beta_binomial,), {"guide_params": {}}, ValueError, "Add guide="),
    "not a guide": ((beta_binomial,), {"guide": 1, "guide_params": {}}, TypeError, "got 1"),
    "potential without start": ((), {"potential_fn": jnp.sum}, ValueError, "chains need start="),
    "potential with plate": (
        (),
        {"potential_fn": jnp.sum, "start": START, "plate": "data"},
        ValueError,
        "need a model",
    ),
    "potential not callable": ((), {"potential_fn": 2.0, "start": START}, TypeError, "got 2.0"),
    "bounded start": (
        (),
        {"potential_fn": jnp.sum, "start": dist.Gamma(1.0, 1.0)},
        ValueError,
        "all reals.*Gamma.*Change variables",
    ),
    "settings and more": (
        (beta_binomial,),
        {"settings": SETTINGS, "step_size": 0.1},
        ValueError,
        "do not give these beside it",
    ),
    "not settings": ((beta_binomial,), {"settings": {}}, TypeError, "`tune`.*got {}"),
}


@pytest.mark.parametrize(
    ("args", "kwargs", "kind", "message"), CONSTRUCTOR.values(), ids=CONSTRUCTOR
)
def test_bad_constructor_arguments(args, kwargs, kind, message):
    with pytest.raises(kind, match=message):
        DAIS(*args, **kwargs)


KEYS = {
    "int": 0,
    "float key": jnp.array([0.0, 1.0]),
    "batch": random.split(random.key(0), 3),
    "data": jnp.ones(10),
}


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_bad_keys(key):
    for method in ("log_evidence", "tune"):
        with pytest.raises(ValueError, match=r"one JAX random key.*jax.random.key\(0\)"):
            getattr(DAIS(beta_binomial), method)(key)


def test_errors_come_before_compilation(monkeypatch):
    """A model with a fault is refused without a run of the chains."""

    def model():
        numpyro.sample("x", dist.ImproperUniform(dist.constraints.real, (), ()))

    estimator = DAIS(model, step_size=0.1)
    monkeypatch.setattr(runner, "_forward", None)
    with pytest.raises(ValueError, match="'x' has an improper prior"):
        estimator.log_evidence()


def test_preconditioner_of_the_wrong_size():
    with pytest.raises(ValueError, match=r"preconditioner must have shape \(1,\)"):
        DAIS(beta_binomial, step_size=0.1, preconditioner=np.ones(2)).log_evidence()


def test_bad_number_of_samples():
    evidence = DAIS(beta_binomial, num_steps=2, num_particles=4, step_size=0.1)
    with pytest.raises(ValueError, match="num_samples must be at least 1; got 0"):
        evidence.log_evidence().samples(num_samples=0)
