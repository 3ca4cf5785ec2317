# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
A guide as the start of chains: draws, and the density at any point of the unconstrained space.

A guide is taken apart into pieces with a density each: the members of an ``AutoGuideList``, or the
guide as a whole.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax import random
from jax.extend.core import Var
import jax.numpy as jnp

from numpyro import handlers
from numpyro.distributions import (
    Distribution,
    LowRankMultivariateNormal,
    MultivariateNormal,
    Normal,
    TransformedDistribution,
    biject_to,
)
from numpyro.infer import autoguide

from numpyro_dais._util.checks import with_article
from numpyro_dais._util.numpyro_internals import (
    autoguide_posterior,
    autoguide_sites,
    batched_posterior,
    posterior_fn,
    unpack_fn,
)
from numpyro_dais.model.density import ModelDensity, Position, make_layout
from numpyro_dais.model.inspection import Trace, plate_axes_of, plates_of
from numpyro_dais.model.problem import Problem

__all__ = [
    "DENSE_GUIDES",
    "FLOW_GUIDES",
    "Draw",
    "Part",
    "check_guide",
    "flow_posterior",
    "guide_part",
    "guide_plates",
    "guide_scale",
    "latent_sites",
    "pieces_of",
    "position_order",
    "seeded_trace",
    "set_up",
    "traced_part",
]

# Guides that are a flow: chains run in the space of its noise.
FLOW_GUIDES = (autoguide.AutoIAFNormal, autoguide.AutoBNAFNormal)
# Gaussian guides with all correlations: draws are a matrix times noise.
DENSE_GUIDES = (autoguide.AutoMultivariateNormal,)
_BATCHED_GUIDES = (
    autoguide.AutoBatchedMultivariateNormal,
    autoguide.AutoBatchedLowRankMultivariateNormal,
)
_WITHOUT_DENSITY = {
    autoguide.AutoDelta: "it is a point mass",
    autoguide.AutoDAIS: "its density is itself an integral over chains",
    autoguide.AutoSemiDAIS: "its density is itself an integral over chains",
}


class Draw(NamedTuple):
    """A draw of some sites: unconstrained where that is known without a round trip."""

    position: Position
    values: Position


class Part(NamedTuple):
    """A piece of a guide, over some of the sites."""

    sample_fn: Callable[[jax.Array], Draw]
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
    for piece in pieces_of(guide):
        for kind, reason in _WITHOUT_DENSITY.items():
            if isinstance(piece, kind):
                raise NotImplementedError(
                    f"A chain cannot start at {with_article(type(piece).__name__)}: {reason}. Use AutoNormal, "
                    "AutoMultivariateNormal or another guide with a density."
                )
        if piece is not guide and isinstance(piece, FLOW_GUIDES):
            raise NotImplementedError(
                f"A chain cannot start at {with_article(type(piece).__name__)} inside an AutoGuideList, since it runs "
                "in the noise space of a flow. Use it as the guide of the whole model."
            )
    if guide_params is None:
        raise ValueError(
            "A guide needs the values of its parameters: pass guide_params=, such as "
            "`svi_result.params` ({} for a guide that has none)."
        )


def flow_posterior(problem: Problem) -> TransformedDistribution:
    """
    Returns the flow of a fitted flow guide, over the unconstrained values as its guide packs them.

    :param problem: a problem with such a guide.
    """
    guide = set_up(problem.guide, problem)
    _require_params(guide, _param_names(guide), problem)
    return autoguide_posterior(guide, problem.guide_params)


def pieces_of(guide: Any) -> list:
    """Returns the members of an ``AutoGuideList``, or the guide alone."""
    return list(guide) if isinstance(guide, autoguide.AutoGuideList) else [guide]


def guide_plates(problem: Problem) -> set[str] | None:
    """
    Returns the plates over whose elements the problem's guide factorises; None if over any.

    :param problem: a problem with a guide.
    """
    plates: set[str] | None = None
    for piece in pieces_of(problem.guide):
        own = _piece_plates(piece, problem)
        if own is not None:
            plates = own if plates is None else plates & own
    return plates


def _piece_plates(guide: Any, problem: Problem) -> set[str] | None:
    if isinstance(guide, autoguide.AutoContinuous):
        guide = set_up(guide, problem)
        if isinstance(guide, autoguide.AutoDiagonalNormal):
            return None
        if not _has_rows(guide):
            return set()
        (name,) = autoguide_sites(guide)
        site = guide.prototype_trace[name]
        return {plate for plate in plates_of(site) if plate_axes_of(site, (plate,)) == (0,)}
    sites = latent_sites(seeded_trace(guide, problem))
    stacks = [plates_of(site) for site in sites.values()]
    return set.intersection(*stacks) if stacks else None


