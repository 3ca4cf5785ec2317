# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""The data that a model is seen to observe."""

from typing import Any

from jax import random
import numpy as np

from numpyro.distributions.distribution import (
    ExpandedDistribution,
    Independent,
    MaskedDistribution,
)

from numpyro_dais._util.numpyro_internals import mask_of
from numpyro_dais.model.factors import is_factor
from numpyro_dais.model.inspection import trace_model
from numpyro_dais.model.problem import Problem

__all__ = ["check_same_data", "observed_values"]


def check_same_data(problems: dict[str, Problem]) -> None:
    """
    Raises an error if two models are seen to have different data.

    The observed numbers are compared as sorted lists, since models may name, shape and order their
    sites as they like. Models whose data cannot be seen pass.

    :param problems: problems with concrete arguments, by the models' names.
    """
    first: tuple[str, list[str], np.ndarray] | None = None
    for name, problem in problems.items():
        data = observed_values(problem)
        if data is None:
            continue
        sites, numbers = sorted(data), np.sort(np.concatenate(list(data.values())))
        if first is None:
            first = name, sites, numbers
            continue
        first_name, first_sites, first_numbers = first
        if len(numbers) != len(first_numbers):
            what = f"{len(first_numbers)} and {len(numbers)} numbers"
        elif not np.allclose(numbers, first_numbers, equal_nan=True):
            what = f"{len(numbers)} numbers each, with different values"
        else:
            continue
        raise ValueError(
            "Only evidences of the same data can be compared; the models "
            f"{first_name!r} (observed sites {first_sites}) and {name!r} ({sites}) observe {what}. Run both on "
            "the same data, in the same units."
        )


def observed_values(problem: Problem) -> dict[str, np.ndarray] | None:
    """
    Returns the data of each observed site as a flat array, without what a mask hides, or None where
    they cannot be seen: with ``potential_fn``, with a likelihood made of ``numpyro.factor`` only,
    and when "observed" values depend on latent ones (residuals).

    :param problem: a problem with concrete arguments.
    """
    if problem.model is None:
        return None
    values, others = (
        {
            name: _flat_data(site)
            for name, site in trace_model(problem, random.key(seed)).items()
            if site["type"] == "sample" and site["is_observed"] and not is_factor(site)
        }
        for seed in (0, 1)
    )
    is_fixed = values.keys() == others.keys() and all(
        np.array_equal(value, others[name], equal_nan=True) for name, value in values.items()
    )
    return values if values and is_fixed else None


def _flat_data(site: dict[str, Any]) -> np.ndarray:
    """Returns the values of an observed site, one for each number that its density counts."""
    fn, value = site["fn"], np.asarray(site["value"], np.float64)
    shape = np.broadcast_shapes(value.shape, fn.shape())
    is_seen = np.ones(shape, bool)
    while isinstance(fn, (ExpandedDistribution, Independent, MaskedDistribution)):
        if isinstance(fn, MaskedDistribution):
            mask = np.asarray(mask_of(fn))
            is_seen &= mask.reshape(*mask.shape, *(1,) * fn.event_dim)
        fn = fn.base_dist
    return np.broadcast_to(value, shape)[is_seen]
