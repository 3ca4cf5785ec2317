# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

r"""
A log-Gaussian Cox process
==========================

**The claim:** the evidence of a point process with 256 correlated latent values agrees with that of an
independent long run (491.81 ± 0.02), in less than a minute.

126 young pines stand in a Finnish forest. The unit square is cut into 16 by 16 cells, and the logarithm
of the intensity is a Gaussian process. With 40 by 40 cells, 1,600 latents, the same is done by
``python benchmarks/dimension.py --data DIRECTORY --results FILE``; see :doc:`/benchmarks`.
"""

# %%
from pathlib import Path

import jax
import jax.numpy as jnp
from matplotlib import pyplot as plt
import numpy as np

import numpyro
import numpyro.distributions as dist

from numpyro_dais import DAIS

numpyro.enable_x64()
SIDE = 16
points = np.loadtxt(Path("..") / "data" / "pines.csv", delimiter=",", skiprows=1)
cells = np.minimum((points * SIDE).astype(int), SIDE - 1)
counts = np.zeros((SIDE, SIDE))
np.add.at(counts, tuple(cells.T), 1)
places = np.stack(np.indices((SIDE, SIDE)), axis=-1).reshape(-1, 2)
distances = np.linalg.norm(places[:, None] - places, axis=-1)
covariance = 1.91 * np.exp(-33 * distances / SIDE)
factor = np.linalg.cholesky(covariance)
mean = np.log(126) - 1.91 / 2


def cox_process(counts):
    e = numpyro.sample("e", dist.Normal(0.0, 1.0).expand([SIDE**2]).to_event(1))
    f = numpyro.deterministic("f", mean + factor @ e)
    # Poisson, but for the log factorials of the counts, which no parameter enters.
    numpyro.factor("counts", jnp.sum(f * counts - jnp.exp(f) / SIDE**2))


evidence = DAIS(cox_process, target_error=0.02).log_evidence(jax.random.key(0), counts.ravel())
print(evidence)
assert abs(float(evidence) - 491.81) < 5 * np.hypot(evidence.standard_error, 0.02)
assert evidence.standard_error < 0.05

# %%
# The posterior mean of the intensity, from all particles by their weights, and its uncertainty.


def moments(draw):
    intensity = jnp.exp(mean + factor @ draw["e"])
    return jnp.stack([intensity, intensity**2])


first, second = np.asarray(evidence.expectation(moments)[0]).reshape(2, SIDE, SIDE)
figure, axes = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
images = {"posterior mean": first, "standard deviation": np.sqrt(second - first**2)}
for ax, (title, image) in zip(axes, images.items(), strict=True):
    shown = ax.imshow(image.T, origin="lower", extent=(0, 1, 0, 1), cmap="viridis")
    ax.plot(*points.T, ".", color="white", markersize=4, markeredgecolor="black")
    ax.set(title=f"Intensity: {title}", xticks=[], yticks=[])
    figure.colorbar(shown, ax=ax, shrink=0.8)
assert abs(first.mean() - 126) < 15  # as many trees as there are
