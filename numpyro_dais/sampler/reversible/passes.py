# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
A trajectory in integers, there and back: the forward pass of a reversible chain, and the backward
pass that rebuilds each state from the next and takes the gradient there.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
from jax import lax
import jax.numpy as jnp

from numpyro_dais.sampler.kernel import (
    UNCORRECTED,
    Axes,
    ChainState,
    Noise,
    Step,
    drift,
    forward_step,
    kick,
    kinetic_change,
    refresh,
    with_preconditioner,
)
from numpyro_dais.sampler.loop import scan_segments
from numpyro_dais.sampler.path import LogDensities, LogDensitiesFn, tempered_gradient
from numpyro_dais.sampler.reversible.fixed_point import (
    Grid,
    Ratio,
    Words,
    add,
    decode_momentum,
    decode_position,
    encode_start,
    momentum_unit,
    multiply,
    subtract,
    undo_multiply,
)

__all__ = ["Inputs", "Rebuilt", "Saved", "Statics", "backward_pass", "forward_pass", "is_close"]

# Scales by which a rebuilt state may be off at an anchor. Trades gradients that are a little wrong
# for chains that go on where rounding differs: the error of a gradient is of this order.
_ANCHOR_TOLERANCE = 2.0**-10


class Statics(NamedTuple):
    """
    Functions and numbers that are known when a chain is compiled.

    :param log_densities_fn: both ends of the path, as a function of constants and a position.
    :param draw_noise: the noise of a block of steps, from the key, the block's index and its
        length.
    :param on_step: called with the index of each step, on the way forward.
    :param ratio: the damping as a fraction.
    :param length: the number of steps in a block of noise.
    :param save_every: the steps between looks at what has to be saved: those of a block, or 1.
    :param flush_every: after so many steps, a multiple of these, the packed digits are put aside.
    :param anchor_every: after so many steps, likewise, the state is stored; None for never.
    """

    log_densities_fn: Callable[[list, jax.Array], LogDensities]
    draw_noise: Callable[[jax.Array, jax.Array, int], Noise]
    on_step: Callable[[jax.Array], None] | None
    ratio: Ratio
    length: int
    save_every: int
    flush_every: int
    anchor_every: int | None


class Inputs(NamedTuple):
    """
    Inputs that the end of a chain is a differentiable function of.

    :param constants: what the log densities closed over.
    :param preconditioner: of all steps; None if there is none, or ``steps`` has it.
    """

    position: jax.Array
    momentum: jax.Array
    constants: list
    preconditioner: jax.Array | None
    steps: Step


class Saved(NamedTuple):
    """
    Values that the backward pass starts from, beside the inputs.

    :param start: the first state's momentum.
    :param end: the last state.
    :param digits: full words of packed digits.
    :param anchors: states on the way; None without anchors.
    """

    start: jax.Array
    end: Words
    digits: jax.Array
    anchors: Words | None


class Rebuilt(NamedTuple):
    """
    Values that the backward pass ends with.

    :param gradients: of the inputs; None where they are not differentiated.
    :param start: the start, rebuilt.
    :param is_close: whether the state was close to each anchor on its way.
    """

    gradients: Inputs
    start: Words
    is_close: jax.Array


def forward_pass(
    statics: Statics, inputs: Inputs, grid: Grid, rng_key: jax.Array
) -> tuple[ChainState, Saved]:
    """
    Returns the end of a chain, its log weight NaN if a word has left its range, and what the
    backward pass needs.

    :param statics: functions, and how steps are grouped.
    :param inputs: the start and the settings.
    :param grid: the grid of positions; its origin is the start.
    :param rng_key: the key of the noise.
    """

    def advance(carry: Any, xs: Any) -> tuple[Any, None]:
        words, log_weight, saved = carry
        index, step, change = xs
        if statics.on_step is not None:
            statics.on_step(index)
        words, increment = _advance(statics, inputs, grid, index, words, step, change)
        if statics.save_every == 1:
            words, saved = _save(statics, saved, index, words)
        return (words, log_weight + increment, saved), None

    def block(carry: Any, xs: tuple[jax.Array, Step]) -> tuple[Any, None]:
        index, steps = xs
        change = _noise_change(statics, rng_key, index, steps.damping)
        indices = index * statics.length + jnp.arange(len(change))
        (words, log_weight, saved), _ = lax.scan(advance, carry, (indices, steps, change))
        if statics.save_every > 1:
            words, saved = _save(statics, saved, indices[-1], words)
        return (words, log_weight, saved), None

    start = encode_start(inputs.momentum)
    num_steps = len(inputs.steps.beta)
    digits = _rows(start.digits, num_steps, statics.flush_every)
    saved = Saved(start.momentum, start, digits, None)
    if statics.anchor_every is not None:
        make_rows = partial(_rows, num_steps=num_steps, steps_per_row=statics.anchor_every)
        saved = saved._replace(anchors=jax.tree.map(make_rows, start))
    log_weight = jnp.zeros(inputs.position.shape[:-1], inputs.position.dtype)
    (end, log_weight, saved), _ = scan_segments(
        block, (start, log_weight, saved), inputs.steps, statics.length
    )
    position = decode_position(end.position, grid)
    state = ChainState(position, decode_momentum(end.momentum), log_weight, None)
    return state, saved._replace(end=end)


