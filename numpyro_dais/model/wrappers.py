# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Distributions inside of masks, expansions and reinterpreted dimensions."""

import numpy as np

from numpyro import distributions as dist
from numpyro.distributions.distribution import (
    ExpandedDistribution,
    Independent,
    MaskedDistribution,
)
from numpyro.util import not_jax_tracer

from numpyro_dais._util.numpyro_internals import mask_of

__all__ = ["base_of", "is_masked", "unmasked"]


def base_of(fn: dist.Distribution) -> dist.Distribution:
    """Returns a distribution without masks, expansions and reinterpreted dimensions."""
    while isinstance(fn, (ExpandedDistribution, Independent, MaskedDistribution)):
        fn = fn.base_dist
    return fn


def unmasked(fn: dist.Distribution) -> dist.Distribution:
    """Returns a distribution without the mask that a handler has put on it."""
    if isinstance(fn, MaskedDistribution):
        return unmasked(fn.base_dist)
    if isinstance(fn, ExpandedDistribution):
        return unmasked(fn.base_dist).expand(fn.batch_shape)
    if isinstance(fn, Independent):
        return unmasked(fn.base_dist).to_event(fn.reinterpreted_batch_ndims)
    return fn


def is_masked(fn: dist.Distribution) -> bool:
    """Returns whether a mask, of a handler or of the distribution itself, hides a part of it."""
    while isinstance(fn, (ExpandedDistribution, Independent, MaskedDistribution)):
        if isinstance(fn, MaskedDistribution):
            mask = mask_of(fn)
            if not (not_jax_tracer(mask) and np.all(mask)):
                return True
        fn = fn.base_dist
    return False
