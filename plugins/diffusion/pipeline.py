"""Text, and an initial image if there is one, to images: the networks of a base joined together.

    pipeline = plugins.diffusion.load("stable-diffusion-v1-5", "bfloat16")
    images = pipeline("a red apple", seeds=range(8))                       # 8 h w 3, RGB float32 in [0, 1], NumPy
    again = pipeline("a red apple, oil", image=images[0], strength=0.6)    # image to image

Stages (High-Resolution Image Synthesis with Latent Diffusion Models, 2112.10752, section 3):

1. the request is checked (`request.py`): a mistake is one line, before anything is computed;
2. prompts become tokens, tokens become states, each text by itself;
3. an initial image becomes latents; without one a run starts from noise;
4. the sampler calls the UNet step by step: one compiled function, for a batch of images at a time (`compiled.py`);
5. the decoder turns latents into images, a few at a time, so that memory stays bounded (`batching.py`).

An image depends on its prompt, its seed and the settings; not on the other images, the size of the batch or the
number of devices, but for the rounding of float32 sums.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from plugins.diffusion.batching import Layout, Progress, counted, in_chunks, make_layout
from plugins.diffusion.compiled import CompiledFunctions
from plugins.diffusion.io.base import Base
from plugins.diffusion.io.folder import BaseFiles, load_networks, read_base, save_base
from plugins.diffusion.io.lora import Lora, Part, merge
from plugins.diffusion.io.tokenizer import Tokenizer
from plugins.diffusion.networks.text_encoder import TextEncoder
from plugins.diffusion.networks.unet import UNet
from plugins.diffusion.networks.vae import AutoencoderKL
from plugins.diffusion.request import Request, make_request
from plugins.diffusion.samplers import Sampler, keys_of_seeds
from plugins.diffusion.samplers.schedules import FlowSchedule, Schedule


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """A request on its way: what controls need to know to prepare themselves."""

    pipeline: Pipeline
    request: Request
    params: Mapping[str, Any]
    layout: Layout
    dtype: Any
    mesh: Mesh | None

    def states(self, texts: Sequence[str]) -> Float[Array, "b n d"]:
        """States of texts, each computed by itself: they do not depend on one another, and one program serves all."""
        pipeline, encode = self.pipeline, self.pipeline.compiled.encode_text
        params, skip, length = self.params["text_encoder"], self.request.clip_skip, self.pipeline.base.length
        known = {text: encode(params, pipeline.tokenizer(text, length), skip=skip) for text in dict.fromkeys(texts)}
        return jnp.concatenate([known[text] for text in texts])

    def placed(self, network: nnx.Module) -> tuple[Any, Any]:
        """A control's graph and parameters, in the type and on the devices of this run."""
        return self.pipeline.compiled.control(network, self.dtype, self.mesh)

    def shared(self, array: Any) -> Any:
        """On the devices of this run, a row each."""
        return array if self.layout.split is None else jax.device_put(array, self.layout.split)


