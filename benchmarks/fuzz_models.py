# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Random small NumPyro models for ``fuzz.py``: source text, drawn from a seed, that is executed, so that what is printed is
what was run. One to four latent sites with at most four free dimensions, of all kinds of supports; with given
probabilities latents are scales of others, there are several modes, or discrete sites; data are informative, vague or in
conflict with the prior. Data come from the model itself, in float64, and are part of the text.
"""

from collections.abc import Callable
import linecache
from typing import NamedTuple

from fuzz_latents import COMMON, KINDS, Latent, number, size
import jax
from jax import random
import jax.numpy as jnp
import numpy as np

import numpyro
from numpyro import handlers
import numpyro.distributions as dist
from numpyro.distributions import constraints, transforms

MAX_DIMS = 4
SHARE_SCALES, SHARE_MODES, SHARE_DISCRETE = 1 / 4, 1 / 10, 1 / 10  # of the models
NAMES = "abcd"
NUM_DRAWS = (
    64  # of the data, from the model: the first that is finite is taken, and all tell its width
)
LARGEST = 1e4  # of the data: larger ones are those of no user
REGIMES = {"informative": (10, 40, 0.1, 0.5), "vague": (1, 3, 1.0, 4.0), "conflicting": (3, 10, 0.3, 1.0)}  # fmt: skip


class FuzzModel(NamedTuple):
    """A model, its data, the text of both, and what is in it."""

    source: str
    fn: Callable
    y: np.ndarray
    num_dims: int
    tags: tuple[str, ...]


class Draft:
    """A model while it is written."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng, self.lines, self.tags = rng, [], []
        self.latents: list[Latent] = []
        self.modes_of: str | None = None  # the site that has several

    @property
    def room(self) -> int:
        """Free dimensions that are left."""
        return MAX_DIMS - sum(latent.num_dims for latent in self.latents)

    def add(self, latent: Latent) -> None:
        self.lines += latent.lines
        self.latents.append(latent)
        self.tags.append(latent.kind)

    def name(self) -> str:
        return NAMES[len(self.latents)]

    def choose(self, options):
        options = list(options)
        return options[self.rng.integers(len(options))]


def add_latents(draft: Draft, num_latents: int, has_scale: bool) -> None:
    """Sites of random kinds; with ``has_scale`` the first is the scale of one or more others."""
    rng = draft.rng
    if has_scale:
        draft.tags.append("scale of latents")
        draft.add(KINDS["positive"](draft.name(), rng, draft.latents, draft.room))
    while len(draft.latents) < num_latents and draft.room > 0:
        is_child = has_scale and (len(draft.latents) == 1 or rng.random() < 0.5)
        scale = draft.latents[0].name if is_child else None
        kinds = ["real", "plate"] if is_child else [*KINDS, *COMMON]
        latent = KINDS[draft.choose(kinds)](draft.name(), rng, draft.latents, draft.room, scale)
        if latent is not None:  # None: there is no room, or nothing to depend on
            draft.add(latent)
    if rng.random() < 0.15:
        draft.lines.append(f'numpyro.deterministic("square", {draft.latents[0].terms[0]} ** 2)')
        draft.tags.append("deterministic")


def add_modes(draft: Draft, has_discrete: bool) -> str | None:
    """Something that makes two modes or more; returns an expression for the mean of the data, or none."""
    rng, name = draft.rng, draft.name()
    draft.tags.append("modes")
    has_labels = draft.room > 1 and not has_discrete  # the latter would shift what labels replace
    way = draft.choose(["prior", "square", "absolute", "sine", *(["labels"] * has_labels)])
    draft.tags.append(f"modes: {way}")
    if way == "prior":
        apart, share = number(rng, 3, 8), number(rng, 0.2, 0.8)
        parts = (
            f"dist.Normal(jnp.array([{-apart}, {apart}]), jnp.array([{size(rng)}, {size(rng)}]))"
        )
        mixing = f"dist.Categorical(jnp.array([{share}, {1 - share:.4g}]))"
        fn, expression = f"dist.MixtureSameFamily({mixing}, {parts})", f"0.2 * {name}"
    else:
        fn = f"dist.Normal({number(rng, -0.5, 0.5)}, {size(rng)})"
        expression = {
            "square": f"{name} ** 2",
            "absolute": f"jnp.abs({name})",
            "sine": f"jnp.sin({number(rng, 1, 3)} * {name})",
            "labels": None,
        }[way]
    if way == "labels":
        fn = f"dist.Normal(0.0, {number(rng, 1, 4)}).expand([2]).to_event(1)"
    line = f'{name} = numpyro.sample("{name}", {fn})'
    terms = [f"{name}[0]", f"{name}[1]"] if way == "labels" else [name]
    draft.add(Latent("several modes", name, [line], len(terms), terms))
    draft.modes_of = name
    return expression


