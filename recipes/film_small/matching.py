"""Training of global matching (`film.matching`) beside a network whose other parts are frozen.

Of the keys of the coarsest level: cells that show the same place are each other's matches, among all cells of the batch
(a softmax over cosines, as in LoFTR). Places are those that both frames see, on the grid of the frame in between, by
the known flow of drawn scenes (`drawn_scenes.py`).

Of the scorers: the choice among candidates, in each round, on each of the three grids. Its target is a softmax of minus
their errors, and beside that the expected error counts. Cells that a frame hides count like others: their flow is
known, too.

    python train.py experiment=film_small_matching
    python -m recipes.film_small.matching runs/film_small_matching film-small -o with_matching.safetensors

The second command adds what was trained to other weights.
"""

import dataclasses
from pathlib import Path
from typing import Annotated

import jax
import jax.numpy as jnp
import tyro
from flax import nnx
from jaxtyping import Array, Float

from common import terminal
from common.checked import Above0
from common.training.mesh import by_share
from common.training.task import Batch, Context, Metrics, Params
from film.config import KEYS, LEVELS
from film.io.weights import load, load_with_metadata, save
from film.losses import TEACHER_LEVEL
from film.matching import Flow, Keys, Matcher, unit
from film.training.interpolation_task import FilmTask
from film.warp import backward_warp

SOFTNESS = 0.5  # cells of error by which a candidate's target falls to 1/e
MOST = 4.0  # cells; larger errors count as this
FLOWS = ("flow0", "flow1", "valid0", "valid1", "flow01", "flow10")
IMITATION = 0.3  # weight of the cross entropy beside the expected error


@dataclasses.dataclass(frozen=True)
class MatchingTask(FilmTask):
    """Keys and scorers of `film.matching.Matcher`; freeze the rest by `optim.multipliers`. Of `FilmTask` losses and
    metrics are not used."""

    keys_weight: Above0 = 0.5

    def rules(self):
        yield self.model.matching, "matching is trained in a network that has it: give task.model.matching=true"

    def loss(self, params: Params, batch: Batch, context: Context) -> tuple[Float[Array, ""], Metrics]:
        """`wrong_*` are shares of cells that are off by more than one: of the estimated flow, of the last round, and of
        its best candidate, on the grid in between and (`own`) on the frames'; `unmatched` of keys whose most similar
        one in the scene is."""
        given = {name: batch[name] for name in ("x0", "x1", "time", *FLOWS)}
        terms = by_share(self._terms, context.mesh)(params, given)
        known = jnp.any(batch["valid0"] + batch["valid1"] > 0, axis=(1, 2))  # all 0: a film's
        means = {name: jnp.sum(value * known) / jnp.maximum(jnp.sum(known), 1) for name, value in terms.items()}
        return self.keys_weight * means["keys"] + means["choice"], means

    def _terms(self, params: Params, batch: Batch) -> dict[str, Float[Array, "b"]]:
        """Losses and metrics of each scene."""
        model, time, images = nnx.merge(self.graphdef, params), batch["time"], [batch["x0"], batch["x1"]]
        encoded = model.encode(jnp.concatenate(images).astype(self.dtype))[1]
        e0, e1 = (jax.tree.map(lambda x, k=k: jnp.split(x, 2)[k], encoded) for k in (0, 1))
        *_, searches = model.matched(e0, e1, time)
        count = len(batch["time"])
        own, between = jnp.concatenate([batch["flow01"], batch["flow10"]]), batch["flow1"] - batch["flow0"]
        terms = {"choice": jnp.zeros(count)}
        for level, search in zip(LEVELS, searches, strict=True):
            for name, rounds, flow in (("own", search.own, own), ("between", search.between, between)):
                truth = at_cells(flow, level)
                scored = [choice_terms(candidates, scores, truth) for candidates, scores in rounds]
                scored = [{key: x.reshape(-1, count).mean(axis=0) for key, x in one.items()} for one in scored]
                terms["choice"] += sum(one.pop("choice") for one in scored)
                terms |= {f"{key}_{name}_{level}": value for key, value in scored[-1].items()}
        assert model.matcher is not None
        return terms | self._keys(model.matcher, searches[0].first, searches[0].second, batch)

    def _keys(self, matcher: Matcher, first: Keys, second: Keys, batch: Batch) -> dict[str, Float[Array, "b"]]:
        seen = at_cells((batch["valid0"] * batch["valid1"])[..., None], LEVELS[0])[..., 0] > 0
        flow0, flow1 = (at_cells(batch[name], LEVELS[0]) for name in ("flow0", "flow1"))
        first, second = (keys[..., : KEYS[0]].astype(jnp.float32) for keys in (first, second))
        ways = (first, second, flow0, flow1), (second, first, flow1, flow0)
        scale = jnp.exp(matcher.scale[...])
        (keys0, unmatched0), (keys1, unmatched1) = (similarity_terms(*way, seen, scale) for way in ways)
        return {"keys": keys0 + keys1, "unmatched": (unmatched0 + unmatched1) / 2}


