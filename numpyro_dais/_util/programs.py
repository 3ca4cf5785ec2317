# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Compiled functions that objects share."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, wraps
from typing import Any, TypeVar

import jax

from numpyro_dais._util.concreteness import is_concrete
from numpyro_dais._util.interrupts import interrupts_held

__all__ = ["call_on_devices", "program"]

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
                return chosen()(*args, **kwargs)

        def chosen() -> Callable[..., T]:
            return brief() if is_brief and _may_be_brief() else thorough

        _jitted[call] = chosen
        return call

    return decorate


# The jitted function of each program; what was compiled of them for devices.
_jitted: dict[Callable, Callable[[], Any]] = {}
_compiled: dict[Any, Future] = {}


def call_on_devices(
    program: Callable[..., T],
    devices: Sequence[jax.Device],
    calls: Sequence[tuple],
    **static: Any,
) -> list[T]:
    """
    Returns what a program returns for several calls, each of which is made on its own device, all
    of them at the same time.

    A device has a program of its own, with the same instructions: XLA compiles them side by side.
    They are called from threads, since a CPU returns from a call when it is done.

    :param program: the program.
    :param devices: a device for each call, or more.
    :param calls: positional arguments, whose arrays are on the device or nowhere yet.
    :param static: static arguments of all.
    """
    workers = _workers(len(devices))
    calls = [jax.device_put(args, device) for device, args in zip(devices, calls, strict=False)]
    futures = [
        _compiled_for(workers, program, device, args, static)
        for device, args in zip(devices, calls, strict=False)
    ]
    with interrupts_held():
        compiled = [future.result() for future in futures]

    def run(fn: Callable[..., T], args: tuple) -> T:
        return jax.block_until_ready(fn(*args))

    return list(workers.map(run, compiled, calls))


@cache
def _workers(number: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(number, "numpyro_dais")


def _compiled_for(
    workers: ThreadPoolExecutor, program: Callable, device: jax.Device, args: tuple, static: Any
) -> Future:
    """The program for a device, as it will be: it is traced here, and compiled by a worker."""
    leaves, treedef = jax.tree.flatten(args)
    avals = tuple(jax.typeof(leaf) for leaf in leaves)
    key = program, device, treedef, avals, tuple(sorted(static.items()))
    if key not in _compiled:
        lowered = _jitted[program]().lower(*args, **static)
        _compiled[key] = future = workers.submit(lowered.compile)
        future.add_done_callback(lambda done: done.exception() and _compiled.pop(key, None))
        return future
    return _compiled[key]


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
