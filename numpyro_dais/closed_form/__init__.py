# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Exact results for Gaussian targets, the oracle of the tests. Imports nothing of ours."""
