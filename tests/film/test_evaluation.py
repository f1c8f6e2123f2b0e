"""Scores: baselines and oracles, means over sets, other weights and times, unknown truth, and the files written."""

import csv
import dataclasses
import json
import types

import numpy as np
import pytest
from command import mistake
from flax import nnx
from omegaconf import DictConfig, OmegaConf
from refusal import refused
from toy import CONFIG, DIRECT, toy
from translation import moved

import film
from common.evaluation.metrics import L1, Psnr, Ssim, psnr, ssim
from common.io.images import read_image, write_image
from common.training.run import evaluate_from_config
from film.data.datasets import FolderTriplets
from film.data.triplet import Triplet
from film.evaluation.baselines import average, dis, dis_flow, true_flow
from film.evaluation.regions import estimated
from film.evaluation.triplet_evaluation import FilmEvaluation, best_moment, nearest, network
from film.model import _interpolate
from film.visualization import spread

HEIGHT, WIDTH = 64, 96
METRICS = {"psnr": Psnr(), "l1": L1()}
INNER = np.s_[16:-16, 16:-16]


def textured(shift: float, seed: int = 0) -> np.ndarray:
    return moved((shift, 0), (HEIGHT, WIDTH), seed, cell=8)


def triplet(seed: int, name: str = "", time: float = 0.5, motion: float = 8.0) -> Triplet:
    x0, y, x1 = (textured(t * motion, seed) for t in (0, time, 1))
    return Triplet(name or f"t{seed}", x0, y, x1, time)


def test_baselines_average_by_time_and_follow_the_flow():
    x0, x1 = textured(0), textured(5)
    np.testing.assert_allclose(average(x0, x1)(0.25).image, 0.75 * x0 + 0.25 * x1, rtol=1e-6)
    assert average(x0, x1)(0.5).flow is None
    flow = dis(textured(0), textured(6))[INNER]
    assert abs(np.median(flow[..., 0]) - 6) < 0.5 and abs(np.median(flow[..., 1])) < 0.5
    for motion, time in ((6, 0.5), (-6, 0.25)):
        x0, y, x1 = (textured(t * motion) for t in (0, time, 1))
        blurred, warped = (psnr(method(x0, x1)(time).image[INNER], y[INNER]) for method in (average, dis_flow))
        assert warped > blurred + 5


def test_the_best_moment_is_where_things_were_and_the_oracle_knows_it():
    x0, y, x1 = (textured(moved) for moved in (0, 4, 12))  # four pixels, then eight: a third of the way
    late = Triplet("late", x0, y, x1)
    assert psnr(true_flow(x0, y, x1).image[INNER], y[INNER]) > 30 > psnr(dis_flow(x0, x1)(0.5).image[INNER], y[INNER])
    between, asked = dis_flow(x0, x1), []
    moment, best = best_moment(lambda t: asked.append(t) or between(t), between(0.5), late, 0.2)
    assert abs(moment - 1 / 3) < 0.03 and psnr(best.image[INNER], y[INNER]) > 30
    assert len(asked) <= 4 and all(0.3 <= t <= 0.7 for t in asked) and 0.5 not in asked
    np.testing.assert_array_equal(best.image, between(moment).image)
    early, asked = late._replace(time=0.125), []  # with half of the reach the first moments would be outside (0, 1)
    best_moment(lambda t: asked.append(t) or between(t), between(0.125), early, 0.4)
    assert min(asked) == 0.01 and max(asked) < 0.53


def test_a_network_gives_its_own_warps_and_the_best_of_them_is_an_oracle():
    three, out = triplet(0), toy()(textured(0)[None], textured(8)[None], 0.25)
    one = network(toy(), "direct")(textured(0), textured(8))(0.25)
    np.testing.assert_allclose(one.warped, (out.x0_warped[0], out.x1_warped[0]), atol=1e-6)
    frames = np.float32([[[[0.2] * 3, [0.9] * 3, [0.0] * 3]], [[[0.6] * 3, [0.1] * 3, [1.0] * 3]]])
    best = nearest((frames[0], frames[1]), np.float32([[[0.25] * 3, [0.2] * 3, [0.5] * 3]]))
    np.testing.assert_allclose(best[0, :, 0], [0.2, 0.1, 0.5])
    own = evaluation({"t": [three]}, own_warps=True, search=0.2)
    rows = own.score_set("t", {"film": network(toy())})
    assert [row["method"] for row in rows] == ["film", "film warps", "film best warp"]
    assert rows[2]["psnr"] > max(rows[1]["psnr"], psnr(one.warped[0], three.y))
    assert rows[0]["best psnr"] >= rows[0]["psnr"] and len({row["best moment"] for row in rows}) == 1


