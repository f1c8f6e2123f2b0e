"""Outputs of the PyTorch library for the small networks of tests/plugins/drawn.py.

    python tests/data/plugins/make_networks.py        # writes networks.json and *_io.npz beside itself

Needs torch, diffusers, transformers and peft; nothing else of this project does. Written with torch 2.13.0, diffusers
0.42.1, transformers 5.23.0 and peft 0.21.2. All is computed in float64 from float32 weights and inputs and stored as
float32, so the tests' tolerances are of our arithmetic alone. Of outputs with more than 256 elements every seventh is
stored, channels last, but whole those that the tests use as inputs.
"""

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKL, ControlNetModel, T2IAdapter, UNet2DConditionModel
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
from peft import LoraConfig, inject_adapter_in_model, set_peft_model_state_dict
from transformers import CLIPTextConfig, CLIPTextModel

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "plugins"))
import drawn  # noqa: E402

CLASSES = {"unet": UNet2DConditionModel, "controlnet": ControlNetModel, "t2i_adapter": T2IAdapter, "vae": AutoencoderKL}
TIMES = [981, 20]
IN_UNET = ["to_q", "to_k", "to_v", "to_out.0", "proj_in", "proj_out", "ff.net.0.proj", "ff.net.2"]
IN_TEXT = ["q_proj", "k_proj", "v_proj", "out_proj"]
INPUTS = r"down_\d+"  # outputs that go into the UNet in tests
Outputs = dict[str, torch.Tensor]


def build(kind: str) -> torch.nn.Module:
    folder = HERE / kind
    if kind == "text_encoder":
        return CLIPTextModel(CLIPTextConfig.from_pretrained(folder)).eval()
    return CLASSES[kind].from_config(CLASSES[kind].load_config(folder)).eval()


def filled(kind: str, tensors: Mapping[str, np.ndarray] | None = None) -> torch.nn.Module:
    """The network in float64 with the drawn weights, every one of which has a place."""
    network, tensors = build(kind), drawn.tensors(kind) if tensors is None else tensors
    network.load_state_dict({name: torch.from_numpy(value) for name, value in tensors.items()})
    return network.double()


def given(*names: str) -> list[torch.Tensor]:
    return [torch.from_numpy(drawn.given(name)).double() for name in names]


def watched(network: torch.nn.Module, names: Mapping[str, str], call) -> Outputs:
    """What the modules of these names give while `call` runs."""
    seen: Outputs = {}

    def keep(key):
        return lambda module, inputs, output: seen.setdefault(key, output)

    hooks = [network.get_submodule(module).register_forward_hook(keep(key)) for key, module in names.items()]
    call()
    for hook in hooks:
        hook.remove()
    return seen


def unet(network, x, t, ctx, x_rect) -> Outputs:
    inside = {"time_proj": "time_proj", "time_embedding": "time_embedding", "mid": "mid_block"}
    inside |= {f"up{i}": f"up_blocks.{i}" for i in range(4)} | {f"down{i}": f"down_blocks.{i}" for i in range(4)}
    block = "down_blocks.0.attentions.0"
    inside |= {"dbg_d0r0": "down_blocks.0.resnets.0", "dbg_d0a0": block, "conv_in": "conv_in"}
    inside |= {"dbg_d0a0_tb": f"{block}.transformer_blocks.0"}
    inside |= {f"dbg_d0a0_{part}": f"{block}.transformer_blocks.0.{part}" for part in ("attn1", "attn2", "ff")}
    out: Outputs = {}
    seen = watched(network, inside, lambda: out.update(out=network(x, t, ctx).sample))
    skips = [seen.pop("conv_in"), *(skip for i in range(4) for skip in seen.pop(f"down{i}")[1])]
    seen["dbg_d0a0"] = seen["dbg_d0a0"][0] if isinstance(seen["dbg_d0a0"], tuple) else seen["dbg_d0a0"].sample
    out |= seen | {f"skip_{i:02}": skip for i, skip in enumerate(skips)}
    out["out_t500"] = network(x, 500, ctx).sample
    out["out_rect_t0"] = network(x_rect, 0, ctx[:1]).sample
    return out


def controlnet(network, unet, x, t, ctx, cond, cond2) -> Outputs:
    def steered(down, middle):
        return unet(x, t, ctx, down_block_additional_residuals=down, mid_block_additional_residual=middle).sample

    down, middle = network(x, t, ctx, cond, return_dict=False)
    guess, guess_middle = network(x, t, ctx, cond, conditioning_scale=0.8, guess_mode=True, return_dict=False)
    other, other_middle = network(x, t, ctx, cond2, return_dict=False)
    both = [0.6 * a + 0.3 * b for a, b in zip(down, other, strict=True)]
    return {
        "cond_embedding": network.controlnet_cond_embedding(cond),
        **{f"down_{i:02}": value for i, value in enumerate(down)},
        "mid": middle,
        **{f"down_guess08_{i:02}": value for i, value in enumerate(guess)},
        "mid_guess08": guess_middle,
        "unet_out": steered(down, middle),
        "unet_out_guess08": steered(guess, guess_middle),
        "unet_out_multi_06_03": steered(both, 0.6 * middle + 0.3 * other_middle),
    }


