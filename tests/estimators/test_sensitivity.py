# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Bayes factors under narrower and wider priors, against closed forms; tables, pictures, refusals."""

from dataclasses import replace

import jax
from jax import random
import jax.numpy as jnp
from matplotlib import pyplot as plt
import numpy as np
import pytest
from scipy import stats

import numpyro
import numpyro.distributions as dist
from numpyro.infer.autoguide import AutoIAFNormal

from numpyro_dais import DAIS, compare
from numpyro_dais.model.problem import Problem
from numpyro_dais.plots import plot_sensitivity
from numpyro_dais.results.report import with_error
from tests.helpers import make_evidence

Y = np.array([0.3, -1.1, 2.4, 0.9])
SCALES = [0.25, 0.5, 1.0, 2.0, 4.0]


def normal(y, scale):
    mu = numpyro.sample("mu", dist.Normal(0.0, scale))
    numpyro.sample("y", dist.Normal(mu, 1.0).expand(np.shape(y)).to_event(1), obs=y)


def fixed_mean(y):
    log_sd = numpyro.sample("log_sd", dist.Normal(0.0, 0.5))
    fn = dist.Normal(0.0, jnp.exp(log_sd)).expand(np.shape(y)).to_event(1)
    numpyro.sample("y", fn, obs=y)


def exact(width):
    return stats.multivariate_normal(cov=np.eye(len(Y)) + width**2).logpdf(Y)


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def evidences():
    estimator = DAIS(normal)
    other = DAIS(fixed_mean, num_steps=64, num_particles=1024, step_size=0.2)
    return {
        "wide": estimator.log_evidence(random.key(0), Y, 4.0),
        "narrow": estimator.log_evidence(random.key(1), Y, 1.0),
        "none": other.log_evidence(random.key(2), Y),
    }


@pytest.fixture(scope="module")
def comparison(evidences):
    return compare(evidences, prior_sensitivity="mu")


def column(comparison, name):
    return comparison.names.index(name)


@pytest.mark.parametrize(("name", "width"), [("wide", 4.0), ("narrow", 1.0)])
def test_evidences_at_each_width_are_those_of_the_closed_form(comparison, name, width):
    found, i = comparison.sensitivity, column(comparison, name)
    np.testing.assert_array_equal(found.scales, SCALES)
    errors = found.standard_error[:, i]
    assert np.all(errors < 0.03)
    difference = found.log_evidence[:, i] - [exact(scale * width) for scale in SCALES]
    assert np.all(np.abs(difference) < 5 * errors)
    assert np.all(found.is_error_known[:, i])


def test_bayes_factors_at_each_width(comparison):
    found, i, j = comparison.sensitivity, column(comparison, "wide"), column(comparison, "narrow")
    factors = found.log_bayes_factor
    expected = np.array([exact(4.0 * scale) - exact(scale) for scale in SCALES])
    errors = np.hypot(found.standard_error[:, i], found.standard_error[:, j])
    assert np.all(np.abs(factors[:, i] - factors[:, j] - expected) < 5 * errors)
    np.testing.assert_array_equal(factors[:, 0], 0.0)
    np.testing.assert_array_equal(found.log_bayes_factor_error[:, 0], 0.0)
    hypotenuse = np.hypot(found.standard_error[:, 1:], found.standard_error[:, :1])
    np.testing.assert_allclose(found.log_bayes_factor_error[:, 1:], hypotenuse)


def test_a_factor_of_one_is_the_comparison_itself(comparison):
    found = comparison.sensitivity
    row = SCALES.index(1.0)
    assert found.names == comparison.names
    np.testing.assert_array_equal(found.log_evidence[row], comparison.log_evidence)
    np.testing.assert_array_equal(found.standard_error[row], comparison.standard_error)
    np.testing.assert_array_equal(found.log_bayes_factor[row], comparison.log_bayes_factor)


def test_a_model_without_the_site_does_not_change(comparison):
    i = column(comparison, "none")
    values = comparison.sensitivity.log_evidence[:, i]
    np.testing.assert_array_equal(values, comparison.log_evidence[i])


def test_sites_of_several_models(evidences, comparison):
    both = compare(evidences, prior_sensitivity=["mu", "log_sd", "mu"]).sensitivity
    assert both.sites == ("mu", "log_sd")
    i, j = column(comparison, "wide"), column(comparison, "none")
    np.testing.assert_array_equal(
        both.log_evidence[:, i], comparison.sensitivity.log_evidence[:, i]
    )
    expected = evidences["none"].expectation(
        lambda draw: jnp.exp(
            dist.Normal(0.0, 1.0).log_prob(draw["log_sd"])
            - dist.Normal(0.0, 0.5).log_prob(draw["log_sd"])
        )
    )
    change = both.log_evidence[3, j] - both.log_evidence[2, j]
    np.testing.assert_allclose(change, np.log(expected.mean), atol=1e-4)


