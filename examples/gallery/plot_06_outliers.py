# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

r"""
One evidence per element: which sensors are broken?
===================================================

**The claim:** ``plate=`` gives one evidence for each element of a plate of independent problems, all from
one run. Two models of each sensor, compared element by element, say which ones are broken, and the exact
evidences agree.

A sensor measures a quantity of its own eight times. A good one has noise of 0.3; a broken one of 1.5.
"""

# %%
import jax
import jax.numpy as jnp
from matplotlib import pyplot as plt
import numpy as np
from scipy import stats

import numpyro
import numpyro.distributions as dist

from numpyro_dais import DAIS

rng = np.random.default_rng(0)
is_broken = rng.random(60) < 0.2
noise = np.where(is_broken, 1.5, 0.3)
y = jnp.asarray(rng.normal(0, 1, (60, 1)) + noise[:, None] * rng.normal(0, 1, (60, 8)), jnp.float32)


def sensors(noise, y):
    with numpyro.plate("sensors", len(y)):
        level = numpyro.sample("level", dist.Normal(0.0, 1.0))
        readings = dist.Normal(level[:, None], noise).expand(y.shape).to_event(1)
        numpyro.sample("y", readings, obs=y)


# %%
# Short trials find one step size for all; the weights are kept per element. With fewer steps than these,
# the sensors whose readings the model of a good one cannot explain would draw a warning.

estimator = DAIS(sensors, plate="sensors", num_steps=256, num_particles=256)
good = estimator.log_evidence(jax.random.key(0), 0.3, y)
broken = estimator.log_evidence(jax.random.key(1), 1.5, y)
print(good.log_evidence.shape, "log evidences, one for each sensor; the first five:")
print(good)


# %%
# The level is Gaussian, and so is the exact evidence.


def exact(noise):
    covariance = noise**2 * np.eye(8) + 1.0
    return stats.multivariate_normal(cov=covariance).logpdf(np.asarray(y))


log_odds = np.log(0.2 / 0.8) + np.asarray(broken.log_evidence - good.log_evidence)
exact_log_odds = np.log(0.2 / 0.8) + exact(1.5) - exact(0.3)
assert not good.warnings
assert np.max(np.abs(np.asarray(broken.log_evidence) - exact(1.5))) < 0.3
probability = 1 / (1 + np.exp(-log_odds))
exact_probability = 1 / (1 + np.exp(-exact_log_odds))
print("largest error of a probability:", np.abs(probability - exact_probability).max().round(4))
print("broken:", np.flatnonzero(is_broken), "\nfound: ", np.flatnonzero(probability > 0.5))
assert np.abs(probability - exact_probability).max() < 0.1
assert np.array_equal(exact_probability > 0.5, probability > 0.5)

# %%
figure, axes = plt.subplots(figsize=(7.5, 3.4), layout="constrained")
for kind, color, label in ((False, "#0072b2", "good"), (True, "#d55e00", "broken")):
    rows = np.flatnonzero(is_broken == kind)
    spread = np.asarray(y)[rows].std(axis=1)
    axes.scatter(spread, probability[rows], color=color, label=f"{label}, in truth", s=22)
axes.axhline(0.5, color="gray", linewidth=0.8, linestyle="--")
axes.set(xlabel="spread of the readings of a sensor", ylabel="probability of being broken")
axes.legend(frameon=False)
axes.spines[["top", "right"]].set_visible(False)
