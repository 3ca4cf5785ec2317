# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

r"""
Closed forms for Bayesian linear regression, where every DAIS update is an affine map of Gaussians.

For :math:`u \sim N(m_0, \Lambda_0^{-1})` and :math:`y \sim N(X u, \sigma^2 I)` the exact evidence
is known, and so is the *expected* bound of a chain from the prior: mean and covariance of
:math:`(u, v)` are propagated through the steps and the bound is read off. It serves as the oracle
of the tests and as the solid lines of the convergence study. Everything is float64, whatever
precision JAX runs in, and for concrete values only.
"""

from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from numpyro_dais.closed_form.moments import BatchTensors, GaussianTarget, Steps, propagate

__all__ = ["GapAnatomy", "LinearRegression"]

Array = NDArray[np.floating]

# The largest element off the diagonal, relative to all, of a matrix that counts as diagonal. Round:
# some thousand roundings of float64, and far below what would show in a gap.
_DIAGONAL_WITHIN = 1e-12


class GapAnatomy(NamedTuple):
    r"""
    The gap in three terms, and the lag of the chain behind the path.

    The first two are the divergence of the chain's last position from the posterior, for Gaussians
    with its moments. The third is what the momenta tell about the path: their gains of kinetic
    energy, less the entropy that the position lost. None of them is negative, and each vanishes as
    the chain slows.

    :param mean: half the squared distance of the last mean from the posterior mean, in posterior
        units.
    :param covariance: the divergence of the last covariance from that of the posterior.
    :param kinetic: the rest.
    :param lag: the distance between mean and minimum of the energy at its temperature after each
        step, ``[K]``; Lemma 1 of the paper bounds it.
    """

    mean: float
    covariance: float
    kinetic: float
    lag: Array

    @property
    def gap(self) -> float:
        """The sum of the three terms."""
        return self.mean + self.covariance + self.kinetic


class _Chain(NamedTuple):
    """Mean and covariance of the last position, kinetic energy lost, mean after each step."""

    mean: Array
    covariance: Array
    kinetic: float
    means: Array


