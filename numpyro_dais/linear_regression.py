# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""The exact evidence and the exact bound of Bayesian linear regression."""

from numpyro_dais.closed_form.linear_regression import GapAnatomy, LinearRegression

__all__ = ["GapAnatomy", "LinearRegression"]
