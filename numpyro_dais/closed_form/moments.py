# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

r"""
Mean and covariance of a chain whose target is Gaussian, step by step.

Every update of the chain is affine in :math:`(u, v)` given its noise, so that first and second
moments close: they follow exactly, whatever the distributions are. Matrices come as blocks,
``[blocks, size, size]``, and vectors as ``[blocks, size, 1]``: d blocks of size one in an
eigenbasis, else one of size d.

The recursion runs in float64 whatever precision JAX runs in, and is not to be traced.
"""

from typing import Any, NamedTuple, TypeAlias

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

__all__ = ["BatchTensors", "ChainMoments", "GaussianTarget", "Moments", "Steps", "propagate"]

Array: TypeAlias = Any  # of JAX inside the compiled program, of NumPy outside

# Steps of one call of the compiled program, which is the same for every K: the longer, the more of
# the last call is padding; the shorter, the more calls there are. A round number.
_CHUNK = 512


class Moments(NamedTuple):
    """Mean and covariance of (u, v)."""

    mean_u: Array
    mean_v: Array
    cov_uu: Array
    cov_uv: Array
    cov_vv: Array


class BatchTensors(NamedTuple):
    r"""
    Sums over rows that give the noise of a mini-batch at every u; see :func:`_batch_noise`.

    :param fourth: :math:`\sum_i x_i x_i x_i x_i`, ``[d^2, d^2]``.
    :param third: :math:`\sum_i r_i x_i x_i x_i`, ``[d^2, d]``, where r is the residual at u = 0.
    :param second: :math:`\sum_i r_i^2 x_i x_i`, ``[d, d]``.
    :param num_data: the number of rows N.
    :param scale: the factor of the population covariance of a row's gradient.
    """

    fourth: Array
    third: Array
    second: Array
    num_data: Array
    scale: Array


class GaussianTarget(NamedTuple):
    r"""
    The path :math:`\log f_\beta(u) = -\tfrac12 u^\top (\Lambda_0 + \beta G) u + \beta s^\top u`.

    :param prior: :math:`\Lambda_0`.
    :param gram: :math:`G`.
    :param score: :math:`s`.
    :param noise: covariance of the noise that is added to the gradient of the log likelihood.
    :param batch: for the noise of mini-batches, which depends on u; ``None`` for none.
    """

    prior: Array
    gram: Array
    score: Array
    noise: Array
    batch: BatchTensors | None = None


class Steps(NamedTuple):
    """
    Settings of K steps, stacked.

    :param beta: inverse temperatures, ``[K]``.
    :param step_size: step sizes, ``[K]``.
    :param damping: damping, ``[K]``.
    :param scale: preconditioners; its leading axis is of length 1 if all steps share one.
    """

    beta: Array
    step_size: Array
    damping: Array
    scale: Array


class ChainMoments(NamedTuple):
    """
    The moments of a chain after its K steps.

    :param moments: of (u, v) at the end.
    :param kinetic: the expected sum of the losses of kinetic energy in the leapfrog steps.
    :param means: of u after each step, ``[K, blocks, size, 1]``; empty unless asked for.
    """

    moments: Moments
    kinetic: float
    means: Array


def propagate(target: GaussianTarget, steps: Steps, keep_means: bool = False) -> ChainMoments:
    """
    Returns the moments of a chain from the prior, centred at u = 0, with standard normal momenta.

    :param target: the path.
    :param steps: settings of the steps.
    :param keep_means: whether to return the mean after each step.
    """
    zeros = np.zeros_like(target.score)
    identity = np.broadcast_to(np.eye(target.prior.shape[-1]), target.prior.shape)
    covariance = np.linalg.inv(target.prior)
    state = Moments(zeros, zeros, covariance, np.zeros_like(covariance), identity), np.zeros(())
    paths = [np.zeros((0, *zeros.shape))]
    # Steps are padded to whole chunks; the program stops where they end.
    with jax.ensure_compile_time_eval(), jax.enable_x64(True):
        for start in range(0, len(steps.beta), _CHUNK):
            part = Steps(
                _chunk(steps.beta, start),
                _chunk(steps.step_size, start),
                _chunk(steps.damping, start),
                steps.scale if len(steps.scale) == 1 else _chunk(steps.scale, start),
            )
            num_steps = min(_CHUNK, len(steps.beta) - start)
            *state, path = _run(*state, target, part, num_steps)
            if keep_means:
                paths.append(np.asarray(path)[:num_steps])
    moments, kinetic = state
    moments = Moments(*[np.asarray(value) for value in moments])
    return ChainMoments(moments, float(kinetic), np.concatenate(paths))


def _chunk(setting: Array, start: int) -> Array:
    part = setting[start : start + _CHUNK]
    return np.concatenate([part, np.zeros((_CHUNK - len(part), *part.shape[1:]))])


