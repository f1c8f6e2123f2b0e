"""Published weights -> a REVEAL network: T5 1.1 or FLAN-T5 for texts, a ViT for images, or scenic's own checkpoints.

    params = assemble(config, read_t5("flan-t5-base"), read_vit("siglip-base-patch16-224"), seed=0)

docs/reveal.md, "From published weights", has the table of sources and formats.

Each is held to the three checks of `common/weights/porting.py` on its own: `read_t5` fills a whole T5 (`t5_model.py`),
`read_vit` a whole `Vit` but its head (`published_vit.py`). Then tensors only move. The text encoder has T5's lower
layers; fusion, query head and key head have its upper ones (scenic's `load_text_params` names the same four). What no
published network has stays at random: the ViT's head to T5's width, the projection of keys, the value head, the gate.
"""

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from common.io.flax_files import INDEX, read_flax
from common.io.tensor_files import about, open_folder, read_json
from common.nn.init import blank, init_params, split
from common.nn.json_config import check_supported
from common.weights import porting
from common.weights.porting import IDENTITY, OI_TO_IO, Entry, Tree
from common.weights.remote import local
from reveal.network import weights
from reveal.network.config import RevealConfig
from reveal.network.model import Reveal
from reveal.network.porting import DECODER, ENCODER, MLP, QKVO, from_scenic, scenic_config
from reveal.network.published_vit import CONFIG, Arrays, PublishedVit, read_vit
from reveal.network.t5 import BUCKETS, MAX_DISTANCE
from reveal.network.t5_model import T5

VISION_TYPES = ("vit", "clip", "siglip", "clip_vision_model", "siglip_vision_model")
Flat = Mapping[str, Any]  # by our dotted names

HF_LAYER = {
    **{f"attention.{name}": f"layer.0.SelfAttention.{name[0]}" for name in QKVO},
    "attention_norm": "layer.0.layer_norm",
}
HF_MLP = {f"mlp.{name}": f"DenseReluDense.{name}" for name in MLP} | {"mlp_norm": "layer_norm"}
HF_ENCODER = HF_LAYER | {ours: f"layer.1.{theirs}" for ours, theirs in HF_MLP.items()}
HF_DECODER = {
    **HF_LAYER,
    **{f"cross_attention.{name}": f"layer.1.EncDecAttention.{name[0]}" for name in QKVO},
    "cross_norm": "layer.1.layer_norm",
    **{ours: f"layer.2.{theirs}" for ours, theirs in HF_MLP.items()},
}
HF_T5 = {
    "embedding.embedding": "shared.weight",
    "encoder.positions.rel_embedding": "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
    "norm.scale": "encoder.final_layer_norm.weight",
    "decoder.positions.rel_embedding": "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
    "decoder.norm.scale": "decoder.final_layer_norm.weight",
    "decoder.logits.kernel": "lm_head.weight",
}
T5_FIELDS = (  # of config.json: the default, and the only value that is read
    ("model_type", None, "t5"),
    ("feed_forward_proj", "relu", "gated-gelu"),
    ("relative_attention_num_buckets", BUCKETS, BUCKETS),
    ("relative_attention_max_distance", MAX_DISTANCE, MAX_DISTANCE),
)
T5_SHAPE = ("vocab_size", "width", "heads", "head_dim", "mlp", "encoder_layers", "decoder_layers", "tied")
HF_SPARE = (  # of old files: copies of the table, and a table that no T5 reads
    "encoder.embed_tokens.weight",
    "decoder.embed_tokens.weight",
    "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",
)
T5X = {
    "embedding.embedding": "token_embedder/embedding",
    "encoder.positions.rel_embedding": "encoder/relpos_bias/rel_embedding",
    "norm.scale": "encoder/encoder_norm/scale",
    "decoder.positions.rel_embedding": "decoder/relpos_bias/rel_embedding",
    "decoder.norm.scale": "decoder/decoder_norm/scale",
    "decoder.logits.kernel": "decoder/logits_dense/kernel",
}


class PublishedT5(NamedTuple):
    """A T5's architecture, as the text part of a config, and its parameters by `T5`'s names."""

    config: RevealConfig
    params: Flat


