"""Text, and optionally an initial image, to images: the networks of a base joined together.

    pipeline = plugins.diffusion.load("stable-diffusion-v1-5", "bfloat16")
    images = pipeline("a red apple", seeds=range(8))                       # 8 h w 3, RGB float32 in [0, 1], NumPy
    again = pipeline("a red apple, oil", image=images[0], strength=0.6)    # image to image

Stages (High-Resolution Image Synthesis with Latent Diffusion Models, 2112.10752, section 3): the request is checked
(`request.py`) before anything is computed; prompts become tokens, tokens states, each text by itself; an initial image
becomes latents, without one a run starts from noise; the sampler calls the UNet step by step (`steering.py`) in one
compiled function, for a batch of images at a time; the decoder turns latents into images, in chunks (`compiled.py`).

An image depends on its prompt, its seed and the settings; not on the other images, the batch size or the number of
devices, except for rounding of float32 sums.
"""

import dataclasses
import functools
import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Float, Int

from common.io.clip_tokenizer import Tokenizer
from common.nn.text_encoder import TextEncoder
from plugins.diffusion.compiled import CompiledFunctions, Layout, in_tiles, make_layout, reporting
from plugins.diffusion.io.base import EDITING, TEXT_TO_IMAGE, Base, BaseFiles, load_networks, read_base, save_base
from plugins.diffusion.io.components import KINDS
from plugins.diffusion.io.lora import PARTS, Lora, Part, merged
from plugins.diffusion.io.prompts import chunks
from plugins.diffusion.io.textual_inversion import TextualInversion, with_rows, with_words
from plugins.diffusion.networks.unet import UNet
from plugins.diffusion.networks.vae import Autoencoder
from plugins.diffusion.preview import LinearDecoder, Preview, fit_linear_decoder
from plugins.diffusion.request import Request, make_request
from plugins.diffusion.samplers import Sampler, keys_of_seeds, steps_of
from plugins.diffusion.samplers.schedules import FlowSchedule, Schedule
from plugins.diffusion.steering import COND, IMAGE, SOURCE, UNCOND, Conditioning

AESTHETIC = (6.0, 2.5)  # scores that SDXL's refiner reads for a prompt, and for a negative prompt

