# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""What the VAE scripts share: the model and its guide, the objectives, training and checkpoints."""

from collections.abc import Callable
import json
import os
from pathlib import Path
from typing import Any, NamedTuple
import zipfile

from flax import nnx
import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import optax
from tqdm.auto import tqdm
from vae_data import binarise

import numpyro
from numpyro import handlers
from numpyro.contrib.module import nnx_module
import numpyro.distributions as dist
from numpyro.infer import SVI, RenyiELBO, Trace_ELBO
from numpyro.infer.elbo import ELBO

from numpyro_dais import DAVI

__all__ = [
    "DAMPING",
    "OBJECTIVES",
    "PLATE",
    "Checkpoint",
    "Config",
    "Vae",
    "clipped",
    "decode",
    "encode",
    "load_checkpoint",
    "make_loss",
    "make_svi",
    "make_vae",
    "mean_bound",
    "save_checkpoint",
    "start",
    "train",
]

OBJECTIVES = ("vae", "iwae", "davi", "davi-adapt")
PLATE = "images"
DAMPING = 0.9
_DECAY, _DECAY_EPOCHS = 0.8, 100
# Of a gradient, per image of a batch: usual ones have 50, the largest about 1,000, and one of 100,000, after a chain
# has exploded, would spoil Adam's scales for the rest of training.
_MAX_NORM = 2000.0
_BAR_EVERY = 10  # steps


class Config(NamedTuple):
    """
    All that training depends on, beside the number of epochs: equal configurations give equal parameters.

    :param num_steps: :math:`K` of DAVI; 0 for the others.
    :param num_particles: :math:`S`.
    :param step_size: of DAVI; 0 for the others.
    """

    data: str = "digits"
    num_pixels: int = 64
    num_train: int = 1500
    objective: str = "vae"
    num_steps: int = 0
    num_particles: int = 1
    step_size: float = 0.0
    num_latents: int = 50
    num_hidden: int = 200
    batch_size: int = 100
    learning_rate: float = 1e-3
    seed: int = 0


class Vae(NamedTuple):
    """
    A variational autoencoder: a model and a guide of binary images ``[num_images, num_pixels]``.

    Both open the plate ``"images"`` around all of their sites, so that every image has its own weight.
    """

    model: Callable
    guide: Callable


def make_vae(config: Config) -> Vae:
    """Returns the autoencoder, whose networks start at draws with the seed."""
    rngs = nnx.Rngs(config.seed)
    num_latents, hidden, num_pixels = config.num_latents, config.num_hidden, config.num_pixels
    decoder_network = _network(rngs, num_latents, hidden, num_pixels)
    encoder_network = _network(rngs, num_pixels, hidden, 2 * num_latents)

    def model(images: jax.Array) -> None:
        decoder = nnx_module("decoder", decoder_network)
        with numpyro.plate(PLATE, len(images)):
            z = numpyro.sample("z", dist.Normal(jnp.zeros(num_latents), 1.0).to_event(1))
            numpyro.sample("x", dist.Bernoulli(logits=decoder(z)).to_event(1), obs=images)

    def guide(images: jax.Array) -> None:
        encoder = nnx_module("encoder", encoder_network)
        with numpyro.plate(PLATE, len(images)):
            loc, log_scale = jnp.split(encoder(images), 2, axis=-1)
            numpyro.sample("z", dist.Normal(loc, jnp.exp(log_scale)).to_event(1))

    return Vae(model, guide)


def _network(rngs: nnx.Rngs, num_inputs: int, num_hidden: int, num_outputs: int) -> nnx.Module:
    return nnx.Sequential(
        nnx.Linear(num_inputs, num_hidden, rngs=rngs),
        jnp.tanh,
        nnx.Linear(num_hidden, num_hidden, rngs=rngs),
        jnp.tanh,
        nnx.Linear(num_hidden, num_outputs, rngs=rngs),
    )


