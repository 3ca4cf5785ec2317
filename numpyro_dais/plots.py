# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Pictures of results. Matplotlib is imported when one is drawn."""

from numpyro_dais.results.plots import (
    plot_comparison,
    plot_evidence,
    plot_sandwich,
    plot_sensitivity,
)

__all__ = ["plot_comparison", "plot_evidence", "plot_sandwich", "plot_sensitivity"]
