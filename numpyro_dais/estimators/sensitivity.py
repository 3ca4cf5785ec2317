# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

r"""
Bayes factors under narrower and wider priors, by new weights for old particles or by new runs.

A weight :math:`w` of a particle at :math:`x` that is unbiased for the evidence under a prior
:math:`p_1` is so under another prior :math:`p_s` once it is multiplied by their ratio,

.. math:: p_s(D) = E\left[w \, \frac{p_s(x)}{p_1(x)}\right],

so that one run has the evidence under many priors. The more they differ, the fewer particles
count, and the effective sample size and k-hat of the new weights say so; where these are not good,
no number is printed. Priors can mostly be narrowed, and widened where the data say more than they
do. A place that no particle has seen under one prior stays unseen under the others. Of a sandwich,
only forward weights are used.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from jax import random
import jax.numpy as jnp
import numpy as np

from numpyro_dais.model.observed import check_same_data
from numpyro_dais.model.rescale import log_prior_ratios
from numpyro_dais.model.traced import trace_target
from numpyro_dais.results.comparison import check_evidences
from numpyro_dais.results.evidence import Evidence
from numpyro_dais.results.report import is_error_known
from numpyro_dais.results.sensitivity import PriorSensitivity

__all__ = ["sensitivity_of"]

# The factors on the scale of priors. Round numbers: few would defend a prior to within a factor of
# two, and a reader takes in five lines at a glance.
_SCALES = (0.25, 0.5, 1.0, 2.0, 4.0)

# New weights are good if they are hardly more unequal than the old ones were, or if they have an
# effective sample size and a k-hat of at least and at most these. Measured on exact draws from
# Gaussian posteriors in 1 to 30 dimensions, 48 to 8,192 of them: of the estimates that pass, 94 %
# are within two of their errors of the truth, and 0.3 % not within four. With the limits of an
# evidence of its own, 5 and 0.7, these are 88 % and 3.7 %.
_LEAST_ESS = 100.0
_LEAST_SHARE = 0.9
_LARGEST_KHAT = 0.4

# The new evidences of the models whose priors a factor changes, by name.
NewRuns = Callable[[float], dict[str, Evidence]]


def sensitivity_of(
    evidences: dict[str, Evidence], request: str | Sequence[str] | NewRuns
) -> PriorSensitivity:
    """
    Returns the evidences of several models with narrower and wider priors.

    :param evidences: the result of each model by name, the best first; they are those of factor 1.
    :param request: names of latent sites, whose priors are changed in each model that has them; or
        a function of a factor on the scale, see
        :func:`~numpyro_dais.estimators.compare.compare`.
    """
    sites = () if callable(request) else _check_sites(request)
    if callable(request):
        table = [_run_anew(evidences, request, scale) for scale in _SCALES]
        is_known = [[bool(is_error_known(new)) for new in row] for row in table]
    else:
        table = _reweigh(evidences, sites)
        olds = list(evidences.values())
        is_known = [
            [_is_good(new, old) for new, old in zip(row, olds, strict=True)] for row in table
        ]
    return PriorSensitivity(
        names=tuple(evidences),
        sites=sites,
        scales=np.array(_SCALES),
        log_evidence=np.array([[float(e.log_evidence) for e in row] for row in table]),
        standard_error=np.array([[float(e.standard_error) for e in row] for row in table]),
        is_error_known=np.array(is_known),
    )


def _check_sites(request: Any) -> tuple[str, ...]:
    names = (request,) if isinstance(request, str) else request
    is_sequence = isinstance(names, (list, tuple, set, frozenset)) and len(names) > 0
    if not is_sequence or not all(isinstance(name, str) for name in names):
        raise ValueError(
            "prior_sensitivity must be names of latent sites, such as ['mu', 'tau'], or a function that returns new "
            f"evidences, {{name: evidence}}, for a factor on the scale of the priors; got {request!r}."
        )
    return tuple(dict.fromkeys(names))


def _reweigh(evidences: dict[str, Evidence], sites: tuple[str, ...]) -> list[list[Evidence]]:
    """The evidences of all models at each scale, from the same particles."""
    targets = {n: trace_target(e.problem, random.key(0)) for n, e in evidences.items()}
    structures = {name: target.tracing.structure for name, target in targets.items()}
    latents = {name: [] if s is None else list(s.prototype) for name, s in structures.items()}
    if unknown := [site for site in sites if not any(site in names for names in latents.values())]:
        raise ValueError(
            "prior_sensitivity must name continuous latent sites of at least one of the models; none has "
            f"{unknown}. They have {latents}."
        )
    columns = []
    for name, evidence in evidences.items():
        own = tuple(site for site in sites if site in latents[name])
        if not own:
            columns.append([evidence] * len(_SCALES))
            continue
        target, positions = targets[name], evidence.positions
        ratios = log_prior_ratios(evidence.problem, target, positions, own, _SCALES)
        pairs = zip(_SCALES, ratios, strict=True)
        columns.append([evidence if s == 1.0 else _with_ratio(evidence, r) for s, r in pairs])
    return [list(row) for row in zip(*columns, strict=True)]


def _is_good(new: Evidence, old: Evidence) -> bool:
    """Returns whether new weights of old particles have an error that can be trusted."""
    is_known = bool(is_error_known(new))
    if new.khat is not None and old.khat is not None:
        is_known &= bool(new.khat <= max(_LARGEST_KHAT, float(old.khat)))
    return is_known and float(new.ess) >= min(_LEAST_ESS, _LEAST_SHARE * float(old.ess))


def _with_ratio(evidence: Evidence, log_ratio: np.ndarray) -> Evidence:
    """The evidence under another prior, given its ratio to the first at each particle."""
    log_weights = np.asarray(evidence.log_weights)
    # The prior of a particle of weight zero may be anything.
    is_lost = np.isnan(log_ratio) | np.isposinf(log_ratio)
    summed = np.where(is_lost, -np.inf, log_weights + np.where(is_lost, 0.0, log_ratio))
    return replace(
        evidence,
        log_weights=jnp.asarray(summed, log_weights.dtype),
        reverse_log_weights=None,
        num_chains=None,
        target_error=None,
        history=(),
        findings=None,
    )


def _run_anew(evidences: dict[str, Evidence], request: NewRuns, scale: float) -> list[Evidence]:
    """The evidences at a scale, those that the function returns in place of the old ones."""
    if scale == 1.0:
        return list(evidences.values())
    what = f"prior_sensitivity({scale:g})"
    new = request(scale)
    check_evidences(what, new, least=1)
    if unknown := [name for name in new if name not in evidences]:
        raise ValueError(
            f"{what} must return evidences of the models {list(evidences)}; it has {unknown} as well. Use the names that "
            "compare was given."
        )
    changed = {**evidences, **new}
    check_same_data({name: evidence.problem for name, evidence in changed.items()})
    return list(changed.values())
