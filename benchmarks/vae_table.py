# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Autoencoders trained by four objectives, beside the paper's
=============================================================

The protocol of Table 2 of Zhang et al. (2021) at a size that two cores can do: autoencoders of MNIST trained by the ELBO
(VAE), the importance-weighted bound (IWAE), DAVI and DAVI with a learned schedule, at equal numbers S x K of decoder
evaluations per image; the test negative log-likelihood by AIS. Writes a table as markdown and, by run, as CSV, and a
picture of both.

    python benchmarks/vae_table.py --data-dir DIRECTORY

What differs from the paper: 10,000 training images and 20 epochs instead of 60,000 and 1,500, batches of 50, and AIS
with 50 temperatures from the encoder on 500 test images. All models are then far from converged: orders can
be compared with the paper's, values cannot. ``--paper`` has the paper's sizes, for those with an accelerator.

Every run is continued from its checkpoint, so the script may be interrupted; small budgets come first, and
``--finished-only`` makes the table of what there is.
"""

import argparse
import csv
from pathlib import Path
import sys
from typing import NamedTuple

from jax import random
import jax.numpy as jnp
from matplotlib.figure import Figure
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "vae"))
from vae_common import Checkpoint, Config, load_checkpoint, make_vae, save_checkpoint, start, train
from vae_data import DATA_VARIABLE, Images, binarise, load_images
from vae_likelihood import Programs, Results, fingerprint, step_size_at, tune

NAMES = {"vae": "VAE", "iwae": "IWAE", "davi": "DAVI", "davi-adapt": "DAVI, learned schedule"}
# The paper's Table 2, by objective, K (0 if it has none) and S.
PAPER = {
    ("vae", 0, 1): 86.93,
    ("vae", 0, 5): 86.95,
    ("vae", 0, 50): 86.94,
    ("vae", 0, 500): 86.89,
    ("iwae", 0, 5): 85.43,
    ("iwae", 0, 50): 84.46,
    ("iwae", 0, 500): 83.87,
    ("davi", 5, 1): 86.51,
    ("davi", 5, 10): 84.49,
    ("davi", 10, 5): 84.45,
    ("davi", 50, 1): 85.23,
    ("davi", 10, 50): 83.62,
    ("davi", 50, 10): 83.65,
    ("davi-adapt", 5, 1): 86.49,
    ("davi-adapt", 5, 10): 84.42,
    ("davi-adapt", 10, 5): 84.39,
    ("davi-adapt", 50, 1): 85.00,
    ("davi-adapt", 10, 50): 83.56,
    ("davi-adapt", 50, 10): 83.69,
}
SMALL = [
    ("vae", 0, 1),
    ("iwae", 0, 5),
    ("davi", 5, 1),
    ("davi-adapt", 5, 1),
    ("iwae", 0, 50),
    ("davi", 10, 5),
    ("davi-adapt", 10, 5),
]
SMALL_BUDGET = 5  # up to which there are several seeds
PAPER_SIZES = {
    "num_train": 60_000,
    "num_test": 10_000,
    "num_epochs": 1_500,
    "batch_size": 100,
    "num_updates": 100_000,
}


class Row(NamedTuple):
    """
    A trained model and its likelihood.

    :param nll: of each test image.
    """

    objective: str
    num_steps: int
    num_particles: int
    seed: int
    nll: np.ndarray

    @property
    def budget(self) -> int:
        return max(1, self.num_steps) * self.num_particles

    @property
    def kind(self) -> tuple[str, int, int]:
        return self.objective, self.num_steps, self.num_particles


def make_config(kind: tuple[str, int, int], seed: int, data: Images, args) -> Config:
    objective, num_steps, num_particles = kind
    return Config(
        data=args.data,
        num_pixels=data.side**2,
        num_train=len(data.train),
        objective=objective,
        num_steps=num_steps,
        num_particles=num_particles,
        step_size=args.step_size if num_steps else 0.0,
        num_latents=args.num_latents,
        num_hidden=args.num_hidden,
        batch_size=args.batch_size,
        seed=seed,
    )


def checkpoint_path(config: Config, directory: Path) -> Path:
    budget = f"{config.num_particles}"
    if config.num_steps:
        budget = f"{config.num_steps}x{budget}"
    return directory / f"{config.objective}-{budget}-seed{config.seed}.npz"


def fit(config: Config, data: Images, args: argparse.Namespace) -> Checkpoint | None:
    """Returns a trained model, from its checkpoint as far as there is one; None if it is to be left out."""
    path = checkpoint_path(config, args.directory)
    is_there = path.is_file()
    checkpoint = load_checkpoint(path, config) if is_there else None
    if args.finished_only and (checkpoint is None or checkpoint.epoch < args.num_epochs):
        return None
    if checkpoint is not None and checkpoint.epoch > args.num_epochs:
        raise ValueError(
            f"{path} has had {checkpoint.epoch} epochs, more than --num-epochs {args.num_epochs}. Take as many, "
            "or another --directory."
        )
    checkpoint = checkpoint or start(config)
    return train(checkpoint, data.train, args.num_epochs, lambda c: save_checkpoint(path, c))[0]


def negative_log_likelihood(
    checkpoint: Checkpoint, programs: Programs, data: Images, results: Results, args
) -> np.ndarray:
    """Returns the estimate by AIS for each test image."""
    # Without the schedule of DAVI, which AIS has no use for: one compiled program serves all models.
    params = {k: v for k, v in checkpoint.params.items() if k.startswith(("encoder", "decoder"))}
    tuning_images = binarise(random.key(6), jnp.asarray(data.train[: args.chunk_size]))
    test = binarise(random.key(0), jnp.asarray(data.test))
    prefix = f"{fingerprint(params, test)}/S={args.num_particles}/AIS"
    tuned = results.get(f"{prefix}/step size", lambda: tune(programs, "AIS", params, tuning_images))
    step_size = step_size_at("AIS", float(tuned), args.num_updates)
    program = programs.log_likelihood("AIS", args.num_updates)
    pieces = []
    for begin in range(0, len(test), args.chunk_size):
        images, key = test[begin : begin + args.chunk_size], random.fold_in(random.key(5), begin)
        name = f"{prefix}/{args.num_updates}/{begin} to {begin + args.chunk_size}"
        pieces.append(results.get(name, lambda k=key, x=images: program(k, params, step_size, x)))
    return -np.concatenate(pieces)


def plan(kinds: list[tuple[str, int, int]], args: argparse.Namespace) -> list[tuple]:
    """All runs, a kind and a seed each: the cheap ones first, then the others seed by seed."""
    small, large = [], []
    for kind in kinds:
        if max(1, kind[1]) * kind[2] <= SMALL_BUDGET:
            small += [(kind, seed) for seed in range(args.num_seeds)]
        else:
            num_seeds = args.num_seeds if args.paper else args.num_large_seeds
            large += [(kind, seed) for seed in range(num_seeds)]
    return small + sorted(large, key=lambda run: run[1])


def cell(rows: list[Row]) -> str:
    means = [row.nll.mean() for row in rows]
    steps = f"K={rows[0].num_steps}, " if rows[0].num_steps else ""
    spread = f" ± {np.std(means, ddof=1):.2f}" if len(means) > 1 else ""
    seeds = f"{len(means)} seed" + ("s" if len(means) > 1 else "")
    return f"{np.mean(means):.2f}{spread} ({steps}{seeds})"


def compare(rows: list[Row], peers: list[Row]) -> str:
    """The difference of two kinds on the same images, with its errors over images and over runs."""
    mine, theirs = (np.stack([row.nll for row in part]) for part in (rows, peers))
    difference = mine.mean(0) - theirs.mean(0)
    over_images = difference.std(ddof=1) / np.sqrt(len(difference))
    text = f"{difference.mean():+.2f} ± {over_images:.2f} over images"
    if min(len(mine), len(theirs)) > 1:
        over_runs = np.sqrt(sum(x.mean(1).var(ddof=1) / len(x) for x in (mine, theirs)))
        text += f", ± {over_runs:.2f} over runs"
    return text


def paper_cell(kinds: list[tuple[str, int, int]]) -> str:
    cells = [f"{PAPER[kind]:.2f}" + (f" (K={kind[1]})" if kind[1] else "") for kind in kinds]
    return ", ".join(cells)


def markdown(rows: list[Row], args: argparse.Namespace) -> str:
    """The table, ours beside the paper's, and differences on the same images."""
    budgets = sorted({row.budget for row in rows})
    kinds = list(dict.fromkeys(row.kind for row in rows))
    lines = [
        f"Test negative log-likelihood, nats per image: {args.data}, {args.num_train} training images, "
        f"{args.num_epochs} epochs, {args.num_test} test images, AIS with {args.num_updates} gradients and "
        f"{args.num_particles} particles; ± is the standard deviation over seeds. In square brackets: the paper, "
        "60,000 images, 1,500 epochs, all test images; -: not run.",
        "",
        "| objective | " + " | ".join(f"SxK = {budget}" for budget in budgets) + " |",
        "|---" * (len(budgets) + 1) + "|",
    ]
    for objective, name in NAMES.items():
        cells = []
        for budget in budgets:
            found = [k for k in kinds if k[0] == objective and max(1, k[1]) * k[2] == budget]
            ours = ", ".join(cell([row for row in rows if row.kind == kind]) for kind in found)
            theirs = [
                kind
                for kind in PAPER
                if kind[0] == objective and max(1, kind[1]) * kind[2] == budget
            ]
            cells.append(f"{ours or '-'} [{paper_cell(theirs)}]" if ours or theirs else "")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += ["", "Differences on the same images (below 0: better), ± one standard error:", ""]
    vae = [row for row in rows if row.kind == ("vae", 0, 1)]
    for kind in kinds:
        mine = [row for row in rows if row.kind == kind]
        iwae = [row for row in rows if row.objective == "iwae" and row.budget == mine[0].budget]
        name = f"{NAMES[kind[0]]}, " + (f"K = {kind[1]}, " if kind[1] else "") + f"S = {kind[2]}"
        if iwae and kind[0] != "iwae":
            lines.append(
                f"- {name}, to IWAE with S = {iwae[0].num_particles}: {compare(mine, iwae)}"
            )
        if vae and kind[0] != "vae":
            lines.append(f"- {name}, to the VAE: {compare(mine, vae)}")
    return "\n".join(lines) + "\n"


