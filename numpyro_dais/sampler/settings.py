# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""The settings of a chain: everything that is fixed before the run."""

from collections.abc import Callable
import os
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_dais._util.checks import check_count, check_numbers
from numpyro_dais._util.concreteness import is_concrete
from numpyro_dais.sampler.kernel import Axes, Step
from numpyro_dais.sampler.mixture import Component, Mixture
from numpyro_dais.sampler.schedule import Schedule, interpolate, validate_betas

__all__ = [
    "NO_DECISION",
    "Decision",
    "PartialSettings",
    "Settings",
    "check_damping",
    "constant_matrix",
    "diagonal_per_step",
    "interpolate_settings",
    "load_settings",
    "make_settings",
    "no_steps",
    "resolve_betas",
    "resolve_num_steps",
]

# The end of the names of NumPy's files.
_SUFFIX = ".npz"


@jax.tree_util.register_static
class Decision:
    """
    Words on how settings were found, which no program depends on: all are equal.

    :param lines: the words.
    """

    def __init__(self, *lines: str) -> None:
        self.lines = lines

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Decision)

    def __hash__(self) -> int:
        return hash(Decision)


NO_DECISION = Decision()


class Settings(NamedTuple):
    """
    Settings of a chain of K steps.

    :param betas: inverse temperatures, ``[K]``.
    :param step_size: one per step, ``[K]``, or per step and element of a plate.
    :param damping: one per step, ``[K]``.
    :param preconditioner: None; constant, ``[num_dims]`` or ``[num_dims, num_dims]`` (lower
        triangular); or per step, with a leading axis of length K. As many steps as dimensions leave
        two of these alike; ``[1, num_dims, num_dims]`` is one matrix and ``[K, 1, num_dims]`` one
        diagonal per step, always.
    :param num_gradients: gradient evaluations that were spent to find these settings.
    :param start: a start that was fitted to the posterior, or None for the estimator's own.
    :param num_particles: how many particles these settings are for, or None.
    :param basis: axes :math:`B`, ``[num_dims, num_dims]``, along which a preconditioner that is
        diagonal acts, :math:`L = B diag(s)`; None for those of the positions.
    :param decision: how these settings were found, in words.
    :param max_kick: the longest change of the momentum in one step, a number; None for no limit.
        See :func:`~numpyro_dais.sampler.kernel.kick`.
    """

    betas: jax.Array
    step_size: jax.Array
    damping: jax.Array
    preconditioner: jax.Array | None = None
    num_gradients: int = 0
    start: Mixture | None = None
    num_particles: int | None = None
    basis: jax.Array | None = None
    decision: Decision = NO_DECISION
    max_kick: jax.Array | None = None

    @property
    def num_steps(self) -> int:
        """The number of steps K."""
        return self.betas.shape[-1]

    def __repr__(self) -> str:
        if not is_concrete(self):
            return f"Settings({self.num_steps} steps, traced)"
        lines = [
            f"Settings of {self.num_steps} steps" if self.num_steps else "Settings without steps"
        ]
        if self.num_steps:
            is_constant = self.preconditioner is None or not _is_per_step(
                self.preconditioner.shape, self.num_steps
            )
            kind = "none" if self.preconditioner is None else f"shape {self.preconditioner.shape}"
            kind += "" if self.basis is None else ", along axes of its own"
            lines += [
                f"  betas {_range(self.betas)}, half way at step {self._half_way} of {self.num_steps}",
                f"  step size {_range(self.step_size)}, damping {_range(self.damping)}",
                f"  preconditioner: {kind}{'' if is_constant else ', one per step'}",
            ]
            if self.max_kick is not None:
                lines.append(f"  kicks of a length of at most {float(self.max_kick):.3g}")
        start = "as the estimator's" if self.start is None else self.start.description
        number = "" if self.num_particles is None else f"; for {self.num_particles} particles"
        lines.append(f"  start: {start}{number}; found with {self.num_gradients} gradients")
        lines += [f"  {line}" for line in self.decision.lines]
        return "\n".join(lines)

    @property
    def _half_way(self) -> int:
        return int(np.searchsorted(np.asarray(self.betas), 0.5)) + 1

    def save(self, path: Any) -> None:
        """
        Writes the settings to a file, from which :func:`load_settings` reads them.

        :param path: of the file, in NumPy's ``npz`` format; with ``.npz`` at the end of its name,
            which is added if it is not there.
        """
        arrays: dict[str, Any] = {
            "/".join(str(getattr(key, "name", key)) for key in keys): np.asarray(leaf)
            for keys, leaf in jax.tree_util.tree_leaves_with_path(self)
        }
        arrays["decision"] = np.array(self.decision.lines, dtype=str)
        np.savez(path, **arrays)  # adds the suffix

    def of_chain(self) -> "Settings":
        """Returns what a compiled chain depends on, and nothing that would compile it again."""
        return self._replace(num_gradients=0, start=None, num_particles=None, decision=NO_DECISION)

    def steps(self, num_dims: int) -> Step:
        """
        Returns the settings stacked by step. A constant preconditioner is not repeated: its leading
        axis is of length 1.

        :param num_dims: the dimension of a position.
        """
        preconditioner: Any = self.preconditioner
        if preconditioner is not None:
            preconditioner = _by_step(preconditioner, self.num_steps, num_dims)
        if self.basis is not None:
            preconditioner = Axes(preconditioner, self.basis)
        previous = jnp.append(0.0, self.betas[:-1])[: self.num_steps]
        max_kick = self.max_kick
        if max_kick is not None:
            max_kick = jnp.broadcast_to(max_kick, self.betas.shape)
        return Step(self.betas, previous, self.step_size, self.damping, preconditioner, max_kick)


