# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Runs of particles: compiled programs, blocks, chunks, islands and the progress bar.

All particles go through one compiled program, a number of them at a time. On the host they come in
blocks: blocks of one size share a program, whatever the number of particles. Where there is no
host, under :func:`jax.jit`, :func:`jax.vmap` or :func:`jax.grad`, and where the user has said how
many run at a time or wants a progress bar, one block holds them all, and the program itself takes
them in chunks.
"""

from collections.abc import Callable
from dataclasses import dataclass
import math
from typing import Any

import jax
import jax.numpy as jnp

from numpyro_dais._util.concreteness import is_concrete
from numpyro_dais._util.programs import program
from numpyro_dais._util.progress import progress_callback
from numpyro_dais.model.traced import TracedTarget
from numpyro_dais.sampler.islands import run_islands
from numpyro_dais.sampler.kernel import UNCORRECTED, Transition
from numpyro_dais.sampler.loop import Memory
from numpyro_dais.sampler.particles import (
    Run,
    join_runs,
    particle_keys,
    run_adaptive_particles,
    run_particles,
    run_reverse_particles,
)
from numpyro_dais.sampler.reversible.fixed_point import Ratio
from numpyro_dais.sampler.reversible.gradient import Reversible
from numpyro_dais.sampler.settings import Settings

__all__ = ["RunConfig", "island_size", "num_island_particles", "run", "run_reverse"]

# Particles that run at a time: fewer waste the vector units of a processor, more its cache.
_MIN_CHUNK, _MAX_CHUNK = 128, 1024
# Numbers that a chunk may hold for each array of the data, 128 MiB in float32.
_MAX_CHUNK_WORDS = 2**25
# The paper's on-line rule: step sizes grow by this share above the wanted acceptance, and shrink by
# it below.
_ONLINE_FACTOR = 0.02


@dataclass(frozen=True)
class RunConfig:
    """
    The static configuration of a run, for which programs are compiled.

    :param transition: the kind of transitions.
    :param memory: how the gradient of a chain is taken.
    :param ratio: the damping as a fraction, for ``memory="reversible"``.
    :param anchor_every: for the same, how often a state is stored.
    :param chunk_size: how many particles run at a time; as many as memory surely has room for if
        None.
    :param bar_title: of the progress bar; None for no bar.
    :param online_acceptance: the acceptance that step sizes follow along the run; None if they are
        fixed.
    :param resample_at: inverse temperatures at which particles are resampled.
    :param num_islands: into how many islands they are divided for that.
    """

    transition: Transition = UNCORRECTED
    memory: Memory = "checkpoint"
    ratio: Ratio | None = None
    anchor_every: int | None = None
    chunk_size: int | None = None
    bar_title: str | None = None
    online_acceptance: float | None = None
    resample_at: tuple[float, ...] = ()
    num_islands: int = 1

    def has_islands(self, settings: Settings | None) -> bool:
        """Returns whether particles are resampled on their way; without steps there is none."""
        return bool(self.resample_at) and (settings is None or settings.num_steps > 0)


def run(
    rng_key: jax.Array,
    target: TracedTarget,
    settings: Settings,
    num_particles: int,
    config: RunConfig,
    has_bar: bool = False,
) -> Run:
    """
    Returns particles that have gone from the start to the target.

    :param rng_key: a JAX random key.
    :param target: the target, with its start.
    :param settings: settings of every chain.
    :param num_particles: the number of particles.
    :param config: the configuration.
    :param has_bar: whether this run shows the progress bar, if there is one.
    """
    settings = settings.of_chain()
    has_bar = has_bar and config.bar_title is not None
    chunk_size = config.chunk_size or _default_chunk_size(target)
    if config.has_islands(settings):
        return _run_islands(
            rng_key,
            target,
            settings,
            num_particles=num_particles,
            chunk_size=chunk_size,
            config=config,
        )
    is_whole = has_bar or config.chunk_size is not None or config.online_acceptance is not None
    block = num_particles
    if not is_whole and is_concrete((rng_key, target, settings)):
        block = min(block, chunk_size)
    forward = _forward if settings.num_steps else _forward_without_steps

    def run_block(first: int) -> Run:
        return forward(
            rng_key,
            first,
            target,
            settings,
            num_particles=min(block, num_particles - first),
            chunk_size=chunk_size,
            config=config,
            has_bar=has_bar,
        )

    if block == num_particles:
        return run_block(0)
    return join_runs(map(run_block, range(0, num_particles, block)), num_particles)


@jax.custom_jvp
def _without_gradient(run: Run) -> Run:
    """
    The same run. A derivative through it would leave out what decides between accepting and
    rejecting, and be a wrong number.
    """
    return run


@_without_gradient.defjvp
def _refuse_gradient(*_: Any) -> Any:
    raise NotImplementedError(
        "HAIS and AIS cannot be differentiated: a Metropolis decision has no gradient, and without its part the "
        "derivative would be wrong. Use DAIS, whose chains have none."
    )


@program("config")
def run_reverse(
    rng_key: jax.Array,
    target: TracedTarget,
    settings: Settings,
    positions: jax.Array,
    config: RunConfig,
) -> Run:
    """
    Returns independent particles that have gone from the target back to the start.

    :param rng_key: a JAX random key.
    :param target: the target, with its start.
    :param settings: settings of every chain, as :meth:`Settings.of_chain` gives them.
    :param positions: posterior draws, where the particles begin.
    :param config: the configuration.
    """
    run = run_reverse_particles(
        rng_key, target, settings, positions, config.memory, config.transition
    )
    return _without_gradient(run) if config.transition.is_corrected else run


def island_size(config: RunConfig, num_particles: int) -> int:
    """
    Returns how many particles share an island; fewer islands where there are too few for two each.
    """
    return num_particles // _num_islands(config, num_particles)


def num_island_particles(
    config: RunConfig, settings: Settings | None, num_particles: int, is_planned: bool
) -> int:
    """
    Returns a number of particles that islands can share evenly.

    :param config: the configuration, with resampling.
    :param settings: the settings, if they are known.
    :param num_particles: the number that was asked for, or planned.
    :param is_planned: whether tuning has planned it: it knows nothing of islands, and its budget is
        to be kept.
    """
    if is_planned and settings is not None:
        num_particles = max(int(num_particles / (1 + resampling_cost(config, settings))), 1)
    return num_particles - num_particles % _num_islands(config, num_particles)


def resampling_cost(config: RunConfig, settings: Settings) -> float:
    """
    Returns the cost of all resamplings as a share of that of the steps: each is a density, half a
    gradient.
    """
    return len(config.resample_at) / 2 / settings.num_steps


def _num_islands(config: RunConfig, num_particles: int) -> int:
    return min(config.num_islands, max(num_particles // 2, 1))


def _forward_of(
    rng_key: jax.Array,
    first: jax.Array,
    target: TracedTarget,
    settings: Settings,
    num_particles: int,
    chunk_size: int,
    config: RunConfig,
    has_bar: bool,
) -> Run:
    """The particles from the one with index ``first`` on."""
    if config.online_acceptance is not None:
        rule = _online_rule(config.online_acceptance)
        run = run_adaptive_particles(
            rng_key, target, settings, num_particles, config.transition, rule
        )
        return _without_gradient(run)
    num_chunks = math.ceil(num_particles / chunk_size)
    run = run_particles(
        particle_keys(rng_key, num_particles, first),
        target,
        settings,
        config.memory,
        config.transition,
        chunk_size,
        _on_step(config, settings, num_chunks) if has_bar else None,
        Reversible(config.ratio, anchor_every=config.anchor_every),
    )
    return _without_gradient(run) if config.transition.is_corrected else run


_STATIC = ("num_particles", "chunk_size", "config", "has_bar")
_forward = program(*_STATIC)(_forward_of)
_forward_without_steps = program(*_STATIC, is_brief=True)(_forward_of)


@program("num_particles", "chunk_size", "config")
def _run_islands(
    rng_key: jax.Array,
    target: TracedTarget,
    settings: Settings,
    num_particles: int,
    chunk_size: int,
    config: RunConfig,
) -> Run:
    """Independent islands from the start."""
    num_islands = _num_islands(config, num_particles)
    at_a_time = min(max(chunk_size * num_islands // num_particles, 1), num_islands)
    num_chunks = math.ceil(num_islands / at_a_time)
    return run_islands(
        rng_key,
        target,
        settings,
        config.memory,
        config.resample_at,
        num_particles,
        num_islands,
        at_a_time,
        _on_step(config, settings, num_chunks),
    )


def _on_step(
    config: RunConfig, settings: Settings, num_chunks: int
) -> Callable[[jax.Array], None] | None:
    if config.bar_title is None:
        return None
    return progress_callback(config.bar_title, settings.num_steps, num_chunks)


def _online_rule(target_acceptance: float) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """The next step size, from the last one and its mean acceptance."""

    def rule(step_size: jax.Array, acceptance: jax.Array) -> jax.Array:
        is_high = acceptance > target_acceptance
        return step_size * jnp.where(is_high, 1 + _ONLINE_FACTOR, 1 - _ONLINE_FACTOR)

    return rule


def _default_chunk_size(target: TracedTarget) -> int:
    """As many particles at a time as memory surely has room for."""
    leaves = jax.tree.leaves((target.leaves, target.constants))
    rows = [jnp.size(leaf) // max((*jnp.shape(leaf)[-1:], 1)) for leaf in leaves]
    sizes = [
        jnp.size(leaf) if jnp.ndim(leaf) < 2 else row
        for leaf, row in zip(leaves, rows, strict=True)
    ]
    return max(min(_MAX_CHUNK, _MAX_CHUNK_WORDS // max((*sizes, 1))), _MIN_CHUNK)
