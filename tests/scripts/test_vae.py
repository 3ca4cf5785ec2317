# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""The VAE examples: their objectives, data, checkpoints and results; test_examples.py runs the scripts."""

import gzip
import hashlib
from types import SimpleNamespace
from urllib.error import URLError

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from vae_common import (
    Config,
    clipped,
    load_checkpoint,
    make_loss,
    make_vae,
    save_checkpoint,
    start,
    train,
)
import vae_data
from vae_data import load_images
from vae_likelihood import Results
import vae_table

from numpyro.examples import datasets

from numpyro_dais import DAVI

TINY = Config(num_pixels=6, num_latents=2, num_hidden=3, batch_size=4, num_train=8)


@pytest.mark.parametrize(("objective", "num_particles"), [("vae", 1), ("iwae", 5)])
def test_losses_of_numpyro_agree_with_davi_without_steps(objective, num_particles):
    """Means of loss and gradient over keys; an image's own weights, not those of the batch together."""
    config = TINY._replace(objective=objective, num_particles=num_particles)
    vae, checkpoint = make_vae(config), start(config)
    params = jax.tree.map(lambda x: 2.0 * x, checkpoint.params)  # an encoder that is far off
    images = (random.uniform(random.key(3), (4, 6)) < 0.4).astype(float)
    peer, davi = make_loss(config), DAVI(num_steps=0, num_particles=num_particles)

    @jax.jit
    def both(keys):
        def values(loss):
            def value(params, key):
                return loss.loss(key, params, vae.model, vae.guide, images)

            loss, gradient = jax.vmap(jax.value_and_grad(value), (None, 0))(params, keys)
            return [loss, *(x.reshape(len(x), -1).sum(1) for x in jax.tree.leaves(gradient))]

        return values(peer), values(davi)

    for theirs, ours in zip(*both(random.split(random.key(4), 4000)), strict=True):
        error = np.hypot(theirs.std(), ours.std()) / np.sqrt(len(ours))
        assert abs(theirs.mean() - ours.mean()) < 5 * error


def test_resumed_training_is_the_same_bit_for_bit(tmp_path):
    config = TINY._replace(
        objective="davi-adapt", num_steps=2, num_particles=2, step_size=0.1, num_train=10
    )
    grey = np.random.default_rng(0).random((10, 6), np.float32)
    path = tmp_path / "runs" / "first.npz"

    def save_first(checkpoint):
        if checkpoint.epoch == 1:
            save_checkpoint(path, checkpoint)

    whole, bounds = train(start(config), grey, 3, save_first, progress_bar=False)
    halfway = load_checkpoint(path, config)
    assert halfway.epoch == 1
    resumed, rest = train(halfway, grey, 3, progress_bar=False)
    assert rest == bounds[1:]
    old, new = (jax.tree.leaves(run.state.optim_state) for run in (whole, resumed))
    assert len(old) > 36  # parameters of two networks and a schedule, and two moments of each
    for left, right in zip(old, new, strict=True):
        np.testing.assert_array_equal(left, right)
    assert np.any(whole.params["davi_schedule"] != halfway.params["davi_schedule"])
    # Nothing is left of a file that is not complete.
    assert [file.name for file in path.parent.iterdir()] == ["first.npz"]


@pytest.fixture
def checkpoint_file(tmp_path):
    path = tmp_path / "model.npz"
    save_checkpoint(path, start(TINY))
    return path


def test_checkpoint_of_another_architecture(checkpoint_file):
    other = TINY._replace(num_hidden=7, objective="iwae")
    with pytest.raises(ValueError, match="made with objective='vae' and not 'iwae', num_hidden=3"):
        load_checkpoint(checkpoint_file, other)


