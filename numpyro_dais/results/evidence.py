# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""The result of every estimator: log weights, and what can be read off them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from types import ModuleType
from typing import Any
import warnings

import jax
from jax import lax, random
import jax.numpy as jnp
from jax.scipy.special import logsumexp
import numpy as np

from numpyro.diagnostics import effective_sample_size

from numpyro_dais._util.concreteness import is_concrete
from numpyro_dais._util.numpyro_internals import psis_khat
from numpyro_dais.model.problem import Problem
from numpyro_dais.model.target import make_target
from numpyro_dais.results.bennett import bennett
from numpyro_dais.sampler.settings import Settings

__all__ = ["Evidence"]

_KHAT_MIN_PARTICLES = 25
_KHAT_LIMIT = 0.7
_TOLERATED_LOSS = 0.1  # of a standard error
_ESS_LIMIT = 5.0


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
    :param num_gradients: gradient evaluations, those of the pilot run included. With mini-batches or a
        surrogate, in gradients on all the data; see :func:`numpyro_dais.model.dynamics.num_full_gradients`.
    :param acceptance: acceptance rates; None for methods without Metropolis correction.
    :param reverse_log_weights: those of reverse chains from posterior draws; None unless they were run.
    :param num_chains: of how many Markov chains the posterior draws are; None if they are independent.
    :param notes: what is to be said of the posterior draws, or of the memory mode.
    :param island_size: how many particles each weight stands for. More than one if they were resampled on their
        way: a weight then is the estimate of an island of particles, and its position that of one of them,
        drawn by weight. Weights of islands are as independent and unbiased as those of particles are.
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
        The estimate :math:`\log \frac1S \sum_s w_s` of :math:`\log p(D)`. Its exponential is unbiased,
        so it is itself a lower bound in expectation, tighter than :attr:`lower_bound`. With reverse
        chains it is Bennett's acceptance ratio of both directions instead.
        """
        if self.reverse_log_weights is not None:
            return bennett(self.log_weights, self.reverse_log_weights).log_evidence
        return _on_host(_log_mean, self.log_weights)

    @property
    def standard_error(self) -> jax.Array:
        """
        The jackknife standard error of :attr:`log_evidence`; infinite when it cannot be known, as with
        one particle. A single dominant weight makes it large, where the delta method's stays below one.
        """
        if self.reverse_log_weights is not None:
            num_effective = self._num_effective_reverse
            return bennett(self.log_weights, self.reverse_log_weights, num_effective).standard_error
        return _on_host(_standard_error, self.log_weights)

    @property
    def lower_bound(self) -> jax.Array:
        r"""
        The mean :math:`\frac1S \sum_s \log w_s`, the paper's :math:`\mathcal L_{DAIS}`: a lower bound of
        :math:`\log p(D)` in expectation.
        """
        return _on_host(_mean, self.log_weights)

    @property
    def lower_bound_error(self) -> jax.Array:
        """
        The standard error of :attr:`lower_bound`; infinite with one particle or a zero weight, and where all
        particles share one sequence of mini-batches, over which it would have to be taken.
        """
        if self._has_shared_batches:
            return jnp.full(self.log_weights.shape[1:], jnp.inf)
        return _on_host(_mean_error, self.log_weights)

    @property
    def _has_shared_batches(self) -> bool:
        plate = self.problem.data_plate
        return plate is not None and plate.batches == "shared" and self.settings.num_steps > 0

    @property
    def upper_bound(self) -> jax.Array | None:
        r"""
        The mean log weight of reverse chains, an upper bound of :math:`\log p(D)` in expectation if they
        began at exact posterior draws; None without reverse chains.
        """
        if self.reverse_log_weights is None:
            return None
        return _on_host(lambda x, xp: -_mean(-x, xp), self.reverse_log_weights)

    @property
    def upper_bound_error(self) -> jax.Array | None:
        """The standard error of :attr:`upper_bound`, with the effective number of posterior draws."""
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
        """How many independent posterior draws the reverse weights are worth."""
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
        return _on_host(_ess, self.log_weights)

    @property
    def num_nonfinite(self) -> jax.Array:
        """The number of weights that are zero because a density was not finite."""
        return _on_host(lambda x, xp: xp.sum(~xp.isfinite(x)), self.log_weights, int)

    @cached_property
    def khat(self) -> float | np.ndarray | None:
        r"""
        The Pareto shape :math:`\hat k` of the weights' tail, or None below 25 particles. Above 0.7 the
        estimate and its error are not to be trusted (Vehtari et al. 2024). Computed on the host.
        """
        self._require_concrete("khat")
        if self.num_weights < _KHAT_MIN_PARTICLES:
            return None
        log_weights = np.asarray(self.log_weights, np.float64)
        if log_weights.ndim == 1:
            return _khat(log_weights, self._resolution)
        return np.array([_khat(column, self._resolution) for column in log_weights.T])

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """Why the result should not be trusted, and what to do: one sentence each, none if all is well."""
        self._require_concrete("warnings")
        return tuple(self._faults())

    def samples(self, rng_key: jax.Array | None = None, num_samples: int | None = None) -> dict:
        """
        Returns posterior draws: particles resampled by weight (for each element of a plate by its own
        weights), as values of the latent and ``deterministic`` sites.

        Enumerated discrete sites are not among them, and a ``deterministic`` site that depends on one
        sees a draw from its prior, as with NumPyro's MCMC.

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
        shape = (num_samples, *self.log_weights.shape[1:])
        indices = random.categorical(rng_key, self.log_weights, axis=0, shape=shape)
        index = indices.reshape(*indices.shape, *(1,) * (self.positions.ndim - indices.ndim))
        positions = jnp.take_along_axis(self.positions, index, axis=0)
        draws: dict = jax.vmap(make_target(self.problem).constrain_fn)(positions)
        return draws

    def to_arviz(self, rng_key: jax.Array | None = None, num_samples: int | None = None) -> Any:
        """
        Returns :meth:`samples` as ArviZ ``InferenceData`` (ArviZ 0.x) or a ``DataTree`` (1.x).

        See :func:`numpyro_dais.results.arviz.to_arviz`.
        """
        from numpyro_dais.results.arviz import to_arviz

        return to_arviz(self, rng_key, num_samples)

    def plot(self) -> Any:
        """
        Returns a Matplotlib figure of the run: its settings, where along the path it loses precision, and its
        weights.

        See :func:`numpyro_dais.results.plots.plot_evidence`.
        """
        from numpyro_dais.results.plots import plot_evidence

        return plot_evidence(self)

    def __float__(self) -> float:
        if self.log_weights.ndim > 1:
            raise TypeError(
                "This evidence has one value per element of the plate; take evidence.log_evidence, or "
                "float(evidence.log_evidence.sum()) for all elements together."
            )
        return float(self.log_evidence)

    def __repr__(self) -> str:
        if not is_concrete((self.log_weights, self.num_gradients, self.is_start_finite)):
            return f"Evidence({self.method}, log_weights={self.log_weights})"
        if self.log_weights.ndim > 1:
            lines = self._describe_elements()
        else:
            lines = [
                f"{self.method}: log evidence {_with_error(self.log_evidence, self.standard_error)}",
                *self._describe_lower_bound(),
                *self._describe_batches(),
                *self._describe_upper_bound(),
                f"  {self._cost}; ESS {float(self.ess):.1f}, k-hat {_number(self.khat)}",
            ]
        return "\n".join(lines + [f"  Warning: {fault}" for fault in self.warnings])

    @property
    def _cost(self) -> str:
        num_steps, start = self.settings.num_steps, self.settings.start
        steps = f"{num_steps} steps" if num_steps else "no steps"
        origin = "" if start is None else f" from {start.description}"
        islands = f" resampled in {self.num_weights} islands" if self.island_size > 1 else ""
        return (
            f"{self.num_particles} particles{origin}{islands}, {steps}, "
            f"{int(self.num_gradients)} gradients"
        )

    @property
    def _unit(self) -> str:
        """What has a weight."""
        return "particles" if self.island_size == 1 else "islands"

    def _describe_lower_bound(self) -> list[str]:
        if self.settings.start is not None and not self.settings.num_steps:
            return []  # the stray draws that keep the weights bounded make it meaningless
        bound = _with_error(self.lower_bound, self.lower_bound_error)
        kind = "weight" if self.island_size == 1 else "estimate of the islands"
        return [f"  lower bound {bound} (mean log {kind})"]

    def _describe_upper_bound(self) -> list[str]:
        if self.upper_bound is None:
            return []
        kind = "exact draws" if self.num_chains is None else "approximate: draws by NUTS"
        return [f"  upper bound {_with_error(self.upper_bound, self.upper_bound_error)} ({kind})"]

    def _describe_batches(self) -> list[str]:
        if not self._has_shared_batches:
            return []
        return [
            "    (its error is over sequences of mini-batches, of which all particles share one: take several keys, "
            "or minibatch='particle')"
        ]

    def _describe_elements(self) -> list[str]:
        values, errors = np.asarray(self.log_evidence), np.asarray(self.standard_error)
        sum_error = np.sqrt(np.sum(errors**2))
        shown = [
            f"    [{i}] {_with_error(values[i], errors[i])}" for i in range(min(5, len(values)))
        ]
        dots = ["    ..."] if len(values) > 5 else []
        khat = None if self.khat is None else np.max(self.khat)
        return [
            f"{self.method}: log evidence of each of {len(values)} elements of plate "
            f"{self.problem.plate!r}, sum {_with_error(values.sum(), sum_error)}",
            *shown,
            *dots,
            f"  {self._cost}; smallest ESS {float(np.min(np.asarray(self.ess))):.1f}, largest k-hat {_number(khat)}",
        ]

    @property
    def _resolution(self) -> float:
        """The distance between neighbouring floating-point numbers at the size of the weights that count."""
        largest = np.max(np.asarray(self.log_weights), axis=0)
        largest = np.where(np.isfinite(largest), largest, 0.0)
        return float(np.finfo(self.log_weights.dtype).eps * np.max(np.abs(largest)))

    def _faults(self) -> list[str]:
        log_weights = np.asarray(self.log_weights)
        num_particles, ess = self.num_particles, np.min(np.asarray(self.ess))
        num_weights = self.num_weights
        faults = list(self.notes)
        num_bad_starts = int(np.sum(~np.asarray(self.is_start_finite)))
        num_nonfinite = int(np.sum(~np.isfinite(log_weights)))
        # What goes missing with them is no matter if it is far below the error.
        smallest_error = float(np.min(np.asarray(self.standard_error)))
        tolerated = _TOLERATED_LOSS * (smallest_error if np.isfinite(smallest_error) else 0.0)
        if num_bad_starts > tolerated * num_particles:
            faults.append(
                f"{num_bad_starts} of {num_particles} draws from the start were not finite "
                f"({num_bad_starts / num_particles:.0%}), and the estimate is too low by about their share; "
                "enable x64 with numpyro.enable_x64()."
            )
        elif num_nonfinite > tolerated * log_weights.size:
            faults.append(
                f"{num_nonfinite} of {log_weights.size} weights were not finite and count as zero, so the "
                "estimate may be too low; try a smaller step size, or x64."
            )
        if self.reverse_log_weights is not None:
            if self._overlap < _ESS_LIMIT:
                faults.append(
                    f"Forward and reverse weights hardly overlap ({self._overlap:.1f} effective pairs): trust "
                    "the bounds, not the estimate between them; use more steps or a fitted guide."
                )
        elif ess < min(_ESS_LIMIT, num_weights / 2):
            faults.append(
                f"The effective sample size is {ess:.1f} of {num_weights} {self._unit}: the estimate is "
                "likely too low and its error too small; use more steps or start from a fitted guide."
            )
        elif self.khat is not None and np.any(np.asarray(self.khat) > _KHAT_LIMIT):
            faults.append(
                f"k-hat is {np.max(self.khat):.2f}, above {_KHAT_LIMIT}: the weights are heavy-tailed and "
                "the error is not reliable; use more steps or start from a fitted guide."
            )
        resolution = self._resolution
        error = np.min(np.asarray(_on_host(_standard_error, self.log_weights)))
        if log_weights.dtype == np.float32 and resolution > max(error / 3, 1e-4):
            faults.append(
                f"float32 resolves log weights of this size to {resolution:.2g} only, which is not small "
                f"against the error of {error:.2g}; enable x64 with numpyro.enable_x64()."
            )
        return faults

    @property
    def _overlap(self) -> float:
        """How many particles, of both directions together, Bennett's ratio effectively compares."""
        assert self.reverse_log_weights is not None
        overlap = bennett(self.log_weights, self.reverse_log_weights).overlap
        return float(np.min(np.asarray(overlap)))

    def _require_concrete(self, name: str) -> None:
        if not is_concrete((self.log_weights, self.is_start_finite)):
            raise ValueError(
                f"Evidence.{name} is computed on the host and needs concrete values; use it outside "
                "jit, vmap and grad."
            )


