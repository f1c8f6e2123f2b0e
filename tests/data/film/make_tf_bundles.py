"""Write the TensorFlow bundles that the tests read, with the keys of the reference's own files.

    PYTHONPATH=.:tests/film python tests/data/film/make_tf_bundles.py        # needs the extra `convert`

`tiny_checkpoint_keys.json` lists the keys of a training checkpoint and of a SavedModel that the reference program wrote
(TensorFlow 2.15.1), optimiser slots included. Here TensorFlow writes them again for a narrower network, whose weights
follow the recipe (`recipe.narrow`); slots are zeros, counters are the reference's. The list has the shapes of these
files.
"""

import json
import re

import numpy as np
import recipe
import tensorflow as tf
from flax import nnx

from common.weights.porting import flatten
from film.porting import SUFFIX, key_table

COUNTERS = {
    "step": np.int64(3),
    "epoch": np.int64(0),
    "save_counter": np.int64(1),
    "training_finished": np.bool_(False),
    "optimizer/beta_1": np.float32(0.9),
    "optimizer/beta_2": np.float32(0.999),
    "optimizer/decay": np.float32(0),
}
SLOT = re.compile(r"/\.OPTIMIZER_SLOT/optimizer/[mv]")
GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"


def main() -> None:
    model, listed = recipe.narrow(), json.loads((recipe.DATA / "tiny_checkpoint_keys.json").read_text())
    ours = {path: np.asarray(value) for path, value in flatten(nnx.to_pure_dict(nnx.state(model))).items()}
    bundles = (
        ("checkpoint", "checkpoint", "tiny_checkpoint/ckpt-3"),
        ("saved_model", "bundle", "tiny_saved_model/variables/variables"),
    )
    for name, vocabulary, prefix in bundles:
        weights = {entry.source: ours[path] for path, entry in key_table(model.config, vocabulary).items()}
        tensors = {key: tensor(key, weights) for key, _ in listed[name]}
        listed[name] = [[key, list(np.shape(value))] for key, value in tensors.items()]
        keys = list(tensors)
        values = [tf.constant(value) for value in tensors.values()]
        tf.raw_ops.SaveV2(
            prefix=str(recipe.DATA / prefix), tensor_names=keys, shape_and_slices=[""] * len(keys), tensors=values
        )
    (recipe.DATA / "tiny_checkpoint_keys.json").write_text(json.dumps(listed, separators=(",", ":")) + "\n")


def tensor(key: str, weights: dict[str, np.ndarray]) -> np.ndarray | bytes:
    if key == GRAPH:
        return b"the object graph, which no reader of weights needs"
    if key in weights:
        return weights[key]
    if SLOT.search(key):
        return np.zeros_like(weights[SLOT.sub("", key)])
    return COUNTERS[key.removesuffix(SUFFIX)]


if __name__ == "__main__":
    main()