def test_regions_are_what_moves_and_what_a_neighbour_does_not_see(tmp_path):
    """A square of 96 px before a still ground goes 16 px; then masks of the set's own, one too small for a score."""
    size = (192, 256)
    ground, square = moved((0, 0), size, 0, cell=16), moved((0, 0), (96, 96), 1, cell=16)
    frames = [ground.copy() for _ in range(3)]
    for frame, x in zip(frames, (60, 68, 76), strict=True):
        frame[40:136, x : x + 96] = square
    found = estimated(*frames)
    inside, far, uncovered = np.s_[64:112, 92:140], np.s_[:, 200:], np.s_[60:116, 61:67]
    assert found["moving"][inside].mean() > 0.8 and not found["moving"][far].any()
    assert found["occluded"][uncovered].mean() > 0.7 and found["occluded"][inside].mean() < 0.3
    assert not (found["occluded"] & ~found["moving"]).any()
    mask = np.zeros(size, bool)
    mask[inside] = True
    known = Triplet("own", *frames, 0.5, {"moving": mask, "occluded": np.eye(*size, dtype=bool) & mask})
    printed = evaluation({"t": [known]}, regions=["moving", "occluded"]).run("average", tmp_path)
    (row,) = rows_of(tmp_path)
    image = average(frames[0], frames[2])(0.5).image
    assert float(row["psnr moving"]) == pytest.approx(psnr(image[mask], frames[1][mask])) and row["psnr occluded"] == ""
    assert "psnr moving (dB)" in printed and scores_of(tmp_path)[0]["psnr occluded"] is None


@pytest.mark.long
def test_the_network_takes_midpoints_of_midpoints():
    model, x0, x1 = toy(), textured(0), textured(6)
    frames = list(film.interpolate(model, [x0, x1], times=2))
    for i, time in enumerate((0.25, 0.5, 0.75), 1):
        np.testing.assert_allclose(network(model)(x0, x1)(time).image, frames[i], atol=1e-5)
    own = network(toy(DIRECT))(x0, x1)(0.25).image  # as `film` does: it knows the moment itself
    np.testing.assert_array_equal(own, network(toy(DIRECT), "direct")(x0, x1)(0.25).image)
    assert not np.allclose(own, network(toy(DIRECT), "midpoints")(x0, x1)(0.25).image, atol=1e-4)
    out, made = model(x0[None], x1[None], 0.3), network(model)(x0, x1)(0.3)
    np.testing.assert_allclose(made.image, out.image[0], atol=1e-6)
    np.testing.assert_allclose(made.flow, out.forward_flow[0][0], atol=1e-6)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Three triplets of growing motion in Vimeo's layout, and two files of weights."""
    folder = tmp_path_factory.mktemp("evaluation")
    for number in (1, 2, 3):
        for i, t in enumerate((0, 0.5, 1), 1):
            write_image(folder / f"triplets/0000{number}/im{i}.png", textured(4 * number * t, seed=number))
    for name, seed in (("ours", 0), ("other", 1)):
        film.save_model(folder / f"{name}.safetensors", toy(seed=seed))
    return folder


def evaluation(sets, **changes) -> FilmEvaluation:
    return FilmEvaluation(METRICS, sets, **(dict(baselines=["average"], worst=0, progress=False) | changes))


class Counted(list):
    """A test set in memory that records what is read, in `read`."""

    def __getitem__(self, index):
        self.read = [*getattr(self, "read", []), index]
        return super().__getitem__(index)


def scores_of(folder) -> list[dict]:
    return json.loads((folder / "summary.json").read_text())["scores"]


def rows_of(folder) -> list[dict]:
    with (folder / "results.csv").open() as stream:
        return list(csv.DictReader(stream))


