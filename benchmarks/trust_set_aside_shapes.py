# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Shapes among the set-aside targets of ``trust.py``: rings, crescents, ridges, edges, heavy tails, many modes, needles."""

from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.scipy.stats import norm
import numpy as np
from scipy import special, stats
from scipy.special import logsumexp
from trust_base import (
    Axis,
    TrustTarget,
    bounded,
    gaussian_modes,
    in_bell,
    in_box,
    log_box,
    log_modes_evidence,
    log_normal,
    make,
)

import numpyro
import numpyro.distributions as dist

RING_CENTER = np.array([2.0, 1.0])
CORNERS = np.array([8.0, 5.0, 3.0])


def distance_to(center: np.ndarray, distance: float, scale: float, x: jax.Array) -> jax.Array:
    return norm.logpdf(distance, jnp.linalg.norm(x - jnp.asarray(center)), scale)


def ring(_: Path | None = None) -> TrustTarget:
    """In polar coordinates around its centre, which is not that of the prior."""

    def log_density(radius: np.ndarray, angle: np.ndarray) -> np.ndarray:
        first = RING_CENTER[0] + radius * np.cos(angle)
        second = RING_CENTER[1] + radius * np.sin(angle)
        values = log_normal(first, 0, 9) + log_normal(second, 0, 9) + np.log(radius)
        return values + log_normal(4, radius, 0.01)

    exact = log_box(log_density, Axis(3.2, 4.8, 60), bounded(0, 2 * np.pi, 80))
    model = partial(in_bell, 2, 3.0, partial(distance_to, RING_CENTER, 4.0, 0.1))
    return make("ring, 2-d", 2, model, (), exact)


def sphere(_: Path | None = None, *, num_dims: int = 6) -> TrustTarget:
    exact = log_box(
        lambda r: stats.chi.logpdf(r, num_dims, scale=2) + log_normal(7, r, 0.04), Axis(5, 9, 100)
    )
    model = partial(in_bell, num_dims, 2.0, partial(distance_to, np.zeros(num_dims), 7.0, 0.2))
    return make(f"sphere, {num_dims}-d", num_dims, model, (), exact)


def pairs(kind: str, scale: float, y: jax.Array) -> None:
    """Each datum is a function of a pair of latents, with little noise."""
    x = numpyro.sample("x", dist.Normal(0, 2).expand([len(y), 2]).to_event(2))
    mean = x[:, 1] + x[:, 0] ** 2 / 2 if kind == "crescent" else x[:, 0] * x[:, 1]
    numpyro.sample("y", dist.Normal(mean, scale).to_event(1), obs=y)


def curved_pairs(kind: str, y: tuple[float, ...], _: Path | None = None) -> TrustTarget:
    """The second of each pair by closed form, given the first."""
    scale, exact = 0.1, 0.0
    for value in y:

        def log_joint(x: np.ndarray, value: float = value) -> np.ndarray:
            if kind == "crescent":
                return log_normal(x, 0, 4) + log_normal(value, x**2 / 2, 4 + scale**2)
            return log_normal(x, 0, 4) + log_normal(value, 0, 4 * x**2 + scale**2)

        halves = Axis(-16, 0, 600, False, True), Axis(0, 16, 600, True)
        exact += np.logaddexp(*(log_box(log_joint, half) for half in halves))
    num_dims = 2 * len(y)
    name = f"{'crescents' if kind == 'crescent' else 'hyperbolas'}, {num_dims}-d"
    return make(name, num_dims, partial(pairs, kind, scale), (np.array(y),), exact)


def twisted_log_ratio(x: jax.Array) -> jax.Array:
    """A normalised density, all of whose coordinates are bent along the first, over the prior's."""
    signs = jnp.where(jnp.arange(len(x) - 1) % 2 == 0, 0.5, -0.5)
    bent = x[1:] - signs * (x[0] ** 2 - 2.25)
    value = norm.logpdf(x[0], 0, 1.5) + norm.logpdf(bent, 0, 0.6).sum()
    return value - norm.logpdf(x, 0, 3).sum()


def twisted(_: Path | None = None, *, num_dims: int = 5) -> TrustTarget:
    model = partial(in_bell, num_dims, 3.0, twisted_log_ratio)
    return make(f"twisted, {num_dims}-d", num_dims, model, (), 0.0)