def _on_host(
    fn: Callable[[Any, ModuleType], Any], log_weights: jax.Array, dtype: Any = None
) -> jax.Array:
    """
    Returns a number read off the weights. Concrete ones are read in NumPy: on a first call, compiling
    the few operations one by one would take a second.
    """
    if not is_concrete(log_weights):
        return fn(log_weights, jnp)
    with np.errstate(all="ignore"):
        value = np.asarray(fn(np.asarray(log_weights, np.float64), np))
    return jax.device_put(value.astype(log_weights.dtype if dtype is None else dtype))


def _largest(log_weights: Any, xp: ModuleType) -> Any:
    """The largest log weight, or zero; without a gradient."""
    largest = xp.max(log_weights, axis=0)
    largest = xp.where(xp.isfinite(largest), largest, 0.0)
    return largest if xp is np else lax.stop_gradient(largest)


def _log_mean(log_weights: Any, xp: ModuleType) -> Any:
    if xp is jnp:
        return logsumexp(log_weights, axis=0) - np.log(len(log_weights))
    largest = _largest(log_weights, xp)
    return largest + xp.log(xp.mean(xp.exp(log_weights - largest), axis=0))


def _mean(log_weights: Any, xp: ModuleType) -> Any:
    # Measured from the largest, so that float32 does not lose digits of a long sum.
    largest = _largest(log_weights, xp)
    return largest + xp.mean(log_weights - largest, axis=0)


