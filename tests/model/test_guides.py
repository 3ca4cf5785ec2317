# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Chains that start at a guide or at given distributions: their draws, densities and errors."""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import special, stats

import numpyro
from numpyro import handlers
import numpyro.distributions as dist
from numpyro.infer import SVI, Predictive, Trace_ELBO, autoguide, init_to_value
from numpyro.infer.util import log_density, potential_energy

from numpyro_dais import DAIS
from numpyro_dais.model.problem import Problem
from numpyro_dais.model.target import make_target

NUM_PARTICLES = 20_000
ALPHA = np.array([1.5, 2.5, 4.0])
COUNTS = np.array([5, 1, 3])
Y_RATE = np.array([2, 0, 3])
Y_MU = 1.6
Y_LOCAL = jnp.array([0, 4, 2, 7])


def model():
    """Three conjugate parts, in an order other than the alphabet's."""
    rate = numpyro.sample("rate", dist.Gamma(3.0, 2.0))
    numpyro.sample("y_rate", dist.Poisson(rate).expand([3]).to_event(1), obs=jnp.array(Y_RATE))
    p = numpyro.sample("p", dist.Dirichlet(jnp.array(ALPHA)))
    numpyro.sample("y_p", dist.Multinomial(total_count=9, probs=p), obs=jnp.array(COUNTS))
    mu = numpyro.sample("mu", dist.Normal(0.3, 1.0))
    numpyro.sample("y_mu", dist.Normal(mu, 0.8), obs=Y_MU)


def exact_model():
    total = Y_RATE.sum()
    log_rate = 3 * np.log(2.0) - special.gammaln(3.0) + special.gammaln(3.0 + total)
    log_rate -= (3.0 + total) * np.log(5.0) + special.gammaln(Y_RATE + 1).sum()
    log_p = stats.dirichlet_multinomial.logpmf(COUNTS, ALPHA, 9)
    return log_rate + log_p + stats.norm.logpdf(Y_MU, 0.3, np.sqrt(1.64))


def local_model(y):
    """One positive latent value per datum."""
    with numpyro.plate("data", len(y)):
        rate = numpyro.sample("rate", dist.Gamma(3.0, 1.5))
        numpyro.sample("y", dist.Poisson(rate), obs=y)


def exact_local_model():
    return stats.nbinom.logpmf(np.asarray(Y_LOCAL), 3.0, 1.5 / 2.5)


def hand_written():
    """Sites in unconstrained space (mu, p) and on the support itself (rate)."""
    shape = numpyro.param("shape", 5.0, constraint=dist.constraints.positive)
    numpyro.sample("rate", dist.Gamma(shape, 3.0))
    numpyro.sample("mu", dist.Normal(numpyro.param("loc", 1.0), 0.8))
    numpyro.sample("p", dist.Dirichlet(jnp.array([5.0, 3.0, 6.0])))


def amortised(y):
    """A recognition network of one weight."""
    weight = numpyro.param("weight", 1.0)
    with numpyro.plate("data", len(y)):
        numpyro.sample("rate", dist.Gamma(2.5 + weight * y, 2.0))


def _perturbed(name: str, value: Any) -> Any:
    """Another value of a guide's parameter, without symmetries and inside its constraint."""
    value = np.asarray(value)
    pattern = np.sin(1 + np.arange(value.size, dtype=value.dtype)).reshape(value.shape)
    if name.endswith("scale_tril"):
        return jnp.asarray(value + np.tril(0.12 * pattern))
    if name.endswith("scale"):
        return jnp.asarray(value * (1 + 0.2 * pattern))
    return jnp.asarray(value + 0.1 * pattern)


def init_guide(guide: Callable, fn: Callable, args: tuple = ()) -> dict:
    """Parameters as `SVI.init` gives them, perturbed; those of a flow are fitted."""
    svi = SVI(fn, guide, optax.adam(0.02), Trace_ELBO(num_particles=4))
    if isinstance(guide, (autoguide.AutoIAFNormal, autoguide.AutoBNAFNormal)):
        # A flow at its random start is too far off.
        return svi.run(random.key(0), 400, *args, progress_bar=False).params
    params = svi.get_params(svi.init(random.key(0), *args))
    return {name: _perturbed(name, value) for name, value in params.items()}


