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
it is a Gaussian with full covariance. A mode may also be *bent*: :math:`C_j t^2`, with squares of
the coordinates before :math:`t_j`, is added to its mean, as in a banana. In many dimensions a mode
is a Gaussian by its principal axes instead, :math:`x = t + V (w^{-1} - 1) V^\top t` with
orthonormal columns :math:`V`: products of matrices, which are fast for many particles at once,
where triangular systems are not; with fewer columns than dimensions its covariance is diagonal plus
low rank. This square root is the symmetric one, so that :math:`x_j` is as close to :math:`t_j` as
can be, and a shape of :math:`x_j` is one of a coordinate of the model. Along principal axes, sums
of many coordinates, skewness averages out: a fit to a Cox process in 256 dimensions is 0.4 nats
short with shapes of coordinates, 3.2 with shapes of axes, and 3.3 without any. A last map (Jones
and Pewsey 2009), :math:`z_j = \sinh(e^{\tau_j} \sinh^{-1} x_j - \epsilon_j)` from the standardised
:math:`x_j` to standard normal :math:`z_j`, gives each coordinate skewness and tails of its own.

Tails: a share of the :math:`z` is multivariate Student-t; in another share one coordinate is three
times as wide, any, but most often one on which the widths of others depend; and a share of all
draws is from the original start, the prior. A weight then never exceeds the likelihood divided by
that share (defensive importance sampling, Hesterberg 1995), so its variance is finite wherever the
likelihood is bounded.
"""

from collections.abc import Callable
from functools import partial
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
    "noise_gradient",
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
    :param bend: :math:`C`, as the coupling; None for none. Needs slopes.
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
    bend: jax.Array | None = None
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
        if self.components.bend is not None:
            return "a fitted bent Gaussian"
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

        def pick(values: jax.Array) -> jax.Array:
            """Those of the mode, which comes first; a sum is faster than an index of its own."""
            is_mode = jnp.arange(len(values)) == mode
            return jnp.sum(jnp.where(is_mode, values.T, 0.0).T, axis=0)

        axis_shares = self.axis_share * pick(jax.vmap(_axis_shares)(self.components))
        noise = _noise(
            axis_shares, self.tail_share, uniforms[1:], normals[:num_dims], normals[num_dims:]
        )
        ordered = _position(self.components, noise, pick)
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
    noise, stretch = _standardise(component, scaled, _forms(component, scaled))
    log_det = jnp.sum(jnp.log(stretch)) - jnp.sum(component.log_scale)
    if component.slopes is not None and component.gate is not None:
        log_det = log_det - jnp.sum(component.gate[0])
    if component.log_widths is not None:
        log_det = log_det - jnp.sum(component.log_widths)
    if component.shape is not None:
        log_det = log_det + jnp.sum(component.shape[1])
    return noise, log_det


def noise_gradient(component: Component, position: jax.Array, gradient: jax.Array) -> jax.Array:
    r"""
    Returns the gradient with respect to :math:`z` of a function of the position. The Jacobian
    :math:`dz/du` is lower triangular, so this takes one linear solve, and not, as the gradient
    through :func:`from_noise` does, one coordinate after the other. With principal axes it is a
    symmetric matrix whose inverse is known, and then a diagonal.

    :param component: the mode.
    :param position: ordered coordinates, ``[num_dims]``.
    :param gradient: the gradient with respect to them, ``[num_dims]``.
    """
    matrices = _matrices(component)
    scaled = (position - component.loc) * jnp.exp(-component.log_scale)
    log_scale, log_widths = component.log_scale, component.log_widths
    axes = component
    if log_widths is not None:
        scaled = _stretched(axes, scaled, -log_widths)
        component = component._replace(basis=None, log_widths=None)

    def total(scaled: jax.Array, forms: jax.Array) -> jax.Array:
        return jnp.sum(_standardise(component, scaled, forms)[0])

    # Each coordinate of the noise depends on its own entries only, so that a sum separates them.
    by_scaled, by_forms = jax.grad(total, (0, 1))(scaled, _forms(component, scaled))
    gradient = gradient * jnp.exp(log_scale)
    if log_widths is not None:
        gradient = _stretched(axes, gradient, log_widths)
    if not len(matrices):
        return gradient / by_scaled
    jacobian = by_scaled * jnp.eye(scaled.size, dtype=scaled.dtype)
    for by_form, matrix in zip(by_forms, matrices, strict=False):
        jacobian += by_form[:, None] * matrix
    if component.bend is not None:
        jacobian += by_forms[-1][:, None] * jnp.tril(component.bend, -1) * (2 * scaled)
    return jax.scipy.linalg.solve_triangular(jacobian, gradient, trans=1, lower=True)


def from_noise(component: Component, noise: jax.Array) -> jax.Array:
    """
    Returns the position, in ordered coordinates, that :func:`to_noise` takes to this.

    :param component: the mode.
    :param noise: :math:`z`, ``[num_dims]``.
    """
    one = jax.tree.map(lambda x: x[None], component)
    return _position(one, noise, lambda values: values[0])


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


def _position(
    components: Component, noise: jax.Array, pick_fn: Callable[[jax.Array], jax.Array]
) -> jax.Array:
    """
    Returns the position that :func:`to_noise` takes to this with one of the modes. Its matrices are
    never picked, but products with those of all modes: a copy for each of many particles would cost
    more.
    """
    if components.shape is not None:
        skewness, tail = pick_fn(components.shape)
        grown = jnp.exp((_arcsinh(noise) + skewness) * jnp.exp(-tail))
        noise = 0.5 * (grown - 1 / grown)
    scaled = noise
    if components.slopes is not None:
        gates: Any = components.gate

        def body(scaled: jax.Array, xs: Any) -> tuple[jax.Array, None]:
            index, z, rows, bend, gate = xs
            mean, share = _conditional(*pick_fn(rows @ scaled), *gate)
            if bend is not None:
                mean = mean + pick_fn(bend @ scaled**2)
            return scaled.at[index].set(mean + jnp.sqrt(share) * z), None

        matrices, gate = jax.vmap(_matrices)(components), pick_fn(gates)
        # Coordinates that are not there yet are zero, and so are their squares.
        bend = None if components.bend is None else jnp.moveaxis(components.bend, 1, 0)
        rows = jnp.moveaxis(matrices, 2, 0)
        xs = jnp.arange(noise.size), noise * jnp.exp(gate[0]), rows, bend, gate.T
        scaled, _ = lax.scan(body, jnp.zeros_like(noise), xs)
    elif components.coupling is not None:
        units = jnp.eye(noise.size, dtype=noise.dtype) - jnp.tril(components.coupling, -1)
        solve = partial(jax.scipy.linalg.solve_triangular, lower=True, unit_diagonal=True)
        scaled = pick_fn(jax.vmap(solve, (0, None))(units, noise))
    elif components.log_widths is not None:

        def grow(component: Component) -> jax.Array:
            log_widths: Any = component.log_widths
            return _stretched(component, noise, log_widths)

        scaled = pick_fn(jax.vmap(grow)(components))
    return pick_fn(components.loc) + jnp.exp(pick_fn(components.log_scale)) * scaled


def _matrices(component: Component) -> jax.Array:
    """
    Returns the matrices whose products with :math:`t` a coordinate depends on, ``[num_matrices,
    num_dims, num_dims]``: :math:`B, A, S`, or :math:`B`, or none.
    """
    every: list[Any] = [component.coupling, component.prior_coupling, component.slopes]
    given = [matrix for matrix in every if matrix is not None]
    num_dims = component.loc.size
    return jnp.tril(jnp.stack(given), -1) if given else jnp.zeros((0, num_dims, num_dims))


def _forms(component: Component, scaled: jax.Array) -> jax.Array:
    """
    Returns what a coordinate depends on, ``[num_forms, num_dims]``: products of matrices with
    :math:`t` and, if the mode is bent, with its squares.
    """
    forms = _matrices(component) @ scaled
    if component.bend is None:
        return forms
    return jnp.concatenate([forms, (jnp.tril(component.bend, -1) @ scaled**2)[None]])


def _standardise(
    component: Component, scaled: jax.Array, forms: jax.Array
) -> tuple[jax.Array, jax.Array]:
    r"""
    Returns :math:`z` and, but for factors that no coordinate has a part in, :math:`dz_j / dt_j`.

    :param component: the mode.
    :param scaled: :math:`t`, ``[num_dims]``.
    :param forms: what coordinates depend on; see :func:`_forms`.
    """
    noise, stretch = scaled, jnp.ones_like(scaled)
    if component.slopes is not None:
        gate: Any = component.gate
        mean, share = _conditional(*forms[:3], *gate)
        if component.bend is not None:
            mean = mean + forms[3]
        stretch = lax.rsqrt(share)
        noise = (scaled - mean) * jnp.exp(-gate[0]) * stretch
    elif component.coupling is not None:
        noise = scaled - forms[0]
    elif component.log_widths is not None:
        noise = _stretched(component, scaled, -component.log_widths)
    if component.shape is not None:
        skewness, tail = component.shape
        grown = jnp.exp(jnp.exp(tail) * _arcsinh(noise) - skewness)
        stretch = stretch * lax.rsqrt(1 + noise**2) * 0.5 * (grown + 1 / grown)
        noise = 0.5 * (grown - 1 / grown)
    return noise, stretch


def _conditional(
    likelihood_mean: jax.Array,
    prior_mean: jax.Array,
    log_prior_scale: jax.Array,
    log_likelihood_scale: jax.Array,
    offset: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Returns the mean of the product of two Gaussians, and its variance over the likelihood's."""
    log_prior_scale = _MAX_LOG_SCALE * jnp.tanh(log_prior_scale / _MAX_LOG_SCALE)
    share = jax.nn.sigmoid(2 * (log_prior_scale - log_likelihood_scale))
    return share * likelihood_mean + (1 - share) * (prior_mean + offset), share


