# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

r"""
A start that was fitted to the posterior: a few modes, heavy tails, and a share of the original
start.

One mode is a *conditional Gaussian*. With :math:`t = (u - m) / d` and the coordinates in a fixed
order, each :math:`t_j` given those before it has a density like the posterior of a Gaussian mean in
a hierarchical model: a likelihood of constant width times a prior whose width depends on
coordinates before it,

.. math::

    N(t_j \mid B_j t, \, e^{2 a_j}) \; N(t_j \mid \alpha_j + A_j t, \, e^{2 S_j t}),

where :math:`A, B, S` are strictly lower triangular. So it has the funnels of such models, from the
tip, where the prior decides, to the mouth, where the data do. With :math:`B` alone, and no prior,
it is a Gaussian with full covariance. In many dimensions a mode is a Gaussian by its principal axes
instead, :math:`x = t + V (w^{-1} - 1) V^\top t` with orthonormal columns :math:`V`: products of
matrices, which are fast for many particles at once, where triangular systems are not; with fewer
columns than dimensions its covariance is diagonal plus low rank. This square root is the symmetric
one, so that :math:`x_j` is as close to :math:`t_j` as can be, and a shape of :math:`x_j` is one of
a coordinate of the model. Along principal axes, sums of many coordinates, skewness averages out: a
fit to a Cox process in 256 dimensions is 0.4 nats short with shapes of coordinates, 3.2 with shapes
of axes, and 3.3 without any. A last map (Jones and Pewsey 2009), :math:`z_j =
\sinh(e^{\tau_j} \sinh^{-1} x_j - \epsilon_j)` from the standardised :math:`x_j` to standard normal
:math:`z_j`, gives each coordinate skewness and tails of its own.

Tails: a share of the :math:`z` is multivariate Student-t; in another share one coordinate is three
times as wide, any, but most often one on which the widths of others depend; and a share of all
draws is from the original start, the prior. A weight then never exceeds the likelihood divided by
that share (defensive importance sampling, Hesterberg 1995), so its variance is finite wherever the
likelihood is bounded.
"""

from typing import Any, NamedTuple

import jax
from jax import lax, random
import jax.numpy as jnp
from jax.scipy.special import gammaln, logsumexp
import numpy as np

from numpyro_dais.sampler.path import LogDensities, Target, TargetFunctions

__all__ = [
    "AXIS_SHARE",
    "BASE_SHARE",
    "TAIL_SHARE",
    "Component",
    "Mixture",
    "component_log_density",
    "from_noise",
    "started_at",
    "to_noise",
]

# Shares and widths of what surrounds the fit; no study of their values is on record. Each share
# bounds the weights of draws that the fit has missed, by one over the share, and costs that share
# of the draws where it fits well.
BASE_SHARE = 0.05  # from the original start
TAIL_SHARE, _TAIL_DF = 0.05, 5  # Student-t; with five degrees of freedom its variance is finite
AXIS_SHARE, _AXIS_SCALE = 0.2, 3.0  # with one wide coordinate, as the neck of a funnel needs

# The log scale at which a prior's width levels off: far beyond any posterior, so that it bends no
# fit, and small enough that its square, exp(40), is a number in float32.
_MAX_LOG_SCALE = 20.0


