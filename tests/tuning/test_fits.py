# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Fitted starts: shapes of a mode, mixtures, modes and variational fits."""

from functools import partial
import math
from types import SimpleNamespace

import jax
from jax import random
import jax.numpy as jnp
import numpy as np
import pytest

import numpyro
import numpyro.distributions as dist

from numpyro_dais import DAIS
from numpyro_dais.model.modes import Modes, find_modes
from numpyro_dais.model.problem import Problem
from numpyro_dais.model.traced import trace_target
from numpyro_dais.sampler.mixture import (
    Component,
    Mixture,
    from_noise,
    noise_gradient,
    started_at,
    to_noise,
)
from numpyro_dais.sampler.path import LogDensities, TargetFunctions
from numpyro_dais.sampler.settings import load_settings, no_steps
from numpyro_dais.tuning import fitting, tuner
from numpyro_dais.tuning.census import Census, Count
from numpyro_dais.tuning.fitting import Found
from numpyro_dais.tuning.geometry import dense_geometry
from numpyro_dais.tuning.laplace import gaussian_component, laplace_mixture, with_prior
from numpyro_dais.tuning.polish import Peak, polish_peak
from numpyro_dais.tuning.quality import Fit, Quality
from numpyro_dais.tuning.variational import NO_TILT, Tilt, is_funnel, neck_of, variational_fit

RNG = np.random.default_rng(5)
SHAPED = Component(
    loc=jnp.array([0.5, -1.0, 2.0]),
    log_scale=jnp.array([0.1, -0.4, 0.3]),
    coupling=jnp.array(RNG.normal(size=(3, 3))) * 0.4,
    prior_coupling=jnp.array(RNG.normal(size=(3, 3))) * 0.4,
    slopes=jnp.array(RNG.normal(size=(3, 3))) * 0.5,
    gate=jnp.array([[0.2, -0.3, 0.5], [0.4, 0.1, -0.6]]),
    shape=jnp.array([[0.3, -0.2, 0.1], [0.1, -0.1, 0.2]]),
)
AXES = Component(
    loc=SHAPED.loc,
    log_scale=SHAPED.log_scale,
    basis=jnp.array(np.linalg.qr(RNG.normal(size=(3, 3)))[0]),
    log_widths=jnp.array([0.8, -1.5, 0.3]),
)
KINDS = {
    "independent": SHAPED._replace(coupling=None, slopes=None, shape=None),
    "Gaussian": SHAPED._replace(slopes=None, shape=None),
    "prior": SHAPED._replace(shape=None),
    "shape": SHAPED._replace(slopes=None),
    "conditional": SHAPED,
    "bent": SHAPED._replace(bend=jnp.array(RNG.normal(size=(3, 3))) * 0.3),
    "all axes": AXES,
    "one axis": AXES._replace(basis=AXES.basis[:, 1:2], log_widths=AXES.log_widths[1:2]),
    "axes and shape": AXES._replace(shape=SHAPED.shape),
}


