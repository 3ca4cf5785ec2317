# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Gradients of a chain in nearly constant memory, by running it backwards in integers."""