Progress = Callable[[int, int], None]  # called with (calls of the UNet done, all of them)


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """A request in progress; controls read it to prepare themselves."""

    pipeline: "Pipeline"
    request: Request
    params: Mapping[str, Any]
    layout: Layout
    dtype: Any
    mesh: Mesh | None
    # Called with the index of each finished call of the UNet: below 0 for a control's own, before the sampler's.
    report: Callable[[int], None] | None = None

    def conditioning(self, texts: Sequence[str], *, negative: bool = False) -> Conditioning:
        """What the UNet reads of texts, each computed by itself: independent of the others, with one compilation.
        `negative`: of negative prompts, of which SDXL's base replaces the empty one by zeros."""
        rows = {text: self._of_text(text, negative) for text in dict.fromkeys(texts)}
        return jax.tree.map(lambda *arrays: jnp.concatenate(arrays), *(rows[text] for text in texts))

    def _of_text(self, text: str, negative: bool) -> Conditioning:
        base, request, encode = self.pipeline.base, self.request, self.pipeline.compiled.encode_text

        def states(kind: str, tokens: np.ndarray) -> Any:
            return encode[kind](self.params[kind], tokens, skip=request.clip_skip, penultimate=base.sizes > 0)

        contexts, pooled = [], None
        for kind, _, tokenizer in base.texts:
            if not request.weighted:
                context, pooled = states(kind, tokenizer(text, base.length))
            else:
                empty, _ = states(kind, tokenizer("", base.length))
                tokens, weights = chunks(text, tokenizer, base.length)
                rows = [states(kind, row[None]) for row in tokens]
                stacked, factors = jnp.concatenate([z for z, _ in rows]), weights[..., None].astype(empty.dtype)
                moved = empty + factors * (stacked - empty)
                context, pooled = moved.reshape(1, -1, moved.shape[-1]), rows[0][1]
            contexts.append(context)
        context = jnp.concatenate(contexts, -1)
        context = jnp.tile(context, (1, request.chunks * base.length // context.shape[1], 1))
        if pooled is None or not base.sizes:
            return Conditioning(context)
        if negative and not text and base.zero_empty:
            context, pooled = jnp.zeros_like(context), jnp.zeros_like(pooled)
        size = (request.height, request.width)
        last = size if base.sizes == 6 else (AESTHETIC[negative],)
        return Conditioning(context, pooled, jnp.float32([[*(request.original or size), *request.crop, *last]]))

    def placed(self, network: nnx.Module) -> tuple[Any, Any]:
        """A control network's graph and parameters, in the type (None: the UNet's) and on the devices of this run."""
        dtype = jax.tree.leaves(self.params["unet"])[0].dtype if self.dtype is None else self.dtype
        return self.pipeline.compiled.control(network, dtype, self.mesh)

    def shared(self, array: Any) -> Any:
        """The array with its rows sharded over the devices of this run."""
        return array if self.layout.split is None else jax.device_put(array, self.layout.split)


@dataclasses.dataclass(frozen=True, eq=False)
class Pipeline:
    """A base with its networks and compiled functions. Raises ValueError if its components do not fit."""

    unet: UNet
    vae: Autoencoder | None  # None: the UNet works on pixels in [-1, 1]
    text_encoder: TextEncoder | None  # None in SDXL's refiner
    tokenizer: Tokenizer | None
    schedule: Schedule | FlowSchedule
    sampler: Sampler  # the default of calls
    text_encoder_2: TextEncoder | None = None  # SDXL's second one
    tokenizer_2: Tokenizer | None = None
    zero_empty: bool = False  # SDXL: the empty negative prompt is zeros

    def __post_init__(self):
        _ = self.base  # checks

    @property
    def networks(self) -> dict[str, Any]:
        """The networks by kind; None: there is none of that kind."""
        return {kind: getattr(self, kind) for kind in KINDS}

    @functools.cached_property
    def base(self) -> Base:
        """Everything except the weights."""
        fields: dict[str, Any] = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        for kind, network in self.networks.items():
            fields[kind] = None if network is None else network.config
        return Base(**fields)

    @functools.cached_property
    def compiled(self) -> CompiledFunctions:
        return CompiledFunctions({kind: it for kind, it in self.networks.items() if it is not None or kind == "vae"})

    @functools.cached_property
    def linear_decoder(self) -> LinearDecoder | None:
        """Latents to small images for previews; None: the latents are pixels."""
        if self.vae is None:
            return None
        encode = functools.partial(self.compiled.encode_image, self.compiled.params()["vae"])
        return fit_linear_decoder(encode, self.base.unit)

    def __call__(
        self,
        prompts: str | Sequence[str],
        *,
        negative: str | Sequence[str] = "",
        seeds: int | Sequence[int] = 0,
        image: Any = None,
        mask: Any = None,
        controls: Sequence[Any] = (),
        dtype: Any = None,
        batch: int | None = None,
        progress: Progress | None = None,
        preview: Preview | None = None,
        mesh: Mesh | None = None,
        **options: Any,
    ) -> Float[np.ndarray, "b h w 3"]:
        """Images, RGB float32 in [0, 1], on the host.

        Args:
          prompts, negative, seeds: one for all images, or one each; seeds are whole numbers below 2^32.
          image: initial image in [0, 1], `h w 3`, or `b h w 3`; of an inpainting base the image to repair, of an
            InstructPix2Pix the image to edit.
          mask: for an inpainting base, `h w` or `b h w` in [0, 1]: what is 0.5 and more is drawn anew.
          controls: their effects are added: `plugins.control.load(...).on(condition)` and others.
          dtype: of the computation: "bfloat16", "float16", "float32"; None: the parameters' own. The sampler's state is
            always float32, and so is the VAE with "float16".
          batch: batch size, the last batch padded: one compilation for any number of images. None: even batches that
            fit a usual accelerator.
          progress: called on the host with (calls of the UNet done, all of them, Plug-and-Play's inversion included).
          preview: shows images of what each step predicts (`preview.py`).
          mesh: devices to shard each batch over, axes of type Auto (`common.training.mesh.make_mesh()`).
          options: fields of `GenerationConfig`: steps, sampler (a name or a `Sampler`), guidance, rescale, height,
            width, strength, clip_skip, weighted, image_guidance, original, crop, tile.

        Raises ValueError before anything is computed. A prompt that is too long is a warning.
        """
        conditions = {"image": image, "mask": mask, "controls": controls}
        request = make_request(self.base, prompts, negative=negative, seeds=seeds, **conditions, **options)
        for line in request.truncated:
            warnings.warn(line, stacklevel=2)
        reports = {"progress": progress, "preview": preview}
        return np.concatenate(list(self.run(request, dtype=dtype, batch=batch, **reports, mesh=mesh)))

    def run(
        self,
        request: Request,
        *,
        dtype: Any = None,
        batch: int | None = None,
        progress: Progress | None = None,
        preview: Preview | None = None,
        stepwise: bool = True,
        mesh: Mesh | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> Iterator[Float[np.ndarray, "b h w 3"]]:
        """The images of a request, batch by batch; arguments and errors as `__call__`. `params`, by network, replace
        the pipeline's own, for a model in training. Without `stepwise`, `progress` is called once a batch: JAX does not
        cache a function that reports its steps on disk."""
        if preview is not None and preview.decoder is not None:
            config, base = preview.decoder.config, self.base
            if (config.latent_channels, config.reduction) != (base.channels, base.unit):
                found = f"{config.latent_channels} channels at 1/{config.reduction} of the side"
                own = f"{base.channels} at 1/{base.unit}"
                raise ValueError(f"the preview's autoencoder has latents of {found}, the base {own}")
        size = (request.height, request.width)
        layout = make_layout(len(request.seeds), *size, self.base.unit, batch, mesh, request.tile)
        chosen = {**self.compiled.params(dtype, mesh), **(params or {})}
        return self._images(Run(self, request, chosen, layout, dtype, mesh), progress, preview, stepwise)

    def _images(
        self, run: Run, progress: Progress | None, preview: Preview | None, stepwise: bool
    ) -> Iterator[Float[np.ndarray, "b h w 3"]]:
        """A generator: nothing is computed before the first batch is requested."""
        request, params, layout = run.request, run.params, run.layout
        encode, decode = (
            functools.partial(function, params["vae"])
            for function in (self.compiled.encode_image, self.compiled.decode)
        )
        unit, size = self.base.unit, (request.height, request.width)
        small = (request.height // unit, request.width // unit)
        encoded = functools.partial(in_tiles, encode, layout=layout, unit=unit, size=small)
        image, channels = self._images_beside(request, encoded)
        decoder = None if preview is None else preview.decoder or self.linear_decoder
        source = next((control for control in request.controls if control.has_source), None)
        before = [0] * len(layout.batches) if source is None else source.calls_before(run, layout.batches)
        ends = list(itertools.accumulate(own + request.calls for own in before))
        done = latest = 0

        def report(batch: int, index: int) -> None:  # calls finish out of order at times
            nonlocal done
            reached = ends[batch] - request.calls + index + 1
            if progress is not None and reached > done:
                done = reached
                progress(done, ends[-1])

        def show(batch: int, count: int, index: int, images: np.ndarray) -> None:
            nonlocal latest
            if preview is not None and batch * request.calls + index >= latest:
                latest = batch * request.calls + index + 1
                preview.show(latest, len(layout.batches) * request.calls, images[:count])

        for i, rows in enumerate(layout.batches):
            count = int(rows[-1] - rows[0]) + 1  # without padding
            callback = functools.partial(report, i) if stepwise and progress is not None else None
            shown = None if preview is None else functools.partial(show, i, count)
            reported = dataclasses.replace(run, report=callback)
            latents = self._denoised(reported, rows, image, channels, shown, decoder)
            report(i, request.calls - 1)
            yield in_tiles(decode, latents[:count], layout, unit, size)

    def _images_beside(
        self, request: Request, encode: Callable[[np.ndarray], np.ndarray]
    ) -> tuple[np.ndarray | None, np.ndarray | None]:
        """The latents that a run starts from, and the channels beside its noisy latents; None: noise, no channels."""
        if request.image is None or self.base.task == TEXT_TO_IMAGE:
            return None if request.image is None else encode(request.image), None
        if request.mask is None:  # InstructPix2Pix reads latents that are not scaled
            latents, vae = encode(request.image), self.base.vae
            return None, latents if vae is None else latents / vae.scaling_factor + (vae.shift_factor or 0)
        unit, count = self.base.unit, max(len(request.mask), len(request.image))
        mask = np.broadcast_to(request.mask[..., None], (count, request.height, request.width, 1))
        masked = encode(np.where(mask, np.float32(0.5), request.image))
        small = mask[:, ::unit, ::unit].astype(masked.dtype)  # the nearest pixel, as in training
        return None if request.strength == 1 else encode(request.image), np.concatenate([small, masked], -1)

    def _denoised(
        self,
        run: Run,
        rows: Int[np.ndarray, " b"],
        image: Float[np.ndarray, "_ h w c"] | None,
        channels: Float[np.ndarray, "_ h w e"] | None,
        show: Callable[[int, np.ndarray], None] | None,
        decoder: nnx.Module | None,
    ) -> Float[np.ndarray, "b h w c"]:
        """The latents of these images of the request; `show` gets previews by `decoder` (None: of pixels)."""
        base, request, split = self.base, run.request, run.layout.split
        prepared = [control.prepare(run, rows) for control in request.controls]
        sources = [control.initial_latents(run, rows) for control in request.controls if control.has_source]

        def of(images: np.ndarray) -> np.ndarray:
            return images[np.minimum(rows, len(images) - 1)]  # one for all, or one each

        branches = {COND: run.conditioning([request.prompts[i] for i in rows])}
        if request.guided:
            branches[UNCOND] = run.conditioning([request.negatives[i] for i in rows], negative=True)
        if sources:
            empty = run.conditioning([""])
            branches[SOURCE] = jax.tree.map(lambda array: jnp.repeat(array, len(rows), 0), empty)
        if channels is not None:
            beside = {name: of(channels) for name in branches}
            if base.task == EDITING and request.guided:
                branches[IMAGE], beside[IMAGE] = branches[UNCOND], beside[UNCOND]
                beside[UNCOND] = np.zeros_like(beside[UNCOND])
            branches = {name: row._replace(channels=jnp.asarray(beside[name])) for name, row in branches.items()}
        arrays = (keys_of_seeds([request.seeds[i] for i in rows]), branches, None if image is None else of(image))
        graph, params = (None, None) if decoder is None else self.compiled.control(decoder, jnp.float32, run.mesh)
        with reporting(run.report, show) as callbacks:
            latents = self.compiled.denoise(
                run.params["unet"],
                *jax.device_put(arrays, split),
                jnp.float32(request.guidance),
                [arrays for _, arrays in prepared],
                sources[0] if sources else None,
                jnp.float32(request.image_guidance) if IMAGE in branches else None,
                params,
                static_controls=tuple(static for static, _ in prepared),
                sampler=request.sampler,
                schedule=self.schedule,
                steps=request.steps,
                strength=steps_of(request.steps, request.strength) / request.steps,  # one for all of as many steps
                rescale=request.rescale,
                shape=(request.height // base.unit, request.width // base.unit, base.channels),
                preview_graph=graph,
                **callbacks,
            )
            return np.asarray(latents)

    def with_loras(self, loras: Sequence[tuple[Lora, float]]) -> "Pipeline":
        """A pipeline with each `Lora` merged, times its weight; this one is not changed."""
        if not loras:
            return self
        parts: list[Part] = [part for part in PARTS if getattr(self, part) is not None]
        return dataclasses.replace(self, **{part: merged(getattr(self, part), loras, part) for part in parts})

    def with_embeddings(self, inversions: Sequence[TextualInversion]) -> "Pipeline":
        """A pipeline whose prompts may hold their words, which cannot be saved; this one is not changed. Raises
        ValueError for vectors of another base."""
        if not inversions:
            return self
        base = with_words(self.base, inversions)
        networks = {kind: with_rows(getattr(self, kind), kind, base, inversions) for kind, _, _ in base.texts}
        return dataclasses.replace(self, **networks, tokenizer=base.tokenizer, tokenizer_2=base.tokenizer_2)

    def save(self, folder: str | Path, dtype: Any = None, *, overwrite: bool = False) -> Path:
        """Write a folder that `load` and diffusers read; arguments and errors as `io.base.save_base`."""
        return save_base(folder, self.base, self.networks, dtype, overwrite=overwrite)


def load(
    name_or_path: str | Path | None = None,
    dtype: Any = jnp.float32,
    *,
    tokenizer: str | Path | None = None,
    prediction: str | None = None,
    variant: str | None = None,
    vae: str | Path | None = None,
) -> Pipeline:
    """The pipeline of a base: arguments and errors as `read_base`, dtype as `load_networks`."""
    options = {"tokenizer": tokenizer, "prediction": prediction, "variant": variant, "vae": vae}
    return from_files(read_base(name_or_path, **options), dtype)


def from_files(files: BaseFiles, dtype: Any = jnp.float32) -> Pipeline:
    """The pipeline of a base that `read_base` has read."""
    fields = {field.name: getattr(files.base, field.name) for field in dataclasses.fields(files.base)}
    return Pipeline(**{**fields, **dict.fromkeys(KINDS), **load_networks(files, dtype)})
