"""LoRA (Hu et al., 2021): low-rank changes to a base's weights, merged in before use.

A file holds, for some linear maps and convolutions W, two thin matrices and a number alpha (section 4.1):

    W' = W + weight * alpha / r * up @ down            down: r inputs [k k], up: outputs r [1 1]

Shapes, names and speed of the network stay, so control plugins work on it as before; several LoRAs add up.

| writer | names in the file | alpha |
| --- | --- | --- |
| kohya | `lora_unet_mid_block_..._to_out_0.lora_down.weight`, `lora_te_text_model_...` | a tensor beside them |
| kohya, SDXL | `lora_unet_middle_block_1_...`: LDM names; `lora_te1_...`, `lora_te2_...` | a tensor beside them |
| PEFT, diffusers | `unet.mid_block....to_out.0.lora_A.weight`, `text_encoder.[text_model.]...` | JSON in the header |
| PEFT itself | `base_model.model.mid_block....to_q.lora_A.weight` | adapter_config.json beside the file |
| older diffusers | `[unet.]....attn1.processor.to_out_lora.down.weight`, `....lora.down.weight` | a tensor, or none |

Without an alpha it is r; a file of PEFT itself is refused without its adapter_config.json. Underscores for dots cannot
be undone ("to_out_0"), so every name that a weight may have in a file is made from the model's own, and looked up.
"""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from flax import nnx
from jaxtyping import Float

from common.io.json_text import parse_json
from common.io.tensor_files import TensorFiles, about
from common.nn.init import split
from common.weights import porting
from common.weights.porting import OIHW_TO_HWIO
from common.weights.remote import local
from common.weights.torch_names import table
from plugins.diffusion.io.single_file import ldm_names

Part = Literal["unet", "text_encoder", "text_encoder_2"]

PARTS: tuple[Part, ...] = ("unet", "text_encoder", "text_encoder_2")
PREFIXES: dict[str, Part] = {
    "lora_unet_": "unet",
    "lora_te_": "text_encoder",
    "lora_te1_": "text_encoder",
    "lora_te2_": "text_encoder_2",
    **{f"{part}.": part for part in PARTS},
}
# The end of a tensor's name; the last form follows a name that ends in _lora.
ROLE = re.compile(r"\.lora_(down|up|A|B)\.weight$|(?:\.lora_linear_layer|\.lora)?\.(?:(down|up)\.weight|(alpha))$")
ROLES = {"A": "down", "B": "up"}
REFUSED = {  # names of unsupported kinds of file
    r"\.hada_": "a LoHa (products of pairs of matrices)",
    r"\.lokr_": "a LoKr (Kronecker products)",
    r"\.dora_scale$|\.lora_magnitude_vector": "a DoRA (magnitudes beside the matrices)",
    r"\.lora_mid\.": "a LoCon in Tucker form (lora_mid)",
    r"\.oft_|\.oft_blocks": "an OFT (rotations)",
    r"\.diff(_b)?$": "full differences of weights",
    r"\.lora_embedding_[AB]": "a LoRA of embeddings",
    r"^lora_transformer_|^transformer\.": "a LoRA for a diffusion transformer",
}
OLD_TEXT = {"q_proj": "to_q_lora", "k_proj": "to_k_lora", "v_proj": "to_v_lora", "out_proj": "to_out_lora"}
OLD_UNET = {"to_q": "to_q_lora", "to_k": "to_k_lora", "to_v": "to_v_lora", "to_out.0": "to_out_lora"}
HEADER = "lora_adapter_metadata"
PEFT, PEFT_CONFIG = "base_model.model.", "adapter_config.json"  # of `PeftModel.save_pretrained`: prefix, and options
SUPPORTED = "supported are plain LoRA and LoCon for SD 1.x, 2.x and XL"


def split_key(key: str) -> tuple[Part, str, str]:
    """(part, name in the file, "down" | "up" | "alpha") of a tensor; ValueError for an unsupported kind of file."""
    for pattern, kind in REFUSED.items():
        if re.search(pattern, key):
            raise ValueError(f"{key} makes it {kind}; {SUPPORTED}")
    match = ROLE.search(key)
    if match is None:
        raise ValueError(f"{key} is no tensor of a LoRA; known are lora_down and lora_up, or lora_A and lora_B")
    stem, name = key[: match.start()].removeprefix(PEFT), match[1] or match[2] or match[3]
    role = ROLES.get(name, name)
    for prefix, part in PREFIXES.items():
        if stem.startswith(prefix):
            return part, stem.removeprefix(prefix), role
    part = "text_encoder" if stem.startswith(("text_model.", "encoder.")) else "unet"  # files of one network
    return part, stem, role


