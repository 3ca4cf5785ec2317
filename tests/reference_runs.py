# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Runs whose numbers are on record: log weights, gradients and bounds that a refactoring must not change.

    python tests/reference_runs.py

runs all of them in both precisions and compares with ``reference_runs.json``. The models are here and not those of
other tests, so that nobody changes them by accident.
"""

import argparse
from collections.abc import Callable
import json
from pathlib import Path
from typing import Any
import warnings

import jax
from jax import random
from jax.flatten_util import ravel_pytree
import jax.numpy as jnp
import numpy as np

import numpyro
from numpyro import handlers
import numpyro.distributions as dist
from numpyro.distributions import constraints
from numpyro.infer.autoguide import AutoIAFNormal, AutoMultivariateNormal, AutoNormal

from numpyro_dais import (
    AIS,
    DAIS,
    DAVI,
    HAIS,
    ImportanceSampling,
    compare,
    make_settings,
    schedule,
)

RECORD = Path(__file__).with_suffix(".json")
TOLERANCE = {"float32": 1e-4, "float64": 1e-9}
NUM_ERRORS = 4  # standard errors within which self-tuned runs agree

KEY = 7
PARTICLES = {"num_particles": 16}
SHORT = {"num_steps": 6, "step_size": 0.15, "damping": 0.6, **PARTICLES}

# Data are NumPy arrays: they take on the precision of a run.
X = np.array(
    [[0.2, 0.5, -1.1], [-0.1, 0.9, 0.4], [0.3, -0.6, 1.3], [0.1, 0.2, 0.7], [-0.4, 1.0, 0.0]]
)
Y = np.array([0.3, -0.8, 1.2, 0.4, -0.5])
COUNTS = np.array([2.0, 0.0, 1.0, 4.0, 1.0])
TIMES = np.array([2.0, 0.1, 1.0, 1.4, 0.3])
MEANS = np.array([0.3, 2.0, -1.0, 4.0, 1.2, 0.1])


# Models and guides


def regression(X, y, noise_scale=0.8):
    prior_scale = np.array([1.0, 0.7, 1.4])
    w = numpyro.sample("w", dist.Normal(np.array([0.5, -1.0, 0.25]), prior_scale).to_event(1))
    numpyro.sample("y", dist.Normal(X @ w, noise_scale).to_event(1), obs=y)


def beta_binomial(successes, total_count=20):
    p = numpyro.sample("p", dist.Beta(2.0, 3.0))
    numpyro.sample("y", dist.Binomial(total_count, p), obs=successes)


def gamma_poisson(counts):
    rate = numpyro.sample("rate", dist.Gamma(3.0, 2.0))
    numpyro.sample("y", dist.Poisson(rate).expand([len(counts)]).to_event(1), obs=counts)


def waiting(times, batch_size=None):
    """A positive latent outside of the plate that holds the data."""
    rate = numpyro.sample("rate", dist.Exponential(0.5))
    with numpyro.plate("rows", len(times), subsample_size=batch_size):
        numpyro.sample("y", dist.Exponential(rate), obs=numpyro.subsample(times, event_dim=0))


def waiting_guide(times, batch_size=None):
    loc = numpyro.param("loc", 0.4)
    scale = numpyro.param("scale", 0.3, constraint=constraints.positive)
    numpyro.sample("rate", dist.LogNormal(loc, scale))


def normal_means(y, batch_size=None):
    """All sites in one plate."""
    with numpyro.plate("data", len(y), subsample_size=batch_size):
        x = numpyro.sample("x", dist.Normal(1.0, 1.5))
        numpyro.sample("y", dist.Normal(x, 0.5), obs=numpyro.subsample(y, event_dim=0))


def normal_means_guide(y, batch_size=None):
    weight = numpyro.param("weight", 0.7)
    scale = numpyro.param("scale", 0.8, constraint=constraints.positive)
    with numpyro.plate("data", len(y), subsample_size=batch_size):
        numpyro.sample("x", dist.Normal(weight * numpyro.subsample(y, event_dim=0), scale))


def skewed(y):
    """Two sites, one positive, in an order other than the alphabet's; a parameter of the model."""
    rate = numpyro.sample("rate", dist.Exponential(0.8))
    mu = numpyro.sample("mu", dist.Normal(numpyro.param("prior_mean", 0.5), 1.0))
    numpyro.sample("y", dist.Normal(mu, 1 / jnp.sqrt(rate)).expand([len(y)]).to_event(1), obs=y)


def skewed_guide(y):
    """One site leans on the other."""
    loc = numpyro.param("loc", jnp.array([0.4, 0.2]))
    rate = numpyro.sample("rate", dist.LogNormal(loc[0], 0.4))
    numpyro.sample("mu", dist.Normal(loc[1] + 0.3 * rate, 0.6))


