# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""The result of every estimator: log weights, and the numbers that are read off them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from types import ModuleType
from typing import Any

import jax
from jax import random
import jax.numpy as jnp
import numpy as np

from numpyro.diagnostics import effective_sample_size

from numpyro_dais._util import weights
from numpyro_dais._util.concreteness import is_concrete
from numpyro_dais.model.problem import Problem
from numpyro_dais.model.target import make_target
from numpyro_dais.results.bennett import bennett
from numpyro_dais.sampler.settings import Settings

__all__ = ["Evidence"]

# The fewest weights with a k-hat: the tail is their largest fifth, and NumPyro fits no tail of less
# than five.
_KHAT_MIN_WEIGHTS = 25

# Log weights within so many neighbouring floating-point numbers count as equal. A round number, for
# rounding along a chain not to pass for a tail.
_EQUAL_WITHIN = 8


@partial(
    jax.tree_util.register_dataclass,
    data_fields=[
        "log_weights",
        "positions",
        "is_start_finite",
        "settings",
        "problem",
        "acceptance",
        "reverse_log_weights",
        "num_gradients",
    ],
    meta_fields=["method", "num_chains", "notes", "island_size"],
)
@dataclass(frozen=True, eq=False, repr=False)
class Evidence:
    r"""
    An estimate of the evidence :math:`p(D)` from weighted particles.

    It is a pytree, so it may be returned from :func:`jax.jit` and :func:`jax.vmap`, and its numbers
    differentiated. With a plate, the numbers are arrays over its elements.

    :param log_weights: ``[num_particles]``, or ``[num_particles, plate_size]``. Each weight has
        expectation :math:`p(D)`; one whose density was not finite is zero.
    :param positions: the last position of each particle, unconstrained.
    :param is_start_finite: whether each particle's draw from the start was finite.
    :param settings: the settings of the run.
    :param problem: the model, its arguments and the start.
    :param method: the name of the estimator.
    :param num_gradients: gradient evaluations, those of the pilot run included. With mini-batches
        or a surrogate, in gradients on all the data; see
        :func:`numpyro_dais.model.dynamics.num_full_gradients`.
    :param acceptance: acceptance rates; None for methods without Metropolis correction.
    :param reverse_log_weights: those of reverse chains from posterior draws; None if none were run.
    :param num_chains: the number of Markov chains that the posterior draws are of; None if these
        are independent.
    :param notes: remarks on the posterior draws, or on the memory mode.
    :param island_size: the number of particles that each weight stands for. More than one if they
        were resampled on their way: a weight then is the estimate of an island of particles, and
        its position that of one of them, drawn by weight. Weights of islands are as independent and
        unbiased as those of particles are.
    """

    log_weights: jax.Array
    positions: jax.Array
    is_start_finite: jax.Array
    settings: Settings
    problem: Problem
    method: str
    num_gradients: int | jax.Array
    acceptance: jax.Array | None = None
    reverse_log_weights: jax.Array | None = None
    num_chains: int | None = None
    notes: tuple[str, ...] = ()
    island_size: int = 1

    @property
    def num_particles(self) -> int:
        """The number of particles S."""
        return self.num_weights * self.island_size

    @property
    def num_weights(self) -> int:
        """The number of independent weights: that of the particles, or of their islands."""
        return self.log_weights.shape[0]

    @property
    def log_evidence(self) -> jax.Array:
        r"""
        The estimate :math:`\log \frac1S \sum_s w_s` of :math:`\log p(D)`. Its exponential is
        unbiased, so it is itself a lower bound in expectation, tighter than :attr:`lower_bound`.
        With reverse chains it is Bennett's acceptance ratio of both directions instead.
        """
        if self.reverse_log_weights is not None:
            return bennett(self.log_weights, self.reverse_log_weights).log_evidence
        return _on_host(weights.log_mean, self.log_weights)

    @property
    def standard_error(self) -> jax.Array:
        """
        The jackknife standard error of :attr:`log_evidence`; infinite when it cannot be known, as
        with one particle.
        """
        if self.reverse_log_weights is not None:
            num_effective = self._num_effective_reverse
            return bennett(self.log_weights, self.reverse_log_weights, num_effective).standard_error
        return _on_host(weights.log_mean_error, self.log_weights)

    @property
    def lower_bound(self) -> jax.Array:
        r"""
        The mean :math:`\frac1S \sum_s \log w_s`, the paper's :math:`\mathcal L_{DAIS}`: a lower
        bound of :math:`\log p(D)` in expectation.
        """
        return _on_host(weights.mean_log, self.log_weights)

    @property
    def lower_bound_error(self) -> jax.Array:
        """
        The standard error of :attr:`lower_bound`; infinite with one particle or a zero weight, and
        where all particles share one sequence of mini-batches, over which it would have to be
        taken.
        """
        if self.has_shared_batches:
            return jnp.full(self.log_weights.shape[1:], jnp.inf)
        return _on_host(weights.mean_log_error, self.log_weights)

    @property
    def has_shared_batches(self) -> bool:
        """True if the steps of all particles followed one sequence of mini-batches."""
        plate = self.problem.data_plate
        return plate is not None and plate.batches == "shared" and self.settings.num_steps > 0

    @property
    def upper_bound(self) -> jax.Array | None:
        r"""
        The mean log weight of reverse chains, an upper bound of :math:`\log p(D)` in expectation if
        they began at exact posterior draws; None without reverse chains.
        """
        if self.reverse_log_weights is None:
            return None
        return _on_host(lambda x, xp: -weights.mean_log(-x, xp), self.reverse_log_weights)

    @property
    def upper_bound_error(self) -> jax.Array | None:
        """The standard error of :attr:`upper_bound`, over the effective number of draws."""
        if self.reverse_log_weights is None:
            return None
        num_effective = self._num_effective_reverse
        # Measured from one of them, for the sake of float32.
        return _on_host(
            lambda x, xp: xp.std(x - x[0], axis=0, ddof=1) / np.sqrt(num_effective),
            self.reverse_log_weights,
        )

    @property
    def _num_effective_reverse(self) -> Any:
        """The number of independent posterior draws that the reverse weights are worth."""
        assert self.reverse_log_weights is not None
        num_draws = len(self.reverse_log_weights)
        if self.num_chains is None:
            return num_draws
        chains = np.asarray(self.reverse_log_weights, np.float64)
        chains = chains.reshape(self.num_chains, -1, *chains.shape[1:])
        return np.clip(effective_sample_size(chains), 1.0, num_draws)

    @property
    def ess(self) -> jax.Array:
        r"""The effective sample size of the weights, :math:`(\sum_s w_s)^2 / \sum_s w_s^2`."""
        return _on_host(weights.ess, self.log_weights)

    @property
    def num_nonfinite(self) -> jax.Array:
        """The number of weights that are zero because a density was not finite."""
        return _on_host(lambda x, xp: xp.sum(~xp.isfinite(x)), self.log_weights, int)

    @cached_property
    def khat(self) -> float | np.ndarray | None:
        r"""
        The Pareto shape :math:`\hat k` of the weights' tail, or None below 25 particles. Above 0.7
        the estimate and its error are not to be trusted (Vehtari et al. 2024). Computed on the
        host.
        """
        self._require_concrete("khat")
        if self.num_weights < _KHAT_MIN_WEIGHTS:
            return None
        tolerance = _EQUAL_WITHIN * weights.resolution(np.asarray(self.log_weights))
        log_weights = np.asarray(self.log_weights, np.float64)
        if log_weights.ndim == 1:
            return _khat(log_weights, tolerance)
        return np.array([_khat(column, tolerance) for column in log_weights.T])

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """The reasons not to trust the result, each with a remedy; none if all is well."""
        from numpyro_dais.results.report import find_faults

        self._require_concrete("warnings")
        return find_faults(self)

    def samples(self, rng_key: jax.Array | None = None, num_samples: int | None = None) -> dict:
        """
        Returns posterior draws: particles resampled by weight (for each element of a plate by its
        own weights), as values of the latent and ``deterministic`` sites.

        Enumerated discrete sites are not among them, and a ``deterministic`` site that depends on
        one sees a draw from its prior, as with NumPyro's MCMC.

        :param rng_key: the key of the resampling; a fixed one if left out.
        :param num_samples: the number of draws; as many as weights if left out.
        """
        rng_key = random.key(0) if rng_key is None else rng_key
        num_samples = self.num_weights if num_samples is None else num_samples
        if num_samples < 1:
            raise ValueError(f"num_samples must be at least 1; got {num_samples}.")
        if is_concrete(self.log_weights) and not np.all(np.isfinite(self.log_evidence)):
            raise ValueError(
                "Every weight is zero, so there is nothing to draw from; see print(evidence)."
            )
        shares = weights.weight_shares(self.log_weights)
        points = random.uniform(rng_key, (num_samples, *shares.shape[1:]), shares.dtype)
        draw = weights.owners
        if shares.ndim > 1:
            draw = jax.vmap(draw, in_axes=1, out_axes=1)
        indices = draw(points, shares)
        index = indices.reshape(*indices.shape, *(1,) * (self.positions.ndim - indices.ndim))
        positions = jnp.take_along_axis(self.positions, index, axis=0)
        draws: dict = jax.vmap(make_target(self.problem).constrain_fn)(positions)
        return draws

    def to_arviz(self, rng_key: jax.Array | None = None, num_samples: int | None = None) -> Any:
        """
        Returns :meth:`samples` as ArviZ ``InferenceData`` (ArviZ 0.x) or a ``DataTree`` (1.x).

        See :func:`numpyro_dais.results.arviz.to_arviz`.

        :param rng_key: the key of the resampling; a fixed one if left out.
        :param num_samples: the number of draws; as many as weights if left out.
        """
        from numpyro_dais.results.arviz import to_arviz

        return to_arviz(self, rng_key, num_samples)

    def plot(self) -> Any:
        """
        Returns a Matplotlib figure of the run: its settings, the precision that it loses along its
        path, and its weights.

        See :func:`numpyro_dais.results.plots.plot_evidence`.
        """
        from numpyro_dais.results.plots import plot_evidence

        return plot_evidence(self)

    def __float__(self) -> float:
        if self.log_weights.ndim > 1:
            raise TypeError(
                "This evidence has one value per element of the plate; take evidence.log_evidence, "
                "or float(evidence.log_evidence.sum()) for all elements together."
            )
        return float(self.log_evidence)

    def __repr__(self) -> str:
        from numpyro_dais.results.report import describe

        if not is_concrete((self.log_weights, self.num_gradients, self.is_start_finite)):
            return f"Evidence({self.method}, log_weights={self.log_weights})"
        return describe(self)

    def _require_concrete(self, name: str) -> None:
        if not is_concrete((self.log_weights, self.is_start_finite)):
            raise ValueError(
                f"Evidence.{name} is computed on the host and needs concrete values; use it "
                "outside jit, vmap and grad."
            )


def _on_host(
    fn: Callable[[Any, ModuleType], Any], log_weights: jax.Array, dtype: Any = None
) -> jax.Array:
    """
    Returns a number read off the weights. Concrete ones are read in NumPy: on a first call,
    compiling the few operations one by one would take a second.

    :param fn: the number, as a function of log weights and of an array library.
    :param log_weights: the log weights.
    :param dtype: the type of the number; that of the weights if left out.
    """
    if not is_concrete(log_weights):
        return fn(log_weights, jnp)
    with np.errstate(all="ignore"):
        value = np.asarray(fn(np.asarray(log_weights, np.float64), np))
    return jax.device_put(value.astype(log_weights.dtype if dtype is None else dtype))


def _khat(log_weights: np.ndarray, tolerance: float) -> float:
    """Returns k-hat: infinite without weights, zero where all are equal within the tolerance."""
    if not np.any(np.isfinite(log_weights)):
        return float("inf")
    if np.ptp(log_weights) <= tolerance:
        return 0.0  # equal weights: the perfect result, in whose tail there is nothing to fit
    return weights.pareto_khat(log_weights)