def skewed(y):
    numpyro.sample("a", dist.Gamma(2.0, 1.0))
    b = numpyro.sample("b", dist.Normal(0.5, 2.0))
    numpyro.sample("y", dist.Normal(b, 1.0), obs=y)


def of_a_flow():
    guide = AutoIAFNormal(skewed, num_flows=1, hidden_dims=[4])
    with numpyro.handlers.seed(rng_seed=0), numpyro.handlers.trace() as trace:
        guide(0.7)
    params = {name: site["value"] for name, site in trace.items() if site["type"] == "param"}
    return DAIS(skewed, guide=guide, guide_params=params, num_steps=4, step_size=0.1)


RUNS = {
    "chains": lambda: DAIS(skewed, num_steps=8, step_size=0.1, num_particles=64),
    "islands": lambda: DAIS(
        skewed, num_steps=8, step_size=0.1, num_particles=64, resample_at=(0.5,), num_islands=16
    ),
    "a flow, whose positions are no sites": of_a_flow,
}


@pytest.mark.parametrize("make", RUNS.values(), ids=RUNS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_new_weights_are_expectations_under_the_old_ones(make):
    evidence = make().log_evidence(random.key(0), 0.7)

    def ratio(draw):
        names = {"a": (dist.Gamma(2.0, 0.5), dist.Gamma(2.0, 1.0))}
        names["b"] = (dist.Normal(0.5, 4.0), dist.Normal(0.5, 2.0))
        terms = [new.log_prob(draw[n]) - old.log_prob(draw[n]) for n, (new, old) in names.items()]
        return jnp.exp(sum(terms))

    pair = {"one": evidence, "other": evidence}
    found = compare(pair, prior_sensitivity=("a", "b")).sensitivity.log_evidence[:, 0]
    expected = np.log(evidence.expectation(ratio).mean)
    np.testing.assert_allclose(found[3] - found[2], expected, atol=1e-4)


def test_only_forward_weights_of_a_sandwich_are_used(evidences):
    sandwiched = replace(evidences["wide"], reverse_log_weights=evidences["wide"].log_weights + 0.1)
    pair = {"sandwich": sandwiched, "forward": evidences["wide"]}
    comparison = compare(pair, prior_sensitivity="mu")
    values = comparison.sensitivity.log_evidence
    np.testing.assert_array_equal(values[[0, 1, 3, 4], 0], values[[0, 1, 3, 4], 1])
    assert values[2, 0] != values[2, 1]


def test_particles_of_weight_zero_stay_so(evidences):
    """Wherever they are: their ratio of priors may be anything."""
    whole = evidences["wide"]
    is_lost = jnp.arange(whole.num_weights) < 10
    spoiled = replace(
        whole,
        log_weights=jnp.where(is_lost, -jnp.inf, whole.log_weights),
        positions=jnp.where(is_lost[:, None], jnp.nan, whole.positions),
    )
    pair = {"whole": whole, "spoiled": spoiled}
    with np.errstate(all="raise"):
        found = compare(pair, prior_sensitivity="mu").sensitivity
    assert np.all(np.isfinite(found.log_evidence))
    assert np.ptp(found.log_evidence, axis=1).max() < 0.1


def test_new_runs(evidences):
    asked = []

    def at(factor):
        asked.append(factor)
        return {"wide": make_evidence(np.full(50, -factor), Problem(normal, args=(Y, 4.0)))}

    pair = {name: evidences[name] for name in ("wide", "narrow")}
    comparison = compare(pair, prior_sensitivity=at)
    found, i = comparison.sensitivity, column(comparison, "wide")
    assert asked == [0.25, 0.5, 2.0, 4.0]
    expected = [-0.25, -0.5, float(evidences["wide"]), -2.0, -4.0]
    np.testing.assert_allclose(found.log_evidence[:, i], expected, rtol=1e-6)
    np.testing.assert_array_equal(found.log_evidence[:, 1 - i], comparison.log_evidence[1 - i])
    assert found.sites == ()
    assert np.all(found.is_error_known)


def test_new_runs_that_are_not_good_are_not_shown(evidences):
    poor = make_evidence(np.array([3.0] + 99 * [-3.0]), Problem(normal, args=(Y, 4.0)))
    found = compare(evidences, prior_sensitivity=lambda _: {"wide": poor}).sensitivity
    is_known = found.is_error_known[:, found.names.index("wide")]
    np.testing.assert_array_equal(is_known, [False, False, True, False, False])


def exact_draws(num_draws, noise):
    """Exact posterior draws of a mean that the data say little (or much) about."""
    y, variance = 0.5, 1 / (1 + noise**-2)
    mean = variance * y / noise**2
    draws = mean + np.sqrt(variance) * random.normal(random.key(0), (num_draws, 1))

    def model():
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(x, noise), obs=y)

    return replace(make_evidence(np.zeros(num_draws), Problem(model)), positions=draws)


