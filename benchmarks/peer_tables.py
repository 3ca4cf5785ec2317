# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Tables and the picture of ``peers.py``, from its rows."""

from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
import numpy as np
from peer_methods import METHODS
from targets import Target

OURS = "#d55e00"
MUTED = {"annealing": "#4f7c9b", "other": "#8a8a8a"}
HIGHEST = 3.0  # in the picture; a triangle there stands for more
TOLERANCE = 1.05  # costs this close are equal
_CAPTION = (
    "RMSE of log evidence in nats over seeds, with a 95 % bootstrap interval. Cost: gradients, all tuning and "
    "warm-up included, and half of the density evaluations without gradient. Seconds: median without "
    "compilation, and the first call. Covered: truth within two reported standard errors. Equal cost: the "
    "variance of a peer is scaled by the ratio of costs, as of an unbiased Monte-Carlo estimate, its "
    "mean error is not; such values are marked ~. A peer whose error bars cover less than half of the runs is not "
    "scaled to a larger cost, since more draws would not cure it."
)


class Summary(NamedTuple):
    """The runs of one method on one target. Shares are None where the method does not say."""

    method: str
    num_seeds: int
    rmse: float
    interval: tuple[float, float]
    median: float
    bias: float
    variance: float
    cost: float
    seconds: float
    first_seconds: float
    coverage: float | None
    warned: float | None
    num_failed: int

    @property
    def kind(self) -> str:
        return METHODS[self.method.split("@")[0]].kind

    def rmse_at(self, cost: float) -> float:
        """What the RMSE would be at another cost."""
        if not np.isfinite(self.rmse):
            return self.rmse
        if self.cost < cost and self.coverage is not None and self.coverage < 0.5:
            return self.rmse
        bias_squared = max(self.bias**2 - self.variance / self.num_seeds, 0.0)
        return float(np.sqrt(bias_squared + self.variance * self.cost / cost))


def cost(row: dict) -> float:
    """Gradients, and half of the densities without gradient."""
    return row["num_gradients"] + row["num_densities"] / 2


def label(method: str) -> str:
    name, _, peer = method.partition("@")
    return METHODS[name].label + (f", cost of {METHODS[peer].label}" if peer else "")


def summarise(rows: list[dict], target: Target) -> list[Summary]:
    """The methods in the order of their cost."""
    methods = dict.fromkeys(row["method"] for row in rows)
    summaries = [
        _summarise(method, [row for row in rows if row["method"] == method], target)
        for method in methods
    ]
    return sorted(summaries, key=lambda summary: summary.cost)


def _summarise(method: str, rows: list[dict], target: Target) -> Summary:
    errors = np.array([row["log_evidence"] for row in rows], np.float64) - target.log_evidence
    errors = np.where(np.isfinite(errors), errors, np.inf)  # a failure
    num_failed = int(np.sum(np.isinf(errors)))
    bars = [row["standard_error"] for row in rows]
    warned = [row["has_warning"] for row in rows]
    coverage = None
    if None not in bars:
        coverage = np.mean(np.abs(errors) <= 2 * np.hypot(bars, target.error))
    first = [row["first_seconds"] for row in rows if row["first_seconds"] is not None]
    return Summary(
        method,
        len(rows),
        root_mean_square(errors),
        interval(bootstrap_roots(errors)),
        float(np.median(np.abs(errors))),
        float(np.mean(errors)),
        np.inf if num_failed else float(np.var(errors)),
        float(np.mean([cost(row) for row in rows])),
        float(np.median([row["seconds"] for row in rows])),
        float(np.median(first)) if first else np.nan,
        None if coverage is None else float(coverage),
        None if None in warned else float(np.mean(warned)),
        num_failed,
    )


def root_mean_square(errors: np.ndarray) -> float:
    return float(np.sqrt(np.mean(errors**2)))


def bootstrap_roots(errors: np.ndarray) -> np.ndarray:
    """Root mean squares of errors of seeds drawn with replacement, the same ones whatever the errors."""
    indices = np.random.default_rng(0).integers(len(errors), size=(2000, len(errors)))
    return np.sqrt(np.mean(errors[indices] ** 2, axis=1))


def interval(values: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2], method="nearest")
    return float(low), float(high)


def number(value: float) -> str:
    return f"{value:.2g}" if value >= 0.1 or not np.isfinite(value) else f"{value:.4f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _cells(summary: Summary) -> list[str]:
    low, high = summary.interval
    rmse = f"{number(summary.rmse)} ({number(low)} to {number(high)})"
    return [
        label(summary.method),
        str(summary.num_seeds),
        f"failed in {summary.num_failed}" if summary.num_failed else rmse,
        number(summary.median),
        f"{summary.cost:,.0f}",
        f"{summary.seconds:.2f}",
        f"{summary.first_seconds:.1f}",
        _share(summary.coverage),
        _share(summary.warned),
    ]


_HEADER = ["method", "seeds", "RMSE", "median", "cost", "s", "first s", "covered", "warned"]


def _ratios(ours: Summary, summaries: list[Summary]) -> str:
    """What our RMSE is, relative to the best peers'."""
    peers = [summary for summary in summaries if summary.kind != "ours"]
    cheaper = [peer for peer in peers if peer.cost <= TOLERANCE * ours.cost]
    annealing = [peer for peer in peers if peer.kind == "annealing"]
    parts = []
    if cheaper:
        best = min(cheaper, key=lambda peer: peer.rmse)
        ratio = ours.rmse / best.rmse
        parts.append(f"{ratio:.2f} of the best peer's at no more cost ({label(best.method)})")
    for name, group in [("peer", peers), ("annealing or SMC peer", annealing)]:
        if group:
            best = min(group, key=lambda peer: peer.rmse_at(ours.cost))
            is_scaled = max(best.cost, ours.cost) > TOLERANCE * min(best.cost, ours.cost)
            ratio = f"{'~' if is_scaled else ''}{ours.rmse / best.rmse_at(ours.cost):.2f}"
            parts.append(f"{ratio} of the best {name}'s at equal cost ({label(best.method)})")
    return f"{label(ours.method)}: RMSE is {'; '.join(parts)}."