def mixture(y):
    """A discrete site to be summed out."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.5))
    with numpyro.plate("data", len(y)):
        probs = np.array([0.3, 0.7])
        z = numpyro.sample("z", dist.Categorical(probs), infer={"enumerate": "parallel"})
        numpyro.sample("y", dist.Normal(jnp.where(z == 0, -1.0, mu), 1.2), obs=y)


def banana(u):
    """A potential over two reals."""
    return 0.5 * (u[0] - 0.3) ** 2 + 2.0 * (u[1] - 0.4 * u[0] ** 2) ** 2


# What a run is made of


def log_weights(estimator, *args) -> np.ndarray:
    evidence = estimator.log_evidence(random.key(KEY), *args)
    return np.ravel(evidence.log_weights)


def all_log_weights(estimators, *args) -> np.ndarray:
    return np.concatenate([log_weights(estimator, *args) for estimator in estimators])


def guide_params(guide, *args, **values) -> dict[str, Any]:
    """The initial parameters of a guide, those named replaced. Sets an autoguide up, too."""
    trace = handlers.trace(handlers.seed(guide, random.key(3))).get_trace(*args)
    params = {name: site["value"] for name, site in trace.items() if site["type"] == "param"}
    return {**params, **{name: jnp.asarray(value, float) for name, value in values.items()}}


def normal_guide() -> tuple[AutoNormal, dict[str, Any]]:
    guide = AutoNormal(skewed)
    values = {
        "mu_auto_loc": 0.2,
        "mu_auto_scale": 0.5,
        "rate_auto_loc": 0.4,
        "rate_auto_scale": 0.3,
    }
    return guide, guide_params(guide, Y, prior_mean=-0.2, **values)


def loss_and_gradient(davi, params, model, guide, *args) -> np.ndarray:
    """The loss of DAVI, then its gradient in all parameters, by name."""

    def loss(params):
        return davi.loss(random.key(KEY), params, model, guide, *args)

    value, gradient = jax.jit(jax.value_and_grad(loss))(params)
    return np.append(value, ravel_pytree(gradient)[0])


def summary(estimator, *args) -> np.ndarray:
    evidence = estimator.log_evidence(random.key(KEY), *args)
    return np.array([evidence.log_evidence, evidence.standard_error])


# The runs


def hundred_steps():
    estimator = DAIS(
        regression, num_steps=100, step_size=0.1, schedule=schedule.linear, **PARTICLES
    )
    evidence = estimator.log_evidence(random.key(KEY), X, Y)
    means = evidence.samples(random.key(1), 64)["w"].mean(0)
    return np.concatenate([evidence.log_weights, means])


def power_schedule_and_damping_per_step():
    damping = np.linspace(0.2, 0.9, 8)
    options = {"num_steps": 8, "schedule": schedule.power, "damping": damping, **PARTICLES}
    return log_weights(DAIS(beta_binomial, step_size=0.3, start="prior", **options), 15.0)


def sigmoid_schedule_and_chunks():
    """Step sizes that change, from a start over the only site."""
    options = {"schedule": schedule.sigmoid(8), "chunk_size": 5, **PARTICLES}
    start = dist.LogNormal(0.3, 0.5)
    estimator = DAIS(gamma_poisson, step_size=np.linspace(0.3, 0.1, 8), start=start, **options)
    return log_weights(estimator, COUNTS)


def no_steps():
    """DAIS without steps and importance sampling, which agree, and the comparison of two keys."""
    estimator = ImportanceSampling(waiting, **PARTICLES)
    first, second = (estimator.log_evidence(random.key(key), TIMES) for key in (KEY, 8))
    comparison = compare({"first": first, "second": second})
    weights = log_weights(DAIS(waiting, num_steps=0, **PARTICLES), TIMES)
    return np.concatenate([weights, first.log_weights, comparison.probability])


def dense_preconditioner_in_settings():
    preconditioner = np.array([[1.2, 0.0, 0.0], [0.3, 0.5, 0.0], [-0.2, 0.1, 0.8]])
    settings = make_settings(schedule.power(6, 2.0), 0.2, np.linspace(0.3, 0.8, 6), preconditioner)
    return log_weights(DAIS(regression, settings=settings, **PARTICLES), X, Y)


def preconditioner_per_step():
    scales = np.linspace(1.2, 0.6, 6)[:, None] * np.array([1.0, 0.5, 0.8])
    return log_weights(DAIS(regression, preconditioner=scales, **SHORT), X, Y)


def starts():
    """Over the values of each site, and over unconstrained values (mu, then log rate)."""
    by_site = {"mu": dist.Normal(0.1, 0.8), "rate": dist.LogNormal(0.2, 0.6)}
    joint = dist.Normal(np.array([0.1, 0.2]), np.array([0.7, 0.5])).to_event(1)
    options = {"params": {"prior_mean": -0.2}, **SHORT}
    return all_log_weights([DAIS(skewed, start=start, **options) for start in (by_site, joint)], Y)


def autoguides():
    """A diagonal, a dense and a flow."""
    dense = AutoMultivariateNormal(skewed)
    scale_tril = [[0.5, 0.0], [-0.1, 0.3]]
    values = {"auto_loc": [0.2, 0.4], "auto_scale_tril": scale_tril, "prior_mean": -0.2}
    flow = AutoIAFNormal(skewed, hidden_dims=[4], num_flows=1)
    guides = (
        normal_guide(),
        (dense, guide_params(dense, Y, **values)),
        (flow, guide_params(flow, Y, prior_mean=-0.2)),
    )
    estimators = [
        DAIS(skewed, guide=guide, guide_params=params, **SHORT) for guide, params in guides
    ]
    return all_log_weights(estimators, Y)


def hand_written_guide_and_params():
    start = {"guide": skewed_guide, "guide_params": {"loc": np.array([0.3, -0.1])}}
    return log_weights(DAIS(skewed, params={"prior_mean": -0.2}, **start, **SHORT), Y)


def potential_function_and_diagonal_preconditioner():
    start = dist.Normal(0.0, np.array([1.5, 1.0])).to_event(1)
    preconditioner = np.array([1.2, 0.5])
    estimator = DAIS(potential_fn=banana, start=start, preconditioner=preconditioner, **SHORT)
    return log_weights(estimator)


def plate():
    """One evidence for each element, and for each of a mini-batch."""
    estimator = DAIS(normal_means, plate="data", **{**SHORT, "num_particles": 4})
    return np.concatenate([log_weights(estimator, MEANS), log_weights(estimator, MEANS, 4)])


def minibatch():
    kinds = (True, "particle")
    return all_log_weights([DAIS(waiting, minibatch=kind, **SHORT) for kind in kinds], TIMES, 2)


def surrogate():
    return log_weights(DAIS(waiting, surrogate="quadratic", **SHORT), TIMES, 2)


def memory_modes() -> list[DAIS]:
    modes = ("plain", "products", "checkpoint", "reversible")
    return [DAIS(regression, memory=mode, **SHORT) for mode in modes]


def memory():
    return all_log_weights(memory_modes(), X, Y)


def memory_gradients():
    """With respect to data and noise."""

    def gradient(estimator):
        def bound(y, noise_scale):
            return estimator.log_evidence(random.key(KEY), X, y, noise_scale).log_evidence

        return jax.jit(jax.grad(bound, (0, 1)))(Y, 0.8)

    return np.concatenate([ravel_pytree(gradient(estimator))[0] for estimator in memory_modes()])


def islands():
    options = {**SHORT, "num_particles": 32, "resample_at": (0.3, 0.7), "num_islands": 8}
    return log_weights(DAIS(regression, **options), X, Y)


def metropolis():
    ais = {"num_steps": 6, "step_size": 0.15, "num_leapfrog": 3, **PARTICLES}
    online = {"num_steps": 6, "adaptation": "online", **PARTICLES}
    estimators = (
        HAIS(waiting, **SHORT),
        AIS(waiting, **ais),
        HAIS(waiting, **online),
    )
    return all_log_weights(estimators, TIMES)


def both_directions():
    draws = np.random.default_rng(0).gamma(len(TIMES) + 1, 1 / (0.5 + TIMES.sum()), 16)
    estimator = DAIS(waiting, **SHORT)
    evidence = estimator.sandwich(random.key(KEY), TIMES, posterior_samples={"rate": draws})
    certificate = estimator.certify(random.key(KEY), TIMES, num_datasets=3)
    bounds = [certificate.lower_bound, certificate.upper_bound, certificate.gap_error]
    return np.concatenate([evidence.log_weights, evidence.reverse_log_weights, bounds])


def davi():
    """In units of the guide's scale."""
    guide, params = normal_guide()
    return loss_and_gradient(
        DAVI(num_steps=4, num_particles=3, step_size=0.1), params, skewed, guide, Y
    )


