"""Costs against counts by hand and XLA's; the benchmark of overheads; the article's table, and errors before work."""

import csv
import dataclasses
import json
from functools import partial
from pathlib import Path

import families
import hydra
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax
from prepared import dark_squares, write_prepared
from refusal import refused
from tiny_base import TEXT, diffusion_base, pixel_base, random

from benchmarks import control
from common.nn.init import blank
from common.training.config import instantiate
from common.training.run import evaluate_from_config
from plugins.control import ControlNet, MediaPipePlugin, PlugAndPlay, T2IAdapter, save
from plugins.control.controlnet import ControlNetConfig
from plugins.control.mediapipe import MediaPipeConfig
from plugins.control.t2i_adapter import T2IAdapterConfig
from plugins.data.captioned_batches import CaptionedConfig
from plugins.diffusion.networks.unet import UNet, UNetConfig
from plugins.diffusion.pipeline import load
from plugins.evaluation import comparison as tables
from plugins.evaluation.comparison import ControlComparison
from plugins.evaluation.cost import Cost, Setting, base_cost, interleaved, network_cost, plug_and_play_cost, split
from plugins.evaluation.flops import Work, count
from plugins.metrics.features import INCEPTION, Clip, FeatureExtractor
from plugins.metrics.fidelity import EdgeF1, MaskIou, edges


def shape(*sides: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sides, jnp.float32)


def conv(x, kernel, stride=1, groups=1):
    layout = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(
        x, kernel, (stride, stride), "SAME", dimension_numbers=layout, feature_group_count=groups
    )


def test_products_are_two_for_each_weight_and_pixel():
    assert count(jnp.matmul, shape(5, 7), shape(7, 3)) == Work(2 * 5 * 7 * 3)
    assert count(jnp.matmul, shape(2, 5, 7), shape(2, 7, 3)) == Work(2 * 2 * 5 * 7 * 3)
    assert count(conv, shape(2, 8, 8, 3), shape(3, 3, 3, 16)) == Work(2 * 2 * 64 * 9 * 3 * 16)
    assert count(lambda x, k: conv(x, k, 2), shape(2, 8, 8, 3), shape(3, 3, 3, 16)) == Work(2 * 2 * 16 * 9 * 3 * 16)
    assert count(lambda x, k: conv(x, k, 1, 6), shape(1, 8, 8, 6), shape(3, 3, 1, 6)) == Work(2 * 64 * 9 * 6)


def test_elements_of_sums_are_counted_and_moves_are_not():
    assert count(lambda x: jnp.exp(x + 1).sum(), shape(4, 5)) == Work(0, 20 + 20 + 20)
    assert count(lambda x: x.T.reshape(2, 10)[:, ::-1].astype(jnp.bfloat16), shape(4, 5)) == Work()
    assert count(lambda i: i + 1, jax.ShapeDtypeStruct((9,), jnp.int32)) == Work(), "whole numbers are indices"


def test_loops_count_as_often_as_they_run_and_branches_once():
    step = jax.jit(jax.checkpoint(lambda x, w: jnp.tanh(x @ w)))
    shapes = shape(4, 4), shape(4, 4)
    once = count(step, *shapes)
    assert once == Work(2 * 4**3, 16)

    def loop(x, w):
        return lax.scan(lambda x, _: (step(x, w), None), x, None, length=7)[0]

    assert count(loop, *shapes) == once.times(7)
    assert count(lambda x, w: lax.fori_loop(0, 7, lambda i, x: step(x, w), x), *shapes) == once.times(7)
    assert count(lambda x, w: lax.cond(x[0, 0] > 0, step, lambda x, w: x, x, w), *shapes) == once
    endless = partial(lax.while_loop, lambda x: x[0] < 9, lambda x: 2 * x)
    refused(ValueError, count, endless, shape(3), match="loop")


COSTS = {"base": Cost(0, Work(), Work(1000)), "plugin": Cost(6, Work(50), Work(1000, 1))}
COSTS |= {"controlnet": Cost(360, Work(10), Work(1300)), "layout": Cost(0, Work(5000), Work(1500))}
SECONDS = {"base": [10.0, 10.4, 12.0], "features": [9.0, 10.0, 10.1]}
SECONDS |= {"plugin once": [1.0, 0.9, 3.0], "plugin added": [0.01, 0.01, 0.02]}
SECONDS |= {"controlnet": [13.0, 14.0, 12.5], "controlnet once": [2.0] * 3, "controlnet added": [4.0, 3.0, 3.5]}
SECONDS |= {"layout": [15.0, 15.6, 16.0], "layout once": [5.0, 5.2, 5.4]}


