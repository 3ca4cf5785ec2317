# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

r"""
One budget for several models, divided so that their Bayes factors have the smallest errors.

The error of a log evidence falls as :math:`k_i / \sqrt{b_i}` with the gradients :math:`b_i` that
are spent on it. A pilot run of each model shows its :math:`k_i`; what is left of the budget goes to
fresh runs, which alone are reported. The errors of the Bayes factors to the best of :math:`M`
models are :math:`\sqrt{k_i^2 / b_i + k_1^2 / b_1}`; the sum of their squares is smallest where one
more gradient gains the same for every model, at

.. math:: b_i \propto k_i \sqrt{w_i}, \qquad w_1 = M - 1, \quad w_i = 1 \text{ for } i > 1.
"""

from collections.abc import Callable
import math
from typing import Any, NamedTuple
import warnings

import jax
import numpy as np

from numpyro_dais._util.checks import check_count, check_key
from numpyro_dais._util.keys import named_key
from numpyro_dais._util.progress import RoundsBar
from numpyro_dais.estimators.arguments import MIN_BUDGET
from numpyro_dais.estimators.dais import DAIS
from numpyro_dais.model.observed import check_same_data
from numpyro_dais.results.evidence import Evidence

__all__ = ["Need", "needs_of", "run_all", "share_of"]

# Of the budget, for all pilot runs together: less says little of hard models, and more is missing
# in the reported runs, whose errors it makes a tenth larger. A round number.
_PILOT_SHARE = 0.2
# Of what is left, to be divided evenly: a short pilot run may be wrong by far, as where its fit was
# poor and the fit of a longer one is not. It makes an error a tenth larger at most. A round number.
_EVEN_SHARE = 0.2


class Need(NamedTuple):
    """
    The need of a model for gradients, as a pilot run shows it.

    :param weight: what its share is to be proportional to.
    :param enough: gradients that would bring its error down to its goal; infinite if not known.
    """

    weight: float
    enough: float


def run_all(
    estimators: dict[str, DAIS],
    rng_key: jax.Array | None,
    args: tuple,
    kwargs: dict[str, Any],
    budget: Any,
    has_bar: bool,
) -> dict[str, Evidence]:
    """
    Returns the evidence of each model from a fresh run, after pilot runs that divide the budget.

    :param estimators: self-tuned ones, by the models' names.
    :param rng_key: a JAX random key.
    :param args: arguments of the models.
    :param kwargs: keyword arguments of the models.
    :param budget: gradients that all runs may spend together; the sum of their own if None.
    :param has_bar: whether to show a progress bar.
    """
    _check_rounds(estimators)
    budget = _check_budget(budget, estimators)
    if rng_key is None:
        raise ValueError(
            "compare runs these estimators, and needs a random key; got None. Write compare(estimators, "
            "jax.random.key(0), ...), the models' arguments after it."
        )
    rng_key = check_key(rng_key)
    check_same_data({name: one._problem(args, kwargs) for name, one in estimators.items()})
    bar = RoundsBar("compare", budget) if has_bar else None

    def run(kind: str, name: str, budget: int) -> Evidence:
        key = named_key(named_key(rng_key, kind), name)
        evidence = estimators[name]._with_budget(budget).log_evidence(key, *args, **kwargs)
        if bar is not None:
            bar.advance(int(evidence.num_gradients))
            bar.say(f"{kind} of {name}: {evidence:.2f}")
        return evidence

    try:
        return _run_twice(run, list(estimators), budget)
    finally:
        if bar is not None:
            bar.close()


def _run_twice(
    run: Callable[[str, str, int], Evidence], names: list[str], budget: int
) -> dict[str, Evidence]:
    pilot_budget = max(int(_PILOT_SHARE * budget / len(names)), MIN_BUDGET)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of runs that are not reported
        pilots = {name: run("pilot run", name, pilot_budget) for name in names}
    left = budget - sum(int(pilot.num_gradients) for pilot in pilots.values())
    needs = needs_of(pilots)
    # A run that reaches its goal leaves the rest to those after it, which need more.
    names = sorted(names, key=lambda name: needs[name].weight)
    evidences = {}
    for i, name in enumerate(names):
        share = share_of(left, [needs[other] for other in names[i:]])
        evidences[name] = run("run", name, share)
        left -= int(evidences[name].num_gradients)
    return evidences


def needs_of(pilots: dict[str, Evidence]) -> dict[str, Need]:
    """
    Returns the need of each model.

    :param pilots: a short run of each, by its name.
    """
    spent = np.array([float(pilot.num_gradients) for pilot in pilots.values()])
    scales = np.sqrt(spent) * [float(pilot.standard_error) for pilot in pilots.values()]
    # An error that is not known may be the largest of all.
    is_known = np.isfinite(scales)
    scales[~is_known] = np.max(scales, where=is_known, initial=0.0)
    values = np.array([float(pilot.log_evidence) for pilot in pilots.values()])
    weights = np.ones(len(pilots))
    weights[np.argmax(np.nan_to_num(values, nan=-math.inf))] = len(pilots) - 1
    goals = np.array([pilot.target_error or math.nan for pilot in pilots.values()])
    enough = np.where(is_known & ~np.isnan(goals), (scales / goals) ** 2, math.inf)
    pairs = zip(scales * np.sqrt(weights), enough, strict=True)
    needs = [Need(float(weight), float(number)) for weight, number in pairs]
    return dict(zip(pilots, needs, strict=True))


def share_of(left: int, needs: list[Need]) -> int:
    """
    Returns the gradients for the first of some models, as many as a run takes at least.

    :param left: the gradients that are left for all of them.
    :param needs: theirs.
    """
    first, *others = needs
    total = sum(need.weight for need in needs)
    even = 1 / len(needs)
    own = first.weight / total if total > 0 else even
    share = left * (_EVEN_SHARE * even + (1 - _EVEN_SHARE) * own)
    # What the others do not need for their goals is of more use here.
    share = max(share, left - sum(max(need.enough, MIN_BUDGET) for need in others))
    return int(max(min(share, left - MIN_BUDGET * len(others)), MIN_BUDGET))


def _check_rounds(estimators: dict[str, DAIS]) -> None:
    for name, estimator in estimators.items():
        if not (isinstance(estimator, DAIS) and estimator._has_rounds):
            raise ValueError(
                "compare divides a budget between self-tuned estimators, DAIS(model) without settings, a plate, "
                f"mini-batches or a surrogate; {name!r} is {type(estimator).__name__} with some of these, or of "
                "another kind. Run it alone, and compare the evidences."
            )


def _check_budget(budget: Any, estimators: dict[str, DAIS]) -> int:
    least = 2 * MIN_BUDGET * len(estimators)
    if budget is None:
        budget = sum(estimator._goal.budget for estimator in estimators.values())
    try:
        return check_count("budget", budget, least)
    except ValueError as error:
        raise ValueError(
            f"{error} A pilot run and a reported one of each of {len(estimators)} models take at least {MIN_BUDGET} "
            "gradients each."
        ) from None
