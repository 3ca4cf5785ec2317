# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""The mode of a density and its curvature there."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize

__all__ = ["Mode", "Modes", "check_mode", "find_mode", "find_modes"]

_MAX_ITERATIONS = 100
_MAX_HALVINGS = 40
_FINE = 1e-8  # nats: closer to the mode than this is close enough to stop
_COARSE = 1e-3  # nats: further away than this it has not been found


class Mode(NamedTuple):
    r"""
    A local maximum of a log density.

    :param position: where it is, ``[num_dims]``.
    :param gradient: of the log density there, which is nearly zero.
    :param precision: minus its Hessian there, ``[num_dims, num_dims]``.
    :param decrement: how many nats lie between the position and the maximum, by a quadratic expansion.
    :param is_found: whether these are few, and the precision is positive definite.
    :param num_gradients: gradients of the log density that were spent; a Hessian counts as ``num_dims``,
        an evaluation as one.
    """

    position: jax.Array
    gradient: jax.Array
    precision: jax.Array
    decrement: jax.Array
    is_found: jax.Array
    num_gradients: jax.Array

    @property
    def cholesky(self) -> jax.Array:
        r"""The lower triangular :math:`L` with :math:`L L^\top` the precision."""
        return jnp.linalg.cholesky(self.precision)


class _Search(NamedTuple):
    """Where a search is; the step to come, and how much it promises."""

    position: jax.Array
    value: jax.Array
    gradient: jax.Array
    precision: jax.Array
    step: jax.Array
    decrement: jax.Array
    is_stuck: jax.Array
    iteration: jax.Array
    num_gradients: jax.Array


def find_mode(log_density_fn: Callable[[jax.Array], jax.Array], position: jax.Array) -> Mode:
    r"""
    Returns a local maximum of a log density, by Newton's method with a line search.

    Where the density is not log-concave, the absolute values of the Hessian's eigenvalues are used, so that
    every step goes uphill. May be traced; see :func:`check_mode` for the failure.

    :param log_density_fn: the log density of a position ``[num_dims]``.
    :param position: where the search begins; the log density must be finite there.
    """
    num_dims = position.size
    value_and_grad = jax.value_and_grad(log_density_fn)
    # Differences of log densities below this are rounding.
    resolution = 8 * float(np.finfo(position.dtype).eps)

    def curvature(position: jax.Array) -> jax.Array:
        return -jax.jacfwd(jax.grad(log_density_fn))(position)

    def look(position: jax.Array, iteration: jax.Array, num_gradients: jax.Array) -> _Search:
        value, gradient = value_and_grad(position)
        precision = curvature(position)
        step = _ascent_step(gradient, precision)
        decrement = jnp.dot(gradient, step) / 2
        count = num_gradients + num_dims + 1
        is_stuck = ~jnp.isfinite(decrement)
        return _Search(
            position, value, gradient, precision, step, decrement, is_stuck, iteration, count
        )

    def advance(search: _Search) -> _Search:
        slack = resolution * jnp.abs(search.value)

        def is_too_long(state: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
            count, length, value = state
            wanted = search.value + 1e-4 * length * search.decrement - slack
            return ~(value >= wanted) & (count < _MAX_HALVINGS)

        def shorten(state: tuple[jax.Array, jax.Array, jax.Array]) -> Any:
            count, length, _ = state
            length = length / 2
            return count + 1, length, log_density_fn(search.position + length * search.step)

        begin = (
            jnp.asarray(0),
            2.0 * jnp.ones_like(search.value),
            jnp.full_like(search.value, -jnp.inf),
        )
        count, length, _ = lax.while_loop(is_too_long, shorten, begin)
        is_stuck = count == _MAX_HALVINGS
        position = search.position + jnp.where(is_stuck, 0.0, length) * search.step
        moved = look(position, search.iteration + 1, search.num_gradients + count)
        return moved._replace(is_stuck=moved.is_stuck | is_stuck)

    def is_going_on(search: _Search) -> jax.Array:
        is_far = (search.decrement > _FINE) & ~search.is_stuck
        return is_far & (search.iteration < _MAX_ITERATIONS)

    first = look(position, jnp.asarray(0), jnp.asarray(0))
    last = lax.while_loop(is_going_on, advance, first)
    is_peak = jnp.all(jnp.isfinite(jnp.linalg.cholesky(last.precision)))
    return Mode(
        last.position,
        last.gradient,
        last.precision,
        last.decrement,
        is_peak & (last.decrement < _COARSE),
        last.num_gradients,
    )


def check_mode(mode: Mode, remedy: str) -> None:
    """
    Raises an error if the mode was not found.

    :param mode: concrete.
    :param remedy: what the user can do about it.
    """
    if mode.is_found:
        return
    raise ValueError(
        f"No mode was found in {int(mode.num_gradients)} gradients: the search ended "
        f"{float(mode.decrement):.2g} nats below a maximum (by its curvature there, which must be positive in "
        f"every direction). {remedy}"
    )


def _ascent_step(gradient: jax.Array, precision: jax.Array) -> jax.Array:
    """Newton's step, with the precision's eigenvalues made positive."""
    eigenvalues, eigenvectors = jnp.linalg.eigh(precision)
    sizes = jnp.abs(eigenvalues)
    limits = np.finfo(precision.dtype)
    floor = float(limits.eps) * jnp.max(sizes) + float(limits.tiny)
    along = eigenvectors.T @ gradient
    return eigenvectors @ (along / jnp.maximum(sizes, floor))


_MAX_ITERATIONS = 200  # of a search for a mode


# The log density at a position, and its gradient.
DensityFn = Callable[[np.ndarray], tuple[float, np.ndarray]]


class Modes(NamedTuple):
    """
    Local maxima of a density.

    :param positions: ``[num_modes, num_dims]``, the highest first.
    :param log_densities: ``[num_modes]``.
    :param num_evaluations: of the density with its gradient.
    """

    positions: np.ndarray
    log_densities: np.ndarray
    num_evaluations: int


def find_modes(
    density_fn: DensityFn,
    starts: np.ndarray,
    center: np.ndarray,
    scale: np.ndarray,
    max_evaluations: int,
) -> Modes:
    """
    Returns the maxima that searches from several positions have found, each once.

    :param density_fn: the log density and its gradient.
    :param starts: where the searches begin, ``[num_starts, num_dims]``.
    :param center: the origin of the units in which steps are taken.
    :param scale: these units.
    :param max_evaluations: after which no search begins, and the last one ends.
    """
    num_evaluations = 0

    def loss_fn(scaled: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal num_evaluations
        num_evaluations += 1
        value, gradient = density_fn(center + scale * scaled)
        if not (np.isfinite(value) and np.all(np.isfinite(gradient))):
            return 1e30, np.zeros_like(scaled)
        return -value, -gradient * scale

    ends, values = [], []
    for start in starts:
        if num_evaluations >= max_evaluations:
            break
        begin = (start - center) / scale
        left = max_evaluations - num_evaluations
        options = {"maxiter": _MAX_ITERATIONS, "maxls": 30, "maxfun": left}
        result = minimize(loss_fn, begin, jac=True, method="L-BFGS-B", options=options)
        if np.isfinite(result.fun) and result.fun < 1e29:
            ends.append(center + scale * result.x)
            values.append(-float(result.fun))
    order = np.argsort(values)[::-1]
    num_dims = starts.shape[1]
    return Modes(
        np.array(ends).reshape(-1, num_dims)[order], np.array(values)[order], num_evaluations
    )