@dataclasses.dataclass(frozen=True, eq=False)
class Pipeline:
    """A base, ready to make images; compiled functions are kept with it. Raises ValueError if its parts do not fit.

    Attributes:
      unet, text_encoder: networks.
      vae: the autoencoder; None: the UNet works on pixels in [-1, 1].
      tokenizer: of the text encoder.
      schedule: what the UNet was trained on.
      sampler: used where a call names none.
    """

    unet: UNet
    vae: AutoencoderKL | None
    text_encoder: TextEncoder
    tokenizer: Tokenizer
    schedule: Schedule | FlowSchedule
    sampler: Sampler

    def __post_init__(self):
        _ = self.base  # checks

    @functools.cached_property
    def base(self) -> Base:
        """All but the weights."""
        vae = None if self.vae is None else self.vae.config
        return Base(self.unet.config, vae, self.text_encoder.config, self.tokenizer, self.schedule, self.sampler)

    @functools.cached_property
    def compiled(self) -> CompiledFunctions:
        return CompiledFunctions(self.unet, self.vae, self.text_encoder)

    def __call__(
        self,
        prompts: str | Sequence[str],
        *,
        negative: str | Sequence[str] = "",
        seeds: int | Sequence[int] = 0,
        image: Any = None,
        controls: Sequence[Any] = (),
        dtype: Any = None,
        batch: int | None = None,
        progress: Progress | None = None,
        mesh: Mesh | None = None,
        **options: Any,
    ) -> Float[np.ndarray, "b h w 3"]:
        """Images, RGB float32 in [0, 1], on the host.

        Args:
          prompts, negative, seeds: one for all images, or one each; seeds are whole numbers below 2^32.
          image: initial image in [0, 1], `h w 3`, or `b h w 3`.
          controls: what steers the run, added up: `plugins.control.load(...).on(condition)`, and its like.
          dtype: to compute in: "bfloat16", "float16", "float32"; None: the parameters' own. The first call casts
            them and keeps the copy. The sampler's state is float32 always, and so is the VAE beside "float16".
          batch: images at once, exactly, the last batch filled up: one compilation whatever their number. By default
            they are split evenly, into batches that fit a usual accelerator.
          progress: called on the host with (calls of the UNet done, all of them).
          mesh: devices to split each batch over, axes of type Auto (`common.training.mesh.make_mesh()`).
          options: fields of `GenerationConfig`: steps, sampler (a name or a `Sampler`), guidance, rescale, height,
            width, strength, clip_skip.

        Raises:
          ValueError: in one line, before anything is computed. A prompt that is too long is a warning.
          TypeError: for an option that there is not.
        """
        request = make_request(
            self.base, prompts, negative=negative, seeds=seeds, image=image, controls=controls, **options
        )
        for line in request.truncated:
            warnings.warn(line, stacklevel=2)
        return np.concatenate(list(self.run(request, dtype=dtype, batch=batch, progress=progress, mesh=mesh)))

    def run(
        self,
        request: Request,
        *,
        dtype: Any = None,
        batch: int | None = None,
        progress: Progress | None = None,
        stepwise: bool = True,
        mesh: Mesh | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> Iterator[Float[np.ndarray, "b h w 3"]]:
        """The images of a request, batch by batch; arguments and errors as `__call__`.

        `params`, by network, stand in for the pipeline's own, as they are: what a training has so far.

        Without `stepwise`, `progress` hears of whole batches only. A program that reports its steps is another one,
        and JAX does not keep such functions on the disk for the next start."""
        layout = make_layout(len(request.seeds), request.height, request.width, self.base.unit, batch, mesh)
        chosen = {**self.compiled.params(dtype, mesh), **(params or {})}
        run = Run(self, request, chosen, layout, dtype, mesh)
        return self._images(run, progress, stepwise)

    def _images(self, run: Run, progress: Progress | None, stepwise: bool) -> Iterator[Float[np.ndarray, "b h w 3"]]:
        """A generator: nothing is computed before the first batch is asked for."""
        request, params, layout = run.request, run.params, run.layout
        encode = functools.partial(self.compiled.encode_image, params["vae"])
        decode = functools.partial(self.compiled.decode, params["vae"])
        image = None if request.image is None else in_chunks(encode, request.image, layout.chunk, layout.split)
        for i, rows in enumerate(layout.batches):
            report = counted(progress, i, len(layout.batches), request.calls)
            latents = self._denoised(run, rows, image, report if stepwise else None)
            if report is not None:
                report(request.calls - 1)
            yield in_chunks(decode, latents[: rows[-1] - rows[0] + 1], layout.chunk, layout.split)

    def _denoised(
        self,
        run: Run,
        rows: Int[np.ndarray, " b"],
        image: Float[np.ndarray, "_ h w c"] | None,
        heard: Callable[[int], None] | None,
    ) -> Float[np.ndarray, "b h w c"]:
        """The latents of these images of the request."""
        base, request, split = self.base, run.request, run.layout.split
        states = run.states
        arrays = (
            keys_of_seeds([request.seeds[i] for i in rows]),
            states([request.prompts[i] for i in rows]),
            states([request.negatives[i] for i in rows]) if request.guided else None,
            None if image is None else image[np.minimum(rows, len(image) - 1)],  # one for all, or one each
        )
        prepared = [control.prepare(run, rows) for control in request.controls]
        sources = [control.begin(run, rows) for control in request.controls if control.brings_source]
        with self.compiled.listening(heard) as progress:
            latents = self.compiled.denoise(
                run.params["unet"],
                *(array if array is None else jax.device_put(array, split) for array in arrays),
                jnp.float32(request.guidance),
                [arrays for _, arrays in prepared],
                states([""]) if sources else None,
                sources[0] if sources else None,
                acts=tuple(acts for acts, _ in prepared),
                sampler=request.sampler,
                schedule=self.schedule,
                steps=request.steps,
                strength=request.strength,
                rescale=request.rescale,
                shape=(request.height // base.unit, request.width // base.unit, base.channels),
                progress=progress,
            )
            return np.asarray(latents)

    def with_loras(self, loras: Sequence[tuple[Lora, float]]) -> Pipeline:
        """The pipeline with each LoRA merged, times its weight; this one stays as it is.

        Raises ValueError that lists what does not fit."""
        return dataclasses.replace(
            self,
            unet=_merged(self.unet, loras, "unet"),
            text_encoder=_merged(self.text_encoder, loras, "text_encoder"),
        )

    def save(self, folder: str | Path, dtype: Any = None, *, overwrite: bool = False) -> Path:
        """Write a folder that `load` and diffusers read; see `io.folder.save_base`."""
        networks = {"unet": self.unet, "vae": self.vae, "text_encoder": self.text_encoder}
        return save_base(folder, self.base, networks, dtype, overwrite=overwrite)


def load(
    name_or_path: str | Path | None = None,
    dtype: Any = jnp.float32,
    *,
    tokenizer: str | Path | None = None,
    prediction: str | None = None,
    variant: str | None = None,
) -> Pipeline:
    """A base, ready to make images: arguments and errors as `read_base`, dtype as `load_networks`."""
    return from_files(read_base(name_or_path, tokenizer=tokenizer, prediction=prediction, variant=variant), dtype)


def from_files(files: BaseFiles, dtype: Any = jnp.float32) -> Pipeline:
    """The pipeline of a base that `read_base` has read. Raises ValueError that lists tensors that do not fit."""
    networks: dict[str, Any] = {"vae": None, **load_networks(files, dtype)}
    base = files.base
    return Pipeline(**networks, tokenizer=base.tokenizer, schedule=base.schedule, sampler=base.sampler)


def _merged(network: Any, loras: Sequence[tuple[Lora, float]], part: Part) -> Any:
    loras = [(lora, weight) for lora, weight in loras if part in lora.parts]
    if not loras:
        return network
    graph, state = nnx.split(network)
    return nnx.merge(graph, merge(nnx.to_pure_dict(state), loras, part=part))
