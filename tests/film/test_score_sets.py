"""Evaluations of several sets and networks: means over sets, other weights, moments, examples."""

import csv
import json

import numpy as np
import pytest
from synthetic_film import texture
from toy import toy

import film
from common.evaluation.metrics import L1, Psnr, Ssim, psnr, ssim
from common.io.images import read_image
from film.data.triplet import Triplet
from film.evaluation.baselines import average
from film.evaluation.image_summaries import Gallery, spread
from film.evaluation.triplet_evaluation import FilmEvaluation, network

HEIGHT, WIDTH = 32, 48
METRICS = {"psnr": Psnr(), "l1": L1()}


def triplet(seed: int, name: str = "", time: float = 0.5, speed: int = 4) -> Triplet:
    """A texture that moves to the right by 4 * `speed` px."""
    wide = texture(seed, HEIGHT, WIDTH + 4 * speed).astype(np.float32) / 255
    x0, y, x1 = (wide[:, (start := round(4 * speed * (1 - t))) : start + WIDTH] for t in (0, time, 1))
    return Triplet(name or f"t{seed}", x0, y, x1, time)


def evaluation(sets, **changes) -> FilmEvaluation:
    return FilmEvaluation(METRICS, sets, **(dict(baselines=["average"], worst=0, progress=False) | changes))


def scores_of(folder) -> dict[tuple[str, str], dict]:
    scores = json.loads((folder / "summary.json").read_text())["scores"]
    return {(line["set"], line["method"]): line for line in scores}


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights")
    for name, seed in (("ours", 0), ("other", 1)):
        film.save_model(folder / f"{name}.safetensors", toy(seed=seed))
    return folder


def test_all_sets_are_one_more_set_in_which_each_weighs_the_same(tmp_path):
    sets = {"one": [triplet(0)], "three": [triplet(seed, speed=1) for seed in (1, 2, 3)]}
    printed = evaluation(sets, scales=[1.0, 0.5], baselines=["average", "dis-flow"]).run("dis-flow", tmp_path)
    scores = [line for line in json.loads((tmp_path / "summary.json").read_text())["scores"] if line["method"] != "x"]
    for method in ("dis-flow", "average"):
        for scale in (1.0, 0.5):
            one, three, both = (line for line in scores if (line["method"], line["scale"]) == (method, scale))
            assert [line["set"] for line in (one, three, both)] == ["one", "three", "all sets"]
            assert both["examples"] == 4 and both["psnr"] == pytest.approx((one["psnr"] + three["psnr"]) / 2)
            if method == "average":
                expected = (one["ours_is_better"] + 3 * three["ours_is_better"]) / 4  # of triplets, not of sets
                assert both["ours_is_better"] == pytest.approx(expected)
    assert printed.count("all sets") == 4
    assert "all sets" not in evaluation({"one": sets["one"]}).run("average", tmp_path / "alone")


def test_other_weights_and_other_ways_to_a_moment_are_rows_of_their_own(weights, tmp_path):
    early = triplet(0, time=0.25)
    asked = evaluation(
        {"t": [early]}, compare_with=[str(weights / "other.safetensors")], moments=["direct", "midpoints"]
    )
    printed = asked.run(str(weights / "ours.safetensors"), tmp_path)
    found, models = scores_of(tmp_path), {"film": toy(), "other": toy(seed=1)}
    assert [method for _, method in found] == ["film", "film midpoints", "other", "other midpoints", "average"]
    for name, model in models.items():
        direct = np.asarray(model(early.x0[None], early.x1[None], 0.25).image[0])
        halved = np.asarray(model(early.x0[None], model(early.x0[None], early.x1[None]).image).image[0])
        assert np.abs(direct - halved).max() > 1e-3
        assert found["t", name]["psnr"] == pytest.approx(psnr(direct, early.y), abs=1e-3)
        assert found["t", f"{name} midpoints"]["psnr"] == pytest.approx(psnr(halved, early.y), abs=1e-3)
        np.testing.assert_allclose(network(model, "direct")(early.x0, early.x1, 0.25).image, direct, atol=1e-6)
    assert "| other midpoints |" in printed
    about = json.loads((tmp_path / "summary.json").read_text())
    assert about["moments"] == ["direct", "midpoints"] and about["beside"] == [str(weights / "other.safetensors")]


