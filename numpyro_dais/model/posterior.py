# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Posterior draws that reverse chains begin at, as positions: given by the user, or by NUTS."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from numpyro.diagnostics import gelman_rubin
from numpyro.infer import MCMC, NUTS

from numpyro_dais._util.checks import check_optional_count, with_article
from numpyro_dais._util.concreteness import is_concrete
from numpyro_dais._util.programs import program
from numpyro_dais.model.density import ModelDensity
from numpyro_dais.model.guide import FLOW_GUIDES
from numpyro_dais.model.inspection import check_site_names, inspect_model
from numpyro_dais.model.problem import Problem
from numpyro_dais.model.target import make_target
from numpyro_dais.model.traced import TracedFunction, TracedTarget, trace_function

__all__ = ["PosteriorDraws", "posterior_draws"]

# Iterations of NUTS that adapt it, for each chain: Stan's default.
_NUM_WARMUP = 1000
# Chains of NUTS, whose agreement is the check on them: Stan's default.
_NUM_CHAINS = 4
# Draws of each chain before they are thinned: fewer are too few to see whether chains agree. A
# round number.
_MIN_SAMPLES = 500
# The largest r-hat that passes without a note: the limit of Vehtari, Gelman, Simpson, Carpenter and
# Bürkner (2021).
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
    rng_key: jax.Array,
    problem: Problem,
    target: TracedTarget,
    samples: Any,
    num_draws: int,
    num_chains: int | None = None,
) -> PosteriorDraws:
    """
    Returns posterior draws as positions: those given, checked, or by NUTS.

    :param rng_key: the key of NUTS.
    :param problem: the problem.
    :param target: of the problem.
    :param samples: an ``MCMC`` object, values of the latent sites along a leading axis, or None.
    :param num_draws: how many draws NUTS is to give.
    :param num_chains: of how many chains the values are; None for independent ones.
    """
    if isinstance(problem.guide, FLOW_GUIDES):
        raise NotImplementedError(
            f"Reverse chains cannot end at {with_article(type(problem.guide).__name__)}: they would have to invert the "
            "flow. Use AutoNormal or AutoMultivariateNormal."
        )
    num_chains = _check_num_chains(num_chains, samples)
    if isinstance(samples, MCMC):
        return _draws_of(samples, problem, target)
    if samples is not None:
        positions = _to_positions(problem, target, samples)
        if num_chains is not None and len(positions) % num_chains:
            raise ValueError(
                f"num_chains must divide the number of draws, {len(positions)}, since chains are equally long; got "
                f"{num_chains}."
            )
        return PosteriorDraws(positions, num_chains, (), 0)
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


def _check_num_chains(num_chains: Any, samples: Any) -> int | None:
    if num_chains is not None and (samples is None or isinstance(samples, MCMC)):
        raise ValueError(
            "num_chains= says of how many chains values in posterior_samples= are; an MCMC object knows its own. "
            "Leave it out."
        )
    return check_optional_count("num_chains", num_chains, 1)


def _draws_of(mcmc: MCMC, problem: Problem, target: TracedTarget) -> PosteriorDraws:
    """The draws of chains that the user has run."""
    if mcmc.last_state is None:
        raise ValueError("posterior_samples= is an MCMC object without draws; call its run first.")
    structure = target.tracing.structure
    chains = mcmc.get_samples(group_by_chain=True)
    if structure is not None:
        chains = {name: x for name, x in chains.items() if name in structure.prototype}
    samples = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), chains)
    positions = _to_positions(problem, target, samples)
    return PosteriorDraws(positions, mcmc.num_chains, _notes(mcmc, chains), 0)


def _notes(mcmc: MCMC, chains: Any) -> tuple[str, ...]:
    """Why draws of chains should not be trusted."""
    notes = []
    if num_divergent := int(np.sum(mcmc.get_extra_fields().get("diverging", 0))):
        notes.append(
            f"NUTS had {num_divergent} divergent transitions, so its draws, and with them the upper bound, "
            "may be wrong; reparametrise the model or give posterior_samples=."
        )
    leaves = [np.asarray(x) for x in jax.tree.leaves(chains)]
    rhat = max(float(np.nanmax(gelman_rubin(x))) for x in leaves) if mcmc.num_chains > 1 else 1.0
    if rhat > _RHAT_LIMIT:
        notes.append(
            f"NUTS has not converged (r-hat {rhat:.2f}, above {_RHAT_LIMIT}), so the upper bound is not to be "
            "trusted; reparametrise the model or give posterior_samples=."
        )
    return tuple(notes)


def _to_positions(problem: Problem, target: TracedTarget, samples: Any) -> jax.Array:
    leaves = jax.tree.leaves(samples)
    lengths = {len(leaf) if jnp.ndim(leaf) else 0 for leaf in leaves}
    if len(lengths) != 1 or min(lengths, default=0) < 2:
        raise ValueError(
            "posterior_samples must have one leading axis of draws, of at least 2 and the same in every "
            f"site; got lengths {sorted(lengths)}."
        )
    structure = target.tracing.structure
    if structure is None:
        return jax.vmap(make_target(problem).ravel_fn)(samples)
    names = set(structure.prototype)
    samples = {name: x for name, x in samples.items() if name not in structure.deterministic}
    remedy = "Pass the draws of each, as `mcmc.get_samples()` has them"
    check_site_names("posterior_samples", set(samples), names, remedy)
    for name, shape in sorted(structure.shapes.items()):
        if jnp.shape(samples[name])[1:] != shape:
            raise ValueError(
                f"posterior_samples[{name!r}] must have shape [num_draws, *{shape}]; got "
                f"{jnp.shape(samples[name])}."
            )
    samples = {name: jnp.asarray(samples[name], float) for name in names}
    one = {name: np.zeros(x.shape[1:], x.dtype) for name, x in samples.items()}
    position_fn = trace_function(target, problem, "position", _position_of, one)
    positions, is_inside = _positions(position_fn, samples)
    for name in sorted(names):
        if is_concrete(is_inside) and not np.all(is_inside[name]):
            raise ValueError(
                f"posterior_samples[{name!r}] has {int(np.sum(~np.asarray(is_inside[name])))} draws outside "
                "the support of the site. Pass constrained values, as `mcmc.get_samples()` gives them."
            )
    return positions


def _position_of(
    problem: Problem, values: dict[str, jax.Array]
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The position of values of the latent sites, and whether each is inside its support."""
    density = ModelDensity(problem, inspect_model(problem))
    return density.to_position(values), density.in_support(values)


@program(is_brief=True)
def _positions(position_fn: TracedFunction, samples: dict[str, jax.Array]) -> Any:
    return jax.vmap(position_fn)(samples)


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
    num_gradients += int(np.sum(mcmc.get_extra_fields()["num_steps"]))
    density = ModelDensity(problem, inspect_model(problem))
    names = density.structure.prototype
    chains = {n: x for n, x in mcmc.get_samples(group_by_chain=True).items() if n in names}
    kept = {name: x[:, ::thinning] for name, x in chains.items()}
    samples = {name: x.reshape(-1, *x.shape[2:]) for name, x in kept.items()}
    positions = jax.vmap(density.to_position)(samples)
    return PosteriorDraws(positions, _NUM_CHAINS, _notes(mcmc, chains), num_gradients)
