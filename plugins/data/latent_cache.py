"""Outputs of frozen networks on a data set, computed once: latents of images, text states of captions.

    python -m plugins.data.latent_cache data/captioned64 runs/diffusion_small_vae/weights data/latents64

or, of pictures of your own in any layout of `plugins.data`, cut out of their middle,

    python -m plugins.data.latent_cache my/pictures SD15 data/mine_latents --size 512

writes

    mean.npy, std.npy     float16 [n 2 h w c]: the autoencoder's distribution for each picture, as it is and mirrored
    vae/                  the autoencoder with the scaling factor that brings these latents to a standard deviation of 1
    states.npy            float16 [n+1 l d], with --text: states of each whole caption, and last of the empty one
    index.json            what it was made of

Training then neither encodes nor holds the autoencoder's activations (`DenoisingTask`, and the `latents` of
`CaptionedConfig` and `OwnPicturesConfig`).
Latents are drawn anew from their distribution in every step; the published recipes do so too.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro
from flax import nnx
from jaxtyping import Array, Float
from tqdm import tqdm

from common import terminal
from common.io.files import atomic_folder, check_output_folder
from plugins.data.captioned import caption
from plugins.data.crop import Squares
from plugins.data.opening import open_source
from plugins.diffusion.io.components import load_text_encoder, load_tokenizer, load_vae, save_component
from plugins.diffusion.networks.vae import AutoencoderKL

MEAN, STD, STATES = "mean.npy", "std.npy", "states.npy"


def write_cache(
    pictures: str | Path,
    vae: str | Path,
    folder: str | Path,
    text: str | Path | None = None,
    batch: int = 32,
    size: int | None = None,
) -> float:
    """Writes `folder`; returns the scaling factor.

    Args:
      pictures: a folder that `recipes.captioned_pictures` wrote; with `size`, what `plugins.data.open_source` opens.
      vae: a folder or file with an autoencoder.
      folder: a new folder.
      text: a base whose text encoder and tokenizer read the captions; None: no states.
      batch: pictures at once.
      size: side of the squares that are cut out of pictures of your own; their captions vary, so they have no states.

    Raises FileExistsError, FileNotFoundError, and ValueError for pictures that the autoencoder cannot take.
    """
    check_output_folder(folder)
    if size is not None and text is not None:
        raise ValueError("states are of one caption each, pictures of your own may have several: leave out text")
    if size is None:
        images, captions = _prepared(Path(pictures))
    else:
        images, captions = Squares(open_source(pictures), size), []
    network = load_vae(vae)
    with atomic_folder(folder) as part:
        scale = 1 / _write_latents(network, images, part, batch)
        config = dataclasses.replace(network.config, scaling_factor=scale, shift_factor=None)
        save_component(part / "vae", network, config)
        if text is not None:
            _write_states(text, [*captions, ""], part / STATES, batch)
        about = {"pictures": str(pictures), "vae": str(vae), "text": text and str(text), "scaling_factor": scale}
        about |= {} if size is None else {"size": size}
        (part / "index.json").write_text(json.dumps(about, indent=1) + "\n", "utf-8")
    return scale


def _prepared(folder: Path) -> tuple[np.ndarray, list[str]]:
    """The pictures and whole captions of a folder of `recipes.captioned_pictures`."""
    entries = json.loads((folder / "index.json").read_text("utf-8"))["pictures"]
    captions = [caption(entry["label"], entry["style"]) for entry in entries]
    return np.load(folder / "images.npy", mmap_mode="r"), captions


def _write_latents(vae: AutoencoderKL, images: np.ndarray | Squares, folder: Path, batch: int) -> float:
    """The two files; the standard deviation of latents drawn from what is in them."""
    unit = vae.config.reduction
    shape = (len(images), 2, images.shape[1] // unit, images.shape[2] // unit, vae.config.latent_channels)
    mean, std = (np.lib.format.open_memmap(folder / name, "w+", np.float16, shape) for name in (MEAN, STD))
    graph, state = nnx.split(vae)

    @jax.jit
    def encode(state: Any, image: Float[Array, "b h w 3"]) -> tuple[Array, Array]:
        posterior = nnx.merge(graph, state).encode(2 * image - 1)
        return posterior.mean, posterior.std

    squares = total = 0.0
    for start in tqdm(range(0, len(images), batch), unit="batch", desc="latents", disable=None):
        rows = np.minimum(np.arange(start, start + batch), len(images) - 1)  # the last batch is filled up
        taken = slice(start, min(start + batch, len(images)))
        for side in range(2):
            image = images[rows][:, :, :: -1 if side else 1].astype(np.float32) / 255
            found = [np.asarray(value)[: taken.stop - start] for value in encode(state, image)]
            mean[taken, side], std[taken, side] = found
            squares += np.sum(np.square(found[0], dtype=np.float64) + np.square(found[1], dtype=np.float64))
            total += np.sum(found[0], dtype=np.float64)
    count = mean.size
    mean.flush()
    std.flush()
    return float(np.sqrt(squares / count - (total / count) ** 2))


def _write_states(text: str | Path, captions: list[str], path: Path, batch: int) -> None:
    encoder, tokenizer = load_text_encoder(text), load_tokenizer(text)
    length = encoder.config.max_position_embeddings
    states = np.lib.format.open_memmap(path, "w+", np.float16, (len(captions), length, encoder.config.hidden_size))
    graph, params = nnx.split(encoder)
    encode = jax.jit(lambda params, tokens: nnx.merge(graph, params)(tokens).last)
    for start in tqdm(range(0, len(captions), batch), unit="batch", desc="states", disable=None):
        some = captions[start : start + batch]
        filled = some + [""] * (batch - len(some))
        states[start : start + len(some)] = np.asarray(encode(params, tokenizer(filled, length)))[: len(some)]
    states.flush()


@dataclasses.dataclass(frozen=True)
class Cache:
    """A folder that `write_cache` wrote; arrays stay on disk until a row is asked for.

    Raises FileNotFoundError when it is no such folder, ValueError when it belongs to another number of pictures."""

    folder: Path
    count: int

    def __post_init__(self):
        if not (self.folder / MEAN).is_file():
            hint = f"`python -m plugins.data.latent_cache PICTURES VAE {self.folder}` writes them"
            raise FileNotFoundError(f"{self.folder}: no latents here; {hint}")
        if len(self.mean) != self.count:
            raise ValueError(
                f"{self.folder}: latents of {len(self.mean)} pictures, there are {self.count}; cache again"
            )

    @functools.cached_property
    def about(self) -> dict[str, Any]:
        """What it was made of."""
        return json.loads((self.folder / "index.json").read_text("utf-8"))

    @functools.cached_property
    def mean(self) -> np.ndarray:
        return np.load(self.folder / MEAN, mmap_mode="r")

    @functools.cached_property
    def std(self) -> np.ndarray:
        return np.load(self.folder / STD, mmap_mode="r")

    @functools.cached_property
    def states(self) -> np.ndarray:
        """Raises FileNotFoundError when no text encoder was given."""
        if not (self.folder / STATES).is_file():
            raise FileNotFoundError(f"{self.folder}: no {STATES} here; cache again with --text BASE")
        return np.load(self.folder / STATES, mmap_mode="r")


def main(
    pictures: tyro.conf.Positional[Path],
    vae: tyro.conf.Positional[Path],
    folder: tyro.conf.Positional[Path],
    text: Path | None = None,
    batch: int = 32,
    size: int | None = None,
) -> None:
    """Write the latents of PICTURES by VAE, and the text states of their captions by TEXT, to FOLDER. SIZE: side of the
    squares cut out of PICTURES of your own."""
    print(f"{folder}: scaling factor {write_cache(pictures, vae, folder, text, batch, size):.5f}")


if __name__ == "__main__":
    terminal.program(main)
