# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
The log joint density of a small NumPyro model over the reals, for the quadrature of ``fuzz.py``. Log densities of sites
are NumPyro's; the maps from the reals to the supports and their Jacobians are written here, and sites that are
enumerated are summed over one value after the other, so that no transform and no enumeration is shared with what is tested.
"""

from collections.abc import Callable
from itertools import product
import math
from typing import NamedTuple

import jax
from jax import random
import jax.numpy as jnp
from jax.scipy.special import logsumexp
import numpy as np

from numpyro import handlers
import numpyro.distributions as dist
from numpyro.distributions import constraints

# At most so many joint values of the discrete sites: each is a run of the model.
MAX_VALUES = 64
CHUNK = 8192  # points that are evaluated at once: enough for vectorisation, and small enough for the cache


class Density(NamedTuple):
    """The log joint density of a model, for rows of free coordinates in float64."""

    log_joint_fn: Callable[[np.ndarray], np.ndarray]
    num_dims: int


def without_event_axes(support: constraints.Constraint) -> constraints.Constraint:
    """The support of a single element."""
    while hasattr(support, "base_constraint"):
        support = support.base_constraint
    return support


def free_shape(support: constraints.Constraint, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the free coordinates of a value of this shape."""
    support = without_event_axes(support)
    if isinstance(support, type(constraints.simplex)):
        return (*shape[:-1], shape[-1] - 1)
    if isinstance(support, type(constraints.corr_cholesky)):
        if shape[-1] != 2:
            raise NotImplementedError(f"Correlations of 2 variables only; there are {shape[-1]}.")
        return (*shape[:-2], 1)
    return shape


def to_support(
    u: jax.Array, support: constraints.Constraint, shape: tuple[int, ...]
) -> tuple[jax.Array, jax.Array]:
    """
    Returns the value in the support that free coordinates stand for, and the log of the Jacobian's determinant.

    :param u: the free coordinates, of :func:`free_shape`.
    :param support: the support of the site, whose bounds may depend on other sites.
    :param shape: the shape of the value.
    """
    support = without_event_axes(support)
    low, high = (getattr(support, name, None) for name in ("lower_bound", "upper_bound"))
    if low is not None and high is not None:
        width = jnp.asarray(high) - low
        # From the nearer end, which a value must not be rounded to.
        near_low, near_high = low + width * jax.nn.sigmoid(u), high - width * jax.nn.sigmoid(-u)
        log_jacobian = jnp.log(width) + jax.nn.log_sigmoid(u) + jax.nn.log_sigmoid(-u)
        return jnp.where(u < 0, near_low, near_high), log_jacobian.sum()
    if low is not None:
        return low + jnp.exp(u), u.sum()
    if high is not None:
        return high - jnp.exp(u), u.sum()
    if isinstance(support, type(constraints.simplex)):
        return _to_simplex(u)
    if isinstance(support, type(constraints.ordered_vector)):
        steps = jnp.concatenate([u[..., :1], jnp.exp(u[..., 1:])], axis=-1)
        return jnp.cumsum(steps, axis=-1), u[..., 1:].sum()
    if isinstance(support, type(constraints.corr_cholesky)):
        r, s = jnp.tanh(u[..., 0]), 1 / jnp.cosh(u[..., 0])
        rows = [jnp.stack([jnp.ones_like(r), jnp.zeros_like(r)], -1), jnp.stack([r, s], -1)]
        return jnp.stack(rows, axis=-2), 2 * jnp.log(s).sum()  # over the correlation
    if isinstance(support, type(constraints.real)):
        return u, jnp.zeros(())
    raise NotImplementedError(f"No map to {support}.")


def scale_of(fn: dist.Distribution) -> tuple[jax.Array, jax.Array] | None:
    """The location and the scale of a real site, if its family has them."""
    while isinstance(fn, (dist.ExpandedDistribution, dist.Independent)):
        fn = fn.base_dist
    is_known = isinstance(fn, (dist.Normal, dist.StudentT, dist.Cauchy, dist.Laplace))
    return (fn.loc, fn.scale) if is_known else None


