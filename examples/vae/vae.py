# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

r"""
A variational autoencoder trained with DAVI
============================================

The experiment of Section 6.2 of [1]: an autoencoder of binary images with 50 latent variables, trained by

- ``vae``: the evidence lower bound (NumPyro's ``Trace_ELBO``);
- ``iwae``: the importance-weighted bound of S samples [2] (NumPyro's ``RenyiELBO`` at alpha = 0);
- ``davi``: the bound of S chains of K annealed steps each, from the encoder towards the posterior;
- ``davi-adapt``: the same with a learned schedule.

The claim: for as many evaluations of the decoder, S x K, annealing gives a model at least as good as importance
weighting does, and both a better one than the VAE. Bounds of different objectives cannot be compared with one
another: ``vae_evaluate.py`` estimates the likelihoods themselves, and ``benchmarks/vae_table.py`` puts them
beside those of the paper.

Without arguments the script takes scikit-learn's 8 x 8 digits and a minute. MNIST:

    python examples/vae.py --data mnist --data-dir DIRECTORY --objective davi --num-steps 10 --num-particles 5

After every epoch a checkpoint is written; with ``--resume`` training goes on from there, to the same
parameters, bit for bit, as if it had not stopped.

**References**

1. *Differentiable Annealed Importance Sampling and the Perils of Gradient Noise*,
   Guodong Zhang, Kyle Hsu, Jianing Li, Chelsea Finn, Roger Grosse (NeurIPS 2021)
2. *Importance Weighted Autoencoders*, Yuri Burda, Roger Grosse, Ruslan Salakhutdinov (ICLR 2016)
3. *On the quantitative analysis of deep belief networks*, Ruslan Salakhutdinov, Iain Murray (ICML 2008),
   for pixels drawn anew from the grey values
"""

import argparse
from pathlib import Path

from jax import random
import jax.numpy as jnp
from matplotlib.figure import Figure
import numpy as np
from vae_common import (
    OBJECTIVES,
    Checkpoint,
    Config,
    decode,
    encode,
    load_checkpoint,
    mean_bound,
    save_checkpoint,
    start,
    train,
)
from vae_data import DATA_VARIABLE, binarise, load_images

NUM_PICTURES = 12  # of each kind


def plot(checkpoint: Checkpoint, images: np.ndarray, side: int) -> Figure:
    """Test images, what the decoder makes of them, and draws of the model."""
    prior = random.normal(random.key(1), (NUM_PICTURES, checkpoint.config.num_latents))
    rows = {
        "data": images[:NUM_PICTURES],
        "decoded": decode(checkpoint, encode(checkpoint, images[:NUM_PICTURES])),
        "samples": decode(checkpoint, prior),
    }
    figure = Figure(figsize=(NUM_PICTURES * 0.8, 2.9), layout="constrained")
    axes = figure.subplots(len(rows), NUM_PICTURES, squeeze=False)
    for row, (name, pictures) in zip(axes, rows.items(), strict=True):
        for axis, picture in zip(row, np.asarray(pictures), strict=False):
            axis.imshow(picture.reshape(side, side), cmap="gray", vmin=0, vmax=1)
        for axis in row:
            axis.set(xticks=[], yticks=[])
        row[0].set_ylabel(name)
    config = checkpoint.config
    figure.suptitle(f"{config.objective} on {config.data}, {checkpoint.epoch} epochs")
    return figure


def main(args: argparse.Namespace) -> None:
    data = load_images(args.data, args.data_dir, args.num_train, args.num_test)
    is_davi = args.objective.startswith("davi")
    config = Config(
        data=args.data,
        num_pixels=data.side**2,
        num_train=len(data.train),
        objective=args.objective,
        num_particles=args.num_particles,
        **({"num_steps": args.num_steps, "step_size": args.step_size} if is_davi else {}),
        num_latents=args.num_latents,
        num_hidden=args.num_hidden,
        batch_size=args.batch_size,
        learning_rate=args.learning_rate,
        seed=args.seed,
    )
    checkpoint = load_checkpoint(args.checkpoint, config) if args.resume else start(config)
    if args.resume:
        print(f"Going on after epoch {checkpoint.epoch} of {args.checkpoint}")
    checkpoint, bounds = train(
        checkpoint,
        data.train,
        args.num_epochs,
        lambda checkpoint: save_checkpoint(args.checkpoint, checkpoint),
    )
    if bounds:
        print(f"Bound per training image, last epoch: {bounds[-1]:.2f}")
    test = jnp.asarray(binarise(random.key(0), data.test))
    bound = mean_bound(checkpoint, test, random.key(2))
    print(f"Bound per test image ({args.objective}, {len(test)} images): {bound:.2f}")
    plot(checkpoint, test, data.side).savefig(args.output, dpi=150)
    print(f"Checkpoint: {args.checkpoint}; figure: {args.output}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("--data", choices=["digits", "mnist"], default="digits")
    parser.add_argument(
        "--data-dir", type=Path, help=f"of the files of MNIST; or set {DATA_VARIABLE}"
    )
    parser.add_argument("--num-train", type=int, help="training images; all if left out")
    parser.add_argument("--num-test", type=int, help="test images; all if left out")
    parser.add_argument("--objective", choices=OBJECTIVES, default="davi")
    parser.add_argument("--num-steps", type=int, default=10, help="K, of DAVI")
    parser.add_argument("--num-particles", type=int, default=5, help="S")
    parser.add_argument("--step-size", type=float, default=0.08, help="of DAVI")
    parser.add_argument("--num-epochs", type=int, default=20, help="in all")
    parser.add_argument("--batch-size", type=int, default=100)
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="of the first 100 epochs")
    parser.add_argument("--num-latents", type=int, default=50)
    parser.add_argument("--num-hidden", type=int, default=200, help="units of each hidden layer")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", type=Path, default=Path("vae.npz"))
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    parser.add_argument("--output", type=Path, default=Path("vae.png"), help="the figure")
    main(parser.parse_args())
