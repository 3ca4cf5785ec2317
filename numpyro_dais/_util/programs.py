# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Compiled functions that objects share."""

from collections.abc import Callable
from functools import cache, wraps
from typing import Any, TypeVar

import jax

from numpyro_dais._util.concreteness import is_concrete
from numpyro_dais._util.interrupts import interrupts_held

__all__ = ["program"]

T = TypeVar("T")

# Options of XLA under which a program is compiled in a third of the time, and runs more slowly.
_BRIEF = {
    "xla_backend_optimization_level": 1,
    "xla_cpu_use_fusion_emitters": False,
    "xla_llvm_disable_expensive_passes": True,
}


def program(
    *static_argnames: str, is_brief: bool = False
) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """
    Returns a decorator that compiles a function, once for all objects that call it alike.

    :param static_argnames: names of arguments that a program is compiled for; they must be
        hashable.
    :param is_brief: whether on a CPU it runs for so short a time that compiling it is most of its
        cost.
    """

    def decorate(fn: Callable[..., T]) -> Callable[..., T]:
        thorough = jax.jit(fn, static_argnames=static_argnames)

        @cache
        def brief() -> Callable[..., T]:
            options = _known_options()
            return jax.jit(fn, static_argnames=static_argnames, compiler_options=options)

        @wraps(fn)
        def call(*args: Any, **kwargs: Any) -> T:
            if not is_concrete((args, kwargs)):
                return thorough(*args, **kwargs)  # options are for outermost programs only
            with interrupts_held():
                compiled = brief() if is_brief and _may_be_brief() else thorough
                return compiled(*args, **kwargs)

        return call

    return decorate


def _may_be_brief() -> bool:
    """Returns whether options are ours to choose: on a CPU, unless optimisations are off anyway."""
    is_quick_already = jax.config.read("jax_disable_most_optimizations")
    return jax.default_backend() == "cpu" and not is_quick_already


@cache
def _known_options() -> dict[str, Any]:
    """
    Returns the options that this jaxlib knows: XLA drops and renames them, and refuses others.
    """
    if _is_known(_BRIEF):
        return _BRIEF
    return {name: value for name, value in _BRIEF.items() if _is_known({name: value})}


def _is_known(options: dict[str, Any]) -> bool:
    try:
        jax.jit(lambda: 0, compiler_options=options).lower().compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True
