# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""One answer for each key: the noise of a chain does not depend on how its gradient is taken."""

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import pytest

from numpyro_dais.sampler.kernel import ChainState
from numpyro_dais.sampler.loop import MEMORY_MODES
from numpyro_dais.sampler.noise import block_length, chain_noise
from numpyro_dais.sampler.particles import run_particles
from numpyro_dais.sampler.path import LogDensities, TargetFunctions
from numpyro_dais.sampler.reversible.fixed_point import rational_damping
from numpyro_dais.sampler.reversible.gradient import Reversible
from numpyro_dais.sampler.schedule import linear
from numpyro_dais.sampler.settings import make_settings

# A step so long that chains do not settle: other noise, other weights.
STEP_SIZE = 0.4


def make_target(num_dims):
    """A skewed density in each dimension, from a standard normal."""
    loc = jnp.linspace(-0.5, 1.5, num_dims)

    def log_densities_fn(position):
        return LogDensities(
            -0.5 * jnp.sum(position**2), -jnp.sum(jnp.cosh(position - loc) - 0.3 * position)
        )

    return TargetFunctions(lambda key: random.normal(key, (num_dims,)), log_densities_fn)


def run(memory, num_steps, num_dims=2, damping=0.9, anchor_every=None, step_size=STEP_SIZE):
    """Two particles at the end of their chains."""
    keys, (damping, ratio) = random.split(random.key(1)), rational_damping(damping)
    settings = make_settings(linear(num_steps), step_size, damping)
    reversible = Reversible(ratio, anchor_every=anchor_every)
    return run_particles(keys, make_target(num_dims), settings, memory, reversible=reversible)


def ends(memory, **case):
    """Log weights and positions."""
    end = jax.jit(lambda: run(memory, **case))()
    return np.asarray(end.log_weights), np.asarray(end.positions)


# In words that are short for their block digits are put aside in the middle of it, and so are anchors.
SHORT_WORDS = {"num_steps": 90, "damping": 1 / 32, "anchor_every": 17}
# Blocks of 25, 25, 30 and 25 steps; of 32, with a rest; of 10, by their size; of 30.
CASES = {
    "1000": {"num_steps": 1000},
    "1025": {"num_steps": 1025},
    "3000": {"num_steps": 3000},
    "5000": {"num_steps": 5000},
    "prime": {"num_steps": 1109},
    "5000 dimensions": {"num_steps": 70, "num_dims": 5000},
    "5000 dimensions and anchors": {"num_steps": 70, "num_dims": 5000, "anchor_every": 3},
    "short words": SHORT_WORDS,
}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_memory_modes_give_one_answer(case):
    """In double precision a unit of the reversible mode is 4e-16: what differs more is the noise."""
    log_weights, positions = ends("plain", **case)
    assert np.ptp(log_weights) > 1e-2
    for memory in MEMORY_MODES[1:]:
        others = ends(memory, **case)
        np.testing.assert_allclose(others[0], log_weights, rtol=1e-9, atol=1e-9, err_msg=memory)
        np.testing.assert_allclose(others[1], positions, rtol=0, atol=1e-9, err_msg=memory)


def test_memory_modes_give_one_answer_in_single_precision():
    """
    Damping rounds a momentum to within 9 units of 2^-22, 2e-6. The chain forgets it after ten steps and
    returns to where it was in about as many, so that at the end a position is off by some 1e-5. To the
    log weight each step adds the error times the kick, 2e-6 * 0.4 at most: 2e-3 in 3,000 steps if all
    have one sign, 5e-5 if they have not.
    """
    log_weights, positions = ends("plain", num_steps=3000)
    for memory in MEMORY_MODES[1:]:
        others = ends(memory, num_steps=3000)
        tolerance = 1e-3 if memory == "reversible" else 1e-4
        np.testing.assert_allclose(others[0], log_weights, atol=tolerance, err_msg=memory)
        np.testing.assert_allclose(others[1], positions, atol=tolerance / 10, err_msg=memory)


@pytest.mark.usefixtures("x64")
def test_reversible_chains_find_back_through_short_words():
    """Gradients would be NaN, with a warning, if digits were lost in the middle of a block."""

    def gradient(memory):
        def total(scale):
            return jnp.sum(run(memory, **SHORT_WORDS, step_size=STEP_SIZE * scale).log_weights)

        return float(jax.jit(jax.grad(total))(1.0))

    assert gradient("reversible") == pytest.approx(gradient("plain"), rel=1e-9)


@pytest.mark.parametrize("is_corrected", [False, True], ids=["uncorrected", "corrected"])
def test_noise_of_many_steps_is_that_of_their_blocks(is_corrected):
    densities = LogDensities(jnp.zeros(()), jnp.zeros(())) if is_corrected else None
    state = ChainState(jnp.zeros(3), jnp.zeros(3), jnp.zeros(()), densities)
    noise = chain_noise(state, random.key(2), 103)
    assert noise.length == 32
    together = noise.draw(jnp.asarray(1), 2 * 32 + 7)
    parts = [noise.draw_fn(jnp.asarray(i), n) for i, n in ((1, 32), (2, 32), (3, 7))]
    expected = jax.tree.map(lambda *xs: np.concatenate(xs), *parts)
    jax.tree.map(np.testing.assert_array_equal, together, expected)
    assert len(np.unique(together.normal)) == together.normal.size
    assert (together.log_uniform is not None) == is_corrected


LENGTHS = {(1000, 10): 25, (1009, 10): 32, (20, 10): 20, (70, 5000): 10, (70, 10**6): 1}


@pytest.mark.parametrize(("sizes", "length"), LENGTHS.items(), ids=map(str, LENGTHS))
def test_length_of_a_block(sizes, length):
    assert block_length(*sizes) == length
