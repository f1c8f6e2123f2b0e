"""Captioned pictures come in batches that are right, repeatable, resumable and the same for any number of processes."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from networks import one_line
from omegaconf import OmegaConf

from plugins.data.captioned_batches import CaptionedConfig, CaptionedPictures
from recipes.captioned_pictures.train_tokenizer import train_bpe, write_tokenizer

SIZE, COUNT, HELD = 8, 24, 4
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Picture i holds the value i, but for its left column, which is white; the even ones may be mirrored."""
    folder = tmp_path_factory.mktemp("pictures")
    images = np.tile(np.arange(COUNT, dtype=np.uint8)[:, None, None, None], (1, SIZE, SIZE, 3))
    images[:, :, 0] = 255
    np.save(folder / "images.npy", images)
    entries = [
        dict(label=f"thing {i}", style="3d emoji", tags=["alpha", "beta"] if i % 3 else [], mirror=i % 2 == 0)
        | dict(split="unseen" if i < HELD else "train")
        for i in range(COUNT)
    ]
    (folder / "index.json").write_text(json.dumps(dict(pictures=entries)))
    write_tokenizer(folder / "tokenizer", *train_bpe([f"thing {i}, alpha, beta, 3d emoji" for i in range(COUNT)], 600))
    return folder


def config(folder, **changes) -> CaptionedConfig:
    return CaptionedConfig(str(folder), **(dict(batch_size=5, length=16, buffer=2) | changes))


def take(iterator, count) -> list[dict[str, np.ndarray]]:
    return [next(iterator) for _ in range(count)]


def assert_equal(batches, others):
    for batch, other in zip(batches, others, strict=True):
        assert batch.keys() == other.keys()
        for name in batch:
            np.testing.assert_array_equal(batch[name], other[name])


def test_a_batch_is_what_the_docstring_says(folder):
    batch = next(config(folder, drop=0, tag=0, plain=0, mirror=False).batches(0))
    assert {name: (array.shape, str(array.dtype)) for name, array in batch.items()} == {
        "image": ((5, SIZE, SIZE, 3), "float32"),
        "tokens": ((5, 16), "int32"),
        "id": ((5,), "int64"),
    }
    data = config(folder)
    for image, tokens, number in zip(batch["image"], batch["tokens"], batch["id"], strict=True):
        assert image[0, 1, 0] == np.float32(number) / 255
        assert image[0, 0, 0] == 1
        assert data.text.decode(tokens) == f"thing {' '.join(str(number))} , 3 d emoji"
        assert number >= HELD  # none of the other split


def test_every_picture_comes_once_in_an_epoch_and_in_another_order_in_the_next(folder):
    batches = take(config(folder, batch_size=4).batches(0), 10)
    first, second = (np.concatenate([batch["id"] for batch in half]) for half in (batches[:5], batches[5:]))
    assert sorted(first) == sorted(second) == list(range(HELD, COUNT))
    assert list(first) != list(second)


def test_the_seed_decides(folder):
    data = config(folder, threads=3)
    assert_equal(take(data.batches(1), 6), take(config(folder).batches(1), 6))
    ids = [np.concatenate([batch["id"] for batch in take(data.batches(seed), 4)]).tolist() for seed in (1, 2)]
    assert ids[0] != ids[1]


def test_a_new_iterator_goes_on_where_the_state_says(folder):
    whole = config(folder).batches(7)
    take(whole, 3)
    state = json.loads(json.dumps(whole.get_state()))  # small and plain
    expected = take(whole, 6)  # over the end of an epoch
    resumed = config(folder).batches(7)
    resumed.set_state(state)
    assert_equal(take(resumed, 6), expected)


def test_two_processes_share_the_stream_of_one(folder):
    whole = take(config(folder, batch_size=3).batches(5), 6)
    parts = [take(config(folder, batch_size=6).batches(5, index, 2), 3) for index in (0, 1)]
    together = [batch for pair in zip(*parts, strict=True) for batch in pair]
    assert_equal(together, whole)


