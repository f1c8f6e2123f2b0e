"""Batches of your own files: their contents, reproducibility and refusals; both stages train on them."""

import dataclasses
import itertools
import json
import logging
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx
from omegaconf import OmegaConf
from own_files import json_lines, world
from refusal import refused
from reveal_networks import drawn
from streams import check_stream

from common.nn.init import blank
from common.training.config import instantiate
from common.training.optimizer import check_expressions, factors, parameter_paths
from common.training.run import train_from_config
from common.training.task import Data
from reveal.memory.items import Item
from reveal.network.config import RevealConfig
from reveal.network.model import Reveal
from reveal.network.weights import save
from reveal.processing.images import resized
from reveal.processing.processor import DESCRIBE
from reveal.sources import Items
from reveal.training import device_memory
from reveal.training.own_batches import OwnDataConfig
from reveal.training.warm_start import WarmStart

ROOT = Path(__file__).parents[2]
SMALL = dict(image_size=16, item_length=24, text_length=12, answer_length=10, batch_size=4, sources=("wiki", "web"))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return world(tmp_path_factory.mktemp("own"))


def config(files, **changes) -> OwnDataConfig:
    return OwnDataConfig(**{**SMALL, **files, **changes})


def changed(files, tmp_path, which: str, change) -> dict[str, str]:
    """The files, with `change` made to each line of one, in a copy of the folder with its images."""
    path = Path(files[which])
    shutil.copytree(path.parent, tmp_path, dirs_exist_ok=True)
    entries = [change(n, json.loads(line)) for n, line in enumerate(path.read_text().splitlines())]
    return {**files, which: str(json_lines(tmp_path / f"{which}.jsonl", entries))}


def test_a_batch(files):
    data = config(files)
    assert isinstance(data, Data)
    batch = next(data.batches(0))
    assert {name: (array.shape, str(array.dtype)) for name, array in batch.items()} == {
        "image": ((4, 16, 16, 3), "float32"),
        "tokens": ((4, 12), "int32"),
        "answer": ((4, 10), "int32"),
        "gold": ((4,), "int32"),
        "source": ((4,), "int32"),
        "negatives": ((4, 1), "int32"),
        "id": ((4,), "int64"),
    }
    assert batch["image"].min() >= 0 and batch["image"].max() <= 1
    ids = batch["id"]
    for name, expected in (("gold", ids + 10), ("source", ids % 2), ("negatives", (10 + (ids + 1) % 12)[:, None])):
        np.testing.assert_array_equal(batch[name], expected)
    for tokens, answer, number in zip(batch["tokens"], batch["answer"], ids, strict=True):
        assert data.vocabulary.decode(tokens) == "question : what does it eat"
        food = ("fish", "seeds", "worms", "moss")[number % 4]
        assert data.vocabulary.decode(answer) in (food, f"bird {number} eats {food} by the sea")
    name = data.names(ids)[0]
    assert "what does it eat" in name and f"query{ids[0]}.png" in name


def test_items(files):
    data = config(files)
    items = data.items
    assert len(items) == 12 and items.has_image.all()
    assert data.vocabulary.decode(items.tokens[3]) == "bird 3 <extra_id_3> bird 3 eats moss by the sea"
    np.testing.assert_array_equal(device_memory.contents_of(items, 2).id[:12], np.arange(10, 22))
    image = (Path(data.knowledge).parent / "item3.png").read_bytes()
    again = data.read_item([Item("web", {"title": "bird 3"}, image), Item("web", {"a": "b"})])
    np.testing.assert_allclose(again["image"][0], items.image[3] / np.float32(255))
    assert again["has_image"].tolist() == [True, False] and again["tokens"].shape == (2, 24)
    assert data.read_item([])["image"].shape == (0, 16, 16, 3)
    assert config(files, objective="caption", batch_size=2).items is items  # equal configs share their items
    assert config(files, item_length=5).items is not items


def test_prefixes_are_split_at_one_position_per_batch(files):
    data = config(files, objective="prefix", prefix=3, text_length=9)
    words, positions, iterator = data.vocabulary, [], data.batches(0)
    prompt = int((words.encode(DESCRIBE, 9) != 0).sum())
    for batch in [next(iterator) for _ in range(12)]:
        shown = (batch["tokens"] == words.mask).argmax(axis=1) - prompt
        lengths = (batch["answer"] != 0).sum(axis=1)
        assert (batch["answer"][np.arange(4), lengths - 1] == words.eos).all()
        long = lengths > 2  # the others are captions of one word
        assert len(set(shown[long].tolist())) <= 1 and (shown[~long] == 0).all()
        positions += shown[long].tolist()
        for tokens, answer in zip(batch["tokens"][long], batch["answer"][long], strict=True):
            text = words.decode([*tokens[prompt : np.argmax(tokens == words.mask)], *answer])
            assert text.startswith("bird") and text.endswith("by the sea")
    assert set(positions) == {0, 1, 2, 3}


