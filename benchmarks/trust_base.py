# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""What targets of ``trust.py`` are made of: their type, and integrals over boxes in a few dimensions, by NumPy in float64."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from dimension_targets import SizedTarget
import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize
from scipy.special import logsumexp

import numpyro
import numpyro.distributions as dist

FINENESS = 1.0  # of all grids; tests make it larger and see that no log evidence moves
STRETCH = 1.0  # of all grids at their open ends, likewise
LOG_EDGE = (
    -16.0
)  # a density at the open end of a grid, over its maximum; what is cut off is less than 1e-5


class TrustTarget(NamedTuple):
    """
    A model of known log evidence, ``reference_error`` being 0 if that is exact. It is a needle if a mode has more
    than 1 % of the evidence while less than 1e-4 of the prior's mass lies in its basin; this is declared before any run.
    """

    name: str
    num_dims: int
    model: Callable
    args: tuple
    log_evidence: float
    reference_error: float = 0.0
    is_needle: bool = False


class Axis(NamedTuple):
    """Nodes of a Gauss-Legendre rule. At an end that is no bound of the parameter, the integrand has to be negligible."""

    low: float
    high: float
    num_nodes: int
    is_low_bound: bool = False
    is_high_bound: bool = False

    def rule(self) -> tuple[np.ndarray, np.ndarray]:
        """The nodes, and the logarithms of their weights."""
        nodes, weights = np.polynomial.legendre.leggauss(int(self.num_nodes * FINENESS))
        margin = (STRETCH - 1) / 2 * (self.high - self.low)
        low = self.low if self.is_low_bound else self.low - margin
        high = self.high if self.is_high_bound else self.high + margin
        half = (high - low) / 2
        return low + half * (1 + nodes), np.log(weights * half)


def grid(low: float, high: float, num_nodes: int) -> np.ndarray:
    """Equidistant nodes, for integrands that vanish at both ends."""
    margin = (STRETCH - 1) / 2 * (high - low)
    return np.linspace(low - margin, high + margin, int(num_nodes * FINENESS))


def bounded(low: float, high: float, num_nodes: int) -> Axis:
    """An axis from one bound of a parameter to the other."""
    return Axis(low, high, num_nodes, True, True)


def log_box(log_fn: Callable[..., np.ndarray], *axes: Axis) -> float:
    """
    The log of the integral of exp(log_fn) over a box.

    :param log_fn: takes an array for each axis, of shapes that broadcast against each other.
    """
    rules = [axis.rule() for axis in axes]
    mesh = np.meshgrid(*(nodes for nodes, _ in rules), indexing="ij", sparse=True)
    values = np.broadcast_to(log_fn(*mesh), tuple(len(nodes) for nodes, _ in rules)).copy()
    weights = np.meshgrid(*(weights for _, weights in rules), indexing="ij", sparse=True)
    for part in weights:
        values += part
    for which, (axis, (_, log_weights)) in enumerate(zip(axes, rules, strict=True)):
        others = tuple(i for i in range(len(axes)) if i != which)
        density = logsumexp(values, axis=others) - log_weights if others else values - log_weights
        ends = [(density[0], axis.is_low_bound), (density[-1], axis.is_high_bound)]
        for end, is_bound in ends:
            if not is_bound and end - density.max() > LOG_EDGE:
                raise ValueError(
                    f"The integrand must be negligible at open ends; along axis {which}, {axis}, it is "
                    f"exp({end - density.max():.1f}) of its maximum. Make the axis longer."
                )
    return float(logsumexp(values))


def log_around(
    log_fn: Callable[..., np.ndarray], start: list[float], num_nodes: int, radius: float = 8.0
) -> float:
    """
    The log of the integral of exp(log_fn) over the plane, in coordinates in which it is nearly a standard normal density.

    :param start: near the mode; how well that is found changes the nodes, not the integral.
    :param radius: of the box in these coordinates.
    """
    found = minimize(lambda x: -float(log_fn(*x)), start, method="BFGS")
    tril = np.linalg.cholesky(found.hess_inv)

    def log_white(*z: np.ndarray) -> np.ndarray:
        rows = (sum(row[i] * z[i] for i in range(k + 1)) for k, row in enumerate(tril))
        return log_fn(*map(np.add, found.x, rows))

    axes = [Axis(-radius, radius, num_nodes)] * len(start)
    return log_box(log_white, *axes) + float(np.log(np.diag(tril)).sum())


def log_effects(
    log_terms: Callable[[np.ndarray], Iterable[np.ndarray]],
    mu: np.ndarray,
    tau: np.ndarray,
    num_nodes: int = 161,
) -> np.ndarray:
    """The log density of units given the mean and scale of their effects, each an integral over a standard normal."""
    z = grid(-9, 9, num_nodes)
    theta = mu[..., None] + tau[..., None] * z
    log_prior = log_normal(z, 0, 1) + np.log(z[1] - z[0])
    return sum(logsumexp(log_prior + log_term, axis=-1) for log_term in log_terms(theta))


def make(
    name: str,
    num_dims: int,
    model: Callable,
    args: tuple,
    log_evidence: float,
    reference_error: float = 0.0,
    *,
    is_needle: bool = False,
) -> TrustTarget:
    """A target, its arrays as JAX has them; sizes and scales stay numbers."""
    args = tuple(jnp.asarray(x) if isinstance(x, np.ndarray) else x for x in args)
    return TrustTarget(name, num_dims, model, args, float(log_evidence), reference_error, is_needle)


def adopt(target: SizedTarget, name: str | None = None) -> TrustTarget:
    """One of ``dimension.py``."""
    return TrustTarget(name or target.name, *target[1:6])


def log_normal(x: np.ndarray, mean: np.ndarray | float, variance: np.ndarray | float) -> np.ndarray:
    """The log density of a normal distribution, given its variance."""
    return -0.5 * (np.log(2 * np.pi * variance) + (x - mean) ** 2 / variance)


def in_box(num_dims: int, low: float, high: float, log_likelihood_fn: Callable) -> None:
    """A likelihood of a uniform draw."""
    x = numpyro.sample("x", dist.Uniform(low, high).expand([num_dims]).to_event(1))
    numpyro.factor("likelihood", log_likelihood_fn(x))


def in_bell(num_dims: int, scale: float, log_likelihood_fn: Callable) -> None:
    """A likelihood of a normal draw."""
    x = numpyro.sample("x", dist.Normal(0, scale).expand([num_dims]).to_event(1))
    numpyro.factor("likelihood", log_likelihood_fn(x))


def gaussian_modes(places: np.ndarray, scales: np.ndarray, log_shares: np.ndarray) -> Callable:
    """The log of a sum of normal densities, as a function of one position, for :func:`in_bell` and :func:`in_box`."""

    def log_likelihood(x):
        squares = jnp.sum((x - jnp.asarray(places)) ** 2, axis=-1) / jnp.asarray(scales) ** 2
        log_modes = -0.5 * squares - places.shape[1] * jnp.log(2 * jnp.pi) / 2
        log_modes = log_modes - places.shape[1] * jnp.log(jnp.asarray(scales))
        return jax.nn.logsumexp(log_modes + jnp.asarray(log_shares))

    return log_likelihood


def log_modes_evidence(
    places: np.ndarray, scales: np.ndarray, log_shares: np.ndarray, prior_scale: float
) -> np.ndarray:
    """The log evidence of each of the :func:`gaussian_modes` under a normal prior."""
    variance = (scales**2 + prior_scale**2)[:, None]
    return log_shares + log_normal(places, 0.0, variance).sum(axis=1)
