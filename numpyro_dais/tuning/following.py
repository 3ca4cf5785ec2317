# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

r"""
A fit that follows its own weighted draws, whatever the shape of its modes.

A variational fit leaves out what costs it, and weights there are large. Draws of it with weights
:math:`w` are draws of the posterior, so that ascent on :math:`\sum_i \bar w_i \log q(x_i)` lowers
the divergence from the posterior to the fit, which punishes what was left out (adaptive importance
sampling by the cross-entropy method, Rubinstein and Kroese 2004). It takes no gradient of the
target. Whether the fit is better is for new draws to say.
"""

import jax
from jax import random
import jax.numpy as jnp
import numpy as np

from numpyro_dais._util.keys import host_generator
from numpyro_dais._util.programs import program
from numpyro_dais._util.weights import ess, log_mean, systematic, weight_shares
from numpyro_dais.model.traced import TracedTarget
from numpyro_dais.sampler.mixture import Component, Mixture
from numpyro_dais.tuning.ascent import ascend
from numpyro_dais.tuning.quality import Fit

__all__ = ["Past", "followed"]

# Iterations of ascent, draws of each, and its learning rate, in units of the widths of a mode.
# Round numbers, which take about a second.
_NUM_ITERATIONS, _BATCH, _LEARNING_RATE = 400, 256, 0.03
# The effective share of draws that a fit is to follow at least: with a few of them, it would follow
# these alone, so weights are raised to a power below one. A round number.
_LEAST_ESS_SHARE = 0.1
# Draws that are chosen by weight, and those whose density is computed in one call: always as many,
# for one program. Round numbers.
_NUM_CHOSEN, _CALL = 4096, 1024
# Of the draws, those that judge the fit to the others; and how fast matrices move against widths, a
# few rates of which the best is taken: in many dimensions a fast fit follows single draws.
_HELD_OUT = 0.3
_PACES = 1.0, 0.1, 0.0
# Dimensions up to which all of them are tried. A round number: of a factor model in 26 dimensions,
# matrices that stay were the best in each of six steps.
_MAX_FAST_DIMS = 20
_MATRICES = "coupling", "prior_coupling", "slopes", "bend"


