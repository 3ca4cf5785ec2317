# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Models side by side: numbers, refusals, tables and pictures."""

from dataclasses import replace
import json
import re
import sys

import jax
from jax import random
import jax.numpy as jnp
from matplotlib import pyplot as plt
import numpy as np
import pytest
from scipy import stats

import numpyro
import numpyro.distributions as dist

from numpyro_dais import DAIS
from numpyro_dais.estimators.compare import compare
from numpyro_dais.model.observed import observed_values
from numpyro_dais.model.problem import Problem
from numpyro_dais.plots import plot_comparison, plot_sandwich
from numpyro_dais.results.comparison import Comparison
from tests.helpers import make_evidence

Y = np.array([0.3, -1.1, 2.4, 0.9])


def normal(y=Y, scale=1.0):
    mu = numpyro.sample("mu", dist.Normal(0.0, scale))
    numpyro.sample("y", dist.Normal(mu, 1.0).expand(np.shape(y)).to_event(1), obs=y)


def log_evidence_of_normal(scale):
    return stats.multivariate_normal(cov=np.eye(len(Y)) + scale**2).logpdf(Y)


def equal_weights(value, problem=None):
    """An evidence of a given value and no error."""
    return make_evidence(np.full(100, value), problem or Problem(normal))


def with_error(value, error, problem=None):
    """An evidence of about this value and error."""
    offsets = error * 10 * np.sin(np.arange(100)) * np.sqrt(2)
    evidence = make_evidence(value + offsets, problem or Problem(normal))
    assert float(evidence.standard_error) == pytest.approx(error, rel=0.3)
    return evidence


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def three():
    return compare(
        {
            "bad": with_error(-4.0, 0.1),
            "best": with_error(-1.0, 0.03),
            "good": with_error(-2.0, 0.05),
        }
    )


def test_two_normal_models_against_closed_forms():
    estimator = DAIS(normal, num_steps=64, num_particles=512, step_size=0.3)
    comparison = compare(
        {
            "wide": estimator.log_evidence(random.key(1), Y, 5.0),
            "narrow": estimator.log_evidence(random.key(0), Y, 1.0),
        }
    )
    exact = np.array([log_evidence_of_normal(1.0), log_evidence_of_normal(5.0)])
    assert comparison.names == ("narrow", "wide")
    assert np.all(np.abs(comparison.log_evidence - exact) < 5 * comparison.standard_error)
    assert np.all(comparison.standard_error < 0.1)
    factor = exact[1] - exact[0]
    assert abs(comparison.log_bayes_factor[1] - factor) < 5 * comparison.log_bayes_factor_error[1]
    probability = 1 / (1 + np.exp(factor))
    low, high = comparison.probability_interval[0]
    assert low - (high - low) < probability < high + (high - low)


def test_numbers_of_three_models(three):
    assert three.names == ("best", "good", "bad")
    values, errors = three.log_evidence, three.standard_error
    np.testing.assert_allclose(three.log_bayes_factor, values - values[0])
    assert three.log_bayes_factor_error[0] == 0.0
    np.testing.assert_allclose(
        three.log_bayes_factor_error[1:] ** 2, errors[1:] ** 2 + errors[0] ** 2
    )
    weights = np.exp(values)
    np.testing.assert_allclose(three.probability, weights / weights.sum())
    np.testing.assert_allclose(three.prior_probability, 1 / 3)
    assert three.warnings == {}


def test_prior_probabilities():
    evidences = {"a": equal_weights(-1.0), "b": equal_weights(-2.0)}
    comparison = compare(evidences, prior_probabilities={"b": 0.9, "a": 0.1})
    odds = np.exp(1.0) / 9
    np.testing.assert_allclose(comparison.prior_probability, [0.1, 0.9])
    np.testing.assert_allclose(comparison.probability, [odds / (1 + odds), 1 / (1 + odds)], 1e-6)
    assert re.search(r"prior$", repr(comparison).splitlines()[0])
    certain = compare(evidences, prior_probabilities={"b": 1.0, "a": 0.0})
    np.testing.assert_array_equal(certain.probability, [0.0, 1.0])
    np.testing.assert_array_equal(certain.probability_interval, [[0.0, 0.0], [1.0, 1.0]])


