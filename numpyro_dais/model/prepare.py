# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Problems made ready to be run: checked, traced, with their mini-batches and what their steps follow.
"""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_dais._util.concreteness import is_concrete
from numpyro_dais.model.dynamics import with_data_plate
from numpyro_dais.model.inspection import inspect_model
from numpyro_dais.model.problem import Problem
from numpyro_dais.model.subsampling import (
    Batches,
    draw_minibatch,
    find_data_plate,
    subsampled_sizes,
)
from numpyro_dais.model.traced import TracedTarget, explained_errors, shape_of, trace_target

__all__ = ["Preparation"]

T = TypeVar("T")


class Preparation:
    """
    The state of an estimator: what is known of its problems, by the shapes of their arguments, so
    that later calls with new data run the model no more.
    """

    def __init__(self) -> None:
        self._data_plate = _OncePerShape(find_data_plate)
        self._subsampled_sizes = _OncePerShape(subsampled_sizes)
        self._targets = _OncePerShape(_trace_without_leaves)

    def __getstate__(self) -> dict[str, Any]:
        """Returns nothing: what is known is found again, and jaxprs cannot be pickled."""
        return {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]

    def target(self, problem: Problem, rng_key: jax.Array) -> TracedTarget:
        """
        Returns what chains see of a problem, or raises the errors of a bad one.

        :param problem: the problem; its arguments may be traced.
        :param rng_key: a key of the kind that draws are made with.
        """
        if not is_concrete(problem):
            return trace_target(problem, rng_key)
        if _has_nan(problem):  # a fault or not, as the data are
            _check(problem)
        known = self._targets(problem, rng_key)
        return known.with_leaves(jax.tree.leaves(problem))

    def with_minibatch(self, rng_key: jax.Array, problem: Problem) -> Problem:
        """
        Returns the problem on one mini-batch, if it has an evidence for each element of a
        subsampled plate.

        :param rng_key: the key of a run.
        :param problem: the problem.
        """
        if problem.plate is not None and (sizes := self._subsampled_sizes(problem)):
            return draw_minibatch(rng_key, problem, sizes)
        return problem

    def with_data_plate(
        self, rng_key: jax.Array, problem: Problem, batches: Batches | None
    ) -> Problem:
        """
        Returns the problem with a density of all the data, in parts, and with mini-batches for its
        steps.

        :param rng_key: the key of a run.
        :param problem: the problem.
        :param batches: how mini-batches are drawn; None for a surrogate, which needs none.
        """
        plate = self._data_plate(problem, "surrogate=" if batches is None else "minibatch=")
        return with_data_plate(rng_key, problem, plate, batches)


class _OncePerShape(Generic[T]):
    """A function of a problem, called once for all problems that share a compiled program."""

    def __init__(self, fn: Callable[..., T]) -> None:
        self._fn = fn
        self._results: dict[Any, T] = {}

    def __call__(self, problem: Problem, *args: Any) -> T:
        shape = shape_of(problem), tuple(getattr(arg, "dtype", arg) for arg in args)
        try:
            hash(shape)
        except TypeError:  # an argument that is no array and cannot be hashed: nothing is kept
            return self._fn(problem, *args)
        if shape not in self._results:
            self._results[shape] = self._fn(problem, *args)
        return self._results[shape]


def _trace_without_leaves(problem: Problem, rng_key: jax.Array) -> TracedTarget:
    """A target that keeps no data of the problem alive."""
    return trace_target(problem, rng_key).with_leaves([])


def _check(problem: Problem) -> None:
    """Raises the errors of a bad model, around the data as they are."""
    with explained_errors():
        inspect_model(problem)


def _has_nan(problem: Problem) -> bool:
    leaves = jax.tree.leaves(problem)
    floats = [x for x in leaves if jnp.issubdtype(jnp.result_type(x), jnp.floating)]
    return any(np.any(np.isnan(part)) for leaf in floats for part in _parts(leaf))


def _parts(leaf: Any) -> list[np.ndarray]:
    """An array as it lies on its devices: together it may be larger than memory."""
    if not isinstance(leaf, jax.Array):
        return [np.asarray(leaf)]
    return [np.asarray(shard.data) for shard in leaf.addressable_shards if not shard.replica_id]
