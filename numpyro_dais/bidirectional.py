# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Posterior draws that reverse chains begin at: given, by NUTS, or simulated together with the data."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax import random
import jax.numpy as jnp
import numpy as np

import numpyro
from numpyro import handlers
from numpyro.diagnostics import gelman_rubin
from numpyro.distributions import Unit
from numpyro.infer import MCMC, NUTS
from numpyro.infer.autoguide import AutoGuide

from numpyro_dais.density import ModelDensity
from numpyro_dais.guide import FLOW_GUIDES
from numpyro_dais.inspection import check_site_names, inspect_model
from numpyro_dais.problem import Problem
from numpyro_dais.runner import Runner
from numpyro_dais.settings import Settings, is_concrete
from numpyro_dais.target import make_target

__all__ = ["Certificate", "PosteriorDraws", "certificate", "posterior_draws"]

_NUM_WARMUP = 1000
_NUM_CHAINS = 4
_MIN_SAMPLES = 500  # per chain: fewer are too few to see whether they agree
_RHAT_LIMIT = 1.01


class PosteriorDraws(NamedTuple):
    """
    Draws from a posterior.

    :param positions: as the chains see them, ``[num_draws, ..., num_dims]``.
    :param num_chains: of how many Markov chains they are; None for independent draws.
    :param notes: why they should not be trusted.
    :param num_gradients: what they cost.
    """

    positions: jax.Array
    num_chains: int | None
    notes: tuple[str, ...]
    num_gradients: int


def posterior_draws(
    rng_key: jax.Array, problem: Problem, samples: Any, num_draws: int
) -> PosteriorDraws:
    """
    Returns posterior draws as positions: those given, checked, or by NUTS.

    :param rng_key: the key of NUTS.
    :param problem: the problem.
    :param samples: values of the latent sites along a leading axis, or None.
    :param num_draws: how many draws NUTS is to give.
    """
    if isinstance(problem.guide, FLOW_GUIDES):
        raise NotImplementedError(
            f"Reverse chains cannot end at a {type(problem.guide).__name__}: they would have to invert the "
            "flow. Use AutoNormal or AutoMultivariateNormal."
        )
    if samples is not None:
        return PosteriorDraws(_to_positions(problem, samples), None, (), 0)
    if problem.potential_fn is not None:
        raise ValueError(
            "With potential_fn= the posterior draws have to be given: pass posterior_samples=."
        )
    if problem.data_plate is not None:
        raise ValueError(
            f"With a subsampled plate ({problem.data_plate.name!r}) the posterior draws have to be given, as NUTS "
            "needs all the data at every step: pass posterior_samples=."
        )
    return _nuts_draws(rng_key, problem, num_draws)


def _to_positions(problem: Problem, samples: Any) -> jax.Array:
    leaves = jax.tree.leaves(samples)
    lengths = {len(leaf) if jnp.ndim(leaf) else 0 for leaf in leaves}
    if len(lengths) != 1 or min(lengths, default=0) < 2:
        raise ValueError(
            "posterior_samples must have one leading axis of draws, of at least 2 and the same in every "
            f"site; got lengths {sorted(lengths)}."
        )
    target = make_target(problem)
    if problem.potential_fn is not None:
        return jax.vmap(target.ravel_fn)(samples)
    density = ModelDensity(problem, inspect_model(problem))
    names = set(density.structure.prototype)
    values = jax.eval_shape(density.constrain, density.structure.prototype)
    shapes = {name: values[name].shape for name in names}
    check_site_names("posterior_samples", set(samples), names)
    for name in sorted(names):
        if jnp.shape(samples[name])[1:] != shapes[name]:
            raise ValueError(
                f"posterior_samples[{name!r}] must have shape [num_draws, *{shapes[name]}]; got "
                f"{jnp.shape(samples[name])}."
            )
    samples = {name: jnp.asarray(samples[name], float) for name in names}
    is_inside = jax.vmap(density.in_support)(samples)
    for name in sorted(names):
        if is_concrete(is_inside) and not np.all(is_inside[name]):
            raise ValueError(
                f"posterior_samples[{name!r}] has {int(np.sum(~np.asarray(is_inside[name])))} draws outside "
                "the support of the site. Pass constrained values, as `mcmc.get_samples()` gives them."
            )
    return jax.vmap(density.to_position)(samples)


