# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Scaling: what devices, particles and rows of data cost
======================================================

Four tables, written to ``figures/scaling.md`` with a picture beside it:

1. throughput of two single-threaded CPU devices over that of one, on two cores: a logistic regression with 1,000
   rows in 50 dimensions, 1,000 steps, 1,024 particles, the median of interleaved pairs. The claim: 1.7 at least.
2. particles from 10^3 to 10^6 on one device: time per particle, which must not grow, and memory.
3. rows of data from 10^4 to 10^7, those that memory has room for: time per row and memory.
4. first and later calls on one device over those of another commit, from a worktree of its own: ratios of medians of
   interleaved pairs, each in new processes. The claim: none is slower.

    python benchmarks/scaling.py --old COMMIT

Each measurement is made in a process of its own, since devices and threads are fixed when it starts. Machines that do
other work at the same time make all of this meaningless.
"""

import argparse
from collections.abc import Callable
import json
import os
from pathlib import Path
import subprocess
import sys
import tempfile
import time
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).parents[1]
FIGURES = Path(__file__).parent / "figures"
# Bytes that a step needs for each row and particle of a block, and particles of a block of many rows; the second is
# the runner's own, the first was seen in the runs of 10^6 rows, and rounded up.
BYTES_PER_CELL, BLOCK_PARTICLES = 40, 16
# Seconds of a run of which its compilation is a small part.
LONG = 60


def regression(num_rows: int, num_dims: int) -> tuple[Callable, tuple]:
    """A logistic regression and its data."""
    import numpyro
    import numpyro.distributions as dist

    def model(X: Any, y: Any) -> None:
        b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([num_dims]).to_event(1))
        numpyro.sample("y", dist.Bernoulli(logits=X @ b), obs=y)

    rng = np.random.default_rng(0)
    X = rng.standard_normal((num_rows, num_dims), np.float32)
    y = (rng.random(num_rows, np.float32) < 1 / (1 + np.exp(-X[:, 0]))).astype(np.float32)
    return model, (X, y)


def case_of(name: str, *numbers: int) -> Callable[[], Any]:
    """A run by name: a function without arguments."""
    from jax import random
    import jax.numpy as jnp

    import numpyro
    import numpyro.distributions as dist

    from numpyro_dais import DAIS

    def schools() -> None:
        y = jnp.array([28.0, 8, -3, 7, -1, 1, 18, 12])
        sigma = jnp.array([15.0, 10, 16, 11, 9, 11, 10, 18])
        mu = numpyro.sample("mu", dist.Normal(0, 5))
        tau = numpyro.sample("tau", dist.HalfCauchy(5))
        with numpyro.plate("J", 8):
            z = numpyro.sample("z", dist.Normal(0, 1))
            numpyro.sample("obs", dist.Normal(mu + tau * z, sigma), obs=y)

    key = random.key(0)
    if name == "self-tuned":
        return lambda: DAIS(schools).log_evidence(key)
    if name == "given":
        num_steps, num_particles = numbers
        chain = {"num_steps": num_steps, "step_size": 0.1, "num_particles": num_particles}
        return lambda: DAIS(schools, **chain).log_evidence(key)
    num_rows, num_dims, num_steps, num_particles = numbers
    model, data = regression(num_rows, num_dims)
    chain = {"num_steps": num_steps, "step_size": 0.01, "num_particles": num_particles}
    return lambda: DAIS(model, **chain).log_evidence(key, *data)


def peak_memory() -> int:
    """The peak of the process's resident memory in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def work(num_devices: int, num_cores: int, name: str, *numbers: int) -> None:
    """In a process of its own: a run for each line on the standard input."""
    import warnings

    warnings.simplefilter("ignore")
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:num_cores])
    os.environ["PJRT_NPROC"] = str(num_cores)
    import jax

    jax.config.update("jax_num_cpu_devices", num_devices)
    run = case_of(name, *numbers)
    for _ in sys.stdin:
        began = time.perf_counter()
        digest_of = getattr(evidence := run(), "digest", str)
        seconds = time.perf_counter() - began
        found = {"seconds": seconds, "memory": peak_memory(), "digest": digest_of()}
        found["estimate"] = float(evidence)
        print(json.dumps(found), flush=True)


