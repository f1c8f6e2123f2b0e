"""Batches of one's own files: what they hold, that they repeat, what is refused, and that both stages train on them."""

import dataclasses
import json
import warnings
from pathlib import Path

import numpy as np
import pytest
from own_files import json_lines, picture, world
from reveal_networks import one_line

from reveal.memory.items import Item
from reveal.processing.item_arrays import ItemArrays, resized
from reveal.sources import Items
from reveal.training import device_memory
from reveal.training.own_batches import DESCRIBE, OwnDataConfig

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import jax
    from flax import nnx
    from omegaconf import OmegaConf

    from common.training.config import instantiate
    from common.training.optimizer import check_expressions, parameter_paths, read_multipliers, trainable
    from common.training.run import train_from_config
    from common.training.task import Data
    from reveal.network.config import RevealConfig
    from reveal.network.model import Reveal
    from reveal.training.warm_start import Item as KnowledgeProtocol

ROOT = Path(__file__).parents[2]
SMALL = dict(image_size=16, item_length=24, text_length=12, answer_length=10, batch_size=4, sources=("wiki", "web"))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return world(tmp_path_factory.mktemp("own"))


def config(files, **changes) -> OwnDataConfig:
    return OwnDataConfig(**{**SMALL, **files, **changes})


def changed(files, tmp_path, which: str, change) -> dict[str, str]:
    """The files, of which `change` was made to each line of one."""
    path = Path(files[which])
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    entries = [change(n, {**entry, "image": str(path.parent / entry["image"])}) for n, entry in enumerate(lines)]
    return {**files, which: str(json_lines(tmp_path / f"{which}.jsonl", entries))}


def test_a_batch_is_what_the_docstring_says(files):
    data = config(files)
    assert isinstance(data, Data) and isinstance(data, KnowledgeProtocol)
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
    np.testing.assert_array_equal(batch["gold"], batch["id"] + 10)
    np.testing.assert_array_equal(batch["source"], batch["id"] % 2)
    np.testing.assert_array_equal(batch["negatives"][:, 0], 10 + (batch["id"] + 1) % 12)
    for tokens, answer, number in zip(batch["tokens"], batch["answer"], batch["id"], strict=True):
        assert data.vocabulary.decode(tokens) == "question : what does it eat"
        food = ("fish", "seeds", "worms", "moss")[number % 4]
        assert data.vocabulary.decode(answer) in (food, f"bird {number} eats {food} by the sea")
    assert (
        "what does it eat" in data.names(batch["id"])[0] and f"query{batch['id'][0]}.png" in data.names(batch["id"])[0]
    )


def test_items_are_arrays_that_a_bank_takes(files):
    data = config(files)
    items = data.items
    assert isinstance(items.arrays, ItemArrays) and len(items) == 12 and items.has_image.all()
    assert data.vocabulary.decode(items.tokens[3]) == "bird 3 <extra_id_3> bird 3 eats moss by the sea"
    contents = device_memory.contents_of(items, 2)
    np.testing.assert_array_equal(contents.id[:12], np.arange(10, 22))
    picture = Path(data.knowledge).parent / "item3.png"
    again = data.read_item([Item("web", {"title": "bird 3"}, picture.read_bytes()), Item("web", {"a": "b"})])
    np.testing.assert_allclose(again["image"][0], items.image[3] / np.float32(255))
    assert again["has_image"].tolist() == [True, False] and again["tokens"].shape == (2, 24)
    assert data.read_item([])["image"].shape == (0, 16, 16, 3)


def test_all_captions_of_a_batch_are_cut_at_the_same_place(files):
    data = config(files, objective="prefix", prefix=3, text_length=9)
    words, mask = data.vocabulary, data.vocabulary.mask
    places, iterator = [], data.batches(0)
    prompt = len(words.encode(DESCRIBE, 9)[words.encode(DESCRIBE, 9) != 0])
    for batch in [next(iterator) for _ in range(12)]:
        shown = (batch["tokens"] == mask).argmax(axis=1) - prompt
        lengths = (batch["answer"] != 0).sum(axis=1)
        assert (batch["answer"][np.arange(4), lengths - 1] == words.eos).all()
        long = lengths > 2  # the others are of a caption of one word
        assert len(set(shown[long].tolist())) <= 1
        places += shown[long].tolist()
        for tokens, answer in zip(batch["tokens"][long], batch["answer"][long], strict=True):
            said = words.decode([*tokens[prompt : np.argmax(tokens == mask)], *answer])
            assert said.startswith("bird") and said.endswith("by the sea")
        assert (shown[~long] == 0).all()
    assert set(places) == {0, 1, 2, 3}


def test_configs_alike_read_their_items_once(files):
    first, second = config(files), config(files, objective="caption", batch_size=2)
    assert first.items is second.items
    assert config(files, item_length=5).items is not first.items


def test_a_picture_to_describe(files):
    data = config(files, objective="caption")
    batch = next(data.batches(0))
    np.testing.assert_array_equal(batch["tokens"], np.tile(data.ask(), (4, 1)))


