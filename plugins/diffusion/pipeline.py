"""From a text, and a picture if there is one, to pictures: the networks of a base joined together.

    pipeline = plugins.diffusion.load("stable-diffusion-v1-5", "bfloat16")
    images = pipeline("a red apple", seeds=range(8))                       # 8 h w 3, RGB float32 in [0, 1], NumPy
    again = pipeline("a red apple, oil", image=images[0], strength=0.6)    # picture to picture

Stages (High-Resolution Image Synthesis with Latent Diffusion Models, 2112.10752, section 3):

1. the request is checked (`request.py`): a mistake is one line, before anything is computed;
2. prompts become tokens, tokens become states, each text by itself;
3. a picture to start from becomes latents; else a run starts from noise;
4. the sampler asks the UNet again and again: one program, for a batch of pictures at a time (`programs.py`);
5. the decoder makes pictures of latents, a few at a time, so that memory stays bounded (`batches.py`).

A picture depends on its prompt, its seed and the settings; not on the other pictures, the size of the batch or the
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
from plugins.diffusion.compiled import Programs
from plugins.diffusion.io.base import Base
from plugins.diffusion.io.lora import Lora, merge
from plugins.diffusion.io.lora_names import Part
from plugins.diffusion.io.tokenizer import Tokenizer
from plugins.diffusion.networks.text_encoder import TextEncoder
from plugins.diffusion.networks.unet import UNet
from plugins.diffusion.networks.vae import AutoencoderKL
from plugins.diffusion.request import GUIDANCE, STEPS, Request, make_request
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
        pipeline, encode = self.pipeline, self.pipeline.programs.encode_text
        params, skip, length = self.params["text_encoder"], self.request.clip_skip, self.pipeline.base.length
        known = {text: encode(params, pipeline.tokenizer(text, length), skip=skip) for text in dict.fromkeys(texts)}
        return jnp.concatenate([known[text] for text in texts])

    def placed(self, network: nnx.Module) -> tuple[Any, Any]:
        """A control's graph and parameters, in the type and on the devices of this run."""
        return self.pipeline.programs.control(network, self.dtype, self.mesh)

    def shared(self, array: Any) -> Any:
        """On the devices of this run, a row each."""
        return array if self.layout.split is None else jax.device_put(array, self.layout.split)


@dataclasses.dataclass(frozen=True, eq=False)
class Pipeline:
    """A base, ready to make pictures; compiled programs are kept with it. Raises ValueError if its parts do not fit.

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
    def programs(self) -> Programs:
        return Programs(self.unet, self.vae, self.text_encoder)

    def __call__(
        self,
        prompts: str | Sequence[str],
        *,
        negative: str | Sequence[str] = "",
        seeds: int | Sequence[int] = 0,
        steps: int = STEPS,
        sampler: str | Sampler | None = None,
        guidance: int | float = GUIDANCE,
        rescale: int | float = 0.0,
        height: int | None = None,
        width: int | None = None,
        image: Any = None,
        strength: int | float | None = None,
        clip_skip: int = 0,
        controls: Sequence[Any] = (),
        dtype: Any = None,
        batch: int | None = None,
        progress: Progress | None = None,
        mesh: Mesh | None = None,
    ) -> Float[np.ndarray, "b h w 3"]:
        """Pictures, RGB float32 in [0, 1], on the host.

        Args:
          prompts, negative, seeds: one for all pictures, or one each; seeds are whole numbers below 2^32.
          steps: of a whole run.
          sampler: a name (`samplers.SAMPLERS`) or a sampler; None: the base's own.
          guidance: 7.5 is customary; 1 asks the UNet half as often and takes no negative prompt.
          rescale: in [0, 1], against over-exposure (2305.08891); 0.7 is the paper's.
          height, width: in pixels; by default the image's, or those that the base was trained on.
          image: `h w 3`, or `b h w 3`, in [0, 1], to start from.
          strength: with an image: in (0, 1], how much of the run is done. 0.8 by default; 1 keeps almost nothing.
          clip_skip: layers of the text encoder to leave out; what many programs call 2 is 1.
          controls: what steers the run, added up: `plugins.control.load(...).on(condition)`, and its like.
          dtype: to compute in: "bfloat16", "float16", "float32"; None: the parameters' own. The first call casts
            them and keeps the copy. The sampler's state is float32 always, and so is the VAE beside "float16".
          batch: pictures at once, exactly, the last batch filled up: one program whatever their number. By default
            they are split evenly, into batches that fit a usual accelerator.
          progress: called on the host with (calls of the UNet done, all of them).
          mesh: devices to split each batch over, axes of type Auto (`common.training.mesh.make_mesh()`).

        Raises:
          ValueError: in one line, before anything is computed. A prompt that is too long is a warning.
        """
        settings = {"negative": negative, "seeds": seeds, "steps": steps, "sampler": sampler, "guidance": guidance}
        settings |= {"rescale": rescale, "height": height, "width": width, "image": image, "strength": strength}
        request = make_request(self.base, prompts, **settings, clip_skip=clip_skip, controls=controls)
        for line in request.cut:
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
        """The pictures of a request, batch by batch; arguments and errors as `__call__`.

        `params`, by network, stand in for the pipeline's own, as they are: what a training has so far.

        Without `stepwise`, `progress` hears of whole batches only. A program that reports its steps is another one,
        and JAX does not keep such programs on the disk for the next start."""
        layout = make_layout(len(request.seeds), request.height, request.width, self.base.unit, batch, mesh)
        chosen = {**self.programs.params(dtype, mesh), **(params or {})}
        run = Run(self, request, chosen, layout, dtype, mesh)
        return self._pictures(run, progress, stepwise)

    def _pictures(self, run: Run, progress: Progress | None, stepwise: bool) -> Iterator[Float[np.ndarray, "b h w 3"]]:
        """A generator: nothing is computed before the first batch is asked for."""
        request, params, layout = run.request, run.params, run.layout
        encode = functools.partial(self.programs.encode_image, params["vae"])
        decode = functools.partial(self.programs.decode, params["vae"])
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
        """The latents of these pictures of the request."""
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
        with self.programs.listening(heard) as progress:
            latents = self.programs.denoise(
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
        """Write a folder that `load` and diffusers read; see `folder_saving.save`."""
        from plugins.diffusion.io.folder_saving import save

        return save(self, folder, dtype, overwrite=overwrite)


def _merged(network: Any, loras: Sequence[tuple[Lora, float]], part: Part) -> Any:
    loras = [(lora, weight) for lora, weight in loras if part in lora.parts]
    if not loras:
        return network
    graph, state = nnx.split(network)
    return nnx.merge(graph, merge(nnx.to_pure_dict(state), loras, part=part))
