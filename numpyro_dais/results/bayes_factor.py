# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""The log Bayes factor of two models, as the difference of their evidences."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_dais._util.concreteness import is_concrete
from numpyro_dais.model.observed import check_same_data
from numpyro_dais.results.evidence import Evidence
from numpyro_dais.results.report import is_error_known, with_error

__all__ = ["LogBayesFactor", "log_bayes_factor"]


@dataclass(frozen=True, eq=False, repr=False)
class LogBayesFactor:
    r"""
    The difference :math:`\log p(D \mid M_1) - \log p(D \mid M_2)` of two log evidences.

    :param value: the log Bayes factor, positive if the data speak for the first model.
    :param standard_error: its standard error.
    :param is_error_known: whether both evidences have an error that can be trusted.
    """

    value: jax.Array
    standard_error: jax.Array
    is_error_known: bool

    def __float__(self) -> float:
        return float(self.value)

    def __format__(self, spec: str) -> str:
        return format(float(self), spec) if spec else str(self)

    def __repr__(self) -> str:
        return (
            f"log Bayes factor {with_error(self.value, self.standard_error, self.is_error_known)}"
        )


def log_bayes_factor(first: Evidence, second: Evidence) -> LogBayesFactor:
    """
    Returns the log Bayes factor of two models, or raises an error if they are seen to have
    different data. For more than two, and for probabilities, see
    :func:`~numpyro_dais.estimators.compare.compare`.

    :param first: the evidence of one model.
    :param second: that of the other.
    """
    for evidence in (first, second):
        if jnp.ndim(evidence.log_evidence):
            raise ValueError(
                "A Bayes factor needs one number per model; got an evidence of shape "
                f"{jnp.shape(evidence.log_evidence)}. Subtract their log_evidence, or take one of a batch: "
                "jax.tree.map(lambda x: x[0], evidence)."
            )
    is_known = False
    if is_concrete((first, second)):
        check_same_data({"first": first.problem, "second": second.problem})
        is_known = bool(np.all(is_error_known(first)) and np.all(is_error_known(second)))
    return LogBayesFactor(
        first.log_evidence - second.log_evidence,
        jnp.hypot(first.standard_error, second.standard_error),
        is_known,
    )
