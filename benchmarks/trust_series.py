# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Series in time and a curve among the development targets of ``trust.py``. States are summed out by filters, in closed form or on a
grid; what is left is quadrature. Data are drawn from fixed seeds.
"""

from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats
from trust_base import Axis, TrustTarget, bounded, grid, log_box, log_normal, make

import numpyro
import numpyro.distributions as dist


def stationary(phi: jax.Array, z: jax.Array) -> jax.Array:
    """An AR(1) of unit variance, from independent standard normal variables."""
    innovation = jnp.sqrt(1 - phi**2)

    def step(x: jax.Array, z: jax.Array) -> tuple[jax.Array, jax.Array]:
        x = phi * x + innovation * z
        return x, x

    _, rest = jax.lax.scan(step, z[0], z[1:])
    return jnp.concatenate([z[:1], rest])


def local_level(y: jax.Array) -> None:
    """A random walk in noise, both of unknown scale; centred."""
    drift = numpyro.sample("drift", dist.HalfNormal(1))
    noise = numpyro.sample("noise", dist.HalfNormal(1))
    x = numpyro.sample("x", dist.GaussianRandomWalk(drift, len(y)))
    numpyro.sample("y", dist.Normal(x, noise).to_event(1), obs=y)


def filter_scalar(
    y: np.ndarray, slope: np.ndarray, drift: np.ndarray, noise: np.ndarray, first: np.ndarray
) -> np.ndarray:
    """
    The log density of y by Kalman's filter, for arrays of parameters that broadcast: x_t is slope x_{t-1} plus noise of
    variance ``drift``, x_0 has variance ``first``, and y_t is x_t plus noise of variance ``noise``.
    """
    mean, variance, total = 0.0, first, 0.0
    for value in y:
        total = total + log_normal(value, mean, variance + noise)
        gain = variance / (variance + noise)
        mean, variance = mean + gain * (value - mean), variance * (1 - gain)
        mean, variance = slope * mean, slope**2 * variance + drift
    return total


def level(_: Path | None = None, *, num_times: int = 30) -> TrustTarget:
    """The walk by Kalman's filter, its scales by quadrature."""
    rng = np.random.default_rng(220)
    x = np.cumsum(0.3 * rng.standard_normal(num_times))
    y = x + 0.6 * rng.standard_normal(num_times)

    def log_joint(drift: np.ndarray, noise: np.ndarray) -> np.ndarray:
        values = stats.halfnorm.logpdf(drift) + stats.halfnorm.logpdf(noise)
        return values + filter_scalar(y, 1.0, drift**2, noise**2, drift**2)

    axis = Axis(0, 7, 240, True)
    exact = log_box(log_joint, axis, axis)
    return make(f"local level, {num_times + 2}-d", num_times + 2, local_level, (y,), exact)


def autoregressive(noise: float, y: jax.Array) -> None:
    """Stationary, of unknown correlation and spread; not centred."""
    phi = numpyro.sample("phi", dist.Uniform(-1, 1))
    spread = numpyro.sample("spread", dist.HalfNormal(2))
    z = numpyro.sample("z", dist.Normal(0, 1).expand([len(y)]).to_event(1))
    numpyro.sample("y", dist.Normal(spread * stationary(phi, z), noise).to_event(1), obs=y)


def autoregression(_: Path | None = None, *, num_times: int = 50) -> TrustTarget:
    """The series by Kalman's filter; the angle whose cosine is phi, and the spread, by quadrature."""
    rng, noise = np.random.default_rng(221), 0.5
    x = [1.5 * rng.standard_normal()]
    for shock in rng.standard_normal(num_times - 1):
        x.append(0.9 * x[-1] + 1.5 * np.sqrt(1 - 0.81) * shock)
    y = np.array(x) + noise * rng.standard_normal(num_times)

    def log_joint(angle: np.ndarray, spread: np.ndarray) -> np.ndarray:
        phi, variance = np.cos(angle), spread**2
        values = np.log(np.sin(angle) / 2) + stats.halfnorm.logpdf(spread, scale=2)
        return values + filter_scalar(y, phi, variance * (1 - phi**2), noise**2, variance)

    exact = log_box(log_joint, bounded(0, np.pi, 300), Axis(0, 14, 200, True))
    model = partial(autoregressive, noise)
    return make(f"AR(1) in noise, {num_times + 2}-d", num_times + 2, model, (y,), exact)


def curve(places: jax.Array, y: jax.Array) -> None:
    """A whitened Gaussian process of unknown amplitude and length, in noise of unknown scale."""
    amplitude = numpyro.sample("amplitude", dist.HalfNormal(2))
    length = numpyro.sample("length", dist.LogNormal(-1.5, 0.7))
    noise = numpyro.sample("noise", dist.HalfNormal(1))
    e = numpyro.sample("e", dist.Normal(0, 1).expand([len(y)]).to_event(1))
    squares = (places[:, None] - places) ** 2
    kernel = jnp.exp(-0.5 * squares / length**2) + 1e-4 * jnp.eye(len(y))
    f = amplitude * (jnp.linalg.cholesky(kernel) @ e)
    numpyro.sample("y", dist.Normal(f, noise).to_event(1), obs=y)