def test_captions_vary_as_often_as_asked(folder):
    data = config(folder, drop=0.25, tag=0.5, plain=0.2)
    rng = np.random.default_rng(0)
    drawn = [data.draw("cat", "3d emoji", ("pet", "animal"), rng) for _ in range(4000)]
    assert set(drawn) == {
        *("", "cat", "cat, pet", "cat, animal"),
        *("cat, 3d emoji", "cat, pet, 3d emoji", "cat, animal, 3d emoji"),
    }
    some = [text for text in drawn if text]
    shares = [1 - len(some) / 4000, np.mean(["," in text.replace(", 3d", "") for text in some])]
    shares += [np.mean(["3d" not in text for text in some]), np.mean(["pet" in text for text in some])]
    np.testing.assert_allclose(shares, [0.25, 0.5, 0.2, 0.25], atol=0.03)


def test_a_picture_without_tags_or_style_keeps_its_label(folder):
    data, rng = config(folder, drop=0, tag=1, plain=0), np.random.default_rng(0)
    assert data.draw("A zebra.", "", (), rng) == "A zebra."


def test_a_dropped_prompt_is_start_and_padding(folder):
    tokens = next(config(folder, drop=1).batches(0))["tokens"]
    text = config(folder).text
    np.testing.assert_array_equal(tokens, [[text.start_id] + [text.end_id] * 15] * 5)


def test_only_pictures_that_may_be_are_mirrored(folder):
    batches = take(config(folder).batches(0), 60)
    flipped = {True: [], False: []}
    for batch in batches:
        for image, number in zip(batch["image"], batch["id"], strict=True):
            assert (image[:, 0] == 1).all() != (image[:, -1] == 1).all()
            flipped[number % 2 == 0].append((image[:, -1] == 1).all())
    assert not any(flipped[False])
    assert 0.35 < np.mean(flipped[True]) < 0.65


def test_names_and_captions(folder):
    assert config(folder).names([5, 6]) == [f"{folder} picture 5: thing 5", f"{folder} picture 6: thing 6"]
    assert CaptionedPictures(folder, "unseen").caption(1) == "thing 1, 3d emoji"


@pytest.mark.parametrize(
    ("changes", "value"),
    [
        (dict(split="valid"), "'valid'.* train, unseen"),
        (dict(batch_size=21), "21.* 20"),
        (dict(length=2), "length 2"),
        (dict(batch_size=0), "batch_size 0"),
        (dict(drop=1.5), "drop 1.5"),
    ],
)
def test_invalid_values_are_refused(folder, changes, value):
    with pytest.raises(ValueError, match=value) as error:
        config(folder, **changes).batches(0)
    one_line(error)


def test_missing_files_and_batches_that_do_not_divide_are_refused(folder, tmp_path):
    with pytest.raises(FileNotFoundError, match="captioned_pictures"):
        config(tmp_path).batches(0)
    with pytest.raises(FileNotFoundError, match=r"vocab\.json"):
        config(folder, tokenizer=str(tmp_path)).batches(0)
    with pytest.raises(ValueError, match="batch_size 5"):
        config(folder).batches(0, 0, 2)


def test_pictures_and_captions_of_different_folders(folder, tmp_path):
    (tmp_path / "index.json").write_text((folder / "index.json").read_text())
    np.save(tmp_path / "images.npy", np.zeros((3, SIZE, SIZE, 3), np.uint8))
    with pytest.raises(ValueError, match=r"3 .* 24 "):
        CaptionedPictures(tmp_path, "train")


def test_the_config_file_lists_every_field_with_its_default():
    loaded = OmegaConf.to_container(OmegaConf.load(ROOT / "configs" / "data" / "captioned64.yaml"))
    assert isinstance(loaded, dict)
    assert loaded.pop("_target_") == "plugins.data.captioned_batches.CaptionedConfig"
    assert loaded == dataclasses.asdict(CaptionedConfig())