GOODNESS = {
    # Narrower priors lie inside of what the particles have seen, wider ones outside.
    "many draws, little data": (1000, 3.0, [True, True, True, False, False]),
    "many draws, much data": (1000, 0.1, [True, True, True, True, True]),
    "a tail that a result of its own may have": (4000, 1.2, [True, True, True, False, False]),
    "few draws, little data": (48, 3.0, [False, False, True, False, False]),
    "few draws, much data": (48, 0.01, [True, True, True, True, True]),
}


@pytest.mark.parametrize(("num_draws", "noise", "expected"), GOODNESS.values(), ids=GOODNESS)
def test_what_particles_cannot_tell_is_not_told(num_draws, noise, expected):
    evidence = exact_draws(num_draws, noise)
    found = compare({"a": evidence, "b": evidence}, prior_sensitivity="x").sensitivity
    np.testing.assert_array_equal(found.is_error_known[:, 0], expected)
    np.testing.assert_array_equal(found.is_factor_known[:, 1], expected)
    lines = str(found).splitlines()
    assert ["?" in line for line in lines[2:7]] == [not is_known for is_known in expected]
    assert any("give new runs: prior_sens" in line for line in lines) == (not all(expected))


def test_an_evidence_that_is_not_good_itself_is_not_told():
    """Its own effective sample size is 1.4; under another prior it is no better."""
    poor = replace(exact_draws(100, 0.01), log_weights=jnp.array([3.0] + 99 * [-3.0]))
    found = compare({"a": poor, "b": poor}, prior_sensitivity="x").sensitivity
    assert not np.any(found.is_error_known)


def test_errors_that_pass_cover_the_truth():
    """Over many posteriors, the numbers that are shown are within two errors about as often as they should."""
    deviations = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        noise = rng.choice([0.2, 0.5, 1.0])
        y = rng.normal(0.0, np.sqrt(1 + noise**2))
        variance = 1 / (1 + noise**-2)
        draws = variance * y / noise**2 + np.sqrt(variance) * rng.normal(size=(1000, 1))
        problem = Problem(of_noise, args=(y, noise))
        evidence = replace(
            make_evidence(np.zeros(1000), problem), positions=jnp.asarray(draws, float)
        )
        found = compare({"a": evidence, "b": evidence}, prior_sensitivity="x").sensitivity
        exact = [stats.norm.logpdf(y, 0.0, np.sqrt(s**2 + noise**2)) for s in SCALES]
        z = (found.log_evidence[:, 0] - (np.array(exact) - exact[2]))[[0, 1, 3, 4]]
        z = z / found.standard_error[[0, 1, 3, 4], 0]
        deviations += list(z[found.is_error_known[[0, 1, 3, 4], 0]])
    assert len(deviations) > 120
    assert np.mean(np.abs(deviations) < 2) > 0.9
    assert np.mean(np.abs(deviations) > 4) < 0.02


def of_noise(y, noise):
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(x, noise), obs=y)


def test_the_table_is_printed_below_the_comparison(evidences, comparison):
    text, plain = str(comparison), str(compare(evidences))
    assert text.startswith(plain + "\n\n")
    title, header, *rows = text.removeprefix(plain + "\n\n").splitlines()
    best, *others = comparison.names
    assert title == f"Log Bayes factor against {best}, by a factor on the prior scale of mu"
    assert header.split() == ["factor", *others]
    assert [row.split()[0] for row in rows[:5]] == ["1/4", "1/2", "1", "2", "4"]
    assert len({len(line) for line in (header, *rows[:5])}) == 1
    found = comparison.sensitivity
    cell = with_error(found.log_bayes_factor[3, 1], found.log_bayes_factor_error[3, 1])
    assert f" {cell} " in rows[3]