INIT = init_to_value(values={"rate": 1.4, "p": jnp.array([0.4, 0.2, 0.4]), "mu": 1.0})
INIT_LOCAL = init_to_value(values={"rate": jnp.array([1.0, 2.5, 2.0, 3.5])})
WIDE = {"init_loc_fn": INIT, "init_scale": 0.5}


def _list_guide(*kinds: tuple[Callable, list[str]]) -> autoguide.AutoGuideList:
    guide = autoguide.AutoGuideList(model)
    for number, (kind, sites) in enumerate(kinds):
        hidden = [name for name in ("mu", "p", "rate") if name not in sites]
        guide.append(kind(handlers.block(model, hide=hidden), prefix=f"auto{number}", **WIDE))
    return guide


class GuideCase(NamedTuple):
    """A guide of the model."""

    make: Callable[[], Callable]
    model: Callable = model
    args: tuple = ()
    step_size: float = 0.15


GUIDES = {
    "AutoNormal": GuideCase(lambda: autoguide.AutoNormal(model, **WIDE)),
    "AutoDiagonalNormal": GuideCase(lambda: autoguide.AutoDiagonalNormal(model, **WIDE)),
    "AutoMultivariateNormal": GuideCase(lambda: autoguide.AutoMultivariateNormal(model, **WIDE)),
    "AutoLowRankMultivariateNormal": GuideCase(
        lambda: autoguide.AutoLowRankMultivariateNormal(model, **WIDE)
    ),
    "AutoLaplaceApproximation": GuideCase(
        lambda: autoguide.AutoLaplaceApproximation(model, init_loc_fn=INIT)
    ),
    "AutoIAFNormal": GuideCase(lambda: autoguide.AutoIAFNormal(model, hidden_dims=[6, 6])),
    "AutoBNAFNormal": GuideCase(
        lambda: autoguide.AutoBNAFNormal(model, num_flows=1, hidden_factors=[3])
    ),
    "AutoGuideList": GuideCase(
        lambda: _list_guide((autoguide.AutoNormal, ["mu"]), (autoguide.AutoNormal, ["p", "rate"]))
    ),
    "AutoGuideList_multivariate": GuideCase(
        lambda: _list_guide(
            (autoguide.AutoMultivariateNormal, ["rate", "mu"]), (autoguide.AutoNormal, ["p"])
        )
    ),
    "AutoBatchedMultivariateNormal": GuideCase(
        lambda: autoguide.AutoBatchedMultivariateNormal(
            local_model, init_loc_fn=INIT_LOCAL, init_scale=0.5
        ),
        local_model,
        (Y_LOCAL,),
    ),
    "hand_written": GuideCase(lambda: hand_written),
    "amortised": GuideCase(lambda: amortised, local_model, (Y_LOCAL,)),
}
FLOWS = ("AutoIAFNormal", "AutoBNAFNormal")


@cache
def initialised(name: str) -> tuple[Callable, dict]:
    """A guide that has seen its model, and parameters for it."""
    case = GUIDES[name]
    guide = case.make()
    return guide, init_guide(guide, case.model, case.args)


def latent_sites(fn: Callable, args: tuple) -> dict:
    trace = handlers.trace(handlers.seed(fn, random.key(0))).get_trace(*args)
    return {
        name: site
        for name, site in trace.items()
        if site["type"] == "sample" and not site["is_observed"]
    }


def unconstrained(fn: Callable, args: tuple, values: dict) -> tuple[dict, jax.Array]:
    """The unconstrained values of the latent sites, and the sum of the maps' log Jacobians."""
    position, log_det = {}, 0.0
    for name, site in latent_sites(fn, args).items():
        transform = dist.biject_to(site["fn"].support)
        position[name] = transform.inv(values[name])
        log_det += jnp.sum(transform.log_abs_det_jacobian(position[name], values[name]))
    return position, log_det