def make_loss(config: Config) -> ELBO:
    """
    Returns the loss of an objective: NumPyro's own for the VAE and for IWAE.

    ``RenyiELBO`` looks at the plates of the model only, and is right for IWAE here since the guide has the
    same one; it agrees with ``DAVI(num_steps=0)``, which looks at both.
    """
    if config.objective == "vae":
        return Trace_ELBO(num_particles=config.num_particles)
    if config.objective == "iwae":
        return RenyiELBO(alpha=0.0, num_particles=config.num_particles)
    return DAVI(
        num_steps=config.num_steps,
        num_particles=config.num_particles,
        step_size=config.step_size,
        damping=DAMPING,
        learn=("schedule",) if config.objective == "davi-adapt" else (),
        # Little to store and little to recompute: see benchmarks/vae_speed.py.
        memory="products",
    )


def make_svi(config: Config) -> SVI:
    """Returns an SVI of the autoencoder with the paper's optimiser, guarded against outliers."""
    vae, loss = make_vae(config), make_loss(config)
    steps_per_epoch = config.num_train // config.batch_size
    schedule = optax.exponential_decay(
        config.learning_rate, _DECAY_EPOCHS * steps_per_epoch, _DECAY, staircase=True
    )
    guide = loss.guide(vae.guide) if isinstance(loss, DAVI) else vae.guide
    optimiser = clipped(optax.adam(schedule), _MAX_NORM * config.batch_size)
    return SVI(vae.model, guide, optimiser, loss)


def clipped(
    optimiser: optax.GradientTransformation, max_norm: float
) -> optax.GradientTransformation:
    """Returns an optimiser, with the same state, that shrinks gradients with a norm above ``max_norm`` to it."""
    clip = optax.clip_by_global_norm(max_norm)

    def update(gradient: Any, state: Any, params: Any = None) -> Any:
        gradient, _ = clip.update(gradient, optax.EmptyState())
        return optimiser.update(gradient, state, params)

    return optax.GradientTransformation(optimiser.init, update)


class Checkpoint(NamedTuple):
    """A state of training: with it, training goes on as if it had never stopped."""

    config: Config
    epoch: int
    state: Any
    svi: SVI

    @property
    def params(self) -> dict[str, Any]:
        return self.svi.get_params(self.state)


def start(config: Config) -> Checkpoint:
    """Returns the state before the first epoch."""
    if not 0 < config.batch_size <= config.num_train:
        raise ValueError(
            f"--batch-size must be from 1 to the number of training images, {config.num_train}; got "
            f"{config.batch_size}."
        )
    svi = make_svi(config)
    images = jnp.zeros((config.batch_size, config.num_pixels))
    # Compiled in one piece: run one by one, the operations of an initialisation take seconds.
    state = jax.jit(svi.init)(random.key(config.seed), images)
    return Checkpoint(config, 0, state, svi)


def train(
    checkpoint: Checkpoint,
    grey: np.ndarray,
    num_epochs: int,
    on_epoch: Callable[[Checkpoint], None] = lambda _: None,
    progress_bar: bool = True,
) -> tuple[Checkpoint, list[float]]:
    """
    Returns the state after ``num_epochs`` epochs in all, and the mean bound per image of each new one.

    :param checkpoint: where to go on.
    :param grey: grey values of the images to fit; pixels are drawn anew for each batch.
    :param num_epochs: how many epochs there will have been at the end.
    :param on_epoch: called after each epoch.
    :param progress_bar: whether to show a progress bar with the bound.
    """
    config, svi = checkpoint.config, checkpoint.svi
    images = jnp.asarray(grey)
    steps_per_epoch = len(grey) // config.batch_size

    @jax.jit
    def step(state: Any, rng_key: jax.Array, images: jax.Array, rows: jax.Array) -> Any:
        state, loss = svi.stable_update(state, binarise(rng_key, images[rows]))
        return state, -loss / len(rows)

    bounds: list[float] = []
    for epoch in range(checkpoint.epoch, num_epochs):
        # A key of the epoch's number, not one handed on: what is drawn does not depend on where we began.
        epoch_key = random.fold_in(random.key(config.seed), epoch)
        order_key, pixel_key = random.split(epoch_key)
        order = random.permutation(order_key, len(grey))[: steps_per_epoch * config.batch_size]
        state, running = checkpoint.state, []
        bar = tqdm(
            order.reshape(steps_per_epoch, -1),
            desc=f"{config.objective}, epoch {epoch + 1}/{num_epochs}",
            disable=not progress_bar,
            leave=epoch + 1 == num_epochs,
        )
        for index, rows in enumerate(bar):
            state, bound = step(state, random.fold_in(pixel_key, index), images, rows)
            running.append(bound)
            if index % _BAR_EVERY == 0:
                bar.set_postfix(bound=f"{np.mean(running[-100:]):.2f}")
        checkpoint = checkpoint._replace(epoch=epoch + 1, state=state)
        bounds.append(float(np.mean(running)))
        on_epoch(checkpoint)
    return checkpoint, bounds


