# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""The bounds that chains have on data which the model itself has drawn."""

from typing import Any

import jax
from jax import random
import jax.numpy as jnp
import numpy as np

from numpyro_dais._util.checks import check_count
from numpyro_dais._util.devices import caller, spread
from numpyro_dais._util.programs import program
from numpyro_dais.estimators.runner import RunConfig, run, run_reverse
from numpyro_dais.model.problem import Problem
from numpyro_dais.model.simulate import check_can_be_simulated, simulate
from numpyro_dais.model.traced import TracedFunction, TracedTarget, trace_function, trace_target
from numpyro_dais.results.certificate import Certificate
from numpyro_dais.sampler.particles import particle_keys
from numpyro_dais.sampler.settings import Settings

__all__ = ["certificate"]


def certificate(
    rng_key: jax.Array,
    problem: Problem,
    target: TracedTarget,
    settings: Settings,
    config: RunConfig,
    num_particles: int,
    num_datasets: int,
) -> Certificate:
    """
    Returns the bounds that chains have on data simulated from the problem's model.

    :param rng_key: the key of the simulation and of the chains.
    :param problem: the problem; its observed values are replaced.
    :param target: of the problem.
    :param settings: settings of the chains.
    :param config: the configuration of runs.
    :param num_particles: the number of forward chains for each data set.
    :param num_datasets: the number of data sets.
    """
    if problem.model is None:
        raise ValueError("certify simulates data from a model; potential_fn= has none.")
    num_datasets = check_count("num_datasets", num_datasets, 2)
    simulated = _trace_simulated(rng_key, problem, target)
    simulate_fn = trace_function(target, problem, "simulation", _position_and_leaves, rng_key)
    inputs = rng_key, simulate_fn, simulated, settings.of_chain()
    layout = config.layout(inputs, num_datasets)
    static: Any = {"config": config.of_programs(), "num_particles": num_particles}
    call_fn = caller(layout, _bounds, inputs, **static)
    bounds = spread(layout, np.arange(num_datasets), call_fn)
    lower, upper = np.array(list(bounds), np.float64).T
    error = [values.std(ddof=1) / np.sqrt(num_datasets) for values in (lower, upper, upper - lower)]
    return Certificate(
        lower_bound=float(lower.mean()),
        lower_bound_error=float(error[0]),
        upper_bound=float(upper.mean()),
        upper_bound_error=float(error[1]),
        gap=float((upper - lower).mean()),
        gap_error=float(error[2]),
        num_datasets=num_datasets,
    )


@program("config", "num_particles")
def _bounds(
    index: jax.Array,
    rng_key: jax.Array,
    simulate_fn: TracedFunction,
    target: TracedTarget,
    settings: Settings,
    config: RunConfig,
    num_particles: int,
) -> tuple[jax.Array, jax.Array]:
    """Lower and upper bound on one data set."""
    key = particle_keys(rng_key, 1, index)[0]
    simulation_key, forward_key, reverse_key = random.split(key, 3)
    position, leaves = simulate_fn(simulation_key)
    simulated = target.with_leaves(leaves)
    forward = run(forward_key, simulated, settings, num_particles, config, has_bar=True)
    reverse = run_reverse(reverse_key, simulated, settings, position[None], config=config)
    return jnp.mean(forward.log_weights), jnp.mean(reverse.log_weights)


def _trace_simulated(rng_key: jax.Array, problem: Problem, target: TracedTarget) -> TracedTarget:
    """The target of a problem with simulated data, without these."""
    if "simulated" not in target.others:
        check_can_be_simulated(problem)
        structure: Any = None

        def leaves_of(key: jax.Array) -> list:
            nonlocal structure
            _, simulated = simulate(key, problem)
            structure = jax.tree.structure(simulated)
            return jax.tree.leaves(simulated)

        shapes = jax.eval_shape(leaves_of, rng_key)
        example = [np.zeros(leaf.shape, leaf.dtype) for leaf in shapes]
        simulated = jax.tree.unflatten(structure, example)
        target.others["simulated"] = trace_target(simulated, rng_key).with_leaves([])
    return target.others["simulated"]


def _position_and_leaves(problem: Problem, rng_key: jax.Array) -> tuple[jax.Array, list]:
    """Leaves rather than a problem, so that programs do not keep the model alive."""
    position, simulated = simulate(rng_key, problem)
    return position, jax.tree.leaves(simulated)
