# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""A model run at unconstrained values of its latent sites, as NumPyro's own potential runs it."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import numpyro
from numpyro import handlers
from numpyro.distributions import biject_to, constraints
from numpyro.distributions.util import sum_rightmost

__all__ = ["at_position", "log_det_site", "site_of_log_det"]


def at_position(model: Callable, position: dict[str, jax.Array]) -> Callable:
    r"""
    Returns the model with latent sites at :math:`x = T(u)`, and with :math:`\log |dT/du|` of each
    as a ``factor`` site, unless its support is all reals.

    :param model: a NumPyro model.
    :param position: unconstrained values :math:`u` by site.
    """

    def constrain(site: dict[str, Any]) -> jax.Array | None:
        name = site["name"]
        if name not in position:
            return None
        fn, unconstrained = site["fn"], position[name]
        transform = biject_to(fn.support)
        index = site["infer"].get("_scan_current_index")
        if index is not None:  # in a step of `scan`, whose values are stacked over the steps
            num_added = transform.codomain.event_dim - transform.domain.event_dim
            if jnp.ndim(unconstrained) > len(fn.shape()) - num_added:
                unconstrained = unconstrained[index]
        if _is_real(fn.support):
            return unconstrained
        value = transform(unconstrained)
        log_det = transform.log_abs_det_jacobian(unconstrained, value)
        num_event_dims = jnp.ndim(log_det) - jnp.ndim(value) + len(fn.event_shape)
        numpyro.factor(log_det_site(name), sum_rightmost(log_det, num_event_dims))
        return value

    return handlers.substitute(model, substitute_fn=constrain)


def log_det_site(name: str) -> str:
    """
    Returns the name of the site that records the log Jacobian of a site, here and in NumPyro.
    """
    return f"_{name}_log_det"


def site_of_log_det(name: str) -> str:
    """Returns the inverse of :func:`log_det_site`."""
    return name.removeprefix("_").removesuffix("_log_det")


def _is_real(support: constraints.Constraint) -> bool:
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    return support is constraints.real