def aliases(name: str, part: Part, layers: int = 2) -> list[str]:
    """All names of one weight in files, from diffusers' or transformers'; `layers`: residual blocks of a level of the
    UNet."""
    olds, pattern, joint = (OLD_UNET, r"\.attn\d", ".processor.") if part == "unet" else (OLD_TEXT, r"\.self_attn", ".")
    names = [name, *(ldm_names(name, layers) if part == "unet" else ())]
    for new, old in olds.items():
        if re.search(rf"{pattern}\.{re.escape(new)}$", name):
            names.append(f"{name.removesuffix(f'.{new}')}{joint}{old}")
    if part != "unet":
        names += [f"text_model.{known}" for known in names]
    return names + [known.replace(".", "_") for known in names]


class PeftConfig:
    """PEFT's configuration, the JSON `text` of `where`. Raises ValueError for no object, or an unsupported method."""

    def __init__(self, text: str | bytes, where: str):
        self.options = parse_json(text, where, dict)
        for option in ("use_dora", "use_qalora", "fan_in_fan_out", "lora_bias"):
            if found := [key for key in self.options if key.split(".")[-1] == option and self.options[key]]:
                raise ValueError(f"{where} has {found[0]}: {SUPPORTED}")

    def scale(self, part: Part, name: str, rank: int) -> float:
        """alpha / rank; alpha is the rank where nothing sets it."""

        def option(key: str) -> Any:
            return self.options.get(f"{part}.{key}", self.options.get(key))

        alpha = rank if option("lora_alpha") is None else option("lora_alpha")
        for pattern, own in (option("alpha_pattern") or {}).items():
            if re.match(rf"(.*\.)?({pattern})$", name):  # PEFT's rule: a whole name, or its end after a dot
                alpha = own
                break
        return float(alpha) / (math.sqrt(rank) if option("use_rslora") else rank)  # rsLoRA: Kalajdzievski, 2023


@dataclasses.dataclass(frozen=True)
class Update:
    """The change of one weight: `scale * up @ down`."""

    down: Float[np.ndarray, "r i *k"]
    up: Float[np.ndarray, "o r *one"]
    scale: float

    def delta(self) -> Float[np.ndarray, "o i *k"]:
        """The change in float32, in PyTorch's layout."""
        rank = self.down.shape[0]
        product = self.up.reshape(-1, rank) @ self.down.reshape(rank, -1)
        return np.float32(self.scale) * product.reshape(-1, *self.down.shape[1:])


@dataclasses.dataclass(frozen=True)
class Lora:
    """One file: its updates by part ("unet", "text_encoder") and then by the name of the weight in the file."""

    name: str
    updates: Mapping[Part, Mapping[str, Update]]

    @classmethod
    def load(cls, path: str | Path) -> "Lora":
        """From a safetensors file in any of the module's formats, a folder that has one, or an address of either.
        Raises as `common.weights.remote.local`, and ValueError that lists all tensors that make no pairs."""
        file = local(path)
        if file.is_dir():
            files = sorted(file.glob("*.safetensors"))
            if len(files) != 1:
                found = ", ".join(one.name for one in files) or "none"
                raise ValueError(f"{path}: expected one safetensors file of a LoRA, found {found}; name the file")
            file = files[0]
        tensors = TensorFiles(file)
        with about(file):
            text, where = tensors.metadata().get(HEADER), f"its header's {HEADER}"
            own_alpha = any(key.endswith(".alpha") for key in tensors)
            if text is None and not own_alpha and any(key.startswith(PEFT) for key in tensors):
                beside, where = file.with_name(PEFT_CONFIG), f"its {PEFT_CONFIG}"
                if not beside.is_file():
                    way = "name its folder or repository, or copy that file too"
                    raise FileNotFoundError(f"{file}: its alpha is in {PEFT_CONFIG}, which is not beside it; {way}")
                text = beside.read_bytes()
            return cls(str(path), _updates(tensors, PeftConfig(text or "{}", where)))