def backward_pass(
    statics: Statics,
    inputs: Inputs,
    grid: Grid,
    rng_key: jax.Array,
    saved: Saved,
    cotangents: ChainState,
    is_perturbed: Inputs,
) -> Rebuilt:
    """
    Returns the gradients of a chain, and the start to which it came back.

    :param saved: what the forward pass saved.
    :param cotangents: those of the end of the chain.
    :param is_perturbed: for each leaf of the inputs, whether its gradient is wanted.

    The other parameters are those of :func:`forward_pass`.
    """
    constants = _keep(inputs.constants, is_perturbed.constants)

    def gradient_fn(moving: list, position: jax.Array, beta: jax.Array) -> jax.Array:
        pairs = zip(moving, inputs.constants, strict=True)
        return _gradient(statics, [y if x is None else x for x, y in pairs], position, beta)

    def retreat(carry: Any, xs: Any) -> tuple[Any, Step]:
        words, state_bar, (constants_bar, preconditioner_bar), is_good = carry
        index, step, noise, change = xs
        if statics.save_every == 1:
            words, is_good = _restore(statics, saved, index, words, is_good)
        step = with_preconditioner(step, inputs.preconditioner)
        words, middle = _retreat(statics, inputs, grid, index, words, step, change)
        gradient, pull_gradient = jax.vjp(gradient_fn, constants, middle, step.beta)
        state_bar, step_bar, increment = _pull_back(
            _decode(words, grid), step, noise, gradient, pull_gradient, state_bar
        )
        constants_bar = _sum(constants_bar, increment)
        if inputs.preconditioner is not None:
            increment = _keep(step_bar.preconditioner, is_perturbed.preconditioner)
            preconditioner_bar = _sum(preconditioner_bar, increment)
            step_bar = step_bar._replace(preconditioner=None)
        shared_bar = constants_bar, preconditioner_bar
        carry = words, state_bar, shared_bar, is_good
        return carry, _keep(step_bar, is_perturbed.steps)

    def block(carry: Any, xs: tuple[jax.Array, Step]) -> tuple[Any, Step]:
        index, steps = xs
        change = _noise_change(statics, rng_key, index, steps.damping)
        noise = statics.draw_noise(rng_key, index, len(change)).normal  # for the damping's slope
        indices = index * statics.length + jnp.arange(len(change))
        words, *bars, is_good = carry
        if statics.save_every > 1:
            words, is_good = _restore(statics, saved, indices[-1], words, is_good)
        carry = words, *bars, is_good
        return lax.scan(retreat, carry, (indices, steps, noise, change), reverse=True)

    shared = constants, _keep(inputs.preconditioner, is_perturbed.preconditioner)
    carry = saved.end, cotangents, jax.tree.map(jnp.zeros_like, shared), jnp.asarray(True)
    (start, state_bar, shared_bar, is_good), steps_bar = scan_segments(
        block, carry, inputs.steps, statics.length, reverse=True
    )
    constants_bar, preconditioner_bar = shared_bar
    gradients = Inputs(
        state_bar.position, state_bar.momentum, constants_bar, preconditioner_bar, steps_bar
    )
    return Rebuilt(gradients, start, is_good)


