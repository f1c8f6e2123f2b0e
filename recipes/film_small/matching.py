"""Training of global matching (`film.matching`) beside a network whose other parts are frozen.

Of the keys: cells that show the same place are each other's matches, among all cells of the batch (a softmax over
cosines, as in LoFTR). Places are those that both frames see, on the grid of the frame in between, by the known flow of
moving photographs (`moving_photographs.py`).

Of the scorer: the choice among candidates, in each round. Its target is a softmax of minus their errors, and beside
that the expected error counts. Cells that a frame hides count like others: their flow is known, too.

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
from common.training.mesh import by_share
from common.training.task import Batch, Context, Metrics, Params
from film.config import CELLS
from film.io.weights import load, load_with_metadata, save
from film.losses import TEACHER_LEVEL
from film.matching import Candidates, Flow, Keys, Scores, unit
from film.training.interpolation_task import FilmTask
from film.warp import backward_warp

SOFTNESS = 0.5  # cells of error by which a candidate's target falls to 1/e
MOST = 4.0  # cells; larger errors count as this
IMITATION = 0.3  # weight of the cross entropy beside the expected error


@dataclasses.dataclass(frozen=True)
class MatchingTask(FilmTask):
    """Keys and scorer of `film.matching.Matcher`; freeze the rest by `optim.multipliers`. Of `FilmTask` losses and
    metrics are not used."""

    def rules(self):
        yield self.model.matching, "matching is trained in a network that has it: give task.model.matching=true"

    def loss(self, params: Params, batch: Batch, context: Context) -> tuple[Float[Array, ""], Metrics]:
        """`wrong_*` are shares of cells that are off by more than one: of the estimated flow, after each round, and of
        the last round's best candidate; `unmatched` of keys whose most similar one in the scene is as far away."""
        given = {name: batch[name] for name in ("x0", "x1", "time", "flow0", "flow1", "valid0", "valid1")}
        terms = by_share(self._terms, context.mesh)(params, given)
        means = {name: jnp.mean(value) for name, value in terms.items()}
        return means["keys"] + means["choice"], means

    def _terms(self, params: Params, batch: Batch) -> dict[str, Float[Array, "b"]]:
        """Losses and metrics of each scene."""
        model, time = nnx.merge(self.graphdef, params), batch["time"]
        (_, e0), (_, e1) = (model.encode(batch[name]) for name in ("x0", "x1"))
        first, second = ((e.packs + e.features)[CELLS - 1 :] for e in (e0, e1))
        estimated = model.flow.bilateral(first, second, time, CELLS)[0][..., 2:]
        assert model.matcher is not None and e0.keys is not None and e1.keys is not None
        fixed = jax.lax.stop_gradient((e0.keys, e1.keys, estimated))
        flow0, flow1 = (at_cells(batch[name]) / 2**CELLS for name in ("flow0", "flow1"))
        seen = at_cells((batch["valid0"] * batch["valid1"])[..., None])[..., 0] > 0.5
        scale = jnp.exp(model.matcher.scale[...])
        ways = (e0.keys, e1.keys, flow0, flow1), (e1.keys, e0.keys, flow1, flow0)
        (keys0, unmatched0), (keys1, unmatched1) = (similarity_terms(*way, seen, scale) for way in ways)
        rounds = [choice_terms(*proposed, flow1 - flow0) for proposed in model.matcher.rounds(*fixed, time)]
        choice = {"choice": sum(terms["choice"] for terms in rounds), "wrong_estimated": rounds[0]["wrong_estimated"]}
        chosen = {f"wrong_{number}": terms["wrong_chosen"] for number, terms in enumerate(rounds)}
        keys = {"keys": keys0 + keys1, "unmatched": (unmatched0 + unmatched1) / 2}
        return keys | choice | chosen | {"wrong_best": rounds[-1]["wrong_best"]}


def at_cells(x: Float[Array, "b h4 w4 c"]) -> Float[Array, "b h w c"]:
    """The values of known flow at the middle of each cell: where a cell shows two things, those of one of them."""
    step = 2 ** (CELLS - TEACHER_LEVEL)
    return x[:, step // 2 :: step, step // 2 :: step]


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


def choice_terms(candidates: Candidates, scores: Scores, truth: Flow) -> dict[str, Float[Array, "b"]]:
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
