# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

r"""
Step sizes that follow the curvature of the densities between guide and posterior.

A leapfrog step is stable while :math:`\eta^2 \lambda < 4`, with :math:`\lambda` the largest
curvature of the log density that it follows, in the units of positions. Early in a fit the guide is
nowhere near the posterior, and a step that suits its scale is far too long. So the curvature of
both ends of the path is measured at each evaluation of the loss, by a few products with the Hessian
at fixed draws of the guide. These know the parameters, and nothing of the particles: weights stay
unbiased, and the bound a bound. No gradient goes through them.
"""

import math
from typing import NamedTuple

import jax
from jax import lax, random
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular

from numpyro_dais._util.keys import named_key
from numpyro_dais.sampler.kernel import Preconditioner, apply
from numpyro_dais.sampler.path import Target
from numpyro_dais.sampler.settings import Settings

__all__ = [
    "Curvature",
    "draw_scale",
    "follow_curvature",
    "longest_kick",
    "measure_curvature",
    "stable_steps",
    "unit_in_noise",
]

# Products with the Hessian in a power iteration. Each costs about a gradient. Three know the
# largest eigenvalue within a factor of two or so, which the distance to the limit of stability
# forgives.
_NUM_PRODUCTS = 3
# Draws of the guide at which curvature is measured; the largest counts. At one, a flow with a large
# learning rate lost particles in the end; four cost a fifth of a step of DAVI with K = 8.
_NUM_POINTS = 4
# Draws that tell the scale of a guide that is not a Gaussian: within a fifth, for next to nothing.
_NUM_SCALE_DRAWS = 16


class Curvature(NamedTuple):
    """
    The largest curvatures of the log densities at the ends of the path, in units of positions.

    :param start: of the guide; a number, or one per element of a plate.
    :param end: of the joint density.
    """

    start: jax.Array
    end: jax.Array

    def along(self, betas: jax.Array) -> jax.Array:
        """
        Returns a bound of the curvature at inverse temperatures, ``[num_steps, ...]``.

        :param betas: the inverse temperatures.
        """
        betas = betas.reshape(betas.shape + (1,) * jnp.ndim(self.end))
        return (1 - betas) * self.start + betas * self.end


