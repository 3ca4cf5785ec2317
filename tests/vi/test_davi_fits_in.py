# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""DAVI with its defaults among NumPyro's and optax's tools."""

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import numpyro
import numpyro.distributions as dist
from numpyro.infer import SVI, Predictive, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal

from numpyro_dais import DAVI

# A handful of particles is enough to see that things fit together.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The effective sample size"),
    pytest.mark.filterwarnings("ignore:k-hat is"),
]

Y = jnp.array([1.0, 3.0, -0.5, 2.0])


def model(y=None):
    loc = numpyro.sample("loc", dist.Normal(0.0, 2.0))
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 0.5))
    numpyro.sample("y", dist.Normal(loc, scale).expand([4]).to_event(1), obs=y)


def test_from_a_plain_elbo_run_to_davi():
    """Two lines: the parameters of one run begin the next; those of the loss are new."""
    guide, davi = AutoNormal(model), DAVI(num_steps=4)
    first = SVI(model, guide, numpyro.optim.Adam(0.05), Trace_ELBO())
    params = first.run(random.key(0), 50, Y, progress_bar=False).params
    svi = SVI(model, davi.guide(guide), numpyro.optim.Adam(0.01), davi)
    state = svi.init(random.key(1), Y, init_params=params)
    for name, value in params.items():
        np.testing.assert_allclose(svi.get_params(state)[name], value, rtol=1e-5)
    result = svi.run(
        random.key(1), 10, Y, init_params=params, progress_bar=False, stable_update=True
    )
    assert np.all(np.isfinite(result.losses))
    assert "davi_step_size" in result.params


def test_optax_schedules_and_predictive():
    guide, davi = AutoNormal(model), DAVI(num_steps=4)
    optimiser = optax.adam(optax.cosine_decay_schedule(0.05, 60))
    svi = SVI(model, davi.guide(guide), optimiser, davi)
    params = svi.run(random.key(0), 60, Y, progress_bar=False).params
    # From the guide itself, which the wrapper passes on, and from draws that chains have refined.
    for draws in (
        davi.guide(guide).sample_posterior(random.key(2), params, sample_shape=(50,)),
        davi.posterior(random.key(2), params, model, guide, Y, num_samples=50),
    ):
        predicted = Predictive(model, draws)(random.key(3))
        assert predicted["y"].shape == (50, 4)
        assert np.all(np.isfinite(predicted["y"]))
    by_guide = Predictive(model, guide=davi.guide(guide), params=params, num_samples=20)
    assert by_guide(random.key(3))["y"].shape == (20, 4)


@pytest.mark.parametrize("chain_method", ["sequential", "vectorized"])
def test_calibration_by_simulation(chain_method):
    calibration = pytest.importorskip("numpyro.infer.calibration")
    davi = DAVI(num_steps=2)
    result = calibration.vsbc_diagnostic(
        random.PRNGKey(0),  # NumPyro 0.22 splits the data of a typed key
        model,
        davi.guide(AutoNormal(model)),
        numpyro.optim.Adam(0.05),
        davi,
        observed_sites=["y"],
        num_simulations=3,
        num_svi_steps=5,
        num_samples=10,
        chain_method=chain_method,
    )
    leaves = [leaf for leaf in jax.tree.leaves(result) if isinstance(leaf, (jax.Array, np.ndarray))]
    assert leaves
    assert all(np.all(np.isfinite(leaf)) for leaf in leaves)
