# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
What a user could estimate the evidence with: each method at sensible settings of its own, all on the same
densities, all tuning and warm-up counted.
"""

from collections.abc import Callable
from functools import partial
import importlib.util
from typing import Any, NamedTuple
import warnings

import jax
from jax import lax, random
import jax.numpy as jnp
import numpy as np
import optax
from scipy.linalg import solve_triangular
from scipy.optimize import brentq, minimize
from scipy.special import expit, gammaln, logsumexp
from targets import Target

from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
import numpyro.distributions as dist
from numpyro.infer import NUTS, SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoDAIS

from numpyro_dais import DAIS, HAIS
from numpyro_dais._util.tails import pareto_khat
from numpyro_dais.model.problem import Problem
from numpyro_dais.model.target import make_target
from numpyro_dais.schedule import power

CHUNK = 500  # particles at a time, where there are many
LOWEST = -1e30  # stands for a log density that is not finite


class Result(NamedTuple):
    """
    One run. ``standard_error`` and ``has_warning`` are None for methods that have no such thing; a
    gradient comes with the density at the same point, which ``num_densities`` then does not count.
    ``lower_bound`` is the mean log weight, of estimators of the package.
    """

    log_evidence: float
    standard_error: float | None
    has_warning: bool | None
    num_gradients: int
    num_densities: int
    lower_bound: float | None = None

    @property
    def cost(self) -> float:
        """Gradients, and half of the densities without gradient."""
        return self.num_gradients + self.num_densities / 2


RunFn = Callable[[jax.Array], Result]


class Method(NamedTuple):
    """``make_run`` compiles what can be compiled once for a target; ``kind`` groups the tables."""

    label: str
    kind: str  # "ours", "annealing" or "other"
    make_run: Callable[..., RunFn]


def _densities(problem: Problem) -> tuple[Callable, Callable]:
    """Log start and log likelihood of an unconstrained position, finite everywhere."""
    log_densities_fn = make_target(problem).log_densities_fn

    def finite(part: int, position: jax.Array) -> jax.Array:
        value = log_densities_fn(position)[part]
        return jnp.where(jnp.isfinite(value), value, LOWEST)

    return partial(finite, 0), partial(finite, 1)


def _potential(problem: Problem) -> Callable:
    log_start, log_likelihood = _densities(problem)
    return lambda position: -log_start(position) - log_likelihood(position)


def dais(target: Target, budget: float | None = None, target_error: float | None = None) -> RunFn:
    """DAIS with nothing said; or with a wanted error; or with a budget in gradients, all of which it is to spend."""
    kwargs: dict[str, Any] = {} if budget is None else {"budget": int(budget), "target_error": 1e-4}
    if target_error is not None:
        kwargs["target_error"] = target_error
    return run_of(DAIS(**target.kwargs, **kwargs), target)


def run_of(estimator: DAIS | HAIS, target: Target) -> RunFn:
    """A run of an estimator of the package."""

    def run(rng_key: jax.Array) -> Result:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # they are in the result
            evidence = estimator.log_evidence(rng_key, *target.estimator_args)
        return Result(
            float(evidence),
            float(evidence.standard_error),
            bool(evidence.warnings),
            int(evidence.num_gradients),
            0,  # counted as half a gradient each
            float(evidence.lower_bound),
        )

    return run


def hais(target: Target, num_steps: int = 500, num_particles: int = 200) -> RunFn:
    """HAIS from the prior, its step sizes adapted in a pilot run, with temperatures (k/K)^4."""
    kwargs = {"num_steps": num_steps, "num_particles": num_particles, "schedule": power}
    what = {"start": "prior", **target.kwargs}
    estimator = HAIS(**what, **kwargs, chunk_size=min(CHUNK, num_particles))
    run_estimator = run_of(estimator, target)

    def run(rng_key: jax.Array) -> Result:
        result = run_estimator(rng_key)
        # The gradient is taken halfway, the density of the Metropolis decision at the end.
        return result._replace(num_densities=result.num_gradients)

    return run


def tempered_smc(
    target: Target,
    num_particles: int,
    num_moves: int = 3,
    trajectory: float = np.pi / 2,
    max_leapfrog: int = 20,
    target_ess: float = 0.7,
    target_acceptance: float = 0.8,
    max_temperatures: int = 500,
) -> RunFn:
    """
    blackjax's adaptive tempered SMC with HMC moves, whose mass matrix and step size are tuned from the
    particles at every temperature. A trajectory is a quarter of the period of a matched Gaussian: half a
    period or a whole one, as fixed numbers of steps happen to give, would lead back to where it began.
    """
    import blackjax
    from blackjax.smc import adaptive_tempered, extend_params
    from blackjax.smc.resampling import systematic

    class Loop(NamedTuple):
        smc: Any
        log_evidence: jax.Array
        step_size: jax.Array
        variance: jax.Array
        num_temperatures: jax.Array
        num_leapfrogs: jax.Array  # of each particle, so far

    def variance_of(smc: Any) -> jax.Array:
        return smc.weights @ (smc.particles - smc.weights @ smc.particles) ** 2

    @jax.jit
    def sample(rng_key: jax.Array, problem: Problem) -> Loop:
        log_start, log_likelihood = _densities(problem)
        start_key, run_key = random.split(rng_key)
        positions = jax.vmap(make_target(problem).sample_fn)(random.split(start_key, num_particles))
        positions = jnp.nan_to_num(positions, posinf=1e100, neginf=-1e100)
        low, high = jnp.quantile(positions, jnp.array([0.25, 0.75]), axis=0)
        kernel = adaptive_tempered.build_kernel(
            log_start,
            log_likelihood,
            blackjax.hmc.build_kernel(),
            blackjax.hmc.init,
            systematic,
            target_ess,
            batch_size=min(CHUNK, num_particles),
        )

        def body(loop: Loop) -> Loop:
            num_leapfrog = jnp.clip(jnp.ceil(trajectory / loop.step_size), 1, max_leapfrog)
            parameters = {
                "step_size": loop.step_size,
                "inverse_mass_matrix": loop.variance,
                "num_integration_steps": num_leapfrog.astype(int),
            }
            key = random.fold_in(run_key, loop.num_temperatures)
            smc, info = kernel(key, loop.smc, num_moves, extend_params(parameters))
            excess = jnp.mean(info.update_info.acceptance_rate) - target_acceptance
            return Loop(
                smc,
                loop.log_evidence + info.log_likelihood_increment,
                loop.step_size * jnp.exp(2 * excess),
                variance_of(smc),
                loop.num_temperatures + 1,
                loop.num_leapfrogs + num_moves * num_leapfrog.astype(int),
            )

        init = Loop(
            adaptive_tempered.init(positions)._replace(tempering_param=jnp.zeros(())),
            jnp.zeros(()),
            jnp.asarray(positions.shape[1] ** -0.25),
            ((high - low) / 1.349) ** 2,
            0,
            0,
        )
        return lax.while_loop(
            lambda loop: (
                (loop.smc.tempering_param < 1) & (loop.num_temperatures < max_temperatures)
            ),
            body,
            init,
        )

    def run(rng_key: jax.Array) -> Result:
        loop = sample(rng_key, target.problem)
        num_moved = int(loop.num_temperatures) * num_particles
        log_evidence = float(loop.log_evidence) if loop.smc.tempering_param >= 1 else np.nan
        num_gradients = num_moved + int(loop.num_leapfrogs) * num_particles
        return Result(log_evidence, None, None, num_gradients, 2 * num_moved)

    return run


def _bridge(forward: np.ndarray, reverse: np.ndarray, num_effective: float) -> tuple[float, float]:
    """
    Meng and Wong's optimal bridge and its error (Frühwirth-Schnatter 2004), for log weights of proposals
    ``[n]`` and of Markov chains ``[num_chains, num_draws]``, which are worth ``num_effective`` draws.
    """
    offset = np.log(num_effective / len(forward))

    def terms(center: float) -> tuple[np.ndarray, np.ndarray]:
        return expit(forward - center + offset), expit(center - reverse - offset)

    def excess(center: float) -> float:
        of_forward, of_reverse = terms(center)
        return np.sum(of_forward) - num_effective * np.mean(of_reverse)

    both = np.concatenate([forward, reverse.ravel()])
    center = brentq(excess, both[both > LOWEST].min() - 20, both.max() + 20)
    of_forward, of_reverse = terms(center)
    num_independent = np.clip(effective_sample_size(of_reverse), 1.0, of_reverse.size)
    variance = np.var(of_forward) / np.mean(of_forward) ** 2 / len(forward)
    variance += np.var(of_reverse) / np.mean(of_reverse) ** 2 / num_independent
    return center, float(np.sqrt(variance))


def nuts_bridge(
    target: Target, num_chains: int = 4, num_warmup: int = 1000, num_samples: int = 1000
) -> RunFn:
    """
    NUTS, then bridge sampling (Meng and Wong) between a Gaussian, fitted to the first half of each chain,
    and the second half.
    """

    @jax.jit
    def sample(rng_key: jax.Array, problem: Problem) -> tuple:
        init_key, run_key = random.split(rng_key)
        kernel = NUTS(potential_fn=_potential(problem))
        num_dims = jax.eval_shape(make_target(problem).sample_fn, rng_key).shape[-1]
        init = random.uniform(init_key, (num_chains, num_dims), minval=-2.0, maxval=2.0)
        keys = random.split(run_key, num_chains)
        state = kernel.init(keys, num_warmup, init, (), {})

        def body(state, _):
            state = kernel.sample(state, (), {})
            return state, (state.z, state.potential_energy, state.num_steps, state.diverging)

        return lax.scan(body, state, None, length=num_warmup + num_samples)[1]

    @jax.jit
    def evaluate(positions: jax.Array, problem: Problem) -> jax.Array:
        return -lax.map(_potential(problem), positions, batch_size=CHUNK)

    def run(rng_key: jax.Array) -> Result:
        sample_key, proposal_key = random.split(rng_key)
        chain = jax.tree.map(np.asarray, sample(sample_key, target.problem))
        num_gradients = int(chain[2].sum())
        draws, energy, _, diverging = (np.swapaxes(part[num_warmup:], 0, 1) for part in chain)
        half = num_samples // 2
        fitted, kept = draws[:, :half].reshape(-1, draws.shape[2]), draws[:, half:]
        gaussian = dist.MultivariateNormal(fitted.mean(0), np.atleast_2d(np.cov(fitted.T)))
        proposed = gaussian.sample(proposal_key, (num_chains * (num_samples - half),))
        forward = evaluate(proposed, target.problem) - gaussian.log_prob(proposed)
        reverse = -energy[:, half:] - np.asarray(gaussian.log_prob(kept))
        num_effective = np.clip(np.median(effective_sample_size(kept)), 1.0, reverse.size)
        log_evidence, error = _bridge(np.asarray(forward), reverse, float(num_effective))
        return Result(
            log_evidence,
            error,
            bool(diverging.any() or np.nanmax(split_gelman_rubin(draws)) > 1.01),
            num_gradients,
            len(proposed),
        )

    return run


class StudentT(NamedTuple):
    """In NumPy, so that nothing is compiled; by its Cholesky factor, whatever its condition."""

    degrees: float
    mean: np.ndarray
    scale_tril: np.ndarray

    @classmethod
    def of(cls, degrees: float, mean: np.ndarray, covariance: np.ndarray) -> "StudentT":
        """The one of this mean and covariance."""
        return cls(degrees, mean, np.linalg.cholesky(covariance * (degrees - 2) / degrees))

    def sample(self, rng: np.random.Generator, size: int) -> np.ndarray:
        normal = rng.standard_normal((size, len(self.mean)))
        spread = np.sqrt(self.degrees / rng.chisquare(self.degrees, (size, 1)))
        return self.mean + spread * normal @ self.scale_tril.T

    def log_prob(self, x: np.ndarray) -> np.ndarray:
        d, n = self.degrees, len(self.mean)
        white = solve_triangular(self.scale_tril, (x - self.mean).T, lower=True)
        constant = gammaln((d + n) / 2) - gammaln(d / 2) - n / 2 * np.log(d * np.pi)
        constant -= np.sum(np.log(np.diag(self.scale_tril)))
        return constant - (d + n) / 2 * np.log1p(np.sum(white**2, axis=0) / d)


def laplace_importance(
    target: Target,
    num_draws: int = 10_000,
    num_rounds: int = 3,
    num_round_draws: int = 1000,
    all_degrees: tuple[float, ...] = (5.0, 10.0, 30.0, 100.0),
) -> RunFn:
    """
    Importance sampling from a Student-t at the mode, with the Laplace approximation's covariance; before
    the last draws its mean, covariance and degrees of freedom are matched to weighted draws several times.
    """

    value_and_grad = jax.jit(lambda x, problem: jax.value_and_grad(_potential(problem))(x))
    hessian = jax.jit(lambda x, problem: jax.hessian(_potential(problem))(x))
    evaluate = jax.jit(
        lambda positions, problem: -lax.map(_potential(problem), positions, batch_size=CHUNK)
    )

    def weigh(
        rng: np.random.Generator, student: StudentT
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Draws, their log joint densities and log weights."""
        draws = student.sample(rng, num_round_draws)
        log_joint = np.asarray(evaluate(draws, target.problem))
        return draws, log_joint, log_joint - student.log_prob(draws)

    def run(rng_key: jax.Array) -> Result:
        problem = target.problem
        rng = np.random.default_rng(np.asarray(random.key_data(rng_key)))
        num_dims = jax.eval_shape(make_target(problem).sample_fn, rng_key).shape[-1]
        init = rng.uniform(-2.0, 2.0, num_dims)
        found = minimize(lambda x: value_and_grad(x, problem), init, jac=True, method="BFGS")
        precision = np.asarray(hessian(found.x, problem))
        values, vectors = np.linalg.eigh((precision + precision.T) / 2)
        # A direction without curvature gets a scale of one.
        values = np.where(np.isfinite(values) & (values > 1e-8), values, 1.0)
        mean, covariance = found.x, (vectors / values) @ vectors.T
        student = StudentT.of(all_degrees[0], mean, covariance)
        for _ in range(num_rounds):
            draws, log_joint, log_weights = weigh(rng, student)
            shares = np.exp(log_weights - logsumexp(log_weights))
            ess = 1 / np.sum(shares**2)
            step = ess / (ess + 10 * num_dims)  # as far as the weights can be trusted
            shift = shares @ draws - mean
            centred = draws - mean - shift
            matched = (centred.T * shares) @ centred
            mean, covariance = mean + step * shift, (1 - step) * covariance + step * matched
            candidates = [StudentT.of(degrees, mean, covariance) for degrees in all_degrees]
            # The second moment of each candidate's weights, up to a constant.
            moments = [logsumexp(log_weights + log_joint - c.log_prob(draws)) for c in candidates]
            student = candidates[int(np.argmin(moments))]
        num_last = num_draws // num_round_draws - num_rounds
        log_weights = np.concatenate([weigh(rng, student)[2] for _ in range(num_last)])
        size = len(log_weights)
        log_evidence = float(logsumexp(log_weights)) - np.log(size)
        error = float(np.std(np.exp(log_weights - log_evidence)) / np.sqrt(size))
        # A product with the Hessian costs about two gradients.
        num_gradients = found.njev + 2 * num_dims
        is_heavy = pareto_khat(log_weights) > 0.7
        return Result(log_evidence, error, bool(is_heavy), num_gradients, num_draws)

    return run


