# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Bennett's acceptance ratio: the best combination of forward and reverse weights."""

from types import ModuleType
from typing import Any, NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from numpyro_dais._util.concreteness import is_concrete

__all__ = ["Bennett", "bennett"]

# Halvings of a bracket that may be some hundred nats wide: 60 leave less than float64 resolves, and
# take no time. A round number.
_NUM_BISECTIONS = 60

# Nats between the outermost weights and the ends of the bracket. Without zero weights any number
# above 0 would do; with 10 the solution is inside if one forward weight in exp(10) is above zero.
_MARGIN = 10.0


class Bennett(NamedTuple):
    """
    The estimate from both directions.

    :param log_evidence: the estimate of the log evidence.
    :param standard_error: its standard error.
    :param overlap: the sum of the forward terms, a number of particles that both directions share.
    """

    log_evidence: jax.Array
    standard_error: jax.Array
    overlap: jax.Array


def bennett(
    log_weights: jax.Array, reverse_log_weights: jax.Array, num_effective: Any = None
) -> Bennett:
    r"""
    Returns the solution :math:`c` of

    .. math::

        \sum_{i=1}^{n} \sigma(\log w_i - c + \log \tfrac{m}{n})
        = \sum_{j=1}^{m} \sigma(c - \log w'_j - \log \tfrac{m}{n}),

    where :math:`w` are forward and :math:`w'` reverse weights (Bennett 1976; Meng and Wong 1996):
    the estimate of smallest asymptotic variance among all bridges between the two directions.

    :param log_weights: forward, ``[n, ...]``.
    :param reverse_log_weights: reverse, ``[m, ...]``.
    :param num_effective: the number of independent draws that the reverse ones are worth; ``m`` if
        left out.
    """
    # NumPy spares compiling a loop over a few numbers.
    xp: Any = np if is_concrete((log_weights, reverse_log_weights)) else jnp
    log_weights, reverse_log_weights = xp.asarray(log_weights), xp.asarray(reverse_log_weights)
    num_forward, num_reverse = len(log_weights), len(reverse_log_weights)
    offset = np.log(num_reverse / num_forward)

    def shares(center: Any) -> tuple[Any, Any]:
        forward = (1 + xp.tanh((log_weights - center + offset) / 2)) / 2
        return forward, (1 + xp.tanh((center - reverse_log_weights - offset) / 2)) / 2

    def bisect(_: int, bracket: tuple[Any, Any]) -> tuple[Any, Any]:
        low, high = bracket
        middle = (low + high) / 2
        forward, reverse = shares(middle)
        is_low = xp.sum(forward, axis=0) > xp.sum(reverse, axis=0)
        return xp.where(is_low, middle, low), xp.where(is_low, high, middle)

    both = xp.concatenate([log_weights, reverse_log_weights])
    finite = xp.isfinite(both)
    bracket = (
        xp.min(xp.where(finite, both, np.inf), axis=0) - _MARGIN,
        xp.max(xp.where(finite, both, -np.inf), axis=0) + _MARGIN,
    )
    if xp is np:
        for i in range(_NUM_BISECTIONS):
            bracket = bisect(i, bracket)
    else:
        bracket = lax.fori_loop(0, _NUM_BISECTIONS, bisect, bracket)
    center = (bracket[0] + bracket[1]) / 2
    forward, reverse = shares(center)
    num_effective = num_reverse if num_effective is None else num_effective
    variance = _mean_variance(forward, num_forward, xp) + _mean_variance(reverse, num_effective, xp)
    numbers = center, xp.sqrt(variance), xp.sum(forward, axis=0)
    return Bennett(*map(jnp.asarray, numbers))


def _mean_variance(values: Any, num_effective: Any, xp: ModuleType) -> Any:
    """
    Returns the variance of a mean in units of its square; infinite if all values have underflowed
    to zero, so that the two directions do not meet.
    """
    mean = xp.mean(values, axis=0)
    ratio = xp.std(values, axis=0, ddof=1) / xp.where(mean > 0, mean, 1.0)
    return xp.where(mean > 0, ratio**2, xp.inf) / num_effective
