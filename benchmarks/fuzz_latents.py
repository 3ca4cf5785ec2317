# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Latent sites of the random models of ``fuzz_models.py``, by kind of support, as lines of source text."""

from collections.abc import Callable
from functools import partial
import re
from typing import NamedTuple

import numpy as np


class Latent(NamedTuple):
    """
    A latent site.

    :param lines: of the model.
    :param num_dims: free dimensions.
    :param terms: scalar expressions that the data may depend on.
    :param positive: an expression that is positive, if there is one.
    :param is_vector: whether the site is a vector with as many elements as terms.
    """

    kind: str
    name: str
    lines: list[str]
    num_dims: int
    terms: list[str]
    positive: str | None = None
    is_vector: bool = False


def number(rng: np.random.Generator, low: float, high: float) -> float:
    """A uniform number of two decimals."""
    return round(float(rng.uniform(low, high)), 2)


def size(rng: np.random.Generator) -> float:
    """A scale, from a fifth to five, in three digits."""
    return float(f"{np.exp(rng.uniform(np.log(0.2), np.log(5))):.3g}")


def place(rng: np.random.Generator) -> float:
    return number(rng, -3, 3)


def pick(rng: np.random.Generator, families: list[str]) -> str:
    return families[rng.integers(len(families))]


def site(name: str, fn: str) -> str:
    return f'{name} = numpyro.sample("{name}", {fn})'


def real_families(rng: np.random.Generator, scale: str | float) -> list[str]:
    """With location and scale; the scale may be another latent."""
    loc = place(rng)
    return [
        f"dist.Normal({loc}, {scale})",
        f"dist.StudentT({rng.integers(2, 7)}, {loc}, {scale})",
        f"dist.Laplace({loc}, {scale})",
        f"dist.Normal({loc}, {scale})",
        f"dist.Logistic({loc}, {scale})",
        f"dist.Gumbel({loc}, {scale})",
        f"dist.Cauchy({loc}, {scale})",
    ]


def families(kind: str, rng: np.random.Generator) -> list[str]:
    """Distributions over the support of a kind."""
    loc, scale, shape = place(rng), size(rng), number(rng, 0.7, 4)
    low = place(rng)
    wide = max(scale, 1.0)  # else the normaliser of a truncated normal may be zero, in float32
    high, normal = round(low + size(rng), 3), f"dist.Normal({loc}, {scale})"
    affine = f"transforms.AffineTransform({loc}, {scale}, domain=constraints.positive)"
    return {
        "positive": [
            f"dist.HalfNormal({scale})",
            f"dist.HalfCauchy({scale})",
            f"dist.Gamma({shape}, {scale})",
            f"dist.LogNormal({number(rng, -1, 1)}, {number(rng, 0.3, 1.5)})",
            f"dist.Exponential({scale})",
            f"dist.InverseGamma({1 + shape:.4g}, {scale})",
            f"dist.Weibull({scale}, {shape})",
        ],
        "unit interval": [
            f"dist.Beta({shape}, {number(rng, 0.5, 4)})",
            "dist.Uniform(0.0, 1.0)",
            f"dist.Kumaraswamy({shape}, {number(rng, 0.5, 4)})",
            f"dist.TransformedDistribution({normal}, transforms.SigmoidTransform())",
        ],
        "interval": [
            f"dist.Uniform({low}, {high})",
            f"dist.TruncatedNormal({loc}, {wide}, low={low}, high={high})",
            f"dist.TruncatedCauchy({loc}, {scale}, low={low}, high={high})",
            f"dist.LogUniform({scale}, {round(scale * (1 + size(rng)), 3)})",
        ],
        "half-line": [
            f"dist.TruncatedNormal({loc}, {wide}, low={low})",
            f"dist.TruncatedNormal({loc}, {wide}, high={low})",
            f"dist.TruncatedDistribution(dist.Logistic({loc}, {scale}), low={low})",
            f"dist.Pareto({scale}, {1 + shape:.4g})",
        ],
        "circular": [f"dist.VonMises({number(rng, -3, 3)}, {scale})"],
        "transformed": [
            f"dist.TransformedDistribution({normal}, [transforms.AffineTransform({low}, 0.5), transforms.ExpTransform()])",
            f"dist.TransformedDistribution(dist.Gamma({shape}, 1.0), {affine})",
            f"dist.TransformedDistribution({normal}, transforms.AffineTransform({low}, -2.0))",
        ],
    }[kind]


def scalar(kind: str, name: str, rng: np.random.Generator, *_) -> Latent:
    positive = (
        name if kind == "positive" else f"(0.1 + {name})" if kind == "unit interval" else None
    )
    return Latent(kind, name, [site(name, pick(rng, families(kind, rng)))], 1, [name], positive)


