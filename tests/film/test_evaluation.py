"""Scores: the baselines do what they are called, and an evaluation leaves on disk what it saw, once."""

import csv
import dataclasses
import json
import types
import warnings

import cv2
import numpy as np
import pytest
from flax import nnx
from omegaconf import DictConfig, OmegaConf
from toy import CONFIG, toy

import film
from common.evaluation.metrics import L1, Psnr, Ssim, psnr
from common.io.images import read_image, write_image
from film.data.datasets import FolderTriplets
from film.data.triplet import Triplet
from film.evaluation.baselines import average, dis, dis_flow, steady_flow, true_flow
from film.evaluation.image_summaries import Gallery
from film.evaluation.triplet_evaluation import FilmEvaluation, network
from film.model import _interpolate

with warnings.catch_warnings():  # beartype on OmegaConf's DictConfig, a subclass of typing.MutableMapping
    warnings.simplefilter("ignore")
    from common.training.run import evaluate_from_config

HEIGHT, WIDTH = 64, 96
METRICS = {"psnr": Psnr(), "ssim": Ssim(), "l1": L1()}


def textured(shift: float, seed: int = 0) -> np.ndarray:
    """Blobs of some 8 px, moved to the right by `shift` px."""
    noise = np.random.default_rng(seed).random((HEIGHT // 8 + 1, WIDTH // 8 + 9, 3)).astype(np.float32)
    big = cv2.resize(noise, None, fx=8, fy=8, interpolation=cv2.INTER_CUBIC)
    matrix = np.array([[1, 0, shift - 32], [0, 1, 0]], np.float32)
    return np.clip(cv2.warpAffine(big, matrix, (WIDTH, HEIGHT)), 0, 1)


def test_average_is_the_mean_weighted_by_time():
    x0, x1 = textured(0), textured(5)
    np.testing.assert_allclose(average(x0, x1).image, (x0 + x1) / 2)
    np.testing.assert_allclose(average(x0, x1, 0.25).image, 0.75 * x0 + 0.25 * x1, rtol=1e-6)
    assert average(x0, x1).flow is None


def test_flow_between_translated_frames_is_the_translation(motion=6):
    flow = dis(textured(0), textured(motion))[16:-16, 16:-16]
    assert abs(np.median(flow[..., 0]) - motion) < 0.5 and abs(np.median(flow[..., 1])) < 0.5
    np.testing.assert_array_equal(dis_flow(textured(0), textured(motion)).flow[16:-16, 16:-16], flow)


@pytest.mark.parametrize(("motion", "time"), [(6, 0.5), (-6, 0.25)])
def test_a_flow_warp_finds_the_moment_that_an_average_blurs(motion, time):
    x0, y, x1 = (textured(t * motion)[16:-16] for t in (0, time, 1))
    blurred, warped = psnr(average(x0, x1, time).image, y), psnr(dis_flow(x0, x1, time).image[:, 16:-16], y[:, 16:-16])
    assert warped > blurred + 5


def test_oracles_know_the_path_and_one_of_them_the_speed():
    x0, y, x1 = (textured(moved)[16:-16] for moved in (0, 3, 12))  # three, then nine pixels
    late, steady = textured(3)[16:-16, 16:-16], textured(6)[16:-16, 16:-16]
    exact, assumed = (oracle(x0, y, x1).image[:, 16:-16] for oracle in (true_flow, steady_flow))
    assert psnr(exact, late) > 30 > psnr(assumed, late)
    assert psnr(assumed, steady) > 30 > psnr(exact, steady)


def test_the_network_takes_midpoints_of_midpoints():
    model, x0, x1 = toy(), textured(0), textured(6)
    frames = list(film.interpolate(model, [x0, x1], times=2))
    for i, time in enumerate((0.25, 0.5, 0.75), 1):
        np.testing.assert_allclose(network(model)(x0, x1, time).image, frames[i], atol=1e-5)
    out = model(x0[None], x1[None], 0.3)
    np.testing.assert_allclose(network(model)(x0, x1, 0.3).image, out.image[0], atol=1e-6)
    np.testing.assert_allclose(network(model)(x0, x1).flow, model(x0[None], x1[None]).forward_flow[0][0], atol=1e-6)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Three triplets of growing motion in Vimeo's layout, and weights."""
    folder = tmp_path_factory.mktemp("evaluation")
    for number in (1, 2, 3):
        for i, t in enumerate((0, 0.5, 1), 1):
            write_image(folder / f"triplets/0000{number}/im{i}.png", textured(4 * number * t, seed=number))
    film.save_model(folder / "toy.safetensors", toy())
    return folder


def evaluation(place, **changes) -> FilmEvaluation:
    fields = dict(metrics=METRICS, sets={"film": FolderTriplets(place / "triplets")}, worst=1, progress=False)
    return FilmEvaluation(**(fields | changes))


@dataclasses.dataclass
class Counted:
    """A test set in memory that counts how often it is asked."""

    triplets: list[Triplet]
    asked: list[int] = dataclasses.field(default_factory=list)

    def __len__(self) -> int:
        return len(self.triplets)

    def __getitem__(self, index: int) -> Triplet:
        self.asked.append(index)
        return self.triplets[index]


def still(name: str = "still", time: float = 0.5) -> Triplet:
    return Triplet(name, textured(0), textured(0), textured(0), time)


def scores_of(folder) -> list[dict]:
    return json.loads((folder / "summary.json").read_text())["scores"]


def rows_of(folder) -> list[dict]:
    with (folder / "results.csv").open() as stream:
        return list(csv.DictReader(stream))


def test_an_evaluation_writes_scores_a_summary_and_the_worst(place):
    out = place / "out"
    printed = evaluation(place, scales=[1.0, 0.5]).run(str(place / "toy.safetensors"), out)
    assert {p.name for p in out.iterdir()} == {"results.csv", "summary.json", "worst_film.png"}
    rows = rows_of(out)
    assert len(rows) == 3 * 2 * 3  # triplets x scales x methods
    x0, y, x1 = (read_image(place / f"triplets/00002/im{i}.png") for i in (1, 2, 3))
    expected = {"average": average(x0, x1).image, "film": list(film.interpolate(toy(), [x0, x1], times=1))[1]}
    for method, image in expected.items():
        (own,) = (r for r in rows if (r["name"], r["method"], r["scale"]) == ("00002", method, "1.0"))
        assert float(own["psnr"]) == pytest.approx(psnr(image, y), abs=1e-3)
        assert float(own["l1"]) == pytest.approx(np.abs(np.clip(image, 0, 1) - y).mean(), abs=1e-5)
    summary = scores_of(out)
    assert {(s["set"], s["scale"], s["method"]) for s in summary} == {
        ("film", scale, method) for scale in (1.0, 0.5) for method in ("film", "dis-flow", "average")
    }
    (mean,) = (s["psnr"] for s in summary if (s["method"], s["scale"]) == ("average", 0.5))
    assert mean == pytest.approx(np.mean([float(r["psnr"]) for r in rows if r["method"] == "average"][1::2]))
    lines = printed.splitlines()
    assert len(lines) == 2 + 6 and all(line.startswith("|") and line.endswith("|") for line in lines)
    assert f"{mean:.2f}" in printed and len({line.count("|") for line in lines}) == 1
    height, width = read_image(out / "worst_film.png").shape[:2]
    assert 7 * 320 < width < 8 * 320 and height < 2 * 320 * HEIGHT / WIDTH  # one row of seven


def test_oracles_are_scored_last_and_where_the_truth_is_known(place):
    triplet = FolderTriplets(place / "triplets")[2]
    y = triplet.y.copy()
    y[:8] = np.nan
    asked = evaluation(place, sets={"known": Counted([triplet._replace(y=y)])}, oracles=["steady-flow", "true-flow"])
    asked.run("average", place / "known")
    scores = scores_of(place / "known")
    assert [s["method"] for s in scores] == ["average", "dis-flow", "steady-flow", "true-flow"]
    assert scores[3]["psnr"] > scores[0]["psnr"] + 3


def test_what_is_no_number_is_said_and_stays_valid_json(tmp_path, monkeypatch):
    def broken(x0, x1, time):
        return average(x0 * np.nan if x0[0, 0, 0] == textured(0, 1)[0, 0, 0] else x0, x1, time)

    monkeypatch.setitem(film.evaluation.baselines.METHODS, "average", broken)
    moving = Triplet("moving", *(textured(t, seed=1) for t in (0, 2, 4)))
    data = Counted([still(), moving])
    printed = FilmEvaluation(METRICS, {"a": data}, baselines=(), progress=False).run("average", tmp_path)
    text = (tmp_path / "summary.json").read_text()
    (line,) = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))["scores"]
    assert line["psnr"] is None and line["not_finite"] == {"psnr": 1, "ssim": 1, "l1": 1} and "nan" in printed
    magenta = read_image(tmp_path / "worst_a.png")[100, 3 * 324 + 160]
    np.testing.assert_allclose(magenta, (1, 0, 1), atol=0.01)  # the row with NaN is first, and marked


