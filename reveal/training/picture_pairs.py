"""Training of the picture tower alone, on pairs of pictures: what an image is of, whoever drew or photographed it.

InfoNCE (`losses.contrastive`) of `query` (a picture of something that the memory shows, or of nothing that it shows)
and `key` (the picture that the memory shows), with one more key, the tower's `none`: it is the right one for pictures
of nothing known, and a wrong one for all others. So a picture that is nearer to `none` than to any item is not in the
memory.

A batch has `query`, `key` (b s s 3, in [0, 1]) and `flag` (b, the identity; -1: nothing known). All other parameters
of the network stay as they are: freeze them with the optimiser's multipliers.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from common.training.task import Batch, Context, Metrics, Params
from reveal.training.losses import EXCLUDED
from reveal.training.warm_start import RevealTask


@dataclasses.dataclass(frozen=True)
class PicturePairs(RevealTask):
    """Pairs of pictures; `temperature` is of the contrastive loss."""

    def frozen(self) -> dict[str, Any]:
        return {}

    def loss(self, params: Params, batch: Batch, context: Context) -> tuple[Float[Array, ""], Metrics]:
        model, identity = self.model(params), jnp.asarray(batch["flag"])
        known = identity >= 0
        query, key = model.embed_pictures(batch["query"]), model.embed_pictures(batch["key"])
        cosine = jnp.concatenate([query @ key.T, (query @ model.no_picture())[:, None]], axis=1).astype(jnp.float32)
        own = jnp.eye(len(identity), dtype=bool)
        same = (identity[:, None] == identity) & ~own | ~known  # never wrong, never right
        logits = cosine / self.temperature
        logits = logits.at[:, :-1].set(jnp.where(same, EXCLUDED, logits[:, :-1]))
        target = jnp.where(known, jnp.arange(len(identity)), len(identity))
        chosen = jnp.take_along_axis(logits, target[:, None], axis=1)[:, 0]
        each = jax.nn.logsumexp(logits, axis=1) - chosen
        right = jnp.argmax(logits, axis=1) == target
        metrics = {
            "nearest": jnp.sum(right & known) / jnp.maximum(known.sum(), 1),
            "refused": jnp.sum(right & ~known) / jnp.maximum((~known).sum(), 1),
        }
        return each.mean(), metrics
