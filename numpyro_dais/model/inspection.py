# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""The structure of a model, and clear errors for those whose evidence is not defined."""

from typing import Any, NamedTuple
import warnings

import jax
from jax import random
import jax.numpy as jnp
import numpy as np

from numpyro import distributions as dist
from numpyro import handlers
from numpyro.distributions import transforms
from numpyro.infer.initialization import init_to_uniform
from numpyro.infer.util import helpful_support_errors
from numpyro.util import not_jax_tracer

from numpyro_dais.model.problem import Problem
from numpyro_dais.model.refusals import check_enumerable, check_latent
from numpyro_dais.model.wrappers import base_of, bounded, is_masked

__all__ = [
    "NO_DATA_NOTE",
    "NUMPY_ERRORS",
    "ModelStructure",
    "Trace",
    "check_data",
    "check_site_names",
    "coordinates_of",
    "inspect_model",
    "inspect_run",
    "is_imputed",
    "log_prob_of",
    "missing_data",
    "plate_axes_of",
    "plates_of",
    "subsampled_plates",
    "trace_model",
    "without_tracers",
]

# The sites of a run by name, as NumPyro records them.
Trace = dict[str, dict[str, Any]]

# Of an evidence that says nothing about a model.
NO_DATA_NOTE = (
    "The model has no observed site and no factor, so its log evidence is 0 whatever the model; pass the data that its "
    "sites observe (obs=), and see that no handler hides them."
)

# An unconstrained value of every site where any would do; an odd one, at which no two supports
# agree by chance.
_ANYWHERE = 0.3719


# Raised where a model hands a traced value to NumPy, as an argument or as an index.
NUMPY_ERRORS = (jax.errors.TracerArrayConversionError, jax.errors.TracerIntegerConversionError)


class ModelStructure(NamedTuple):
    """
    The latent sites of a model.

    :param prototype: some unconstrained value of each continuous latent site.
    :param plate_axes: for each of them the axes of the independent plates, or None without any.
    :param discrete: names of the latent sites to enumerate.
    :param first_enum_dim: the first batch dimension free for enumeration.
    :param shapes: those of the constrained values of the continuous latent sites.
    :param has_data: whether there is a site that is observed, or a factor.
    :param deterministic: names of the ``deterministic`` sites.
    :param rounded: names of the latent sites whose values end at the edge of their support up to
        rounding, see :mod:`numpyro_dais.model.edges`.
    :param free_factors: names of the factors beside observed sites that no argument of the model
        enters; empty where no one has looked for them.
    """

    prototype: dict[str, Any]
    plate_axes: dict[str, tuple[int, ...]] | None
    discrete: frozenset[str]
    first_enum_dim: int
    shapes: dict[str, tuple[int, ...]]
    has_data: bool
    deterministic: frozenset[str]
    rounded: frozenset[str] = frozenset()
    free_factors: tuple[str, ...] = ()


def inspect_model(problem: Problem) -> ModelStructure:
    """
    Returns the structure of the problem's model, from one seeded run, or raises an error that names
    the site that stands in the way.

    :param problem: a problem with a model; it is traced, not computed.
    """
    structure: Any = None

    def inspect() -> dict[str, jax.Array]:
        nonlocal structure
        structure, _ = inspect_run(problem)
        return structure.prototype

    shapes = jax.eval_shape(inspect)
    return without_tracers(structure, shapes)


def without_tracers(structure: ModelStructure, shapes: dict[str, Any]) -> ModelStructure:
    """
    Returns a structure that was found under tracing, with a prototype that may outlive the trace.

    :param structure: the structure.
    :param shapes: those of its prototype.
    """
    # In the order of the model, which the dict that JAX returns does not keep.
    names = structure.prototype
    prototype = {n: np.full(shapes[n].shape, _ANYWHERE, shapes[n].dtype) for n in names}
    return structure._replace(prototype=prototype)


