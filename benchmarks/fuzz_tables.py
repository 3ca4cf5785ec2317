# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""What the rows of ``fuzz.py`` say: one verdict for each model, counts, and the seeds of the bad ones."""

from collections import Counter
import math

import numpy as np
from scipy import stats

LARGE_ERROR = 0.05  # nats, below which no error is a failure
NUM_ERRORS = 4  # reported ones, below which neither
COVERED = 2  # reported errors
# A reference counts for coverage if it is known to a third of the reported error.
REFERENCE_SHARE = 1 / 3
SILENT, NAN, EXCEPTION = "silent failure", "NaN presented as an answer", "exception"
WARNED, LOUD, RIGHT = "warning, and right", "warning, and wrong", "right"
VERDICTS = (EXCEPTION, NAN, SILENT, LOUD, WARNED, RIGHT)


def error_of(row: dict) -> float:
    return row["log_evidence"] - row["truth"]


def has_warning(row: dict) -> bool:
    """Whether the result itself warns; a word of NumPyro's about the model is none."""
    return bool(row["warnings"])


def is_wrong(row: dict) -> bool:
    """Whether the error is above four reported ones and 0.05 nats."""
    return not abs(error_of(row)) <= max(NUM_ERRORS * row["standard_error"], LARGE_ERROR)


def verdict(row: dict) -> str:
    """
    Returns one of :data:`VERDICTS`. NaN is one whatever warning is beside it; an infinite log evidence, whose truth is
    finite, is a wrong answer.
    """
    if "exception" in row:
        return EXCEPTION
    if math.isnan(row["log_evidence"]) or math.isnan(row["standard_error"]):
        return NAN
    if has_warning(row):
        return LOUD if is_wrong(row) else WARNED
    return SILENT if is_wrong(row) else RIGHT


def is_covered(row: dict) -> bool:
    return abs(error_of(row)) <= COVERED * row["standard_error"]


def coverage(rows: list[dict]) -> str:
    """The share of runs whose truth is within two errors, with an exact interval, and what was left out."""
    known = [r for r in rows if r["disagreement"] <= REFERENCE_SHARE * r["standard_error"]]
    if not known:
        return "none"
    count = sum(map(is_covered, known))
    low, high = stats.binomtest(count, len(known)).proportion_ci(0.95)
    text = (
        f"{count} of {len(known)} ({count / len(known):.1%}; 95 % interval {low:.1%} to {high:.1%})"
    )
    left_out = [row["seed"] for row in rows if row not in known]
    return text + (f"; reference not known well enough: {left_out}" if left_out else "")


def line_of(row: dict) -> str:
    """A bad model in a line: its seed, what was found, and what is in it."""
    found = f"seed {row['seed']}, {row['num_dims']}-d: "
    if "exception" in row:
        found += row["exception"].strip().splitlines()[-1]
    else:
        found += f"{error_of(row):+.3f} ± {row['standard_error']:.4f}"
    return f"{found} [{', '.join(row['tags'])}]"


def report(rows: list[dict]) -> str:
    """Returns the counts, the bad ones, and what models consist of."""
    rows = sorted(rows, key=lambda row: row["seed"])
    found = {row["seed"]: verdict(row) for row in rows}
    counts = Counter(found.values())
    precision = rows[0]["precision"]
    lines = [f"{len(rows)} models, {precision}, seeds {rows[0]['seed']} to {rows[-1]['seed']}"]
    lines += [f"  {name:28} {counts[name]:5}  {counts[name] / len(rows):.1%}" for name in VERDICTS]
    answers = [row for row in rows if found[row["seed"]] not in (EXCEPTION, NAN)]
    finite = [row for row in answers if math.isfinite(row["standard_error"])]
    silent = [row for row in finite if not has_warning(row)]
    lines += ["truth within two errors, no warning: " + coverage(silent)]
    lines += ["truth within two errors, all:        " + coverage(finite)]
    if answers:
        small = [row for row in answers if abs(error_of(row)) < LARGE_ERROR]
        needless = sum(map(has_warning, small))
        lines += [f"warnings where the error is below {LARGE_ERROR}: {needless} of {len(small)}"]
        gradients = np.median([row["num_gradients"] for row in answers])
        seconds = [np.median([row[key] for row in answers]) for key in ("seconds", "reference_seconds")]  # fmt: skip
        lines += [
            f"medians: {gradients:,.0f} gradients, {seconds[0]:.1f} s; {seconds[1]:.1f} s for the model and its reference"
        ]
    differences = [row["disagreement"] for row in rows]
    lines += [
        f"references: cubatures differ by {np.median(differences):.1e} in the median, {max(differences):.1e} at most"
    ]
    lines += _redrawn(rows)
    for name in (EXCEPTION, NAN, SILENT, LOUD):
        bad = [row for row in rows if found[row["seed"]] == name]
        lines += [f"{name}:", *(f"  {line_of(row)}" for row in bad)] if bad else []
    words = Counter(
        word for row in answers for word in {w.split(":")[0][:60] for w in row["warnings"]}
    )
    lines += ["warnings, by how they begin:"] * bool(words)
    lines += [f"  {count:4} {word}" for word, count in words.most_common()]
    tags = Counter(tag for row in rows for tag in set(row["tags"]))
    bad_tags = Counter(
        tag for row in rows if found[row["seed"]] in (EXCEPTION, NAN, SILENT) for tag in set(row["tags"])
    )  # fmt: skip
    lines += ["what is in the models (and in how many bad ones): "]
    lines += [
        "  " + ", ".join(f"{tag} {count} ({bad_tags[tag]})" for tag, count in tags.most_common())
    ]
    return "\n".join(lines)


def _redrawn(rows: list[dict]) -> list[str]:
    """Why models were drawn again, and what was in those that had no reference."""
    redrawn = [reason for row in rows for reason in row["redrawn"]]
    lines = [f"drawn again: {len(redrawn)} models"]
    for reason, count in Counter(text.split(" (")[0] for text in redrawn).most_common():
        lines.append(f"  {count:4} {reason}")
    inside = [text.split(" (")[1].rstrip(")").split(", ") for text in redrawn if " (" in text]
    tags = Counter(tag for tags in inside for tag in set(tags))
    if tags:
        text = ", ".join(f"{tag} {count}" for tag, count in tags.most_common(8))
        lines.append(f"  most often with: {text}")
    return lines
