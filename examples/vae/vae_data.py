# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Images for the VAE examples: grey values as probabilities of a white pixel, and binary draws of them."""

import gzip
import hashlib
import os
from pathlib import Path
from typing import NamedTuple
import zlib

import jax
from jax import random
import jax.numpy as jnp
import numpy as np

__all__ = ["DATA_VARIABLE", "Images", "binarise", "load_digits", "load_images", "load_mnist"]

DATA_VARIABLE = "NUMPYRO_DAIS_DATA"

# SHA-256 of the four files, uncompressed.
_CHECKSUMS = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
_HEADER = 16  # bytes before the pixels


class Images(NamedTuple):
    """
    Grey values in [0, 1], ``[num_images, num_pixels]``.

    :param train: to fit models to.
    :param test: to judge them by.
    :param side: pixels along each side of an image.
    """

    train: np.ndarray
    test: np.ndarray
    side: int


def load_images(
    name: str,
    directory: str | Path | None = None,
    num_train: int | None = None,
    num_test: int | None = None,
) -> Images:
    """
    Returns the first images of a data set.

    :param name: ``"digits"`` (scikit-learn's, 8 x 8) or ``"mnist"``.
    :param directory: of the four files of MNIST; see :func:`load_mnist`.
    :param num_train: how many; all if left out.
    :param num_test: how many; all if left out.
    """
    images = load_mnist(directory) if name == "mnist" else load_digits()
    for wanted, part, option in (
        (num_train, images.train, "--num-train"),
        (num_test, images.test, "--num-test"),
    ):
        if wanted is not None and not 0 < wanted <= len(part):
            raise ValueError(f"{option} must be from 1 to {len(part)} for {name}; got {wanted}.")
    return images._replace(train=images.train[:num_train], test=images.test[:num_test])


def binarise(rng_key: jax.Array, grey: jax.Array) -> jax.Array:
    """
    Returns images of zeros and ones, each pixel white with the probability that its grey value is.

    :param rng_key: a JAX random key.
    :param grey: the grey values.
    """
    return random.bernoulli(rng_key, grey).astype(jnp.float32)


def load_digits() -> Images:
    """Returns the 1,797 digits that scikit-learn brings along, the last 297 of them for tests."""
    from sklearn import datasets

    grey = (datasets.load_digits().data / 16.0).astype(np.float32)
    # The file goes from writer to writer.
    grey = grey[np.random.default_rng(0).permutation(len(grey))]
    return Images(grey[:1500], grey[1500:], side=8)


def load_mnist(directory: str | Path | None = None) -> Images:
    """
    Returns MNIST, with its checksums verified.

    :param directory: where the four files are, compressed or not. Left out, the directory that the variable
        ``NUMPYRO_DAIS_DATA`` names, or else NumPyro's cache, into which NumPyro downloads them.
    """
    directory = directory or os.environ.get(DATA_VARIABLE) or None
    found = _download() if directory is None else Path(directory)
    contents = {name: _read(found, name) for name in _CHECKSUMS}

    def pixels(name: str) -> np.ndarray:
        raw = np.frombuffer(contents[name], np.uint8, offset=_HEADER)
        return raw.reshape(-1, 28 * 28) / np.float32(255)

    return Images(pixels("train-images-idx3-ubyte"), pixels("t10k-images-idx3-ubyte"), side=28)


def _download() -> Path:
    """NumPyro's cache, filled if need be."""
    from numpyro.examples import datasets

    try:
        datasets.load_dataset(datasets.MNIST)
    except EOFError:
        pass  # truncated: the checksum will say which one
    except OSError as error:
        raise FileNotFoundError(
            f"MNIST is not in NumPyro's cache ({datasets.DATA_DIR}) and cannot be downloaded: {error}. Either "
            f"pass --data-dir (or set {DATA_VARIABLE}) to a directory with its four files, or connect to "
            "the network."
        ) from error
    return Path(datasets.DATA_DIR)


def _read(directory: Path, name: str) -> bytes:
    paths = [path for path in (directory / f"{name}.gz", directory / name) if path.is_file()]
    if not paths:
        what = "is no directory" if not directory.is_dir() else f"has no file {name}.gz (or {name})"
        raise FileNotFoundError(
            f"MNIST is expected in {directory}, which {what}. Set --data-dir or {DATA_VARIABLE} to the directory "
            f"with the files {', '.join(_CHECKSUMS)}, each with .gz or without."
        )
    try:
        content = paths[0].read_bytes()
        content = gzip.decompress(content) if paths[0].suffix == ".gz" else content
        digest = hashlib.sha256(content).hexdigest()
    except (EOFError, OSError, zlib.error) as error:
        digest = f"not there, {error}"
    if digest != _CHECKSUMS[name]:
        raise ValueError(
            f"{paths[0]} is truncated or corrupted: the SHA-256 of its content must be {_CHECKSUMS[name]}; it is "
            f"{digest}. Delete the file and fetch it again."
        )
    return content
