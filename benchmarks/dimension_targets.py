# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Targets of ``dimension.py``, from 4 to 20,000 dimensions. Log evidences are closed forms or quadrature, computed
in float64 by NumPy whatever precision JAX runs in; where there is neither, they are from long runs and have an error.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import log_ndtr
import numpy as np
from overhead import make_problems
from scipy import stats
from scipy.special import logsumexp
import targets

import numpyro
import numpyro.distributions as dist

COX_VARIANCE = 1.91
NUM_NODES = 4001  # of quadrature: smooth integrands that vanish at both ends need far fewer
# Without a closed form: log evidence and its error, from long runs of corrected chains.
COX_REFERENCES = {16: (491.81, 0.02), 32: (503.32, 0.06), 40: (501.755, 0.03)}
HIERARCHICAL_DATA = (
    1.193653, 1.957453, -0.721618, -1.873808, -1.169282, 0.519609, -0.0361, 0.425088, 0.411192, -0.81237,
    0.729674, 3.481867, 2.311264, 2.000294, -0.276435, 1.068824, -0.950836, -1.896511, 2.560197, 0.237031,
)  # fmt: skip


class SizedTarget(NamedTuple):
    """A model of known size and log evidence, ``reference_error`` being 0 if that is exact."""

    name: str
    num_dims: int
    model: Callable
    args: tuple
    log_evidence: float
    reference_error: float
    group: str

    @property
    def target(self) -> targets.Target:
        """The same as methods of ``peer_methods.py`` take it."""
        return targets.Target(
            self.name, self.model, self.args, self.log_evidence, self.reference_error
        )


def cox_process(mean: float, scale_tril: jax.Array, counts: jax.Array, is_whitened: bool) -> None:
    """Log intensities of cells are a Gaussian process; without log y!."""
    num_cells = len(counts)
    if is_whitened:
        e = numpyro.sample("e", dist.Normal(0, 1).expand([num_cells]).to_event(1))
        f = mean + scale_tril @ e
    else:
        f = numpyro.sample("f", dist.MultivariateNormal(mean, scale_tril=scale_tril))
    numpyro.factor("counts", jnp.sum(f * counts - jnp.exp(f) / num_cells))


def linear_gaussian(A: jax.Array, y: jax.Array, scale: jax.Array) -> None:
    u = numpyro.sample("u", dist.Normal(jnp.zeros(A.shape[1]), scale).to_event(1))
    numpyro.sample("y", dist.Normal(A @ u, 1).to_event(1), obs=y)


def skewed_product(counts: jax.Array, waits: jax.Array, places: jax.Array) -> None:
    """Three kinds of latents, each with an observation of its own."""
    with numpyro.plate("gamma_poisson", len(counts)):
        rate = numpyro.sample("rate", dist.Gamma(2, 0.5))
        numpyro.sample("count", dist.Poisson(rate), obs=counts)
    with numpyro.plate("log_gamma", len(waits)):
        log_rate = numpyro.sample("log_rate", dist.Normal(0, 2))
        numpyro.sample("wait", dist.Exponential(jnp.exp(log_rate)), obs=waits)
    with numpyro.plate("student", len(places)):
        center = numpyro.sample("center", dist.Normal(0, 2))
        numpyro.sample("place", dist.StudentT(3, center, 0.5), obs=places)


def autoregression(X: jax.Array, y: jax.Array) -> None:
    """Vague, and stiff where draws of ``sigma`` are small."""
    w = numpyro.sample("w", dist.Normal(jnp.zeros(X.shape[1]), 10).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(5))
    numpyro.sample("y", dist.Normal(X @ w, sigma).to_event(1), obs=y)


def hierarchical_normal(y: jax.Array) -> None:
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    tau2 = numpyro.sample("tau2", dist.InverseGamma(1, 1))
    with numpyro.plate("groups", len(y)):
        theta = numpyro.sample("theta", dist.Normal(mu, jnp.sqrt(tau2)))
        numpyro.sample("y", dist.Normal(theta, 1), obs=y)


def turtles(num_clutches: int, clutch: jax.Array, weight: jax.Array, survived: jax.Array) -> None:
    """Probit regression with random effects, whose variance has the density (1 + s2)^-2."""
    a0, a1 = (numpyro.sample(name, dist.Normal(0, jnp.sqrt(10.0))) for name in ("a0", "a1"))
    log_s2 = numpyro.sample("log_s2", dist.Logistic(0, 1))
    with numpyro.plate("clutches", num_clutches):
        b = numpyro.sample("b", dist.Normal(0, jnp.exp(log_s2 / 2)))
    z = a0 + a1 * weight + b[clutch]
    logits = log_ndtr(z) - log_ndtr(-z)  # of Phi(z), to the last digit in both tails
    numpyro.sample("survived", dist.Bernoulli(logits=logits).to_event(1), obs=survived)


def log_integral(log_values: np.ndarray, nodes: np.ndarray) -> np.ndarray:
    """The log of the integral over the last axis, by the trapezoidal rule on equidistant nodes."""
    return logsumexp(log_values, axis=-1) + np.log(nodes[1] - nodes[0])