def test_small_additions_count_by_parts_and_large_ones_by_whole_calls():
    options = control.Options(steps=50, inversion=200)
    rows = {kind: control.row(kind, SECONDS, COSTS, options) for kind in ("plugin", "controlnet", "layout")}
    base = 50 * 10.4
    plugin = rows["plugin"]
    assert plugin["run s"] == pytest.approx(base + 1 + 50 * 0.01)
    assert plugin["overhead %"] == plugin["by parts %"] == pytest.approx(100 * 1.5 / base)
    assert plugin["by calls %"] == pytest.approx(100 * (1 - 50 * 0.4) / base), "the noise of calls, as it is"
    assert plugin["of GFLOP %"] == pytest.approx(100 * (50 + 50 * 1) / 50_000)
    network = rows["controlnet"]
    assert network["run s"] == pytest.approx(2 + 50 * 13) and network["overhead %"] == network["by calls %"]
    assert network["by parts %"] == pytest.approx(100 * (2 + 50 * 3.5) / base)
    layout = rows["layout"]
    assert layout["once s"] == pytest.approx(250 * 5.2) and layout["run s"] == pytest.approx(250 * 5.2 + 50 * 15.6)
    assert "by parts %" not in layout and layout["of GFLOP %"] == pytest.approx(60)


@pytest.mark.long
def test_all_methods_with_tiny_networks(capsys):
    control.main(control.Options(size="tiny", repeats=1, inversion=2, steps=3))
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells[0] == [*control.COLUMNS] and len(cells) == 2 + 5
    found = {row[0]: dict(zip(control.COLUMNS, row, strict=True)) for row in cells[2:]}
    assert list(found) == ["base", "plugin", "t2i_adapter", "controlnet", "layout"]
    work = {name: float(row["of GFLOP %"]) for name, row in found.items() if name != "base"}
    assert 0 < work["plugin"] < work["t2i_adapter"] < work["controlnet"] < work["layout"]
    assert all(float(row["call s"]) > 0 for row in found.values())


SIDE, UNIT, TOKENS = 16, 2, TEXT.max_position_embeddings
KINDS = {
    "controlnet": (ControlNet, ControlNetConfig),
    "t2i_adapter": (T2IAdapter, T2IAdapterConfig),
    "plugin": (MediaPipePlugin, MediaPipeConfig),
}


def network(kind: str):
    cls, config = KINDS[kind]
    return random(cls, config.for_unet(diffusion_base().base.unet, UNIT))


