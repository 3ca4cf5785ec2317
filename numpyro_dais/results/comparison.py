# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Several models of the same data, side by side."""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from numpyro_dais._util.concreteness import is_concrete
from numpyro_dais.results.evidence import Evidence, _with_error

__all__ = ["Comparison", "check_evidences"]


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """
    Models in order of decreasing log evidence, with what can be said of each. Every array has one
    entry per model, in the order of ``names``.

    :param names: the models' names, the best first.
    :param log_evidence: the estimates of the log evidences.
    :param standard_error: their standard errors.
    :param log_bayes_factor: the log evidence less that of the best model; 0 for the best.
    :param log_bayes_factor_error: its standard error; 0 for the best.
    :param prior_probability: the models' probabilities before the data.
    :param probability: their probabilities after the data.
    :param probability_interval: ``[num_models, 2]``, 95 % intervals of these, for the errors of the log
        evidences. An infinite error says nothing: it gives [0, 1].
    :param warnings: by name, why an evidence should not be trusted; only of models with such reasons.
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
        pandas = _import("pandas", "Comparison.to_pandas")
        frame = pandas.DataFrame.from_dict(self._joined(), orient="index")
        return frame.rename_axis(index="model")

    def to_xarray(self) -> Any:
        """Returns an ``xarray.Dataset`` with the dimension ``model``, the best first."""
        xarray = _import("xarray", "Comparison.to_xarray")
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

    def __repr__(self) -> str:
        rows = list(self._rows())
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(
                [row[0].ljust(widths[0])]
                + [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
            )
            for row in rows
        ]
        for name, faults in self.warnings.items():
            lines += [f"  * Warning, {name}: {fault}" for fault in faults]
        return "\n".join(lines)

    def _rows(self) -> Iterator[list[str]]:
        """The cells of the printed table."""
        has_prior = bool(np.ptp(self.prior_probability) > 0)
        header = ["  model", "log evidence", "log Bayes factor", "probability", "95 % interval"]
        yield header + has_prior * ["prior"]
        for i, name in enumerate(self.names):
            factor = _with_error(self.log_bayes_factor[i], self.log_bayes_factor_error[i])
            low, high = self.probability_interval[i]
            yield [
                f"{'*' if name in self.warnings else ' '} {name}",
                _with_error(self.log_evidence[i], self.standard_error[i]),
                factor if i else "best",
                _share(self.probability[i]),
                f"{_share(low)} to {_share(high)}",
            ] + has_prior * [_share(self.prior_probability[i])]

    def _joined(self) -> dict[str, dict[str, Any]]:
        """:meth:`to_dict` with each model's warnings as one text."""
        rows = self.to_dict()
        return {name: {**row, "warnings": " ".join(row["warnings"])} for name, row in rows.items()}


def check_evidences(what: str, evidences: Any, least: int) -> None:
    """
    Raises an error unless ``evidences`` is a dict of concrete results with one number each.

    :param what: the function that needs them, to begin the message with.
    :param evidences: what it was given.
    :param least: how many it needs.
    """
    if not isinstance(evidences, dict) or not all(isinstance(name, str) for name in evidences):
        raise ValueError(
            f"{what} needs a dict from the models' names to their evidences; got "
            f"{type(evidences).__name__}. Write {{'first': evidence, 'second': other_evidence}}."
        )
    if len(evidences) < least:
        raise ValueError(
            f"{what} needs at least {least} evidences; got {len(evidences)} ({list(evidences)}). Add "
            "the result of another model."
        )
    for name, evidence in evidences.items():
        if not isinstance(evidence, Evidence):
            raise ValueError(
                f"{what} needs an Evidence for each name; {name!r} has {evidence!r}. Pass the result of "
                "`DAIS(model).log_evidence(...)` itself."
            )
        _check_one(what, name, evidence)


def _check_one(what: str, name: str, evidence: Evidence) -> None:
    if not is_concrete(evidence):
        raise ValueError(
            f"{what} runs on the host and needs concrete values; the evidence of {name!r} is traced. "
            "Call it outside jit, vmap and grad."
        )
    shape = evidence.log_weights.shape
    if len(shape) > 1 and evidence.problem.plate is not None:
        raise ValueError(
            f"{what} needs one number per model; the evidence of {name!r} has one for each of the "
            f"{shape[-1]} elements of plate {evidence.problem.plate!r}. Run the estimator without plate=, or "
            "sum by hand: evidence.log_evidence.sum()."
        )
    if len(shape) > 1:
        raise ValueError(
            f"{what} needs one number per model; the evidence of {name!r} is a batch with log weights of "
            f"shape {shape}. Take one of it: jax.tree.map(lambda x: x[0], evidence)."
        )
    value = float(evidence.log_evidence)
    if np.isnan(value) or value == np.inf:
        raise ValueError(
            f"{what} needs log evidences that are numbers or -inf; {name!r} has {value}. Look at its "
            "log_weights."
        )


def _share(value: float) -> str:
    """A probability with three digits, never rounded to certainty."""
    if 0 < value < 0.0005:
        return "<0.001"
    return ">0.999" if 0.9995 <= value < 1 else f"{value:.3f}"


def _import(library: str, what: str) -> Any:
    try:
        return import_module(library)
    except ImportError as error:
        raise ImportError(
            f"{what} needs {library}, which is not installed: `pip install {library}`."
        ) from error
