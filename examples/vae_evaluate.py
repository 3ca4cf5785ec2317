# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

r"""
How likely are test images under a trained autoencoder?
========================================================

The negative log-likelihood of models trained by ``vae.py``, estimated per test image from the encoder's draws by

- ``IS``: importance sampling, the bound that IWAE trains;
- ``AIS``: annealed importance sampling, several leapfrog steps and a Metropolis decision per temperature;
- ``HAIS``: Hamiltonian annealed importance sampling, one leapfrog step per temperature;
- ``DAIS``: the same without Metropolis decisions, hence differentiable,

against the number of gradient updates of a particle (Figure 2 of [1], a column for each model). All overestimate
it in expectation. As there, the step size is chosen at K = 10, here by the estimate itself on training images; for
more steps it shrinks as K to the -1/4 (that of AIS, whose decisions correct it, stays).

The claim: at their largest budgets the four agree within their errors, and DAIS is on par with HAIS and AIS at
equal gradients. Beyond the paper, the lower row says how far each is from the truth: on images that the model itself
has drawn, whose latent vectors are exact draws of their posteriors, chains in reverse give bounds from the other
side [2].

    python examples/vae_evaluate.py --checkpoints vae.npz iwae.npz davi.npz --data mnist --data-dir DIRECTORY

Without checkpoints, small models of scikit-learn's digits are trained first. Every piece of the results goes to a file
at once, and a run that was interrupted goes on from there.

**References**

1. *Differentiable Annealed Importance Sampling and the Perils of Gradient Noise*,
   Guodong Zhang, Kyle Hsu, Jianing Li, Chelsea Finn, Roger Grosse (NeurIPS 2021)
2. *Sandwiching the marginal likelihood using bidirectional Monte Carlo*,
   Roger Grosse, Zoubin Ghahramani, Ryan Adams (2015)
3. *On the quantitative analysis of decoder-based generative models*,
   Yuhuai Wu, Yuri Burda, Ruslan Salakhutdinov, Roger Grosse (ICLR 2017)
"""

import argparse
from collections.abc import Callable
from functools import cache
import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax import random
from jax.nn import logsumexp
import jax.numpy as jnp
from matplotlib.figure import Figure
import numpy as np
from tqdm.auto import tqdm
from vae_common import (
    DAMPING,
    PLATE,
    Checkpoint,
    Config,
    Vae,
    decode,
    load_checkpoint,
    make_vae,
    start,
    train,
)
from vae_data import DATA_VARIABLE, binarise, load_images

from numpyro_dais import AIS, DAIS, HAIS, ImportanceSampling

METHODS = ("IS", "AIS", "HAIS", "DAIS")
NUM_LEAPFROG = 10  # of AIS
TUNED_STEPS = 10
STEP_SIZES = (0.02, 0.04, 0.06, 0.08, 0.1, 0.13, 0.16)
SAMPLES_AT_ONCE = 200
STYLES = {"IS": ("C7", "o"), "AIS": ("C0", "s"), "HAIS": ("C2", "^"), "DAIS": ("C3", "D")}


def make_estimator(
    vae: Vae, params: dict, method: str, num_updates: int, num_particles: int, step_size: Any
) -> Any:
    """
    Returns an estimator of the likelihood of each image, from draws of the encoder.

    :param vae: the autoencoder.
    :param params: its parameters.
    :param method: of ``METHODS``.
    :param num_updates: gradient updates of a particle; importance sampling draws as many samples instead.
    :param num_particles: how many particles.
    :param step_size: of the leapfrog steps.
    """
    common = {"guide": vae.guide, "guide_params": params, "params": params, "plate": PLATE}
    if method == "IS":
        num_samples = num_particles * num_updates
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


def tune(log_likelihood: Callable, params: dict, images: jax.Array) -> float:
    """Returns the step size with the highest mean estimate on some images."""
    means = [
        np.mean(log_likelihood(random.key(7), params, jnp.asarray(step_size), images))
        for step_size in STEP_SIZES
    ]
    return STEP_SIZES[int(np.nanargmax(means))]


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


class Study(NamedTuple):
    """
    Results for one model, by method and number of updates.

    :param nll: mean over images of each run, ``[num_runs]``.
    :param bounds: of simulated images, ``[2, num_images]``.
    """

    name: str
    nll: dict[tuple[str, int], np.ndarray]
    bounds: dict[tuple[str, int], np.ndarray]


def fingerprint(*trees: Any) -> str:
    """A short name of arrays: results in a file belong to these and to no others."""
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(trees):
        digest.update(np.ascontiguousarray(leaf).tobytes())
    return digest.hexdigest()[:12]