class Worker:
    """A process that makes one kind of run."""

    def __init__(self, num_devices: int, num_cores: int, *case: Any, root: Path = ROOT) -> None:
        arguments = [str(x) for x in (num_devices, num_cores, *case)]
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--work", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(root), "JAX_PLATFORMS": "cpu"},
        )

    def run(self) -> dict:
        """Makes a run, and returns what it took."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def table(header: tuple[str, ...], rows: list[tuple]) -> str:
    """A table in Markdown."""
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def of_devices(args: argparse.Namespace) -> tuple[str, float]:
    """The throughput of two devices over that of one."""
    case = "regression", args.rows, 50, args.steps, args.particles
    one, two = Worker(1, 1, *case), Worker(2, 2, *case)
    first = [worker.run() for worker in (one, two)]
    pairs = [(one.run()["seconds"], two.run()["seconds"]) for _ in range(args.pairs)]
    for worker in (one, two):
        worker.close()
    ratios = [a / b for a, b in pairs]
    rows = [(n + 1, f"{a:.3g} s", f"{b:.3g} s", f"{a / b:.2f}") for n, (a, b) in enumerate(pairs)]
    rows.append(("median", "", "", f"{np.median(ratios):.2f}"))
    is_same = "the same" if first[0]["digest"] == first[1]["digest"] else "other"
    words = (
        f"First calls took {first[0]['seconds']:.3g} s and {first[1]['seconds']:.3g} s; the digests are {is_same}, "
        "with one thread and with two."
    )
    shown = table(("pair", "one device", "two", "ratio"), rows)
    return f"{shown}\n\n{words}", float(np.median(ratios))


def of_sizes(cases: list[tuple], unit: str) -> tuple[str, list[tuple[int, float]]]:
    """Time and memory of runs that get larger, from their sizes and cases."""
    rows, points = [], []
    for size, case in cases:
        worker = Worker(1, len(os.sched_getaffinity(0)), *case)
        found = worker.run()
        if found["seconds"] < LONG:  # what is short is measured without its compilation
            found = worker.run()
        worker.close()
        points.append((size, found["seconds"] / size))
        memory = f"{found['memory'] / 2**20:,.0f} MiB"
        rows.append(
            (f"{size:,}", f"{found['seconds']:.3g} s", f"{1e6 * points[-1][1]:.3g} µs", memory)
        )
        print(rows[-1], flush=True)
    header = (unit, "seconds", f"per {unit[:-1]}", "peak memory")
    return table(header, rows), points


def of_commits(args: argparse.Namespace) -> str:
    """First and later calls over those of another commit."""
    cases = {
        "eight schools, self-tuned": ("self-tuned",),
        "eight schools, 128 particles, 256 steps": ("given", 256, 128),
        "eight schools, 4,096 particles, 256 steps": ("given", 256, 4096),
        "regression, 1,024 particles, 200 steps": ("regression", 1000, 50, 200, 1024),
        "regression without steps, 100,000 particles": ("regression", 1000, 50, 0, 100_000),
    }
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        there = Path(folder) / "old"
        command = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*command, "add", "--detach", str(there), args.old], check=True)
        try:
            for name, case in cases.items():
                firsts, laters = [], []
                for _ in range(args.pairs):
                    found = []
                    for root in (there, ROOT):
                        worker = Worker(1, len(os.sched_getaffinity(0)), *case, root=root)
                        seconds = [worker.run()["seconds"] for _ in range(4)]
                        worker.close()
                        found.append((seconds[0], np.median(seconds[1:])))
                    firsts.append(found[1][0] / found[0][0])
                    laters.append(found[1][1] / found[0][1])
                rows.append((name, f"{np.median(firsts):.2f}", f"{np.median(laters):.2f}"))
                print(rows[-1], flush=True)
        finally:
            subprocess.run([*command, "remove", "--force", str(there)], check=True)
    return table(("run", "first call, new over old", "later calls"), rows)


def rows_with_room(most: int) -> list[int]:
    """Numbers of rows that memory has room for."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    numbers = [number for number in (10**4, 10**5, 10**6, 10**7) if number <= most]
    return [n for n in numbers if n * BLOCK_PARTICLES * BYTES_PER_CELL < 0.8 * free]


def draw(of_particles: list, of_rows: list, path: Path) -> None:
    """Time per particle, and per row."""
    _, axes = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    pairs = (axes[0], of_particles, "particles"), (axes[1], of_rows, "rows of data")
    for axis, points, name in pairs:
        axis.loglog(*zip(*points, strict=True), "o-", color="#0072b2")
        axis.set_xlabel(name)
        axis.set_ylabel(f"seconds per {name.split()[0][:-1]}")
    plt.savefig(path, dpi=120)


def main(args: argparse.Namespace) -> None:
    parts = ["# Scaling", f"Printed by `python benchmarks/scaling.py`, on {os.cpu_count()} cores."]
    words, ratio = of_devices(args)
    parts += ["## One and two devices", words]
    print(f"two devices over one: {ratio:.2f}", flush=True)
    sizes = [10**3, 10**4, 10**5, 10**6]
    cases = [(n, ("regression", 200, 10, 16, n)) for n in sizes if n <= args.most_particles]
    words, of_particles = of_sizes(cases, "particles")
    parts += ["## Particles, 16 steps, 200 rows, 10 dimensions", words]
    cases = [(n, ("regression", n, 10, 4, 16)) for n in rows_with_room(args.most_rows)]
    words, of_rows = of_sizes(cases, "rows")
    parts += ["## Rows, 16 particles, 4 steps, 10 dimensions", words]
    if args.old is not None:
        parts += [f"## This commit over {args.old}, on one device", of_commits(args)]
    args.output.mkdir(parents=True, exist_ok=True)
    draw(of_particles, of_rows, args.output / "scaling.png")
    (args.output / "scaling.md").write_text("\n\n".join(parts) + "\n")
    print("\n\n".join(parts))


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The cost of devices, particles and rows.")
    parser.add_argument("--old", help="a commit to compare with on one device")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--particles", type=int, default=1024)
    parser.add_argument("--most-particles", type=int, default=10**6)
    parser.add_argument("--most-rows", type=int, default=10**7)
    parser.add_argument("--output", type=Path, default=FIGURES)
    return parser.parse_args()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        devices, cores, name, *numbers = sys.argv[2:]
        work(int(devices), int(cores), name, *map(int, numbers))
    else:
        main(parse_args())