def test_the_worst_are_kept_and_no_more():
    gallery, drawn = Gallery(2), []
    for i, lead in enumerate((3.0, 1.0, 2.0, 5.0, -np.inf, 1.0)):
        gallery.offer(i, lead, lambda i=i: drawn.append(i) or [])
    assert [index for _, index, _ in gallery.worst] == [4, 1] and drawn == [0, 1, 2, 4]
    Gallery(0).offer(0, 0.0, lambda: pytest.fail("drawn"))


def test_training_scores_parameters_as_the_full_evaluation_does(place):
    model = toy()
    task = types.SimpleNamespace(model=CONFIG)
    params = nnx.to_pure_dict(nnx.state(model))
    used = evaluation(place, training_limit=2, training_metrics=["psnr"], scales=(1.0, 0.5), oracles=["true-flow"])
    scores = used.score(task, params)
    used.run(str(place / "toy.safetensors"), place / "full")
    own = [float(r["psnr"]) for r in rows_of(place / "full") if (r["method"], r["scale"]) == ("film", "1.0")]
    assert scores == {"film/psnr": pytest.approx(np.mean(own[:2]), abs=1e-3)}
    programs = _interpolate._cache_size()
    whole = dataclasses.replace(used, training_limit=0)
    assert whole.prepare() == ["film/psnr"]
    assert whole.score(task, params) == {"film/psnr": pytest.approx(np.mean(own), abs=1e-3)}
    assert _interpolate._cache_size() == programs  # not compiled again


