# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
The fuzz: its quadrature has closed forms, sees a Jacobian that is dropped, and says when it does not know; models come from
their seeds; and ten of them are run.
"""

import json
import subprocess
import sys

import fuzz
import fuzz_density
import fuzz_models
import fuzz_quadrature
import fuzz_tables
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.special import betaln, gammaln, logsumexp

import numpyro
import numpyro.distributions as dist
from numpyro.distributions import transforms


def evidence(model, *args, num_dims=1, is_centred=True):
    density = fuzz_density.make_density(model, *args, is_centred=is_centred)
    assert density.num_dims == num_dims
    reference = fuzz_quadrature.integrate(2 * [density.log_joint_fn], num_dims)
    assert reference.reason is None
    assert reference.disagreement < 3e-4
    return reference.log_integral


def normals(y):
    a = numpyro.sample("a", dist.Normal(1.0, 2.0))
    b = numpyro.sample("b", dist.Normal(a, 0.7))
    numpyro.sample("y", dist.Normal(b, 0.5), obs=y)


def half_normal(y):
    a = numpyro.sample("a", dist.HalfNormal(1.5))
    numpyro.sample("y", dist.Normal(a, 0.5), obs=y)


def truncated(y):
    a = numpyro.sample("a", dist.TruncatedNormal(0.5, 1.5, low=-1.0, high=2.0))
    numpyro.sample("y", dist.Normal(a, 0.5), obs=y)


def simplex(y):
    p = numpyro.sample("p", dist.Dirichlet(jnp.array([0.8, 1.5, 3.0])))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.Categorical(p), obs=y)


def two_modes(y):
    mixing = dist.Categorical(jnp.array([0.3, 0.7]))
    parts = dist.Normal(jnp.array([-6.0, 5.0]), jnp.array([0.3, 1.0]))
    a = numpyro.sample("a", dist.MixtureSameFamily(mixing, parts))
    numpyro.sample("y", dist.Normal(a, 8.0), obs=y)


def enumerated(y):
    a = numpyro.sample("a", dist.Normal(0.0, 2.0))
    j = numpyro.sample("j", dist.Categorical(jnp.array([0.2, 0.5, 0.3])))
    with numpyro.plate("data", len(y)):
        k = numpyro.sample("k", dist.Bernoulli(0.3))
        numpyro.sample("y", dist.Normal(a + 3.0 * k + j, 0.5), obs=y)


def enumerated_evidence(y):
    """Data are jointly normal given the values of the discrete sites."""
    covariance = 4.0 + 0.25 * np.eye(2)
    return logsumexp(
        [
            stats.multivariate_normal([3 * k + j, 3 * m + j], covariance).logpdf(y)
            + stats.bernoulli.logpmf([k, m], 0.3).sum()
            + np.log([0.2, 0.5, 0.3][j])
            for k in range(2)
            for m in range(2)
            for j in range(3)
        ]
    )


def half_normal_evidence(y):
    variance = 1.5**2 + 0.5**2
    mean, scale = y * 1.5**2 / variance, 1.5 * 0.5 / np.sqrt(variance)
    return stats.norm.logpdf(y, 0, variance**0.5) + np.log(2 * stats.norm.cdf(mean / scale))


def truncated_evidence(y):
    variance = 1.5**2 + 0.5**2
    mean, scale = (y * 1.5**2 + 0.5 * 0.5**2) / variance, 1.5 * 0.5 / np.sqrt(variance)
    inside = np.diff(stats.norm.cdf([-1, 2], mean, scale))[0]
    inside /= np.diff(stats.norm.cdf([-1, 2], 0.5, 1.5))[0]
    return stats.norm.logpdf(y, 0.5, variance**0.5) + np.log(inside)


def simplex_evidence(y):
    prior = np.array([0.8, 1.5, 3.0])
    counts = np.bincount(y, minlength=3)
    value = np.sum(gammaln(prior + counts) - gammaln(prior))
    return value + gammaln(prior.sum()) - gammaln(prior.sum() + counts.sum())


def two_modes_evidence(y):
    values = stats.norm.logpdf(y, [-6, 5], np.hypot([0.3, 1.0], 8))
    return logsumexp(values + np.log([0.3, 0.7]))


CLOSED_FORMS = {
    "conjugate": (normals, 0.3, 2, lambda y: stats.norm.logpdf(y, 1, (4 + 0.49 + 0.25) ** 0.5)),
    "half-normal": (half_normal, 0.4, 1, half_normal_evidence),
    "truncated": (truncated, 2.4, 1, truncated_evidence),
    "simplex": (simplex, np.array([0, 2, 2, 1, 2]), 2, simplex_evidence),
    "two modes": (two_modes, 0.7, 1, two_modes_evidence),
    "enumerated": (enumerated, np.array([0.4, 3.9]), 1, enumerated_evidence),
}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", CLOSED_FORMS)
def test_quadrature_is_the_closed_form(name):
    model, y, num_dims, exact = CLOSED_FORMS[name]
    assert evidence(model, y, num_dims=num_dims) == pytest.approx(exact(y), rel=0, abs=1e-4)


@pytest.mark.usefixtures("x64")
def test_coordinates_that_follow_a_scale_give_the_same():
    exact = CLOSED_FORMS["conjugate"][-1](0.3)
    found = evidence(normals, 0.3, num_dims=2, is_centred=False)
    assert found == pytest.approx(exact, rel=0, abs=1e-4)


def ordered_prior():
    base = dist.Normal(0.3, 1.2).expand([2]).to_event(1)
    numpyro.sample("a", dist.TransformedDistribution(base, transforms.OrderedTransform()))


def bounded_prior():
    a = numpyro.sample("a", dist.Gamma(2.0, 1.0))
    numpyro.sample("b", dist.Uniform(0.0, a))
    numpyro.sample("c", dist.TruncatedNormal(0.5, 1.0, high=a))


PRIORS = {
    "circular": (lambda: numpyro.sample("a", dist.VonMises(1.0, 0.7)), 1),
    "correlation": (lambda: numpyro.sample("a", dist.LKJCholesky(2, 1.7)), 1),
    "ordered": (ordered_prior, 2),
    "bounded by a latent": (bounded_prior, 3),
    "heavy tails": (lambda: numpyro.sample("a", dist.Cauchy(3.0, 0.5).expand([2])), 2),
}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", PRIORS)
def test_priors_integrate_to_one(name):
    model, num_dims = PRIORS[name]
    assert evidence(model, num_dims=num_dims) == pytest.approx(0, abs=3e-4)


@pytest.mark.usefixtures("x64")
def test_a_dropped_jacobian_is_seen(monkeypatch):
    to_support = fuzz_density.to_support
    monkeypatch.setattr(
        fuzz_density, "to_support", lambda *args: (to_support(*args)[0], jnp.zeros(()))
    )
    # What is left is the mean of 1/a, and of 1/(b (1 - b)).
    found = evidence(lambda: numpyro.sample("a", dist.Gamma(3.0, 1.2)))
    assert found == pytest.approx(np.log(0.6), abs=1e-4)
    found = evidence(lambda: numpyro.sample("b", dist.Beta(3.0, 2.0)))
    assert found == pytest.approx(betaln(2, 1) - betaln(3, 2), abs=1e-4)


def test_rules_have_their_degrees():
    for num_dims in range(1, 5):
        nodes, weights, low_weights = fuzz_quadrature.genz_malik(num_dims)
        first, last = nodes[:, 0], nodes[:, -1]
        for power in (0, 2, 4, 6):
            assert weights @ first**power == pytest.approx(1 / (power + 1))
        assert low_weights @ first**4 == pytest.approx(1 / 5)
        if num_dims > 1:
            assert weights @ (first**4 * last**2) == pytest.approx(1 / 15)


def test_what_is_not_known_is_said(monkeypatch):
    monkeypatch.setattr(fuzz_quadrature, "MAX_POINTS", 1000)

    def ridges(u):
        return -0.5 * np.sum(u**2, axis=1) + 3 * np.cos(40 * u.sum(axis=1))

    assert fuzz_quadrature.integrate([ridges], 2).reason == "cubature did not converge"
    nowhere = fuzz_quadrature.integrate([lambda u: np.full(len(u), -np.inf)], 1)
    assert nowhere.reason == "no mass was found"


@pytest.mark.usefixtures("x64")
def test_a_seed_is_a_model():
    model = fuzz_models.make_model(12)
    assert fuzz_models.make_model(12).source == model.source
    assert fuzz_models.make_model(12, attempt=1).source != model.source
    again = fuzz_models.compile_source(model.source, "again")
    np.testing.assert_array_equal(again["y"], model.y)
    position = np.full((1, model.num_dims), 0.3)
    densities = [fuzz_density.make_density(fn, model.y) for fn in (model.fn, again["model"])]
    assert densities[0].log_joint_fn(position) == densities[1].log_joint_fn(position)


# Of one dimension, since compiling takes most of the time, and of different kinds: circular, transformed, several modes, real, discrete,
# positive with data in conflict, simplex, truncated, unit interval, interval. Chosen by kind before they were run; `.ci/run` has a hundred.
SEEDS = (12, 20, 31, 47, 64, 124, 137, 160, 212, 304)


@pytest.mark.parametrize("seed", SEEDS)
def test_ten_models(seed):
    row = fuzz.run_seed(seed, is_float32=False)
    bad = (fuzz_tables.EXCEPTION, fuzz_tables.NAN, fuzz_tables.SILENT)
    assert fuzz_tables.verdict(row) not in bad, fuzz_tables.line_of(row) + "\n" + row["source"]


def row(seed, error, standard_error=0.01, warnings=(), **kwargs):
    row = {"seed": seed, "precision": "float64", "num_dims": 1, "tags": ["real"], "redrawn": []}
    row |= {"truth": 2.0, "disagreement": 1e-5, "log_evidence": 2.0 + error, "khat": 0.1}
    row |= {"standard_error": standard_error, "warnings": list(warnings), "other_warnings": []}
    row |= {"num_gradients": 100, "seconds": 1.0, "reference_seconds": 1.0}
    return row | kwargs


VERDICTS = {
    "right": (row(0, 0.03), "right"),
    "small": (row(0, 0.049, 0.001), "right"),
    "within four errors": (row(0, -0.39, 0.1), "right"),
    "silent": (row(0, -0.06, 0.01), "silent failure"),
    "infinite": (row(0, -np.inf), "silent failure"),
    "loud": (row(0, -0.06, 0.01, ["k-hat"]), "warning, and wrong"),
    "a word of NumPyro": (row(0, 0.06, 0.01, other_warnings=["!"]), "silent failure"),
    "warned": (row(0, 0.0, 0.01, ["k-hat"]), "warning, and right"),
    "NaN": (row(0, np.nan), "NaN presented as an answer"),
    "NaN with a warning": (row(0, np.nan, 0.01, ["k-hat"]), "NaN presented as an answer"),
    "NaN error": (row(0, 0.0, np.nan), "NaN presented as an answer"),
    "exception": ({"exception": "Traceback\nValueError: no"}, "exception"),
}


@pytest.mark.parametrize(("row", "expected"), VERDICTS.values(), ids=VERDICTS)
def test_verdicts(row, expected):
    assert fuzz_tables.verdict(row) == expected


def test_report():
    failed = {k: v for k, v in row(3, 0.0).items() if k not in ("log_evidence", "standard_error")}
    failed |= {"exception": "Traceback\nValueError: no"}
    rows = [row(0, 0.015), row(1, 0.021), row(2, -0.06, redrawn=["no finite data"]), failed]
    rows += [row(4, 0.0, disagreement=1e-2), row(5, 0.0, 0.01, ["k-hat: large"])]
    text = fuzz_tables.report(rows)
    assert "truth within two errors, no warning: 1 of 3" in text
    assert "reference not known well enough: [4]" in text
    assert "seed 2, 1-d: -0.060 ± 0.0100 [real]" in text
    assert "seed 3, 1-d: ValueError: no [real]" in text
    assert "warnings where the error is below 0.05: 1 of 4" in text
    assert "   1 no finite data" in text


def test_script_judges(tmp_path):
    """What is there is not run again; a silent failure more than is allowed is the exit status."""
    results = tmp_path / "rows.jsonl"
    results.write_text(
        "".join(json.dumps(row(s, -0.06)) + "\n" for s in range(2)), encoding="utf-8"
    )
    command = [sys.executable, fuzz.__file__, "--results", results, "--num-models", "2"]
    for limit, status in [("1", 1), ("2", 0)]:
        process = subprocess.run([*command, "--max-silent", limit], capture_output=True, text=True)
        assert process.returncode == status, process.stderr
        assert "silent failure                   2  100.0%" in process.stdout
