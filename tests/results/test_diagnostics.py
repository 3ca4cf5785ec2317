# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""The error budget of a result: its numbers, its words, and the way it takes from tuning."""

from dataclasses import FrozenInstanceError, replace
import pickle

import jax
from jax import random
import numpy as np
import pytest

from numpyro_dais import DAIS, Diagnostics
from numpyro_dais.results.diagnostics import Check
from numpyro_dais.results.report import is_far_above
from numpyro_dais.sampler.findings import Findings, MissedMass, ModeCount, not_looked
from numpyro_dais.sampler.rounds import Round
from tests import cases
from tests.helpers import make_evidence

LIGHT = 0.1 * np.random.default_rng(0).standard_normal(400)
NONE_FOUND = MissedMass("none found", 0.02, "", 0.01, 0.03)


FINDINGS = Findings(NONE_FOUND, ModeCount(1, 192, 0.0))


def with_findings(log_weights=LIGHT, findings=FINDINGS, history=()):
    return replace(make_evidence(log_weights), findings=findings, history=history)


def a_round(log_evidence, error, num_steps=0):
    return Round(num_steps, 1024, 100, 0.1, log_evidence, error, log_evidence - 1, float("nan"))


@pytest.fixture(scope="module")
def tuned():
    return DAIS(cases.gamma_poisson).log_evidence(random.key(1))


def test_a_self_tuned_run_says_all_of_it(tuned):
    budget = tuned.diagnostics
    assert isinstance(budget, Diagnostics)
    assert budget.standard_error == pytest.approx(float(tuned.standard_error))
    assert 0 < budget.jackknife_error <= budget.standard_error
    assert budget.tail == tuned.khat
    assert budget.missed_mass.outcome == "none found"
    assert 0 < budget.missed_mass.share < 0.2
    assert budget.modes.num_modes == 1
    assert budget.modes.num_searches > 50
    populations = [c for c in budget.checks if c.name == "populations from the prior"]
    assert len(populations) == 1
    exact = float(cases.gamma_poisson_log_evidence())
    assert abs(populations[0].log_evidence - exact) < 6 * populations[0].standard_error
    assert any(check.name.startswith("round") for check in budget.checks)
    # The last of the rounds is the result itself.
    assert len([c for c in budget.checks if c.name[:5] == "round"]) == len(tuned.history) - 1


def test_what_is_printed_of_it(tuned):
    lines = str(tuned).splitlines()
    (missed,) = [line for line in lines if line.startswith("  missed mass: ")]
    (agreement,) = [line for line in lines if line.startswith("  agreement: ")]
    assert "none above" in missed
    assert missed.endswith("by a second look from the prior; one mode in 192 searches")
    assert "within" in agreement
    assert "populations from the prior" in agreement
    assert max(map(len, (missed, agreement))) < 120
    assert not any(line.startswith("  Note") for line in lines)


def test_it_is_frozen_and_survives_jit_and_pickling(tuned):
    with pytest.raises(FrozenInstanceError):
        tuned.diagnostics.tail = 0.0
    through = jax.jit(lambda evidence: evidence)(tuned)
    assert through.findings == tuned.findings
    assert through.diagnostics == tuned.diagnostics
    assert pickle.loads(pickle.dumps(tuned.findings)) == tuned.findings
    with pytest.raises(ValueError, match="diagnostics is computed on the host"):
        jax.jit(lambda evidence: len(str(evidence.diagnostics)))(tuned)


def test_given_settings_are_not_looked_at():
    evidence = make_evidence(LIGHT)
    assert evidence.diagnostics.missed_mass.outcome == "not looked"
    assert evidence.diagnostics.checks == ()
    assert "missed mass" not in str(evidence)
    assert str(evidence.diagnostics).splitlines()[2:] == [
        "missed mass: not looked for: settings or a start were given",
        "agreement: nothing to compare with",
    ]


WORDS = {
    "found": (MissedMass("found", 0.3), "about 30% of what the fit has, found outside of it"),
    "none found": (NONE_FOUND, "none above 2% of the evidence, by a second look from the prior"),
    "no power": (MissedMass("no power"), "unknown; a second look from the prior had no power"),
    "not looked": (
        not_looked("the budget is too small"),
        "not looked for: the budget is too small",
    ),
}


@pytest.mark.parametrize(("mass", "words"), WORDS.values(), ids=WORDS)
def test_each_outcome_has_its_words(mass, words):
    evidence = with_findings(findings=Findings(mass, ModeCount(7, 200, 0.005)))
    assert f"missed mass: {words}" in str(evidence)
    assert "7 modes in 200 searches, of more 0.5% would meet another" in str(evidence)