class Component(NamedTuple):
    r"""
    One mode, or, stacked along a leading axis, several. Coordinates are in the order of the
    mixture.

    :param loc: :math:`m`, ``[num_dims]``.
    :param log_scale: the logarithm of :math:`d`, ``[num_dims]``.
    :param coupling: :math:`B`, ``[num_dims, num_dims]``, of which only the part below the diagonal
        counts; None for independent coordinates.
    :param prior_coupling: :math:`A`, likewise; None if there is no prior.
    :param slopes: :math:`S`, likewise.
    :param gate: :math:`a` and :math:`\alpha`, ``[2, num_dims]``, likewise.
    :param shape: :math:`\epsilon` and :math:`\tau`, ``[2, num_dims]``; None for a Gaussian.
    :param basis: :math:`V`, ``[num_dims, rank]``, with columns that are orthonormal, or zero; None
        without principal axes. Not beside a coupling.
    :param log_widths: the logarithm of :math:`w`, ``[rank]``, likewise.
    """

    loc: jax.Array
    log_scale: jax.Array
    coupling: jax.Array | None = None
    prior_coupling: jax.Array | None = None
    slopes: jax.Array | None = None
    gate: jax.Array | None = None
    shape: jax.Array | None = None
    basis: jax.Array | None = None
    log_widths: jax.Array | None = None


class Mixture(NamedTuple):
    """
    Modes with shares.

    :param order: the order of the coordinates, ``[num_dims]``.
    :param components: the modes, stacked.
    :param log_shares: logarithms of their shares, ``[num_modes]``.
    :param base_share: the share of draws that are still from the original start; none if these
        overflow.
    :param tail_share: the share of a mode's draws whose noise is Student-t.
    :param axis_share: the share of its other draws in which one coordinate of the noise is wide.
    """

    order: jax.Array
    components: Component
    log_shares: jax.Array
    base_share: jax.Array | float = BASE_SHARE
    tail_share: jax.Array | float = TAIL_SHARE
    axis_share: jax.Array | float = AXIS_SHARE

    @property
    def num_modes(self) -> int:
        """The number of modes."""
        return len(self.log_shares)

    @property
    def description(self) -> str:
        """The mixture in words."""
        slopes, shape = self.components.slopes, self.components.shape
        if slopes is not None and np.any(slopes):
            return "a fitted conditional Gaussian"
        # One mode that was fitted has a share beside it for what it was fitted from.
        is_fitted = shape is not None and np.any(shape)
        num_modes = len(np.unique(np.asarray(self.components.loc), axis=0))
        if is_fitted or num_modes == 1:
            return "a fitted Gaussian"
        return f"a mixture of {num_modes} fitted Gaussians"

    def bare(self) -> "Mixture":
        """
        Returns the modes alone, for chains: steps mend what a fit has missed, and what is there for
        plain weights only, wide noise and the original start, would give them stray particles.
        """
        return self._replace(base_share=0.0, tail_share=0.0, axis_share=0.0)

    def sample(self, rng_key: jax.Array) -> jax.Array:
        """Returns a draw ``[num_dims]``."""
        # Few and small random numbers, at once: each kind takes XLA a while to compile.
        uniform_key, normal_key = random.split(rng_key)
        uniforms = random.uniform(uniform_key, (3,))
        num_dims = self.components.loc.shape[-1]
        normals = random.normal(normal_key, (num_dims + _TAIL_DF,))
        edges = jnp.cumsum(jnp.exp(self.log_shares))
        mode = jnp.sum(uniforms[0] * edges[-1] >= edges[:-1])

        def draw(component: Component) -> jax.Array:
            shares = self.tail_share, self.axis_share
            noise = _noise(component, *shares, uniforms[1:], normals[:num_dims], normals[num_dims:])
            return from_noise(component, noise)

        # All modes, and then one: to pick a mode first would copy its matrices for each of many
        # particles.
        ordered = jax.vmap(draw)(self.components)[mode]
        return jnp.zeros_like(ordered).at[self.order].set(ordered)

    def log_density(self, position: jax.Array) -> jax.Array:
        """Returns the log density of a position ``[num_dims]``."""
        ordered = position[self.order]

        def log_density(component: Component) -> jax.Array:
            return component_log_density(component, ordered, self.tail_share, self.axis_share)

        log_densities = jax.vmap(log_density)(self.components)
        return logsumexp(self.log_shares + log_densities)


