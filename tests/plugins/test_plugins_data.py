"""Batches of captioned images: right, repeatable, resumable, the same for any number of processes, both sources."""

import dataclasses
from pathlib import Path

import cv2
import numpy as np
import pytest
from omegaconf import OmegaConf
from prepared import write_prepared
from refusal import refused
from streams import check_stream, equal, joined, take

from plugins.data.captioned import CaptionedPictures
from plugins.data.captioned_batches import CaptionedConfig
from plugins.data.own_batches import OwnPicturesConfig

SIZE, COUNT, HELD = 8, 24, 4
CONFIGS = Path(__file__).parents[2] / "configs" / "data"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    """Image i holds the value i, but for its left column, which is white; the even ones may be flipped."""
    images = np.tile(np.arange(COUNT, dtype=np.uint8)[:, None, None, None], (1, SIZE, SIZE, 3))
    images[:, :, 0] = 255
    folder = tmp_path_factory.mktemp("prepared")
    (folder / "own").mkdir()
    for i, image in enumerate(images):
        cv2.imwrite(str(folder / "own" / f"{i}.png"), image)
        (folder / "own" / f"{i}.txt").write_text(f"thing {i}\n")

    def entry(i):
        split = "unseen" if i < HELD else "train"
        return {"tags": ["alpha", "beta"] if i % 3 else [], "mirror": i % 2 == 0, "split": split}

    return write_prepared(folder, images, entry, "alpha, beta")


def config(folder, **changes) -> CaptionedConfig:
    return CaptionedConfig(folder, **(dict(batch_size=5, length=16, buffer=2) | changes))


def own(folder, **changes) -> OwnPicturesConfig:
    plain = dict(size=SIZE, batch_size=5, length=16, buffer=2, unseen=0.2, tokenizer=f"{folder}/tokenizer", mirror=True)
    return OwnPicturesConfig(f"{folder}/own", **(plain | changes))


@pytest.fixture(params=[config, own])
def make(request):
    return request.param


def test_a_batch_is_what_the_docstring_says(folder):
    data = config(folder, drop=0, tag=0, plain=0, mirror=False)
    batch = next(data.batches(0))
    shapes = {name: (array.shape, str(array.dtype)) for name, array in batch.items()}
    assert shapes == {"image": ((5, SIZE, SIZE, 3), "float32"), "tokens": ((5, 16), "int32"), "id": ((5,), "int64")}
    for image, tokens, number in zip(batch["image"], batch["tokens"], batch["id"], strict=True):
        assert image[0, 1, 0] == np.float32(number) / 255 and image[0, 0, 0] == 1
        assert data.text.decode(tokens) == f"thing {' '.join(str(number))} , 3 d emoji"
        assert number >= HELD  # none of the other split
    assert data.names([5, 6]) == [f"{folder} picture 5: thing 5", f"{folder} picture 6: thing 6"]
    assert CaptionedPictures(folder)[1].captions == ("thing 1, 3d emoji",)
    tokens = next(config(folder, drop=1).batches(0))["tokens"]
    np.testing.assert_array_equal(tokens, [[data.text.start_id] + [data.text.end_id] * 15] * 5)


def test_an_epoch_has_every_image_once_in_another_order(folder):
    batches = take(config(folder, batch_size=4).batches(0), 10)
    first, second = (np.concatenate([batch["id"] for batch in half]) for half in (batches[:5], batches[5:]))
    assert sorted(first) == sorted(second) == list(range(HELD, COUNT)) and list(first) != list(second)


