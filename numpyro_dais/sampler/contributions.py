# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

r"""
The loss of precision of an uncorrected chain along its path.

Stopped after step :math:`k`, a chain has the weight

.. math::

    \log w_k = \log f_{\beta_k}(u_k) - \log q_0(u_0)
        + \sum_{j=1}^k \log \frac{N(\hat v_j)}{N(v_{j-1})},

unbiased for the constant of :math:`f_{\beta_k}`. The gap :math:`\log \frac1S \sum_s w_k - \frac1S
\sum_s \log w_k` of a few chains, stopped after each step, starts at zero and ends in that of whole
chains; what a step adds to it is the contribution of that step. One may be negative: a step can
mend what the last one has disturbed.
"""

from typing import Any

import jax
from jax import random

from numpyro_dais.sampler.begin import begin_chain
from numpyro_dais.sampler.kernel import UNCORRECTED, ChainState, Noise, Step, forward_step
from numpyro_dais.sampler.loop import scan_steps
from numpyro_dais.sampler.noise import chain_noise
from numpyro_dais.sampler.path import Target, annealed_log_weight, at_start, at_temperature
from numpyro_dais.sampler.settings import Settings

__all__ = ["stopped_log_weights"]


def stopped_log_weights(rng_keys: jax.Array, target: Target, settings: Settings) -> jax.Array:
    """
    Returns the log weights of chains stopped after each step, ``[num_particles, num_steps]``. The
    last are those that :func:`~numpyro_dais.sampler.particles.run_particles` gives.

    :param rng_keys: a key for each particle.
    :param target: what they see.
    :param settings: settings of every chain.
    """
    return jax.vmap(lambda key: _stopped_chain(key, target, settings))(rng_keys)


def _stopped_chain(rng_key: jax.Array, target: Target, settings: Settings) -> jax.Array:
    start_key, chain_key = random.split(rng_key)
    position = target.sample_fn(start_key)
    first = at_start(target.log_densities_fn(position))
    begun = begin_chain(chain_key, position, first)

    def step_fn(noise: Noise, state: ChainState, index: jax.Array, step: Step) -> Any:
        followed_fn = begun.densities_at(index, target.log_densities_fn, target.dynamics_fn)
        state, _ = forward_step(noise, state, step, followed_fn, UNCORRECTED)
        last = at_temperature(target.log_densities_fn(state.position), step.beta)
        return state, annealed_log_weight(first, last, state.log_weight)

    steps = settings.steps(position.shape[-1])
    noise = chain_noise(begun.state, begun.noise_key, len(steps.beta))
    return scan_steps(step_fn, noise, begun.state, steps, "plain")[1]