def log_guide_density(guide: Any, params: dict, args: tuple, values: dict, position: dict) -> Any:
    """NumPyro's own log density of the constrained values under a guide without flows."""
    if isinstance(guide, autoguide.AutoGuideList):
        return sum(log_guide_density(part, params, args, values, position) for part in guide)
    if isinstance(guide, autoguide.AutoContinuous):
        # Where in the packed vector each site lies is read off the guide's own unpacking.
        places = guide._unpack_latent(jnp.arange(guide.latent_dim, dtype=float))
        latent = jnp.zeros(guide.latent_dim)
        for name, place in places.items():
            latent = latent.at[place.astype(int).ravel()].set(position[name].ravel())
        values = {f"_{guide.prefix}_latent": latent}
    return log_density(guide, args, {}, {**params, **values})[0]


def test_laplace_is_gaussian_at_the_mode():
    """The Laplace start is the normal with the Hessian of NumPyro's potential as precision."""
    guide, params = initialised("AutoLaplaceApproximation")
    loc = params["auto_loc"]

    def potential(latent):
        return potential_energy(model, (), {}, guide._unpack_latent(latent))

    @jax.jit
    def both(latent):
        target = make_target(Problem(model, guide=guide, guide_params=params))
        values = guide._unpack_latent(latent)
        u = jnp.concatenate([jnp.ravel(values[name]) for name in ("mu", "p", "rate")])
        return target.log_densities_fn(u).log_start, jax.hessian(potential)(loc)

    latent = np.asarray(loc) + 0.3 * np.cos(np.arange(4, dtype=np.float32))
    log_start, precision = both(latent)
    covariance = np.linalg.inv(np.asarray(precision, float))
    expected = stats.multivariate_normal.logpdf(latent, loc, covariance)
    np.testing.assert_allclose(log_start, expected, rtol=1e-4)


