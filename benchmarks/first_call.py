# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
First calls: how long a new process takes to its first answer
=============================================================

A first call traces and compiles, and on small models that is nearly all that it does. This script times, each in a
new process, the first ``DAIS(model).log_evidence()`` and NumPyro's NUTS with 500 warm-up and 500 kept draws on the
eight schools (imports not counted), and prints the ratio of their medians. In the same process DAIS is then called
by a second object, which compiles nothing. At last both calls are timed with JAX's persistent compilation cache on, in two
processes that share an empty directory.

    python benchmarks/first_call.py
    python benchmarks/first_call.py --num-runs 1

**References**

1. *Estimation in Parallel Randomized Experiments*, Donald B. Rubin (1981): the eight schools.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

import numpy as np

EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])

# JAX keeps programs whose compilation took more than a second only, unless it is told otherwise.
CACHE = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}


def time_dais() -> dict[str, float]:
    """Returns the seconds of the first call of two objects, and what the first has compiled."""
    import warnings

    import jax

    from numpyro_dais import DAIS

    warnings.simplefilter("ignore")
    num_programs = 0

    def count(name: str, _: float, **kwargs: object) -> None:
        nonlocal num_programs
        num_programs += name == "/jax/core/compile/backend_compile_duration"

    jax.monitoring.register_event_duration_secs_listener(count)
    seconds = {}
    for name in ("first", "second object"):
        seconds[name] = timed(
            lambda: DAIS(eight_schools).log_evidence(jax.random.key(0), EFFECTS, ERRORS)
        )
        seconds.setdefault("programs", num_programs)
    return seconds


def time_nuts() -> dict[str, float]:
    """Returns the seconds of a first run of NUTS."""
    import jax

    from numpyro.infer import MCMC, NUTS

    mcmc = MCMC(NUTS(eight_schools), num_warmup=500, num_samples=500, progress_bar=False)

    def call() -> None:
        mcmc.run(jax.random.key(0), EFFECTS, ERRORS)
        jax.block_until_ready(mcmc.get_samples())

    return {"first": timed(call)}


def eight_schools(effects: np.ndarray, errors: np.ndarray) -> None:
    """The eight schools, as in the README."""
    import numpyro
    import numpyro.distributions as dist

    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("schools", len(errors)):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        numpyro.sample("effect", dist.Normal(mu + tau * z, errors), obs=effects)


def timed(call) -> float:
    """Returns the seconds that a call takes."""
    import time

    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


METHODS = {"dais": time_dais, "nuts": time_nuts}


def in_new_process(method: str, cache_dir: str | None = None) -> dict[str, float]:
    """Returns what a method measures in a process of its own."""
    env = dict(os.environ)
    if cache_dir is not None:
        env.update(CACHE, JAX_COMPILATION_CACHE_DIR=cache_dir)
    command = [sys.executable, __file__, "--method", method]
    output = subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout
    return json.loads(output.splitlines()[-1])


def main(args: argparse.Namespace) -> None:
    if args.method is not None:
        print(json.dumps(METHODS[args.method]()))
        return
    # In turns, so that a busy machine is busy for both.
    runs = [{name: in_new_process(name) for name in METHODS} for _ in range(args.num_runs)]
    dais, nuts = (np.array([run[name]["first"] for run in runs]) for name in METHODS)
    second = np.median([run["dais"]["second object"] for run in runs])
    print(
        f"first call of DAIS     {np.median(dais):6.2f} s ({runs[0]['dais']['programs']} programs)"
    )
    print(f"NUTS, 500 + 500        {np.median(nuts):6.2f} s")
    print(f"ratio of the medians   {np.median(dais) / np.median(nuts):6.2f}")
    print(f"second object of DAIS  {second:6.2f} s")
    pairs = []
    for _ in range(args.num_runs):
        with tempfile.TemporaryDirectory() as cache_dir:
            pairs.append([in_new_process("dais", cache_dir)["first"] for _ in range(2)])
    empty, full = np.median(pairs, axis=0)
    print(f"with a persistent cache, first process {empty:.2f} s, second {full:.2f} s")
    print(f"ratio of the medians   {full / empty:6.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--num-runs", type=int, default=5, help="new processes of each kind")
    parser.add_argument("--method", choices=METHODS, help=argparse.SUPPRESS)
    main(parser.parse_args())
