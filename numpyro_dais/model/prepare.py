# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""A problem made ready to be run: checked, with its mini-batches, and with what its steps follow."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import jax
from jax import random
import jax.numpy as jnp
import numpy as np

from numpyro_dais._util.concreteness import is_concrete
from numpyro_dais.model.dynamics import with_data_plate
from numpyro_dais.model.modes import check_mode
from numpyro_dais.model.problem import Problem
from numpyro_dais.model.subsampling import (
    Batches,
    draw_minibatch,
    find_data_plate,
    subsampled_sizes,
)
from numpyro_dais.model.surrogate import QuadraticSurrogate, fit_quadratic
from numpyro_dais.model.target import make_target
from numpyro_dais.sampler.path import Target

__all__ = ["Preparation"]

T = TypeVar("T")


class Preparation:
    """
    Makes the problems of an estimator ready. What the model has to be traced for is found out once for each
    shape of its arguments, so that later calls with new data go straight to the compiled program.
    """

    def __init__(self) -> None:
        self.data_plate = _OncePerShape(find_data_plate)
        self._subsampled_sizes = _OncePerShape(subsampled_sizes)
        self._check_densities = _OncePerShape(_check_densities)

    def check(self, problem: Problem) -> None:
        """
        Raises the errors of a bad problem before it is compiled.

        :param problem: a problem with concrete arguments.
        """
        if _has_nan(problem):  # which is a fault or not, as the data are
            _check_densities(problem)
        else:
            self._check_densities(problem)

    def with_minibatch(self, rng_key: jax.Array, problem: Problem) -> Problem:
        """
        Returns the problem on one mini-batch, if it has an evidence for each element of a subsampled plate.

        :param rng_key: the key of a run.
        :param problem: the problem.
        """
        if problem.plate is not None and (sizes := self._subsampled_sizes(problem)):
            return draw_minibatch(rng_key, problem, sizes)
        return problem

    def with_dynamics(
        self,
        rng_key: jax.Array,
        problem: Problem,
        batches: Batches | None,
        surrogate: str | QuadraticSurrogate | None,
    ) -> Problem:
        """
        Returns the problem with what the steps are to follow instead of the gradient on all the data.

        :param rng_key: the key of a run.
        :param problem: the problem.
        :param batches: how mini-batches are drawn; None for not at all.
        :param surrogate: a surrogate, ``"quadratic"`` to have one fitted, or None.
        """
        if batches is None and surrogate is None:
            return problem
        plate = self.data_plate(problem, "surrogate=" if batches is None else "minibatch=")
        problem = with_data_plate(rng_key, problem, plate, batches)
        if surrogate is None:
            return problem
        if isinstance(surrogate, QuadraticSurrogate):
            return problem.replace(surrogate=surrogate)
        if not is_concrete(problem):
            raise ValueError(
                "surrogate='quadratic' is fitted on the host, which jit, vmap and grad do not allow. Fit it on "
                "concrete arguments, surrogate = DAIS(model).fit_surrogate(*args), and pass surrogate=surrogate."
            )
        return problem.replace(surrogate=self._fit(problem))

    def fit_surrogate(self, problem: Problem) -> QuadraticSurrogate:
        """
        Returns a quadratic surrogate of the problem's likelihood.

        :param problem: a problem with concrete arguments.
        """
        plate = self.data_plate(problem, "surrogate=")
        return self._fit(with_data_plate(random.key(0), problem, plate, None))

    def _fit(self, problem: Problem) -> QuadraticSurrogate:
        self.check(problem)
        surrogate, mode = fit_quadratic(problem)
        check_mode(
            mode,
            "A quadratic surrogate needs one: reparametrise the model, start near the posterior (guide=), or "
            "leave surrogate= out.",
        )
        return surrogate


class _OncePerShape(Generic[T]):
    """A function of a problem, called once for all problems that share a compiled program."""

    def __init__(self, fn: Callable[..., T]) -> None:
        self._fn = fn
        self._results: dict[Any, T] = {}

    def __call__(self, problem: Problem, *args: Any) -> T:
        leaves, treedef = jax.tree.flatten(problem)
        shape = treedef, tuple((jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves)
        if shape not in self._results:
            self._results[shape] = self._fn(problem, *args)
        return self._results[shape]


def _check_densities(problem: Problem) -> None:
    """Traces what a run will trace, for its errors."""

    def densities_at_draw() -> Any:
        target: Target = make_target(problem)
        position = target.sample_fn(random.key(0))
        densities = target.log_densities_fn(position)
        if target.dynamics_fn is None:
            return densities
        return densities, target.dynamics_fn(random.key(0), jnp.asarray(0))(position)

    try:
        # Abstractly, which compiles nothing, yet around the data as they are.
        jax.eval_shape(densities_at_draw)
    except jax.errors.ConcretizationTypeError as error:
        raise ValueError(
            "The model's Python control flow depends on the value of a latent site or of an array "
            "argument, which JAX cannot trace. Use `jnp.where`, `lax.cond` or "
            "`numpyro.contrib.control_flow.cond`; pass sizes as Python ints."
        ) from error


def _has_nan(problem: Problem) -> bool:
    leaves = jax.tree.leaves(problem)
    floats = [x for x in leaves if jnp.issubdtype(jnp.result_type(x), jnp.floating)]
    return any(np.any(np.isnan(np.asarray(leaf))) for leaf in floats)
