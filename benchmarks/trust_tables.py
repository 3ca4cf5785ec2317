# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Tables, conclusions and the picture of ``trust.py``, from its rows."""

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
import numpy as np
from peer_tables import markdown, number, root_mean_square
from trust_base import TrustTarget

SMALL_ERROR = 0.05  # nats: no decision among models hangs on it
KHAT_EDGES = (0.3, 0.4, 0.5, 0.6, 0.7, 1.0)
ESS_EDGES = (5.0, 20.0, 100.0, 1000.0)
HIGHEST = 30.0  # reported errors, in the picture
SILENT, FAILED, WARNED = "#0072b2", "#d55e00", "#aaaaaa"
SET_LABELS = {"development": "development", "set_aside": "set aside", "unseen": "unseen"}
_CAPTION = (
    "A run is silent if it shows no warning. A silent failure is a silent run whose error is above four reported errors (with that "
    "of the reference, in quadrature) and above 0.05 nats; an answer that is not a number has failed. Coverage: the truth is within "
    "two reported errors, among silent runs, without targets whose reference is not known to a third of the median reported error. "
    "Needless warnings: runs that warn, among those on targets (in one precision) whose median error is below 0.05 nats. Exceptions "
    "are not silent, and are counted apart. Needles are declared in the targets' definitions and are in no other group."
)


class Run(NamedTuple):
    """One row, beside the truth."""

    target: str
    group: str
    precision: str
    error: float
    bar: float
    is_silent: bool
    is_failure: bool
    is_exception: bool
    is_known: bool  # whether the reference is good enough for coverage
    is_easy: bool  # whether the median error on this target is below SMALL_ERROR
    khat: float
    ess: float

    @property
    def is_silent_failure(self) -> bool:
        return self.is_silent and self.is_failure

    @property
    def is_covered(self) -> bool:
        return bool(abs(self.error) <= 2 * self.bar)

    @property
    def is_warned(self) -> bool:
        return not self.is_silent and not self.is_exception


def is_failure(error: float, bar: float, reference_error: float) -> bool:
    """Whether an error is above four reported errors and above 0.05 nats, or is not a number."""
    return not abs(error) <= max(4 * np.hypot(bar, reference_error), SMALL_ERROR)


def runs_of(
    targets: dict[str, TrustTarget], sets: dict[str, str], rows: list[dict]
) -> dict[tuple[str, str], list[Run]]:
    """By target and precision, in the order of the targets."""
    found = {}
    for name, target in targets.items():
        group = "needles" if target.is_needle else sets[name]
        for precision in ("float64", "float32"):
            mine = [row for row in rows if (row["target"], row["precision"]) == (name, precision)]
            mine = [row for row in mine if row["seed"] is not None]
            if mine:
                found[name, precision] = _runs(name, target, group, precision, mine)
    return found


def _runs(
    name: str, target: TrustTarget, group: str, precision: str, rows: list[dict]
) -> list[Run]:
    values = np.array([_value(row, "log_evidence") for row in rows])
    errors = values - target.log_evidence
    bars = np.array([_value(row, "standard_error") for row in rows])
    has_answer = ["exception" not in row for row in rows]
    middle = float(np.median(bars[np.isfinite(bars)])) if np.isfinite(bars).any() else 0.0
    size = np.median(np.nan_to_num(np.abs(errors), nan=np.inf))
    return [
        Run(
            name,
            group,
            precision,
            float(error),
            float(bar),
            is_answer and not row["warnings"],
            is_answer and is_failure(error, bar, target.reference_error),
            not is_answer,
            target.reference_error <= middle / 3,
            bool(size < SMALL_ERROR),
            _value(row, "khat"),
            _value(row, "ess"),
        )
        for row, error, bar, is_answer in zip(rows, errors, bars, has_answer, strict=True)
    ]


def _value(row: dict, key: str) -> float:
    value = row.get(key)
    return np.nan if value is None else float(value)


def share(runs: list[Run], is_true: Callable[[Run], bool]) -> str:
    """How many of the runs, and in percent."""
    count = sum(map(is_true, runs))
    return f"{count} of {len(runs)} ({100 * count / len(runs):.1f} %)" if runs else "-"


def covered(runs: list[Run]) -> list[Run]:
    """The runs that coverage is counted among."""
    return [run for run in runs if run.is_silent and run.is_known]


def easy(runs: list[Run]) -> list[Run]:
    """The runs that needless warnings are counted among."""
    return [run for run in runs if run.is_easy and not run.is_exception]


