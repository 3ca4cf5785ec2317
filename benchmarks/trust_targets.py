# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Development targets of ``trust.py``, by name: those that may be looked at while the package is made. The classics, models
with latent structure, and targets of other benchmarks. ``trust_set_aside.py`` has those that may not.
"""

from collections.abc import Callable
from pathlib import Path

import set_aside
import targets
from trust_base import TrustTarget, adopt, make
from trust_classics import CLASSICS, NEEDS_FILE
from trust_latents import LATENTS
from trust_series import SERIES

__all__ = ["NEEDS_FILE", "TARGETS"]


def shared(name: str, num_dims: int) -> Callable[[Path | None], TrustTarget]:
    """One of ``targets.py``."""

    def build(directory: Path | None = None) -> TrustTarget:
        target = targets.TARGETS[name](directory)
        what = target.model, target.args, target.log_evidence, target.error
        return make(target.title, num_dims, *what)

    return build


def formerly_set_aside(name: str) -> Callable[[Path | None], TrustTarget]:
    """One of ``set_aside.py``, whose results have been seen since."""

    def build(directory: Path | None = None) -> TrustTarget:
        target = set_aside.TARGETS[name](directory)
        return adopt(target, f"{target.name}, {target.num_dims}-d")

    return build


# By name: the target, given the directory of the data files.
TARGETS: dict[str, Callable[[Path | None], TrustTarget]] = {
    **CLASSICS,
    **LATENTS,
    **SERIES,
    "two_modes": shared("mixture", 5),
    "beta_binomial": shared("beta_binomial", 5),
    **{
        name: formerly_set_aside(name)
        for name in ("ranges", "factor", "g_prior", "instruments", "studies")
    },
}
