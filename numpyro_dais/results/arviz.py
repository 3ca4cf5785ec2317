# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Results as ArviZ data, for ArviZ 0.x (``InferenceData``) and 1.x (``DataTree``)."""

import inspect
from typing import Any
import warnings

import arviz as az
import jax
import numpy as np

from numpyro_dais.results.evidence import Evidence

__all__ = ["to_arviz"]


def to_arviz(
    evidence: Evidence, rng_key: jax.Array | None = None, num_samples: int | None = None
) -> Any:
    """
    Returns posterior draws as ArviZ data. The group ``posterior`` holds resampled particles as one
    chain; its attributes hold the log evidence, its error, the bound, and the effective sample size
    and k-hat of the weights. The group ``importance`` holds the log weights of all particles (which
    the resampled draws must not be weighted with again) and, for a plate, the evidence by element.

    :param evidence: a result.
    :param rng_key: the key of the resampling; a fixed one if left out.
    :param num_samples: the number of draws. If left out, as many as the effective sample size:
        ArviZ takes draws for independent, and with more of them, repeated, it would report a
        precision that is not there.
    """
    if evidence.batch_shape:
        raise ValueError(
            f"to_arviz takes one run; this evidence is a batch of shape {evidence.batch_shape}. Take one of it: "
            "jax.tree.map(lambda x: x[0], evidence).to_arviz()."
        )
    if num_samples is None:
        num_samples = max(int(np.min(np.asarray(evidence.ess))), 1)
    draws = evidence.samples(rng_key, num_samples)
    posterior = {name: np.asarray(value)[None] for name, value in draws.items()}
    is_tree = "data" in inspect.signature(az.from_dict).parameters
    data = az.from_dict({"posterior": posterior}) if is_tree else az.from_dict(posterior=posterior)
    data["posterior"].attrs.update(_attributes(evidence))
    importance = _importance(evidence)
    if is_tree:
        data["importance"] = type(data)(importance)
        return data
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not defined in the InferenceData scheme.*")
        data.add_groups(importance=importance)
    return data


def _attributes(evidence: Evidence) -> dict[str, Any]:
    numbers = {
        "log_evidence": evidence.log_evidence,
        "log_evidence_standard_error": evidence.standard_error,
        "log_evidence_lower_bound": evidence.lower_bound,
        "weights_effective_sample_size": evidence.ess,
        "weights_pareto_khat": np.nan if evidence.khat is None else evidence.khat,
    }
    attributes = {name: np.asarray(value).tolist() for name, value in numbers.items()}
    return {"inference_library": "numpyro_dais", "method": evidence.method, **attributes}


def _importance(evidence: Evidence) -> Any:
    import xarray as xr

    dims = ("particle", "element")[: evidence.log_weights.ndim]
    return xr.Dataset(
        {
            "log_weight": (dims, np.asarray(evidence.log_weights)),
            "log_evidence": (dims[1:], np.asarray(evidence.log_evidence)),
            "standard_error": (dims[1:], np.asarray(evidence.standard_error)),
        }
    )
