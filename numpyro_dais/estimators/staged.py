# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Runs of self-tuned chains: one program for every number of steps and of particles, in short calls.
"""

from collections.abc import Callable, Sequence
from functools import partial
import time
from typing import Any, NamedTuple

import jax
from jax import random
import jax.numpy as jnp
import numpy as np

from numpyro_dais._util.concreteness import as_floats
from numpyro_dais._util.devices import Layout, home_of, spread
from numpyro_dais._util.journal import NO_JOURNAL, Journal
from numpyro_dais._util.keys import named_key
from numpyro_dais._util.programs import call_on_devices, program
from numpyro_dais._util.progress import RoundsBar
from numpyro_dais._util.weights import log_mean
from numpyro_dais.model.traced import TracedTarget
from numpyro_dais.sampler.particles import Run, join_runs, particle_keys
from numpyro_dais.sampler.settings import Settings
from numpyro_dais.sampler.stages import Stage, advance, begin
from numpyro_dais.tuning.plan import ISLAND_SIZE, NUM_LOOKS, WIDTH

__all__ = ["StagedRun", "StagedRunner"]

# Who runs blocks, from what they are called with and from their number; None for one device.
LayoutFn = Callable[[Any, int], Layout | None]

# Seconds that a call is to take: Ctrl-C and clocks are looked at in between.
_SECONDS = 2.0
# Dimensions up to which chains without axes of their own are given those of the positions: a
# product with a small matrix is cheaper than a second program.
_MAX_ROTATED_DIMS = 256
# Steps of the first call, whose speed is not known: a multiple of every block of noise.
_FIRST_STEPS = 64


class StagedRun(NamedTuple):
    """
    Particles at the end of their chains, and what they saw on their way.

    :param run: the particles.
    :param log_ratios: the log ratio of both ends of the path at each step, ``[num_steps,
        num_particles]``.
    """

    run: Run
    log_ratios: np.ndarray


class StagedRunner:
    """
    Runs chains of any length up to a largest one.

    :param num_rows: the largest number of steps.
    :param bar: a progress bar, if one is shown.
    :param layout_fn: says who runs the blocks.
    :param journal: keeps what blocks give.
    """

    def __init__(
        self,
        num_rows: int,
        bar: RoundsBar | None = None,
        layout_fn: LayoutFn = lambda *_: None,
        journal: Journal = NO_JOURNAL,
    ) -> None:
        self._bar = bar
        self._layout_fn = layout_fn
        self._journal = journal
        self._known: tuple[Layout, Any, Any] | None = None
        self._share = 1
        self.num_rows = -(-num_rows // _FIRST_STEPS) * _FIRST_STEPS
        self._steps_per_second = 0.0

    def __call__(
        self,
        rng_key: jax.Array,
        target: TracedTarget,
        settings: Settings,
        num_particles: int,
        is_resampled: bool = False,
        is_reported: bool = False,
    ) -> StagedRun:
        """
        Returns particles that have gone from the start to the target.

        :param rng_key: a JAX random key.
        :param target: the target, with its start.
        :param settings: settings of every chain, of at least one step.
        :param num_particles: the number of particles.
        :param is_resampled: whether particles are resampled on their way, in islands each of which
            then has one weight.
        :param is_reported: whether nobody asks what the steps saw, so that it is left out.
        """
        num_steps = settings.num_steps
        padded = _padded(settings.of_chain(), self.num_rows, target.tracing.num_dims)
        every = max(num_steps // NUM_LOOKS, 1) if is_resampled else 0
        width = ISLAND_SIZE if is_resampled else WIDTH
        parts: list[StagedRun] = []
        firsts = np.arange(0, num_particles, width)
        inputs = rng_key, target, padded
        layout = self._layout_fn(inputs, len(firsts))
        copies = [inputs] if layout is None else self._copies(layout, inputs)
        stages = [_empty_stage(rng_key, target, self.num_rows, width)] * len(copies)
        self._share = 1 if layout is None else layout.num_processes
        # Processes that share blocks exchange them once, and not when the clock of each says so.
        at_once = len(firsts) if layout is not None and layout.is_shared else len(copies)

        def run_blocks(items: Sequence[np.ndarray]) -> Sequence[tuple[_Ends, jax.Array]]:
            calls = list(zip(items, stages, copies, strict=False))
            return self._run_blocks(layout, calls, num_steps, every)

        def part_of(first: int, ends: _Ends, log_ratios: np.ndarray) -> StagedRun:
            number = min(width, num_particles - first)
            if is_resampled:
                run = _island_run(ends, settings.step_size)
            else:
                run = _particle_run(ends, number, settings.step_size)
            return StagedRun(run, log_ratios[: 0 if is_reported else num_steps, :number])

        def blocks(begun: int) -> tuple[StagedRun, int]:
            """As many blocks as take a moment, some at least, and where the next one begins."""
            some: list[StagedRun] = []
            ends_at = time.perf_counter() + _SECONDS
            while begun < len(firsts) and (not some or time.perf_counter() < ends_at):
                group = firsts[begun : begun + at_once]
                results = zip(group.tolist(), spread(layout, group, run_blocks), strict=True)
                some += [part_of(first, *result) for first, result in results]
                begun += len(group)
            return _joined(some), begun

        begun = 0
        while begun < len(firsts):
            name = f"{num_steps} steps, blocks from {begun} of {len(firsts)}"
            part, begun = self._journal.stage(name, partial(blocks, begun))
            parts.append(part)
        whole = _joined(parts)
        return whole._replace(run=jax.device_put(whole.run, home_of(layout, inputs)))

    def _copies(self, layout: Layout, inputs: tuple[jax.Array, TracedTarget, Settings]) -> list:
        """The inputs of blocks on each device: the data, which stay the same, once."""
        rng_key, target, padded = inputs
        data = target.leaves, target.constants
        known = self._known
        if known is None or known[0] != layout or not _is_same(known[1], data):
            self._known = known = layout, data, layout.copies(data)
        others = layout.copies((rng_key, target.mixture, padded))
        return [
            (key, TracedTarget(target.tracing, leaves, constants, mixture), settings)
            for (leaves, constants), (key, mixture, settings) in zip(known[2], others, strict=True)
        ]

    def _run_blocks(
        self, layout: Layout | None, calls: Sequence[tuple], num_steps: int, every: int
    ) -> Sequence[tuple["_Ends", jax.Array]]:
        """
        A block on each device, or one.

        :param calls: for each, the index of its first particle, its stage, and the other inputs.
        """
        firsts, stages, inputs = zip(*calls, strict=True)
        taken = 0
        while True:
            wanted = max(int(_SECONDS * self._steps_per_second), _FIRST_STEPS)
            last = min(taken + wanted // _FIRST_STEPS * _FIRST_STEPS, num_steps)
            began = time.perf_counter()
            rest = [np.asarray(number) for number in (taken, last, every)]
            args = [
                (*others, stage, np.asarray(first), *rest)
                for first, stage, others in zip(firsts, stages, inputs, strict=True)
            ]
            if layout is None:
                results = [_advance(*args[0])]
            else:
                results = call_on_devices(_advance, layout.devices, args)
            stages, ends = zip(*results, strict=True)
            jax.block_until_ready(ends[-1].log_weights)
            # The first call compiles, and says nothing of the speed.
            self._steps_per_second = (last - taken) / (time.perf_counter() - began)
            if self._bar is not None:
                num_chains = len(calls) * len(ends[0].log_weights) * self._share
                self._bar.advance((last - taken) * num_chains)
            taken = last
            if taken == num_steps:
                return [(end, stage.log_ratios) for end, stage in zip(ends, stages, strict=True)]


class _Ends(NamedTuple):
    """The particles of a block, and the same as an island with one weight."""

    log_weights: jax.Array
    positions: jax.Array
    is_start_finite: jax.Array
    log_evidence: jax.Array
    position: jax.Array


@program()
def _advance(
    rng_key: jax.Array,
    target: TracedTarget,
    settings: Settings,
    stage: Stage,
    first_particle: jax.Array,
    first: jax.Array,
    last: jax.Array,
    every: jax.Array,
) -> tuple[Stage, _Ends]:
    stage = jax.lax.cond(
        first == 0,
        lambda stage: _begin(rng_key, first_particle, target, *stage.log_ratios.shape),
        lambda stage: stage,
        stage,
    )
    island_key = random.fold_in(named_key(rng_key, "islands"), first_particle)
    resampling_key, choice_key = random.split(island_key)
    stage, log_weights = advance(resampling_key, stage, target, settings, first, last, every)
    finite = jnp.where(jnp.isfinite(log_weights), log_weights, -jnp.inf)
    chosen = random.categorical(choice_key, finite)
    positions = stage.island.state.position
    log_evidence = stage.island.log_evidence + log_mean(finite)
    return stage, _Ends(
        log_weights, positions, stage.is_start_finite, log_evidence, positions[chosen]
    )


def _joined(parts: list[StagedRun]) -> StagedRun:
    """Blocks, or some of them that were joined, as one."""
    runs = [part.run for part in parts]
    return StagedRun(
        join_runs(runs, sum(len(run.log_weights) for run in runs)),
        np.concatenate([part.log_ratios for part in parts], axis=1),
    )


def _particle_run(ends: Any, number: int, step_size: jax.Array) -> Run:
    """The first particles of a block, each with its weight."""
    ends = jax.tree.map(np.asarray, ends)
    has_start, log_weights = ends.is_start_finite[:number], ends.log_weights[:number]
    is_good = has_start & np.isfinite(log_weights)
    parts: dict[str, Any] = {
        "log_weights": np.where(is_good, log_weights, -np.inf),
        "positions": ends.positions[:number],
        "is_start_finite": has_start,
        "is_zero": has_start & np.isneginf(log_weights),
    }
    return Run(**parts, acceptance=None, step_size=step_size)


def _island_run(ends: Any, step_size: jax.Array) -> Run:
    """A block as an island."""
    ends = jax.tree.map(np.asarray, ends)
    parts: dict[str, Any] = {
        "log_weights": ends.log_evidence[None],
        "positions": ends.position[None],
        "is_start_finite": ends.is_start_finite,
        "is_zero": np.zeros(1, bool),  # an island has no zero that is known to be exact
    }
    return Run(**parts, acceptance=None, step_size=step_size)


def _begin(
    rng_key: jax.Array, first: jax.Array | int, target: TracedTarget, num_rows: int, width: int
) -> Stage:
    return begin(particle_keys(rng_key, width, first), target, num_rows)


def _is_same(one: Any, other: Any) -> bool:
    leaves, others = jax.tree.leaves(one), jax.tree.leaves(other)
    return len(leaves) == len(others) and all(x is y for x, y in zip(leaves, others, strict=True))


def _empty_stage(rng_key: jax.Array, target: TracedTarget, num_rows: int, width: int) -> Stage:
    shapes = jax.eval_shape(lambda key: _begin(key, 0, target, num_rows, width), rng_key)

    def zeros(shape: jax.ShapeDtypeStruct) -> jax.Array:
        if jnp.issubdtype(shape.dtype, jax.dtypes.prng_key):
            return jax.random.split(rng_key, shape.shape)
        return jax.device_put(np.zeros(shape.shape, shape.dtype))

    return jax.tree.map(zeros, shapes)


def _padded(settings: Settings, num_rows: int, num_dims: int) -> Settings:
    """
    The settings of a chain with rows to spare, all in one shape, for which there is one program.
    """
    num_steps = settings.num_steps

    def pad(values: Any, shape: tuple[int, ...] = ()) -> jax.Array:
        values = np.broadcast_to(np.asarray(values), (num_steps, *shape))
        rest = np.broadcast_to(values[-1:], (num_rows - num_steps, *shape))
        return as_floats(np.concatenate([values, rest]))

    scales: Any = 1.0 if settings.preconditioner is None else settings.preconditioner
    if np.ndim(scales) == 2:
        scales = scales[:, None]
    basis = settings.basis
    if basis is None and num_dims <= _MAX_ROTATED_DIMS:
        basis = as_floats(np.eye(num_dims))
    return settings._replace(
        betas=pad(settings.betas),
        step_size=pad(settings.step_size),
        damping=pad(settings.damping),
        preconditioner=pad(scales, (1, num_dims)),
        basis=basis,
    )
