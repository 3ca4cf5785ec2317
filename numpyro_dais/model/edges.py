# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

r"""
Posteriors that reach nearer to the edge of a support than floating-point numbers do.

NumPyro maps an unconstrained value :math:`u` to an interval, and to each break of a stick, by
:math:`1 / (1 + e^{-u})`, which is 1 up to rounding from :math:`u = -\log \epsilon` on: 36 in
float64, 16 in float32. Beyond, values stay, and the density falls as the Jacobian alone does. A
prior such as a Dirichlet distribution of concentration 0.1 has mass there, :math:`\epsilon^{0.1}`
of it or so, 3 % in float64 and 20 % in float32, that no sampler in these coordinates can reach.
"""

import numpy as np

from numpyro_dais._util.weights import weight_shares
from numpyro_dais.model.inspection import ModelStructure, coordinates_of

__all__ = ["note_on_edges", "shares_at_edges"]

# How far before the last number that floating point can tell from 1 the edge is said to begin, in
# units of u: about as much mass is in the last unit as is counted beyond. A round number.
_MARGIN = 1.0
# Of the error, the share of posterior draws at an edge above which it is worth a warning: what lies
# beyond the edge is several times as much. A round number.
_TOLERATED = 0.25


def shares_at_edges(
    structure: ModelStructure, positions: np.ndarray, log_weights: np.ndarray
) -> dict[str, float]:
    """
    Returns, for each latent site whose values are rounded at an edge, the share of the posterior
    that is there.

    :param structure: of the model, without plates of its own chains.
    :param positions: posterior draws, ``[num_particles, num_dims]``.
    :param log_weights: ``[num_particles]``, one of them finite at least.
    """
    edge = -np.log(np.finfo(positions.dtype).eps) - _MARGIN
    shares = weight_shares(np.asarray(log_weights, np.float64), np)
    return {
        name: float(shares @ np.any(positions[:, coordinates] > edge, axis=1))
        for name, coordinates in coordinates_of(structure).items()
        if name in structure.rounded
    }


def note_on_edges(
    structure: ModelStructure, positions: np.ndarray, log_weights: np.ndarray, error: float
) -> str:
    """
    Returns a warning if so much of the posterior is at an edge that the estimate may be too low by
    an error; else an empty string.

    :param structure: of the model, with sites that are rounded at an edge.
    :param positions: posterior draws, ``[num_particles, num_dims]``; with plates of their own
        chains nothing is looked for.
    :param log_weights: ``[num_particles]``.
    :param error: of the log evidence.
    """
    is_plain = structure.plate_axes is None and np.any(np.isfinite(log_weights))
    if not is_plain or not np.isfinite(error):
        return ""
    shares = shares_at_edges(structure, positions, log_weights)
    name = max(shares, key=lambda name: shares[name])
    if shares[name] <= _TOLERATED * error:
        return ""
    precision = positions.dtype.name
    remedy = "enable x64 with numpyro.enable_x64(), or " if precision == "float32" else ""
    return (
        f"{shares[name]:.2g} of the posterior has site {name!r} nearer to the edge of its support than {precision} can "
        f"tell: what lies beyond is lost, several times as much, and the estimate is too low; {remedy}use a prior with "
        "less mass at the edge, such as a larger concentration."
    )
