# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Arguments of estimators: listed one by one, explained if unknown, and compared by value."""

from dataclasses import FrozenInstanceError, fields
import inspect

import pytest

from numpyro_dais import AIS, DAIS, DAVI, HAIS, ImportanceSampling
from numpyro_dais.estimators.runner import RunConfig
from tests.cases import beta_binomial, normal_means

ESTIMATORS = [DAIS, HAIS, AIS, ImportanceSampling]


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_arguments_are_listed_one_by_one(estimator):
    """Only the model may be given by position, and no ``*args`` or ``**kwargs`` hides anything."""
    model, *others = inspect.signature(estimator).parameters.values()
    assert model.name == "model"
    assert model.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    assert len(others) >= 8
    assert {parameter.kind for parameter in others} == {inspect.Parameter.KEYWORD_ONLY}
    unannotated = [p.name for p in (model, *others) if p.annotation is inspect.Parameter.empty]
    assert unannotated == []


MEANT = {
    "num_samples": (DAIS, "num_samples", "num_particles"),
    "num_chains": (DAIS, "num_chains", "num_particles"),
    "num_temperatures": (DAIS, "num_temperatures", "num_steps"),
    "a typo": (DAIS, "step_sise", "step_size"),
    "HAIS, num_samples": (HAIS, "num_samples", "num_particles"),
    "HAIS, a typo": (HAIS, "step_sise", "step_size"),
    "AIS, num_temperatures": (AIS, "num_temperatures", "num_steps"),
    "importance, num_samples": (ImportanceSampling, "num_samples", "num_particles"),
}


@pytest.mark.parametrize(("estimator", "word", "meant"), MEANT.values(), ids=MEANT)
def test_an_unknown_keyword_is_met_with_the_word_that_was_meant(estimator, word, meant):
    message = f"^{estimator.__name__} has no argument '{word}'. Did you mean '{meant}'\\?$"
    with pytest.raises(TypeError, match=message):
        estimator(beta_binomial, **{word: 10})


def test_a_word_like_no_other_is_met_with_the_list():
    with pytest.raises(TypeError, match=r"has no argument 'zzz'. It has model, .*num_particles"):
        ImportanceSampling(beta_binomial, zzz=1)


UNNAMED = {
    "14: DAVI(10), the particles of Trace_ELBO(10)": (
        DAVI,
        (10,),
        "nothing",
        "num_steps= or num_p",
    ),
    "14: DAVI(4, 2)": (DAVI, (4, 2), "nothing", "num_steps= or num_particles="),
    "14: DAIS(model, 100)": (DAIS, (beta_binomial, 100), "model only", "num_steps= or num_part"),
    "14: AIS(model, 100)": (AIS, (beta_binomial, 100), "model only", "num_steps= or num_part"),
    "14: importance": (ImportanceSampling, (beta_binomial, 9), "model only", "num_particles=, or"),
}


@pytest.mark.parametrize(("estimator", "args", "allowed", "remedy"), UNNAMED.values(), ids=UNNAMED)
def test_an_argument_by_position_is_met_with_its_names(estimator, args, allowed, remedy):
    value = next(arg for arg in args if isinstance(arg, int))
    message = f"^{estimator.__name__} takes {allowed} by position.*got {value}. Name it: {remedy}"
    with pytest.raises(TypeError, match=message):
        estimator(*args)


def test_keywords_of_davi_are_explained():
    """Point 14."""
    parameters = inspect.signature(DAVI).parameters.values()
    assert {parameter.kind for parameter in parameters} == {inspect.Parameter.KEYWORD_ONLY}
    with pytest.raises(TypeError, match=r"DAVI has no argument .num_samples.*mean .num_particles"):
        DAVI(num_samples=10)
    with pytest.raises(TypeError, match="no argument 'vectorize_particles': particles always run"):
        DAVI(vectorize_particles=False)


OF_OTHERS = {
    "HAIS, memory": (HAIS, {"memory": "plain"}, "a Metropolis decision has no gradient"),
    "HAIS, minibatch": (HAIS, {"minibatch": True}, "needs the density of all the data"),
    "HAIS, resample_at": (HAIS, {"resample_at": (0.5,)}, "only DAIS resamples"),
    "HAIS, budget": (HAIS, {"budget": 5_000}, "only DAIS tunes itself"),
    "HAIS, num_leapfrog": (HAIS, {"num_leapfrog": 2}, "one leapfrog step; AIS takes several"),
    "AIS, damping": (AIS, {"damping": 0.5}, "refreshes the momentum fully"),
    "importance, num_steps": (ImportanceSampling, {"num_steps": 5}, "takes no steps"),
    "importance, progress_bar": (ImportanceSampling, {"progress_bar": True}, "takes no steps"),
    "DAIS, target_acceptance": (DAIS, {"target_acceptance": 0.9}, "nothing is rejected"),
    "DAIS, num_leapfrog": (DAIS, {"num_leapfrog": 2}, "one leapfrog step; take more steps"),
}


@pytest.mark.parametrize(("estimator", "kwargs", "reason"), OF_OTHERS.values(), ids=OF_OTHERS)
def test_a_keyword_of_another_estimator_is_met_with_the_reason(estimator, kwargs, reason):
    (word,) = kwargs
    message = f"^{estimator.__name__} has no argument '{word}': .*{reason}.*Leave it out"
    with pytest.raises(TypeError, match=message):
        estimator(beta_binomial, **kwargs)


LEFT_OUT = {
    "resample_at": {"resample_at": ()},
    "resample_at, an empty list": {"resample_at": []},
    "minibatch": {"minibatch": False},
    "surrogate": {"surrogate": None},
    "islands without resampling": {"num_islands": 3},
}


@pytest.mark.parametrize("kwargs", LEFT_OUT.values(), ids=LEFT_OUT)
def test_a_value_that_asks_for_nothing_is_as_if_left_out(kwargs):
    """What does not go together is refused by value: a keyword may be there, as passed on by a program."""
    estimator = DAIS(normal_means, plate="data", **kwargs)
    assert estimator._config == DAIS(normal_means, plate="data")._config


CONFIGURED = {
    "DAIS": lambda: DAIS(beta_binomial, resample_at=[0.25, 0.5], num_islands=4, chunk_size=10),
    "reversible": lambda: DAIS(beta_binomial, damping=0.9, memory="reversible", anchor_every=5),
    "HAIS": lambda: HAIS(beta_binomial, adaptation="online", progress_bar=True),
    "AIS": lambda: AIS(beta_binomial, num_leapfrog=3),
    "importance": lambda: ImportanceSampling(beta_binomial, chunk_size=20),
}


@pytest.mark.parametrize("make", CONFIGURED.values(), ids=CONFIGURED)
def test_configurations_of_like_estimators_are_equal(make):
    """So objects that were made alike share compiled programs, whose static argument this is."""
    one, other = make()._config, make()._config
    assert isinstance(one, RunConfig)
    assert one is not other
    assert one == other
    assert hash(one) == hash(other)
    assert one != RunConfig()


def test_a_configuration_is_frozen():
    config = DAIS(beta_binomial)._config
    for field in fields(config):
        with pytest.raises(FrozenInstanceError):
            setattr(config, field.name, None)