def measure_curvature(target: Target, unit: Preconditioner) -> Curvature:
    """
    Returns the largest curvatures at both ends of the path, around draws of the start.

    :param target: the target.
    :param unit: of positions, as one step's preconditioner.
    """
    rng_key = named_key(random.key(0), "curvature")
    fn = target.log_densities_fn
    if target.dynamics_fn is not None:
        fn = target.dynamics_fn(rng_key, jnp.asarray(0))

    def at_point(rng_key: jax.Array) -> Curvature:
        draw_key, direction_key = random.split(rng_key)
        point = target.sample_fn(draw_key)
        direction = random.normal(direction_key, point.shape, point.dtype)

        def log_densities(offset: jax.Array) -> tuple[jax.Array, jax.Array]:
            log_start, log_ratio = fn(point + apply(unit, offset))
            return jnp.sum(log_start), jnp.sum(log_start + log_ratio)

        def largest(index: int) -> jax.Array:
            gradient_fn = jax.grad(lambda offset: log_densities(offset)[index])
            _, product_fn = jax.linearize(gradient_fn, jnp.zeros_like(point))

            def iterate(_: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple:
                norm = jnp.linalg.norm(carry[0], axis=-1)
                product = product_fn(carry[0] / jnp.where(norm > 0, norm, 1.0)[..., None])
                return product, jnp.linalg.norm(product, axis=-1)

            zeros = jnp.zeros(point.shape[:-1], point.dtype)
            return lax.fori_loop(0, _NUM_PRODUCTS, iterate, (direction, zeros))[1]

        return Curvature(largest(0), largest(1))

    found = jax.vmap(at_point)(random.split(rng_key, _NUM_POINTS))
    return lax.stop_gradient(jax.tree.map(lambda x: jnp.max(x, axis=0), found))


def stable_steps(curvature: Curvature, betas: jax.Array, share: jax.Array) -> jax.Array:
    r"""
    Returns step sizes :math:`\eta_k = a_k \lambda(\beta_k)^{-1/2}`, ``[num_steps, ...]``; zero
    where the curvature is no number, so that the chain stays there.

    :param curvature: of both ends.
    :param betas: inverse temperatures, ``[num_steps]``.
    :param share: :math:`a_k`, of which 2 is the limit of stability.
    """
    bound = lax.stop_gradient(curvature.along(betas))
    # Where a density is flat the guide is the measure of things.
    bound = jnp.maximum(bound, _FLATTEST * lax.stop_gradient(curvature.start))
    share = share.reshape(share.shape + (1,) * (bound.ndim - 1))
    is_known = jnp.isfinite(bound) & (bound > 0)
    return jnp.where(is_known, share * jnp.where(is_known, bound, 1.0) ** -0.5, 0.0)


# Flatter than this share of the guide's curvature counts as that: a step of three of its scales.
_FLATTEST = 0.1


def follow_curvature(settings: Settings, target: Target, is_scaled: bool) -> Settings:
    """
    Returns settings whose step sizes follow the curvature.

    :param settings: the settings; their step sizes are multiples of what the curvature allows.
    :param target: the target.
    :param is_scaled: whether the unit of positions, if there is none, is the spread of the start.
    """
    if is_scaled and settings.preconditioner is None:
        settings = settings._replace(preconditioner=draw_scale(target))
    num_dims = jax.eval_shape(target.sample_fn, random.key(0)).shape[-1]
    units = settings.steps(num_dims).preconditioner
    # Of a unit that changes along the chain, the one nearest to the posterior.
    unit = jax.tree.map(lambda leaf: leaf[-1], units)
    curvature = measure_curvature(target, unit)
    step_size = stable_steps(curvature, settings.betas, settings.step_size)
    return settings._replace(step_size=step_size, max_kick=jnp.asarray(longest_kick(num_dims)))


def longest_kick(num_dims: int) -> float:
    r"""
    Returns the length at which kicks are cut off: :math:`2 (\sqrt D + 3)`.

    A stable step, :math:`\eta \sqrt\lambda < 2`, kicks a draw of a Gaussian of curvature
    :math:`\lambda` by less than twice the length of a standard normal vector, which is hardly ever
    above :math:`\sqrt D + 3`. A longer kick means that the particle is far from where the density
    has its mass, or meets a curvature far above the one that was measured. Uncut, the chain would
    leave for ever, or cross at once what is the guide's way to go: then the guide, whose gradient
    is lost on the way through the chain, hardly learns.

    :param num_dims: the dimension of a position :math:`D`.
    """
    return 2.0 * (math.sqrt(num_dims) + 3.0)


def draw_scale(target: Target) -> jax.Array:
    """
    Returns the spread of the start along each dimension, from fixed draws; without a gradient.

    :param target: the target; without plates.
    """
    keys = random.split(named_key(random.key(0), "scale"), _NUM_SCALE_DRAWS)
    draws = jax.vmap(target.sample_fn)(keys)
    draws = jnp.where(jnp.isfinite(draws), draws, 0.0)
    spread = lax.stop_gradient(jnp.std(draws, axis=0))
    return jnp.where(spread > 0, spread, 1.0)


def unit_in_noise(scale: jax.Array) -> jax.Array:
    r"""
    Returns the unit of positions in the noise space of a full-rank guide, ``[num_dims, num_dims]``:
    the identity, with a derivative.

    Chains in noise :math:`z` are those in :math:`u = \mu + L z` with the unit :math:`L`, and their
    gradient goes through it: a narrower guide would seem to have shorter steps, although they
    follow the curvature, and would stay wide. With the unit :math:`U = L^{-1} \bar L`, a bar where
    no gradient goes through, they are those with the unit :math:`L U = \bar L`. Its derivative is
    written without that of a solve.

    :param scale: :math:`L`, of the guide.
    """
    scale = jnp.tril(scale)  # what is above the diagonal is no parameter
    fixed = lax.stop_gradient(scale)
    one = jnp.eye(len(scale), dtype=scale.dtype)
    return one - solve_triangular(fixed, one, lower=True) @ (scale - fixed)
