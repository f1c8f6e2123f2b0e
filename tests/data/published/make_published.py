"""Outputs of transformers' CLIP, SigLIP, T5 1.1 and ViT of a few thousand random parameters each.

    pip install torch transformers safetensors
    python tests/data/published/make_published.py

Writes for each network its config and the names and shapes of its tensors (`NAME.json`), and inputs with outputs
(`NAME.npz`). The weights follow from names and shapes (`seeded_weights.py`).
"""

import json
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from seeded_weights import seeded_weights
from transformers import (
    CLIPConfig,
    CLIPModel,
    SiglipConfig,
    SiglipModel,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
)

HERE = Path(__file__).parent
TEXT = dict(vocab_size=60, num_hidden_layers=2, num_attention_heads=2, max_position_embeddings=10)
IMAGE = dict(
    hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=3, image_size=24, patch_size=8
)
END, PADDING = 59, 1


def main() -> None:
    torch.set_grad_enabled(False)
    rng = np.random.default_rng(0)
    image = rng.standard_normal((2, 24, 24, 3)).astype(np.float32)
    ids = rng.integers(2, END, (3, 10))
    for row, length in zip(ids, (9, 4, 6), strict=True):
        row[length], row[length + 1 :] = END, PADDING
    special = dict(bos_token_id=58, eos_token_id=END, pad_token_id=PADDING)
    texts = {"hidden_size": 16, "intermediate_size": 32, **TEXT, **special}
    clip = CLIPModel(CLIPConfig(text_config=texts, vision_config=IMAGE, projection_dim=20))
    siglip = SiglipModel(SiglipConfig(text_config={**texts, "projection_size": 24}, vision_config=IMAGE))
    for name, model in (("clip", clip), ("siglip", siglip)):
        model = seeded(name, model)
        found = model(input_ids=torch.tensor(ids), pixel_values=torch.tensor(image).permute(0, 3, 1, 2))
        last = found.vision_model_output.last_hidden_state
        save(name, ids=ids, pixels=image, last_image=last, text=found.text_embeds, image=found.image_embeds)

    sizes = dict(d_model=16, d_kv=6, d_ff=24, num_heads=3, num_layers=4, num_decoder_layers=2, vocab_size=128)
    t5 = T5ForConditionalGeneration(
        T5Config(**sizes, feed_forward_proj="gated-gelu", tie_word_embeddings=False, decoder_start_token_id=0)
    )
    t5 = seeded("t5", t5)
    tokens = rng.integers(2, 128, (2, 40))
    tokens[1, 25:] = 0
    answer = rng.integers(2, 128, (2, 7))
    answer[:, 0] = 0
    found = t5(torch.tensor(tokens), attention_mask=torch.tensor(tokens != 0), decoder_input_ids=torch.tensor(answer))
    written = t5.generate(
        torch.tensor(tokens), attention_mask=torch.tensor(tokens != 0), max_new_tokens=6, do_sample=False
    )
    save(
        "t5", tokens=tokens, answer=answer, states=found.encoder_last_hidden_state, logits=found.logits, written=written
    )

    vit = ViTForImageClassification(ViTConfig(**IMAGE, num_labels=5))
    vit = seeded("vit", vit)
    hidden = vit.vit(torch.tensor(image).permute(0, 3, 1, 2)).last_hidden_state
    save("vit", pixels=image, states=hidden)


def seeded(name: str, model: torch.nn.Module) -> torch.nn.Module:
    """The network with seeded weights, by the names in the file that transformers writes."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        file = Path(folder) / "model.safetensors"
        shapes = {key: list(value.shape) for key, value in sorted(load_file(file).items())}
        config = json.loads((Path(folder) / "config.json").read_text("utf-8"))
        if name == "t5":  # published files of T5 1.1 and FLAN-T5 have an output table of their own, and say so
            shapes["lm_head.weight"], config["tie_word_embeddings"] = shapes["shared.weight"], False
            (Path(folder) / "config.json").write_text(json.dumps(config), "utf-8")
        save_file(seeded_weights(shapes), file, metadata={"format": "pt"})
        model = type(model).from_pretrained(folder).eval()
        if name == "t5":
            assert not torch.equal(model.lm_head.weight, model.shared.weight)
    fields = {"config": config, "shapes": shapes}
    (HERE / f"{name}.json").write_text(json.dumps(fields, indent=1, sort_keys=True) + "\n", "utf-8")
    return model


def save(name: str, **arrays) -> None:
    np.savez_compressed(HERE / f"{name}.npz", **{key: np.asarray(value) for key, value in arrays.items()})


if __name__ == "__main__":
    main()
