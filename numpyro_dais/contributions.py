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
import numpy as np
from scipy.special import logsumexp

from numpyro_dais.chain import batch_key_of, draw_chain_noise, scan_steps
from numpyro_dais.evidence import Evidence
from numpyro_dais.kernel import (
    UNCORRECTED,
    ChainState,
    Noise,
    Step,
    forward_step,
    split_preconditioner,
    with_preconditioner,
)
from numpyro_dais.path import annealed_log_weight, at_start, at_temperature
from numpyro_dais.problem import Problem
from numpyro_dais.settings import Settings
from numpyro_dais.target import Target, make_target

__all__ = ["gap_contributions", "stopped_log_weights"]

_NUM_PARTICLES = 256


def gap_contributions(evidence: Evidence, num_particles: int = _NUM_PARTICLES) -> np.ndarray:
    """
    Returns what each step adds to the gap between log evidence and lower bound, in nats, ``[num_steps]``; of
    fresh particles with the settings of the run, and a key of their own. NaN where one was not finite.

    :param evidence: the result of an uncorrected estimator, without a plate.
    :param num_particles: how many particles run again.
    """
    if evidence.acceptance is not None:
        raise NotImplementedError(
            f"Contributions to the gap are those of uncorrected chains; got an evidence of {evidence.method}. Look at "
            "evidence.acceptance, or use DAIS."
        )
    rng_keys = random.split(random.key(0), num_particles)
    stopped = _stopped(rng_keys, evidence.problem, evidence.settings.of_chain())
    log_weights = np.asarray(stopped, np.float64)
    with np.errstate(invalid="ignore"):
        gaps = logsumexp(log_weights, axis=0) - np.log(num_particles) - np.mean(log_weights, axis=0)
    return np.diff(gaps, prepend=0.0)


def stopped_log_weights(rng_keys: jax.Array, target: Target, settings: Settings) -> jax.Array:
    """
    Returns the log weights of chains stopped after each step, ``[num_particles, num_steps]``. The last are those
    that :func:`~numpyro_dais.particles.run_particles` gives.

    :param rng_keys: a key for each particle.
    :param target: what they see.
    :param settings: settings of every chain.
    """
    return jax.vmap(lambda key: _stopped_chain(key, target, settings))(rng_keys)


@jax.jit
def _stopped(rng_keys: jax.Array, problem: Problem, settings: Settings) -> jax.Array:
    return stopped_log_weights(rng_keys, make_target(problem), settings)


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
