"""Folders of small random networks as people have them: a CLIP with its tokenizer, a T5 with its pieces."""

import json
from pathlib import Path

import safetensors.numpy
from flax import nnx
from published import seeded_weights

from common.io.clip_tokenizer import BYTE_CHARACTERS, END, START, WORD_END, Tokenizer
from common.nn.text_encoder import TextConfig
from common.nn.two_towers import TwoTowerConfig, TwoTowers
from common.nn.vision_transformer import VisionConfig
from common.weights.porting import flatten
from common.weights.torch_names import state_dict
from reveal.network.config import RevealConfig
from reveal.network.published import hf_name
from reveal.network.t5_model import T5
from reveal.processing.tokenizers import Pieces, trained

SIDE = 32


def clip_folder(place: Path) -> Path:
    """Reads letters, 77 of them; sees 32 pixels a side."""
    place.mkdir(parents=True)
    tokens = [*BYTE_CHARACTERS, *(letter + WORD_END for letter in BYTE_CHARACTERS), START, END]
    Tokenizer({token: number for number, token in enumerate(tokens)}, []).save(place, 77)
    text = TextConfig(len(tokens), 32, 64, 1, 2, 77, eos_token_id=len(tokens) - 1, projection_dim=24)
    vision = VisionConfig(32, 64, 1, 2, SIDE, 8, projection_dim=24)
    config = TwoTowerConfig(text, vision, 24)
    (place / "config.json").write_text(json.dumps(config.to_json()))
    data = state_dict(TwoTowers(config, rngs=nnx.Rngs(0)))
    (place / "model.safetensors").write_bytes(safetensors.numpy.save(data))
    return place


def t5_folder(place: Path, texts: list[str]) -> Path:
    """Writes nonsense, in pieces of these texts."""
    place.mkdir(parents=True)
    (place / "spiece.model").write_bytes(trained(iter(texts), 120))
    size = len(Pieces(place / "spiece.model"))
    config = RevealConfig(
        vocab_size=size, width=24, heads=2, head_dim=8, mlp=32, bos=2,
        encoder_layers=2, decoder_layers=1, fusion_layers=1,
    )  # fmt: skip
    shapes = {}
    for ours, leaf in flatten(nnx.to_pure_dict(nnx.state(T5(config, rngs=nnx.Rngs(0))))).items():
        swapped = ours.endswith(("kernel", "rel_embedding"))
        shapes[hf_name(ours)] = leaf.shape[::-1] if swapped else leaf.shape
    (place / "model.safetensors").write_bytes(safetensors.numpy.save(seeded_weights(shapes)))
    fields = {"model_type": "t5", "feed_forward_proj": "gated-gelu"}
    (place / "config.json").write_text(json.dumps(fields))
    return place