def test_an_answer_too_long_ends_all_the_same(files):
    data = config(files, answer_length=3)
    answers = next(data.batches(0))["answer"]
    assert ((answers == data.vocabulary.eos).sum(axis=1) == 1).all()


def test_the_same_seed_gives_the_same_batches_and_a_state_goes_on(files):
    data, several = (config(files, objective="prefix", prefix=2, crop=[0.3, 1], threads=n) for n in (1, 3))
    first = data.batches(3)
    batches = [next(first) for _ in range(5)]
    other = several.batches(3)
    for _ in range(2):
        next(other)
    state = other.get_state()
    resumed = several.batches(3)
    resumed.set_state(state)
    parts = [several.batches(3, index, 2) for index in range(2)]
    for batch in batches:
        halves = [next(part) for part in parts]
        for name in batch:
            np.testing.assert_array_equal(batch[name], np.concatenate([half[name] for half in halves]))
    for name, array in next(resumed).items():
        np.testing.assert_array_equal(array, batches[2][name])
    assert any((next(data.batches(4))[name] != batches[0][name]).any() for name in ("id", "image"))


def test_without_gold_items_there_is_no_gold(files, tmp_path):
    def plain(_, entry):
        return {name: entry[name] for name in ("id", "image", "text", "answers")}

    batch = next(config(changed(files, tmp_path, "questions", plain)).batches(0))
    assert set(batch) == {"image", "tokens", "answer", "id"}


def test_negatives_that_are_not_named_are_others_gold_items(files, tmp_path):
    def plain(_, entry):
        return entry | {"negatives": []}

    batch = next(config(changed(files, tmp_path, "questions", plain), negatives=3).batches(0))
    assert batch["negatives"].shape == (4, 3) and (batch["negatives"] != batch["gold"][:, None]).all()
    assert set(batch["negatives"].ravel()) <= set(range(10, 22))


def test_pictures_may_be_cropped_and_left_out_of_items(files):
    half = config(files, drop_image=0.5, item_crop=[0.1, 0.2]).items
    whole = config(files).items
    assert 0 < half.has_image.sum() < 12 and (half.image[~half.has_image] == 0).all()
    assert (half.image[half.has_image] != whole.image[half.has_image]).any(axis=(1, 2, 3)).all()
    np.testing.assert_array_equal(config(files, drop_image=0.5, item_crop=[0.1, 0.2]).items.image, half.image)


def test_a_crop_keeps_its_share_and_the_aspect():
    image = np.zeros((40, 80, 3), np.uint8)
    image[..., 0], image[..., 1] = np.arange(40)[:, None], np.arange(80)
    part = resized(image, 40, np.random.default_rng(0), (0.25, 0.25))
    assert part.shape == (40, 40, 3)
    assert np.ptp(part[..., 0].astype(int)) == pytest.approx(19, abs=1)
    assert np.ptp(part[..., 1].astype(int)) == pytest.approx(39, abs=1)
    np.testing.assert_array_equal(resized(image, 40), resized(image, 40, np.random.default_rng(0)))


def test_what_cannot_be_used_is_left_out_counted_or_refused(files, tmp_path, caplog):
    def damage(n, entry):
        return entry | {0: {"answers": []}, 1: {"gold": 99}, 2: {"text": ""}}.get(n, {})

    broken = changed(files, tmp_path, "questions", damage)
    assert len(config(broken).asked) == 9
    assert "1 whose gold item is not in the knowledge" in caplog.text and "3 records left out" in caplog.text
    with pytest.raises(ValueError, match=r"question 0 .* without an answer") as caught:
        _ = config(broken, strict=True).asked
    one_line(caught)
    (tmp_path / "item.png").write_bytes(b"no picture")

    def spoil(n, entry):
        return entry | ({"image": str(tmp_path / "item.png")} if n == 4 else {})

    assert 14 not in config(changed(files, tmp_path, "knowledge", spoil)).items.id


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (dict(batch_size=0), "batch_size 0"),
        (dict(answer_length=1), "answer_length 1"),
        (dict(crop=[0, 1]), r"crop is \[0, 1\]"),
        (dict(item_crop=[0.5]), r"item_crop is \[0.5\]"),
        (dict(drop_image=2), "drop_image is 2"),
        (dict(sources=["a", "a"]), "name each source of knowledge once"),
    ],
)
def test_what_makes_no_data_is_refused_before_a_file_is_opened(change, said):
    nowhere = dict(knowledge="nowhere", questions="nowhere", tokenizer="nowhere")
    with pytest.raises(ValueError, match=said) as caught:
        config(nowhere, **change)
    one_line(caught)


