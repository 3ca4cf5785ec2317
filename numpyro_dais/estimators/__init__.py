# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
The estimators of a user: their arguments, how particles are run, and what they can be asked for.
"""
