"""Images of the PyTorch library's pipelines for small random bases of each family.

    python tests/data/plugins/make_families.py        # writes families.json and families.npz beside itself

Needs torch, diffusers, transformers and peft; nothing else of this project does. Written with torch 2.13.0, diffusers
0.42.1, transformers 5.23.0 and peft 0.21.2. families.json has every component's config as the library writes it, and
the arguments of each call; families.npz has the images. Weights, conditions and noise are drawn from their names
(tests/plugins/drawn.py), so that the tests make the same base in our names and files. All is computed in float64 from
float32 weights. An encoded image is the mode of its distribution, as everywhere in this project.
"""

import json
import sys
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import torch
import transformers
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
from diffusers.schedulers import scheduling_lcm
from diffusers.utils import logging
from PIL import Image

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "plugins"))
import drawn  # noqa: E402

logging.set_verbosity_error()
PROMPT, NEGATIVE = "a red apple", "a blue car"
SIDE = 16  # of images in pixels; latents have half of it
LEVELS = {
    "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
    "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"],
}
UNET = {
    "sample_size": 8, "block_out_channels": [16, 24], "layers_per_block": 1, "norm_num_groups": 4,
    "cross_attention_dim": 16, "attention_head_dim": 2, **LEVELS,
}  # fmt: skip
TEXT = {
    "vocab_size": 1000, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "max_position_embeddings": 77, "eos_token_id": 2, "bos_token_id": 998, "pad_token_id": 999, "projection_dim": 16,
}  # fmt: skip
TEXT_2 = TEXT | {"hidden_size": 24, "hidden_act": "gelu", "projection_dim": 20}
VAE = {
    "block_out_channels": [8, 8], "layers_per_block": 1, "norm_num_groups": 4, "sample_size": SIDE,
    "scaling_factor": 0.5, "down_block_types": ["DownEncoderBlock2D"] * 2, "up_block_types": ["UpDecoderBlock2D"] * 2,
}  # fmt: skip
TINY_VAE = {
    "encoder_block_out_channels": [8, 8], "decoder_block_out_channels": [8, 8],
    "num_encoder_blocks": [1, 2], "num_decoder_blocks": [2, 1],
}  # fmt: skip
XL_LEVELS = {
    "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D"], "up_block_types": ["CrossAttnUpBlock2D", "UpBlock2D"],
    "transformer_layers_per_block": [1, 2], "attention_head_dim": [2, 4], "use_linear_projection": True,
    "addition_embed_type": "text_time", "addition_time_embed_dim": 8,
}  # fmt: skip
XL_UNET = UNET | XL_LEVELS | {"cross_attention_dim": 40, "projection_class_embeddings_input_dim": 20 + 6 * 8}
REFINER = UNET | XL_LEVELS | {"cross_attention_dim": 24, "projection_class_embeddings_input_dim": 20 + 5 * 8}
BETAS = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "steps_offset": 1}
PLMS = {"class": "PNDMScheduler", "skip_prk_steps": True, **BETAS}
DDIM = {"class": "DDIMScheduler", "set_alpha_to_one": False, "clip_sample": False, **BETAS}
EULER = {"class": "EulerDiscreteScheduler", "timestep_spacing": "leading", **BETAS}
LCM = {"class": "LCMScheduler", "original_inference_steps": 50, **BETAS}

# A third level: an adapter for SDXL has a feature for each, and one for the middle.
XL_DEEP = XL_UNET | {
    "block_out_channels": [16, 24, 24], "transformer_layers_per_block": [1, 1, 2], "attention_head_dim": [2, 4, 4],
    "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"],
    "up_block_types": ["CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"],
}  # fmt: skip
OF_UNET = {"sample_size", "up_block_types"}
CONTROLNET = {key: value for key, value in XL_UNET.items() if key not in OF_UNET}
CONTROLNET |= {"conditioning_embedding_out_channels": [4, 8]}
ADAPTER = {
    "channels": [16, 24, 24, 24], "num_res_blocks": 1, "downscale_factor": 4, "adapter_type": "full_adapter_xl",
}  # fmt: skip
# Matrices of a LoRA, as kohya names them for SDXL and as PEFT does: stem -> (name, outputs, inputs).
LORA = {
    "lora_unet_input_blocks_3_1_transformer_blocks_1_attn2_to_k": (
        "unet.down_blocks.1.attentions.0.transformer_blocks.1.attn2.to_k", 24, 40,
    ),
    "lora_unet_middle_block_1_transformer_blocks_0_attn1_to_q": (
        "unet.mid_block.attentions.0.transformer_blocks.0.attn1.to_q", 24, 24,
    ),
    "lora_unet_output_blocks_1_1_transformer_blocks_0_ff_net_2": (
        "unet.up_blocks.0.attentions.1.transformer_blocks.0.ff.net.2", 24, 96,
    ),
    "lora_te1_text_model_encoder_layers_0_self_attn_q_proj": ("text_encoder.encoder.layers.0.self_attn.q_proj", 16, 16),
    "lora_te2_text_model_encoder_layers_0_self_attn_v_proj": (
        "text_encoder_2.encoder.layers.0.self_attn.v_proj", 24, 24,
    ),
}  # fmt: skip