@pytest.mark.parametrize("options", [{}, dict(condition="canny", vary={"low": [5, 50]})])
def test_the_promises_of_a_stream(folder, make, options):
    """Over the end of an epoch."""
    check_stream(lambda **changes: make(folder, **dict(batch_size=6), **options, **changes), 8)
    large, small = (joined(take(make(folder, batch_size=size, **options).batches(5), 18 // size)) for size in (6, 3))
    assert equal(large, small)  # the size of a batch decides nothing else


def test_captions_vary_as_often_as_asked(folder):
    data, rng = config(folder, drop=0.25, tag=0.5, plain=0.2), np.random.default_rng(0)
    drawn = [data.compose("cat", "3d emoji", ("pet", "animal"), rng) for _ in range(4000)]
    plain = {"cat", "cat, pet", "cat, animal"}
    assert set(drawn) == {"", *plain, *(f"{text}, 3d emoji" for text in plain)}
    some = [text for text in drawn if text]
    shares = [1 - len(some) / 4000, np.mean(["," in text.replace(", 3d", "") for text in some])]
    shares += [np.mean(["3d" not in text for text in some]), np.mean(["pet" in text for text in some])]
    np.testing.assert_allclose(shares, [0.25, 0.5, 0.2, 0.25], atol=0.03)
    assert config(folder, drop=0, tag=1, plain=0).compose("A zebra.", "", (), rng) == "A zebra."


def test_a_style_may_be_left_out_alone(folder):
    data, rng = config(folder, drop=0, tag=0, plain=1, plain_styles=("3d emoji",)), np.random.default_rng(0)
    assert [data.compose("cat", style, (), rng) for style in ("3d emoji", "line emoji")] == ["cat", "cat, line emoji"]


def test_groups_and_styles_come_as_often_as_asked(tmp_path):
    kinds = [(group, style) for group in ("animals", "signs", "people") for style in ("3d emoji", "line emoji")]
    folder = write_prepared(
        tmp_path,
        np.zeros((6, SIZE, SIZE, 3), np.uint8),
        lambda i: {"group": kinds[i][0], "style": kinds[i][1], "split": "train"},
    )
    data = config(folder, repeat={"animals": 2, "people": 0, "3d emoji": 3}, batch_size=1)
    assert data.ids == [0] * 6 + [1] * 2 + [2] * 3 + [3]
    epoch = np.concatenate([batch["id"] for batch in take(data.batches(0), 12)])
    assert sorted(epoch) == data.ids and list(epoch) != data.ids
    held_out = write_prepared(tmp_path / "held out", np.zeros((6, SIZE, SIZE, 3), np.uint8))
    assert config(held_out, split="unseen", repeat={"animals": 2}, plain_styles=("oil",)).ids == [*range(6)]


def test_only_images_that_may_be_are_flipped(folder):
    batches = take(config(folder).batches(0), 60)
    images, ids = (np.concatenate([batch[name] for batch in batches]) for name in ("image", "id"))
    left, right = ((images[:, :, column] == 1).all((1, 2)) for column in (0, -1))
    assert (left != right).all() and not right[ids % 2 == 1].any() and 0.35 < right[ids % 2 == 0].mean() < 0.65


@pytest.mark.parametrize(("make", "changes", "value"), [
    (config, dict(split="valid"), "'valid'.* train, unseen"),
    (config, dict(batch_size=21), "21.* 20"),
    (config, dict(states=True, latents="anything"), "tag=0.* plain=0"),
    (config, dict(repeat={"animals": 2}), "'animals'"),
    (config, dict(plain_styles=("oil",)), "'oil'"),
    (config, dict(condition="cany"), "'cany'.* canny"),
    (own, dict(split="unseen", unseen=0), "'unseen'"),
    (own, dict(condition="cany"), "'cany'.* canny.* stored=true"),
    (own, dict(condition="mine", stored=True), "'mine'"),
    (own, dict(condition="mine", stored=True, mirror=False, options={"low": 3}), "'mine'"),
    (own, dict(condition="canny", options={"sigma": 1}), "'sigma'"),
    (own, dict(condition="canny", vary={"low": [3, 1]}), r"vary.*low.* \[3, 1\]"),
])  # fmt: skip
def test_invalid_values_are_refused(folder, make, changes, value):
    refused(ValueError, lambda: make(folder, **changes).batches(0), match=value)


def test_missing_files_are_refused(folder, tmp_path):
    for data, value in (
        (config(str(tmp_path)), "captioned_pictures"),
        (config(folder, tokenizer=str(tmp_path)), r"vocab\.json"),
        (own(str(tmp_path)), "own"),
        (own(folder, tokenizer="nowhere"), "'nowhere'"),
    ):
        refused(FileNotFoundError, data.batches, 0, match=value)
    refused(ValueError, lambda: config(folder).batches(0, 0, 2), match="batch_size 5")  # does not divide
    (tmp_path / "index.json").write_text(Path(folder, "index.json").read_text())
    np.save(tmp_path / "images.npy", np.zeros((3, SIZE, SIZE, 3), np.uint8))
    refused(ValueError, lambda: len(CaptionedPictures(tmp_path)), match=r"3 .* 24 ")


@pytest.mark.parametrize(
    ("name", "default", "path"),
    [("captioned64", CaptionedConfig(), {}), ("own_pictures", OwnPicturesConfig("???"), {"tokenizer": None})],
)
def test_the_config_file_lists_every_field_with_its_default(name, default, path):
    loaded = OmegaConf.to_container(OmegaConf.load(CONFIGS / f"{name}.yaml"), resolve=True)
    fields = {field.name: getattr(default, field.name) for field in dataclasses.fields(default)}
    fields = {name: [*value] if isinstance(value, tuple) else value for name, value in fields.items()}
    assert loaded == fields | path | {"_target_": f"{type(default).__module__}.{type(default).__name__}"}
