# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

r"""
How likely are test images under a trained autoencoder?
========================================================

The negative log-likelihood of models trained by ``vae.py``, estimated per test image from the encoder's draws by

- ``IS``: importance sampling, the bound that IWAE trains, with as many samples as cost the same: two for each
  gradient, which runs the decoder forward and back;
- ``AIS``: annealed importance sampling, several leapfrog steps and a Metropolis decision per temperature;
- ``HAIS``: Hamiltonian annealed importance sampling, one leapfrog step per temperature;
- ``DAIS``: the same without Metropolis decisions, hence differentiable,

against the number of gradient updates of a particle (Figure 2 of [1], a column for each model). All overestimate
it in expectation. As there, the step size is chosen at K = 10, here by the estimate itself on training images; for
more steps it shrinks as K to the -1/4 (that of AIS, whose decisions correct it, stays).

The claim: at equal gradients DAIS is on par with HAIS and AIS, and with enough of them the three agree; importance
sampling needs far more samples. Beyond the paper, the lower row says how far each is from the truth: on images that
the model itself has drawn, whose latent vectors are exact draws of their posteriors, chains in reverse give bounds
from the other side [2].

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
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax import random
import jax.numpy as jnp
from matplotlib.figure import Figure
import numpy as np
from tqdm.auto import tqdm
from vae_common import Checkpoint, Config, load_checkpoint, make_vae, start, train
from vae_data import DATA_VARIABLE, binarise, load_images
from vae_likelihood import (
    METHODS,
    NUM_LEAPFROG,
    SAMPLES_PER_UPDATE,
    Programs,
    Results,
    fingerprint,
    simulate,
    step_size_at,
    tune,
)

STYLES = {"IS": ("C7", "o"), "AIS": ("C0", "s"), "HAIS": ("C2", "^"), "DAIS": ("C3", "D")}


class Study(NamedTuple):
    """
    Results for one model, by method and number of updates.

    :param nll: mean over images of each run, ``[num_runs]``.
    :param bounds: of simulated images, ``[2, num_images]``.
    """

    name: str
    nll: dict[tuple[str, int], np.ndarray]
    bounds: dict[tuple[str, int], np.ndarray]


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
            found = results.get(
                f"{prefix}/{method}/step size",
                lambda: tune(programs, method, params, train_images),
            )
            tuned[method] = float(found)
        return step_size_at(method, tuned[method], num_updates)

    def one_run(method: str, num_updates: int, run: int) -> float:
        values = []
        for begin in range(0, len(test_images), args.chunk_size):

            def compute(begin: int = begin) -> jax.Array:
                key = random.fold_in(random.fold_in(random.key(5), run), begin)
                images = test_images[begin : begin + args.chunk_size]
                program = programs.log_likelihood(method, num_updates)
                return program(key, params, step_size_of(method, num_updates), images)

            piece = f"run {run}/{begin} to {begin + args.chunk_size}"
            size = f"{SAMPLES_PER_UPDATE} x {num_updates}" if method == "IS" else num_updates
            values.append(results.get(f"{prefix}/{method}/{size}/{piece}", compute))
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


def describe(study: Study, args: argparse.Namespace) -> str:
    """The results of one model as text."""
    lines = [
        f"{study.name}: negative log-likelihood, nats per test image (± over runs)",
        f"{'updates':>8}" + "".join(f"{method:>16}" for method in args.methods),
    ]
    mean_of, error_of = {}, {}
    for pair, runs in study.nll.items():
        mean_of[pair] = runs.mean()
        error_of[pair] = runs.std(ddof=1) / np.sqrt(len(runs)) if len(runs) > 1 else np.nan
    for num_updates in args.num_updates:
        pairs = [(method, num_updates) for method in args.methods]
        cells = [f"{mean_of[pair]:9.2f} ±{error_of[pair]:5.2f}" for pair in pairs]
        lines.append(f"{num_updates:8}" + "".join(f"{cell:>16}" for cell in cells))
    largest = max(args.num_updates)
    best = min(args.methods, key=lambda method: mean_of[method, largest])
    lines.append(f"At {largest} updates the lowest is {best}; above it are")
    for method in args.methods:
        if method != best:
            excess = mean_of[method, largest] - mean_of[best, largest]
            error = np.hypot(error_of[method, largest], error_of[best, largest])
            lines.append(f"{'':8} {method:5}{excess:9.2f} ± {error:.2f}")
    lines.append(
        "Sandwich of simulated images: lower and upper bound, and their distance, nats per image"
    )
    for (method, num_updates), (lower, upper) in study.bounds.items():
        gap = upper - lower
        error = gap.std(ddof=1) / np.sqrt(len(gap))
        lines.append(
            f"{num_updates:8} {method:5}{lower.mean():9.2f}{upper.mean():9.2f}"
            f"   width {gap.mean():.2f} ± {error:.2f}"
        )
    return "\n".join(lines) + "\n"


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
        truth = study.bounds[min(widths, key=widths.__getitem__)].mean() if widths else 0.0
        for method in dict.fromkeys(method for method, _ in study.bounds):
            colour, marker = STYLES[method]
            pairs = np.stack([study.bounds[method, n] for n in args.num_updates])
            for side, style in ((0, "-"), (1, "--")):
                offset = pairs[:, side].mean(-1) - truth
                column[1].plot(updates, offset, style, color=colour, marker=marker, ms=4)
        column[1].axhline(0.0, color="0.7", lw=1, zorder=0)
        column[0].set_title(f"{study.name}: test images")
        column[1].set_title("simulated images")
        column[0].set_xscale("log")
        column[1].set_xlabel("gradient updates of a particle")
    axes[0, 0].set_ylabel("negative log-likelihood, nats")
    axes[1, 0].set_ylabel("bounds around the truth, nats")
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
        print(f"\n{describe(study, args)}", flush=True)
        studies.append(study)
    plot(studies, args).savefig(args.output, dpi=150)
    text = args.output.with_suffix(".md")
    settings = (
        f"{args.data}, {len(test_images)} test images, {args.num_particles} particles, {args.num_runs} runs, "
        f"{args.num_simulated} simulated images. AIS has {NUM_LEAPFROG} leapfrog steps per temperature; IS has "
        f"{SAMPLES_PER_UPDATE * args.num_particles} samples per update."
    )
    tables = "\n".join(describe(study, args) for study in studies)
    text.write_text(f"{settings}\n\n```\n{tables}```\n", encoding="utf-8")
    print(f"Results: {args.results}; table: {text}; figure: {args.output}")


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
