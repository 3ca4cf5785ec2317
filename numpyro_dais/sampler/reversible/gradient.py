# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

r"""
Gradients of a chain in nearly constant memory: the backward pass runs the chain backwards.

The state is kept in integers (:mod:`numpyro_dais.sampler.reversible.fixed_point`). Each line of a
leapfrog step adds a rounded function of the other half of the state, so it is undone by subtracting
the same; damping keeps the digits that it drops; noise comes from the key again. What is stored is
the end of the chain and one word for each momentum every 173 steps (at damping 0.9, in float32). At
each rebuilt state the gradient is that of the step without rounding,
:func:`numpyro_dais.sampler.kernel.forward_step`.

The rounded leapfrog step still is a bijection that preserves volume, so weights are as unbiased as
in floating point, but for refreshment: damping rounds the momentum to within as many units as the
numerator of its fraction, 2e-6 in float32 at 9/10.

Forward and backward pass are two programs, which must round alike. What could be rounded in two
ways, the gradient of the path above all, is therefore compiled apart from the rest. The backward
pass compares the start that it comes back to with the true one, bit for bit, every time; gradients
are NaN if they differ.

**Which memory mode?** ``"checkpoint"`` unless its memory, O(sqrt(K)) states above about a thousand
steps and one state per step below, is too much; it has second derivatives, any damping, and the
fewest surprises. ``"reversible"`` where states are large or steps many: its memory hardly grows
with the number of steps. ``"products"`` for short chains of neural networks, where it is the
fastest; ``"plain"`` for short chains of small models, if at all.

**References**

1. *Differentiable Annealed Importance Sampling and the Perils of Gradient Noise*, section 3.2,
   Guodong Zhang, Kyle Hsu, Jianing Li, Chelsea Finn, Roger Grosse (NeurIPS 2021)
2. *Gradient-based Hyperparameter Optimization through Reversible Learning*,
   Dougal Maclaurin, David Duvenaud, Ryan P. Adams (ICML 2015)
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple
import warnings

import jax
from jax import lax, random
from jax.custom_batching import custom_vmap
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
import jax.numpy as jnp

from numpyro_dais.sampler.kernel import Axes, ChainState, Step, split_preconditioner, with_matrices
from numpyro_dais.sampler.noise import block_length, draw_chain_noise
from numpyro_dais.sampler.path import LogDensities, LogDensitiesFn
from numpyro_dais.sampler.reversible.fixed_point import (
    Grid,
    Ratio,
    make_grid,
    num_flush_steps,
    rational_damping,
)
from numpyro_dais.sampler.reversible.passes import (
    Inputs,
    Rebuilt,
    Saved,
    Statics,
    backward_pass,
    forward_pass,
    is_close,
)
from numpyro_dais.sampler.reversible.reverse_only import reverse_only

__all__ = ["OVERFLOW_NOTE", "Reversible", "run_reversible", "start_scale"]

OVERFLOW_NOTE = (
    "With memory='reversible' a weight is zero, too, if a position goes further from its start than 256 "
    "times the start's spread, or a momentum beyond 256 (2,048 in x64): compare memory='checkpoint'."
)


class Reversible(NamedTuple):
    """
    Options of the reversible mode.

    :param ratio: the damping as a fraction, from
        :func:`~numpyro_dais.sampler.reversible.fixed_point.rational_damping`; if left out it is
        taken from the steps' damping, which then is rounded.
    :param scale: the spread of the start along each dimension, which sets the units of the
        position; 1 if left out.
    :param anchor_every: store the state every so many steps, and correct the rebuilt one by it.
    """

    ratio: Ratio | None = None
    scale: jax.Array | None = None
    anchor_every: int | None = None


@jax.tree_util.register_static
@dataclass(frozen=True)
class _Flags:
    """Flags of the inputs' leaves, true for those that are differentiated; static."""

    values: tuple[bool, ...]