def summary_table(runs: list[Run]) -> list[str]:
    groups = {"all but needles": [run for run in runs if run.group != "needles"]}
    groups |= {label: [r for r in runs if r.group == key] for key, label in SET_LABELS.items()}
    groups["needles"] = [run for run in runs if run.group == "needles"]
    header = ["", "runs", "silent", "silent failures", "covered when silent", "needless warnings"]
    table = [[*header, "exceptions"]]
    for label, members in groups.items():
        for precision in ("float64", "float32"):
            mine = [run for run in members if run.precision == precision]
            if mine:
                table.append([f"{label}, {precision}", *_summary_cells(mine)])
        if members:
            table.append([f"{label}, both", *_summary_cells(members)])
    return markdown(table)


def _summary_cells(runs: list[Run]) -> list[str]:
    return [
        str(len(runs)),
        share(runs, lambda run: run.is_silent),
        share(runs, lambda run: run.is_silent_failure),
        share(covered(runs), lambda run: run.is_covered),
        share(easy(runs), lambda run: run.is_warned),
        str(sum(run.is_exception for run in runs)),
    ]


def criteria(runs: list[Run]) -> list[str]:
    """What was asked for, and whether it is met."""
    runs = [run for run in runs if run.group != "needles"]
    checked, simple = covered(runs), easy(runs)
    lines = [_criterion("silent failures", runs, lambda r: r.is_silent_failure, 0.0, 0.01)]
    lines += (
        [_criterion("coverage", checked, lambda r: r.is_covered, 0.92, 0.98)] if checked else []
    )
    if simple:
        lines += [_criterion("needless warnings", simple, lambda r: r.is_warned, 0.0, 0.15)]
    return lines


def _criterion(
    label: str, runs: list[Run], is_true: Callable[[Run], bool], low: float, high: float
) -> str:
    value = np.mean([is_true(run) for run in runs])
    wanted = f"between {100 * low:g} and {100 * high:g} %" if low else f"at most {100 * high:g} %"
    is_met = low <= value <= high
    return f"- {label}: {share(runs, is_true)}, wanted {wanted}: {'met' if is_met else 'not met'}."


def bins_table(runs: list[Run], label: str, edges: tuple[float, ...]) -> list[str]:
    """Coverage by a diagnostic, of all runs that have an answer: silent or not, but for needles."""
    runs = [run for run in runs if not run.is_exception and run.group != "needles"]
    values = np.array([getattr(run, label) for run in runs])
    which = np.where(np.isfinite(values), np.digitize(values, edges), -1)
    names = [f"below {edges[0]:g}"]
    names += [f"{low:g} to {high:g}" for low, high in pairwise(edges)]
    names += [f"{edges[-1]:g} and above", "unknown"]
    table = [[label, "runs", "covered", "failures", "silent", "silent failures"]]
    for index, name in zip([*range(len(edges) + 1), -1], names, strict=True):
        mine = [run for run, bin_ in zip(runs, which, strict=True) if bin_ == index]
        if mine:
            cells = [str(len(mine)), share([r for r in mine if r.is_known], lambda r: r.is_covered)]
            cells += [share(mine, lambda r: r.is_failure), share(mine, lambda r: r.is_silent)]
            table.append([name, *cells, str(sum(r.is_silent_failure for r in mine))])
    return markdown(table)


def target_table(
    targets: dict[str, TrustTarget],
    by_cell: dict[tuple[str, str], list[Run]],
    rows: list[dict],
    precision: str,
) -> list[str]:
    header = ["target", "D", "log evidence", "runs", "mean error", "RMSE", "reported error"]
    header += ["silent", "covered when silent", "silent failures", "k-hat", "gradients", "seconds"]
    table = [header]
    for name, target in targets.items():
        mine = [row for row in rows if (row["target"], row["precision"]) == (name, precision)]
        if not mine:
            continue
        runs = by_cell.get((name, precision), [])
        reason = mine[-1].get("reason")  # those before it were overcome
        suffix = f" ± {target.reference_error:g}" if target.reference_error else ""
        cells = [target.name + (" (needle)" if target.is_needle else ""), str(target.num_dims)]
        cells += [f"{target.log_evidence:.4f}{suffix}"]
        cells += [f"{len(runs)}{f' ({reason})' if reason else ''}"]
        answers = [row for row in mine if row.get("log_evidence") is not None]
        table.append([*cells, *_target_cells(runs, answers)])
    return markdown(table)


def _target_cells(runs: list[Run], rows: list[dict]) -> list[str]:
    errors = np.array([run.error for run in runs if not run.is_exception])
    if not len(errors):
        return ["-"] * 9
    warm = [row["seconds"] for row in rows if not row["is_first"]]
    khats = [run.khat for run in runs if np.isfinite(run.khat)]
    silent = [run for run in runs if run.is_silent]
    return [
        f"{np.mean(errors):+.4f}",
        number(root_mean_square(errors)),
        number(float(np.median([run.bar for run in runs if not run.is_exception]))),
        str(len(silent)),
        str(sum(run.is_covered for run in silent)) if silent else "-",
        str(sum(run.is_silent_failure for run in runs)),
        f"{np.median(khats):.2f}" if khats else "-",
        f"{np.mean([row['num_gradients'] for row in rows]):,.0f}",
        f"{np.median(warm or [row['seconds'] for row in rows]):.2g}",
    ]


