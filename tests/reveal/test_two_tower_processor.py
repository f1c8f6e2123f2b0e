"""Texts and images of a CLIP and of a SigLIP as rows of ids and pixels."""

import dataclasses
import json

import numpy as np
import pytest
from published_folders import SIDE, clip_folder
from refusal import refused

from common.nn.two_towers import SiglipTextConfig, TwoTowerConfig
from common.nn.vision_transformer import SiglipVisionConfig
from reveal.memory.items import Item
from reveal.processing.tokenizers import trained
from reveal.processing.two_tower_processor import TwoTowerProcessor, tokenizer_of
from reveal.sources.records import Skips

SIGLIP = TwoTowerConfig(SiglipTextConfig(max_position_embeddings=24), SiglipVisionConfig(image_size=32), 768)


@pytest.fixture
def siglip(tmp_path):
    (tmp_path / "spiece.model").write_bytes(trained(iter(["a gull eats fish by the sea"] * 9), 40))
    return tmp_path


def test_siglips_texts_are_lower_case_without_punctuation_and_padded_with_the_end(siglip):
    tokenizer = tokenizer_of(siglip, SIGLIP)
    row, count = tokenizer("A gull, (eats)  FISH!")
    plain, _ = tokenizer("a gull eats fish")
    np.testing.assert_array_equal(row, plain)
    assert count < 24 and row[-1] == tokenizer.end == tokenizer.padding == 1
    long, count = tokenizer("gull " * 40)
    assert count > 24 and len(long) == 24 and long[-1] == 1
    assert tokenizer(" ") == (pytest.approx(np.zeros(24)), 0)


def test_a_tokenizer_of_another_model_is_refused(siglip):
    small = dataclasses.replace(SIGLIP, text=dataclasses.replace(SIGLIP.text, vocab_size=5))
    refused(ValueError, tokenizer_of, siglip, small)
    refused(FileNotFoundError, tokenizer_of, siglip / "nowhere", SIGLIP)


def test_rows_of_items(tmp_path):
    folder = clip_folder(tmp_path / "clip")
    config = TwoTowerConfig.from_json(json.loads((folder / "config.json").read_text()))
    processor = TwoTowerProcessor.of_folder(folder, config, ["own"])
    image, skips = np.full((40, 60, 3), 255, np.uint8), Skips()
    origin = {"file": "a.txt", "part": 1, "crc": 0}
    items = [
        Item("own", {"text": "gull"}, image),
        Item("own", {}, image),
        Item("own", {"text": "x" * 99, "from": origin}),
    ]
    rows = [processor.row(item, skips) for item in items]
    assert processor.row(Item("own", {"text": ""}), skips) is None
    assert processor.row(Item("own", {"text": "a"}, b"no image"), skips) is None
    assert processor.row(Item("own", {"text": "a", "from": {"name": "Ann"}}), skips) is not None
    batch = processor.batch([row for row in rows if row is not None])
    assert batch["tokens"].shape == (3, 77) and batch["image"].shape == (3, SIDE, SIDE, 3)
    assert batch["has_text"].tolist() == [True, False, True] and batch["has_image"].tolist() == [True, True, False]
    assert batch["image"][0].min() > 1 and len(skips.counts) == 3
    assert ["a.txt, part 1"] in skips.names.values()
    refused(ValueError, processor.question, "y" * 90)
