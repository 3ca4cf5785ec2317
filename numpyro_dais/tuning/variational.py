# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Variational fits of a start to the posterior, or to the neck of a funnel."""

import math
from typing import Any, NamedTuple

import jax
from jax import lax, random
import jax.numpy as jnp
import numpy as np

from numpyro_dais._util.programs import program
from numpyro_dais.model.traced import TracedTarget
from numpyro_dais.sampler.mixture import Component, from_noise, noise_gradient, to_noise
from numpyro_dais.tuning.ascent import ascend
from numpyro_dais.tuning.laplace import log_joint

__all__ = [
    "NO_TILT",
    "VARIATIONAL_DRAWS",
    "Tilt",
    "is_funnel",
    "neck_of",
    "noise_at",
    "variational_fit",
]


# Draws in one iteration: fewer are noisier, more cost gradients. A round number.
VARIATIONAL_DRAWS = 16
# Standard deviations from the middle where the neck of a funnel is fitted: beyond what draws see.
_NECK = 4.0
# A sum of squares of changes of log widths below which there is no funnel. A round number.
_SMALL_INFLUENCE = 0.1
# The same from which on a fit is a funnel. Measured: 1.8 to 6 on two funnels, 0.04 to 0.9 on bent
# densities, which the family follows by their widths as far as it can.
_FUNNEL = 1.3


class Tilt(NamedTuple):
    """
    A Gaussian factor in one coordinate, which draws a fit to where it would not go.

    :param axis: the coordinate, in the order of the fit.
    :param center: its mean.
    :param precision: the inverse of its variance; 0 for none.
    """

    axis: jax.Array | int
    center: jax.Array | float
    precision: jax.Array | float

    def log_factor(self, ordered: jax.Array) -> jax.Array:
        """Returns its logarithm at ordered coordinates."""
        return -0.5 * self.precision * (ordered[self.axis] - self.center) ** 2


NO_TILT = Tilt(0, 0.0, 0.0)


def is_funnel(component: Component) -> bool:
    """
    Returns whether the widths of a fit depend so much on one coordinate that it is a funnel.

    :param component: a fit of the whole.
    """
    return component.slopes is not None and bool(np.max(_influence(component)[1]) > _FUNNEL)


def _influence(component: Component) -> tuple[np.ndarray, np.ndarray]:
    """Slopes of log widths along the coordinates before, and their sums of squares."""
    matrix: Any = component.slopes
    slopes = np.tril(matrix, -1)
    return slopes, np.sum(slopes**2, axis=0)


def neck_of(component: Component) -> Tilt | None:
    """
    Returns the factor that draws a fit into the neck of a funnel: along the coordinate on which the
    widths of others depend most, to the side where they are narrow. None if no width depends on
    any.

    :param component: a fit of the whole.
    """
    if component.slopes is None:
        return None
    slopes, influence = _influence(component)
    axis = int(np.argmax(influence))
    if influence[axis] < _SMALL_INFLUENCE:
        return None
    side = -float(np.sign(np.sum(slopes[:, axis])))
    noise = np.zeros((2, slopes.shape[0]), np.asarray(component.loc).dtype)
    noise[:, axis] = side * (_NECK - 1), side * _NECK
    near, far = np.asarray(_positions_of(component, noise), np.float64)[:, axis]
    return Tilt(axis, float(far), float((far - near) ** -2))


@program(is_brief=True)
def _positions_of(component: Component, noise: jax.Array) -> jax.Array:
    return jax.vmap(lambda z: from_noise(component, z))(noise)


@program(is_brief=True)
def noise_at(component: Component, positions: jax.Array) -> jax.Array:
    """
    Returns the noise that a mode has at positions.

    :param component: the mode.
    :param positions: ordered coordinates, ``[num_positions, num_dims]``.
    """
    return jax.vmap(lambda position: to_noise(component, position)[0])(positions)


@program("num_iterations", is_brief=True)
def variational_fit(
    rng_key: jax.Array,
    target: TracedTarget,
    component: Component,
    order: jax.Array,
    learning_rate: jax.Array,
    tilt: Tilt,
    num_iterations: int,
) -> tuple[Component, jax.Array]:
    r"""
    Returns a mode that has been fitted by ascent on the ELBO, and the ELBO along the way.

    Gradients go through the draws only, not through the density of the mode at them: they have no
    noise once the fit is exact (Roeder, Wu and Duvenaud 2017). The learning rate falls to zero as a
    cosine.

    :param rng_key: a JAX random key.
    :param target: the target, whose joint density is to be fitted.
    :param component: where the fit begins; what is None in it stays so, and so do principal axes,
        of which only the widths are fitted.
    :param order: the order of the coordinates.
    :param learning_rate: of Adam, in units of the scale at the beginning.
    :param tilt: a factor of the joint density.
    :param num_iterations: each with ``VARIATIONAL_DRAWS`` gradients.
    """
    unit, zeros = jnp.exp(component.log_scale), jnp.zeros_like(component.loc)
    num_dims = component.loc.size

    def unpack(params: Component) -> Component:
        slopes, shift, log_widths = params.slopes, params.loc, params.log_widths
        if log_widths is not None and component.log_widths is not None:
            # In units of the principal axes, and along them: coordinates may be nearly collinear.
            begin = Component(zeros, zeros, basis=component.basis, log_widths=component.log_widths)
            shift, log_widths = from_noise(begin, shift), log_widths + component.log_widths
        return params._replace(
            loc=component.loc + unit * shift,
            log_scale=component.log_scale + params.log_scale,
            basis=component.basis,
            log_widths=log_widths,
            # Many slopes add up in one exponent: the more there are, the smaller their steps.
            slopes=None if slopes is None else slopes / math.sqrt(num_dims),
        )

    def log_ratio(fixed: Component, ordered: jax.Array) -> jax.Array:
        noise, log_det = to_noise(fixed, ordered)
        log_q = log_det - 0.5 * jnp.sum(noise**2) - 0.5 * num_dims * math.log(2 * math.pi)
        position = jnp.zeros_like(ordered).at[order].set(ordered)
        return log_joint(target, position) + tilt.log_factor(ordered) - log_q

    def bound_fn(params: Component, key: jax.Array) -> jax.Array:
        fitted = unpack(params)
        fixed = lax.stop_gradient(fitted)

        def elbo(noise: jax.Array) -> jax.Array:
            ordered = from_noise(fixed, noise)
            value, gradient = jax.value_and_grad(log_ratio, argnums=1)(fixed, ordered)
            # With the noise held, a position moves by -(dz/du)^-1 dz/d(params).
            pull = lax.stop_gradient(noise_gradient(fixed, ordered, gradient))
            moved = jnp.dot(pull, noise - to_noise(fitted, lax.stop_gradient(ordered))[0])
            return lax.stop_gradient(value) + moved - lax.stop_gradient(moved)

        return jnp.mean(jax.vmap(elbo)(random.normal(key, (VARIATIONAL_DRAWS, num_dims))))

    slopes = None if component.slopes is None else component.slopes * math.sqrt(num_dims)
    log_widths = None if component.log_widths is None else jnp.zeros_like(component.log_widths)
    begin = component._replace(
        loc=zeros, log_scale=zeros, slopes=slopes, basis=None, log_widths=log_widths
    )
    params, elbos = ascend(rng_key, bound_fn, begin, num_iterations, learning_rate)
    return unpack(params), elbos