def at_cells(x: Float[Array, "b h4 w4 c"], level: int) -> Float[Array, "b h w c"]:
    """Known flow at the middle of the cells of a level, in cells: where one shows two things, that of one of them."""
    step = 2 ** (level - TEACHER_LEVEL)
    return x[:, step // 2 :: step, step // 2 :: step] / 2**level


def similarity_terms(
    own: Keys, other: Keys, to_own: Flow, to_other: Flow, seen: Array, scale: Array
) -> tuple[Float[Array, "b"], Float[Array, "b"]]:
    """The cross entropy of the cells of the other frame that show the same places, and the share of wrong ones. Flow is
    from the frame in between to both, in cells; the true place is shared out to the four cells around it."""
    batch, height, width, _ = own.shape
    queries = unit(backward_warp(own, to_own)).reshape(batch, height * width, -1)
    here = jnp.stack(jnp.meshgrid(jnp.arange(width), jnp.arange(height)), axis=-1)
    place, most = here + to_other, jnp.array([width - 1, height - 1])
    counted = (seen & jnp.all((place >= 0) & (place <= most), axis=-1)).reshape(batch, -1)
    corner = jnp.clip(jnp.floor(place), 0, most - 1)
    (x, y), (fx, fy) = (jnp.moveaxis(value, -1, 0).reshape(2, batch, -1) for value in (corner, place - corner))
    cell = (y * width + x).astype(jnp.int32)
    cells = jnp.stack([cell, cell + 1, cell + width, cell + width + 1], axis=-1)
    shares = jnp.stack([(1 - fx) * (1 - fy), fx * (1 - fy), (1 - fx) * fy, fx * fy], axis=-1)
    logits = scale * jnp.einsum("bqk,onk->bqon", queries, other.reshape(batch, height * width, -1))
    scenes = jnp.arange(batch)
    own_logits = logits[scenes, :, scenes]
    targets = jnp.take_along_axis(own_logits, cells, axis=-1)
    losses = jax.nn.logsumexp(logits, axis=(2, 3)) - jnp.sum(shares * targets, axis=-1)
    best = jnp.argmax(own_logits, axis=-1)
    off = jnp.hypot(best % width - (x + fx), best // width - (y + fy)) > 1
    count = jnp.maximum(jnp.sum(counted, axis=1), 1)
    return jnp.sum(losses * counted, axis=1) / count, jnp.sum(off & counted, axis=1) / count


def choice_terms(
    candidates: Float[Array, "b n h w 2"], scores: Float[Array, "b n h w"], truth: Flow
) -> dict[str, Float[Array, "b"]]:
    """The loss of the choice, and the shares of wrong flow. Cells count as far as their candidates differ."""
    errors = jnp.linalg.norm(candidates - truth[:, None], axis=-1)
    least = jnp.min(errors, axis=1, keepdims=True)
    logs = jax.nn.log_softmax(scores, axis=1)
    entropy = -jnp.sum(jax.nn.softmax((least - errors) / SOFTNESS, axis=1) * logs, axis=1)
    expected = jnp.sum(jnp.exp(logs) * jnp.minimum(errors - least, MOST), axis=1)
    differ = jnp.minimum(jnp.max(errors - least, axis=1), 1)
    chosen = jnp.take_along_axis(errors, jnp.argmax(scores, axis=1)[:, None], axis=1)[:, 0]
    wrong = {"estimated": errors[:, 0], "chosen": chosen, "best": least[:, 0]}
    loss = jnp.mean(differ * (IMITATION * entropy + expected), axis=(1, 2))
    return {"choice": loss} | {f"wrong_{name}": jnp.mean(1.0 * (x > 1), axis=(1, 2)) for name, x in wrong.items()}


def main(
    trained: tyro.conf.Positional[str],
    weights: tyro.conf.Positional[str],
    output: Annotated[Path, tyro.conf.arg(aliases=["-o"])],
    dtype: str = "float16",
    overwrite: bool = False,
) -> None:
    """Write `weights` with the matching of `trained`."""
    donor, (model, header) = load(trained), load_with_metadata(weights)
    if donor.matcher is None:
        raise ValueError(f"{trained} has no matching: name the run of film_small_matching, or weights made of it")
    params = nnx.to_pure_dict(nnx.state(model)) | {"matcher": nnx.to_pure_dict(nnx.state(donor.matcher))}
    config = dataclasses.replace(model.config, matching=True)
    metadata = {**header.metadata, "matching": str(trained)}
    save(output, params, config, metadata, dtype=dtype, overwrite=overwrite)


if __name__ == "__main__":
    terminal.program(main)
