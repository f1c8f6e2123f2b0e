"""Names of tensors in files of diffusers and transformers of any year.

`common/weights/torch_names.py` fills our networks by diffusers' present names; for each of them `from_folder` and
`single_file.from_single_file` give its `Origin` in a file. Attention of an old VAE has `query` and `proj_attn`, stored
as 1x1 convolutions; OpenCLIP's `in_proj` is three matrices; a text encoder's names may begin with `text_model.`.
"""

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from common.io.tensor_files import TensorFiles
from common.nn.text_encoder import TextConfig
from common.weights.torch_names import dtype_name
from plugins.diffusion.networks.vae import VAEConfig

VAE_OLD_ATTENTION = {"query": "to_q", "key": "to_k", "value": "to_v", "proj_attn": "to_out.0"}
# Buffers and heads that the networks do not have.
NO_WEIGHTS = re.compile(r"embeddings\.position_ids|logit_scale|attn_mask|(loss|model_ema)\..*")


class Origin(NamedTuple):
    """The source of a tensor: its key in the file, and how the array is reshaped."""

    key: str
    third: int | None = None  # 0, 1, 2: the q, k or v rows of a matrix that holds all three
    squeeze: bool = False  # a 1x1 convolution, "o i 1 1", that is a matrix, "o i"
    transposed: bool = False  # a matrix stored "i o"

    def take(self, stored: np.ndarray) -> np.ndarray:
        """The stored array as diffusers has it; no copy."""
        if self.squeeze and stored.shape[2:] == (1, 1):
            return stored[:, :, 0, 0]
        if self.transposed:
            return stored.T
        return stored if self.third is None else np.split(stored, 3)[self.third]

    def shape(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of what `take` gives."""
        return self.take(np.broadcast_to(np.int8(0), stored)).shape


Renaming = Callable[[str], list[tuple[str, Origin]]]  # their key -> our names with their origins; [] to leave it out


class Renamed(Mapping[str, np.ndarray]):
    """Stored tensors by diffusers' names: each look-up reads and reshapes one."""

    def __init__(self, stored: TensorFiles, origins: Mapping[str, Origin]):
        self._stored, self._origins = stored, origins

    @functools.cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Without reading the tensors."""
        return {name: origin.shape(self._stored.shape(origin.key)) for name, origin in self._origins.items()}

    def __getitem__(self, name: str) -> np.ndarray:
        origin = self._origins[name]
        return origin.take(self._stored[origin.key])

    def __iter__(self) -> Iterator[str]:
        return iter(self._origins)

    def __len__(self) -> int:
        return len(self._origins)

    def __contains__(self, name: object) -> bool:  # Mapping's own would read the tensor
        return name in self._origins


def from_folder(config: Any, keys: Iterable[str]) -> dict[str, Origin]:
    """{diffusers name: origin} of a file of diffusers or transformers, of any year, for that architecture."""
    if isinstance(config, TextConfig):
        return collect("", list(keys), rename_text(config.projected))
    rename: Renaming = _old_vae if isinstance(config, VAEConfig) else lambda key: [(key, Origin(key))]
    return collect("", list(keys), rename)


def collect(prefix: str, keys: Iterable[str], rename: Renaming) -> dict[str, Origin]:
    """All renamed; ValueError if two keys of the file mean the same tensor."""
    names: dict[str, Origin] = {}
    twice = []
    for key in keys:
        for name, origin in [] if NO_WEIGHTS.fullmatch(key.removeprefix("text_model.")) else rename(key):
            if name in names:
                twice.append(f"{names[name].key} and {prefix}{key}")
            names[name] = origin._replace(key=prefix + key)
    if twice:
        raise ValueError(f"{len(twice)} tensors are there under two names: {', '.join(twice)}; keep one of each pair")
    return names


def _old_vae(key: str) -> list[tuple[str, Origin]]:
    pattern = rf"(.*\.attentions\.\d+)\.({'|'.join(VAE_OLD_ATTENTION)})\.(weight|bias)"
    match = re.fullmatch(pattern, key)
    name = f"{match[1]}.{VAE_OLD_ATTENTION[match[2]]}.{match[3]}" if match else key
    return [(name, Origin(key, squeeze=is_vae_attention(name)))]


def is_vae_attention(name: str) -> bool:
    return bool(re.search(r"\.attentions\.\d+\.to_(q|k|v|out\.0)\.weight$", name))


def rename_text(projected: bool) -> Renaming:
    """Without `projected` the linear map into CLIP's joint space, which some files hold, is left out."""

    def rename(key: str) -> list[tuple[str, Origin]]:
        unused = key.startswith("text_projection") and not projected
        return [] if unused else [(key.removeprefix("text_model."), Origin(key))]

    return rename


def network_dtype(kind: str, dtype: Any) -> str:
    """Of one network in a pipeline of `dtype`: float32 for a float16 VAE, whose activations exceed 65504."""
    name = dtype_name(dtype)
    return "float32" if kind == "vae" and name == "float16" else name
