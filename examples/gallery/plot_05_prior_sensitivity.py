# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

r"""
Model probabilities, and how much of them is the prior
======================================================

**The claim:** a Bayes factor depends on the widths of priors even where the posterior does not. ``compare``
shows by how much, from particles that are there already; and here the exact numbers agree.

Two models of the same twenty measurements: a mean that is zero, and a mean with a prior of width 2.
"""

# %%
import jax
import jax.numpy as jnp
from matplotlib import pyplot as plt
import numpy as np
from scipy import stats

import numpyro
import numpyro.distributions as dist

from numpyro_dais import DAIS, compare

y = jnp.asarray(stats.norm.ppf((np.arange(20) + 0.5) / 20) + 0.45, jnp.float32)


def no_effect(y):
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 0.5))
    numpyro.sample("y", dist.Normal(0.0, scale).expand(y.shape).to_event(1), obs=y)


def effect(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 2.0))
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 0.5))
    numpyro.sample("y", dist.Normal(mean, scale).expand(y.shape).to_event(1), obs=y)


evidences = {
    "no effect": DAIS(no_effect).log_evidence(jax.random.key(0), y),
    "effect": DAIS(effect).log_evidence(jax.random.key(1), y),
}
comparison = compare(evidences, prior_sensitivity=["mean"])
print(comparison)

# %%
# The second table has the log Bayes factors with priors of ``mean`` that are 1/4 to 4 times as wide. No
# model ran again: the particles were given new weights. Given ``scale``, all is Gaussian, so a
# one-dimensional integral says what is right.

nodes = np.exp(np.linspace(-2.5, 2.5, 2001))
values = np.asarray(y, float)


def exact(width):
    """The log evidence with a prior of this width; 0 is no effect."""
    variance = nodes**2
    shared = len(values) * width**2 / (variance + len(values) * width**2)
    square = np.sum(values**2) - shared * np.sum(values) ** 2 / len(values)
    log_likelihood = -0.5 * (
        square / variance + len(values) * np.log(2 * np.pi * variance) - np.log1p(-shared)
    )
    prior = stats.lognorm(0.5).pdf(nodes)
    return np.log(np.trapezoid(np.exp(log_likelihood) * prior, nodes))


sensitivity = comparison.sensitivity
column = comparison.names.index("effect")
reference = comparison.names.index("no effect")
ours = sensitivity.log_evidence[:, column] - sensitivity.log_evidence[:, reference]
errors = np.hypot(sensitivity.standard_error[:, column], sensitivity.standard_error[:, reference])
truth = np.array([exact(2.0 * scale) - exact(0.0) for scale in sensitivity.scales])
for scale, value, error, right in zip(sensitivity.scales, ours, errors, truth, strict=True):
    print(
        f"width {2 * scale:3.1f}: log Bayes factor {value:+.3f} ± {error:.3f}, exact {right:+.3f}"
    )
assert np.all(np.abs(ours - truth) < 5 * errors)
assert truth.min() < 0 < truth.max()

# %%
# The sign of the answer changes with the width of the prior, while the posterior of the mean hardly
# moves. So report the Bayes factor together with this picture.

figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
grid = np.geomspace(0.3, 12, 100)
axes.semilogx(grid, [exact(width) - exact(0.0) for width in grid], color="#56b4e9", label="exact")
axes.errorbar(2 * sensitivity.scales, ours, 2 * errors, fmt="o", color="#0072b2", label="compare")
axes.axhline(0, color="gray", linewidth=0.8)
axes.set(xlabel="width of the prior of the mean", ylabel="log Bayes factor for an effect")
axes.legend(frameon=False)
axes.xaxis.set_major_formatter("{x:g}")
axes.spines[["top", "right"]].set_visible(False)
