# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""A table of several models of the same data, and the check of what goes into one."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from numpyro_dais._util.concreteness import is_concrete
from numpyro_dais.results.evidence import Evidence
from numpyro_dais.results.libraries import import_optional
from numpyro_dais.results.report import share, with_error
from numpyro_dais.results.sensitivity import PriorSensitivity
from numpyro_dais.results.tables import aligned

__all__ = ["Comparison", "check_evidences"]


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """
    Models in order of decreasing log evidence, as :func:`~numpyro_dais.estimators.compare.compare`
    returns them. Every array has one entry per model, in the order of ``names``.

    :param names: the models' names, the best first.
    :param log_evidence: the estimates of the log evidences.
    :param standard_error: their standard errors.
    :param log_bayes_factor: the log evidence less that of the best model; 0 for the best.
    :param log_bayes_factor_error: its standard error; 0 for the best.
    :param prior_probability: the models' probabilities before the data.
    :param probability: their probabilities after the data.
    :param probability_interval: ``[num_models, 2]``, 95 % intervals of these, for the errors of the
        log evidences. An infinite error says nothing: it gives [0, 1].
    :param warnings: by name, the reasons not to trust an evidence; of models that have some.
    :param is_error_known: whether each standard error is to be trusted.
    :param sensitivity: the log Bayes factors under narrower and wider priors; None if they were not
        asked for.
    :param evidences: the results that were compared, by name.
    """

    names: tuple[str, ...]
    log_evidence: np.ndarray
    standard_error: np.ndarray
    log_bayes_factor: np.ndarray
    log_bayes_factor_error: np.ndarray
    prior_probability: np.ndarray
    probability: np.ndarray
    probability_interval: np.ndarray
    warnings: dict[str, tuple[str, ...]]
    is_error_known: np.ndarray
    sensitivity: PriorSensitivity | None = None
    evidences: dict[str, Evidence] = field(default_factory=dict)

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Returns the numbers of each model by name, as Python floats, the best model first."""
        columns = {
            "log_evidence": self.log_evidence,
            "standard_error": self.standard_error,
            "log_bayes_factor": self.log_bayes_factor,
            "log_bayes_factor_error": self.log_bayes_factor_error,
            "prior_probability": self.prior_probability,
            "probability": self.probability,
            "probability_low": self.probability_interval[:, 0],
            "probability_high": self.probability_interval[:, 1],
        }
        return {
            name: {
                **{column: float(values[i]) for column, values in columns.items()},
                "warnings": list(self.warnings.get(name, ())),
            }
            for i, name in enumerate(self.names)
        }

    def to_pandas(self) -> Any:
        """Returns a ``pandas.DataFrame`` with one row per model, the best first."""
        pandas = import_optional("pandas", "Comparison.to_pandas needs pandas", "pandas")
        frame = pandas.DataFrame.from_dict(self._joined(), orient="index")
        return frame.rename_axis(index="model")

    def to_xarray(self) -> Any:
        """Returns an ``xarray.Dataset`` with the dimension ``model``, the best first."""
        xarray = import_optional("xarray", "Comparison.to_xarray needs xarray", "xarray")
        rows = list(self._joined().values())
        columns = {column: ("model", [row[column] for row in rows]) for column in rows[0]}
        return xarray.Dataset(columns, coords={"model": list(self.names)})

    def plot(self, ax: Any = None) -> Any:
        """
        Returns Matplotlib axes with the log evidences and their errors.

        See :func:`numpyro_dais.results.plots.plot_comparison`.

        :param ax: the axes to draw on; new ones if left out.
        """
        from numpyro_dais.results.plots import plot_comparison

        return plot_comparison(self, ax)

    def plot_sensitivity(self, ax: Any = None) -> Any:
        """
        Returns Matplotlib axes with the log Bayes factors under narrower and wider priors.

        See :func:`numpyro_dais.results.plots.plot_sensitivity`.

        :param ax: the axes to draw on; new ones if left out.
        """
        from numpyro_dais.results.plots import plot_sensitivity

        if self.sensitivity is None:
            raise ValueError(
                "plot_sensitivity draws what compare(..., prior_sensitivity=...) has found; this comparison was made "
                "without it. Name the sites whose priors are to be widened: prior_sensitivity=['mu']."
            )
        return plot_sensitivity(self.sensitivity, ax)

    def __repr__(self) -> str:
        lines = aligned(list(self._rows()))
        for name, faults in self.warnings.items():
            lines += [f"  * Warning, {name}: {fault}" for fault in faults]
        if self.sensitivity is not None:
            lines += ["", repr(self.sensitivity)]
        return "\n".join(lines)

    def _rows(self) -> Iterator[list[str]]:
        """Returns the cells of the printed table, row by row."""
        has_prior = bool(np.ptp(self.prior_probability) > 0)
        header = ["  model", "log evidence", "log Bayes factor", "probability", "95 % interval"]
        yield header + has_prior * ["prior"]
        for i, name in enumerate(self.names):
            is_known = bool(self.is_error_known[i])
            is_factor_known = is_known and bool(self.is_error_known[0])
            factor = with_error(
                self.log_bayes_factor[i], self.log_bayes_factor_error[i], is_factor_known
            )
            low, high = self.probability_interval[i]
            yield [
                f"{'*' if name in self.warnings else ' '} {name}",
                with_error(self.log_evidence[i], self.standard_error[i], is_known),
                factor if i else "best",
                share(self.probability[i]),
                f"{share(low)} to {share(high)}",
            ] + has_prior * [share(self.prior_probability[i])]

    def _joined(self) -> dict[str, dict[str, Any]]:
        """Returns :meth:`to_dict` with each model's warnings as one text."""
        rows = self.to_dict()
        return {name: {**row, "warnings": " ".join(row["warnings"])} for name, row in rows.items()}


