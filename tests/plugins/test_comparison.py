"""The article's table on random networks: costs as counted by hand, a row for each method, errors before any work."""

import csv
import dataclasses
import json
import warnings
from pathlib import Path

import hydra
import jax
import numpy as np
import pytest
from flax import nnx
from networks import one_line
from tiny_base import TEXT, diffusion_base, pixel_base, random

from plugins.control import ControlNet, MediaPipePlugin, PlugAndPlay, T2IAdapter, save
from plugins.control.controlnet import ControlNetConfig
from plugins.control.mediapipe import MediaPipeConfig
from plugins.control.t2i_adapter import T2IAdapterConfig
from plugins.data.controlled_batches import ControlledConfig
from plugins.diffusion.io.porting import blank
from plugins.diffusion.networks.unet import UNet, UNetConfig
from plugins.evaluation.comparison import ControlComparison
from plugins.evaluation.cost import Setting, base_cost, interleaved, network_cost, overhead, plug_and_play_cost, split
from plugins.evaluation.flops import Work
from plugins.metrics.features import INCEPTION
from plugins.metrics.fidelity import EdgeF1, MaskIou
from recipes.captioned_pictures.train_tokenizer import train_bpe, write_tokenizer

with warnings.catch_warnings():  # beartype on OmegaConf's DictConfig, a subclass of typing.MutableMapping
    warnings.simplefilter("ignore")
    from common.training import renamed
    from common.training.config import instantiate
    from common.training.run import evaluate_from_config

SIDE, UNIT, TOKENS = 16, 2, TEXT.max_position_embeddings
KINDS = {
    "controlnet": (ControlNet, ControlNetConfig),
    "t2i_adapter": (T2IAdapter, T2IAdapterConfig),
    "plugin": (MediaPipePlugin, MediaPipeConfig),
}
TITLES = ["Base", "Base + ControlNet", "Base + T2I-Adapter", "Base + Plug-and-Play", "Base + plugin"]


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


def test_guidance_doubles_each_call():
    alone, guided = base_cost(setting(guided=False)), base_cost(setting())
    assert guided.run(20).products == 2 * alone.run(20).products == 40 * alone.call.products


def test_a_controlnet_costs_at_every_step_a_plugin_once():
    base = base_cost(setting())
    for kind in KINDS:
        cost = network_cost(setting(), network(kind))
        extra = [cost.run(calls).products - base.run(calls).products for calls in (10, 20)]
        assert cost.parameters == sum(leaf.size for leaf in jax.tree.leaves(split(network(kind))[1]))
        if kind == "controlnet":
            assert extra[1] - extra[0] > 0.2 * base.run(10).products
        else:
            assert extra[0] == extra[1] == cost.once.products > 0
            assert 0 < cost.call.others - base.call.others < 0.05 * base.call.total, "sums alone"


def test_plug_and_play_costs_a_row_and_the_way_to_the_noise():
    base = base_cost(setting())
    control = PlugAndPlay(np.zeros((SIDE, SIDE, 3), np.float32), inversion=30)
    cost = plug_and_play_cost(setting(), control, diffusion_base().schedule, 10)
    assert cost.parameters == 0 and cost.call.products == 3 * base.call.products // 2
    pixels = pixel_base()
    small = Setting(pixels.unet, None, 8, 8, TOKENS, True)
    alone = plug_and_play_cost(small, PlugAndPlay(np.zeros((8, 8, 3), np.float32), inversion=30), pixels.schedule, 10)
    assert alone.once.products == (30 + 10) * base_cost(small).call.products // 2
    assert cost.once.products > (30 + 10) * base.call.products // 2, "and the encoder"


def test_runs_are_timed_in_turns_after_a_warm_up():
    seen: list[str] = []
    found = interleaved({name: lambda name=name: seen.append(name) for name in "ab"}, 2)
    assert "".join(seen) == "ababab" and [len(times) for times in found.values()] == [2, 2]
    assert overhead(1.5, 1.0) == 50