class LinearRegression:
    r"""
    Bayesian linear regression with a Gaussian prior and known noise.

    :param X: covariates, ``[n, d]``.
    :param y: responses, ``[n]``.
    :param noise_scale: :math:`\sigma`.
    :param prior_mean: :math:`m_0`; a number or ``[d]``.
    :param prior_precision: :math:`\Lambda_0`; a number, a diagonal ``[d]`` or a matrix ``[d, d]``.

    >>> regression = LinearRegression(X=[[1.0], [2.0]], y=[0.5, 1.5])
    >>> round(regression.log_evidence, 6)
    -2.962923
    """

    def __init__(
        self,
        X: ArrayLike,
        y: ArrayLike,
        *,
        noise_scale: float = 1.0,
        prior_mean: ArrayLike = 0.0,
        prior_precision: ArrayLike = 1.0,
    ) -> None:
        X, y = np.asarray(X, np.float64), np.asarray(y, np.float64)
        if X.ndim != 2 or y.shape != X.shape[:1]:
            raise ValueError(f"X must be [n, d] and y [n]; got shapes {X.shape} and {y.shape}.")
        if not noise_scale > 0:
            raise ValueError(f"noise_scale must be positive; got {noise_scale}.")
        self.num_data, self.num_dims = X.shape
        self.noise_scale = float(noise_scale)
        self.prior_mean = np.broadcast_to(np.asarray(prior_mean, np.float64), (self.num_dims,))
        self.prior_precision = _as_matrix(prior_precision, self.num_dims)
        residual = y - X @ self.prior_mean
        self._rows = X / noise_scale, residual / noise_scale
        self.gram = X.T @ X / noise_scale**2
        self.posterior_precision = self.prior_precision + self.gram
        self._score = X.T @ residual / noise_scale**2  # of the likelihood, at the prior mean
        self._residual_energy = float(residual @ residual) / noise_scale**2
        self.posterior_mean = self.prior_mean + np.linalg.solve(
            self.posterior_precision, self._score
        )

    @property
    def log_evidence(self) -> float:
        r"""The exact :math:`\log p(D)`."""
        explained = self._score @ (self.posterior_mean - self.prior_mean)
        log_scale = self.num_data * np.log(2 * np.pi * self.noise_scale**2)
        return float(self._log_volume_change - (log_scale + self._residual_energy - explained) / 2)

    @property
    def _log_volume_change(self) -> float:
        """Half the log determinant of the prior precision over that of the posterior precision."""
        prior = np.linalg.slogdet(self.prior_precision)[1]
        return float(prior - np.linalg.slogdet(self.posterior_precision)[1]) / 2

    def expected_bound(
        self,
        betas: ArrayLike,
        step_size: ArrayLike,
        damping: ArrayLike,
        *,
        preconditioner: ArrayLike | None = None,
        gradient_noise: ArrayLike | None = None,
        batch_size: int | None = None,
    ) -> float:
        r"""
        Returns the exact expectation of :math:`\log w` over chains from the prior: log evidence
        minus :meth:`expected_gap`, whose parameters it shares.
        """
        gap = self.expected_gap(
            betas,
            step_size,
            damping,
            preconditioner=preconditioner,
            gradient_noise=gradient_noise,
            batch_size=batch_size,
        )
        return self.log_evidence - gap

    def expected_gap(
        self,
        betas: ArrayLike,
        step_size: ArrayLike,
        damping: ArrayLike,
        *,
        preconditioner: ArrayLike | None = None,
        gradient_noise: ArrayLike | None = None,
        batch_size: int | None = None,
    ) -> float:
        r"""
        Returns :math:`\log p(D) - E[\log w]`, exactly.

        The cost is O(dK) when prior precision, preconditioner and gradient noise are diagonal in
        the eigenbasis of :math:`X^\top X`, O(d^3 K) otherwise, and O(d^4 K) with mini-batches.

        :param betas: inverse temperatures, ``[K]``.
        :param step_size: :math:`\eta`, a number or ``[K]``.
        :param damping: :math:`\gamma`, a number or ``[K]``.
        :param preconditioner: :math:`L`, constant (``[d]`` or ``[d, d]``) or per step
            (``[K, d]`` or ``[K, d, d]``; a two-dimensional array with K = d counts as a matrix).
        :param gradient_noise: :math:`\Sigma`, the covariance of independent noise
            :math:`\xi \sim N(0, \Sigma)` added to the gradient of the log likelihood in each step.
        :param batch_size: the number of rows B of a mini-batch, drawn without replacement anew in
            each step, that the gradient of the log likelihood is estimated from.
        """
        steps = betas, step_size, damping
        return self._gap(self._follow(*steps, preconditioner, gradient_noise, batch_size))

    def gap_anatomy(
        self,
        betas: ArrayLike,
        step_size: ArrayLike,
        damping: ArrayLike,
        *,
        preconditioner: ArrayLike | None = None,
        gradient_noise: ArrayLike | None = None,
        batch_size: int | None = None,
    ) -> GapAnatomy:
        """Returns the terms of :meth:`expected_gap`, whose parameters it shares, and the lag."""
        steps = betas, step_size, damping
        chain = self._follow(*steps, preconditioner, gradient_noise, batch_size, keep_means=True)
        relative = self.posterior_precision @ chain.covariance
        covariance = (np.trace(relative) - self.num_dims - np.linalg.slogdet(relative)[1]) / 2
        mean = self._distance(chain)
        rest = self._gap(chain) - mean - covariance
        lag = np.linalg.norm(chain.means - self._tempered(betas)[2], axis=-1)
        return GapAnatomy(float(mean), float(covariance), float(rest), lag)

    def perfect_gap(self, betas: ArrayLike) -> float:
        r"""
        Returns the gap of annealed importance sampling with perfect transitions,
        :math:`\sum_k KL(\pi_{k-1} \| \pi_k)` from the prior :math:`\pi_0` on: O(1/K).

        :param betas: inverse temperatures, ``[K]``; the last is one.
        """
        precisions, means, _ = self._tempered(np.concatenate([[0.0], np.asarray(betas)]))
        change = np.diff(precisions, axis=0) / precisions[:-1]
        shift = np.diff(means, axis=0) ** 2 * precisions[1:]
        return float(np.sum(change - np.log1p(change) + shift)) / 2

    def gradient_noise(self, batch_size: int) -> Array:
        r"""
        Returns the covariance of the error of a mini-batch's gradient at the posterior mean,
        ``[d, d]``,

        .. math:: \frac{N^2}{B} \frac{N - B}{N - 1} C(u) ,

        with the population covariance C of a row's gradient: the additive noise of the paper, to be
        passed as ``gradient_noise``. The exact noise, that of ``batch_size``, depends on u and is
        wider.

        :param batch_size: the number of rows B of a mini-batch, drawn without replacement.
        """
        X, residual = self._rows
        gradients = X * (residual - X @ (self.posterior_mean - self.prior_mean))[:, None]
        return self._batch_scale(batch_size) * np.cov(gradients.T, bias=True).reshape(
            self.gram.shape
        )

    def _follow(
        self,
        betas: ArrayLike,
        step_size: ArrayLike,
        damping: ArrayLike,
        preconditioner: ArrayLike | None,
        gradient_noise: ArrayLike | None,
        batch_size: int | None,
        keep_means: bool = False,
    ) -> _Chain:
        if batch_size is not None and gradient_noise is not None:
            raise ValueError(
                "batch_size brings its own gradient noise; got gradient_noise as well. Leave one "
                "out."
            )
        betas = np.asarray(betas, np.float64)
        noise = _as_matrix(0.0 if gradient_noise is None else gradient_noise, self.num_dims)
        scales = self._preconditioners(preconditioner, len(betas))
        batch = None
        if batch_size is not None and self._batch_scale(batch_size) > 0:
            batch = self._batch_tensors._replace(scale=np.array(self._batch_scale(batch_size)))
        basis = np.linalg.eigh(self.gram)[1]
        matrices = (self.prior_precision, noise, scales)
        is_split = batch is None and all(_is_diagonal_in(basis, matrix) for matrix in matrices)

        def blocks(matrix: Array) -> Array:
            """Returns [..., d, d] as one block, or, in the eigenbasis, as d blocks of size one."""
            if not is_split:
                return matrix[..., None, :, :]
            rotated = basis.T @ matrix @ basis
            return np.diagonal(rotated, axis1=-2, axis2=-1)[..., None, None]

        score = (basis.T @ self._score)[:, None, None] if is_split else self._score[None, :, None]
        target = GaussianTarget(
            blocks(self.prior_precision), blocks(self.gram), score, blocks(noise), batch
        )
        steps = Steps(
            betas,
            np.broadcast_to(np.asarray(step_size, np.float64), betas.shape),
            np.broadcast_to(np.asarray(damping, np.float64), betas.shape),
            blocks(scales),
        )
        chain = propagate(target, steps, keep_means)
        mean, covariance = chain.moments.mean_u.reshape(-1), chain.moments.cov_uu
        means = chain.means.reshape(-1, self.num_dims)
        if not is_split:
            return _Chain(mean, covariance[0], chain.kinetic, means)
        covariance = basis * covariance[:, 0, 0] @ basis.T
        return _Chain(basis @ mean, covariance, chain.kinetic, means @ basis.T)

    def _gap(self, chain: _Chain) -> float:
        spread = np.sum(self.posterior_precision * chain.covariance) - self.num_dims
        distance = self._distance(chain)
        return float(self._log_volume_change + spread / 2 + distance - chain.kinetic)

    def _distance(self, chain: _Chain) -> float:
        """Returns half the squared distance from the posterior mean, in posterior units."""
        lag = chain.mean - (self.posterior_mean - self.prior_mean)
        return lag @ self.posterior_precision @ lag / 2

    def _tempered(self, betas: ArrayLike) -> tuple[Array, Array, Array]:
        """
        Returns precisions and means of the path, ``[K, d]``, in coordinates where all of it is
        independent and the prior standard; and the means as they are, from the prior mean.
        """
        betas = np.asarray(betas, np.float64)[:, None]
        root = np.linalg.inv(np.linalg.cholesky(self.prior_precision))
        eigenvalues, basis = np.linalg.eigh(root @ self.gram @ root.T)
        precisions = 1 + betas * eigenvalues
        means = betas * (basis.T @ root @ self._score) / precisions
        return precisions, means, means @ basis.T @ root

    def _preconditioners(self, preconditioner: ArrayLike | None, num_steps: int) -> Array:
        """Returns the preconditioner as matrices, one per step, or a single one for all."""
        scale = np.asarray(1.0 if preconditioner is None else preconditioner, np.float64)
        if scale.shape == (num_steps, 1, self.num_dims):  # diagonals, as settings may have them
            return scale * np.eye(self.num_dims)
        if scale.shape == (1, *self.gram.shape):
            return scale
        is_per_step = scale.ndim == 3 or (scale.ndim == 2 and scale.shape != self.gram.shape)
        if not is_per_step:
            return _as_matrix(scale, self.num_dims)[None]
        if len(scale) != num_steps:
            raise ValueError(
                f"A preconditioner per step needs one for each of the {num_steps} betas; got shape "
                f"{scale.shape}."
            )
        return scale if scale.ndim == 3 else scale[:, :, None] * np.eye(self.num_dims)

    def _batch_scale(self, batch_size: int) -> float:
        """Returns the covariance of a mini-batch's gradient in units of that of a row's."""
        if not 1 <= batch_size <= self.num_data:
            raise ValueError(
                f"batch_size must be between 1 and the {self.num_data} rows of X; got {batch_size}."
            )
        without_replacement = (self.num_data - batch_size) / max(self.num_data - 1, 1)
        return self.num_data**2 / batch_size * without_replacement

    @cached_property
    def _batch_tensors(self) -> BatchTensors:
        """The sums over rows, with a scale, the only part that depends on the batch, of zero."""
        X, residual = self._rows
        squares = (X[:, :, None] * X[:, None, :]).reshape(self.num_data, -1)
        return BatchTensors(
            fourth=squares.T @ squares,
            third=squares.T @ (residual[:, None] * X),
            second=X.T @ (residual[:, None] ** 2 * X),
            num_data=np.array(float(self.num_data)),
            scale=np.array(0.0),
        )


def _as_matrix(value: ArrayLike, num_dims: int) -> Array:
    value = np.asarray(value, np.float64)
    return value if value.ndim == 2 else value * np.eye(num_dims)


def _is_diagonal_in(basis: Array, matrices: Array) -> bool:
    rotated = basis.T @ matrices @ basis
    off_diagonal = rotated * (1 - np.eye(len(basis)))
    largest = np.max(np.abs(rotated), initial=0.0)
    return bool(np.all(np.abs(off_diagonal) <= _DIAGONAL_WITHIN * largest))
