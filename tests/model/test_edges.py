# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Posteriors nearer to the edge of a support than floating-point numbers reach."""

from jax import random
import jax.numpy as jnp
import numpy as np
import pytest

import numpyro
import numpyro.distributions as dist

from numpyro_dais import DAIS
from numpyro_dais.model.edges import note_on_edges, shares_at_edges
from numpyro_dais.model.inspection import inspect_model
from numpyro_dais.model.problem import Problem


def many_kinds():
    numpyro.sample("angle", dist.VonMises(0.0, 1.0))
    numpyro.sample("place", dist.Uniform(-1.0, 2.0))
    numpyro.sample("rates", dist.Gamma(2.0, 1.0).expand([2]).to_event(1))
    numpyro.sample("shares", dist.Dirichlet(jnp.full(3, 0.1)))
    with numpyro.plate("units", 2):
        numpyro.sample("units_share", dist.Beta(0.1, 0.1))
    numpyro.sample("y", dist.Normal(0.0, 1.0), obs=0.3)


def test_a_share_is_of_the_site_whose_values_are_rounded():
    structure = inspect_model(Problem(many_kinds))
    assert structure.rounded == {"angle", "place", "shares", "units_share"}
    # Laid out as angle, place, two rates, two of three shares, two units.
    positions = np.zeros((4, 8), np.float32)
    positions[0, 5] = positions[1, 7] = positions[2, 3] = 20.0
    positions[3, 5] = -20.0
    found = shares_at_edges(structure, positions, np.log([0.1, 0.2, 0.3, 0.4]))
    assert found == pytest.approx({"angle": 0, "place": 0, "shares": 0.1, "units_share": 0.2})
    # In double precision, 20 is far from the edge.
    found = shares_at_edges(structure, positions.astype(np.float64), np.zeros(4))
    assert set(found.values()) == {0.0}
    note = note_on_edges(structure, positions, np.zeros(4), 0.01)
    assert "0.25 of the posterior has site 'shares' nearer to the edge of its support" in note
    assert "than float32 can tell" in note
    assert "enable_x64" in note
    assert not note_on_edges(structure, positions, np.zeros(4), 1.5)


def test_mass_beyond_the_edge_is_a_warning():
    """Of a Beta(0.1, 0.1), a tenth or so, which would else be missing in silence."""

    def model(y):
        p = numpyro.sample("p", dist.Beta(0.1, 0.1))
        numpyro.sample("y", dist.Binomial(1, p), obs=y)

    with pytest.warns(UserWarning, match="has site 'p' nearer to the edge of its support"):
        evidence = DAIS(model).log_evidence(random.key(0), 1.0)
    assert float(evidence) < np.log(0.5) - 0.05
