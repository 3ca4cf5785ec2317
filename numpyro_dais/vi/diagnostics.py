# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""The particles of a loss: how many are lost, and how many have no gradient."""

from typing import Any, NamedTuple
import warnings

import numpy as np

from numpyro_dais._util.checks import user_stack_level

__all__ = ["Diagnostics", "make_diagnostics", "warn_of_lost"]


class Diagnostics(NamedTuple):
    """
    Particles of a loss at some parameters.

    :param num_weights: the number of weights: of particles, and of elements of a plate in each.
    :param num_lost: those that are not finite; they count as zero, with a gradient of zero.
    :param num_without_gradient: particles of finite weight whose gradient is not finite, and which
        are left out of gradients.
    :param step_size: the step sizes.
    """

    num_weights: int
    num_lost: int
    num_without_gradient: int
    step_size: np.ndarray


def make_diagnostics(has_gradient: Any, log_weights: Any, step_size: Any) -> Diagnostics:
    """
    Returns the counts.

    :param has_gradient: whether each particle has a finite gradient.
    :param log_weights: ``[num_particles, ...]``.
    :param step_size: the step sizes.
    """
    is_finite = np.isfinite(np.asarray(log_weights))
    is_whole = np.all(is_finite.reshape(len(is_finite), -1), axis=1)
    num_without = int(np.sum(is_whole & ~np.asarray(has_gradient)))
    num_lost = int(np.sum(~is_finite))
    return Diagnostics(is_finite.size, num_lost, num_without, np.asarray(step_size))


def warn_of_lost(found: Diagnostics) -> None:
    """Warns of particles that are lost, or have no gradient."""
    if not (found.num_lost or found.num_without_gradient):
        return
    warnings.warn(
        f"{found.num_lost} of {found.num_weights} weights are not finite and count as zero, and "
        f"{found.num_without_gradient} particles of finite weight have no finite gradient and are left out of it. "
        "The bound is looser, and learning slower. Leave step_size= out of DAVI, or make it smaller; or use x64.",
        stacklevel=user_stack_level(),
    )
