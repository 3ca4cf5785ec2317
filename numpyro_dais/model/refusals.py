# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Latent sites that have no evidence, each with an error that names the site and the remedy."""

from typing import Any

import numpy as np

from numpyro import distributions as dist
from numpyro.distributions.util import is_identically_one
from numpyro.util import not_jax_tracer

from numpyro_dais._util.checks import with_article
from numpyro_dais.model.wrappers import base_of, is_masked

__all__ = ["check_enumerable", "check_latent"]

# Distributions of data of which bounds are known, in versions that have them.
_CENSORED = tuple(
    getattr(dist, f"{side}CensoredDistribution")
    for side in ("Left", "Right", "Interval")
    if hasattr(dist, f"{side}CensoredDistribution")
)
# Those that give zero a probability of its own, likewise.
_HURDLES = (dist.HurdleProbs,) if hasattr(dist, "HurdleProbs") else ()


def check_latent(site: dict[str, Any], is_imputed: bool, is_start_prior: bool) -> None:
    """
    Raises an error if the site's prior is none that an evidence can be had of.

    :param site: a latent site of a run.
    :param is_imputed: whether it holds missing data.
    :param is_start_prior: whether chains start at the prior.
    """
    name, fn = site["name"], site["fn"]
    if isinstance(base_of(fn), dist.ImproperUniform) and is_start_prior:
        raise ValueError(
            f"Latent site {name!r} has an improper prior, under which the evidence is undefined. Give "
            "it a proper prior, or a proper start (guide= or start=) if an unnormalised integral is "
            "what you want."
        )
    if isinstance(base_of(fn), dist.Delta):
        raise ValueError(
            f"Latent site {name!r} has a Delta distribution; record a fixed value with "
            "`numpyro.deterministic` instead."
        )
    _check_density(name, base_of(fn))
    if site["scale"] is not None and not is_identically_one(site["scale"]):
        raise ValueError(
            f"Latent site {name!r} is under `handlers.scale` (scale = {site['scale']}), so its prior does "
            "not integrate to one. Scale observed sites only."
        )
    if is_masked(fn) and not is_imputed:
        raise ValueError(
            f"Latent site {name!r} is masked, which makes its prior improper. Mask observed sites only; "
            "for missing observations use `obs_mask`."
        )


def _check_density(name: str, base: dist.Distribution) -> None:
    """Raises an error for a distribution without a density over the values of a latent site."""
    kind = type(base).__name__
    if isinstance(base, dist.Unit):
        raise ValueError(
            f"Latent site {name!r} has a Unit distribution, which has no values. Add a number to the log "
            "density with `numpyro.factor` instead."
        )
    if isinstance(base, _CENSORED):
        raise ValueError(
            f"Latent site {name!r} has {with_article(kind)}, which is for data: over values that are not given it does "
            "not integrate to one. Give it the base distribution; bounds on it are a factor, or data."
        )
    if isinstance(base, _HURDLES) and not base.support.is_discrete:
        raise ValueError(
            f"Latent site {name!r} ({kind}) is zero with a positive probability and continuous otherwise, "
            "so it has no density. Give the zero a site of its own, an enumerated Bernoulli, and the "
            "positive value another."
        )


def check_enumerable(site: dict[str, Any]) -> None:
    """
    Raises an error unless a discrete site can be summed out, and is marked for it.

    :param site: a latent site of a run.
    """
    name, fn = site["name"], site["fn"]
    if not fn.has_enumerate_support:
        raise ValueError(
            f"Latent site {name!r} is discrete ({type(base_of(fn)).__name__}) and cannot be enumerated. "
            "Sum it out by hand, or use a distribution with a finite support."
        )
    if site["infer"].get("enumerate") != "parallel":
        raise ValueError(
            f"Latent site {name!r} is discrete. To have it summed out, mark it with "
            "infer={'enumerate': 'parallel'} (this needs funsor)."
        )
    # NumPyro counts from zero, whatever the support is.
    low = getattr(base_of(fn), "low", 0)
    if not_jax_tracer(low) and np.any(np.asarray(low) != 0):
        raise ValueError(
            f"Latent site {name!r} is discrete with values from {low} on, and NumPyro enumerates values "
            "from 0 on. Use DiscreteUniform(0, high - low), and add low to its value."
        )
