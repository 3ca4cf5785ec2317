# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Pictures of results. Matplotlib is imported when one is drawn."""

from typing import Any

import numpy as np

from numpyro_dais.comparison import Comparison, _share, check_evidences
from numpyro_dais.evidence import Evidence

__all__ = ["plot_comparison", "plot_sandwich"]

_BLUE, _ORANGE, _DARK = "#0072b2", "#d55e00", "#222222"


def plot_comparison(comparison: Comparison, ax: Any = None) -> Any:
    """
    Returns Matplotlib axes with the log evidence of each model ± 2 standard errors, the best on top, and
    the models' probabilities beside them.

    An open dot has an unknown error; a model of evidence zero has no dot.

    :param comparison: the result of :func:`~numpyro_dais.comparison.compare`.
    :param ax: the axes to draw on; new ones if left out.
    """
    ax = _axes(ax, len(comparison.names))
    for row, name in enumerate(comparison.names):
        value, error = comparison.log_evidence[row], comparison.standard_error[row]
        if np.isfinite(value):
            _dot(ax, value, row, error, _BLUE)
        else:
            _beside(ax, 0.02, row, r"$\log p(D) = -\infty$", ha="left")
        low, high = comparison.probability_interval[row]
        text = f"{_share(comparison.probability[row])}  ({_share(low)} to {_share(high)})"
        mark = " *" if name in comparison.warnings else ""
        _beside(ax, 1.02, row, text + mark, ha="left")
    _beside(ax, 1.02, -0.7, "probability (95 %)", ha="left", fontweight="bold")
    _style_rows(ax, list(comparison.names))
    ax.set_ylim(top=-1.0)  # room for the header
    ax.set_xlabel("log evidence (nats), ± 2 s.e.")
    if comparison.warnings:
        _beside(ax, 1.02, len(comparison.names) - 0.35, "* with warnings", ha="left", va="top")
    return ax


def plot_sandwich(evidences: dict[str, Evidence], ax: Any = None) -> Any:
    """
    Returns Matplotlib axes with the interval between the stochastic lower and upper bounds of each
    evidence, both ± 2 standard errors, and the estimate of the log evidence as a dot.

    Without an upper bound only the lower one is drawn.

    :param evidences: results by name, drawn from top to bottom.
    :param ax: the axes to draw on; new ones if left out.
    """
    check_evidences("plot_sandwich", evidences, least=1)
    ax = _axes(ax, len(evidences))
    for row, evidence in enumerate(evidences.values()):
        lower, upper = float(evidence.lower_bound), evidence.upper_bound
        if upper is not None and np.all(np.isfinite([lower, float(upper)])):
            width = float(upper) - lower
            ax.barh(row, width, left=lower, height=0.34, color=_BLUE, alpha=0.25, linewidth=0)
        _end(ax, lower, row, evidence.lower_bound_error)
        if upper is not None:
            _end(ax, float(upper), row, evidence.upper_bound_error)
        if np.isfinite(value := float(evidence.log_evidence)):
            label = None if row else "estimate"
            ax.plot([value], [row], "o", color=_ORANGE, markersize=5, zorder=4, label=label)
    _style_rows(ax, list(evidences))
    ax.set_xlabel("log evidence (nats): bounds, ± 2 s.e.")
    return ax


def _axes(ax: Any, num_rows: int) -> Any:
    if ax is not None:
        return ax
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError(
            'Plots need Matplotlib, which is not installed: `pip install "numpyro-dais[examples]"`, or '
            "`pip install matplotlib`."
        ) from error
    _, ax = plt.subplots(figsize=(6.4, 1.2 + 0.4 * num_rows), layout="constrained")
    return ax


def _dot(ax: Any, value: float, row: int, error: float, color: str) -> None:
    is_known = np.isfinite(error)
    ax.errorbar(
        [value],
        [row],
        xerr=[2 * error] if is_known else None,
        fmt="o",
        color=color,
        markerfacecolor=color if is_known else "white",
        markersize=6,
        capsize=3,
    )


def _end(ax: Any, value: float, row: int, error: Any) -> None:
    """One end of a sandwich: a stroke, and its error as a thin line."""
    if not np.isfinite(value):
        return
    xerr = [2 * float(error)] if error is not None and np.isfinite(float(error)) else None
    ax.errorbar(
        [value],
        [row],
        xerr=xerr,
        fmt="|",
        color=_BLUE,
        markersize=11,
        markeredgewidth=1.8,
        elinewidth=1.0,
        zorder=3,
    )


def _beside(ax: Any, x: float, row: float, text: str, **kwargs: Any) -> None:
    """Text at a fraction of the axes' width, in a row."""
    kwargs = {"va": "center", "fontsize": "small", "color": _DARK, **kwargs}
    ax.annotate(text, (x, row), xycoords=("axes fraction", "data"), annotation_clip=False, **kwargs)


def _style_rows(ax: Any, names: list[str]) -> None:
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.tick_params(axis="y", length=0)
    ax.margins(x=0.08)
    ax.grid(axis="x", alpha=0.4, linewidth=0.5)
    ax.spines[["top", "right", "left"]].set_visible(False)
