# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Runs of all estimators in one layout: the digest of each, as a line of JSON.

    python -m tests.multidevice.layouts NUM_DEVICES RANK NUM_PROCESSES PORT [NAME ...]

With an empty RANK there is one process. Names are those of some of the runs.

It is a program of its own, since a process has one layout from its first array on. The tests start it.
"""

import json
import os
import sys
import time
import warnings

import jax

# The threads of matrix products, on which their bits depend, are these in all layouts.
NUM_THREADS = "4"
HEARTBEAT_SECONDS = 10


def begin(args):
    """Makes the layout that the command line asks for."""
    os.environ["PJRT_NPROC"] = NUM_THREADS
    jax.config.update("jax_num_cpu_devices", int(args[0]))
    if len(args) > 1 and args[1]:
        rank, num_processes, port = map(int, args[1:4])
        jax.distributed.initialize(
            f"127.0.0.1:{port}",
            num_processes,
            rank,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
        )


def cases():
    """The runs by name: functions without arguments."""
    from jax import random
    import numpy as np

    import numpyro
    import numpyro.distributions as dist

    from numpyro_dais import AIS, DAIS, HAIS, ImportanceSampling

    rng = np.random.default_rng(3)
    X = rng.standard_normal((1_500, 6)).astype(np.float32)
    y = (rng.random(1_500) < 1 / (1 + np.exp(-X[:, 0]))).astype(np.float32)
    key = random.key(5)

    def regression(X, y):
        """Matrix products, whose sums depend on the shape of what is multiplied."""
        b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([X.shape[1]]).to_event(1))
        numpyro.sample("y", dist.Bernoulli(logits=X @ b), obs=y)

    def skewed(scale):
        """An asymmetric posterior."""
        a = numpyro.sample("a", dist.Gamma(2.0, 1.0))
        numpyro.sample("b", dist.Normal(a, scale), obs=np.array([0.5, 2.0, 4.0], np.float32))

    def elements(values):
        with numpyro.plate("elements", len(values)):
            z = numpyro.sample("z", dist.Normal(0.0, 1.0))
            numpyro.sample("x", dist.Poisson(np.float32(1.0) + z**2), obs=values)

    steps = {"num_steps": 5, "step_size": 0.02}
    draws = {"b": random.normal(random.key(1), (37, 6))}
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("any",))
    counts = np.array([1.0, 0.0, 4.0], np.float32)
    # Numbers of particles that no number of devices divides.
    return {
        "settings": lambda: DAIS(regression, **steps, num_particles=257).log_evidence(key, X, y),
        "a mesh": lambda: DAIS(regression, **steps, num_particles=101, devices=mesh).log_evidence(
            key, X, y
        ),
        "fewer particles than devices": lambda: DAIS(
            regression, **steps, num_particles=3
        ).log_evidence(key, X, y),
        "chunks": lambda: DAIS(regression, **steps, num_particles=257, chunk_size=20).log_evidence(
            key, X, y
        ),
        "a step size is found": lambda: DAIS(
            skewed, num_steps=12, damping=0.5, num_particles=300
        ).log_evidence(key, 1.5),
        "plate": lambda: DAIS(elements, **steps, num_particles=203, plate="elements").log_evidence(
            key, counts
        ),
        "islands": lambda: DAIS(
            regression, **steps, num_particles=330, resample_at=(0.3, 0.7), num_islands=11
        ).log_evidence(key, X, y),
        "self-tuned": lambda: DAIS(skewed).log_evidence(key, 1.5),
        "self-tuned, chains": lambda: DAIS(
            regression, budget=9_000, start="prior", max_seconds=1_000
        ).log_evidence(key, X, y),
        "HAIS": lambda: HAIS(regression, num_steps=5, num_particles=131).log_evidence(key, X, y),
        "AIS": lambda: AIS(skewed, num_steps=4, num_leapfrog=2, num_particles=259).log_evidence(
            key, 1.5
        ),
        "AIS, on line": lambda: AIS(
            skewed, num_steps=4, num_leapfrog=2, num_particles=33, adaptation="online"
        ).log_evidence(key, 1.5),
        "importance sampling": lambda: ImportanceSampling(
            regression, num_particles=3_333
        ).log_evidence(key, X, y),
        "sandwich": lambda: DAIS(regression, **steps, num_particles=97).sandwich(
            key, X, y, posterior_samples=draws
        ),
        "certify": lambda: DAIS(skewed, **steps, num_particles=20).certify(
            key, 1.5, num_datasets=5
        ),
    }


def digest_of(result):
    """The digest of an evidence; the numbers of a certificate."""
    if hasattr(result, "digest"):
        return result.digest()
    return [float(result.lower_bound).hex(), float(result.upper_bound).hex()]


def summary_of(evidence):
    """What a user reads of an evidence, on this host."""
    draws = evidence.samples(num_samples=20)
    return {
        "estimate": float(evidence).hex(),
        "khat": float(evidence.khat).hex(),
        "mean draw": float(draws["b"].mean()).hex(),
        "arviz": float(evidence.to_arviz(num_samples=20).posterior["b"].mean()).hex(),
        "printed": str(evidence),
        "plotted": len(evidence.plot().axes),
        "rounds": [tuple(map(str, found)) for found in evidence.history],
    }


def num_bars():
    """How many progress bars this host shows in two runs, of given and of self-tuned settings."""
    import contextlib
    import io

    import numpyro
    import numpyro.distributions as dist

    from numpyro_dais import DAIS

    def model():
        numpyro.sample("y", dist.Normal(numpyro.sample("a", dist.Gamma(2.0, 1.0)), 1.0), obs=1.5)

    shown = io.StringIO()
    chain = {"num_steps": 4, "step_size": 0.1, "num_particles": 300}
    with contextlib.redirect_stderr(shown):
        DAIS(model, **chain, progress_bar=True).log_evidence()
        given = "DAIS:" in shown.getvalue()
        DAIS(model, budget=5_000, progress_bar=True).log_evidence()
    return int(given) + ("gradient" in shown.getvalue())


def main(args):
    begin(args)
    warnings.simplefilter("ignore")  # with so few particles every run has something to warn of
    names, runs = args[4:], cases()
    found = {} if names else {"bars": num_bars()}
    for name in names or runs:
        run = runs[name]
        began = time.perf_counter()
        result = run()
        print(f"{name}: {time.perf_counter() - began:.1f} s", file=sys.stderr, flush=True)
        found[name] = digest_of(result)
        if name == "self-tuned, chains":
            found["summary"] = summary_of(result)
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
