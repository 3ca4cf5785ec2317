# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""The evidence of NumPyro models by differentiable annealed importance sampling."""

from importlib.metadata import PackageNotFoundError, version

from numpyro_dais.estimators.baselines import AIS, HAIS, ImportanceSampling
from numpyro_dais.estimators.compare import compare
from numpyro_dais.estimators.dais import DAIS
from numpyro_dais.model.rows import RowData
from numpyro_dais.results.certificate import Certificate
from numpyro_dais.results.comparison import Comparison
from numpyro_dais.results.diagnostics import Diagnostics
from numpyro_dais.results.evidence import Evidence
from numpyro_dais.sampler.settings import Settings, load_settings, make_settings
from numpyro_dais.vi.davi import DAVI

__all__ = [
    "AIS",
    "DAIS",
    "DAVI",
    "HAIS",
    "Certificate",
    "Comparison",
    "Diagnostics",
    "Evidence",
    "ImportanceSampling",
    "RowData",
    "Settings",
    "compare",
    "load_settings",
    "make_settings",
]

try:
    __version__ = version("numpyro-dais")
except PackageNotFoundError:  # a source tree that is not installed
    __version__ = "0+unknown"