def inspect_run(problem: Problem) -> tuple[ModelStructure, Trace]:
    """
    Returns the structure of the problem's model, and the seeded run that it was seen in.

    :param problem: a problem with a model.
    """
    trace = trace_model(problem, random.key(0), is_whole=True)
    _check_parameters(trace, problem)
    _check_plates(trace, problem)
    samples = {name: site for name, site in trace.items() if site["type"] == "sample"}
    latents = {name: site for name, site in samples.items() if not site["is_observed"]}
    if not latents:
        raise ValueError(
            "A model needs at least one latent sample site; this one has none. Its log evidence is "
            "its log density: see `numpyro.infer.util.log_density`."
        )
    is_start_prior = problem.guide is None and isinstance(problem.start, str)
    discrete, prototype, rounded = set(), {}, set()
    for name, site in latents.items():
        check_latent(site, is_imputed(name, trace), is_start_prior)
        if site["fn"].support.is_discrete:
            check_enumerable(site)
            discrete.add(name)
        else:
            with helpful_support_errors(site):
                transform = dist.biject_to(site["fn"].support)
            prototype[name] = transform.inv(site["value"])
            if _is_rounded(transform):
                rounded.add(name)
    if not prototype:
        raise ValueError(
            f"The latent sites {sorted(discrete)} are all discrete; DAIS moves continuous ones. With "
            "every site enumerated the evidence is exact: see `numpyro.contrib.funsor.log_density`."
        )
    for site in samples.values():
        if site["is_observed"]:
            _check_observed(site)
    plate_axes = _plate_axes(problem.plates, trace, prototype) if problem.plates else None
    if plate_axes is not None and discrete:
        raise NotImplementedError(
            f"plate={problem.plate!r} does not go with enumerated sites ({sorted(discrete)}): their "
            "marginal density comes as one number. Leave plate= out for the evidence of all the data."
        )
    dims = [frame.dim for site in samples.values() for frame in site["cond_indep_stack"]]
    structure = ModelStructure(
        prototype,
        plate_axes,
        frozenset(discrete),
        min(dims, default=0) - 1,
        {name: jnp.shape(latents[name]["value"]) for name in prototype},
        len(latents) < len(samples),
        frozenset(name for name, site in trace.items() if site["type"] == "deterministic"),
        frozenset(rounded),
    )
    return structure, trace


def coordinates_of(structure: ModelStructure) -> dict[str, np.ndarray]:
    """
    Returns the coordinates of a position that belong to each continuous latent site.

    :param structure: of a model without plates of its own.
    """
    # A position has the sites in alphabetical order.
    sizes = {name: np.size(value) for name, value in sorted(structure.prototype.items())}
    firsts = np.cumsum([0, *sizes.values()])
    return {
        name: first + np.arange(size)
        for (name, size), first in zip(sizes.items(), firsts, strict=False)
    }


def _is_rounded(transform: Any) -> bool:
    """Returns whether the map from unconstrained values to a support ends at 1 up to rounding."""
    if isinstance(transform, transforms.ComposeTransform):
        return any(map(_is_rounded, transform.parts))
    if isinstance(transform, transforms.IndependentTransform):
        return _is_rounded(transform.base_transform)
    return isinstance(transform, transforms.SigmoidTransform | transforms.StickBreakingTransform)


def trace_model(problem: Problem, rng_key: jax.Array, is_whole: bool = False) -> Trace:
    """
    Returns the sites of one seeded run of the problem's model.

    :param problem: a problem with a model.
    :param rng_key: a JAX random key.
    :param is_whole: whether the run needs all elements of plates, but for those of which the
        problem has a mini-batch.
    """
    seeded = handlers.seed(problem.prepared_model, rng_key)
    model = handlers.substitute(seeded, substitute_fn=_value_if_improper)
    trace: Trace
    with handlers.trace() as trace:
        try:
            model(*problem.args, **problem.kwargs)
        except NUMPY_ERRORS as error:
            if is_whole:
                _check_plates(trace, problem)
            for name in subsampled_plates(trace):
                raise ValueError(
                    f"Plate {name!r} is subsampled, and NumPy cannot take the elements of a mini-batch, which JAX "
                    "traces. Make the data that the model indexes a JAX array first: y = jnp.asarray(y)."
                ) from error
            raise
    return trace


