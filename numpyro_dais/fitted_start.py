# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

r"""
A start that was fitted to the posterior: a few modes, heavy tails, and a share of the original start.

One mode is a *conditional Gaussian*. With :math:`t = (u - m) / d` and the coordinates in a fixed order,

.. math::

    z_j = e^{-h(S_j t)} \, (t_j - B_j t), \qquad B, S \text{ strictly lower triangular},

and :math:`z` is standard normal. Without slopes :math:`S` this is a Gaussian with full covariance. With them the
scale of a coordinate depends on those before it, as the effects of a hierarchical model do on the logarithm
of their scale: funnels are of this kind. :math:`h(x) = 6 \tanh(x/6)` keeps the scales within bounds.

Tails: a share of the :math:`z` is multivariate Student-t, and a share of all draws is from the original start,
the prior. A weight then never exceeds the likelihood divided by that share (defensive importance sampling,
Hesterberg 1995), so its variance is finite wherever the likelihood is bounded.
"""

from typing import Any, NamedTuple

import jax
from jax import lax, random
from jax.scipy.special import gammaln, logsumexp
import jax.numpy as jnp

__all__ = ["Component", "FittedStart", "Mixture", "component_log_density", "from_noise", "to_noise"]

_MAX_LOG_SCALE = 6.0
_TAIL_SHARE = 0.1
_TAIL_DF = 5.0


class Component(NamedTuple):
    """
    One mode, or, stacked along a leading axis, several. Coordinates are in the order of the mixture.

    :param loc: :math:`m`, ``[num_dims]``.
    :param log_scale: the logarithm of :math:`d`, ``[num_dims]``.
    :param coupling: :math:`B`, ``[num_dims, num_dims]``, of which only the part below the diagonal counts; None
        for independent coordinates.
    :param slopes: :math:`S`, likewise; None for a Gaussian.
    """

    loc: jax.Array
    log_scale: jax.Array
    coupling: jax.Array | None = None
    slopes: jax.Array | None = None


class Mixture(NamedTuple):
    """
    Modes with shares.

    :param order: the order of the coordinates, ``[num_dims]``.
    :param components: the modes, stacked.
    :param log_shares: logarithms of their shares, ``[num_modes]``.
    """

    order: jax.Array
    components: Component
    log_shares: jax.Array

    @property
    def num_modes(self) -> int:
        """The number of modes."""
        return len(self.log_shares)

    def sample(self, rng_key: jax.Array) -> jax.Array:
        """Returns a draw ``[num_dims]``."""
        mode_key, noise_key = random.split(rng_key)
        mode = random.categorical(mode_key, self.log_shares)
        component = jax.tree.map(lambda x: x[mode], self.components)
        ordered = from_noise(component, _sample_noise(noise_key, component.loc.shape))
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
    :param base_share: the share of draws that are still from there.
    """

    mixture: Mixture
    base: Any
    base_share: jax.Array | float


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
    if component.slopes is None:
        return noise, log_det
    log_scales = _bounded(jnp.tril(component.slopes, -1) @ scaled)
    return noise * jnp.exp(-log_scales), log_det - jnp.sum(log_scales)


def from_noise(component: Component, noise: jax.Array) -> jax.Array:
    """
    Returns the position, in ordered coordinates, that :func:`to_noise` takes to this.

    :param component: the mode.
    :param noise: :math:`z`, ``[num_dims]``.
    """
    scaled = noise
    if component.slopes is not None:
        coupling = jnp.zeros_like(component.slopes)
        coupling = coupling if component.coupling is None else jnp.tril(component.coupling, -1)

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


def _sample_noise(rng_key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    tail_key, normal_key, gamma_key = random.split(rng_key, 3)
    normal = random.normal(normal_key, shape)
    mixing = random.gamma(gamma_key, _TAIL_DF / 2) / (_TAIL_DF / 2)
    return jnp.where(random.uniform(tail_key) < _TAIL_SHARE, normal * lax.rsqrt(mixing), normal)


def _noise_log_density(noise: jax.Array) -> jax.Array:
    num_dims, df = noise.size, _TAIL_DF
    square = jnp.sum(noise**2)
    log_normal = -0.5 * square - 0.5 * num_dims * jnp.log(2 * jnp.pi)
    log_tail = gammaln((df + num_dims) / 2) - gammaln(df / 2) - 0.5 * num_dims * jnp.log(df * jnp.pi)
    log_tail = log_tail - 0.5 * (df + num_dims) * jnp.log1p(square / df)
    return jnp.logaddexp(jnp.log1p(-_TAIL_SHARE) + log_normal, jnp.log(_TAIL_SHARE) + log_tail)
