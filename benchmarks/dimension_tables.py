# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Tables, conclusions and the picture of ``dimension.py``, from its rows."""

from typing import NamedTuple

from dimension_methods import LABELS
from dimension_targets import SizedTarget
from matplotlib.figure import Figure
import numpy as np
from peer_tables import (
    bootstrap_roots,
    cost,
    interval,
    markdown,
    number,
    root_mean_square,
)

PEERS = ("hais", "smc", "plain")
LOWEST, HIGHEST = 1e-4, 100.0  # in the picture
WORST = 1e6  # an error of so many nats is a failure
STYLES = {
    "dais": {"color": "#d55e00", "marker": "o"},
    "dais_prior": {"color": "#e69f00", "marker": "D"},
    "hais": {"color": "#0072b2", "marker": "s"},
    "plain": {"color": "#009e73", "marker": "^"},
    "smc": {"color": "#777777", "marker": "x"},
}
_CAPTION = (
    "RMSE of log evidence in nats over seeds (fewer where a reason is given) · mean gradients, all tuning included and "
    "a density without gradient as half of one · median seconds of a run after the first, which compiles. DAIS stops at its own "
    "goal, 0.005 nats, or at the budget; the others spend the budget. Not counted: the choice among six plain chains "
    "(from 1,000 dimensions on made once, with the first seed), and the pilot run that finds how many particles SMC can afford, "
    "at least 16. "
    "Where the truth has an error, RMSEs include it."
)

_RATIO_CAPTION = (
    "RMSE of DAIS from the prior over that of a peer, with a 90 % bootstrap interval over paired seeds. Two failures "
    "count as 1."
)


class Summary(NamedTuple):
    """The runs of one method on one target in one precision; ``reason`` says why some are missing."""

    errors: np.ndarray  # in the order of the seeds
    rmse: float
    cost: float
    seconds: float
    peak_mib: float
    reason: str | None


def best_variants(rows: list[dict]) -> list[dict]:
    """
    Of every seed the row with the highest lower bound, in the order of the seeds. A lost particle makes
    the bound minus infinity; among such rows, the highest estimate is taken.
    """

    def rank(row: dict) -> list[float]:
        values = [row["lower_bound"], row["log_evidence"]]
        return [-np.inf if value is None or not np.isfinite(value) else value for value in values]

    by_seed: dict[int, list[dict]] = {}
    for row in rows:
        if row["seed"] is not None:
            by_seed.setdefault(row["seed"], []).append(row)
    return [max(by_seed[seed], key=rank) for seed in sorted(by_seed)]


def summarise(target: SizedTarget, rows: list[dict]) -> Summary:
    best = best_variants(rows)
    errors = np.array([row["log_evidence"] for row in best], np.float64) - target.log_evidence
    errors = np.where(np.abs(errors) < WORST, errors, np.inf)  # a failure, as NaN is
    warm = [row["seconds"] for row in best if not row["is_first"]]
    return Summary(
        errors,
        root_mean_square(errors) if best else np.nan,
        float(np.mean([cost(row) for row in best])) if best else np.nan,
        float(np.median(warm or [row["seconds"] for row in best])) if best else np.nan,
        max((row["peak_mib"] for row in best), default=np.nan),
        rows[-1].get("reason"),  # those before it were overcome
    )


def summaries_of(
    targets: dict[str, SizedTarget], rows: list[dict]
) -> dict[tuple[str, str, str], Summary]:
    """By target, method and precision."""
    groups: dict[tuple[str, str, str], list[dict]] = {}
    for row in rows:
        groups.setdefault((row["target"], row["method"], row["precision"]), []).append(row)
    return {key: summarise(targets[key[0]], group) for key, group in groups.items()}


def _cell(summary: Summary | None) -> str:
    if summary is None:
        return "-"
    if not len(summary.errors):
        return f"none ({summary.reason})"
    missing = f" ({len(summary.errors)} seeds: {summary.reason})" if summary.reason else ""
    num_failed = int(np.sum(np.isinf(summary.errors)))
    rmse = f"failed in {num_failed}" if num_failed else number(summary.rmse)
    return f"{rmse}{missing} · {summary.cost:,.0f} · {summary.seconds:.2g} s"


def main_table(targets: dict[str, SizedTarget], summaries: dict) -> list[str]:
    columns = [("dais", "float64"), ("dais", "float32")]
    columns += [(method, "float64") for method in LABELS if method != "dais"]
    labels = [
        LABELS[method] + (", float32" if precision == "float32" else "")
        for method, precision in columns
    ]
    rows = [["target", "D", "log evidence", "seeds", *labels]]
    for name, target in targets.items():
        error = f" ± {target.reference_error:g}" if target.reference_error else ""
        found = [summaries.get((name, *column)) for column in columns]
        num_seeds = max((len(s.errors) for s in found if s is not None), default=0)
        first = [target.name, f"{target.num_dims:,}", f"{target.log_evidence:.3f}{error}"]
        rows.append([*first, str(num_seeds), *map(_cell, found)])
    return markdown(rows)


def ratio(ours: Summary, peer: Summary) -> tuple[float, float, float]:
    """Our RMSE over a peer's, with a 90 % bootstrap interval over the seeds that both have."""
    size = min(len(ours.errors), len(peer.errors))
    pairs = [summary.errors[:size] for summary in (ours, peer)]
    with np.errstate(invalid="ignore", divide="ignore"):
        ratios = np.divide(*map(bootstrap_roots, pairs))
        value = np.divide(*map(root_mean_square, pairs))
    # Two failures are alike.
    low, high = interval(np.nan_to_num(ratios, nan=1.0, posinf=np.inf), 0.9)
    return float(np.nan_to_num(value, nan=1.0, posinf=np.inf)), low, high


