# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
How the particles of an estimator are run: compiled programs, blocks, chunks and the progress bar.

All particles go through one compiled program, a number of them at a time. On the host they come in blocks:
blocks of one size share a program, whatever the number of particles. Where there is no host, under
:func:`jax.jit`, :func:`jax.vmap` or :func:`jax.grad`, and where the user has said how many run at a time or wants
a progress bar, one block holds them all, and the program itself takes them in chunks. (Particles that depend on
each other, in islands, have a program of their own in :class:`~numpyro_dais.estimators.dais.DAIS`.)
"""

from collections.abc import Callable
import math

import jax
import jax.numpy as jnp

from numpyro_dais._util.concreteness import is_concrete
from numpyro_dais._util.progress import ProgressBar
from numpyro_dais.model.problem import Problem
from numpyro_dais.model.target import make_target
from numpyro_dais.sampler.kernel import Transition
from numpyro_dais.sampler.loop import Memory
from numpyro_dais.sampler.particles import (
    Run,
    join_runs,
    particle_keys,
    run_adaptive_particles,
    run_particles,
    run_reverse_particles,
)
from numpyro_dais.sampler.reversible.gradient import Reversible
from numpyro_dais.sampler.settings import Settings
from numpyro_dais.tuning.spread import start_draws

__all__ = ["Runner", "StepSizeRule"]

# The next step size, from the last one and its mean acceptance.
StepSizeRule = Callable[[jax.Array, jax.Array], jax.Array]

_MIN_CHUNK, _MAX_CHUNK = 128, 1024  # particles
_MAX_CHUNK_WORDS = 2**25


class Runner:
    """
    Runs particles, and keeps the programs compiled for that. One for each estimator.

    :param transition: the kind of transitions.
    :param memory: how the gradient of a chain is taken.
    :param reversible: options of ``memory="reversible"``.
    :param chunk_size: how many particles run at a time; as many as memory surely has room for if None.
    :param progress_bar: the bar that runs may show.
    :param step_size_rule: adapts the step size along the run, to all particles at once.
    """

    def __init__(
        self,
        transition: Transition,
        memory: Memory,
        reversible: Reversible | None = None,
        chunk_size: int | None = None,
        progress_bar: ProgressBar | None = None,
        step_size_rule: StepSizeRule | None = None,
    ) -> None:
        self.transition = transition
        self.memory = memory
        self.reversible = reversible
        self.chunk_size = chunk_size
        self.progress_bar = progress_bar
        self.step_size_rule = step_size_rule
        self._jitted_forward = jax.jit(self._forward, static_argnames=("num_particles", "has_bar"))
        self._jitted_reverse = jax.jit(self._reverse)
        self._jitted_starts = jax.jit(start_draws)

    def run(
        self,
        rng_key: jax.Array,
        problem: Problem,
        settings: Settings,
        num_particles: int,
        has_bar: bool = False,
    ) -> Run:
        """
        Returns independent particles that have gone from the start to the target.

        :param rng_key: a JAX random key.
        :param problem: what is integrated.
        :param settings: settings of every chain.
        :param num_particles: the number of particles.
        :param has_bar: whether this run shows the progress bar, if there is one.
        """
        settings = settings.of_chain()
        has_bar = has_bar and self.progress_bar is not None
        is_whole = has_bar or self.chunk_size is not None or self.step_size_rule is not None
        block = num_particles
        if not is_whole and is_concrete((rng_key, problem, settings)):
            block = min(block, _default_chunk_size(problem))
        runs = [
            self._jitted_forward(
                rng_key,
                first,
                problem,
                settings,
                num_particles=min(block, num_particles - first),
                has_bar=has_bar,
            )
            for first in range(0, num_particles, block)
        ]
        return runs[0] if len(runs) == 1 else join_runs(runs)

    def run_reverse(
        self, rng_key: jax.Array, problem: Problem, settings: Settings, positions: jax.Array
    ) -> Run:
        """
        Returns independent particles that have gone from the target back to the start.

        :param rng_key: a JAX random key.
        :param problem: what is integrated.
        :param settings: settings of every chain.
        :param positions: posterior draws, where the particles begin.
        """
        return self._jitted_reverse(rng_key, problem, settings.of_chain(), positions)

    def draw_starts(self, rng_key: jax.Array, problem: Problem) -> jax.Array:
        """Returns some draws of the start, enough to see how wide it is."""
        return self._jitted_starts(rng_key, problem)

    def chunk_size_of(self, problem: Problem) -> int:
        """Returns how many particles run at a time in one program."""
        return _default_chunk_size(problem) if self.chunk_size is None else self.chunk_size

    def make_on_step(self, num_steps: int, num_chunks: int) -> Callable[[jax.Array], None] | None:
        """Returns what moves the progress bar at each step of each chunk, if there is one."""
        if self.progress_bar is None:
            return None
        return self.progress_bar.make_callback(num_steps, num_chunks)

    def _forward(
        self,
        rng_key: jax.Array,
        first: jax.Array,
        problem: Problem,
        settings: Settings,
        *,
        num_particles: int,
        has_bar: bool,
    ) -> Run:
        """The particles from the one with index ``first`` on."""
        target = make_target(problem)
        if self.step_size_rule is not None:
            return run_adaptive_particles(
                rng_key, target, settings, num_particles, self.transition, self.step_size_rule
            )
        chunk_size = self.chunk_size_of(problem)
        num_chunks = math.ceil(num_particles / chunk_size)
        return run_particles(
            particle_keys(rng_key, num_particles, first),
            target,
            settings,
            self.memory,
            self.transition,
            chunk_size,
            self.make_on_step(settings.num_steps, num_chunks) if has_bar else None,
            self.reversible,
        )

    def _reverse(
        self, rng_key: jax.Array, problem: Problem, settings: Settings, positions: jax.Array
    ) -> Run:
        target = make_target(problem)
        return run_reverse_particles(
            rng_key, target, settings, positions, self.memory, self.transition
        )


def _default_chunk_size(problem: Problem) -> int:
    """As many particles at a time as memory surely has room for."""
    leaves = jax.tree.leaves((problem.args, problem.kwargs))
    rows = [max(1, jnp.size(leaf) // max(jnp.shape(leaf)[-1:], default=1)) for leaf in leaves]
    sizes = [
        jnp.size(leaf) if jnp.ndim(leaf) < 2 else row
        for leaf, row in zip(leaves, rows, strict=True)
    ]
    return max(min(_MAX_CHUNK, _MAX_CHUNK_WORDS // max(sizes, default=1)), _MIN_CHUNK)