@pytest.mark.parametrize("component", KINDS.values(), ids=KINDS)
def test_a_mode_and_its_noise_are_inverse_maps(component):
    noise = jnp.array([0.7, -1.2, 0.4])
    position = from_noise(component, noise)
    back, log_det = to_noise(component, position)
    np.testing.assert_allclose(back, noise, rtol=1e-4, atol=1e-5)
    jacobian = jax.jacobian(lambda u: to_noise(component, u)[0])(position)
    np.testing.assert_allclose(log_det, np.linalg.slogdet(jacobian)[1], rtol=1e-4, atol=1e-4)
    gradient = jnp.array([1.0, -0.5, 2.0])
    by_noise = jax.grad(lambda z: jnp.dot(gradient, from_noise(component, z)))(noise)
    np.testing.assert_allclose(
        noise_gradient(component, position, gradient), by_noise, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("kind", ["conditional", "bent"])
def test_draws_of_a_mixture_have_its_density(kind):
    """The integral of another density, by importance sampling from the mixture, is one: 5 s.e."""
    component = KINDS[kind]
    other = component._replace(loc=SHAPED.loc + 3.0)
    components = jax.tree.map(lambda *leaves: jnp.stack(leaves), component, other)
    mixture = Mixture(jnp.array([2, 0, 1]), components, jnp.log(jnp.array([0.7, 0.3])))

    @jax.jit
    def weigh(keys):
        draws = jax.vmap(mixture.sample)(keys)
        target = dist.Normal(jnp.array([0.0, 1.5, 1.0]), 1.3).to_event(1)
        return jnp.exp(target.log_prob(draws) - jax.vmap(mixture.log_density)(draws))

    weights = np.asarray(weigh(random.split(random.key(3), 50_000)))
    assert abs(weights.mean() - 1) < 5 * weights.std() / np.sqrt(len(weights))
    assert weights.std() < 10


@pytest.mark.parametrize("rank", [1, 3])
def test_a_mode_by_its_axes_is_a_gaussian(rank):
    """Without the parts around it, and with gradients where their shares are zero."""
    component = AXES._replace(basis=AXES.basis[:, :rank], log_widths=AXES.log_widths[:rank])
    one = jax.tree.map(lambda leaf: leaf[None], component)
    order = np.array([2, 0, 1])
    bare = Mixture(jnp.array(order), one, jnp.zeros(1)).bare()
    basis, scale = np.asarray(component.basis), np.exp(component.log_scale)
    inner = np.eye(3) + basis @ np.diag(np.exp(2 * component.log_widths) - 1) @ basis.T
    expected = dist.MultivariateNormal(component.loc, scale[:, None] * inner * scale)
    position = jnp.array([1.0, -2.0, 0.4])
    value, gradient = jax.jit(jax.value_and_grad(bare.log_density))(position)
    ordered, exact_gradient = jax.jit(jax.value_and_grad(expected.log_prob))(position[order])
    np.testing.assert_allclose(value, ordered, rtol=1e-5)
    np.testing.assert_allclose(gradient[order], exact_gradient, rtol=1e-3)
    draws = np.asarray(jax.jit(jax.vmap(bare.sample))(random.split(random.key(0), 20_000)))[
        :, order
    ]
    np.testing.assert_allclose(np.cov(draws.T), expected.covariance_matrix, rtol=0.1, atol=0.05)


def test_chains_begin_at_a_bare_mixture_with_finite_gradients():
    """The original start has no share, not even where its own density overflows."""
    one = jax.tree.map(lambda leaf: leaf[None], AXES)
    bare = Mixture(jnp.arange(3), one, jnp.zeros(1)).bare()
    start = TargetFunctions(
        lambda key: jnp.full(3, jnp.nan),
        lambda u: LogDensities(-jnp.sum(u**4), -jnp.sum(u)),
    )
    started = started_at(start, bare)
    draw = started.sample_fn(random.key(0))
    assert np.all(np.isfinite(draw))
    gradient = jax.grad(lambda u: started.log_densities_fn(u).log_start)(draw)
    np.testing.assert_allclose(gradient, jax.grad(bare.log_density)(draw), rtol=1e-5)


@pytest.mark.parametrize("kind", ["all axes", "bent"])
def test_a_mixture_is_saved_with_its_axes_and_shares(kind, tmp_path):
    one = jax.tree.map(lambda leaf: leaf[None], KINDS[kind])
    mixture = Mixture(jnp.array([1, 0, 2]), one, jnp.zeros(1), 0.01, 0.02, 0.03)
    settings = no_steps()._replace(start=mixture)
    settings.save(tmp_path / "settings")
    loaded = load_settings(tmp_path / "settings")
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6), loaded, settings)
    assert loaded.start.bare().tail_share == 0.0


def test_modes_are_found_once_and_ridges_are_not_modes():
    def two_modes(u):
        peaks = ((1.0, 0.0), (-1.5, 0.3))
        values = np.array([height - 0.5 * np.sum((u - m) ** 2) / 0.04 for m, height in peaks])
        shares = np.exp(values - np.logaddexp.reduce(values))
        gradient = shares[0] * (1.0 - u) / 0.04 + shares[1] * (-1.5 - u) / 0.04
        return float(np.logaddexp.reduce(values)), gradient

    def side_by_side(positions):
        values, gradients = zip(*map(two_modes, positions), strict=True)
        return np.array(values), np.stack(gradients)

    starts = np.array([[1.2, 0.9], [-1.0, -2.0], [0.8, 1.1], [-1.4, -1.6]])
    modes = find_modes(side_by_side, starts, np.zeros(2), np.ones(2), 1000)
    curvatures = []

    def polish(u, density_fn, precision):
        def geometry_fn(u):
            curvatures.append(u)
            return dense_geometry(precision, np.ones(2))

        return polish_peak(density_fn, geometry_fn, lambda u, beta, v: v @ precision, u)

    polish_fn = partial(polish, density_fn=two_modes, precision=np.eye(2) / 0.04)
    census = Census(two_modes, polish_fn, 10)
    census.meet(modes)
    assert census.count == Count(4, 2, 0, False)
    assert census.count.words == "4 searches have met 2 modes"
    mixture = laplace_mixture(census.peaks, np.arange(2))
    assert len(curvatures) == 2
    np.testing.assert_allclose(mixture.components.loc, [[-1.5, -1.5], [1.0, 1.0]], atol=1e-3)
    np.testing.assert_allclose(np.exp(mixture.log_shares), [0.574, 0.426], atol=1e-3)

    def ridge(u):
        return float(-0.5 * u[0] ** 2), np.array([-u[0], 0.0])

    ends = Modes(np.array([[0.0, 5.0], [0.0, -5.0]]), np.zeros(2))
    polish_fn = partial(polish, density_fn=ridge, precision=np.eye(2))
    census = Census(ridge, polish_fn, 10)
    census.meet(ends)
    assert census.count == Count(2, 1, 0, False)