WORDS, WORDED = {"<one>": 1, "<two>": 2}, "a <two> apple, <one>"  # word -> number of vectors
VISION = {
    "hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": 12,
    "patch_size": 4, "projection_dim": 20,
}  # fmt: skip
PROMPT_SIZE = (20, 15)  # height and width of the picture as prompt
IP_SCALE = 0.6
SD, XL = "StableDiffusionPipeline", "StableDiffusionXLPipeline"
INPAINT, PIX2PIX = "StableDiffusionInpaintPipeline", "StableDiffusionInstructPix2PixPipeline"
SDXL = {"unet": XL_UNET, "scheduler": EULER, "xl": True}
# Family -> pipeline, components that are not the usual ones, scheduler, arguments in the words of this project.
FAMILIES: dict[str, dict[str, Any]] = {
    "plms_v": {"pipeline": SD, "scheduler": PLMS | {"prediction_type": "v_prediction"}, "steps": 20},
    "inpainting": {"pipeline": INPAINT, "unet": {"in_channels": 9}, "call": {"mask": True}},
    "inpainting_from_image": {
        "pipeline": INPAINT, "unet": {"in_channels": 9}, "call": {"mask": True, "strength": 0.7},
    },
    "editing": {
        "pipeline": PIX2PIX, "unet": {"in_channels": 8}, "scheduler": EULER,
        "call": {"image": True, "image_guidance": 1.8},
    },
    "lcm": {"pipeline": SD, "unet": {"time_cond_proj_dim": 12}, "scheduler": LCM, "steps": 4},
    "no_middle": {"pipeline": SD, "unet": {"mid_block_type": None}},
    "taesd": {"pipeline": SD, "vae": TINY_VAE},
    "sdxl": {"pipeline": XL, **SDXL},
    "sdxl_negative": {
        "pipeline": XL, **SDXL, "call": {"negative": NEGATIVE, "original": [24, 32], "crop": [2, 4]},
    },
    "sdxl_refiner": {
        "pipeline": "StableDiffusionXLImg2ImgPipeline", **SDXL, "unet": REFINER, "refiner": True,
        "call": {"image": True, "strength": 0.7},
    },
    "sdxl_controlnet": {
        "pipeline": "StableDiffusionXLControlNetPipeline", **SDXL, "control": ("controlnet", CONTROLNET),
    },
    "sdxl_adapter": {
        "pipeline": "StableDiffusionXLAdapterPipeline", **SDXL, "unet": XL_DEEP, "control": ("adapter", ADAPTER),
    },
    "sdxl_lora": {"pipeline": XL, **SDXL, "lora": True},
    "textual_inversion": {"pipeline": SD, "words": WORDS, "prompt": WORDED},
    # With eos_token_id 2 the library pools the token of the largest id, a word's, instead of the end token.
    "sdxl_textual_inversion": {
        "pipeline": XL, **SDXL, "eos_token_id": 999, "words": WORDS, "prompt": WORDED, "call": {"negative": "<one>"},
    },
    "ip_adapter": {"pipeline": SD, "ip_adapter": "base"},
    "ip_adapter_plus": {"pipeline": SD, "ip_adapter": "plus"},
    "sdxl_ip_adapter": {"pipeline": XL, **SDXL, "ip_adapter": "base"},
    "sdxl_ip_adapter_plus": {"pipeline": XL, **SDXL, "ip_adapter": "plus"},
}  # fmt: skip


def ip_adapter_shapes(unet: Any, form: str) -> dict[str, tuple[int, ...]]:
    """Names of an IP-Adapter's file, and shapes."""
    context, tokens, hidden = unet.config.cross_attention_dim, 4, 128
    if form == "base":
        shapes = {"proj.weight": (tokens * context, VISION["projection_dim"]), "proj.bias": (tokens * context,)}
        shapes |= {"norm.weight": (context,), "norm.bias": (context,)}
    else:
        shapes = {"latents": (1, 3, hidden), "proj_in.weight": (hidden, VISION["hidden_size"])}
        shapes |= {"proj_in.bias": (hidden,), "proj_out.weight": (context, hidden), "proj_out.bias": (context,)}
        shapes |= {"norm_out.weight": (context,), "norm_out.bias": (context,)}
        for i in range(4):
            norms = [f"layers.{i}.{name}" for name in ("0.norm1", "0.norm2", "1.0")]
            shapes |= {f"{norm}.{end}": (hidden,) for norm in norms for end in ("weight", "bias")}
            factors = {"0.to_q": (1, 1), "0.to_kv": (2, 1), "0.to_out": (1, 1), "1.1": (4, 1), "1.3": (1, 4)}
            shapes |= {f"layers.{i}.{k}.weight": (a * hidden, b * hidden) for k, (a, b) in factors.items()}
    shapes = {f"image_proj.{name}": shape for name, shape in shapes.items()}
    crossed = [name.removesuffix(".processor") for name in unet.attn_processors if name.endswith("attn2.processor")]
    for i, name in enumerate(crossed):
        width = unet.get_submodule(name).to_q.out_features
        shapes |= {f"ip_adapter.{2 * i + 1}.{end}.weight": (width, context) for end in ("to_k_ip", "to_v_ip")}
    return shapes


