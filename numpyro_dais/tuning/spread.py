# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Where a start is, and how wide."""

import jax
from jax import random
import numpy as np

from numpyro_dais.model.problem import Problem
from numpyro_dais.model.target import make_target

__all__ = ["NUM_START_DRAWS", "start_draws", "start_spread"]

NUM_START_DRAWS = 256


def start_draws(rng_key: jax.Array, problem: Problem) -> jax.Array:
    """
    Returns some draws of the start, enough to see how wide it is, ``[NUM_START_DRAWS, ..., num_dims]``.

    :param rng_key: a JAX random key.
    :param problem: the problem whose start it is.
    """
    keys = random.split(rng_key, NUM_START_DRAWS)
    return jax.vmap(make_target(problem).sample_fn)(keys)


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
