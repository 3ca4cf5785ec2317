# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Values that are known here and now, and values that JAX is tracing."""

from typing import Any

import jax

__all__ = ["is_concrete"]


def is_concrete(tree: Any) -> bool:
    """Returns whether no leaf of a tree is a JAX tracer."""
    return not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree))
