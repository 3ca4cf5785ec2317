# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Unseen targets of ``trust.py``, by name: written after results of those that had been set aside were seen, by somebody who ran
DAIS on none of them, and run last. None is a needle. ``trust_unseen_check.py`` checks their log evidences.
"""

from collections.abc import Callable
from pathlib import Path

from trust_base import TrustTarget
from trust_unseen_data import DATA
from trust_unseen_latents import LATENTS
from trust_unseen_series import SERIES
from trust_unseen_sums import SUMS

# By name: the target; the directory of data files, that others are given, is of no use to them.
TARGETS: dict[str, Callable[[Path | None], TrustTarget]] = {**DATA, **SUMS, **LATENTS, **SERIES}
