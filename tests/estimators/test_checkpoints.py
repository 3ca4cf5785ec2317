# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Runs that are killed go on from their checkpoint, and end as if nothing had happened."""

import io
import os
import signal
import subprocess
import sys
import warnings

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import pytest

import numpyro
import numpyro.distributions as dist

from numpyro_dais import DAIS, HAIS
from numpyro_dais._util.journal import Journal
from numpyro_dais.estimators import checkpoints
from numpyro_dais.estimators.staged import StagedRunner
from numpyro_dais.tuning.plan import WIDTH
from numpyro_dais.tuning.quality import Quality
from tests.cases import beta_binomial

Y = jnp.array([1.0, 2.0, 0.5])
SETTINGS = {"start": "prior", "num_steps": 256, "num_particles": 600}


def model(y):
    scale = numpyro.sample("scale", dist.HalfNormal(2.0))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.StudentT(3.0, 0.3, scale), obs=y)


def estimate(path=None, key=0, y=Y, model=model, **changes):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        estimator = DAIS(model, **{**SETTINGS, **changes})
        return estimator.log_evidence(random.key(key), y, checkpoint=path)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def stumble():
    raise RuntimeError("out of memory")


class Blocks:
    """Counts blocks of particles, and does something in the middle of one."""

    def __init__(self, monkeypatch, last=None, act=die):
        self.number, self.last, self.act = 0, last, act
        self.run_block = StagedRunner._run_block
        monkeypatch.setattr(StagedRunner, "_run_block", lambda *args: self.run(*args))

    def run(self, *args):
        self.number += 1
        if self.number == self.last:
            self.act()
        return self.run_block(*args)


def run_and_die(path, last):
    """What the process does that is killed."""
    Blocks(pytest.MonkeyPatch(), int(last))
    estimate(path)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    path = tmp_path_factory.mktemp("checkpoints") / "run"
    with pytest.MonkeyPatch.context() as monkeypatch:
        blocks = Blocks(monkeypatch)
        return estimate(path), blocks.number, path


