# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Where chains start: a draw and its log density, in the unconstrained space of a model.

A start is the prior, distributions given by the user, or a fitted guide. A guide is taken apart into
pieces with a density each: the members of an ``AutoGuideList``, or the guide as a whole.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax import random
import jax.numpy as jnp

import numpyro
from numpyro import handlers
from numpyro.distributions import Distribution, TransformedDistribution, biject_to
from numpyro.infer import autoguide

from numpyro_dais.density import ModelDensity, Position, make_layout
from numpyro_dais.inspection import Trace, check_site_names
from numpyro_dais.problem import Problem

__all__ = ["FLOW_GUIDES", "Start", "check_guide", "flow_posterior", "make_start"]

FLOW_GUIDES = (autoguide.AutoIAFNormal, autoguide.AutoBNAFNormal)
_BATCHED_GUIDES = (
    autoguide.AutoBatchedMultivariateNormal,
    autoguide.AutoBatchedLowRankMultivariateNormal,
)
_WITHOUT_DENSITY = {
    autoguide.AutoDelta: "it is a point mass",
    autoguide.AutoDAIS: "its density is itself an integral over chains",
    autoguide.AutoSemiDAIS: "its density is itself an integral over chains",
}


class Start(NamedTuple):
    """
    The start of the chains.

    :param sample_fn: an exact draw, as unconstrained values by site.
    :param log_density_fn: its log density at unconstrained values, given the model's trace there.
    """

    sample_fn: Callable[[jax.Array], Position]
    log_density_fn: Callable[[Position, Trace], jax.Array]


class _Draw(NamedTuple):
    """A draw of some sites: unconstrained where that is known without a round trip."""

    position: Position
    values: Position


class _Part(NamedTuple):
    """A piece of a guide, over some of the sites."""

    sample_fn: Callable[[jax.Array], _Draw]
    log_density_fn: Callable[[Position, Trace], jax.Array]


def check_guide(guide: Any, guide_params: dict | None) -> None:
    """
    Raises an error unless the guide can start a chain; needs no model run.

    :param guide: a guide, or None.
    :param guide_params: its parameters.
    """
    if guide is None:
        if guide_params is not None:
            raise ValueError("guide_params= goes with guide=; no guide was given. Add guide=.")
        return
    if not callable(guide):
        raise TypeError(
            f"guide must be a guide, a callable with NumPyro primitives; got {guide!r}."
        )
    for piece in guide if isinstance(guide, autoguide.AutoGuideList) else [guide]:
        for kind, reason in _WITHOUT_DENSITY.items():
            if isinstance(piece, kind):
                raise NotImplementedError(
                    f"A {type(piece).__name__} cannot start a chain: {reason}. Use AutoNormal, "
                    "AutoMultivariateNormal or another guide with a density."
                )
        if piece is not guide and isinstance(piece, FLOW_GUIDES):
            raise NotImplementedError(
                f"A {type(piece).__name__} inside an AutoGuideList cannot start a chain, since chains run "
                "in the noise space of a flow. Use it as the guide of the whole model."
            )
    if guide_params is None:
        raise ValueError(
            "A guide needs the values of its parameters: pass guide_params=, such as "
            "`svi_result.params` ({} for a guide that has none)."
        )


def make_start(problem: Problem, density: ModelDensity) -> Start:
    """
    Returns the start of a problem with a model.

    :param problem: the problem; its guide is not a flow.
    :param density: of the problem's model.
    """
    if problem.guide is not None:
        pieces = (
            list(problem.guide)
            if isinstance(problem.guide, autoguide.AutoGuideList)
            else [problem.guide]
        )
        parts = [_guide_part(piece, problem, density) for piece in pieces]
        return _combine(parts, density, "The guide")
    if isinstance(problem.start, str):
        return Start(density.sample, density.log_prior)
    if isinstance(problem.start, Distribution):
        if len(density.structure.prototype) > 1:
            return _vector_start(problem.start, density)
        (name,) = density.structure.prototype
        return _combine([_distributions_part({name: problem.start}, density)], density, "start=")
    return _combine([_distributions_part(problem.start, density)], density, "start=")


def flow_posterior(problem: Problem) -> TransformedDistribution:
    """Returns the flow of a fitted flow guide, over the unconstrained values as its guide packs them."""
    guide = _set_up(problem.guide, problem)
    _require_params(guide, _param_names(guide), problem)
    posterior = handlers.substitute(guide._get_posterior, data=problem.guide_params)()
    return posterior


