# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""The bounds that an estimator has on data simulated from the model, as one result."""

from typing import NamedTuple

__all__ = ["Certificate"]


class Certificate(NamedTuple):
    """
    Mean bounds over simulated data sets, as :meth:`DAIS.certify` returns them; with a plate, per
    element on average.

    :param lower_bound: the mean log weight of forward chains, averaged over data sets.
    :param lower_bound_error: its standard error over data sets, paired with the upper bound's.
    :param upper_bound: the mean log weight of reverse chains from exact posterior draws.
    :param upper_bound_error: its standard error over data sets.
    :param gap: the mean difference of the two: the error of each bound is below it in expectation.
    :param gap_error: its standard error over data sets.
    :param num_datasets: the number of data sets.
    """

    lower_bound: float
    lower_bound_error: float
    upper_bound: float
    upper_bound_error: float
    gap: float
    gap_error: float
    num_datasets: int

    def __str__(self) -> str:
        return (
            f"Certificate over {self.num_datasets} simulated data sets: gap {self.gap:.3f} ± "
            f"{self.gap_error:.3f} nats\n"
            f"  mean lower bound {self.lower_bound:.3f} ± {self.lower_bound_error:.3f}\n"
            f"  mean upper bound {self.upper_bound:.3f} ± {self.upper_bound_error:.3f}"
        )