class PartialSettings(NamedTuple):
    """
    Settings of a chain but for its step size.

    :param num_steps: the number of steps.
    :param damping: a number, or one per step.
    :param schedule: a function of the number of steps, or the inverse temperatures themselves.
    :param preconditioner: as in :class:`Settings`.
    """

    num_steps: int
    damping: Any
    schedule: Schedule | Any
    preconditioner: Any = None

    @property
    def betas(self) -> Any:
        """The inverse temperatures."""
        return resolve_betas(self.schedule, self.num_steps)

    def with_unit(self, unit_fn: Callable[[], np.ndarray]) -> "PartialSettings":
        """Returns the same with a unit of positions as preconditioner, unless one is there."""
        return self if self.preconditioner is not None else self._replace(preconditioner=unit_fn())

    def at(self, step_size: Any) -> Settings:
        """Returns complete settings, from a step size."""
        return make_settings(self.betas, step_size, self.damping, self.preconditioner)


def resolve_num_steps(num_steps: int | None, schedule: Any, default: int) -> int:
    """Returns the number of steps, as given, that of the schedule, or the default."""
    if num_steps is None:
        return default if callable(schedule) else len(schedule)
    return check_count("num_steps", num_steps, 0)


def resolve_betas(schedule: Any, num_steps: int) -> Any:
    """Returns the inverse temperatures of a schedule, one for each step."""
    betas = schedule(num_steps) if callable(schedule) else schedule
    if len(betas) != num_steps:
        raise ValueError(
            f"The schedule must have one beta per step; got {len(betas)} betas for {num_steps} steps. "
            "Leave num_steps out to take its length from the schedule."
        )
    return betas


def load_settings(path: Any) -> Settings:
    """
    Returns settings that :meth:`Settings.save` has written.

    :param path: of the file, with or without the ``.npz`` that :meth:`Settings.save` adds.
    """
    with np.load(_find_file(path), allow_pickle=False) as file:
        arrays = dict(file)
    if "betas" not in arrays:
        raise ValueError(
            f"{path} holds no settings; it has {sorted(arrays)}. Write it with Settings.save."
        )
    counts: dict[str, Any] = {
        name: int(arrays.pop(name)) for name in ("num_gradients", "num_particles") if name in arrays
    }
    decision = Decision(*arrays.pop("decision", np.zeros(0, str)).tolist())
    order = arrays.pop("start/order", None)
    floats: dict[str, Any] = {name: jnp.asarray(value, float) for name, value in arrays.items()}

    def part(prefix: str) -> dict[str, Any]:
        names = [name for name in floats if name.startswith(prefix)]
        return {name.removeprefix(prefix): floats.pop(name) for name in names}

    component = part("start/components/")
    mixture = part("start/")
    if order is None:
        return Settings(**floats, **counts, decision=decision)
    start = Mixture(jnp.asarray(order), Component(**component), **mixture)
    return Settings(**floats, **counts, start=start, decision=decision)


def _find_file(path: Any) -> Any:
    """Returns the file that NumPy has written for a path; an open file as it is."""
    if hasattr(path, "read"):
        return path
    names = [os.fspath(path)]
    if not names[0].endswith(_SUFFIX):
        names.insert(0, names[0] + _SUFFIX)
    for name in names:
        if os.path.isfile(name):
            return name
    raise FileNotFoundError(
        f"There is no file of settings {' or '.join(repr(name) for name in names)}. Write it with Settings.save, or "
        "give another path."
    )


def make_settings(
    betas: Any, step_size: Any, damping: Any, preconditioner: Any = None, num_gradients: int = 0
) -> Settings:
    """
    Returns checked settings, numbers broadcast to one per step.

    :param betas: inverse temperatures.
    :param step_size: a positive number, or one per step.
    :param damping: a number in [0, 1), or one per step.
    :param preconditioner: see :class:`Settings`.
    :param num_gradients: see :class:`Settings`.
    """
    if is_concrete(betas):
        betas = validate_betas(betas)
    num_steps = len(betas)
    check_step_size(step_size)
    check_damping(damping)
    given_step_size, given_damping = step_size, damping
    step_size = _array(step_size)
    if step_size.ndim < 2:  # else for each element of a plate its own, as a pilot run finds them
        step_size = _one_per_step("step_size", step_size, num_steps)
    damping = _one_per_step("damping", damping, num_steps)
    if is_concrete(step_size):
        _check_values("step_size", "positive", given_step_size, np.asarray(step_size) > 0)
    if is_concrete(damping):
        values = np.asarray(damping)
        _check_values("damping", "in [0, 1)", given_damping, (values >= 0) & (values < 1))
    if preconditioner is not None:
        preconditioner = _array(preconditioner)
    return Settings(_array(betas), step_size, damping, preconditioner, num_gradients)


