# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

r"""
Eight schools: the evidence, and what comes with it
===================================================

**The claim:** with nothing to tune, one call gives the log evidence of a hierarchical model to within
its own error bar, and posterior draws for ArviZ come with it.

Eight schools measured what coaching does to test scores (Rubin 1981): an effect :math:`y_j` with a
known standard error :math:`\sigma_j` for each. The model is written as any NumPyro model is.
"""

# %%
import arviz as az
import jax
import jax.numpy as jnp
from matplotlib import pyplot as plt
import numpy as np
from scipy import integrate, stats

import numpyro
import numpyro.distributions as dist

from numpyro_dais import DAIS


def eight_schools(sigma, y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("schools", 8):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(mu + tau * z, sigma), obs=y)


y = jnp.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
sigma = jnp.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])

# %%
# The evidence
# ------------
#
# The random key comes first and the model's arguments after it, as in ``mcmc.run``.

evidence = DAIS(eight_schools).log_evidence(jax.random.key(0), sigma, y)
print(evidence)

# %%
# The first line is the result: the natural logarithm of :math:`p(D)` and its standard error. A line
# that begins with "Warning" would be a reason not to trust it; here is none.
#
# Is it right? Given :math:`\tau`, all else is Gaussian, so one integral is left, which SciPy does.


def density(tau):
    """The density of y and tau, about 1e-14, times 1e14 for the integrator's absolute tolerance."""
    covariance = np.diag(np.asarray(sigma) ** 2 + tau**2) + 5.0**2
    likelihood = stats.multivariate_normal(cov=covariance).pdf(np.asarray(y))
    return 1e14 * likelihood * stats.halfcauchy.pdf(tau, scale=5.0)


exact = np.log(integrate.quad(density, 0, np.inf)[0]) - 14 * np.log(10)
errors = (float(evidence) - exact) / float(evidence.standard_error)
print(f"exact: {exact:.4f}; the estimate is {errors:+.1f} standard errors off")
assert abs(errors) < 4
assert evidence.standard_error < 0.01
assert not evidence.warnings

# %%
# Posterior draws
# ---------------
#
# The particles and their weights are a sample of the posterior. ``samples`` resamples them,
# ``expectation`` uses all of them, and ``to_arviz`` gives as many draws as the weights are worth.

draws = evidence.samples(jax.random.key(1), 1000)
print({name: values.shape for name, values in draws.items()})
mean, error = evidence.expectation(lambda draw: draw["mu"] + draw["tau"] * draw["z"])
print(np.round(mean, 2), "effects of the schools")
data = evidence.to_arviz()
print(az.summary(data, var_names=["mu", "tau"], kind="stats"))

# %%
# Shrinkage, at a glance: what the schools measured (orange), and what the model makes of it (blue).

figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
effects = np.asarray(draws["mu"][:, None] + draws["tau"][:, None] * draws["z"])
axes.violinplot(effects, showextrema=False, widths=0.8)
axes.errorbar(np.arange(8) + 1, y, sigma, fmt="o", color="#d55e00", label="measured, ± 1 s.e.")
axes.plot(np.arange(8) + 1, mean, "D", color="#0072b2", label="posterior mean")
axes.set(xlabel="school", ylabel="effect (points)", ylim=(-35, 55))
axes.legend(frameon=False, ncols=2)
axes.spines[["top", "right"]].set_visible(False)

# %%
# How it was done
# ---------------
#
# ``evidence.plot()`` draws the weights and, where there were chains, their schedule and steps.
# ``evidence.settings`` says in words what was chosen, and why.

print(evidence.settings)
evidence.plot()

# %%
# Go on with :doc:`two models of one data set </gallery/plot_02_bayes_factors>`, or with
# :doc:`how to read the result </reading>`.
