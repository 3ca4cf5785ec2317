# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""A table of Bayes factors under narrower and wider priors."""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from numpyro_dais.results.report import with_error
from numpyro_dais.results.tables import aligned

__all__ = ["PriorSensitivity"]


@dataclass(frozen=True, eq=False, repr=False)
class PriorSensitivity:
    """
    Log evidences of several models with their priors narrowed and widened by some factors. Arrays
    are ``[num_scales, num_models]``.

    The estimates of one model at several factors come from the same particles, so their errors are
    correlated: differences along a column are known better than each number is.

    :param names: the models' names, in the order of the comparison.
    :param sites: the sites whose priors were changed; none if new evidences were given.
    :param scales: the factors on the scale of the priors, 1 among them.
    :param log_evidence: the estimates of the log evidences.
    :param standard_error: their standard errors.
    :param is_error_known: whether each standard error is to be trusted.
    """

    names: tuple[str, ...]
    sites: tuple[str, ...]
    scales: np.ndarray
    log_evidence: np.ndarray
    standard_error: np.ndarray
    is_error_known: np.ndarray

    @property
    def log_bayes_factor(self) -> np.ndarray:
        """The log evidences less that of the first model, the best one by the comparison."""
        return self.log_evidence - self.log_evidence[:, :1]

    @property
    def log_bayes_factor_error(self) -> np.ndarray:
        """The standard errors of these; 0 for the first model."""
        errors = np.hypot(self.standard_error, self.standard_error[:, :1])
        errors[:, 0] = 0.0
        return errors

    @property
    def is_factor_known(self) -> np.ndarray:
        """True where the errors of both models are to be trusted."""
        return self.is_error_known & self.is_error_known[:, :1]

    @property
    def labels(self) -> list[str]:
        """The factors as fractions, such as ``1/4``."""
        return [str(Fraction(float(scale)).limit_denominator(1000)) for scale in self.scales]

    @property
    def title(self) -> str:
        """A line that says what the numbers are."""
        of_sites = f" of {', '.join(self.sites)}" if self.sites else ""
        return f"Log Bayes factor against {self.names[0]}, by a factor on the prior scale{of_sites}"

    def __repr__(self) -> str:
        lines = [self.title, *aligned(list(self._rows()))]
        if not np.all(self.is_factor_known):
            lines.append(
                "  ? The weights under that prior are too unequal to tell; give new runs: prior_sensitivity=a function "
                "of the factor."
            )
        return "\n".join(lines)

    def _rows(self) -> Iterator[list[str]]:
        """Returns the cells of the printed table, row by row."""
        values, errors = self.log_bayes_factor, self.log_bayes_factor_error
        yield ["  factor", *self.names[1:]]
        for i, label in enumerate(self.labels):
            cells = zip(values[i, 1:], errors[i, 1:], self.is_factor_known[i, 1:], strict=True)
            yield [f"  {label}", *(with_error(v, e) if known else "?" for v, e, known in cells)]