def test_an_evaluation_writes_scores_a_summary_and_the_worst(place):
    out, sets = place / "out", {"film": FolderTriplets(place / "triplets")}
    own = evaluation(sets, scales=[1.0, 0.5], baselines=["dis-flow", "average"], worst=1)
    printed = own.run(str(place / "ours.safetensors"), out)
    assert {p.name for p in out.iterdir()} == {"results.csv", "summary.json", "film.png"}
    rows, summary = rows_of(out), scores_of(out)
    assert len(rows) == 3 * 2 * 3  # triplets x scales x methods
    x0, y, x1 = (read_image(place / f"triplets/00002/im{i}.png") for i in (1, 2, 3))
    expected = {"average": average(x0, x1)(0.5).image, "film": list(film.interpolate(toy(), [x0, x1], times=1))[1]}
    for method, image in expected.items():
        (row,) = (r for r in rows if (r["name"], r["method"], r["scale"]) == ("00002", method, "1.0"))
        assert float(row["psnr"]) == pytest.approx(psnr(image, y), abs=1e-3)
        assert float(row["l1"]) == pytest.approx(np.abs(np.clip(image, 0, 1) - y).mean(), abs=1e-5)
    methods = ("film", "dis-flow", "average")
    assert [(s["scale"], s["method"]) for s in summary] == [(scale, m) for scale in (1.0, 0.5) for m in methods]
    mean = summary[-1]["psnr"]
    assert mean == pytest.approx(np.mean([float(r["psnr"]) for r in rows if r["method"] == "average"][1::2]))
    assert f"{mean:.2f}" in printed and {line.count("|") for line in printed.splitlines()} == {8}
    assert 9 * 320 < read_image(out / "film.png").shape[1] < 10 * 320  # three frames, three methods, two errors, flow


def test_all_sets_are_one_more_set_in_which_each_weighs_the_same(tmp_path):
    sets = {"one": [triplet(0)], "three": [triplet(seed, motion=2) for seed in (1, 2, 3)]}
    groups = {"all": ["one", "three"], "alone": ["one"]}
    printed = evaluation(sets, baselines=["average"], groups=groups).run("dis-flow", tmp_path)
    for method in ("dis-flow", "average"):
        one, three, by_set, by_example = (line for line in scores_of(tmp_path) if line["method"] == method)
        assert [line["set"] for line in (by_set, by_example)] == ["all by set", "all by example"]
        for line, weight in ((by_set, 0.5), (by_example, 0.75)):
            assert line["examples"] == 4
            for key in ("psnr", *(["ours_is_better"] if method == "average" else [])):
                assert line[key] == pytest.approx((1 - weight) * one[key] + weight * three[key])
    assert printed.count("all by set") == 2 and "alone by" not in printed


def test_other_weights_and_ways_to_a_time_are_rows_of_their_own(place, tmp_path):
    early = triplet(0, time=0.25)
    other = str(place / "other.safetensors")
    own = evaluation({"t": [early]}, compare_with=[other], moments=["direct", "midpoints"])
    printed = own.run(str(place / "ours.safetensors"), tmp_path)
    values = {line["method"]: line["psnr"] for line in scores_of(tmp_path)}
    assert [*values] == ["film", "film midpoints", "other", "other midpoints", "average"]
    leads = own._leads([row | {"scale": 1.0, "psnr": float(row["psnr"])} for row in rows_of(tmp_path)], "film")
    assert leads == [pytest.approx(values["film"] - values["average"])]  # not over the other weights
    for name, model in {"film": toy(), "other": toy(seed=1)}.items():
        for row, way in ((name, "direct"), (f"{name} midpoints", "midpoints")):
            image = network(model, way)(early.x0, early.x1)(0.25).image
            assert values[row] == pytest.approx(psnr(image, early.y), abs=1e-3)
    assert "| other midpoints |" in printed and len(set(values.values())) == 5
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["moments"] == ["direct", "midpoints"] and summary["beside"] == [other]


def test_nothing_is_scored_where_the_truth_is_unknown(tmp_path):
    whole = triplet(0)
    known = np.ones((HEIGHT, WIDTH), bool)
    known[:, :20] = False
    partly = whole._replace(name="partly", y=np.where(known[..., None], whole.y, np.float32(np.nan)))
    spoilt = partly._replace(name="spoilt", x0=np.where(known[..., None], whole.x0, 0).astype(np.float32))
    metrics = METRICS | {"ssim": Ssim()}
    own = FilmEvaluation(metrics, {"t": [partly, spoilt]}, (), ["true-flow"], worst=0, progress=False)
    own.run("average", tmp_path)
    rows = rows_of(tmp_path)
    assert [row["method"] for row in rows[:2]] == ["average", "true-flow"]
    assert float(rows[1]["psnr"]) > float(rows[0]["psnr"]) + 3
    first, second = ({key: row[key] for key in metrics} for row in rows[::2])
    assert all(first[name] == second[name] for name in METRICS)  # values at unknown pixels change nothing
    image, right = average(whole.x0, whole.x1)(0.5).image, np.s_[:, 20:]
    assert float(first["psnr"]) == pytest.approx(psnr(image[right], whole.y[right]))
    assert float(first["l1"]) == pytest.approx(L1()(image[right], whole.y[right]))
    filled = np.where(known[..., None], whole.y, image)
    assert float(first["ssim"]) == pytest.approx(ssim(image, filled)) and float(first["ssim"]) < 1