def test_a_census_says_what_searches_have_not_seen():
    """Of twelve equal modes, each as likely: Good and Turing's share is right on average."""
    places = np.stack([np.cos(np.arange(12)), np.arange(12) * 3.0], axis=1)

    def density_fn(u):
        values = -0.5 * np.sum((u - places) ** 2, axis=1) / 0.04
        shares = np.exp(values - np.logaddexp.reduce(values))
        return float(np.logaddexp.reduce(values)), shares @ (places - u) / 0.04

    def polish_fn(u):
        geometry = dense_geometry(np.eye(2) / 0.04, np.ones(2))
        return Peak(u, density_fn(u)[0], geometry, True)

    rng = np.random.default_rng(0)
    predicted, found = [], []
    for _ in range(200):
        census = Census(density_fn, polish_fn, 100)
        chosen = rng.integers(12, size=30)
        census.meet(Modes(places[chosen], np.zeros(30)))
        assert census.count.num_modes == len(np.unique(chosen))
        predicted.append(census.count.unseen_share)
        found.append(1 - census.count.num_modes / 12)
    difference = np.subtract(predicted, found)
    assert abs(difference.mean()) < 4 * difference.std() / np.sqrt(200)
    assert np.mean(found) > 0.05
    full = Census(density_fn, polish_fn, 3)
    full.meet(Modes(places, np.zeros(12)))
    assert full.count == Count(3, 3, 3, True)
    assert "100.0% of further searches" in full.count.words


def test_a_census_says_whether_modes_were_met_unevenly():
    """Of two modes as wide, one has 3/4 of the evidence, and the other is met a few times."""
    places, heights = np.array([[0.0], [10.0]]), np.log([3.0, 1.0])

    def density_fn(u):
        values = heights - 0.5 * np.sum((u - places) ** 2, axis=1)
        shares = np.exp(values - np.logaddexp.reduce(values))
        return float(np.logaddexp.reduce(values)), shares @ (places - u)

    def polish_fn(u):
        return Peak(u, density_fn(u)[0], dense_geometry(np.eye(1), np.ones(1)), True)

    def count_of(*numbers):
        census = Census(density_fn, polish_fn, 10)
        ends = np.repeat(places, numbers, axis=0)
        census.meet(Modes(ends, np.repeat(heights, numbers)))
        return census.count

    assert not count_of(20, 10).is_uneven
    assert not count_of(200, 16).is_uneven
    rare = count_of(60, 5)
    assert rare.is_uneven
    assert rare.rare_share == pytest.approx(0.25 / 5, rel=1e-6)
    assert count_of(5, 60).rare_share == pytest.approx(0.75 / 5, rel=1e-6)


def test_the_neck_of_a_funnel_is_where_others_are_narrow():
    slopes = jnp.zeros((3, 3)).at[1, 0].set(0.5).at[2, 0].set(0.7).at[2, 1].set(0.1)
    funnel = SHAPED._replace(slopes=slopes)
    tilt = neck_of(funnel)
    assert tilt.axis == 0
    narrow, wide = (from_noise(funnel, jnp.array([z, 0.0, 0.0]))[0] for z in (-4.0, 4.0))
    np.testing.assert_allclose(tilt.center, narrow, rtol=1e-5)
    np.testing.assert_allclose(neck_of(funnel._replace(slopes=-slopes)).center, wide, rtol=1e-5)
    for plain in (SHAPED._replace(slopes=None), SHAPED._replace(slopes=jnp.zeros((3, 3)))):
        assert neck_of(plain) is None


