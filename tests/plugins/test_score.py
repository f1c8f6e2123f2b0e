"""A base's score: its own pictures beside anchors, the same each time, and one line for what cannot be."""

import json
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from networks import one_line
from tiny_base import diffusion_base, pixel_base

from common import terminal
from common.io.images import read_image, to_uint8
from common.perceptual.efficientnet import EfficientNet, EfficientNetConfig, Stage, shapes
from common.perceptual.efficientnet_weights import save_efficientnet
from plugins.diffusion.request import make_request
from plugins.evaluation import base_quality
from plugins.metrics import frechet_distance, kid

SIDE = 16
NETWORK = EfficientNetConfig((Stage(3, 1, 1, 4, 1),), stem=4, features=6, classes=2, side=16)
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


@pytest.fixture(autouse=True)
def leave_the_process_alone(monkeypatch):
    monkeypatch.setattr("plugins.evaluation.base_quality.setup", lambda: None)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A folder of pictures, a base and a network of features."""
    folder, rng = tmp_path_factory.mktemp("score"), np.random.default_rng(0)
    (folder / "pictures").mkdir()
    names = [split for split, count in SPLITS.items() for _ in range(count)]
    entries = [
        {"label": f"thing {i}", "style": f"style {i % 2}", "group": "all", "tags": [], "mirror": False, "split": split}
        for i, split in enumerate(names)
    ]
    (folder / "pictures" / "index.json").write_text(json.dumps({"pictures": entries}))
    np.save(folder / "pictures" / "images.npy", rng.integers(0, 256, (len(names), SIDE, SIDE, 3), np.uint8))
    params = {
        name: {leaf: jnp.asarray(rng.random(x.shape), jnp.float32) for leaf, x in leaves.items()}
        for name, leaves in shapes(NETWORK).items()
    }
    save_efficientnet(folder / "network.safetensors", EfficientNet(params, NETWORK), {})
    diffusion_base().save(folder / "base")
    return folder


def run(folder: Path, monkeypatch, *words: str, base: str = "base") -> None:
    """The program as it is typed, in a few steps."""
    monkeypatch.chdir(folder)
    settings = ["--steps", "3", "--batch", "2", "--weights", "network.safetensors"]
    monkeypatch.setattr(sys, "argv", ["score", base, "pictures", *settings, *words])
    terminal.program(base_quality.main)


def test_a_table_and_its_file(made, tmp_path, monkeypatch, capsys):
    run(made, monkeypatch, "--output", str(tmp_path / "score.json"), "--page", str(tmp_path / "page.png"))
    height, width, _ = read_image(tmp_path / "page.png").shape
    assert width > 6 * 16 and height > 16, "six pictures, in one row"
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("| pictures") and said[-1].startswith("Distances to 6 held-out pictures.")
    assert "not comparable with published FID" in said[-1]
    assert len({len(line) for line in said[:-1]}) == 1, "columns stand below each other"
    found = json.loads((tmp_path / "score.json").read_text())
    assert {row["pictures"]: row["count"] for row in found["rows"]} == ROWS
    for row, line in zip(found["rows"], said[2:-1], strict=True):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert cells == [
            *(row["pictures"], str(row["count"]), f"{row['frechet']:.2f}"),
            f"{1000 * row['kid']:.2f} ± {1000 * row['kid_error']:.2f}",
        ]
    assert {key: found[key] for key in ("base", "steps", "guidance", "sampler", "seed")} == {
        **{"base": "base", "steps": 3, "guidance": 4.0, "sampler": "ddim", "seed": 0}
    }
    assert found["reference"] == {"pictures": "pictures", "splits": ["unseen", "unseen_style"], "count": 6}


def test_rows_are_distances_to_the_held_out_pictures(made):
    images = np.load(made / "pictures" / "images.npy")
    held, test = images[12:18], images[18:]
    network = base_quality.load_efficientnet(made / "network.safetensors")
    (row, itself) = base_quality.rows(network, held, iter([("test", test), ("itself", held), ("too few", held[:2])]))
    features, truth = network.embed(test), network.embed(held)
    assert row == {
        **{"pictures": "test", "count": 5, "frechet": frechet_distance(features, truth)},
        **{"kid": kid(features, truth).value, "kid_error": kid(features, truth).error},
    }
    assert itself["frechet"] < 1e-9 < row["frechet"]


def test_the_sets_are_what_the_table_says(made):
    base, images = diffusion_base(), np.load(made / "pictures" / "images.npy")
    held, train, test = (
        base_quality.read(made / "pictures", s) for s in (("unseen", "unseen_style"), ["train"], ["test"])
    )
    np.testing.assert_array_equal(held.images, images[12:18])
    assert held.captions[4] == "thing 16, style 0" and held.kinds[4] == ("style 0", "all")
    captions = [held.captions[i % 6] for i in range(7)]  # one more than there are
    request = make_request(base.base, captions, seeds=range(5, 12), steps=3)
    found = dict(base_quality.sets(base, base_quality.drawn(base, request, 16, 2), held, train, test, 5))
    assert list(found) == list(ROWS)
    pictures = base(captions[5:7], seeds=[10, 11], **QUICK)
    np.testing.assert_array_equal(found["base"][5:], to_uint8(pictures))
    numbers = [
        next(i for i, image in enumerate(images) if np.array_equal(image, row)) for row in found["training pictures"]
    ]
    assert len(set(numbers)) == 7 and max(numbers) < 12
    assert [number % 2 for number in numbers] == [0, 1, 0, 1, 0, 1, 0]  # the styles of the captions
    vae, real = base.vae, found["training pictures"].astype(np.float32) / 255
    assert vae is not None
    back = vae.decode(vae.encode(jnp.asarray(2 * real - 1)).mode) / 2 + 0.5
    decoded = found["training pictures through its autoencoder"].astype(np.float32) / 255
    np.testing.assert_allclose(decoded, np.clip(back, 0, 1), atol=0.01)
    np.testing.assert_allclose(found["mean colours"][6, 3, 4], images[12].mean((0, 1)), atol=0.51)
    assert np.ptp(found["mean colours"], axis=(1, 2)).max() == 0
    assert sorted(map(bytes, found["test pictures"])) == sorted(map(bytes, test.images))
    assert 120 < found["noise"].mean() < 135
    again = dict(base_quality.sets(base, base_quality.drawn(base, request, 16, 2), held, train, test, 5))
    assert all(np.array_equal(found[name], again[name]) for name in found)


def test_a_base_of_pixels_and_of_another_size(made):
    """No autoencoder, no row of it; its pictures are shrunk to the real ones' size."""
    base = pixel_base()
    held = base_quality.read(made / "pictures", ["unseen"])
    held = held._replace(images=held.images[:, :4, :4])
    request = make_request(base.base, held.captions[:3], seeds=range(3), steps=2)
    found = dict(base_quality.sets(base, base_quality.drawn(base, request, 4, 3), held, held, held, 0))
    assert "training pictures through its autoencoder" not in found
    assert {images.shape for images in found.values()} == {(3, 4, 4, 3)}


