# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""The evidence after a fit: DAIS from the fitted guide, with the settings of the loss."""

from collections.abc import Callable
from typing import Any

from numpyro_dais.estimators.dais import DAIS
from numpyro_dais.model.problem import Problem
from numpyro_dais.model.subsampling import subsampled_sizes
from numpyro_dais.model.traced import TracedTarget
from numpyro_dais.sampler.settings import Settings
from numpyro_dais.vi.plates import independent_plates

__all__ = ["FittedDAIS"]


class FittedDAIS(DAIS):
    """
    DAIS as a loss has left it: plates that hold every site of model and guide are found in the
    model, and step sizes that follow the curvature are those at its arguments.

    :param model: the model.
    :param settings_fn: the settings, from a problem and its target.
    :param has_own_plates: whether plates are those of the model, and not ``plate``.
    :param kwargs: further arguments of :class:`~numpyro_dais.estimators.dais.DAIS`.
    """

    def __init__(
        self,
        model: Callable,
        settings_fn: Callable[[Problem, Any], Settings],
        has_own_plates: bool,
        **kwargs: Any,
    ) -> None:
        super().__init__(model, **kwargs)
        self._settings_fn = settings_fn
        self._has_own_plates = has_own_plates

    _has_fixed_settings = False

    @property
    def _method(self) -> str:
        return DAIS.__name__

    def _problem(self, args: tuple, kwargs: dict) -> Problem:
        problem = super()._problem(args, kwargs)
        if not self._has_own_plates:
            return problem
        # One particle: the loss has said already what does not factorise.
        plates = independent_plates(problem, 1, subsampled_sizes(problem))
        return problem.replace(plate=plates or None)

    def _settings(self, problem: Problem, target: TracedTarget) -> Settings:
        return self._settings_fn(problem, target)
