# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

r"""
A funnel, its warning, and what to do
=====================================

**The claim:** on a target that is hard for a method, the result says so: importance sampling from the
start and a short chain warn, and their error bars are not to be trusted. DAIS that tunes itself, with the
larger budget that its own warning asks for, fits the funnel, is right, and says nothing.

Neal's funnel: a log scale :math:`v` and nine values whose width it sets. Most of its mass is in a neck
that is a hundred times narrower than its mouth. The normalising constant is one, so its logarithm is 0.
"""

# %%
import warnings

import jax
import jax.numpy as jnp
from matplotlib import pyplot as plt
import numpy as np

import numpyro.distributions as dist

from numpyro_dais import DAIS, ImportanceSampling


def minus_log_density(u):
    log_density = dist.Normal(0.0, 3.0).log_prob(u[0])
    return -(log_density + dist.Normal(0.0, jnp.exp(u[0] / 2)).log_prob(u[1:]).sum())


start = dist.Normal(0.0, 2.0).expand([10]).to_event(1)
problem = {"potential_fn": minus_log_density, "start": start}

# %%
# Three ways of increasing care. (With the default budget of 100,000 gradients the last one warns as well,
# although it is right: "use a larger budget=".) Warnings of Python are put aside here, since ``print`` shows them too.

runs = {
    "importance sampling": ImportanceSampling(**problem, num_particles=20_000),
    "a short chain": DAIS(**problem, num_steps=32, step_size=0.3, num_particles=600),
    "DAIS, a larger budget": DAIS(**problem, budget=300_000),
}
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    evidences = {name: run.log_evidence(jax.random.key(1)) for name, run in runs.items()}
for name, evidence in evidences.items():
    print(f"{name}\n{evidence}\n")

assert evidences["importance sampling"].warnings
assert evidences["a short chain"].warnings
best = evidences["DAIS, a larger budget"]
assert abs(float(best)) < 5 * best.standard_error
assert not best.warnings
assert best.standard_error < 0.01

# %%
# What k-hat means
# ----------------
#
# The estimate is a mean of weights. If their tail is heavy, a few large ones decide, and the largest of
# all may not have been met: the estimate is then too low, and so is its error bar. k-hat is the shape of
# that tail; below 0.5 all is well, from 0.7 on do not trust the error, above 1 not even the mean exists.

figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
colors = ["#d55e00", "#e69f00", "#0072b2"]
for (name, evidence), color in zip(evidences.items(), colors, strict=True):
    weights = np.sort(np.asarray(evidence.log_weights, float))[::-1]
    share = np.exp(weights - np.logaddexp.reduce(weights))
    label = f"{name} (k-hat {evidence.khat:.2f})"
    axes.loglog(np.arange(len(share)) + 1, share, color=color, label=label)
axes.set(ylim=(1e-8, 1), xlabel="rank of the weight", ylabel="share of the sum of weights")
axes.legend(frameon=False, loc="lower left")
axes.spines[["top", "right"]].set_visible(False)

# %%
# The neck, as the draws of the last run have it; dashed are two standard deviations either side.

# sphinx_gallery_thumbnail_number = 2
draws = np.asarray(best.samples(jax.random.key(2), 4000))
figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
axes.plot(draws[:, 1], draws[:, 0], ".", markersize=2, color="#0072b2")
v = np.linspace(-9, 6, 200)
for side in (-2, 2):
    axes.plot(side * np.exp(v / 2), v, "--", color="#d55e00", linewidth=1)
axes.set(xlim=(-25, 25), ylim=(-9, 7), xlabel="$u_1$", ylabel="log scale $v$")
axes.spines[["top", "right"]].set_visible(False)

# %%
# What to do
# ----------
#
# In this order: leave the settings out, so that DAIS tunes itself; give a larger ``budget=``; write the
# model in other coordinates (non-centred); start at a fitted guide (``guide=``). See :doc:`/reading`.
