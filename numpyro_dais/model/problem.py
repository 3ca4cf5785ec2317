# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""An integral: a model with its arguments and a start, as one pytree."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

import numpyro

from numpyro_dais._util.numpyro_internals import hidden_site
from numpyro_dais.model.rows import RowData

__all__ = ["DataPlate", "Problem"]


class DataPlate(NamedTuple):
    """
    The subsampled plate around the data of a model with global latents; static.

    :param name: of the plate.
    :param size: the number of its elements, N.
    :param batch_size: that of a mini-batch, B.
    :param batches: whether all particles see the ``"shared"`` mini-batches, or each ``"particle"``
        its own; None where no step needs data.
    :param is_end_exact: whether the density at the end of a chain is that of all the data, or an
        estimate from one more mini-batch.
    """

    name: str
    size: int
    batch_size: int
    batches: str | None = None
    is_end_exact: bool = True


class _Static(NamedTuple):
    """The parts of a problem that JAX does not trace; equal ones share a compiled program."""

    model: Callable | None
    potential_fn: Callable | None
    guide: Callable | None
    plate: str | tuple[str, ...] | None
    data_plate: DataPlate | None
    treedef: Any
    leaves: tuple


_TRACED = object()
# The parts of a problem that may hold arrays.
_ARRAYS = (
    "start",
    "params",
    "guide_params",
    "subsample",
    "batch_key",
    "surrogate",
    "prng_key",
    "args",
    "kwargs",
)
# The parts that never do.
_OTHERS = ("potential_fn", "guide", "plate", "data_plate")


def _is_traced(leaf: Any) -> bool:
    """Arrays and floats are traced; sizes, flags, strings and other objects stay as they are."""
    return isinstance(leaf, (jax.Array, np.ndarray, np.inexact, float, complex))


