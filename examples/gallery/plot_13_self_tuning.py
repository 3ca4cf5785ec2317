# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

r"""
What self-tuning does, in pictures
==================================

**The claim:** chains that are told nothing spend some thousand of 100,000 gradients on finding out where
a path is hard, and are then far ahead of the plain chain with a linear schedule and a constant step.

The regression of the paper has a closed form for the expected gap of any chain, so settings can be judged
without noise.
"""

# %%
import jax
import jax.numpy as jnp
from matplotlib import pyplot as plt
import numpy as np

import numpyro
import numpyro.distributions as dist

from numpyro_dais import DAIS
from numpyro_dais.linear_regression import LinearRegression
from numpyro_dais.schedule import fourth_root_step_size, linear

numpyro.enable_x64()
rng = np.random.default_rng(0)
X, y = 0.1 * rng.standard_normal((10_000, 10)), rng.standard_normal(10_000)
regression = LinearRegression(X, y)


def model(X, y):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([X.shape[-1]]).to_event(1))
    numpyro.sample("y", dist.Normal(X @ w, 1.0), obs=y)


# %%
# Left alone: a fit
# -----------------
#
# The posterior is Gaussian, so a Gaussian start is so good that steps would not pay, and there are none.

data = jnp.asarray(X), jnp.asarray(y)
fitted = DAIS(model).log_evidence(jax.random.key(0), *data)
print(fitted, "\n\n", fitted.settings, sep="")
assert abs(float(fitted) - regression.log_evidence) < 4 * fitted.standard_error

# %%
# From the prior: chains, in rounds
# ---------------------------------

chains = DAIS(model, start="prior").log_evidence(jax.random.key(1), *data)
print(chains, "\n\n", chains.settings, sep="")
assert abs(float(chains) - regression.log_evidence) < 5 * chains.standard_error + 0.02
figure = chains.plot()

# %%
# Top left, the schedule: the inverse temperature stays near 0 for long, since that is where the prior has
# to find the data. Steps shrink as the density narrows.

num_steps = chains.settings.num_steps
plain_step = fourth_root_step_size(num_steps, 0.1)
plain = regression.expected_gap(linear(num_steps), plain_step, 0.9)
tuned = regression.log_evidence - float(chains.lower_bound)
print(f"gap of the bound at {num_steps} steps: plain chain {plain:.2f} nats, tuned {tuned:.2f}")
assert tuned < 0.5 * plain

figure, axes = plt.subplots(figsize=(7, 3.4), layout="constrained")
fraction = (np.arange(num_steps) + 1) / num_steps
axes.plot(fraction, linear(num_steps), color="#d55e00", label=f"linear: gap {plain:.2f} nats")
betas = np.asarray(chains.settings.betas)
axes.plot(fraction, betas, color="#0072b2", label=f"found: gap {tuned:.2f} nats")
axes.set(
    xlabel="step $k/K$", ylabel=r"inverse temperature $\beta_k$", yscale="log", ylim=(1e-4, 1.5)
)
axes.legend(frameon=False)
axes.spines[["top", "right"]].set_visible(False)

# %%
# The words for all this are on :doc:`/self_tuning`.
