"""The first training stage: items are given, and the network learns to embed, to retrieve and to read them.

Two stages train one network; each is a task of the common trainer:

    `WarmStart`   a batch names the gold item and some negatives. InfoNCE brings query and keys together, and the
                  generator learns to read values
    `Joint`       items are retrieved from the memory (`joint.py`). The loss on the answer reaches query, keys, values
                  and gate through the prior of the scores (`fusion.py`), without gold items

A randomly initialised retriever returns irrelevant items, which do not affect the answer, so it gets no gradient: hence
the warm start (Hu et al., CVPR 2023, "pre-training", and REALM before it).

A batch has `image`, `tokens` and `answer`, and for the warm start `gold`, its `source`, and `negatives`, ids of items.
An optional `permutation` of the vocabulary, per row, is applied to the items' texts (`device_memory.permuted`).
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, PRNGKeyArray

from common.checked import Checked, Dtype, NotNegative, Positive, real
from common.nn.init import Keys, blank, split
from common.training.objectives import Scope, Term, total
from common.training.task import Batch, Context, Metrics, Params
from reveal.network import weights
from reveal.network.config import RevealConfig
from reveal.network.heads import scores
from reveal.network.layers import Mode
from reveal.network.model import Item, Query, Reveal, States
from reveal.training import device_memory, losses
from reveal.training.augment import Augment
from reveal.training.device_memory import Contents
from reveal.training.losses import Output, Weights

DROPOUT = 1 << 20  # tells the key of dropout from the others of a step
RARE = 20  # token counts below this are not distinguished


@dataclasses.dataclass(frozen=True)
class RevealTask(Checked):
    # A data config: names of `sources` in order of the gate, `items` (`ItemArrays`), `vocabulary` (`Tokenizer`).
    knowledge: Any
    network: RevealConfig | None = None  # None: `RevealConfig.tiny` for the vocabulary
    weights: Weights = dataclasses.field(default_factory=Weights)  # of the losses
    k: NotNegative = 4  # items that are read
    smoothing: float = 0.01  # of the target distribution
    temperature: float = 0.2  # of the contrastive loss
    augment: Augment | None = None  # of the images of items that are encoded with gradients
    start_from: str | Sequence[str] | None = None  # weights, a run's folder, or published ones: [T5 folder, ViT folder]
    copying: bool = False  # initialise cross-attention of value head and generator by `Attention.init_as_copy`
    dtype: Dtype = "float32"  # of the computation; parameters and losses stay float32
    remat: bool = False  # recompute activations for the gradient: less memory, more time
    # Probability of a zero in T5's layers; the reference has 0.1 in fine-tuning, 0 before.
    dropout: Annotated[float | int, real(0, below=1)] = 0.0
    # Further named terms (`common.training.objectives`), of a `losses.Output`.
    losses: Mapping[str, Term] = dataclasses.field(default_factory=dict, kw_only=True)
    frozen_rules: ClassVar = device_memory.SPLIT

    @functools.cached_property
    def config(self) -> RevealConfig:
        size, bos = len(self.knowledge.vocabulary), self.knowledge.vocabulary.bos
        names = tuple(self.knowledge.sources)
        if self.network is None:
            return RevealConfig.tiny(size, len(names))
        if self.network.vocab_size < size:
            raise ValueError(f"task.network.vocab_size is {self.network.vocab_size}: the vocabulary has {size} tokens")
        if bos != self.network.bos:
            raise ValueError(f"task.network.bos is {self.network.bos}: the vocabulary's texts begin with {bos}")
        if self.network.sources != len(names):
            named = f"data.sources names {len(names)} ({', '.join(names)}), by which the weights will be read"
            raise ValueError(f"task.network.sources is {self.network.sources}: {named}; make them equal")
        return self.network

    @property
    def graph(self) -> nnx.GraphDef[Reveal]:
        return blank(Reveal, self.config)[0]

    def model(self, params: Params) -> Reveal:
        """The network, in the type that it computes in."""
        return nnx.merge(self.graph, jax.tree.map(lambda x: x.astype(self.dtype), params))

    def init(self, key: PRNGKeyArray) -> Params:
        model = Reveal(self.config, rngs=Keys(key))
        if self.copying:
            for number, layer in enumerate([*model.value_head.layers, *model.decoder.layers]):
                layer.cross_attention.init_as_copy(jax.random.fold_in(key, number))
        return split(model)[1]

    def start(self) -> Params | None:
        if self.start_from is None:
            return None
        from reveal.network.published import start_params

        return start_params([self.start_from] if isinstance(self.start_from, str) else self.start_from, self.config)

    def frozen(self) -> dict[str, Any]:
        return {"contents": device_memory.contents_of(self.knowledge.items, self.config.sources)}

    def mode(self, key: PRNGKeyArray, call: int) -> Mode:
        """Of one of a step's calls of the network."""
        return Mode(self.remat, self.dropout, jax.random.fold_in(key, DROPOUT) if self.dropout else None).fold(call)

    def query(self, model: Reveal, batch: Batch, key: PRNGKeyArray) -> Query:
        return model.encode_query(batch["tokens"], batch["image"], mode=self.mode(key, 0))

    def encode(self, model: Reveal, items: Contents, batch: Batch, key: PRNGKeyArray) -> Item:
        """Keys and values of items [b k ...] with gradients, augmented."""
        items = items if self.augment is None else self.augment(key, items)
        return device_memory.encode(model, items, batch.get("permutation"), self.mode(key, 1))

    def candidates(
        self, model: Reveal, contents: Contents, batch: Batch, key: PRNGKeyArray, mesh: Mesh | None
    ) -> tuple[Int[Array, "b m"], Contents, Item]:
        ids = jnp.concatenate([jnp.asarray(batch["gold"])[:, None], jnp.asarray(batch["negatives"])], axis=1)
        items = device_memory.take(contents, device_memory.rows_of(contents, ids), mesh)
        return ids, items, self.encode(model, items, batch, key)

    def total(
        self, weights: Weights, output: Output, batch: Batch, context: Context
    ) -> tuple[Float[Array, ""], Metrics]:
        """The weighted losses and each by itself, and how often the first token of the answer is the most likely."""
        terms = {**weights.terms(self.smoothing, self.temperature), **self.losses}
        loss, values = total(terms, Scope(output, batch, context))
        correct = jnp.argmax(output.logits[:, 0], axis=-1) == jnp.asarray(batch["answer"])[:, 0]
        return loss, values | {"accuracy": jnp.mean(correct)}

    def pictures(self, params: Params, batch: Batch) -> Mapping[str, Float[np.ndarray, "h w 3"]]:
        return {}

    def export(self, path: Path, params: Params, metadata: Mapping[str, Any]) -> Path:
        processor = getattr(self.knowledge, "processor", None)
        description = {} if processor is None else {"processor": processor()}
        return weights.save(path, params, self.config, metadata={**metadata, **description}, overwrite=True)