def _mean_error(log_weights: Any, xp: ModuleType) -> Any:
    num_particles = len(log_weights)
    if num_particles == 1:
        return xp.full(log_weights.shape[1:], np.inf)
    is_finite = xp.all(xp.isfinite(log_weights), axis=0)
    centered = xp.where(is_finite, log_weights, 0.0) - xp.where(
        is_finite, _mean(log_weights, xp), 0.0
    )
    spread = xp.std(centered, axis=0, ddof=1)
    return xp.where(is_finite, spread / np.sqrt(num_particles), np.inf)


def _shares(log_weights: Any, xp: ModuleType) -> Any:
    """The weights divided by their sum; zeros where all are zero."""
    weights = xp.exp(log_weights - _largest(log_weights, xp))
    sums = xp.sum(weights, axis=0)
    return weights / xp.where(sums > 0, sums, 1.0)


def _ess(log_weights: Any, xp: ModuleType) -> Any:
    squares = xp.sum(_shares(log_weights, xp) ** 2, axis=0)
    return xp.where(squares > 0, 1 / xp.where(squares > 0, squares, 1.0), 0.0)


def _standard_error(log_weights: Any, xp: ModuleType) -> Any:
    num_particles = len(log_weights)
    if num_particles == 1:
        return xp.full(log_weights.shape[1:], np.inf)
    shares = _shares(log_weights, xp)
    # The log of the mean without each particle, up to a constant.
    without = xp.log1p(-xp.minimum(shares, 1 - np.finfo(shares.dtype).eps))
    variance = (num_particles - 1) * xp.var(without, axis=0)
    return xp.where(xp.sum(shares, axis=0) > 0, xp.sqrt(variance), np.inf)


def _khat(log_weights: np.ndarray, resolution: float) -> float:
    if not np.any(np.isfinite(log_weights)):
        return float("inf")
    if np.ptp(log_weights) <= 8 * resolution:
        return 0.0  # equal weights: the perfect result, in whose tail there is nothing to fit
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # too few tail samples: infinity says so
        return psis_khat(log_weights)


def _with_error(value: Any, error: Any) -> str:
    value, error = float(value), float(error)
    if not np.isfinite(error):
        return f"{value:.2f} (error unknown)"
    # Two digits of the error, and at most those of the value that it leaves.
    digits = 2 if error < 1e-6 else int(np.clip(1 - np.floor(np.log10(error)), 0, 6))
    return f"{value:.{digits}f} ± {error:.{digits}f}"


def _number(value: Any) -> str:
    return "not available" if value is None else f"{float(value):.2f}"
