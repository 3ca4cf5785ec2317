# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Variational inference with annealed chains: DAVI, a loss for SVI."""