def test_interval_of_two_models_in_closed_form():
    """The log odds are normal, and the probability a monotone function of them."""
    comparison = compare({"a": with_error(0.0, 0.05), "b": with_error(-0.7, 0.1)})
    odds, error = comparison.log_bayes_factor[1], comparison.log_bayes_factor_error[1]
    ends = 1 / (1 + np.exp(odds + np.array([1.96, -1.96]) * error))
    np.testing.assert_allclose(comparison.probability_interval[0], ends, atol=0.005)
    np.testing.assert_allclose(comparison.probability_interval[1], 1 - ends[::-1], atol=0.005)


def test_no_error_no_width():
    comparison = compare({"a": equal_weights(-1.0), "b": equal_weights(-2.0)})
    np.testing.assert_allclose(
        comparison.probability_interval, np.tile(comparison.probability[:, None], 2), atol=1e-5
    )


def test_an_unknown_error_says_nothing():
    evidences = {
        "one particle": make_evidence([-1.0], Problem(normal)),
        "a": equal_weights(-1.0),
        "b": equal_weights(-2.0),
    }
    comparison = compare(evidences)
    intervals = dict(zip(comparison.names, comparison.probability_interval, strict=True))
    np.testing.assert_array_equal(intervals["one particle"], [0.0, 1.0])
    # The others may have nothing, or all that they have between themselves.
    np.testing.assert_allclose(intervals["a"], [0.0, 1 / (1 + np.exp(-1.0))], atol=1e-5)
    np.testing.assert_allclose(intervals["b"], [0.0, 1 / (1 + np.exp(1.0))], atol=1e-5)
    del evidences["b"]
    np.testing.assert_array_equal(compare(evidences).probability_interval, [[0, 1], [0, 1]])
    assert "-1.00 (error unknown)" in repr(comparison)


def test_an_evidence_of_zero_is_allowed():
    comparison = compare({"zero": equal_weights(-np.inf), "a": equal_weights(-2.0)})
    assert comparison.names == ("a", "zero")
    np.testing.assert_array_equal(comparison.probability, [1.0, 0.0])
    assert comparison.log_bayes_factor[1] == -np.inf
    assert "weights were not finite" in comparison.warnings["zero"][0]
    assert not np.any(np.isnan(comparison.probability_interval))
    assert "-inf (error unknown)" in repr(comparison)


def plated(y):
    with numpyro.plate("data", len(y)):
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(x, 1.0), obs=y)


def two_sites(first, second):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    numpyro.sample("first", dist.Normal(mu, 1.0), obs=first)
    numpyro.sample("second", dist.Normal(mu, 1.0), obs=second)


def masked(y, mask):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.handlers.mask(mask=mask):
        numpyro.sample("y", dist.Normal(mu, 1.0).expand([len(y)]), obs=y)


def imputed(y, mask):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y, obs_mask=mask)