def _combine(parts: list[_Part], density: ModelDensity, what: str) -> Start:
    def draw(rng_key: jax.Array) -> _Draw:
        keys = random.split(rng_key, len(parts))
        draws = [part.sample_fn(key) for part, key in zip(parts, keys, strict=True)]
        position = {name: u for d in draws for name, u in d.position.items()}
        return _Draw(position, {name: x for d in draws for name, x in d.values.items()})

    names = jax.eval_shape(draw, random.key(0))
    check_site_names(what, {*names.position, *names.values}, set(density.structure.prototype))

    def sample_fn(rng_key: jax.Array) -> Position:
        position, values = draw(rng_key)
        return density.unconstrain(position, values) if values else position

    def log_density_fn(position: Position, trace: Trace) -> jax.Array:
        first, *others = [part.log_density_fn(position, trace) for part in parts]
        return sum(others, start=first)

    return Start(sample_fn, log_density_fn)


def _vector_start(start: Distribution, density: ModelDensity) -> Start:
    """A distribution over all unconstrained values as one vector."""
    if density.problem.plate is not None:
        raise NotImplementedError(
            "With plate= the start must factorise over the plate; give start= as a dict with one "
            "distribution per site."
        )
    shape = jax.eval_shape(density.layout.ravel, density.structure.prototype).shape
    if start.shape() != shape:
        raise ValueError(
            f"start= must be a distribution over the {shape[0]} unconstrained values of the sites "
            f"{sorted(density.structure.prototype)} as one vector; got shape {start.shape()}. Give it that "
            "shape, or a dict with one distribution per site."
        )
    return Start(
        lambda rng_key: density.layout.unravel(start.sample(rng_key)),
        lambda position, _: jnp.sum(start.log_prob(density.layout.ravel(position))),
    )


def _distributions_part(start: dict[str, Distribution], density: ModelDensity) -> _Part:
    """Distributions over the constrained values of sites, broadcast to the sites' shapes."""
    check_site_names("start=", set(start), set(density.structure.prototype))
    sites = density.run(density.structure.prototype)

    def broadcast(name: str) -> Distribution:
        value, event_dim = sites[name]["value"], sites[name]["fn"].event_dim
        batch_shape = jnp.shape(value)[: jnp.ndim(value) - event_dim]
        try:
            fn = start[name].expand(batch_shape)
            if fn.shape() == jnp.shape(value):
                return fn
        except ValueError:
            pass
        raise ValueError(
            f"start={{{name!r}: ...}} must fit the site's shape {jnp.shape(value)}; got a "
            f"{type(start[name]).__name__} of shape {start[name].shape()}."
        )

    fns = {name: broadcast(name) for name in start}

    def guide(*args: Any, **kwargs: Any) -> None:
        for name, fn in fns.items():
            numpyro.sample(name, fn)

    return _traced_part(guide, {}, density)


def _guide_part(guide: Any, problem: Problem, density: ModelDensity) -> _Part:
    if isinstance(guide, autoguide.AutoContinuous):
        return _continuous_part(_set_up(guide, problem), problem, density)
    if isinstance(guide, autoguide.AutoGuide):
        guide = _set_up(guide, problem)
    trace = _seeded_trace(guide, problem)
    missing = [name for name, site in trace.items() if site["type"] in ("param", "mutable")]
    missing = sorted(set(missing) - set(problem.guide_params))
    if missing:
        raise ValueError(
            f"The guide's parameters {missing} have no value in guide_params= (it has "
            f"{sorted(problem.guide_params)}). Pass the parameters of the fit, `svi_result.params`."
        )
    for name, site in trace.items():
        if site["type"] != "sample" or site["is_observed"]:
            continue
        if site["infer"].get("is_auxiliary"):
            raise NotImplementedError(
                f"The guide's site {name!r} is auxiliary, so the density of the other sites is not "
                "known. Use a guide without auxiliary sites."
            )
        plate = problem.plate
        if plate is not None and plate not in [f.name for f in site["cond_indep_stack"]]:
            raise ValueError(
                f"With plate={plate!r} the guide must factorise over that plate, but its site {name!r} is "
                "outside. Open the plate around it, or leave plate= out."
            )
    is_auto_normal = isinstance(guide, autoguide.AutoNormal)
    return _traced_part(guide, problem.guide_params, density, is_auto_normal)


def _seeded_trace(guide: Callable, problem: Problem) -> Trace:
    seeded = handlers.seed(handlers.substitute(guide, data=problem.guide_params), random.key(0))
    trace: Trace = handlers.trace(seeded).get_trace(*problem.args, **problem.kwargs)
    return trace


def _set_up(guide: Any, problem: Problem) -> Any:
    """An autoguide that has seen the model; one that has not learns its sites from one run."""
    if guide.prototype_trace is None:
        # The guide keeps what it sees, so it must not see tracers.
        with jax.ensure_compile_time_eval():
            _seeded_trace(guide, problem)
    return guide


