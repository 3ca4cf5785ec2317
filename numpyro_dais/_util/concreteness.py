# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Values that are known here and now, and values that JAX is tracing."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["as_floats", "is_concrete"]


def is_concrete(tree: Any) -> bool:
    """Returns whether no leaf of a tree is a JAX tracer."""
    return not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree))


def as_floats(values: Any) -> jax.Array:
    """
    Returns concrete numbers in the precision that JAX runs in. NumPy converts them, so that nothing
    is compiled.

    :param values: an array or a number.
    """
    return jax.device_put(np.asarray(values, jnp.result_type(float)))
