# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
The methods of ``dimension.py``, each for a budget of gradients: variants by name, of which a table shows the one
with the highest lower bound. All but the plain chain have one.
"""

from collections.abc import Callable

import jax
from jax import random
from peer_methods import RunFn, hais, is_installed, run_of, tempered_smc
from targets import Target

from numpyro_dais import DAIS
from numpyro_dais.model.target import make_target
from numpyro_dais.schedule import fourth_root_step_size
from numpyro_dais.tuning.spread import NUM_START_DRAWS, start_spread

PLAIN_PARTICLES = 48
PLAIN_SCALES = (0.3, 0.1, 0.03)
PLAIN_SCHEDULES = ("linear", "power")
HAIS_PARTICLES = 64
HAIS_TUNING = 64  # chains that its tuning runs, all as long as the reported ones
PILOT_PARTICLES = 32  # of SMC
FEWEST_PARTICLES, MOST_PARTICLES = 16, 20_000  # of SMC

Variants = dict[str, RunFn]


def default(target: Target, budget: int) -> Variants:
    """DAIS with nothing said but the budget, which it need not spend."""
    return {"dais": run_of(DAIS(target.model, budget=budget), target)}


def from_prior(target: Target, budget: int) -> Variants:
    """DAIS from the prior. Its peers spend the whole budget, so it is to do the same: no error is small enough."""
    estimator = DAIS(target.model, start="prior", budget=budget, target_error=1e-4)
    return {"dais_prior": run_of(estimator, target)}


def corrected(target: Target, budget: int) -> Variants:
    """HAIS from the prior; each gradient comes with a density for the Metropolis decision."""
    num_steps = max(1, round(budget / (1.5 * (HAIS_PARTICLES + HAIS_TUNING))))
    return {"hais": hais(target, num_steps, HAIS_PARTICLES)}


def plain_chain(target: Target, budget: int, scale: float, schedule: str) -> RunFn:
    r"""
    The paper's chain: a step of :math:`a (K/10)^{-1/4}` in units of the start's spread, damping 0.9, no tuning.

    :param target: the target.
    :param budget: gradients in all.
    :param scale: the step size :math:`a` at ten steps.
    :param schedule: the name of a schedule.
    """
    num_steps = max(1, budget // PLAIN_PARTICLES)
    draw = jax.jit(lambda keys, problem: jax.vmap(make_target(problem).sample_fn)(keys))
    draws = draw(random.split(random.key(0), NUM_START_DRAWS), target.problem)
    estimator = DAIS(
        target.model,
        start="prior",
        num_steps=num_steps,
        num_particles=PLAIN_PARTICLES,
        step_size=fourth_root_step_size(num_steps, scale),
        damping=0.9,
        schedule=schedule,
        preconditioner=start_spread(draws),
    )
    return run_of(estimator, target)


def plain(target: Target, budget: int) -> Variants:
    """The six plain chains. Choosing among them is not counted as a cost."""
    return {
        f"plain, {schedule}, {scale:g}": plain_chain(target, budget, scale, schedule)
        for schedule in PLAIN_SCHEDULES
        for scale in PLAIN_SCALES
    }


def smc(target: Target, budget: int) -> Variants:
    """blackjax's tempered SMC, with as many particles as the budget is for by a pilot run, which is not counted."""
    pilot = tempered_smc(target, PILOT_PARTICLES)(random.key(0))
    num_particles = int(budget * PILOT_PARTICLES / pilot.cost)
    num_particles = min(max(num_particles, FEWEST_PARTICLES), MOST_PARTICLES)
    return {"smc": tempered_smc(target, num_particles)}


METHODS: dict[str, Callable[[Target, int], Variants]] = {
    "dais": default,
    "dais_prior": from_prior,
    "hais": corrected,
    "plain": plain,
    "smc": smc,
}
LABELS = {
    "dais": "DAIS",
    "dais_prior": 'DAIS, start="prior"',
    "hais": "HAIS",
    "plain": "plain chain",
    "smc": "tempered SMC",
}


def can_run(method: str) -> bool:
    """Whether the package behind a method is there."""
    return method != "smc" or is_installed("smc_1k")
