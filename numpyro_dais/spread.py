# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""How wide a start is."""

import jax
import numpy as np

__all__ = ["start_spread"]


def start_spread(positions: jax.Array | np.ndarray) -> np.ndarray:
    """
    Returns the scale of the start along each dimension: the interquartile range of draws in units of
    a normal's, which Cauchy tails do not spoil.

    :param positions: draws, ``[num_draws, ..., num_dims]``; elements of a plate are pooled.
    """
    draws = np.asarray(positions, np.float64).reshape(-1, positions.shape[-1])
    draws = np.where(np.isfinite(draws), draws, np.nan)
    draws = np.where(np.all(np.isnan(draws), axis=0), 0.0, draws)
    low, high = np.nanquantile(draws, [0.25, 0.75], axis=0)
    spread = (high - low) / 1.349
    return np.where(spread > 0, spread, 1.0)
