# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Gradients of particles of which some are lost.

A particle whose weight is not finite counts as zero, and what it adds to a gradient is zero, too.
Automatic differentiation gives NaN instead, for all particles: on the way back its zero cotangent
meets an infinite derivative. So does a particle of finite weight whose gradient is not finite.

Here gradients are taken as ever, and looked at. Only if they are not finite they are taken again
with the lost particles frozen: these stay at a start from which another one was not lost, or at
their own, where derivatives are finite. If that is not enough, particles are differentiated one by
one, elements of a plate as well, and a gradient that is not finite is left out of the sum. Values
are never changed, and forward-mode derivatives are the plain ones.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax import lax
from jax.custom_batching import custom_vmap
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import ClosedJaxpr, Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir
import jax.numpy as jnp

from numpyro_dais._util.concreteness import is_concrete

__all__ = ["ParticleFn", "Travelled", "is_lost", "travel"]


class Travelled(NamedTuple):
    """
    The start and the end of a particle; or of particles, ``[num_particles, ...]`` each.

    :param start: the draw of the start.
    :param position: the end of the chain.
    :param log_weight: a number, or one for each element of a plate.
    """

    start: jax.Array
    position: jax.Array
    log_weight: jax.Array


# One particle from the start to the target: from its key, from whether it is frozen, or which of
# its elements are, and from the start of what is frozen.
ParticleFn = Callable[[jax.Array, jax.Array, jax.Array], Travelled]


def is_lost(travelled: Travelled) -> jax.Array:
    """Returns which particles, or elements of them, have no finite weight or no finite start."""
    has_start = jnp.all(jnp.isfinite(travelled.start), -1)
    return ~(has_start & jnp.isfinite(travelled.log_weight))


def travel(
    particle_fn: ParticleFn,
    rng_keys: jax.Array,
    start: jax.ShapeDtypeStruct,
    chunk_size: int | None = None,
    is_reversible: bool = False,
) -> Travelled:
    """
    Returns particles side by side, whose gradient is that of the ones which are not lost.

    :param particle_fn: one of them; it may close over traced values.
    :param rng_keys: a key for each.
    :param start: the shape of a start.
    :param chunk_size: how many run at a time; all if None.
    :param is_reversible: whether gradients are NaN where a backward pass has gone astray, which
        must not be hidden: then particles are not taken one by one.
    """
    frozen, begin = jnp.zeros(start.shape[:-1], bool), jnp.zeros(start.shape, start.dtype)
    closed = jax.make_jaxpr(particle_fn)(rng_keys[0], frozen, begin)
    is_traced = [not is_concrete(const) for const in closed.consts]

    def run(consts: list, *inputs: jax.Array) -> Travelled:
        """Particles as a function of all that is traced."""
        own = _merge(is_traced, consts, [c for c in closed.consts if is_concrete(c)])
        one = jaxpr_as_fun(ClosedJaxpr(closed.jaxpr, own))
        if chunk_size is None or chunk_size >= len(inputs[0]):
            return Travelled(*jax.vmap(one)(*inputs))
        return Travelled(*lax.map(lambda xs: one(*xs), inputs, batch_size=chunk_size))

    @jax.custom_jvp
    def run_all(consts: list, rng_keys: jax.Array) -> Travelled:
        return run(consts, *_free(rng_keys, start))

    def derivative(primals: Any, tangents: Any) -> Any:
        (consts, rng_keys), (slopes, _) = primals, tangents
        is_active = [not isinstance(slope, SymbolicZero) for slope in slopes]

        def run_from(active: list, passive: list, *inputs: jax.Array) -> Travelled:
            return run(_merge(is_active, active, passive), *inputs)

        active, passive = _split(is_active, consts)
        inputs = _free(rng_keys, start)
        out, pull = jax.vjp(lambda active: run_from(active, passive, *inputs), active)
        backward = jax.make_jaxpr(lambda cotangents: pull(cotangents)[0])(out)
        slopes, _ = _split(is_active, slopes)
        operands = _Operands(list(backward.consts), active, passive, rng_keys, list(out), slopes)
        leaves, treedef = jax.tree.flatten(operands)
        rules = _rules(run_from, backward, start, treedef, is_reversible)
        return out, Travelled(*_slope.bind(*leaves, rules=rules))

    run_all.defjvp(derivative, symbolic_zeros=True)
    return run_all([c for c in closed.consts if not is_concrete(c)], rng_keys)