def test_a_variational_fit_finds_a_gaussian_and_its_product_with_a_tilt():
    """Correlated, with known moments; the tilt multiplies the marginal of one coordinate by N(4, 1)."""
    covariance = np.array([[1.0, 0.6], [0.6, 2.0]])
    mean = np.array([0.5, -1.0])
    target = dist.MultivariateNormal(jnp.asarray(mean), jnp.asarray(covariance))
    problem = Problem(
        None, potential_fn=lambda u: -target.log_prob(u), start=dist.Normal(jnp.zeros(2), 1)
    )
    traced = trace_target(problem, random.key(0))
    fit = partial(variational_fit, num_iterations=400)
    begin = gaussian_component(np.zeros(2), np.eye(2))

    def moments(tilt):
        component, elbos = fit(random.key(0), traced, begin, jnp.arange(2), 0.1, tilt)
        noise = random.normal(random.key(1), (20_000, 2))
        draws = np.asarray(jax.vmap(from_noise, (None, 0))(component, noise))
        return draws.mean(axis=0), np.cov(draws.T), float(np.mean(elbos[-50:]))

    for tilt in (NO_TILT, Tilt(0, 4.0, 1.0)):
        gain = covariance[:, 0] * tilt.precision / (1 + tilt.precision * covariance[0, 0])
        expected_mean = mean + gain * (tilt.center - mean[0])
        expected_covariance = covariance - np.outer(gain, covariance[0])
        fitted_mean, fitted_covariance, _ = moments(tilt)
        np.testing.assert_allclose(fitted_mean, expected_mean, atol=0.05)
        np.testing.assert_allclose(fitted_covariance, expected_covariance, atol=0.08)
    assert abs(moments(NO_TILT)[2]) < 0.01  # a density that is normalised, and in the family


def test_axes_stay_as_they_are_in_a_fit():
    """Where a Gaussian is along known axes, its place and widths are found."""
    basis = np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))[0]
    widths, mean = np.array([0.2, 1.0, 4.0]), np.array([0.5, -1.0, 3.0])
    target = dist.MultivariateNormal(jnp.asarray(mean), jnp.asarray((basis * widths**2) @ basis.T))
    problem = Problem(
        None, potential_fn=lambda u: -target.log_prob(u), start=dist.Normal(jnp.zeros(3), 1)
    )
    traced = trace_target(problem, random.key(0))
    begin = Component(
        *(jnp.zeros(3),) * 2, shape=jnp.zeros((2, 3)), basis=basis, log_widths=np.log(widths) + 0.5
    )
    fit = partial(variational_fit, num_iterations=500)
    fitted, elbos = fit(random.key(0), traced, begin, jnp.arange(3), 0.05, NO_TILT)
    np.testing.assert_array_equal(fitted.basis, jnp.asarray(basis))
    np.testing.assert_allclose(fitted.loc, mean, atol=0.1)
    assert abs(float(np.mean(elbos[-50:]))) < 0.01
    assert float(elbos[0]) < -0.1


@pytest.mark.parametrize(("slope", "expected"), [(0.5, True), (0.1, False)])
def test_a_funnel_is_a_fit_whose_widths_depend_on_one_coordinate(slope, expected):
    """Nine widths, as in a hierarchy of nine groups; what is above the diagonal does not count."""
    component = with_prior(gaussian_component(np.zeros(10), np.eye(10)))
    slopes = np.triu(np.ones((10, 10)))
    slopes[1:, 0] = slope
    assert is_funnel(component._replace(slopes=slopes)) == expected
    assert not is_funnel(component._replace(slopes=None))


@pytest.mark.parametrize("khat", [0.4, 0.9])
def test_ends_of_searches_that_are_no_maxima_are_no_modes(khat):
    """As down the neck of a funnel: a fit of the whole comes first, and is enough if it is good."""
    components = jax.tree.map(
        lambda *leaves: np.stack(leaves),
        *(gaussian_component(np.full(2, place), np.eye(2)) for place in (0.0, 9.0)),
    )
    ends = Mixture(np.arange(2), components, np.log([0.5, 0.5]))
    one = Fit(None, Quality(0.5, khat), np.zeros(1), np.zeros((1, 2)))
    several = one._replace(quality=Quality(0.6, 0.5))
    attempt = SimpleNamespace(count=Count(9, 2, 2), has_peak=False, order=np.arange(2))
    attempt._laplace = lambda: ends
    attempt._fit_one_mode = lambda component: one
    attempt._fit_many_modes = lambda mixture: several
    attempt._followed = lambda fit: fit
    attempt._is_worth = lambda fit: False
    found = fitting._Attempt.find(attempt)
    if khat < 0.7:
        assert found is one
        assert attempt.count == Count(9)
        assert attempt.count.words == "9 searches have come to no maximum"
    else:
        assert found is several
        assert attempt.count == Count(9, 2, 2)