def test_nan_scores_are_counted_and_stay_valid_json(tmp_path, monkeypatch):
    def broken(x0, x1):
        return average(x0 * np.nan if x0[0, 0, 0] == textured(0, 1)[0, 0, 0] else x0, x1)

    monkeypatch.setitem(film.evaluation.baselines.METHODS, "average", broken)
    sets = {"a": [triplet(0, motion=0), triplet(1)]}
    printed = evaluation(sets, baselines=(), worst=2).run("average", tmp_path)
    text = (tmp_path / "summary.json").read_text()
    (line,) = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))["scores"]
    assert line["psnr"] is None and line["not_finite"] == {"psnr": 1, "l1": 1} and "nan" in printed
    magenta = read_image(tmp_path / "a.png")[100, 3 * 324 + 160]
    np.testing.assert_allclose(magenta, (1, 0, 1), atol=0.01)  # the row with NaN is first, and coloured


def test_the_worst_and_the_median_of_a_set_are_drawn(tmp_path, monkeypatch):
    drawn = {}
    monkeypatch.setattr(FilmEvaluation, "_leads", lambda *_: [3.0, 1.0, 2.0, 5.0, -np.inf])
    monkeypatch.setattr(FilmEvaluation, "draw", lambda self, name, methods, chosen: drawn.update(chosen) or [])
    monkeypatch.setattr("film.evaluation.triplet_evaluation.stacked", lambda rows: np.zeros((8, 8, 3), np.float32))
    evaluation({"a": [triplet(seed) for seed in range(5)]}, worst=2).run("average", tmp_path)
    assert drawn == {4: "a worst 1", 1: "a worst 2", 2: "a median"}


