# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Priors made narrower or wider about their location, and the ratio of the new to the old ones."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from numpyro import distributions as dist

from numpyro_dais._util.checks import with_article
from numpyro_dais._util.programs import program
from numpyro_dais.model.density import ModelDensity, total
from numpyro_dais.model.dependence import dependents, is_among
from numpyro_dais.model.inspection import Trace, inspect_model, log_prob_of
from numpyro_dais.model.problem import Problem
from numpyro_dais.model.target import make_target
from numpyro_dais.model.traced import TracedFunction, TracedTarget, trace_function
from numpyro_dais.model.wrappers import base_of, with_base

__all__ = ["log_prior_ratios", "rescaled"]


class _Family(NamedTuple):
    """
    The parameters of a distribution that can be widened.

    :param width: the parameter that is multiplied.
    :param others: its other parameters.
    :param power: of the factor that it is multiplied by.
    """

    width: str
    others: tuple[str, ...] = ()
    power: int = 1


# Distributions whose width is one parameter, which changes neither support nor shape. Those of
# positive numbers are widened about zero, and a log-normal about the location of its logarithm.
_FAMILIES: dict[type, _Family] = {
    dist.AsymmetricLaplace: _Family("scale", ("loc", "asymmetry")),
    dist.Cauchy: _Family("scale", ("loc",)),
    dist.Exponential: _Family("rate", power=-1),
    dist.Gamma: _Family("rate", ("concentration",), power=-1),
    dist.Gumbel: _Family("scale", ("loc",)),
    dist.HalfCauchy: _Family("scale"),
    dist.HalfNormal: _Family("scale"),
    dist.InverseGamma: _Family("rate", ("concentration",)),
    dist.Laplace: _Family("scale", ("loc",)),
    dist.LogNormal: _Family("scale", ("loc",)),
    dist.Logistic: _Family("scale", ("loc",)),
    dist.MultivariateNormal: _Family("scale_tril", ("loc",)),
    dist.MultivariateStudentT: _Family("scale_tril", ("df", "loc")),
    dist.Normal: _Family("scale", ("loc",)),
    dist.SoftLaplace: _Family("scale", ("loc",)),
    dist.StudentT: _Family("scale", ("df", "loc")),
    dist.Weibull: _Family("scale", ("concentration",)),
}


def rescaled(fn: dist.Distribution, scale: Any, name: str) -> dist.Distribution:
    """
    Returns a distribution that is wider by a factor, in the same plates and dimensions.

    :param fn: the distribution.
    :param scale: the factor; it may be traced.
    :param name: of its site, for the error if it has no scale.
    """
    kind = type(base_of(fn))
    if kind not in _FAMILIES:
        known = ", ".join(sorted(family.__name__ for family in _FAMILIES))
        raise ValueError(
            f"prior_sensitivity by names needs priors with a scale ({known}); site {name!r} has "
            f"{with_article(kind.__name__)}. Leave the site out, or give a function of the factor that returns new "
            "evidences: prior_sensitivity=lambda factor: {'model': evidence}."
        )
    family = _FAMILIES[kind]

    def widen(base: dist.Distribution) -> dist.Distribution:
        parameters = {other: getattr(base, other) for other in family.others}
        parameters[family.width] = getattr(base, family.width) * scale**family.power
        return kind(**parameters)

    return with_base(fn, widen)


def log_prior_ratios(
    problem: Problem,
    target: TracedTarget,
    positions: jax.Array,
    names: tuple[str, ...],
    scales: Sequence[float],
) -> np.ndarray:
    r"""
    Returns :math:`\log p_s(x) / p_1(x)` of the priors of some sites at many positions,
    ``[num_scales, num_positions]``, where :math:`p_s` is wider by a factor :math:`s`.

    :param problem: a problem with a model, without plates of its own.
    :param target: of the problem.
    :param positions: ``[num_positions, num_dims]``, as chains see them.
    :param names: of continuous latent sites of the model.
    :param scales: the factors.
    """
    example = np.zeros(positions.shape[1:], positions.dtype), np.ones((), positions.dtype)
    _check_enumerated(problem, names, *example)
    ratio_fn = partial(_log_ratio, names=names)
    traced = trace_function(target, problem, f"rescaled {names}", ratio_fn, *example)
    return np.asarray(_ratios_at(traced, positions, jnp.asarray(scales, positions.dtype)))


@program(is_brief=True)
def _ratios_at(ratio_fn: TracedFunction, positions: jax.Array, scales: jax.Array) -> Any:
    return jax.vmap(jax.vmap(ratio_fn, (0, None)), (None, 0))(positions, scales)


def _log_ratio(
    problem: Problem, position: jax.Array, scale: jax.Array, names: tuple[str, ...]
) -> jax.Array:
    return sum(_terms(_run(problem, position), scale, names), start=jnp.zeros(()))


def _run(problem: Problem, position: jax.Array) -> Trace:
    """A run of the model at a position: that of a flow is not one of its sites."""
    density = ModelDensity(problem, inspect_model(problem))
    values = make_target(problem, density.structure).constrain_fn(position)
    return density.run_at({name: values[name] for name in density.structure.prototype})


def _terms(trace: Trace, scale: jax.Array, names: tuple[str, ...]) -> list[jax.Array]:
    """The log ratio of each site; the map to its support cancels."""
    sites = [trace[name] for name in names]
    wider = [rescaled(site["fn"], scale, site["name"]) for site in sites]
    return [
        total(log_prob_of(site, fn) - log_prob_of(site))
        for site, fn in zip(sites, wider, strict=True)
    ]


def _check_enumerated(
    problem: Problem, names: tuple[str, ...], position: np.ndarray, scale: np.ndarray
) -> None:
    """Raises an error if a prior depends on a site that is summed out, and not on latents alone."""
    discrete = sorted(inspect_model(problem).discrete)
    if not discrete:
        return

    def run(position: jax.Array) -> Any:
        trace = _run(problem, position)
        return [trace[name]["value"] for name in discrete], _terms(trace, jnp.asarray(scale), names)

    jaxpr = jax.make_jaxpr(run)(position).jaxpr
    values, terms = jaxpr.outvars[: len(discrete)], jaxpr.outvars[len(discrete) :]
    found = dependents(jaxpr, values)
    for name, term in zip(names, terms, strict=True):
        if is_among(term, found):
            raise NotImplementedError(
                f"The prior of site {name!r} depends on enumerated sites (of {discrete}), so that its ratio to a wider "
                "one is not a function of the particles. Give a function of the factor that returns new evidences: "
                "prior_sensitivity=lambda factor: {'model': evidence}."
            )
