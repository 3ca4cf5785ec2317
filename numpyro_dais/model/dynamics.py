# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""The likelihoods at the ends of a chain and along its steps, and what they cost."""

from collections.abc import Callable
import math
from typing import Any

import jax
from jax import random
import jax.numpy as jnp

from numpyro_dais._util.keys import named_key
from numpyro_dais.model.density import ModelDensity
from numpyro_dais.model.problem import DataPlate, Problem
from numpyro_dais.model.subsampling import (
    Batches,
    LikelihoodFn,
    batch_likelihood,
    check_batches,
    draw_batch,
    full_likelihood,
)
from numpyro_dais.model.surrogate import check_surrogate, quadratic_likelihood
from numpyro_dais.sampler.loop import Memory

__all__ = [
    "StepLikelihoodFn",
    "check_dynamics",
    "end_likelihood",
    "num_full_gradients",
    "step_likelihood",
    "with_data_plate",
]

# The key of a chain's mini-batches and the index of a step to the likelihood that the step follows.
StepLikelihoodFn = Callable[[jax.Array, jax.Array], LikelihoodFn]


def end_likelihood(problem: Problem, density: ModelDensity) -> LikelihoodFn:
    """
    Returns the log likelihood that enters the weights: that of all the data, or, where the problem
    asks for it, an unbiased estimate from a mini-batch that no step sees.

    :param problem: a problem with a model.
    :param density: of that model.
    """
    plate = problem.data_plate
    if plate is None:
        return density.log_likelihood
    if plate.is_end_exact:
        return full_likelihood(density, plate)
    assert problem.batch_key is not None
    end_key = named_key(problem.batch_key, "end")
    return batch_likelihood(density, plate, draw_batch(end_key, plate.size, plate.batch_size))


def step_likelihood(problem: Problem, density: ModelDensity) -> StepLikelihoodFn | None:
    """
    Returns the log likelihood whose gradient a step follows, from the key of the chain's
    mini-batches and the step's index; None if it is the one at the ends.

    :param problem: a problem with a model.
    :param density: of that model.
    """
    plate, surrogate = problem.data_plate, problem.surrogate
    if surrogate is not None:
        return lambda batch_key, index: quadratic_likelihood(surrogate, density)
    if plate is None or plate.batches is None:
        return None
    assert problem.batch_key is not None
    shared_key = named_key(problem.batch_key, "steps")

    def of_batch(batch_key: jax.Array, index: jax.Array) -> LikelihoodFn:
        # A shared key is not mapped over the particles, so that each mini-batch is drawn and read
        # once.
        key = random.fold_in(shared_key if plate.batches == "shared" else batch_key, index)
        return batch_likelihood(density, plate, draw_batch(key, plate.size, plate.batch_size))

    return of_batch


def check_dynamics(
    minibatch: Any, surrogate: Any, memory: Memory, plate: Any, has_model: bool = True
) -> Batches | None:
    """
    Returns how mini-batches are drawn, if at all, or raises an error if these do not go together.

    :param minibatch: what the user asked for.
    :param surrogate: likewise.
    :param memory: the memory mode.
    :param plate: the plate whose elements have an evidence each.
    :param has_model: whether there is a model, or a potential function only.
    """
    batches = check_batches(minibatch)
    check_surrogate(surrogate)
    if batches is not None and surrogate is not None:
        raise ValueError(
            "minibatch= and surrogate= are two ways to spare the steps the data; got both. Take "
            "surrogate=, whose bound does tighten."
        )
    is_any = batches is not None or surrogate is not None
    name = "minibatch=" if batches is not None else "surrogate="
    if plate is not None and is_any:
        raise NotImplementedError(
            f"{name} is for latents that all the data share, and plate={plate!r} for those of one element "
            f"each; got both. With plate= a subsampled plate takes one mini-batch by itself: leave {name} out."
        )
    if batches is not None and memory == "reversible":
        raise NotImplementedError(
            "memory='reversible' takes the same densities at every step; got minibatch=. Use "
            "memory='checkpoint', or surrogate='quadratic'."
        )
    if is_any and not has_model:
        raise ValueError(
            "minibatch= and surrogate= need a model, whose likelihood they know from its prior; got "
            "potential_fn=."
        )
    return batches


def with_data_plate(
    rng_key: jax.Array, problem: Problem, plate: DataPlate | None, batches: Batches | None
) -> Problem:
    """
    Returns the problem with a density of all elements of the plate; its steps may see mini-batches.

    :param rng_key: the key of a run.
    :param problem: a problem with a model.
    :param plate: its subsampled plate, if it has one.
    :param batches: how mini-batches are drawn; None for not at all.
    """
    if plate is None:
        if batches is not None:
            raise ValueError(
                "minibatch= needs a subsampled plate around the data, and the model has none. Write "
                "numpyro.plate(name, N, subsample_size=B), or leave minibatch= out."
            )
        return problem
    return problem.replace(
        data_plate=plate._replace(batches=batches),
        subsample={plate.name: jnp.arange(plate.batch_size)},
        batch_key=None if batches is None else named_key(rng_key, "mini-batches of a chain"),
    )


def num_full_gradients(problem: Problem, num_gradients: int, num_chains: int) -> int:
    """
    Returns what a run costs in gradients on all the data. Of a mini-batch they count B/N, rounded
    up in total, of a surrogate nothing; in both cases the density at the end of each chain counts
    as one more.

    :param problem: the problem.
    :param num_gradients: the number of gradients of the run's steps.
    :param num_chains: the number of its chains.
    """
    plate = problem.data_plate
    if problem.surrogate is not None:
        return num_chains
    if plate is None or plate.batches is None:
        return num_gradients
    return math.ceil(num_gradients * plate.batch_size / plate.size) + num_chains
