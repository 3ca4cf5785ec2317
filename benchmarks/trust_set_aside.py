# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Set-aside targets of ``trust.py``, by name: written before the package was changed for this benchmark, and run last. Whoever
changes the package after a look at their results needs new ones.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from trust_base import TrustTarget
from trust_latents import labels
from trust_set_aside_data import DATA
from trust_set_aside_latents import LATENTS
from trust_set_aside_series import SERIES
from trust_set_aside_shapes import SHAPES

# By name: the target; the directory of data files, that others are given, is of no use to them.
TARGETS: dict[str, Callable[[Path | None], TrustTarget]] = {
    **SHAPES,
    **DATA,
    **LATENTS,
    "labels_6": partial(labels, 6, 12, scale=0.8, seed=900),
    **SERIES,
}