def test_captions_have_one_prompt_and_long_answers_end(files):
    data = config(files, objective="caption", answer_length=3)
    batch = next(data.batches(0))
    np.testing.assert_array_equal(batch["tokens"], np.tile(data.prompt(), (4, 1)))
    assert ((batch["answer"] == data.vocabulary.eos).sum(axis=1) == 1).all()


def test_the_promises_of_a_stream(files):
    check_stream(lambda **changes: config(files, objective="prefix", prefix=2, crop=[0.3, 1], **changes))


def test_gold_items_and_negatives_are_optional(files, tmp_path):
    def plain(_, entry):
        return {name: entry[name] for name in ("id", "image", "text", "answers")}

    batch = next(config(changed(files, tmp_path, "questions", plain)).batches(0))
    assert set(batch) == {"image", "tokens", "answer", "id"}
    unnamed = changed(files, tmp_path, "questions", lambda _, entry: entry | {"negatives": []})
    batch = next(config(unnamed, negatives=3).batches(0))
    assert batch["negatives"].shape == (4, 3) and (batch["negatives"] != batch["gold"][:, None]).all()
    assert set(batch["negatives"].ravel()) <= set(range(10, 22))


def test_item_images_may_be_cropped_and_dropped(files):
    options = dict(drop_image=0.5, item_crop=[0.1, 0.2])
    half, whole = config(files, **options).items, config(files).items
    assert 0 < half.has_image.sum() < 12 and (half.image[~half.has_image] == 0).all()
    assert (half.image[half.has_image] != whole.image[half.has_image]).any(axis=(1, 2, 3)).all()
    np.testing.assert_array_equal(config(files, **options, strict=True).items.image, half.image)


def test_a_crop_keeps_its_share_and_the_aspect():
    image = np.zeros((40, 80, 3), np.uint8)
    image[..., 0], image[..., 1] = np.arange(40)[:, None], np.arange(80)
    part = resized(image, 40, np.random.default_rng(0), (0.25, 0.25))
    assert part.shape == (40, 40, 3)
    assert [np.ptp(part[..., channel].astype(int)) for channel in (0, 1)] == pytest.approx([19, 39], abs=1)
    np.testing.assert_array_equal(resized(image, 40), resized(image, 40, np.random.default_rng(0)))


def test_unusable_items_and_questions_are_skipped_or_refused(files, tmp_path, caplog):
    def damage(n, entry):
        return entry | {0: {"answers": []}, 1: {"gold": 99}, 2: {"text": ""}}.get(n, {})

    broken = changed(files, tmp_path, "questions", damage)
    with caplog.at_level(logging.WARNING):
        assert len(config(broken).usable_questions) == 9
    assert "3 records" in caplog.text and "without an answer" in caplog.text and "without text" in caplog.text
    with pytest.raises(ValueError, match="question 0 "):
        _ = config(broken, strict=True).usable_questions
    with caplog.at_level(logging.WARNING):
        assert len(config(files, text_length=5, strict=True).usable_questions) == 12
    assert "12 whose text was cut after 5 tokens" in caplog.text
    (tmp_path / "item.png").write_bytes(b"no picture")
    damaged = {4: {"image": "item.png"}, 5: {"image": None, "title": "", "text": ""}}
    spoilt = changed(files, tmp_path, "knowledge", lambda n, entry: entry | damaged.get(n, {}))
    assert {14, 15}.isdisjoint(config(spoilt).items.id) and len(config(spoilt).items) == 10


@pytest.mark.parametrize(
    ("damaged", "expected", "lines"),
    [([5], [*range(5), 6, *range(6, 12)], 1), (range(5, 12), [*[0] * 8, 1, 2, 3, 4], 4)],  # three by name, then a count
)
def test_a_question_with_a_damaged_image_is_left_out(files, tmp_path, caplog, damaged, expected, lines):
    (tmp_path / "broken.png").write_bytes(b"no picture")
    broken = {n: {"image": "broken.png"} for n in damaged}
    of = changed(files, tmp_path, "questions", lambda n, entry: entry | broken.get(n, {}))
    ids = np.concatenate([next(batches)["id"] for batches in [config(of).batches(0)] for _ in range(3)])
    assert sorted(ids) == expected and caplog.text.count("broken.png") >= lines == len(caplog.records)
    refused(ValueError, lambda: list(itertools.islice(config(of, strict=True).batches(0), 3)), match="broken")


