# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Independent chains side by side, from the start to the target or back."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import jax
from jax import lax, random
import jax.numpy as jnp
import numpy as np

from numpyro_dais.sampler.chain import (
    ChainResult,
    run_adaptive_chains,
    run_chain,
    run_reverse_chain,
)
from numpyro_dais.sampler.kernel import UNCORRECTED, Step, Transition
from numpyro_dais.sampler.loop import Memory
from numpyro_dais.sampler.lost import Travelled, travel
from numpyro_dais.sampler.path import Target
from numpyro_dais.sampler.reversible.gradient import Reversible, start_scale
from numpyro_dais.sampler.settings import Settings

__all__ = [
    "Run",
    "cut_run",
    "flatten_runs",
    "join_runs",
    "particle_keys",
    "run_adaptive_particles",
    "run_particles",
    "run_reverse_particles",
]


class Run(NamedTuple):
    """
    Particles at the end of their chains, ``[num_particles, ...]`` each.

    :param is_zero: whether each weight is zero because the density is, not for want of digits.
    :param acceptance: mean acceptance of each step, ``[num_steps, ...]``, if chains are corrected.
    :param step_size: the step sizes used.
    """

    log_weights: jax.Array
    positions: jax.Array
    is_start_finite: jax.Array
    is_zero: jax.Array
    acceptance: jax.Array | None
    step_size: jax.Array


def particle_keys(rng_key: jax.Array, num_particles: int, first: jax.Array | int = 0) -> jax.Array:
    """
    Returns a key for each particle, which depends on the index of the particle only, not on their
    number.

    :param rng_key: the key of a run.
    :param num_particles: the number of keys.
    :param first: the index of the first one.
    """
    return jax.vmap(partial(random.fold_in, rng_key))(first + jnp.arange(num_particles))


def run_particles(
    rng_keys: jax.Array,
    target: Target,
    settings: Settings,
    memory: Memory,
    transition: Transition = UNCORRECTED,
    chunk_size: int | None = None,
    on_step: Callable[[jax.Array], None] | None = None,
    reversible: Reversible | None = None,
    is_gradient_masked: bool = True,
) -> Run:
    """
    Returns particles that have gone from the start to the target.

    :param rng_keys: a key for each of them.
    :param target: what they see.
    :param settings: settings of every chain.
    :param memory: how the gradient of a chain is taken.
    :param transition: the kind of transitions.
    :param chunk_size: how many run at a time; all if None.
    :param on_step: called with the index of each step.
    :param reversible: options of ``memory="reversible"``, but for its scale, which is the start's.
    :param is_gradient_masked: whether a particle that is lost, or has no finite gradient, is left
        out of gradients; see :mod:`numpyro_dais.sampler.lost`. Else they are NaN.
    """
    if memory == "reversible":
        reversible = (reversible or Reversible())._replace(scale=start_scale(target.sample_fn))

    def particle(
        key: jax.Array, frozen: jax.Array | None = None, begin: jax.Array | None = None
    ) -> tuple[jax.Array, ChainResult]:
        start_key, chain_key = random.split(key)
        start = target.sample_fn(start_key)
        steps = settings.steps(start.shape[-1])
        position = jnp.where(jnp.isfinite(start), start, 0.0)
        if frozen is not None and begin is not None:
            position = jnp.where(frozen[..., None], begin, position)
            steps = _frozen_steps(steps, frozen)
        end = run_chain(
            chain_key,
            position,
            target.log_densities_fn,
            steps,
            memory,
            transition,
            on_step,
            reversible,
            target.dynamics_fn,
        )
        return start, end

    if transition.is_corrected or not is_gradient_masked:
        if chunk_size is None or chunk_size >= len(rng_keys):
            starts, ends = jax.vmap(particle)(rng_keys)
        else:
            starts, ends = lax.map(particle, rng_keys, batch_size=chunk_size)
        return _run_of(starts, ends, settings.step_size)

    def travelled(key: jax.Array, frozen: jax.Array, begin: jax.Array) -> Travelled:
        start, end = particle(key, frozen, begin)
        return Travelled(start, end.position, end.log_weight)

    shape = jax.eval_shape(target.sample_fn, rng_keys[0])
    run = travel(travelled, rng_keys, shape, chunk_size, memory == "reversible")
    return _run_of(run.start, ChainResult(run.position, run.log_weight, None), settings.step_size)


def _frozen_steps(steps: Step, frozen: jax.Array) -> Step:
    """Settings of a chain that leaves elements where they are."""
    step_size = steps.step_size
    if frozen.ndim and step_size.ndim == 1:
        step_size = step_size[:, None]
    return steps._replace(step_size=jnp.where(frozen, 0.0, step_size))


