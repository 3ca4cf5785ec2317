# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Are log evidences of the unseen targets right?
==============================================

Checks of the references in ``trust_unseen.py`` that run nothing of this package, so that the targets stay unseen. For each:

- how far grids that are finer, and grids that are finer and longer, move it;
- importance sampling of NumPyro's own density at full size. Proposals are mixtures of Student's distributions, which begin at
  modes that SciPy finds and are fitted to weighted draws of several rounds; a latent for each unit is drawn from its
  distribution given the others, or from Laplace's approximation of that. What is printed is the log of the mean weight over the reference, its error, and the share
  that the effective sample has of all draws;
- whether the log density and its gradient are finite at draws of the prior in float32.

    python benchmarks/trust_unseen_check.py
"""

import argparse
from collections.abc import Callable
from functools import partial
import time

import jax
from jax import random
from jax.flatten_util import ravel_pytree
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize
from scipy.special import gammaln, logsumexp
import trust_base
from trust_base import TrustTarget
from trust_unseen import TARGETS

import numpyro
from numpyro import handlers
import numpyro.distributions as dist
from numpyro.infer.util import constrain_fn, initialize_model, unconstrain_fn

# The site that has a latent for each unit.
UNIT_SITES = {
    "curve_latent": "z",
    "groups": "b",
    "waiting_times": "z",
    "waiting_times_centred": "theta",
    "plankton": "z",
    "weights": "weight",
    "gauges": "x",
    "traits": "z",
    "habitats": "p",
    "schools": "p",
}
# Smaller ones, for which weights are even enough; each unit has a density of its own, so that little depends on their number.
SIZES = {
    "rates": {"num_units": 4},
    "means_and_precisions": {"num_groups": 3},
}
CONJUGATE = ("weights", "habitats", "schools")
FREEDOM = 6.0  # of Student's distributions
UNIT_FREEDOM = (
    60.0  # likewise, for latents of units in coordinates in which they are nearly independent
)
NUM_NEWTON_STEPS = 12


def reference(name: str, fineness: float = 1.0, stretch: float = 1.0, **sizes: int) -> TrustTarget:
    """The target with other grids."""
    trust_base.FINENESS, trust_base.STRETCH = fineness, stretch
    with np.errstate(over="ignore"):
        target = TARGETS[name](None, **sizes)
    trust_base.FINENESS = trust_base.STRETCH = 1.0
    return target


def conditional(name: str, values: dict, *args: jax.Array) -> dist.Distribution:
    """The distribution of units' latents given the parameters, where it is known."""
    if name == "habitats":
        return dist.Dirichlet(values["size"] * values["mean"] + args[0])
    if name == "schools":
        (trials, y), mean, size = args, values["mean"], values["size"]
        return dist.Beta(mean * size + y, (1 - mean) * size + trials - y)
    (x, y), s = args, values["s"]
    squares = (y - values["a"] - values["b"] * x) ** 2 / s**2
    return dist.Gamma(2.5, 2 + squares / 2)


