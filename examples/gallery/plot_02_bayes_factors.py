# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

r"""
Two published Bayes factors: pines and turtles
==============================================

**The claim:** the Bayes factors of two classic studies come out as published, 4862 and 1.273, each
with its error, from the models as one would write them.
"""

# %%
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.scipy.special import log_ndtr
from matplotlib import pyplot as plt
import numpy as np

import numpyro
import numpyro.distributions as dist

from numpyro_dais import DAIS, compare

numpyro.enable_x64()


def load(name):
    """The columns of a table in the folder ``examples/data`` of the repository."""
    return jnp.asarray(np.loadtxt(Path("..") / "data" / name, delimiter=",", skiprows=1).T)


# %%
# Radiata pine
# ------------
#
# Does the strength of pine wood follow its density, or its density adjusted for resin? Two regressions
# that differ in one column (Carlin and Chib 1995); the priors, part of the question, are theirs.
# ``target_error=`` asks for a standard error of 0.002 nats.

strength, density, adjusted = load("radiata_pine.csv")


def pine(x, y):
    a = numpyro.sample("a", dist.Normal(3000.0, 1000.0))
    b = numpyro.sample("b", dist.Normal(185.0, 100.0))
    variance = numpyro.sample("variance", dist.InverseGamma(3.0, 180_000.0))
    mean = a + b * (x - x.mean())
    numpyro.sample("y", dist.Normal(mean, jnp.sqrt(variance)).to_event(1), obs=y)


pines = compare(
    {
        "adjusted": DAIS(pine, target_error=0.002).log_evidence(
            jax.random.key(1), adjusted, strength
        ),
        "density": DAIS(pine, target_error=0.002).log_evidence(
            jax.random.key(0), density, strength
        ),
    }
)
print(pines)
factor, relative_error = np.exp(-pines.log_bayes_factor[1]), pines.log_bayes_factor_error[1]
print(f"Bayes factor {factor:.0f} ± {factor * relative_error:.0f}; published: 4862")
assert pines.names == ("adjusted", "density")
assert abs(np.log(factor / 4862.1)) < 4 * relative_error < 0.1

# %%
# Turtles
# -------
#
# Does the chance of a newborn turtle to survive differ between clutches, given its weight? A probit
# regression with and without 31 random effects, whose variance has the density
# :math:`(1 + s^2)^{-2}`: its logarithm is logistic (Sinharay and Stern 2002).

survived, weight, clutch = load("turtles.csv")
clutch = clutch.astype(int) - 1


def turtles(has_clutches, weight, survived):
    a = numpyro.sample("a", dist.Normal(0.0, jnp.sqrt(10.0)).expand([2]).to_event(1))
    z = a[0] + a[1] * weight
    if has_clutches:
        log_variance = numpyro.sample("log_variance", dist.Logistic(0.0, 1.0))
        with numpyro.plate("clutches", 31):
            b = numpyro.sample("b", dist.Normal(0.0, jnp.exp(log_variance / 2)))
        z = z + b[clutch]
    logits = log_ndtr(z) - log_ndtr(-z)
    numpyro.sample("survived", dist.Bernoulli(logits=logits).to_event(1), obs=survived)


hatchlings = compare(
    {
        "no clutches": DAIS(turtles).log_evidence(jax.random.key(2), False, weight, survived),
        "clutches": DAIS(turtles).log_evidence(jax.random.key(3), True, weight, survived),
    }
)
print(hatchlings)
log_factor, error = -hatchlings.log_bayes_factor[1], hatchlings.log_bayes_factor_error[1]
print(f"Bayes factor {np.exp(log_factor):.3f} ± {np.exp(log_factor) * error:.3f}; published: 1.273")
assert hatchlings.names == ("no clutches", "clutches")
assert abs(log_factor - np.log(1.2727)) < 4 * error < 0.2

# %%
# A Bayes factor of 1.27 is no evidence of anything: the data hardly say. That is a result too, and only
# an error bar well below :math:`\log 1.27 = 0.24` allows one to say so. 4862 decides.

figure, axes = plt.subplots(2, 1, figsize=(7, 4), layout="constrained")
pines.plot(ax=axes[0])
hatchlings.plot(ax=axes[1])

# %%
# **How to compare models well** is a page of its own: :doc:`/comparing`.
