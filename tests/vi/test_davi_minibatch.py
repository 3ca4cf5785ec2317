# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""DAVI with mini-batches in its steps."""

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import pytest

import numpyro
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal

from numpyro_dais import DAVI
from tests.cases import TIMES, waiting_times, waiting_times_log_evidence

EXACT = waiting_times_log_evidence()


def fitted(loss, guide):
    svi = SVI(waiting_times, guide, numpyro.optim.Adam(0.01), loss=loss)
    return svi.get_params(svi.init(random.key(0), TIMES))


def test_davi_is_unbiased_for_its_bound():
    """
    One particle, whose last density is a mini-batch's: loss and gradient have the expectation that they
    have with all the data there. Several particles: theirs is exact.
    """
    with pytest.warns(UserWarning, match="does not tighten"):
        davi = DAVI(num_steps=2, step_size=0.2, minibatch=True)
    with pytest.warns(UserWarning, match="does not tighten"):
        several = DAVI(num_steps=2, step_size=0.2, minibatch=True, num_particles=2)
    guide = AutoNormal(waiting_times)
    params = {"rate_auto_loc": jnp.array(0.3), "rate_auto_scale": jnp.array(0.4)}
    assert set(fitted(davi, guide)) == set(params)

    def loss(params, key, is_end_exact):
        problem, scale = davi._problem(key, params, waiting_times, guide, (TIMES,), {})
        assert scale == 1.0
        assert problem.data_plate.is_end_exact is False
        if is_end_exact:
            plate = problem.data_plate._replace(is_end_exact=True)
            davi._problem, original = (
                (lambda *_: (problem.replace(data_plate=plate), 1.0)),
                davi._problem,
            )
            try:
                return davi.loss(key, params, waiting_times, guide, TIMES)
            finally:
                davi._problem = original
        return davi.loss(key, params, waiting_times, guide, TIMES)

    keys = random.split(random.key(1), 2000)

    def both(key):
        return [jax.value_and_grad(loss)(params, key, exact) for exact in (False, True)]

    noisy, exact = jax.jit(jax.vmap(both))(keys)
    for one, other in zip(jax.tree.leaves(noisy), jax.tree.leaves(exact), strict=True):
        difference = np.asarray(one - other, np.float64)
        error = difference.std(ddof=1) / np.sqrt(len(keys))
        assert error > 0
        assert abs(difference.mean()) < 5 * error
    assert np.mean(exact[0]) > -EXACT

    problem, _ = several._problem(keys[0], params, waiting_times, guide, (TIMES,), {})
    assert problem.data_plate.is_end_exact
    draws = davi.posterior(random.key(0), params, waiting_times, guide, TIMES, num_samples=200)
    assert draws["rate"].shape == (200,)


def test_davi_says_which_flag():
    guide = AutoNormal(waiting_times)
    params = fitted(Trace_ELBO(), guide)
    with pytest.raises(NotImplementedError, match=r"'rate' is outside of it.* Pass minibatch=True"):
        DAVI(num_steps=2).loss(random.key(0), params, waiting_times, guide, TIMES)
    with pytest.raises(NotImplementedError, match="same densities at every step; got minibatch="):
        DAVI(num_steps=2, minibatch=True, memory="reversible")
    with pytest.warns(UserWarning, match="does not tighten"):
        davi = DAVI(num_steps=2, minibatch=True)
    with pytest.raises(ValueError, match="needs a subsampled plate"):
        davi.loss(random.key(0), params, waiting_times, guide, TIMES, None)