def check_evidences(what: str, evidences: Any, least: int) -> None:
    """
    Raises an error unless ``evidences`` is a dict of concrete results with one number each.

    :param what: the function that needs them, to begin the message with.
    :param evidences: the argument of that function.
    :param least: the number of results that it needs.
    """
    if not isinstance(evidences, dict) or not all(isinstance(name, str) for name in evidences):
        raise ValueError(
            f"{what} needs a dict from the models' names to their evidences; got "
            f"{type(evidences).__name__}. Write {{'first': evidence, 'second': other_evidence}}."
        )
    if len(evidences) < least:
        raise ValueError(
            f"{what} needs at least {least} evidences; got {len(evidences)} ({list(evidences)}). "
            "Add the result of another model."
        )
    for name, evidence in evidences.items():
        if not isinstance(evidence, Evidence):
            raise ValueError(
                f"{what} needs an Evidence for each name; {name!r} has {evidence!r}. Pass the "
                "result of `DAIS(model).log_evidence(...)` itself."
            )
        _check_one(what, name, evidence)


def _check_one(what: str, name: str, evidence: Evidence) -> None:
    if not is_concrete(evidence):
        raise ValueError(
            f"{what} runs on the host and needs concrete values; the evidence of {name!r} is "
            "traced. Call it outside jit, vmap and grad."
        )
    shape = evidence.log_weights.shape
    if len(shape) > 1 + bool(evidence.problem.plates):
        raise ValueError(
            f"{what} needs one number per model; the evidence of {name!r} is a batch with log "
            f"weights of shape {shape}. Take one of it: jax.tree.map(lambda x: x[0], evidence)."
        )
    if len(shape) > 1:
        raise ValueError(
            f"{what} needs one number per model; the evidence of {name!r} has one for each of the "
            f"{shape[-1]} elements of plate {evidence.problem.plate!r}. Run the estimator without "
            "plate=, or sum by hand: evidence.log_evidence.sum()."
        )
    value = float(evidence.log_evidence)
    if np.isnan(value) or value == np.inf:
        raise ValueError(
            f"{what} needs log evidences that are numbers or -inf; {name!r} has {value}. Look at "
            "its log_weights."
        )
