# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""What ``devices=`` does beside a run on all devices: a program for a test, on four of them."""

import json
import sys
import warnings

from tests.multidevice import layouts


def check():
    import jax
    from jax import random
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec
    import numpy as np
    import pytest

    import numpyro
    import numpyro.distributions as dist

    from numpyro_dais import AIS, DAIS, ImportanceSampling

    warnings.simplefilter("ignore")
    key, devices = random.key(2), jax.devices()
    values = jnp.array([0.5, 2.0, 4.0, -1.0])

    def model(values):
        a = numpyro.sample("a", dist.Normal(0.5, 2.0))
        numpyro.sample("b", dist.Normal(a, 1.0).expand([4]).to_event(1), obs=values)

    # Exact: the values are normal with covariance 4 + identity.
    covariance = 4.0 + np.eye(4)
    residual = np.asarray(values) - 0.5
    exact = -0.5 * np.linalg.slogdet(2 * np.pi * covariance)[1]
    exact -= 0.5 * residual @ np.linalg.solve(covariance, residual)
    slope = -np.linalg.solve(covariance, residual)

    def run(values, **kwargs):
        chain = {"num_steps": 6, "step_size": 0.2, "num_particles": 611, **kwargs}
        return DAIS(model, **chain).log_evidence(key, values)

    everywhere = run(values)
    assert abs(float(everywhere) - exact) < 5 * float(everywhere.standard_error)
    assert not everywhere.log_weights.committed
    assert everywhere.digest() == run(values, devices=devices[:3]).digest()
    assert everywhere.digest() == run(values, devices=Mesh(np.array(devices), ("x",))).digest()

    # Data and results stay on a device that was chosen, by the data or by name.
    third = run(jax.device_put(values, devices[2]))
    assert third.log_weights.devices() == {devices[2]}
    assert third.digest() == everywhere.digest()
    named = run(values, devices=[devices[1]])
    assert named.log_weights.devices() == named.positions.devices() == {devices[1]}
    assert named.digest() == everywhere.digest()
    drawn = ImportanceSampling(model, num_particles=4_000).log_evidence(
        key, jax.device_put(values, devices[3])
    )
    assert drawn.log_weights.devices() == {devices[3]}
    with jax.default_device(devices[1]):
        assert run(values).log_weights.devices() == {devices[1]}

    # Traced values are divided if devices are named, and only then.
    def bound(values, **kwargs):
        return run(values, **kwargs).log_evidence

    def text(**kwargs):
        return str(jax.make_jaxpr(lambda values: bound(values, **kwargs))(values))

    assert "shard_map" not in text()
    assert "shard_map" in text(devices=devices)
    for transform in (jax.jit, jax.grad, lambda fn: jax.jit(jax.grad(fn))):
        alone = transform(bound)(values)
        divided = transform(lambda values: bound(values, devices=devices))(values)
        np.testing.assert_allclose(divided, alone, rtol=2e-4, atol=1e-4)
    gradient = jax.grad(lambda values: bound(values, devices=devices))(values)
    np.testing.assert_allclose(gradient, slope, atol=0.2)
    batch = jnp.stack([values, values + 1.0])
    alone = jax.vmap(bound)(batch)
    divided = jax.vmap(lambda values: bound(values, devices=devices[:2]))(batch)
    np.testing.assert_allclose(divided, alone, rtol=2e-4)
    corrected = AIS(model, num_steps=4, step_size=0.3, num_particles=350, devices=devices)
    traced = jax.jit(lambda values: corrected.log_evidence(key, values))(values)
    host = corrected.log_evidence(key, values)
    np.testing.assert_allclose(traced.acceptance, host.acceptance, rtol=1e-4)
    np.testing.assert_allclose(traced.log_weights, host.log_weights, rtol=1e-3, atol=1e-3)

    # Errors.
    rows = NamedSharding(Mesh(np.array(devices), ("rows",)), PartitionSpec("rows"))
    with pytest.raises(ValueError, match=r"argument of shape \(4,\) that is itself divided over 4"):
        run(jax.device_put(values, rows), devices=devices)
    with pytest.raises(ValueError, match=r"devices must be different devices"):
        run(values, devices=[devices[0], devices[1], devices[0]])
    with pytest.raises(ValueError, match=r"On-line adaptation follows all particles.*devices="):
        AIS(model, num_steps=4, adaptation="online", devices=devices)


if __name__ == "__main__":
    layouts.begin(sys.argv[1:])
    check()
    print(json.dumps("passed"))