def evaluate(
    checkpoint: Checkpoint,
    programs: Programs,
    train_images: jax.Array,
    test_images: jax.Array,
    results: Results,
    args: argparse.Namespace,
) -> Study:
    """Returns estimates for one model, of chunks of test images one after another."""
    params = checkpoint.params
    prefix = f"{fingerprint(params, test_images)}/S={args.num_particles}"
    pairs = [(method, num) for num in args.num_updates for method in args.methods]
    name = f"{checkpoint.config.objective}, {checkpoint.epoch} epochs"
    bar = tqdm(total=len(pairs) * (args.num_runs + 1), desc=name)
    tuned = {"IS": 1.0}

    def step_size_of(method: str, num_updates: int) -> jax.Array:
        if method not in tuned:
            program = programs.log_likelihood(method, TUNED_STEPS)
            found = results.get(
                f"{prefix}/{method}/step size", lambda: tune(program, params, train_images)
            )
            tuned[method] = float(found)
        # The decisions of AIS correct its steps.
        shrinkage = 1.0 if method == "AIS" else (num_updates / TUNED_STEPS) ** -0.25
        return jnp.asarray(shrinkage * tuned[method])

    def one_run(method: str, num_updates: int, run: int) -> float:
        values = []
        for begin in range(0, len(test_images), args.chunk_size):

            def compute(begin: int = begin) -> jax.Array:
                key = random.fold_in(random.fold_in(random.key(5), run), begin)
                images = test_images[begin : begin + args.chunk_size]
                program = programs.log_likelihood(method, num_updates)
                return program(key, params, step_size_of(method, num_updates), images)

            piece = f"run {run}/{begin} to {begin + args.chunk_size}"
            values.append(results.get(f"{prefix}/{method}/{num_updates}/{piece}", compute))
        bar.update()
        return -float(np.mean(np.concatenate(values)))

    def both_bounds(method: str, num_updates: int) -> np.ndarray:
        def compute() -> jax.Array:
            images, z = simulate(checkpoint, random.key(3), args.num_simulated)
            program = programs.sandwich(method, num_updates)
            return program(random.key(11), params, step_size_of(method, num_updates), images, z)

        bar.update()
        piece = f"sandwich of {args.num_simulated}"
        return results.get(f"{prefix}/{method}/{num_updates}/{piece}", compute)

    runs = range(args.num_runs)
    nll = {pair: np.array([one_run(*pair, run) for run in runs]) for pair in pairs}
    bounds = {pair: both_bounds(*pair) for pair in pairs if pair[0] != "IS"}
    bar.close()
    return Study(name, nll, bounds)


def print_study(study: Study, args: argparse.Namespace) -> None:
    print(f"\n{study.name}: negative log-likelihood, nats per test image (± over runs)")
    print(f"{'updates':>8}" + "".join(f"{method:>16}" for method in args.methods))
    for num_updates in args.num_updates:
        cells = []
        for method in args.methods:
            runs = study.nll[method, num_updates]
            spread = runs.std(ddof=1) / np.sqrt(len(runs)) if len(runs) > 1 else np.nan
            cells.append(f"{runs.mean():9.2f} ±{spread:5.2f}")
        print(f"{num_updates:8}" + "".join(f"{cell:>16}" for cell in cells))
    annealed = [method for method in args.methods if method != "IS"]
    print("Sandwich of simulated images: lower and upper bound, and their distance, nats per image")
    for num_updates in args.num_updates:
        for method in annealed:
            lower, upper = study.bounds[method, num_updates]
            gap = upper - lower
            error = gap.std(ddof=1) / np.sqrt(len(gap))
            print(
                f"{num_updates:8} {method:5}{lower.mean():9.2f}{upper.mean():9.2f}"
                f"   width {gap.mean():.2f} ± {error:.2f}"
            )