def is_close(words: Words, others: Words) -> jax.Array:
    """Returns whether states agree to a small part of their scale."""
    tolerance = int(_ANCHOR_TOLERANCE / momentum_unit(f"float{8 * words.momentum.dtype.itemsize}"))
    are_close = [jnp.abs(x - y) <= tolerance for x, y in zip(words[:2], others[:2], strict=True)]
    return jnp.all(jnp.stack(are_close))


def _advance(
    statics: Statics,
    inputs: Inputs,
    grid: Grid,
    index: jax.Array,
    words: Words,
    step: Step,
    change: jax.Array,
) -> tuple[Words, jax.Array]:
    """Returns the state after a step, and what it adds to the log weight."""
    step, unit = with_preconditioner(step, inputs.preconditioner), momentum_unit(change.dtype)
    middle, is_valid = add(words.position, _half_drift(index, words.momentum, step), grid.unit)
    position = decode_position(middle, grid)
    momentum, is_valid_kick = add(
        words.momentum, _kick(statics, inputs, index, position, step), unit
    )
    increment = kinetic_change(decode_momentum(words.momentum), decode_momentum(momentum))
    end, is_valid_end = add(middle, _half_drift(index, momentum, step), grid.unit)
    numerator = statics.ratio.numerator_at(step.damping, momentum)
    damped, digits = multiply(momentum, words.digits, numerator, statics.ratio.denominator)
    momentum, is_valid_noise = add(damped, change, unit)
    is_valid = jnp.all(is_valid & is_valid_kick & is_valid_end & is_valid_noise, -1)
    return Words(end, momentum, digits), jnp.where(is_valid, increment, jnp.nan)


def _retreat(
    statics: Statics,
    inputs: Inputs,
    grid: Grid,
    index: jax.Array,
    words: Words,
    step: Step,
    change: jax.Array,
) -> tuple[Words, jax.Array]:
    """Returns the state before a step, :func:`_advance` undone, and the position half-way."""
    unit = momentum_unit(change.dtype)
    numerator = statics.ratio.numerator_at(step.damping, words.momentum)
    damped = subtract(words.momentum, change, unit)
    momentum, digits = undo_multiply(damped, words.digits, numerator, statics.ratio.denominator)
    middle = subtract(words.position, _half_drift(index, momentum, step), grid.unit)
    position = decode_position(middle, grid)
    momentum = subtract(momentum, _kick(statics, inputs, index, position, step), unit)
    start = subtract(middle, _half_drift(index, momentum, step), grid.unit)
    return Words(start, momentum, digits), position


def _pull_back(
    state: ChainState,
    step: Step,
    noise: jax.Array,
    gradient: jax.Array,
    pull_gradient: Callable,
    state_bar: ChainState,
) -> tuple[ChainState, Step, list]:
    """Returns the vjp of an unrounded step, for the state, the settings and the constants."""

    def step_fn(state: ChainState, step: Step, gradient: jax.Array) -> ChainState:
        return forward_step(Noise(noise, None), state, step, _linear(gradient), UNCORRECTED)[0]

    _, pull_step = jax.vjp(step_fn, state, step, gradient)
    state_bar, step_bar, gradient_bar = pull_step(state_bar)
    constants_bar, middle_bar, beta_bar = pull_gradient(gradient_bar)
    # The gradient was taken half a step on, which depends on the state again.
    _, pull_middle = jax.vjp(drift, state.momentum, step.step_size, step.preconditioner)
    momentum_bar, step_size_bar, preconditioner_bar = pull_middle(middle_bar)
    state_bar = state_bar._replace(
        position=state_bar.position + middle_bar, momentum=state_bar.momentum + momentum_bar
    )
    step_bar = step_bar._replace(
        beta=step_bar.beta + beta_bar,
        step_size=step_bar.step_size + step_size_bar,
        preconditioner=_sum(step_bar.preconditioner, preconditioner_bar),
    )
    return state_bar, step_bar, constants_bar