def test_bad_checkpoints(checkpoint_file, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no checkpoint .*other\.npz\. Train first"):
        load_checkpoint(tmp_path / "other.npz")
    content = checkpoint_file.read_bytes()
    for broken in (content[: len(content) // 2], b"", b"text"):
        checkpoint_file.write_bytes(broken)
        with pytest.raises(ValueError, match=r"not a checkpoint .* or was cut short"):
            load_checkpoint(checkpoint_file)
    with open(checkpoint_file, "wb") as file:
        np.savez(file, header='{"config": {}, "epoch": 1}', weights=np.zeros(3))
    with pytest.raises(ValueError, match="not those of the network"):
        load_checkpoint(checkpoint_file)


def test_batch_larger_than_the_data():
    with pytest.raises(ValueError, match=r"--batch-size must be from 1 to .* 8; got 9"):
        start(TINY._replace(batch_size=9))


def test_outliers_among_gradients_are_clipped():
    optimiser = clipped(optax.sgd(1.0), 2.0)
    for gradient, expected in (([3.0, -4.0], [-1.2, 1.6]), ([1.0, -1.0], [-1.0, 1.0])):
        update, _ = optimiser.update(jnp.array(gradient), optimiser.init(jnp.zeros(2)))
        np.testing.assert_allclose(update, expected, rtol=1e-6)


def test_pixels_are_drawn_with_the_probability_of_their_grey_value():
    grey = jnp.array([0.0, 0.3, 1.0])
    draws = vae_data.binarise(random.key(0), jnp.broadcast_to(grey, (10_000, 3)))
    assert set(np.unique(draws)) == {0.0, 1.0}
    np.testing.assert_allclose(draws.mean(0), grey, atol=5 * 0.46 / 100)


def test_digits_need_no_download():
    images = load_images("digits", num_train=20, num_test=10)
    assert images.train.shape == (20, 64)
    assert images.test.shape == (10, 64)
    assert images.train.min() == 0
    assert images.train.max() == 1
    with pytest.raises(ValueError, match="--num-test must be from 1 to 297 for digits; got 298"):
        load_images("digits", num_test=298)


@pytest.fixture
def mnist(tmp_path, monkeypatch):
    """A directory with two images for each of MNIST's files, and their checksums."""
    rng = np.random.default_rng(0)
    content = {
        name: bytes(16) + rng.integers(0, 256, 2 * 784, np.uint8).tobytes()
        for name in vae_data._CHECKSUMS
    }
    for name, raw in content.items():
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(raw))
    checksums = {name: hashlib.sha256(raw).hexdigest() for name, raw in content.items()}
    monkeypatch.setattr(vae_data, "_CHECKSUMS", checksums)
    monkeypatch.delenv(vae_data.DATA_VARIABLE, raising=False)
    return tmp_path


def test_mnist_from_a_directory(mnist, monkeypatch):
    images = load_images("mnist", mnist)
    raw = gzip.decompress((mnist / "t10k-images-idx3-ubyte.gz").read_bytes())[16:]
    np.testing.assert_allclose(images.test.ravel() * 255, np.frombuffer(raw, np.uint8), rtol=1e-6)
    for file in list(mnist.iterdir()):
        file.with_suffix("").write_bytes(gzip.decompress(file.read_bytes()))
        file.unlink()
    monkeypatch.setenv(vae_data.DATA_VARIABLE, str(mnist))
    np.testing.assert_array_equal(load_images("mnist").train, images.train)


def test_bad_files_of_mnist(mnist):
    file = mnist / "t10k-labels-idx1-ubyte.gz"
    good = file.read_bytes()
    for broken in (good[: len(good) // 2], gzip.compress(b"other"), good[:100] + b"?" + good[101:]):
        file.write_bytes(broken)
        with pytest.raises(
            ValueError, match=r"t10k-labels\S* is truncated or corrupted: the SHA-256"
        ):
            load_images("mnist", mnist)
    file.unlink()
    with pytest.raises(FileNotFoundError, match=r"has no file t10k-labels-idx1-ubyte\.gz"):
        load_images("mnist", mnist)
    with pytest.raises(
        FileNotFoundError, match=r"nowhere, which is no directory\. Set --data-dir or"
    ):
        load_images("mnist", mnist / "nowhere")


def test_offline_and_without_a_directory(mnist, monkeypatch):
    def no_network(*_):
        raise URLError("no network")

    monkeypatch.setattr(datasets, "load_dataset", no_network)
    with pytest.raises(
        FileNotFoundError, match=r"--data-dir \(or set NUMPYRO_DAIS_DATA\).*network"
    ):
        load_images("mnist")


def test_results_survive_an_interruption(tmp_path):
    path = tmp_path / "results.jsonl"
    Results(path).get("a", lambda: [1.0, 2.0])
    with open(path, "a", encoding="utf-8") as file:
        file.write('["b", [3.0')
    results = Results(path)
    assert results.get("a", lambda: pytest.fail("known")).tolist() == [1.0, 2.0]
    assert results.get("b", lambda: 4.0) == 4.0
    assert Results(path).known == {"a": [1.0, 2.0], "b": 4.0}


def test_table(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(vae_table, "SMALL", [("vae", 0, 1), ("iwae", 0, 5)])
    args = SimpleNamespace(
        data="digits",
        data_dir=None,
        num_train=20,
        num_test=10,
        num_epochs=1,
        batch_size=10,
        num_seeds=1,
        num_large_seeds=1,
        step_size=0.1,
        num_latents=2,
        num_hidden=3,
        num_updates=100,
        num_particles=2,
        chunk_size=5,
        paper=False,
        finished_only=True,
        directory=tmp_path / "runs",
        output=tmp_path / "table",
    )
    with pytest.raises(ValueError, match=r"is finished\. Leave --finished-only out"):
        vae_table.main(args)
    args.finished_only = False
    vae_table.main(args)
    table = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert table in capsys.readouterr().out
    assert "| VAE | " in table
    assert "[86.93] | - [86.95] |" in table
    assert "[85.43] |" in table
    rows = (tmp_path / "table.csv").read_text(encoding="utf-8").splitlines()
    assert [row.rsplit(",", 2)[0] for row in rows[1:]] == ["vae,0,1,0", "iwae,0,5,0"]
    assert (tmp_path / "table.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "runs" / "iwae-5-seed0.npz").is_file()
    args.num_epochs = 0
    with pytest.raises(ValueError, match="1 epochs, more than --num-epochs 0"):
        vae_table.main(args)


def test_order_of_runs():
    """Small budgets first, then all large ones with one seed before any with the next."""
    args = SimpleNamespace(num_seeds=2, num_large_seeds=2, paper=False)
    small, first, second = ("vae", 0, 1), ("iwae", 0, 50), ("davi", 10, 5)
    expected = [(small, 0), (small, 1), (first, 0), (second, 0), (first, 1), (second, 1)]
    assert vae_table.plan([first, small, second], args) == expected
    args.paper, args.num_seeds = True, 3
    assert vae_table.plan([first], args) == [(first, 0), (first, 1), (first, 2)]


def test_difference_of_two_kinds():
    def rows(*nll):
        return [vae_table.Row("iwae", 0, 5, seed, np.array(x)) for seed, x in enumerate(nll)]

    ours, theirs = rows([1.0, 4.0], [3.0, 6.0]), rows([5.0, 6.0], [5.0, 6.0])
    # By image: 2 - 5 and 5 - 6; the means of our two runs are 2.5 and 4.5, those of theirs equal.
    assert vae_table.compare(ours, theirs) == "-2.00 ± 1.00 over images, ± 1.00 over runs"
    assert vae_table.compare(ours[:1], theirs) == "-3.00 ± 1.00 over images"