def test_other_weights_do_not_take_the_first_baselines_place_among_the_worst(weights, tmp_path, monkeypatch):
    leads = []
    monkeypatch.setattr(Gallery, "offer", lambda self, number, lead, row: leads.append(lead))
    asked = evaluation({"t": [triplet(0)]}, compare_with=[str(weights / "other.safetensors")])
    asked.run(str(weights / "ours.safetensors"), tmp_path)
    found = {method: line["psnr"] for (_, method), line in scores_of(tmp_path).items()}
    assert leads == [pytest.approx(found["film"] - found["average"])]


def test_nothing_is_judged_where_the_truth_is_not_known(tmp_path):
    whole = triplet(0)
    known = np.ones((HEIGHT, WIDTH), bool)
    known[:, :20] = False
    partly = whole._replace(name="partly", y=np.where(known[..., None], whole.y, np.float32(np.nan)))
    spoilt = partly._replace(name="spoilt", x0=np.where(known[..., None], whole.x0, 0).astype(np.float32))
    metrics = METRICS | {"ssim": Ssim()}
    FilmEvaluation(metrics, {"t": [partly, spoilt]}, baselines=(), worst=1, progress=False).run("average", tmp_path)
    with (tmp_path / "results.csv").open() as stream:
        first, second = ({key: row[key] for key in metrics} for row in csv.DictReader(stream))
    image, right = average(whole.x0, whole.x1).image, np.s_[:, 20:]
    assert all(first[name] == second[name] for name in METRICS)  # what stands where nobody knows changes nothing
    assert float(first["psnr"]) == pytest.approx(psnr(image[right], whole.y[right]))
    assert float(first["l1"]) == pytest.approx(L1()(image[right], whole.y[right]))
    filled = np.where(known[..., None], whole.y, image)
    assert float(first["ssim"]) == pytest.approx(ssim(image, filled)) and float(first["ssim"]) < 1
    np.testing.assert_allclose(read_image(tmp_path / "worst_t.png")[60, 2 * 324 + 40], (1, 0, 1), atol=0.01)


def test_a_smaller_truth_is_known_where_all_of_its_area_is(tmp_path, scale=0.25):
    whole = triplet(0)
    whole = whole._replace(y=whole.y.copy())
    whole.y[4, 4] = np.nan
    asked = evaluation({"t": [whole]}, scales=[scale], baselines=[])
    asked.run("average", tmp_path)
    step = round(1 / scale)
    small = [x.reshape(HEIGHT // step, step, WIDTH // step, step, 3).mean(axis=(1, 3)) for x in whole[1:4]]
    known = np.isfinite(small[1]).all(axis=-1)
    assert (~known).sum() == 1
    expected = psnr(((small[0] + small[2]) / 2)[known], small[1][known])
    assert scores_of(tmp_path)["t", "average"]["psnr"] == pytest.approx(expected, abs=1e-4)


def test_examples_are_spread_evenly():
    assert spread([100, 20], 4) == [{25, 75}, {5, 15}]
    assert spread([7] * 10, 10) == [{3}] * 10
    assert [len(chosen) for chosen in spread([50] * 4, 10)] == [2, 3, 2, 3]
    assert spread([1, 9], 4) == [{0}, {2, 6}]  # there is but one in the first
    assert spread([5], 0) == [set()]


def test_examples_of_all_sets_are_one_picture(tmp_path):
    sets = {"a": [triplet(seed, f"a{seed}") for seed in range(5)], "b": [triplet(9, "b9")]}
    evaluation(sets, examples=2, baselines=["average", "dis-flow"]).run("dis-flow", tmp_path)
    assert {path.name for path in tmp_path.glob("*.png")} == {"examples.png"}
    picture = read_image(tmp_path / "examples.png")
    height, cell = round(320 * HEIGHT / WIDTH), 324
    assert 2 * height < picture.shape[0] < 3 * height and picture.shape[1] == 6 * cell + 4
    shown = [picture[4 + height // 2, 4 + column * cell + 160] for column in range(6)]
    two = sets["a"][2]  # the middle one; columns: x0, x1, truth, average, dis-flow, its flow
    for found, frame in zip(shown, (two.x0, two.x1, two.y, average(two.x0, two.x1).image), strict=False):
        np.testing.assert_allclose(found, frame[HEIGHT // 2, WIDTH // 2], atol=0.06)
