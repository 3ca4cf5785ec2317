# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Settings improved by gradient ascent on the bound itself: what differentiability buys."""

from collections.abc import Callable
from typing import NamedTuple

import jax
from jax import random
import jax.numpy as jnp
import numpy as np

from numpyro_dais.estimators.runner import Runner
from numpyro_dais.model.problem import Problem
from numpyro_dais.model.target import make_target
from numpyro_dais.sampler.kernel import Transition
from numpyro_dais.sampler.particles import run_particles
from numpyro_dais.sampler.settings import Settings
from numpyro_dais.tuning.ascent import ascend

__all__ = ["Refiner", "check_refinable", "refine_settings"]

_NUM_ITERATIONS = 100
_NUM_PARTICLES = 8
_NUM_TESTS = 64
_LEARNING_RATE = 0.03

# The log weights of particles: a key for each of them, and the settings of their chains.
WeightsFn = Callable[[jax.Array, Settings], jax.Array]


class _Params(NamedTuple):
    """What is learned, all in logarithms and zero at the beginning."""

    increments: jax.Array  # of the inverse temperatures, [num_steps]
    step_size: jax.Array  # [num_steps]
    scale: jax.Array  # of each coordinate, at all steps, [num_dims]


def check_refinable(
    name: str, transition: Transition, problem: Problem, settings: Settings
) -> None:
    """
    Raises an error unless settings can be improved by gradient ascent.

    :param name: of the estimator.
    :param transition: the kind of its transitions.
    :param problem: what is integrated.
    :param settings: the settings.
    """
    if transition.is_corrected or problem.plates or not settings.num_steps:
        raise NotImplementedError(
            "refine=True is for chains of DAIS with at least one step and without plate=: it differentiates "
            f"the bound of one chain; got {name} with {settings.num_steps} steps. Leave it out."
        )


class Refiner:
    """
    Improves the settings of an estimator's chains. One for each estimator, since it keeps a compiled program.

    :param runner: runs the chains that tell whether settings are better.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._jitted_ascent = jax.jit(_ascend)

    def refine(self, rng_key: jax.Array, problem: Problem, settings: Settings) -> Settings:
        """
        Returns better settings, or those given if a test run says that they are not.

        :param rng_key: a JAX random key.
        :param problem: what is integrated, from the start that the settings are for.
        :param settings: settings of at least one step.
        """
        ascent_key, test_key = random.split(rng_key)
        refined = self._jitted_ascent(ascent_key, problem, settings.of_chain())
        runs = [self._runner.run(test_key, problem, s, _NUM_TESTS) for s in (settings, refined)]
        before, after = (np.mean(np.asarray(run.log_weights)) for run in runs)
        # A derivative through a gradient is worth two more of them.
        num_chains = 3 * _NUM_ITERATIONS * _NUM_PARTICLES + 2 * _NUM_TESTS
        known = settings.num_gradients if isinstance(settings.num_gradients, int) else 0
        num_gradients = known + settings.num_steps * num_chains
        if not after > before:
            return settings._replace(num_gradients=num_gradients)
        return refined._replace(
            num_gradients=num_gradients, start=settings.start, num_particles=settings.num_particles
        )


def _ascend(rng_key: jax.Array, problem: Problem, settings: Settings) -> Settings:
    target = make_target(problem)

    def weights_fn(keys: jax.Array, settings: Settings) -> jax.Array:
        return run_particles(keys, target, settings, "checkpoint").log_weights

    num_dims = jax.eval_shape(target.sample_fn, rng_key).shape[-1]
    return refine_settings(rng_key, settings, num_dims, weights_fn)[0]


def refine_settings(
    rng_key: jax.Array, settings: Settings, num_dims: int, weights_fn: WeightsFn
) -> tuple[Settings, jax.Array]:
    """
    Returns settings with a better bound, and the bound along the way: schedule, step sizes and the scale of
    each coordinate are moved up the gradient of the mean log weight. An
    iteration with a gradient that is not finite is passed over. May be traced.

    :param rng_key: a JAX random key.
    :param settings: where the ascent begins; at least one step, with a preconditioner.
    :param num_dims: the dimension of a position.
    :param weights_fn: runs chains.
    """
    log_increments = jnp.log(jnp.diff(settings.betas, prepend=0.0))

    def unpack(params: _Params) -> Settings:
        betas = jnp.cumsum(jax.nn.softmax(log_increments + params.increments))
        scale = jnp.exp(params.scale)
        preconditioner = settings.preconditioner
        if preconditioner is None:
            preconditioner = scale
        elif preconditioner.ndim == 3 or preconditioner.shape == (num_dims, num_dims):
            preconditioner = scale[:, None] * preconditioner
        else:
            preconditioner = scale * preconditioner
        return settings._replace(
            betas=betas / betas[-1],
            step_size=settings.step_size * jnp.exp(params.step_size),
            preconditioner=preconditioner,
        )

    def bound_fn(params: _Params, key: jax.Array) -> jax.Array:
        return jnp.mean(weights_fn(random.split(key, _NUM_PARTICLES), unpack(params)))

    zeros = jnp.zeros(settings.num_steps)
    begin = _Params(zeros, zeros, jnp.zeros(num_dims))
    params, bounds = ascend(rng_key, bound_fn, begin, _NUM_ITERATIONS, _LEARNING_RATE)
    return unpack(params), bounds
