# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Values that are known here and now, and values that JAX is tracing."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["as_floats", "is_concrete", "put_beside"]


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


def put_beside(tree: Any, array: jax.Array) -> Any:
    """
    Returns a tree of concrete values on the device of an array, if that was chosen.

    :param tree: of NumPy arrays.
    :param array: the array, committed to a device or not.
    """
    is_chosen = isinstance(array, jax.Array) and array.committed and len(array.devices()) == 1
    return jax.device_put(tree, next(iter(array.devices())) if is_chosen else None)