def merge(params: Mapping[Any, Any], loras: Sequence[tuple[Lora, float]], *, part: Part | None = None) -> dict:
    """New parameters of the same types with each LoRA added, times its weight: 1 is full strength, negative is allowed.

    `params`, the pure nested dict of a UNet or a text encoder (`part`; None: inferred), is not changed, and leaves that
    no LoRA touches are shared. Sums are float32. Raises ValueError that lists every name that is not in the network,
    and every shape that differs from its weight's."""
    part = part or ("unet" if "down_blocks" in params else "text_encoder")
    entries = {path: entry for path, entry in table(params).items() if path.endswith(".kernel")}
    names = {path: entry.source.removesuffix(".weight") for path, entry in entries.items()}
    layers = sum(bool(re.fullmatch(r"down_blocks\.0\.resnets\.\d+\.conv1", name)) for name in names.values())
    known = {alias: path for path, name in names.items() for alias in aliases(name, part, layers)}
    leaves, problems = porting.flatten(params), []
    deltas: dict[str, np.ndarray] = {}
    for lora, weight in loras:
        for name, update in lora.updates.get(part, {}).items():
            if name not in known:
                problems.append(f"{lora.name}: {name} is no weight of this network")
                continue
            path, delta = known[name], update.delta()
            kernel = _as_kernel(delta, leaves[path].shape)
            if kernel is None:
                found = f"{delta.shape} in the file, kernel {leaves[path].shape} in the network"
                problems.append(f"{lora.name}: {name} is {found}")
            else:
                deltas[path] = deltas.get(path, 0) + np.float32(weight) * kernel
    refuse(problems, "LoRA does not fit this network; was it made for another base (SD 1.x, 2.x, SDXL)?")
    for path, delta in deltas.items():
        leaves[path] = (leaves[path].astype(np.float32) + delta).astype(leaves[path].dtype)
    return porting.unflatten_like(leaves, params)


def merged(network: Any, loras: Sequence[tuple[Lora, float]], part: Part) -> Any:
    """`merge` for a network; the network itself if no LoRA changes it."""
    loras = [(lora, weight) for lora, weight in loras if part in lora.updates]
    if not loras:
        return network
    graph, params = split(network)
    return nnx.merge(graph, merge(params, loras, part=part))


def refuse(problems: Sequence[str], summary: str) -> None:
    """Raises one ValueError for all problems, if there are any, with a summary in its first line."""
    if problems:
        lines = "".join(f"\n  {problem}" for problem in problems)
        raise ValueError(f"{summary} ({len(problems)} in all, the first: {problems[0]}){lines}")


def _as_kernel(delta: Float[np.ndarray, "o i *k"], shape: tuple[int, ...]) -> np.ndarray | None:
    """A change in the layout of a kernel, or None if it does not fit. A linear map fits a 1x1 convolution."""
    wide = delta.reshape(*delta.shape, 1, 1) if delta.ndim == 2 else delta
    kernel = OIHW_TO_HWIO.to_ours(wide)
    if len(shape) == 2 and kernel.shape[:2] == (1, 1):
        kernel = kernel[0, 0]
    return kernel if kernel.shape == tuple(shape) else None


def _updates(tensors: TensorFiles, config: PeftConfig) -> dict[Part, dict[str, Update]]:
    """Pairs the tensors of a file. Raises ValueError that lists all that are of no known kind or have no partner."""
    grouped: dict[tuple[Part, str], dict[str, np.ndarray]] = {}
    problems = []
    for key, value in tensors.items():
        part, name, role = split_key(key)
        roles = grouped.setdefault((part, name), {})
        if role in roles:
            problems.append(f"{key} is there under two names")
        roles[role] = value
    updates: dict[Part, dict[str, Update]] = {}
    for (part, name), found in grouped.items():
        if not {"down", "up"} <= found.keys():
            problems.append(f"{name} has {' and '.join(sorted(found))} alone, not both matrices")
            continue
        down, up = (found[role].astype(np.float32) for role in ("down", "up"))
        rank = max([1, *down.shape[:1]])
        scale = found["alpha"].item() / rank if "alpha" in found else config.scale(part, name, rank)
        if fault := _fault(down, up):
            problems.append(f"{name}: {fault}")
        else:
            updates.setdefault(part, {})[name] = Update(down, up, scale)
    refuse(problems, "its tensors make no LoRA")
    return updates


def _fault(down: np.ndarray, up: np.ndarray) -> str | None:
    """A reason to refuse two matrices, if there is one."""
    shapes = f"up {up.shape}, down {down.shape}"
    if up.ndim not in (2, 4) or down.ndim not in (2, 4) or up.shape[1] != down.shape[0] or not down.shape[0]:
        return f"no pair of rank-r matrices: {shapes}"
    if any(side != 1 for side in up.shape[2:]):
        return f"up is no 1x1 convolution: {shapes}"
    return None if np.isfinite(up).all() and np.isfinite(down).all() else "holds NaN or infinity"
