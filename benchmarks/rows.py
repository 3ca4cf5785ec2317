# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Rows on disk: data larger than memory
=====================================

A logistic regression on rows that are on disk, as NumPy's own file, and are read in chunks: the quadratic
surrogate is fitted to all of them, chains start at a Gaussian of half the precision of the posterior, and weights
use all rows. The reference is Laplace's approximation in double precision by NumPy; its error is of the order of
the number of columns over that of rows.

The claims under test: 10,000,000 rows of 20 columns, 1.6 GB on disk, take less than 1 GiB of anonymous memory
(RssAnon of Linux, in which pages of files do not count), and the estimate is within five errors of the reference.

    python benchmarks/rows.py --directory DIRECTORY

The file is made in the directory, and removed at the end unless --keep is given.
"""

import argparse
from pathlib import Path
import threading
import time
import warnings

import jax
from jax import random
import jax.numpy as jnp
import numpy as np

import numpyro
import numpyro.distributions as dist

from numpyro_dais import DAIS, RowData

ROWS_AT_A_TIME = 100_000


def model(X, y, batch_size):
    w = numpyro.sample("w", dist.Normal(jnp.zeros(X.shape[1]), 1.0).to_event(1))
    with numpyro.plate("rows", len(y), subsample_size=batch_size) as index:
        numpyro.sample("y", dist.Bernoulli(logits=X[index] @ w), obs=y[index])


def say(text):
    print(text, flush=True)


def chunks(num_rows):
    return [slice(i, min(i + ROWS_AT_A_TIME, num_rows)) for i in range(0, num_rows, ROWS_AT_A_TIME)]


def make_files(directory, num_rows, num_columns):
    """Writes covariates in double precision and labels, the same in every run."""
    paths = directory / "rows_X.npy", directory / "rows_y.npy"
    X = np.lib.format.open_memmap(paths[0], "w+", np.float64, (num_rows, num_columns))
    y = np.lib.format.open_memmap(paths[1], "w+", np.float32, (num_rows,))
    w = 0.5 * np.random.default_rng(0).standard_normal(num_columns)
    for number, rows in enumerate(chunks(num_rows)):
        rng = np.random.default_rng([1, number])
        X[rows] = rng.standard_normal((rows.stop - rows.start, num_columns))
        X[rows] *= np.linspace(0.5, 1.5, num_columns)
        y[rows] = rng.random(rows.stop - rows.start) < 1 / (1 + np.exp(-X[rows] @ w))
    return paths


def laplace_log_evidence(X, y):
    """Laplace's approximation around the mode, by Newton's steps."""
    num_rows, num_columns = X.shape
    w = np.zeros(num_columns)
    while True:
        value, gradient, precision = -0.5 * w @ w, -w, np.eye(num_columns)
        for rows in chunks(num_rows):
            block, labels = np.asarray(X[rows]), np.asarray(y[rows], np.float64)
            logits = block @ w
            mean = 1 / (1 + np.exp(-logits))
            value += np.sum(labels * logits - np.logaddexp(0.0, logits))
            gradient = gradient + block.T @ (labels - mean)
            precision += (block * (mean * (1 - mean))[:, None]).T @ block
        step = np.linalg.solve(precision, gradient)
        w = w + step
        if gradient @ step < 1e-10:
            return value - 0.5 * np.linalg.slogdet(precision)[1]


class Memory:
    """The largest anonymous memory of this process, in MiB, since it began to look."""

    def __init__(self):
        self.largest, self._is_over = self.now(), threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    @staticmethod
    def now():
        lines = Path("/proc/self/status").read_text().splitlines()
        (line,) = (line for line in lines if line.startswith("RssAnon"))
        return int(line.split()[1]) / 2**10

    def _watch(self):
        while not self._is_over.wait(0.05):
            self.largest = max(self.largest, self.now())

    def end(self):
        self._is_over.set()
        return self.largest


def num_passes(rows):
    return round(rows.num_rows_read / len(rows))


def estimate(X, y, args):
    surrogate = DAIS(model).fit_surrogate(X, y, args.batch_size)
    say(f"surrogate: {int(surrogate.num_gradients)} full gradients, {num_passes(X)} passes")
    # The prior is Gaussian: this is the posterior of the surrogate.
    precision = jnp.eye(X.shape[1]) - surrogate.hessian
    nearby = dist.MultivariateNormal(surrogate.center, precision_matrix=precision / 2)
    estimator = DAIS(
        model,
        surrogate=surrogate,
        start=nearby,
        num_steps=args.num_steps,
        num_particles=args.num_particles,
        step_size=0.5,
        damping=0.5,
        preconditioner=jnp.linalg.cholesky(jnp.linalg.inv(precision)),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return estimator.log_evidence(random.key(1), X, y, args.batch_size)


def main(args):
    jax.config.update("jax_enable_x64", True)  # a log density of millions has few digits in float32
    begin = time.perf_counter()
    paths = make_files(args.directory, args.num_rows, args.num_columns)
    gigabytes = paths[0].stat().st_size / 1e9
    say(
        f"{args.num_rows} rows, {args.num_columns} columns, {gigabytes:.2f} GB on disk, made in "
        f"{time.perf_counter() - begin:.0f} s"
    )
    try:
        X, y = (np.load(path, mmap_mode="r") for path in paths)
        rows = RowData(X, progress_bar=args.progress_bar), RowData(y)
        memory, begin = Memory(), time.perf_counter()
        say(f"RssAnon before the run: {memory.largest:.0f} MiB")
        evidence = estimate(*rows, args)
        seconds, largest = time.perf_counter() - begin, memory.end()
        say(
            f"log evidence {float(evidence):.4f} ± {float(evidence.standard_error):.4f} in {seconds:.0f} s, "
            f"{num_passes(rows[0])} passes; RssAnon at most {largest:.0f} MiB"
        )
        reference = laplace_log_evidence(X, y)
    finally:
        for path in paths if not args.keep else ():
            path.unlink()
    difference = float(evidence) - reference
    say(f"reference {reference:.4f}, difference {difference:.4f}")
    claims = {
        f"anonymous memory of {largest:.0f} MiB (less than 1024)": largest < 1024,
        f"{abs(difference) / float(evidence.standard_error):.1f} errors from the reference (at most 5)": (
            abs(difference) < 5 * float(evidence.standard_error)
        ),
    }
    for claim, is_met in claims.items():
        say(f"  {'met   ' if is_met else 'MISSED'} {claim}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--directory", type=Path, required=True, help="for the file of the rows")
    parser.add_argument("--num-rows", type=int, default=10_000_000)
    parser.add_argument("--num-columns", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=50_000, help="rows in memory at a time")
    parser.add_argument("--num-steps", type=int, default=100)
    parser.add_argument("--num-particles", type=int, default=64)
    parser.add_argument("--progress-bar", action="store_true")
    parser.add_argument("--keep", action="store_true", help="leave the file where it is")
    main(parser.parse_args())
