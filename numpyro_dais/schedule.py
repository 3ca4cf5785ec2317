# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Annealing schedules and step sizes: plain functions of the number of steps."""

from numpyro_dais.sampler.schedule import (
    Schedule,
    fourth_root_step_size,
    interpolate,
    linear,
    power,
    sigmoid,
)

__all__ = ["Schedule", "fourth_root_step_size", "interpolate", "linear", "power", "sigmoid"]
