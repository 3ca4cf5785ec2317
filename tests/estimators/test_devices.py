# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""``devices=``: what is refused, how pieces are divided, and blocks; runs are in ``tests/multidevice``."""

from dataclasses import dataclass, replace

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import pytest

from numpyro_dais import AIS, DAIS, HAIS, ImportanceSampling
from numpyro_dais._util import devices
from numpyro_dais._util.devices import Layout, check_devices, layout_of, spread
from numpyro_dais.estimators import runner
from tests.cases import beta_binomial

RULE = "devices must be a sequence of JAX devices, such as jax.devices\\(\\), or a jax.sharding.Mesh; got "
REFUSED = {
    "a number": (4, RULE + "4"),
    "a name": ("cpu", RULE + "'cpu'"),
    "numbers": ([0, 1], RULE + "0. Leave it out for all"),
    "none": ([], RULE + "none. Leave it out for all"),
    "twice the same": (jax.devices() * 2, "devices must be different devices; got "),
}


@pytest.mark.parametrize("estimator", [DAIS, HAIS, AIS, ImportanceSampling])
@pytest.mark.parametrize(("value", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_list_of_devices_is_refused(estimator, value, message):
    with pytest.raises(ValueError, match=message):
        estimator(beta_binomial, devices=value)


@dataclass(frozen=True)
class Stub:
    """A device of some process."""

    id: int
    process_index: int = 0
    platform: str = "cpu"


@pytest.fixture
def as_hosts(monkeypatch):
    """Makes stubs pass for devices, and this process for one of three."""
    monkeypatch.setattr(devices.jax, "Device", Stub)
    monkeypatch.setattr(devices.jax, "process_count", lambda: 3)


def stubs(*processes):
    return tuple(Stub(number, process) for number, process in enumerate(processes))


OF_HOSTS = {
    "unequal": (stubs(0, 0, 1), "as many of each process.*by process, {0: 2, 1: 1}"),
    "two kinds": ((Stub(0), Stub(1, 0, "gpu")), r"of one kind.*got \['cpu', 'gpu'\]"),
}


@pytest.mark.usefixtures("as_hosts")
@pytest.mark.parametrize(("found", "message"), OF_HOSTS.values(), ids=OF_HOSTS)
def test_unlike_devices_are_refused(found, message):
    with pytest.raises(ValueError, match=message):
        check_devices(list(found))


@pytest.mark.usefixtures("as_hosts")
def test_devices_of_other_processes_are_refused():
    with pytest.raises(
        ValueError, match="some of each process that makes the run; got none of proc"
    ):
        layout_of(stubs(1, 2), ())
    with pytest.raises(ValueError, match="or have some of all processes; got devices of 2 of 3"):
        layout_of(stubs(0, 1), ())

    def traced(x):
        layout_of(stubs(0, 1, 2), x)
        return x

    with pytest.raises(NotImplementedError, match=r"Under jit, vmap and grad.*jax.local_devices"):
        jax.jit(traced)(1.0)


@pytest.mark.usefixtures("as_hosts")
def test_a_layout_has_the_devices_of_this_process(monkeypatch):
    everywhere = stubs(0, 0, 1, 1, 2, 2)
    monkeypatch.setattr(devices.jax, "process_index", lambda: 1)
    assert layout_of(everywhere, ()) == Layout(everywhere[2:4], 3, 1)
    assert layout_of(everywhere, (), is_alone=True) == Layout(everywhere[2:4])
    assert layout_of(everywhere[2:3], ()) == Layout(everywhere[2:3], home=everywhere[2])


def test_on_one_device_nothing_is_divided():
    assert layout_of(None, jnp.ones(3)) is None


def test_pieces_of_all_processes_come_in_order(monkeypatch):
    """Seven pieces on three processes with two devices each; the parts of others are as they compute them."""
    items = np.arange(7)

    def compute(group):
        assert len(group) <= 2
        return [10 * item for item in group]

    parts = []
    monkeypatch.setattr(devices, "gathered", lambda tree: parts.append(tree) or np.zeros(9))
    for rank in range(3):
        list(spread(Layout((None, None), 3, rank), items, compute))
    whole = np.concatenate(parts)
    assert len({len(part) for part in parts}) == 1
    monkeypatch.setattr(devices, "gathered", lambda _: whole)
    assert list(spread(Layout((None, None), 3, 1), items, compute)) == list(10 * items)


def test_a_process_without_a_piece_of_its_own_takes_part(monkeypatch):
    sizes = []
    monkeypatch.setattr(devices, "gathered", lambda tree: sizes.append(len(tree)) or np.zeros(5))
    for rank in range(5):
        list(spread(Layout((None,), 5, rank), np.arange(2), list))
    assert sizes == [1] * 5


def test_errors_of_the_first_process_reach_the_others(monkeypatch):
    sent = []
    monkeypatch.setattr(
        devices.multihost_utils, "broadcast_one_to_all", lambda x: sent.append(x) or x
    )
    layout = Layout((None,), 2, 0)
    assert devices.agreed(layout, lambda: {"a": 1}) == {"a": 1}

    def fail():
        raise ValueError("no such site")

    with pytest.raises(ValueError, match="no such site"):
        devices.agreed(layout, fail)
    # What another process is sent is what it returns or raises.
    monkeypatch.setattr(devices, "is_leader", lambda: False)
    replies = iter(sent[2:])
    monkeypatch.setattr(
        devices.multihost_utils, "broadcast_one_to_all", lambda _: np.asarray(next(replies))
    )
    with pytest.raises(ValueError, match="no such site"):
        devices.agreed(layout, lambda: pytest.fail("only the first process computes"))


@pytest.mark.parametrize("num_particles", [1, 37, 128, 129, 1000, 5000, 100_000])
def test_blocks_hold_all_particles_and_few_others(num_particles):
    target = DAIS(beta_binomial)._preparation.target(
        DAIS(beta_binomial)._problem((), {}), random.key(0)
    )
    for num_steps in (0, 8):
        size = runner._block_size(target, num_particles, 1, num_steps, 1024)
        num_blocks = -(-num_particles // size)
        assert size <= 1024
        assert 0 <= num_blocks * size - num_particles < num_blocks
        if num_steps and 16 * 128 <= num_particles <= 16 * 1024:
            assert num_blocks == 16


def test_a_digest_is_of_every_bit():
    evidence = DAIS(beta_binomial, num_steps=3, step_size=0.1, num_particles=40).log_evidence()
    assert len(evidence.digest()) == 16
    weights = np.array(evidence.log_weights)
    weights[7] = np.nextafter(weights[7], np.inf)
    assert replace(evidence, log_weights=weights).digest() != evidence.digest()
    positions = -np.asarray(evidence.positions)
    assert replace(evidence, positions=positions).digest() != evidence.digest()
    reverse = replace(evidence, reverse_log_weights=evidence.log_weights)
    assert reverse.digest() != evidence.digest()
