# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

r"""
How good is this variational autoencoder?
=========================================

**The claim:** the ELBO of a trained autoencoder, and the bound of importance weighting, understate the
likelihood of its test images. DAIS from the encoder gives each image a tighter bound of its own, in one
run, and a sandwich on images that the model has drawn itself says how far from the truth it may be.

The weights are stored; ``python examples/data/train_digits_vae.py`` has trained them.
"""

# %%
from pathlib import Path
import warnings

import jax
import jax.numpy as jnp
from matplotlib import pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import numpyro
import numpyro.distributions as dist

from numpyro_dais import DAIS

weights = {
    k: jnp.asarray(v, jnp.float32)
    for k, v in np.load(Path("..") / "data" / "digits_vae.npz").items()
}
images = jnp.asarray((load_digits().data[1500:1700] > 7).astype(np.float32))


def layer(name, x):
    return x @ weights[name][:-1] + weights[name][-1]


def model(images):
    with numpyro.plate("images", len(images)):
        z = numpyro.sample("z", dist.Normal(jnp.zeros(8), 1.0).to_event(1))
        logits = layer("d1", jnp.tanh(layer("d0", z)))
        numpyro.sample("x", dist.Bernoulli(logits=logits).to_event(1), obs=images)


def guide(images):
    with numpyro.plate("images", len(images)):
        loc, log_scale = jnp.split(layer("e1", jnp.tanh(layer("e0", images))), 2, axis=-1)
        numpyro.sample("z", dist.Normal(loc, jnp.exp(log_scale)).to_event(1))


# %%
# With ``num_steps=0`` the chains have no steps: the mean of the log weights is the ELBO, and the log of
# their mean the bound of importance weighting.

results, sizes = {}, (0, 10, 100)
for num_steps in sizes:
    estimator = DAIS(
        model,
        guide=guide,
        guide_params={},
        plate="images",
        num_steps=num_steps,
        num_particles=16,
        **({"step_size": 0.25 * (num_steps / 10) ** -0.25, "damping": 0.9} if num_steps else {}),
    )
    with warnings.catch_warnings():  # the encoder is a poor fit to some images: that is the point
        warnings.simplefilter("ignore")
        results[num_steps] = estimator.log_evidence(jax.random.key(0), images)

elbo = float(results[0].lower_bound.mean())
bounds = {num_steps: float(result.log_evidence.mean()) for num_steps, result in results.items()}
print(f"nats per test image: ELBO {elbo:.2f}, importance weighting (16) {bounds[0]:.2f}")
print(f"DAIS with 10 steps {bounds[10]:.2f}, with 100 steps {bounds[100]:.2f}")
assert elbo < bounds[0] < bounds[10] < bounds[100] + 0.02
assert bounds[100] > elbo + 0.3

# %%
# How far is it to the truth? On images drawn from the model, bounds from both sides:

certificate = estimator.certify(jax.random.key(1), images, num_datasets=3)
print(certificate)
assert -0.05 < certificate.gap < 1.0

# %%
# Which images gain most: those that the encoder reads worst.

gain = np.asarray(results[100].log_evidence - results[0].lower_bound)
order = np.argsort(gain)
figure, axes = plt.subplots(2, 8, figsize=(8.5, 2.8), layout="constrained")
for row, which in zip(axes, (order[:8], order[-8:]), strict=True):
    for ax, index in zip(row, which, strict=True):
        ax.imshow(np.asarray(images[index]).reshape(8, 8), cmap="gray_r")
        ax.set(xticks=[], yticks=[], title=f"{gain[index]:+.1f}")
axes[0, 0].set_ylabel("least")
axes[1, 0].set_ylabel("most")
figure.suptitle("Nats above the ELBO, by image")

# %%
# The full study, on MNIST, with autoencoders that are trained with DAVI, is on :doc:`/vae`.