def davi_learned():
    """All settings learned, and the estimator that goes on with them."""
    davi = DAVI(num_steps=4, step_size=0.1, learn=("schedule", "step_size", "damping", "mass"))
    guide = davi.guide(skewed_guide)
    params = guide_params(guide, Y, prior_mean=-0.2)
    estimator = davi.estimator(skewed, guide, params, num_steps=6, **PARTICLES)
    loss = loss_and_gradient(davi, params, skewed, guide, Y)
    return np.append(loss, log_weights(estimator, Y))


def davi_minibatches():
    """A subsampled plate of independent elements, and one around the data of a global latent."""
    params = {"weight": 0.6, "scale": 0.7}
    davi = DAVI(num_steps=4, num_particles=3, step_size=0.1)
    local = loss_and_gradient(davi, params, normal_means, normal_means_guide, MEANS, 4)
    params = {"loc": 0.3, "scale": 0.4}
    davi = DAVI(num_steps=4, step_size=0.1, minibatch=True)
    return np.append(local, loss_and_gradient(davi, params, waiting, waiting_guide, TIMES, 2))


def enumerated_and_vmapped():
    """Over two keys."""
    settings = make_settings(schedule.linear(6), 0.3, 0.6)
    estimator = DAIS(mixture, settings=settings, **PARTICLES)
    keys = random.split(random.key(KEY), 2)
    return np.ravel(jax.vmap(lambda key: estimator.log_evidence(key, MEANS).log_weights)(keys))