class Density:
    """Log densities of a model in unconstrained space, in two parts: parameters, and latents of units."""

    def __init__(self, name: str, target: TrustTarget, unit_site: str | None) -> None:
        info = initialize_model(random.key(0), target.model, model_args=target.args)
        values = dict(info.param_info.z)
        units, self.unravel_units = ravel_pytree(
            {site: values.pop(site) for site in [unit_site] if site is not None}
        )
        params, self.unravel = ravel_pytree(values)
        self.name, self.target, self.potential_fn = name, target, info.potential_fn
        self.num_params, self.num_units = len(params), len(units)

    def log_joint(self, params: jax.Array, units: jax.Array) -> jax.Array:
        return -self.potential_fn({**self.unravel(params), **self.unravel_units(units)})

    def laplace(self, params: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """The mode of the units' latents, the Cholesky factor of their precision, and the log of the integral."""
        hessian_fn = jax.hessian(self.log_joint, argnums=1)
        unit = jnp.eye(self.num_units)

        def step(_: int, units: jax.Array) -> jax.Array:
            # Where it is not concave, as far as a gradient goes.
            precision = -hessian_fn(params, units)
            eigenvalues, vectors = jnp.linalg.eigh(precision)
            pull = vectors.T @ jax.grad(self.log_joint, argnums=1)(params, units)
            move = pull / jnp.maximum(jnp.abs(eigenvalues), 1e-3)
            return units + vectors @ jnp.clip(move, -2, 2)

        mode = jax.lax.fori_loop(0, NUM_NEWTON_STEPS, step, jnp.zeros(self.num_units))
        mode = jax.lax.stop_gradient(mode)  # searches go without what depends on it
        tril = jnp.linalg.cholesky(-hessian_fn(params, mode) + 1e-9 * unit)
        log_integral = self.log_joint(params, mode) - jnp.log(jnp.diagonal(tril)).sum()
        return mode, tril, log_integral + 0.5 * self.num_units * jnp.log(2 * jnp.pi)

    def log_marginal(self, params: jax.Array) -> jax.Array:
        """The log density of parameters, the units' latents by Laplace's approximation."""
        if not self.num_units:
            return self.log_joint(params, jnp.zeros(0))
        if self.name in CONJUGATE:
            return self.log_conjugate(params)
        return self.laplace(params)[2]

    def log_conjugate(self, params: jax.Array) -> jax.Array:
        """The log density of parameters: whichever the units' latents, that of all over theirs given the parameters."""
        model = handlers.seed(self.target.model, random.key(0))
        values = constrain_fn(model, self.target.args, {}, self.unravel(params))
        given = conditional(self.name, values, *self.target.args)
        units = given.mean
        transform = dist.biject_to(given.support)
        place = transform.inv(units)
        log_det = jnp.sum(transform.log_abs_det_jacobian(place, units))
        log_given = jnp.sum(given.log_prob(units)) + log_det
        return self.log_joint(params, place.ravel()) - log_given

    def log_weight(self, rng_key: jax.Array, params: jax.Array) -> jax.Array:
        """An unbiased estimate of the density of parameters, from one draw of the units' latents; its log."""
        if not self.num_units:
            return self.log_joint(params, jnp.zeros(0))
        if self.name in CONJUGATE:
            return self.log_conjugate(params)
        mode, tril, _ = self.laplace(params)
        z = random.t(rng_key, UNIT_FREEDOM, (self.num_units,))
        units = mode + jax.scipy.linalg.solve_triangular(tril, z, lower=True, trans=1)
        log_proposal = log_student(z**2, 1, UNIT_FREEDOM, jnp).sum()
        log_proposal = log_proposal + jnp.log(jnp.diagonal(tril)).sum()
        return self.log_joint(params, units) - log_proposal

    def prior_draws(self, number: int) -> np.ndarray:
        """Parameters at draws of the prior."""

        def draw(rng_key: jax.Array) -> jax.Array:
            model, args = self.target.model, self.target.args
            trace = handlers.trace(handlers.seed(model, rng_key)).get_trace(*args)
            names = self.unravel(jnp.zeros(self.num_params))
            values = {name: trace[name]["value"] for name in names}
            seeded = handlers.seed(model, rng_key)
            found = unconstrain_fn(seeded, args, {}, values)
            return ravel_pytree({name: found[name] for name in names})[0]

        return np.asarray(jax.vmap(draw)(random.split(random.key(3), number)))


def log_student(square, num_dims: int, freedom: float, xp=np):
    """The log density of Student's distribution with unit scale, given the square of the distance."""
    lgamma = gammaln if xp is np else jax.lax.lgamma
    value = lgamma((freedom + num_dims) / 2) - lgamma(freedom / 2)
    value = value - 0.5 * num_dims * xp.log(freedom * np.pi)
    return value - 0.5 * (freedom + num_dims) * xp.log1p(square / freedom)


class Mixture:
    """A mixture of Student's distributions."""

    def __init__(self, shares: np.ndarray, means: np.ndarray, covariances: np.ndarray) -> None:
        self.shares, self.means = shares, means
        self.trils = np.linalg.cholesky(covariances)

    def draw(self, rng: np.random.Generator, number: int) -> np.ndarray:
        which = rng.choice(len(self.shares), number, p=self.shares)
        z = rng.standard_normal((number, self.means.shape[1]))
        z /= np.sqrt(rng.chisquare(FREEDOM, (number, 1)) / FREEDOM)
        return self.means[which] + np.einsum("nij,nj->ni", self.trils[which], z)

    def log_parts(self, x: np.ndarray) -> np.ndarray:
        parts = []
        for share, mean, tril in zip(self.shares, self.means, self.trils, strict=True):
            square = np.sum(np.linalg.solve(tril, (x - mean).T) ** 2, axis=0)
            log_density = log_student(square, x.shape[1], FREEDOM)
            parts.append(np.log(share) + log_density - np.log(np.diag(tril)).sum())
        return np.stack(parts)

    def fitted(self, x: np.ndarray, weights: np.ndarray) -> "Mixture":
        """One step of expectation-maximisation; parts that have nothing stay where they are, with little."""
        log_parts = self.log_parts(x)
        shares_of = np.exp(log_parts - logsumexp(log_parts, axis=0)) * weights
        shares, means, covariances = [], [], []
        for part, mean, tril in zip(shares_of, self.means, self.trils, strict=True):
            size = part.sum() ** 2 / np.sum(part**2) if part.sum() > 0 else 0.0
            covariance = tril @ tril.T
            if size > 4 * x.shape[1]:
                mean = part @ x / part.sum()
                centred = x - mean
                found = (centred * part[:, None]).T @ centred / part.sum()
                covariance = found + 1e-6 * np.diag(np.diag(found))
            shares.append(max(part.sum(), 1e-3))
            means.append(mean)
            covariances.append(covariance)
        total = np.array(shares)
        return Mixture(total / total.sum(), np.array(means), np.array(covariances))


def modes_of(log_fn: Callable, starts: np.ndarray, most: int = 24) -> Mixture:
    """Laplace's approximation at each of the modes that searches from the given starts end at, the best ones first."""
    value_and_grad = jax.jit(jax.value_and_grad(lambda x: -log_fn(x)))
    hessian_fn = jax.jit(jax.hessian(lambda x: -log_fn(x)))

    def descend(start: np.ndarray):
        with np.errstate(all="ignore"):
            return minimize(lambda x: [np.asarray(v) for v in value_and_grad(x)], start, jac=True)

    found = sorted((descend(start) for start in starts), key=lambda each: each.fun)
    found = [each for each in found if np.all(np.isfinite(each.x)) and np.isfinite(each.fun)]
    places: list[np.ndarray] = []
    for each in found:
        if all(np.linalg.norm(each.x - place) > 0.3 for place in places):
            places.append(each.x)
    places = places[:most]
    covariances = []
    for place in places:
        eigenvalues, vectors = np.linalg.eigh(np.asarray(hessian_fn(place)))
        covariances.append((vectors / np.clip(eigenvalues, 0.1, None)) @ vectors.T)
    shares = np.full(len(places), 1 / len(places))
    return Mixture(shares, np.array(places), np.array(covariances))


def importance(name: str, target: TrustTarget, number: int) -> tuple[float, ...]:
    """The log of the mean weight over the reference, its error, and the effective share of draws."""
    density, rng = Density(name, target, UNIT_SITES.get(name)), np.random.default_rng(0)

    def batched(fn: Callable) -> Callable:
        mapped = jax.jit(lambda args: jax.lax.map(lambda arg: fn(*arg), args, batch_size=500))

        def evaluate(*args: np.ndarray) -> np.ndarray:
            log_values = np.asarray(mapped(tuple(map(jnp.asarray, args))))
            return np.where(np.isnan(log_values), -np.inf, log_values)

        return evaluate

    log_marginal, log_weight = batched(density.log_marginal), batched(density.log_weight)
    starts = density.prior_draws(12 if density.num_units else 40)
    mixture = modes_of(density.log_marginal, starts, 1 if density.num_units else 24)
    for _ in range(12):
        x = mixture.draw(rng, number // 4)
        log_weights = log_marginal(x) - logsumexp(mixture.log_parts(x), axis=0)
        weights = np.exp(log_weights - log_weights.max())
        weights = np.minimum(weights, np.sort(weights)[-len(weights) // 200])  # the largest stop it
        mixture = mixture.fitted(x, weights / weights.sum())
    x = mixture.draw(rng, number)
    keys = random.split(random.key(5), number)
    log_weights = log_weight(keys, x) - logsumexp(mixture.log_parts(x), axis=0)
    weights = np.exp(log_weights - target.log_evidence)
    mean, error = weights.mean(), weights.std() / np.sqrt(number)
    return np.log(mean), error / mean, mean**2 / np.mean(weights**2)


def is_finite_in_float32(name: str) -> bool:
    """Whether the log density and its gradient are finite at draws of the prior, which hardly need to be typical ones."""
    numpyro.enable_x64(False)
    density = Density(name, TARGETS[name](None), None)
    draws = jnp.asarray(density.prior_draws(20), jnp.float32)
    fn = jax.value_and_grad(partial(density.log_joint, units=jnp.zeros(0)))
    values, gradients = jax.vmap(fn)(draws)
    numpyro.enable_x64()
    assert values.dtype == jnp.float32
    is_finite = np.isfinite(values) & np.all(np.isfinite(gradients), axis=1)
    return bool(np.mean(is_finite) > 0.7)


def check(name: str, number: int) -> str:
    begin = time.perf_counter()
    target, finer = reference(name), reference(name, 1.5)
    longer = reference(name, 1.5, 1.2)
    small = reference(name, **SIZES.get(name, {}))
    num_draws = number // 20 if name in UNIT_SITES else number
    log_ratio, error, share = importance(name, small, num_draws)
    moves = [each.log_evidence - target.log_evidence for each in (finer, longer)]
    line = f"| {name} | {target.num_dims} | {target.log_evidence:.5f} | {moves[0]:.0e} | {moves[1]:.0e} "
    line += (
        f"| {log_ratio:+.4f} ± {error:.4f} | {100 * share:.0f} % | {is_finite_in_float32(name)} "
    )
    return line + f"| {time.perf_counter() - begin:.0f} s |"


def main(args: argparse.Namespace) -> None:
    numpyro.enable_x64()
    print(
        "| target | dimensions | log evidence | finer | longer | importance | effective | float32 | |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for name in args.targets or TARGETS:
        print(check(name, args.num_draws), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="References of the unseen targets.")
    parser.add_argument("--targets", nargs="+", choices=list(TARGETS), metavar="NAME")
    parser.add_argument("--num-draws", type=int, default=200_000)
    main(parser.parse_args())