def setting(guided: bool = True) -> Setting:
    base = diffusion_base()
    return Setting(base.unet, base.vae, SIDE // UNIT, SIDE // UNIT, TOKENS, guided)


def test_the_size_of_stable_diffusion():
    """PyTorch's counter gives 677.2 GFLOP for 64x64 latents; it leaves out the scores of attention and their use, two
    products of n x m x width at each of 16 transformers. Ours runs them in loops, which XLA would count once."""
    graph, params = blank(UNet, UNetConfig.sd15())
    found = base_cost(Setting(nnx.merge(graph, params), None, 64, 64, 77, False))
    places = [(4096, 320, 5), (1024, 640, 5), (256, 1280, 5), (64, 1280, 1)]
    attention = sum(2 * 2 * n * (n + 77) * width * count for n, width, count in places)
    np.testing.assert_allclose(found.call.products / 1e9, 677.2 + attention / 1e9, rtol=5e-4)
    assert found.parameters == 0 and found.once == Work() and 0 < found.call.others < 0.01 * found.call.products


def test_a_controlnet_costs_at_every_step_a_plugin_once():
    alone, base = base_cost(setting(guided=False)), base_cost(setting())
    assert base.run(20).products == 2 * alone.run(20).products == 40 * alone.call.products  # guidance doubles a call
    for kind in KINDS:
        cost = network_cost(setting(), network(kind))
        extra = [cost.run(calls).products - base.run(calls).products for calls in (10, 20)]
        assert cost.parameters == sum(leaf.size for leaf in jax.tree.leaves(split(network(kind))[1]))
        if kind == "controlnet":
            assert extra[1] - extra[0] > 0.2 * base.run(10).products
        else:
            assert extra[0] == extra[1] == cost.once.products > 0
            assert 0 < cost.call.others - base.call.others < 0.05 * base.call.total, "sums alone"


def test_plug_and_play_costs_a_row_and_the_inversion():
    pixels = pixel_base()
    small = Setting(pixels.unet, None, 8, 8, TOKENS, True)
    for where, base, side in ((setting(), diffusion_base(), SIDE), (small, pixels, 8)):
        control = PlugAndPlay(np.zeros((side, side, 3), np.float32), inversion=30)
        cost, alone = plug_and_play_cost(where, control, base.schedule, 10), base_cost(where)
        assert cost.parameters == 0 and cost.call.products == 3 * alone.call.products // 2
        inversion = (30 + 10) * alone.call.products // 2
        assert cost.once.products == inversion if where.vae is None else cost.once.products > inversion


def test_runs_are_timed_in_turns_after_a_warm_up():
    seen: list[str] = []
    found = interleaved({name: lambda name=name: seen.append(name) for name in "ab"}, 2)
    assert "".join(seen) == "ababab" and [len(times) for times in found.values()] == [2, 2]


CORNERS = FeatureExtractor("corners", lambda images: images[:, :2, :2].reshape(len(images), -1).astype(np.float32))


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A base, images of a dark square on white, and a folder of weights for each kind."""
    folder = tmp_path_factory.mktemp("comparison")
    write_prepared(folder / "pictures", dark_squares(6, SIDE))
    for kind in KINDS:
        save(network(kind), folder / kind)
    diffusion_base().save(folder / "base")
    return folder


def comparison(made: Path, **changes) -> ControlComparison:
    data = CaptionedConfig(str(made / "pictures"), split="unseen", batch_size=2, length=16, condition="canny")
    methods = {"controlnet": str(made / "controlnet"), "plug_and_play": True, "plugin": str(made / "plugin")}
    settings = {"base": str(made / "base"), "quality": CORNERS, "count": 5, "rows": 2, "steps": 2, "inversion": 3}
    settings |= {"methods": methods, "rounds": 2} | changes
    return ControlComparison(data, {"edges": EdgeF1(), "area": MaskIou()}, **settings)


@pytest.mark.long
def test_a_row_for_each_method(made, tmp_path):
    titles = ["Base", "Base + ControlNet", "Base + Plug-and-Play", "Base + plugin"]
    shown = comparison(made, quality=None, count=1).run("", tmp_path)
    lines = shown.splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:6]] == titles
    assert len({line.count("|") for line in lines[:6]}) == 1
    assert (tmp_path / "table.md").read_text() == shown + "\n" and (tmp_path / "sheet.png").stat().st_size > 0
    report = json.loads((tmp_path / "results.json").read_text())
    base, control, inverted, plugin = report["rows"]
    assert [row["model"] for row in report["rows"]] == titles
    assert report["pictures"] == 1 and report["quality"] is None
    assert base["parameters"] == inverted["parameters"] == base["gflop_overhead"] == base["time_overhead"] == 0
    for kind, row in (("controlnet", control), ("plugin", plugin)):
        cost = network_cost(setting(), network(kind))
        assert row["parameters"] == cost.parameters and row["gflop"] == pytest.approx(cost.run(2).total / 1e9)
    assert inverted["gflop_overhead"] > 50
    for row in report["rows"]:
        assert row["seconds"] == pytest.approx(np.median(row["timings"])) and len(row["timings"]) == 2
        for name, key in (("time_overhead", "seconds"), ("gflop_overhead", "gflop")):
            assert row[name] == pytest.approx(100 * (row[key] / base[key] - 1))
        assert set(row["fidelity"]) == {"edges", "area"} and row["fidelity"]["area"]["count"] == 1
    assert len({json.dumps(row["fidelity"]) for row in report["rows"]}) > 2, "they steer"
    with (tmp_path / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["model"] for row in rows] == titles and float(rows[3]["gflop"]) == plugin["gflop"]
    assert float(rows[1]["area"]) == control["fidelity"]["area"]["value"]
    refused(FileExistsError, comparison(made).run, "", tmp_path, match=str(tmp_path))


NOISE = np.random.default_rng(0).random((5, SIDE, SIDE, 3), np.float32)


@pytest.fixture
def generated(monkeypatch):
    """Images and seconds without any run of a network; the devices of each generation."""
    devices: list[int] = []

    def generate(self, pipeline, method, held, mesh=None):
        devices.append(1 if mesh is None else mesh.size)
        return NOISE[: len(held.prompts)]

    monkeypatch.setattr(ControlComparison, "_generate", generate)
    monkeypatch.setattr(
        tables, "interleaved", lambda runs, rounds: {name: [1.0 + 0 * len(run())] for name, run in runs.items()}
    )
    return devices


def test_clips_columns(made, generated, tmp_path):
    """Of features by hand: images by their corners, prompts by their length."""
    embed = lambda texts: np.array([[len(text)] + [1] * 11 for text in texts], np.float32)  # noqa: E731
    clip = Clip(FeatureExtractor("corners", lambda images: 1 + CORNERS(images)), FeatureExtractor("corners", embed))
    shown = comparison(made, clip=clip, quality=None).run("", tmp_path)
    header, _, base = shown.splitlines()[:3]
    titles = ["CMMD corners", "CLIP score corners"]
    assert [cell.strip() for cell in header.split("|")[-3:-1]] == titles
    row = json.loads((tmp_path / "results.json").read_text())["rows"][0]["quality"]
    assert list(row) == titles and base.split("|")[-2].strip() == f"{row[titles[1]]:.3f}"
    assert -1 <= row[titles[1]] <= 1 and row[titles[0]] >= 0
    assert generated == [2] * 4 + [1] * 4, "images on all devices, what is timed on one"
    alone = comparison(made, clip=clip, quality=None, count=1)
    refused(ValueError, alone.run, "", tmp_path / "other", match="1 held-out")


@pytest.mark.long
@pytest.mark.parametrize(("family", "rows"), [("sdxl", 2), ("lcm", 1)])
def test_bases_that_read_more_than_text(made, generated, tmp_path, family, rows):
    """SDXL reads pooled text and sizes, LCM the guidance scale, in one row."""
    base = load(families.folder(family))
    save(random(MediaPipePlugin, MediaPipeConfig.for_unet(base.base.unet, base.base.unit)), tmp_path / "plugin")
    methods = {"plugin": str(tmp_path / "plugin"), "plug_and_play": family == "sdxl"}
    evaluation = comparison(made, base=str(families.folder(family)), methods=methods, quality=None)
    evaluation.run("", tmp_path / "out")
    alone, *others = json.loads((tmp_path / "out" / "results.json").read_text())["rows"]
    assert len(others) == rows and all(row["gflop"] > alone["gflop"] > 0 for row in others)


@pytest.mark.long
def test_the_command(made, tmp_path, monkeypatch, caplog):
    """`python eval.py evaluation=control_methods weights=PLUGIN`, also by its old name, with small networks."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("common.training.run.setup", lambda: None)
    small = {"base": made / "base", "count": 4, "rows": 1, "steps": 2, "inversion": 2, "rounds": 1, "quality": "null"}
    words = [f"evaluation.{name}={value}" for name, value in small.items()]
    words += [f"weights={made / 'plugin'}", f"evaluation.data.folder={made / 'pictures'}"]
    configs = []
    with hydra.initialize_config_module("configs", version_base="1.3"):
        for name in ("control_methods", "control_ways"):
            overrides = [f"evaluation={name}", *words, "evaluation.methods.plug_and_play=null"]
            configs.append(hydra.compose("eval", overrides=overrides))
    now, before = (instantiate(config.evaluation, "evaluation") for config in configs)
    assert now.methods == before.methods and now.data == before.data
    with caplog.at_level("INFO"):
        evaluate_from_config(configs[1])
    report = json.loads(Path("runs/control_ways/evaluation/results.json").read_text())
    assert [row["model"] for row in report["rows"]] == ["Base", "Base + plugin"] and report["quality"] is None
    refused(SystemExit, evaluate_from_config, configs[1])
    assert "| Base + plugin |" in caplog.text


def test_an_old_name_is_read_and_training_gets_no_scores(made):
    path = "plugins.evaluation.comparison.ControlComparison"
    node = {"_target_": path, "methods": {"layout": True, "plugin": "p"}, "data": comparison(made).data, "metrics": {}}
    assert instantiate(node, "evaluation").methods == {"plug_and_play": True, "plugin": "p"}
    refused(ValueError, lambda: comparison(made).prepare(), match="ControlComparison")


@pytest.mark.parametrize(("changes", "error", "value"), [
    ({"methods": {"plugin": "nowhere"}}, FileNotFoundError, r"evaluation\.methods\.plugin: .*nowhere"),
    ({"methods": {"plug_and_play": True}, "base": "nowhere"}, FileNotFoundError, "nowhere"),
    ({"methods": {"plug_and_play": None, "plugin": None}}, ValueError, r"evaluation\.methods"),
    ({"methods": {"plug_and_play": "photo.png"}}, ValueError, r"photo\.png"),
    ({"methods": {"plugin": True}}, ValueError, r"plugin is True"),
    ({"count": 3}, ValueError, "^3 "),
    ({"rounds": 0}, ValueError, "rounds is 0"),
])  # fmt: skip
def test_settings_that_are_refused_before_any_work(made, tmp_path, monkeypatch, changes, error, value):
    monkeypatch.setattr("plugins.evaluation.comparison.bases.from_files", lambda *_: pytest.fail("loaded"))
    refused(error, lambda: comparison(made, **changes).run("", tmp_path), match=value)
    assert not list(tmp_path.iterdir())


def test_a_metric_of_conditions_compares_with_them(made):
    evaluation = dataclasses.replace(comparison(made), metrics={"edges": EdgeF1(), "map": EdgeF1(target="condition")})
    held = evaluation.held_out(3)
    maps = np.stack([np.repeat(edges(image)[..., None], 3, -1) for image in held.images]).astype(np.float32)
    held, rows = held._replace(conditions=maps), {"real": held.images, "swapped": held.images[[1, 2, 0]]}
    found = evaluation.scored(held, rows)
    assert list(found) == list(rows) and [mean.value for mean in found["real"].values()] == [1, 1]
    assert found["swapped"]["edges"] == found["swapped"]["map"] and found["swapped"]["map"].value < 1


def test_images_of_another_side_than_the_bases_are_a_warning(made, tmp_path, capsys):
    write_prepared(tmp_path / "pictures", dark_squares(2, 2 * SIDE))
    fits = comparison(made)
    for data, warned in ((fits.data, False), (dataclasses.replace(fits.data, folder=str(tmp_path / "pictures")), True)):
        changed = dataclasses.replace(fits, data=data)
        changed.check_side(diffusion_base().base, changed.held_out(1))
        assert ("32 pixels" in capsys.readouterr().err) == warned


def test_a_control_for_another_base_is_named(made, tmp_path):
    other = MediaPipeConfig.for_unet(dataclasses.replace(diffusion_base().base.unet, block_out_channels=(16,)), UNIT)
    save(random(MediaPipePlugin, other), tmp_path / "other")
    evaluation = comparison(made, methods={"plugin": str(tmp_path / "other")})
    refused(ValueError, evaluation.run, "", tmp_path / "out", match=r"Base \+ plugin: .*\(16,\)")


def test_quality_is_shown_under_the_name_of_its_features(made, generated):
    """Only Inception's distance is called FID."""
    for name, distance in (("corners", "Fréchet corners"), (INCEPTION, "FID")):
        evaluation = comparison(made, quality=FeatureExtractor(name, CORNERS.embed))
        held = evaluation.held_out(4)
        images = {"Base": held.images, "Base + noise": NOISE[:4]}
        base, methods = diffusion_base(), [tables.Method(title) for title in images]
        costs = {method.title: evaluation._cost(base, method, held) for method in methods}
        rows = evaluation._rows(base, methods, costs, held, images, None)
        base, other = (row["quality"] for row in rows)
        assert next(iter(base)) == distance and base[distance] < 1e-6 < other[distance]
        assert f"| {distance} |" in tables.table(rows) and {*base} <= {*tables.flat_row(rows[0])}