def add_ip_adapter(pipeline: Any, shapes: dict[str, tuple[int, ...]]) -> None:
    tensors: dict[str, Any] = {"image_proj": {}, "ip_adapter": {}}
    for name, shape in shapes.items():
        part, _, rest = name.partition(".")
        tensors[part][rest] = torch.from_numpy(drawn.tensor(name, shape)).double()
    pipeline.load_ip_adapter(tensors, subfolder="", weight_name="", image_encoder_folder=None, low_cpu_mem_usage=False)
    pipeline.set_ip_adapter_scale(IP_SCALE)


def add_words(pipeline: Any, made: dict[str, Any], words: dict[str, int]) -> None:
    """Textual inversions of each word's number of vectors."""
    for kind, tokenizer in (("text_encoder", "tokenizer"), ("text_encoder_2", "tokenizer_2")):
        for word, count in words.items() if kind in made else ():
            encoder = made[kind]
            vectors = torch.from_numpy(drawn.tensor(f"{kind}/{word}", (count, encoder.config.hidden_size)))
            options = {"token": word, "text_encoder": encoder, "tokenizer": made[tokenizer]}
            pipeline.load_textual_inversion(vectors, **options)


def given(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.from_numpy(drawn.normal(name, shape).astype(np.float32)).double()


def picture(name: str = "picture") -> torch.Tensor:
    """An image in [0, 1]."""
    return torch.from_numpy(drawn.picture(name, SIDE, SIDE)).double().permute(2, 0, 1)[None]


def merge_lora(made: dict[str, Any]) -> None:
    """W + alpha / r * up @ down, with alpha 1 and r 2."""
    for name, outputs, inputs in LORA.values():
        kind, _, path = name.partition(".")
        down, up = (
            torch.from_numpy(drawn.tensor(f"lora/{name}.{role}", shape)).double()
            for role, shape in (("lora_down", (2, inputs)), ("lora_up", (outputs, 2)))
        )
        modules = dict(made[kind].named_modules())
        modules[path if path in modules else f"text_model.{path}"].weight += up @ down / 2


def filled(kind: str, network: torch.nn.Module) -> torch.nn.Module:
    """The network in float64 with weights drawn from its tensors' names."""
    tensors = {}
    for name, value in network.state_dict().items():
        if value.is_floating_point():
            drawn_value = drawn.tensor(f"{kind}/{name.removeprefix('text_model.')}", tuple(value.shape))
            tensors[name] = torch.from_numpy(drawn_value)
    missing = network.load_state_dict(tensors, strict=False)
    assert not missing.unexpected_keys, missing
    return network.double().eval()


def components(family: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(the pipeline's components, their configs as the library writes them)."""
    vae = family.get("vae", VAE)
    vae_class = diffusers.AutoencoderTiny if vae is TINY_VAE else diffusers.AutoencoderKL
    made: dict[str, Any] = {
        "unet": diffusers.UNet2DConditionModel(**(UNET | family.get("unet", {}))),
        "vae": vae_class(**vae),
    }
    tokenizer = HERE / "tokenizer_tiny"
    xl, refiner = family.get("xl", False), family.get("refiner", False)
    end = {"eos_token_id": family.get("eos_token_id", TEXT["eos_token_id"])}
    texts: dict[str, Any] = {"text_encoder": None, "tokenizer": None}
    if not refiner:
        texts["text_encoder"] = transformers.CLIPTextModel(transformers.CLIPTextConfig(**(TEXT | end)))
        texts["tokenizer"] = transformers.CLIPTokenizer.from_pretrained(tokenizer)
    if xl:
        config = transformers.CLIPTextConfig(**(TEXT_2 | end))
        texts["text_encoder_2"] = transformers.CLIPTextModelWithProjection(config)
        texts["tokenizer_2"] = transformers.CLIPTokenizer.from_pretrained(tokenizer, pad_token="!")
    made |= texts
    if "ip_adapter" in family:
        made["image_encoder"] = transformers.CLIPVisionModelWithProjection(transformers.CLIPVisionConfig(**VISION))
        family["tensors"] = ip_adapter_shapes(made["unet"], family["ip_adapter"])
    if "control" in family:
        kind, config = family["control"]
        made[kind] = (diffusers.ControlNetModel if kind == "controlnet" else diffusers.T2IAdapter)(**config)
    configs = {}
    for kind, network in made.items():
        if isinstance(network, torch.nn.Module):
            filled(kind, network)
            text = kind.startswith(("text", "image_encoder"))
            configs[kind] = network.config.to_dict() if text else json.loads(network.to_json_string())
            if text:
                configs[kind]["architectures"] = [type(network).__name__]
    settings = dict(family.get("scheduler", DDIM))
    made["scheduler"] = getattr(diffusers, settings.pop("class"))(**settings)
    configs["scheduler"] = json.loads(made["scheduler"].to_json_string())
    if xl:
        made |= {"force_zeros_for_empty_prompt": not refiner}
        made |= {} if "control" in family else {"add_watermarker": False}
        made |= {"requires_aesthetics_score": True} if refiner else {}
    else:
        made |= {"safety_checker": None, "feature_extractor": None, "requires_safety_checker": False}
    if "ip_adapter" in family:
        side = VISION["image_size"]
        made["feature_extractor"] = transformers.CLIPImageProcessor(size={"shortest_edge": side}, crop_size=side)
    return made, configs


def run(family: dict[str, Any], made: dict[str, Any]) -> np.ndarray:
    """The image of the family's call: h w 3."""
    call, pipeline = family.get("call", {}), getattr(diffusers, family["pipeline"])(**made)
    pipeline.set_progress_bar_config(disable=True)
    noise = given("noise", (1, 4, SIDE // 2, SIDE // 2))
    more: dict[str, Any] = {"num_inference_steps": family.get("steps", 4), "guidance_scale": 4.0, "output_type": "np"}
    if family.get("lora"):
        merge_lora(made)
    if "ip_adapter" in family:
        add_ip_adapter(pipeline, family["tensors"])
        picture_bytes = np.round(255 * drawn.picture("prompt", *PROMPT_SIZE)).astype(np.uint8)
        more["ip_adapter_image"] = Image.fromarray(picture_bytes)
    if "words" in family:
        add_words(pipeline, made, family["words"])
    if call.get("negative"):
        more["negative_prompt"] = call["negative"]
    if call.get("image") or call.get("mask"):
        more["image"] = picture()
    if "control" in family:
        more["image"] = picture("condition")
    if call.get("mask"):
        mask = torch.zeros(1, 1, SIDE, SIDE).double()
        mask[:, :, 3:13, 5:] = 1
        more |= {"mask_image": mask, "strength": call.get("strength", 1.0), "height": SIDE, "width": SIDE}
    elif "strength" in call:
        more["strength"] = call["strength"]
    if "image_guidance" in call:
        more["image_guidance_scale"] = call["image_guidance"]
    if "original" in call:
        more |= {"original_size": tuple(call["original"]), "crops_coords_top_left": tuple(call["crop"])}
        more |= {
            "negative_original_size": tuple(call["original"]),
            "negative_crops_coords_top_left": tuple(call["crop"]),
        }
    draws = iter([noise, *(given(f"draw_{i}", tuple(noise.shape)) for i in range(8))])
    module = sys.modules[type(pipeline).__module__]
    module.randn_tensor = scheduling_lcm.randn_tensor = lambda *args, **options: next(draws)
    return pipeline(family.get("prompt", PROMPT), **more).images[0]


@torch.no_grad()
def main() -> None:
    DiagonalGaussianDistribution.sample = lambda self, generator=None: self.mode()
    written, images = {}, {}
    for name, family in FAMILIES.items():
        made, configs = components(family)
        images[name] = run(family, made).astype(np.float32)
        settings = {
            key: family[key]
            for key in ("pipeline", "steps", "call", "lora", "words", "prompt", "tensors")
            if key in family
        }
        settings |= {"control": family["control"][0]} if "control" in family else {}
        written[name] = settings | {"configs": configs, "zero_empty": made.get("force_zeros_for_empty_prompt")}
        inside = (images[name] > 0) & (images[name] < 1)
        print(f"{name:24} inside of [0, 1]: {inside.mean():.2f}, deviation {images[name].std():.3f}")
    written |= {"lora_matrices": LORA, "ip_adapter_call": {"size": PROMPT_SIZE, "strength": IP_SCALE}}
    (HERE / "families.json").write_text(json.dumps(written, separators=(",", ":"), sort_keys=True) + "\n")
    np.savez_compressed(HERE / "families.npz", **images)


if __name__ == "__main__":
    main()