def check_site_names(what: str, given: set[str], expected: set[str], remedy: str) -> None:
    """
    Raises an error unless both sets hold the same site names.

    :param what: what the names were given in, to begin the message with.
    :param given: the names that are there.
    :param expected: the names that should be.
    :param remedy: how to make up for those that are missing, a sentence without its full stop.
    """
    if missing := sorted(expected - given):
        raise ValueError(
            f"{what} must cover every latent site of the model; it misses {missing} "
            f"(the model has {sorted(expected)}). {remedy}."
        )
    if unknown := sorted(given - expected):
        raise ValueError(
            f"{what} has sites that the model does not: {unknown} "
            f"(the model has {sorted(expected)}). Remove or rename them."
        )


def is_imputed(name: str, trace: Trace) -> bool:
    """Returns whether a latent site holds the missing values of a site with ``obs_mask``."""
    stem = name.removesuffix("_unobserved")
    return stem != name and f"{stem}_observed" in trace and stem in trace


def log_prob_of(site: dict[str, Any], fn: dist.Distribution | None = None) -> jax.Array:
    """
    Returns the log density of a site's value, under its own distribution or another.

    :param site: of a run.
    :param fn: the distribution; that of the site if left out.
    """
    fn = site["fn"] if fn is None else fn
    # NumPyro compares values that are no JAX arrays with bounds in NumPy; these may be traced.
    value = jnp.asarray(site["value"])
    return (bounded(fn) if site["is_observed"] else fn).log_prob(value)


def _value_if_improper(site: dict[str, Any]) -> jax.Array | None:
    """Returns a value for a site that cannot be drawn, so that the run reaches its end."""
    is_improper = site["type"] == "sample" and isinstance(base_of(site["fn"]), dist.ImproperUniform)
    return init_to_uniform(site) if is_improper else None


def _check_parameters(trace: Trace, problem: Problem) -> None:
    sites = {name: site for name, site in trace.items() if site["type"] in ("param", "mutable")}
    _check_given_parameters(trace, problem, sorted(sites))
    # Leaves of a `random_flax_module` and the like are sampled, and then are no leaves any more.
    needed = {name for name, site in sites.items() if jax.tree.leaves(site["value"])}
    missing = sorted(needed - set(problem.params) - set(problem.guide_params))
    if missing:
        raise ValueError(
            f"The model's parameters {missing} have no value. Pass params={{...}} with a value for "
            "each `numpyro.param` (and `mutable`) site, out of `svi_result.params` for example: the "
            "evidence at a random initial value would mean nothing."
        )


def _check_given_parameters(trace: Trace, problem: Problem, known: list[str]) -> None:
    # Parameters of a fit are those of model and guide together.
    given = [name for name in problem.params if name not in problem.guide_params]
    for name in given:
        if name in trace and trace[name]["type"] == "sample" and name not in known:
            raise ValueError(
                f"params= has {name!r}, which is a sample site of the model and no parameter: it is "
                "integrated over, or observed. To fix a latent site use `handlers.condition` or "
                "`handlers.do`."
            )
    if unknown := sorted(set(given) - set(known)):
        raise ValueError(
            f"params= has names that are no parameters of the model: {unknown} (its `numpyro.param` and "
            f"`mutable` sites are {known}). Leave them out; those of a guide go with guide= and "
            "guide_params=."
        )


def subsampled_plates(trace: Trace) -> dict[str, tuple[int, int]]:
    """
    Returns the size, and that of the mini-batch, of each plate that takes a part of its elements.

    :param trace: the sites of a run.
    """
    sizes = {name: site["args"][:2] for name, site in trace.items() if site["type"] == "plate"}
    return {name: (n, b) for name, (n, b) in sizes.items() if b is not None and b != n}


