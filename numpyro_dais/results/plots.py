# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Pictures of results. Matplotlib is imported when one is drawn."""

import textwrap
from typing import Any

import numpy as np

from numpyro_dais.results.comparison import Comparison, check_evidences
from numpyro_dais.results.evidence import Evidence
from numpyro_dais.results.gap import gap_contributions
from numpyro_dais.results.libraries import import_optional
from numpyro_dais.results.report import estimate, share, weight_unit
from numpyro_dais.results.sensitivity import PriorSensitivity
from numpyro_dais.sampler.settings import Settings

__all__ = ["plot_comparison", "plot_evidence", "plot_sandwich", "plot_sensitivity"]

# Two colours that the colour-blind can tell apart (Okabe and Ito 2008), and one for text. Sizes and
# positions on the page, wherever they are in this file, were set by eye.
_BLUE, _ORANGE, _DARK = "#0072b2", "#d55e00", "#222222"
# For lines of several models, more of theirs; with yet more models they come again.
_COLORS = (_BLUE, _ORANGE, "#009e73", "#cc79a7", "#e69f00", "#56b4e9")

# Bars that show steps: more show more, and are noisier. A round number.
_NUM_BARS = 20

# The number of steps from which on they have no dots, which would run together. A round number.
_MAX_DOTS = 20

# The part of a schedule before a rise by this factor is as good as zero, and is not shown. A round
# number: smooth schedules rise by less from one step to the next.
_JUMP = 1e3

# The first inverse temperature, shown, below which its axis is logarithmic. A round number.
_LOG_BELOW = 1e-2

# The number of bins of a histogram: the square root of that of the weights, by custom, within
# bounds where it still reads well, set by eye.
_FEWEST_BINS, _MOST_BINS = 8, 50

# A histogram shows 1.8 times the range of the upper 85 % of the weights: with more of it, the stray
# draws of a defensive start would squeeze the rest. Set by eye.
_LOW_QUANTILE, _STRETCH = 0.15, 1.8

# The relative range of log weights below which they are drawn as equal: a few float32 roundings.
_EQUAL_WITHIN = 1e-6