def guide_scale(guide: Any, params: dict[str, Any]) -> jax.Array | None:
    """
    Returns a square root of the covariance of a Gaussian autoguide over unconstrained values, as a
    chain orders them: its diagonal, or a matrix. None for other guides.

    :param guide: a guide that has seen the model.
    :param params: its parameters.
    """
    if isinstance(guide, autoguide.AutoNormal):
        scales = {name: params[f"{name}_{guide.prefix}_scale"] for name in autoguide_sites(guide)}
        return make_layout(scales).ravel(scales)
    if not isinstance(guide, autoguide.AutoContinuous):
        return None
    posterior = autoguide_posterior(guide, params)
    if isinstance(posterior, Normal):
        scale = posterior.scale
    elif isinstance(posterior, MultivariateNormal):
        scale = posterior.scale_tril
    elif isinstance(posterior, LowRankMultivariateNormal):
        scale = jnp.linalg.cholesky(posterior.covariance_matrix)
    else:
        return None
    order = position_order(guide)
    return scale[order] if scale.ndim == 1 else scale[order][:, order]


def position_order(guide: Any) -> jax.Array:
    """
    Returns the coordinates of an ``AutoContinuous`` in the order of a position.

    :param guide: a guide that has seen the model.
    """
    indices = unpack_fn(guide)(jnp.arange(guide.latent_dim, dtype=float))
    return make_layout(indices).ravel(indices).astype(int)


def latent_sites(trace: Trace) -> Trace:
    """Returns the sample sites of a trace that are not observed."""
    return {n: s for n, s in trace.items() if s["type"] == "sample" and not s["is_observed"]}


def guide_part(guide: Any, problem: Problem, density: ModelDensity) -> Part:
    """
    Returns a piece of the problem's guide.

    :param guide: the piece; not a flow.
    :param problem: the problem.
    :param density: of the problem's model.
    """
    if isinstance(guide, autoguide.AutoContinuous):
        return _continuous_part(set_up(guide, problem), problem, density)
    if isinstance(guide, autoguide.AutoGuide):
        guide = set_up(guide, problem)
    trace = seeded_trace(guide, problem)
    missing = [name for name, site in trace.items() if site["type"] in ("param", "mutable")]
    missing = sorted(set(missing) - set(problem.guide_params))
    if missing:
        raise ValueError(
            f"The guide's parameters {missing} have no value in guide_params= (it has "
            f"{sorted(problem.guide_params)}). Pass the parameters of the fit, `svi_result.params`."
        )
    for name, site in latent_sites(trace).items():
        if site["infer"].get("is_auxiliary"):
            raise NotImplementedError(
                f"The guide's site {name!r} is auxiliary, so the density of the other sites is not "
                "known. Use a guide without auxiliary sites."
            )
        if outside := [plate for plate in problem.plates if plate not in plates_of(site)]:
            raise ValueError(
                f"With plate={outside[0]!r} the guide must factorise over that plate, but its site {name!r} "
                "is outside. Open the plate around it, or leave plate= out."
            )
    is_auto_normal = isinstance(guide, autoguide.AutoNormal)
    return traced_part(problem.prepare_guide(guide), density, is_auto_normal)


def seeded_trace(guide: Callable, problem: Problem) -> Trace:
    """Returns the sites of one seeded run of a piece of the problem's guide."""
    seeded = handlers.seed(problem.prepare_guide(guide), random.key(0))
    trace: Trace = handlers.trace(seeded).get_trace(*problem.args, **problem.kwargs)
    return trace


def set_up(guide: Any, problem: Problem) -> Any:
    """Returns an autoguide that has seen the model; if it has not, it learns its sites here."""
    if guide.prototype_trace is None:
        # The guide keeps what it sees, so it must not see tracers.
        with jax.ensure_compile_time_eval():
            seeded_trace(guide, problem)
    return guide


def traced_part(guide: Callable, density: ModelDensity, is_auto_normal: bool = False) -> Part:
    """
    Returns a piece whose density is that of its sample sites at the model's values.

    :param guide: the piece, with its parameters filled in.
    :param density: of the problem's model.
    :param is_auto_normal: whether the piece is an ``AutoNormal``.
    """
    args, kwargs = density.problem.args, density.problem.kwargs
    names = density.structure.prototype.keys()
    model_sites = density.run(density.structure.prototype)

    def base_of(name: str, fn: Distribution) -> Distribution | None:
        """
        Returns the distribution of a site's unconstrained value, where the guide has one. An
        AutoNormal always does: it is the one transformed, whatever the support was in the run that
        set the guide up.
        """
        if name not in names or not isinstance(fn, TransformedDistribution):
            return None
        is_own = fn.transforms == [biject_to(model_sites[name]["fn"].support)]
        return fn.base_dist if is_auto_normal or is_own else None

    def sample_fn(rng_key: jax.Array) -> Draw:
        trace = handlers.trace(handlers.seed(guide, rng_key)).get_trace(*args, **kwargs)
        sites = latent_sites(trace)
        # A site that the guide itself draws in unconstrained space loses digits on the way there
        # and back: take the draw before the transform.
        base = {
            name: site["intermediates"][0][0]
            for name, site in sites.items()
            if base_of(name, site["fn"]) is not None
        }
        return Draw(base, {n: s["value"] for n, s in sites.items() if n not in base})

    def fns_at(values: Position) -> dict[str, Distribution]:
        trace = handlers.trace(handlers.substitute(guide, data=values)).get_trace(*args, **kwargs)
        return {name: site["fn"] for name, site in latent_sites(trace).items()}

    example = {name: model_sites[name]["value"] for name in names}
    drawn = jax.eval_shape(sample_fn, random.key(0))
    has_known_sites = {*drawn.position, *drawn.values} <= set(names)  # else: an error of the caller
    # A network that amortises the guide runs once, not at every step, unless its sites lean on each
    # other.
    is_fixed = has_known_sites and not _depends_on_sites(fns_at, example)
    fixed_fns = fns_at(example) if is_fixed else None

    def log_density_fn(position: Position, trace: Trace) -> jax.Array:
        values = {name: trace[name]["value"] for name in names}
        fns = fns_at(values) if fixed_fns is None else fixed_fns
        terms = [
            _site_log_density(fn, base_of(name, fn), position[name], trace[name], trace, density)
            for name, fn in fns.items()
        ]
        return sum(terms[1:], start=terms[0])

    return Part(sample_fn, log_density_fn)


