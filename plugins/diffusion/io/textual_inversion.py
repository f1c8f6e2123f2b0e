"""Textual inversion (Gal et al., 2208.01618): words whose token embeddings were learned, in files of a few kilobytes.

A file holds vectors `n c` for one word, which in a prompt stands for n tokens. The vectors become new rows at the end
of the text encoder's table, and the tokenizer reads the word as their ids: weights, long prompts, negative prompts,
LoRA and controls work as with any other word.

| writer | tensors in the file | the word |
| --- | --- | --- |
| diffusers | one, called as the word | its name |
| webui, safetensors | `emb_params` | the file's name |
| webui, .pt; InvokeAI, .bin | `string_to_param.*` | the file's name |
| any, SDXL | `clip_l` and `clip_g` (or `text_encoders_0` and `_1`), for its two text encoders | the file's name |

The pooled state stays that of the end token (with `eos_token_id` 2 the PyTorch library takes the largest id's).
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float

from common.io.tensor_files import TensorFiles, about
from common.io.torch_file import read_torch
from common.nn.init import split
from common.nn.text_encoder import OLD_END
from plugins.diffusion.io.base import TEXT, Base

PICKLES = (".pt", ".bin")  # read by the restricted reader
XL_NAMES = {"clip_l": 0, "text_encoders_0": 0, "clip_g": 1, "text_encoders_1": 1}  # of which text encoder
NAMELESS = ("emb_params", "string_to_param.*", "")
MARKS = re.compile(r"[()\[\]:\\]")  # of weighted prompts


@dataclasses.dataclass(frozen=True)
class TextualInversion:
    """A word and its vectors: one array, or by text encoder ("text_encoder", "text_encoder_2") for SDXL."""

    word: str
    vectors: Float[np.ndarray, "n c"] | Mapping[str, Float[np.ndarray, "n c"]]

    def __post_init__(self):
        if not self.word.strip() or MARKS.search(self.word):
            raise ValueError(f"no prompt can hold the word {self.word!r}; give one without ()[]:\\, as NAME=FILE")

    @classmethod
    def load(cls, path: str | Path, word: str | None = None) -> "TextualInversion":
        """From a file of the module's formats; `word` replaces its own. Raises FileNotFoundError; ValueError for other
        tensors."""
        path = Path(path)
        stored = read_torch(path) if path.suffix.lower() in PICKLES else TensorFiles(path)
        tensors = {key: stored[key] for key in stored if not key.startswith("string_to_token")}
        with about(path):
            vectors = {key: _vectors(key, value) for key, value in tensors.items()}
            if tensors.keys() <= XL_NAMES.keys():
                return cls(word or path.stem, {TEXT[XL_NAMES[key]][0]: value for key, value in vectors.items()})
            if len(vectors) > 1:
                found = ", ".join(sorted(vectors)[:4])
                raise ValueError(f"expected one tensor, or clip_l and clip_g, found {found}; is this an embedding?")
            ((name, value),) = vectors.items()
            return cls(word or (path.stem if name in NAMELESS else name), value)


def _vectors(name: str, value: np.ndarray) -> Float[np.ndarray, "n c"]:
    value = np.atleast_2d(value)
    finite = value.dtype.kind not in "iub" and np.isfinite(value.astype(np.float32)).all()
    if value.ndim != 2 or not value.size or not finite:
        raise ValueError(f"{name or 'its tensor'} is {value.dtype}{value.shape}; embeddings are n c finite numbers")
    return value.astype(np.float32)


def with_words(base: Base, inversions: Sequence[TextualInversion]) -> Base:
    """The base whose tokenizers know these words. Raises ValueError for vectors of another base, or a word twice."""
    fields: dict[str, Any] = {}
    words = [inversion.word.lower() for inversion in inversions]
    if twice := [word for word in words if words.count(word) > 1]:
        raise ValueError(f"two embeddings are called {twice[0]!r}; name one of them otherwise, as NAME=FILE")
    for kind, config, tokenizer in base.texts:
        first, ids = config.vocab_size, {}
        for inversion in inversions:
            count = len(_of(inversion, kind, base))
            if count > (longest := base.length - 2):
                raise ValueError(f"embedding {inversion.word!r} has {count} vectors; prompts have {longest} tokens")
            ids[inversion.word] = range(first, first + count)
            first += count
        end = tokenizer.end_id if config.eos_token_id == OLD_END else config.eos_token_id
        fields[kind] = dataclasses.replace(config, vocab_size=first, eos_token_id=end)
        fields[dict(TEXT)[kind]] = tokenizer.with_words(ids)
    return dataclasses.replace(base, **fields)


def with_rows(network: Any, kind: str, extended: Base, inversions: Sequence[TextualInversion]) -> Any:
    """A text encoder with the architecture of `with_words` and the words' vectors; the given one is not changed."""
    graph, params = split(network)
    table = params["embeddings"]["token_embedding"]["embedding"]
    rows = [jnp.asarray(_of(inversion, kind, extended), table.dtype) for inversion in inversions]
    token = {"embedding": jnp.concatenate([table, *rows])}
    longer = nnx.merge(graph, params | {"embeddings": params["embeddings"] | {"token_embedding": token}})
    longer.config = getattr(extended, kind)
    return longer


def _of(inversion: TextualInversion, kind: str, base: Base) -> Float[np.ndarray, "n c"]:
    """The vectors for that text encoder. Raises ValueError if there are none that fit."""
    vectors, width = inversion.vectors, getattr(base, kind).hidden_size
    found = vectors.get(kind) if isinstance(vectors, Mapping) else vectors if len(base.texts) == 1 else None
    if found is None or found.shape[1] != width:
        several = vectors if isinstance(vectors, Mapping) else {"its one text encoder": vectors}
        widths = ", ".join(f"{value.shape[1]} for {name}" for name, value in several.items())
        wrong = f"embedding {inversion.word!r} has vectors of {widths}, the base's {kind} has {width}"
        raise ValueError(f"{wrong}; was it made for another base (SD 1.x, 2.x, SDXL)?")
    return found
