# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Annealed chains over arrays: a target in, log weights out. Knows no NumPyro."""
