# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""The place and the width of a start."""

import jax
from jax import random
import numpy as np

from numpyro_dais._util.keys import named_key
from numpyro_dais._util.programs import program
from numpyro_dais._util.weights import robust_width
from numpyro_dais.model.traced import TracedTarget

__all__ = ["NUM_START_DRAWS", "start_draws", "start_spread", "start_unit"]

# Quartiles of so many draws are known to a tenth of the width, and drawing costs no gradient.
NUM_START_DRAWS = 256


@program(is_brief=True)
def start_draws(rng_key: jax.Array, target: TracedTarget) -> jax.Array:
    """
    Returns some draws of the start, enough to see how wide it is,
    ``[NUM_START_DRAWS, ..., num_dims]``.

    :param rng_key: a JAX random key.
    :param target: the target whose start it is.
    """
    return jax.vmap(target.sample_fn)(random.split(rng_key, NUM_START_DRAWS))


def start_spread(positions: jax.Array | np.ndarray) -> np.ndarray:
    """
    Returns the scale of the start along each dimension; 1 where its draws agree.

    :param positions: draws, ``[num_draws, ..., num_dims]``; elements of a plate are pooled.
    """
    spread = robust_width(np.asarray(positions).reshape(-1, positions.shape[-1]))
    return np.where(spread > 0, spread, 1.0)


def start_unit(rng_key: jax.Array, target: TracedTarget) -> np.ndarray:
    """
    Returns the scale of a target's start along each dimension, from draws of it.

    :param rng_key: a JAX random key.
    :param target: the target.
    """
    return start_spread(start_draws(named_key(rng_key, "draws"), target))
