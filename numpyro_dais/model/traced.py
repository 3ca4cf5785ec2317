# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Targets that were traced once and serve many programs, of many objects.

The functions of a problem are traced into jaxprs, with all arrays, those of the arguments and those
that the model closes over, as inputs. What a program is compiled for is then a set of jaxprs, which
holds no data; the data are what it is called with. New data of the same shape change nothing, and
neither does a new object: the jaxprs of a model are kept, with the arrays that it closes over, as
long as the model lives.

A model may read what has changed since, a global or an attribute. So each new object runs the model
once, abstractly, and compares what it does with what it did.
"""

from collections.abc import Callable
from contextlib import contextmanager
from functools import partial
import hashlib
import re
from types import MethodType
from typing import Any, NamedTuple
import weakref

import jax
from jax import random
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun
import jax.numpy as jnp
import numpy as np

from numpyro.infer.autoguide import AutoGuide

from numpyro_dais._util.concreteness import is_concrete
from numpyro_dais.model.factors import factors_beside_data, free_factors
from numpyro_dais.model.guide import pieces_of, seeded_trace, set_up
from numpyro_dais.model.inspection import (
    NUMPY_ERRORS,
    ModelStructure,
    Trace,
    inspect_run,
    log_prob_of,
    without_tracers,
)
from numpyro_dais.model.problem import Problem
from numpyro_dais.model.target import coordinate_order, make_target
from numpyro_dais.sampler.mixture import Mixture, started_at
from numpyro_dais.sampler.path import (
    DynamicsFn,
    LogDensities,
    LogDensitiesFn,
    Target,
    TargetFunctions,
)

__all__ = [
    "TracedFunction",
    "TracedTarget",
    "Tracing",
    "digest_of",
    "explained_errors",
    "shape_of",
    "text_of",
    "trace_function",
    "trace_target",
]


class _Function(NamedTuple):
    """A function without what it closes over; static."""

    jaxpr: Jaxpr
    out_tree: Any

    def call(self, constants: list, *inputs: Any) -> Any:
        """Returns the value of the function."""
        outputs = jaxpr_as_fun(ClosedJaxpr(self.jaxpr, constants))(*jax.tree.leaves(inputs))
        return jax.tree.unflatten(self.out_tree, outputs)


class Tracing:
    """
    The functions of a problem as jaxprs. Static: programs are compiled for this very object.

    :param functions: those that chains call, by name; the first inputs of each are the leaves of
        the problem.
    :param structure: of the model; None if there is none.
    :param num_dims: the dimension of a position.
    """

    def __init__(
        self, functions: dict[str, _Function], structure: ModelStructure | None, num_dims: int
    ) -> None:
        self.functions = functions
        self.structure = structure
        self.num_dims = num_dims

    @property
    def order(self) -> np.ndarray:
        """The coordinates of a position in the order in which the model draws them."""
        if self.structure is None:
            return np.arange(self.num_dims)
        return coordinate_order(self.structure)


@jax.tree_util.register_pytree_node_class
class TracedTarget:
    """
    A target as a pytree: its arrays are leaves, its functions static.

    :param tracing: the functions.
    :param leaves: those of the problem, arguments of the model among them.
    :param constants: the arrays that each function has closed over.
    :param mixture: a fitted start, or None for the problem's own.
    :param others: whatever else was traced of the problem, see :func:`trace_function`; not a part
        of the pytree.
    """

    def __init__(
        self,
        tracing: Tracing,
        leaves: list,
        constants: dict[str, list],
        mixture: Mixture | None = None,
        others: dict[Any, Any] | None = None,
    ) -> None:
        self.tracing = tracing
        self.leaves = leaves
        self.constants = constants
        self.mixture = mixture
        self.others = {} if others is None else others

    @property
    def sample_fn(self) -> Callable[[jax.Array], jax.Array]:
        """See :class:`~numpyro_dais.sampler.path.Target`, as for the next two."""
        return started_at(self._unstarted, self.mixture).sample_fn

    @property
    def log_densities_fn(self) -> LogDensitiesFn:
        return started_at(self._unstarted, self.mixture).log_densities_fn

    @property
    def dynamics_fn(self) -> DynamicsFn | None:
        return self._unstarted.dynamics_fn

    @property
    def _unstarted(self) -> TargetFunctions:
        """The target with the problem's own start."""

        def dynamics_fn(batch_key: jax.Array, index: jax.Array) -> LogDensitiesFn:
            return partial(self.call, "dynamics", batch_key, jnp.asarray(index))

        return TargetFunctions(
            partial(self.call, "sample"),
            partial(self.call, "log_densities"),
            dynamics_fn if "dynamics" in self.tracing.functions else None,
        )

    def call(self, name: str, *inputs: Any) -> Any:
        """Returns the value of a function of the problem."""
        function = self.tracing.functions[name]
        return function.call(self.constants[name], self.leaves, *inputs)

    def with_leaves(self, leaves: list) -> "TracedTarget":
        """Returns the target of a problem with other arrays of the same shapes."""
        return TracedTarget(self.tracing, leaves, self.constants, self.mixture, self.others)

    def with_mixture(self, mixture: Mixture | None) -> "TracedTarget":
        """
        Returns the target with chains that start at a mixture; at the problem's own start if None.
        """
        return TracedTarget(self.tracing, self.leaves, self.constants, mixture, self.others)

    def tree_flatten(self) -> tuple[tuple, Tracing]:
        return (self.leaves, self.constants, self.mixture), self.tracing

    @classmethod
    def tree_unflatten(cls, tracing: Tracing, children: Any) -> "TracedTarget":
        return cls(tracing, *children)