def _depends_on_sites(
    fns_at: Callable[[Position], dict[str, Distribution]], example: Position
) -> bool:
    """Returns whether the distributions of a guide's sites change with the values of the sites."""

    def log_probs(values: Position, at: Position) -> list[jax.Array]:
        return [fn.log_prob(at[name]) for name, fn in fns_at(values).items()]

    jaxpr = jax.make_jaxpr(log_probs)(example, example).jaxpr
    dependent = set(jaxpr.invars[: len(example)])
    for equation in jaxpr.eqns:
        if any(isinstance(var, Var) and var in dependent for var in equation.invars):
            dependent.update(equation.outvars)
    return any(isinstance(var, Var) and var in dependent for var in jaxpr.outvars)


def _site_log_density(
    fn: Distribution,
    base: Distribution | None,
    unconstrained: jax.Array,
    model_site: dict[str, Any],
    trace: Trace,
    density: ModelDensity,
) -> jax.Array:
    if base is not None:
        return density.reduce(base.log_prob(unconstrained), model_site)
    log_prob = density.reduce(fn.log_prob(model_site["value"]), model_site)
    return log_prob + density.log_det(trace, model_site["name"])


def _has_rows(guide: Any) -> bool:
    """Returns whether a guide is a distribution over the rows of one site."""
    return (
        isinstance(guide, _BATCHED_GUIDES)
        and len(autoguide_sites(guide)) == 1
        and guide.batch_ndim == 1
    )


def _continuous_part(guide: Any, problem: Problem, density: ModelDensity) -> Part:
    """Returns an ``AutoContinuous`` guide: a distribution over all unconstrained values."""
    if isinstance(guide, autoguide.AutoLaplaceApproximation):
        _require_params(guide, {f"{guide.prefix}_loc"}, problem)
        posterior = guide.get_posterior(problem.guide_params)
    else:
        _require_params(guide, _param_names(guide), problem)
        posterior = autoguide_posterior(guide, problem.guide_params)
    unpack, sites = unpack_fn(guide), autoguide_sites(guide)

    def pack(position: Position) -> jax.Array:
        return jnp.concatenate([jnp.ravel(position[name]) for name in sites])

    if not problem.plates:

        def log_density_fn(position: Position, _: Trace) -> jax.Array:
            return jnp.sum(posterior.log_prob(pack(position)))
    elif posterior.event_dim == 0:  # independent coordinates
        plate_axes = density.structure.plate_axes
        assert plate_axes is not None
        axes = {name: plate_axes[name] for name in sites}
        layout = make_layout(sites, axes)

        def log_density_fn(position: Position, _: Trace) -> jax.Array:
            return jnp.sum(layout.ravel(unpack(posterior.log_prob(pack(position)))), -1)
    elif _has_rows(guide) and density.structure.plate_axes == {n: (0,) for n in sites}:
        rows = batched_posterior(guide, problem.guide_params)

        def log_density_fn(position: Position, _: Trace) -> jax.Array:
            return rows.log_prob(jnp.reshape(pack(position), rows.shape()))
    else:
        raise ValueError(
            f"With plate={problem.plate!r} the guide must factorise over that plate; a "
            f"{type(guide).__name__} over sites {list(sites)} does not. Use AutoNormal or "
            "AutoDiagonalNormal, or leave plate= out."
        )
    return Part(lambda rng_key: Draw(unpack(posterior.sample(rng_key)), {}), log_density_fn)


def _param_names(guide: Any) -> set[str]:
    trace = handlers.trace(handlers.seed(posterior_fn(guide), random.key(0))).get_trace()
    return {name for name, site in trace.items() if site["type"] == "param"}


def _require_params(guide: Any, names: set[str], problem: Problem) -> None:
    if missing := sorted(names - set(problem.guide_params)):
        raise ValueError(
            f"The parameters {missing} of the {type(guide).__name__} have no value in guide_params= (it "
            f"has {sorted(problem.guide_params)}). Pass the parameters of the fit, `svi_result.params`."
        )