@jax.jit
def _run(
    moments: Moments, kinetic: Array, target: GaussianTarget, steps: Steps, num_steps: Array
) -> tuple[Moments, Array, Array]:
    """Returns moments and kinetic energy lost after more steps, and the mean after each."""
    path = jnp.zeros((_CHUNK, *moments.mean_u.shape))

    def body(index: Array, carry: tuple) -> tuple:
        moments, kinetic, path = carry
        step = Steps(*[setting[index if len(setting) > 1 else 0] for setting in steps])
        moments, loss = _step(moments, target, step)
        return moments, kinetic + loss, path.at[index].set(moments.mean_u)

    return lax.fori_loop(0, num_steps, body, (moments, kinetic, path))


def _step(moments: Moments, target: GaussianTarget, step: Steps) -> tuple[Moments, Array]:
    """Returns moments after one step, and the expected loss of kinetic energy in its leapfrog."""
    before = _kinetic_energy(moments)
    drift = step.step_size / 2 * step.scale
    moments = _drift(moments, drift)
    noise = target.noise if target.batch is None else _batch_noise(moments, target)
    moments = _kick(
        moments,
        step.step_size * step.scale.swapaxes(1, 2),
        target.prior + step.beta * target.gram,
        step.beta * target.score,
        step.beta**2 * noise,
    )
    loss = before - _kinetic_energy(moments)
    return _refresh(_drift(moments, drift), step.damping), loss


def _drift(moments: Moments, shift: Array) -> Moments:
    """Returns moments after u += shift v."""
    cross = _product(shift, moments.cov_uv.swapaxes(1, 2))
    half = _product(shift, moments.cov_vv)
    return moments._replace(
        mean_u=moments.mean_u + _product(shift, moments.mean_v),
        cov_uu=moments.cov_uu
        + cross
        + cross.swapaxes(1, 2)
        + _symmetric(_product(half, shift.swapaxes(1, 2))),
        cov_uv=moments.cov_uv + half,
    )


def _kick(moments: Moments, kick: Array, precision: Array, score: Array, noise: Array) -> Moments:
    """Returns moments after v += kick (score - precision u + xi), xi with covariance ``noise``."""
    slope = -_product(kick, precision)
    cross = _product(slope, moments.cov_uv)
    half = _product(moments.cov_uu, slope.swapaxes(1, 2))
    return moments._replace(
        mean_v=moments.mean_v + _product(slope, moments.mean_u) + _product(kick, score),
        cov_uv=moments.cov_uv + half,
        cov_vv=moments.cov_vv
        + cross
        + cross.swapaxes(1, 2)
        + _symmetric(_product(slope, half) + _product(_product(kick, noise), kick.swapaxes(1, 2))),
    )


def _symmetric(matrices: Array) -> Array:
    """Returns the same up to rounding, which, if not symmetric, would grow from step to step."""
    return (matrices + matrices.swapaxes(1, 2)) / 2


def _refresh(moments: Moments, damping: Array) -> Moments:
    """Returns moments after v = damping v + sqrt(1 - damping^2) eps."""
    identity = jnp.eye(moments.cov_vv.shape[-1])
    return moments._replace(
        mean_v=damping * moments.mean_v,
        cov_uv=damping * moments.cov_uv,
        cov_vv=damping**2 * moments.cov_vv + (1 - damping**2) * identity,
    )


def _batch_noise(moments: Moments, target: GaussianTarget) -> Array:
    r"""
    Returns the covariance of the error of a mini-batch's gradient, in expectation over u.

    With :math:`g_i(u) = x_i (r_i - x_i^\top u)`, it is a multiple of
    :math:`\tfrac1N \sum_i g_i g_i^\top - \bar g \bar g^\top`, a quadratic in u: two moments are
    enough.
    """
    batch, size = target.batch, target.gram.shape[-1]
    assert batch is not None
    mean, covariance = moments.mean_u[0], moments.cov_uu[0]
    square = (covariance + mean @ mean.T).reshape(-1)
    total = (batch.fourth @ square - 2 * batch.third @ mean[:, 0]).reshape(size, size)
    gradient = target.score[0] - target.gram[0] @ mean
    average = (gradient @ gradient.T + target.gram[0] @ covariance @ target.gram[0]) / (
        batch.num_data**2
    )
    return batch.scale * ((batch.second + total) / batch.num_data - average)[None]


def _kinetic_energy(moments: Moments) -> Array:
    """Returns the expectation of half the squared momentum."""
    return (jnp.trace(moments.cov_vv, axis1=1, axis2=2).sum() + jnp.sum(moments.mean_v**2)) / 2


def _product(left: Array, right: Array) -> Array:
    """Returns the products of matrices, block by block."""
    # Blocks of size one are multiplied as numbers: XLA fuses a whole step of them.
    return left * right if left.shape[-1] == 1 else left @ right