@jax.tree_util.register_pytree_node_class
class TracedFunction:
    """
    A function of a problem as a pytree, like :class:`TracedTarget`.

    :param function: the function; static.
    :param leaves: those of the problem.
    :param constants: the arrays that it has closed over.
    """

    def __init__(self, function: _Function, leaves: list, constants: list) -> None:
        self.function = function
        self.leaves = leaves
        self.constants = constants

    def __call__(self, *inputs: Any) -> Any:
        return self.function.call(self.constants, self.leaves, *inputs)

    def tree_flatten(self) -> tuple[tuple, _Function]:
        return (self.leaves, self.constants), self.function

    @classmethod
    def tree_unflatten(cls, function: _Function, children: Any) -> "TracedFunction":
        return cls(function, *children)


class _Entry(NamedTuple):
    """A target without leaves, and what the model was seen to do when it was traced."""

    fingerprint: Any
    target: TracedTarget


_entries: dict[Any, _Entry] = {}


def trace_target(problem: Problem, rng_key: jax.Array) -> TracedTarget:
    """
    Returns the target of a problem, or raises an error that says why there is none.

    :param problem: a model or potential function, its arguments and the start; values may be
        traced.
    :param rng_key: a key of the kind that draws are made with.
    """
    leaves = jax.tree.leaves(problem)
    with explained_errors():
        structure, fingerprint = _look(problem)
        key = _cache_key(problem, rng_key)
        entry = _entries.get(key) if key is not None else None
        if entry is None or entry.fingerprint != fingerprint:
            entry = _Entry(fingerprint, _trace(problem, structure, rng_key))
            # Values that are being traced must not outlive their trace.
            if key is not None and fingerprint is not None and is_concrete(entry.target.constants):
                _entries[key] = entry
    return entry.target.with_leaves(leaves)


def trace_function(
    target: TracedTarget, problem: Problem, name: str, fn: Callable[..., Any], *inputs: Any
) -> TracedFunction:
    """
    Returns another function of a problem, traced once for all objects that share its target.

    :param target: of the problem.
    :param problem: the problem.
    :param name: of the function; with the shapes of its inputs it says which one it is.
    :param fn: the function, of a problem and inputs.
    :param inputs: examples of its inputs.
    """
    key, known = (name, shape_of(inputs)), target.others
    if key in known:
        function, constants = known[key]
    else:
        with explained_errors():
            function, constants, _ = _trace_one(problem, fn, *inputs)
        if is_concrete(constants):
            known[key] = function, constants
    return TracedFunction(function, jax.tree.leaves(problem), constants)


def shape_of(tree: Any) -> Any:
    """
    Returns what programs are compiled for: the structure of a tree, and the types of its leaves.
    """
    leaves, treedef = jax.tree.flatten(tree)
    return treedef, tuple(jax.typeof(leaf) for leaf in leaves), jnp.result_type(float)


@contextmanager
def explained_errors() -> Any:
    """Says what to do where a model cannot be traced."""
    try:
        yield
    except jax.errors.ConcretizationTypeError as error:
        raise ValueError(
            "The model's Python control flow depends on the value of a latent site or of an array "
            "argument, which JAX cannot trace. Use `jnp.where`, `lax.cond` or "
            "`numpyro.contrib.control_flow.cond`; pass sizes as Python ints."
        ) from error
    except NUMPY_ERRORS as error:
        raise ValueError(
            "The model hands the value of a latent site or of an array argument to NumPy, as an argument or as an "
            "index, which JAX cannot trace. Use `jax.numpy`, and make arrays that are indexed JAX arrays: "
            "jnp.asarray(x)."
        ) from error


def _trace(problem: Problem, structure: ModelStructure | None, rng_key: jax.Array) -> TracedTarget:
    functions: dict[str, _Function] = {}
    constants: dict[str, list] = {}

    def add(name: str, fn: Callable[..., Any], *inputs: Any) -> Any:
        def of_problem(problem: Problem, *inputs: Any) -> Any:
            return fn(make_target(problem, structure), *inputs)

        functions[name], constants[name], shapes = _trace_one(problem, of_problem, *inputs)
        return shapes

    key = jax.ShapeDtypeStruct((), rng_key.dtype)
    position = add("sample", lambda target, key: target.sample_fn(key), key)
    add("log_densities", lambda target, u: target.log_densities_fn(u), position)
    has_batches = problem.data_plate is not None and problem.data_plate.batches is not None
    if problem.surrogate is not None or has_batches:
        index = jax.ShapeDtypeStruct((), jnp.result_type(int))
        add("dynamics", _follow, key, index, position)
    return TracedTarget(Tracing(functions, structure, position.shape[-1]), [], constants)