def started_at(target: Target, mixture: Mixture | None) -> Target:
    """
    Returns the target with chains that start at a mixture, and some of them, its ``base_share``, at
    the target's own start.

    :param target: a target over flat positions ``[num_dims]``.
    :param mixture: the mixture; None leaves the target as it is.
    """
    if mixture is None:
        return target
    share = mixture.base_share

    def sample_fn(rng_key: jax.Array) -> jax.Array:
        kind_key, fit_key, base_key = random.split(rng_key, 3)
        is_base = random.uniform(kind_key) < share
        return jnp.where(is_base, target.sample_fn(base_key), mixture.sample(fit_key))

    def log_densities_fn(position: jax.Array) -> LogDensities:
        log_base, log_ratio = target.log_densities_fn(position)
        log_fit = jnp.log1p(-share) + mixture.log_density(position)
        log_start = jnp.logaddexp(log_fit, _log_part(share, log_base))
        return LogDensities(log_start, (log_base - log_start) + log_ratio)

    return TargetFunctions(sample_fn, log_densities_fn, target.dynamics_fn)


def to_noise(component: Component, position: jax.Array) -> tuple[jax.Array, jax.Array]:
    r"""
    Returns :math:`z` at a position, and :math:`\log |dz/du|`.

    :param component: the mode.
    :param position: ordered coordinates, ``[num_dims]``.
    """
    scaled = (position - component.loc) * jnp.exp(-component.log_scale)
    noise, log_det = scaled, -jnp.sum(component.log_scale)
    if component.slopes is not None:
        matrices, gate = _conditioning(component)
        mean, log_scales = _conditional(*[matrix @ scaled for matrix in matrices], *gate)
        noise, log_det = (scaled - mean) * jnp.exp(-log_scales), log_det - jnp.sum(log_scales)
    elif component.coupling is not None:
        noise = noise - jnp.tril(component.coupling, -1) @ scaled
    elif component.log_widths is not None:
        noise = _stretched(component, scaled, -component.log_widths)
        log_det = log_det - jnp.sum(component.log_widths)
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

        def body(scaled: jax.Array, xs: Any) -> tuple[jax.Array, None]:
            index, z, rows, gate = xs
            mean, log_scale = _conditional(*[row @ scaled for row in rows], *gate)
            return scaled.at[index].set(mean + jnp.exp(log_scale) * z), None

        xs = jnp.arange(noise.size), noise, *_conditioning(component)
        scaled, _ = lax.scan(body, jnp.zeros_like(noise), xs)
    elif component.coupling is not None:
        unit = jnp.eye(noise.size, dtype=noise.dtype) - jnp.tril(component.coupling, -1)
        scaled = jax.scipy.linalg.solve_triangular(unit, noise, lower=True, unit_diagonal=True)
    elif component.log_widths is not None:
        scaled = _stretched(component, noise, component.log_widths)
    return component.loc + jnp.exp(component.log_scale) * scaled


def component_log_density(
    component: Component,
    position: jax.Array,
    tail_share: jax.Array | float = TAIL_SHARE,
    axis_share: jax.Array | float = AXIS_SHARE,
) -> jax.Array:
    """
    Returns the log density of a mode, tails included, at ordered coordinates.

    :param component: the mode.
    :param position: ordered coordinates, ``[num_dims]``.
    :param tail_share: as in :class:`Mixture`; zero is fine.
    :param axis_share: likewise.
    """
    noise, log_det = to_noise(component, position)
    return _noise_log_density(component, tail_share, axis_share, noise) + log_det


def _stretched(component: Component, values: jax.Array, log_factors: jax.Array) -> jax.Array:
    """Returns values multiplied by factors along the principal axes."""
    basis: Any = component.basis
    along = basis.T @ values
    if basis.shape[0] == basis.shape[1]:  # no difference of large numbers where axes are wide
        return basis @ (jnp.exp(log_factors) * along)
    return values + basis @ (jnp.expm1(log_factors) * along)