def two_rings_log_likelihood(x: jax.Array) -> jax.Array:
    rings = [
        distance_to(np.array([-1.0, 0.0]), 3.0, 0.15, x),
        distance_to(np.array([2.0, 1.0]), 1.5, 0.15, x),
    ]
    return jnp.logaddexp(*rings)


def two_rings(_: Path | None = None) -> TrustTarget:
    """They cross each other."""

    def log_density(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        first = log_normal(np.hypot(x + 1, y), 3, 0.15**2)
        return np.logaddexp(first, log_normal(np.hypot(x - 2, y - 1), 1.5, 0.15**2))

    axis = Axis(-6, 6, 700)
    exact = log_box(log_density, axis, axis) - 2 * np.log(12)
    return make(
        "two rings, 2-d", 2, partial(in_box, 2, -6.0, 6.0, two_rings_log_likelihood), (), exact
    )


def himmelblau_log_likelihood(x: jax.Array) -> jax.Array:
    return -0.2 * ((x[0] ** 2 + x[1] - 11) ** 2 + (x[0] + x[1] ** 2 - 7) ** 2)


def himmelblau(_: Path | None = None) -> TrustTarget:
    """Four modes of different shapes and one height."""
    axis = Axis(-6, 6, 400)
    exact = log_box(lambda x, y: -0.2 * ((x**2 + y - 11) ** 2 + (x + y**2 - 7) ** 2), axis, axis)
    model = partial(in_box, 2, -6.0, 6.0, himmelblau_log_likelihood)
    return make("Himmelblau, 2-d", 2, model, (), exact - 2 * np.log(12))


def modes(
    name: str,
    places: np.ndarray,
    scales: np.ndarray,
    shares: np.ndarray,
    prior_scale: float,
    is_needle: bool = False,
) -> TrustTarget:
    """Gaussian modes with given shares of the evidence, which is 1."""
    log_shares = np.log(shares) - log_modes_evidence(places, scales, 0 * scales, prior_scale)
    exact = logsumexp(log_modes_evidence(places, scales, log_shares, prior_scale))
    num_dims = places.shape[1]
    model = partial(in_bell, num_dims, prior_scale, gaussian_modes(places, scales, log_shares))
    return make(f"{name}, {num_dims}-d", num_dims, model, (), exact, is_needle=is_needle)


def twelve_modes(_: Path | None = None) -> TrustTarget:
    """Each has 0.8 of the share of the one before it."""
    rng = np.random.default_rng(300)
    places, scales = rng.uniform(-5, 5, (12, 3)), rng.uniform(0.25, 0.7, 12)
    shares = 0.8 ** np.arange(12)
    return modes("twelve modes", places, scales, shares / shares.sum(), 3.0)


def needle_in_six(_: Path | None = None) -> TrustTarget:
    """A ball of radius 0.4 around the narrow mode, beyond which the wide one leads, has 1e-8 of the prior."""
    places = np.stack([np.zeros(6), np.array([3.0, -2.0, 2.0, -3.0, 2.0, 1.0])])
    return modes("needle", places, np.array([1.5, 0.05]), np.array([0.6, 0.4]), 5.0, True)


def needle_in_tail(_: Path | None = None) -> TrustTarget:
    """The narrow mode leads where the first coordinate is above 4.2 or more: 1.3e-5 of the prior."""
    places = np.array([[0.0, 0.0, 0.0], [9.0, 0.0, 0.0]])
    return modes(
        "needle in the tail", places, np.array([1.0, 0.4]), np.array([0.7, 0.3]), 1.0, True
    )


def needle_in_box(_: Path | None = None) -> TrustTarget:
    """A disc of radius 0.06, of 3e-5 of the box; normal densities that end well before its sides."""
    places, scales = np.array([[-3.0, 2.0], [6.0, -5.0]]), np.array([1.2, 0.005])
    shares = np.log([0.8, 0.2])
    model = partial(in_box, 2, -10.0, 10.0, gaussian_modes(places, scales, shares))
    return make("needle in a box, 2-d", 2, model, (), -2 * np.log(20), is_needle=True)


def corners_log_likelihood(x: jax.Array) -> jax.Array:
    return jnp.sum(jnp.asarray(CORNERS) * jnp.cos(2 * jnp.pi * x))


def corners(_: Path | None = None) -> TrustTarget:
    """One mode in each of eight corners; Bessel functions."""
    exact = np.sum(np.log(special.ive(0, CORNERS)) + CORNERS)
    return make("corners, 3-d", 3, partial(in_box, 3, 0.0, 1.0, corners_log_likelihood), (), exact)


def edge_means(y: jax.Array) -> None:
    with numpyro.plate("means", len(y)):
        x = numpyro.sample("x", dist.Uniform(0, 1))
        numpyro.sample("y", dist.Normal(x, 0.1), obs=y)


def edges(
    _: Path | None = None, *, data: tuple[float, ...] = (-0.15, 1.2, 0.02, 0.5)
) -> TrustTarget:
    """Data on the wrong side of bounds: the mass is at the edges."""
    y = np.array(data)
    exact = np.sum(np.log(stats.norm.cdf((1 - y) / 0.1) - stats.norm.cdf(-y / 0.1)))
    return make(f"edges, {len(y)}-d", len(y), edge_means, (y,), exact)


def cauchy_means(y: jax.Array) -> None:
    with numpyro.plate("means", len(y)):
        x = numpyro.sample("x", dist.Cauchy(0, 1))
        numpyro.sample("y", dist.Cauchy(x, 0.3), obs=y)


def conflict(
    _: Path | None = None, *, data: tuple[float, ...] = (6.0, -8.0, 9.0, -7.0, 5.0)
) -> TrustTarget:
    """Prior and likelihood have heavy tails and disagree: 32 modes. Cauchy variables add up to one."""
    y = np.array(data)
    exact = stats.cauchy.logpdf(y, 0, 1.3).sum()
    return make(f"conflict of heavy tails, {len(y)}-d", len(y), cauchy_means, (y,), exact)


def sums(scale: float, A: jax.Array, y: jax.Array) -> None:
    x = numpyro.sample("x", dist.Normal(0, 3).expand([A.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Normal(A @ x, scale).to_event(1), obs=y)


def ridge(_: Path | None = None, *, num_dims: int = 10, scale: float = 0.01) -> TrustTarget:
    """Two sums are known well, all else not at all."""
    A = np.stack([np.ones(num_dims), np.arange(num_dims) / num_dims])
    y = np.array([5.0, -1.0])
    exact = stats.multivariate_normal(cov=9 * A @ A.T + scale**2 * np.eye(2)).logpdf(y)
    return make(f"ridge, {num_dims}-d", num_dims, sums, (scale, A, y), exact)


def scaled_means(y: jax.Array) -> None:
    v = numpyro.sample("v", dist.Normal(0, 3))
    with numpyro.plate("means", len(y)):
        x = numpyro.sample("x", dist.Normal(0, jnp.exp(v / 2)))
        numpyro.sample("y", dist.Normal(x, 0.5), obs=y)


def funnel_with_data(_: Path | None = None, *, num_means: int = 11) -> TrustTarget:
    """Data that neither forbid the neck nor the mouth."""
    y = 0.6 * np.random.default_rng(301).standard_normal(num_means)

    def log_joint(v: np.ndarray) -> np.ndarray:
        return log_normal(v, 0, 9) + log_normal(y, 0, np.exp(v)[:, None] + 0.25).sum(axis=1)

    exact = log_box(log_joint, Axis(-30, 20, 400))
    name = f"funnel with data, {num_means + 1}-d"
    return make(name, num_means + 1, scaled_means, (y,), exact)


SHAPES = {
    "ring": ring,
    "sphere": sphere,
    "crescents": partial(curved_pairs, "crescent", (4.0, 1.0, -2.0)),
    "hyperbolas": partial(curved_pairs, "hyperbola", (1.5, -2.0)),
    "twisted": twisted,
    "two_rings": two_rings,
    "himmelblau": himmelblau,
    "twelve_modes": twelve_modes,
    "corners": corners,
    "edges": edges,
    "conflict": conflict,
    "ridge": ridge,
    "funnel_with_data": funnel_with_data,
    "needle_in_six": needle_in_six,
    "needle_in_tail": needle_in_tail,
    "needle_in_box": needle_in_box,
}
