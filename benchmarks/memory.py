# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Memory: what the gradient of a chain costs in each memory mode
==============================================================

Prints the paper's Table 1 with our numbers: the temporary memory that XLA reserves for the gradient, and its
time, for ``memory="plain"``, ``"checkpoint"`` and ``"reversible"``; on a logistic regression (d=50, n=1000)
with chains of several lengths, and on a Bayesian neural network with 102,610 weights. Then the peak
resident memory of real processes, and a picture of memory against the number of steps.

The claims under test: reversible uses at most 1/500 of plain's memory at 15,000 steps in at most 1.25 times its
time (1.7 at 1,500), and, on the network, at most 1/5 of checkpoint's memory and 30 words per weight.

    python benchmarks/memory.py

References:

1. *Differentiable Annealed Importance Sampling and the Perils of Gradient Noise*, section 3.2 and Table 1,
   Guodong Zhang, Kyle Hsu, Jianing Li, Chelsea Finn, Roger Grosse (NeurIPS 2021)
"""

import argparse
from itertools import pairwise
import math
from pathlib import Path
import subprocess
import sys
import time
from typing import Any, NamedTuple

import jax
from jax import random
import jax.numpy as jnp
import matplotlib
import numpy as np
from overhead import make_problems

import numpyro
import numpyro.distributions as dist

from numpyro_dais import DAIS
from numpyro_dais.sampler.reversible.fixed_point import Ratio, num_flush_steps, rational_damping

matplotlib.use("Agg")
import matplotlib.pyplot as plt

STYLES = {
    "plain": {"color": "#0072b2", "marker": "s"},
    "checkpoint": {"color": "#009e73", "marker": "^"},
    "reversible": {"color": "#d55e00", "marker": "o"},
}
DAMPING = 0.9
LEARNED = Ratio(64, 32, None)
MIB = 2**20


class Cost(NamedTuple):
    """Temporary memory in bytes, seconds per gradient (None if not run), and the gradient."""

    num_bytes: int
    seconds: float | None
    gradient: float | None


def logistic_regression(X, y, scale):
    w = numpyro.sample("w", dist.Normal(jnp.zeros(X.shape[1]), scale).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)


def neural_network(X, y, scale, width=310):
    """Two hidden layers; with 20 covariates it has 102,610 weights."""
    hidden, sizes = X, [X.shape[1], width, width, 1]
    for i, (num_in, num_out) in enumerate(pairwise(sizes)):
        prior = dist.Normal(0, scale / np.sqrt(num_in)).expand([num_in, num_out]).to_event(2)
        hidden = jnp.tanh(hidden) if i else hidden
        hidden = hidden @ numpyro.sample(f"w{i}", prior)
    numpyro.sample("y", dist.Normal(hidden[:, 0], 0.1).to_event(1), obs=y)


def network_data() -> tuple[jax.Array, jax.Array]:
    X = np.random.default_rng(0).standard_normal((100, 20))
    return jnp.array(X), jnp.array(np.sin(X[:, 0]))


def compile_gradient(
    model, data, memory: str, num_steps: int, num_particles: int, step_size: float
):
    """The compiled gradient of the bound with respect to the scale of the prior."""
    estimator = DAIS(
        model,
        num_steps=num_steps,
        num_particles=num_particles,
        step_size=step_size,
        damping=DAMPING,
        memory=memory,
    )
    bound = lambda scale, key: estimator.log_evidence(key, *data, scale).lower_bound  # noqa: E731
    return jax.jit(jax.grad(bound)).lower(1.0, random.key(0)).compile()


def measure(compiled: Any, num_repeats: int) -> Cost:
    """The cost of a compiled gradient, the best of some repeats."""
    num_bytes = compiled.memory_analysis().temp_size_in_bytes
    seconds, gradient = [], None
    for repeat in range(num_repeats + bool(num_repeats)):  # the first warms up
        begin = time.perf_counter()
        gradient = float(compiled(1.0, random.key(repeat)))
        seconds.append(time.perf_counter() - begin)
    return Cost(num_bytes, min(seconds[1:], default=None), gradient)


def table_of_lengths(args: argparse.Namespace) -> dict[int, dict[str, Cost]]:
    _, data = next(iter(make_problems().values()))
    print(f"Logistic regression, d=50, n=1000, S={args.num_particles}, damping {DAMPING}")
    print(f"{'K':>7} {'memory':>11} {'MiB':>9} {'of plain':>9} {'seconds':>8} {'of plain':>9}")
    costs: dict[int, dict[str, Cost]] = {}
    for num_steps in args.num_steps:
        step_size = 0.02 * (num_steps / 1000) ** -0.25
        costs[num_steps] = {}
        for memory in STYLES:
            compiled = compile_gradient(
                logistic_regression, data, memory, num_steps, args.num_particles, step_size
            )
            costs[num_steps][memory] = cost = measure(compiled, args.num_repeats)
            plain = costs[num_steps]["plain"]
            print(
                f"{num_steps:>7} {memory:>11} {cost.num_bytes / MIB:>9.2f} "
                f"{'1/' + format(plain.num_bytes / cost.num_bytes, '.0f'):>9} {cost.seconds:>8.3f} "
                f"{cost.seconds / plain.seconds:>9.2f}",
                flush=True,
            )
            assert np.isfinite(cost.gradient), "the backward pass did not come back to the start"
    return costs


def table_of_network(args: argparse.Namespace) -> None:
    data = network_data()
    width = args.width
    num_weights = 20 * width + width**2 + width
    num_steps = args.num_network_steps
    model = lambda *args: neural_network(*args, width=width)  # noqa: E731
    print(f"\nBayesian neural network, {num_weights} weights, K={num_steps}, S=1")
    print(f"{'memory':>11} {'MiB':>9} {'words per weight':>17} {'seconds':>8}")
    for memory in STYLES:
        compiled = compile_gradient(model, data, memory, num_steps, 1, 0.002)
        cost = measure(compiled, 0 if memory == "plain" else 1)  # plain takes too much to be run
        words = cost.num_bytes / 4 / num_weights
        seconds = "-" if cost.seconds is None else f"{cost.seconds:.2f}"
        print(f"{memory:>11} {cost.num_bytes / MIB:>9.2f} {words:>17.1f} {seconds:>8}", flush=True)


def print_bits() -> None:
    _, ratio = rational_damping(DAMPING)
    bits = math.log2(ratio.denominator / ratio.smallest)
    print(
        f"\nBits per parameter and step: {bits:.3f} dropped by a damping of {DAMPING}, "
        f"{32 / num_flush_steps(ratio, 32):.3f} stored (a word every {num_flush_steps(ratio, 32)} steps; "
        f"{32 / num_flush_steps(LEARNED, 32):.2f} if damping is learned); a state of two floats is 64."
    )


def resident_memory(args: argparse.Namespace) -> None:
    """Peak resident memory of a process of its own, for each mode."""
    print(f"\nPeak resident memory of a process, logistic regression, K={args.num_steps[-1]}")
    for memory in ("plain", "reversible"):
        command = [sys.executable, __file__, "--child", memory, "--num-steps"]
        command += [str(args.num_steps[-1]), "--num-particles", str(args.num_particles)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        before, after = map(float, done.stdout.split())
        print(f"{memory:>11}: {after:.0f} MiB, of which {after - before:.0f} by the run itself")


def child(args: argparse.Namespace) -> None:
    _, data = next(iter(make_problems().values()))
    compiled = compile_gradient(
        logistic_regression, data, args.child, args.num_steps[-1], args.num_particles, 0.01
    )
    before = peak_resident()
    jax.block_until_ready(compiled(1.0, random.key(0)))
    print(before, peak_resident())


def peak_resident() -> float:
    """In MiB. Not ``ru_maxrss``, in which a child process inherits the peak of its parent."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if "VmHWM" in line) / 1024


