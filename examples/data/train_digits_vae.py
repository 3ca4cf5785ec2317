# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Trains the variational autoencoder whose weights are ``digits_vae.npz``, a minute on two cores:

    python examples/data/train_digits_vae.py

The networks are those of ``examples/gallery/plot_12_vae.py``; the images are scikit-learn's digits but for the last
297, which the page evaluates.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

import numpyro
import numpyro.distributions as dist
from numpyro.infer import SVI, Trace_ELBO

SHAPES = {"d0": (9, 64), "d1": (65, 64), "e0": (65, 64), "e1": (65, 16)}
NUM_TRAIN, BATCH, NUM_ITERATIONS = 1500, 100, 6000


def layer(weights, x):
    """An affine map; the last row of the weights is the bias."""
    return x @ weights[:-1] + weights[-1]


def weights_of():
    rng = np.random.default_rng(0)
    return {
        name: numpyro.param(name, rng.normal(0, shape[0] ** -0.5, shape))
        for name, shape in SHAPES.items()
    }


def model(images):
    w = weights_of()
    with numpyro.plate("images", len(images)):
        z = numpyro.sample("z", dist.Normal(jnp.zeros(8), 1.0).to_event(1))
        logits = layer(w["d1"], jnp.tanh(layer(w["d0"], z)))
        numpyro.sample("x", dist.Bernoulli(logits=logits).to_event(1), obs=images)


def guide(images):
    w = weights_of()
    with numpyro.plate("images", len(images)):
        loc, log_scale = jnp.split(layer(w["e1"], jnp.tanh(layer(w["e0"], images))), 2, axis=-1)
        numpyro.sample("z", dist.Normal(loc, jnp.exp(log_scale)).to_event(1))


def main():
    images = jnp.asarray((load_digits().data > 7).astype(np.float32))[:NUM_TRAIN]
    svi = SVI(
        model, guide, optax.adam(optax.cosine_decay_schedule(3e-3, NUM_ITERATIONS)), Trace_ELBO()
    )
    state = svi.init(jax.random.key(0), images[:BATCH])

    def step(state, key):
        rows = jax.random.choice(key, NUM_TRAIN, (BATCH,))
        return svi.update(state, images[rows])

    keys = jax.random.split(jax.random.key(1), NUM_ITERATIONS)
    state, losses = jax.jit(lambda state: jax.lax.scan(step, state, keys))(state)
    print(f"ELBO per training image: {-float(losses[-200:].mean()) / BATCH:.2f}")
    params = {name: np.asarray(value, np.float16) for name, value in svi.get_params(state).items()}
    np.savez_compressed(Path(__file__).with_name("digits_vae.npz"), **params)


if __name__ == "__main__":
    main()
