# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
The names that this package uses of NumPyro beyond its public ones, each with why. A new release of
NumPyro that moves one of them is met here, and nowhere else.
"""

from collections.abc import Callable
import sys
from types import FrameType
from typing import Any

import jax

from numpyro import handlers
from numpyro.distributions import Distribution
from numpyro.distributions.distribution import MaskedDistribution

# The public `psis_diagnostic` wants a model and a guide, and returns the shape alone; there are log
# weights here, and the scale is wanted, too.
from numpyro.infer.importance import _fit_generalized_pareto as fit_generalized_pareto

__all__ = [
    "autoguide_posterior",
    "autoguide_sites",
    "batched_posterior",
    "fit_generalized_pareto",
    "hidden_site",
    "mask_of",
    "posterior_fn",
    "unpack_fn",
]


def posterior_fn(guide: Any) -> Callable[[], Distribution]:
    """
    Returns what makes the distribution of an ``AutoContinuous``: its trace has the guide's
    parameters.
    """
    return guide._get_posterior


def autoguide_posterior(guide: Any, params: dict[str, Any]) -> Distribution:
    """
    Returns the distribution of an ``AutoContinuous``; ``get_posterior`` lacks the batched guides.
    """
    return handlers.substitute(posterior_fn(guide), data=params)()


def batched_posterior(guide: Any, params: dict[str, Any]) -> Distribution:
    """Returns that of an ``AutoBatched`` guide over its rows, of which no public method tells."""
    return handlers.substitute(guide._get_batched_posterior, data=params)()


def autoguide_sites(guide: Any) -> dict[str, jax.Array]:
    """Returns initial values of an autoguide's sites, in the order in which it packs them."""
    return guide._init_locs


def unpack_fn(guide: Any) -> Callable[[jax.Array], dict[str, jax.Array]]:
    """Returns the map from the vector of an ``AutoContinuous`` to unconstrained values by site."""
    return guide._unpack_latent


def mask_of(fn: MaskedDistribution) -> Any:
    """Returns the mask of a distribution, which nothing public shows."""
    return fn._mask


def hidden_site() -> str | None:
    """
    Returns the name of the sample site that a ``block`` handler is asking a random key for, if it
    is a handler's asking for one that this is called in. No message shows such a site: it is hidden
    from all handlers outside.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code is handlers.block.process_message.__code__:
            msg = frame.f_locals["msg"]
            return msg["name"] if msg["type"] == "sample" else None
        frame = frame.f_back
    return None