def test_triplets_are_read_once_up_to_the_limit_at_their_time(tmp_path):
    """Nothing is drawn or kept of the fourth, which would be the worst of all."""
    x0, x1 = textured(0), textured(0, seed=1)
    good = [Triplet(f"ok{i}", x0, 0.75 * x0 + 0.25 * x1, x1, 0.25) for i in range(3)]
    data = Counted([*good, Triplet("bad", x0, 1 - x0, x0)])
    limited = FilmEvaluation(METRICS, {"a": data, "b": data}, scales=(1.0, 0.5), limit=2, worst=3, progress=False)
    printed = limited.run("average", tmp_path)
    assert data.asked == [0, 1, 0, 1] and "average is better" in printed
    assert {row["name"] for row in rows_of(tmp_path)} == {"ok0", "ok1"}
    assert [float(row["psnr"]) for row in rows_of(tmp_path) if row["method"] == "average"][:1] == [100]
    both = read_image(tmp_path / "worst_a.png").shape[0]
    assert 2 * 320 * HEIGHT / WIDTH < both < 3 * 320 * HEIGHT / WIDTH  # two rows, not three


def test_refusals_before_any_work(place, tmp_path):
    """Files that are there, a set that is missing, images of different sizes: nothing is scored and nothing changes."""
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/summary.json").write_text("precious")
    sets = {"film": Counted([still()]), "gone": FolderTriplets(tmp_path / "gone")}
    sizes = {"film": Counted([still("00007")._replace(y=textured(0)[:-1])])}
    refused = [("taken", {}, FileExistsError, "overwrite"), ("out", {"sets": sets}, FileNotFoundError, "gone")]
    for name, changes, error, value in [*refused, ("out", {"sets": sizes}, ValueError, "00007")]:
        with pytest.raises(error, match=value) as caught:
            evaluation(place, **changes).run("average", tmp_path / name)
        assert "\n" not in str(caught.value)
    assert sets["film"].asked == [] and not (tmp_path / "out").exists()
    assert [path.read_text() for path in (tmp_path / "taken").iterdir()] == ["precious"]
    evaluation(place).run("average", tmp_path / "taken", overwrite=True)
    assert scores_of(tmp_path / "taken")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("metrics", {}),
        ("sets", {}),
        ("baselines", ["raft"]),
        ("training_metrics", ["nosuch"]),
        ("moments", ["sometimes"]),
        ("moments", []),
        ("compare_with", ["a/x", "b/x.safetensors"]),
        ("compare_with", ["average"]),
        ("scales", [2.0]),
        ("limit", -1),
        ("examples", -1),
    ],
)
def test_settings_that_are_refused(place, field, value):
    with pytest.raises(ValueError, match=f"evaluation.{field}"):
        evaluation(place, **{field: value})


