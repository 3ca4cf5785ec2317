# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

r"""
Uncorrected chains that are resampled on their way: a sequential sampler.

At chosen temperatures the particles of an island are drawn anew, by the weights that they gained
since the last time,

.. math::

    \log w = \log f_{\beta_r}(u_r) - \log f_{\beta_s}(u_s)
        + \sum_{k=s+1}^r \log \frac{N(\hat v_k)}{N(v_{k-1})},

positions and momenta together. The product of the mean weights of all segments is unbiased for
:math:`p(D)`. Particles of an island depend on each other from then on, islands do not: their
estimates are what an error can be taken over.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax import lax, random
import jax.numpy as jnp

from numpyro_dais._util.keys import named_key
from numpyro_dais._util.weights import log_mean, systematic, weight_shares
from numpyro_dais.sampler.begin import begin_chain
from numpyro_dais.sampler.kernel import UNCORRECTED, ChainState, Noise, Step, forward_step
from numpyro_dais.sampler.loop import Memory, scan_steps
from numpyro_dais.sampler.noise import noise_of_each
from numpyro_dais.sampler.particles import Run, particle_keys
from numpyro_dais.sampler.path import (
    LogDensities,
    Target,
    annealed_log_weight,
    at_start,
    at_temperature,
)
from numpyro_dais.sampler.settings import Settings

__all__ = ["Island", "island_log_weights", "resample", "resampling_steps", "run_islands"]


class Island(NamedTuple):
    """
    Particles of an island.

    :param state: their state; its log weight is the kinetic part since the last resampling.
    :param origin: the log density where they were then.
    :param log_evidence: the log of the product of mean weights up to then.
    """

    state: ChainState
    origin: LogDensities
    log_evidence: jax.Array


def run_islands(
    rng_key: jax.Array,
    target: Target,
    settings: Settings,
    memory: Memory,
    resample_at: tuple[float, ...],
    num_particles: int,
    num_islands: int,
    islands_at_a_time: int,
    on_step: Callable[[jax.Array], None] | None = None,
    first: jax.Array | int = 0,
) -> Run:
    """
    Returns islands at the end of their chains: the log estimate of each, and one of its particles
    drawn by weight.

    :param rng_key: a JAX random key.
    :param target: what the particles see.
    :param settings: settings of every chain, of at least one step.
    :param memory: how the gradient is taken, ``"plain"``, ``"products"`` or ``"checkpoint"``.
    :param resample_at: inverse temperatures; see :func:`resampling_steps`.
    :param num_particles: of all islands, a multiple of their number.
    :param num_islands: the number of islands.
    :param islands_at_a_time: how many of them run side by side.
    :param on_step: called with the index of each step.
    :param first: the index of the first one; keys are those of the index.
    """
    size = num_particles // num_islands
    keys_of_particles = particle_keys(rng_key, num_particles, first * size)
    island_keys = particle_keys(named_key(rng_key, "islands"), num_islands, first)
    is_resampling = resampling_steps(settings.betas, resample_at)

    def island(keys: tuple[jax.Array, jax.Array]) -> Any:
        return _run_island(*keys, target, settings, memory, is_resampling, on_step)

    shape = num_islands, size, *keys_of_particles.shape[1:]
    keys = island_keys, keys_of_particles.reshape(shape)
    log_weights, positions, is_start_finite = lax.map(island, keys, batch_size=islands_at_a_time)
    is_start_finite = is_start_finite.reshape(num_particles)
    is_zero = jnp.zeros(log_weights.shape, bool)  # an island has no zero that is known to be exact
    return Run(log_weights, positions, is_start_finite, is_zero, None, settings.step_size)


def resampling_steps(betas: jax.Array, resample_at: tuple[float, ...]) -> jax.Array:
    """
    Returns whether particles are resampled after each step: after the first at or above each of the
    temperatures, but never after the last step, where nothing follows.

    :param betas: inverse temperatures of the steps.
    :param resample_at: inverse temperatures, increasing.
    """
    indices = jnp.searchsorted(betas, jnp.asarray(resample_at, betas.dtype))
    steps = jnp.arange(len(betas))
    return jnp.any(steps[:, None] == indices, axis=1) & (steps < len(betas) - 1)


def _run_island(
    island_key: jax.Array,
    particle_keys: jax.Array,
    target: Target,
    settings: Settings,
    memory: Memory,
    is_resampling: jax.Array,
    on_step: Callable[[jax.Array], None] | None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    resampling_key, choice_key = random.split(island_key)
    # The keys of a particle's start, momentum and noise are those of a chain that runs on its own.
    pairs = jax.vmap(random.split)(particle_keys)
    start_keys, chain_keys = pairs[:, 0], pairs[:, 1]
    starts = jax.vmap(target.sample_fn)(start_keys)
    is_finite = jnp.isfinite(starts)
    is_start_finite = jnp.all(is_finite, axis=-1)
    positions = jnp.where(is_finite, starts, 0.0)
    densities_fn = jax.vmap(target.log_densities_fn)
    origin = at_start(densities_fn(positions))
    begun = jax.vmap(begin_chain)(chain_keys, positions, origin)
    kinetic = jnp.where(is_start_finite, begun.state.log_weight, -jnp.inf)
    state = begun.state._replace(log_weight=kinetic)

    def step_fn(noise: Noise, island: Island, index: jax.Array, step: Step) -> Any:
        state, _ = jax.vmap(
            lambda noise, state: forward_step(
                noise, state, step, target.log_densities_fn, UNCORRECTED
            )
        )(noise, island.state)
        island = island._replace(state=state)
        key = random.fold_in(resampling_key, index)

        def renew(island: Island) -> Island:
            return resample(key, island, at_temperature(densities_fn(state.position), step.beta))

        return lax.cond(is_resampling[index], renew, lambda island: island, island), None

    steps = settings.steps(positions.shape[-1])
    island = Island(state, origin, jnp.zeros((), kinetic.dtype))
    noise = noise_of_each(state, begun.noise_key, len(steps.beta))
    island, _ = scan_steps(step_fn, noise, island, steps, memory, on_step)
    log_weights = island_log_weights(island, densities_fn(island.state.position))
    log_evidence = island.log_evidence + log_mean(log_weights)
    chosen = random.categorical(choice_key, log_weights)
    return log_evidence, island.state.position[chosen], is_start_finite


def island_log_weights(island: Island, last: LogDensities) -> jax.Array:
    """Returns log weights since the last resampling; zero weight for what is not finite."""
    log_weights = annealed_log_weight(island.origin, last, island.state.log_weight)
    return jnp.where(jnp.isfinite(log_weights), log_weights, -jnp.inf)


def resample(
    rng_key: jax.Array, island: Island, last: LogDensities, kept: jax.Array | float = 0.0
) -> Island:
    """
    Returns the particles of an island drawn anew by weight.

    :param rng_key: a JAX random key.
    :param island: the island.
    :param last: the two terms of the log density where its particles are.
    :param kept: a part of each log weight that particles keep: they are drawn by the rest.
    """
    log_weights = island_log_weights(island, last) - kept
    uniform = random.uniform(rng_key, dtype=log_weights.dtype)
    ancestors = systematic(uniform, weight_shares(lax.stop_gradient(log_weights)))
    kept = jnp.broadcast_to(kept, log_weights.shape).astype(log_weights.dtype)
    state, origin, kept = jax.tree.map(lambda x: x[ancestors], (island.state, last, kept))
    state = state._replace(log_weight=kept)
    return Island(state, origin, island.log_evidence + log_mean(log_weights))