def process(_: Path | None = None, *, num_places: int = 20) -> TrustTarget:
    """The curve in the eigenbasis of its covariance, one for each length; three integrals are left."""
    rng = np.random.default_rng(230)
    places = np.sort(rng.uniform(0, 1, num_places))
    y = 1.5 * np.sin(7 * places) + 0.3 * rng.standard_normal(num_places)
    squares = (places[:, None] - places) ** 2

    def log_joint(amplitude: np.ndarray, log_length: np.ndarray, noise: np.ndarray) -> np.ndarray:
        values = stats.halfnorm.logpdf(amplitude, scale=2) + stats.halfnorm.logpdf(noise)
        values = values + stats.norm.logpdf(log_length, -1.5, 0.7)
        kernels = np.exp(-0.5 * squares / np.exp(log_length.ravel())[:, None, None] ** 2)
        eigenvalues, vectors = np.linalg.eigh(kernels + 1e-4 * np.eye(num_places))
        projected = np.einsum("lij,i->lj", vectors, y)
        for eigenvalue, value in zip(eigenvalues.T, projected.T, strict=True):
            variance = amplitude**2 * eigenvalue[None, :, None] + noise**2
            values = values + log_normal(value[None, :, None], 0, variance)
        return values

    axes = Axis(0, 12, 100, True), Axis(-6, 3, 120), Axis(0, 6.5, 160, True)
    exact = log_box(log_joint, *axes)
    name = f"Gaussian process, {num_places + 3}-d"
    return make(name, num_places + 3, curve, (places, y), exact)


def volatility(is_centred: bool, y: jax.Array) -> None:
    """Log volatilities are a stationary AR(1) around a mean."""
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    phi = numpyro.sample("phi", dist.Uniform(0.5, 0.95))
    spread = numpyro.sample("spread", dist.HalfNormal(1))
    if is_centred:
        innovation = jnp.sqrt(1 - phi**2)
        first = numpyro.sample("first", dist.Normal(mu, spread))
        h = [first]
        for time in range(1, len(y)):
            mean = mu + phi * (h[-1] - mu)
            h.append(numpyro.sample(f"h_{time}", dist.Normal(mean, spread * innovation)))
        h = jnp.stack(h)
    else:
        z = numpyro.sample("z", dist.Normal(0, 1).expand([len(y)]).to_event(1))
        h = mu + spread * stationary(phi, z)
    numpyro.sample("y", dist.Normal(0, jnp.exp(h / 2)).to_event(1), obs=y)


def filter_on_grid(log_terms: list[np.ndarray], phi: float, nodes: np.ndarray) -> np.ndarray:
    """
    The log density of data that depend on a stationary AR(1) of unit variance, by the forward recursion on equidistant
    nodes, whose distance has to be small against sqrt(1 - phi^2).

    :param log_terms: for each time the log density of its datum, with the nodes along the last axis.
    """
    spacing = nodes[1] - nodes[0]
    forward = np.exp(log_normal(nodes, 0, 1)) * spacing
    kernel = np.exp(log_normal(nodes, phi * nodes[:, None], 1 - phi**2)) * spacing
    total, state = 0.0, None
    for log_term in log_terms:
        state = forward if state is None else state @ kernel
        largest = log_term.max(axis=-1, keepdims=True)
        state = state * np.exp(log_term - largest)
        scale = state.sum(axis=-1, keepdims=True)
        state, total = state / scale, total + largest[..., 0] + np.log(scale[..., 0])
    return total


def stochastic_volatility(
    is_centred: bool, _: Path | None = None, *, num_times: int = 16
) -> TrustTarget:
    rng = np.random.default_rng(240)
    h = [0.8 * rng.standard_normal()]
    for shock in rng.standard_normal(num_times - 1):
        h.append(0.85 * h[-1] + 0.8 * np.sqrt(1 - 0.85**2) * shock)
    y = np.exp(np.array(h) / 2) * rng.standard_normal(num_times)
    nodes = grid(-6.5, 6.5, 85)

    def log_joint(mu: np.ndarray, phi: np.ndarray, spread: np.ndarray) -> np.ndarray:
        log_prior = log_normal(mu, 0, 1) + stats.halfnorm.logpdf(spread) - np.log(0.45)
        h = mu[:, 0, :, None] + spread[:, 0, :, None] * nodes  # a grid of three axes
        terms = [-0.5 * (np.log(2 * np.pi) + h + value**2 * np.exp(-h)) for value in y]
        slices = [filter_on_grid(terms, value, nodes) for value in phi.ravel()]
        return log_prior + np.stack(slices, axis=1)

    axes = Axis(-6, 6, 56), bounded(0.5, 0.95, 8), Axis(0, 6.5, 40, True)
    exact = log_box(log_joint, *axes)
    name = f"stochastic volatility, {'' if is_centred else 'not '}centred, {num_times + 3}-d"
    return make(name, num_times + 3, partial(volatility, is_centred), (y,), exact)


SERIES = {
    "local_level": level,
    "ar1": autoregression,
    "gaussian_process": process,
    "volatility": partial(stochastic_volatility, False),
    "volatility_centred": partial(stochastic_volatility, True),
}
