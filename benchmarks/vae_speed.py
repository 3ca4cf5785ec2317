# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Speed: what annealing costs in training and in evaluating an autoencoder
=========================================================================

Prints two ratios, for the autoencoder of ``examples/vae/vae.py`` on images of 28 x 28 pixels:

- training: an SVI step with DAVI (K = 10, S = 5) over one with IWAE and 50 samples, both of which run the decoder
  50 times per image. A leapfrog step needs a gradient, and training the gradient of that: four products of matrices
  per layer where IWAE has two, so that 2 is what arithmetic allows. The goal is 2.5.
- evaluation: DAIS on 1,000 images with K = 100, S = 16 over the bare gradients of the decoder's log density that it
  needs, in a loop that carries each gradient into the next position. The goal is 1.3.

A profile of the training step says where its time goes, and undoes one after another what makes it fast:

- for the backward pass the products of matrices are kept and the rest is recomputed (``memory="products"``): to
  keep all costs more, in traffic and page faults, than to compute the cheap part again;
- the encoder runs once for a batch, not at every step;
- the gradients of all particles and of all images come from one call, hence from products of large matrices.

The programs are compiled before, run in turn, and the shortest of the repeats counts.

    python benchmarks/vae_speed.py
"""

import argparse
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
import sys
import time
from typing import Any, NamedTuple
from unittest import mock

import jax
from jax import lax, random
import jax.numpy as jnp
import optax

from numpyro import handlers
from numpyro.infer import SVI, RenyiELBO, Trace_ELBO
from numpyro.infer.util import log_density

from numpyro_dais import DAIS, DAVI
import numpyro_dais.model.guide
import numpyro_dais.vi.davi

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "vae"))
from vae_common import PLATE, Config, Vae, make_vae

CHUNK = 100  # images at a time in evaluation


class Times(NamedTuple):
    """Milliseconds on the clock, and of all cores together, which other programs on them change little."""

    wall: float
    cpu: float


def measure(runs: dict[str, Callable[[], Any]], num_repeats: int) -> dict[str, Times]:
    """The time of each run, the shortest of several: in turns, so that all meet the same load."""
    times: dict[str, list[Times]] = {name: [] for name in runs}
    for repeat in range(num_repeats + 1):  # the first compiles
        for name, run in runs.items():
            wall, cpu = time.perf_counter(), time.process_time()
            jax.block_until_ready(run())
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            if repeat:
                times[name].append(Times(1000 * wall, 1000 * cpu))
    return {name: Times(*map(min, zip(*values, strict=True))) for name, values in times.items()}


class OneByOne(DAVI):
    """The loss of one image after another, as if there were no plate."""

    def loss_with_mutable_state(self, rng_key, param_map, model, guide, images):  # type: ignore
        def of_one(inputs: tuple[jax.Array, jax.Array]) -> jax.Array:
            key, image = inputs
            return super(OneByOne, self).loss_with_mutable_state(
                key, param_map, model, guide, image[None]
            )["loss"]

        losses = lax.map(of_one, (random.split(rng_key, len(images)), images))
        return {"loss": jnp.sum(losses), "mutable_state": None}


def encoder_at_every_step() -> Any:
    """A context in which the library takes every guide for one whose sites depend on each other."""
    return mock.patch.object(numpyro_dais.model.guide, "_depends_on_sites", return_value=True)


def particle_by_particle() -> Any:
    """A context in which the particles of DAVI run one after another."""
    run = partial(numpyro_dais.vi.davi.run_particles, chunk_size=1)
    return mock.patch.object(numpyro_dais.vi.davi, "run_particles", run)


class Variant(NamedTuple):
    """A loss, and the contexts in which its program is made."""

    loss: Any
    contexts: tuple[Callable[[], Any], ...] = ()


def training(vae: Vae, images: jax.Array, args: argparse.Namespace) -> None:
    K, S = args.num_steps, args.num_particles
    iwae = f"IWAE, {K * S} samples"
    make = partial(DAVI, K, S, step_size=0.08)
    davi = make(memory="products")
    variants = {
        "VAE": Variant(Trace_ELBO()),
        iwae: Variant(RenyiELBO(num_particles=K * S)),
        f"DAVI without steps, {K * S} samples": Variant(DAVI(num_steps=0, num_particles=K * S)),
        "DAVI": Variant(davi),
        "DAVI, schedule learned": Variant(make(memory="products", learn=("schedule",))),
        "+ memory: all kept (plain)": Variant(make(memory="plain")),
        "+ memory: nothing kept (default)": Variant(make()),
        "+ memory: reversible": Variant(make(memory="reversible")),
        "+ encoder at every step": Variant(davi, (encoder_at_every_step,)),
        "+ one particle at a time": Variant(davi, (particle_by_particle,)),
        "+ one image at a time": Variant(OneByOne(K, S, step_size=0.08, memory="products")),
        "+ all kept, encoder, particle": Variant(
            make(memory="plain"), (encoder_at_every_step, particle_by_particle)
        ),
    }
    runs: dict[str, Callable[[], Any]] = {}
    for name, (loss, contexts) in variants.items():
        guide = loss.guide(vae.guide) if isinstance(loss, DAVI) else vae.guide
        svi = SVI(vae.model, guide, optax.adam(1e-3), loss)
        state = jax.jit(svi.init)(random.key(1), images)
        with ExitStack() as stack:
            for context in contexts:
                stack.enter_context(context())
            runs[name] = partial(jax.jit(svi.update).lower(state, images).compile(), state, images)
        if name == "DAVI":
            params = svi.get_params(state)
            value = jax.jit(
                lambda key, params, x, loss=loss: loss.loss(key, params, vae.model, vae.guide, x)
            )
            runs["  of which the chains forward"] = partial(value, random.key(2), params, images)
    times = measure(runs, args.num_repeats)
    base, now = times[iwae], times["DAVI"]
    print(f"Training, a step on {len(images)} images (K = {K}, S = {S})")
    print(f"{'':36}{'ms':>9}{'to IWAE':>9}{'CPU ms':>9}{'to IWAE':>9}{'to DAVI':>9}")
    for name, (wall, cpu) in times.items():
        if name.startswith("+ memory: all"):
            print("DAVI without one of its savings, and, last, without three:")
        ratios = f"{wall / base.wall:9.2f}{cpu:9.1f}{cpu / base.cpu:9.2f}{cpu / now.cpu:9.2f}"
        print(f"{name:36}{wall:9.1f}{ratios}")
    wall, cpu = now.wall / base.wall, now.cpu / base.cpu
    print(f"DAVI to IWAE: {wall:.2f}, of CPU time {cpu:.2f} (goal: at most 2.5)\n", flush=True)


def evaluation(vae: Vae, images: jax.Array, args: argparse.Namespace) -> None:
    K, S = args.evaluation_steps, args.evaluation_particles
    num_latents = args.num_latents
    guide_trace = handlers.trace(handlers.seed(vae.guide, 0)).get_trace(images[:2])
    model_trace = handlers.trace(handlers.seed(vae.model, 0)).get_trace(images[:2])
    params = {
        name: site["value"]
        for name, site in {**guide_trace, **model_trace}.items()
        if site["type"] == "param"
    }

    @jax.jit
    def dais(rng_key: jax.Array, params: dict, images: jax.Array) -> jax.Array:
        estimator = DAIS(
            vae.model,
            num_steps=K,
            num_particles=S,
            step_size=0.02,
            damping=0.9,
            guide=vae.guide,
            guide_params=params,
            params=params,
            plate=PLATE,
        )
        return estimator.log_evidence(rng_key, images).log_evidence

    @jax.jit
    def gradients(rng_key: jax.Array, params: dict, images: jax.Array) -> jax.Array:
        def log_joint(z: jax.Array) -> jax.Array:
            return log_density(vae.model, (images,), {}, {**params, "z": z})[0]

        gradient_fn = jax.vmap(jax.grad(log_joint))
        z = random.normal(rng_key, (S, len(images), num_latents))
        return lax.fori_loop(0, K, lambda _, z: z + 1e-4 * gradient_fn(z), z)

    def over_chunks(run: Callable) -> Callable[[], Any]:
        chunks = [images[begin : begin + CHUNK] for begin in range(0, len(images), CHUNK)]
        return lambda: [run(random.key(i), params, chunk) for i, chunk in enumerate(chunks)]

    runs = {"DAIS": over_chunks(dais), "gradients": over_chunks(gradients)}
    dais_time, gradient_time = measure(runs, args.num_repeats).values()
    print(f"Evaluation of {len(images)} images (K = {K}, S = {S})")
    print(f"DAIS {dais_time.wall:.0f} ms, bare gradients {gradient_time.wall:.0f} ms")
    ratios = dais_time.wall / gradient_time.wall, dais_time.cpu / gradient_time.cpu
    print(f"DAIS to gradients: {ratios[0]:.2f}, of CPU time {ratios[1]:.2f} (goal: at most 1.3)")


def main(args: argparse.Namespace) -> None:
    config = Config(num_pixels=784, num_latents=args.num_latents, num_hidden=args.num_hidden)
    vae = make_vae(config)
    # Where the pixels are white does not matter for time; as many as in MNIST are.
    images = random.bernoulli(random.key(0), 0.13, (args.num_images, 784)).astype(jnp.float32)
    training(vae, images[: args.batch_size], args)
    evaluation(vae, images, args)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("--num-steps", type=int, default=10, help="K in training")
    parser.add_argument("--num-particles", type=int, default=5, help="S in training")
    parser.add_argument("--batch-size", type=int, default=100, help="in training")
    parser.add_argument("--num-images", type=int, default=1000, help="in evaluation")
    parser.add_argument("--evaluation-steps", type=int, default=100)
    parser.add_argument("--evaluation-particles", type=int, default=16)
    parser.add_argument("--num-latents", type=int, default=50)
    parser.add_argument("--num-hidden", type=int, default=200)
    parser.add_argument("--num-repeats", type=int, default=5)
    main(parser.parse_args())
