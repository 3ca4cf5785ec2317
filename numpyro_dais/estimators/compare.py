# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""The comparison of several models of the same data."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from numpyro_dais.estimators.arguments import check_keyword
from numpyro_dais.estimators.base import Estimator
from numpyro_dais.estimators.dais import DAIS
from numpyro_dais.estimators.division import run_all
from numpyro_dais.estimators.sensitivity import sensitivity_of
from numpyro_dais.model.observed import check_same_data
from numpyro_dais.results.comparison import Comparison, check_evidences
from numpyro_dais.results.evidence import Evidence
from numpyro_dais.results.report import is_error_known

__all__ = ["compare"]

_FOR_ESTIMATORS = (
    "compare takes a random key, arguments of models, budget= and progress_bar= with estimators only, which it runs: "
    "compare({'a': DAIS(model), ...}, rng_key, *args); got some of these with evidences. Leave them out."
)
# Simulated log evidences: more take longer, and make intervals less noisy. A round number, with
# which the ends of a normal's interval have an error of half a percent of its width.
_NUM_DRAWS = 20_000

# The quantiles that bound 95 %, by custom.
_INTERVAL = (0.025, 0.975)

# The sum of probabilities may differ from one by this much, for those given in float32 or rounded.
_SUM_TOLERANCE = 1e-6


def compare(
    evidences: dict[str, Evidence] | dict[str, DAIS],
    rng_key: jax.Array | None = None,
    *args: Any,
    budget: int | None = None,
    prior_probabilities: dict[str, float] | None = None,
    prior_sensitivity: str | Sequence[str] | Callable[[float], dict[str, Evidence]] | None = None,
    progress_bar: bool = False,
    **kwargs: Any,
) -> Comparison:
    r"""
    Returns the models in order of their evidence, with Bayes factors and posterior probabilities

    .. math:: p(M_i \mid D) = \frac{p(D \mid M_i)\, p(M_i)}{\sum_j p(D \mid M_j)\, p(M_j)}.

    The runs are taken as independent (use different random keys): the errors of two log evidences
    add in quadrature, and the intervals of the probabilities come from simulating the log evidences
    as independent normals. Computed on the host.

    Only evidences of the same data can be compared. Where the models' observed values can be seen
    and differ, in whatever sites and shapes they come, this is an error.

    Given estimators instead, it runs them, with one budget for all: a pilot run of each, a fifth of
    the budget together, shows how its error falls with what is spent; what is left is divided so
    that the errors of the Bayes factors are smallest, and goes to fresh runs, which alone are
    reported. See :mod:`numpyro_dais.estimators.division`.

    :param evidences: the result of each model, by a name of your choice; or a self-tuned
        :class:`~numpyro_dais.estimators.dais.DAIS` for each.
    :param rng_key: with estimators, a JAX random key, of which each run has a part of its own.
    :param args: with estimators, the arguments of their models.
    :param budget: with estimators, gradients that all runs may spend together, pilot runs included;
        the sum of the estimators' own if left out. An estimator that reaches its ``target_error``
        leaves the rest of its share to the others.
    :param prior_probabilities: the models' probabilities before the data, by name; equal if left
        out.
    :param prior_sensitivity: a request for the log Bayes factors under narrower and wider priors,
        printed as a second table and drawn by ``plot_sensitivity``. Names of latent sites, the
        scale of whose priors is then multiplied by 1/4, 1/2, 2 and 4, in each model that has them,
        by re-weighting the particles: there is no new run. Or a function of that factor, which
        returns new evidences of the models that it changes, by name. See
        :mod:`numpyro_dais.estimators.sensitivity`.
    :param progress_bar: with estimators, whether to show a progress bar over the budget, with the
        estimate of each run.
    :param kwargs: with estimators, keyword arguments of their models.

    **Example**

    >>> import jax, numpyro, numpyro.distributions as dist
    >>> from numpyro_dais import DAIS, compare
    >>> def model(prior_scale):
    ...     mu = numpyro.sample("mu", dist.Normal(0.0, prior_scale))
    ...     numpyro.sample("y", dist.Normal(mu, 1.0), obs=3.0)
    >>> estimator = DAIS(model, num_steps=32, step_size=0.3)
    >>> evidences = {
    ...     "narrow": estimator.log_evidence(jax.random.key(0), 0.3),
    ...     "wide": estimator.log_evidence(jax.random.key(1), 3.0),
    ... }
    >>> comparison = compare(evidences)
    >>> comparison.names
    ('wide', 'narrow')
    >>> # Exactly, the logarithm of N(3; 0, 1.09) over N(3; 0, 10).
    >>> bool(abs(comparison.log_bayes_factor[1] - -2.570) < 0.3)
    True
    >>> sensitivity = compare(evidences, prior_sensitivity="mu").sensitivity
    >>> # With priors half as wide, N(3; 0, 1.0225) over N(3; 0, 3.25).
    >>> bool(abs(sensitivity.log_bayes_factor[sensitivity.scales == 0.5, 1] - -2.438) < 0.3)
    True
    """
    given: Any = evidences
    if _are_estimators(given):
        own: dict[str, Any] = {
            "budget": budget,
            "prior_probabilities": prior_probabilities,
            "prior_sensitivity": prior_sensitivity,
            "progress_bar": progress_bar,
        }
        _check_estimators(given, own, args)
        _check_priors(prior_probabilities, list(given))
        given = run_all(given, rng_key, args, kwargs, budget, progress_bar)
    elif rng_key is not None or args or kwargs or budget is not None or progress_bar:
        raise ValueError(_FOR_ESTIMATORS)
    check_evidences("compare", given, least=2)
    return _compared(given, prior_probabilities, prior_sensitivity)