def _arcsinh(x: jax.Array) -> jax.Array:
    """Returns the inverse of sinh, to the same digits after the point, at a third of the cost."""
    is_negative = x < 0
    size = jnp.where(is_negative, -x, x)  # whose slope at zero is one, unlike that of abs
    value = jnp.log(size + jnp.sqrt(1 + x**2))
    return jnp.where(is_negative, -value, value)


def _axis_shares(component: Component) -> jax.Array:
    """Returns shares of the draws with a wide coordinate in which it is each."""
    num_dims = component.loc.size
    shares = jnp.full(num_dims, 1 / num_dims)
    if component.slopes is not None:
        influence = jnp.sum(jnp.tril(component.slopes, -1) ** 2, axis=0) + 1e-6 / num_dims
        shares = 0.5 * shares + 0.5 * influence / jnp.sum(influence)
    return shares


def _noise(
    axis_shares: jax.Array,
    tail_share: jax.Array | float,
    uniforms: jax.Array,
    normals: jax.Array,
    tail_normals: jax.Array,
) -> jax.Array:
    """Returns noise, normal, Student-t or with one wide coordinate, from uniforms and normals."""
    mixing = jnp.mean(tail_normals**2)  # chi-squared over its degrees of freedom
    edges = jnp.cumsum(axis_shares)
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