def markdown(rows: list[list[str]]) -> list[str]:
    """The lines of a table, of which the first row is the header."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return [lines[0], "|---" * len(rows[0]) + "|", *lines[1:]]


def tables(
    targets: dict[str, Target], summaries: dict[str, list[Summary]], is_markdown: bool
) -> str:
    """All tables, one for each target, and what they mean."""
    blocks = []
    for name, by_method in summaries.items():
        target = targets[name]
        error = f" ± {target.error:g}" if target.error else ""
        title = f"{target.title}: log evidence {target.log_evidence:.3f}{error}"
        rows = [_HEADER, *map(_cells, by_method)]
        has_peers = any(summary.kind != "ours" for summary in by_method)
        ratios = [_ratios(s, by_method) for s in by_method if s.kind == "ours" and has_peers]
        if is_markdown:
            ratios = [f"- {line}" for line in ratios]
            blocks.append("\n".join([f"### {title}", "", *markdown(rows), "", *ratios, ""]))
        else:
            widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
            lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
            blocks.append("\n".join([title, *lines, *ratios, ""]))
    return "\n".join([*blocks, _CAPTION, ""])


SHORT = {"laplace": "Laplace", "nuts": "NUTS", "smc_1k": "SMC 1k", "smc_10k": "SMC 10k"}
SHORT |= {"hais": "HAIS", "autodais": "AutoDAIS", "nested": "nested"}


def _draw_panel(axes: Axes, target: Target, summaries: list[Summary]) -> None:
    finite = [_clipped(summary) for summary in summaries]
    for summary in finite:
        color = OURS if summary.kind == "ours" else MUTED[summary.kind]
        low, high = summary.interval
        axes.plot([summary.cost] * 2, [low, high], color=color, linewidth=1, alpha=0.6, zorder=2)
        marker = "s" if summary.kind == "other" else "o"
        marker = "^" if summary.rmse == HIGHEST else marker
        size = 6 if summary.kind == "ours" else 4.5
        axes.plot(summary.cost, summary.rmse, marker, color=color, markersize=size, zorder=3)
    ours = [summary for summary in finite if summary.kind == "ours"]
    axes.plot([s.cost for s in ours], [s.rmse for s in ours], color=OURS, linewidth=1.8, zorder=3)
    axes.set(xscale="log", yscale="log")
    costs = [summary.cost for summary in finite]
    axes.set_xlim(min(costs) / 2, max(costs) * 12)
    axes.set_title(target.title, fontsize=9, loc="left")
    axes.grid(alpha=0.35, linewidth=0.5)
    axes.tick_params(labelsize=8)
    axes.minorticks_off()
    axes.spines[["top", "right"]].set_visible(False)
    default = next((s for s in ours if s.method == "dais"), None)
    named = [(SHORT[s.method], s, MUTED[s.kind]) for s in finite if s.kind != "ours"]
    if default is not None:
        named.append(("DAIS", default, OURS))
    _label_points(axes, named)


def _clipped(summary: Summary) -> Summary:
    """An error off the scale, at its end."""
    rmse, low, high = (min(value, HIGHEST) for value in (summary.rmse, *summary.interval))
    return summary._replace(rmse=rmse, interval=(low, high))


def _label_points(axes: Axes, named: list[tuple[str, Summary, str]]) -> None:
    """Names to the right of the points, moved apart where they would overlap."""
    axes.figure.canvas.draw()  # type: ignore[union-attr]
    placed: list[tuple[float, float]] = []
    for text, summary, color in sorted(named, key=lambda item: item[1].rmse):
        x, y = axes.transData.transform((summary.cost, summary.rmse))
        while any(abs(x - other_x) < 60 and abs(y - other_y) < 12 for other_x, other_y in placed):
            y += 2.0
        placed.append((x, y))
        offset = y - axes.transData.transform((summary.cost, summary.rmse))[1]
        axes.annotate(
            text,
            (summary.cost, summary.rmse),
            xytext=(5, offset * 72 / axes.figure.dpi - 3),
            textcoords="offset points",
            fontsize=7.5,
            color=color,
            fontweight="bold" if color == OURS else "normal",
        )


def draw(targets: dict[str, Target], summaries: dict[str, list[Summary]]) -> Figure:
    """RMSE against cost, one panel for each target."""
    num_columns = min(3, len(summaries))
    num_rows = -(-len(summaries) // num_columns)
    figure = Figure(figsize=(3.4 * num_columns, 2.7 * num_rows), layout="constrained")
    panels = figure.subplots(num_rows, num_columns, squeeze=False)
    for axes, (name, by_method) in zip(panels.flat, summaries.items(), strict=False):
        _draw_panel(axes, targets[name], by_method)
    for axes in panels.flat[len(summaries) :]:
        axes.set_axis_off()
    for axes in panels[-1]:
        axes.set_xlabel("gradients, everything included", fontsize=8)
    for axes in panels[:, 0]:
        axes.set_ylabel("RMSE of log evidence (nats)", fontsize=8)
    return figure
