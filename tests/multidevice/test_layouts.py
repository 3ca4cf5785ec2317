# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""The same bits on one device, on four, and on two processes with two devices each."""

import json
import os
from pathlib import Path
import signal
import socket
import subprocess
import sys
import time

import pytest

from tests.multidevice import layouts

ROOT = Path(__file__).parents[2]
# Seconds that all runs of a layout may take, and a process without its peer: three heartbeats.
LIMIT, LONELY_LIMIT = 600, 3 * layouts.HEARTBEAT_SECONDS
# What the suite sets for quick compilation, which a user does not.
QUICK = ("XLA_FLAGS", "JAX_DISABLE_MOST_OPTIMIZATIONS")
NAMES = list(layouts.cases())
OPTIMISED = ("settings", "importance sampling")


def start(module, *args, is_optimised=False):
    """Starts a program of this folder."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    if is_optimised:
        environment = {name: value for name, value in environment.items() if name not in QUICK}
    command = [sys.executable, "-m", f"tests.multidevice.{module}", *map(str, args)]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def stop(processes):
    """Ends programs, whatever they do, and closes what they have written to."""
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def outputs(processes):
    """The last line of each, as JSON."""
    found = []
    try:
        for process in processes:
            out, err = process.communicate(timeout=LIMIT)
            assert process.returncode == 0, err[-4000:]
            found.append(json.loads(out.splitlines()[-1]))
    finally:
        stop(processes)
    return found


def digests(*names, is_optimised=False):
    """The digests of all layouts, by layout."""
    port = free_port()
    commands = {
        "1 device": [(1, "", "", "")],
        "4 devices": [(4, "", "", "")],
        "2 hosts": [(2, rank, 2, port) for rank in range(2)],
    }
    found = {}
    for layout, processes in commands.items():
        started = [start("layouts", *args, *names, is_optimised=is_optimised) for args in processes]
        found[layout] = outputs(started)
    return found


@pytest.fixture(scope="module")
def of_layouts():
    return digests()


@pytest.mark.parametrize("name", NAMES)
def test_all_layouts_have_the_same_bits(of_layouts, name):
    found = {str(of_host[name]) for hosts in of_layouts.values() for of_host in hosts}
    assert len(found) == 1


def test_the_digests_of_different_runs_differ(of_layouts):
    (found,) = of_layouts["1 device"]
    runs = [str(found[name]) for name in NAMES]
    assert len(set(runs)) == len(runs)


def test_hosts_read_the_same_of_an_evidence(of_layouts):
    """Also the seconds of its rounds, which are those of the first host."""
    one, other = (of_host["summary"] for of_host in of_layouts["2 hosts"])
    assert one == other
    (alone,) = of_layouts["4 devices"]
    rounds = alone["summary"].pop("rounds"), one.pop("rounds")
    assert alone["summary"] == one
    assert len(rounds[0]) == len(rounds[1])


def test_only_the_first_host_shows_a_bar(of_layouts):
    assert [of_host["bars"] for of_host in of_layouts["2 hosts"]] == [2, 0]
    assert [of_host["bars"] for of_host in of_layouts["4 devices"]] == [2]


def test_all_layouts_have_the_same_bits_with_optimisations():
    found = digests(*OPTIMISED, is_optimised=True)
    for name in OPTIMISED:
        assert len({of_host[name] for hosts in found.values() for of_host in hosts}) == 1


@pytest.mark.parametrize("killed", [0, 1])
def test_a_host_whose_peer_is_killed_ends_with_an_error(killed):
    port = free_port()
    processes = [start("endless", 2, rank, 2, port) for rank in range(2)]
    try:
        for process in processes:
            assert any(line.startswith("running") for line in process.stdout)
        processes[killed].send_signal(signal.SIGKILL)
        began = time.monotonic()
        _, err = processes[1 - killed].communicate(timeout=LONELY_LIMIT)
        assert time.monotonic() - began < LONELY_LIMIT
        assert processes[1 - killed].returncode != 0
        assert err
    finally:
        stop(processes)


def test_devices_that_are_named():
    """Where data and results are, derivatives, batches and errors, on four devices."""
    (found,) = outputs([start("placements", 4)])
    assert found == "passed"
