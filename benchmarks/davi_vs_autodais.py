# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
DAVI against AutoDAIS: the bound of a single trajectory, and the time of a step
================================================================================

Bayesian logistic regression on sonar (d=61) and ionosphere (d=35), and a random-effects model of the seeds
data (d=26). For each number of steps K, in one run: NumPyro's own AutoDAIS, and DAVI from the same diagonal
start and from a full-rank one, all warmed up by plain variational inference, with the same optimiser and
the same number of iterations. Printed are the final bounds (mean log weight over many fresh trajectories,
with its standard error), beside the figures published for the same data: UHA (the algorithm of DAVI) and
CMCD, and the log evidence.

    python benchmarks/davi_vs_autodais.py DIRECTORY

where DIRECTORY holds ``sonar.csv``, ``ionosphere.csv`` (features, then ``y``) and ``seeds.csv``.

References:

1. *MCMC Variational Inference via Uncorrected Hamiltonian Annealing*,
   Tomas Geffner, Justin Domke (2021)
2. *Transport meets Variational Inference: Controlled Monte Carlo Diffusions*,
   Francisco Vargas, Shreyas Padhy, Denis Blessing, Nikolas Nüsken (2024)
"""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
import time
from typing import Any, NamedTuple

import jax
from jax import lax, random
import jax.numpy as jnp
import numpy as np
import optax
from targets import REFERENCES, load, logistic_regression

from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoDAIS, AutoDiagonalNormal, AutoMultivariateNormal
from numpyro.infer.initialization import init_to_feasible

from numpyro_dais import DAVI
from numpyro_dais.sampler.loop import MEMORY_MODES

# Published bounds at K = 8, 32, 128 and our long runs; see the references.
PUBLISHED = {
    "sonar": {"UHA": (-120.03, -114.00, -110.57), "CMCD": (-113.08, -109.78, -109.02)},
    "ionosphere": {"UHA": (-115.62, -113.42, -112.31), "CMCD": (-112.79, -112.20, -111.88)},
    "seeds": {"UHA": (-74.89, -74.27, -73.82), "CMCD": (-74.53, -73.96, -73.68)},
}
PUBLISHED_STEPS = (8, 32, 128)
CHUNK = 250  # iterations of one compiled program


class Fit(NamedTuple):
    """A fitted bound: mean and standard error over fresh trajectories, and a run of some more steps."""

    bound: float
    error: float
    run_again: Callable[[], Any]


def train(svi: SVI, state: Any, num_iterations: int, args: tuple) -> tuple[Any, Callable]:
    """The state after so many updates, and the compiled program of ``CHUNK`` of them."""

    def body(state, _):
        return svi.stable_update(state, *args)

    run = jax.jit(lambda state: lax.scan(body, state, None, length=CHUNK)[0]).lower(state).compile()
    for _ in range(num_iterations // CHUNK):
        state = run(state)
    return state, partial(run, state)


def milliseconds(fits: dict[str, Fit], num_repeats: int = 7) -> dict[str, float]:
    """The time of a step of each fit, the fastest of several: in turns, so that all meet the same load."""
    times: dict[str, list[float]] = {name: [] for name in fits}
    for _ in range(num_repeats):
        for name, fit in fits.items():
            begin = time.perf_counter()
            jax.block_until_ready(fit.run_again())
            times[name].append(1000 * (time.perf_counter() - begin) / CHUNK)
    return {name: min(values) for name, values in times.items()}


def measure(svi: SVI, state: Any, num_trajectories: int, args: tuple) -> tuple[float, float]:
    params = svi.get_params(state)

    def bound(key):
        return -svi.loss.loss(key, params, svi.model, svi.guide, *args)

    keys = random.split(random.key(123), num_trajectories)
    bounds = np.asarray(jax.jit(lambda keys: lax.map(bound, keys, batch_size=250))(keys))
    return float(bounds.mean()), float(bounds.std(ddof=1) / np.sqrt(len(bounds)))


def optimiser(args: argparse.Namespace) -> optax.GradientTransformation:
    schedule = optax.cosine_decay_schedule(args.learning_rate, args.num_iterations, alpha=0.02)
    return optax.chain(optax.clip_by_global_norm(100.0), optax.adam(schedule))


def warm_up(model: Any, guide: Any, data: tuple, args: argparse.Namespace) -> dict[str, jax.Array]:
    """Parameters of a guide fitted by plain variational inference."""
    schedule = optax.cosine_decay_schedule(2e-2, args.num_warmup, alpha=0.02)
    svi = SVI(model, guide, optax.adam(schedule), Trace_ELBO(num_particles=16))
    state, _ = train(svi, svi.init(random.key(0), *data), args.num_warmup, data)
    return svi.get_params(state)


def fit(model, guide, loss, init_params, data, args) -> Fit:
    svi = SVI(model, guide, optimiser(args), loss)
    state = svi.init(random.key(1), *data, init_params=init_params)
    state, run_again = train(svi, state, args.num_iterations, data)
    return Fit(*measure(svi, state, args.num_trajectories, data), run_again)


def autodais(model, num_steps, start, data, args) -> Fit:
    guide = AutoDAIS(model, K=num_steps, base_dist="diagonal", init_loc_fn=init_to_feasible)
    init_params = {"auto_z_0_loc": start["auto_loc"], "auto_z_0_scale": start["auto_scale"]}
    return fit(model, guide, Trace_ELBO(), init_params, data, args)


def davi(model, num_steps, guide, start, data, args, memory="checkpoint") -> Fit:
    loss = DAVI(num_steps=num_steps, step_size=args.step_size, learn=args.learn, memory=memory)
    return fit(model, loss.guide(guide), loss, start, data, args)


def print_memory(num_steps: int = 1024) -> None:
    """Memory and time of the gradient of one trajectory, on a 50-d logistic regression with 1,000 rows."""
    X = random.normal(random.key(0), (1000, 50))
    data = X, (X @ jnp.linspace(-1, 1, 50) > 0).astype(float)
    guide = AutoDiagonalNormal(logistic_regression)
    peer = AutoDAIS(logistic_regression, K=num_steps)
    losses: dict[str, tuple] = {"AutoDAIS": (Trace_ELBO(), peer)}
    for memory in MEMORY_MODES:
        losses[f"DAVI, {memory}"] = (
            DAVI(num_steps=num_steps, step_size=0.01, memory=memory),
            guide,
        )
    programs = {}
    print(f"Gradient of one trajectory, K = {num_steps}, 50-d logistic regression, n = 1000")
    for name, (loss, loss_guide) in losses.items():
        svi = SVI(logistic_regression, loss_guide, optax.adam(1e-3), loss)
        params = svi.get_params(svi.init(random.key(1), *data))

        def value(params, loss=loss, guide=loss_guide):
            return loss.loss(random.key(2), params, logistic_regression, guide, *data)

        compiled = jax.jit(jax.grad(value)).lower(params).compile()
        programs[name] = compiled, params
    times = milliseconds({n: Fit(0.0, 0.0, partial(*program)) for n, program in programs.items()})
    print(f"{'':26}{'temp MiB':>10}{'ms':>10}{'to plain':>10}")
    for name, (compiled, _) in programs.items():
        mebibytes = compiled.memory_analysis().temp_size_in_bytes / 2**20
        elapsed = CHUNK * times[name]
        ratio = times[name] / times["DAVI, plain"]
        print(f"{name:26}{mebibytes:10.2f}{elapsed:10.1f}{ratio:10.2f}")


def main(args: argparse.Namespace) -> None:
    begin = time.perf_counter()
    print_memory()
    for name in args.data:
        model, data = load(args.directory, name)
        guides = {"diagonal": AutoDiagonalNormal(model), "full rank": AutoMultivariateNormal(model)}
        starts = {kind: warm_up(model, guide, data, args) for kind, guide in guides.items()}
        print(f"\n{name}: log evidence {REFERENCES[name][0]}, {args.num_iterations} iterations")
        print(f"{'':26}{'K':>5}{'bound':>10}{'error':>8}{'ms / step':>11}{'to AutoDAIS':>13}")
        for num_steps in args.num_steps:
            methods = {
                "DAVI, diagonal": partial(davi, guide=guides["diagonal"], start=starts["diagonal"]),
                "DAVI, full rank": partial(
                    davi, guide=guides["full rank"], start=starts["full rank"]
                ),
            }
            if not args.skip_peer:
                methods = {
                    "AutoDAIS": partial(autodais, start=starts["diagonal"]),
                    "DAVI, diagonal, plain": partial(
                        davi, guide=guides["diagonal"], start=starts["diagonal"], memory="plain"
                    ),
                    **methods,
                }
            fits = {
                method: run(model, num_steps, data=data, args=args)
                for method, run in methods.items()
            }
            times = milliseconds(fits)
            first = next(iter(times.values()))
            for method, result in fits.items():
                print(
                    f"{method:26}{num_steps:5}{result.bound:10.3f}{result.error:8.3f}{times[method]:11.2f}"
                    f"{times[method] / first:13.2f}",
                    flush=True,
                )
            if num_steps in PUBLISHED_STEPS:
                for method, figures in PUBLISHED[name].items():
                    figure = figures[PUBLISHED_STEPS.index(num_steps)]
                    print(f"{method + ', published':26}{num_steps:5}{figure:10.2f}")
    print(f"\n{time.perf_counter() - begin:.0f} s in all")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("directory", type=Path, help="of the three CSV files")
    parser.add_argument("--data", nargs="+", default=list(PUBLISHED), help="which of them")
    parser.add_argument("--num-steps", type=int, nargs="+", default=[8, 32, 128], help="K")
    parser.add_argument("--num-iterations", type=int, default=5000, help="of each fit")
    parser.add_argument("--num-warmup", type=int, default=5000, help="of plain inference")
    parser.add_argument("--num-trajectories", type=int, default=5000, help="of each final bound")
    parser.add_argument("--learning-rate", type=float, default=2e-2, help="at first")
    parser.add_argument("--step-size", type=float, default=0.1, help="of DAVI, at first")
    parser.add_argument(
        "--learn", nargs="+", default=["schedule", "step_size", "damping", "mass"], help="of DAVI"
    )
    parser.add_argument("--skip-peer", action="store_true", help="DAVI alone")
    main(parser.parse_args())
