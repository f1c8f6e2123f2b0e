"""Control networks from every kind of file there is, and written so that diffusers reads them."""

import dataclasses
import functools
import json

import control_files
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from control_contract import BASE, made
from networks import DATA, assert_same, folder, one_line, parameters

import plugins
from common.weights import porting
from plugins.control import (
    ControlNet,
    ControlNetConfig,
    ControlNetwork,
    MediaPipeConfig,
    MediaPipePlugin,
    T2IAdapter,
    T2IAdapterConfig,
    load,
    names,
    pretrained,
    save,
)
from plugins.diffusion.io.porting import blank, table

FILE = "diffusion_pytorch_model.safetensors"
KINDS = {"controlnet": ControlNet, "t2i_adapter": T2IAdapter}
WIDTHS = (16, 32, 32, 32)
PLUGIN = MediaPipeConfig.for_unet(BASE, 4)


@functools.cache
def fixed(kind):
    """The fixtures' network."""
    return load(folder(kind))


def stored(kind) -> dict[str, np.ndarray]:
    return safetensors.numpy.load_file(folder(kind) / FILE)


def write(path, tensors, config=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    safetensors.numpy.save_file({key: np.ascontiguousarray(value) for key, value in tensors.items()}, path)
    if config is not None:
        (path.parent / "config.json").write_text(json.dumps(config))
    return path


def fields(kind) -> dict:
    return json.loads((DATA / kind / "config.json").read_text())


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_of_diffusers_and_back(tmp_path, kind):
    network = fixed(kind)
    assert isinstance(network, KINDS[kind])
    path = save(network, tmp_path / kind)
    assert path == tmp_path / kind / FILE
    with safetensors.safe_open(path, framework="np") as file:
        assert file.metadata() == {"format": "pt"}
    written, reference = safetensors.numpy.load_file(path), stored(kind)
    assert written.keys() == reference.keys()
    for key, value in reference.items():
        np.testing.assert_array_equal(written[key], value, key)
    ours = json.loads((tmp_path / kind / "config.json").read_text())
    assert ours.items() <= fields(kind).items()  # nothing that diffusers does not know, nothing changed
    assert_same(load(tmp_path / kind), network)


def test_tensors_lie_where_they_belong():
    ours, theirs = parameters(fixed("controlnet")), stored("controlnet")
    name = "controlnet_cond_embedding.blocks.3"
    np.testing.assert_array_equal(ours[f"{name}.kernel"], theirs[f"{name}.weight"].transpose(2, 3, 1, 0))
    np.testing.assert_array_equal(ours["controlnet_down_blocks.11.bias"], theirs["controlnet_down_blocks.11.bias"])
    plugin = made(MediaPipePlugin, PLUGIN)
    path, kernel = next((path, v) for path, v in parameters(plugin).items() if path.endswith("filter.kernel"))
    assert kernel.shape[:3] == (3, 3, 1) and table(parameters(plugin))[path].source.endswith(".filter.weight")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_plugin_is_written_and_read_like_the_others(tmp_path, dtype):
    plugin = made(MediaPipePlugin, PLUGIN)
    path = save(plugin, tmp_path, dtype)
    depthwise = [v.shape for key, v in safetensors.numpy.load_file(path).items() if key.endswith("filter.weight")]
    assert depthwise and all(shape[1:] == (1, 3, 3) for shape in depthwise)  # as PyTorch has them
    for source in (tmp_path, path):
        again = load(source, dtype)
        assert isinstance(again, MediaPipePlugin) and again.config == PLUGIN
        for name, value in parameters(plugin).items():
            np.testing.assert_array_equal(parameters(again)[name], value.astype(dtype))


def test_pipelines_variants_and_shards(tmp_path):
    kind, tensors = "t2i_adapter", stored("t2i_adapter")
    half = {key: value.astype(np.float16) for key, value in tensors.items()}
    folder = tmp_path / "pipeline" / "adapter"
    write(folder / "diffusion_pytorch_model.fp16.safetensors", half, fields(kind))
    (folder.parent / "model_index.json").write_text("{}")
    bias = parameters(load(folder.parent, "float16"))["adapter.conv_in.bias"]  # the variant there is
    np.testing.assert_array_equal(bias, half["adapter.conv_in.bias"])
    shards = [f"diffusion_pytorch_model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    placed = {key: shards[i % 2] for i, key in enumerate(tensors)}
    for name in shards:
        write(folder / name, {key: tensors[key] for key in tensors if placed[key] == name})
    (folder / f"{FILE}.index.json").write_text(json.dumps({"weight_map": placed}))
    assert_same(load(folder), fixed(kind))
    assert parameters(load(folder, variant="fp16"))["adapter.conv_in.bias"][0] == half["adapter.conv_in.bias"][0]
    (folder / shards[0]).unlink()
    with pytest.raises(FileNotFoundError, match="expected 2 shards, 1 missing"):
        load(folder)


@pytest.mark.parametrize("whole", [True, False])
def test_a_controlnet_in_its_first_names(tmp_path, whole):
    """In a checkpoint beside its base, and by itself. Groups and heads are not Stable Diffusion's: given, or beside."""
    source, tensors = stored("controlnet"), {}
    for theirs, ours, shape in control_files.controlnet(WIDTHS, 32, (8, 16, 24, 32)):
        tensors[("control_model." if whole else "") + theirs] = source.pop(ours).reshape(shape)
    assert not source
    if whole:
        tensors["model.diffusion_model.input_blocks.0.0.weight"] = np.ones((2, 2), np.float32)
        tensors["first_stage_model.quant_conv.bias"] = np.ones(2, np.float32)
    path = write(tmp_path / "control.safetensors", tensors)
    assert_same(load(path, config=fixed("controlnet").config), fixed("controlnet"))
    write(path, tensors, fields("controlnet"))
    assert_same(load(path), fixed("controlnet"))


def test_a_t2i_adapter_in_its_first_names(tmp_path):
    source = stored("t2i_adapter")
    tensors = {theirs: source.pop(ours) for theirs, ours, _ in control_files.full_adapter(WIDTHS)}
    assert not source
    assert_same(load(write(tmp_path / "full.safetensors", tensors)), fixed("t2i_adapter"))
    light = made(T2IAdapter, T2IAdapterConfig(1, (8, 16), 4, 8, "light_adapter"))
    source = safetensors.numpy.load_file(save(light, tmp_path / "light"))
    tensors = {theirs: source.pop(ours) for theirs, ours, _ in control_files.light_adapter((8, 16, 16), 64)}
    assert not source
    assert_same(load(write(tmp_path / "light.safetensors", tensors)), light)


def test_diffusers_names_without_a_config(tmp_path):
    path = write(tmp_path / "adapter.safetensors", stored("t2i_adapter"))
    assert_same(load(path), fixed("t2i_adapter"))
    (tmp_path / "config.json").write_text(json.dumps({"_class_name": "AutoencoderKL"}))  # of something else
    assert_same(load(path), fixed("t2i_adapter"))


FULL_SIZE = {
    "controlnet 1.5": (ControlNet, ControlNetConfig.sd15(), control_files.controlnet()),
    "full": (T2IAdapter, T2IAdapterConfig.sd15(), control_files.full_adapter()),
    "sketch": (T2IAdapter, dataclasses.replace(T2IAdapterConfig.sd15(), in_channels=1),
               control_files.full_adapter(unshuffled=64)),
    "light": (T2IAdapter, T2IAdapterConfig.sd15_light(), control_files.light_adapter()),
}  # fmt: skip


@pytest.mark.parametrize("name", FULL_SIZE)
def test_full_size_names_shapes_and_inferred_architectures(name):
    """Every tensor of the published networks, and the config back from names and shapes."""
    module, config, walk = FULL_SIZE[name]
    leaves = porting.flatten(blank(module, config)[1])
    ours = {}
    for path, entry in table(leaves).items():
        axes = entry.layout.axes or range(len(leaves[path].shape))
        ours[entry.source] = tuple(np.array(leaves[path].shape)[np.argsort(axes)].tolist())
    release = {theirs: (diffusers, shape) for theirs, diffusers, shape in walk}
    assert ours == dict(release.values())
    architecture = names.architecture_of(release)
    assert architecture == config.to_json()["_class_name"]
    origins = names.from_single_file(architecture, release)
    assert {key: origin.key for key, origin in origins.items()} == {ours: key for key, (ours, _) in release.items()}
    assert type(config).from_json(names.infer(architecture, ours)) == config


def test_every_tensor_that_does_not_fit_is_listed(tmp_path):
    tensors = stored("t2i_adapter")
    tensors["adapter.conv_in.weight"] = tensors["adapter.conv_in.weight"][:, :64]
    tensors["adapter.extra.weight"] = tensors.pop("adapter.body.1.in_conv.bias")
    write(tmp_path / FILE, tensors, fields("t2i_adapter"))
    with pytest.raises(ValueError) as error:
        load(tmp_path)
    first, *rest = str(error.value).split("\n")
    assert str(tmp_path) in first and "3 in all" in first
    for offender in ("adapter.body.1.in_conv.bias", "adapter.extra.weight", "adapter.conv_in.weight (16, 64, 3, 3)"):
        assert sum(offender in line for line in rest) == 1


def test_what_is_no_control_network_is_one_line(tmp_path):
    adapter = stored("t2i_adapter")
    zero = np.zeros((2, 2), np.float32)
    files = {
        "lora": ({"control_model.lora_controlnet": zero}, r"found a Control-LoRA \('lora_controlnet'\); merge it"),
        "difference": ({"difference": zero}, "found the differences from a base"),
        "base": ({"model.diffusion_model.out.2.bias": zero}, r"expected the tensors of a control .* found model; name"),
        "sdxl": ({"zero_convs.0.0.weight": zero, "input_blocks.0.0.weight": zero, "input_hint_block.0.weight": zero,
                  "label_emb.0.0.weight": zero}, "label_emb.0.0.weight, which SDXL has"),
        "half": ({"zero_convs.0.0.weight": zero}, "found another network: conv_in.weight is missing"),
        "plugin": ({"stem.weight": zero}, "expected config.json beside a MediaPipePlugin, found none; copy it too"),
        "neck": ({"body.0.block1.weight": zero}, "expected a T2I-Adapter, found another network"),
    }  # fmt: skip
    for name, (tensors, message) in files.items():
        path = write(tmp_path / f"{name}.safetensors", tensors)
        with pytest.raises(ValueError, match=message) as error:
            load(path)
        assert str(path) in one_line(error)
    for make, message in (
        (
            lambda: load(folder("unet")),
            r"expected a control network \(ControlNetModel, .*found UNet2DConditionModel; name",
        ),
        (lambda: load(folder("vae") / FILE), "expected the tensors of a control network"),
        (lambda: load(write(tmp_path / "a.safetensors", adapter), variant="fp16"), "variant 'fp16' chooses a file in"),
        (
            lambda: load(folder("t2i_adapter"), config=ControlNetConfig()),
            "a T2IAdapter, config a ControlNetConfig; give",
        ),
        (lambda: load(folder("t2i_adapter"), "int8"), "dtype int8 is not one for weights"),
        (
            lambda: save(ControlNetwork(), tmp_path / "new"),
            "has no folder format here; this saves ControlNet, T2IAdapter, Med",
        ),
    ):
        with pytest.raises(ValueError, match=message) as error:
            make()
        one_line(error)


def test_damaged_files_pickles_and_nothing_at_all(tmp_path):
    path = write(tmp_path / FILE, stored("t2i_adapter"), fields("t2i_adapter"))
    path.write_bytes(path.read_bytes()[:5000])
    for source in (path, tmp_path):
        with pytest.raises(
            ValueError, match="expected a safetensors file, found another format, or one cut short"
        ) as e:
            load(source)
        one_line(e)
    path.unlink()
    (tmp_path / "diffusion_pytorch_model.bin").write_bytes(b"\x80\x02}.")
    for source in (tmp_path, tmp_path / "diffusion_pytorch_model.bin"):
        with pytest.raises(ValueError, match="convert it to safetensors first") as error:
            load(source)
        one_line(error)
    (tmp_path / "config.json").unlink()
    for make, message in (
        (lambda: load(tmp_path), r"expected config.json of a control network, found diffusion_pytorch_model.bin; name"),
        (lambda: load("no-such-control"), r"no control 'no-such-control': give a folder .* or a shipped name \("),
    ):
        with pytest.raises(FileNotFoundError, match=message) as error:
            make()
        one_line(error)


def test_nothing_is_overwritten_unasked(tmp_path):
    plugin = made(MediaPipePlugin, PLUGIN)
    (tmp_path / "README.md").write_text("mine")
    save(plugin, tmp_path)
    with pytest.raises(FileExistsError, match=r"config\.json exists; .*overwrite=True"):
        save(plugin, tmp_path)
    save(plugin, tmp_path, "float16", overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["README.md", "config.json", FILE]
    (tmp_path / f"{FILE}.index.json").write_text("{}")
    with pytest.raises(FileExistsError, match="leads readers to other weights"):
        save(plugin, tmp_path, overwrite=True)


def test_shipped_names(tmp_path):
    for name, content in (
        ("edges", {"_class_name": "MediaPipePlugin"}),
        ("base", {"_class_name": "UNet"}),
        ("bad", []),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(content))
    assert pretrained.names(tmp_path) == ["edges"] and pretrained.find("edges", tmp_path) == tmp_path / "edges"
    assert pretrained.find(tmp_path / "base", tmp_path) == tmp_path / "base"
    with pytest.raises(FileNotFoundError, match=r"or a shipped name \(edges\)"):
        pretrained.find("nowhere", tmp_path)


def test_names_are_there_when_they_are_asked_for():
    assert plugins.control.load is load and plugins.control.names is names
    assert {"ControlNet", "PlugAndPlay", "guess_levels"} <= set(dir(plugins.control))
    with pytest.raises(AttributeError, match="nothing"):
        _ = plugins.control.nothing
