"""What training optimises: the right answer, from the right items.

Two stages, one network. Each is a task of the common trainer:

    `WarmStart`   the items are given: one that has the answer, and some that have not. Query and keys are brought
                  together (InfoNCE), and reading is learnt
    `Joint`       the items are found: by the query, in the memory. The loss on the answer reaches query, keys, values
                  and gate through the prior of the scores (`fusion.py`). Nothing says any more which item is right

A retriever that starts at random finds nothing, so that nothing it does matters to the answer, and it gets no
gradient: that is why there is a first stage (Hu et al., CVPR 2023, "pre-training", and REALM before it).

A batch has `image`, `tokens` and `answer`, and for the warm start `gold` and `negatives`, ids of items; `source` is of
the gold item. `permutation`, if it is there, is the permutation of the vocabulary (`recipes/questions.py`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from common.training.task import Batch, Context, Metrics, Params
from reveal.network import weights
from reveal.network.config import RevealConfig
from reveal.network.fusion import Fused
from reveal.network.heads import scores
from reveal.network.model import Item, Query, Reveal, States
from reveal.training import device_memory, losses
from reveal.training.augment import Augment
from reveal.training.device_memory import Contents
from reveal.training.losses import Weights

DTYPES = ("float32", "bfloat16")
RARE = 20  # times that the items have a token: the fewer are not told apart


@runtime_checkable
class Knowledge(Protocol):
    """Where items come from: a config object, the data's own as a rule."""

    @property
    def items(self) -> Any:
        """Arrays as `bank.contents_of` takes them."""
        ...

    @property
    def vocabulary(self) -> Any:
        """Of all texts; `len` counts the tokens."""
        ...


