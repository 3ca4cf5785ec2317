# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""The tests of ``calibration.py``, their power, its table and its picture."""

from typing import NamedTuple

from calibration_pairs import PAIRS
from matplotlib.figure import Figure
import numpy as np
from scipy import stats
from scipy.special import expit

LEVEL = 0.01  # of a pair: half of it for each of its two tests
NUM_BINS = 5
LEAST_VARIANCE = 1.0  # of a bin's sum: bins with less, whose sums are not near normal, are joined
PLANTED = -np.log(
    2
)  # nats: the log evidence of the second model without the log 2 of a half-normal prior
LARGE_ERRORS = np.linspace(
    0.01, 4, 400
)  # nats, among which the smallest that is found is looked for


class Check(NamedTuple):
    """
    What posterior probabilities and the models that data came from say of each other.

    :param mean_p_value: of a z-test of the mean of indicator minus probability.
    :param bins_p_value: of the same in bins of probability, by chi-square.
    """

    mean_p_value: float
    bins_p_value: float

    @property
    def is_passed(self) -> bool:
        return min(self) >= LEVEL / 2


def bins(p: np.ndarray) -> list[np.ndarray]:
    """Indices of the data sets in bins of probability, neighbours joined where there is little variance."""
    which = np.minimum((NUM_BINS * p).astype(int), NUM_BINS - 1)
    found: list[np.ndarray] = []
    open_bin = np.array([], int)
    for number in range(NUM_BINS):
        open_bin = np.concatenate([open_bin, np.flatnonzero(which == number)])
        if np.sum(p[open_bin] * (1 - p[open_bin])) >= LEAST_VARIANCE:
            found, open_bin = [*found, open_bin], np.array([], int)
    if len(open_bin):
        found = [*found[:-1], np.concatenate([*found[-1:], open_bin])]
    return found


def check(p: np.ndarray, indicator: np.ndarray) -> Check:
    """
    Returns the two tests. If probabilities are right, the indicator of the second model is a Bernoulli variable with that
    probability, given the data: sums of the differences have mean zero and variance sum p (1 - p).

    :param p: posterior probabilities of the second model.
    :param indicator: whether the data came from it.
    """
    difference, variance = indicator - p, p * (1 - p)
    z = difference.sum() / np.sqrt(variance.sum())
    parts = bins(p)
    chi_square = sum(difference[part].sum() ** 2 / variance[part].sum() for part in parts)
    return Check(2 * stats.norm.sf(abs(z)), stats.chi2.sf(chi_square, len(parts)))


def power(log_odds: np.ndarray, error: float) -> float:
    """
    Returns the probability that the test of the mean finds an error of the log Bayes factor: the sum of the differences is
    near normal, with a mean and variance that follow from the probabilities.

    :param log_odds: right ones, of the data sets.
    """
    p, wrong = expit(log_odds), expit(log_odds + error)
    reported = np.sqrt(np.sum(wrong * (1 - wrong)))
    mean, scale = np.sum(p - wrong) / reported, np.sqrt(np.sum(p * (1 - p))) / reported
    critical = stats.norm.isf(LEVEL / 4)  # two sides of half the level
    return float(stats.norm.sf((critical - mean) / scale) + stats.norm.cdf((-critical - mean) / scale))  # fmt: skip


def smallest_found(log_odds: np.ndarray) -> float:
    """The error of the log Bayes factor, in nats and of the less visible sign, that is found with 80 % probability."""
    found = [min(power(log_odds, sign * error) for sign in (-1, 1)) for error in LARGE_ERRORS]
    return float(LARGE_ERRORS[np.argmax(np.array(found) >= 0.8)]) if max(found) >= 0.8 else np.inf


class Columns(NamedTuple):
    """Rows of a pair as arrays."""

    indicator: np.ndarray
    log_odds: np.ndarray
    exact_log_odds: np.ndarray
    standard_error: np.ndarray
    has_warning: np.ndarray