def mean_of(draft: Draft, first: str | None, num_data: int) -> str:
    """A linear combination of the latents, some times a covariate; vectors take turns over the data."""
    rng, parts = draft.rng, [first] if first else []
    for latent in draft.latents:
        if latent.name == draft.modes_of and first:
            continue
        if parts and rng.random() < 0.1:
            continue  # the data say nothing about this one
        factor = number(rng, 0.5, 1.5) * (1 if rng.random() < 0.7 else -1)
        if len(latent.terms) > 1 and latent.is_vector:
            where = f"np.arange({num_data}) % {len(latent.terms)}"
            parts.append(f"{factor} * {latent.name}[{where}]")
        elif rng.random() < 0.25 and num_data > 2:
            parts.append(
                f"{factor} * {draft.choose(latent.terms)} * np.linspace(-1, 1, {num_data})"
            )
        else:
            parts.append(" + ".join(f"{factor} * {term}" for term in latent.terms))
    return " + ".join(parts)


def add_discrete(draft: Draft, mean: str, num_data: int) -> tuple[str, str | None]:
    """A discrete site that shifts the mean, of all the data or, if there are few, of each; and its line in their plate."""
    rng, infer = draft.rng, 'infer={"enumerate": "parallel"}'
    draft.tags.append("discrete")
    shift = number(rng, 1, 4)
    if num_data <= 4 and rng.random() < 0.5:
        draft.tags.append("discrete in a plate")
        line = f'k = numpyro.sample("k", dist.Bernoulli({number(rng, 0.2, 0.8)}), {infer})'
        return f"{mean} + {shift} * k", f"    {line}"
    if rng.random() < 0.5:
        fn = f"dist.Bernoulli({number(rng, 0.2, 0.8)})"
    else:
        fn = "dist.Categorical(jnp.array([0.5, 0.3, 0.2]))"
    draft.lines.append(f'k = numpyro.sample("k", {fn}, {infer})')
    return f"{mean} + {shift} * k", None


def likelihood(draft: Draft, mean: str, noise: float) -> tuple[str, Callable]:
    """The distribution of the data, and what a conflict makes of these, given how much they vary."""
    rng = draft.rng
    positives = [latent.positive for latent in draft.latents if latent.positive]
    if positives and "scale of latents" not in draft.tags and rng.random() < 0.4:
        noise = f"{noise} + {number(rng, 0.1, 1)} * {draft.choose(positives)}"
    shift = (1 if rng.random() < 0.5 else -1) * number(rng, 3, 6)

    def shifted(y, width):
        return y + shift * width

    simplices = [latent.name for latent in draft.latents if latent.kind == "simplex"]
    families = {
        "normal": (f"dist.Normal({mean}, {noise})", shifted),
        "student": (f"dist.StudentT(4, {mean}, {noise})", shifted),
        "truncated": (f"dist.TruncatedNormal(jnp.tanh({mean}), {noise}, low=-1.0)", lambda y, width: y + abs(shift) * width),
        "poisson": (f"dist.Poisson(0.1 + jax.nn.softplus({mean}))", lambda y, width: 2 * y + 5),
        "bernoulli": (f"dist.Bernoulli(logits={mean})", lambda y, width: 1 - y),
        "binomial": (f"dist.Binomial(12, logits={mean})", lambda y, width: 12 - y),
        "gamma": (f"dist.Gamma(2.0, 0.1 + jax.nn.softplus({mean}))", lambda y, width: 6 * y),
        "circular": (f"dist.VonMises({mean}, {number(rng, 1, 8)})", lambda y, width: (y + 5.5) % 6.28 - 3.14),
    }  # fmt: skip
    if simplices:
        families["categorical"] = (f"dist.Categorical({simplices[0]})", lambda y, width: 1 - np.minimum(y, 1))  # fmt: skip
    # Half of them are normal, as those of users are.
    weights = np.array([3.0, 2.0] + [1.0] * (len(families) - 2))
    family = rng.choice(list(families), p=weights / weights.sum())
    if "modes: labels" in draft.tags:
        name, share = draft.modes_of, number(rng, 0.3, 0.7)
        mixing = f"dist.Categorical(jnp.array([{share}, {1 - share:.4g}]))"
        family = "normal"
        families["normal"] = (f"dist.MixtureSameFamily({mixing}, dist.Normal({name}, {noise}))", shifted)  # fmt: skip
    elif "modes" in draft.tags and family not in ("normal", "student"):
        family = "normal"  # others say too little for several modes
    draft.tags.append(f"data: {family}")
    return families[family]


