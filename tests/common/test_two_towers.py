"""CLIP's and SigLIP's towers against transformers', on small random networks."""

import json

import numpy as np
import pytest
from published import fields, folder, outputs, tensors
from refusal import refused
from weight_files import write_torch

from common.io.image_preparation import ImagePreparation
from common.nn.two_towers import TwoTowerConfig
from common.nn.vision_transformer import ImageEncoder, VisionConfig
from common.weights.torch_names import fill
from common.weights.two_tower_files import load_two_towers


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


@pytest.mark.long
@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_the_towers_are_transformers(name, tmp_path):
    towers, expected = load_two_towers(folder(name, tmp_path)), outputs(name)
    image, text = towers.embed_image(expected["pixels"]), towers.embed_text(expected["ids"])
    np.testing.assert_allclose(image, unit(expected["image"]), atol=1e-5)
    np.testing.assert_allclose(text, unit(expected["text"]), atol=1e-5)
    np.testing.assert_allclose(towers.vision_model(expected["pixels"]).last, expected["last_image"], atol=1e-5)
    config = TwoTowerConfig.from_json(json.loads(json.dumps(towers.config.to_json())))
    assert config == towers.config


def test_clips_image_encoder_alone_is_the_same_tower():
    """As IP-Adapters have it: the vision tower and its projection."""
    config = VisionConfig.from_json(fields("clip")["config"]["vision_config"] | {"projection_dim": 20})
    weights = {name: x for name, x in tensors("clip").items() if name.startswith(("vision_model.", "visual_proj"))}
    expected = outputs("clip")
    embedding, states = fill(ImageEncoder, config, weights)(expected["pixels"])
    np.testing.assert_allclose(unit(np.asarray(embedding)), unit(expected["image"]), atol=1e-5)
    assert [x.shape for x in states.hidden] == [(2, 10, 24)] * 3


def test_a_torch_file_in_a_folder_is_read(tmp_path):
    """With the buffers that old files have."""
    weights = {**tensors("siglip"), "text_model.embeddings.position_ids": np.arange(10)[None]}
    place = folder("siglip", tmp_path)
    (place / "model.safetensors").unlink()
    write_torch(place / "pytorch_model.bin", weights)
    expected = outputs("siglip")
    np.testing.assert_allclose(load_two_towers(place).embed_text(expected["ids"]), unit(expected["text"]), atol=1e-5)


def test_all_tensors_that_do_not_fit_are_named(tmp_path):
    weights = tensors("clip")
    weights["visual_projection.weight"] = weights["visual_projection.weight"][:, 1:]
    weights["extra.weight"] = weights.pop("text_projection.weight")
    with pytest.raises(ValueError) as error:
        load_two_towers(folder("clip", tmp_path, weights))
    assert all(name in str(error.value) for name in ("visual_projection", "text_projection", "extra.weight"))


@pytest.mark.parametrize("changes", [
    {"model_type": "bert"},
    {"text_config": {"hidden_act": "relu"}},
    {"vision_config": {"num_channels": 1}},
    {"vision_config": {"hidden_size": 25}},
])  # fmt: skip
def test_other_models_are_refused(changes):
    refused(ValueError, TwoTowerConfig.from_json, {"model_type": "clip", **changes})


def test_images_are_cropped_or_squeezed_and_normalised():
    image = np.zeros((40, 80, 3), np.uint8)
    image[:, 20:60] = 255
    clip, siglip = ImagePreparation(20), ImagePreparation(20, crop=False, mean=(0.5,) * 3, std=(0.5,) * 3)
    assert clip.resized(image)[:, 1:-1].min() == 255
    squeezed = siglip.normalised(siglip.resized(image))
    assert squeezed.shape == (20, 20, 3) and squeezed[0, 0, 0] == -1 and squeezed[0, 10, 0] == 1
    fields = {"size": {"shortest_edge": 20}, "crop_size": {"height": 20, "width": 20}, "do_center_crop": True}
    means = {"image_mean": list(clip.mean), "image_std": list(clip.std)}
    assert ImagePreparation.from_json({**fields, **means}, 20) == clip
    for wrong in ({"size": 30}, {"do_resize": False}, {"rescale_factor": 1.0}):
        refused(ValueError, ImagePreparation.from_json, wrong, 20)