def check_step_size(step_size: Any) -> None:
    """Raises an error unless a step size is made of numbers."""
    remedy = "Leave it out of DAIS, HAIS or AIS to have it tuned."
    check_numbers("step_size", step_size, remedy)


def check_damping(damping: Any) -> None:
    """Raises an error unless a damping is made of numbers."""
    check_numbers("damping", damping, "Give numbers in [0, 1), or leave it out.")


def interpolate_settings(
    settings: Settings, num_steps: int, is_preconditioner_changing: bool = False
) -> Settings:
    """
    Returns settings for another number of steps: every setting as a function of k/K, and step sizes
    shrunk as K to the -1/4, the paper's rule.

    :param settings: the settings.
    :param num_steps: the number of steps wanted.
    :param is_preconditioner_changing: whether the preconditioner has one entry per step.
    """
    if num_steps == settings.num_steps:
        return settings
    preconditioner = settings.preconditioner
    if preconditioner is not None and is_preconditioner_changing:
        preconditioner = interpolate(preconditioner, num_steps)
    shrinkage = (num_steps / settings.num_steps) ** -0.25
    return Settings(
        betas=interpolate(settings.betas, num_steps, is_zero_first=True),
        step_size=shrinkage * interpolate(settings.step_size, num_steps),
        damping=interpolate(settings.damping, num_steps),
        preconditioner=preconditioner,
        num_gradients=settings.num_gradients,
        max_kick=settings.max_kick,
    )


def no_steps() -> Settings:
    """Returns the settings of importance sampling."""
    return make_settings(np.zeros(0), 1.0, 0.0)


def _range(values: jax.Array) -> str:
    low, high = float(np.min(values)), float(np.max(values))
    return f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"


def _one_per_step(name: str, value: Any, num_steps: int) -> jax.Array:
    value = _array(value)
    if value.shape not in ((), (num_steps,)):
        raise ValueError(
            f"{name} must be a number or one number for each of the {num_steps} steps; got shape "
            f"{value.shape}."
        )
    if is_concrete(value):
        return jax.device_put(np.broadcast_to(value, (num_steps,)))
    return jnp.broadcast_to(value, (num_steps,))


def _array(value: Any) -> jax.Array:
    """Returns an array of floats; concrete values NumPy converts, and nothing compiles."""
    if not is_concrete(value):
        return jnp.asarray(value, float)
    return jax.device_put(np.asarray(value, jnp.result_type(float)))


def _check_values(name: str, rule: str, given: Any, is_valid: np.ndarray) -> None:
    """
    Raises an error that shows the first bad value as it was given, before it was rounded.
    """
    values = np.broadcast_to(np.asarray(given), is_valid.shape)
    is_valid = is_valid & np.isfinite(values)
    if not is_valid.all():
        raise ValueError(f"{name} must be finite and {rule}; got {values[~is_valid][0]!s}.")


def diagonal_per_step(diagonals: Any) -> Any:
    """
    Returns a preconditioner with one diagonal per step, in a shape that is none of a matrix.

    :param diagonals: ``[num_steps, num_dims]``.
    """
    num_steps, num_dims = diagonals.shape
    return diagonals[:, None] if num_steps == num_dims else diagonals


def constant_matrix(matrix: Any, num_steps: int) -> Any:
    """
    Returns a matrix as the preconditioner of all steps, in a shape that is none of diagonals.

    :param matrix: ``[num_dims, num_dims]``.
    :param num_steps: the number of steps.
    """
    return matrix[None] if len(matrix) == num_steps else matrix


def _is_per_step(shape: tuple[int, ...], num_steps: int) -> bool:
    """True if a preconditioner of this shape changes from step to step."""
    if len(shape) == 2:
        return shape[0] == num_steps != shape[1]
    return len(shape) == 3 and shape[0] == num_steps


def _by_step(preconditioner: jax.Array, num_steps: int, num_dims: int) -> jax.Array:
    shape, vector, matrix = preconditioner.shape, (num_dims,), (num_dims, num_dims)
    if shape == matrix == (num_steps, num_dims):
        raise ValueError(
            f"A preconditioner of shape {shape} with {num_steps} steps may be one matrix or one diagonal "
            f"per step. Give it the shape (1, {num_dims}, {num_dims}) or ({num_steps}, 1, {num_dims})."
        )
    if shape in (vector, matrix):
        return preconditioner[None]
    if shape == (num_steps, 1, num_dims):
        return preconditioner[:, 0]
    if shape in ((num_steps, *vector), (num_steps, *matrix), (1, *matrix)):
        return preconditioner
    raise ValueError(
        f"A preconditioner must have shape {vector} or {matrix}, with a leading axis of {num_steps} if "
        f"it changes from step to step; got {shape}."
    )