def _split(flags: list[bool], values: list) -> tuple[list, list]:
    """The values with a flag that is set, and the others."""
    pairs = list(zip(flags, values, strict=True))
    return [value for flag, value in pairs if flag], [value for flag, value in pairs if not flag]


def _merge(flags: list[bool], values: list, others: list) -> list:
    """The list that :func:`_split` has split."""
    first, second = iter(values), iter(others)
    return [next(first if flag else second) for flag in flags]


def _free(rng_keys: jax.Array, start: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The inputs of particles none of which is frozen."""
    shape = (len(rng_keys), *start.shape)
    return rng_keys, jnp.zeros(shape[:-1], bool), jnp.zeros(shape, start.dtype)


class _Operands(NamedTuple):
    """
    The inputs of the derivative of a run.

    :param residuals: what its gradient needs of the way forward.
    :param active: traced values that are differentiated.
    :param passive: those that are not.
    :param rng_keys: a key for each particle.
    :param out: the particles.
    :param slopes: directions; the derivative is linear in them.
    """

    residuals: list
    active: list
    passive: list
    rng_keys: jax.Array
    out: list
    slopes: list


class _Rules(NamedTuple):
    """
    The ways to take derivatives; static. All take the leaves of operands, but for the slopes.

    :param num_slopes: of the last leaves, how many are slopes.
    :param shapes: of the slopes of particles.
    :param forward: also takes slopes, to those of the particles.
    :param backward: also takes cotangents of the particles, to those of the active values.
    :param rescue: the same without those that are lost.
    """

    num_slopes: int
    shapes: tuple
    forward: Callable[..., list]
    backward: Callable[..., list]
    rescue: Callable[..., list]


def _rules(
    run_from: Callable, backward_jaxpr: Any, start: Any, treedef: Any, is_reversible: bool
) -> _Rules:
    num_slopes = treedef.children()[-1].num_leaves

    def operands_of(leaves: tuple) -> _Operands:
        operands: _Operands = jax.tree.unflatten(treedef, leaves)
        return operands

    def forward(*leaves: jax.Array) -> list:
        operands = operands_of(leaves)
        inputs = operands.passive, *_free(operands.rng_keys, start)
        primals, tangents = (operands.active,), (operands.slopes,)
        return list(jax.jvp(lambda active: run_from(active, *inputs), primals, tangents)[1])

    def backward(*leaves: jax.Array) -> list:
        rest, cotangents = leaves[:-3], leaves[-3:]
        residuals = operands_of((*rest, *[None] * num_slopes)).residuals
        return jaxpr_as_fun(ClosedJaxpr(backward_jaxpr.jaxpr, residuals))(*cotangents)

    def rescue(*leaves: jax.Array) -> list:
        rest, cotangents = leaves[:-3], leaves[-3:]
        operands = operands_of((*rest, *[None] * num_slopes))
        return _rescue(run_from, operands, Travelled(*cotangents), is_reversible)

    return _Rules(num_slopes, tuple(backward_jaxpr.in_avals), forward, backward, rescue)


def _rescue(
    run_from: Callable, operands: _Operands, cotangents: Travelled, is_reversible: bool
) -> list:
    """The gradient without the particles, and elements of them, that have none."""
    out = Travelled(*operands.out)
    lost = is_lost(out)
    begin = _safe_starts(out.start, lost)
    cotangents = jax.tree.map(lambda x: jnp.where(_like(lost, x), 0.0, x), cotangents)

    def gradient(rng_keys: jax.Array, frozen: jax.Array, begin: jax.Array, cts: Travelled) -> list:
        inputs = operands.passive, rng_keys, frozen, begin
        return jax.vjp(lambda active: run_from(active, *inputs), operands.active)[1](cts)[0]

    def one_by_one() -> list:
        """The sum of the gradients of one element of one particle each."""

        def add(total: list, index: jax.Array) -> tuple[list, None]:
            is_this = jnp.zeros(lost.size, bool).at[index].set(True).reshape(lost.shape)
            particle = index // (lost.size // len(lost))

            def row(x: jax.Array) -> jax.Array:
                return lax.dynamic_index_in_dim(x, particle, 0)

            own = jax.tree.map(
                lambda x: jnp.where(_like(row(is_this), row(x)), row(x), 0.0), cotangents
            )
            key = operands.rng_keys[particle][None]
            part = gradient(key, row(~is_this | lost), row(begin), own)
            is_good = _are_finite(part)
            return [t + jnp.where(is_good, p, 0.0) for t, p in zip(total, part, strict=True)], None

        zeros = [jnp.zeros_like(x) for x in operands.active]
        return lax.scan(add, zeros, jnp.arange(lost.size))[0]

    whole = gradient(operands.rng_keys, lost, begin, cotangents)
    if is_reversible:
        return whole
    return lax.cond(_everywhere(_are_finite(whole)), lambda: whole, one_by_one)


def _safe_starts(starts: jax.Array, lost: jax.Array) -> jax.Array:
    """
    The start of a particle that was not lost, for each element; where all are, each its own.
    """
    found = jnp.argmax(~lost, axis=0)
    spare = jnp.take_along_axis(starts, found[None, ..., None], axis=0)
    own = jnp.where(jnp.isfinite(starts), starts, 0.0)
    return jnp.where(jnp.all(lost, 0)[..., None], own, spare)


def _like(flags: jax.Array, array: jax.Array) -> jax.Array:
    """Flags of elements, in a shape that goes with an array of theirs."""
    return flags.reshape(flags.shape + (1,) * (array.ndim - flags.ndim))


def _are_finite(arrays: list) -> jax.Array:
    flags = [jnp.all(jnp.isfinite(array)) for array in arrays]
    return jnp.all(jnp.stack(flags)) if flags else jnp.asarray(True)


@custom_vmap
def _everywhere(flag: jax.Array) -> jax.Array:
    """A flag; of runs side by side, whether it is set in all: else each would run both branches."""
    return flag


@_everywhere.def_vmap
def _(axis_size: int, in_batched: list, flag: jax.Array) -> tuple[jax.Array, bool]:
    return _everywhere(jnp.all(flag)), False


# The derivative of a run in some direction. It is computed as ever; it is a primitive for the sake
# of its transpose, the gradient, which looks at what it finds.
_slope = Primitive("slope_of_particles")
_slope.multiple_results = True


def _transpose(cotangents: list, *leaves: Any, rules: _Rules) -> list:
    num_others = len(leaves) - rules.num_slopes
    others = leaves[:num_others]
    cotangents = [ad.instantiate_zeros(cotangent) for cotangent in cotangents]
    plain = rules.backward(*others, *cotangents)
    # A cotangent that is not finite is no fault of the particles, and must not be hidden.
    is_fine = _are_finite(plain) | ~_are_finite(cotangents)
    found = lax.cond(
        _everywhere(is_fine), lambda: plain, lambda: rules.rescue(*others, *cotangents)
    )
    return [None] * num_others + found


def _jvp(primals: Any, tangents: Any, rules: _Rules) -> Any:
    flags = [not isinstance(tangent, ad.Zero) for tangent in tangents]
    inputs, others = _split(flags, primals)
    directions, _ = _split(flags, tangents)

    def forward(*inputs: jax.Array) -> list:
        return rules.forward(*_merge(flags, list(inputs), others))

    _, slopes = jax.jvp(forward, tuple(inputs), tuple(directions))
    return _slope.bind(*primals, rules=rules), slopes


def _batch(leaves: Any, dims: Any, rules: _Rules) -> Any:
    pairs = list(zip(leaves, dims, strict=True))
    (size,) = {x.shape[axis] for x, axis in pairs if axis is not None}
    num_others = len(leaves) - rules.num_slopes
    slopes = [
        jnp.broadcast_to(x, (size, *x.shape)) if axis is None else jnp.moveaxis(x, axis, 0)
        for x, axis in pairs[num_others:]
    ]
    others = dims[:num_others]
    batched = _Rules(
        rules.num_slopes,
        tuple(aval.update(shape=(size, *aval.shape)) for aval in rules.shapes),
        jax.vmap(rules.forward, (*others, *[0] * rules.num_slopes)),
        jax.vmap(rules.backward, (*others, 0, 0, 0)),
        jax.vmap(rules.rescue, (*others, 0, 0, 0)),
    )
    outputs = _slope.bind(*leaves[:num_others], *slopes, rules=batched)
    return outputs, [0] * len(outputs)


_slope.def_impl(lambda *leaves, rules: rules.forward(*leaves))
_slope.def_abstract_eval(lambda *leaves, rules: list(rules.shapes))
mlir.register_lowering(
    _slope, mlir.lower_fun(lambda *leaves, rules: rules.forward(*leaves), multiple_results=True)
)
ad.primitive_jvps[_slope] = _jvp
ad.primitive_transposes[_slope] = _transpose
batching.primitive_batchers[_slope] = _batch