def kind_of(path: str | Path) -> str:
    """t5, vit (also that of two towers) or reveal. Raises FileNotFoundError; ValueError for anything else."""
    path = Path(path)
    if (path / CONFIG).is_file():
        kind = read_json(path / CONFIG).get("model_type")
        if kind not in ("t5", *VISION_TYPES):
            raise ValueError(f"{path}: its model_type is {kind!r}; expected t5 or one of {', '.join(VISION_TYPES)}")
        return "t5" if kind == "t5" else "vit"
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist: give a transformers folder, a t5x checkpoint, or an .npz")
    if path.suffix == ".npz":
        return "vit"
    if path.is_dir():
        if not (path / INDEX).is_file():
            raise FileNotFoundError(f"{path} has neither {CONFIG} (transformers) nor {INDEX} (t5x): name another")
        return "t5"
    return "reveal"


def read_t5(path: str | Path) -> PublishedT5:
    """T5 1.1 or FLAN-T5. Raises FileNotFoundError; ValueError for T5 1.0 and other variants, and one that lists every
    tensor that is missing, left over or of another shape."""
    path = Path(path)
    with about(path):
        if (path / CONFIG).is_file():
            fields = read_json(path / CONFIG)
            for name, default, read in T5_FIELDS:
                check_supported(name, fields.get(name, default), (read,))
            stored = {name: x for name, x in open_folder(path).items() if name not in HF_SPARE}
            name_of, transposed = hf_name, True
        else:
            stored, name_of, transposed = read_flax(path), t5x_name, False
        config = _t5_config(stored, name_of, transposed)
        target = blank(T5, config)[1]
        turned = ("kernel", "rel_embedding") if transposed else ()
        layouts = {ours: OI_TO_IO if ours.endswith(turned) else IDENTITY for ours in porting.flatten(target)}
        table = {ours: Entry(name_of(ours), layout) for ours, layout in layouts.items()}
        return PublishedT5(config, porting.port(stored, table, target))


def hf_name(ours: str) -> str:
    if ours in HF_T5:
        return HF_T5[ours]
    stack, number, module, _ = _layer(ours)
    return f"{stack}.block.{number}.{(HF_ENCODER if stack == 'encoder' else HF_DECODER)[module]}.weight"


def t5x_name(ours: str) -> str:
    if ours in T5X:
        return T5X[ours]
    stack, number, module, leaf = _layer(ours)
    return f"{stack}/layers_{number}/{(ENCODER if stack == 'encoder' else DECODER)[module]}/{leaf}"


def _layer(ours: str) -> tuple[str, ...]:
    """stack, number, module and leaf of "encoder.layers.0.mlp.wi_0.kernel"."""
    match = re.fullmatch(r"(?:(encoder|decoder)\.)?layers\.(\d+)\.(.+)\.(\w+)", ours)
    assert match, f"{ours}: no parameter of a layer"
    return match.groups("")