@dataclasses.dataclass(frozen=True)
class RevealTask:
    """What both stages share.

    Attributes:
      knowledge: whose items the memory has.
      network: the shape; None: `RevealConfig.tiny` for the vocabulary.
      weights: of the losses.
      k: items that are read.
      smoothing: of the targets. temperature: of the contrastive loss.
      augment: how pictures of items that are encoded with gradients are looked at; None: always as they are.
      start_from: weights of such a network to train further.
      copying: whether value head and generator start by handing on what they read, so that words are copied from the
        first steps on (`Attention.hand_on`); False: as T5 starts.
      dtype: what the networks compute in, float32 or bfloat16. Parameters and losses stay float32.
      remat: a gradient keeps only what enters each layer: less memory, more time.
    """

    knowledge: Knowledge
    network: RevealConfig | None = None
    weights: Weights = dataclasses.field(default_factory=Weights)
    k: int = 4
    smoothing: float = 0.01
    temperature: float = 0.2
    augment: Augment | None = None
    start_from: str | None = None
    copying: bool = False
    dtype: str = "float32"
    remat: bool = False

    def __post_init__(self):
        if self.k < 0:
            raise ValueError(f"task.k is {self.k}: read 0 items or more")
        if self.dtype not in DTYPES:
            raise ValueError(f"task.dtype is {self.dtype!r}: choose {' or '.join(DTYPES)}")

    @functools.cached_property
    def config(self) -> RevealConfig:
        words = len(self.knowledge.vocabulary)
        if self.network is not None and self.network.vocab_size < words:
            raise ValueError(f"task.network.vocab_size is {self.network.vocab_size}: the vocabulary has {words} words")
        bos = getattr(self.knowledge.vocabulary, "bos", None)
        if self.network is not None and bos not in (None, self.network.bos):
            raise ValueError(f"task.network.bos is {self.network.bos}: the vocabulary's texts begin with {bos}")
        return self.network or RevealConfig.tiny(words)

    @functools.cached_property
    def graph(self) -> nnx.GraphDef:
        """The network without its numbers."""
        return nnx.graphdef(nnx.eval_shape(lambda: Reveal(self.config, rngs=nnx.Rngs(0))))

    def model(self, params: Params) -> Reveal:
        """The network, in the type that it computes in."""
        return nnx.merge(self.graph, jax.tree.map(lambda x: x.astype(self.dtype), params))

    def init(self, key: PRNGKeyArray) -> Params:
        model = Reveal(self.config, rngs=nnx.Rngs(key))
        readers = [*model.value_head.layers, *model.decoder.layers] if self.copying else []
        for number, layer in enumerate(readers):
            layer.cross_attention.hand_on(jax.random.fold_in(key, number))
        return nnx.to_pure_dict(nnx.state(model))

    def start(self) -> Params | None:
        if self.start_from is None:
            return None
        return weights.load_params(self.start_from, self.config)

    def frozen(self) -> dict[str, Any]:
        return {"contents": device_memory.contents_of(self.knowledge.items, self.config.sources)}

    def query(self, model: Reveal, batch: Batch) -> Query:
        return model.encode_query(batch["tokens"], batch["image"], remat=self.remat)

    def encode(self, model: Reveal, items: Contents, batch: Batch, key: PRNGKeyArray) -> Item:
        """Keys and values of items [b k ...], with gradients, looked at anew."""
        looked = items if self.augment is None else self.augment(key, items)
        return device_memory.encode(model, looked, batch.get("permutation"), remat=self.remat)

    def reading(
        self,
        model: Reveal,
        query: Query,
        values: Float[Array, "b k c d"],
        found: Float[Array, "b k"],
        present: Any,
        batch: Batch,
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """The loss on the answer, and how often its first token is the likeliest."""
        answer = jnp.asarray(batch["answer"])
        logits = self.written(model, model.fuse(query, values, found, present, remat=self.remat), answer)
        right = jnp.argmax(logits[:, 0], axis=-1) == answer[:, 0]
        return losses.generation(logits, answer, self.smoothing), jnp.mean(right)

    def written(self, model: Reveal, fused: Fused, text: Int[Array, "b o"]) -> Float[Array, "b o v"]:
        """The logits of each token of `text`, after those before it."""
        begun = jnp.concatenate([jnp.full_like(text[:, :1], self.config.bos), text[:, :-1]], axis=1)
        return model.logits(fused, begun, remat=self.remat)

    def pictures(self, params: Params, batch: Batch) -> Mapping[str, Float[np.ndarray, "h w 3"]]:
        return {}

    def export(self, path: Path, params: Params, metadata: Mapping[str, Any]) -> Path:
        described = getattr(self.knowledge, "processor", None)
        more = {} if described is None else {"processor": described()}
        return weights.save(path, params, self.config, metadata={**metadata, **more}, overwrite=True)


@dataclasses.dataclass(frozen=True)
class WarmStart(RevealTask):
    """Items are given. All of `gold` and `negatives` are encoded with gradients; the query is to be nearest to its own
    gold among all of the batch, and reads the gold item among `k - 1` of its negatives, in any order."""

    weights: Weights = dataclasses.field(default_factory=lambda: Weights(contrastive=0.5))

    def loss(self, params: Params, batch: Batch, context: Context) -> tuple[Float[Array, ""], Metrics]:
        model, contents = self.model(params), Contents(*context.frozen["contents"])
        query = self.query(model, batch)
        ids = jnp.concatenate([jnp.asarray(batch["gold"])[:, None], jnp.asarray(batch["negatives"])], axis=1)
        given = device_memory.take(contents, device_memory.rows_of(contents, ids))
        choice, look = jax.random.split(context.key)
        item = self.encode(model, given, batch, look)
        contrast = losses.contrastive(query.vector, item.key, self.temperature, items=ids)

        chosen = self.slots(choice, ids)
        keys, values, of = (self.pick(x, chosen) for x in (item.key, item.value, given.source))
        there = self.pick(given.id, chosen) >= 0
        prior = scores(query.vector, keys, query.log_gate, of)
        generation, accuracy = self.reading(model, query, values, prior, there, batch)
        terms = {
            "generation": lambda: generation,
            "contrastive": lambda: contrast.loss,
            "gate": lambda: losses.gate(query.log_gate, given.source[:, 0]),
            "disentangle": lambda: losses.disentangle(values.reshape(-1, *values.shape[2:])),
            "gap": lambda: losses.gap(values.reshape(-1, *values.shape[2:]), query.states, query.mask),
            "reconstruct": lambda: self.reconstruction(model, values, self.pick(given.tokens, chosen), batch),
        }
        loss, parts = losses.total(terms, self.weights)
        return loss, parts | {"accuracy": accuracy, "nearest": contrast.accuracy}

    def reconstruction(
        self, model: Reveal, values: Float[Array, "b k c d"], tokens: Int[Array, "b k l"], batch: Batch
    ) -> Float[Array, ""]:
        """The loss on the items' own texts, each written with nothing asked and nothing but its value to read.

        An answer is a word or two of an item; its text is all of them. Reading is learnt from it in a fraction of the
        steps, and values keep what nobody has asked for yet (autoencoding, as in Ge et al., ICLR 2024). A token counts
        the less the oftener items have it: phrasings are soon known by heart, and whoever writes them well without
        having read is kept from learning to read."""
        text = device_memory.translated(tokens, batch.get("permutation")).reshape(-1, tokens.shape[-1])
        alone = values.reshape(len(text), 1, *values.shape[2:])
        silence = States(jnp.zeros((len(text), 1, self.config.width), alone.dtype), jnp.zeros((len(text), 1), bool))
        logits = self.written(model, model.fuse(silence, alone, remat=self.remat), text)
        rarity = jnp.asarray(self.rarity)[tokens].reshape(text.shape)
        return losses.generation(logits, text, self.smoothing, rarity)

    @functools.cached_property
    def rarity(self) -> Float[np.ndarray, " v"]:
        """How much each token counts: one by the times that items have it, all rare ones as if `RARE` times."""
        times = np.bincount(np.asarray(self.knowledge.items.tokens).ravel(), minlength=self.config.vocab_size)
        return (RARE / np.maximum(times, RARE)).astype(np.float32)

    def slots(self, key: PRNGKeyArray, ids: Int[Array, "b m"]) -> Int[Array, "b k"]:
        """Which of the given items are read: the gold one and some others, shuffled, for T5's positions see order."""
        b, m = ids.shape
        pick, mix = jax.random.split(key)
        others = jax.vmap(lambda key: 1 + jax.random.permutation(key, m - 1))(jax.random.split(pick, b))
        chosen = jnp.concatenate([jnp.zeros((b, 1), jnp.int32), others[:, : self.k - 1]], axis=1)
        return jax.vmap(jax.random.permutation)(jax.random.split(mix, b), chosen)

    @staticmethod
    def pick(x: Array | np.ndarray, chosen: Int[Array, "b k"]) -> Array:
        """`x[i, chosen[i]]`."""
        return jax.vmap(lambda row, at: row[at])(jnp.asarray(x), chosen)
