"""The networks of a Stable Diffusion single file, derived a second time: by walking through them.

`plugins/diffusion/io/single_file.py` decodes numbers out of names. Here the names are made as in the first release's
constructors: blocks are appended to one list and counted, channels are pushed on a stack and popped. Each function
gives the tensors of one network as (name in the single file, name in diffusers, shape in PyTorch's layout); a pair
`(ldm, diffusers)` is the two names of one module.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from plugins.diffusion.io.single_file import ldm_names
from plugins.diffusion.networks.unet_config import UNetConfig

Tensor = tuple[str, str, tuple[int, ...]]
Pair = tuple[str, str]


def unet(
    widths: Sequence[int] = (320, 640, 1280, 1280), context: int = 768, linear: bool = False, layers: int = 2
) -> Iterator[Tensor]:
    """The UNet: every level but the last has transformers."""
    first, time, last = widths[0], 4 * widths[0], len(widths) - 1
    yield from with_bias(("time_embed.0", "time_embedding.linear_1"), time, first)
    yield from with_bias(("time_embed.2", "time_embedding.linear_2"), time, time)
    yield from conv(("input_blocks.0.0", "conv_in"), first, 4)
    row, width, skips = 1, first, [first]
    for level, wide in enumerate(widths):
        for i in range(layers):
            yield from resnet((f"input_blocks.{row}.0", f"down_blocks.{level}.resnets.{i}"), width, wide, time)
            if level != last:
                yield from transformer(
                    (f"input_blocks.{row}.1", f"down_blocks.{level}.attentions.{i}"), wide, context, linear
                )
            width, row = wide, row + 1
            skips.append(width)
        if level != last:
            yield from conv((f"input_blocks.{row}.0.op", f"down_blocks.{level}.downsamplers.0.conv"), width, width)
            row += 1
            skips.append(width)
    yield from resnet(("middle_block.0", "mid_block.resnets.0"), width, width, time)
    yield from transformer(("middle_block.1", "mid_block.attentions.0"), width, context, linear)
    yield from resnet(("middle_block.2", "mid_block.resnets.1"), width, width, time)
    row = 0
    for level in reversed(range(len(widths))):
        up = f"up_blocks.{last - level}"
        for i in range(layers + 1):
            names = (f"output_blocks.{row}.0", f"{up}.resnets.{i}")
            yield from resnet(names, width + skips.pop(), widths[level], time)
            width, part = widths[level], 1
            if level != last:
                yield from transformer((f"output_blocks.{row}.1", f"{up}.attentions.{i}"), width, context, linear)
                part = 2
            if level and i == layers:
                yield from conv((f"output_blocks.{row}.{part}.conv", f"{up}.upsamplers.0.conv"), width, width)
            row += 1
    yield from with_bias(("out.0", "conv_norm_out"), width)
    yield from conv(("out.2", "conv_out"), 4, width)


RESNET = {  # diffusers -> the UNet's in a single file; an autoencoder has no time, and diffusers' names but for one
    "norm1": "in_layers.0",
    "conv1": "in_layers.2",
    "time_emb_proj": "emb_layers.1",
    "norm2": "out_layers.0",
    "conv2": "out_layers.3",
    "conv_shortcut": "skip_connection",
}


def resnet(names: Pair, inputs: int, outputs: int, time: int | None = None) -> Iterator[Tensor]:
    ldm = RESNET if time else {"conv_shortcut": "nin_shortcut"}
    at = {name: below(names, ldm.get(name, name), name) for name in RESNET}
    yield from with_bias(at["norm1"], inputs)
    yield from conv(at["conv1"], outputs, inputs)
    if time:
        yield from with_bias(at["time_emb_proj"], outputs, time)
    yield from with_bias(at["norm2"], outputs)
    yield from conv(at["conv2"], outputs, outputs)
    if inputs != outputs:
        yield from conv(at["conv_shortcut"], outputs, inputs, 1)


def transformer(names: Pair, width: int, context: int, linear: bool) -> Iterator[Tensor]:
    yield from with_bias(below(names, "norm"), width)
    inner = below(names, "transformer_blocks.0")
    for part in ("proj_in", "proj_out"):
        yield from with_bias(below(names, part), width, width) if linear else conv(below(names, part), width, width, 1)
    for part, source in (("attn1", width), ("attn2", context)):
        for name, inputs in (("to_q", width), ("to_k", source), ("to_v", source)):
            yield weight(below(inner, f"{part}.{name}"), width, inputs)
        yield from with_bias(below(inner, f"{part}.to_out.0"), width, width)
    for i in (1, 2, 3):
        yield from with_bias(below(inner, f"norm{i}"), width)
    yield from with_bias(below(inner, "ff.net.0.proj"), 8 * width, width)
    yield from with_bias(below(inner, "ff.net.2"), width, 4 * width)


def vae(widths: Sequence[int] = (128, 256, 512, 512), latents: int = 4, layers: int = 2) -> Iterator[Tensor]:
    """Encoder and decoder; attention as the 1x1 convolutions it was at first."""
    wide = widths[-1]
    yield from conv(("encoder.conv_in", "encoder.conv_in"), widths[0], 3)
    width = widths[0]
    for level, outputs in enumerate(widths):
        names = (f"encoder.down.{level}", f"encoder.down_blocks.{level}")
        for i in range(layers):
            yield from resnet(below(names, f"block.{i}", f"resnets.{i}"), width, outputs)
            width = outputs
        if level != len(widths) - 1:
            yield from conv(below(names, "downsample.conv", "downsamplers.0.conv"), width, width)
    yield from middle("encoder", wide)
    yield from with_bias(("encoder.norm_out", "encoder.conv_norm_out"), wide)
    yield from conv(("encoder.conv_out", "encoder.conv_out"), 2 * latents, wide)
    yield from conv(("quant_conv", "quant_conv"), 2 * latents, 2 * latents, 1)
    yield from conv(("post_quant_conv", "post_quant_conv"), latents, latents, 1)
    yield from conv(("decoder.conv_in", "decoder.conv_in"), wide, latents)
    yield from middle("decoder", wide)
    width = wide
    for level in reversed(range(len(widths))):
        names = (f"decoder.up.{level}", f"decoder.up_blocks.{len(widths) - 1 - level}")
        for i in range(layers + 1):
            yield from resnet(below(names, f"block.{i}", f"resnets.{i}"), width, widths[level])
            width = widths[level]
        if level:
            yield from conv(below(names, "upsample.conv", "upsamplers.0.conv"), width, width)
    yield from with_bias(("decoder.norm_out", "decoder.conv_norm_out"), width)
    yield from conv(("decoder.conv_out", "decoder.conv_out"), 3, width)


def middle(side: str, width: int) -> Iterator[Tensor]:
    yield from resnet((f"{side}.mid.block_1", f"{side}.mid_block.resnets.0"), width, width)
    attention = (f"{side}.mid.attn_1", f"{side}.mid_block.attentions.0")
    yield from with_bias(below(attention, "norm", "group_norm"), width)
    for ldm, diffusers in (("q", "to_q"), ("k", "to_k"), ("v", "to_v"), ("proj_out", "to_out.0")):
        yield from conv(below(attention, ldm, diffusers), width, width, 1)
    yield from resnet((f"{side}.mid.block_2", f"{side}.mid_block.resnets.1"), width, width)


def open_clip_shapes(width: int, layers: int, vocabulary: int) -> dict[str, tuple[int, ...]]:
    """The text encoder of SD 2.x in a single file, prefix aside: names and shapes of OpenCLIP's text transformer."""
    shapes: dict[str, tuple[int, ...]] = {
        "positional_embedding": (77, width),
        "text_projection": (width, width),
        "logit_scale": (),
        "token_embedding.weight": (vocabulary, width),
        "ln_final.weight": (width,),
        "ln_final.bias": (width,),
    }
    for layer in range(layers):
        name = f"transformer.resblocks.{layer}"
        shapes |= {f"{name}.{part}.{leaf}": (width,) for part in ("ln_1", "ln_2") for leaf in ("weight", "bias")}
        for part, outputs, inputs in (("out_proj", width, width), ("in_proj", 3 * width, width)):
            separator = "_" if part == "in_proj" else "."
            shapes[f"{name}.attn.{part}{separator}weight"] = (outputs, inputs)
            shapes[f"{name}.attn.{part}{separator}bias"] = (outputs,)
        for part, outputs, inputs in (("c_fc", 4 * width, width), ("c_proj", width, 4 * width)):
            shapes[f"{name}.mlp.{part}.weight"] = (outputs, inputs)
            shapes[f"{name}.mlp.{part}.bias"] = (outputs,)
    return shapes


