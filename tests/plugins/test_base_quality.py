"""Quality of a base: its images and the anchors, the same each time, and one line for an error."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx
from hydra import compose, initialize_config_module
from prepared import write_efficientnet, write_prepared
from refusal import refused
from tiny_base import diffusion_base, pixel_base

from common.io.images import read_image, to_uint8
from common.training.run import evaluate_from_config
from plugins.diffusion.request import make_request
from plugins.evaluation import base_quality
from plugins.evaluation.base_quality import BaseQuality, Real
from plugins.metrics import frechet_distance, kid

SIDE = 16
SPLITS = {"train": 12, "unseen": 4, "unseen_style": 2, "test": 5}
QUICK = {"steps": 3, "batch": 2}  # the programs that test_pipeline.py compiles, too
ROWS = {
    "base": 6,
    "training pictures": 6,
    "training pictures through its autoencoder": 6,
    "test pictures": 5,
    "mean colours": 6,
    "noise": 6,
}


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A prepared folder, a base and a network of features."""
    folder, rng = tmp_path_factory.mktemp("score"), np.random.default_rng(0)
    splits = [split for split, count in SPLITS.items() for _ in range(count)]
    images = rng.integers(0, 256, (len(splits), SIDE, SIDE, 3), np.uint8)

    def entry(i):
        too_long = {"label": f"thing {i}" + " tail" * 20} if i == 16 else {}
        return {"style": f"style {i % 2}", "split": splits[i], **too_long}

    write_prepared(folder / "pictures", images, entry)
    write_efficientnet(folder / "network.safetensors")
    diffusion_base().save(folder / "base")
    return folder


def quality(made: Path, **changes) -> BaseQuality:
    settings = {"features": str(made / "network.safetensors"), "steps": 3, "batch": 2} | changes
    return BaseQuality(**{"pictures": str(made / "pictures")} | settings)


@pytest.mark.long
def test_the_command(made, tmp_path, monkeypatch, caplog, capsys):
    """`python eval.py evaluation=base_quality weights=BASE`."""
    monkeypatch.setattr("common.training.run.setup", lambda: None)
    settings = {field: getattr(quality(made), field) for field in ("pictures", "features", "steps", "batch")}
    words = [f"evaluation.{name}={value}" for name, value in settings.items()]
    with initialize_config_module("configs", version_base="1.3"):
        config = compose("eval", ["evaluation=base_quality", f"weights={made / 'base'}", f"output={tmp_path}", *words])
    with caplog.at_level("INFO", "common.training.run"):
        evaluate_from_config(config)
    assert capsys.readouterr().err.startswith("warning: 1 captions")  # the one with a long tail
    height, width, _ = read_image(tmp_path / "page.png").shape
    assert width > 6 * 16 and height > 16, "six images, in one row"
    found = json.loads((tmp_path / "results.json").read_text())
    assert {row["pictures"]: row["count"] for row in found["rows"]} == ROWS
    for row, line in zip(found["rows"], caplog.messages[-1].splitlines()[2:-1], strict=True):
        kernel = f"{1000 * row['kid']:.2f} ± {1000 * row['kid_error']:.2f}"
        assert line == f"| {row['pictures']} | {row['count']} | {row['frechet']:.2f} | {kernel} |"
    expected = {"base": str(made / "base"), "steps": 3, "guidance": 4.0, "sampler": "ddim", "seed": 0}
    splits = ["unseen", "unseen_style"]
    expected["reference"] = {"pictures": str(made / "pictures"), "splits": splits, "count": 6}
    assert {name: found[name] for name in expected} == expected


def test_rows_are_distances_to_the_held_out_images(made):
    images = np.load(made / "pictures" / "images.npy")
    held, test = images[12:18], images[18:]
    network = base_quality.load_efficientnet(made / "network.safetensors")
    sets = iter([("test", test), ("itself", held), ("too few", held[:2])])
    row, itself = base_quality.distances(network, held, sets)
    features, truth = network.embed(test), network.embed(held)
    kernel = kid(features, truth)
    distances = {"frechet": frechet_distance(features, truth), "kid": kernel.value, "kid_error": kernel.error}
    assert row == {"pictures": "test", "count": 5, **distances}
    assert itself["frechet"] < 1e-9 < row["frechet"]


