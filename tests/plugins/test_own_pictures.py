"""Batches of a user's own images: image and condition fit, held-out images stay out, configs compose."""

import dataclasses
import shutil
from pathlib import Path

import cv2
import networks
import numpy as np
import pytest
import safetensors.numpy
from hydra import compose, initialize_config_dir
from refusal import refused
from streams import take

from common.io.images import write_image
from common.training.config import instantiate
from common.training.run import register
from plugins.conditions.registry import make
from plugins.data import TfdsPictures
from plugins.data.crop import cut, square
from plugins.data.own_batches import OwnPicturesConfig
from plugins.evaluation.control_fidelity import ControlEvaluation
from plugins.metrics.fidelity import MaskIou
from recipes.captioned_pictures.train_tokenizer import train_bpe, write_tokenizer

ROOT = Path(__file__).parents[2]
COUNT, SIZE = 8, 16


def write(path, image):
    write_image(path, image.astype(np.float32) / 255, overwrite=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Images of several shapes, stored twice: as themselves and as conditions."""
    folder, rng = tmp_path_factory.mktemp("own"), np.random.default_rng(0)
    shapes = [(16, 16), (16, 40), (40, 20), (9, 12)]
    for number in range(COUNT):
        height, width = shapes[number % 4]
        image = cv2.GaussianBlur(rng.integers(0, 256, (height, width, 3), np.uint8), (0, 0), 2)
        image[:, : width // 3] //= 2
        write(folder / "images" / f"{number}.png", image)
        for kind in ("canny", "face", "own"):
            write(folder / "conditions" / kind / f"{number}.png", image)
        (folder / "images" / f"{number}.txt").write_text(f"thing {number}\nan apple\n" if number else "left hand\n")
    write_tokenizer(folder / "tokenizer", *train_bpe([f"thing {i}, an apple, left hand" for i in range(COUNT)], 600))
    return folder


def config(folder, path=None, **changes) -> OwnPicturesConfig:
    plain = dict(size=SIZE, batch_size=4, length=12, buffer=2, threads=1, unseen=0, tokenizer=str(folder / "tokenizer"))
    return OwnPicturesConfig(str(path or folder), **(plain | changes))


def triples(data, count):
    """(image, condition, id) of some batches."""
    for batch in take(data.batches(0), count):
        yield from zip(batch["image"], batch["condition"], batch["id"], strict=True)


def test_a_batch_is_what_the_docstring_says(folder):
    data = config(folder, condition="canny", drop=0)
    batch = next(data.batches(0))
    shapes = {name: (array.shape, str(array.dtype)) for name, array in batch.items()}
    image = ((4, SIZE, SIZE, 3), "float32")
    assert shapes == {"image": image, "condition": image, "tokens": ((4, 12), "int32"), "id": ((4,), "int64")}
    for image, tokens, number in zip(batch["image"], batch["tokens"], batch["id"], strict=True):
        whole = data.source[int(number)].image
        np.testing.assert_array_equal(image, cut(whole, square(whole.shape), SIZE).astype(np.float32) / 255)
        expected = {f"thing {number}", "an apple"} if number else {"left hand"}
        assert data.text.decode(tokens) in expected
    assert data.names([3]) == [str(folder / "images" / "3.png")]
    assert set(next(config(folder).batches(0))) == {"image", "tokens", "id"}
    assert len(config(folder, tokenizer=None).text.vocab) == 2048  # the shipped base's


def test_a_bases_single_file_has_its_tokenizer_beside_it(folder, tmp_path):
    file, prefix = tmp_path / "base.safetensors", "cond_stage_model.transformer.text_model."
    text = networks.stored("text_encoder").items()
    safetensors.numpy.save_file({f"{prefix}{key}": array for key, array in text}, file)
    missing = r"base\.safetensors.*vocab\.json"
    refused(FileNotFoundError, lambda: config(folder, tokenizer=str(file)).text, match=missing)
    shutil.copytree(folder / "tokenizer", tmp_path / "tokenizer")
    np.testing.assert_array_equal(config(folder, tokenizer=str(file)).text("an apple"), config(folder).text("an apple"))


@pytest.mark.parametrize("crop", ["centre", "random"])
def test_image_and_condition_are_cropped_and_flipped_alike(folder, crop):
    """The stored condition is the image itself, so that it has to stay equal."""
    data = config(folder, condition="own", crop=crop, stored=True)
    data_of_canny = dataclasses.replace(data, condition="canny", mirror=True)
    flipped: dict[int, set[bool]] = {0: set(), 4: set()}  # square: only the flip is random
    for image, condition, number in triples(data_of_canny, 12):
        np.testing.assert_array_equal(image, condition)
        if number in flipped:
            flipped[number].add(bool(image[:, : SIZE // 3].mean() > image[:, -SIZE // 3 :].mean()))
    assert flipped == {0: {False}, 4: {False, True}}  # "left hand" is never flipped
    drawn = {image.tobytes() for image, condition, _ in triples(data, 8) if np.array_equal(image, condition)}
    assert (len(drawn) > COUNT) == (crop == "random")


def test_a_flipped_face_exchanges_its_colours(folder):
    data = config(folder, condition="face", mirror=True, drop=0)
    for image, condition, number in triples(data, 6):
        flipped = not np.array_equal(image, data.example(int(number)).image.astype(np.float32) / 255)
        np.testing.assert_array_equal(condition, image[..., [0, 2, 1]] if flipped else image)


def test_a_condition_of_another_size_shows_the_same_part(folder, tmp_path):
    large = cv2.GaussianBlur(np.random.default_rng(1).integers(0, 256, (64, 128, 3), np.uint8), (0, 0), 8)
    for number in range(2):
        write(tmp_path / "images" / f"{number}.png", large)
    write(tmp_path / "conditions" / "depth" / "0.png", cv2.resize(large, (64, 32), interpolation=cv2.INTER_AREA))
    write(tmp_path / "conditions" / "depth" / "1.png", cv2.resize(large, (129, 64)))  # rounded somewhere
    data = config(folder, tmp_path, condition="depth", crop="random", stored=True, batch_size=2)
    for image, condition, _ in triples(data, 5):
        np.testing.assert_allclose(image, condition, atol=0.03)
    write(tmp_path / "conditions" / "depth" / "1.png", large[:, :100])
    refused(ValueError, lambda: take(dataclasses.replace(data, strict=True).batches(0), 1), match=r"picture 1.* 100x64")


def test_conditions_are_made_where_none_is_stored(folder, tmp_path):
    (tmp_path / "conditions" / "canny").mkdir(parents=True)
    (tmp_path / "images").symlink_to(folder / "images")
    (tmp_path / "conditions" / "canny" / "3.png").symlink_to(folder / "conditions" / "canny" / "3.png")
    options = dict(low=20, high=60)
    for stored in (None, False):
        data = config(folder, tmp_path, condition="canny", stored=stored, options=options)
        for image, condition, number in triples(data, 2):
            expected = image if number == 3 and stored is None else make("canny", image, **options)
            np.testing.assert_array_equal(condition, expected)
    for kind in ("canny", "mine"):
        data = config(folder, tmp_path, condition=kind, stored=True)
        refused(ValueError, data.batches, 0, match=f"picture 0 .*'{kind}'")


def test_made_conditions_vary(folder):
    data = config(folder, condition="canny", stored=False, vary={"low": [5, 60]}, batch_size=8)
    first, second = (batch["condition"][np.argsort(batch["id"])] for batch in take(data.batches(0), 2))
    assert not np.array_equal(first, second)
    expected = make("canny", data.example(1).image.astype(np.float32) / 255, low=32.5)
    np.testing.assert_array_equal(data.conditioned(data.example(1)), expected)


def test_held_out_images_stay_out_and_stay_the_same(folder):
    splits = {split: set(config(folder, split=split, unseen=0.7).ids) for split in ("train", "unseen", "all")}
    assert splits["all"] == set(range(COUNT)) == splits["train"] | splits["unseen"]
    assert not splits["train"] & splits["unseen"] and splits["unseen"] == {2, 6, 7}
    drawn = take(config(folder, unseen=0.7).batches(0), 5)
    assert {int(number) for batch in drawn for number in batch["id"]} == splits["train"]
    assert set(config(folder, split="unseen", unseen=0.8).ids) >= splits["unseen"]


def test_an_evaluation_takes_own_images(folder):
    data = config(folder, split="all", condition="canny", stored=False, options={"low": 5, "high": 20})
    held = ControlEvaluation(data, {"area": MaskIou()}).held_out(4)
    assert held.images.shape == held.conditions.shape == (4, SIZE, SIZE, 3)
    for image, prompt, condition in zip(*held, strict=True):
        number = 0 if prompt == "left hand" else int(prompt.removeprefix("thing "))
        np.testing.assert_array_equal(image, data.example(number).image.astype(np.float32) / 255)
        np.testing.assert_array_equal(condition, make("canny", image, low=5, high=20))


def test_damaged_images_and_missing_captions(folder, tmp_path):
    write(tmp_path / "a.png", np.zeros((20, 20, 3), np.uint8))
    data = config(folder, tmp_path, batch_size=1, drop=0)
    np.testing.assert_array_equal(next(data.batches(0))["tokens"], data.text([""], 12))
    (tmp_path / "a.png").write_bytes((folder / "images" / "1.png").read_bytes()[:200])
    refused(ValueError, lambda: next(data.batches(0)), match=r"a\.png")
    write(tmp_path / "b.png", np.zeros((20, 20, 3), np.uint8))
    several = config(folder, tmp_path, batch_size=2)
    assert next(several.batches(0))["id"].tolist() == [1, 1]  # the image after it is in its place
    held = dataclasses.replace(several, split="all", condition="canny", stored=False)
    assert len(ControlEvaluation(held, {"area": MaskIou()}).held_out(4).images) == 1
    strict = ControlEvaluation(dataclasses.replace(held, strict=True), {"area": MaskIou()})
    refused(ValueError, lambda: strict.held_out(4), match=r"a\.png")
    refused(ValueError, lambda: next(dataclasses.replace(several, strict=True).batches(0)), match=r"a\.png")


def test_a_source_may_be_named_in_the_config():
    source = {"_target_": "plugins.data.TfdsPictures", "dataset": "mine", "caption": "label"}
    made = instantiate({"_target_": "plugins.data.own_batches.OwnPicturesConfig", "path": source}, "data")
    assert made.path == TfdsPictures("mine", caption="label")


def test_the_documented_commands_compose():
    register()
    words = ["experiment=control_canny", "data=own_pictures", "data.path=my/pictures"]
    with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        made = compose("eval", [*words, "evaluation=own_pictures"])
        fitting = compose("train", [*words, "evaluation=own_pictures", "task.shape=null"])
        own = "{_target_: plugins.data.own_batches.OwnPicturesConfig, path: my/pictures, split: unseen}"
        others = [f"+evaluation.data={own}", "+evaluation.data.size=512", "+evaluation.data.condition=canny"]
        methods = compose("eval", ["evaluation=control_methods", "weights=A", "~evaluation.data", *others])
    data, evaluation = instantiate(made.data, "data"), instantiate(made.evaluation, "evaluation")
    assert (data.path, data.condition, data.tokenizer, data.split) == ("my/pictures", "canny", made.task.base, "train")
    assert dataclasses.replace(evaluation.data, vary={}) == OwnPicturesConfig(
        "my/pictures", split="unseen", condition="canny", tokenizer=made.task.base
    )
    assert instantiate(fitting.task, "task").shape is None  # the default for the base
    data = instantiate(methods.evaluation.data, "evaluation.data")
    assert data == OwnPicturesConfig("my/pictures", split="unseen", size=512, condition="canny")