def plot_comparison(comparison: Comparison, ax: Any = None) -> Any:
    """
    Returns Matplotlib axes with the log evidence of each model ± 2 standard errors, the best on
    top, and the models' probabilities beside them.

    An open dot has an unknown error; a model of evidence zero has no dot.

    :param comparison: the result of :func:`~numpyro_dais.estimators.compare.compare`.
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
        text = f"{share(comparison.probability[row])}  ({share(low)} to {share(high)})"
        mark = " *" if name in comparison.warnings else ""
        _beside(ax, 1.02, row, text + mark, ha="left")
    _beside(ax, 1.02, -0.7, "probability (95 %)", ha="left", fontweight="bold")
    _style_rows(ax, list(comparison.names))
    ax.set_ylim(top=-1.0)  # room for the header
    ax.set_xlabel("log evidence (nats), ± 2 s.e.")
    if comparison.warnings:
        _beside(ax, 1.02, len(comparison.names) - 0.35, "* with warnings", ha="left", va="top")
    return ax


def plot_sensitivity(sensitivity: PriorSensitivity, ax: Any = None) -> Any:
    """
    Returns Matplotlib axes with a line for each model but the best: its log Bayes factor against
    that one ± 2 standard errors, by the factor on the scale of the priors.

    A Bayes factor that the particles cannot tell has no dot.

    :param sensitivity: the ``sensitivity`` of a comparison.
    :param ax: the axes to draw on; new ones if left out.
    """
    ax = _axes(ax, num_rows=5)
    others = sensitivity.names[1:]
    values, errors = sensitivity.log_bayes_factor, sensitivity.log_bayes_factor_error
    for column, name in enumerate(others, start=1):
        is_known = sensitivity.is_factor_known[:, column]
        ax.errorbar(
            sensitivity.scales,
            np.where(is_known, values[:, column], np.nan),
            yerr=np.where(is_known, 2 * errors[:, column], np.nan),
            fmt="o-",
            color=_COLORS[(column - 1) % len(_COLORS)],
            capsize=3,
            label=name,
        )
    ax.axhline(0.0, color=_DARK, linewidth=0.8)
    ax.set_xscale("log", base=2)
    ax.set_xticks(sensitivity.scales, sensitivity.labels)
    ax.legend(fontsize="small", frameon=False)
    _style_panel(ax, sensitivity.title, "factor on the scale", "nats, ± 2 s.e.")
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


def plot_evidence(evidence: Evidence) -> Any:
    """
    Returns a Matplotlib figure of one run: the inverse temperature, step size and damping of each
    step, what each step adds to the gap (or, of corrected chains, its acceptance), and a histogram
    of the log weights with the log evidence. Warnings are written below.

    The contributions are those of a few particles that run again; see
    :func:`~numpyro_dais.results.gap.gap_contributions`. Without steps there are the histogram and a
    description of the start.

    :param evidence: the result of an estimator, without a plate.
    """
    check_evidences("plot_evidence", {evidence.method: evidence}, least=1)
    settings = evidence.settings
    num_more = int(len(evidence.history) > 1)
    if settings.num_steps:
        figure, axes = _panels(2 + num_more, height=5.6 + 2.6 * num_more)
        _draw_schedule(axes[0, 0], settings)
        _draw_step_size(axes[0, 1], settings)
        if evidence.acceptance is None:
            title = "Contribution to the gap"
            title += ", without resampling" if evidence.island_size > 1 else ""
            _draw_contributions(axes[1, 0], gap_contributions(evidence), title)
        else:
            _draw_acceptance(axes[1, 0], np.asarray(evidence.acceptance))
        _draw_weights(axes[1, 1], evidence)
    else:
        figure, axes = _panels(1 + num_more, height=3.2 + 2.6 * num_more)
        _draw_start(axes[0, 0], evidence)
        _draw_weights(axes[0, 1], evidence)
    if num_more:
        _draw_rounds(axes[-1, 0], evidence)
        _draw_decision(axes[-1, 1], evidence)
    figure.suptitle(f"{evidence.method}: log evidence {estimate(evidence)}", fontweight="bold")
    if evidence.warnings:
        lines = [textwrap.fill(f"Warning: {fault}", 125) for fault in evidence.warnings]
        figure.supxlabel("\n".join(lines), x=0.02, ha="left", fontsize="small", color=_ORANGE)
    return figure


def _draw_rounds(ax: Any, evidence: Evidence) -> None:
    """Draws the estimate of each round against the gradients up to its end."""
    costs, values, errors, steps = np.array(
        [(r.num_gradients, r.log_evidence, r.standard_error, r.num_steps) for r in evidence.history]
    ).T
    is_known = np.isfinite(values) & np.isfinite(errors)
    ax.axhline(values[-1], color=_ORANGE, linewidth=0.8)
    ax.errorbar(
        costs[is_known], values[is_known], 2 * errors[is_known], fmt="o", color=_BLUE, capsize=3
    )
    for cost, value, number in zip(costs, values, steps, strict=True):
        if np.isfinite(value):
            offset = {"xytext": (5, 5), "textcoords": "offset points"}
            ax.annotate(f"K={int(number)}", (cost, value), fontsize="small", color=_DARK, **offset)
    ax.margins(x=0.25, y=0.25)
    ax.locator_params(axis="x", nbins=4)  # numbers of five digits, side by side
    _style_panel(ax, "Rounds: estimate ± 2 s.e.", "gradients, all tuning included", "nats")


def _draw_decision(ax: Any, evidence: Evidence) -> None:
    """Writes how the settings were found."""
    lines = evidence.settings.decision.lines or ("settings as they were given",)
    text = "\n".join(textwrap.fill(line, 68) for line in lines)
    ax.text(0.0, 0.95, text, transform=ax.transAxes, va="top", color=_DARK, fontsize="small")
    ax.set_title("Decision", loc="left", fontsize="medium")
    ax.axis("off")


def _draw_schedule(ax: Any, settings: Settings) -> None:
    betas = np.asarray(settings.betas)
    _draw_steps(ax, betas)
    shown = betas[np.flatnonzero(betas[1:] > _JUMP * betas[:-1]).max(initial=-1) + 1 :]
    if shown[0] < _LOG_BELOW:
        ax.set_yscale("log")
        ax.set_ylim(bottom=shown[0] / 2)
    _style_panel(ax, "Schedule", "step", r"inverse temperature $\beta$")


def _draw_step_size(ax: Any, settings: Settings) -> None:
    step_size, damping = np.asarray(settings.step_size), np.asarray(settings.damping)
    _draw_steps(ax, step_size, label=r"step size $\eta$")
    _draw_steps(ax, damping, label=r"damping $\gamma$", color=_ORANGE, ls="--")
    ax.set_ylim(bottom=0.0, top=1.25 * max(step_size.max(), damping.max()))
    ax.legend(loc="upper right", ncols=2, fontsize="small", frameon=False)
    _style_panel(ax, "Step size and damping", "step", "")


def _draw_contributions(ax: Any, contributions: np.ndarray, title: str) -> None:
    if not np.all(np.isfinite(contributions)):
        first = int(np.flatnonzero(~np.isfinite(contributions))[0])
        ax.axvline(first + 1, color=_ORANGE)
        _note(ax, 0.98, f"a weight is not finite from step {first + 1} on", ha="right")
        contributions = np.where(np.arange(len(contributions)) < first, contributions, 0.0)
    else:
        _note(ax, 0.98, f"{contributions.sum():.3g} nats in all", ha="right")
    num_bars = min(_NUM_BARS, len(contributions))
    edges = np.linspace(0, len(contributions), num_bars + 1).round().astype(int)
    totals = np.add.reduceat(contributions, edges[:-1])
    widths = np.diff(edges)
    ax.bar(edges[:-1] + 0.5, totals / widths, width=widths, align="edge", color=_BLUE, alpha=0.8)
    ax.axhline(0.0, color=_DARK, linewidth=0.8)
    ax.margins(y=0.2)
    _style_panel(ax, title, "step", "nats per step")
    ax.set_xlim(0.5, len(contributions) + 0.5)


def _draw_acceptance(ax: Any, acceptance: np.ndarray) -> None:
    _draw_steps(ax, acceptance)
    ax.set_ylim(0.0, 1.05)
    _style_panel(ax, "Acceptance", "step", "mean over particles")


def _draw_steps(ax: Any, values: np.ndarray, color: str = _BLUE, **kwargs: Any) -> None:
    """Draws a line through one value for each step, with dots if they are few."""
    marker = "." if len(values) < _MAX_DOTS else None
    ax.plot(np.arange(1, len(values) + 1), values, color=color, marker=marker, **kwargs)


def _draw_start(ax: Any, evidence: Evidence) -> None:
    start = evidence.settings.start
    kind = "the estimator's own start" if start is None else start.description
    lines = [
        "no steps: importance sampling",
        f"from {kind}",
        f"{evidence.num_particles} particles, {int(evidence.num_gradients)} gradients",
    ]
    text = "\n".join(textwrap.fill(line, 52) for line in lines)
    ax.text(0.0, 0.95, text, transform=ax.transAxes, va="top", color=_DARK)
    ax.set_title("Start", loc="left", fontsize="medium")
    ax.axis("off")


def _draw_weights(ax: Any, evidence: Evidence) -> None:
    log_weights = np.asarray(evidence.log_weights, np.float64)
    finite = log_weights[np.isfinite(log_weights)]
    if len(finite):
        num_bins = int(np.clip(np.sqrt(len(finite)), _FEWEST_BINS, _MOST_BINS))
        low, high = _shown_range(finite)
        ax.hist(finite, bins=np.linspace(low, high, num_bins + 1), color=_BLUE, alpha=0.8)
        ax.axvline(float(evidence.log_evidence), color=_ORANGE, label="log evidence")
        has_bound = evidence.settings.num_steps > 0 and len(finite) == len(log_weights)
        if has_bound and (mean := finite.mean()) > low:
            ax.axvline(mean, color=_DARK, ls=":", label="mean (lower bound)")
        ax.set_xlim(low, high + 0.03 * (high - low))
        ax.margins(y=0.35)
        ax.legend(loc="upper left", ncols=2, fontsize="small", framealpha=1.0, edgecolor="none")
        if num_lower := int(np.sum(finite < low)):
            _note(ax, 0.02, f"{num_lower} lower ones not shown", y=0.84)
    if len(finite) < len(log_weights):
        _note(ax, 0.98, f"{len(log_weights) - len(finite)} of weight zero", ha="right", y=0.84)
    title = (
        f"Log weights: ESS {float(evidence.ess):.0f} of {len(log_weights)} {weight_unit(evidence)}"
    )
    _style_panel(ax, title, "nats", "")


def _shown_range(log_weights: np.ndarray) -> tuple[float, float]:
    """Returns the range of a histogram: without weights so low that they count for nothing."""
    low, high = float(log_weights.min()), float(log_weights.max())
    if high - low < _EQUAL_WITHIN * max(abs(high), 1.0):
        return low - 0.5, high + 0.5
    bulk = high - float(np.quantile(log_weights, _LOW_QUANTILE))
    return max(low, high - _STRETCH * bulk), high


def _style_panel(ax: Any, title: str, xlabel: str, ylabel: str) -> None:
    ax.set_title(title, loc="left", fontsize="medium")
    ax.set_xlabel(xlabel)
    ax.set_ylabel(ylabel)
    ax.grid(alpha=0.4, linewidth=0.5)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)


def _note(ax: Any, x: float, text: str, y: float = 0.95, **kwargs: Any) -> None:
    """Writes small text at fractions of the axes."""
    ax.text(x, y, text, transform=ax.transAxes, va="top", fontsize="small", color=_DARK, **kwargs)


def _panels(num_rows: int, height: float) -> tuple[Any, Any]:
    """Returns a figure that pyplot does not know, and its axes in rows of two."""
    plt = _pyplot()
    figure, axes = plt.subplots(
        num_rows, 2, figsize=(9.0, height), layout="constrained", squeeze=False
    )
    # A notebook shows what a cell returns, and then all figures of pyplot: this one, too. Made by
    # pyplot nevertheless, which teaches a new notebook how figures are shown.
    plt.close(figure)
    return figure, axes


def _axes(ax: Any, num_rows: int) -> Any:
    """Returns the axes, or new ones in a figure of pyplot: a notebook shows no axes."""
    if ax is not None:
        return ax
    _, ax = _pyplot().subplots(figsize=(6.4, 1.2 + 0.4 * num_rows), layout="constrained")
    return ax


def _pyplot() -> Any:
    requirement = '"numpyro-dais[plots]"'
    return import_optional("matplotlib.pyplot", "Plots need Matplotlib", requirement)


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
    """Draws one end of a sandwich: a stroke, and its error as a thin line."""
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
    """Writes text at a fraction of the axes' width, in a row."""
    kwargs = {"va": "center", "fontsize": "small", "color": _DARK, **kwargs}
    ax.annotate(text, (x, row), xycoords=("axes fraction", "data"), annotation_clip=False, **kwargs)


def _style_rows(ax: Any, names: list[str]) -> None:
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.tick_params(axis="y", length=0)
    ax.margins(x=0.08)
    ax.grid(axis="x", alpha=0.4, linewidth=0.5)
    ax.spines[["top", "right", "left"]].set_visible(False)