def test_a_killed_run_ends_with_the_bits_of_an_undisturbed_one(undisturbed, tmp_path, monkeypatch):
    evidence, num_blocks, _ = undisturbed
    num_last = -(-SETTINGS["num_particles"] // WIDTH)
    assert num_blocks > num_last + 3
    path = tmp_path / "run"
    # In the middle of a round that chooses candidates, and in the middle of the last one.
    for last in (3, num_blocks - num_last // 2):
        code = f"from {__name__} import run_and_die; run_and_die({str(path)!r}, {last})"
        process = subprocess.run([sys.executable, "-c", code], check=False)
        assert process.returncode == -signal.SIGKILL
        assert path.exists()
    blocks = Blocks(monkeypatch)
    resumed = estimate(path)
    assert 0 < blocks.number <= num_last
    np.testing.assert_array_equal(resumed.log_weights, evidence.log_weights)
    np.testing.assert_array_equal(resumed.positions, evidence.positions)
    assert resumed.settings.decision.lines == evidence.settings.decision.lines
    assert resumed.num_gradients == evidence.num_gradients
    # A run that is done is not done again.
    assert estimate(path).num_gradients == evidence.num_gradients
    assert blocks.number <= num_last


def test_a_long_round_is_kept_in_parts(undisturbed, tmp_path, monkeypatch):
    evidence, num_blocks, _ = undisturbed
    monkeypatch.setattr("numpyro_dais.estimators.staged._SECONDS", 0.0)
    monkeypatch.setattr("numpyro_dais._util.journal._WRITING_SHARE", np.inf)
    with monkeypatch.context() as context:
        Blocks(context, num_blocks - 2, stumble)
        with pytest.raises(RuntimeError, match="out of memory"):
            estimate(tmp_path / "run")
    blocks = Blocks(monkeypatch)
    resumed = estimate(tmp_path / "run")
    assert blocks.number == 3
    np.testing.assert_array_equal(resumed.log_weights, evidence.log_weights)


def test_a_checkpoint_changes_nothing(undisturbed):
    np.testing.assert_array_equal(estimate().log_weights, undisturbed[0].log_weights)


def test_a_fit_is_restored(tmp_path, monkeypatch):
    """Draws of a fitted start, without steps."""
    changes = {"start": "auto", "num_steps": None, "num_particles": None, "budget": 20_000}
    evidence = estimate(tmp_path / "run", **changes)
    assert evidence.settings.start is not None
    fail = lambda *_, **__: pytest.fail("ran again")  # noqa: E731
    for name in ("fitting.find_modes", "fitting.variational_fit", "fitting.second_look"):
        monkeypatch.setattr(f"numpyro_dais.tuning.{name}", fail)
    monkeypatch.setattr("numpyro_dais.estimators.base.run", fail)
    restored = estimate(tmp_path / "run", **changes)
    jax.tree.map(np.testing.assert_array_equal, restored.settings, evidence.settings)
    np.testing.assert_array_equal(restored.log_weights, evidence.log_weights)
    assert restored.findings == evidence.findings


def test_what_the_clock_has_decided_stays(tmp_path, monkeypatch):
    evidence = estimate(tmp_path / "run", max_seconds=1e-6)
    assert "Time is up" in evidence.notes[0]
    monkeypatch.setattr(Journal, "seconds", lambda self: 0.0)
    restored = estimate(tmp_path / "run", max_seconds=1e-6)
    assert restored.notes == evidence.notes
    np.testing.assert_array_equal(restored.log_weights, evidence.log_weights)


def test_the_clock_goes_on(tmp_path):
    journal = Journal(tmp_path / "run")
    journal.earlier_seconds = 1000.0
    journal.stage("first", lambda: 1)
    assert 1000.0 <= Journal(tmp_path / "run").seconds() < 1100.0


def other(y):
    scale = numpyro.sample("scale", dist.HalfNormal(2.0))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.StudentT(4.0, 0.3, scale), obs=y)


def closed_over(values):
    def model(y):
        scale = numpyro.sample("scale", dist.HalfNormal(2.0))
        numpyro.sample("y", dist.StudentT(3.0, 0.3, scale).expand((3,)), obs=values)

    return model


DIFFERENCES = {
    "another model": ({"model": other}, r"in the traced model \("),
    "data": ({"y": Y + 1}, r"in the values of args \([^;]*\)\. Give another path"),
    "shapes": ({"y": jnp.ones(4)}, r"in the traced model .*; the shapes of args \(float32\[3\]"),
    "key": ({"key": 1}, r"in the random key \([^;]*\)\. Give"),
    "budget": ({"budget": 50_000}, r"the setting budget \(100000, and now 50000\)\. Give"),
    "steps": ({"num_steps": 32}, r"the setting num_steps \(256, and now 32\)"),
    "seconds": ({"max_seconds": 9}, r"the setting max_seconds \(None, and now 9.0\)"),
    "islands": ({"resample_at": (0.5,), "num_particles": 640}, "the setting resample_at"),
    "start": ({"start": {"scale": dist.LogNormal(0.0, 1.0)}}, "the traced model .*values of start"),
}


@pytest.mark.parametrize(("changes", "reason"), DIFFERENCES.values(), ids=DIFFERENCES)
def test_a_checkpoint_of_another_run_is_refused(changes, reason, undisturbed):
    path = undisturbed[-1]
    before = path.read_bytes()
    with pytest.raises(ValueError, match=f"is of another run: it differs .*{reason}"):
        estimate(path, **changes)
    assert path.read_bytes() == before


def test_arrays_that_a_model_closes_over_are_data(tmp_path):
    short = {"num_steps": 16, "num_particles": 32}
    estimate(tmp_path / "run", model=closed_over(Y), **short)
    with pytest.raises(ValueError, match=r"in the arrays that the model closes over \([^;]*\)\."):
        estimate(tmp_path / "run", model=closed_over(Y + 1), **short)


@pytest.mark.parametrize("library", ["numpyro_dais", "jaxlib"])
def test_a_checkpoint_of_another_version_is_refused(library, undisturbed, monkeypatch):
    known = checkpoints.version
    monkeypatch.setattr(checkpoints, "version", lambda name: known(name) + ".5" * (name == library))
    with pytest.raises(ValueError, match=f"differs in the version of {library} \\("):
        estimate(undisturbed[-1])


def damaged(data):
    return data[:100] + bytes(20) + data[120:]


def of_numpy(data, header='{"title": "mine"}'):
    file = io.BytesIO()
    np.savez(file, header=np.array(header))
    return file.getvalue()


DAMAGES = {
    "torn": lambda data: data[: len(data) // 2],
    "damaged": damaged,
    "empty": lambda data: b"",
    "text": lambda data: b"not a checkpoint at all",
    "another npz": of_numpy,
    "another header": lambda data: of_numpy(data, "[1]"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_checkpoint_is_an_error(damage, undisturbed, tmp_path):
    data = damage(undisturbed[-1].read_bytes())
    (tmp_path / "run").write_bytes(data)
    with pytest.raises(
        ValueError, match=r"run' is not a checkpoint.*remove the file to begin anew"
    ):
        estimate(tmp_path / "run")
    assert (tmp_path / "run").read_bytes() == data


def with_checkpoint(y, checkpoint):
    return model(checkpoint * y)


def traced(path):
    return jax.jit(lambda y: DAIS(model).log_evidence(None, y, checkpoint=path).log_evidence)(Y)


NO_ROUNDS = "checkpoint= keeps the rounds of a self-tuned run.* and this {} has none"
FAULTS = {
    "a step size": (
        lambda path: DAIS(model, step_size=0.1).log_evidence(None, Y, checkpoint=path),
        NotImplementedError,
        NO_ROUNDS.format("DAIS"),
    ),
    "no steps": (
        lambda path: DAIS(model, num_steps=0).log_evidence(None, Y, checkpoint=path),
        NotImplementedError,
        NO_ROUNDS.format("DAIS"),
    ),
    "HAIS": (
        lambda path: HAIS(model).log_evidence(None, Y, checkpoint=path),
        NotImplementedError,
        NO_ROUNDS.format("HAIS"),
    ),
    "jit": (traced, ValueError, "checkpoint= runs on the host and needs concrete arguments"),
    "no path": (
        lambda path: DAIS(beta_binomial).log_evidence(checkpoint=3),
        TypeError,
        "checkpoint must be the path of a file; got 3",
    ),
    "no directory": (
        lambda path: DAIS(beta_binomial).log_evidence(checkpoint=path / "not" / "there"),
        FileNotFoundError,
        "in a directory that is there; got .*there'. Make the directory first",
    ),
    "the model's own": (
        lambda path: DAIS(with_checkpoint).log_evidence(None, Y, checkpoint=2.0),
        ValueError,
        r"also one of the model, which would not get it; got 2.0.*by position, or wrap the model",
    ),
}


@pytest.mark.parametrize(("call", "kind", "message"), FAULTS.values(), ids=FAULTS)
def test_faults(call, kind, message, tmp_path):
    with pytest.raises(kind, match=message):
        call(tmp_path / "run" if kind is not FileNotFoundError else tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_model_may_have_its_own_by_position(tmp_path):
    estimator = DAIS(with_checkpoint, **{**SETTINGS, "num_steps": 16, "num_particles": 32})
    evidence = estimator.log_evidence(random.key(0), Y, 1.0, checkpoint=tmp_path / "run")
    assert np.isfinite(float(evidence))
    assert (tmp_path / "run").exists()


OUTCOMES = {
    "numbers": (1, -0.0, float("inf"), True, None, "words"),
    "arrays": (np.arange(3), np.float64(0.1), np.zeros((0, 2), np.float32), np.array(True)),
    "of JAX": (jnp.arange(3.0), (jnp.float32(0.1),)),
    "named": Quality(0.5, float("nan")),
}


@pytest.mark.parametrize("outcome", OUTCOMES.values(), ids=OUTCOMES)
def test_outcomes_are_read_as_they_were_written(outcome, tmp_path):
    first = Journal(tmp_path / "run")
    assert first.stage("stage", lambda: outcome) is outcome
    found = Journal(tmp_path / "run").stage("stage", lambda: pytest.fail("ran again"))
    assert type(found) is type(outcome)
    for one, other in zip(found, outcome, strict=True):
        assert type(one) is type(other)
        if not isinstance(one, tuple):
            np.testing.assert_array_equal(one, other)
            assert getattr(one, "dtype", None) == getattr(other, "dtype", None)


def test_stages_that_were_not_written_are_run_again(tmp_path):
    first = Journal(tmp_path / "run")
    first.stage("one", lambda: 1)
    first._writing_seconds = 1e9  # so that it waits for the end of the round
    first.stage("two", lambda: 2)
    second = Journal(tmp_path / "run")
    assert second.stage("one", lambda: 10) == 1
    assert second.stage("two", lambda: 20) == 20
    first.write()
    assert [Journal(tmp_path / "run").stage("one", int), len(first._stages)] == [1, 2]


def test_a_run_that_comes_to_another_stage_is_told_so(tmp_path):
    Journal(tmp_path / "run").stage("one", lambda: 1)
    with pytest.raises(ValueError, match=r"does not fit: its stage 0 is 'one'.*come to 'two'"):
        Journal(tmp_path / "run").stage("two", lambda: 2)


def test_an_interrupted_writing_leaves_the_old_file(tmp_path, monkeypatch):
    journal = Journal(tmp_path / "run")
    journal.stage("one", lambda: 1)
    monkeypatch.setattr(os, "fsync", lambda file: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        journal.stage("two", lambda: np.zeros(1000)), journal.write()
    assert Journal(tmp_path / "run").stage("one", lambda: 10) == 1
