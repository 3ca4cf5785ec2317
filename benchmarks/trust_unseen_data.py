# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Models of few parameters among the unseen targets of ``trust.py``: survival, proportions, tests, decay, angles.
Log evidences are quadrature, partly after closed forms; data are drawn from fixed seeds.
"""

from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.scipy.special import log_ndtr
import numpy as np
from scipy import special, stats
from scipy.special import betaln
from trust_base import Axis, TrustTarget, bounded, log_around, log_box, log_normal, make

import numpyro
import numpyro.distributions as dist


def weibull_regression(is_seen: np.ndarray, X: jax.Array, times: jax.Array) -> None:
    """Proportional hazards; times of those that were not seen to end are lower bounds."""
    shape = numpyro.sample("shape", dist.LogNormal(0, 0.5))
    a = numpyro.sample("a", dist.Normal(0, 2))
    b = numpyro.sample("b", dist.Normal(0, 1).expand([X.shape[1]]).to_event(1))
    scale = jnp.exp(-(a + X @ b) / shape)
    seen, others = np.flatnonzero(is_seen), np.flatnonzero(~is_seen)
    numpyro.sample("times", dist.Weibull(scale[seen], shape).to_event(1), obs=times[seen])
    numpyro.factor("censored", -jnp.sum((times[others] / scale[others]) ** shape))


def relapse(_: Path | None = None, *, num_rows: int = 30) -> TrustTarget:
    rng = np.random.default_rng(700)
    X = np.stack([np.arange(num_rows) % 2, rng.standard_normal(num_rows)], axis=1)
    times = (rng.exponential(size=num_rows) * np.exp(0.5 - X @ [0.8, -0.6])) ** (1 / 1.6)
    ends = rng.uniform(0.5, 2.5, num_rows)
    is_seen, times = times < ends, np.minimum(times, ends)

    def log_joint(log_shape, a, first, second):
        value = log_normal(log_shape, 0, 0.25) + log_normal(a, 0, 4)
        value = value + log_normal(first, 0, 1) + log_normal(second, 0, 1)
        shape = np.exp(log_shape)
        for row, time, seen in zip(X, times, is_seen, strict=True):
            log_hazard = a + first * row[0] + second * row[1]
            value = value - np.exp(log_hazard + shape * np.log(time))
            if seen:
                value = value + log_shape + (shape - 1) * np.log(time) + log_hazard
        return value

    exact = log_around(log_joint, [0.3, -0.5, 0.5, -0.5], 34)
    model = partial(weibull_regression, is_seen)
    return make("Weibull regression, 4-d", 4, model, (X, times), exact)


def beta_regression(x: jax.Array, y: jax.Array) -> None:
    a = numpyro.sample("a", dist.Normal(0, 1.5))
    b = numpyro.sample("b", dist.Normal(0, 1))
    size = numpyro.sample("size", dist.Gamma(2, 0.1))
    numpyro.sample("y", dist.BetaProportion(jax.nn.sigmoid(a + b * x), size).to_event(1), obs=y)


def proportions(_: Path | None = None, *, num_rows: int = 20) -> TrustTarget:
    rng = np.random.default_rng(701)
    x = rng.standard_normal(num_rows)
    mean = special.expit(0.7 + 0.9 * x)
    y = rng.beta(6 * mean, 6 * (1 - mean))

    def log_joint(a, b, log_size):
        size = np.exp(log_size)
        value = log_normal(a, 0, 2.25) + log_normal(b, 0, 1)
        value = value + stats.gamma.logpdf(size, 2, scale=10) + log_size
        for place, share in zip(x, y, strict=True):
            first = size * special.expit(a + b * place)
            second = size * special.expit(-a - b * place)
            value = value + (first - 1) * np.log(share) + (second - 1) * np.log1p(-share)
            value = value - betaln(first, second)
        return value

    exact = log_around(log_joint, [0.7, 0.9, 1.8], 60, 11.0)
    return make("beta regression, 3-d", 3, beta_regression, (x, y), exact)


def item_response(nodes: jax.Array, log_weights: jax.Array, y: jax.Array) -> None:
    """Abilities are summed over on nodes, which are part of the model."""
    slope = numpyro.sample("slope", dist.LogNormal(0, 0.3))
    hard = numpyro.sample("hard", dist.Normal(0, 1.5).expand([y.shape[1]]).to_event(1))
    logits = slope * (nodes[:, None] - hard)
    log_rows = y @ jax.nn.log_sigmoid(logits).T + (1 - y) @ jax.nn.log_sigmoid(-logits).T
    numpyro.factor("y", jax.nn.logsumexp(log_rows + log_weights, axis=1).sum())


def items(_: Path | None = None, *, num_persons: int = 40) -> TrustTarget:
    """Over slopes times difficulties; answers of a kind are counted, and nodes summed by a product of matrices."""
    rng = np.random.default_rng(702)
    hard = np.array([-1.2, -0.2, 0.5, 1.6])
    ability = rng.standard_normal((num_persons, 1))
    y = (rng.uniform(size=(num_persons, 4)) < special.expit(1.3 * (ability - hard))).astype(float)
    kinds, counts = np.unique(y, axis=0, return_counts=True)
    nodes, weights = np.polynomial.hermite_e.hermegauss(21)
    log_weights = np.log(weights / weights.sum())
    shares = np.exp(log_weights)

    def log_given(slope: float, easy: list[np.ndarray]) -> np.ndarray:
        logits = [slope * nodes + part[:, None] for part in easy]
        right, wrong = ([special.expit(sign * part) for part in logits] for sign in (1, -1))
        value: np.ndarray | float = 0.0
        for kind, count in zip(kinds, counts, strict=True):
            parts = [(right if answer else wrong)[item] for item, answer in enumerate(kind)]
            first, second = (
                np.einsum("ak,bk->abk", *pair).reshape(-1, len(nodes))
                for pair in (parts[:2], parts[2:])
            )
            value = value + count * np.log((first * shares) @ second.T + 1e-300)
        return np.reshape(value, [len(part) for part in easy])

    def log_joint(log_slope, *easy):
        flat = [part.ravel() for part in easy]
        value = np.stack([log_given(slope, flat) for slope in np.exp(log_slope).ravel()])
        log_priors = [log_normal(part, 0, 2.25 * np.exp(2 * log_slope)) for part in easy]
        return value + log_normal(log_slope, 0, 0.09) + sum(log_priors)

    ends = [(-1, 5.2), (-2.2, 3.2), (-3, 2.4), (-5.5, 1)]
    exact = log_box(log_joint, Axis(-1.65, 1.3, 16), *(Axis(*pair, 22) for pair in ends))
    args = nodes, log_weights, y
    return make("item response, 5-d", 5, item_response, args, exact)


def quadratic_in_box(t: jax.Array, y: jax.Array) -> None:
    c = numpyro.sample("c", dist.Uniform(0, 1).expand([3]).to_event(1))
    numpyro.sample("y", dist.Normal(c[0] + c[1] * t + c[2] * t**2, 0.2).to_event(1), obs=y)


def corner(_: Path | None = None, *, num_rows: int = 12) -> TrustTarget:
    """Without the bounds two of the coefficients, which are correlated, would be beyond them."""
    t = np.linspace(0, 2, num_rows)
    y = 0.3 - 0.25 * t + 1.1 * t**2 + 0.2 * np.random.default_rng(703).standard_normal(num_rows)

    def log_joint(first, second, third):
        value = 0.0
        for time, datum in zip(t, y, strict=True):
            value = value + log_normal(datum, first + second * time + third * time**2, 0.04)
        return value

    exact = log_box(log_joint, *[bounded(0, 1, 80)] * 3)
    return make("corner of a box, 3-d", 3, quadratic_in_box, (t, y), exact)


def two_decays(t: jax.Array, y: jax.Array) -> None:
    rate = numpyro.sample("rate", dist.LogNormal(0, 1).expand([2]).to_event(1))
    size = numpyro.sample("size", dist.Normal(0, 3).expand([2]).to_event(1))
    numpyro.sample("y", dist.Normal(jnp.exp(-rate * t[:, None]) @ size, 0.1).to_event(1), obs=y)


def decay(_: Path | None = None, *, num_rows: int = 10) -> TrustTarget:
    """Sizes by closed form, given the rates, which may be exchanged."""
    t = np.linspace(0.2, 4, num_rows)
    y = 2 * np.exp(-0.5 * t) + 1.5 * np.exp(-3 * t)
    y = y + 0.1 * np.random.default_rng(704).standard_normal(num_rows)
    square = np.log(2 * np.pi * 0.01) * num_rows + y @ y / 0.01

    def log_joint(*log_rates):
        curves = [np.exp(-np.exp(log_rate[..., None]) * t) for log_rate in log_rates]
        a, c = (np.sum(curve**2, axis=-1) / 0.01 + 1 / 9 for curve in curves)
        off = np.sum(curves[0] * curves[1], axis=-1) / 0.01
        u, v = (curve @ y / 0.01 for curve in curves)
        det = a * c - off**2
        value = -0.5 * (square - (c * u**2 - 2 * off * u * v + a * v**2) / det + np.log(81 * det))
        return value + sum(log_normal(log_rate, 0, 1) for log_rate in log_rates)

    exact = log_box(log_joint, *[Axis(-7.5, 7.5, 300)] * 2)
    return make("two decays, 4-d", 4, two_decays, (t, y), exact)


def probit_regression(X: jax.Array, y: jax.Array) -> None:
    w = numpyro.sample("w", dist.Normal(0, 5).expand([X.shape[1]]).to_event(1))
    numpyro.factor("y", log_ndtr((2 * y - 1) * (X @ w)).sum())


def nearly_collinear(_: Path | None = None, *, num_rows: int = 30) -> TrustTarget:
    rng = np.random.default_rng(705)
    first = rng.standard_normal(num_rows)
    X = np.stack([np.ones(num_rows), first, first + 0.1 * rng.standard_normal(num_rows)], axis=1)
    y = (X @ [-0.3, 0.6, 0.6] + rng.standard_normal(num_rows) > 0).astype(float)

    def log_joint(*w):
        value = sum(log_normal(part, 0, 25) for part in w)
        for row, datum in zip(X, y, strict=True):
            value = value + special.log_ndtr((2 * datum - 1) * sum(map(np.multiply, row, w)))
        return value

    exact = log_around(log_joint, [0.0, 0.5, 0.5], 60, 10.0)
    return make("nearly collinear probit, 3-d", 3, probit_regression, (X, y), exact)


def two_ordered(y: jax.Array) -> None:
    steps = dist.Normal(0, 2).expand([2]).to_event(1)
    ordered = dist.transforms.OrderedTransform()
    mu = numpyro.sample("mu", dist.TransformedDistribution(steps, ordered))
    share = numpyro.sample("share", dist.Beta(2, 2))
    s = numpyro.sample("s", dist.HalfNormal(1))
    mixing = dist.Categorical(jnp.stack([share, 1 - share]))
    mixture = dist.MixtureSameFamily(mixing, dist.Normal(mu, s))
    numpyro.sample("y", mixture.expand(y.shape).to_event(1), obs=y)


def ordered_parts(_: Path | None = None, *, num_rows: int = 12) -> TrustTarget:
    """Over what the means are made from. The parts overlap, and may be one."""
    y = np.random.default_rng(706).standard_normal(num_rows) * 0.8
    y = y + np.where(np.arange(num_rows) < num_rows // 3, -1.0, 1.2)

    def log_joint(low, log_gap, share, s):
        value = log_normal(low, 0, 4) + log_normal(log_gap, 0, 4)
        value = value + stats.beta.logpdf(share, 2, 2) + stats.halfnorm.logpdf(s)
        high = low + np.exp(log_gap)
        likelihood = 1.0
        for datum in y:
            first = share * np.exp(-0.5 * ((datum - low) / s) ** 2)
            second = (1 - share) * np.exp(-0.5 * ((datum - high) / s) ** 2)
            likelihood = likelihood * (first + second)
        with np.errstate(divide="ignore"):
            value = value + np.log(likelihood)
        return value - num_rows * np.log(np.sqrt(2 * np.pi) * s)

    axes = Axis(-12, 8, 180), Axis(-13, 12, 180), bounded(0, 1, 8), Axis(0, 5, 45, True)
    exact = log_box(log_joint, *axes)
    return make("ordered parts, 4-d", 4, two_ordered, (y,), exact)


def mean_direction(y: jax.Array) -> None:
    mean = numpyro.sample("mean", dist.VonMises(2.5, 0.5))
    strength = numpyro.sample("strength", dist.Gamma(2, 0.5))
    numpyro.sample("y", dist.VonMises(mean, strength).expand(y.shape).to_event(1), obs=y)


def bearings(_: Path | None = None) -> TrustTarget:
    """Around the cut of the circle, so that both ends have mass; the mean by a Bessel function."""
    y = np.array([2.6, -2.9, 3.1, -2.3, 2.9, -3.0])
    total = np.exp(1j * y).sum()

    def log_joint(log_strength):
        strength = np.exp(log_strength)
        length = np.abs(0.5 * np.exp(2.5j) + strength * total)
        value = stats.gamma.logpdf(strength, 2, scale=2) + log_strength
        value += np.log(special.ive(0, length)) + length - np.log(special.i0(0.5))
        return value - len(y) * (np.log(2 * np.pi * special.ive(0, strength)) + strength)

    exact = log_box(log_joint, Axis(-12, 5, 200))
    return make("bearings, 2-d", 2, mean_direction, (y,), exact)


def rare_event(exposure: float, y: jax.Array) -> None:
    rate = numpyro.sample("rate", dist.HalfCauchy(1))
    numpyro.sample("y", dist.Poisson(exposure * rate), obs=y)


def no_events(_: Path | None = None) -> TrustTarget:
    """The mode of the rate is at zero."""
    exact = log_box(lambda rate: stats.halfcauchy.logpdf(rate) - 30 * rate, Axis(0, 1, 60, True))
    return make("no events, 1-d", 1, rare_event, (30.0, np.array(0)), exact)


DATA = {
    "relapse": relapse,
    "proportions": proportions,
    "items": items,
    "corner": corner,
    "decay": decay,
    "nearly_collinear": nearly_collinear,
    "ordered_parts": ordered_parts,
    "bearings": bearings,
    "no_events": no_events,
}
