# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

r"""
Where along its path an uncorrected chain loses its precision.

Stopped after step :math:`k`, a chain has the weight

.. math::

    \log w_k = \log f_{\beta_k}(u_k) - \log q_0(u_0) + \sum_{j=1}^k \log \frac{N(\hat v_j)}{N(v_{j-1})},

unbiased for the constant of :math:`f_{\beta_k}`. The gap :math:`\log \frac1S \sum_s w_k - \frac1S \sum_s \log w_k` of a
few chains, stopped after each step, starts at zero and ends in that of whole chains; what a step adds to it is the
contribution of that step. One may be negative: a step can mend what the last one has disturbed.
"""

from functools import partial
from typing import Any

import jax
from jax import random
import jax.numpy as jnp

from numpyro_dais.sampler.chain import batch_key_of
from numpyro_dais.sampler.kernel import (
    UNCORRECTED,
    ChainState,
    Noise,
    Step,
    forward_step,
    split_preconditioner,
    with_preconditioner,
)
from numpyro_dais.sampler.loop import draw_chain_noise, scan_steps
from numpyro_dais.sampler.path import Target, annealed_log_weight, at_start, at_temperature
from numpyro_dais.sampler.settings import Settings

__all__ = ["stopped_log_weights"]


def stopped_log_weights(rng_keys: jax.Array, target: Target, settings: Settings) -> jax.Array:
    """
    Returns the log weights of chains stopped after each step, ``[num_particles, num_steps]``. The last are those
    that :func:`~numpyro_dais.sampler.particles.run_particles` gives.

    :param rng_keys: a key for each particle.
    :param target: what they see.
    :param settings: settings of every chain.
    """
    return jax.vmap(lambda key: _stopped_chain(key, target, settings))(rng_keys)


def _stopped_chain(rng_key: jax.Array, target: Target, settings: Settings) -> jax.Array:
    start_key, chain_key = random.split(rng_key)
    position = target.sample_fn(start_key)
    initial_key, noise_key = random.split(chain_key)
    momentum = random.normal(initial_key, position.shape, position.dtype)
    first = at_start(target.log_densities_fn(position))
    state = ChainState(position, momentum, jnp.zeros_like(first.log_start), None)
    steps, preconditioner = split_preconditioner(settings.steps(position.shape[-1]))

    def step_fn(noise: Noise, state: ChainState, xs: tuple[jax.Array, Step]) -> Any:
        index, step = xs
        step = with_preconditioner(step, preconditioner)
        followed_fn = target.log_densities_fn
        if target.dynamics_fn is not None:
            followed_fn = target.dynamics_fn(batch_key_of(chain_key), index)
        state, _ = forward_step(noise, state, step, followed_fn, UNCORRECTED)
        last = at_temperature(target.log_densities_fn(state.position), step.beta)
        return state, annealed_log_weight(first, last, state.log_weight)

    draw_noise = partial(draw_chain_noise, state, noise_key)
    xs = jnp.arange(len(steps.beta)), steps
    return scan_steps(step_fn, draw_noise, state, xs, "plain")[1]