def write_csv(path: Path, rows: list[Row]) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(
            ["objective", "num_steps", "num_particles", "seed", "nll", "error_over_images"]
        )
        for row in rows:
            error = row.nll.std(ddof=1) / np.sqrt(len(row.nll))
            writer.writerow([*row.kind, row.seed, f"{row.nll.mean():.3f}", f"{error:.3f}"])


def plot(rows: list[Row], args: argparse.Namespace) -> Figure:
    """Left: ours, a dot for each run. Right: the paper's."""
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    ours, theirs = figure.subplots(1, 2)
    budgets = sorted({row.budget for row in rows} | {1, 5, 50})
    for index, (objective, name) in enumerate(NAMES.items()):
        shift = 0.07 * (index - 1.5)
        mine = [row for row in rows if row.objective == objective]
        ours.plot(
            [budgets.index(row.budget) + shift for row in mine],
            [row.nll.mean() for row in mine],
            "osD^"[index],
            color=f"C{index}",
            label=name,
        )
        points = [
            (budgets.index(max(1, K) * S) + shift, value)
            for (kind, K, S), value in PAPER.items()
            if kind == objective and max(1, K) * S in budgets
        ]
        theirs.plot(*zip(*points, strict=True), "osD^"[index], color=f"C{index}")
    for axis in (ours, theirs):
        axis.set(xticks=range(len(budgets)), xticklabels=budgets, xlabel="S x K")
    ours.set(
        ylabel="test negative log-likelihood, nats",
        title=f"here: {args.num_train} images, {args.num_epochs} epochs",
    )
    theirs.set(title="the paper: 60000 images, 1500 epochs")
    ours.legend()
    return figure


