"""Bases of every family make the PyTorch library's images, from folders and from what is saved of them."""

import families
import numpy as np
import pytest
from families import FAMILIES, IMAGES
from networks import assert_same

from plugins.diffusion.io.lora import Lora
from plugins.diffusion.pipeline import load

PARITY = 1e-5


@pytest.fixture(autouse=True)
def drawn_noise(monkeypatch):
    monkeypatch.setattr("plugins.diffusion.samplers.sampler._normal", families.noise)


@pytest.mark.long
@pytest.mark.parametrize("name", FAMILIES)
def test_images_of_the_library(name):
    pipeline = families.base(name)
    if "lora" in FAMILIES[name]:
        peft = load(families.folder(name)).with_loras([(Lora.load(families.lora("peft")), 1.0)])
        for kind, network in pipeline.networks.items():
            assert_same(network, peft.networks[kind])
    image = pipeline(**families.arguments(name))[0]
    np.testing.assert_allclose(image, IMAGES[name], atol=PARITY)