def tuned():
    return summary(DAIS(gamma_poisson), COUNTS)


def tuned_from_prior():
    return summary(DAIS(regression, num_steps=32, num_particles=32, start="prior"), X, Y)


def tuned_hais():
    return summary(HAIS(waiting, num_steps=8, num_particles=64), TIMES)


_RUNS: list[Callable[[], np.ndarray]] = [
    hundred_steps,
    power_schedule_and_damping_per_step,
    sigmoid_schedule_and_chunks,
    no_steps,
    dense_preconditioner_in_settings,
    preconditioner_per_step,
    starts,
    autoguides,
    hand_written_guide_and_params,
    potential_function_and_diagonal_preconditioner,
    plate,
    minibatch,
    surrogate,
    memory,
    memory_gradients,
    islands,
    metropolis,
    both_directions,
    davi,
    davi_learned,
    davi_minibatches,
    enumerated_and_vmapped,
    tuned,
    tuned_from_prior,
    tuned_hais,
]
RUNS = {run.__name__: run for run in _RUNS}
# Settings that the library finds may change for the better: log evidence and standard error are on record.
SELF_TUNED = {"tuned", "tuned_from_prior", "tuned_hais"}


def run(name: str, precision: str) -> np.ndarray:
    """Returns the numbers of a run, in ``"float32"`` or ``"float64"``."""
    with warnings.catch_warnings(), jax.enable_x64(precision == "float64"):
        # Few particles and noisy gradients are what is wanted here.
        warnings.simplefilter("ignore", UserWarning)
        return np.asarray(RUNS[name](), np.float64)


def on_record() -> dict[str, dict[str, list[float]]]:
    """Returns the recorded numbers by precision and name."""
    return json.loads(RECORD.read_text())


def difference(name: str, values: np.ndarray, expected: list[float]) -> float:
    """Returns the largest difference of two runs; of self-tuned ones, that of the log evidences."""
    if values.shape != np.shape(expected) or not np.all(np.isfinite(values)):
        return np.inf
    differences = np.abs(values - expected)
    return float(differences[0] if name in SELF_TUNED else differences.max())


def tolerance(name: str, precision: str, values: np.ndarray, expected: list[float]) -> float:
    """Returns what the difference has to be below."""
    if name not in SELF_TUNED:
        return TOLERANCE[precision]
    return float(NUM_ERRORS * np.hypot(values[1], expected[1]) + 1e-6)


def update(names: list[str]) -> None:
    """Puts the numbers of these runs on record, one line for each."""
    record, parts = on_record(), []
    for precision in TOLERANCE:
        numbers = {name: record[precision].get(name) for name in RUNS}
        numbers |= {name: run(name, precision).tolist() for name in names}
        lines = [f'  "{name}": {json.dumps(values)}' for name, values in numbers.items()]
        parts.append(f' "{precision}": {{\n' + ",\n".join(lines) + "\n }")
    RECORD.write_text("{\n" + ",\n".join(parts) + "\n}\n")


def compare_with_record() -> bool:
    """Prints the difference of every run, and returns whether all are small enough."""
    record, is_good = on_record(), True
    print(f"{'run':<48} {'precision':<9} {'difference':>10}")
    for precision in TOLERANCE:
        for name in RUNS:
            values, expected = run(name, precision), record[precision][name]
            largest = difference(name, values, expected)
            is_close = largest < tolerance(name, precision, values, expected)
            is_good = is_good and is_close
            print(f"{name:<48} {precision:<9} {largest:>10.1e} {'ok' if is_close else 'DIFFERS'}")
    return is_good


def main(args: argparse.Namespace) -> int:
    if args.update is not None:
        update(args.update or list(RUNS))
        return 0
    return 0 if compare_with_record() else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument(
        "--update",
        nargs="*",
        choices=list(RUNS),
        metavar="NAME",
        help="rewrite the record of these runs (of all, if none is named); only with a line in the "
        "changelog that says why the numbers changed",
    )
    raise SystemExit(main(parser.parse_args()))