def plot(studies: list[Study], args: argparse.Namespace) -> Figure:
    """Above: estimates against gradient updates. Below: bounds from both sides, on simulated images."""
    figure = Figure(figsize=(4 * len(studies) + 0.5, 6.4), layout="constrained")
    axes = figure.subplots(2, len(studies), squeeze=False, sharex=True, sharey="row")
    updates = np.asarray(args.num_updates)
    for column, study in zip(axes.T, studies, strict=True):
        for method in args.methods:
            colour, marker = STYLES[method]
            runs = np.stack([study.nll[method, n] for n in args.num_updates])
            column[0].plot(updates, runs.mean(1), color=colour, marker=marker, label=method)
            if runs.shape[1] > 1:
                spread = 2 * runs.std(axis=1, ddof=1)
                column[0].fill_between(
                    updates, runs.mean(1) - spread, runs.mean(1) + spread, color=colour, alpha=0.2
                )
        # The middle of the narrowest sandwich: the truth is within half its width of it.
        widths = {key: (pair[1] - pair[0]).mean() for key, pair in study.bounds.items()}
        truth = study.bounds[min(widths, key=widths.__getitem__)].mean()
        for method in dict.fromkeys(method for method, _ in study.bounds):
            colour, marker = STYLES[method]
            pairs = np.stack([study.bounds[method, n] for n in args.num_updates])
            for side, style in ((0, "-"), (1, "--")):
                offset = pairs[:, side].mean(-1) - truth
                column[1].plot(updates, offset, style, color=colour, marker=marker, ms=4)
        column[1].axhline(0.0, color="0.7", lw=1, zorder=0)
        column[0].set_title(study.name)
        column[0].set_xscale("log")
        column[1].set_xlabel("gradient updates of a particle")
    axes[0, 0].set_ylabel("test images: negative log-likelihood, nats")
    axes[1, 0].set_ylabel("simulated images: bounds − truth, nats")
    axes[0, 0].legend()
    axes[1, 0].plot([], [], "-k", label="lower")
    axes[1, 0].plot([], [], "--k", label="upper")
    axes[1, 0].legend()
    return figure


def trained(args: argparse.Namespace, data: Any) -> list[Checkpoint]:
    """Returns small models, trained here."""
    common = {
        "data": args.data,
        "num_pixels": data.side**2,
        "num_train": len(data.train),
        "num_latents": args.num_latents,
        "num_hidden": args.num_hidden,
    }
    steps, particles = args.train_steps, args.train_particles
    configs = [
        Config(objective="vae", num_particles=1, **common),
        Config(objective="iwae", num_particles=steps * particles, **common),
        Config(
            objective="davi", num_steps=steps, num_particles=particles, step_size=0.08, **common
        ),
    ]
    return [train(start(config), data.train, args.num_epochs)[0] for config in configs]


def main(args: argparse.Namespace) -> None:
    data = load_images(args.data, args.data_dir, args.num_train, args.num_test)
    checkpoints = [load_checkpoint(path) for path in args.checkpoints] or trained(args, data)
    for path, checkpoint in zip(args.checkpoints, checkpoints, strict=False):
        if checkpoint.config.num_pixels != data.side**2:
            raise ValueError(
                f"The model in {path} has images of {checkpoint.config.num_pixels} pixels "
                f"({checkpoint.config.data}), and those of --data {args.data} have {data.side**2}."
            )
    train_images = binarise(random.key(6), jnp.asarray(data.train[: args.chunk_size]))
    test_images = binarise(random.key(0), jnp.asarray(data.test))
    results = Results(args.results)
    programs: dict[tuple, Programs] = {}
    studies = []
    for checkpoint in checkpoints:
        architecture = checkpoint.config.num_latents, checkpoint.config.num_hidden
        if architecture not in programs:
            programs[architecture] = Programs(make_vae(checkpoint.config), args.num_particles)
        study = evaluate(
            checkpoint, programs[architecture], train_images, test_images, results, args
        )
        print_study(study, args)
        studies.append(study)
    plot(studies, args).savefig(args.output, dpi=150)
    print(f"\nResults: {args.results}; figure: {args.output}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument(
        "--checkpoints",
        type=Path,
        nargs="*",
        default=[],
        help="of vae.py; trained here if left out",
    )
    parser.add_argument("--data", choices=["digits", "mnist"], default="digits")
    parser.add_argument(
        "--data-dir", type=Path, help=f"of the files of MNIST; or set {DATA_VARIABLE}"
    )
    parser.add_argument("--num-train", type=int, help="training images; all if left out")
    parser.add_argument("--num-test", type=int, default=100, help="test images")
    parser.add_argument("--num-updates", type=int, nargs="+", default=[10, 30, 100, 300])
    parser.add_argument("--methods", choices=METHODS, nargs="+", default=list(METHODS))
    parser.add_argument("--num-particles", type=int, default=10)
    parser.add_argument("--num-runs", type=int, default=3, help="of each estimate")
    parser.add_argument("--num-simulated", type=int, default=100, help="images of the sandwich")
    parser.add_argument("--chunk-size", type=int, default=100, help="images at a time")
    parser.add_argument("--num-epochs", type=int, default=20, help="of models trained here")
    parser.add_argument("--train-steps", type=int, default=10, help="K of DAVI, trained here")
    parser.add_argument("--train-particles", type=int, default=5, help="S of DAVI, trained here")
    parser.add_argument("--num-latents", type=int, default=50, help="of models trained here")
    parser.add_argument("--num-hidden", type=int, default=200, help="of models trained here")
    parser.add_argument("--results", type=Path, default=Path("vae_evaluate.jsonl"))
    parser.add_argument("--output", type=Path, default=Path("vae_evaluate.png"), help="the figure")
    main(parser.parse_args())
