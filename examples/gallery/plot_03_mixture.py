# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

r"""
How many components has this mixture?
=====================================

**The claim:** the posterior of a mixture of :math:`k` Gaussians has :math:`k!` equal copies, since labels
can be swapped. DAIS meets them all, and the evidence, with its built-in price for needless components,
names the number that the data were made with.
"""

# %%
from math import factorial

import jax
import jax.numpy as jnp
from matplotlib import pyplot as plt
import numpy as np

import numpyro
import numpyro.distributions as dist

from numpyro_dais import DAIS, compare

WIDTH = 0.8
rng = np.random.default_rng(3)
TRUE_MEANS = np.array([-4.0, 0.0, 3.0])
y = jnp.asarray(TRUE_MEANS[rng.integers(0, 3, 60)] + WIDTH * rng.normal(0, 1, 60), jnp.float32)

# %%
# The width of a component is the known error of a measurement, and all are equally frequent. Which point
# belongs to which is summed out in the likelihood, by ``MixtureSameFamily``.


def mixture(num_components, y):
    means = numpyro.sample("means", dist.Normal(0.0, 4.0).expand([num_components]).to_event(1))
    frequencies = dist.Categorical(jnp.full(num_components, 1 / num_components))
    mixed = dist.MixtureSameFamily(frequencies, dist.Normal(means, WIDTH))
    numpyro.sample("y", mixed.expand(y.shape).to_event(1), obs=y)


evidences = {
    f"{k} components": DAIS(mixture, target_error=0.02).log_evidence(jax.random.key(k), k, y)
    for k in (1, 2, 3, 4)
}
comparison = compare(evidences)
print(comparison)
assert comparison.names[0] == "3 components"
assert comparison.probability[0] > 0.5

# %%
# Did it see all modes? With three components the posterior has six equal copies, and each must have its
# sixth of the draws. A sampler that stays in one copy is wrong by :math:`\log 3! = 1.79`.

means = np.asarray(evidences["3 components"].samples(jax.random.key(9), 6000)["means"])
orders, counts = np.unique(np.argsort(means, axis=1), axis=0, return_counts=True)
print("draws in each order of the means:", counts)
assert len(orders) == factorial(3)
assert np.all(np.abs(counts / 6000 - 1 / 6) < 0.05)

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(8.5, 3.4), layout="constrained")
left.hist(np.asarray(y), 30, density=True, color="#56b4e9", alpha=0.6)
left.plot(TRUE_MEANS, [0, 0, 0], "^", color="black", clip_on=False, label="true means")
left.set(xlabel="y", ylabel="density", title="The data")
left.legend(frameon=False)
right.plot(means[:1500, 0], means[:1500, 1], ".", markersize=2, color="#0072b2")
right.set(xlabel="mean of component 1", ylabel="mean of component 2", title="Six copies, all met")
for axes in (left, right):
    axes.spines[["top", "right"]].set_visible(False)
comparison.plot()

# %%
# Many modes are found by many searches; what they could not have found is said in
# :doc:`/reading`, under "missed mass".
