# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Settings of a chain as parameters that SVI learns."""

from collections.abc import Callable
import math
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp

import numpyro
from numpyro import handlers
from numpyro.distributions import biject_to, constraints
from numpyro.infer import autoguide

from numpyro_dais.model.guide import latent_sites, pieces_of
from numpyro_dais.model.inspection import Trace, plate_axes_of, plates_of
from numpyro_dais.sampler.settings import Settings, constant_matrix, diagonal_per_step

__all__ = ["LEARNABLE", "LearnableSettings", "LearnedGuide", "schedule_entropy"]

Learnable = Literal["schedule", "step_size", "damping", "mass"]
LEARNABLE: tuple[str, ...] = get_args(Learnable)

_SCHEDULE, _STEP_SIZE, _DAMPING = "davi_schedule", "davi_step_size", "davi_damping"
_MASS = "davi_mass_"  # followed by the name of a site


class LearnableSettings(NamedTuple):
    """
    Settings of a chain, of which some are learned.

    :param initial: the settings, and where those that are learned start.
    :param learn: names of the learned ones, of ``LEARNABLE``.
    :param max_step_size: what learned step sizes stay below.
    :param is_mass_per_step: whether a learned mass differs from step to step.
    :param is_optional: whether they are learned only if they are among the parameters, as with
        :meth:`DAVI.guide`; else it is an error if they are not.
    """

    initial: Settings
    learn: tuple[str, ...]
    max_step_size: float
    is_mass_per_step: bool
    is_optional: bool = False

    def declare(self, guide: Any, trace: Trace) -> None:
        """
        Makes a ``numpyro.param`` of every learned setting.

        :param guide: the guide that the chains start at.
        :param trace: of that guide.
        """
        betas, step_size, damping = self.initial[:3]
        if "schedule" in self.learn:
            numpyro.param(_SCHEDULE, jnp.log(jnp.diff(betas, prepend=0.0)))
        if "step_size" in self.learn:
            interval = constraints.interval(0.0, self.max_step_size)
            numpyro.param(_STEP_SIZE, step_size, constraint=interval)
        if "damping" in self.learn:
            numpyro.param(_DAMPING, damping[0], constraint=constraints.unit_interval)
        if "mass" in self.learn:
            lead = (self.initial.num_steps,) if self.is_mass_per_step else ()
            for name, shape in _element_shapes(guide, trace).items():
                mass = jnp.ones((*lead, *shape))
                numpyro.param(f"{_MASS}{name}", mass, constraint=constraints.positive)

    def values(self, params: dict[str, Any]) -> dict[str, Any]:
        """
        Returns the learned settings by name: the betas, the step sizes, the damping, and the mass
        of each site.

        :param params: parameters of a fit.
        """
        learn = self.learned(params)
        values: dict[str, Any] = {}
        if "schedule" in learn:
            values["schedule"] = _betas(params[_SCHEDULE])
        if "step_size" in learn:
            values["step_size"] = params[_STEP_SIZE]
        if "damping" in learn:
            values["damping"] = params[_DAMPING]
        if "mass" in learn:
            names = sorted(name for name in params if name.startswith(_MASS))
            values["mass"] = {name.removeprefix(_MASS): params[name] for name in names}
        return values

    def settings(self, params: dict[str, Any], scale: jax.Array | None = None) -> Settings:
        """
        Returns the settings of the chains at parameters of a fit.

        :param params: the parameters.
        :param scale: the unit of positions, ``[num_dims]`` or ``[num_dims, num_dims]``.
        """
        values = self.values(params)
        unit = None if scale is None else self._in_all_steps(scale)
        settings = self.initial._replace(preconditioner=unit)
        if "schedule" in values:
            settings = settings._replace(betas=values["schedule"])
        if "step_size" in values:
            settings = settings._replace(step_size=values["step_size"])
        if "damping" in values:
            damping = jnp.broadcast_to(values["damping"], settings.betas.shape)
            settings = settings._replace(damping=damping)
        if "mass" in values:
            lead = (settings.num_steps,) if self.is_mass_per_step else ()
            # Sites in alphabetical order, as in a position.
            masses = [jnp.reshape(mass, (*lead, -1)) for mass in values["mass"].values()]
            preconditioner = jnp.concatenate(masses, -1) ** -0.5
            if scale is not None:
                is_matrix = scale.ndim == 2
                preconditioner = scale * (
                    preconditioner[..., None, :] if is_matrix else preconditioner
                )
            is_diagonal = scale is None or scale.ndim == 1
            if is_diagonal and self.is_mass_per_step:
                preconditioner = diagonal_per_step(preconditioner)
            else:
                preconditioner = self._in_all_steps(preconditioner)
            settings = settings._replace(preconditioner=preconditioner)
        return settings

    def _in_all_steps(self, unit: jax.Array) -> jax.Array:
        """The same unit; a matrix in a shape that says that it is one."""
        is_matrix = unit.ndim == 2
        return constant_matrix(unit, self.initial.num_steps) if is_matrix else unit

    def learned(self, params: dict[str, Any]) -> tuple[str, ...]:
        """
        Returns the names of the settings that are learned in a fit, or raises an error if one that
        must be is not among its parameters.

        :param params: parameters of the fit.
        """
        prefixes = {
            "schedule": _SCHEDULE,
            "step_size": _STEP_SIZE,
            "damping": _DAMPING,
            "mass": _MASS,
        }
        found = [
            name for name in self.learn if any(param.startswith(prefixes[name]) for param in params)
        ]
        if self.is_optional:
            return tuple(found)
        for name in self.learn:
            if name not in found:
                raise ValueError(
                    f"learn={self.learn!r} needs parameters of the loss, and {name!r} is not among them. Pass "
                    "davi.guide(guide) to SVI in place of the guide: SVI(model, davi.guide(guide), optim, "
                    "loss=davi)."
                )
        return self.learn