def mean_bound(checkpoint: Checkpoint, images: jax.Array, rng_key: jax.Array) -> float:
    """Returns the bound that was trained, per image, on binary images; in batches, the last one shorter."""
    svi, params = checkpoint.svi, checkpoint.params

    @jax.jit
    def loss(rng_key: jax.Array, batch: jax.Array) -> jax.Array:
        return svi.loss.loss(rng_key, params, svi.model, svi.guide, batch)

    total, size = 0.0, checkpoint.config.batch_size
    for index, begin in enumerate(range(0, len(images), size)):
        total -= float(loss(random.fold_in(rng_key, index), images[begin : begin + size]))
    return total / len(images)


def decode(checkpoint: Checkpoint, z: jax.Array) -> jax.Array:
    """Returns the decoder's probabilities of white pixels at latent vectors."""
    data = {**checkpoint.params, "z": z}
    model = handlers.substitute(checkpoint.svi.model, data=data)
    images = jnp.zeros((len(z), checkpoint.config.num_pixels))
    return handlers.trace(model).get_trace(images)["x"]["fn"].mean


def encode(checkpoint: Checkpoint, images: jax.Array) -> jax.Array:
    """Returns the mean of the guide's latent vectors of binary images."""
    guide = handlers.seed(handlers.substitute(checkpoint.svi.guide, checkpoint.params), 0)
    return handlers.trace(guide).get_trace(images)["z"]["fn"].mean


def save_checkpoint(path: str | Path, checkpoint: Checkpoint) -> None:
    """Writes a checkpoint as one ``npz`` file, all of it or, if interrupted, nothing."""
    header = {"config": checkpoint.config._asdict(), "epoch": checkpoint.epoch}
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    with open(partial, "wb") as file:
        np.savez(file, header=json.dumps(header), **_leaves(checkpoint.state))
    os.replace(partial, path)


def load_checkpoint(path: str | Path, expected: Config | None = None) -> Checkpoint:
    """
    Returns a checkpoint, or raises an error if it cannot be what is asked for.

    :param path: of the file.
    :param expected: the configuration to go on with; any if left out.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"There is no checkpoint {path}. Train first, without --resume.")
    try:
        with open(path, "rb") as file, np.load(file) as archive:
            arrays = dict(archive)
        header = json.loads(str(arrays.pop("header")))
        config = Config(**header["config"])
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{path} is not a checkpoint of these scripts, or was cut short ({error}). Delete it and train again."
        ) from error
    if expected is not None and config != expected:
        there, here = config._asdict(), expected._asdict()
        changes = [f"{k}={there[k]!r} and not {here[k]!r}" for k in there if there[k] != here[k]]
        raise ValueError(
            f"The checkpoint {path} was made with {', '.join(changes)}. Give the arguments that it was made "
            "with, or another --checkpoint."
        )
    begin = start(config)
    leaves = _leaves(begin.state)
    shapes = {name: leaf.shape for name, leaf in leaves.items()}
    if shapes != {name: leaf.shape for name, leaf in arrays.items()}:
        raise ValueError(
            f"The arrays in {path} are not those of the network that its header describes: it was made by "
            "another version of these scripts. Train again."
        )
    treedef = jax.tree.structure(begin.state)
    old = [
        random.wrap_key_data(arrays[name]) if _is_key(leaf) else jnp.asarray(arrays[name])
        for name, leaf in zip(leaves, jax.tree.leaves(begin.state), strict=True)
    ]
    return begin._replace(epoch=header["epoch"], state=jax.tree.unflatten(treedef, old))


def _leaves(state: Any) -> dict[str, np.ndarray]:
    """The arrays of a state, by where they are in it."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    return {
        jax.tree_util.keystr(path): np.asarray(random.key_data(leaf) if _is_key(leaf) else leaf)
        for path, leaf in leaves
    }


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
