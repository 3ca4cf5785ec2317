# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Runs of particles: compiled programs, blocks, chunks, islands and the progress bar.

All particles go through one compiled program, a block of them at a time. The size of a block
depends on the target and on the number of particles, and not on the devices that blocks are divided
over: so the same particles have the same bits on one device and on many. Where there is no host,
under :func:`jax.jit`, :func:`jax.vmap` or :func:`jax.grad`, one block holds them all unless devices
are named, and the program itself takes them in chunks.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_dais._util.concreteness import is_concrete
from numpyro_dais._util.devices import Layout, caller, home_of, layout_of, mapped, spread
from numpyro_dais._util.programs import program
from numpyro_dais._util.progress import progress_callback
from numpyro_dais.model.traced import TracedTarget
from numpyro_dais.sampler.islands import run_islands
from numpyro_dais.sampler.kernel import UNCORRECTED, Transition
from numpyro_dais.sampler.loop import Memory
from numpyro_dais.sampler.particles import (
    Run,
    cut_run,
    flatten_runs,
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
# Blocks of a run that takes steps: as many devices share it. A power of two; measured on logistic
# regressions of 10 to 100,000 rows, so many blocks, one after the other on one device, take 0.7 to
# 1.1 times as long as a single one.
_NUM_BLOCKS = 16
# Particles of such a block at least, and rows of data that make up for fewer: per row of data, a
# step of a small block costs what that of a large one does. Measured in the same way.
_MIN_BLOCK, _MIN_BLOCK_ROWS = 16, 2**16
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
    :param devices: what blocks are divided over; None for all that there are.
    :param is_alone: whether a process runs all particles by itself, as where it decides for others.
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
    devices: tuple[jax.Device, ...] | None = None
    is_alone: bool = False

    def layout(self, tree: Any, num_pieces: int | None = None) -> Layout | None:
        """
        Returns who runs the pieces of a run; None for one device, as JAX chooses it.

        :param tree: what the run is called with.
        :param num_pieces: the number of its pieces; many if None.
        """
        return layout_of(self.devices, tree, num_pieces, self.is_alone)

    def of_programs(self) -> "RunConfig":
        """Returns the part of the configuration that programs are compiled for."""
        return replace(self, devices=None, is_alone=False)

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
    config, layout_fn = config.of_programs(), config.layout
    inputs = rng_key, target, settings
    size = _num_in_island(config, settings, num_particles)
    num_units = num_particles // size
    chunk_size = config.chunk_size or _default_chunk_size(target)
    is_traced, is_online = not is_concrete(inputs), config.online_acceptance is not None
    block = num_units
    if not is_online and not (is_traced and layout_fn(inputs) is None):
        block = _block_size(target, num_units, size, settings.num_steps, chunk_size)
    num_blocks = math.ceil(num_units / block)
    layout = None if is_online else layout_fn(inputs, num_blocks)
    num_shown = num_blocks if layout is None else layout.num_own(num_blocks)
    static = {
        "shape": _Block(block, size, chunk_size, num_shown if has_bar else 0),
        "config": config,
    }
    forward = _forward if settings.num_steps else _forward_without_steps
    firsts = block * np.arange(num_blocks)
    if layout is None and num_blocks == 1:
        return forward(firsts[0], *inputs, **static)
    return _run_blocks(layout, forward, firsts, inputs, num_units, static)


def _run_blocks(
    layout: Layout | None,
    program: Callable[..., Run],
    items: Any,
    inputs: tuple,
    num_units: int,
    static: dict[str, Any],
) -> Run:
    """
    Blocks of particles as one run.

    :param layout: who runs them.
    :param program: runs the block of one item.
    :param items: what differs between blocks, along the leading axis.
    :param inputs: what does not.
    :param num_units: the number of particles, or islands, in all.
    :param static: the static arguments of the program.
    """
    if not is_concrete((items, inputs)):
        assert layout is not None
        blocks = mapped(layout, partial(program, **static), items, *inputs)
        return cut_run(flatten_runs(blocks, num_units), num_units)
    runs = spread(layout, items, caller(layout, program, inputs, **static))
    return jax.device_put(join_runs(runs, num_units), home_of(layout, inputs))


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
    config, layout_fn = config.of_programs(), config.layout
    inputs = rng_key, target, settings
    num_draws = block = len(positions)
    if is_concrete((inputs, positions)) or layout_fn((inputs, positions)) is not None:
        chunk_size = config.chunk_size or _default_chunk_size(target)
        block = _block_size(target, num_draws, 1, settings.num_steps, chunk_size)
    num_blocks = math.ceil(num_draws / block)
    firsts = block * np.arange(num_blocks)
    layout = layout_fn((inputs, positions), num_blocks)
    if layout is None and num_blocks == 1:
        return _backward((firsts[0], positions), *inputs, config=config)
    xp: Any = np if is_concrete(positions) else jnp
    rest = [(0, num_blocks * block - num_draws)] + [(0, 0)] * (positions.ndim - 1)
    blocks = xp.pad(positions, rest, mode="edge").reshape(num_blocks, block, *positions.shape[1:])
    items, static = (firsts, blocks), {"config": config}
    return _run_blocks(layout, _backward, items, inputs, num_draws, static)


@program("config")
def _backward(
    item: tuple[jax.Array, jax.Array],
    rng_key: jax.Array,
    target: TracedTarget,
    settings: Settings,
    config: RunConfig,
) -> Run:
    """A block of particles, from the index of the first one and from the positions of all."""
    first, positions = item
    keys = particle_keys(rng_key, len(positions), first)
    memory, transition = config.memory, config.transition
    run = run_reverse_particles(keys, target, settings, positions, memory, transition)
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


def _num_in_island(config: RunConfig, settings: Settings, num_particles: int) -> int:
    """The number of particles that share a weight."""
    return island_size(config, num_particles) if config.has_islands(settings) else 1


class _Block(NamedTuple):
    """
    The shape of a block, which programs are compiled for.

    :param num_units: the number of its weights.
    :param size: the number of particles for each of them: more than one in islands.
    :param chunk_size: how many particles run at a time.
    :param num_shown: the number of blocks that a progress bar shows; 0 if this run has none.
    """

    num_units: int
    size: int
    chunk_size: int
    num_shown: int

    @property
    def at_a_time(self) -> int:
        """The number of islands that run at a time."""
        return min(max(self.chunk_size // self.size, 1), self.num_units)


def _forward_of(
    first: jax.Array,
    rng_key: jax.Array,
    target: TracedTarget,
    settings: Settings,
    shape: _Block,
    config: RunConfig,
) -> Run:
    """The particles, or islands, of a block, from the one with index ``first`` on."""
    if config.online_acceptance is not None:
        rule = _online_rule(config.online_acceptance)
        run = run_adaptive_particles(
            rng_key, target, settings, shape.num_units, config.transition, rule
        )
        return _without_gradient(run)
    if config.has_islands(settings):
        return run_islands(
            rng_key,
            target,
            settings,
            config.memory,
            config.resample_at,
            shape.num_units * shape.size,
            shape.num_units,
            shape.at_a_time,
            _on_step(config, settings, shape, math.ceil(shape.num_units / shape.at_a_time)),
            first,
        )
    run = run_particles(
        particle_keys(rng_key, shape.num_units, first),
        target,
        settings,
        config.memory,
        config.transition,
        shape.chunk_size,
        _on_step(config, settings, shape, math.ceil(shape.num_units / shape.chunk_size)),
        Reversible(config.ratio, anchor_every=config.anchor_every),
    )
    return _without_gradient(run) if config.transition.is_corrected else run


_forward = program("shape", "config")(_forward_of)
_forward_without_steps = program("shape", "config", is_brief=True)(_forward_of)


def _on_step(
    config: RunConfig, settings: Settings, shape: _Block, num_chunks: int
) -> Callable[[jax.Array], None] | None:
    """A function that moves the progress bar, if there is one."""
    if config.bar_title is None or not shape.num_shown:
        return None
    return progress_callback(config.bar_title, settings.num_steps, shape.num_shown * num_chunks)


def _online_rule(target_acceptance: float) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """The next step size, from the last one and its mean acceptance."""

    def rule(step_size: jax.Array, acceptance: jax.Array) -> jax.Array:
        is_high = acceptance > target_acceptance
        return step_size * jnp.where(is_high, 1 + _ONLINE_FACTOR, 1 - _ONLINE_FACTOR)

    return rule


def _default_chunk_size(target: TracedTarget) -> int:
    """As many particles at a time as memory surely has room for."""
    return max(min(_MAX_CHUNK, _MAX_CHUNK_WORDS // _num_rows(target)), _MIN_CHUNK)


def _block_size(
    target: TracedTarget, num_units: int, size: int, num_steps: int, chunk_size: int
) -> int:
    """
    The number of particles, or of islands of a size, in a block: all blocks are alike, and as many
    as can be shared by devices without any loss on one.
    """
    most = chunk_size
    if num_steps:
        least = min(max(_MIN_BLOCK_ROWS // _num_rows(target), _MIN_BLOCK), _MIN_CHUNK)
        most = min(max(math.ceil(num_units * size / _NUM_BLOCKS), least), most)
    num_blocks = math.ceil(num_units / max(most // size, 1))
    return math.ceil(num_units / num_blocks)


def _num_rows(target: TracedTarget) -> int:
    """Numbers that a particle has for the largest array of the data, but for its last axis."""
    leaves = jax.tree.leaves((target.leaves, target.constants))
    rows = [jnp.size(leaf) // max((*jnp.shape(leaf)[-1:], 1)) for leaf in leaves]
    sizes = [
        jnp.size(leaf) if jnp.ndim(leaf) < 2 else row
        for leaf, row in zip(leaves, rows, strict=True)
    ]
    return max((*sizes, 1))
