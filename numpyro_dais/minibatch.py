# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""One mini-batch of a subsampled plate for all particles and steps."""

import math
from typing import Any

import jax
from jax import random

import numpyro
from numpyro import handlers

from numpyro_dais.guide import pieces_of, seeded_trace
from numpyro_dais.inspection import Trace, subsampled_plates, trace_model
from numpyro_dais.keys import named_key
from numpyro_dais.problem import Problem

__all__ = ["draw_minibatch", "minibatch_scale", "subsampled_sizes"]


def subsampled_sizes(problem: Problem) -> dict[str, tuple[int, int]]:
    """
    Returns the size, and that of the mini-batch, of each subsampled plate of the model or guide.

    :param problem: a problem with a model; it is traced, not computed.
    """
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


def minibatch_scale(sizes: dict[str, tuple[int, int]]) -> float:
    """
    Returns N/B: what the sum over a mini-batch is multiplied by to stand for all the data.

    :param sizes: of the subsampled plates, as :func:`subsampled_sizes` gives them.
    """
    return math.prod(size / subsample_size for size, subsample_size in sizes.values())
