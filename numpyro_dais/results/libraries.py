# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Libraries that only some results need, imported when one of those is asked for."""

from importlib import import_module
from typing import Any

__all__ = ["import_optional"]


def import_optional(library: str, need: str, requirement: str) -> Any:
    """
    Returns a library, or raises an error that says how to get it.

    :param library: the name of the module.
    :param need: the need for it, to begin the message with.
    :param requirement: a requirement for pip that brings it.
    """
    try:
        return import_module(library)
    except ImportError as error:
        raise ImportError(
            f"{need}, which is not installed: `pip install {requirement}`."
        ) from error
