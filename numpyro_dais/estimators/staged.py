# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Runs of self-tuned chains: one program for every number of steps and of particles, in short calls.
"""

import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_dais._util.concreteness import as_floats
from numpyro_dais._util.programs import program
from numpyro_dais.model.traced import TracedTarget
from numpyro_dais.sampler.particles import Run, join_runs, particle_keys
from numpyro_dais.sampler.settings import Settings
from numpyro_dais.sampler.stages import Stage, advance, begin

__all__ = ["StagedRun", "StagedRunner"]

# Particles that run at a time: a vector for the processor, and few enough for a trial.
WIDTH = 8
# Seconds that a call is to take: Ctrl-C and clocks are looked at in between.
_SECONDS = 2.0
# Dimensions up to which chains without axes of their own are given those of the positions: a product
# with a small matrix is cheaper than a second program.
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
    """

    def __init__(self, num_rows: int) -> None:
        self.num_rows = -(-num_rows // _FIRST_STEPS) * _FIRST_STEPS
        self._steps_per_second = 0.0

    def __call__(
        self, rng_key: jax.Array, target: TracedTarget, settings: Settings, num_particles: int
    ) -> StagedRun:
        """
        Returns particles that have gone from the start to the target.

        :param rng_key: a JAX random key.
        :param target: the target, with its start.
        :param settings: settings of every chain, of at least one step.
        :param num_particles: the number of particles.
        """
        num_steps = settings.num_steps
        padded = _padded(settings.of_chain(), self.num_rows, target.tracing.num_dims)
        parts = []
        for first in range(0, num_particles, WIDTH):
            run, log_ratios = self._run_block(rng_key, first, target, padded, num_steps)
            number = min(WIDTH, num_particles - first)
            run = jax.tree.map(lambda x, n=number: x[:n], run._replace(step_size=None))
            run = run._replace(step_size=settings.step_size)
            parts.append(StagedRun(run, log_ratios[:num_steps, :number]))
        if len(parts) == 1:
            return parts[0]
        return StagedRun(
            join_runs([part.run for part in parts]),
            np.concatenate([part.log_ratios for part in parts], axis=1),
        )

    def _run_block(
        self, rng_key: jax.Array, first: int, target: TracedTarget, padded: Settings, num_steps: int
    ) -> tuple[Run, np.ndarray]:
        stage = _empty_stage(rng_key, target, self.num_rows)
        taken = 0
        while taken < num_steps:
            wanted = max(int(_SECONDS * self._steps_per_second), _FIRST_STEPS)
            last = min(taken + wanted // _FIRST_STEPS * _FIRST_STEPS, num_steps)
            began = time.perf_counter()
            stage, run = _advance(
                rng_key, np.asarray(first), target, padded, stage, np.asarray(taken), np.asarray(last)
            )
            jax.block_until_ready(run.log_weights)
            # The first call compiles, and says nothing of the speed.
            self._steps_per_second = (last - taken) / (time.perf_counter() - began)
            taken = last
        return run, np.asarray(stage.log_ratios)


@program()
def _advance(
    rng_key: jax.Array,
    first_particle: jax.Array,
    target: TracedTarget,
    settings: Settings,
    stage: Stage,
    first: jax.Array,
    last: jax.Array,
) -> tuple[Stage, Run]:
    stage = jax.lax.cond(
        first == 0,
        lambda stage: _begin(rng_key, first_particle, target, len(stage.log_ratios)),
        lambda stage: stage,
        stage,
    )
    stage, log_weights = advance(stage, target, settings, first, last)
    is_good = stage.is_start_finite & jnp.isfinite(log_weights)
    run = Run(
        log_weights=jnp.where(is_good, log_weights, -jnp.inf),
        positions=stage.state.position,
        is_start_finite=stage.is_start_finite,
        is_zero=stage.is_start_finite & jnp.isneginf(log_weights),
        acceptance=None,
        step_size=settings.step_size,
    )
    return stage, run


def _begin(
    rng_key: jax.Array, first: jax.Array | int, target: TracedTarget, num_rows: int
) -> Stage:
    return begin(particle_keys(rng_key, WIDTH, first), target, num_rows)


def _empty_stage(rng_key: jax.Array, target: TracedTarget, num_rows: int) -> Stage:
    shapes = jax.eval_shape(lambda key: _begin(key, 0, target, num_rows), rng_key)

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

    scales = 1.0 if settings.preconditioner is None else settings.preconditioner
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