def test_error_and_tail_in_words():
    rng = np.random.default_rng(1)
    heavy = with_findings(0.6 * rng.standard_exponential(1000))
    assert "by the spread of the weights, " in str(heavy)
    assert "with their tail" in heavy.diagnostics.lines[0]
    assert heavy.diagnostics.lines[1] == f"tail: k-hat {heavy.khat:.2f}"
    light = with_findings()
    assert "error: " not in str(light)
    few = with_findings(LIGHT[:60])
    assert few.diagnostics.tail is None
    assert few.khat is not None
    assert few.diagnostics.lines[1] == "tail: unknown, with so few weights"
    assert "k-hat unknown" in str(few)
    assert make_evidence([0.0]).diagnostics.lines[0] == "error: unknown"


def test_islands_and_batches():
    islands = replace(with_findings(), island_size=8)
    assert islands.diagnostics.island_spread == pytest.approx(np.std(LIGHT, ddof=1), rel=1e-5)
    assert "agreement: islands spread by 0.1" in str(islands)
    batch = jax.vmap(lambda x: make_evidence(x, is_start_finite=np.ones(200, bool)))(
        LIGHT.reshape(2, 200)
    )
    assert batch.diagnostics.standard_error.shape == (2,)
    assert batch.diagnostics.lines[0].startswith("error: largest: 0.0")


def test_rounds_are_compared_with_the_result():
    evidence = with_findings()
    value, error = float(evidence), float(evidence.standard_error)
    history = a_round(value - 0.02, 0.02), a_round(value + 0.01, 0.03), a_round(value, error, 2)
    budget = with_findings(history=history).diagnostics
    first, second = budget.checks[:2]
    assert [check.name for check in budget.checks[:-1]] == ["round 1", "round 2"]  # not the result
    assert first.difference == pytest.approx(-0.02, abs=1e-5)
    assert second.num_errors == pytest.approx(0.01 / np.hypot(error, 0.03), rel=1e-3)
    assert "2 earlier rounds within 1.0 errors" in str(budget)


def test_the_estimate_of_the_pilot_has_no_error():
    budget = with_findings(findings=Findings(NONE_FOUND, pilot=0.2)).diagnostics
    assert budget.checks[-1].num_errors is None
    assert "the pilot's population +0.2" in str(budget)


ABOVE = {
    "populations": (
        MissedMass("none found", 0.02, "", 0.4, 0.05),
        (),
        "populations from the prior",
    ),
    "a round": (MissedMass("no power"), (a_round(0.4, 0.05),), "round 1"),
}


@pytest.mark.parametrize(("mass", "history", "name"), ABOVE.values(), ids=ABOVE)
def test_an_estimate_far_above_is_a_warning(mass, history, name):
    evidence = with_findings(findings=Findings(mass), history=history)
    (warning,) = evidence.warnings
    assert f"Another estimate, of {name}, is 0.400 ± 0.050: above this one by 0.4 nats" in warning
    assert "Mass may be missing here; use a larger budget=" in warning


QUIET = {
    "below": Check("round 1", -1.0, 0.01, -1.0, -50.0),
    "by chance": Check("round 1", 0.2, 0.1, 0.2, 2.0),
    "by little": Check("round 1", 0.04, 0.001, 0.04, 20.0),
    "of unknown error": Check("round 1", 5.0, None, 5.0, None),
}


@pytest.mark.parametrize("check", QUIET.values(), ids=QUIET)
def test_other_estimates_are_not(check):
    assert not is_far_above(check)
    assert is_far_above(Check("round 1", 1.0, 0.01, 1.0, 50.0))


def test_reasons_not_to_look():
    """A budget that pays no look, and a start that is given."""
    poor = DAIS(cases.gamma_poisson, budget=3_000).log_evidence(random.key(0))
    assert poor.diagnostics.missed_mass == not_looked("the budget is too small")
    given = DAIS(cases.gamma_poisson, start="prior", budget=3_000).log_evidence(random.key(0))
    assert given.findings is None
    assert given.diagnostics.missed_mass.outcome == "not looked"


@pytest.mark.parametrize(
    ("outcome", "shape", "is_warned"),
    [("no power", 0.65, True), ("no power", 0.5, False), ("none found", 0.65, False)],
)
def test_heavy_weights_that_nothing_has_checked_are_warned_of(outcome, shape, is_warned):
    """Quantiles of a Pareto tail of a given shape, k-hat being between the two limits or below."""
    log_weights = -shape * np.log(1 - (np.arange(4000) + 0.5) / 4000)
    evidence = with_findings(log_weights, FINDINGS._replace(missed_mass=MissedMass(outcome)))
    assert abs(evidence.khat - shape) < 0.04
    assert any("had no power" in warning for warning in evidence.warnings) == is_warned
