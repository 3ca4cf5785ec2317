# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Warm calls: how long an answer takes once everything is compiled
================================================================

The claim: on the targets of ``targets.py``, ``DAIS(model).log_evidence(key, data)`` takes no longer than NumPyro's NUTS
followed by bridge sampling (``peer_methods.py``), or 0.6 s, whichever is more. Each call of DAIS is by a new object with
another key, so that it tunes itself anew; a first call of each method, which compiles, is not counted. Calls are in turns,
so that a busy machine is busy for both, and medians are printed, with their ratio.

    python benchmarks/warm_call.py --data DIRECTORY
    python benchmarks/warm_call.py --targets hierarchy --num-runs 1

where DIRECTORY is that of ``peers.py``; without it the targets that need one are left out.
"""

import argparse
from pathlib import Path
import time

import jax
from jax import random
import numpy as np
from peer_methods import dais, nuts_bridge
from targets import NEEDS_FILE, TARGETS, Target

import numpyro

# Seconds that nobody waits for: a call which takes no longer is fast enough whatever NUTS takes.
FAST = 0.6


def seconds_of(target: Target, seed: int, is_dais: bool, nuts_run) -> float:
    """Returns the seconds that a call takes."""
    rng_key = random.key(seed)
    begin = time.perf_counter()
    run = dais(target) if is_dais else nuts_run
    jax.block_until_ready(run(rng_key))
    return time.perf_counter() - begin


def measure(target: Target, num_runs: int) -> tuple[float, float]:
    """Returns the median seconds of DAIS, and of NUTS and bridge sampling."""
    nuts_run = nuts_bridge(target)
    # Whether a fit is continued, and where, depends on the key: more than one call to compile all.
    seconds = [
        [seconds_of(target, seed, is_dais, nuts_run) for is_dais in (True, False)]
        for seed in range(2 + num_runs)
    ]
    ours, theirs = np.median(seconds[2:], axis=0)
    return float(ours), float(theirs)


def main(args: argparse.Namespace) -> None:
    names = [name for name in args.targets if args.data is not None or name not in NEEDS_FILE]
    num_slow = 0
    print("                                                   DAIS    NUTS + bridge   ratio")
    for name in names:
        target = TARGETS[name](args.data)
        ours, theirs = measure(target, args.num_runs)
        is_slow = ours > max(theirs, FAST)
        num_slow += is_slow
        remark = "   slower" if is_slow else ""
        print(
            f"{target.title:46s} {ours:6.2f} s {theirs:12.2f} s {ours / theirs:9.2f}{remark}",
            flush=True,
        )
    print(f"slower than both NUTS + bridge and {FAST} s: {num_slow} of {len(names)}")


if __name__ == "__main__":
    numpyro.enable_x64()
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="directory of the three CSV files")
    parser.add_argument("--targets", nargs="+", default=list(TARGETS), choices=list(TARGETS))
    parser.add_argument("--num-runs", type=int, default=5, help="of every method, after two more")
    main(parser.parse_args())