def _nuts_draws(rng_key: jax.Array, problem: Problem, num_draws: int) -> PosteriorDraws:
    num_kept = -(-num_draws // _NUM_CHAINS)
    thinning = -(-_MIN_SAMPLES // num_kept)
    mcmc = MCMC(
        NUTS(problem.prepared_model),
        num_warmup=_NUM_WARMUP,
        num_samples=num_kept * thinning,
        num_chains=_NUM_CHAINS,
        chain_method="vectorized",
        progress_bar=False,
    )
    fields = ("diverging", "num_steps")
    mcmc.warmup(rng_key, *problem.args, extra_fields=fields, collect_warmup=True, **problem.kwargs)
    num_gradients = int(np.sum(mcmc.get_extra_fields()["num_steps"]))
    mcmc.run(mcmc.last_state.rng_key, *problem.args, extra_fields=fields, **problem.kwargs)
    extra = mcmc.get_extra_fields()
    num_gradients += int(np.sum(extra["num_steps"]))
    density = ModelDensity(problem, inspect_model(problem))
    names = density.structure.prototype
    chains = {n: x for n, x in mcmc.get_samples(group_by_chain=True).items() if n in names}
    rhat = max(float(np.nanmax(gelman_rubin(np.asarray(x)))) for x in chains.values())
    notes = []
    if num_divergent := int(np.sum(extra["diverging"])):
        notes.append(
            f"NUTS had {num_divergent} divergent transitions, so its draws, and with them the upper bound, "
            "may be wrong; reparametrise the model or give posterior_samples=."
        )
    if rhat > _RHAT_LIMIT:
        notes.append(
            f"NUTS has not converged (r-hat {rhat:.2f}, above {_RHAT_LIMIT}), so the upper bound is not to be "
            "trusted; reparametrise the model or give posterior_samples=."
        )
    kept = {name: x[:, ::thinning] for name, x in chains.items()}
    samples = {name: x.reshape(-1, *x.shape[2:]) for name, x in kept.items()}
    positions = jax.vmap(density.to_position)(samples)
    return PosteriorDraws(positions, _NUM_CHAINS, tuple(notes), num_gradients)


class Certificate(NamedTuple):
    """
    Mean bounds over simulated data sets; with a plate, per element on average.

    :param lower_bound: the mean log weight of forward chains, averaged over data sets.
    :param lower_bound_error: its standard error over data sets, paired with the upper bound's.
    :param upper_bound: the mean log weight of reverse chains from exact posterior draws.
    :param upper_bound_error: its standard error over data sets.
    :param gap: the mean difference of the two: the error of each bound is below it in expectation.
    :param gap_error: its standard error over data sets.
    :param num_datasets: the number of data sets.
    """

    lower_bound: float
    lower_bound_error: float
    upper_bound: float
    upper_bound_error: float
    gap: float
    gap_error: float
    num_datasets: int

    def __str__(self) -> str:
        return (
            f"Certificate over {self.num_datasets} simulated data sets: gap {self.gap:.3f} ± "
            f"{self.gap_error:.3f} nats\n"
            f"  mean lower bound {self.lower_bound:.3f} ± {self.lower_bound_error:.3f}\n"
            f"  mean upper bound {self.upper_bound:.3f} ± {self.upper_bound_error:.3f}"
        )


def certificate(
    rng_key: jax.Array,
    problem: Problem,
    settings: Settings,
    runner: Runner,
    num_particles: int,
    num_datasets: int,
) -> Certificate:
    """
    Returns the bounds that chains have on data simulated from the problem's model.

    :param rng_key: the key of the simulation and of the chains.
    :param problem: the problem; its observed values are replaced.
    :param settings: settings of the chains.
    :param runner: runs the chains.
    :param num_particles: the number of forward chains for each data set.
    :param num_datasets: the number of data sets.
    """
    if problem.model is None:
        raise ValueError("certify simulates data from a model; potential_fn= has none.")
    _check_can_be_simulated(problem)

    def one_dataset(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        simulation_key, forward_key, reverse_key = random.split(key, 3)
        values, data, args = _simulate(simulation_key, problem)
        model, guide = _WithData(problem.model), problem.guide
        if guide is not None and not isinstance(guide, AutoGuide):
            guide = _WithoutData(guide)
        simulated = problem.replace(model=model, guide=guide, args=(data, args))
        density = ModelDensity(simulated, inspect_model(simulated))
        position = density.to_position(values)
        forward = runner.run(forward_key, simulated, settings, num_particles, has_bar=True)
        reverse = runner.run_reverse(reverse_key, simulated, settings, position[None])
        return jnp.mean(forward.log_weights), jnp.mean(reverse.log_weights)

    lower, upper = jax.jit(lambda keys: jax.lax.map(one_dataset, keys))(
        random.split(rng_key, num_datasets)
    )
    lower, upper = np.asarray(lower, np.float64), np.asarray(upper, np.float64)
    error = [values.std(ddof=1) / np.sqrt(num_datasets) for values in (lower, upper, upper - lower)]
    return Certificate(
        lower_bound=float(lower.mean()),
        lower_bound_error=float(error[0]),
        upper_bound=float(upper.mean()),
        upper_bound_error=float(error[1]),
        gap=float((upper - lower).mean()),
        gap_error=float(error[2]),
        num_datasets=num_datasets,
    )


def _observed(trace: dict) -> dict[str, dict[str, Any]]:
    return {n: s for n, s in trace.items() if s["type"] == "sample" and s["is_observed"]}


def _check_can_be_simulated(problem: Problem) -> None:
    seeded = handlers.seed(problem.prepared_model, random.key(0))
    observed: dict[str, bool] = {}

    def collect() -> None:
        trace = handlers.trace(seeded).get_trace(*problem.args, **problem.kwargs)
        observed.update({n: isinstance(s["fn"], Unit) for n, s in _observed(trace).items()})

    jax.eval_shape(collect)
    factors = [name for name, is_factor in observed.items() if is_factor]
    if not observed or factors:
        what = f"the factor sites {factors}" if factors else "no observed sites"
        raise ValueError(
            f"certify simulates data from the model, but it has {what}, from which nothing can be drawn. "
            "Write the likelihood as numpyro.sample(..., obs=...)."
        )


def _simulate(rng_key: jax.Array, problem: Problem) -> tuple[dict, dict, tuple]:
    """
    Values of the latent sites, of the sites that are observed in the problem, and the arguments with these in
    place of the observed ones, for a guide that looks at the data.
    """
    args, kwargs = problem.args, problem.kwargs
    forget = _forget_observed(problem.prepared_model)
    trace = handlers.trace(handlers.seed(forget, rng_key)).get_trace(*args, **kwargs)
    names = inspect_model(problem).prototype
    values = {name: trace[name]["value"] for name in names}
    data = {
        name: site["value"]
        for name, site in trace.items()
        if site["type"] == "sample" and name not in names
    }

    def replaced(leaf: Any) -> Any:
        name = next((name for name, old in forget.observed.items() if old is leaf), None)
        return leaf if name is None else data[name]

    return values, data, jax.tree.map(replaced, args)


class _WithData:
    """A model whose observed sites take their values from its first argument."""

    def __init__(self, model: Callable | None) -> None:
        self.model = model

    def __call__(self, data: dict, args: tuple, **kwargs: Any) -> Any:
        return _replace_observed(self.model, data)(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _WithData) and other.model is self.model

    def __hash__(self) -> int:
        return hash((_WithData, self.model))


class _WithoutData:
    """A hand-written guide with the arguments of :class:`_WithData`."""

    def __init__(self, guide: Callable) -> None:
        self.guide = guide

    def __call__(self, data: dict, args: tuple, **kwargs: Any) -> Any:
        return self.guide(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _WithoutData) and other.guide is self.guide

    def __hash__(self) -> int:
        return hash((_WithoutData, self.guide))


class _forget_observed(numpyro.primitives.Messenger):
    """Draws observed sites instead, and keeps what was observed."""

    def __init__(self, fn: Callable) -> None:
        super().__init__(fn)
        self.observed: dict[str, Any] = {}

    def process_message(self, msg: dict) -> None:
        if msg["type"] == "sample" and msg["is_observed"]:
            self.observed[msg["name"]] = msg["value"]
            msg["is_observed"], msg["value"] = False, None


class _replace_observed(numpyro.primitives.Messenger):
    """Gives observed sites other values."""

    def __init__(self, fn: Callable | None, data: dict) -> None:
        super().__init__(fn)
        self.data = data

    def process_message(self, msg: dict) -> None:
        if msg["type"] == "sample" and msg["is_observed"] and msg["name"] in self.data:
            msg["value"] = self.data[msg["name"]]
