# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Models whose evidence is undefined: each error names the site and the remedy."""

from collections.abc import Callable
import re
from typing import Any, NamedTuple

from jax import random
import jax.numpy as jnp
import numpy as np
import pytest

import numpyro
from numpyro import handlers
import numpyro.distributions as dist

from numpyro_dais import DAIS
from tests.cases import CASES, WITH_GAP, grouped_beta_binomial, hierarchy, with_mutable, with_param


def _latent_under_mask():
    with handlers.mask(mask=jnp.array([True, False])):
        numpyro.sample("theta", dist.Normal(jnp.zeros(2), 1.0))


def _latent_masked_by_hand():
    numpyro.sample("theta", dist.Normal(jnp.zeros(2), 1.0).mask(False).to_event(1))


def _latent_under_scale():
    with handlers.scale(scale=3.0):
        numpyro.sample("theta", dist.Normal(0.0, 1.0))


def _improper():
    numpyro.sample("theta", dist.ImproperUniform(dist.constraints.positive, (), ()))


def _improper_in_plate():
    with numpyro.plate("data", 3):
        numpyro.sample("theta", dist.ImproperUniform(dist.constraints.real, (), ()))


def _subsampled():
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", 10, subsample_size=4) as index:
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=jnp.arange(10.0)[index])


def _python_if():
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    if x > 0:
        numpyro.factor("extra", 1.0)


def _discrete_unmarked():
    numpyro.sample("mu", dist.Normal(0.0, 1.0))
    numpyro.sample("z", dist.Bernoulli(0.4))


def _poisson_latent():
    numpyro.sample("mu", dist.Normal(0.0, 1.0))
    numpyro.sample("z", dist.Poisson(2.0), infer={"enumerate": "parallel"})


def _only_discrete():
    numpyro.sample("z", dist.Bernoulli(0.4), infer={"enumerate": "parallel"})


def _no_latent():
    numpyro.sample("y", dist.Normal(0.0, 1.0), obs=0.3)


def _delta_latent():
    numpyro.sample("mu", dist.Normal(0.0, 1.0))
    numpyro.sample("fixed", dist.Delta(1.5))


def _delta_latent_in_plate():
    numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", 3):
        numpyro.sample("fixed", dist.Delta(1.5))


NAN_DATA = jnp.array([0.1, jnp.nan, jnp.nan])


def _nan_data():
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    numpyro.sample("counts", dist.Normal(mu, 1.0), obs=NAN_DATA)


def _nan_numpy_data():
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    numpyro.sample("counts", dist.Normal(mu, 1.0), obs=np.asarray(NAN_DATA))


def _plate_enumerated():
    with numpyro.plate("data", 3):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        z = numpyro.sample("z", dist.Bernoulli(0.4), infer={"enumerate": "parallel"})
        numpyro.sample("y", dist.Normal(mu + z, 1.0), obs=jnp.arange(3.0))


class Fault(NamedTuple):
    """A problem without an answer; the message holds each of ``texts``."""

    model: Callable
    texts: tuple[str, ...]
    args: tuple = ()
    settings: dict[str, Any] = {}  # noqa: RUF012
    error: type[Exception] = ValueError


FAULTS = {
    "mask": Fault(_latent_under_mask, ("'theta' is masked", "Mask observed sites only")),
    "mask_of_distribution": Fault(_latent_masked_by_hand, ("'theta' is masked", "obs_mask")),
    "scale": Fault(_latent_under_scale, ("'theta'", "scale = 3.0", "Scale observed sites only")),
    "improper": Fault(_improper, ("'theta' has an improper prior", "proper start")),
    "improper_in_plate": Fault(_improper_in_plate, ("'theta' has an improper prior",)),
    "subsampled_plate": Fault(
        _subsampled, ("'data' takes 4 of 10", "subsample_size out"), error=NotImplementedError
    ),
    "missing_params": Fault(with_param, ("['loc', 'scale']", "params={...}"), (1.0,)),
    "some_params_missing": Fault(
        with_param, ("['scale']", "params={...}"), (1.0,), {"params": {"loc": 1.0}}
    ),
    "missing_mutable": Fault(with_mutable, ("['state']", "params={...}"), (1.0,)),
    "python_if": Fault(_python_if, ("latent site", "jnp.where")),
    "discrete_unmarked": Fault(_discrete_unmarked, ("'z' is discrete", "infer={'enumerate'")),
    "not_enumerable": Fault(_poisson_latent, ("'z' is discrete (Poisson)", "Sum it out")),
    "only_discrete": Fault(_only_discrete, ("['z'] are all discrete", "log_density")),
    "no_latent": Fault(_no_latent, ("at least one latent", "log_density")),
    "delta": Fault(_delta_latent, ("'fixed' has a Delta", "numpyro.deterministic")),
    "delta_in_plate": Fault(_delta_latent_in_plate, ("'fixed' has a Delta",)),
    "nan_data": Fault(_nan_data, ("'counts' has 2 NaN", "obs_mask")),
    "nan_numpy_data": Fault(_nan_numpy_data, ("'counts' has 2 NaN", "obs_mask")),
    "nan_argument": Fault(hierarchy, ("'y' has 1 NaN",), (WITH_GAP,)),
    "unknown_plate": Fault(
        grouped_beta_binomial,
        ("'rows' is not a plate", "['groups']"),
        CASES["beta_binomial"].args,
        {"plate": "rows"},
    ),
    "site_outside_plate": Fault(
        hierarchy,
        ("'groups'", "'mu' is outside", "leave plate= out"),
        CASES["hierarchy"].args,
        {"plate": "groups"},
    ),
    "plate_with_enumeration": Fault(
        _plate_enumerated,
        ("plate='data'", "['z']", "Leave plate= out"),
        settings={"plate": "data"},
        error=NotImplementedError,
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_errors_name_the_site_and_the_remedy(name):
    """A model whose evidence is undefined is refused before anything is compiled."""
    fault = FAULTS[name]
    dais = DAIS(fault.model, num_steps=2, step_size=0.1, num_particles=4, **fault.settings)
    with pytest.raises(fault.error) as caught:
        dais.log_evidence(random.key(0), *fault.args)
    for text in fault.texts:
        assert text in str(caught.value)


@pytest.mark.parametrize("is_extra_on_odd_runs", [True, False])
def test_sites_that_come_and_go(is_extra_on_odd_runs):
    """Latent sites must be the same in every run of the model."""
    num_runs = 0

    def model():
        nonlocal num_runs
        num_runs += 1
        numpyro.sample("mu", dist.Normal(0.0, 1.0))
        if num_runs % 2 == is_extra_on_odd_runs:
            numpyro.sample("extra", dist.Normal(0.0, 1.0))

    with pytest.raises(ValueError, match=re.escape("'extra' appears in some runs")):
        DAIS(model, num_steps=1, step_size=0.1).log_evidence(random.key(0))