@pytest.mark.parametrize(
    "name", [n for n in GUIDES if n not in ("AutoLaplaceApproximation", *FLOWS)]
)
def test_log_start_is_the_guides_density(name):
    """Log start is NumPyro's guide density times the Jacobian; with log ratio it is the joint."""
    case = GUIDES[name]
    guide, params = initialised(name)

    @jax.jit
    def both(rng_key):
        problem = Problem(case.model, guide=guide, guide_params=params, args=case.args)
        target = make_target(problem)
        u = target.sample_fn(rng_key)
        values = target.constrain_fn(u)
        position, log_det = unconstrained(case.model, case.args, values)
        expected = log_guide_density(guide, params, case.args, values, position) + log_det
        joint = -potential_energy(case.model, case.args, {}, position)
        return target.log_densities_fn(u), expected, joint

    (log_start, log_ratio), expected, joint = both(random.key(1))
    np.testing.assert_allclose(log_start, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(log_start + log_ratio, joint, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", FLOWS)
def test_flows_run_in_noise_space(name):
    """The start is standard normal; the target is the joint, pulled back through the flow."""
    guide, params = initialised(name)
    noise = np.array([0.3, -1.1, 0.8, 0.2], np.float32)

    @jax.jit
    def both(noise):
        target = make_target(Problem(model, guide=guide, guide_params=params))
        flow = guide.get_transform(params)
        joint = -potential_energy(model, (), {}, guide._unpack_latent(flow(noise)))
        return target.log_densities_fn(noise), joint, jax.jacfwd(flow)(noise)

    (log_start, log_ratio), joint, jacobian = both(noise)
    log_det = np.linalg.slogdet(jacobian)[1]
    np.testing.assert_allclose(log_start, stats.norm.logpdf(noise).sum(), rtol=1e-5)
    np.testing.assert_allclose(log_start + log_ratio, joint + log_det, rtol=1e-4)


@pytest.mark.parametrize("name", GUIDES)
def test_guide_start(name):
    """
    From one run: draws of the start have the moments of the guide's own and lie inside the supports,
    and weights are unbiased.
    """
    case = GUIDES[name]
    guide, params = initialised(name)
    dais = DAIS(
        case.model,
        num_steps=8,
        step_size=case.step_size,
        damping=0.9,
        num_particles=NUM_PARTICLES,
        guide=guide,
        guide_params=params,
    )
    evidence = dais.log_evidence(random.key(2), *case.args)
    exact = exact_model() if case.model is model else exact_local_model().sum()
    log_weights = np.asarray(evidence.log_weights, float)
    assert 0.1 < np.var(log_weights) < 2.0
    weights = np.exp(log_weights - exact)
    assert abs(weights.mean() - 1) < 5 * weights.std() / np.sqrt(NUM_PARTICLES)

    num_draws = 4000

    @jax.jit
    def both(our_key, their_key):
        target = make_target(evidence.problem)
        keys = random.split(our_key, num_draws)
        draws = jax.vmap(lambda key: target.constrain_fn(target.sample_fn(key)))(keys)
        sites = latent_sites(case.model, case.args)
        is_inside = {site: sites[site]["fn"].support(draws[site]) for site in sites}
        if isinstance(guide, autoguide.AutoGuide):
            shape = (num_draws,)
            theirs = guide.sample_posterior(their_key, params, *case.args, sample_shape=shape)
        else:
            predictive = Predictive(guide, params=params, num_samples=num_draws)
            theirs = predictive(their_key, *case.args)
        return is_inside, draws, theirs

    is_inside, draws, theirs = jax.tree.map(np.asarray, both(random.key(3), random.key(4)))
    for site, is_site_inside in is_inside.items():
        assert np.all(is_site_inside)
        assert draws[site].shape == theirs[site].shape
        for power in (1, 2):
            ours, other = draws[site] ** power, theirs[site] ** power
            error = np.sqrt((ours.var(0) + other.var(0)) / num_draws)
            assert np.all(np.abs(ours.mean(0) - other.mean(0)) < 5 * error)


def dynamic_model(y):
    a = numpyro.sample("a", dist.Gamma(3.0, 1.0))
    b = numpyro.sample("b", dist.Uniform(0.0, a))
    numpyro.sample("y", dist.Normal(b, 0.9), obs=y)


def exact_dynamic(y):
    a = np.linspace(1e-6, 40.0, 40001)
    mass = stats.norm.cdf((a - y) / 0.9) - stats.norm.cdf(-y / 0.9)
    return np.log(np.trapezoid(stats.gamma.pdf(a, 3.0) * mass / a, a))


def dynamic_guide(y):
    a = numpyro.sample("a", dist.Gamma(4.0, 1.2))
    numpyro.sample(
        "b",
        dist.TransformedDistribution(dist.Beta(1.5, 1.2), dist.transforms.AffineTransform(0.0, a)),
    )


INIT_DYNAMIC = init_to_value(values={"a": 2.5, "b": 1.4})
DYNAMIC_GUIDES = {
    "AutoNormal": lambda: autoguide.AutoNormal(
        dynamic_model, init_loc_fn=INIT_DYNAMIC, init_scale=1.0
    ),
    "AutoMultivariateNormal": lambda: autoguide.AutoMultivariateNormal(
        dynamic_model, init_loc_fn=INIT_DYNAMIC, init_scale=1.0
    ),
    "hand_written": lambda: dynamic_guide,
}


@pytest.mark.filterwarnings("ignore:.*(k-hat|were not finite)")  # a normal start is a poor one here
@pytest.mark.parametrize("name", DYNAMIC_GUIDES)
def test_support_that_depends_on_a_site(name):
    """The map to a support is that of the current values, not of the guide's first run."""
    guide = DYNAMIC_GUIDES[name]()
    params = init_guide(guide, dynamic_model, (1.7,))
    dais = DAIS(
        dynamic_model,
        num_steps=4,
        step_size=0.1,
        num_particles=NUM_PARTICLES,
        guide=guide,
        guide_params=params,
    )
    evidence = dais.log_evidence(random.key(5), 1.7)
    assert int(evidence.num_nonfinite) < 20
    weights = np.exp(np.asarray(evidence.log_weights, float) - exact_dynamic(1.7))
    assert np.std(weights) > 0.1
    assert abs(weights.mean() - 1) < 5 * weights.std() / np.sqrt(NUM_PARTICLES)


def guide_on_another_scale():
    """Pushed through a transform of its own, which is not the one of the model's support."""
    numpyro.sample(
        "x",
        dist.TransformedDistribution(
            dist.TransformedDistribution(dist.Normal(0.2, 0.7), dist.transforms.SigmoidTransform()),
            dist.transforms.AffineTransform(1.0, 2.0, domain=dist.constraints.unit_interval),
        ),
    )


def log_normal_guide():
    numpyro.sample("x", dist.LogNormal(0.2, 0.5))


def exp_exp_guide():
    numpyro.sample(
        "x", dist.TransformedDistribution(dist.LogNormal(0.2, 0.5), dist.transforms.ExpTransform())
    )


SCALES = {
    "greater_than": (exp_exp_guide, dist.TruncatedNormal(0.0, 9.0, low=1.0)),
    "interval": (guide_on_another_scale, dist.Uniform(1.0, 3.0)),
    "positive_in_half_line": (log_normal_guide, dist.HalfNormal(2.0)),
}


@pytest.mark.parametrize("name", SCALES)
def test_draws_and_density_share_their_scale(name):
    """A draw is the unconstrained value of the *model's* map, whatever the guide's own is."""
    guide, prior = SCALES[name]

    def one_site():
        numpyro.sample("x", prior)

    @jax.jit
    def both(density_key, our_key, their_key):
        target = make_target(Problem(one_site, guide=guide))
        u = target.sample_fn(density_key)
        transform = dist.biject_to(prior.support)
        trace = handlers.trace(handlers.seed(guide, random.key(7))).get_trace()
        x = transform(u[0])
        expected = trace["x"]["fn"].log_prob(x) + transform.log_abs_det_jacobian(u[0], x)
        draws = jax.vmap(lambda key: target.constrain_fn(target.sample_fn(key))["x"])
        others = trace["x"]["fn"].sample(their_key, (2000,))
        log_start = target.log_densities_fn(u).log_start
        return log_start, expected, draws(random.split(our_key, 2000)), others

    keys = (random.key(seed) for seed in (6, 8, 9))
    log_start, expected, draws, others = both(*keys)
    np.testing.assert_allclose(log_start, expected, rtol=1e-4)
    assert stats.ks_2samp(draws, others).pvalue > 1e-3


def test_lkj_guide():
    """A guide site on correlation matrices: its density times the Jacobian of the model's map."""

    def matrices():
        numpyro.sample("chol", dist.LKJCholesky(3, 1.5))

    def guide():
        numpyro.sample("chol", dist.LKJCholesky(3, 2.5))

    @jax.jit
    def both(rng_key):
        target = make_target(Problem(matrices, guide=guide))
        u = target.sample_fn(rng_key)
        chol = target.constrain_fn(u)["chol"]
        log_det = dist.biject_to(dist.constraints.corr_cholesky).log_abs_det_jacobian(u, chol)
        log_probs = [dist.LKJCholesky(3, eta).log_prob(chol) for eta in (2.5, 1.5)]
        return target.log_densities_fn(u), log_probs, log_det

    (log_start, log_ratio), (expected, log_prior), log_det = both(random.key(1))
    np.testing.assert_allclose(log_start, expected + log_det, rtol=1e-4)
    difference = log_prior - expected
    np.testing.assert_allclose(log_ratio, difference, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["AutoNormal", "AutoDiagonalNormal"])
def test_guide_that_has_not_seen_the_model(name):
    """A guide made anew, with parameters from elsewhere, gives the same run; and stays usable."""
    seen, unseen = LOCAL_GUIDES[name](), LOCAL_GUIDES[name]()
    params = init_guide(seen, local_model, (Y_LOCAL,))
    runs = [
        DAIS(
            local_model,
            num_steps=2,
            step_size=0.1,
            num_particles=50,
            guide=guide,
            guide_params=params,
        ).log_evidence(random.key(3), Y_LOCAL)
        for guide in (seen, unseen)
    ]
    np.testing.assert_allclose(runs[0].log_weights, runs[1].log_weights, rtol=1e-5)
    assert runs[1].samples()["rate"].shape == (50, 4)
    assert unseen.sample_posterior(random.key(4), params)["rate"].shape == (4,)


def test_float32_round_trip():
    """Far out, where values round to the edge of their support, densities are those of the base."""

    def edges():
        numpyro.sample("p", dist.Dirichlet(jnp.array(ALPHA)))
        numpyro.sample("x", dist.Uniform(0.0, 1.0))

    params = {
        "p_auto_loc": jnp.array([11.5, 12.2]),
        "p_auto_scale": jnp.array([0.8, 1.1]),
        "x_auto_loc": jnp.array(19.9),
        "x_auto_scale": jnp.array(0.1),
    }
    guide = autoguide.AutoNormal(edges)
    target = make_target(Problem(edges, guide=guide, guide_params=params))

    @jax.jit
    def run(u, rng_key):
        log_start = jax.value_and_grad(lambda u: target.log_densities_fn(u).log_start)(u)
        return log_start, jax.vmap(target.sample_fn)(random.split(rng_key, 500))

    u = np.array([12.0, 12.0, 20.0], np.float32)
    (log_start, gradient), draws = run(u, random.key(0))
    expected = stats.norm.logpdf(u, [11.5, 12.2, 19.9], [0.8, 1.1, 0.1])
    np.testing.assert_allclose(log_start, expected.sum(), rtol=1e-4)
    np.testing.assert_allclose(gradient, [-0.5 / 0.64, 0.2 / 1.21, -10.0], rtol=1e-3)
    draws = np.asarray(draws)
    assert np.all(np.isfinite(draws))
    assert abs(np.mean(draws[:, 2]) - 19.9) < 5 * 0.1 / np.sqrt(500)


LOCAL_GUIDES = {
    "AutoNormal": lambda: autoguide.AutoNormal(local_model, init_loc_fn=INIT_LOCAL, init_scale=0.5),
    "AutoDiagonalNormal": lambda: autoguide.AutoDiagonalNormal(
        local_model, init_loc_fn=INIT_LOCAL, init_scale=0.5
    ),
    "AutoBatchedMultivariateNormal": GUIDES["AutoBatchedMultivariateNormal"].make,
    "amortised": lambda: amortised,
    "start": lambda: {"rate": dist.Gamma(jnp.array([2.5, 5.0, 4.0, 6.5]), 2.0)},
}


@pytest.mark.parametrize("name", LOCAL_GUIDES)
def test_plate_with_a_guide(name):
    """Log starts by element add up to that of the whole, and each element's evidence is exact."""
    guide = LOCAL_GUIDES[name]()
    how: dict = {"start": guide}
    if callable(guide):
        how = {"guide": guide, "guide_params": init_guide(guide, local_model, (Y_LOCAL,))}

    @jax.jit
    def both(rng_key):
        local = make_target(Problem(local_model, plate="data", args=(Y_LOCAL,), **how))
        whole = make_target(Problem(local_model, args=(Y_LOCAL,), **how))
        position = local.sample_fn(rng_key)
        assert position.shape == (4, 1)
        return local.log_densities_fn(position), whole.log_densities_fn(position.ravel())

    ours, total = jax.tree.map(np.asarray, both(random.key(1)))
    assert ours.log_start.shape == (4,)
    np.testing.assert_allclose(ours.log_start.sum(), total.log_start, rtol=1e-5)
    np.testing.assert_allclose(ours.log_ratio.sum(), total.log_ratio, rtol=1e-4, atol=1e-4)
    dais = DAIS(local_model, num_steps=4, step_size=0.15, num_particles=4000, plate="data", **how)
    evidence = dais.log_evidence(random.key(2), Y_LOCAL)
    error = np.asarray(evidence.standard_error)
    assert np.all(error < 0.05)
    assert np.all(np.abs(np.asarray(evidence.log_evidence) - exact_local_model()) < 5 * error)


def one_latent(y):
    rate = numpyro.sample("rate", dist.Gamma(3.0, 2.0))
    numpyro.sample("y", dist.Poisson(rate), obs=y)


STARTS = {
    "dict": (
        model,
        {
            "mu": dist.Normal(0.9, 0.7),
            "p": dist.Dirichlet(jnp.array([4.0, 3.0, 6.0])),
            "rate": dist.LogNormal(0.3, 0.5),
        },
    ),
    "single": (local_model, dist.Gamma(4.0, 1.7)),
    "vector": (
        model,
        dist.MultivariateNormal(
            jnp.array([0.9, 0.4, -0.2, 0.3]), 0.3 * jnp.eye(4) + 0.05 * jnp.ones((4, 4))
        ),
    ),
    "independent_vector": (
        model,
        dist.Normal(jnp.array([0.9, 0.4, -0.2, 0.3]), jnp.array([0.7, 0.5, 0.6, 0.5])),
    ),
}


@pytest.mark.parametrize("name", STARTS)
def test_start_distributions(name):
    """Distributions over sites' values, or over all unconstrained values as one vector."""
    fn, start = STARTS[name]
    args = (Y_LOCAL,) if fn is local_model else ()

    @jax.jit
    def both(rng_key):
        target = make_target(Problem(fn, start=start, args=args))
        u = target.sample_fn(rng_key)
        values = target.constrain_fn(u)
        position, log_det = unconstrained(fn, args, values)
        if name == "dict":
            expected = log_det + sum(start[site].log_prob(values[site]) for site in start)
        elif name == "single":
            expected = log_det + start.log_prob(values["rate"]).sum()
        else:
            expected = jnp.sum(start.log_prob(u))
        joint = -potential_energy(fn, args, {}, position)
        return target.log_densities_fn(u), expected, joint

    (log_start, log_ratio), expected, joint = both(random.key(1))
    np.testing.assert_allclose(log_start, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(log_start + log_ratio, joint, rtol=1e-4, atol=1e-4)

    dais = DAIS(fn, num_steps=8, step_size=0.15, num_particles=NUM_PARTICLES, start=start)
    evidence = dais.log_evidence(random.key(2), *args)
    exact = exact_model() if fn is model else exact_local_model().sum()
    weights = np.exp(np.asarray(evidence.log_weights, float) - exact)
    assert np.std(weights) > 0.1
    assert abs(weights.mean() - 1) < 5 * weights.std() / np.sqrt(NUM_PARTICLES)


def test_improper_prior_with_a_proper_start():
    """The integral of an unnormalised density is defined once the start is proper."""

    def improper():
        x = numpyro.sample("x", dist.ImproperUniform(dist.constraints.positive, (), ()))
        numpyro.factor("density", 1.5 * jnp.log(x) - 2.0 * x)

    dais = DAIS(
        improper, num_steps=4, step_size=0.1, num_particles=4000, start=dist.Gamma(2.0, 1.3)
    )
    evidence = dais.log_evidence(random.key(1))
    exact = special.gammaln(2.5) - 2.5 * np.log(2.0)
    assert 0 < evidence.standard_error < 0.05
    assert abs(float(evidence) - exact) < 5 * evidence.standard_error


def _auxiliary():
    extra = numpyro.sample("noise", dist.Normal(0.0, 1.0), infer={"is_auxiliary": True})
    numpyro.sample("rate", dist.LogNormal(extra, 1.0))


def _misses_a_site():
    numpyro.sample("rate", dist.LogNormal(0.0, 1.0))


def _extra_site():
    hand_written()
    numpyro.sample("more", dist.Normal(0.0, 1.0))


def _outside_plate(y):
    numpyro.sample("rate", dist.Gamma(jnp.array([2.5, 5.0, 4.0, 6.5]), 2.0).to_event(1))


def _without(guide: Callable, dropped: str) -> dict:
    params = init_guide(guide, model)
    del params[dropped]
    return {"guide": guide, "guide_params": params}


class Fault(NamedTuple):
    """A start that cannot be; the message holds each of ``texts``."""

    make: Callable[[], dict]
    texts: tuple[str, ...]
    error: type[Exception] = ValueError
    model: Callable = model
    args: tuple = ()


def _local(guide: Callable) -> dict:
    params = init_guide(guide, local_model, (Y_LOCAL,))
    return {"guide": guide, "guide_params": params, "plate": "data"}


HAND_PARAMS = {"shape": 5.0, "loc": 0.1}
FAULTS = {
    "AutoDelta": Fault(
        lambda: {"guide": autoguide.AutoDelta(model), "guide_params": {}},
        ("AutoDelta", "point mass", "Use AutoNormal"),
        NotImplementedError,
    ),
    "AutoDAIS": Fault(
        lambda: {"guide": autoguide.AutoDAIS(model), "guide_params": {}},
        ("AutoDAIS", "Use AutoNormal"),
        NotImplementedError,
    ),
    "AutoSemiDAIS": Fault(
        lambda: {"guide": autoguide.AutoSemiDAIS(local_model, local_model), "guide_params": {}},
        ("AutoSemiDAIS", "Use AutoNormal"),
        NotImplementedError,
    ),
    "flow_in_list": Fault(
        lambda: {
            "guide": _list_of(autoguide.AutoIAFNormal(model)),
            "guide_params": {},
        },
        ("AutoIAFNormal inside an AutoGuideList", "whole model"),
        NotImplementedError,
    ),
    "auxiliary_site": Fault(
        lambda: {"guide": _auxiliary, "guide_params": {}},
        ("'noise' is auxiliary", "without auxiliary sites"),
        NotImplementedError,
    ),
    "no_guide_params": Fault(
        lambda: {"guide": hand_written}, ("guide_params=", "svi_result.params")
    ),
    "no_guide": Fault(lambda: {"guide_params": {}}, ("Add guide=",)),
    "hand_written_params": Fault(
        lambda: {"guide": hand_written, "guide_params": {"loc": 0.1}},
        ("['shape']", "svi_result.params"),
    ),
    "AutoNormal_params": Fault(
        lambda: _without(autoguide.AutoNormal(model), "p_auto_scale"),
        ("['p_auto_scale']", "svi_result.params"),
    ),
    "AutoDiagonalNormal_params": Fault(
        lambda: _without(autoguide.AutoDiagonalNormal(model), "auto_scale"),
        ("['auto_scale']", "AutoDiagonalNormal", "svi_result.params"),
    ),
    "AutoLaplace_params": Fault(
        lambda: {"guide": autoguide.AutoLaplaceApproximation(model), "guide_params": {}},
        ("['auto_loc']", "svi_result.params"),
    ),
    "flow_params": Fault(
        lambda: {"guide": autoguide.AutoIAFNormal(model), "guide_params": {}},
        ("AutoIAFNormal", "guide_params=", "svi_result.params"),
    ),
    "misses_a_site": Fault(
        lambda: {"guide": _misses_a_site, "guide_params": {}}, ("misses ['mu', 'p']", "Add")
    ),
    "extra_site": Fault(
        lambda: {"guide": _extra_site, "guide_params": HAND_PARAMS}, ("['more']", "Remove")
    ),
    "list_misses_a_site": Fault(
        lambda: (lambda guide: {"guide": guide, "guide_params": init_guide(guide[0], model)})(
            _list_guide((autoguide.AutoNormal, ["mu", "rate"]))
        ),
        ("misses ['p']",),
    ),
    "plate_multivariate": Fault(
        lambda: _local(autoguide.AutoMultivariateNormal(local_model, init_scale=0.5)),
        ("plate='data'", "AutoMultivariateNormal", "Use AutoNormal"),
        model=local_model,
        args=(Y_LOCAL,),
    ),
    "plate_hand_written": Fault(
        lambda: _local(_outside_plate),
        ("plate='data'", "'rate' is outside", "Open the plate"),
        model=local_model,
        args=(Y_LOCAL,),
    ),
    "plate_vector_start": Fault(
        lambda: {"start": {"rate": dist.Gamma(2.0, 1.0).expand([3])}, "plate": "data"},
        ("'rate'", "shape (4,)", "shape (3,)"),
        model=local_model,
        args=(Y_LOCAL,),
    ),
    "dict_misses_a_site": Fault(
        lambda: {"start": {"mu": dist.Normal(0.0, 1.0)}}, ("misses ['p', 'rate']", "Add")
    ),
    "dict_with_unknown_site": Fault(
        lambda: {"start": {**STARTS["dict"][1], "tau": dist.Normal(0.0, 1.0)}},
        ("['tau']", "Remove or rename"),
    ),
    "vector_of_wrong_length": Fault(
        lambda: {"start": dist.Normal(jnp.zeros(3), 1.0)},
        ("4 unconstrained values", "got shape (3,)"),
    ),
}


def _list_of(part: Any) -> autoguide.AutoGuideList:
    guide = autoguide.AutoGuideList(model)
    guide.append(part)
    return guide


@pytest.mark.parametrize("name", FAULTS)
def test_errors_say_what_to_do(name):
    """A start without a density, or over other sites, is refused before anything is compiled."""
    fault = FAULTS[name]
    settings = fault.make()

    def run():
        dais = DAIS(fault.model, num_steps=2, step_size=0.1, num_particles=4, **settings)
        return dais.log_evidence(random.key(0), *fault.args)

    with pytest.raises(fault.error) as caught:
        run()
    for text in fault.texts:
        assert text in str(caught.value)