def test_what_does_not_fit_is_refused(files, tmp_path):
    with pytest.raises(ValueError, match="batch_size 13 exceeds the 12 questions"):
        config(files, batch_size=13).batches(0)
    with pytest.raises(ValueError, match="text_length 5: a prompt, 5 tokens and MASK take 10"):
        config(files, objective="prefix", text_length=5).batches(0)
    with pytest.raises(ValueError, match="source 'web', sources are wiki: add it"):
        len(config(files, sources=["wiki"]).items)
    twice = [Items("jsonl", files["knowledge"])] * 2
    with pytest.raises(ValueError, match="there once; set first_id"):
        len(config(files, knowledge=twice).items)
    some = changed(files, tmp_path, "questions", lambda n, entry: entry if n else entry | {"gold": None})
    with pytest.raises(ValueError, match="11 of 12 questions name their gold item"):
        _ = config(some).asked
    picture(tmp_path / "x.png")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        config({**files, "questions": str(tmp_path / "nowhere.jsonl")}).batches(0)


NETWORK = dict(
    _target_="reveal.network.config.RevealConfig",
    vit=dict(_target_="reveal.network.config.VitConfig", width=16, depth=1, heads=2, mlp=16, patch=8, image_size=16),
    vocab_size=64,
    **dict(width=16, heads=2, head_dim=8, mlp=16, encoder_layers=2, decoder_layers=1, fusion_layers=1, key_dim=8),
    **dict(value_tokens=2, sources=2, bos=2),
)


def run_of(name: str, files, task: dict, **data):
    """The config of a run of two steps."""
    own = {
        **SMALL,
        **files,
        **data,
        "sources": ["wiki", "web"],
        "_target_": "reveal.training.own_batches.OwnDataConfig",
    }
    whole = dict(
        name=name,
        seed=0,
        data=own,
        task=dict(knowledge=own, network=NETWORK, **task),
        optim=dict(_target_="common.training.optimizer.OptimConfig", name="adafactor", lr=1e-2, clip=1.0),
        trainer=dict(
            _target_="common.training.trainer.TrainerConfig",
            **dict(steps=2, log_every=1, picture_every=2, checkpoint_every=2, progress=False, devices=1),
        ),
        logger=dict(_target_="common.training.logger.LoggerConfig"),
        cluster=dict(_target_="common.training.distributed.ClusterConfig"),
        evaluation=None,
    )
    return OmegaConf.create(whole)


@pytest.mark.slow
def test_both_stages_train_on_files_of_ones_own(files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("common.training.run.setup", lambda: None)
    weights = dict(_target_="reveal.training.losses.Weights", contrastive=0.5, gate=0.1)
    task = dict(_target_="reveal.training.warm_start.WarmStart", k=2, weights=weights)
    train_from_config(run_of("warm", files, task))
    task = dict(_target_="reveal.training.joint.Joint", k=3, reencode=1, start_from="runs/warm/weights.safetensors")
    task["refresh"] = dict(_target_="common.training.task.RefreshConfig", every=1, lag=0)
    train_from_config(run_of("joint", files, task, objective="prefix", text_length=16))
    for name, metric in (("warm", "nearest"), ("joint", "recall_3")):
        rows = [json.loads(line) for line in Path(f"runs/{name}/metrics.jsonl").read_text().splitlines()]
        assert [row["step"] for row in rows] == [1, 2] and all(np.isfinite(row["loss"]) for row in rows)
        assert 0 <= rows[-1][metric] <= 1


@pytest.mark.parametrize("name", ["reveal_warm", "reveal_memory", "reveal_vqa"])
def test_factors_are_of_parameters_that_there_are(name):
    """And the recipe's network is the published one, but for its number of sources."""
    recipe = OmegaConf.load(ROOT / "configs" / "experiment" / f"{name}.yaml")
    multipliers = read_multipliers(OmegaConf.to_container(recipe.optim).get("multipliers", []))
    shapes = nnx.to_pure_dict(nnx.state(nnx.eval_shape(lambda: Reveal(RevealConfig.tiny(), rngs=nnx.Rngs(0)))))
    check_expressions(multipliers, (), shapes)
    moves = {
        path.split("/")[0]
        for path, on in zip(
            *(jax.tree.leaves(tree) for tree in (parameter_paths(shapes), trainable(multipliers, shapes))), strict=True
        )
        if on
    }
    heads = {"decoder", "fusion", "value_head", "query_head", "key_head", "projection"}
    more = {"reveal_warm": {"embedding", "gate", "text", "vit"}, "reveal_memory": {"embedding", "gate"}}
    assert moves == heads | more.get(name, set())
    network = instantiate(recipe.task.network)
    assert dataclasses.replace(network, sources=3) == RevealConfig.base()


def test_a_config_names_readers(files):
    node = dict(_target_="reveal.sources.Items", reader="jsonl", path=files["knowledge"], options={"source": "web"})
    own = dict(_target_="reveal.training.own_batches.OwnDataConfig", knowledge=[node], sources=["wiki", "web"])
    data = instantiate(own | {name: files[name] for name in ("questions", "tokenizer")}, "data")
    assert data.knowledge[0].options == {"source": "web"}
