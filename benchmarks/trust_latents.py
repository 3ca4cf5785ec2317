# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Models with latent structure among the development targets of ``trust.py``: mixtures with free labels, sparse
means, random effects and densities of other benchmarks. Log evidences are closed forms or quadrature; data are drawn from fixed seeds.
"""

from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import logsumexp
import set_aside
import targets
from trust_base import (
    TrustTarget,
    gaussian_modes,
    in_bell,
    log_modes_evidence,
    make,
)

import numpyro
import numpyro.distributions as dist


def free_labels(num_labels: int, scale: float, prior_scale: float, y: jax.Array) -> None:
    """Equal weights and known widths: any permutation of the means is as good."""
    mu = numpyro.sample("mu", dist.Normal(0, prior_scale).expand([num_labels]).to_event(1))
    mixing = dist.Categorical(logits=jnp.zeros(num_labels))
    mixture = dist.MixtureSameFamily(mixing, dist.Normal(mu, scale))
    numpyro.sample("y", mixture.expand(y.shape).to_event(1), obs=y)


def subsets_of(mask: int) -> np.ndarray:
    """All subsets of a set of bits, each as a number."""
    found = np.zeros(1, int)
    for bit in range(mask.bit_length()):
        if mask >> bit & 1:
            found = np.concatenate([found, found | 1 << bit])
    return found


def log_labels_evidence(y: np.ndarray, num_labels: int, scale: float, prior_scale: float) -> float:
    """
    The sum over all assignments of data to labels. That of the first k labels to a set of data is the sum, over the
    subset that label k takes, of its closed form times the sum for k - 1 labels and the rest.
    """
    num_sets = 1 << len(y)
    members = np.arange(num_sets)[:, None] >> np.arange(len(y)) & 1
    count, total, square = members.sum(axis=1), members @ y, members @ y**2
    variance = 1 / (prior_scale**-2 + count / scale**2)  # of the mean of a label, given its data
    log_one = -0.5 * (count * np.log(2 * np.pi * scale**2) + square / scale**2)
    log_one += 0.5 * (np.log(variance / prior_scale**2) + variance * total**2 / scale**4)
    log_first = log_one
    for label in range(1, num_labels):
        is_last = label == num_labels - 1
        following = np.empty(num_sets)
        for mask in [num_sets - 1] if is_last else range(num_sets):
            subsets = subsets_of(mask)
            following[mask] = logsumexp(log_one[subsets] + log_first[mask ^ subsets])
        log_first = following
    return float(log_first[-1] - len(y) * np.log(num_labels))


def labels(
    num_labels: int, num_data: int, _: Path | None = None, *, scale: float = 0.6, seed: int = 200
) -> TrustTarget:
    rng = np.random.default_rng(seed + num_labels)
    places = 3.0 * (np.arange(num_labels) - (num_labels - 1) / 2)
    y = np.resize(places, num_data) + scale * rng.standard_normal(num_data)
    exact = log_labels_evidence(y, num_labels, scale, 5.0)
    name = f"mixture, {num_labels} free labels"
    return make(name, num_labels, partial(free_labels, num_labels, scale, 5.0), (y,), exact)


def eight_modes(_: Path | None = None, *, num_dims: int = 10) -> TrustTarget:
    """Of unequal widths, and shares of the evidence from 4 to 25 %."""
    rng = np.random.default_rng(210)
    places, scales = 2.5 * rng.standard_normal((8, num_dims)), np.linspace(0.4, 1.1, 8)
    shares = np.log([0.04, 0.06, 0.08, 0.11, 0.13, 0.15, 0.18, 0.25])
    shares = shares - log_modes_evidence(places, scales, np.zeros(8), 3.0)
    exact = logsumexp(log_modes_evidence(places, scales, shares, 3.0))
    model = partial(in_bell, num_dims, 3.0, gaussian_modes(places, scales, shares))
    return make(f"eight modes, {num_dims}-d", num_dims, model, (), exact)


def centred_horseshoe(y: jax.Array) -> None:
    tau = numpyro.sample("tau", dist.HalfCauchy(0.5))
    with numpyro.plate("means", len(y)):
        local = numpyro.sample("local", dist.HalfCauchy(1))
        b = numpyro.sample("b", dist.Normal(0, tau * local))
        numpyro.sample("y", dist.Normal(b, 1), obs=y)


def horseshoe(is_centred: bool, _: Path | None = None, *, num_means: int = 15) -> TrustTarget:
    target = set_aside.horseshoe(num_means=num_means)
    model = centred_horseshoe if is_centred else target.model
    name = f"horseshoe, {'' if is_centred else 'not '}centred, {target.num_dims}-d"
    return make(name, target.num_dims, model, target.args, target.log_evidence)


def intercepts_apart(num_groups: int, group: jax.Array, y: jax.Array) -> None:
    """``targets.random_intercepts``, not centred."""
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfNormal(2))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2))
    with numpyro.plate("groups", num_groups):
        z = numpyro.sample("z", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(mu + tau * z[group], sigma).to_event(1), obs=y)


def random_effects(is_centred: bool, directory: Path | None = None) -> TrustTarget:
    target = targets.TARGETS["random_intercepts"](directory)
    num_groups, *data = target.args
    model = targets.random_intercepts if is_centred else intercepts_apart
    name = f"random effects, {'' if is_centred else 'not '}centred, 15-d"
    return make(name, num_groups + 3, partial(model, num_groups), tuple(data), target.log_evidence)


def density(key: str, num_dims: int, directory: Path | None = None) -> TrustTarget:
    """A normalised density of ``targets.py``, over a normal start as its prior."""
    target = targets.TARGETS[key](directory)
    return make(target.title, num_dims, partial(target.model, *target.args), (), 0.0)


LATENTS = {
    "labels_2": partial(labels, 2, 12),
    "labels_3": partial(labels, 3, 12),
    "labels_4": partial(labels, 4, 12),
    "labels_5": partial(labels, 5, 10),
    "eight_modes": eight_modes,
    "horseshoe": partial(horseshoe, False),
    "horseshoe_centred": partial(horseshoe, True),
    "random_effects": partial(random_effects, False),
    "random_effects_centred": partial(random_effects, True),
    "funnel": partial(density, "funnel", 10),
    "banana": partial(density, "banana", 6),
    "three_modes": partial(density, "three_modes", 4),
}