def compile_source(source: str, name: str) -> dict:
    """The names that a text defines; it is kept for tracebacks."""
    namespace = {"np": np, "jax": jax, "jnp": jnp, "numpyro": numpyro, "dist": dist}
    namespace |= {"constraints": constraints, "transforms": transforms}
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    exec(compile(source, name, "exec"), namespace)
    return namespace


def draw_data(model: Callable, seed: int) -> tuple[np.ndarray, np.ndarray] | None:
    """A finite draw of the data from the model, and how much each datum varies over draws."""

    def draw(rng_key):
        return handlers.trace(handlers.seed(model, rng_key)).get_trace()["y"]["value"]

    draws = jax.jit(jax.vmap(draw))(random.split(random.key(seed), NUM_DRAWS))
    draws = np.asarray(draws, np.float64)
    is_usable = np.all(np.abs(draws) < LARGEST, axis=1)
    if not is_usable.any():
        return None
    width = np.ptp(np.quantile(draws[is_usable], [0.25, 0.75], axis=0), axis=0) / 1.35
    return draws[is_usable][0], np.max(width)


def make_model(seed: int, attempt: int = 0) -> FuzzModel | None:
    """
    Returns the random model of a seed; None if no data that a user could have come from it. Needs x64.

    :param attempt: another number gives another model, for a seed whose model is not to be used.
    """
    rng = np.random.default_rng([seed, attempt])
    has_scale, has_modes, has_discrete = rng.random(3) < (SHARE_SCALES, SHARE_MODES, SHARE_DISCRETE)
    draft, num_latents = Draft(rng), int(rng.integers(1, 5))
    regime = draft.choose(REGIMES)
    fewest, most, low, high = REGIMES[regime]
    num_data, noise = int(rng.integers(fewest, most + 1)), number(rng, low, high)
    first = add_modes(draft, has_discrete) if has_modes and not has_scale else None
    add_latents(draft, max(num_latents, 2 if has_scale else 1), has_scale)
    if has_modes and has_scale and draft.room > 0 and len(draft.latents) < len(NAMES):
        first = add_modes(draft, has_discrete)
    draft.tags.append(regime)
    mean, inner = mean_of(draft, first, num_data), None
    if has_discrete:
        mean, inner = add_discrete(draft, mean, num_data)
    fn, conflict = likelihood(draft, mean, noise)
    if has_discrete or rng.random() < 0.7:
        block = [f'with numpyro.plate("data", {num_data}):', *([inner] if inner else [])]
        block += [f'    numpyro.sample("y", {fn}, obs=y)']
    else:
        draft.tags.append("event")
        block = [f'numpyro.sample("y", {fn}.expand([{num_data}]).to_event(1), obs=y)']
    if rng.random() < 0.1:
        draft.tags.append("factor")
        term = draft.latents[-1].terms[0]
        block.append(f'numpyro.factor("f", -0.5 * ({term} - {number(rng, -1, 1)}) ** 2)')
    body = "".join(f"    {line}\n" for line in [*draft.lines, *block])
    name, source = f"<fuzz {seed}.{attempt}>", f"def model(y=None):\n{body}"
    found = draw_data(compile_source(source, name)["model"], seed)
    if found is None:
        return None
    y, width = found
    y = conflict(y, width) if regime == "conflicting" else y
    literals = ", ".join(f"{value:.6g}" for value in y)
    source += f"\n\ny = np.array([{literals}])\n"
    namespace = compile_source(source, name)
    num_dims = MAX_DIMS - draft.room
    return FuzzModel(source, namespace["model"], namespace["y"], num_dims, tuple(draft.tags))