def join_runs(runs: Iterable[Run], num_weights: int) -> Run:
    """
    Returns blocks of particles with the same settings as one run, in NumPy arrays. Each is copied
    as it comes: the positions of all of them may take most of the memory.

    :param runs: the blocks, one at least, of NumPy arrays; what the last ones have beyond the
        number is left out.
    :param num_weights: the number of their weights, in all.
    """
    positions, filled = None, 0
    blocks: list[Any] = []
    run: Any
    for run in runs:
        run = cut_run(run, num_weights - filled)
        if positions is None:
            positions = np.empty((num_weights, *run.positions.shape[1:]), run.positions.dtype)
        positions[filled : filled + len(run.positions)] = run.positions
        filled += len(run.positions)
        blocks.append(run._replace(positions=None))
    sizes = np.array([len(block.log_weights) for block in blocks])
    others = [block._replace(acceptance=None, step_size=None) for block in blocks]
    joined: Any = jax.tree.map(lambda *parts: np.concatenate(parts), *others)
    acceptance = None
    if blocks[0].acceptance is not None:
        acceptance = _mean_acceptance(np.stack([block.acceptance for block in blocks]), sizes)
    whole: Run = joined._replace(
        positions=positions, acceptance=acceptance, step_size=blocks[0].step_size
    )
    return whole


def flatten_runs(blocks: Run, num_weights: int) -> Run:
    """
    Returns blocks along a leading axis as one run, for values that are traced.

    :param blocks: the blocks, some of which may lie beyond the number.
    :param num_weights: the number of weights that count.
    """
    num_blocks, size = blocks.log_weights.shape[:2]
    sizes = np.clip(num_weights - size * np.arange(num_blocks), 0, size)
    arrays: Any = blocks
    arrays = arrays._replace(acceptance=None, step_size=None)
    flat: Run = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), arrays)
    acceptance = blocks.acceptance
    if acceptance is not None:
        acceptance = _mean_acceptance(acceptance, sizes)
    return flat._replace(acceptance=acceptance, step_size=blocks.step_size[0])


def cut_run(run: Run, num_weights: int) -> Run:
    """
    Returns a run without the particles, or islands, beyond a number.

    :param run: the run.
    :param num_weights: the number of weights to keep; all if there are fewer.
    """
    size = len(run.is_start_finite) // len(run.log_weights)
    return run._replace(
        log_weights=run.log_weights[:num_weights],
        positions=run.positions[:num_weights],
        is_start_finite=run.is_start_finite[: num_weights * size],
        is_zero=run.is_zero[:num_weights],
    )


def _mean_acceptance(acceptance: Any, sizes: np.ndarray) -> Any:
    """The mean over blocks, by the number of their particles."""
    xp: Any = np if isinstance(acceptance, np.ndarray) else jnp
    return xp.tensordot((sizes / sizes.sum()).astype(acceptance.dtype), acceptance, axes=1)


def run_adaptive_particles(
    rng_key: jax.Array,
    target: Target,
    settings: Settings,
    num_particles: int,
    transition: Transition,
    update_fn: Callable[[jax.Array, jax.Array], jax.Array],
) -> Run:
    """
    Returns particles that have gone from the start to the target together, the step size of each
    step set by ``update_fn`` from the last one and its mean acceptance. The other parameters are
    those of :func:`run_particles`.
    """
    start_key, chain_key = random.split(rng_key)
    starts = jax.vmap(target.sample_fn)(random.split(start_key, num_particles))
    begin = jnp.where(jnp.isfinite(starts), starts, 0.0)
    steps = settings.steps(starts.shape[-1])
    ends, step_size = run_adaptive_chains(
        chain_key, begin, target.log_densities_fn, steps, transition, update_fn
    )
    return _run_of(starts, ends, step_size)


def run_reverse_particles(
    rng_keys: jax.Array,
    target: Target,
    settings: Settings,
    positions: jax.Array,
    memory: Memory,
    transition: Transition = UNCORRECTED,
) -> Run:
    """
    Returns particles that have gone from posterior draws, ``positions``, back to the start, with a
    key for each. The other parameters are those of :func:`run_particles`.
    """

    def particle(key: jax.Array, position: jax.Array) -> ChainResult:
        steps = settings.steps(position.shape[-1])
        return run_reverse_chain(
            key,
            position,
            target.log_densities_fn,
            steps,
            memory,
            transition,
            target.dynamics_fn,
        )

    ends = jax.vmap(particle)(rng_keys, positions)
    run = _run_of(positions, ends, settings.step_size)
    # A reverse weight that is not finite counts as infinite: the bound stays a bound.
    log_weights = jnp.where(jnp.isfinite(ends.log_weight), ends.log_weight, jnp.inf)
    return run._replace(log_weights=log_weights)


def _run_of(starts: jax.Array, ends: ChainResult, step_size: jax.Array) -> Run:
    """Returns ends of chains, with weight zero for those that left the representable numbers."""
    is_finite = jnp.isfinite(starts)
    has_start = jnp.all(is_finite, -1)
    is_good = has_start & jnp.isfinite(ends.log_weight)
    acceptance = None if ends.acceptance is None else jnp.mean(ends.acceptance, axis=0)
    return Run(
        log_weights=jnp.where(is_good, ends.log_weight, -jnp.inf),
        positions=ends.position,
        is_start_finite=jnp.all(is_finite, tuple(range(1, is_finite.ndim))),
        is_zero=has_start & jnp.isneginf(ends.log_weight),
        acceptance=acceptance,
        step_size=step_size,
    )