@pytest.mark.parametrize(
    ("variance", "khat", "num_dims", "has_power", "is_warned"),
    [
        (10.0, 0.6, 30, False, True),
        (600.0, 0.3, 30, False, True),
        (10.0, 0.4, 30, False, False),
        (10.0, 0.6, 30, True, False),
        (10.0, 0.6, 300, False, False),
    ],
)
def test_particles_from_a_poor_fit_are_warned_of(variance, khat, num_dims, has_power, is_warned):
    fit = Fit(None, Quality(variance, khat), np.zeros(1), np.zeros((1, 2)))
    look = SimpleNamespace(has_power=has_power, is_found=False)
    note = tuner._notes_on(Found(fit, 0.0, Count(), look), num_dims)
    assert bool(note) == is_warned
    if is_warned:
        assert f"relative variance of {variance:.2g}, k-hat {khat:.2f}" in note


def centred_hierarchy(y):
    """Searches go down the neck, so that Laplace's approximation is around no mode of the mass."""
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(1))
    with numpyro.plate("groups", len(y)):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(theta, 1), obs=y)


def test_a_fit_begins_elsewhere_where_laplace_is_astray(x64, monkeypatch):
    """Or it costs a fit, which then has no budget left for the neck."""
    begins, y = [], jnp.array([0.3, -0.8, 1.2, 0.1, 0.6, -0.2, 0.9, -0.5])

    def spy(rng_key, target, begin, order, rate, tilt, num_iterations):
        begins.append((np.asarray(begin.log_scale), rate, float(tilt.precision)))
        return variational_fit(rng_key, target, begin, order, rate, tilt, num_iterations)

    monkeypatch.setattr(fitting, "variational_fit", spy)
    evidence = DAIS(centred_hierarchy).log_evidence(random.key(1), y)
    first, *others = begins
    # Narrow, at the middle of the start, and not as wide as the end of a search.
    assert np.all(np.exp(first[0]) < 0.3 * np.sqrt(2) + 1e-9)
    assert len(set(np.round(first[0], 6))) < 3
    assert [rate for _, rate, precision in others if not precision] == [0.06, 0.03]
    assert any(precision for *_, precision in others)  # the neck
    exact = centred_log_evidence(np.asarray(y))
    assert abs(float(evidence) - exact) < 4 * float(evidence.standard_error) + 0.01


def centred_log_evidence(y):
    """By quadrature over the logarithm of the spread; the mean is integrated out."""
    log_tau = np.linspace(-12, 8, 4001)
    tau = np.exp(log_tau)
    variance, size = 1 + tau**2, len(y)
    whole = variance + 25 * size
    log_density = -0.5 * (
        (size - 1) * np.log(2 * np.pi * variance)
        + np.log(2 * np.pi * whole)
        + np.sum((y - y.mean()) ** 2) / variance
        + size * y.mean() ** 2 / whole
    )
    log_prior = np.log(2 / np.pi) - np.log1p(tau**2) + log_tau
    return float(np.logaddexp.reduce(log_density + log_prior) + np.log(log_tau[1] - log_tau[0]))


def test_a_fit_that_has_diverged_takes_no_place():
    """Of three fits in a row the second ends at no number, and the third begins where the first ended."""
    begins, tested = [], []
    fits = iter([("first", -1.0), ("diverged", math.nan), ("third", -0.5)])

    def variational(begin, rate):
        begins.append(begin)
        return next(fits)

    poor = Fit(None, Quality(100.0, 1.0), np.zeros(1), np.zeros((1, 2)))
    attempt = SimpleNamespace(num_dims=20, _variational=variational, _broad=lambda like: "middle")
    attempt._supported = lambda fitted, support: fitted

    def test(mixture, num_draws=0):
        tested.append(mixture)
        khat = 5.0 if mixture is laplace else 0.8
        return poor._replace(quality=Quality(100.0, khat))

    attempt._test, attempt._followed = test, lambda fit: fit
    attempt._is_worth, attempt._neck = lambda fit: True, lambda fitted, fit: None
    laplace = SimpleNamespace(basis=None, slopes=None)
    fitting._Attempt._fit_one_mode(attempt, laplace)
    assert begins == ["middle", "first", "first"]
    assert "diverged" not in tested
    assert tested[-1] == "third"
