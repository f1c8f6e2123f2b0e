"""Parameters of our networks <-> the state dict of diffusers or transformers, by names.

Where attributes have their names, a table is computed, not written. Of a leaf's path only the end differs:

| ours | theirs | layout |
| --- | --- | --- |
| `conv1.kernel` h w i o | `conv1.weight` o i h w | OIHW -> HWIO |
| `to_q.kernel` i o | `to_q.weight` o i | OI -> IO |
| `norm1.scale`, `token_embedding.embedding` | `norm1.weight`, `token_embedding.weight` | same |
| `conv1.bias`, `class_embedding` | `conv1.bias`, `class_embedding` | same |

and one number, where a layer without parameters has an index in diffusers' list and none in ours (`RENAMED`). `fill`
fills a network tensor by tensor, so that the memory needed is its own and one tensor. `fill` and `state_dict` are held
to the three checks of `porting.py`.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from common.nn.init import blank
from common.weights import porting
from common.weights.porting import IDENTITY, OI_TO_IO, OIHW_TO_HWIO, Entry, dtype_name

RENAMED = (".ff.net.1.", ".ff.net.2.")  # theirs has a dropout between the two
LEAVES = {"scale": "weight", "embedding": "weight", "bias": "bias", "kernel": "weight"}
KERNELS = {4: OIHW_TO_HWIO, 2: OI_TO_IO}


def table(params: porting.Tree) -> dict[str, Entry]:
    """{our path: their name and layout} of all leaves; `params` may be abstract."""
    entries = {}
    for path, leaf in porting.flatten(params).items():
        stem, _, end = path.rpartition(".")
        name = f"{stem}.{LEAVES[end]}".replace(*RENAMED) if end in LEAVES else path
        entries[path] = Entry(name, KERNELS[len(leaf.shape)] if end == "kernel" else IDENTITY)
    return entries


def fill(network: type, config: Any, source: Mapping[str, np.ndarray], dtype: Any = jnp.float32) -> Any:
    """The `network` of that architecture with the tensors of `source` ({diffusers name: array}), floats as `dtype`.

    ValueError lists every tensor that is missing, left over, of another shape, or not finite."""
    float_type = jnp.dtype(dtype_name(dtype))
    graphdef, abstract = blank(network, config, len(source))
    target = {
        path: jax.ShapeDtypeStruct(leaf.shape, float_type if porting.is_float(leaf.dtype) else leaf.dtype)
        for path, leaf in porting.flatten(abstract).items()
    }
    # On the device before NumPy's copy is freed; a CPU uses `port`'s aligned arrays without a copy.
    place = lambda array: jax.block_until_ready(jax.device_put(array, may_alias=True))  # noqa: E731
    values = porting.port(source, table(target), target, place=place)
    return nnx.merge(graphdef, porting.unflatten_like(values, abstract))


def state_dict(module: nnx.Module, dtype: Any = jnp.float32) -> dict[str, np.ndarray]:
    """The inverse of `fill`: {diffusers name: array in PyTorch's layout}, floats as `dtype`, all finite."""
    target = jnp.dtype(dtype_name(dtype))
    leaves = porting.flatten(nnx.to_pure_dict(nnx.state(module)))
    with np.errstate(over="ignore"):  # an overflow is an infinity, which `export` reports
        arrays = {path: np.asarray(leaf).astype(target, copy=False) for path, leaf in leaves.items()}
    return porting.export(arrays, table(arrays))
