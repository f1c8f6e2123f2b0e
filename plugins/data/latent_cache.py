"""Outputs of frozen networks on a dataset, computed once: latents of images, text states of captions.

    python -m plugins.data.latent_cache data/captioned64 runs/diffusion_small_vae/weights data/latents64
    python -m plugins.data.latent_cache my/pictures SD15 data/mine_latents --size 512

The second line takes any source of `plugins.data`, cropped to squares from the centre. Written are

    mean.npy, std.npy     float16 [n 2 h w c]: the autoencoder's distribution for each image, as it is and flipped
    vae/                  the autoencoder with the scaling factor that gives these latents a standard deviation of 1
    states.npy            float16 [n+1 l d], with --text: states of each whole caption, and last of the empty one
    index.json            what it was made of

Training then does without the autoencoder; latents are drawn anew from their distribution in every step.
"""

import dataclasses
import functools
import hashlib
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from jaxtyping import Array, Float
from tqdm import tqdm
from tyro.conf import Positional

from common import terminal
from common.io.arrays import check_whole, mapped
from common.io.files import atomic_folder, check_output_folder
from common.io.images import from_uint8
from common.io.tensor_files import read_json
from plugins.data import Source, open_source
from plugins.data.captioned import CaptionedPictures
from plugins.data.crop import cut, square
from plugins.diffusion.io.components import load_text_encoder, load_tokenizer, load_vae, save_component
from plugins.diffusion.networks.vae import Autoencoder

MEAN, STD, STATES, INDEX = "mean.npy", "std.npy", "states.npy", "index.json"


def write_cache(
    pictures: Positional[Path],  # a prepared folder (`captioned`); with `size`, a path for `plugins.data.open_source`
    vae: Positional[Path],  # a folder or file with an autoencoder
    folder: Positional[Path],
    text: Path | None = None,  # a base whose tokenizer and text encoder encode the captions; None: no states
    batch: int = 32,
    size: int | None = None,  # side of the squares cropped from own images, whose captions vary: they have no states
) -> None:
    """Write the latents of PICTURES by VAE, and the text states of their captions by TEXT, to FOLDER, a new one. SIZE:
    side of the squares cropped from PICTURES of your own."""
    check_output_folder(folder)
    if size is not None and text is not None:
        raise ValueError("states are of one caption each, own images may have several: leave out text")
    source = CaptionedPictures(pictures) if size is None else open_source(pictures)
    network = load_vae(vae)
    with atomic_folder(folder) as part:
        scale = 1 / _write_latents(network, source, size, part, batch)
        config = dataclasses.replace(network.config, scaling_factor=scale, shift_factor=None)
        save_component(part / "vae", network, config)
        if text is not None:
            captions = [source[index].captions[0] for index in range(len(source))]
            _write_states(text, [*captions, ""], part / STATES, batch)
        about = {"pictures": str(pictures), "vae": str(vae), "text": text and str(text), "scaling_factor": scale}
        about |= {"keys": digest(source)} | ({} if size is None else {"size": size})
        (part / INDEX).write_text(json.dumps(about, indent=1) + "\n", "utf-8")
    terminal.say(f"{folder}: scaling factor {scale:.5f}")


def digest(source: Source) -> str:
    """Of the images' keys in their order."""
    keys = "\n".join(source[index].key for index in range(len(source)))
    return hashlib.blake2b(keys.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _write_latents(vae: Autoencoder, source: Source, size: int | None, folder: Path, batch: int) -> float:
    """The two files; returns the standard deviation of latents drawn from their distributions."""
    count, size = len(source), size or len(source[0].image)
    side = size // vae.config.reduction
    shape = (count, 2, side, side, vae.config.latent_channels)
    mean, std = (np.lib.format.open_memmap(folder / name, "w+", np.float16, shape) for name in (MEAN, STD))
    graph, state = nnx.split(vae)

    @jax.jit
    def encode(state: Any, image: Float[Array, "b h w 3"]) -> tuple[Array, Array]:
        posterior = nnx.merge(graph, state).encode(2 * image - 1)
        return posterior.mean, posterior.std

    squares = total = 0.0
    for start in tqdm(range(0, count, batch), unit="batch", desc="latents", disable=None):
        rows = slice(start, min(start + batch, count))
        images = [source[index].image for index in range(start, rows.stop)]
        images = np.stack([cut(image, square(image.shape), size) for image in images])
        images = np.concatenate([images, np.zeros((batch - len(images), *images.shape[1:]), np.uint8)])  # one shape
        for flip, image in enumerate((images, images[:, :, ::-1])):
            found = [np.asarray(x)[: rows.stop - start] for x in encode(state, from_uint8(image))]
            mean[rows, flip], std[rows, flip] = found
            squares += sum(np.sum(np.square(x, dtype=np.float64)) for x in found)
            total += np.sum(found[0], dtype=np.float64)
    mean.flush()
    std.flush()
    return float(np.sqrt(squares / mean.size - (total / mean.size) ** 2))


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
    """A folder that `write_cache` wrote for a `source`, of `size` if its images are own ones, with `states` or without.
    Arrays stay on disk until a row is accessed. Raises FileNotFoundError or ValueError for another folder."""

    folder: Path
    source: Source
    size: int | None = None
    states: bool = False

    def __post_init__(self):
        if not (self.folder / MEAN).is_file():
            hint = f"`python -m plugins.data.latent_cache PICTURES VAE {self.folder}` writes them"
            raise FileNotFoundError(f"{self.folder}: no latents here; {hint}")
        if (found := len(self.arrays[MEAN])) != (count := len(self.source)):
            raise ValueError(f"{self.folder}: latents of {found} images, not of {count}; cache again")
        if self.states and STATES not in self.arrays:
            raise FileNotFoundError(f"{self.folder}: no {STATES} here; cache again with --text BASE")
        about, keys = read_json(self.folder / INDEX), digest(self.source)
        if about.get("keys", keys) != keys:
            raise ValueError(f"{self.folder}: latents of images with other names, or in another order; cache again")
        if self.size is not None and (size := about.get("size")) != self.size:
            raise ValueError(f"{self.folder}: latents of {size} pixels a side, size is {self.size}; cache again")

    @functools.cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays of the folder, by file name."""
        return {path.name: mapped(path) for path in self.folder.glob("*.npy")}

    def latents(self, number: int, flip: bool) -> dict[str, np.ndarray]:
        """The distribution of one image's latents, as a batch holds it."""
        for name in (MEAN, STD):
            check_whole(self.arrays[name])
        return {f"latents_{Path(name).stem}": np.array(self.arrays[name][number, int(flip)]) for name in (MEAN, STD)}


if __name__ == "__main__":
    terminal.program(write_cache)