def command(place, **changes) -> DictConfig:
    """What eval.py hands over."""
    node = {
        "_target_": "film.evaluation.triplet_evaluation.FilmEvaluation",
        "metrics": {
            "psnr": {"_target_": "common.evaluation.metrics.Psnr"},
            "l1": {"_target_": "common.evaluation.metrics.L1"},
        },
        "sets": {
            "film": {"_target_": "film.data.datasets.FolderTriplets", "folder": str(place / "triplets")},
            "absent": {"_target_": "film.data.datasets.FolderTriplets", "folder": str(place / "absent")},
        },
        "scales": [1.0, 0.5],
        "training_metrics": ["psnr", "l1"],
        "progress": False,
    }
    asked = dict(sets=["film"], metrics=None, limit=None, scales=None, overwrite=False, weights="average")
    return OmegaConf.create({"name": "toy", "evaluation": node} | asked | changes)


def test_a_command_chooses_sets_metrics_limit_and_scales(place, tmp_path, monkeypatch):
    monkeypatch.setattr("common.training.run.setup", lambda: None)
    evaluate_from_config(command(place, output=str(tmp_path / "all")))
    assert len(rows_of(tmp_path / "all")) == 3 * 2 * 2 and "l1" in rows_of(tmp_path / "all")[0]
    chosen = command(place, output=str(tmp_path / "some"), metrics="psnr", limit=1, scales=[0.5])
    evaluate_from_config(chosen)
    rows = rows_of(tmp_path / "some")
    assert [(row["name"], row["scale"], row["method"]) for row in rows] == [
        ("00001", "0.5", "average"),
        ("00001", "0.5", "dis-flow"),
    ]
    assert "l1" not in rows[0] and list(chosen.evaluation.sets) == ["film", "absent"]  # the config stays as it is


@pytest.mark.parametrize(
    ("changes", "value"),
    [
        ({"sets": ["vimeo"]}, "vimeo"),
        ({"sets": ["absent"]}, "absent"),
        ({"metrics": ["lpips"]}, "lpips"),
        ({"scales": "half"}, "evaluation.scales"),
        ({"weights": "nosuch"}, "nosuch"),
    ],
)
def test_a_command_that_is_refused_is_one_line(place, tmp_path, monkeypatch, capsys, changes, value):
    monkeypatch.setattr("common.training.run.setup", lambda: None)
    with pytest.raises(SystemExit) as stop:
        evaluate_from_config(command(place, output=str(tmp_path / "out"), **changes))
    line = capsys.readouterr().err
    assert stop.value.code == 2 and value in line and line.count("\n") == 1
    assert not (tmp_path / "out").exists()
