# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Data larger than memory, read in chunks, and data larger than a device, in shards over their rows."""

import os
import subprocess
import sys

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import pytest

import numpyro
import numpyro.distributions as dist

from numpyro_dais import DAIS, RowData
from numpyro_dais.model.problem import Problem
from numpyro_dais.model.surrogate import QuadraticSurrogate
from numpyro_dais.model.traced import trace_target

NUM_ROWS, BATCH = 530, 100
rng = np.random.default_rng(3)
X = rng.standard_normal((NUM_ROWS, 2)) + 0.3
Y = (rng.random(NUM_ROWS) < 1 / (1 + np.exp(-X @ [0.7, -0.4]))).astype(np.float32)


class Slices:
    """Rows of which only slices can be taken, as of a dataset on disk."""

    def __init__(self, array):
        self.array, self.asked = array, []

    def __len__(self):
        return len(self.array)

    def __getitem__(self, rows):
        assert isinstance(rows, slice)
        self.asked.append((rows.start, rows.stop))
        return self.array[rows].tolist()


def by_index(X, y, batch_size=BATCH):
    w = numpyro.sample("w", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
    with numpyro.plate("rows", len(y), subsample_size=batch_size) as index:
        numpyro.sample("y", dist.Bernoulli(logits=X[index] @ w), obs=y[index])


def by_subsample(X, y):
    w = numpyro.sample("w", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
    with numpyro.plate("rows", len(y), subsample_size=BATCH):
        X, y = numpyro.subsample(X, event_dim=1), numpyro.subsample(y, event_dim=0)
        numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)


SHORT = {"num_steps": 8, "step_size": 0.05, "num_particles": 16}
NEARBY = dist.Normal(jnp.array([0.7, -0.4]), 0.2).to_event(1)
SURROGATE = QuadraticSurrogate(jnp.array([0.7, -0.4]), jnp.zeros(2), -100 * jnp.eye(2))
RUNS = {
    "surrogate, slices": (by_index, {"surrogate": SURROGATE}, Slices),
    "shared batches, array": (by_index, {"minibatch": "shared"}, np.array),
    "batches of each, slices": (by_subsample, {"minibatch": "particle"}, Slices),
}


@pytest.mark.filterwarnings("ignore:With mini-batch", "ignore:The effective sample size")
@pytest.mark.parametrize(("model", "kwargs", "source"), RUNS.values(), ids=RUNS)
def test_rows_give_the_weights_of_an_array(model, kwargs, source):
    estimator = DAIS(model, start=NEARBY, **SHORT, **kwargs)
    expected = estimator.log_evidence(random.key(1), jnp.asarray(X), jnp.asarray(Y))
    source = source(X)
    evidence = estimator.log_evidence(random.key(1), RowData(source), RowData(Y))
    np.testing.assert_array_equal(evidence.log_weights, expected.log_weights)
    assert evidence.samples(random.key(2), 3)["w"].shape == (3, 2)
    assert evidence.num_gradients == expected.num_gradients
    if "surrogate" in kwargs:
        # Once for all particles, after the look at one row.
        chunks = [(i, min(i + BATCH, NUM_ROWS)) for i in range(0, NUM_ROWS, BATCH)]
        assert source.asked == [(0, 1), *chunks]


@pytest.mark.filterwarnings("ignore:The effective sample size")
def test_the_surrogate_of_a_memory_map(tmp_path, x64):
    """In double precision, from files; the data plate's own and NumPy's algebra."""
    np.save(tmp_path / "X.npy", X)
    rows = RowData(np.load(tmp_path / "X.npy", mmap_mode="r"))
    surrogate = DAIS(by_index).fit_surrogate(rows, RowData(Y))
    w = np.asarray(surrogate.center)
    mean = 1 / (1 + np.exp(-X @ w))
    np.testing.assert_allclose(X.T @ (Y - mean), w, atol=1e-5)  # the mode
    np.testing.assert_allclose(surrogate.hessian, -(X.T * mean * (1 - mean)) @ X, rtol=1e-8)
    assert repr(rows) == "RowData(memmap of float64[530, 2])"
    assert rows.ndim == 2


@pytest.mark.parametrize("make", [np.array, Slices], ids=["array", "slices"])
@pytest.mark.parametrize("is_traced", [False, True], ids=["concrete", "traced"])
def test_rows_are_those_that_are_asked_for(make, is_traced):
    rows = RowData(make(X))
    take = jax.jit(lambda indices: rows[indices]) if is_traced else rows.__getitem__
    asked = (
        [3, 4, 5],
        [5, 3, 4],
        [0, 529, 2],
        [528, 529, 529],
        [[1, 2], [3, 4]],
        [[9, 400], [7, 7]],
    )
    for indices in asked:
        indices = np.array(indices)
        np.testing.assert_array_equal(take(jnp.asarray(indices)), X[indices].astype(np.float32))


def test_types_are_those_of_jax(x64):
    assert RowData(X)[jnp.arange(2)].dtype == np.float64
    assert RowData(Y)[jnp.arange(2)].dtype == np.float32
    assert RowData(Y > 0)[jnp.arange(2)].dtype == bool
    with jax.enable_x64(False):
        assert RowData(X)[jnp.arange(2)].dtype == np.float32


def test_progress(capsys):
    rows = RowData(X, progress_bar=True)
    for first in (0, 200, 400, 0, 200, 400):
        rows[first + jnp.arange(min(200, NUM_ROWS - first))]
    assert rows.num_rows_read == 2 * NUM_ROWS
    shown = capsys.readouterr().err
    assert "reading, pass 1:   0%" in shown
    assert "reading, pass 2:   0%" in shown


def whole(X, y):
    by_index(X, y, None)


def outside(X, y):
    rows = numpyro.subsample(X, event_dim=1)
    by_index(rows, y)


def as_array(X, y):
    by_index(jnp.asarray(X), y)


FAULTS = {
    "no length": (lambda: RowData(3.0), TypeError, r"something with len\(\) and slices.*got 3.0"),
    "no rows": (lambda: RowData(np.zeros((0, 2))), ValueError, "at least one row; got none"),
    "text": (lambda: RowData(np.array(["a"])), TypeError, "rows of numbers; source.*type <U1"),
    "a slice": (lambda: RowData(X)[:3], TypeError, r"rows\[index\]; got rows\[slice\(None, 3"),
    "a number": (lambda: RowData(X)[3], TypeError, r"got rows\[3\]"),
    "a mask": (lambda: RowData(X)[np.array([True])], TypeError, "by the indices of a plate"),
    "all rows": (
        lambda: RowData(X)[np.arange(NUM_ROWS)],
        ValueError,
        "not read as a whole; got 530 indices for 530 rows. Write numpyro.plate",
    ),
    "an array": (lambda: np.asarray(RowData(X)), TypeError, "RowData is not an array.*subsample"),
    "an array of JAX": (lambda: jnp.asarray(RowData(X)), TypeError, "RowData"),
    "iteration": (lambda: list(RowData(X)), TypeError, "not iterable"),
    "no mini-batches": (
        lambda: DAIS(whole, surrogate="quadratic").log_evidence(None, RowData(X), RowData(Y)),
        ValueError,
        "RowData is not read as a whole",
    ),
    "outside of the plate": (
        lambda: DAIS(outside, surrogate="quadratic").log_evidence(None, RowData(X), RowData(Y)),
        ValueError,
        r"got RowData\(ndarray of float32\[530, 2\]\) outside of a plate with 530 elements",
    ),
    "neither surrogate nor mini-batches": (
        lambda: DAIS(by_index).log_evidence(None, RowData(X), RowData(Y)),
        NotImplementedError,
        "takes 100 of 530 elements; the evidence needs all",
    ),
    "a model that wants an array": (
        lambda: DAIS(as_array, surrogate="quadratic").log_evidence(None, RowData(X), RowData(Y)),
        TypeError,
        "RowData",
    ),
}


@pytest.mark.parametrize(("call", "kind", "message"), FAULTS.values(), ids=FAULTS)
def test_faults(call, kind, message):
    with pytest.raises(kind, match=message):
        call()


def in_shards(X, y):
    """The model with gradients on all rows."""
    w = numpyro.sample("w", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)


def check_shards():
    """What a process with four devices does."""
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    assert len(jax.devices()) == 4
    mesh = Mesh(np.array(jax.devices()), ("rows",))
    plain = [jnp.asarray(values[:520], jnp.float32) for values in (X, Y)]
    sharding = NamedSharding(mesh, PartitionSpec("rows"))
    shards = [jax.device_put(values, sharding) for values in plain]

    def gradients(target, positions):
        def log_joint(position):
            return sum(target.log_densities_fn(position))

        return jax.vmap(jax.value_and_grad(log_joint))(positions)

    texts = []
    for data in (plain, shards):
        target = trace_target(Problem(in_shards, args=tuple(data)), random.key(0))
        texts.append(jax.jit(gradients).lower(target, jnp.ones((8, 2))).compile().as_text())
    assert "all-reduce" not in texts[0]
    # Sums travel, and rows stay where they are.
    assert "all-reduce" in texts[1]
    assert "all-gather" not in texts[1]
    estimator = DAIS(in_shards, start=NEARBY, **SHORT)
    one, other = (estimator.log_evidence(random.key(1), *data) for data in (plain, shards))
    np.testing.assert_allclose(other.log_weights, one.log_weights, atol=2e-3)
    np.testing.assert_allclose(other.log_evidence, one.log_evidence, atol=1e-3)
    assert other.samples(random.key(2), 3)["w"].shape == (3, 2)
    with pytest.raises(ValueError, match="invalid logits"):
        estimator.log_evidence(random.key(1), shards[0].at[519, 0].set(jnp.nan), shards[1])


def test_rows_in_shards_are_summed_by_a_collective():
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
    code = (
        f"import warnings; from {__name__} import check_shards; "
        "warnings.simplefilter('ignore'); check_shards()"
    )
    process = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "XLA_FLAGS": flags.strip()},
        capture_output=True,
        encoding="utf-8",
    )
    assert process.returncode == 0, process.stderr
