# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""A chain before its first step: its keys, its momentum, its state."""

from typing import NamedTuple

import jax
from jax import random
import jax.numpy as jnp

from numpyro_dais._util.keys import named_key
from numpyro_dais.sampler.kernel import UNCORRECTED, ChainState, Transition
from numpyro_dais.sampler.path import DynamicsFn, LogDensities, LogDensitiesFn

__all__ = ["Begun", "begin_chain"]


class Begun(NamedTuple):
    """
    A chain before its first step, or chains side by side.

    :param state: the state; its log weight is zero.
    :param noise_key: the key of the noise of all steps.
    :param batch_key: the key of the chain's own mini-batches.
    """

    state: ChainState
    noise_key: jax.Array
    batch_key: jax.Array

    def densities_at(
        self, index: jax.Array, log_densities_fn: LogDensitiesFn, dynamics_fn: DynamicsFn | None
    ) -> LogDensitiesFn:
        """
        Returns the log densities whose gradient a step follows.

        :param index: the index of the step.
        :param log_densities_fn: both ends of the path.
        :param dynamics_fn: what is followed instead, if anything.
        """
        return log_densities_fn if dynamics_fn is None else dynamics_fn(self.batch_key, index)


def begin_chain(
    rng_key: jax.Array,
    position: jax.Array,
    densities: LogDensities,
    transition: Transition = UNCORRECTED,
) -> Begun:
    """
    Returns a chain before its first step, or chains that share a key, with fresh momenta.

    :param rng_key: the key of the chain.
    :param position: its start.
    :param densities: both log densities there, which only a corrected chain keeps.
    :param transition: the kind of transitions.
    """
    initial_key, noise_key = random.split(rng_key)
    momentum = random.normal(initial_key, position.shape, position.dtype)
    kept = densities if transition.is_corrected else None
    state = ChainState(position, momentum, jnp.zeros_like(densities.log_start), kept)
    return Begun(state, noise_key, named_key(rng_key, "mini-batches"))