def _save(statics: Statics, saved: Saved, index: jax.Array, words: Words) -> tuple[Words, Saved]:
    """Returns the state with its digits put aside if they fill a word, and what is saved by now."""
    # Written after every step: what the last of a group writes stays, and a row beyond the last is
    # dropped.
    anchors = saved.anchors
    if statics.anchor_every is not None:
        row = index // statics.anchor_every
        anchors = jax.tree.map(lambda xs, x: xs.at[row].set(x), anchors, words)
    digits = saved.digits.at[index // statics.flush_every].set(words.digits)
    is_full = (index + 1) % statics.flush_every == 0
    words = words._replace(digits=jnp.where(is_full, 0, words.digits))
    return words, saved._replace(digits=digits, anchors=anchors)


def _restore(
    statics: Statics, saved: Saved, index: jax.Array, words: Words, is_good: jax.Array
) -> tuple[Words, jax.Array]:
    """Returns the state before :func:`_save`, and whether it was close to all anchors so far."""
    is_full = (index + 1) % statics.flush_every == 0
    full = saved.digits[index // statics.flush_every]
    words = words._replace(digits=jnp.where(is_full, full, words.digits))
    if statics.anchor_every is None:
        return words, is_good
    is_anchor = (index + 1) % statics.anchor_every == 0
    row = index // statics.anchor_every
    anchor = jax.tree.map(lambda xs: xs[row], saved.anchors)
    is_good = is_good & (~is_anchor | is_close(words, anchor))
    return jax.tree.map(partial(jnp.where, is_anchor), anchor, words), is_good


def _half_drift(index: jax.Array, words: jax.Array, step: Step) -> jax.Array:
    momentum, settings = decode_momentum(words), (step.step_size, step.preconditioner)
    assert not isinstance(step.preconditioner, Axes)
    if step.preconditioner is None or step.preconditioner.ndim == 1:
        return drift(momentum, *settings)  # products only, which are rounded in one way
    return _isolated(index, drift, momentum, *settings)


def _kick(
    statics: Statics, inputs: Inputs, index: jax.Array, position: jax.Array, step: Step
) -> jax.Array:
    def kick_fn(constants: list, position: jax.Array, step: Step) -> jax.Array:
        gradient = _gradient(statics, constants, position, step.beta)
        return kick(gradient, step.step_size, step.preconditioner, step.max_kick)

    return _isolated(index, kick_fn, inputs.constants, position, step)


def _noise_change(
    statics: Statics, rng_key: jax.Array, index: jax.Array, damping: jax.Array
) -> jax.Array:
    """Returns what the noise of a block adds to the momenta."""

    def change_fn(rng_key: jax.Array, index: jax.Array, damping: jax.Array) -> jax.Array:
        noise = statics.draw_noise(rng_key, index, len(damping)).normal
        return jax.vmap(refresh)(noise, jnp.zeros_like(noise), damping)

    return _isolated(index, change_fn, rng_key, index, damping)


def _gradient(statics: Statics, constants: list, position: jax.Array, beta: jax.Array) -> jax.Array:
    return tempered_gradient(partial(statics.log_densities_fn, constants), beta)(position)


def _isolated(index: jax.Array, fn: Callable, *args: Any) -> Any:
    """
    Returns the value of a function, compiled apart from its surroundings.

    Fused with them, the forward and the backward pass would round differently: whether a
    multiplication and an addition become one instruction depends on what else is in a kernel. On a
    CPU a barrier does not keep XLA from fusing, but a branch does: it does not know that no index
    is negative.
    """
    shapes = jax.eval_shape(fn, *args)

    def zeros(*_: Any) -> Any:
        return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

    return lax.cond(index >= 0, fn, zeros, *args)


def _linear(gradient: jax.Array) -> LogDensitiesFn:
    """Returns log densities whose gradient is this one at any temperature."""

    def log_densities_fn(position: jax.Array) -> LogDensities:
        log_density = jnp.sum(gradient * position, -1)
        return LogDensities(log_density, jnp.zeros_like(log_density))

    return log_densities_fn


def _decode(words: Words, grid: Grid) -> ChainState:
    position = decode_position(words.position, grid)
    log_weight = jnp.zeros(position.shape[:-1], position.dtype)
    return ChainState(position, decode_momentum(words.momentum), log_weight, None)


def _rows(row: jax.Array, num_steps: int, steps_per_row: int) -> jax.Array:
    return jnp.zeros((max(1, num_steps // steps_per_row), *row.shape), row.dtype)


def _keep(tree: Any, is_kept: Any) -> Any:
    """Returns a tree with None for leaves that are not kept."""
    return jax.tree.map(lambda x, keep: x if keep else None, tree, is_kept)


def _sum(left: Any, right: Any) -> Any:
    return jax.tree.map(jnp.add, left, right)