def _log_part(share: jax.Array | float, log_density: jax.Array) -> jax.Array:
    """
    Returns the logarithm of a share of a density, which may be none, with a gradient in any case.
    """
    is_there = jnp.asarray(share) > 0
    return jnp.where(is_there, jnp.log(jnp.where(is_there, share, 1.0)) + log_density, -jnp.inf)


def _conditioning(component: Component) -> tuple[list[jax.Array], list[jax.Array]]:
    """Returns matrices and vectors of the two Gaussians, one row or number for each coordinate."""
    matrices: list[Any] = [component.coupling, component.prior_coupling, component.slopes]
    gate: Any = component.gate
    return [jnp.tril(matrix, -1) for matrix in matrices], list(gate)


def _conditional(
    likelihood_mean: jax.Array,
    prior_mean: jax.Array,
    log_prior_scale: jax.Array,
    log_likelihood_scale: jax.Array,
    offset: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Returns mean and log scale of the product of two Gaussians."""
    log_prior_scale = _MAX_LOG_SCALE * jnp.tanh(log_prior_scale / _MAX_LOG_SCALE)
    share = jax.nn.sigmoid(2 * (log_prior_scale - log_likelihood_scale))
    mean = share * likelihood_mean + (1 - share) * (prior_mean + offset)
    return mean, -0.5 * jnp.logaddexp(-2 * log_prior_scale, -2 * log_likelihood_scale)


def _log_cosh(x: jax.Array) -> jax.Array:
    return jnp.abs(x) + jnp.log1p(jnp.exp(-2 * jnp.abs(x))) - jnp.log(2.0)


def _axis_shares(component: Component) -> jax.Array:
    """Returns shares of the draws with a wide coordinate in which it is each."""
    num_dims = component.loc.size
    shares = jnp.full(num_dims, 1 / num_dims)
    if component.slopes is not None:
        influence = jnp.sum(jnp.tril(component.slopes, -1) ** 2, axis=0) + 1e-6 / num_dims
        shares = 0.5 * shares + 0.5 * influence / jnp.sum(influence)
    return shares


def _noise(
    component: Component,
    tail_share: jax.Array | float,
    axis_share: jax.Array | float,
    uniforms: jax.Array,
    normals: jax.Array,
    tail_normals: jax.Array,
) -> jax.Array:
    """Returns noise, normal, Student-t or with one wide coordinate, from uniforms and normals."""
    mixing = jnp.mean(tail_normals**2)  # chi-squared over its degrees of freedom
    edges = axis_share * jnp.cumsum(_axis_shares(component))
    axis = jnp.sum(uniforms[1] >= edges)  # the last of them: none
    wide = jnp.where(jnp.arange(normals.size) == axis, _AXIS_SCALE * normals, normals)
    return jnp.where(uniforms[0] < tail_share, normals * lax.rsqrt(mixing), wide)


def _noise_log_density(
    component: Component,
    tail_share: jax.Array | float,
    axis_share: jax.Array | float,
    noise: jax.Array,
) -> jax.Array:
    num_dims, df = noise.size, _TAIL_DF
    square = jnp.sum(noise**2)
    log_normal = -0.5 * square - 0.5 * num_dims * jnp.log(2 * jnp.pi)
    log_tail = (
        gammaln((df + num_dims) / 2) - gammaln(df / 2) - 0.5 * num_dims * jnp.log(df * jnp.pi)
    )
    log_tail = log_tail - 0.5 * (df + num_dims) * jnp.log1p(square / df)
    log_wider = 0.5 * (1 - _AXIS_SCALE**-2) * noise**2 - jnp.log(_AXIS_SCALE)
    log_wide = logsumexp(log_wider + jnp.log(_axis_shares(component)))
    log_body = log_normal + jnp.logaddexp(jnp.log1p(-axis_share), _log_part(axis_share, log_wide))
    return jnp.logaddexp(jnp.log1p(-tail_share) + log_body, _log_part(tail_share, log_tail))
