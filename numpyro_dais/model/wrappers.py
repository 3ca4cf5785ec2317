# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Distributions inside of masks, expansions and reinterpreted dimensions."""

from collections.abc import Callable
from inspect import getattr_static
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro import distributions as dist
from numpyro.distributions.distribution import (
    ExpandedDistribution,
    Independent,
    MaskedDistribution,
)
from numpyro.util import not_jax_tracer

from numpyro_dais._util.numpyro_internals import mask_of

__all__ = ["base_of", "bounded", "is_masked", "unmasked", "with_base"]


def base_of(fn: dist.Distribution) -> dist.Distribution:
    """Returns a distribution without masks, expansions and reinterpreted dimensions."""
    while isinstance(fn, (ExpandedDistribution, Independent, MaskedDistribution)):
        fn = fn.base_dist
    return fn


def unmasked(fn: dist.Distribution) -> dist.Distribution:
    """Returns a distribution without the mask that a handler has put on it."""
    return with_base(fn, lambda base: base, has_masks=False)


def bounded(fn: dist.Distribution) -> dist.Distribution:
    """
    Returns a distribution whose density is zero outside of its support. NumPyro's are so only with
    validation on, which is not the default of each version: else a ``Uniform(0, theta)`` has the
    density 1 / theta everywhere. Fixed supports are left alone: data are inside or not, whatever
    the latents.

    :param fn: of an observed site.
    """
    base = base_of(fn)
    is_fixed = not isinstance(getattr_static(type(base), "support", None), property)
    if is_fixed or base.support is None or base.support.is_discrete:
        return fn
    return with_base(fn, _Bounded)


def with_base(
    fn: dist.Distribution,
    change_fn: Callable[[dist.Distribution], dist.Distribution],
    has_masks: bool = True,
) -> dist.Distribution:
    """
    Returns the same masks, expansions and dimensions around a changed base.

    :param fn: a distribution.
    :param change_fn: the base that takes the place of another.
    :param has_masks: whether masks are kept.
    """
    if isinstance(fn, MaskedDistribution):
        base = with_base(fn.base_dist, change_fn, has_masks)
        return base.mask(mask_of(fn)) if has_masks else base
    if isinstance(fn, ExpandedDistribution):
        return with_base(fn.base_dist, change_fn, has_masks).expand(fn.batch_shape)
    if isinstance(fn, Independent):
        base = with_base(fn.base_dist, change_fn, has_masks)
        return base.to_event(fn.reinterpreted_batch_ndims)
    return change_fn(fn)


class _Bounded(dist.Distribution):
    """A distribution whose density is zero outside of its support; only its density is of use."""

    def __init__(self, base_dist: dist.Distribution) -> None:
        self.base_dist = base_dist
        super().__init__(base_dist.batch_shape, base_dist.event_shape)

    @property
    def support(self) -> Any:
        return self.base_dist.support

    def log_prob(self, value: Any) -> jax.Array:
        is_inside = self.base_dist.support(value)
        return jnp.where(is_inside, self.base_dist.log_prob(value), -jnp.inf)


def is_masked(fn: dist.Distribution) -> bool:
    """Returns whether a mask, of a handler or of the distribution itself, hides a part of it."""
    while isinstance(fn, (ExpandedDistribution, Independent, MaskedDistribution)):
        if isinstance(fn, MaskedDistribution):
            mask = mask_of(fn)
            if not (not_jax_tracer(mask) and np.all(mask)):
                return True
        fn = fn.base_dist
    return False