def factors(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    numpyro.factor("likelihood", -0.5 * jnp.sum((y - mu) ** 2))


def residuals(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    numpyro.sample("noise", dist.Normal(0.0, 1.0), obs=y - mu)


def improper(y):
    mu = numpyro.sample("mu", dist.ImproperUniform(dist.constraints.real, (), ()))
    numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def vectors(y):
    """The same numbers as events of a plate, one of two of which is masked."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    rows = jnp.stack([jnp.asarray(y), jnp.full(len(y), jnp.nan)])
    fn = dist.Normal(mu, 1.0).expand([2, len(y)]).to_event(1)
    numpyro.sample("rows", fn.mask(jnp.array([True, False])), obs=rows)


LONG = np.append(Y[::-1], np.nan)
IS_SEEN = np.isfinite(LONG)

SAME_DATA = {
    "reversed and renamed": Problem(two_sites, args=(Y[2:], Y[:2])),
    "plate": Problem(plated, args=(jnp.array(Y),)),
    "masked": Problem(masked, args=(LONG, IS_SEEN)),
    "imputed": Problem(imputed, args=(LONG, IS_SEEN)),
    "masked events": Problem(vectors, args=(Y,)),
    "improper prior": Problem(improper, args=(Y,)),
}
UNSEEN_DATA = {
    "factor": Problem(factors, args=(2 * Y,)),
    "residuals": Problem(residuals, args=(2 * Y,)),
    "potential": Problem(None, potential_fn=lambda x: x**2, start=dist.Normal()),
}


@pytest.mark.parametrize("problem", SAME_DATA.values(), ids=SAME_DATA)
def test_same_data_are_recognised(problem):
    numbers = np.concatenate(list(observed_values(problem).values()))
    np.testing.assert_allclose(np.sort(numbers), np.sort(Y), rtol=1e-6)
    compare({"a": equal_weights(-1.0), "b": equal_weights(-2.0, problem)})


@pytest.mark.parametrize("problem", UNSEEN_DATA.values(), ids=UNSEEN_DATA)
def test_what_cannot_be_seen_is_not_refused(problem):
    assert observed_values(problem) is None
    compare({"a": equal_weights(-1.0), "b": equal_weights(-2.0, problem), "c": equal_weights(0.0)})


OTHER_DATA = {
    "fewer": (Problem(normal, args=(Y[:3],)), r"'b' \(\['y'\]\) observe 4 and 3 numbers"),
    "changed": (
        Problem(normal, args=(Y + np.array([0.0, 0.0, 0.01, 0.0]),)),
        "'a' .*'b' .* observe 4 numbers each, with different values. Run both on the same data",
    ),
    "twice": (Problem(two_sites, args=(Y, Y)), r"'b' \(\['first', 'second'\]\) observe 4 and 8"),
    "more hidden": (
        Problem(imputed, args=(LONG, IS_SEEN & (np.arange(5) > 0))),
        r"\(\['y_observed'\]\) observe 4 and 3 numbers",
    ),
    "one number for all": (Problem(masked, args=(Y, np.array([1, 1, 0, 0], bool))), "4 and 2"),
}


@pytest.mark.parametrize(("problem", "message"), OTHER_DATA.values(), ids=OTHER_DATA)
def test_other_data_are_refused(problem, message):
    evidences = {
        "unseen": equal_weights(0.0, UNSEEN_DATA["factor"]),
        "a": equal_weights(-1.0),
        "b": equal_weights(-2.0, problem),
    }
    with pytest.raises(ValueError, match=message):
        compare(evidences)


def batch(value, plate=None):
    problem = Problem(plated, args=(Y,), plate=plate)
    return make_evidence(np.full((50, 4), value), problem)


PAIR = {"a": equal_weights(-1.0), "b": equal_weights(-2.0)}
REFUSALS = {
    "not a dict": ([PAIR["a"], PAIR["b"]], None, "needs a dict .* got list. Write"),
    "names that are no strings": ({0: PAIR["a"], 1: PAIR["b"]}, None, "needs a dict from the"),
    "one model": ({"a": PAIR["a"]}, None, r"at least 2 evidences; got 1 \(\['a'\]\). Add"),
    "a number": ({"a": PAIR["a"], "b": -2.0}, None, "'b' has -2.0. Pass the result"),
    "a plate": ({**PAIR, "c": batch(0.0, "data")}, None, "'c' .* 4 elements of plate 'data'. Run"),
    "a batch": ({**PAIR, "c": batch(0.0)}, None, r"'c' is a batch .* \(50, 4\). Take one"),
    "not a number": ({**PAIR, "c": equal_weights(np.nan)}, None, "'c' has nan. Look at"),
    "infinite": ({**PAIR, "c": equal_weights(np.inf)}, None, "'c' has (nan|inf)"),
    "nothing left": (
        {"a": equal_weights(-np.inf), "b": equal_weights(-np.inf)},
        None,
        "At least one model needs an evidence .* above zero.*-inf",
    ),
    "nothing left by the prior": (
        {"a": equal_weights(-np.inf), "b": equal_weights(0.0)},
        {"a": 1.0, "b": 0.0},
        "prior probability above zero",
    ),
    "prior of no dict": (PAIR, [0.5, 0.5], r"names \['a', 'b'\]; got \[0.5, 0.5\]"),
    "prior of one missing": (PAIR, {"a": 1.0}, r"names \['a', 'b'\]; got \['a'\]. Give each"),
    "prior of one unknown": (PAIR, {"a": 0.5, "b": 0.5, "c": 0.0}, r"got \['a', 'b', 'c'\]"),
    "negative prior": (PAIR, {"a": 1.5, "b": -0.5}, "not be negative; got .*-0.5"),
    "prior that is no number": (PAIR, {"a": 1.0, "b": np.nan}, "not be negative; got .*nan"),
    "prior with another sum": (PAIR, {"a": 2.0, "b": 1.0}, "sum to one; .* sum to 3. Divide"),
}


@pytest.mark.parametrize(("evidences", "priors", "message"), REFUSALS.values(), ids=REFUSALS)
def test_refusals(evidences, priors, message):
    with pytest.raises(ValueError, match=message):
        compare(evidences, prior_probabilities=priors)


def test_traced_values_are_refused():
    def traced(evidence):
        return compare({"a": evidence, "b": PAIR["b"]}).probability

    with pytest.raises(ValueError, match=r"'a' is traced. Call it outside jit"):
        jax.jit(traced)(PAIR["a"])


def test_print_is_an_aligned_table(three):
    lines = str(three).splitlines()
    assert len(lines) == 4
    assert len({len(line) for line in lines}) == 1
    assert re.fullmatch(
        r"  model +log evidence +log Bayes factor +probability +95 % interval", lines[0]
    )
    assert [line.split()[0] for line in lines[1:]] == ["best", "good", "bad"]
    first = f"{three.log_evidence[0]:.3f} ± {three.standard_error[0]:.3f}"
    assert first in lines[1]
    assert " best " in lines[1][8:]
    assert f"{three.probability[1]:.3f}" in lines[2]


def test_print_never_rounds_to_certainty():
    text = str(compare({"a": equal_weights(0.0), "b": equal_weights(-20.0)}))
    assert ">0.999" in text
    assert "<0.001" in text


def test_warnings_are_marked_and_said():
    poor = make_evidence(np.array([3.0] + 99 * [-3.0]), Problem(normal))
    comparison = compare({"poor": poor, "good": equal_weights(-1.0)})
    assert comparison.warnings == {"poor": poor.warnings}
    lines = str(comparison).splitlines()
    marked = [line for line in lines[1:3] if line.startswith("* ")]
    assert len(marked) == 1
    assert "poor" in marked[0]
    assert lines[3:] == [f"  * Warning, poor: {text}" for text in poor.warnings]
    assert comparison.to_dict()["poor"]["warnings"] == list(poor.warnings)


def test_to_dict(three):
    rows = json.loads(json.dumps(three.to_dict()))
    assert list(rows) == ["best", "good", "bad"]
    assert rows["good"]["log_bayes_factor"] == pytest.approx(three.log_bayes_factor[1])
    assert rows["bad"]["probability_high"] == pytest.approx(three.probability_interval[2, 1])
    assert rows["best"]["warnings"] == []


def test_to_pandas(three):
    frame = three.to_pandas()
    assert frame.index.name == "model"
    assert list(frame.index) == ["best", "good", "bad"]
    np.testing.assert_array_equal(frame["probability"], three.probability)
    np.testing.assert_array_equal(frame["probability_low"], three.probability_interval[:, 0])


def test_to_xarray(three):
    data = three.to_xarray()
    assert dict(data.sizes) == {"model": 3}
    assert list(data["model"].values) == ["best", "good", "bad"]
    np.testing.assert_array_equal(data["standard_error"], three.standard_error)
    assert float(data["log_bayes_factor"].sel(model="best")) == 0.0


MISSING = {
    "to_pandas": ("pandas", Comparison.to_pandas, "Comparison.to_pandas needs pandas.*pip install"),
    "to_xarray": ("xarray", Comparison.to_xarray, "Comparison.to_xarray needs xarray.*pip install"),
    "plot": ("matplotlib.pyplot", Comparison.plot, r"need Matplotlib.*\"numpyro-dais\[plots\]\""),
}


@pytest.mark.parametrize(("library", "method", "message"), MISSING.values(), ids=MISSING)
def test_a_missing_library_is_named(library, method, message, three, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ImportError, match=message):
        method(three)


def points(ax):
    """Positions of all dots."""
    lines = [line for line in ax.lines if line.get_marker() == "o"]
    return np.array([(line.get_xdata()[0], line.get_ydata()[0]) for line in lines])


def test_plot_comparison(three):
    ax = three.plot()
    np.testing.assert_allclose(points(ax)[:, 0], three.log_evidence)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["best", "good", "bad"]
    bottom, top = ax.get_ylim()
    assert bottom > top  # so that the best, in row 0, is on top
    texts = " ".join(text.get_text() for text in ax.texts)
    for probability in three.probability:
        assert f"{probability:.3f}" in texts
    bars = [line for container in ax.containers for line in container[2]]
    ends = np.sort([bar.get_segments()[0][:, 0] for bar in bars], axis=1)
    np.testing.assert_allclose(ends[:, 1] - ends[:, 0], 4 * three.standard_error)


def test_plot_comparison_of_what_is_not_finite():
    comparison = compare(
        {"zero": equal_weights(-np.inf), "one": make_evidence([-1.0], Problem(normal))}
    )
    _, ax = plt.subplots()
    assert plot_comparison(comparison, ax) is ax
    assert len(points(ax)) == 1
    assert any("infty" in text.get_text() for text in ax.texts)
    assert any("* with warnings" in text.get_text() for text in ax.texts)
    ax.figure.canvas.draw()


def test_plot_sandwich():
    forward = with_error(-6.0, 0.05)
    sandwiched = replace(forward, reverse_log_weights=forward.log_weights + 1.5)
    evidences = {"both": sandwiched, "lower only": with_error(-6.0, 0.05)}
    ax = plot_sandwich(evidences)
    values = [float(evidence.log_evidence) for evidence in evidences.values()]
    np.testing.assert_allclose(points(ax), np.stack([values, [0, 1]], 1))
    assert [label.get_text() for label in ax.get_yticklabels()] == list(evidences)
    strokes = [line for line in ax.lines if line.get_marker() == "|" and line.get_markersize() > 10]
    ends = [float(line.get_xdata()[0]) for line in strokes]
    expected = [
        float(sandwiched.lower_bound),
        float(sandwiched.upper_bound),
        float(evidences["lower only"].lower_bound),
    ]
    np.testing.assert_allclose(ends, expected)
    (bar,) = ax.patches
    np.testing.assert_allclose([bar.get_x(), bar.get_x() + bar.get_width()], expected[:2])
    ax.figure.canvas.draw()


def test_plot_sandwich_refuses_plates():
    with pytest.raises(
        ValueError, match=r"plot_sandwich needs one number per model; .*plate 'data'"
    ):
        plot_sandwich({"a": batch(0.0, "data")})
