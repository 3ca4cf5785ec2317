# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Plates over whose elements a bound is a sum."""

import warnings

import jax
from jax import random

from numpyro_dais._util.checks import user_stack_level
from numpyro_dais.model.guide import guide_plates
from numpyro_dais.model.inspection import Trace, plates_of, trace_model
from numpyro_dais.model.problem import Problem

__all__ = ["independent_plates"]


def independent_plates(
    problem: Problem, num_particles: int, sizes: dict[str, tuple[int, int]]
) -> tuple[str, ...]:
    """
    Returns the plates that hold every sample site of model and guide.

    :param problem: a problem with a guide; its model is traced, not computed.
    :param num_particles: with several, plates that miss a single site are worth a warning.
    :param sizes: of the subsampled plates, and of their mini-batches.
    """
    sites: Trace = {}

    def collect() -> None:
        sites.update(_sample_sites(trace_model(problem, random.key(0))))

    jax.eval_shape(collect)  # a draw of a wide prior may be no valid parameter of what follows
    stacks = {name: plates_of(site) for name, site in sites.items()}
    of_guide = guide_plates(problem)
    if of_guide is not None:
        stacks["the guide"] = of_guide
    common = set.intersection(*stacks.values())
    if left := sorted(set(sizes) - common):
        name = next(name for name, stack in stacks.items() if left[0] not in stack)
        raise NotImplementedError(
            f"Plate {left[0]!r} is subsampled, but {name!r} is outside of it. Pass minibatch=True for mini-batches "
            "with global latents; or use all the data, or open the plate around every site of model and guide."
        )
    if not common and num_particles > 1:
        _warn_if_one_is_outside(stacks)
    return tuple(sorted(common))


def _warn_if_one_is_outside(stacks: dict[str, set[str]]) -> None:
    """A site outside of a plate that holds all others has all elements weighted together."""
    for plate in sorted(set.union(*stacks.values())):
        outside = [name for name, stack in stacks.items() if plate not in stack]
        if len(outside) == 1 and len(stacks) > 2:
            warnings.warn(
                f"Only {outside[0]!r} is outside of plate {plate!r}, so the elements of the plate share their "
                "weights, and the bound is looser than one for each element. Move it inside if it can be.",
                stacklevel=user_stack_level(),
            )


def _sample_sites(trace: Trace) -> Trace:
    return {name: site for name, site in trace.items() if site["type"] == "sample"}
