"""Shardings: batches over all devices, large parameters split by rule, small ones replicated."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from refusal import refused

from common.training.mesh import FSDP, REPLICATE, by_share, make_mesh, shard_batch, shardings

LARGE = jax.ShapeDtypeStruct((3, 1024, 1026), jnp.float32)  # 12.6 MB
SMALL = jax.ShapeDtypeStruct((64, 64), jnp.float32)
ODD = jax.ShapeDtypeStruct((1025, 2049), jnp.float32)


def test_a_batch_is_split_over_all_devices():
    for mesh in (make_mesh(2), make_mesh(2, fsdp=2)):
        x = shard_batch(mesh, {"x": np.arange(8.0).reshape(4, 2)})["x"]
        assert {shard.data.shape for shard in x.addressable_shards} == {(2, 2)}


def test_invalid_meshes():
    for devices, fsdp, value in ((3, 1, "devices is 3"), (-1, 1, "devices is -1"), (2, 0, "fsdp is 0")):
        assert f"trainer.{value}" in refused(ValueError, make_mesh, devices, fsdp)


def specs(tree, rules=(("", FSDP),), fsdp=2):
    return jax.tree.map(lambda x: x.spec, shardings(make_mesh(2, fsdp), tree, rules))


def test_large_arrays_split_along_their_largest_axis_that_divides():
    tree = {"a": LARGE, "b": [SMALL, ODD]}
    assert specs(tree) == {"a": PartitionSpec(None, None, FSDP), "b": [PartitionSpec(), PartitionSpec()]}
    assert set(jax.tree.leaves(specs(tree, fsdp=1))) == {PartitionSpec()}
    split = jax.device_put(np.zeros(LARGE.shape, np.float32), shardings(make_mesh(2, fsdp=2), LARGE))
    assert {shard.data.nbytes for shard in split.addressable_shards} == {split.nbytes // 2}


def test_the_first_rule_that_finds_the_path_decides():
    tree = {"params": {"head": {"kernel": LARGE}, "body": {"kernel": LARGE}}, "step": SMALL}
    found = specs(tree, [("params/head", REPLICATE), ("kernel$", FSDP)])
    assert found["params"]["head"]["kernel"] == PartitionSpec()
    assert found["params"]["body"]["kernel"] == PartitionSpec(None, None, FSDP)


def looked_up(table, batch):
    index = batch["index"]
    return {"found": table[index.reshape(-1)].reshape(index.shape), "rows": jnp.full(1, len(index))}


def test_each_device_does_its_share_alone():
    table, mesh = jnp.arange(10.0), make_mesh(2)
    batch = {"index": np.array([[1, 2], [3, 4], [5, 6], [7, 9]])}
    run = jax.jit(by_share(looked_up, mesh))
    answer = run(table, shard_batch(mesh, batch))
    np.testing.assert_array_equal(answer["found"], batch["index"])
    assert answer["rows"].tolist() == [2, 2]
    assert "all-gather" not in str(run.lower(table, shard_batch(mesh, batch)).compile().as_text())
    total = jax.grad(lambda table: by_share(looked_up, mesh)(table, shard_batch(mesh, batch))["found"].sum())(table)
    assert total.tolist() == [0, 1, 1, 1, 1, 1, 1, 1, 0, 1], "the gradient is the sum over devices"
    for mesh in (None, make_mesh(1), make_mesh(2, fsdp=2)):  # left to XLA
        assert by_share(looked_up, mesh) is looked_up
