# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""The bounds that chains have on data which the model itself has drawn."""

import jax
from jax import random
import jax.numpy as jnp
import numpy as np

from numpyro.infer.autoguide import AutoGuide

from numpyro_dais.estimators.runner import RunConfig, run, run_reverse
from numpyro_dais.model.density import ModelDensity
from numpyro_dais.model.inspection import inspect_model
from numpyro_dais.model.problem import Problem
from numpyro_dais.model.simulate import WithData, WithoutData, check_can_be_simulated, simulate
from numpyro_dais.model.traced import trace_target
from numpyro_dais.results.certificate import Certificate
from numpyro_dais.sampler.settings import Settings

__all__ = ["certificate"]


def certificate(
    rng_key: jax.Array,
    problem: Problem,
    settings: Settings,
    config: RunConfig,
    num_particles: int,
    num_datasets: int,
) -> Certificate:
    """
    Returns the bounds that chains have on data simulated from the problem's model.

    :param rng_key: the key of the simulation and of the chains.
    :param problem: the problem; its observed values are replaced.
    :param settings: settings of the chains.
    :param config: the configuration of runs.
    :param num_particles: the number of forward chains for each data set.
    :param num_datasets: the number of data sets.
    """
    if problem.model is None:
        raise ValueError("certify simulates data from a model; potential_fn= has none.")
    check_can_be_simulated(problem)

    def one_dataset(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        simulation_key, forward_key, reverse_key = random.split(key, 3)
        values, data, args = simulate(simulation_key, problem)
        model, guide = WithData(problem.model), problem.guide
        if guide is not None and not isinstance(guide, AutoGuide):
            guide = WithoutData(guide)
        simulated = problem.replace(model=model, guide=guide, args=(data, args))
        density = ModelDensity(simulated, inspect_model(simulated))
        position = density.to_position(values)
        target = trace_target(simulated, key)
        forward = run(forward_key, target, settings, num_particles, config, has_bar=True)
        reverse = run_reverse(
            reverse_key, target, settings.of_chain(), position[None], config=config
        )
        return jnp.mean(forward.log_weights), jnp.mean(reverse.log_weights)

    lower, upper = jax.jit(lambda keys: jax.lax.map(one_dataset, keys))(
        random.split(rng_key, num_datasets)
    )
    lower, upper = np.asarray(lower, np.float64), np.asarray(upper, np.float64)
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