def below(names: Pair, ldm: str, diffusers: str | None = None) -> Pair:
    return f"{names[0]}.{ldm}", f"{names[1]}.{diffusers or ldm}"


def weight(names: Pair, *shape: int) -> Tensor:
    return f"{names[0]}.weight", f"{names[1]}.weight", shape


def with_bias(names: Pair, *shape: int) -> Iterator[Tensor]:
    """The weight and bias of a norm, a linear map (outputs, inputs) or a convolution (outputs, inputs, h, w)."""
    yield weight(names, *shape)
    yield f"{names[0]}.bias", f"{names[1]}.bias", shape[:1]


def conv(names: Pair, outputs: int, inputs: int, size: int = 3) -> Iterator[Tensor]:
    yield from with_bias(names, outputs, inputs, size, size)


def single_names(names: Iterable[str], config: UNetConfig) -> dict[str, str]:
    """{diffusers' name of a UNet's tensor: in a single file}, by the loader's own rules; an upsampler's number is that
    of its block's parts."""
    renamed = {}
    for name in names:
        stem, _, leaf = name.rpartition(".")
        known = ldm_names(stem, config.layers_per_block)
        level = re.match(r"up_blocks\.(\d+)\.upsamplers", stem)
        plain = level is not None and config.up_block_types[int(level[1])] == "UpBlock2D"
        renamed[name] = f"{known[0] if len(known) == 1 or plain else known[1]}.{leaf}"
    return renamed
