"""Engines in the small world: the exact ones agree, whatever the network has learnt."""

import json
import warnings

import numpy as np
from flax import nnx
from little_world import NETWORK

from reveal.network import weights
from reveal.network.config import RevealConfig
from reveal.network.model import Reveal

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from recipes.small_world import engines


def test_exact_engines_find_the_same(tmp_path, monkeypatch):
    """The graph's search, FAISS flat and a Milvus file; HNSW of so few items may miss some."""
    config = RevealConfig.tiny(NETWORK.vocab_size)
    params = nnx.to_pure_dict(nnx.state(Reveal(config, rngs=nnx.Rngs(0))))
    path = weights.save(tmp_path / "weights.safetensors", params, config)
    rows = engines.compare(str(path), distractors=3, renderings=1)
    assert list(rows) == list(engines.ENGINES)
    exact = rows.pop("exact, in the graph")
    for name in ("FAISS flat", "FAISS HNSW", "Milvus, a file"):
        for column in ("accuracy", "recall_1", "recall_4", "mrr"):
            np.testing.assert_allclose(rows[name][column], exact[column], atol=1e-6, err_msg=name)
    assert json.dumps(rows) and "| FAISS flat |" in engines.table(rows)