def test_files_that_do_not_fit_are_refused(files, tmp_path):
    twice = [Items("jsonl", files["knowledge"])] * 2
    some = changed(files, tmp_path, "questions", lambda n, entry: entry if n else entry | {"gold": None})
    (tmp_path / "one").mkdir()
    one = changed(files, tmp_path / "one", "questions", lambda n, entry: entry | {"gold": 10})
    for data, value in (
        (config(files, batch_size=13), "batch_size 13 .* 12"),
        (config(files, objective="prefix", text_length=5), "text_length 5.* 10"),
        (config(files, sources=["wiki"]), "'web'"),
        (config(files, knowledge=twice), "item 10 "),
        (config(some), "11 of 12"),
        (config(one), "questions.jsonl"),
    ):
        refused(ValueError, data.batches, 0, match=value)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        config({**files, "questions": str(tmp_path / "nowhere.jsonl")}).batches(0)
    with pytest.raises(ValueError, match=r"bos is 3.* 2"):
        _ = WarmStart(config(files), dataclasses.replace(RevealConfig.tiny(), bos=3)).config
    with pytest.raises(ValueError, match=r"task.network.sources is 3.* 2 \(wiki, web\)"):
        _ = WarmStart(config(files), RevealConfig.tiny(sources=3)).config
    assert WarmStart(config(files)).config.sources == 2


NETWORK = dict(
    _target_="reveal.network.config.RevealConfig",
    vit=dict(_target_="reveal.network.config.VitConfig", width=16, depth=1, heads=2, mlp=16, patch=8, image_size=16),
    **dict(vocab_size=64, width=16, heads=2, head_dim=8, mlp=16, encoder_layers=2, decoder_layers=1, fusion_layers=1),
    **dict(key_dim=8, value_tokens=2, sources=2, bos=2),
)


def run_of(name: str, files, task: dict, **data):
    """The config of a run of two steps."""
    own = {**SMALL, **files, **data, "sources": ["wiki", "web"]}
    own["_target_"] = "reveal.training.own_batches.OwnDataConfig"
    trainer = dict(steps=2, log_every=1, picture_every=2, checkpoint_every=2, progress=False, devices=1)
    whole = dict(
        name=name,
        seed=0,
        data=own,
        task=dict(knowledge=own, network=NETWORK, **task),
        optim=dict(_target_="common.training.optimizer.OptimConfig", lr=1e-2, multipliers=[["query_head", 1], ["", 0]]),
        trainer=dict(_target_="common.training.trainer.TrainerConfig", **trainer),
        logger=dict(_target_="common.training.logger.LoggerConfig"),
        cluster=dict(_target_="common.training.distributed.ClusterConfig"),
        evaluation=None,
    )
    return OmegaConf.create(whole)


@pytest.mark.long
def test_both_stages_train_on_your_own_files(files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("common.training.run.setup", lambda: None)
    weights = dict(_target_="reveal.training.losses.Weights", contrastive=0.5, gate=0.1)
    start = instantiate(NETWORK)
    save("start.safetensors", nnx.to_pure_dict(nnx.state(drawn(start))), start)
    task = dict(_target_="reveal.training.warm_start.WarmStart", k=2, weights=weights, start_from="start.safetensors")
    train_from_config(run_of("warm", files, task))
    task = dict(_target_="reveal.training.joint.Joint", k=3, reencode=1, start_from="runs/warm/weights.safetensors")
    task["refresh"] = dict(_target_="common.training.task.RefreshConfig", every=1, lag=0)
    train_from_config(run_of("joint", files, task, objective="prefix", text_length=16))
    for name, metric in (("warm", "nearest"), ("joint", "recall_3")):
        rows = [json.loads(line) for line in Path(f"runs/{name}/metrics.jsonl").read_text().splitlines()]
        assert [row["step"] for row in rows] == [1, 2] and all(np.isfinite(row["loss"]) for row in rows)
        assert 0 <= rows[-1][metric] <= 1


@pytest.mark.parametrize("name", ["reveal_warm", "reveal_memory", "reveal_vqa"])
def test_recipes_train_the_published_parts_of_the_published_network(name):
    recipe = OmegaConf.load(ROOT / f"configs/experiment/reveal/{name}.yaml")
    multipliers = OmegaConf.to_container(recipe.optim).get("multipliers", [])
    shapes = blank(Reveal, RevealConfig.tiny())[1]
    check_expressions(multipliers, (), shapes)
    leaves = [jax.tree.leaves(tree) for tree in (parameter_paths(shapes), factors(multipliers, shapes))]
    moves = {path.split("/")[0] for path, on in zip(*leaves, strict=True) if on}
    heads = {"decoder", "fusion", "value_head", "query_head", "key_head", "projection"}
    more = {"reveal_warm": {"embedding", "gate", "text", "vit"}, "reveal_memory": {"embedding", "gate"}}
    assert moves == heads | more.get(name, set())
    assert (max(recipe.data.get("crop", [1])) < 1) == (name == "reveal_warm")  # where the item has the same image
    assert {"override /model": "reveal/base"} in recipe.defaults
    if "refresh" in recipe.task:  # for several processes
        assert instantiate(recipe.task.refresh).lag is not None
    network = instantiate(OmegaConf.load(ROOT / "configs/model/reveal/base.yaml").network)
    assert dataclasses.replace(network, sources=3) == RevealConfig.base()
