# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0
