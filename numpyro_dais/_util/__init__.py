# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Small things that every room may use: checks, random keys, weights, and the private names of
NumPyro.
"""
