# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

r"""
A second look at a posterior that shares nothing with a fit: populations annealed from the prior.

A fit knows what its searches have met, and its own draws cannot tell what it lacks. Take the region
:math:`A` in which :math:`p(D, x) / q(x)` is above all that test draws of the fit :math:`q` have
shown: by these, it holds next to nothing. A population that comes from the prior, resampled and
moved by corrected steps, has particles at its end whose weights :math:`W` make the mean of
:math:`W 1[x \in A]` an estimate of the evidence inside of :math:`A`, whatever the fit is. Several
independent populations say how far that is chance.
"""

import math
from typing import NamedTuple

import jax
import numpy as np
from scipy.special import stdtrit

from numpyro_dais._util.keys import named_key
from numpyro_dais._util.programs import program
from numpyro_dais._util.weights import ess, log_mean, log_mean_error
from numpyro_dais.model.traced import TracedTarget
from numpyro_dais.tuning.population import MOVE, measure_path

__all__ = ["Look", "second_look"]

# Populations at the least and at the most, and particles of each: two populations that agree are no
# chance, and fewer particles see nothing. Larger budgets have larger populations. Round numbers.
_FEWEST_POPULATIONS, _MOST_POPULATIONS = 3, 12
_FEWEST, _MOST = 32, 256
# Temperatures that a population may need: with more, the last step is a leap. Targets of up to 30
# dimensions took 5 to 30.
_NUM_LEVELS = 20
# Times the mean weight of a fit, below which nothing is amiss. A round number.
_LARGE = 3.0
# Of the evidence, what must be found in A. A round number: below it, 0.02 nats are at stake.
_LEAST_SHARE = 0.02
# Nats that populations may lie below the fit, on average, and still have seen what it has seen; and
# nats below it from which on others like the first would not see it, either. Round numbers.
_FAR_BELOW, _HOPELESSLY_BELOW = 1.0, 4.0
# Independent particles that a share of the evidence is missed by all of at a chance of one in
# twenty, times that share.
_NUM_TO_SEE = 3.0
# Independent particles without which a look has no power: it would see half of the evidence.
_FEWEST_INDEPENDENT = 2 * _NUM_TO_SEE


class Look(NamedTuple):
    """
    The outcome of a second look.

    :param share: the evidence that was found outside of what the fit has seen, as a share of the
        fit's.
    :param num_populations: populations that have found some.
    :param log_evidence: the estimate of the populations.
    :param num_independent: particles that all of them are worth: those that descend from one draw
        of the start are one.
    :param has_power: whether they are enough, and have seen what the fit has seen.
    :param places: particles that were found there, ``[num_found, num_dims]``.
    :param num_gradients: what it has cost.
    :param standard_error: of the estimate, over populations; half of what Student's t has at 95 %.
    """

    share: float
    num_populations: int
    log_evidence: float
    num_independent: float
    has_power: bool
    places: np.ndarray
    num_gradients: float
    standard_error: float = math.inf

    @property
    def is_found(self) -> bool:
        """True if mass was found that the fit lacks, and not by chance."""
        return self.num_populations > 1 and self.share > _LEAST_SHARE

    @property
    def smallest_share(self) -> float:
        """The smallest share of the evidence that would most likely have been seen."""
        return min(_NUM_TO_SEE / max(self.num_independent, 1.0), 1.0)

    @property
    def words(self) -> str:
        """The outcome in words."""
        if self.is_found:
            return (
                f"a second look, from the prior, has found mass that the fit lacks, about "
                f"{self.share:.0%} of what it has"
            )
        if not self.has_power:
            return "a second look, from the prior, had no power: too few of its particles got there"
        return (
            "a second look, from the prior, has found no mass that the fit lacks; it would have seen "
            f"{self.smallest_share:.0%} of the evidence"
        )


def second_look(
    rng_key: jax.Array,
    target: TracedTarget,
    started: TracedTarget,
    log_weights: np.ndarray,
    max_gradients: float,
) -> Look | None:
    """
    Returns what populations from the prior have seen that a fit has not; None if they cannot be
    paid.

    :param rng_key: a JAX random key.
    :param target: the target, with its own start.
    :param started: the same with the fit as its start.
    :param log_weights: of test draws of the fit.
    :param max_gradients: what all populations may cost.
    """
    of_each = max_gradients / _FEWEST_POPULATIONS
    number = int(of_each / (_NUM_LEVELS * (MOVE.num_leapfrog + 0.5)))
    if number < _FEWEST:
        return None
    number = 2 ** int(math.log2(min(number, _MOST)))  # few numbers, few programs
    finite = log_weights[np.isfinite(log_weights)]
    log_fit = float(log_mean(log_weights, np))
    threshold = max(float(finite.max()), log_fit + math.log(_LARGE))
    shares, log_evidences, places, families, num_gradients = [], [], [], [], 0.0
    for population in range(_MOST_POPULATIONS):
        # The first three can be paid; others as long as their like can.
        if population >= _FEWEST_POPULATIONS and (
            num_gradients * (population + 1) / population > max_gradients
        ):
            break
        key = named_key(rng_key, f"population {population}")
        seen = measure_path(key, target, number, int(of_each), max_dense_dims=_FEWEST // 3)
        num_gradients += seen.num_gradients + number / 2
        if seen.positions is None or seen.founders is None:
            return Look(0.0, 0, -math.inf, 0.0, False, np.zeros((0, 0)), num_gradients)
        ratios = np.asarray(_log_ratios(started, seen.positions), np.float64)
        is_outside = np.isfinite(ratios) & (ratios > threshold)
        places.append(np.asarray(seen.positions, np.float64)[is_outside])
        log_evidences.append(seen.log_evidence)
        shares.append(np.mean(is_outside) * math.exp(min(seen.log_evidence - log_fit, 50.0)))
        families.append(np.log(np.unique(seen.founders, return_counts=True)[1]) + seen.log_evidence)
        if not np.any(shares) and max(log_evidences) < log_fit - _HOPELESSLY_BELOW:
            break
    log_evidence = float(log_mean(np.array(log_evidences), np))
    num_independent = float(ess(np.concatenate(families), np))
    is_near = log_evidence > log_fit - _FAR_BELOW
    return Look(
        float(np.mean(shares)),
        int(np.count_nonzero(shares)),
        log_evidence,
        num_independent,
        is_near and num_independent >= _FEWEST_INDEPENDENT,
        np.concatenate(places),
        num_gradients,
        _error(np.array(log_evidences)),
    )


def _error(log_evidences: np.ndarray) -> float:
    """The error of the estimate, wider where it is itself from a few populations only."""
    if len(log_evidences) < 2:
        return math.inf
    student = stdtrit(len(log_evidences) - 1, 0.975) / stdtrit(np.inf, 0.975)
    return float(student * log_mean_error(log_evidences, np))


@program(is_brief=True)
def _log_ratios(started: TracedTarget, positions: jax.Array) -> jax.Array:
    """Log weights of positions, as draws of the start."""
    return jax.vmap(lambda position: started.log_densities_fn(position).log_ratio)(positions)
