# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
A trajectory in integers, there and back: the forward pass of a reversible chain, and the backward pass that
rebuilds each state from the next and takes the gradient there.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
from jax import lax
import jax.numpy as jnp

from numpyro_dais.sampler.kernel import (
    UNCORRECTED,
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

__all__ = ["Inputs", "Plan", "Rebuilt", "Saved", "backward_pass", "forward_pass", "is_close"]

# Between anchors a rebuilt state may be off by so many scales, if rounding differs at all.
_ANCHOR_TOLERANCE = 2.0**-10


class Plan(NamedTuple):
    """
    What is static.

    :param log_densities_fn: both ends of the path, as a function of constants and a position.
    :param draw_noise: the noise of a block of steps, from the key, the block's index and its length.
    :param on_step: called with the index of each step, on the way forward.
    :param ratio: how damping is a fraction.
    :param length: the number of steps in a block.
    :param blocks_per_word: after so many blocks the packed digits are put aside.
    :param blocks_per_anchor: after so many blocks the state is stored; None for never.
    """

    log_densities_fn: Callable[[list, jax.Array], LogDensities]
    draw_noise: Callable[[jax.Array, jax.Array, int], Noise]
    on_step: Callable[[jax.Array], None] | None
    ratio: Ratio
    length: int
    blocks_per_word: int
    blocks_per_anchor: int | None


class Inputs(NamedTuple):
    """
    What the end of a chain is a differentiable function of.

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
    What the backward pass starts from, beside the inputs.

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
    What the backward pass ends with.

    :param gradients: of the inputs; None where they are not differentiated.
    :param start: the start, rebuilt.
    :param is_close: whether the state was close to each anchor on its way.
    """

    gradients: Inputs
    start: Words
    is_close: jax.Array


def forward_pass(
    plan: Plan, inputs: Inputs, grid: Grid, rng_key: jax.Array
) -> tuple[ChainState, Saved]:
    """
    Returns the end of a chain, its log weight NaN if a word has left its range, and what the backward pass
    needs.

    :param plan: functions, and how steps are grouped.
    :param inputs: the start and the settings.
    :param grid: the grid of positions; its origin is the start.
    :param rng_key: the key of the noise.
    """

    def advance(carry: tuple[Words, jax.Array], xs: Any) -> tuple[tuple[Words, jax.Array], None]:
        words, log_weight = carry
        index, step, change = xs
        if plan.on_step is not None:
            plan.on_step(index)
        words, increment = _advance(plan, inputs, grid, index, words, step, change)
        return (words, log_weight + increment), None

    def block(carry: Any, xs: tuple[jax.Array, Step]) -> tuple[Any, None]:
        words, log_weight, saved = carry
        index, steps = xs
        change = _noise_change(plan, rng_key, index, steps.damping)
        inner = index * plan.length + jnp.arange(len(change)), steps, change
        (words, log_weight), _ = lax.scan(advance, (words, log_weight), inner)
        words, saved = _save(plan, saved, index, words)
        return (words, log_weight, saved), None

    start = encode_start(inputs.momentum)
    num_blocks = -(-len(inputs.steps.beta) // plan.length)
    saved = Saved(
        start.momentum, start, _rows(start.digits, num_blocks, plan.blocks_per_word), None
    )
    if plan.blocks_per_anchor is not None:
        make_rows = partial(_rows, num_blocks=num_blocks, blocks_per_row=plan.blocks_per_anchor)
        saved = saved._replace(anchors=jax.tree.map(make_rows, start))
    log_weight = jnp.zeros(inputs.position.shape[:-1], inputs.position.dtype)
    (end, log_weight, saved), _ = scan_segments(
        block, (start, log_weight, saved), inputs.steps, plan.length
    )
    position = decode_position(end.position, grid)
    state = ChainState(position, decode_momentum(end.momentum), log_weight, None)
    return state, saved._replace(end=end)


def backward_pass(
    plan: Plan,
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
        return _gradient(plan, [y if x is None else x for x, y in pairs], position, beta)

    def retreat(carry: Any, xs: Any) -> tuple[Any, Step]:
        words, state_bar, (constants_bar, preconditioner_bar) = carry
        index, step, noise, change = xs
        step = with_preconditioner(step, inputs.preconditioner)
        words, middle = _retreat(plan, inputs, grid, index, words, step, change)
        gradient, pull_gradient = jax.vjp(gradient_fn, constants, middle, step.beta)
        state_bar, step_bar, increment = _pull_back(
            _decode(words, grid), step, noise, gradient, pull_gradient, state_bar
        )
        constants_bar = _sum(constants_bar, increment)
        if inputs.preconditioner is not None:
            increment = _keep(step_bar.preconditioner, is_perturbed.preconditioner)
            preconditioner_bar = _sum(preconditioner_bar, increment)
            step_bar = step_bar._replace(preconditioner=None)
        carry = words, state_bar, (constants_bar, preconditioner_bar)
        return carry, _keep(step_bar, is_perturbed.steps)

    def block(carry: Any, xs: tuple[jax.Array, Step]) -> tuple[Any, Step]:
        words, cotangents, is_good = carry
        index, steps = xs
        words, is_good_here = _restore(plan, saved, index, words)
        change = _noise_change(plan, rng_key, index, steps.damping)
        noise = plan.draw_noise(rng_key, index, len(change)).normal  # for the slope of the damping
        inner = index * plan.length + jnp.arange(len(change)), steps, noise, change
        (words, *cotangents), steps_bar = lax.scan(
            retreat, (words, *cotangents), inner, reverse=True
        )
        return (words, tuple(cotangents), is_good & is_good_here), steps_bar

    shared = constants, _keep(inputs.preconditioner, is_perturbed.preconditioner)
    carry = saved.end, (cotangents, jax.tree.map(jnp.zeros_like, shared)), jnp.asarray(True)
    (start, (state_bar, shared_bar), is_good), steps_bar = scan_segments(
        block, carry, inputs.steps, plan.length, reverse=True
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
    plan: Plan,
    inputs: Inputs,
    grid: Grid,
    index: jax.Array,
    words: Words,
    step: Step,
    change: jax.Array,
) -> tuple[Words, jax.Array]:
    """A step, and what it adds to the log weight."""
    step, unit = with_preconditioner(step, inputs.preconditioner), momentum_unit(change.dtype)
    middle, is_valid = add(words.position, _half_drift(index, words.momentum, step), grid.unit)
    position = decode_position(middle, grid)
    momentum, is_valid_kick = add(words.momentum, _kick(plan, inputs, index, position, step), unit)
    increment = kinetic_change(decode_momentum(words.momentum), decode_momentum(momentum))
    end, is_valid_end = add(middle, _half_drift(index, momentum, step), grid.unit)
    numerator = plan.ratio.numerator_at(step.damping, momentum)
    damped, digits = multiply(momentum, words.digits, numerator, plan.ratio.denominator)
    momentum, is_valid_noise = add(damped, change, unit)
    is_valid = jnp.all(is_valid & is_valid_kick & is_valid_end & is_valid_noise, -1)
    return Words(end, momentum, digits), jnp.where(is_valid, increment, jnp.nan)


def _retreat(
    plan: Plan,
    inputs: Inputs,
    grid: Grid,
    index: jax.Array,
    words: Words,
    step: Step,
    change: jax.Array,
) -> tuple[Words, jax.Array]:
    """The state before a step, each line of :func:`_advance` undone, and the position half-way."""
    unit = momentum_unit(change.dtype)
    numerator = plan.ratio.numerator_at(step.damping, words.momentum)
    damped = subtract(words.momentum, change, unit)
    momentum, digits = undo_multiply(damped, words.digits, numerator, plan.ratio.denominator)
    middle = subtract(words.position, _half_drift(index, momentum, step), grid.unit)
    position = decode_position(middle, grid)
    momentum = subtract(momentum, _kick(plan, inputs, index, position, step), unit)
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
    """The vjp of a step without rounding, with respect to the state, the settings and the constants."""

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


def _save(plan: Plan, saved: Saved, index: jax.Array, words: Words) -> tuple[Words, Saved]:
    """The state after a block, with digits put aside if they fill a word, and what is saved by now."""
    # Written after every block: what the last of a group writes stays, and a row beyond the last is dropped.
    anchors = saved.anchors
    if plan.blocks_per_anchor is not None:
        row = index // plan.blocks_per_anchor
        anchors = jax.tree.map(lambda xs, x: xs.at[row].set(x), anchors, words)
    digits = saved.digits.at[index // plan.blocks_per_word].set(words.digits)
    is_full = (index + 1) % plan.blocks_per_word == 0
    words = words._replace(digits=jnp.where(is_full, 0, words.digits))
    return words, saved._replace(digits=digits, anchors=anchors)


def _restore(plan: Plan, saved: Saved, index: jax.Array, words: Words) -> tuple[Words, jax.Array]:
    """The state before :func:`_save`, and whether it was close to an anchor if there is one."""
    is_full = (index + 1) % plan.blocks_per_word == 0
    full = saved.digits[index // plan.blocks_per_word]
    words = words._replace(digits=jnp.where(is_full, full, words.digits))
    if plan.blocks_per_anchor is None:
        return words, jnp.asarray(True)
    is_anchor = (index + 1) % plan.blocks_per_anchor == 0
    row = index // plan.blocks_per_anchor
    anchor = jax.tree.map(lambda xs: xs[row], saved.anchors)
    is_good = ~is_anchor | is_close(words, anchor)
    return jax.tree.map(partial(jnp.where, is_anchor), anchor, words), is_good


def _half_drift(index: jax.Array, words: jax.Array, step: Step) -> jax.Array:
    momentum, settings = decode_momentum(words), (step.step_size, step.preconditioner)
    if step.preconditioner is None or step.preconditioner.ndim == 1:
        return drift(momentum, *settings)  # products only, which are rounded in one way
    return _isolated(index, drift, momentum, *settings)


def _kick(
    plan: Plan, inputs: Inputs, index: jax.Array, position: jax.Array, step: Step
) -> jax.Array:
    def kick_fn(constants: list, position: jax.Array, step: Step) -> jax.Array:
        gradient = _gradient(plan, constants, position, step.beta)
        return kick(gradient, step.step_size, step.preconditioner)

    return _isolated(index, kick_fn, inputs.constants, position, step)


def _noise_change(
    plan: Plan, rng_key: jax.Array, index: jax.Array, damping: jax.Array
) -> jax.Array:
    """What the noise of a block adds to the momenta."""

    def change_fn(rng_key: jax.Array, index: jax.Array, damping: jax.Array) -> jax.Array:
        noise = plan.draw_noise(rng_key, index, len(damping)).normal
        return jax.vmap(refresh)(noise, jnp.zeros_like(noise), damping)

    return _isolated(index, change_fn, rng_key, index, damping)


def _gradient(plan: Plan, constants: list, position: jax.Array, beta: jax.Array) -> jax.Array:
    return tempered_gradient(partial(plan.log_densities_fn, constants), beta)(position)


def _isolated(index: jax.Array, fn: Callable, *args: Any) -> Any:
    """
    The value of a function, compiled apart from its surroundings.

    Fused with them, the forward and the backward pass would round differently: whether a multiplication and
    an addition become one instruction depends on what else is in a kernel. On a CPU a barrier does not
    keep XLA from fusing, but a branch does: it does not know that no index is negative.
    """
    shapes = jax.eval_shape(fn, *args)

    def zeros(*_: Any) -> Any:
        return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

    return lax.cond(index >= 0, fn, zeros, *args)


def _linear(gradient: jax.Array) -> LogDensitiesFn:
    """The log densities whose gradient is this one at any temperature."""

    def log_densities_fn(position: jax.Array) -> LogDensities:
        log_density = jnp.sum(gradient * position, -1)
        return LogDensities(log_density, jnp.zeros_like(log_density))

    return log_densities_fn


def _decode(words: Words, grid: Grid) -> ChainState:
    position = decode_position(words.position, grid)
    log_weight = jnp.zeros(position.shape[:-1], position.dtype)
    return ChainState(position, decode_momentum(words.momentum), log_weight, None)


def _rows(row: jax.Array, num_blocks: int, blocks_per_row: int) -> jax.Array:
    return jnp.zeros((max(1, num_blocks // blocks_per_row), *row.shape), row.dtype)


def _keep(tree: Any, is_kept: Any) -> Any:
    """A tree with None for leaves that are not kept."""
    return jax.tree.map(lambda x, keep: x if keep else None, tree, is_kept)


def _sum(left: Any, right: Any) -> Any:
    return jax.tree.map(jnp.add, left, right)
