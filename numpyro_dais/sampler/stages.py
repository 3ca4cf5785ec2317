# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Uncorrected chains that are taken some steps at a time.

Nobody differentiates the runs that find settings, so the number of steps can be a value, not a
shape: chains of any length, up to that of the arrays which hold their settings, are one program.
Between two calls of it the host may look at the clock, move a progress bar, or be interrupted.
"""

from typing import Any, NamedTuple

import jax
from jax import lax, random
import jax.numpy as jnp

from numpyro_dais.sampler.begin import begin_chain
from numpyro_dais.sampler.kernel import (
    ChainState,
    Noise,
    Step,
    observed_step,
    split_preconditioner,
    with_preconditioner,
)
from numpyro_dais.sampler.noise import noise_of_each
from numpyro_dais.sampler.path import (
    LogDensities,
    Target,
    annealed_log_weight,
    at_start,
    at_temperature,
)
from numpyro_dais.sampler.settings import Settings

__all__ = ["Stage", "advance", "begin"]


class Stage(NamedTuple):
    """
    Chains on their way, along the leading axis.

    :param state: their state; its log weight is the kinetic part.
    :param origin: the log density where they began.
    :param noise_keys: the keys of their noise.
    :param is_start_finite: whether the draws that they began at were finite.
    :param log_ratios: what each step has seen of the log ratio of the path's two ends, ``[num_rows,
        num_particles]``; zeros for steps to come.
    """

    state: ChainState
    origin: LogDensities
    noise_keys: jax.Array
    is_start_finite: jax.Array
    log_ratios: jax.Array


def begin(rng_keys: jax.Array, target: Target, num_rows: int) -> Stage:
    """
    Returns chains before their first step. The keys of a chain's start, momentum and noise are
    those of :func:`~numpyro_dais.sampler.particles.run_particles`.

    :param rng_keys: a key for each of them.
    :param target: what they see.
    :param num_rows: the number of steps that arrays have room for.
    """
    pairs = jax.vmap(random.split)(rng_keys)
    starts = jax.vmap(target.sample_fn)(pairs[:, 0])
    is_finite = jnp.isfinite(starts)
    positions = jnp.where(is_finite, starts, 0.0)
    origin = at_start(jax.vmap(target.log_densities_fn)(positions))
    begun = jax.vmap(begin_chain)(pairs[:, 1], positions, origin)
    log_ratios = jnp.zeros((num_rows, len(rng_keys)), positions.dtype)
    return Stage(begun.state, origin, begun.noise_key, jnp.all(is_finite, -1), log_ratios)


def advance(
    stage: Stage, target: Target, settings: Settings, first: jax.Array, last: jax.Array
) -> tuple[Stage, jax.Array]:
    """
    Returns the chains after some more steps, and the log weights of chains that stop there.

    :param stage: the chains.
    :param target: what they see.
    :param settings: of every chain; those beyond its last step do not matter.
    :param first: the number of steps that were taken, a multiple of the length of a block of noise.
    :param last: the number of steps after this call.
    """
    steps = settings.steps(stage.state.position.shape[-1])
    steps, shared = split_preconditioner(steps)
    blocks = noise_of_each(stage.state, stage.noise_keys, len(stage.log_ratios))

    def block(index: jax.Array, carry: Any) -> Any:
        drawn = blocks.draw_fn(index, blocks.length)
        begun = index * blocks.length

        def body(offset: jax.Array, carry: tuple[ChainState, jax.Array]) -> Any:
            state, log_ratios = carry
            step = with_preconditioner(_row(steps, begun + offset), shared)
            noise = _row(drawn, offset)
            state, seen = jax.vmap(_stepper(step, target))(noise, state)
            return state, lax.dynamic_update_index_in_dim(log_ratios, seen, begun + offset, 0)

        return lax.fori_loop(0, jnp.minimum(blocks.length, last - begun), body, carry)

    num_blocks = (last + blocks.length - 1) // blocks.length
    carry = stage.state, stage.log_ratios
    state, log_ratios = lax.fori_loop(first // blocks.length, num_blocks, block, carry)
    stage = stage._replace(state=state, log_ratios=log_ratios)
    beta = jnp.where(last > 0, settings.betas[jnp.maximum(last - 1, 0)], 0.0)
    end = at_temperature(jax.vmap(target.log_densities_fn)(state.position), beta)
    return stage, annealed_log_weight(stage.origin, end, state.log_weight)


def _stepper(step: Step, target: Target) -> Any:
    return lambda noise, state: observed_step(noise, state, step, target.log_densities_fn)


def _row(tree: Step | Noise, index: jax.Array) -> Any:
    return jax.tree.map(lambda x: lax.dynamic_index_in_dim(x, index, 0, keepdims=False), tree)
