# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""What is to be integrated: a model with its arguments and a start, as one pytree."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

import numpyro

__all__ = ["Problem"]


class _Static(NamedTuple):
    """The parts of a problem that JAX does not trace; equal ones share a compiled program."""

    model: Callable | None
    potential_fn: Callable | None
    guide: Callable | None
    plate: str | None
    treedef: Any
    leaves: tuple


_TRACED = object()


def _is_traced(leaf: Any) -> bool:
    """Arrays and floats are traced; sizes, flags, strings and other objects stay as they are."""
    return isinstance(leaf, (jax.Array, np.ndarray, np.inexact, float, complex))


@jax.tree_util.register_pytree_node_class
class Problem:
    """
    A model (or potential function), its arguments and the start of the chains.

    Array and float leaves of ``start``, ``params``, ``guide_params``, ``args`` and ``kwargs`` are
    leaves of this pytree; int, bool, str and other leaves are static, since NumPyro needs a plate's
    size as a Python int. No closure over arrays is stored, so that a problem may leave ``jit``.
    """

    def __init__(
        self,
        model: Callable | None,
        *,
        potential_fn: Callable | None = None,
        start: Any = "prior",
        guide: Callable | None = None,
        guide_params: dict | None = None,
        params: dict | None = None,
        plate: str | None = None,
        args: tuple = (),
        kwargs: dict | None = None,
    ) -> None:
        self.model = model
        self.potential_fn = potential_fn
        self.start = start
        self.guide = guide
        self.guide_params = {} if guide_params is None else guide_params
        self.params = {} if params is None else params
        self.plate = plate
        self.args = args
        self.kwargs = {} if kwargs is None else kwargs

    @property
    def prepared_model(self) -> Callable:
        """The model with its ``param`` and ``mutable`` sites filled in, and a fixed key to draw on."""
        params = {**self.guide_params, **self.params}
        return _fixed_prng_key(numpyro.handlers.substitute(self.model, data=params))

    def tree_flatten(self) -> tuple[list, _Static]:
        arrays = (self.start, self.params, self.guide_params, self.args, self.kwargs)
        leaves, treedef = jax.tree.flatten(arrays)
        children = [leaf for leaf in leaves if _is_traced(leaf)]
        static_leaves = tuple(_TRACED if _is_traced(leaf) else leaf for leaf in leaves)
        static = _Static(
            self.model, self.potential_fn, self.guide, self.plate, treedef, static_leaves
        )
        return children, static

    @classmethod
    def tree_unflatten(cls, static: _Static, children: Any) -> "Problem":
        remaining = iter(children)
        leaves = [next(remaining) if leaf is _TRACED else leaf for leaf in static.leaves]
        start, params, guide_params, args, kwargs = jax.tree.unflatten(static.treedef, leaves)
        return cls(
            static.model,
            potential_fn=static.potential_fn,
            start=start,
            guide=static.guide,
            guide_params=guide_params,
            params=params,
            plate=static.plate,
            args=args,
            kwargs=kwargs,
        )


class _fixed_prng_key(numpyro.primitives.Messenger):
    """Answers ``numpyro.prng_key()`` with one key, so that the density is a function of the latents."""

    def process_message(self, msg: dict) -> None:
        if msg["type"] == "prng_key" and msg["value"] is None:
            msg["value"] = jax.random.key(0)