def main(args: argparse.Namespace) -> None:
    kinds = [tuple(kind) for kind in SMALL]
    if args.paper:
        for name, value in PAPER_SIZES.items():
            setattr(args, name, value)
        kinds = list(PAPER)
    data = load_images(args.data, args.data_dir, args.num_train, args.num_test)
    args.num_train, args.num_test = len(data.train), len(data.test)
    args.directory.mkdir(parents=True, exist_ok=True)
    results = Results(args.directory / "vae_table.jsonl")
    rows, programs = [], None
    for kind, seed in plan(kinds, args):
        config = make_config(kind, seed, data, args)
        checkpoint = fit(config, data, args)
        if checkpoint is None:
            print(f"left out: {checkpoint_path(config, args.directory)} is not finished")
            continue
        programs = programs or Programs(make_vae(config), args.num_particles)
        nll = negative_log_likelihood(checkpoint, programs, data, results, args)
        rows.append(Row(*kind, seed, nll))
        print(
            f"{NAMES[kind[0]]}, K={kind[1]}, S={kind[2]}, seed {seed}: {nll.mean():.2f}",
            flush=True,
        )
    rows.sort(key=lambda row: (kinds.index(row.kind), row.seed))
    if not rows:
        raise ValueError(f"No run in {args.directory} is finished. Leave --finished-only out.")
    table = markdown(rows, args)
    print(f"\n{table}")
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.with_suffix(".md").write_text(table, encoding="utf-8")
    write_csv(args.output.with_suffix(".csv"), rows)
    plot(rows, args).savefig(args.output.with_suffix(".png"), dpi=150)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("--data", choices=["mnist", "digits"], default="mnist")
    parser.add_argument(
        "--data-dir", type=Path, help=f"of the files of MNIST; or set {DATA_VARIABLE}"
    )
    parser.add_argument("--num-train", type=int, default=10_000)
    parser.add_argument("--num-test", type=int, default=500)
    parser.add_argument("--num-epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=50)
    parser.add_argument(
        "--num-seeds", type=int, default=3, help="of S x K up to 5 (and with --paper)"
    )
    parser.add_argument("--num-large-seeds", type=int, default=3, help="of larger S x K")
    parser.add_argument("--step-size", type=float, default=0.08, help="of DAVI")
    parser.add_argument("--num-latents", type=int, default=50)
    parser.add_argument("--num-hidden", type=int, default=200)
    parser.add_argument("--num-updates", type=int, default=500, help="leapfrog steps of AIS")
    parser.add_argument("--num-particles", type=int, default=10, help="of AIS")
    parser.add_argument("--chunk-size", type=int, default=100, help="test images at a time")
    parser.add_argument("--paper", action="store_true", help="the paper's sizes, S x K up to 500")
    parser.add_argument("--finished-only", action="store_true", help="train nothing more")
    parser.add_argument("--directory", type=Path, default=Path("vae_runs"), help="of checkpoints")
    parser.add_argument("--output", type=Path, default=Path("vae_table"), help="without suffix")
    main(parser.parse_args())
