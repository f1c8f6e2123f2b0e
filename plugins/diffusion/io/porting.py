"""Parameters of our networks <-> the state dict of diffusers or transformers.

Attributes have their names, so a table is computed, not written. Of a leaf's path only the end differs:

| ours | theirs | layout |
| --- | --- | --- |
| `conv1.kernel` h w i o | `conv1.weight` o i h w | OIHW -> HWIO |
| `to_q.kernel` i o | `to_q.weight` o i | OI -> IO |
| `norm1.scale`, `token_embedding.embedding` | `norm1.weight`, `token_embedding.weight` | same |
| `conv1.bias` | `conv1.bias` | same |

and one number, where a layer without parameters has an index in their list and none in ours (`RENAMED`). `fill` builds
a network abstractly and fills it tensor by tensor, so that the memory needed is the network's own and one tensor;
`state_dict` is the inverse. Both are held to the three checks of `common/weights/porting.py`.

Files may have older names: `from_folder` and `single_file.from_single_file` give for each of diffusers' names its
`Origin`, the key in the file and a change of shape. Attention of an old VAE has `query` and `proj_attn`, and was stored
as 1x1 convolutions, which are matrices; OpenCLIP's `in_proj` is three stacked matrices; a text encoder's names may
begin with `text_model.`.
"""

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from common.weights import porting
from common.weights.porting import IDENTITY, OI_TO_IO, OIHW_TO_HWIO, Entry
from plugins.diffusion.io.tensor_files import TensorFiles
from plugins.diffusion.networks.text_encoder import TextConfig
from plugins.diffusion.networks.vae import VAEConfig

RENAMED = (".ff.net.1.", ".ff.net.2.")  # theirs has a dropout between the two
LEAVES = {"scale": "weight", "embedding": "weight", "bias": "bias", "kernel": "weight"}
KERNELS = {4: OIHW_TO_HWIO, 2: OI_TO_IO}
DTYPES = ("float32", "float16", "bfloat16")  # of weights
VAE_OLD_ATTENTION = {"query": "to_q", "key": "to_k", "value": "to_v", "proj_attn": "to_out.0"}
NO_WEIGHTS = re.compile(  # buffers and heads that the networks do not have
    r"embeddings\.position_ids|logit_scale|attn_mask|(loss|model_ema)\..*"
)


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
        if self.squeeze and stored[2:] == (1, 1):
            return stored[:2]
        if self.transposed:
            return stored[::-1]
        return stored if self.third is None else (stored[0] // 3, *stored[1:])


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


def table(params: porting.Tree) -> dict[str, Entry]:
    """{our path: their name and layout} of all leaves; `params` may be abstract."""
    entries = {}
    for path, leaf in porting.flatten(params).items():
        stem, _, end = path.rpartition(".")
        assert end in LEAVES, f"{path}: no layer of layers.py has such a parameter"
        name = f"{stem}.{LEAVES[end]}".replace(*RENAMED)
        entries[path] = Entry(name, KERNELS[len(leaf.shape)] if end == "kernel" else IDENTITY)
    return entries


def fill(network: type, config: Any, source: Mapping[str, np.ndarray], dtype: Any = jnp.float32) -> Any:
    """The `network` of that architecture with the tensors of `source` ({diffusers name: array}), floats as `dtype`.

    ValueError lists every tensor that is missing, left over, of another shape, or not finite."""
    float_type = jnp.dtype(dtype_name(dtype))
    graphdef, abstract = blank(network, config)
    target = {
        path: jax.ShapeDtypeStruct(leaf.shape, float_type if porting.is_float(leaf.dtype) else leaf.dtype)
        for path, leaf in porting.flatten(abstract).items()
    }
    # On the device before NumPy's copy is freed; a CPU uses `port`'s aligned arrays without a copy.
    place = lambda array: jax.block_until_ready(jax.device_put(array, may_alias=True))  # noqa: E731
    values = porting.port(source, table(target), target, place=place)
    return nnx.merge(graphdef, porting.unflatten_like(values, abstract))


@functools.lru_cache(maxsize=8)
def blank(network: type, config: Any) -> tuple[Any, dict[Any, Any]]:
    """The network without values: its graph, and its parameters' shapes as a pure nested dict. Cached, because tracing
    a UNet's initial values takes longer than reading a small one."""
    key = jax.random.key(0)
    graphdef, state = nnx.split(nnx.eval_shape(lambda: network(config, rngs=_OneKey(key))))
    return graphdef, nnx.to_pure_dict(state)


def state_dict(module: nnx.Module, dtype: Any = jnp.float32) -> dict[str, np.ndarray]:
    """The inverse of `fill`: {diffusers name: array in PyTorch's layout}, floats as `dtype`, all finite."""
    target = jnp.dtype(dtype_name(dtype))
    leaves = porting.flatten(nnx.to_pure_dict(nnx.state(module)))
    with np.errstate(over="ignore"):  # an overflow is an infinity, which `export` reports
        arrays = {path: np.asarray(leaf).astype(target, copy=False) for path, leaf in leaves.items()}
    return porting.export(arrays, table(arrays))


def dtype_name(dtype: Any) -> str:
    """ "float32", "float16" or "bfloat16", from a name or a type. Raises ValueError for any other."""
    try:
        name = jnp.dtype(dtype).name
    except TypeError:
        name = str(dtype)
    if name not in DTYPES:
        raise ValueError(f"dtype {name} is not one for weights; choose one of {', '.join(DTYPES)}")
    return name


def network_dtype(kind: str, dtype: Any) -> str:
    """The type of one network's parameters in a pipeline of `dtype`: with float16 the VAE stays float32, because its
    activations exceed 65504."""
    name = dtype_name(dtype)
    return "float32" if kind == "vae" and name == "float16" else name


class _OneKey(nnx.Rngs):
    """The same key for every parameter: shapes need no randomness, and a key per kernel is most of a trace."""

    def __init__(self, key: jax.Array):
        super().__init__()
        self.params = nnx.static(lambda: key)