def test_others_of_the_same_kind_are_drawn_without_putting_back():
    wanted, there = ["a", "b", "a", "c", "a"], ["b", "a", "b", "a", "b"]
    found = base_quality.matched(wanted, there, np.random.default_rng(0))
    assert [there[place] for place in found] == ["a", "b", "a"] and len(set(found)) == 3
    drawn = {tuple(base_quality.matched(wanted, there, np.random.default_rng(seed))) for seed in range(30)}
    assert len(drawn) == 2 * 3


@pytest.mark.parametrize(
    ("words", "base", "said"),
    [
        ([], "nowhere", "nowhere"),
        (["--weights", "none.safetensors"], "base", "python -m recipes.downloads.efficientnet"),
        (["--count", "2"], "base", "3 or more"),
        (["--seed", "-1"], "base", "seed -1"),
        (["--batch", "0"], "base", "batch=0"),
        (["--steps", "0"], "base", "steps"),
        (["--sampler", "magic"], "base", "magic"),
        (["--output", "network.safetensors"], "base", "--overwrite"),
        (["--page", "network.safetensors"], "base", "--overwrite"),
    ],
)
def test_what_cannot_be_is_one_line_before_anything_is_computed(made, monkeypatch, capsys, words, base, said):
    monkeypatch.setattr(base_quality, "load", lambda *_: pytest.fail("loaded"))
    before = sorted(made.rglob("*"))
    with pytest.raises(SystemExit) as stop:
        run(made, monkeypatch, *words, base=base)
    error = capsys.readouterr().err
    assert stop.value.code == 2 and error.count("\n") == 1 and said in error
    assert sorted(made.rglob("*")) == before


def test_a_folder_without_held_out_pictures(made, tmp_path):
    entries = json.loads((made / "pictures" / "index.json").read_text())["pictures"]
    for entry in entries:
        entry["split"] = "train"
    (tmp_path / "index.json").write_text(json.dumps({"pictures": entries}))
    (tmp_path / "images.npy").write_bytes((made / "pictures" / "images.npy").read_bytes())
    with pytest.raises(ValueError, match="'unseen' is not in") as error:
        base_quality.score(made / "base", tmp_path, weights=made / "network.safetensors")
    one_line(error)


def test_captions_that_are_too_long_are_one_warning(made, tmp_path, monkeypatch, capsys):
    index = json.loads((made / "pictures" / "index.json").read_text())
    for entry in index["pictures"]:
        entry["label"] += " tail" * 20
    (tmp_path / "index.json").write_text(json.dumps(index))
    (tmp_path / "images.npy").write_bytes((made / "pictures" / "images.npy").read_bytes())
    monkeypatch.setattr(base_quality, "load", lambda *_: (_ for _ in ()).throw(ValueError("far enough")))
    with pytest.raises(ValueError, match="far enough"):
        base_quality.score(made / "base", tmp_path, weights=made / "network.safetensors", steps=3)
    said = capsys.readouterr().err
    assert said.startswith("warning: 6 captions are too long; the first: ") and said.count("\n") == 1