def _trace_one(
    problem: Problem, fn: Callable[..., Any], *inputs: Any
) -> tuple[_Function, list, Any]:
    """A function of a problem and inputs, what it closes over, and the shapes of its outputs."""
    leaves, treedef = jax.tree.flatten(problem)

    def of_leaves(leaves: list, *inputs: Any) -> Any:
        return fn(jax.tree.unflatten(treedef, leaves), *inputs)

    closed, shapes = jax.make_jaxpr(of_leaves, return_shape=True)(leaves, *inputs)
    return _Function(closed.jaxpr, jax.tree.structure(shapes)), closed.consts, shapes


def _follow(
    target: Target, batch_key: jax.Array, index: jax.Array, position: jax.Array
) -> LogDensities:
    assert target.dynamics_fn is not None
    return target.dynamics_fn(batch_key, index)(position)


def _look(problem: Problem) -> tuple[ModelStructure | None, Any]:
    """
    The structure of a model, and what one run of it and of its guide does; traced, not computed.
    """
    leaves, treedef = jax.tree.flatten(problem)
    structure: Any = None
    factors: tuple[str, ...] = ()
    # Autoguides do what their parameters say, and keep what they see, so they must not see tracers.
    pieces = [] if problem.guide is None else pieces_of(problem.guide)
    for piece in pieces:
        if isinstance(piece, AutoGuide):
            set_up(piece, problem)

    def look(leaves: list) -> Any:
        nonlocal structure, factors
        seen = jax.tree.unflatten(treedef, leaves)
        if seen.potential_fn is not None:
            target = make_target(seen)
            position = target.sample_fn(random.key(0))
            return {}, target.log_densities_fn(position)
        structure, trace = inspect_run(seen)
        factors = factors_beside_data(trace)
        written = [piece for piece in pieces if not isinstance(piece, AutoGuide)]
        traces = [trace, *(seeded_trace(piece, seen) for piece in written)]
        return structure.prototype, [_sites(trace) for trace in traces]

    closed, outputs = jax.make_jaxpr(look, return_shape=True)(leaves)
    if structure is not None:
        structure = without_tracers(structure, outputs[0])
        _, (sites, *_) = jax.tree.unflatten(jax.tree.structure(outputs), closed.jaxpr.outvars)
        latents = [sites[name][0] for name in (*structure.prototype, *structure.discrete)]
        numbers = {name: sites[name] for name in factors}
        free = free_factors(closed.jaxpr, problem.parts_of_leaves, latents, numbers)
        structure = structure._replace(free_factors=free)
    if not is_concrete(closed.consts):
        return structure, None
    return structure, (text_of(closed.jaxpr), [digest_of(const) for const in closed.consts])


def text_of(jaxpr: Jaxpr) -> str:
    """Returns what a jaxpr does, as text that is the same in every process."""
    # Functions inside of a jaxpr are printed with their addresses.
    return re.sub("0x[0-9a-f]+", "", str(jaxpr))


def _sites(trace: Trace) -> dict[str, Any]:
    """Numbers of all sites, and the log densities of those that are random."""
    numbers = {}
    for name, site in trace.items():
        values = [site["value"]]
        if site["type"] == "sample":
            values += [site["scale"], log_prob_of(site)]
        leaves = jax.tree.leaves(values)
        numbers[name] = [x for x in leaves if isinstance(x, (jax.Array, np.ndarray, float, int))]
    return numbers


def digest_of(array: Any) -> Any:
    """Returns the shape, the type and a digest of the values of a concrete array or number."""
    if jnp.issubdtype(jax.typeof(array).dtype, jax.dtypes.prng_key):
        array = random.key_data(array)
    values = np.ascontiguousarray(array)
    return values.shape, str(values.dtype), hashlib.blake2b(values.tobytes()).digest()


def _cache_key(problem: Problem, rng_key: jax.Array) -> Any:
    """A key that does not keep model and guide alive; None if there is none."""
    children, static = problem.tree_flatten()
    callables = static.model, static.potential_fn, static.guide
    try:
        refs = tuple(_weak(fn) for fn in callables)
        rest = static._replace(model=None, potential_fn=None, guide=None)
        key = refs, rest, shape_of(children), rng_key.dtype
        hash(key)
    except TypeError:  # not hashable, or not to be referred to weakly
        return None
    return key


def _weak(fn: Any) -> Any:
    if fn is None:
        return None
    kind = weakref.WeakMethod if isinstance(fn, MethodType) else weakref.ref
    return kind(fn, _forget)


def _forget(dead: Any) -> None:
    for key in [key for key in _entries if any(ref is dead for ref in key[0])]:
        del _entries[key]