@dataclasses.dataclass(frozen=True)
class WarmStart(RevealTask):
    """Items are given. `gold` and all `negatives` are encoded with gradients; the contrastive loss ranks each query's
    gold item first among all of the batch, and the query reads it among `k - 1` of its negatives, shuffled."""

    weights: Weights = dataclasses.field(default_factory=lambda: Weights(contrastive=0.5))
    k: Positive = 2  # items that are read, the gold one among them

    def loss(self, params: Params, batch: Batch, context: Context) -> tuple[Float[Array, ""], Metrics]:
        if "gold" not in batch:
            raise ValueError("data.questions name no `gold` items: only experiment=reveal_memory does without them")
        model, contents = self.model(params), Contents(*context.frozen["contents"])
        slots_key, augment_key = jax.random.split(context.key)
        query = self.query(model, batch, context.key)
        ids, items, encoded = self.candidates(model, contents, batch, augment_key, context.mesh)
        slots = self.slots(slots_key, ids)
        read = encoded.key, encoded.value, items.source, items.id
        keys, values, sources, read_ids = (self.select(x, slots) for x in read)
        score = scores(query.vector, keys, query.log_gate, sources)
        mode = self.mode(context.key, 2)
        fused = model.fuse(query, values, score, read_ids >= 0, mode=mode.fold(0))
        logits = model.text_logits(fused, batch["answer"], mode=mode.fold(1))
        output = Output(query, values, logits, encoded.key, ids, items.source[:, 0])
        if self.weights.reconstruct:
            output = self.reconstruction(model, output, self.select(items.tokens, slots), batch, context.key)
        loss, metrics = self.total(self.weights, output, batch, context)
        contrast = losses.contrastive(query.vector, encoded.key, ids, self.temperature)
        return loss, metrics | {"nearest": contrast.accuracy}

    def reconstruction(
        self, model: Reveal, output: Output, tokens: Int[Array, "b k l"], batch: Batch, key: PRNGKeyArray
    ) -> Output:
        """`output` with the items' own texts, each generated from its value alone, without a query.

        An answer is a word or two of an item; its text is all of them. The generator learns to read from it in a
        fraction of the steps, and values keep what no question has asked for yet (autoencoding, as in Ge et al., ICLR
        2024). Tokens count less the more often items have them: common phrases are soon memorised, and generating them
        well without reading delays learning to read."""
        text = device_memory.permuted(tokens, batch.get("permutation")).reshape(-1, tokens.shape[-1])
        values = output.values.reshape(len(text), 1, *output.values.shape[2:])
        no_query = States(jnp.zeros((len(text), 1, self.config.width), values.dtype), jnp.zeros((len(text), 1), bool))
        mode = self.mode(key, 3)
        logits = model.text_logits(model.fuse(no_query, values, mode=mode.fold(0)), text, mode=mode.fold(1))
        rarity = jnp.asarray(self.rarity)[tokens].reshape(text.shape)
        return output._replace(text=text, text_logits=logits, text_weights=rarity)

    @functools.cached_property
    def rarity(self) -> Float[np.ndarray, " v"]:
        """The weight of each token: inverse to its count in the items, 1 for counts up to `RARE`."""
        counts = np.bincount(np.asarray(self.knowledge.items.tokens).ravel(), minlength=self.config.vocab_size)
        return (RARE / np.maximum(counts, RARE)).astype(np.float32)

    def slots(self, key: PRNGKeyArray, ids: Int[Array, "b m"]) -> Int[Array, "b k"]:
        """Which candidates are read: the gold one and k - 1 others, shuffled, as T5's positions see their order."""
        b, m = ids.shape
        if self.k > m:
            raise ValueError(f"task.k is {self.k}, a question has {m - 1} data.negatives: give at most {m}, or more")
        choice_key, shuffle_key = jax.random.split(key)
        others = jax.vmap(lambda key: 1 + jax.random.permutation(key, m - 1))(jax.random.split(choice_key, b))
        slots = jnp.concatenate([jnp.zeros((b, 1), jnp.int32), others[:, : self.k - 1]], axis=1)
        return jax.vmap(jax.random.permutation)(jax.random.split(shuffle_key, b), slots)

    @staticmethod
    def select(x: Array | np.ndarray, slots: Int[Array, "b k"]) -> Array:
        return jax.vmap(lambda row, at: row[at])(jnp.asarray(x), slots)