def draw(costs: dict[int, dict[str, Cost]], path: Path) -> None:
    figure, axes = plt.subplots(figsize=(5.2, 3.6), layout="constrained")
    num_steps = list(costs)
    for memory, style in STYLES.items():
        sizes = [costs[k][memory].num_bytes / MIB for k in num_steps]
        axes.loglog(num_steps, sizes, label=memory, **style)
        axes.annotate(
            memory, (num_steps[-1], sizes[-1]), xytext=(6, 0), textcoords="offset points",
            color=style["color"], va="center",
        )  # fmt: skip
    axes.set(xlabel="number of steps $K$", ylabel="temporary memory of the gradient (MiB)")
    axes.set_title("Logistic regression, d=50, n=1000, 8 particles", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
    axes.margins(x=0.05)
    axes.set_xlim(right=num_steps[-1] * 6)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    print(f"\nWrote {path}")


def main(args: argparse.Namespace) -> None:
    if args.child:
        child(args)
        return
    if args.quick:
        args.num_steps, args.num_repeats = [15, 150], 1
        args.width, args.num_network_steps = 30, 20
    costs = table_of_lengths(args)
    table_of_network(args)
    print_bits()
    resident_memory(args)
    if not args.quick:
        draw(costs, Path(__file__).parent / "figures" / "memory.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("--num-steps", type=int, nargs="+", default=[15, 150, 1_500, 15_000])
    parser.add_argument("--num-particles", type=int, default=8)
    parser.add_argument("--num-repeats", type=int, default=3)
    parser.add_argument("--width", type=int, default=310, help="of the network's hidden layers")
    parser.add_argument("--num-network-steps", type=int, default=1_000)
    parser.add_argument("--quick", action="store_true", help="small sizes, no picture")
    parser.add_argument("--child", choices=list(STYLES), help=argparse.SUPPRESS)
    main(parser.parse_args())
