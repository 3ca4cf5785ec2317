# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Runs of one target and method in a process of their own: a peak of memory, and an end, for each."""

import subprocess
import time


def run_process(
    command: list, title: str, max_seconds: float, env: dict[str, str] | None = None
) -> str | None:
    """
    Returns why a process ended too early, None if it did not, and prints how long it took.

    :param command: the process.
    :param title: what it does, for people.
    :param max_seconds: after which it is ended.
    :param env: its environment, if it is to have one of its own.
    """
    begin, reason = time.perf_counter(), None
    try:
        process = subprocess.run(
            list(map(str, command)),
            timeout=max_seconds,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            env=env,
        )
        if process.returncode:
            reason = (process.stderr.strip().splitlines() or ["killed"])[-1]
    except subprocess.TimeoutExpired:
        reason = f"over {max_seconds:g} s"
    seconds = time.perf_counter() - begin
    print(f"{title}: {seconds:.0f} s{f' ({reason})' if reason else ''}", flush=True)
    return reason