def left_out(targets: dict[str, TrustTarget], by_cell: dict) -> list[str]:
    """The targets whose reference is too poor for coverage."""
    names = dict.fromkeys(name for (name, _), runs in by_cell.items() if not runs[0].is_known)
    return [f"{targets[name].name} (± {targets[name].reference_error:g})" for name in names]


def report(targets: dict[str, TrustTarget], sets: dict[str, str], rows: list[dict]) -> str:
    """The text in Markdown."""
    by_cell = runs_of(targets, sets, rows)
    runs = [run for members in by_cell.values() for run in members]
    lines = ["## Right when silent", "", _CAPTION, "", *summary_table(runs), ""]
    lines += ["What was asked for, needles apart:", "", *criteria(runs), ""] if runs else []
    unknown = left_out(targets, by_cell)
    if unknown:
        lines += [f"Not in coverage, for want of a better reference: {'; '.join(unknown)}.", ""]
    failed = [run for run in runs if run.is_silent_failure]
    if failed:
        counts = {name: sum(r.target == name for r in failed) for name in targets}
        texts = [f"{targets[name].name} ({count})" for name, count in counts.items() if count]
        lines += [f"Silent failures: {'; '.join(texts)}.", ""]
    words = "Of all runs with an answer but those on needles; a failure is an error that would be a silent failure without warnings."
    lines += ["## By k-hat and by effective sample size", "", words, ""]
    lines += [*bins_table(runs, "khat", KHAT_EDGES), "", *bins_table(runs, "ess", ESS_EDGES)]
    for label in dict.fromkeys(sets.values()):
        chosen = {name: target for name, target in targets.items() if sets[name] == label}
        for precision in ("float64", "float32"):
            table = target_table(chosen, by_cell, rows, precision)
            if len(table) > 2:
                lines += ["", f"## Targets: {SET_LABELS[label]}, {precision}", "", *table]
    exceptions = {row["exception"]: row["target"] for row in rows if "exception" in row}
    if exceptions:
        lines += ["", "## Exceptions", ""]
        lines += [f"- {name}: {text}" for text, name in exceptions.items()]
    return "\n".join([*lines, ""])


def draw(targets: dict[str, TrustTarget], sets: dict[str, str], rows: list[dict]) -> Figure:
    """Errors over reported errors, a line for each target and a panel for each set; float64 and float32."""
    by_cell = runs_of(targets, sets, rows)
    labels = list(dict.fromkeys(sets.values()))
    most = max(sum(label == other for other in sets.values()) for label in labels)
    figure = Figure(figsize=(6.2 * len(labels), 1.6 + 0.2 * most), layout="constrained")
    panels = figure.subplots(1, len(labels), squeeze=False)[0]
    for axes, label in zip(panels, labels, strict=True):
        names = [name for name in targets if sets[name] == label]
        _draw_panel(axes, names, targets, by_cell)
        axes.set_title(SET_LABELS[label])
    handles = panels[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=3, frameon=False)
    return figure


def _draw_panel(axes: Axes, names: list[str], targets: dict, by_cell: dict) -> None:
    kinds = {
        "with a warning": (WARNED, "x", lambda run: run.is_warned),
        "silent": (SILENT, "o", lambda run: run.is_silent and not run.is_failure),
        "silent failure": (FAILED, "D", lambda run: run.is_silent_failure),
    }
    axes.axvspan(-2, 2, color="#e8e8e8", linewidth=0)
    for kind, (color, marker, is_kind) in kinds.items():
        points = [
            (run.error / max(run.bar, 1e-12), names.index(name))
            for (name, _), runs in by_cell.items()
            if name in names
            for run in runs
            if is_kind(run)
        ]
        places, heights = np.array(points, float).reshape(-1, 2).T
        places = np.clip(np.nan_to_num(places, nan=HIGHEST), -HIGHEST, HIGHEST)
        kwargs = {"color": color, "marker": marker, "linestyle": "", "markersize": 3.5}
        axes.plot(places, heights, alpha=0.7, label=kind, clip_on=False, zorder=3, **kwargs)
    texts = [targets[name].name + ("*" if targets[name].is_needle else "") for name in names]
    axes.set_yticks(range(len(names)), texts, fontsize=6)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xscale("symlog", linthresh=4, linscale=1.2)
    ticks = [-HIGHEST, -10, -4, -2, 0, 2, 4, 10, HIGHEST]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set(xlim=(-HIGHEST, HIGHEST), xlabel="error over reported error (* needle)")
    axes.grid(axis="y", alpha=0.3, linewidth=0.4)
    axes.spines[["top", "right", "left"]].set_visible(False)
