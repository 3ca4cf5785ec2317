# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Curves and series among the unseen targets of ``trust.py``: a Gaussian process, with its values summed out or latent, a tone in
noise, and a shift at a time that is a discrete site. What has no closed form is quadrature; data are drawn from fixed seeds.
"""

from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats
from scipy.special import logsumexp
from trust_base import Axis, TrustTarget, bounded, log_box, log_normal, make

import numpyro
import numpyro.distributions as dist

JITTER = 1e-4  # of correlation matrices, so that they have Cholesky factors in float32


def smooth_curve(is_latent: bool, distances: jax.Array, y: jax.Array) -> None:
    """A Gaussian process in noise: its values, not centred, or their distribution."""
    size = numpyro.sample("size", dist.HalfNormal(2))
    length = numpyro.sample("length", dist.LogNormal(-1, 0.7))
    noise = numpyro.sample("noise", dist.HalfCauchy(0.3))
    unit = jnp.eye(len(y))
    kernel = jnp.exp(-0.5 * (distances / length) ** 2) + JITTER * unit
    if is_latent:
        z = numpyro.sample("z", dist.Normal(0, 1).expand([len(y)]).to_event(1))
        mean = size * jnp.linalg.cholesky(kernel) @ z
        numpyro.sample("y", dist.Normal(mean, noise).to_event(1), obs=y)
    else:
        covariance = size**2 * kernel + noise**2 * unit
        normal = dist.MultivariateNormal(jnp.zeros(len(y)), covariance_matrix=covariance)
        numpyro.sample("y", normal, obs=y)


def curve(is_latent: bool, seed: int, _: Path | None = None, *, num_places: int) -> TrustTarget:
    """In the eigenbasis of the correlations, one for each length."""
    rng = np.random.default_rng(seed)
    places = np.sort(rng.uniform(0, 1, num_places))
    y = 1.2 * np.sin(7 * places) + places + 0.35 * rng.standard_normal(num_places)
    distances = np.abs(places[:, None] - places)

    def log_joint(size, log_length, log_noise):
        scaled = distances / np.exp(log_length).reshape(-1, 1, 1)
        eigenvalues, vectors = np.linalg.eigh(np.exp(-0.5 * scaled**2))
        eigenvalues = np.maximum(eigenvalues, 0) + JITTER
        projected = np.einsum("lij,i->lj", vectors, y)
        noise = np.exp(log_noise)
        value = stats.halfnorm.logpdf(size, scale=2) + log_normal(log_length, -1, 0.49)
        value = value + stats.halfcauchy.logpdf(noise, scale=0.3) + log_noise
        for which in range(num_places):
            variance = size**2 * eigenvalues[:, which][:, None] + noise**2
            value = value + log_normal(projected[:, which][:, None], 0, variance)
        return value

    axes = Axis(0, 13, 60, True), Axis(-5.5, 3.5, 130), Axis(-6, 2.5, 140)
    num_dims = 3 + is_latent * num_places
    name = f"smooth curve, {'not centred' if is_latent else 'summed out'}, {num_dims}-d"
    return make(
        name, num_dims, partial(smooth_curve, is_latent), (distances, y), log_box(log_joint, *axes)
    )


def tone(t: jax.Array, y: jax.Array) -> None:
    frequency = numpyro.sample("frequency", dist.Uniform(0, np.pi))
    size = numpyro.sample("size", dist.Normal(0, 1).expand([2]).to_event(1))
    mean = size[0] * jnp.cos(frequency * t) + size[1] * jnp.sin(frequency * t)
    numpyro.sample("y", dist.Normal(mean, 1).to_event(1), obs=y)


def tone_in_noise(_: Path | None = None, *, num_times: int = 24) -> TrustTarget:
    """Many frequencies are possible; closed forms for each."""
    t = np.arange(num_times) * 1.0
    y = 0.9 * np.cos(0.9 * t + 1) + np.random.default_rng(707).standard_normal(num_times)

    def log_joint(frequency):
        waves = np.stack([np.cos(frequency[:, None] * t), np.sin(frequency[:, None] * t)], axis=2)
        precision = np.eye(2) + np.swapaxes(waves, 1, 2) @ waves
        pull = np.swapaxes(waves, 1, 2) @ y
        gain = np.sum(pull * np.linalg.solve(precision, pull[..., None])[..., 0], axis=1)
        value = 0.5 * (gain - np.linalg.slogdet(precision)[1])
        return value + log_normal(y, 0, 1).sum() - np.log(np.pi)

    exact = log_box(log_joint, bounded(0, np.pi, 200))
    return make("tone in noise, 3-d", 3, tone, (t, y), exact)


def shift_in_mean(y: jax.Array) -> None:
    """The time of the shift is a discrete site, to be enumerated."""
    mean = numpyro.sample("mean", dist.Normal(0, 2).expand([2]).to_event(1))
    s = numpyro.sample("s", dist.HalfNormal(1))
    times = dist.Categorical(logits=jnp.zeros(len(y) - 1))
    time = numpyro.sample("time", times, infer={"enumerate": "parallel"})
    is_before = jnp.arange(len(y)) <= time[..., None]
    numpyro.sample("y", dist.Normal(jnp.where(is_before, *mean), s).to_event(1), obs=y)


def shift(_: Path | None = None, *, num_times: int = 16) -> TrustTarget:
    """Means by closed form, given the noise and the time, over which there is a sum."""
    y = 0.7 * np.random.default_rng(708).standard_normal(num_times)
    y = y + np.where(np.arange(num_times) < num_times // 3, 0.8, -0.3)

    def log_part(part, s):
        square = np.sum((part - part.mean()) ** 2)
        value = -0.5 * ((len(part) - 1) * np.log(2 * np.pi * s**2) + square / s**2)
        return value + log_normal(part.mean() * np.sqrt(len(part)), 0, s**2 + 4 * len(part))

    def log_joint(s):
        splits = [(y[:time], y[time:]) for time in range(1, num_times)]
        terms = [log_part(before, s) + log_part(after, s) for before, after in splits]
        return logsumexp(terms, axis=0) - np.log(num_times - 1) + stats.halfnorm.logpdf(s)

    exact = log_box(log_joint, Axis(0, 6, 200, True))
    return make("shift in mean, 3-d", 3, shift_in_mean, (y,), exact)


SERIES = {
    "curve_summed_out": partial(curve, False, 739, num_places=16),
    "curve_latent": partial(curve, True, 740, num_places=30),
    "tone_in_noise": tone_in_noise,
    "shift": shift,
}
