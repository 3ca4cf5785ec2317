# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Runs whose numbers are on record still give them."""

import pytest

from tests import reference_runs

# Of each kind one; the script runs all, for whoever refactors.
GIVEN = ["hundred_steps", "plate", "minibatch", "memory", "metropolis", "both_directions", "davi"]


def assert_as_on_record(name, precision):
    values = reference_runs.run(name, precision)
    expected = reference_runs.on_record()[precision][name]
    difference = reference_runs.difference(name, values, expected)
    assert difference < reference_runs.tolerance(name, precision, values, expected)


@pytest.mark.parametrize("name", GIVEN)
def test_given_settings(name):
    """In float64, where the tolerance is tightest; the script compares both precisions."""
    assert_as_on_record(name, "float64")


@pytest.mark.parametrize("name", sorted(reference_runs.SELF_TUNED))
def test_self_tuned_within_errors(name):
    """Settings may change, the evidence not."""
    assert_as_on_record(name, "float32")


@pytest.mark.parametrize("precision", reference_runs.TOLERANCE)
def test_every_run_is_on_record(precision):
    assert list(reference_runs.on_record()[precision]) == list(reference_runs.RUNS)
