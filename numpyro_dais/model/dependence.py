# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""The dependence of the numbers in a jaxpr on one another."""

from collections.abc import Iterable, Sequence
from typing import Any

from jax.extend.core import Jaxpr, Var

__all__ = ["dependents", "is_among"]


def dependents(jaxpr: Jaxpr, sources: Iterable[Any], cuts: Sequence[Any] = ()) -> set[Var]:
    """
    Returns the variables of a jaxpr that may depend on some of them, these included.

    Every output of an operation is taken to depend on all of its inputs, also where the operation
    is a loop or a compiled function with several outputs: a variable may be here that does not
    depend on the sources, but none is left out that does.

    :param jaxpr: the operations, in the order in which they run.
    :param sources: variables of the jaxpr; numbers, which depend on nothing, may be among them.
    :param cuts: variables that are taken to depend on nothing.
    """
    found = {source for source in sources if isinstance(source, Var)}
    known = {cut for cut in cuts if isinstance(cut, Var)}
    for equation in jaxpr.eqns:
        if any(is_among(variable, found) for variable in equation.invars):
            found.update(variable for variable in equation.outvars if variable not in known)
    return found


def is_among(variable: Any, variables: set[Var]) -> bool:
    """
    Returns whether a variable is in a set; a number, which a jaxpr may have in its place, is not.
    """
    return isinstance(variable, Var) and variable in variables
