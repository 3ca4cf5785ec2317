# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Data sets drawn from a model, each with the latents that it was drawn with."""

from collections.abc import Callable
from typing import Any

import jax
from jax import random

import numpyro
from numpyro import handlers
from numpyro.distributions import Unit
from numpyro.infer.autoguide import AutoGuide

from numpyro_dais.model.density import ModelDensity
from numpyro_dais.model.inspection import inspect_model
from numpyro_dais.model.problem import Problem

__all__ = ["check_can_be_simulated", "simulate"]


def check_can_be_simulated(problem: Problem) -> None:
    """
    Raises an error if data cannot be drawn from the model: without observed sites, or with factors.

    :param problem: a problem with a model; it is traced, not computed.
    """
    seeded = handlers.seed(problem.prepared_model, random.key(0))
    observed: dict[str, bool] = {}

    def collect() -> None:
        trace = handlers.trace(seeded).get_trace(*problem.args, **problem.kwargs)
        for name, site in trace.items():
            if site["type"] == "sample" and site["is_observed"]:
                observed[name] = isinstance(site["fn"], Unit)

    jax.eval_shape(collect)
    factors = [name for name, is_factor in observed.items() if is_factor]
    if not observed or factors:
        what = f"the factor sites {factors}" if factors else "no observed sites"
        raise ValueError(
            f"certify simulates data from the model, but it has {what}, from which nothing can be drawn. "
            "Write the likelihood as numpyro.sample(..., obs=...)."
        )


def simulate(rng_key: jax.Array, problem: Problem) -> tuple[jax.Array, Problem]:
    """
    Returns an exact posterior draw, as a position, and the problem of the data that it was drawn
    with. A guide that looks at arguments sees the data in them, too.

    :param rng_key: a JAX random key.
    :param problem: a problem with a model that has passed :func:`check_can_be_simulated`.
    """
    args, kwargs = problem.args, problem.kwargs
    forget = _forget_observed(problem.prepared_model)
    trace = handlers.trace(handlers.seed(forget, rng_key)).get_trace(*args, **kwargs)
    names = inspect_model(problem).prototype
    values = {name: trace[name]["value"] for name in names}
    data = {
        name: site["value"]
        for name, site in trace.items()
        if site["type"] == "sample" and name not in names
    }

    def replaced(leaf: Any) -> Any:
        name = next((name for name, old in forget.observed.items() if old is leaf), None)
        return leaf if name is None else data[name]

    guide = problem.guide
    if guide is not None and not isinstance(guide, AutoGuide):
        guide = _WithoutData(guide)
    simulated = problem.replace(
        model=_WithData(problem.model), guide=guide, args=(data, jax.tree.map(replaced, args))
    )
    density = ModelDensity(simulated, inspect_model(simulated))
    return density.to_position(values), simulated


class _WithData:
    """A model whose observed sites take their values from its first argument."""

    def __init__(self, model: Callable | None) -> None:
        self.model = model

    def __call__(self, data: dict, args: tuple, **kwargs: Any) -> Any:
        return _replace_observed(self.model, data)(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _WithData) and other.model is self.model

    def __hash__(self) -> int:
        return hash((_WithData, self.model))


class _WithoutData:
    """A hand-written guide with the arguments of :class:`_WithData`."""

    def __init__(self, guide: Callable) -> None:
        self.guide = guide

    def __call__(self, data: dict, args: tuple, **kwargs: Any) -> Any:
        return self.guide(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _WithoutData) and other.guide is self.guide

    def __hash__(self) -> int:
        return hash((_WithoutData, self.guide))


class _forget_observed(numpyro.primitives.Messenger):
    """A handler that draws observed sites instead, and keeps what was observed."""

    def __init__(self, fn: Callable) -> None:
        super().__init__(fn)
        self.observed: dict[str, Any] = {}

    def process_message(self, msg: dict) -> None:
        if msg["type"] == "sample" and msg["is_observed"]:
            self.observed[msg["name"]] = msg["value"]
            msg["is_observed"], msg["value"] = False, None


class _replace_observed(numpyro.primitives.Messenger):
    """A handler that gives observed sites other values."""

    def __init__(self, fn: Callable | None, data: dict) -> None:
        super().__init__(fn)
        self.data = data

    def process_message(self, msg: dict) -> None:
        if msg["type"] == "sample" and msg["is_observed"] and msg["name"] in self.data:
            msg["value"] = self.data[msg["name"]]