def _to_simplex(u: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A stick, broken at a share of what is left of it; over all parts but the last."""
    u = u - jnp.log(jnp.arange(u.shape[-1], 0, -1))
    log_rest = jnp.cumsum(jax.nn.log_sigmoid(-u), axis=-1)
    log_before = jnp.concatenate([jnp.zeros_like(u[..., :1]), log_rest[..., :-1]], axis=-1)
    log_parts = jax.nn.log_sigmoid(u) + log_before
    x = jnp.concatenate([jnp.exp(log_parts), jnp.exp(log_rest[..., -1:])], axis=-1)
    return x, jnp.sum(log_parts + jax.nn.log_sigmoid(-u))


def make_density(model: Callable, *args, is_centred: bool = True) -> Density:
    """
    Returns the log joint density of a model with its data; to be made and called with x64 enabled.

    :param is_centred: whether coordinates of real sites are their values. Else they are multiples of the site's scale, from its
        location on, where it has both: these may depend on other sites, which makes funnels that no box fits into.
    """
    trace = handlers.trace(handlers.seed(model, random.key(0))).get_trace(*args)
    sites = [s for s in trace.values() if s["type"] == "sample" and not s["is_observed"]]
    discrete = {s["name"]: s for s in sites if s["fn"].support.is_discrete}
    names = [s["name"] for s in sites if s["name"] not in discrete]
    shapes = {s["name"]: jnp.shape(s["value"]) for s in sites}
    sizes = {
        s["name"]: math.prod(free_shape(s["fn"].support, shapes[s["name"]]))
        for s in sites
        if s["name"] in names
    }
    table = _joint_values(discrete)

    def log_joint(u, values):
        parts = jnp.split(u, np.cumsum([sizes[name] for name in names])[:-1])
        coordinates, log_jacobians = dict(zip(names, parts, strict=True)), []

        def place(site):
            if site["type"] != "sample" or site["is_observed"]:
                return None
            if site["name"] in discrete:
                return values[site["name"]]
            support, shape = site["fn"].support, shapes[site["name"]]
            part = coordinates[site["name"]].reshape(free_shape(support, shape))
            value, log_jacobian = to_support(part, support, shape)
            if not is_centred and (of := scale_of(site["fn"])) is not None:
                loc, scale = (jnp.broadcast_to(x, shape) for x in of)
                value, log_jacobian = loc + scale * value, jnp.log(scale).sum()
            log_jacobians.append(log_jacobian)
            return value

        trace = handlers.trace(handlers.substitute(model, substitute_fn=place)).get_trace(*args)
        placed = [site for site in trace.values() if site["type"] == "sample"]
        log_probs = [jnp.sum(site["fn"].log_prob(site["value"])) for site in placed]
        return sum(log_probs) + sum(log_jacobians)

    def marginal(u):
        value = logsumexp(jax.vmap(log_joint, (None, 0))(u, table)) if table else log_joint(u, {})
        return jnp.where(jnp.isfinite(value), value, -jnp.inf)  # at a bound, after rounding

    run = jax.jit(jax.vmap(marginal))

    def log_joint_fn(u):
        u = np.asarray(u, np.float64)
        padded = np.pad(u, [(0, -len(u) % CHUNK), (0, 0)])
        chunks = padded.reshape(-1, CHUNK, u.shape[-1])
        return np.concatenate([np.asarray(run(chunk)) for chunk in chunks])[: len(u)]

    return Density(log_joint_fn, sum(sizes.values()))


def _joint_values(discrete: dict[str, dict]) -> dict[str, jax.Array]:
    """All joint values of the discrete sites, along the first axis of each."""
    if not discrete:
        return {}
    choices = []
    for site in discrete.values():
        support = np.asarray(site["fn"].enumerate_support(expand=False)).reshape(-1)
        choices += [support] * np.size(site["value"])
    if math.prod(map(len, choices)) > MAX_VALUES:
        raise NotImplementedError(f"Discrete sites have more than {MAX_VALUES} joint values.")
    rows = np.array(list(product(*choices)))
    parts = np.split(rows, np.cumsum([np.size(s["value"]) for s in discrete.values()])[:-1], axis=1)
    return {
        name: jnp.asarray(part.reshape(-1, *jnp.shape(site["value"])), site["value"].dtype)
        for (name, site), part in zip(discrete.items(), parts, strict=True)
    }
