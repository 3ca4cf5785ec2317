# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

r"""
DAVI in place of the ELBO
=========================

**The claim:** one changed argument of ``SVI`` gives a tighter bound. On a linear regression with correlated
covariates, where a diagonal guide cannot be right, more than half of the ELBO's gap to the exact evidence is gone.
"""

# %%
import jax
import jax.numpy as jnp
from matplotlib import pyplot as plt
import numpy as np
import optax

import numpyro
import numpyro.distributions as dist
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoDiagonalNormal

from numpyro_dais import DAVI
from numpyro_dais.linear_regression import LinearRegression

rng = np.random.default_rng(0)
correlation = 0.8 ** np.abs(np.subtract.outer(np.arange(8), np.arange(8)))
X = rng.standard_normal((60, 8)) @ np.linalg.cholesky(correlation).T
y = X @ np.linspace(-1, 1, 8) + rng.standard_normal(60)
exact = LinearRegression(X, y).log_evidence


def model(X, y):
    w = numpyro.sample("w", dist.Normal(jnp.zeros(8), 1.0).to_event(1))
    numpyro.sample("y", dist.Normal(X @ w, 1.0).to_event(1), obs=y)


# %%
# ``davi.guide`` wraps a guide, so that SVI learns the chains' schedule, step sizes and mass with it.


def fit(loss, guide):
    schedule = optax.cosine_decay_schedule(0.03, 1000)
    svi = SVI(model, guide, optax.adam(schedule), loss)
    result = svi.run(jax.random.key(0), 1000, X, y, progress_bar=False, stable_update=True)
    keys = jax.random.split(jax.random.key(1), 900)
    bound = jax.jit(jax.vmap(lambda key: -loss.loss(key, result.params, model, guide, X, y)))(keys)
    return result, float(bound.mean()), float(bound.std() / 30)


fits = {"ELBO": fit(Trace_ELBO(), AutoDiagonalNormal(model))}
for num_steps in (4, 16):
    davi = DAVI(num_steps=num_steps)
    fits[f"DAVI, {num_steps} steps"] = fit(davi, davi.guide(AutoDiagonalNormal(model)))

gaps = {name: exact - bound for name, (_, bound, _) in fits.items()}
for name, (_, bound, error) in fits.items():
    print(
        f"{name:<14} bound {bound:8.3f} ± {error:.3f}, {gaps[name]:6.3f} below the exact evidence"
    )
assert all(gap > -5 * fits[name][2] for name, gap in gaps.items())
assert gaps["DAVI, 16 steps"] < gaps["DAVI, 4 steps"] < gaps["ELBO"]
assert gaps["DAVI, 16 steps"] < 0.5 * gaps["ELBO"]

# %%
figure, axes = plt.subplots(figsize=(7.5, 3.6), layout="constrained")
colors = ("#d55e00", "#56b4e9", "#0072b2")
for (name, (result, _, _)), color in zip(fits.items(), colors, strict=True):
    smooth = np.convolve(-np.asarray(result.losses), np.ones(25) / 25, "valid")
    axes.plot(smooth, color=color, label=name)
axes.axhline(exact, color="black", linestyle="--", linewidth=1, label="exact log evidence")
axes.set(ylim=(exact - 12, exact + 1), xlabel="iteration", ylabel="bound (nats)")
axes.legend(frameon=False, ncols=2, loc="lower right")
axes.spines[["top", "right"]].set_visible(False)

# %%
# After the fit, ``davi.posterior`` gives refined draws, and ``davi.estimator`` a longer chain from the same
# guide: :doc:`/davi`.
