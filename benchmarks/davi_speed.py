# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
The time of a step: DAVI with its defaults against AutoDAIS
===========================================================

A step of SVI on a 50-d logistic regression with 200 rows, for NumPyro's AutoDAIS and for DAVI with a diagonal and with a
full-rank guide, plain and with what ``davi.guide`` learns. Programs of many steps are run in turns, so that all meet the same
load; printed are medians, and ratios to AutoDAIS and to DAVI with a diagonal guide.

    python benchmarks/davi_speed.py
"""

import argparse
from collections.abc import Callable
import time
from typing import Any

import jax
from jax import lax, random
import jax.numpy as jnp
import numpy as np
import optax
from targets import logistic_regression

from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoDAIS, AutoDiagonalNormal, AutoMultivariateNormal

from numpyro_dais import DAVI


def program(guide: Any, loss: Any, data: tuple, length: int) -> Callable[[], Any]:
    """Some steps of SVI, compiled."""
    svi = SVI(logistic_regression, guide, optax.adam(1e-3), loss)
    state = svi.init(random.key(1), *data)

    def body(state: Any, _: None) -> Any:
        return svi.update(state, *data)

    run = jax.jit(lambda state: lax.scan(body, state, None, length=length)[0])
    compiled = run.lower(state).compile()
    return lambda: jax.block_until_ready(compiled(state))


def medians(programs: dict[str, Callable], length: int, num_repeats: int) -> dict[str, float]:
    """Milliseconds of a step, in the median over turns."""
    times: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(num_repeats):
        for name, run in programs.items():
            begin = time.perf_counter()
            run()
            times[name].append(1000 * (time.perf_counter() - begin) / length)
    return {name: float(np.median(values)) for name, values in times.items()}


def main(args: argparse.Namespace) -> None:
    X = random.normal(random.key(0), (args.num_rows, args.num_columns))
    data = X, (X @ jnp.linspace(-1, 1, args.num_columns) > 0).astype(float)
    print(f"{'':28}{'K':>5}{'ms / step':>12}{'to AutoDAIS':>13}{'to diagonal':>13}")
    for num_steps in args.num_steps:
        davi = DAVI(num_steps=num_steps)
        diagonal = AutoDiagonalNormal(logistic_regression)
        full = AutoMultivariateNormal(logistic_regression)
        losses = {
            "AutoDAIS": (AutoDAIS(logistic_regression, K=num_steps), Trace_ELBO()),
            "DAVI, diagonal": (diagonal, davi),
            "DAVI, diagonal, learned": (davi.guide(diagonal), davi),
            "DAVI, full rank": (full, davi),
            "DAVI, full rank, learned": (davi.guide(full), davi),
            "DAVI, diagonal, step given": (diagonal, DAVI(num_steps=num_steps, step_size=0.01)),
        }
        programs = {name: program(*pair, data, args.length) for name, pair in losses.items()}
        found = medians(programs, args.length, args.num_repeats)
        for name, elapsed in found.items():
            to_peer = elapsed / found["AutoDAIS"]
            to_diagonal = elapsed / found["DAVI, diagonal"]
            print(
                f"{name:28}{num_steps:5}{elapsed:12.3f}{to_peer:13.2f}{to_diagonal:13.2f}",
                flush=True,
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="The time of a step of DAVI and of AutoDAIS.")
    parser.add_argument("--num-steps", type=int, nargs="+", default=[8, 32, 128], help="K")
    parser.add_argument("--num-rows", type=int, default=200)
    parser.add_argument("--num-columns", type=int, default=50)
    parser.add_argument("--length", type=int, default=100, help="steps of a program")
    parser.add_argument("--num-repeats", type=int, default=9, help="turns")
    main(parser.parse_args())
