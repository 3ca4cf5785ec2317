# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""The evidence of NumPyro models by differentiable annealed importance sampling."""

from numpyro_dais.bidirectional import Certificate
from numpyro_dais.comparison import Comparison, compare
from numpyro_dais.davi import DAVI
from numpyro_dais.estimators import AIS, DAIS, HAIS, ImportanceSampling
from numpyro_dais.evidence import Evidence
from numpyro_dais.settings import Settings, load_settings, make_settings

__all__ = [
    "AIS",
    "DAIS",
    "DAVI",
    "HAIS",
    "Certificate",
    "Comparison",
    "Evidence",
    "ImportanceSampling",
    "Settings",
    "compare",
    "load_settings",
    "make_settings",
]

__version__ = "0.1.0"
