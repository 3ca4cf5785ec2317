# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

r"""
Large data, and the perils of gradient noise
============================================

**The claim:** with mini-batch gradients more steps do not help: the gap of the bound does not close, as
Theorem 2 says, and the closed form predicts it. Steps along a quadratic surrogate, which see no data at
all, close it; the weights use all the data in either case.

20,000 observations, five coefficients, unit noise: the evidence is known, and so is the expected gap.
"""

# %%
import warnings

import jax
import jax.numpy as jnp
from matplotlib import pyplot as plt
import numpy as np

import numpyro
import numpyro.distributions as dist

from numpyro_dais import DAIS
from numpyro_dais.linear_regression import LinearRegression

NUM_ROWS, BATCH = 20_000, 200
rng = np.random.default_rng(0)
X = 0.1 * rng.standard_normal((NUM_ROWS, 5))
y = X @ np.linspace(-1, 1, 5) + rng.standard_normal(NUM_ROWS)
regression = LinearRegression(X, y)


def model(batch, X, y):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([5]).to_event(1))
    with numpyro.plate("rows", NUM_ROWS, subsample_size=batch) as rows:
        numpyro.sample("y", dist.Normal(X[rows] @ w, 1.0), obs=y[rows])


# %%
# The same chains with three kinds of gradients. The library warns of mini-batches, once; here that is
# what we came for.

data = jnp.asarray(X, jnp.float32), jnp.asarray(y, jnp.float32)
largest = np.linalg.eigvalsh(regression.gram)[-1]
kinds = {
    "all rows": {},
    "mini-batches": {"minibatch": "particle"},
    "quadratic surrogate": {"surrogate": "quadratic"},
}
grid, gaps = (25, 100, 400), {}
expected = {kind: [] for kind in ("all rows", "mini-batches")}
for num_steps in grid:
    betas = (np.arange(num_steps) + 1) / num_steps
    step_size = (num_steps / 10) ** -0.25 / np.sqrt(1 + betas * largest)
    chain = {"schedule": betas, "step_size": step_size, "damping": 0.0}
    for kind, arguments in kinds.items():
        estimator = DAIS(model, num_steps=num_steps, num_particles=64, **chain, **arguments)
        batch = BATCH if arguments else None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            evidence = estimator.log_evidence(jax.random.key(num_steps), batch, *data)
        gap = regression.log_evidence - float(evidence.lower_bound)
        gaps[num_steps, kind] = gap, float(evidence.lower_bound_error)
    for kind, size in (("all rows", None), ("mini-batches", BATCH)):
        expected[kind].append(regression.expected_gap(betas, step_size, 0.0, batch_size=size))

for (num_steps, kind), (gap, error) in gaps.items():
    print(f"{num_steps:4d} steps, {kind:<20} gap {gap:8.2f} ± {error:.2f} nats")
for kind, exact in expected.items():
    for num_steps, right in zip(grid, exact, strict=True):
        assert abs(gaps[num_steps, kind][0] - right) < 5 * gaps[num_steps, kind][1] + 0.05
assert gaps[400, "mini-batches"][0] > gaps[25, "mini-batches"][0]
for kind in ("all rows", "quadratic surrogate"):
    assert gaps[400, kind][0] < 0.5 * gaps[25, kind][0]

# %%
figure, axes = plt.subplots(figsize=(7.5, 3.8), layout="constrained")
for kind, color in zip(kinds, ("#0072b2", "#d55e00", "#009e73"), strict=True):
    values, errors = zip(*(gaps[num_steps, kind] for num_steps in grid), strict=True)
    axes.errorbar(grid, values, 2 * np.array(errors), fmt="o", color=color, label=kind, capsize=3)
    if kind in expected:
        axes.plot(grid, expected[kind], color=color, linewidth=1)
axes.set(xscale="log", yscale="log", xlabel="number of steps $K$", ylabel="gap of the bound (nats)")
axes.tick_params(which="minor", labelbottom=False)
axes.legend(frameon=False, title="gradients from (lines: closed form)")
axes.spines[["top", "right"]].set_visible(False)

# %%
# The theory is on :doc:`/mathematics`, larger measurements are on :doc:`/minibatches`.
