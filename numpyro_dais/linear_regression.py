# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

r"""
Closed forms for Bayesian linear regression, where every DAIS update is an affine map of Gaussians.

For :math:`u \sim N(m_0, \Lambda_0^{-1})` and :math:`y \sim N(X u, \sigma^2 I)` the exact evidence is
known, and so is the *expected* bound of a chain from the prior: mean and covariance of
:math:`(u, v)` are propagated through the steps and the bound is read off. It serves as the oracle of
the tests and as the solid lines of the convergence study. Everything is float64 NumPy, whatever
precision JAX runs in.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["LinearRegression"]

Array = NDArray[np.floating]


class _Moments(NamedTuple):
    """Mean and covariance of (u, v); vectors are [blocks, size, 1], matrices [blocks, size, size]."""

    mean_u: Array
    mean_v: Array
    cov_uu: Array
    cov_uv: Array
    cov_vv: Array

    @property
    def kinetic_energy(self) -> float:
        """The expectation of half the squared momentum."""
        return float(np.trace(self.cov_vv, axis1=1, axis2=2).sum() + np.sum(self.mean_v**2)) / 2


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
    ) -> float:
        r"""
        Returns the exact expectation of :math:`\log w` over chains from the prior: log evidence
        minus :meth:`expected_gap`, whose parameters it shares.
        """
        gap = self.expected_gap(
            betas, step_size, damping, preconditioner=preconditioner, gradient_noise=gradient_noise
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
    ) -> float:
        r"""
        Returns :math:`\log p(D) - E[\log w]`, exactly.

        The cost is O(dK) when prior precision, preconditioner and gradient noise are diagonal in the
        eigenbasis of :math:`X^\top X`, and O(d^3 K) otherwise.

        :param betas: inverse temperatures, ``[K]``.
        :param step_size: :math:`\eta`, a number or ``[K]``.
        :param damping: :math:`\gamma`, a number or ``[K]``.
        :param preconditioner: :math:`L`, constant (``[d]`` or ``[d, d]``) or per step
            (``[K, d]`` or ``[K, d, d]``; a two-dimensional array with K = d counts as a matrix).
        :param gradient_noise: :math:`\Sigma`, the covariance of independent noise
            :math:`\xi \sim N(0, \Sigma)` added to the gradient of the log likelihood in each step.
        """
        betas = np.asarray(betas, np.float64)
        num_steps = len(betas)
        step_sizes = np.broadcast_to(np.asarray(step_size, np.float64), (num_steps,))
        dampings = np.broadcast_to(np.asarray(damping, np.float64), (num_steps,))
        scales = self._preconditioners(preconditioner, num_steps)
        noise = _as_matrix(0.0 if gradient_noise is None else gradient_noise, self.num_dims)
        basis = np.linalg.eigh(self.gram)[1]
        matrices = (self.prior_precision, noise, scales)
        is_split = all(_is_diagonal_in(basis, matrix) for matrix in matrices)

        def blocks(matrix: Array) -> Array:
            """[..., d, d] as [..., 1, d, d], or, in the eigenbasis, as d blocks of size one."""
            if not is_split:
                return matrix[..., None, :, :]
            rotated = basis.T @ matrix @ basis
            return np.diagonal(rotated, axis1=-2, axis2=-1)[..., None, None]

        def block_vector(vector: Array) -> Array:
            return (basis.T @ vector)[:, None, None] if is_split else vector[None, :, None]

        prior, gram, sigma = blocks(self.prior_precision), blocks(self.gram), blocks(noise)
        posterior = prior + gram
        score = block_vector(self._score)
        identity = np.broadcast_to(np.eye(prior.shape[-1]), prior.shape)
        zeros = np.zeros_like(score)
        # u is measured from the prior mean.
        moments = _Moments(zeros, zeros, np.linalg.inv(prior), np.zeros_like(prior), identity)
        kinetic = 0.0
        for beta, eta, gamma, scale in zip(
            betas, step_sizes, dampings, blocks(scales), strict=True
        ):
            before = moments.kinetic_energy
            moments = _drift(moments, eta / 2 * scale)
            kick = eta * scale.swapaxes(1, 2)
            moments = _kick(moments, kick, prior + beta * gram, beta * score, beta**2 * sigma)
            kinetic += before - moments.kinetic_energy
            moments = _refresh(_drift(moments, eta / 2 * scale), gamma, identity)
        lag = moments.mean_u - block_vector(self.posterior_mean - self.prior_mean)
        spread = np.einsum("bij,bji->", posterior, moments.cov_uu)
        distance = np.sum(lag * (posterior @ lag))
        return float(self._log_volume_change + (spread + distance - self.num_dims) / 2 - kinetic)

    def _preconditioners(self, preconditioner: ArrayLike | None, num_steps: int) -> Array:
        """The preconditioner as matrices, one per step."""
        matrix_shape = (self.num_dims, self.num_dims)
        scale = np.asarray(1.0 if preconditioner is None else preconditioner, np.float64)
        is_per_step = scale.ndim == 3 or (scale.ndim == 2 and scale.shape != matrix_shape)
        if not is_per_step:
            return np.broadcast_to(_as_matrix(scale, self.num_dims), (num_steps, *matrix_shape))
        return scale if scale.ndim == 3 else scale[:, :, None] * np.eye(self.num_dims)


def _drift(moments: _Moments, shift: Array) -> _Moments:
    """Moments after u += shift v."""
    cross = shift @ moments.cov_uv.swapaxes(1, 2)
    return moments._replace(
        mean_u=moments.mean_u + shift @ moments.mean_v,
        cov_uu=moments.cov_uu
        + cross
        + cross.swapaxes(1, 2)
        + shift @ moments.cov_vv @ shift.swapaxes(1, 2),
        cov_uv=moments.cov_uv + shift @ moments.cov_vv,
    )


def _kick(moments: _Moments, kick: Array, precision: Array, score: Array, noise: Array) -> _Moments:
    """Moments after v += kick (score - precision u + xi), where xi has covariance ``noise``."""
    slope = -kick @ precision
    cross = slope @ moments.cov_uv
    return moments._replace(
        mean_v=moments.mean_v + slope @ moments.mean_u + kick @ score,
        cov_uv=moments.cov_uv + moments.cov_uu @ slope.swapaxes(1, 2),
        cov_vv=moments.cov_vv
        + cross
        + cross.swapaxes(1, 2)
        + slope @ moments.cov_uu @ slope.swapaxes(1, 2)
        + kick @ noise @ kick.swapaxes(1, 2),
    )


def _refresh(moments: _Moments, damping: float, identity: Array) -> _Moments:
    """Moments after v = damping v + sqrt(1 - damping^2) eps."""
    return moments._replace(
        mean_v=damping * moments.mean_v,
        cov_uv=damping * moments.cov_uv,
        cov_vv=damping**2 * moments.cov_vv + (1 - damping**2) * identity,
    )


def _as_matrix(value: ArrayLike, num_dims: int) -> Array:
    value = np.asarray(value, np.float64)
    return value if value.ndim == 2 else value * np.eye(num_dims)


def _is_diagonal_in(basis: Array, matrices: Array) -> bool:
    rotated = basis.T @ matrices @ basis
    off_diagonal = rotated * (1 - np.eye(len(basis)))
    return bool(np.all(np.abs(off_diagonal) <= 1e-12 * np.max(np.abs(rotated), initial=0.0)))
