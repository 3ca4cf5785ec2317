# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Searches side by side end where each would end alone, and count what they cost."""

import numpy as np
from scipy.optimize import minimize

from numpyro_dais.model.searches import NUM_LANES, search_all


def rosenbrock(positions):
    x, y = positions.T
    gradients = np.stack([-400 * x * (y - x**2) - 2 * (1 - x), 200 * (y - x**2)], axis=1)
    return 100 * (y - x**2) ** 2 + (1 - x) ** 2, gradients


class Counted:
    """Losses that remember at how many positions they were wanted."""

    def __init__(self, losses_fn):
        self.losses_fn = losses_fn
        self.num_evaluations = 0

    def __call__(self, positions):
        assert len(positions) <= NUM_LANES
        self.num_evaluations += len(positions)
        return self.losses_fn(positions)


STARTS = np.random.default_rng(0).normal(0.0, 2.0, (40, 2))


def test_searches_side_by_side_end_where_each_ends_alone():
    together = search_all(rosenbrock, STARTS, 100_000, 1e-9)
    alone = [search_all(rosenbrock, start[None], 100_000, 1e-9).losses for start in STARTS]
    np.testing.assert_allclose(np.sort(together.losses), np.sort(np.concatenate(alone)))
    np.testing.assert_allclose(together.positions, 1.0, atol=1e-2)


def test_a_search_takes_about_as_many_evaluations_as_one_of_scipy():
    counted = Counted(rosenbrock)
    search_all(counted, STARTS, 100_000, 1e-9)

    def loss_fn(position):
        losses, gradients = rosenbrock(position[None])
        return losses[0], gradients[0]

    how = {"jac": True, "method": "L-BFGS-B", "options": {"ftol": 1e-9}}
    results = [minimize(loss_fn, start, **how) for start in STARTS]
    assert counted.num_evaluations < 1.3 * sum(result.nfev for result in results)


def test_evaluations_are_limited_and_a_search_cut_short_counts_if_it_is_lowest():
    counted = Counted(rosenbrock)
    ends = search_all(counted, STARTS, 5 * NUM_LANES, 1e-9)
    assert counted.num_evaluations == 5 * NUM_LANES
    assert len(ends.losses) == NUM_LANES  # none has come to an end
    assert np.all(ends.losses <= rosenbrock(STARTS[:NUM_LANES])[0])


def test_losses_that_are_not_finite_are_stepped_back_from():
    def losses_fn(positions):  # -log x + x, which has its minimum at one
        with np.errstate(all="ignore"):
            return (positions - np.log(positions))[:, 0], 1 - 1 / positions

    ends = search_all(losses_fn, np.array([[30.0], [-1.0], [0.01]]), 1000, 1e-12)
    np.testing.assert_allclose(ends.positions, [[1.0], [1.0]], atol=1e-4)


def test_searches_in_units_that_differ_by_many_orders_of_magnitude():
    widths = np.array([1e-9, 1.0])

    def losses_fn(positions):
        return 0.5 * np.sum((positions / widths) ** 2, axis=1), positions / widths**2

    ends = search_all(losses_fn, np.array([[1e-8, 3.0]]), 1000, 1e-12)
    assert ends.losses[0] < 1e-6
