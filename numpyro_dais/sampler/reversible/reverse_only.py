# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
An identity that has no forward-mode derivative, and says so in words of this package.

A function with a backward pass of its own, :func:`jax.custom_vjp`, refuses forward mode only when
its derivative is computed or compiled, far away from here, and in words that do not name the
remedy. So the inputs of such a function first pass through this identity, whose derivative comes
before the function's. In reverse mode it is transposed away, and never computed.
"""

from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
import jax.numpy as jnp

__all__ = ["reverse_only"]

_identity = Primitive("reverse_only")
_tangent = Primitive("tangent_of_reverse_only")


def reverse_only(tree: Any) -> Any:
    """
    Returns the arrays of a tree as they are; forward-mode derivatives through them are an error.

    :param tree: arrays; those that are no floats pass by.
    """

    def mark(leaf: jax.Array) -> jax.Array:
        return _identity.bind(leaf) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    return jax.tree.map(mark, tree)


def _refuse(*args: Any, **kwargs: Any) -> Any:
    raise NotImplementedError(
        "memory='reversible' has a backward pass only; got forward-mode differentiation (jax.jvp, "
        "jax.jacfwd, jax.hessian or jax.linearize). Use jax.grad or jax.jacrev, or "
        "memory='checkpoint', which has both modes."
    )


def _jvp(primals: Any, tangents: Any) -> Any:
    (primal,), (tangent,) = primals, tangents
    is_zero = isinstance(tangent, ad.Zero)
    return _identity.bind(primal), tangent if is_zero else _tangent.bind(tangent)


_identity.def_impl(lambda x: x)
_tangent.def_impl(_refuse)
mlir.register_lowering(_identity, lambda ctx, x: [x])
mlir.register_lowering(_tangent, _refuse)
batching.defvectorized(_identity)
# In reverse mode it is transposed before anything is batched.
batching.primitive_batchers[_tangent] = _refuse
for _primitive in (_identity, _tangent):
    _primitive.def_abstract_eval(lambda x: x)
ad.primitive_jvps[_identity] = _jvp
ad.deflinear2(_tangent, lambda cotangent, x: [cotangent])