def real(name: str, rng: np.random.Generator, latents: list, room: int, scale: str | None = None):
    fn = pick(rng, real_families(rng, size(rng) if scale is None else scale))
    return Latent("real", name, [site(name, fn)], 1, [name])


def simplex(name: str, rng: np.random.Generator, latents: list, room: int, *_) -> Latent:
    num_free = int(rng.integers(1, min(room, 3) + 1))
    concentration = [number(rng, 0.7, 4) for _ in range(num_free + 1)]
    line = site(name, f"dist.Dirichlet(jnp.array({concentration}))")
    return Latent("simplex", name, [line], num_free, [f"{name}[0]"], f"(0.1 + {name}[0])")


def ordered(name: str, rng: np.random.Generator, latents: list, room: int, *_) -> Latent | None:
    if room < 2:
        return None
    length = int(rng.integers(2, min(room, 3) + 1))
    base = (
        f"dist.Normal({number(rng, -1, 1)}, {number(rng, 0.5, 1.5)}).expand([{length}]).to_event(1)"
    )
    line = site(name, f"dist.TransformedDistribution({base}, transforms.OrderedTransform())")
    terms = [f"{name}[{i}]" for i in range(length)]
    return Latent("ordered", name, [line], length, terms, None, True)


def correlation(name: str, rng: np.random.Generator, *_) -> Latent:
    line = site(name, f"dist.LKJCholesky(2, {number(rng, 0.7, 3)})")
    return Latent("correlation", name, [line], 1, [f"{name}[1, 0]"], f"(0.1 + {name}[1, 1])")


def bounded(name: str, rng: np.random.Generator, latents: list, room: int, *_) -> Latent | None:
    """The bound is another latent, which is real or positive."""
    parents = [latent for latent in latents if latent.kind in PARENTS]
    if not parents:
        return None
    parent = parents[rng.integers(len(parents))]
    if parent.positive:
        fns = [f"dist.Uniform(0.0, {parent.name})", f"dist.Pareto({parent.name}, 3.0)"]
    else:
        loc, scale = place(rng), size(rng)
        affine = f"transforms.AffineTransform({parent.name}, {scale}, domain=constraints.positive)"
        fns = [
            f"dist.TruncatedCauchy({loc}, {scale}, low={parent.name})",
            f"dist.TransformedDistribution(dist.Gamma(1.5, 1.0), {affine})",
            f"dist.Uniform({parent.name}, {parent.name} + {scale})",
        ]
        if re.search(r"dist\.Normal\(-?[\d.]+, [\d.]+\)", parent.lines[-1]):
            # Not with heavier tails of the bound: far out, NumPyro's truncated normal is not finite.
            fns.append(f"dist.TruncatedNormal({loc}, {max(scale, 1.0)}, high={parent.name})")
    return Latent("bounded by a latent", name, [site(name, pick(rng, fns))], 1, [name])


def plate(name: str, rng: np.random.Generator, latents: list, room: int, scale: str | None = None):
    """Two or three independent elements."""
    if room < 2:
        return None
    length = int(rng.integers(2, min(room, 3) + 1))
    if scale is None and rng.random() < 0.4:
        fn, kind = pick(rng, families("positive", rng)), "positive plate"
    else:
        fn = pick(rng, real_families(rng, size(rng) if scale is None else scale)[:4])
        kind = "plate"
    lines = [f'with numpyro.plate("plate_{name}", {length}):', f"    {site(name, fn)}"]
    return Latent(kind, name, lines, length, [f"{name}[{i}]" for i in range(length)], None, True)


def vector(name: str, rng: np.random.Generator, latents: list, room: int, *_) -> Latent | None:
    """Correlated normals."""
    if room < 2:
        return None
    first, second, r = size(rng), size(rng), number(rng, -0.9, 0.9)
    tril = f"[[{first}, 0.0], [{r * second:.4g}, {np.sqrt(1 - r**2) * second:.4g}]]"
    fn = f"dist.MultivariateNormal(jnp.array([{place(rng)}, {place(rng)}]), scale_tril=jnp.array({tril}))"
    return Latent("vector", name, [site(name, fn)], 2, [f"{name}[0]", f"{name}[1]"], None, True)


PARENTS = ("positive", "real")
COMMON = ("real", "bounded by a latent", "bounded by a latent")  # counted once more, or twice
SCALARS = ("positive", "unit interval", "interval", "half-line", "circular", "transformed")
# By kind: a site, given its name, a generator, the sites before it, the free dimensions left, and a scale that is a latent;
# None if that cannot be.
KINDS: dict[str, Callable[..., Latent | None]] = {
    "real": real,
    **{kind: partial(scalar, kind) for kind in SCALARS},
    "simplex": simplex,
    "ordered": ordered,
    "correlation": correlation,
    "bounded by a latent": bounded,
    "plate": plate,
    "vector": vector,
}
