# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""A NumPyro model, its arguments and a start as a target of chains."""
