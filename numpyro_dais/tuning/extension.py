# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""More components for a fit, where a second look has found mass that it lacks."""

import jax
import numpy as np

from numpyro_dais._util.concreteness import as_floats
from numpyro_dais.model.modes import find_modes
from numpyro_dais.sampler.mixture import Component, Mixture
from numpyro_dais.tuning.census import Census
from numpyro_dais.tuning.laplace import (
    Looks,
    gaussian_component,
    laplace_mixture,
    with_bend,
    with_prior,
)
from numpyro_dais.tuning.look import Look
from numpyro_dais.tuning.polish import Peak

__all__ = ["extended"]

# Of the variances of places that a look has found, and of the start's in those, what is added to
# them, so that no direction is left out. A round number.
_WIDENING = 0.01
# Modes that are added after a look, and places at which searches for them begin, at most; the share
# of the new ones, which is known within a factor of two; and the squared distance, for each
# dimension, within which a mode is one of the fit's. Round numbers.
_MAX_FOUND, _MAX_SEARCHED, _LARGEST_NEW_SHARE, _NEAR = 16, 64, 0.5, 1.0


def extended(
    mixture: Mixture, look: Look, looks: Looks, center: np.ndarray, max_gradients: int
) -> Mixture:
    """
    Returns a mixture with more components: the modes near places that it lacks, or else the places.

    :param mixture: the fit.
    :param look: what it lacks.
    :param looks: the density.
    :param center: the origin of searches, ``[num_dims]``.
    :param max_gradients: what searches may cost.
    """
    order = np.asarray(mixture.order)
    census = Census(looks.density_fn, looks.polish, _MAX_FOUND)
    starts = look.places[:_MAX_SEARCHED]
    census.meet(find_modes(looks.densities_fn, starts, center, looks.spread, max_gradients))
    known = np.asarray(mixture.components.loc, np.float64)
    peaks = [
        peak
        for peak in census.peaks
        if peak.is_found and not any(_is_near(peak, loc, order) for loc in known)
    ]
    if peaks:
        return _joined(mixture, laplace_mixture(peaks, order).components, look.share)
    one = _gaussian_of(look.places[:, order], looks.spread[order])
    components = jax.tree.map(lambda leaf: np.asarray(leaf)[None], one)
    return _joined(mixture, components, look.share)


def _is_near(peak: Peak, loc: np.ndarray, order: np.ndarray) -> bool:
    """Returns whether a mode is that of a component."""
    offset = peak.geometry.whiten(peak.position - loc[np.argsort(order)])
    return float(np.sum(offset**2)) < _NEAR * len(loc)


def _gaussian_of(places: np.ndarray, spread: np.ndarray) -> Component:
    """The Gaussian of a few places, with something added to its widths, which may be too few."""
    covariance = np.atleast_2d(np.cov(places, rowvar=False, ddof=0))
    more = _WIDENING * np.maximum(np.diag(covariance), _WIDENING * spread**2)
    return gaussian_component(places.mean(axis=0), covariance + np.diag(more))


def _joined(mixture: Mixture, components: Component, share: float) -> Mixture:
    """A mixture with more components, which have a share of it together."""
    share = min(share / (1 + share), _LARGEST_NEW_SHARE)
    number = len(np.asarray(components.loc))
    components = with_prior(components)
    if mixture.components.bend is not None:
        components = with_bend(components)
    stacked = jax.tree.map(
        lambda old, new: np.concatenate([np.asarray(old), np.asarray(new)]),
        mixture.components,
        components,
    )
    old = np.asarray(mixture.log_shares) + np.log1p(-share)
    new = np.full(number, np.log(share / number))
    return mixture._replace(components=stacked, log_shares=as_floats(np.append(old, new)))
