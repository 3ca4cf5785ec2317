# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Settings for chains: starts, schedules, step sizes and numbers, found before the reported run."""