def autodais(
    target: Target, num_steps: int = 16, num_iterations: int = 5000, num_trajectories: int = 10_000
) -> RunFn:
    """NumPyro's AutoDAIS, fitted by SVI; then the log of the mean weight of fresh trajectories."""
    guide = AutoDAIS(target.model, K=num_steps)
    optimiser = optax.adam(optax.cosine_decay_schedule(1e-2, num_iterations, alpha=0.02))
    svi = SVI(target.model, guide, optimiser, Trace_ELBO())

    @jax.jit
    def train(state):
        def body(state, _):
            return svi.stable_update(state, *target.args)

        return lax.scan(body, state, None, length=num_iterations)[0]

    @jax.jit
    def weigh(rng_key, params):
        def log_weight(key):
            return -svi.loss.loss(key, params, target.model, guide, *target.args)

        return lax.map(log_weight, random.split(rng_key, num_trajectories), batch_size=CHUNK)

    def run(rng_key: jax.Array) -> Result:
        init_key, weigh_key = random.split(rng_key)
        state = train(svi.init(init_key, *target.args))
        log_weights = np.asarray(weigh(weigh_key, svi.get_params(state)), np.float64)
        log_evidence = float(logsumexp(log_weights)) - np.log(num_trajectories)
        error = float(np.std(np.exp(log_weights - log_evidence)) / np.sqrt(num_trajectories))
        # Reverse mode through a gradient costs about two more.
        num_gradients = num_steps * (3 * num_iterations + num_trajectories)
        num_densities = num_trajectories + 2 * num_iterations
        is_heavy = pareto_khat(log_weights) > 0.7
        return Result(log_evidence, error, bool(is_heavy), num_gradients, num_densities)

    return run