def find(directory: Path, name: str) -> Path:
    """The file of this name, in the directory or below it."""
    paths = sorted(directory.rglob(name))
    if not paths:
        raise FileNotFoundError(f"{name} must be in {directory} or below; it is not.")
    return paths[0]


def cox_data(points: np.ndarray, num_side: int) -> tuple[float, np.ndarray, np.ndarray]:
    """The mean, the Cholesky factor of the covariance, and the counts, of cells of the unit square."""
    cells = np.minimum((points * num_side).astype(int), num_side - 1)
    counts = np.zeros((num_side, num_side))
    np.add.at(counts, tuple(cells.T), 1)
    grid = np.stack(np.indices(counts.shape), axis=-1).reshape(-1, 2).astype(float)
    distances = np.linalg.norm(grid[:, None] - grid, axis=-1)
    covariance = COX_VARIANCE * np.exp(-33 * distances / num_side)
    mean = np.log(126) - COX_VARIANCE / 2
    return float(mean), np.linalg.cholesky(covariance), counts.ravel()


def cox(num_side: int, is_whitened: bool, directory: Path) -> SizedTarget:
    points = np.genfromtxt(find(directory, "pines.csv"), delimiter=",", skip_header=1)
    mean, scale_tril, counts = cox_data(points, num_side)
    suffix = "whitened" if is_whitened else "not whitened"
    return SizedTarget(
        f"Cox process, {num_side} x {num_side}, {suffix}",
        num_side**2,
        partial(cox_process, is_whitened=is_whitened),
        (mean, jnp.asarray(scale_tril), jnp.asarray(counts)),
        *COX_REFERENCES.get(num_side, (np.nan, 0.0)),
        group=f"Cox, {suffix}",
    )


def gaussian(num_dims: int, _: Path | None = None) -> SizedTarget:
    """y = A u + noise, in the basis of whose left singular vectors the data are independent."""
    rng = np.random.default_rng(num_dims)
    left, right = (np.linalg.qr(rng.standard_normal((num_dims, num_dims)))[0] for _ in range(2))
    singular = np.logspace(2, -1, num_dims)
    scale = np.sqrt(1 + singular**2)
    white = rng.standard_normal(num_dims) * scale
    exact = float(stats.norm.logpdf(white, 0, scale).sum())
    A, y = (left * singular) @ right.T, left @ white
    args = jnp.asarray(A), jnp.asarray(y), jnp.ones(num_dims)
    name = f"correlated Gaussian, {num_dims:,}-d"
    return SizedTarget(name, num_dims, linear_gaussian, args, exact, 0.0, "Gaussian")


def low_rank(num_dims: int, num_rows: int = 50, _: Path | None = None) -> SizedTarget:
    """A posterior whose precision is a diagonal and a matrix of rank ``num_rows``."""
    rng = np.random.default_rng(num_dims)
    scale = 10 ** rng.uniform(-1, 0.5, num_dims)
    A = 10 / np.sqrt(num_dims) * rng.standard_normal((num_rows, num_dims))
    y = A @ (scale * rng.standard_normal(num_dims)) + rng.standard_normal(num_rows)
    covariance = np.eye(num_rows) + (A * scale**2) @ A.T
    exact = float(stats.multivariate_normal(cov=covariance).logpdf(y))
    args = jnp.asarray(A), jnp.asarray(y), jnp.asarray(scale)
    name = f"diagonal plus low rank, {num_dims:,}-d"
    return SizedTarget(name, num_dims, linear_gaussian, args, exact, 0.0, "low rank")


def skewed(num_dims: int, _: Path | None = None) -> SizedTarget:
    """Gamma-Poisson by closed form, the two others by quadrature over their normal prior."""
    rng = np.random.default_rng(num_dims)
    sizes = [len(part) for part in np.array_split(np.arange(num_dims), 3)]
    counts = rng.poisson(rng.gamma(2, 2, sizes[0])).astype(float)
    waits = rng.exponential(np.exp(-2 * rng.standard_normal(sizes[1])))
    places = 2 * rng.standard_normal(sizes[2]) + 0.5 * rng.standard_t(3, sizes[2])
    nodes = np.linspace(-20, 20, NUM_NODES)
    log_prior = stats.norm.logpdf(nodes, 0, 2)
    log_waits = nodes - waits[:, None] * np.exp(nodes)
    log_places = stats.t.logpdf(places[:, None], 3, nodes, 0.5)
    exact = stats.nbinom.logpmf(counts, 2, 1 / 3).sum()
    exact += sum(log_integral(log_prior + part, nodes).sum() for part in (log_waits, log_places))
    args = tuple(map(jnp.asarray, (counts, waits, places)))
    name = f"skewed product, {num_dims:,}-d"
    return SizedTarget(name, num_dims, skewed_product, args, float(exact), 0.0, "skewed")


