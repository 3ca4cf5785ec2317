# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

r"""
Surrogate dynamics: steps that need no data, between end points that use all of it.

The steps of a chain may follow any differentiable density whatsoever; the weight stays unbiased for
:math:`p(D)` as long as the two ends are exact. Mini-batch gradients make use of that, but their
noise leaves a gap that no number of steps closes. A deterministic surrogate of the likelihood
leaves none of that kind: as the steps become many the gap falls to :math:`KL(\tilde p \,\|\, p)`,
from the surrogate's posterior to the true one, which with much data is small. The surrogate here is
the quadratic expansion of the log likelihood around the mode of the posterior, whose error falls
with the size of the data; prior and Jacobians stay exact.

**References**

1. *Surrogate Likelihoods for Variational Annealed Importance Sampling*,
   Martin Jankowiak, Du Phan (ICML 2022)
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from numpyro_dais.model.density import ModelDensity, Position
from numpyro_dais.model.inspection import Trace
from numpyro_dais.model.subsampling import LikelihoodFn

__all__ = ["QuadraticSurrogate", "check_surrogate", "quadratic_likelihood"]


class QuadraticSurrogate(NamedTuple):
    r"""
    A quadratic log likelihood of the unconstrained values :math:`u` (sites in alphabetical order),
    up to a constant:

    .. math::

        \tilde\ell(u) = g^\top (u - c) + \tfrac12 (u - c)^\top H (u - c) .

    :param center: :math:`c`, the mode of the posterior.
    :param gradient: :math:`g`, of the log likelihood there.
    :param hessian: :math:`H`, likewise; its positive eigenvalues are set to zero, since a
        likelihood that grows quadratically would carry particles away.
    :param num_gradients: full-data gradients that the fit took; a Hessian counts as one for each
        dimension.
    """

    center: jax.Array
    gradient: jax.Array
    hessian: jax.Array
    num_gradients: int | jax.Array = 0

    def log_likelihood(self, position: jax.Array) -> jax.Array:
        r"""Returns :math:`\tilde\ell` at a position ``[num_dims]``."""
        offset = position - self.center
        return jnp.dot(self.gradient + self.hessian @ offset / 2, offset)


def check_surrogate(surrogate: Any) -> None:
    """Raises an error unless this can be the surrogate of an estimator."""
    is_named = isinstance(surrogate, str) and surrogate == "quadratic"
    if not (surrogate is None or is_named or isinstance(surrogate, QuadraticSurrogate)):
        raise ValueError(
            f"surrogate must be 'quadratic', or what `fit_surrogate` has returned; got {surrogate!r}."
        )


def quadratic_likelihood(surrogate: QuadraticSurrogate, density: ModelDensity) -> LikelihoodFn:
    """
    Returns the surrogate as a function of unconstrained values by site.

    :param surrogate: the surrogate.
    :param density: of the model.
    """
    num_dims = density.layout.ravel(density.structure.prototype).size
    if surrogate.center.shape != (num_dims,):
        raise ValueError(
            f"surrogate= is over {surrogate.center.size} unconstrained values; the model has {num_dims}. Fit it "
            "to this model: DAIS(model).fit_surrogate(*args)."
        )

    def likelihood_fn(values: Position, trace: Trace) -> jax.Array:
        return surrogate.log_likelihood(density.layout.ravel(values))

    return likelihood_fn