def nested_sampler(target: Target) -> RunFn:
    """NumPyro's NestedSampler, jaxns 2 behind it, as it comes. It compiles anew in every run."""
    from numpyro.contrib.nested_sampling import NestedSampler

    def run(rng_key: jax.Array) -> Result:
        sampler = NestedSampler(target.model)
        sampler.run(rng_key, *target.args)
        results = sampler._results
        num_densities = int(results.total_num_likelihood_evaluations)
        error = float(results.log_Z_uncert)
        return Result(float(results.log_Z_mean), error, None, 0, num_densities)

    return run


METHODS: dict[str, Method] = {
    "dais": Method("DAIS", "ours", dais),
    "dais_loose": Method("DAIS, target_error=0.1", "ours", partial(dais, target_error=0.1)),
    "laplace": Method("Laplace, Student-t importance sampling", "other", laplace_importance),
    "nuts": Method("NUTS + bridge", "other", nuts_bridge),
    "smc_1k": Method("tempered SMC, 1k", "annealing", partial(tempered_smc, num_particles=1000)),
    "smc_10k": Method(
        "tempered SMC, 10k", "annealing", partial(tempered_smc, num_particles=10_000)
    ),
    "hais": Method("HAIS", "annealing", hais),
    "autodais": Method("AutoDAIS, importance-weighted", "annealing", autodais),
    "nested": Method("NestedSampler", "other", nested_sampler),
}
REQUIREMENTS = {"smc_1k": "blackjax", "smc_10k": "blackjax", "nested": "jaxns"}


def is_installed(name: str) -> bool:
    """Whether the package behind a method is there."""
    return name not in REQUIREMENTS or importlib.util.find_spec(REQUIREMENTS[name]) is not None