def test_nothing_is_printed_without_a_request(evidences):
    comparison = compare(evidences)
    assert comparison.sensitivity is None
    assert "factor on" not in str(comparison)
    with pytest.raises(ValueError, match=r"made without it. Name the sites .*prior_sensitivity="):
        comparison.plot_sensitivity()


def test_picture(comparison):
    ax = comparison.plot_sensitivity()
    found = comparison.sensitivity
    lines = [container[0] for container in ax.containers]
    assert [container.get_label() for container in ax.containers] == list(comparison.names[1:])
    for i, line in enumerate(lines, start=1):
        expected = np.where(found.is_factor_known[:, i], found.log_bayes_factor[:, i], np.nan)
        np.testing.assert_array_equal(line.get_ydata(), expected)
        np.testing.assert_array_equal(line.get_xdata(), SCALES)
    assert [label.get_text() for label in ax.get_xticklabels()] == ["1/4", "1/2", "1", "2", "4"]
    bars = ax.containers[0][2][0].get_segments()[2]
    error = found.log_bayes_factor_error[2, 1]
    np.testing.assert_allclose(bars[1, 1] - bars[0, 1], 4 * error)
    assert ax.get_title(loc="left") == found.title
    ax.figure.canvas.draw()
    _, own = plt.subplots()
    assert plot_sensitivity(found, own) is own


def uniform(y):
    mu = numpyro.sample("mu", dist.Uniform(-5.0, 5.0))
    numpyro.sample("y", dist.Normal(mu, 1.0).expand(np.shape(y)).to_event(1), obs=y)


def equal(problem):
    return make_evidence(np.zeros(50), problem)


NORMAL = equal(Problem(normal, args=(Y, 1.0)))
PAIR = {"a": NORMAL, "b": NORMAL}
OTHER_DATA = equal(Problem(normal, args=(Y + 1.0, 1.0)))
NO_MODEL = equal(Problem(None, potential_fn=lambda x: x**2, start=dist.Normal()))

REFUSALS = {
    "a number": (PAIR, 2.0, r"must be names of latent sites.*or a function.*; got 2\.0"),
    "numbers": (PAIR, [1, 2], r"must be names of latent sites.*; got \[1, 2\]"),
    "no names": (PAIR, [], r"must be names of latent sites.*; got \[\]"),
    "an unknown site": (
        PAIR,
        ["mu", "tau"],
        r"none has \['tau'\]. They have \{'a': \['mu'\], 'b': \['mu'\]\}",
    ),
    "a site of no model": ({"a": NO_MODEL, "b": NO_MODEL}, "x", r"none has \['x'\].*\{'a': \[\]"),
    "an observed site": (PAIR, "y", r"continuous latent sites.*none has \['y'\]"),
    "a prior without a scale": (
        {"a": NORMAL, "b": equal(Problem(uniform, args=(Y,)))},
        "mu",
        r"needs priors with a scale \(.*Normal.*\); site 'mu' has a Uniform. Leave.*function of",
    ),
    "no dict": (PAIR, lambda _: NORMAL, r"prior_sensitivity\(0.25\) needs a dict .* got Evidence"),
    "an empty dict": (PAIR, lambda _: {}, r"prior_sensitivity\(0.25\) needs at least 1 evidence"),
    "a number in the dict": (
        PAIR,
        lambda _: {"a": -1.0},
        r"\(0.25\) needs an Evidence .*'a' has -1",
    ),
    "another name": (
        PAIR,
        lambda _: {"a": NORMAL, "c": NORMAL},
        r"must return evidences of the models \['a', 'b'\]; it has \['c'\] as well. Use the names",
    ),
    "other data": (PAIR, lambda _: {"a": OTHER_DATA}, "Only evidences of the same data can be"),
}


@pytest.mark.parametrize(("evidences", "request_", "message"), REFUSALS.values(), ids=REFUSALS)
def test_refusals(evidences, request_, message):
    with pytest.raises(ValueError, match=message):
        compare(evidences, prior_sensitivity=request_)


def test_a_potential_function_beside_a_model_does_not_change():
    found = compare({"a": NORMAL, "b": NO_MODEL}, prior_sensitivity="mu").sensitivity
    np.testing.assert_array_equal(found.log_evidence[:, found.names.index("b")], 0.0)


def test_traced_evidences_are_refused():
    def traced(evidence):
        return compare({"a": evidence, "b": NORMAL}, prior_sensitivity="mu").probability

    with pytest.raises(ValueError, match=r"'a' is traced. Call it outside jit"):
        jax.jit(traced)(NORMAL)