def _traced_part(
    guide: Callable, params: dict, density: ModelDensity, is_auto_normal: bool = False
) -> _Part:
    """A piece whose density is that of its sample sites at the model's values."""
    args, kwargs = density.problem.args, density.problem.kwargs
    guide = handlers.substitute(guide, data=params)
    names = density.structure.prototype.keys()
    model_sites = density.run(density.structure.prototype)

    def base_of(site: dict[str, Any]) -> Distribution | None:
        """
        The distribution of a site's unconstrained value, where the guide has one. An AutoNormal always
        does: it is the one transformed, whatever the support was in the run that set the guide up.
        """
        fn, name = site["fn"], site["name"]
        if name not in names or not isinstance(fn, TransformedDistribution):
            return None
        is_own = fn.transforms == [biject_to(model_sites[name]["fn"].support)]
        return fn.base_dist if is_auto_normal or is_own else None

    def sample_fn(rng_key: jax.Array) -> _Draw:
        trace = handlers.trace(handlers.seed(guide, rng_key)).get_trace(*args, **kwargs)
        sites = {n: s for n, s in trace.items() if s["type"] == "sample" and not s["is_observed"]}
        # A site that the guide itself draws in unconstrained space loses digits on the way there and
        # back: take the draw before the transform.
        base = {n: s["intermediates"][0][0] for n, s in sites.items() if base_of(s) is not None}
        return _Draw(base, {n: s["value"] for n, s in sites.items() if n not in base})

    def log_density_fn(position: Position, trace: Trace) -> jax.Array:
        values = {name: trace[name]["value"] for name in names}
        substituted = handlers.substitute(guide, data=values)
        guide_trace = handlers.trace(substituted).get_trace(*args, **kwargs)
        terms = [
            _site_log_density(site, base_of(site), position[name], trace, density)
            for name, site in guide_trace.items()
            if site["type"] == "sample" and not site["is_observed"]
        ]
        return sum(terms[1:], start=terms[0])

    return _Part(sample_fn, log_density_fn)


def _site_log_density(
    site: dict[str, Any],
    base: Distribution | None,
    unconstrained: jax.Array,
    trace: Trace,
    density: ModelDensity,
) -> jax.Array:
    model_site = trace[site["name"]]
    if base is not None:
        return density.reduce(base.log_prob(unconstrained), model_site)
    log_prob = density.reduce(site["fn"].log_prob(site["value"]), model_site)
    return log_prob + density.log_det(trace, site["name"])


def _continuous_part(guide: Any, problem: Problem, density: ModelDensity) -> _Part:
    """An ``AutoContinuous`` guide: a distribution over one vector of unconstrained values."""
    if isinstance(guide, autoguide.AutoLaplaceApproximation):
        _require_params(guide, {f"{guide.prefix}_loc"}, problem)
        posterior = guide.get_posterior(problem.guide_params)
    else:
        _require_params(guide, _param_names(guide), problem)
        posterior = handlers.substitute(guide._get_posterior, data=problem.guide_params)()
    unpack = guide._unpack_latent

    def pack(position: Position) -> jax.Array:
        return jnp.concatenate([jnp.ravel(position[name]) for name in guide._init_locs])

    if problem.plate is None:

        def log_density_fn(position: Position, _: Trace) -> jax.Array:
            return jnp.sum(posterior.log_prob(pack(position)))
    elif posterior.event_dim == 0:  # independent coordinates
        plate_axes = density.structure.plate_axes
        assert plate_axes is not None
        axes = {name: plate_axes[name] for name in guide._init_locs}
        layout = make_layout(guide._init_locs, axes)

        def log_density_fn(position: Position, _: Trace) -> jax.Array:
            return jnp.sum(layout.ravel(unpack(posterior.log_prob(pack(position)))), -1)
    elif (
        isinstance(guide, _BATCHED_GUIDES)
        and density.structure.plate_axes == {name: 0 for name in guide._init_locs}
        and len(guide._init_locs) == 1
        and guide.batch_ndim == 1
    ):
        rows = handlers.substitute(guide._get_batched_posterior, data=problem.guide_params)()

        def log_density_fn(position: Position, _: Trace) -> jax.Array:
            return rows.log_prob(jnp.reshape(pack(position), rows.shape()))
    else:
        raise ValueError(
            f"With plate={problem.plate!r} the guide must factorise over that plate; a "
            f"{type(guide).__name__} over sites {list(guide._init_locs)} does not. Use AutoNormal or "
            "AutoDiagonalNormal, or leave plate= out."
        )
    return _Part(lambda rng_key: _Draw(unpack(posterior.sample(rng_key)), {}), log_density_fn)


def _param_names(guide: Any) -> set[str]:
    trace = handlers.trace(handlers.seed(guide._get_posterior, random.key(0))).get_trace()
    return {name for name, site in trace.items() if site["type"] == "param"}


def _require_params(guide: Any, names: set[str], problem: Problem) -> None:
    if missing := sorted(names - set(problem.guide_params)):
        raise ValueError(
            f"The parameters {missing} of the {type(guide).__name__} have no value in guide_params= (it "
            f"has {sorted(problem.guide_params)}). Pass the parameters of the fit, `svi_result.params`."
        )