def start_scale(sample_fn: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """
    Returns the spread of the start along each dimension, roughly: the geometric mean of differences
    of draws, which heavy tails do not spoil and which needs no room for many draws.

    :param sample_fn: draws a position from a key.
    """

    def add_pair(total: tuple[jax.Array, jax.Array], rng_key: jax.Array) -> Any:
        one, other = (lax.stop_gradient(sample_fn(key)) for key in random.split(rng_key))
        log_distance = jnp.log(jnp.abs(one - other))
        is_finite = jnp.isfinite(log_distance)
        return (total[0] + jnp.where(is_finite, log_distance, 0.0), total[1] + is_finite), None

    shape = jax.eval_shape(sample_fn, random.key(0))
    zeros = jnp.zeros(shape.shape, shape.dtype)
    # 16 pairs know a scale to within a factor of two or so, and it is rounded to a power of two.
    (total, count), _ = lax.scan(add_pair, (zeros, zeros), random.split(random.key(0), 16))
    return jnp.exp(total / jnp.maximum(count, 1))


def run_reversible(
    rng_key: jax.Array,
    state: ChainState,
    log_densities_fn: LogDensitiesFn,
    steps: Step,
    options: Reversible,
    on_step: Callable[[jax.Array], None] | None = None,
) -> ChainState:
    """
    Returns the state after all steps of an uncorrected chain. The log weight is NaN if a word has
    left its range. Gradients are NaN, and a warning is given, if the backward pass does not end
    where the chain began.

    :param rng_key: the key of the noise.
    :param state: the state at the start.
    :param log_densities_fn: both ends of the path; it may close over traced values.
    :param steps: settings, one per step along the leading axis.
    :param options: options of this mode.
    :param on_step: called with the index of each step, on the way forward.
    """
    statics, inputs, grid = prepare(state, log_densities_fn, steps, options, on_step)

    @jax.custom_vjp
    def chain(inputs: Inputs, grid: Grid, rng_key: jax.Array) -> ChainState:
        return forward_pass(statics, inputs, grid, rng_key)[0]

    def chain_forward(*primals: Any) -> Any:
        flags = _Flags(tuple(primal.perturbed for primal in jax.tree.leaves(primals[0])))
        inputs, grid, rng_key = jax.tree.map(lambda primal: primal.value, primals)
        end, saved = forward_pass(statics, inputs, grid, rng_key)
        return end, (inputs, grid, rng_key, saved, flags)

    @_once
    def chain_backward(residuals: Any, cotangents: ChainState) -> Any:
        inputs, grid, rng_key, saved, flags = residuals
        is_perturbed = jax.tree.unflatten(jax.tree.structure(inputs), flags.values)
        rebuilt = backward_pass(statics, inputs, grid, rng_key, saved, cotangents, is_perturbed)
        return _checked(rebuilt, saved), None, None

    chain.defvjp(chain_forward, chain_backward, symbolic_zeros=True)
    end = chain(reverse_only(inputs), grid, rng_key)
    return end._replace(log_weight=state.log_weight + end.log_weight)


def prepare(
    state: ChainState,
    log_densities_fn: LogDensitiesFn,
    steps: Step,
    options: Reversible,
    on_step: Callable[[jax.Array], None] | None = None,
) -> tuple[Statics, Inputs, Grid]:
    """
    Returns the arguments of :func:`~numpyro_dais.sampler.reversible.passes.forward_pass` but for
    its key. The parameters are those of :func:`run_reversible`.
    """
    steps, preconditioner = split_preconditioner(with_matrices(steps))
    ratio = options.ratio
    if ratio is None:
        damping, ratio = rational_damping(steps.damping)
        steps = steps._replace(damping=damping)
    pure_fn, constants = _hoist(log_densities_fn, state.position)
    length = block_length(len(steps.beta), state.momentum.size)
    flush_every = num_flush_steps(ratio, 8 * state.position.dtype.itemsize)
    anchor_every = options.anchor_every
    # To save after whole blocks costs less; blocks are those of the noise, so words may be shorter.
    save_every = length if min(flush_every, anchor_every or flush_every) >= length else 1
    statics = Statics(
        pure_fn,
        partial(draw_chain_noise, state),
        on_step,
        ratio,
        length,
        save_every,
        flush_every=flush_every // save_every * save_every,
        anchor_every=anchor_every and anchor_every // save_every * save_every,
    )
    assert not isinstance(preconditioner, Axes)
    inputs = Inputs(state.position, state.momentum, constants, preconditioner, steps)
    return statics, inputs, make_grid(lax.stop_gradient(state.position), options.scale)


def _hoist(
    log_densities_fn: LogDensitiesFn, position: jax.Array
) -> tuple[Callable[[list, jax.Array], LogDensities], list]:
    """Returns the log densities as a function of all that they closed over, and that."""
    # jax.closure_convert leaves integers and keys behind, which the backward pass cannot reach
    # either.
    closed = jax.make_jaxpr(log_densities_fn)(position)

    def pure_fn(constants: list, position: jax.Array) -> LogDensities:
        return LogDensities(*jaxpr_as_fun(ClosedJaxpr(closed.jaxpr, constants))(position))

    return pure_fn, list(closed.consts)


def _once(backward: Callable) -> Callable:
    """Returns a backward pass that refuses to be differentiated: roundings have no slope."""
    guarded = jax.custom_jvp(backward)

    @guarded.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        raise NotImplementedError(
            "memory='reversible' has first derivatives only; got a derivative of its gradient. Use "
            "memory='checkpoint'."
        )

    def with_zeros(residuals: Any, cotangents: Any) -> Any:
        return guarded(residuals, jax.tree.map(_instantiate, cotangents))

    return with_zeros


def _instantiate(cotangent: Any) -> jax.Array:
    if isinstance(cotangent, SymbolicZero):
        return jnp.zeros(cotangent.shape, cotangent.dtype)
    return cotangent


def _checked(rebuilt: Rebuilt, saved: Saved) -> Inputs:
    """Returns gradients, or NaN if the backward pass did not come back to the start."""
    zeros = jax.tree.map(jnp.zeros_like, saved.end)
    start = zeros._replace(momentum=saved.start)
    if saved.anchors is None:
        are_equal = jax.tree.map(jnp.array_equal, rebuilt.start, start)
        is_good = jax.tree.reduce(jnp.logical_and, are_equal)
    else:
        is_good = rebuilt.is_close & is_close(rebuilt.start, start)
    is_good = _report(is_good)
    return jax.tree.map(lambda x: jnp.where(is_good, x, jnp.nan), rebuilt.gradients)


@custom_vmap
def _report(is_good: jax.Array) -> jax.Array:
    """
    Returns the flag as it is, and warns, from the host, if a backward pass has gone astray; once
    for all particles. JAX 0.8 drops the call, and the warning, if its result is not used.
    """
    lax.cond(is_good, lambda: None, lambda: jax.debug.callback(_warn))
    return is_good


@_report.def_vmap
def _(axis_size: int, in_batched: list, is_good: jax.Array) -> tuple[jax.Array, bool]:
    is_good = is_good & (is_good | _report(jnp.all(is_good)))  # the flag, after the report
    return is_good, True


def _warn() -> None:
    warnings.warn(
        "memory='reversible': the backward pass did not come back to the start bit for bit, as a gradient "
        "was rounded differently than on the way forward. The gradient is set to NaN. Pass "
        "anchor_every=100 to store a state every 100 steps, or use memory='checkpoint'.",
        stacklevel=2,
    )