def ar2(num_times: int = 100, _: Path | None = None) -> SizedTarget:
    """Coefficients by closed form given sigma, which is left to quadrature over its logarithm."""
    rng = np.random.default_rng(2)
    series = [0.0, 0.0]
    for noise in 0.5 * rng.standard_normal(num_times + 20):
        series.append(0.3 + 0.6 * series[-1] - 0.3 * series[-2] + noise)
    series = np.array(series[-num_times - 2 :])
    X, y = np.stack([np.ones(num_times), series[1:-1], series[:-2]], axis=1), series[2:]
    log_sigma = np.linspace(-4, 4, NUM_NODES)
    variances, vectors = np.linalg.eigh(X.T @ X)
    noise, projected = np.exp(2 * log_sigma)[:, None], (vectors.T @ (X.T @ y)) ** 2
    square = y @ y - np.sum(projected / (variances + noise / 100), axis=1)
    log_likelihood = -0.5 * (np.log1p(100 * variances / noise).sum(axis=1) + square / noise[:, 0])
    log_likelihood -= num_times * (log_sigma + 0.5 * np.log(2 * np.pi))
    log_prior = stats.halfnorm.logpdf(np.exp(log_sigma), scale=5) + log_sigma
    exact = float(log_integral(log_prior + log_likelihood, log_sigma))
    args = jnp.asarray(X), jnp.asarray(y)
    name = "AR(2), unknown noise"
    return SizedTarget(name, 4, autoregression, args, exact, 0.0, "small")


def hierarchy(y: tuple[float, ...] = HIERARCHICAL_DATA, _: Path | None = None) -> SizedTarget:
    """Means by closed form given tau2, which is left to quadrature over its logarithm."""
    log_tau2 = np.linspace(-10, 30, NUM_NODES)
    variance, center = 1 + np.exp(log_tau2), np.mean(y)
    spread = np.sum((np.array(y) - center) ** 2)
    values = -0.5 * (len(y) - 1) * np.log(2 * np.pi * variance) - 0.5 * spread / variance
    values += stats.norm.logpdf(center, 0, np.sqrt(1 + variance / len(y))) - 0.5 * np.log(len(y))
    values += stats.invgamma.logpdf(np.exp(log_tau2), 1) + log_tau2
    exact = float(log_integral(values, log_tau2))
    name, args = "hierarchical normal", (jnp.asarray(y),)
    return SizedTarget(name, len(y) + 2, hierarchical_normal, args, exact, 0.0, "small")


def turtles_target(directory: Path) -> SizedTarget:
    path = find(directory, "turtles.csv")
    survived, weight, clutch = np.genfromtxt(path, delimiter=",", skip_header=1).T
    num_clutches = int(clutch.max())
    args = jnp.asarray(clutch.astype(int) - 1), jnp.asarray(weight), jnp.asarray(survived)
    name, model = "random effects, turtles", partial(turtles, num_clutches)
    return SizedTarget(name, num_clutches + 3, model, args, -156.719733, 0.0, "small")


def logistic(_: Path | None = None) -> SizedTarget:
    """The 50-d regression of ``baselines.py``."""
    model, (X, y) = next(iter(make_problems().values()))
    reference = targets.REFERENCES["synthetic"]
    name = "logistic regression, synthetic"
    return SizedTarget(name, X.shape[1], model, (X, y), *reference, group="logistic")


def shared(name: str, num_dims: int, group: str, directory: Path | None) -> SizedTarget:
    """One of ``targets.py``."""
    folder = find(directory, f"{name}.csv").parent if name in targets.NEEDS_FILE else None
    target = targets.TARGETS[name](folder)
    title = target.title.removesuffix(f", {num_dims}-d")
    what = target.model, target.args, target.log_evidence, target.error
    return SizedTarget(title, num_dims, *what, group=group)


# By name: the target, given the directory of the data files. The cheap ones come first.
TARGETS: dict[str, Callable[[Path | None], SizedTarget]] = {
    "ar2": lambda directory: ar2(),
    "hierarchical_normal": lambda directory: hierarchy(),
    "random_intercepts": partial(shared, "random_intercepts", 15, "small"),
    "seeds": partial(shared, "seeds", 26, "small"),
    "turtles": turtles_target,
    "ionosphere": partial(shared, "ionosphere", 35, "logistic"),
    "logistic": logistic,
    "sonar": partial(shared, "sonar", 61, "logistic"),
    **{f"gaussian_{size}": partial(gaussian, size) for size in (30, 100, 300)},
    "skewed_50": partial(skewed, 50),
    "skewed_500": partial(skewed, 500),
    "cox_16": partial(cox, 16, True),
    "cox_16_raw": partial(cox, 16, False),
    "gaussian_1000": partial(gaussian, 1000),
    "cox_32": partial(cox, 32, True),
    "cox_32_raw": partial(cox, 32, False),
    "skewed_5000": partial(skewed, 5000),
    "low_rank_20000": lambda directory: low_rank(20_000),
    "cox_40": partial(cox, 40, True),
    "gaussian_2000": partial(gaussian, 2000),
    "cox_40_raw": partial(cox, 40, False),
}
NEEDS_FILE = (*targets.NEEDS_FILE, "turtles", *(name for name in TARGETS if name.startswith("cox")))