def t2i_adapter(network, unet, control, x, t, ctx, cond, cond2) -> Outputs:
    features, other = network(cond), network(cond2)
    out: Outputs = {f"feat_{i}": value for i, value in enumerate(features)}
    inside = {"mid": "mid_block"} | {f"down{i}": f"down_blocks.{i}" for i in range(4)}

    def steered(features, **more):  # the library empties the list that it is given, and adds in place
        copies = [feature.clone() for feature in features]
        return unet(x, t, ctx, down_intrablock_additional_residuals=copies, **more).sample

    seen = watched(unet, inside, lambda: out.update(unet_out=steered(features)))
    out["mid"] = seen["mid"]
    for i in range(4):
        out[f"down{i}_out"], skips = seen[f"down{i}"]
        out[f"down{i}_last_skip"] = skips[-1]
    down, middle = control(x, t, ctx, cond, return_dict=False)
    out["unet_out_scale05"] = steered([0.5 * feature for feature in features])
    residuals = {"down_block_additional_residuals": down, "mid_block_additional_residual": middle}
    out["unet_out_with_controlnet"] = steered(features, **residuals)
    for i, (a, b) in enumerate(zip(features, other, strict=True)):
        out[f"multi_feat_{i}"] = 0.7 * a + 0.4 * b
    return out


def vae(network, image, noise) -> Outputs:
    posterior: DiagonalGaussianDistribution = network.encode(image).latent_dist
    sample = posterior.mean + posterior.std * noise
    return {
        "mean": posterior.mean,
        "logvar": posterior.logvar,
        "std": posterior.std,
        "sample": sample,
        "scaled_sample": sample * network.config.scaling_factor,
        "decoded": network.decode(sample).sample,
        "kl": posterior.kl(),
    }


def text_encoder(network, input_ids, attention_mask) -> Outputs:
    plain = network(input_ids, output_hidden_states=True)
    final = network.get_submodule(
        next(name for name, _ in network.named_modules() if name.endswith("final_layer_norm"))
    )
    return {
        "last_hidden_state": plain.last_hidden_state,
        "pooler_output": plain.pooler_output,
        **{f"hidden_{i}": value for i, value in enumerate(plain.hidden_states)},
        "last_hidden_state_masked": network(input_ids, attention_mask=attention_mask).last_hidden_state,
        "clip_skip2_final_ln": final(plain.hidden_states[-2]),
    }


def adapted(kind: str, targets: list[str], tensors: Mapping[str, np.ndarray], base=None) -> torch.nn.Module:
    """The network with PEFT's layers beside its own."""
    config = LoraConfig(r=drawn.RANK, lora_alpha=drawn.ALPHA, target_modules=targets)
    network = inject_adapter_in_model(config, filled(kind, base))
    own = {name.split(".", 1)[1]: torch.from_numpy(value) for name, value in tensors.items() if name.startswith(kind)}
    placed = set_peft_model_state_dict(network, own)
    assert not placed.unexpected_keys, placed.unexpected_keys
    return network.double()


def lora(tensors, x, t, ctx, input_ids, base: Mapping[str, Mapping[str, np.ndarray]] | None = None) -> Outputs:
    base = base or {}
    network = adapted("unet", IN_UNET, tensors, base.get("unet"))
    text = adapted("text_encoder", IN_TEXT, tensors, base.get("text_encoder"))
    out = {"unet_out_base": filled("unet", base.get("unet"))(x, t, ctx).sample}
    out["text_last_hidden_scale1.0"] = text(input_ids).last_hidden_state
    for scale in (1.0, 0.5):
        for module in network.modules():
            if hasattr(module, "set_scale"):
                module.set_scale("default", scale)
        out[f"unet_out_scale{scale}"] = network(x, t, ctx).sample
    return out


def stored(key: str, value: torch.Tensor) -> np.ndarray:
    if value.numel() <= 256 or re.fullmatch(INPUTS, key):
        return value.numpy()
    return drawn.sampled((value.permute(0, 2, 3, 1) if value.ndim == 4 else value).numpy())


def write(name: str, outputs: Outputs, **inputs: np.ndarray) -> None:
    arrays = {key: stored(key, value.detach().float()) for key, value in outputs.items()}
    np.savez_compressed(HERE / f"{name}_io.npz", **arrays, **inputs)


def lora_shapes() -> dict[str, list[int]]:
    found = {}
    for kind, targets in (("unet", IN_UNET), ("text_encoder", IN_TEXT)):
        network = inject_adapter_in_model(LoraConfig(r=drawn.RANK, target_modules=targets), build(kind))
        for name, value in network.state_dict().items():
            if ".lora_" in name:
                found[f"{kind}.{name.replace('.default', '')}"] = list(value.shape)
    return found


@torch.no_grad()
def main() -> None:
    kinds = [*CLASSES, "text_encoder"]
    found = {
        kind: {k: list(v.shape) for k, v in build(kind).state_dict().items() if v.is_floating_point()} for kind in kinds
    }
    (HERE / "networks.json").write_text(json.dumps(found | {"lora": lora_shapes()}, separators=(",", ":")) + "\n")
    networks = {kind: filled(kind) for kind in kinds}
    t = torch.tensor(TIMES)
    x, ctx, cond, cond2 = given("x", "ctx", "cond", "cond2")
    ids = np.random.default_rng(0).integers(0, 998, (2, 77))
    ids[:, 0], ids[0, 9:], ids[1, 40:] = 998, 999, 999
    mask = (np.arange(77) < [[10], [41]]).astype(np.int64)
    write("unet", unet(networks["unet"], x, t, ctx, *given("x_rect")))
    write("controlnet", controlnet(networks["controlnet"], networks["unet"], x, t, ctx, cond, cond2))
    control = networks["controlnet"]
    write("t2i_adapter", t2i_adapter(networks["t2i_adapter"], networks["unet"], control, x, t, ctx, cond, cond2))
    write("vae", vae(networks["vae"], *given("image", "noise")))
    tokens, keep = torch.from_numpy(ids), torch.from_numpy(mask)
    write("text_encoder", text_encoder(networks["text_encoder"], tokens, keep), input_ids=ids, attention_mask=mask)
    write("lora", lora(drawn.tensors("lora"), x, t, ctx, tokens), input_ids=ids)


if __name__ == "__main__":
    main()
