# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Subsampled plates: their sizes, mini-batches of their elements, and likelihoods of these or of all.

A plate around the data of latents that all of them share (a *data plate*) is seen through a fresh
mini-batch at every step, and whole, in chunks, at the ends of a chain. Of plates with an evidence
for each element, one mini-batch is drawn for a whole run.
"""

from collections.abc import Callable
import math
from typing import Any, Literal, get_args
import warnings

import jax
from jax import lax, random
import jax.numpy as jnp
import numpy as np

import numpyro
from numpyro import handlers

from numpyro_dais._util.checks import user_stack_level
from numpyro_dais._util.keys import named_key
from numpyro_dais.model.density import ModelDensity, Position, total
from numpyro_dais.model.guide import pieces_of, seeded_trace
from numpyro_dais.model.inspection import (
    Trace,
    is_imputed,
    plates_of,
    subsampled_plates,
    trace_model,
)
from numpyro_dais.model.problem import DataPlate, Problem

__all__ = [
    "Batches",
    "LikelihoodFn",
    "batch_likelihood",
    "check_batches",
    "draw_batch",
    "draw_minibatch",
    "find_data_plate",
    "full_likelihood",
    "minibatch_scale",
    "subsampled_sizes",
    "warn_of_noise",
]

# Mini-batches that all particles see, or each particle its own.
Batches = Literal["shared", "particle"]
# The log likelihood at unconstrained values by site, given the model's trace at them.
LikelihoodFn = Callable[[Position, Trace], jax.Array]


def check_batches(minibatch: Any) -> Batches | None:
    """
    Returns how mini-batches are drawn, or None for not at all.

    :param minibatch: what the user asked for.
    """
    if isinstance(minibatch, bool):
        return "shared" if minibatch else None
    if minibatch not in get_args(Batches):
        raise ValueError(
            f"minibatch must be False, True, 'shared' (the same as True) or 'particle'; got {minibatch!r}."
        )
    return minibatch


def warn_of_noise(remedy: str) -> None:
    """Warns the caller of a constructor that noisy gradients leave a gap, and says what helps."""
    warnings.warn(
        "With mini-batch gradients the bound does not tighten as the number of steps grows (Theorem 2 of "
        f"Zhang et al. 2021, 'the perils of gradient noise'); {remedy}.",
        stacklevel=user_stack_level(),
    )


def find_data_plate(problem: Problem, option: str) -> DataPlate | None:
    """
    Returns the subsampled plate of the model, or raises an error if what is inside cannot be taken
    in parts; None if there is no such plate.

    :param problem: a problem with a model; it is traced, not computed.
    :param option: what the user asked for, to begin messages with.
    """
    problem = _with_jax_arrays(problem)
    trace: Trace = {}

    def collect() -> None:
        with warnings.catch_warnings():
            # Of a mini-batch too large, which the error below names.
            warnings.simplefilter("ignore")
            trace.update(trace_model(problem, random.key(0)))

    jax.eval_shape(collect)
    found = subsampled_plates(trace)
    if not found:
        return None
    if len(found) > 1:
        raise NotImplementedError(
            f"{option} takes one subsampled plate; the model has {sorted(found)}. Subsample the larger one "
            "only."
        )
    ((name, (size, batch_size)),) = found.items()
    if not 0 < batch_size < size:
        raise ValueError(
            f"Plate {name!r} has {size} elements and subsample_size={batch_size}; a mini-batch must be "
            "smaller than its plate, and not empty."
        )
    _check_sites(name, trace, option)
    return DataPlate(name, size, batch_size)


def subsampled_sizes(problem: Problem) -> dict[str, tuple[int, int]]:
    """
    Returns the size, and that of the mini-batch, of each subsampled plate of the model or guide.

    :param problem: a problem with a model; it is traced, not computed.
    """
    problem = _with_jax_arrays(problem)
    sizes: dict[str, tuple[int, int]] = {}

    def collect() -> Any:
        traces: list[Trace] = [trace_model(problem, random.key(0))]
        if problem.guide is not None:
            traces += [seeded_trace(piece, problem) for piece in pieces_of(problem.guide)]
        for trace in traces:
            for name, (size, subsample_size) in subsampled_plates(trace).items():
                if sizes.setdefault(name, (size, subsample_size)) != (size, subsample_size):
                    raise ValueError(
                        f"Plate {name!r} has {sizes[name]} elements in the model and {(size, subsample_size)} "
                        "in the guide (all, and in a mini-batch). Make them the same."
                    )

    jax.eval_shape(collect)
    return sizes


def minibatch_scale(sizes: dict[str, tuple[int, int]]) -> float:
    """
    Returns N/B: what the sum over a mini-batch is multiplied by to stand for all the data.

    :param sizes: of the subsampled plates, as :func:`subsampled_sizes` gives them.
    """
    return math.prod(size / subsample_size for size, subsample_size in sizes.values())


def draw_batch(rng_key: jax.Array, size: int, batch_size: int) -> jax.Array:
    """
    Returns ``batch_size`` of the numbers below ``size``, in increasing order, every subset as
    likely as any other. The cost does not depend on ``size``.

    Repeated draws are replaced by fresh ones until none is left; nothing in that tells one number
    from another, so no subset is preferred.

    :param rng_key: a JAX random key.
    :param size: the number of elements.
    :param batch_size: how many of them are drawn.
    """
    if 2 * batch_size > size:  # where fresh draws would often be repetitions again
        return jnp.sort(random.permutation(rng_key, size)[:batch_size])

    def is_repeated(indices: jax.Array) -> jax.Array:
        return jnp.append(False, indices[1:] == indices[:-1])

    def draw(round: jax.Array) -> jax.Array:
        return random.randint(random.fold_in(rng_key, round), (batch_size,), 0, size)

    def redraw(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        round, indices = state
        return round + 1, jnp.sort(jnp.where(is_repeated(indices), draw(round), indices))

    first = jnp.asarray(1), jnp.sort(draw(jnp.asarray(0)))
    return lax.while_loop(lambda state: jnp.any(is_repeated(state[1])), redraw, first)[1]


def draw_minibatch(
    rng_key: jax.Array, problem: Problem, sizes: dict[str, tuple[int, int]]
) -> Problem:
    """
    Returns the problem with the elements of its subsampled plates drawn, without replacement.

    :param rng_key: the key of the run.
    :param problem: the problem.
    :param sizes: of its subsampled plates, as :func:`subsampled_sizes` gives them.
    """
    rng_key = named_key(rng_key, "mini-batch")
    subsample = {}
    for index, (name, (size, subsample_size)) in enumerate(sorted(sizes.items())):
        key = random.fold_in(rng_key, index)
        with handlers.seed(rng_seed=key), numpyro.plate(name, size, subsample_size) as indices:
            subsample[name] = indices
    return problem.replace(subsample=subsample)


def batch_likelihood(density: ModelDensity, plate: DataPlate, indices: jax.Array) -> LikelihoodFn:
    """
    Returns an unbiased estimate of the log likelihood as a function of unconstrained values: that
    of the sites inside the plate on a mini-batch, times N/B, plus that of the sites outside.

    :param density: of the model, with any mini-batch.
    :param plate: the subsampled plate.
    :param indices: the elements of the mini-batch.
    """
    on_batch = density.with_subsample({plate.name: indices})

    def likelihood_fn(values: Position, trace: Trace) -> jax.Array:
        outside, inside = on_batch.split_likelihood(on_batch.run(values), plate.name)
        return outside + plate.size / plate.batch_size * total(inside)

    return likelihood_fn


def full_likelihood(density: ModelDensity, plate: DataPlate) -> LikelihoodFn:
    """
    Returns the log likelihood of all the data as a function of unconstrained values, in chunks of
    the size of a mini-batch: memory does not grow with the data, nor does that of the gradient.

    :param density: of the model, with any mini-batch.
    :param plate: the subsampled plate.
    """
    num_chunks = -(-plate.size // plate.batch_size)
    elements = jnp.arange(num_chunks * plate.batch_size).reshape(num_chunks, plate.batch_size)

    def likelihood_fn(values: Position, trace: Trace) -> jax.Array:
        outside, _ = density.split_likelihood(trace, plate.name)

        @jax.checkpoint
        def chunk(elements: jax.Array) -> jax.Array:
            # The last chunk is filled up with an element that is there already, and counts for
            # nothing.
            indices = jnp.minimum(elements, plate.size - 1)
            on_chunk = density.with_subsample({plate.name: indices})
            _, inside = on_chunk.split_likelihood(on_chunk.run(values), plate.name)
            return total(jnp.where(elements < plate.size, inside, 0.0))

        return outside + total(lax.map(chunk, elements))

    return likelihood_fn


def _with_jax_arrays(problem: Problem) -> Problem:
    """Returns the problem with arguments that a mini-batch, which is traced, may be taken of."""
    return jax.tree.map(lambda x: jnp.asarray(x) if isinstance(x, np.ndarray) else x, problem)


def _check_sites(plate: str, trace: Trace, option: str) -> None:
    for name, site in trace.items():
        if site["type"] != "sample" or site["is_observed"]:
            continue
        if site["fn"].support.is_discrete:
            raise NotImplementedError(
                f"{option} does not go with discrete latent sites; got {name!r}. Sum it out by hand (a "
                "mixture distribution), or use all the data at every step."
            )
        if plate in plates_of(site) and is_imputed(name, trace):
            stem = name.removesuffix("_unobserved")
            raise NotImplementedError(
                f"{option} needs every latent site outside of the subsampled plate {plate!r}, but the "
                f"obs_mask of {stem!r} makes its missing values latent. Drop them: mask the observed site "
                "with `handlers.mask` instead."
            )
        if plate in plates_of(site):
            raise NotImplementedError(
                f"{option} needs every latent site outside of the subsampled plate {plate!r}, but {name!r} is "
                f"inside. Leave subsample_size out; or, where every site is inside, use plate={plate!r} (DAIS) "
                "or no option at all (DAVI)."
            )
