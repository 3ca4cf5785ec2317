# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""The log-likelihood of images under a trained autoencoder: estimators, their steps, and a file of results."""

from collections.abc import Callable
from functools import cache
import hashlib
import json
from pathlib import Path
from typing import Any

import jax
from jax import random
from jax.nn import logsumexp
import jax.numpy as jnp
import numpy as np
from vae_common import DAMPING, PLATE, Checkpoint, Vae, decode
from vae_data import binarise

from numpyro_dais import AIS, DAIS, HAIS, ImportanceSampling

__all__ = [
    "METHODS",
    "Programs",
    "Results",
    "fingerprint",
    "make_estimator",
    "num_tuned_updates",
    "simulate",
    "step_size_at",
    "tune",
]

METHODS = ("IS", "AIS", "HAIS", "DAIS")
NUM_LEAPFROG = 10  # of AIS
TUNED_STEPS = 10
STEP_SIZES = (0.02, 0.04, 0.06, 0.08, 0.1, 0.13, 0.16, 0.2)
SAMPLES_AT_ONCE = 200
SAMPLES_PER_UPDATE = 2  # a gradient runs the decoder forward and back, a sample forward only


def make_estimator(
    vae: Vae, params: dict, method: str, num_updates: int, num_particles: int, step_size: Any
) -> Any:
    """
    Returns an estimator of the likelihood of each image, from draws of the encoder.

    :param vae: the autoencoder.
    :param params: its parameters.
    :param method: of ``METHODS``.
    :param num_updates: gradient updates of a particle; importance sampling, which has none, draws two samples
        instead of each, for the same work.
    :param num_particles: how many particles.
    :param step_size: of the leapfrog steps.
    """
    common = {"guide": vae.guide, "guide_params": params, "params": params, "plate": PLATE}
    if method == "IS":
        num_samples = SAMPLES_PER_UPDATE * num_particles * num_updates
        return ImportanceSampling(
            vae.model, num_particles=num_samples, chunk_size=SAMPLES_AT_ONCE, **common
        )
    common |= {"num_particles": num_particles, "step_size": step_size}
    if method == "AIS":
        num_leapfrog = min(NUM_LEAPFROG, num_updates)
        num_steps = num_updates // num_leapfrog
        return AIS(vae.model, num_steps=num_steps, num_leapfrog=num_leapfrog, **common)
    kind = {"HAIS": HAIS, "DAIS": DAIS}[method]
    return kind(vae.model, num_steps=num_updates, damping=DAMPING, **common)


class Programs:
    """
    Compiled estimates, each made when it is first asked for; they serve all models of one architecture.

    :param vae: the autoencoder.
    :param num_particles: of each estimate.
    """

    def __init__(self, vae: Vae, num_particles: int) -> None:
        self.vae = vae
        self.num_particles = num_particles
        self.log_likelihood = cache(self._log_likelihood)
        self.sandwich = cache(self._sandwich)

    def _log_likelihood(self, method: str, num_updates: int) -> Callable:
        """The log-likelihood of each image, from a key, parameters, a step size and the images."""

        @jax.jit
        def log_likelihood(rng_key, params, step_size, images):
            estimator = self._estimator(params, method, num_updates, step_size)
            return estimator.log_evidence(rng_key, images).log_evidence

        return log_likelihood

    def _sandwich(self, method: str, num_updates: int) -> Callable:
        """
        A lower and an upper bound in expectation, ``[2, num_images]``, from the same and the latent vectors
        that the images were drawn with.
        """

        @jax.jit
        def sandwich(rng_key, params, step_size, images, z):
            estimator = self._estimator(params, method, num_updates, step_size)
            # Two chains from the one exact draw that there is.
            draws = {"z": jnp.stack([z, z])}
            evidence = estimator.sandwich(rng_key, images, posterior_samples=draws)
            lower = logsumexp(evidence.log_weights, axis=0) - jnp.log(self.num_particles)
            return jnp.stack([lower, evidence.upper_bound])

        return sandwich

    def _estimator(self, params: dict, method: str, num_updates: int, step_size: Any) -> Any:
        return make_estimator(self.vae, params, method, num_updates, self.num_particles, step_size)


def num_tuned_updates(method: str) -> int:
    """Returns the gradient updates of the ten temperatures at which the step size is chosen."""
    return TUNED_STEPS * (NUM_LEAPFROG if method == "AIS" else 1)


def tune(programs: Programs, method: str, params: dict, images: jax.Array) -> float:
    """Returns the step size for ten temperatures with the highest mean estimate on some images."""
    program = programs.log_likelihood(method, num_tuned_updates(method))
    means = [
        np.mean(program(random.key(7), params, jnp.asarray(step_size), images))
        for step_size in STEP_SIZES
    ]
    return STEP_SIZES[int(np.nanargmax(means))]


def step_size_at(method: str, tuned: float, num_updates: int) -> jax.Array:
    """Returns the step size for more updates: the decisions of AIS correct it, others have to shrink it."""
    shrinkage = 1.0 if method == "AIS" else (num_updates / TUNED_STEPS) ** -0.25
    return jnp.asarray(shrinkage * tuned)


def simulate(checkpoint: Checkpoint, rng_key: jax.Array, num_images: int) -> Any:
    """Returns images that the model has drawn, and the latent vectors behind them."""
    latent_key, pixel_key = random.split(rng_key)
    z = random.normal(latent_key, (num_images, checkpoint.config.num_latents))
    return binarise(pixel_key, decode(checkpoint, z)), z


class Results:
    """
    Arrays by name in a file, a line for each as soon as it is known.

    :param path: of the file; what is in it already is not computed again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.known: dict[str, Any] = {}
        if path.is_file():
            # An interrupted run may have cut the last line short.
            text = path.read_text(encoding="utf-8")
            lines = text[: text.rfind("\n") + 1].splitlines()
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            self.known = dict(json.loads(line) for line in lines)

    def get(self, name: str, compute: Callable[[], Any]) -> np.ndarray:
        """Returns the array of that name, computed if need be."""
        if name not in self.known:
            self.known[name] = np.asarray(compute(), np.float64).tolist()
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps([name, self.known[name]]) + "\n")
        return np.asarray(self.known[name])


def fingerprint(*trees: Any) -> str:
    """A short name of arrays: results in a file belong to these and to no others."""
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(trees):
        digest.update(np.ascontiguousarray(leaf).tobytes())
    return digest.hexdigest()[:12]
