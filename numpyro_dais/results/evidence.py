# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""The result of every estimator: log weights, and the numbers that are read off them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
import hashlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro.diagnostics import effective_sample_size

from numpyro_dais._util import weights
from numpyro_dais._util.concreteness import is_concrete, put_beside
from numpyro_dais._util.tails import FEWEST_WEIGHTS, Tail, error_with_tail, tail_of
from numpyro_dais.model.problem import Problem
from numpyro_dais.results.bennett import Bennett, bennett
from numpyro_dais.sampler.findings import Findings
from numpyro_dais.sampler.rounds import Round
from numpyro_dais.sampler.settings import Settings

if TYPE_CHECKING:
    from numpyro_dais.results.bayes_factor import LogBayesFactor
    from numpyro_dais.results.diagnostics import Diagnostics
    from numpyro_dais.results.draws import Expectation

__all__ = ["Evidence"]


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
        "is_zero",
    ],
    meta_fields=[
        "method",
        "num_chains",
        "notes",
        "remarks",
        "island_size",
        "history",
        "target_error",
        "findings",
    ],
)
@dataclass(frozen=True, eq=False, repr=False)
class Evidence:
    r"""
    An estimate of the evidence :math:`p(D)` from weighted particles.

    It is a pytree, so it may be returned from :func:`jax.jit` and :func:`jax.vmap` (along the first
    axis, the default), and its numbers differentiated. The numbers of a batch have its axes first;
    with a plate, they are arrays over its elements, along the last axis.

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
        are taken to be independent.
    :param notes: faults that the run itself has met, such as posterior draws that are not to be
        trusted; they are among the warnings.
    :param remarks: what a reader should know and what is no fault; printed, and no warning.
    :param island_size: the number of particles that each weight stands for. More than one if they
        were resampled on their way: a weight then is the estimate of an island of particles, and
        its position that of one of them, drawn by weight. Weights of islands are as independent and
        unbiased as those of particles are.
    :param is_zero: whether each weight is zero because the density is, as outside of a hard
        constraint, and not because a number left the representable ones; None for not known.
    :param history: the rounds of a self-tuned run, the last of which is this result; see
        :class:`~numpyro_dais.sampler.rounds.Round`. None are there if settings were given.
    :param target_error: the error that a self-tuned run aimed at; None if there was no goal.
    :param findings: what tuning has seen of the posterior; None if it did not look for a start.
        :attr:`diagnostics` reads it.
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
    is_zero: jax.Array | None = None
    history: tuple[Round, ...] = ()
    target_error: float | None = None
    remarks: tuple[str, ...] = ()
    findings: Findings | None = None

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The axes that :func:`jax.vmap` has put in front of those of particles and plate."""
        num_own = 2 if self.problem.plates else 1
        shape = jnp.shape(self.log_weights)
        if len(shape) == num_own:
            return ()
        batch_shape = shape[: len(shape) - num_own]
        # Numbers and vectors show where the axes of a batch are, if not in front.
        expected = {
            "num_gradients": batch_shape,
            "is_start_finite": shape[: len(batch_shape)],
            "positions": shape[: len(batch_shape) + 1],
        }
        for name, leading in expected.items():
            found = jnp.shape(getattr(self, name))
            if (found if name == "num_gradients" else found[: len(leading)]) != leading:
                raise ValueError(
                    f"The axes of a batch must come first in every part of an Evidence; log_weights have shape "
                    f"{shape} and {name} {found}. Use jax.vmap with out_axes=0, the default."
                )
        return batch_shape

    @property
    def num_particles(self) -> int:
        """The number of particles S."""
        return self.num_weights * self.island_size

    @property
    def num_weights(self) -> int:
        """The number of independent weights: that of the particles, or of their islands."""
        return self.log_weights.shape[len(self.batch_shape)]

    @property
    def log_evidence(self) -> jax.Array:
        r"""
        The estimate :math:`\log \frac1S \sum_s w_s` of :math:`\log p(D)`. Its exponential is
        unbiased, so it is itself a lower bound in expectation, tighter than :attr:`lower_bound`.
        With reverse chains it is Bennett's acceptance ratio of both directions instead.
        """
        if self.reverse_log_weights is not None:
            return self._bennett().log_evidence
        return self._read(weights.log_mean, self.log_weights)

    @property
    def standard_error(self) -> jax.Array:
        """
        The standard error of :attr:`log_evidence`; infinite when it cannot be known, as with one
        particle.

        It is the larger of two: the jackknife's, and one that allows for large weights which have
        not been met, by a fit of the weights' tail (see :mod:`numpyro_dais._util.tails`). The
        second is half of the distance within which the log evidence lies with a probability of
        0.95. It takes concrete values and 25 weights, and a tail that has a mean; under
        :func:`jax.jit` and other tracing, and with fewer weights, the jackknife's stands alone.
        With reverse chains, the error is that of Bennett's acceptance ratio.
        """
        if self.reverse_log_weights is not None:
            return self._bennett(self.num_effective_draws).standard_error
        if is_concrete(self.log_weights):
            return self._error_with_tail
        return self._read(weights.log_mean_error, self.log_weights)

    @property
    def is_goal_met(self) -> bool | None:
        """
        True if a self-tuned run has reached its ``target_error``, by its own error; None if it had
        no goal.
        """
        if self.target_error is None:
            return None
        self._require_concrete("is_goal_met")
        return bool(np.all(np.asarray(self.standard_error) <= self.target_error))

    @property
    def lower_bound(self) -> jax.Array:
        r"""
        The mean :math:`\frac1S \sum_s \log w_s`, the paper's :math:`\mathcal L_{DAIS}`: a lower
        bound of :math:`\log p(D)` in expectation.
        """
        return self._read(weights.mean_log, self.log_weights)

    @property
    def lower_bound_error(self) -> jax.Array:
        """
        The standard error of :attr:`lower_bound`; infinite with one particle or a zero weight, and
        where all particles share one sequence of mini-batches, over which it would have to be
        taken.
        """
        if self.has_shared_batches:
            return jnp.full(jnp.shape(self.lower_bound), jnp.inf)
        return self._read(weights.mean_log_error, self.log_weights)

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
        return self._read(lambda x, xp: -weights.mean_log(-x, xp), self.reverse_log_weights)

    @property
    def upper_bound_error(self) -> jax.Array | None:
        """The standard error of :attr:`upper_bound`, over the effective number of draws."""
        if self.reverse_log_weights is None:
            return None
        num_effective = self.num_effective_draws
        # Measured from one of them, for the sake of float32.
        return self._read(
            lambda x, xp: xp.std(x - x[0], axis=0, ddof=1) / np.sqrt(num_effective),
            self.reverse_log_weights,
        )

    @property
    def overlap(self) -> jax.Array | None:
        """
        The number of particles that both directions share, by Bennett's ratio; None without reverse
        chains.
        """
        return None if self.reverse_log_weights is None else self._bennett().overlap

    @property
    def num_effective_draws(self) -> Any:
        """
        The number of independent posterior draws that the reverse weights are worth: all of them,
        unless they are of Markov chains. None without reverse chains.
        """
        if self.reverse_log_weights is None:
            return None
        num_draws = self.reverse_log_weights.shape[len(self.batch_shape)]
        if self.num_chains is None:
            return num_draws
        chains = np.asarray(self._particles_first(self.reverse_log_weights), np.float64)
        chains = chains.reshape(self.num_chains, -1, *chains.shape[1:])
        return np.clip(effective_sample_size(chains), 1.0, num_draws)

    @property
    def ess(self) -> jax.Array:
        r"""The effective sample size of the weights, :math:`(\sum_s w_s)^2 / \sum_s w_s^2`."""
        return self._read(weights.ess, self.log_weights)

    @property
    def num_nonfinite(self) -> jax.Array:
        """
        The number of weights that are zero because a log density was not finite, be it that of a
        point outside of a hard constraint; of all elements of a plate together.
        """
        return self._count_nonfinite()

    @property
    def num_lost(self) -> jax.Array:
        """
        The number of weights that are zero because a number left the representable ones, and not
        because the density is zero.
        """
        return self._count_nonfinite(False if self.is_zero is None else self.is_zero)

    @cached_property
    def khat(self) -> float | np.ndarray | None:
        r"""
        The Pareto shape :math:`\hat k` of the weights' tail, or None below 25 particles
        (Vehtari et al. 2024); below a hundred it is hardly known. The error allows for it, but
        above 0.7 neither that nor the estimate is to be trusted. Computed on the host.
        """
        self._require_concrete("khat")
        if self.num_weights < FEWEST_WEIGHTS:
            return None
        khats = np.array([tail.shape for tail in self._tails])
        shape = self._particles_first(self.log_weights).shape[1:]
        return khats.reshape(shape) if shape else float(khats[0])

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """The reasons not to trust the result, each with a remedy; none if all is well."""
        from numpyro_dais.results.report import find_faults

        self._require_concrete("warnings")
        return find_faults(self)

    @cached_property
    def diagnostics(self) -> "Diagnostics":
        """
        The error budget: statistical error, tail of the weights, mass that may be missed, and how
        other estimates of the same number agree. See
        :class:`~numpyro_dais.results.diagnostics.Diagnostics`.
        """
        from numpyro_dais.results.diagnostics import diagnose

        self._require_concrete("diagnostics")
        return diagnose(self)

    def samples(self, rng_key: jax.Array | None = None, num_samples: int | None = None) -> dict:
        """
        Returns posterior draws: particles resampled by weight, systematically (for each element of
        a plate by its own weights, and for each run of a batch), as values of the latent and
        ``deterministic`` sites. For means and other expectations, :meth:`expectation` is more
        precise, and has an error.

        Enumerated discrete sites are not among them, and a ``deterministic`` site that depends on
        one sees a draw from its prior, as with NumPyro's MCMC.

        :param rng_key: the key of the resampling; a fixed one if left out.
        :param num_samples: the number of draws; as many as weights if left out. More than the
            effective sample size repeat the same particles.
        """
        from numpyro_dais.results.draws import draw_samples

        return draw_samples(self, rng_key, num_samples)

    def expectation(self, fn: Callable[[dict], Any]) -> "Expectation":
        r"""
        Returns the posterior expectation of a function of the sites, from all particles by their
        weights, :math:`\sum_s w_s f(x_s) / \sum_s w_s`, with its standard error (delta method).

        Use this for means, probabilities and other summaries; use :meth:`samples` where single
        draws are wanted, as for predictions or plots.

        :param fn: a function of a dict with the values of one draw, as :meth:`samples` has many of;
            it returns an array or a tree of arrays. With a plate, the first axes of these must be
            those of the plate.

        **Example**

        >>> import numpyro, numpyro.distributions as dist
        >>> from numpyro_dais import DAIS
        >>> def model():
        ...     p = numpyro.sample("p", dist.Beta(2.0, 3.0))
        ...     numpyro.sample("y", dist.Binomial(10, p), obs=7.0)
        >>> mean, error = DAIS(model).log_evidence().expectation(lambda draw: draw["p"])
        >>> bool(abs(mean - 9 / 15) < 5 * error)
        True
        """
        from numpyro_dais.results.draws import expectation

        return expectation(self, fn)

    def to_arviz(self, rng_key: jax.Array | None = None, num_samples: int | None = None) -> Any:
        """
        Returns :meth:`samples` as ArviZ ``InferenceData`` (ArviZ 0.x) or a ``DataTree`` (1.x).

        See :func:`numpyro_dais.results.arviz.to_arviz`.

        :param rng_key: the key of the resampling; a fixed one if left out.
        :param num_samples: the number of draws; as many as the effective sample size if left out.
        """
        from numpyro_dais.results.arviz import to_arviz

        return to_arviz(self, rng_key, num_samples)

    def digest(self) -> str:
        """
        Returns a short digest of every bit of the log weights, those of reverse chains included,
        and of the positions.

        The same call with the same key has the same digest, on whatever number of devices and hosts
        it was made; another one says that hosts differ in their data, versions or hardware. On
        CPUs, where matrix products depend on the number of threads, set ``PJRT_NPROC`` to the same
        number everywhere, at least that of the devices of a process.

        >>> from numpyro_dais import DAIS
        >>> import numpyro, numpyro.distributions as dist
        >>> def model():
        ...     p = numpyro.sample("p", dist.Beta(2.0, 3.0))
        ...     numpyro.sample("y", dist.Binomial(10, p), obs=7.0)
        >>> run = DAIS(model, num_steps=2, step_size=0.1, num_particles=4)
        >>> run.log_evidence().digest() == run.log_evidence().digest()
        True
        """
        self._require_concrete("digest")
        parts = self.log_weights, self.reverse_log_weights, self.positions
        arrays = [np.asarray(part) for part in parts if part is not None]
        content = hashlib.blake2b(digest_size=8)
        for array in arrays:
            content.update(f"{array.shape} {array.dtype}".encode())
            content.update(array.astype(array.dtype.newbyteorder("<")).tobytes())
        return content.hexdigest()

    def plot(self) -> Any:
        """
        Returns a Matplotlib figure of the run: its settings, the precision that it loses along its
        path, and its weights.

        See :func:`numpyro_dais.results.plots.plot_evidence`.
        """
        from numpyro_dais.results.plots import plot_evidence

        return plot_evidence(self)

    def __float__(self) -> float:
        if self.batch_shape:
            raise TypeError(
                f"This evidence is a batch of shape {self.batch_shape}; take evidence.log_evidence."
            )
        if self.log_weights.ndim > 1:
            raise TypeError(
                "This evidence has one value per element of the plate; take evidence.log_evidence, "
                "or float(evidence.log_evidence.sum()) for all elements together."
            )
        return float(self.log_evidence)

    def __format__(self, spec: str) -> str:
        return format(float(self), spec) if spec else str(self)

    def __sub__(self, other: object) -> "LogBayesFactor":
        """Returns the log Bayes factor of two models of the same data, with its error."""
        from numpyro_dais.results.bayes_factor import log_bayes_factor

        return log_bayes_factor(self, other) if isinstance(other, Evidence) else NotImplemented

    def __repr__(self) -> str:
        from numpyro_dais.results.report import describe

        if not is_concrete(self):
            return f"Evidence({self.method}, log_weights={self.log_weights})"
        return describe(self)

    def _require_concrete(self, name: str) -> None:
        if not is_concrete((self.log_weights, self.is_start_finite)):
            raise ValueError(
                f"Evidence.{name} is computed on the host and needs concrete values; use it "
                "outside jit, vmap and grad."
            )

    @cached_property
    def _tails(self) -> tuple[Tail, ...]:
        """The tail of each run of a batch and element of a plate."""
        log_weights = np.asarray(self._particles_first(self.log_weights))
        resolution = weights.resolution(log_weights)
        columns = log_weights.astype(np.float64).reshape(self.num_weights, -1).T
        return tuple(tail_of(column, resolution) for column in columns)

    @cached_property
    def _error_with_tail(self) -> jax.Array:
        """The larger of the jackknife's error and that of the tail, on concrete values."""
        if self.num_weights < FEWEST_WEIGHTS:
            return self._read(weights.log_mean_error, self.log_weights)

        def error(log_weights: Any, _: ModuleType) -> Any:
            columns = log_weights.reshape(self.num_weights, -1).T
            pairs = zip(columns, self._tails, strict=True)
            errors = [error_with_tail(column, tail) for column, tail in pairs]
            return np.array(errors).reshape(log_weights.shape[1:])

        return self._read(error, self.log_weights)

    def _count_nonfinite(self, is_left_out: Any = False) -> jax.Array:
        axes = tuple(range(len(self.batch_shape), self.log_weights.ndim))
        if not is_concrete((self.log_weights, is_left_out)):
            return jnp.sum(~jnp.isfinite(self.log_weights) & ~is_left_out, axes)
        is_counted = ~np.isfinite(self.log_weights) & ~np.asarray(is_left_out)
        return put_beside(np.sum(is_counted, axes).astype(np.int32), self.log_weights)

    def _bennett(self, num_effective: Any = None) -> Bennett:
        forward = self._particles_first(self.log_weights)
        return bennett(forward, self._particles_first(self.reverse_log_weights), num_effective)

    def _particles_first(self, log_weights: Any) -> Any:
        """Log weights with the axis of particles before those of a batch."""
        xp = np if is_concrete(log_weights) else jnp
        return xp.moveaxis(log_weights, len(self.batch_shape), 0)

    def _read(self, fn: Callable[[Any, ModuleType], Any], log_weights: jax.Array) -> jax.Array:
        """
        Returns a number read off weights, for each run of a batch and element of a plate. Concrete
        ones are read in NumPy: on a first call, compiling the few operations one by one would take
        a second.

        :param fn: the number, as a function of log weights and of an array library.
        :param log_weights: the log weights.
        """
        weights_first = self._particles_first(log_weights)
        if not is_concrete(log_weights):
            return fn(weights_first, jnp)
        with np.errstate(all="ignore"):
            value = np.asarray(fn(np.asarray(weights_first, np.float64), np))
        return put_beside(value.astype(log_weights.dtype), log_weights)
