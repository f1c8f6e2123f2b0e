"""Batches of a user's own pictures: picture and condition fit, the seed decides, held-out pictures stay out."""

import dataclasses
import json
import warnings
from pathlib import Path

import cv2
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from networks import one_line
from tiny_base import diffusion_base, random

from plugins.conditions.registry import make
from plugins.control.mediapipe import MediaPipePlugin
from plugins.control.training.control_task import ControlTask
from plugins.data import TfdsPictures
from plugins.data.crop import cut, square
from plugins.data.latent_cache import write_cache
from plugins.data.own_batches import OwnPicturesConfig
from plugins.diffusion import load_vae, save_component
from plugins.diffusion.networks.vae import AutoencoderKL, VAEConfig
from plugins.evaluation.control_fidelity import ControlEvaluation
from plugins.metrics.fidelity import MaskIou
from recipes.captioned_pictures.train_tokenizer import train_bpe, write_tokenizer

with warnings.catch_warnings():  # beartype on OmegaConf's DictConfig, a subclass of typing.MutableMapping
    warnings.simplefilter("ignore")
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    from common.training.config import instantiate
    from common.training.run import register

ROOT = Path(__file__).parents[2]
COUNT, SIZE = 8, 16


def write(path, image):
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), image[..., ::-1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Pictures of several shapes, stored twice: as themselves and as a condition; the first one also twice as large."""
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


def config(folder, **changes) -> OwnPicturesConfig:
    plain = dict(size=SIZE, batch_size=4, length=12, buffer=2, threads=1, unseen=0, tokenizer=str(folder / "tokenizer"))
    return OwnPicturesConfig(str(folder), **(plain | changes))


def take(stream, count) -> list[dict[str, np.ndarray]]:
    return [next(stream) for _ in range(count)]


def assert_equal(batches, others):
    for batch, other in zip(batches, others, strict=True):
        assert batch.keys() == other.keys()
        for name in batch:
            np.testing.assert_array_equal(batch[name], other[name])


def test_a_batch_is_what_the_docstring_says(folder):
    data = config(folder, condition="canny", drop=0)
    batch = next(data.batches(0))
    assert {name: (array.shape, str(array.dtype)) for name, array in batch.items()} == {
        "image": ((4, SIZE, SIZE, 3), "float32"),
        "condition": ((4, SIZE, SIZE, 3), "float32"),
        "tokens": ((4, 12), "int32"),
        "id": ((4,), "int64"),
    }
    for image, tokens, number in zip(batch["image"], batch["tokens"], batch["id"], strict=True):
        whole = data.pictures.source[int(number)].image
        np.testing.assert_array_equal(image, cut(whole, square(whole.shape), SIZE).astype(np.float32) / 255)
        expected = {f"thing {number}", "an apple"} if number else {"left hand"}
        assert data.text.decode(tokens) in expected
    assert data.names([3]) == [f"{folder} picture 3: 3"]
    assert set(next(config(folder).batches(0))) == {"image", "tokens", "id"}


@pytest.mark.parametrize("crop", ["centre", "random"])
def test_picture_and_condition_are_cut_and_flipped_alike(folder, crop):
    """The stored condition is the picture itself, so that it has to stay equal."""
    data = config(folder, condition="canny", crop=crop, mirror=True, stored=True)
    plain = config(folder, condition="canny", stored=True)
    seen = {True: 0, False: 0}
    for batch in take(data.batches(0), 12):
        np.testing.assert_array_equal(batch["image"], batch["condition"])
        for image, number in zip(batch["image"], batch["id"], strict=True):
            left, right = image[:, : SIZE // 3].mean(), image[:, -SIZE // 3 :].mean()
            if number in (0, 4):  # square: nothing to draw but the flip
                seen[bool(left > right)] += 1
                assert not (number == 0 and left > right)  # "left hand" is never mirrored
    assert seen[True] and seen[False]
    drawn = {batch["image"][k].tobytes() for batch in take(data.batches(0), 12) for k in range(4)}
    middles = {plain.pictures[i]["image"].astype(np.float32).tobytes() for i in range(COUNT)}
    assert (len(drawn) > 2 * len(middles)) == (crop == "random")


def test_a_mirrored_face_changes_its_sides(folder):
    data = config(folder, condition="face", mirror=True, drop=0)
    for batch in take(data.batches(0), 6):
        for image, condition, number in zip(batch["image"], batch["condition"], batch["id"], strict=True):
            middle = data.pictures[int(number)]["image"].astype(np.float32) / 255
            flipped = not np.array_equal(image, middle)
            np.testing.assert_array_equal(condition, image[..., [0, 2, 1]] if flipped else image)


def test_a_condition_of_another_size_shows_the_same_part(folder, tmp_path):
    rng = np.random.default_rng(1)
    large = cv2.GaussianBlur(rng.integers(0, 256, (64, 128, 3), np.uint8), (0, 0), 8)
    for number in range(2):
        write(tmp_path / "images" / f"{number}.png", large)
    write(tmp_path / "conditions" / "depth" / "0.png", cv2.resize(large, (64, 32), interpolation=cv2.INTER_AREA))
    write(tmp_path / "conditions" / "depth" / "1.png", cv2.resize(large, (129, 64)))  # rounded somewhere
    data = config(folder, condition="depth", crop="random", stored=True, batch_size=2)
    data = dataclasses.replace(data, path=str(tmp_path))
    for batch in take(data.batches(0), 5):
        np.testing.assert_allclose(batch["image"], batch["condition"], atol=0.03)
    write(tmp_path / "conditions" / "depth" / "1.png", large[:, :100])
    with pytest.raises(ValueError, match="picture 1: its condition of 100x64 pixels has another aspect") as error:
        take(data.batches(0), 1)
    one_line(error)


def test_conditions_are_made_where_none_is_stored(folder, tmp_path):
    (tmp_path / "conditions" / "canny").mkdir(parents=True)
    (tmp_path / "images").symlink_to(folder / "images")
    (tmp_path / "conditions" / "canny" / "3.png").symlink_to(folder / "conditions" / "canny" / "3.png")
    options = dict(low=20, high=60)
    for stored in (None, False):
        data = dataclasses.replace(
            config(folder, condition="canny", stored=stored, options=options), path=str(tmp_path)
        )
        for batch in take(data.batches(0), 2):
            for image, condition, number in zip(batch["image"], batch["condition"], batch["id"], strict=True):
                expected = image if number == 3 and stored is None else make("canny", image, **options)
                np.testing.assert_array_equal(condition, expected)
    data = dataclasses.replace(config(folder, condition="canny", stored=True), path=str(tmp_path))
    with pytest.raises(ValueError, match=r"picture 0 has no stored condition 'canny' \(it has none at all\)") as error:
        data.batches(0)
    assert "set stored=null" in one_line(error)


def test_made_conditions_vary_with_the_seed(folder):
    data = config(folder, condition="canny", stored=False, vary={"low": [5, 60]}, batch_size=8)
    first, second = (batch["condition"][np.argsort(batch["id"])] for batch in take(data.batches(0), 2))
    assert not np.array_equal(first, second)
    example = data.pictures[1]
    expected = make("canny", example["image"].astype(np.float32) / 255, low=32.5)
    np.testing.assert_array_equal(data.conditioned(example), expected)


def test_the_seed_decides_whatever_the_threads(folder):
    data = config(folder, condition="canny", crop="random", mirror=True, drop=0.3)
    assert_equal(take(data.batches(1), 6), take(dataclasses.replace(data, threads=3).batches(1), 6))
    ids = [np.concatenate([batch["id"] for batch in take(data.batches(seed), 4)]).tolist() for seed in (1, 2)]
    assert ids[0] != ids[1] and sorted(ids[0][:COUNT]) == list(range(COUNT))


def test_a_new_iterator_goes_on_where_the_state_says(folder):
    data = config(folder, condition="canny", crop="random", mirror=True)
    whole = data.batches(7)
    take(whole, 3)
    state = json.loads(json.dumps(whole.get_state()))
    expected = take(whole, 6)
    resumed = config(folder, condition="canny", crop="random", mirror=True).batches(7)
    resumed.set_state(state)
    assert_equal(take(resumed, 6), expected)


def test_held_out_pictures_stay_out_and_stay_the_same(folder):
    splits = {split: set(config(folder, split=split, unseen=0.7).pictures.ids) for split in ("train", "unseen", "all")}
    assert splits["all"] == set(range(COUNT)) == splits["train"] | splits["unseen"]
    assert not splits["train"] & splits["unseen"] and splits["unseen"] == {2, 6, 7}
    drawn = take(config(folder, unseen=0.7).batches(0), 5)
    assert {int(number) for batch in drawn for number in batch["id"]} == splits["train"]
    assert set(config(folder, split="unseen", unseen=0.8).pictures.ids) >= splits["unseen"]


def test_latents_come_in_the_place_of_pictures(folder, tmp_path):
    shape = VAEConfig(latent_channels=2, block_out_channels=(8, 8), layers_per_block=1, norm_num_groups=4)
    save_component(tmp_path / "vae", AutoencoderKL(shape, rngs=nnx.Rngs(0)))
    write_cache(folder, tmp_path / "vae", tmp_path / "latents", batch=3, size=SIZE)
    data = config(folder, condition="canny", stored=True, mirror=True, latents=str(tmp_path / "latents"))
    batch, vae = next(data.batches(0)), load_vae(tmp_path / "vae")
    assert set(batch) == {"latents_mean", "latents_std", "condition", "tokens", "id"}
    posterior = vae.encode(2 * jnp.asarray(batch["condition"]) - 1)  # which is the picture itself
    np.testing.assert_allclose(batch["latents_mean"], posterior.mean, atol=2e-3)
    np.testing.assert_allclose(batch["latents_std"], posterior.std, atol=2e-3)
    assert set(next(dataclasses.replace(data, condition=None, stored=None).batches(0))) == set(batch) - {"condition"}
    for change, value in ((dict(size=8), r"16 .* 8"), (dict(crop="random"), "crop=centre")):
        with pytest.raises(ValueError, match=value):
            dataclasses.replace(data, **change).batches(0)
    with pytest.raises(ValueError, match="text"):
        write_cache(folder, tmp_path / "vae", tmp_path / "other", folder, size=SIZE)


def test_the_evaluation_scores_held_out_pictures_of_ones_own(folder, tmp_path):
    diffusion_base().save(tmp_path / "base")
    data = config(folder, split="all", condition="canny", stored=False, options={"low": 5, "high": 20})
    evaluation = ControlEvaluation(data, {"area": MaskIou()}, str(tmp_path / "base"), 4, 4, (1.0,), steps=2, rows=2)
    names = evaluation.prepare()
    task = ControlTask(str(tmp_path / "base"))
    params = nnx.to_pure_dict(nnx.state(random(MediaPipePlugin, task.config)))
    assert list(evaluation.score(task, params)) == names
    assert data.pictures.caption(1) == "thing 1" and data.pictures[1]["image"].shape == (SIZE, SIZE, 3)
    weights = task.export(tmp_path / "weights", params, {})
    assert "no control" in evaluation.run(str(weights), tmp_path / "out")


def test_a_damaged_picture_is_named(folder, tmp_path):
    (tmp_path / "a.png").write_bytes((folder / "images" / "1.png").read_bytes()[:200])
    data = dataclasses.replace(config(folder, batch_size=1), path=str(tmp_path))
    with pytest.raises(ValueError, match=r"a\.png"):
        next(data.batches(0))


def test_without_captions_all_prompts_are_empty(folder, tmp_path):
    write(tmp_path / "a.png", np.zeros((20, 20, 3), np.uint8))
    data = dataclasses.replace(config(folder, batch_size=1, drop=0), path=str(tmp_path))
    np.testing.assert_array_equal(next(data.batches(0))["tokens"], data.text([""], 12))
    assert data.pictures.caption(0) == ""


@pytest.mark.parametrize(
    ("changes", "value"),
    [
        (dict(size=0), "size 0"),
        (dict(length=2), "length 2"),
        (dict(drop=1.5), "drop 1.5"),
        (dict(unseen=1), "unseen 1"),
        (dict(batch_size=9), "batch_size 9.* 8"),
        (dict(split="unseen"), "'unseen'"),
        (dict(condition="cany"), "'cany'.* canny.* stored=true"),
        (dict(condition="cany", stored=True), "0.* canny, face, own"),
        (dict(condition="own", stored=True, mirror=True), "'own'.* mirror=false"),
        (dict(condition="own", stored=True, options={"low": 3}), "'own'"),
        (dict(condition="canny", options={"sigma": 1}), "'sigma'"),
        (dict(condition="canny", vary={"low": [3, 1]}), r"vary\.low.* \[3, 1\]"),
    ],
)
def test_invalid_values_are_refused(folder, changes, value):
    with pytest.raises(ValueError, match=value) as error:
        config(folder, **changes).batches(0)
    one_line(error)


def test_missing_files_and_conditions_are_refused(folder, tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        dataclasses.replace(config(folder), path=str(tmp_path / "nowhere")).batches(0)
    with pytest.raises(FileNotFoundError, match="'nowhere'"):
        config(folder, tokenizer="nowhere").batches(0)
    assert len(config(folder, tokenizer=None).text.vocab) == 2048  # the shipped base's
    data = config(folder)
    with pytest.raises(ValueError, match="condition is null"):
        data.conditioned(data.pictures[0])


def test_a_kind_of_ones_own_needs_no_maker(folder):
    batch = next(config(folder, condition="own", stored=True).batches(0))
    np.testing.assert_array_equal(batch["image"], batch["condition"])


def test_the_config_file_lists_every_field_with_its_default():
    loaded = OmegaConf.to_container(OmegaConf.load(ROOT / "configs" / "data" / "own_pictures.yaml"), resolve=True)
    assert isinstance(loaded, dict)
    assert loaded.pop("_target_") == "plugins.data.own_batches.OwnPicturesConfig"
    assert loaded.pop("path") == "???"
    assert loaded == {
        f.name: getattr(OwnPicturesConfig("x"), f.name) for f in dataclasses.fields(OwnPicturesConfig)[1:]
    }


def test_a_source_may_be_named_in_the_config():
    source = {"_target_": "plugins.data.TfdsPictures", "dataset": "mine", "caption": "label"}
    made = instantiate({"_target_": "plugins.data.own_batches.OwnPicturesConfig", "path": source}, "data")
    assert made.path == TfdsPictures("mine", caption="label")


def test_the_documented_commands_compose():
    register()
    words = ["experiment=control_canny", "data=own_pictures", "data.path=my/pictures"]
    with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        made = compose("eval", [*words, "evaluation=own_pictures"])
    data, evaluation = instantiate(made.data, "data"), instantiate(made.evaluation, "evaluation")
    assert (data.path, data.condition, data.tokenizer, data.split) == ("my/pictures", "canny", made.task.base, "train")
    assert dataclasses.replace(evaluation.data, vary={}) == OwnPicturesConfig(
        "my/pictures", split="unseen", condition="canny", tokenizer=made.task.base
    )
