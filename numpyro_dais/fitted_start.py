# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

r"""
A start that was fitted to the posterior: a few modes, heavy tails, and a share of the original start.

One mode is a *conditional Gaussian*. With :math:`t = (u - m) / d` and the coordinates in a fixed order,

.. math::

    x_j = e^{-h(S_j t)} \, (t_j - B_j t), \qquad z_j = \sinh(e^{\tau_j} \sinh^{-1} x_j - \epsilon_j),

where :math:`B, S` are strictly lower triangular and :math:`z` is standard normal. With :math:`B` alone this is a
Gaussian with full covariance. With slopes :math:`S` the scale of a coordinate depends on those before it, as the
effects of a hierarchical model do on the logarithm of their scale: funnels are of this kind.
:math:`h(x) = 6 \tanh(x/6)` keeps the scales within bounds. The last map (Jones and Pewsey 2009) gives each
coordinate skewness and tails of its own.

Tails: a share of the :math:`z` is multivariate Student-t, in another share one coordinate, any, is three times
as wide, and a share of all draws is from the original start, the prior. A weight then never exceeds the likelihood divided by that share (defensive importance sampling,
Hesterberg 1995), so its variance is finite wherever the likelihood is bounded.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax import lax, random
import jax.numpy as jnp
from jax.scipy.special import gammaln, logsumexp

__all__ = [
    "BASE_SHARE",
    "Component",
    "FittedStart",
    "Mixture",
    "component_log_density",
    "from_noise",
    "to_noise",
]

BASE_SHARE = 0.05
_MAX_LOG_SCALE = 6.0
_TAIL_SHARE, _TAIL_DF = 0.05, 5
_AXIS_SHARE, _AXIS_SCALE = 0.1, 3.0


class Component(NamedTuple):
    r"""
    One mode, or, stacked along a leading axis, several. Coordinates are in the order of the mixture.

    :param loc: :math:`m`, ``[num_dims]``.
    :param log_scale: the logarithm of :math:`d`, ``[num_dims]``.
    :param coupling: :math:`B`, ``[num_dims, num_dims]``, of which only the part below the diagonal counts; None
        for independent coordinates.
    :param slopes: :math:`S`, likewise; None for none.
    :param shape: :math:`\epsilon` and :math:`\tau`, ``[2, num_dims]``; None for a Gaussian.
    """

    loc: jax.Array
    log_scale: jax.Array
    coupling: jax.Array | None = None
    slopes: jax.Array | None = None
    shape: jax.Array | None = None


class Mixture(NamedTuple):
    """
    Modes with shares.

    :param order: the order of the coordinates, ``[num_dims]``.
    :param components: the modes, stacked.
    :param log_shares: logarithms of their shares, ``[num_modes]``.
    :param base_share: the share of draws that are still from the original start; none if these overflow.
    """

    order: jax.Array
    components: Component
    log_shares: jax.Array
    base_share: jax.Array | float = BASE_SHARE

    @property
    def num_modes(self) -> int:
        """The number of modes."""
        return len(self.log_shares)

    @property
    def description(self) -> str:
        """What it is, in words."""
        kind = "Gaussian" if self.components.shape is None else "conditional Gaussian"
        if self.num_modes == 1:
            return f"a fitted {kind}"
        return f"a mixture of {self.num_modes} fitted {kind}s"

    def sample(self, rng_key: jax.Array) -> jax.Array:
        """Returns a draw ``[num_dims]``."""
        # Few and small random numbers, at once: each kind takes XLA a while to compile.
        uniform_key, normal_key = random.split(rng_key)
        uniforms = random.uniform(uniform_key, (3,))
        num_dims = self.components.loc.shape[-1]
        normals = random.normal(normal_key, (num_dims + _TAIL_DF,))
        edges = jnp.cumsum(jnp.exp(self.log_shares))
        mode = jnp.sum(uniforms[0] * edges[-1] >= edges[:-1])
        component = jax.tree.map(lambda x: x[mode], self.components)
        noise = _noise(uniforms[1], uniforms[2], normals[:num_dims], normals[num_dims:])
        ordered = from_noise(component, noise)
        return jnp.zeros_like(ordered).at[self.order].set(ordered)

    def log_density(self, position: jax.Array) -> jax.Array:
        """Returns the log density of a position ``[num_dims]``."""
        ordered = position[self.order]
        log_densities = jax.vmap(component_log_density, (0, None))(self.components, ordered)
        return logsumexp(self.log_shares + log_densities)


class FittedStart(NamedTuple):
    """
    A start of chains over flat unconstrained positions.

    :param mixture: what was fitted.
    :param base: the start that it replaces: ``"prior"``, or a distribution.
    """

    mixture: Mixture
    base: Any

    def sample(self, rng_key: jax.Array, base_fn: Callable[[jax.Array], jax.Array]) -> jax.Array:
        """
        Returns a draw ``[num_dims]``.

        :param rng_key: a JAX random key.
        :param base_fn: draws a position from the original start.
        """
        kind_key, fit_key, base_key = random.split(rng_key, 3)
        is_base = random.uniform(kind_key) < self.mixture.base_share
        return jnp.where(is_base, base_fn(base_key), self.mixture.sample(fit_key))

    def log_density(self, position: jax.Array, log_base: jax.Array) -> jax.Array:
        """
        Returns the log density of a position.

        :param position: ``[num_dims]``.
        :param log_base: the log density of the original start there.
        """
        share = self.mixture.base_share
        log_fit = jnp.log1p(-share) + self.mixture.log_density(position)
        return jnp.logaddexp(log_fit, jnp.where(share > 0, jnp.log(share) + log_base, -jnp.inf))


def to_noise(component: Component, position: jax.Array) -> tuple[jax.Array, jax.Array]:
    r"""
    Returns :math:`z` at a position, and :math:`\log |dz/du|`.

    :param component: the mode.
    :param position: ordered coordinates, ``[num_dims]``.
    """
    scaled = (position - component.loc) * jnp.exp(-component.log_scale)
    noise = scaled
    if component.coupling is not None:
        noise = noise - jnp.tril(component.coupling, -1) @ scaled
    log_det = -jnp.sum(component.log_scale)
    if component.slopes is not None:
        log_scales = _bounded(jnp.tril(component.slopes, -1) @ scaled)
        noise, log_det = noise * jnp.exp(-log_scales), log_det - jnp.sum(log_scales)
    if component.shape is not None:
        skewness, tail = component.shape
        angle = jnp.exp(tail) * jnp.arcsinh(noise) - skewness
        log_slopes = tail + _log_cosh(angle) - 0.5 * jnp.log1p(noise**2)
        noise, log_det = jnp.sinh(angle), log_det + jnp.sum(log_slopes)
    return noise, log_det


def from_noise(component: Component, noise: jax.Array) -> jax.Array:
    """
    Returns the position, in ordered coordinates, that :func:`to_noise` takes to this.

    :param component: the mode.
    :param noise: :math:`z`, ``[num_dims]``.
    """
    if component.shape is not None:
        skewness, tail = component.shape
        noise = jnp.sinh((jnp.arcsinh(noise) + skewness) * jnp.exp(-tail))
    scaled = noise
    if component.slopes is not None:
        coupling = jnp.zeros_like(component.slopes)
        if component.coupling is not None:
            coupling = jnp.tril(component.coupling, -1)

        def body(scaled: jax.Array, xs: Any) -> tuple[jax.Array, None]:
            index, row, slope, z = xs
            value = row @ scaled + jnp.exp(_bounded(slope @ scaled)) * z
            return scaled.at[index].set(value), None

        slopes = jnp.tril(component.slopes, -1)
        xs = jnp.arange(noise.size), coupling, slopes, noise
        scaled, _ = lax.scan(body, jnp.zeros_like(noise), xs)
    elif component.coupling is not None:
        unit = jnp.eye(noise.size, dtype=noise.dtype) - jnp.tril(component.coupling, -1)
        scaled = jax.scipy.linalg.solve_triangular(unit, noise, lower=True, unit_diagonal=True)
    return component.loc + jnp.exp(component.log_scale) * scaled


def component_log_density(component: Component, position: jax.Array) -> jax.Array:
    """Returns the log density of a mode, tails included, at ordered coordinates."""
    noise, log_det = to_noise(component, position)
    return _noise_log_density(noise) + log_det


def _bounded(log_scale: jax.Array) -> jax.Array:
    return _MAX_LOG_SCALE * jnp.tanh(log_scale / _MAX_LOG_SCALE)


def _log_cosh(x: jax.Array) -> jax.Array:
    return jnp.abs(x) + jnp.log1p(jnp.exp(-2 * jnp.abs(x))) - jnp.log(2.0)


def _noise(
    kind: jax.Array, place: jax.Array, normals: jax.Array, tail_normals: jax.Array
) -> jax.Array:
    """Normal, Student-t, or normal with one wide coordinate, from uniforms and standard normals."""
    mixing = jnp.mean(tail_normals**2)  # chi-squared over its degrees of freedom
    axis = (place * normals.size).astype(int)
    wide = jnp.where(jnp.arange(normals.size) == axis, _AXIS_SCALE * normals, normals)
    is_tail, is_axis = kind < _TAIL_SHARE, kind >= 1 - _AXIS_SHARE
    return jnp.where(is_tail, normals * lax.rsqrt(mixing), jnp.where(is_axis, wide, normals))


def _noise_log_density(noise: jax.Array) -> jax.Array:
    num_dims, df = noise.size, _TAIL_DF
    square = jnp.sum(noise**2)
    log_normal = -0.5 * square - 0.5 * num_dims * jnp.log(2 * jnp.pi)
    log_tail = (
        gammaln((df + num_dims) / 2) - gammaln(df / 2) - 0.5 * num_dims * jnp.log(df * jnp.pi)
    )
    log_tail = log_tail - 0.5 * (df + num_dims) * jnp.log1p(square / df)
    log_wider = 0.5 * (1 - _AXIS_SCALE**-2) * noise**2 - jnp.log(_AXIS_SCALE)
    log_axis = log_normal + logsumexp(log_wider) - jnp.log(num_dims)
    shares = jnp.array([1 - _TAIL_SHARE - _AXIS_SHARE, _TAIL_SHARE, _AXIS_SHARE])
    return logsumexp(jnp.log(shares) + jnp.stack([log_normal, log_tail, log_axis]))