class Means:
    """Features that need no network: colours of the corners."""

    name = "corners"

    def __call__(self, images: np.ndarray) -> np.ndarray:
        return images[:, :2, :2].reshape(len(images), -1).astype(np.float32)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A base, pictures of a dark square on white, and a folder of weights for each kind."""
    folder, rng, count = tmp_path_factory.mktemp("comparison"), np.random.default_rng(0), 6
    pictures = folder / "pictures"
    pictures.mkdir()
    images = np.full((count, SIDE, SIDE, 3), 255, np.uint8)
    for image in images:
        top, left = rng.integers(0, SIDE - 8, 2)
        image[top : top + 8, left : left + 8] = 0
    np.save(pictures / "images.npy", images)
    entry = {"style": "3d emoji", "tags": [], "mirror": True, "split": "unseen"}
    entries = [{**entry, "label": f"thing {i}"} for i in range(count)]
    (pictures / "index.json").write_text(json.dumps({"pictures": entries}))
    write_tokenizer(pictures / "tokenizer", *train_bpe([f"thing {i}" for i in range(count)], 600))
    for kind in KINDS:
        save(network(kind), folder / kind)
    diffusion_base().save(folder / "base")
    return folder


def comparison(made: Path, **changes) -> ControlComparison:
    data = ControlledConfig(str(made / "pictures"), split="unseen", batch_size=2, length=16)
    methods = {"controlnet": str(made / "controlnet"), "t2i_adapter": str(made / "t2i_adapter"), "plug_and_play": True}
    methods |= {"plugin": str(made / "plugin")}
    settings = {"base": str(made / "base"), "quality": Means(), "count": 5, "rows": 2, "steps": 2, "inversion": 3}
    settings |= {"methods": methods, "rounds": 2} | changes
    return ControlComparison(data, {"edges": EdgeF1(), "area": MaskIou()}, **settings)


def test_a_row_for_each_method(made, tmp_path):
    said = comparison(made, quality=None, count=1).run("", tmp_path)
    lines = said.splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:7]] == TITLES
    assert len({line.count("|") for line in lines[:7]}) == 1 and "Quality was left out" in lines[-1]
    assert (tmp_path / "table.md").read_text() == said + "\n" and (tmp_path / "sheet.png").stat().st_size > 0
    report = json.loads((tmp_path / "results.json").read_text())
    base, control, adapter, layout, plugin = report["rows"]
    assert [row["model"] for row in report["rows"]] == TITLES and report["pictures"] == 1
    assert base["parameters"] == layout["parameters"] == base["gflop_overhead"] == base["time_overhead"] == 0
    for kind, row in zip(KINDS, (control, adapter, plugin), strict=True):
        assert row["parameters"] == sum(leaf.size for leaf in jax.tree.leaves(split(network(kind))[1]))
        assert row["gflop"] == pytest.approx(network_cost(setting(), network(kind)).run(2).total / 1e9)
        assert row["gflop_overhead"] == pytest.approx(100 * (row["gflop"] / base["gflop"] - 1))
    assert layout["gflop_overhead"] > 50
    for row in report["rows"]:
        assert row["seconds"] == pytest.approx(np.median(row["timings"])) and len(row["timings"]) == 2
        assert row["time_overhead"] == pytest.approx(100 * (row["seconds"] / base["seconds"] - 1))
        assert set(row["fidelity"]) == {"edges", "area"} and row["fidelity"]["area"]["count"] == 1
    assert len({json.dumps(row["fidelity"]) for row in report["rows"]}) > 2, "they steer"
    with (tmp_path / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["model"] for row in rows] == TITLES and float(rows[4]["gflop"]) == plugin["gflop"]
    assert float(rows[1]["area"]) == control["fidelity"]["area"]["value"]
    with pytest.raises(FileExistsError):
        comparison(made).run("", tmp_path)


@pytest.mark.slow
def test_the_command(made, tmp_path, monkeypatch, caplog):
    """`python eval.py evaluation=control_methods weights=PLUGIN`: the config as it is, other networks."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("common.training.run.setup", lambda: None)
    small = {"base": made / "base", "count": 1, "rows": 1, "steps": 2, "inversion": 2, "rounds": 1, "quality": "null"}
    words = [f"evaluation.{name}={value}" for name, value in small.items()]
    words += [
        f"weights={made / 'plugin'}",
        f"evaluation.data.folder={made / 'pictures'}",
        "evaluation.methods.plug_and_play=null",
    ]
    old = [renamed.override("evaluation.ways.layout=null") if "plug_and_play" in word else word for word in words]
    with hydra.initialize_config_module("configs", version_base="1.3"):
        config = hydra.compose("eval", overrides=["evaluation=control_methods", *words])
        again = hydra.compose("eval", overrides=["evaluation=control_ways", *old])
    with caplog.at_level("INFO"):
        evaluate_from_config(config)
    assert "| Base + plugin |" in caplog.text and "evaluation.quality is null" in caplog.text
    report = json.loads(Path("runs/control_methods/evaluation/results.json").read_text())
    assert [row["model"] for row in report["rows"]] == [TITLES[0], TITLES[4]] and report["quality"] is None
    with pytest.raises(SystemExit):
        evaluate_from_config(config)
    evaluate_from_config(again)
    assert Path("runs/control_ways/evaluation/results.json").exists()