def columns(rows: list[dict]) -> Columns:
    evidences, exact = (np.array([row[key] for row in rows]) for key in ("log_evidence", "exact"))
    errors = np.array([row["standard_error"] for row in rows])
    return Columns(
        np.array([row["model"] for row in rows], float),
        evidences[:, 1] - evidences[:, 0],
        exact[:, 1] - exact[:, 0],
        np.hypot(*errors.T),
        np.array([any(row["warnings"]) for row in rows]),
    )


def words(result: Check) -> str:
    verdict = "passed" if result.is_passed else "FAILED"
    return f"{verdict} (mean: p = {result.mean_p_value:.3g}; bins: p = {result.bins_p_value:.3g})"


def report(rows: dict[str, list[dict]]) -> str:
    """Returns, for each pair, both tests, their power, the planted error, and how far DAIS is from the exact values."""
    lines = [
        f"Each pair is tested at the {LEVEL:.0%} level, half of it for the mean of indicator minus probability, half for its bins."
    ]
    for name, of_pair in rows.items():
        data = columns(of_pair)
        p = expit(data.log_odds)
        planted = check(expit(data.log_odds + PLANTED), data.indicator)
        error = data.log_odds - data.exact_log_odds
        is_covered = np.abs(error) <= 2 * data.standard_error
        is_silent_failure = (np.abs(error) > np.maximum(4 * data.standard_error, 0.05)) & ~data.has_warning  # fmt: skip
        lines += [
            "",
            f"{PAIRS[name].title}: {len(p)} data sets, {int(data.indicator.sum())} of the second model",
            f"  mean probability of the second model {p.mean():.3f}, prior 0.5; mean of p (1 - p) {np.mean(p * (1 - p)):.3f}",
            f"  DAIS: {words(check(p, data.indicator))}",
            f"  exact: {words(check(expit(data.exact_log_odds), data.indicator))}",
            f"  log 2 left out: {'NOT found, ' if planted.is_passed else 'found, '}{words(planted)}",
            f"  power: log 2 is found with probability {power(data.exact_log_odds, PLANTED):.2f}, "
            f"{smallest_found(data.exact_log_odds):.2f} nats with 0.80",
            f"  log Bayes factor: RMSE {np.sqrt(np.mean(error**2)):.4f}, mean error {error.mean():+.4f}, largest {np.abs(error).max():.4f}; "
            f"within two errors {is_covered.sum()} of {len(p)}; silent failures {is_silent_failure.sum()}; "
            f"warnings {data.has_warning.sum()}",
        ]
    return "\n".join(lines) + "\n"


def draw(rows: dict[str, list[dict]]) -> Figure:
    """Returns the reliability diagrams: in bins of the probability, the share of data sets from the second model."""
    figure = Figure(figsize=(3.6 * len(rows), 3.7), layout="constrained")
    panels = figure.subplots(1, len(rows), squeeze=False, sharey=True)[0]
    for axes, (name, of_pair) in zip(panels, rows.items(), strict=True):
        data = columns(of_pair)
        axes.plot([0, 1], [0, 1], color="#999999", linewidth=1)
        for label, log_odds, color in [
            ("log 2 left out", data.log_odds + PLANTED, "#0072b2"),
            ("DAIS", data.log_odds, "#d55e00"),
        ]:
            p = expit(log_odds)
            parts = bins(p)
            x, share = (np.array([v[part].mean() for part in parts]) for v in (p, data.indicator))
            scale = [np.sqrt(np.sum(p[part] * (1 - p[part]))) / len(part) for part in parts]
            axes.errorbar(x, share, 2 * np.array(scale), fmt="o", color=color, label=label)
        axes.set(title=PAIRS[name].title, xlabel="posterior probability", xlim=(0, 1), ylim=(-0.05, 1.05))  # fmt: skip
    panels[0].set_ylabel("share from the second model")
    panels[0].legend(frameon=False)
    return figure