def _t5_config(stored: Arrays, name_of: Callable[[str], str], transposed: bool) -> RevealConfig:
    def shape(ours: str) -> tuple[int, ...]:
        theirs = name_of(ours)
        if theirs not in stored:  # T5 1.0 has no output table of its own
            raise ValueError(f"no {theirs} among {len(stored)} tensors: only T5 1.1 and FLAN-T5 are read")
        found = stored[theirs].shape
        return found[::-1] if transposed and ours != "embedding.embedding" else found

    def layers(stack: str) -> int:
        return next(n for n in range(1000) if name_of(f"{stack}.layers.{n}.attention.query.kernel") not in stored)

    (vocab_size, width), (heads, _) = shape("embedding.embedding"), shape("encoder.positions.rel_embedding")
    assert shape("decoder.logits.kernel")
    inner, depth = shape("encoder.layers.0.attention.query.kernel")[1], layers("encoder")
    return RevealConfig(
        vocab_size=vocab_size,
        width=width,
        heads=heads,
        head_dim=inner // heads,
        mlp=shape("encoder.layers.0.mlp.wi_0.kernel")[1],
        encoder_layers=depth,
        decoder_layers=layers("decoder"),
        fusion_layers={12: 6, 24: 8}.get(depth, max(depth // 2, 1)),  # of the published networks; else half
        bos=min(RevealConfig.bos, vocab_size - 1),
    )


class Published(NamedTuple):
    """What some paths hold: a T5, a ViT or both, or a whole REVEAL."""

    t5: PublishedT5 | None = None
    vit: PublishedVit | None = None
    reveal: Reveal | None = None


def read_published(paths: Sequence[str | Path]) -> Published:
    """All of them, paths or addresses, each kind once. Raises as `kind_of`, the readers, and
    `common.weights.remote.local`; ValueError for two of a kind."""
    parts: dict[str, Any] = {}
    for path in (local(path, pickles=True) for path in paths):
        part = kind_of(path)
        if part in parts or (parts and "reveal" in (part, *parts)):
            raise ValueError(f"{path} is one {part} too many: give one T5, one ViT, CLIP or SigLIP, or a REVEAL alone")
        parts[part] = {"t5": read_t5, "vit": read_vit, "reveal": read_scenic}[part](path)
    return Published(**parts)


def start_params(paths: Sequence[str | Path], config: RevealConfig) -> Tree:
    """Parameters for a network of `config` from a weights file of ours, a run's folder, or published weights. Raises
    FileNotFoundError; ValueError for another architecture, and as the readers."""
    paths = [local(path, pickles=True) for path in paths]
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"{path}: an earlier stage writes it, or `reveal convert T5 VIT {path}` makes it")
    if len(paths) == 1 and (own := weights.file_of(paths[0])).suffix == ".safetensors" and own.is_file():
        return weights.load_params(own, config)
    parts = read_published(paths)
    if parts.reveal is None:
        return assemble(config, parts.t5, parts.vit)
    theirs = dataclasses.replace(parts.reveal.config, prior=config.prior, bos=config.bos)
    if theirs != config:
        raise ValueError(f"{paths[0]} holds {theirs}, the task asks for {config}: set task.network to the file's")
    return split(parts.reveal)[1]


def config_of(t5: PublishedT5, vit: PublishedVit | None, **changes: Any) -> RevealConfig:
    return dataclasses.replace(t5.config, **({"vit": vit.config} if vit else {}), **changes)


def assemble(config: RevealConfig, t5: PublishedT5 | None, vit: PublishedVit | None, seed: int = 0) -> Tree:
    """The parameters of a network of `config`: published where there are any, else drawn with `seed`. Raises
    ValueError, before anything is drawn, for an architecture that is not the published one's."""
    compared: list[tuple[str, Any, Any, Sequence[str]]] = []
    if vit is not None:
        compared.append(("vit", config.vit, vit.config, [field.name for field in dataclasses.fields(config.vit)]))
    if t5 is not None:
        compared.append(("network", config, t5.config, T5_SHAPE))
    differences = [
        f"{prefix}.{name} is {getattr(ours, name)!r}, theirs {getattr(theirs, name)!r}"
        for prefix, ours, theirs, names in compared
        for name in names
        if getattr(ours, name) != getattr(theirs, name)
    ]
    if differences:
        raise ValueError(f"the weights are of another architecture: {', '.join(differences)}; set task.network to it")
    flat: dict[str, Any] = {} if vit is None else {f"vit.{name}": array for name, array in vit.params.items()}
    if t5 is not None:
        flat |= dict(_moved(t5.params, config))
    params = init_params(Reveal, config, jax.random.key(seed))
    published = {name: jnp.asarray(array) for name, array in flat.items()}
    return porting.unflatten_like(porting.flatten(params) | published, params)


def drawn_parts(t5: PublishedT5 | None, vit: PublishedVit | None) -> list[str]:
    """Parts of the network that `assemble` leaves at random."""
    parts = ["vit.head", "projection", "value_head", "gate", "fusion.scale"]
    parts += [] if vit else ["vit"]
    return parts + ([] if t5 else ["embedding", "text", "query_head", "key_head", "fusion", "decoder"])


def _moved(params: Flat, config: RevealConfig) -> Iterator[tuple[str, Any]]:
    upper = ("fusion.encoder", "query_head.encoder", "key_head.encoder")
    for name, array in params.items():
        layer = re.fullmatch(r"encoder\.layers\.(\d+)\.(.+)", name)
        if layer and int(layer[1]) < config.text_layers:
            yield f"text.layers.{layer[1]}.{layer[2]}", array
        elif layer:
            yield from ((f"{stack}.layers.{int(layer[1]) - config.text_layers}.{layer[2]}", array) for stack in upper)
        elif name.startswith("encoder.positions."):
            yield from ((name.replace("encoder", stack, 1), array) for stack in ("text", *upper))
        elif name == "norm.scale":
            yield from ((f"{stack.removesuffix('.encoder')}.norm.scale", array) for stack in upper)
        else:
            yield name, array


def read_scenic(path: str | Path) -> Reveal:
    """A REVEAL of scenic's (`porting.scenic_config`). Raises as `read_t5`."""
    with about(Path(path)):
        stored = read_flax(Path(path))
        return from_scenic(stored, scenic_config(stored))