@jax.tree_util.register_pytree_node_class
class Problem:
    """
    A model (or potential function), its arguments and the start of the chains.

    ``subsample`` holds the indices of a mini-batch by plate, one for all runs; ``prng_key`` is what
    the model and guide get from ``numpyro.prng_key()``. With a ``data_plate`` the density is that
    of all its elements, and ``subsample`` has some, to run the model with; ``batch_key`` is that of
    the mini-batches which the steps see, and ``surrogate`` what they follow instead.

    Array and float leaves of ``start``, the parameters, ``subsample``, ``args`` and so on are
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
        plate: str | tuple[str, ...] | None = None,
        data_plate: DataPlate | None = None,
        subsample: dict[str, jax.Array] | None = None,
        batch_key: jax.Array | None = None,
        surrogate: Any = None,
        prng_key: jax.Array | None = None,
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
        self.data_plate = data_plate
        self.subsample = {} if subsample is None else subsample
        self.batch_key = batch_key
        self.surrogate = surrogate
        self.prng_key = prng_key
        self.args = args
        self.kwargs = {} if kwargs is None else kwargs

    @property
    def plates(self) -> tuple[str, ...]:
        """The plates whose elements have an evidence each."""
        if self.plate is None:
            return ()
        return (self.plate,) if isinstance(self.plate, str) else self.plate

    @property
    def prepared_model(self) -> Callable:
        """
        The model with its ``param`` and ``mutable`` sites filled in, and nothing left to chance.
        """
        own = _own_latents(self.model)
        return self._prepare(own, {**self.guide_params, **self.params})

    def prepare_guide(self, guide: Callable) -> Callable:
        """Returns the guide, or a piece of it, with its parameters filled in likewise."""
        return self._prepare(guide, self.guide_params)

    def _prepare(self, fn: Callable, params: dict) -> Callable:
        def value_of(site: dict[str, Any]) -> Any:
            # A latent site may have the name of a parameter, of the guide for example.
            if site["type"] not in ("param", "mutable") or site["name"] not in params:
                return None
            # Models change the dicts of their networks in place: each run has its own.
            return jax.tree.map(lambda leaf: leaf, params[site["name"]])

        substituted = numpyro.handlers.substitute(fn, substitute_fn=value_of)
        return _fixed_randomness(substituted, self.prng_key, self.subsample)

    def tree_flatten(self) -> tuple[list, _Static]:
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        leaves, treedef = jax.tree.flatten(arrays)
        children = [leaf for leaf in leaves if _is_traced(leaf)]
        static_leaves = tuple(_TRACED if _is_traced(leaf) else leaf for leaf in leaves)
        others = {name: getattr(self, name) for name in _OTHERS}
        static = _Static(self.model, **others, treedef=treedef, leaves=static_leaves)
        return children, static

    @classmethod
    def tree_unflatten(cls, static: _Static, children: Any) -> "Problem":
        remaining = iter(children)
        leaves = [next(remaining) if leaf is _TRACED else leaf for leaf in static.leaves]
        arrays = jax.tree.unflatten(static.treedef, leaves)
        others = {name: getattr(static, name) for name in _OTHERS}
        return cls(static.model, **others, **arrays)

    @property
    def parts_of_leaves(self) -> list[str]:
        """The name of the part, such as ``args``, that each leaf of this pytree belongs to."""
        # JAX flattens a dict in the order of its sorted keys.
        leaves = [
            (name, leaf)
            for name in sorted(_ARRAYS)
            for leaf in jax.tree.leaves(getattr(self, name))
        ]
        return [name for name, leaf in leaves if _is_traced(leaf)]

    def replace(self, **changes: Any) -> "Problem":
        """Returns the problem with other values of some of its parts."""
        parts = {name: getattr(self, name) for name in (*_OTHERS, *_ARRAYS)}
        model = changes.pop("model", self.model)
        return Problem(model, **{**parts, **changes})


class _fixed_randomness(numpyro.primitives.Messenger):
    """
    Makes the density a function of the latents: ``numpyro.prng_key()`` gives one key, and
    subsampled plates take one mini-batch. The scale N/B of these plates is left to whoever adds up
    the elements. Keys that a ``seed`` inside gives to random sites are taken away: every particle
    would start at the same draw.
    """

    def __init__(
        self, fn: Callable, prng_key: jax.Array | None, subsample: dict[str, jax.Array]
    ) -> None:
        super().__init__(fn)
        self.prng_key = jax.random.key(0) if prng_key is None else prng_key
        self.subsample = subsample
        self.ratios: dict[str, float] = {}
        # Of the last plate with so many elements.
        self.indices: dict[int, jax.Array] = {}

    def process_message(self, msg: dict) -> None:
        if msg["type"] == "prng_key" and msg["value"] is None:
            msg["value"] = self.prng_key
        elif msg["type"] == "plate" and msg["name"] in self.subsample:
            indices = msg["value"] = self.subsample[msg["name"]]
            self.ratios[msg["name"]] = msg["args"][0] / len(indices)
        elif msg["type"] == "control_flow":
            msg["kwargs"]["rng_key"] = None
        elif msg["type"] == "subsample" and isinstance(msg["value"], RowData):
            # NumPyro would look at the shape of an array; done here, it is none of its business.
            msg["value"], msg["type"] = self._rows(msg["value"]), "subsampled rows"
        elif msg["type"] == "sample":
            msg["kwargs"]["rng_key"] = None
            # Enumeration writes into it, and sites may share one.
            msg["infer"] = dict(msg["infer"])
            for frame in msg["cond_indep_stack"]:
                if frame.name in self.ratios:
                    msg["scale"] = msg["scale"] / self.ratios[frame.name]

    def postprocess_message(self, msg: dict) -> None:
        if msg["type"] == "plate":
            self.indices[msg["args"][0]] = msg["value"]

    def _rows(self, rows: RowData) -> jax.Array:
        """The rows of the mini-batch of the plate with as many elements."""
        if len(rows) not in self.indices:
            raise ValueError(
                f"numpyro.subsample got {rows!r} outside of a plate with {len(rows)} elements. Write "
                "numpyro.plate(name, len(rows), subsample_size=B) around it."
            )
        return rows[self.indices[len(rows)]]


class _own_latents(numpyro.primitives.Messenger):
    """
    Raises an error where a handler inside of the model gives a latent site its value, or hides it.
    """

    def process_message(self, msg: dict) -> None:
        if msg["type"] == "prng_key" and (name := hidden_site()) is not None:
            raise ValueError(
                f"Latent site {name!r} is hidden by `handlers.block`, so it cannot be integrated over: it would stay "
                "at one random value. Expose it, or fix it with `handlers.do`."
            )
        if msg["type"] != "sample" or msg["is_observed"] or msg.get("_control_flow_done", False):
            return
        if msg["value"] is not None:
            raise ValueError(
                f"Latent site {msg['name']!r} gets its value from a handler of the model's own, such as "
                "`handlers.substitute` or `handlers.replay`, so it is neither integrated nor observed. Use "
                "`handlers.condition` to observe it, `handlers.do` to fix it, or leave the handler out."
            )