def _check_plates(trace: Trace, problem: Problem) -> None:
    for name, (size, subsample_size) in subsampled_plates(trace).items():
        if name not in problem.subsample:
            raise NotImplementedError(
                f"Plate {name!r} takes {subsample_size} of {size} elements; the evidence needs all of "
                f"them. Leave subsample_size out; or use surrogate='quadratic', or minibatch=True, whose steps "
                f"do without; or, where every site is inside, name it in plate={name!r} for the evidence of "
                "each element of a mini-batch."
            )


def check_data(problem: Problem) -> None:
    """
    Raises an error that names the observed site whose data make its density NaN, if there is one.

    :param problem: a problem with a model and concrete arguments.
    """
    for name, num_missing in missing_data(problem).items():
        _raise_missing(name, num_missing)


def missing_data(problem: Problem) -> dict[str, int]:
    """
    Returns the number of NaN among the data of each observed site whose density they make NaN.

    :param problem: a problem with a model and concrete arguments, run here as it is: sees data that
        the model makes itself, too.
    """
    numbers = {}
    for name, site in trace_model(problem, random.key(0)).items():
        if site["type"] != "sample" or not site["is_observed"]:
            continue
        is_missing = np.isnan(np.asarray(site["value"], np.float64))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NaN is out of every support: the error says more
            log_prob = np.asarray(site["fn"].log_prob(site["value"]))
        if np.any(is_missing) and not np.all(np.isfinite(log_prob)):
            numbers[name] = int(np.sum(is_missing))
    return numbers


def _raise_missing(name: str, num_missing: int) -> None:
    raise ValueError(
        f"Observed site {name!r} has {num_missing} NaN among its data. Drop these entries or "
        "impute them: numpyro.sample(..., obs_mask=...)."
    )


def _check_observed(site: dict[str, Any]) -> None:
    value = site["value"]
    if not (isinstance(value, (jax.Array, np.ndarray, float)) and not_jax_tracer(value)):
        return
    # Where a mask is, missing values may be what it hides.
    if not jnp.issubdtype(jnp.result_type(value), jnp.floating) or is_masked(site["fn"]):
        return
    if num_missing := int(np.sum(np.isnan(value))):
        _raise_missing(site["name"], num_missing)


def _plate_axes(
    plates: tuple[str, ...], trace: Trace, prototype: dict[str, jax.Array]
) -> dict[str, tuple[int, ...]]:
    """Returns the axes of ``plates`` in the unconstrained value of each latent site."""
    known = [name for name, site in trace.items() if site["type"] == "plate"]
    for plate in plates:
        if plate not in known:
            raise ValueError(
                f"plate={plate!r} is not a plate of the model; it has {known}. Name one of these, or "
                "leave plate= out."
            )
    for name, site in trace.items():
        if site["type"] == "sample" and (
            outside := [p for p in plates if p not in plates_of(site)]
        ):
            raise ValueError(
                f"One evidence per element needs every site inside plate {outside[0]!r}, but site {name!r} "
                "is outside. Move it inside, or leave plate= out."
            )
    return {name: plate_axes_of(trace[name], plates) for name in prototype}


def plates_of(site: dict[str, Any]) -> set[str]:
    """Returns the names of the plates around a site."""
    return {frame.name for frame in site["cond_indep_stack"]}


def plate_axes_of(site: dict[str, Any], plates: tuple[str, ...]) -> tuple[int, ...]:
    """Returns the axes of plates in the value of a site, constrained or not."""
    # Batch dimensions are counted from the right of the batch shape; what lies to the left of them
    # is the same in the constrained and the unconstrained value.
    num_batch_dims = jnp.ndim(site["value"]) - site["fn"].event_dim
    dims = {frame.name: frame.dim for frame in site["cond_indep_stack"]}
    return tuple(num_batch_dims + dims[plate] for plate in plates)
