# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Data that stay where they are, on disk or elsewhere, and are read some rows at a time.

A model sees them through the indices of its subsampled plate. In a compiled program these are
values that only the running program knows, so it calls back to the host for the rows. The indices
of a chunk are the same for all particles, which therefore share what is read, as do all directions
of a Hessian.
"""

from collections.abc import Sized
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tqdm.auto import tqdm

from numpyro_dais._util.concreteness import is_concrete

__all__ = ["RowData"]

# Rows between the first and the last that are asked for, in units of their number, up to which they
# are read as one slice: the last chunk of a plate repeats its last row. A round number.
_DENSE = 2


class RowData:
    """
    Rows that a model takes mini-batches of, and that need not be in memory.

    Give it as an argument of the model, in place of an array whose first axis is that of the
    subsampled plate. Inside the plate ``rows[index]`` and ``numpyro.subsample(rows, event_dim)``
    are JAX arrays of the rows in question; nothing else can be done with it. With
    ``surrogate="quadratic"`` all rows are read, in chunks of ``subsample_size``, by the fit and at
    the ends of chains, and no step reads any; with ``minibatch=`` each step reads its own.

    :param source: a NumPy array, as :class:`numpy.memmap` or ``numpy.load(path, mmap_mode="r")``
        give it, or anything with ``__len__`` and slices ``source[first:last]`` that NumPy makes
        arrays of, such as a dataset of h5py or zarr.
    :param progress_bar: whether to show a bar while rows are read, one for each pass.

    **Example**

    >>> import numpy as np, numpyro, numpyro.distributions as dist
    >>> from jax import random
    >>> from numpyro_dais import DAIS, RowData
    >>> values = np.random.default_rng(0).normal(0.5, 1.0, 10_000)  # or numpy.load(path, "r")
    >>> def model(y):
    ...     mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    ...     with numpyro.plate("rows", len(y), subsample_size=2_000) as index:
    ...         numpyro.sample("y", dist.Normal(mu, 1.0), obs=y[index])
    >>> y = RowData(values)
    >>> surrogate = DAIS(model).fit_surrogate(y)
    >>> # With so many rows the prior is far away: a start of twice the posterior's width.
    >>> start = dist.Normal(surrogate.center[0], 2 * (1 - surrogate.hessian[0, 0]) ** -0.5)
    >>> estimator = DAIS(model, surrogate=surrogate, start=start, num_steps=64)
    >>> evidence = estimator.log_evidence(random.key(0), y)
    >>> bool(abs(evidence.log_evidence - -14174.906) < 0.3)  # exact: -14174.906
    True
    """

    def __init__(self, source: Any, *, progress_bar: bool = False) -> None:
        if not (isinstance(source, Sized) and hasattr(source, "__getitem__")):
            raise TypeError(
                f"RowData takes something with len() and slices, such as a numpy.memmap; got {source!r}."
            )
        if len(source) == 0:
            raise ValueError("RowData needs at least one row; got none.")
        first = np.asarray(source[0:1])
        if first.shape[:1] != (1,) or first.dtype.kind not in "biuf":
            raise TypeError(
                f"RowData takes rows of numbers; source[0:1] has shape {first.shape} and type {first.dtype}. Convert "
                "them first."
            )
        self.source = source
        self.shape = (len(source), *first.shape[1:])
        self.dtype = jax.dtypes.canonicalize_dtype(first.dtype)
        self.progress_bar = progress_bar
        self.num_rows_read = 0
        self._bar: tqdm | None = None

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"RowData({type(self.source).__name__} of {self.dtype}{list(self.shape)})"

    def __getitem__(self, indices: Any) -> jax.Array:
        """Returns the rows with these indices."""
        is_array = isinstance(indices, (jax.Array, np.ndarray))
        if not is_array or not jnp.issubdtype(indices.dtype, jnp.integer) or not indices.ndim:
            raise TypeError(
                f"RowData gives rows by the indices of a plate, rows[index]; got rows[{indices!r}]. Take columns and "
                "other parts of what it gives."
            )
        if indices.shape[-1] >= len(self):
            raise ValueError(
                f"RowData is not read as a whole; got {indices.shape[-1]} indices for {len(self)} rows. Write "
                "numpyro.plate(name, N, subsample_size=B), with B rows that memory has room for."
            )
        if is_concrete(indices):
            return jnp.asarray(self._read(indices))
        shape = jax.ShapeDtypeStruct((*indices.shape, *self.shape[1:]), self.dtype)
        return jax.pure_callback(self._read, shape, indices, vmap_method="broadcast_all")

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise TypeError(
            "RowData is not an array, and is not read as a whole. Use rows[index] with the index of a subsampled "
            "plate: with numpyro.plate(name, len(rows), subsample_size=B) as index."
        )

    __iter__ = None  # else Python would take it for a sequence

    def _read(self, indices: Any) -> np.ndarray:
        indices = np.asarray(indices)
        first, last = int(indices.min()), int(indices.max())
        span = last + 1 - first
        if span <= _DENSE * indices.size:
            rows = np.asarray(self.source[first : last + 1])
            is_whole = span == indices.size and bool(np.all(np.diff(indices.ravel()) == 1))
            rows = (
                rows.reshape(*indices.shape, *rows.shape[1:]) if is_whole else rows[indices - first]
            )
        elif isinstance(self.source, np.ndarray):
            rows = self.source[indices]
        else:
            every = [np.asarray(self.source[i : i + 1]) for i in indices.ravel().tolist()]
            rows = np.concatenate(every).reshape(*indices.shape, *self.shape[1:])
        self._count(min(span, indices.size))
        return np.asarray(rows, self.dtype)

    def _count(self, num_rows: int) -> None:
        """Counts rows that were read, and moves the bar of as many as there are."""
        self.num_rows_read += num_rows
        if not self.progress_bar:
            return
        if self._bar is None:
            number = self.num_rows_read // len(self) + 1
            self._bar = tqdm(
                total=len(self), desc=f"reading, pass {number}", unit="row", leave=False
            )
        self._bar.update(num_rows)
        if self._bar.n >= len(self):
            self._bar.close()
            self._bar = None
