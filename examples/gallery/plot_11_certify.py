# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

r"""
Certify: how good are these settings, on data like mine?
========================================================

**The claim:** on data that the model itself has simulated, an exact posterior draw exists, and with it an
upper bound beside the lower one. Their distance shrinks as chains get longer, and holds the truth.
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
from numpyro_dais.plots import plot_sandwich

rng = np.random.default_rng(1)
X = jnp.asarray(rng.standard_normal((30, 4)) * np.array([0.2, 0.4, 0.6, 0.8]), jnp.float32)
y = jnp.asarray(
    np.asarray(X) @ np.array([1.0, -0.5, 0.3, 0.0]) + rng.standard_normal(30), jnp.float32
)


def model(X, y):
    w = numpyro.sample("w", dist.Normal(jnp.zeros(4), 1.0).to_event(1))
    numpyro.sample("y", dist.Normal(X @ w, 1.0).to_event(1), obs=y)


def chains(num_steps):
    step_size = 0.3 * (num_steps / 10) ** -0.25
    return DAIS(model, num_steps=num_steps, num_particles=32, step_size=step_size, damping=0.9)


# %%
# ``certify`` needs only the shape of the data. Eight simulated data sets, chains of three lengths:

grid, certificates = (8, 32, 128), []
for num_steps in grid:
    estimator = chains(num_steps)
    certificates.append(estimator.certify(jax.random.key(0), X, y, num_datasets=8))
    print(num_steps, "steps:", certificates[-1])
gaps = np.array([float(certificate.gap) for certificate in certificates])
errors = np.array([float(certificate.gap_error) for certificate in certificates])
assert np.all(gaps > -3 * errors)
assert gaps[-1] < 0.5 * gaps[0]

# %%
# On the data at hand, ``sandwich`` does the same from posterior draws of NUTS, or from yours. The exact
# evidence must lie between the bounds.

exact = LinearRegression(np.asarray(X, float), np.asarray(y, float)).log_evidence
sandwiches = {}
for num_steps in grid[::2]:
    evidence = chains(num_steps).sandwich(jax.random.key(1), X, y)
    sandwiches[f"{num_steps} steps"] = evidence
    assert evidence.lower_bound - 3 * evidence.lower_bound_error < exact
    assert evidence.upper_bound + 3 * evidence.upper_bound_error > exact
assert abs(float(evidence) - exact) < 5 * evidence.standard_error  # of the longest chains
print(evidence)

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
left.errorbar(grid, gaps, 2 * errors, fmt="o-", color="#0072b2", capsize=3)
left.set(
    xscale="log", yscale="log", xlabel="number of steps $K$", ylabel="gap of the bounds (nats)"
)
left.set_xticks(grid, [str(num_steps) for num_steps in grid])
left.minorticks_off()
left.set_title("Simulated data")
plot_sandwich(sandwiches, ax=right)
right.axvline(exact, color="black", linestyle="--", linewidth=1)
right.set_title("The data at hand (dashed: exact)")
left.spines[["top", "right"]].set_visible(False)