class Past:
    r"""
    Draws of several mixtures, one after the other. All of them together are draws of the mean of
    these, and have weights :math:`p(x) / \frac1B \sum_b q_b(x)`, none of which is large because a
    single mixture was narrow (Cornuet et al. 2012).

    :param target: the target, with its own start.
    """

    def __init__(self, target: TracedTarget) -> None:
        self._target = target
        self._starts: list[TracedTarget] = []
        self._fits: list[Fit] = []
        self._draws = np.zeros((0, target.tracing.num_dims))
        self._log_joints = np.zeros(0)
        self._log_starts: list[np.ndarray] = []

    def add(self, fit: Fit) -> None:
        """
        Adds the draws of a fit.

        :param fit: the fit.
        """
        is_good = np.all(np.isfinite(fit.draws), axis=1) & ~np.isnan(fit.log_weights)
        draws = np.where(is_good[:, None], fit.draws, 0.0)
        log_weights = np.where(is_good, fit.log_weights, -np.inf)
        started = self._target.with_mixture(fit.mixture)
        old = [_log_starts_of(other, draws) for other in self._starts]
        own = _log_starts_of(started, draws)
        new = _log_starts_of(started, self._draws)
        self._log_starts = [
            np.append(*pair) for pair in zip(self._log_starts, old, strict=True)
        ] + [np.append(new, own)]
        self._draws = np.concatenate([self._draws, draws])
        self._log_joints = np.append(self._log_joints, log_weights + own)
        self._starts.append(started)
        self._fits.append(fit)

    def weighted(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns all draws, and their log weights."""
        shares = np.log([len(fit.draws) / len(self._draws) for fit in self._fits])
        log_means = np.logaddexp.reduce(np.stack(self._log_starts) + shares[:, None], axis=0)
        is_positive = np.isfinite(self._log_joints) & np.isfinite(log_means)
        with np.errstate(invalid="ignore"):
            return self._draws, np.where(is_positive, self._log_joints - log_means, -np.inf)

    def judged(self) -> Fit:
        r"""
        Returns the best of the fits, by all draws: the relative variance of the weights of a fit
        :math:`q` is the mean of :math:`p^2 / (q \bar q)` over the squared evidence, minus one. Its
        own draws alone would favour a fit that has not met a place where it is too narrow.
        """
        log_weights = self.weighted()[1]
        log_evidence = log_mean(log_weights, np)
        judged = []
        for fit, log_starts in zip(self._fits, self._log_starts, strict=True):
            with np.errstate(over="ignore", invalid="ignore"):
                own = np.where(np.isneginf(log_weights), -np.inf, self._log_joints - log_starts)
                variance = float(np.expm1(log_mean(log_weights + own, np) - 2 * log_evidence))
            variance = max(fit.quality.variance, variance)
            judged.append(fit._replace(quality=fit.quality._replace(variance=variance)))
        return min(judged, key=lambda fit: fit.quality.score)


def _log_starts_of(started: TracedTarget, draws: np.ndarray) -> np.ndarray:
    """Log densities of a start at draws, in calls of one size, for one program."""
    parts = [np.zeros(0)]
    for begin in range(0, len(draws), _CALL):
        part = draws[begin : begin + _CALL]
        padded = np.resize(part, (_CALL, draws.shape[1])).astype(jnp.result_type(float))
        parts.append(np.asarray(_log_starts(started, padded), np.float64)[: len(part)])
    log_starts = np.concatenate(parts)
    # Far from a mixture, float32 overflows: there it is as good as zero.
    return np.where(np.isfinite(log_starts), log_starts, -np.inf)


@program(is_brief=True)
def _log_starts(started: TracedTarget, positions: jax.Array) -> jax.Array:
    """Log densities of the start; that of the data is not asked for, and not computed."""
    return jax.vmap(lambda position: started.log_densities_fn(position).log_start)(positions)


def followed(
    rng_key: jax.Array, mixture: Mixture, draws: np.ndarray, log_weights: np.ndarray
) -> Mixture:
    """
    Returns a mixture that has moved towards the posterior, at the pace which draws that it was not
    fitted to find best.

    :param rng_key: a JAX random key.
    :param mixture: the mixture, of modes with couplings.
    :param draws: draws of it and of others before it, ``[num_draws, num_dims]``.
    :param log_weights: their log weights, many of them finite.
    """
    rng = host_generator(rng_key)
    is_held_out = rng.uniform(size=len(draws)) < _HELD_OUT
    log_weights = _tempered(log_weights)
    dtype = np.asarray(mixture.components.loc).dtype
    parts = []
    for is_part in (~is_held_out, is_held_out):
        shares = weight_shares(np.where(is_part, log_weights, -np.inf), np)
        chosen = systematic(rng.uniform(), shares, np, _NUM_CHOSEN)
        parts.append(draws[chosen].astype(dtype))
    best, highest = mixture, -np.inf
    for pace in _PACES if draws.shape[1] <= _MAX_FAST_DIMS else _PACES[-1:]:
        components, log_shares = _follow(rng_key, mixture, parts[0], np.asarray(pace, dtype))
        moved = mixture._replace(components=components, log_shares=log_shares)
        value = float(_mean_log_density(moved, parts[1]))
        if value > highest:
            best, highest = moved, value
    return best


@program(is_brief=True)
def _mean_log_density(mixture: Mixture, positions: jax.Array) -> jax.Array:
    return jnp.mean(jax.vmap(mixture.log_density)(positions))


def _tempered(log_weights: np.ndarray) -> np.ndarray:
    """Log weights, raised to the largest power up to one at which they are equal enough."""
    is_positive = np.isfinite(log_weights)
    positive = log_weights[is_positive] - np.max(log_weights)
    least = _LEAST_ESS_SHARE * len(positive)
    low, high = 0.0, 1.0
    if ess(positive, np) >= least:
        return log_weights
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if ess(middle * positive, np) >= least else (low, middle)
    tempered = np.full(len(log_weights), -np.inf)
    tempered[is_positive] = low * positive
    return tempered


@program(is_brief=True)
def _follow(
    rng_key: jax.Array, mixture: Mixture, draws: jax.Array, pace: jax.Array
) -> tuple[Component, jax.Array]:
    """Returns modes and their shares after ascent on the log density of draws."""
    first = mixture.components
    unit = jnp.exp(first.log_scale)

    def unpack(moves: tuple[Component, jax.Array]) -> tuple[Component, jax.Array]:
        by, log_shares = moves
        moved = jax.tree.map(lambda x, move: x + move, first, by._replace(loc=unit * by.loc))
        # Many elements of a matrix add up in one coordinate: their steps are smaller.
        matrices = {
            name: getattr(first, name) + pace * getattr(by, name)
            for name in _MATRICES
            if getattr(first, name) is not None
        }
        return moved._replace(**matrices), jax.nn.log_softmax(mixture.log_shares + log_shares)

    def bound_fn(moves: tuple[Component, jax.Array], key: jax.Array) -> jax.Array:
        components, log_shares = unpack(moves)
        moved = mixture._replace(components=components, log_shares=log_shares)
        batch = draws[random.randint(key, (_BATCH,), 0, len(draws))]
        return jnp.mean(jax.vmap(moved.log_density)(batch))

    begin = jax.tree.map(jnp.zeros_like, (first, mixture.log_shares))
    moves, _ = ascend(rng_key, bound_fn, begin, _NUM_ITERATIONS, _LEARNING_RATE)
    return unpack(moves)
