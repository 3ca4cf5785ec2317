# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Factors that no argument of the model enters, which may be data or an unnormalised prior.

Where a site observes data, a ``numpyro.factor`` beside it may be a likelihood as well, or a part of
the prior that no one has normalised. Which of the two it is cannot be known; but if no argument
enters it, that is worth a remark.
"""

from collections.abc import Sequence
from typing import Any

from jax.extend.core import Jaxpr

from numpyro import distributions as dist

from numpyro_dais.model.dependence import dependents, is_among
from numpyro_dais.model.inspection import Trace
from numpyro_dais.model.wrappers import base_of

__all__ = ["factors_beside_data", "free_factors", "is_factor", "remark_on_factors"]

# The parts of a problem that bring data to a model: its arguments, and the indices by which it
# takes a part of what it has from elsewhere.
_BRING_DATA = {"args", "kwargs", "subsample"}


def is_factor(site: dict[str, Any]) -> bool:
    """Returns whether an observed site is a ``numpyro.factor``, which has no value."""
    return isinstance(base_of(site["fn"]), dist.Unit)


def factors_beside_data(trace: Trace) -> tuple[str, ...]:
    """
    Returns the names of the factors of a run, or none if nothing but factors can carry the data.

    :param trace: the sites of a run.
    """
    observed = {n: s for n, s in trace.items() if s["type"] == "sample" and s["is_observed"]}
    factors = tuple(name for name, site in observed.items() if is_factor(site))
    return factors if len(factors) < len(observed) else ()


def free_factors(
    jaxpr: Jaxpr, parts: list[str], latents: Sequence[Any], factors: dict[str, list]
) -> tuple[str, ...]:
    """
    Returns the names of the factors that no argument of the model enters, but by the prior of a
    latent site: a hyperparameter moves the draws of a run, and is no part of the factor for that.

    :param jaxpr: of a run of the model, as a function of the leaves of its problem.
    :param parts: the part of the problem that each leaf is of.
    :param latents: the variables of the jaxpr that hold the values of latent sites.
    :param factors: by name, the variables that hold the numbers of each factor.
    """
    sources = [v for v, part in zip(jaxpr.invars, parts, strict=True) if part in _BRING_DATA]
    found = dependents(jaxpr, sources, latents)
    return tuple(
        name
        for name, numbers in factors.items()
        if not any(is_among(number, found) for number in numbers)
    )


def remark_on_factors(names: tuple[str, ...]) -> str:
    """
    Returns a sentence on factors that no argument of the model enters. Arguments that JAX does not
    trace, such as whole numbers, are not looked at, and neither is what the model closes over.

    :param names: of the factors; at least one.
    """
    which = f"factor{'s' * (len(names) > 1)} {', '.join(map(repr, names))}"
    return (
        f"No array and no float among the model's arguments enters {which}. If this is data that the model has from "
        "elsewhere, all is well. If it is a part of the prior, the prior is not normalised unless you have seen to "
        "that: subtract the log evidence of the model without its observed sites."
    )