def test_old_names_are_read(made):
    path = "plugins.control.comparison.ControlComparison"
    node = {"_target_": path, "ways": {"layout": True, "plugin": "p"}, "data": comparison(made).data, "scores": {}}
    assert instantiate(node, "evaluation").methods == {"plug_and_play": True, "plugin": "p"}
    with pytest.raises(ValueError, match="ControlComparison"):
        comparison(made).prepare()
    assert renamed.override("+evaluation.ways.mine=a") == "+evaluation.methods.mine=a"
    assert renamed.override("evaluation.beside=[a]") == "evaluation.compare_with=[a]"
    assert renamed.override("weights=evaluation.ways") == "weights=evaluation.ways"


@pytest.mark.parametrize(
    ("changes", "error", "value"),
    [
        ({"methods": {"plugin": "nowhere"}}, FileNotFoundError, r"evaluation\.methods\.plugin: .*nowhere"),
        ({"methods": {"plug_and_play": True}, "base": "nowhere"}, FileNotFoundError, "nowhere"),
        ({"methods": {"plug_and_play": None, "plugin": None}}, ValueError, r"evaluation\.methods"),
        ({"methods": {"plug_and_play": "photo.png"}}, ValueError, r"photo\.png"),
        ({"methods": {"plugin": True}}, ValueError, r"plugin is True"),
        ({"count": 3}, ValueError, "^3 "),
        ({"rounds": 0}, ValueError, "rounds 0"),
    ],
)
def test_settings_that_are_refused_before_any_work(made, tmp_path, monkeypatch, changes, error, value):
    monkeypatch.setattr("plugins.evaluation.comparison.bases.load", lambda *_: pytest.fail("loaded"))
    with pytest.raises(error, match=value) as caught:
        comparison(made, **changes).run("", tmp_path)
    one_line(caught)
    assert not list(tmp_path.iterdir())


def test_a_control_for_another_base_is_named(made, tmp_path):
    other = MediaPipeConfig.for_unet(dataclasses.replace(diffusion_base().base.unet, block_out_channels=(16,)), UNIT)
    save(random(MediaPipePlugin, other), tmp_path / "other")
    with pytest.raises(ValueError, match=r"Base \+ plugin: .*\(16,\)") as caught:
        comparison(made, methods={"plugin": str(tmp_path / "other")}).run("", tmp_path / "out")
    one_line(caught)


@pytest.mark.slow
def test_quality_is_beside_the_held_out_pictures_and_only_inceptions_is_called_fid(made, tmp_path):
    settings = {"count": 4, "methods": {"plugin": str(made / "plugin")}, "rounds": 1}
    said = comparison(made, **settings).run("", tmp_path / "one")
    assert "| Fréchet corners | kernel distance corners x 1000 |" in said and "FID" not in said
    base, plugin = json.loads((tmp_path / "one" / "results.json").read_text())["rows"]
    assert base["quality"]["Fréchet corners"] > 0 and base["quality"] != plugin["quality"]
    extractor = Means()
    extractor.name = INCEPTION
    again = comparison(made, quality=extractor, **settings).run("", tmp_path / "two")
    assert "| FID | KID x 1000 |" in again