class LearnedGuide:
    """
    A guide with the learned settings of a loss beside its own parameters, for SVI. Attributes are
    those of the guide.

    :param guide: the guide.
    :param learnable: the settings.
    """

    def __init__(self, guide: Callable, learnable: LearnableSettings) -> None:
        self.guide = guide
        self._learnable = learnable

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with handlers.trace() as trace:
            result = self.guide(*args, **kwargs)
        self._learnable.declare(self.guide, trace)
        return result

    def __getattr__(self, name: str) -> Any:
        if name in ("guide", "_learnable"):  # not set yet, as in a copy
            raise AttributeError(name)
        return getattr(self.guide, name)


def schedule_entropy(params: dict[str, Any]) -> jax.Array:
    """
    Returns the entropy of the increments of a learned schedule: largest when they are equal.

    :param params: parameters of a fit with a learned schedule.
    """
    log_increments = jax.nn.log_softmax(params[_SCHEDULE])
    return -jnp.sum(jnp.exp(log_increments) * log_increments)


def _betas(logits: jax.Array) -> jax.Array:
    increments = jnp.cumsum(jax.nn.softmax(logits))
    return increments / increments[-1]  # the last is exactly one


def _element_shapes(guide: Any, trace: Trace) -> dict[str, tuple[int, ...]]:
    """
    The shape of the unconstrained value of each site, in one element of the plates that hold all
    sites of the guide: a mass belongs to a coordinate, never to a datum.
    """
    sites: Trace = {}
    for name, site in latent_sites(trace).items():
        if not site["infer"].get("is_auxiliary"):
            sites[name] = site
    for piece in pieces_of(guide):
        if isinstance(piece, autoguide.AutoGuide):
            own = {
                name: piece.prototype_trace[name] for name in sites if name in piece.prototype_trace
            }
            sites.update(own)
    stacks = [plates_of(site) for site in sites.values()]
    plates = tuple(set.intersection(*stacks)) if stacks else ()
    shapes = {}
    for name, site in sorted(sites.items()):
        transform = biject_to(site["fn"].support)
        shape = transform.inverse_shape(jnp.shape(site["value"]))
        axes = plate_axes_of(site, plates)
        shapes[name] = tuple(size for axis, size in enumerate(shape) if axis not in axes)
    if any(math.prod(shape) == 0 for shape in shapes.values()):
        raise ValueError(f"The guide's sites have shapes {shapes}, of which one is empty.")
    return shapes
