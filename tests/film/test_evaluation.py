"""Scores: the baselines do what they are called, and an evaluation leaves its table on disk, once."""

import csv
import json

import cv2
import numpy as np
import pytest
from toy import toy

import film
from common.images import read_image, write_image
from common.metrics import psnr
from film.baselines import average, dis, dis_flow
from film.evaluation import FilmEvaluation, summarise, table

HEIGHT, WIDTH = 64, 96


def textured(shift: float, seed: int = 0) -> np.ndarray:
    """Blobs of some 8 px, moved to the right by `shift` px."""
    noise = np.random.default_rng(seed).random((HEIGHT // 8 + 1, WIDTH // 8 + 9, 3)).astype(np.float32)
    big = cv2.resize(noise, None, fx=8, fy=8, interpolation=cv2.INTER_CUBIC)
    matrix = np.array([[1, 0, shift - 32], [0, 1, 0]], np.float32)
    return np.clip(cv2.warpAffine(big, matrix, (WIDTH, HEIGHT)), 0, 1)


def test_average_is_the_mean():
    x0, x1 = textured(0), textured(5)
    np.testing.assert_allclose(average(x0, x1), (x0 + x1) / 2)


@pytest.mark.parametrize("motion", [6, -6])
def test_flow_between_translated_frames_is_the_translation(motion):
    flow = dis(textured(0), textured(motion))[16:-16, 16:-16]
    assert abs(np.median(flow[..., 0]) - motion) < 0.5 and abs(np.median(flow[..., 1])) < 0.5


@pytest.mark.parametrize("motion", [6, -6])
def test_a_flow_warp_finds_the_middle_that_an_average_blurs(motion):
    x0, y, x1 = (textured(t * motion)[16:-16] for t in (0, 0.5, 1))
    blurred, warped = psnr(average(x0, x1), y), psnr(dis_flow(x0, x1)[:, 16:-16], y[:, 16:-16])
    assert warped > blurred + 6


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Two triplets in Vimeo's layout, and weights."""
    folder = tmp_path_factory.mktemp("evaluation")
    for number in (1, 2):
        for i, t in enumerate((0, 0.5, 1), 1):
            write_image(folder / f"triplets/0000{number}/im{i}.png", textured(4 * number * t, seed=number))
    film.save_model(folder / "toy.safetensors", toy())
    return folder


def evaluation(place, **changes) -> FilmEvaluation:
    return FilmEvaluation(str(place / "triplets"), **(dict(scales=(1.0, 0.5), worst=1, progress=False) | changes))


def test_an_evaluation_writes_scores_a_summary_and_the_worst(place):
    printed = evaluation(place).run(str(place / "toy.safetensors"), place / "out")
    assert {p.name for p in (place / "out").iterdir()} == {"results.csv", "summary.json", "worst.png"}
    with (place / "out" / "results.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 2 * 2 * 3  # triplets x scales x methods
    assert {row["name"] for row in rows} == {"00001", "00002"}
    x0, y, x1 = (read_image(place / f"triplets/00002/im{i}.png") for i in (1, 2, 3))
    (own,) = (r for r in rows if (r["name"], r["method"], r["scale"]) == ("00002", "average", "1.0"))
    assert float(own["psnr"]) == pytest.approx(psnr(average(x0, x1), y))
    ours = film.load(place / "toy.safetensors")
    (own,) = (r for r in rows if (r["name"], r["method"], r["scale"]) == ("00002", "film", "1.0"))
    middle = list(film.interpolate(ours, [x0, x1], times=1))[1]
    assert float(own["psnr"]) == pytest.approx(psnr(middle, y), abs=1e-3)
    summary = json.loads((place / "out" / "summary.json").read_text())["scores"]
    assert [(s["scale"], s["method"]) for s in summary] == [
        (scale, method) for scale in (1.0, 0.5) for method in ("film", "dis-flow", "average")
    ]
    mean = np.mean([float(r["psnr"]) for r in rows if (r["method"], r["scale"]) == ("average", "1.0")])
    assert summary[2]["psnr"] == pytest.approx(mean)
    lines = printed.splitlines()
    assert len(lines) == 2 + 6 and all(line.startswith("|") and line.endswith("|") for line in lines)
    assert f"{mean:.2f}" in lines[4] and len({line.count("|") for line in lines}) == 1
    assert read_image(place / "out" / "worst.png").shape[1] > 7 * 300


def test_scores_are_not_written_over(place):
    target = place / "taken"
    target.mkdir()
    (target / "summary.json").write_text("precious")
    with pytest.raises(FileExistsError, match="overwrite") as error:
        evaluation(place).run(str(place / "toy.safetensors"), target)
    assert "\n" not in str(error.value)
    assert {p.name: p.read_text() for p in target.iterdir()} == {"summary.json": "precious"}


def test_no_triplets_is_an_error_and_leaves_nothing(place, tmp_path):
    with pytest.raises(FileNotFoundError):
        FilmEvaluation(str(tmp_path)).run(str(place / "toy.safetensors"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_summary_counts_who_is_better():
    rows = [
        dict(scale=1.0, name=name, method=method, psnr=value, ssim=0.5)
        for name, values in {"a": (30.0, 29.0, 20.0), "b": (25.0, 27.0, 21.0)}.items()
        for method, value in zip(("film", "dis-flow", "average"), values, strict=True)
    ]
    ours, flow, blend = summarise(rows)
    assert (ours["psnr"], flow["psnr"], blend["psnr"]) == (27.5, 28.0, 20.5)
    assert (flow["film_is_better"], blend["film_is_better"]) == (0.5, 1.0)
    assert "50 %" in table([ours, flow, blend]) and "100 %" in table([ours, flow, blend])