@pytest.mark.long
def test_the_sets_are_those_of_the_table(made):
    base, images = diffusion_base(), np.load(made / "pictures" / "images.npy")
    splits = ("unseen", "unseen_style"), ("train",), ("test",)
    held, train, test = (Real.read(str(made / "pictures"), names) for names in splits)
    np.testing.assert_array_equal(held.images, images[12:18])
    assert held.captions[3] == "thing 15, style 1" and held.kinds[4] == ("style 0", "all")
    captions = [held.captions[i % 6] for i in range(7)]  # one more than there are
    request = make_request(base.base, captions, seeds=range(5, 12), steps=3)
    generated = base_quality.generate(base, request, 16, 2)
    found = dict(base_quality.anchors(base, generated, held, train, test, 5))
    assert list(found) == list(ROWS)
    np.testing.assert_array_equal(found["base"][5:], to_uint8(base(captions[5:7], seeds=[10, 11], **QUICK)))
    real = found["training pictures"]
    numbers = [next(i for i, image in enumerate(images) if np.array_equal(image, row)) for row in real]
    assert len(set(numbers)) == 7 and max(numbers) < 12
    assert [number % 2 for number in numbers] == [0, 1, 0, 1, 0, 1, 0]  # the styles of the captions
    graph, state = nnx.split(base.vae)

    @jax.jit
    def decoded(state, image):
        vae = nnx.merge(graph, state)
        return vae.decode(vae.encode(2 * image - 1).mean) / 2 + 0.5

    expected = np.clip(decoded(state, real.astype(np.float32) / 255), 0, 1)
    np.testing.assert_allclose(found["training pictures through its autoencoder"] / 255, expected, atol=0.01)
    np.testing.assert_allclose(found["mean colours"][6, 3, 4], images[12].mean((0, 1)), atol=0.51)
    assert np.ptp(found["mean colours"], axis=(1, 2)).max() == 0
    assert sorted(map(bytes, found["test pictures"])) == sorted(map(bytes, test.images))
    assert 120 < found["noise"].mean() < 135
    again = dict(base_quality.anchors(base, generated, held, train, test, 5))
    assert all(np.array_equal(found[name], again[name]) for name in found)


def test_a_base_of_pixels_and_of_another_size(made, monkeypatch):
    """Without an autoencoder its row is missing; larger images are downscaled to the real ones' size."""
    base, noise = pixel_base(), np.random.default_rng(0).random((3, 8, 8, 3), np.float32)
    monkeypatch.setattr(type(base), "run", lambda *_, **__: iter([noise[:2], noise[2:]]))
    held = Real.read(str(made / "pictures"), ["unseen"])
    held = held._replace(images=held.images[:, :4, :4])
    request = make_request(base.base, held.captions[:3], seeds=range(3), steps=2)
    generated = base_quality.generate(base, request, 4, 3)
    np.testing.assert_allclose(generated[1], 255 * noise[1].reshape(4, 2, 4, 2, 3).mean((1, 3)), atol=1)
    found = dict(base_quality.anchors(base, generated, held, held, held, 0))
    assert "training pictures through its autoencoder" not in found
    assert {images.shape for images in found.values()} == {(3, 4, 4, 3)}


@pytest.mark.parametrize(("changes", "base", "value"), [
    ({}, "nowhere", "nowhere"),
    ({"features": "none.safetensors"}, "base", "none.safetensors"),
    ({"held_out": ["nosuch"]}, "base", "nosuch"),
    ({"count": 2}, "base", "^2 "),
    ({"seed": -1}, "base", "seed -1"),
    ({"batch": 0}, "base", "batch=0"),
    ({"steps": 0}, "base", "steps"),
    ({"sampler": "magic"}, "base", "magic"),
])  # fmt: skip
def test_settings_that_are_refused_before_the_base_is_loaded(made, tmp_path, monkeypatch, changes, base, value):
    monkeypatch.setattr(base_quality, "from_files", lambda *_: pytest.fail("loaded"))
    kinds, out = (ValueError, OSError), tmp_path / "out"
    refused(kinds, lambda: quality(made, **changes).run(str(made / base), out), match=value)
    assert not (tmp_path / "out").exists()