def _compared(
    evidences: dict[str, Evidence], prior_probabilities: Any, prior_sensitivity: Any
) -> Comparison:
    priors = _check_priors(prior_probabilities, list(evidences))
    check_same_data({name: evidence.problem for name, evidence in evidences.items()})
    values = {name: float(evidence.log_evidence) for name, evidence in evidences.items()}
    names = sorted(evidences, key=lambda name: -values[name])
    log_evidence = np.array([values[name] for name in names])
    standard_error = np.array([float(evidences[name].standard_error) for name in names])
    prior = np.array([priors[name] for name in names])
    if not np.any((log_evidence > -np.inf) & (prior > 0)):
        raise ValueError(
            "At least one model needs an evidence and a prior probability above zero; got log "
            f"evidences {values} and prior probabilities {priors}. See the warnings of each "
            "evidence."
        )
    factor_error = np.hypot(standard_error, standard_error[0])
    factor_error[0] = 0.0
    sensitivity = None
    if prior_sensitivity is not None:
        sensitivity = sensitivity_of({name: evidences[name] for name in names}, prior_sensitivity)
    return Comparison(
        names=tuple(names),
        log_evidence=log_evidence,
        standard_error=standard_error,
        log_bayes_factor=log_evidence - log_evidence[0],
        log_bayes_factor_error=factor_error,
        prior_probability=prior,
        probability=_probabilities(log_evidence, prior),
        probability_interval=_probability_interval(log_evidence, standard_error, prior),
        warnings={name: evidences[name].warnings for name in names if evidences[name].warnings},
        is_error_known=np.array([bool(is_error_known(evidences[name])) for name in names]),
        sensitivity=sensitivity,
        evidences={name: evidences[name] for name in names},
    )


def _are_estimators(given: Any) -> bool:
    """Returns whether there is an estimator among the values of a dict."""
    return isinstance(given, dict) and any(isinstance(x, Estimator) for x in given.values())


def _check_estimators(estimators: dict, own: dict[str, Any], args: tuple) -> None:
    for name, estimator in estimators.items():
        if not isinstance(name, str):
            raise ValueError(f"The models' names must be text; got {name!r}. Write {str(name)!r}.")
        if not isinstance(estimator, Estimator):
            raise ValueError(
                "compare needs an evidence for each name, or an estimator for each; got both: "
                f"{name!r} has {type(estimator).__name__}. Run the estimators, and compare the evidences."
            )
        for keyword, value in own.items():
            if value:
                check_keyword("compare", keyword, value, estimator.model, args)
    if len(estimators) < 2:
        raise ValueError(
            f"compare needs at least 2 estimators; got {list(estimators)}. Add another model."
        )


def _check_priors(priors: Any, names: list[str]) -> dict[str, float]:
    if priors is None:
        return {name: 1 / len(names) for name in names}
    if not isinstance(priors, dict) or set(priors) != set(names):
        given = list(priors) if isinstance(priors, dict) else priors
        raise ValueError(
            f"prior_probabilities must be a dict with the models' names {names}; got {given!r}. "
            "Give each model one probability."
        )
    values = {name: float(priors[name]) for name in names}
    if not all(value >= 0 for value in values.values()):
        raise ValueError(f"prior_probabilities must not be negative; got {values}.")
    if not np.isclose(total := sum(values.values()), 1.0, rtol=0, atol=_SUM_TOLERANCE):
        raise ValueError(
            f"prior_probabilities must sum to one; got {values}, which sum to {total:g}. Divide by "
            "the sum."
        )
    return values


def _probabilities(log_evidence: np.ndarray, prior: np.ndarray) -> np.ndarray:
    """Returns posterior probabilities of the models, along the last axis."""
    with np.errstate(divide="ignore"):
        log_joint = log_evidence + np.log(prior)
    joint = np.exp(log_joint - np.max(log_joint, axis=-1, keepdims=True))
    return joint / np.sum(joint, axis=-1, keepdims=True)


def _probability_interval(
    log_evidence: np.ndarray, standard_error: np.ndarray, prior: np.ndarray
) -> np.ndarray:
    """Returns 95 % intervals of the models' probabilities, ``[num_models, 2]``."""
    is_known, has_prior = np.isfinite(standard_error), prior > 0
    is_drawn = is_known & has_prior & np.isfinite(log_evidence)
    interval = np.zeros((len(prior), 2))
    if np.any(is_drawn):
        noise = np.random.default_rng(0).standard_normal((_NUM_DRAWS, len(prior)))
        draws = log_evidence[is_drawn] + standard_error[is_drawn] * noise[:, is_drawn]
        shares = _probabilities(draws, prior[is_drawn])
        interval[is_drawn] = np.quantile(shares, _INTERVAL, axis=0).T
    # A model of unknown evidence may have any probability, and so leave nothing to the others.
    if np.any(has_prior & ~is_known):
        interval[:, 0] = 0.0
        interval[has_prior & ~is_known, 1] = 1.0
    return interval