def ratio_table(targets: dict[str, SizedTarget], summaries: dict) -> list[str]:
    """How DAIS from the prior does against each peer on each target, and on how many it is no worse."""
    rows = [["target", *(LABELS[peer] for peer in PEERS)]]
    found: dict[str, dict[str, tuple[float, float, float]]] = {peer: {} for peer in PEERS}
    for name, target in targets.items():
        ours = summaries.get((name, "dais_prior", "float64"))
        for peer in PEERS:
            other = summaries.get((name, peer, "float64"))
            if ours is not None and other is not None and min(len(ours.errors), len(other.errors)):
                found[peer][name] = ratio(ours, other)
        texts = [_ratio_text(found[peer].get(name)) for peer in PEERS]
        rows.append([target.name, *texts])
    lines = [*markdown(rows), ""]
    for peer, by_target in found.items():
        if by_target:
            worst = max(by_target, key=lambda name: by_target[name][0])
            num_met = sum(low <= 1 for _, low, _ in by_target.values())
            lines.append(
                f"- against {LABELS[peer]}: the interval reaches down to 1 on {num_met} of {len(by_target)} targets; "
                f"the largest ratio is {by_target[worst][0]:.2f} ({targets[worst].name})."
            )
    return lines


def _ratio_text(values: tuple[float, float, float] | None) -> str:
    return "-" if values is None else "{:.2f} ({:.2f} to {:.2f})".format(*values)


def without_reference_error(rmse: float, reference_error: float) -> float:
    """The part of an RMSE that is not the truth's own error, which is taken off in quadrature."""
    return float(np.sqrt(max(rmse**2 - reference_error**2, 0.0)))


def criteria(targets: dict[str, SizedTarget], summaries: dict) -> list[str]:
    """Errors, costs and memory that are wanted on some targets, and whether they are met."""
    lines = []
    for name, target in targets.items():
        default = summaries.get((name, "dais", "float64"))
        prior = summaries.get((name, "dais_prior", "float64"))
        if target.group == "Gaussian" and default is not None:
            limit = 10 * target.num_dims + 10_000
            is_met = default.rmse < 0.01 and default.cost < limit
            what = f"RMSE {number(default.rmse)}, wanted below 0.01, in {default.cost:,.0f} gradients, wanted below {limit:,}"
            lines.append(_criterion(target, "DAIS", what, is_met))
        if name.startswith("cox_40") and default is not None:
            rmse = without_reference_error(default.rmse, target.reference_error)
            what = f"RMSE {number(rmse)} without the reference's error, wanted below 0.08; peak memory {default.peak_mib:,.0f} MiB, wanted below 2,048"
            is_met = rmse < 0.08 and default.peak_mib < 2048
            lines.append(_criterion(target, "DAIS", what, is_met))
        if name.startswith("cox_16") and prior is not None:
            what = f"RMSE {number(prior.rmse)}, wanted below 0.2"
            lines.append(_criterion(target, LABELS["dais_prior"], what, prior.rmse < 0.2))
    return lines


def _criterion(target: SizedTarget, label: str, what: str, is_met: bool) -> str:
    return f"- {target.name}, {label}: {what}: {'met' if is_met else 'not met'}."


def report(targets: dict[str, SizedTarget], rows: list[dict], budget: int) -> str:
    """The text in Markdown."""
    summaries = summaries_of(targets, rows)
    lines = ["## Error of log evidence from few dimensions to many", ""]
    lines += [f"At a budget of {budget:,} gradients. {_CAPTION}", ""]
    lines += [*main_table(targets, summaries), "", '## `start="prior"` against its peers', ""]
    lines += [_RATIO_CAPTION, ""]
    lines += ratio_table(targets, summaries)
    found = criteria(targets, summaries)
    lines += ["", "## What was asked for", "", *found] if found else []
    return "\n".join([*lines, ""])


def draw(targets: dict[str, SizedTarget], rows: list[dict]) -> Figure:
    """RMSE against gradients, seconds and dimension; larger errors and failures are at the upper end."""
    summaries = summaries_of(targets, rows)
    figure = Figure(figsize=(10.2, 3.8), layout="constrained")
    panels = figure.subplots(1, 3, sharey=True)
    for method, style in STYLES.items():
        points = np.array(
            [
                (summary.cost, summary.seconds, targets[name].num_dims, summary.rmse)
                for (name, of, precision), summary in summaries.items()
                if of == method and precision == "float64" and len(summary.errors)
            ]
        ).reshape(-1, 4)
        errors = np.clip(points[:, 3], LOWEST, HIGHEST)
        for axes, values in zip(panels, points.T, strict=False):
            kwargs = {"markersize": 4.5, "linestyle": "", "alpha": 0.85, **style}
            axes.plot(values, errors, label=LABELS[method], **kwargs)
    labels = ("gradients, tuning included", "seconds of a run", "dimensions")
    for axes, label in zip(panels, labels, strict=True):
        axes.set(xscale="log", yscale="log", xlabel=label)
        axes.grid(alpha=0.35, linewidth=0.5)
        axes.minorticks_off()
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel(f"RMSE of log evidence (nats, up to {HIGHEST:g})")
    handles = panels[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=len(STYLES), frameon=False)
    return figure