def test_examples_are_spread_evenly_over_all_sets_in_one_image(tmp_path):
    assert spread([100, 20], 4) == [{25, 75}, {5, 15}] and spread([7] * 10, 10) == [{3}] * 10
    assert spread([1, 9], 4) == [{0}, {2, 6}] and spread([5], 0) == [set()]  # the set of one has no second
    sets = {"a": [triplet(seed) for seed in range(5)], "b": [triplet(9)]}
    evaluation(sets, examples=2).run("dis-flow", tmp_path)
    assert {path.name for path in tmp_path.glob("*.png")} == {"examples.png"}
    image = read_image(tmp_path / "examples.png")
    height, cell = round(320 * HEIGHT / WIDTH), 324
    assert 2 * height < image.shape[0] < 3 * height and image.shape[1] == 8 * cell + 4
    shown = [image[4 + height // 2, 4 + column * cell + 160] for column in range(4)]
    two = sets["a"][2]  # the middle one; columns: x0, x1, truth, average, dis-flow, its flow
    for pixel, frame in zip(shown, (two.x0, two.x1, two.y, average(two.x0, two.x1)(0.5).image), strict=True):
        np.testing.assert_allclose(pixel, frame[31:33, 47:49].mean(axis=(0, 1)), atol=0.06)


def test_training_scores_parameters_as_the_full_evaluation_does(place):
    task, params = types.SimpleNamespace(model=CONFIG), nnx.to_pure_dict(nnx.state(toy()))
    sets = {"film": FolderTriplets(place / "triplets")}
    own = evaluation(sets, training_limit=2, training_metrics=["psnr"], scales=(1.0, 0.5), oracles=["true-flow"])
    scores = own.score(task, params)
    own.run(str(place / "ours.safetensors"), place / "full")
    values = [float(r["psnr"]) for r in rows_of(place / "full") if (r["method"], r["scale"]) == ("film", "1.0")]
    assert scores == {"film/psnr": pytest.approx(np.mean(values[:2]), abs=1e-3)}
    programs, whole = _interpolate._cache_size(), dataclasses.replace(own, training_limit=0)
    assert whole.prepare() == ["film/psnr"]
    assert whole.score(task, params) == {"film/psnr": pytest.approx(np.mean(values), abs=1e-3)}
    assert _interpolate._cache_size() == programs  # not compiled again
    refused(ValueError, lambda: dataclasses.replace(own, training=False).prepare(), match="training")
    absent = {"gone": FolderTriplets(place / "gone")}  # of a set that is not chosen no file is opened
    some = dataclasses.replace(own, sets=sets | absent, training_sets=["film"])
    assert some.prepare() == ["film/psnr"] and some.score(task, params) == scores


def test_a_metric_that_needs_neighbours_may_be_the_first(place, tmp_path):
    metrics, sets = {"ssim": Ssim(), "psnr": Psnr()}, {"film": FolderTriplets(place / "triplets")}
    FilmEvaluation(metrics, sets, ["dis-flow"], worst=1, progress=False).run("average", tmp_path)
    x0, y, x1 = (read_image(place / f"triplets/00001/im{i}.png") for i in (1, 2, 3))
    assert float(rows_of(tmp_path)[0]["ssim"]) == pytest.approx(ssim(average(x0, x1)(0.5).image, y))
    assert (tmp_path / "film.png").is_file()


def test_triplets_are_read_once_up_to_the_limit_at_their_time(tmp_path):
    x0, x1 = textured(0), textured(0, seed=1)
    good = [Triplet(f"ok{i}", x0, 0.75 * x0 + 0.25 * x1, x1, 0.25) for i in range(2)]
    data = Counted([*good, Triplet("bad", x0, 1 - x0, x0)])
    own = evaluation({"a": data, "b": data}, scales=(1.0, 0.5), baselines=["dis-flow"], limit=2)
    printed = own.run("average", tmp_path)
    assert data.read == [0, 1, 0, 1] and "average is better" in printed
    assert {row["name"] for row in rows_of(tmp_path)} == {"ok0", "ok1"} and float(rows_of(tmp_path)[0]["psnr"]) == 100


def test_refusals_before_any_work(tmp_path):
    """Files that exist, a set that is missing, images of different sizes: nothing is scored and nothing changes."""
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/summary.json").write_text("precious")
    still = Counted([triplet(0, motion=0)])
    sets = {"film": still, "gone": FolderTriplets(tmp_path / "gone")}
    sizes = {"film": [triplet(0, "00007")._replace(y=textured(0)[:-1])]}
    cases = [("taken", {"a": still}, FileExistsError, "taken"), ("out", sets, FileNotFoundError, "gone")]
    for name, given, error, value in [*cases, ("out", sizes, ValueError, "00007")]:
        refused(error, evaluation(given).run, "average", tmp_path / name, match=value)
    assert not hasattr(still, "read") and not (tmp_path / "out").exists()
    assert [path.read_text() for path in (tmp_path / "taken").iterdir()] == ["precious"]
    evaluation({"a": still}).run("average", tmp_path / "taken", overwrite=True)
    assert scores_of(tmp_path / "taken")


def command(place, **changes) -> DictConfig:
    """The config that eval.py composes."""
    source = "film.data.datasets.FolderTriplets"
    folders = {name: {"_target_": source, "folder": str(place / name)} for name in ("triplets", "absent")}
    node = {
        "_target_": "film.evaluation.triplet_evaluation.FilmEvaluation",
        "metrics": {name.lower(): {"_target_": f"common.evaluation.metrics.{name}"} for name in ("Psnr", "L1")},
        **dict(sets=folders, scales=[1.0, 0.5], training_metrics=["psnr", "l1"], training_sets=["absent"]),
        "progress": False,
    }
    options = dict(sets=["triplets"], metrics=None, limit=None, scales=None, overwrite=False, weights="average")
    return OmegaConf.create({"name": "toy", "evaluation": node} | options | changes)


def test_a_command_chooses_sets_metrics_limit_and_scales(place, tmp_path, monkeypatch, capsys):
    """What it cannot choose is one line."""
    monkeypatch.setattr("common.training.run.setup", lambda: None)
    evaluate_from_config(command(place, output=str(tmp_path / "all")))
    assert len(rows_of(tmp_path / "all")) == 3 * 2 * 2 and "l1" in rows_of(tmp_path / "all")[0]
    evaluate_from_config(command(place, output=str(tmp_path / "some"), metrics="psnr", limit=1, scales=[0.5]))
    rows = rows_of(tmp_path / "some")
    found = [(row["name"], row["scale"], row["method"]) for row in rows]
    assert found == [("00001", "0.5", method) for method in ("average", "dis-flow")] and "l1" not in rows[0]
    capsys.readouterr()
    for field, value in (("sets", ["vimeo"]), ("metrics", ["lpips"]), ("scales", "half"), ("weights", "nosuch")):
        config = command(place, output=str(tmp_path / "out"), **{field: value})
        named = "evaluation.scales" if field == "scales" else "".join(value)
        assert named in mistake(capsys, evaluate_from_config, config)
    assert not (tmp_path / "out").exists()
