# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Runs of self-tuned chains: one program for every number of steps and of particles, in short calls.
"""

from functools import partial
import time
from typing import Any, NamedTuple

import jax
from jax import random
import jax.numpy as jnp
import numpy as np

from numpyro_dais._util.concreteness import as_floats, committed_leaf, put_beside
from numpyro_dais._util.journal import NO_JOURNAL, Journal
from numpyro_dais._util.keys import named_key
from numpyro_dais._util.programs import program
from numpyro_dais._util.progress import RoundsBar
from numpyro_dais._util.weights import log_mean
from numpyro_dais.model.traced import TracedTarget
from numpyro_dais.sampler.particles import Run, join_runs, particle_keys
from numpyro_dais.sampler.settings import Settings
from numpyro_dais.sampler.stages import Stage, advance, begin
from numpyro_dais.tuning.plan import ISLAND_SIZE, NUM_LOOKS, WIDTH

__all__ = ["StagedRun", "StagedRunner"]

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
    :param journal: keeps what each block gives.
    """

    def __init__(
        self, num_rows: int, bar: RoundsBar | None = None, journal: Journal = NO_JOURNAL
    ) -> None:
        self._bar = bar
        self._journal = journal
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
        parts = []
        width = ISLAND_SIZE if is_resampled else WIDTH
        empty = _empty_stage(rng_key, target, self.num_rows, width)

        def block(first: int) -> StagedRun:
            numbers = first, num_steps, every
            ends, log_ratios = self._run_block(rng_key, target, padded, empty, *numbers)
            number = min(width, num_particles - first)
            if is_resampled:
                run = _island_run(ends, settings.step_size)
            else:
                run = _particle_run(ends, number, settings.step_size)
            return StagedRun(run, log_ratios[: 0 if is_reported else num_steps, :number])

        def blocks(first: int) -> tuple[StagedRun, int]:
            """As many blocks as take a moment, one at least, and where the next one begins."""
            some: list[StagedRun] = []
            ends_at = time.perf_counter() + _SECONDS
            while first < num_particles and (not some or time.perf_counter() < ends_at):
                some.append(block(first))
                first = min(first + width, num_particles)
            return _joined(some), first

        first = 0
        while first < num_particles:
            name = f"{num_steps} steps, particles from {first} of {num_particles}"
            part, first = self._journal.stage(name, partial(blocks, first))
            parts.append(part)
        whole = _joined(parts)
        return whole._replace(run=put_beside(whole.run, committed_leaf((rng_key, target))))

    def _run_block(
        self,
        rng_key: jax.Array,
        target: TracedTarget,
        padded: Settings,
        stage: Stage,
        first: int,
        num_steps: int,
        every: int,
    ) -> tuple["_Ends", np.ndarray]:
        taken = 0
        while taken < num_steps:
            wanted = max(int(_SECONDS * self._steps_per_second), _FIRST_STEPS)
            last = min(taken + wanted // _FIRST_STEPS * _FIRST_STEPS, num_steps)
            began = time.perf_counter()
            numbers = [np.asarray(number) for number in (first, taken, last, every)]
            stage, ends = _advance(rng_key, target, padded, stage, *numbers)
            jax.block_until_ready(ends.log_weights)
            # The first call compiles, and says nothing of the speed.
            self._steps_per_second = (last - taken) / (time.perf_counter() - began)
            if self._bar is not None:
                self._bar.advance((last - taken) * len(ends.log_weights))
            taken = last
        return ends, np.asarray(stage.log_ratios)


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
