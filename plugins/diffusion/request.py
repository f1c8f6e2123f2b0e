"""A generation, checked before anything is computed: the arguments of a call become a `Request`, with a prompt, a
negative prompt and a seed for each image, each given once for all or once each."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from plugins.diffusion.generation_config import GenerationConfig
from plugins.diffusion.io.base import EDITING, INPAINTING, TEXT_TO_IMAGE, Base
from plugins.diffusion.io.prompts import chunks
from plugins.diffusion.networks.vae import OVERLAP
from plugins.diffusion.samplers import SAMPLERS, Sampler, by_name

GUIDANCE = GenerationConfig.guidance
STRENGTH = 0.8
STEPS = {"lcm": 4}  # where none are given; 50 of all others
MOST_CHUNKS = 64  # of a prompt, where those of a call are repeated to one length
INVERSION = "ddim_inversion"  # runs from an image to noise


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Request(GenerationConfig):
    """A checked request: the options with their defaults filled in, and prompts and seeds by image."""

    steps: int  # type: ignore[assignment]
    sampler: Sampler  # type: ignore[assignment]
    height: int  # type: ignore[assignment]
    width: int  # type: ignore[assignment]
    strength: float  # type: ignore[assignment]
    prompts: tuple[str, ...]  # one for each image, as negatives and seeds
    negatives: tuple[str, ...]
    seeds: tuple[int, ...]
    calls: int  # of the UNet, for each batch
    chunks: int  # a multiple of each prompt's number of rows of tokens; more than 1 if one is `weighted` and long
    guided: bool  # whether there is a row with the negative prompt
    image: np.ndarray | None  # initial image in [0, 1], `b h w 3` with b = 1 or one each; None: noise
    mask: np.ndarray | None  # of an inpainting base: `b h w` of booleans, what is drawn anew
    truncated: tuple[str, ...]  # for each prompt that is too long, a line that names the words left out
    controls: tuple[Any, ...] = ()  # `plugins.control`'s


def make_request(
    base: Base,
    prompts: str | Sequence[str],
    *,
    negative: str | Sequence[str] = "",
    seeds: int | Sequence[int] = 0,
    image: Any = None,
    mask: Any = None,
    controls: Sequence[Any] = (),
    sampler: str | Sampler | None = None,
    **options: Any,
) -> Request:
    """The request of `Pipeline.__call__`, which documents the arguments; `options` are fields of `GenerationConfig`.
    Raises ValueError for values that are out of range or do not fit the base or one another."""
    config = GenerationConfig(**options)
    given = {"prompts": prompts, "negative": negative, "seeds": seeds}
    given: Any = {name: [value] if np.ndim(value) == 0 else list(value) for name, value in given.items()}
    image = None if image is None else check_images(image)
    mask = None if mask is None else _check_mask(mask)
    _check_task(base, config, image, mask)
    images = {name: len(value) for name, value in (("image", image), ("mask", mask)) if value is not None}
    counts = {name: len(values) for name, values in given.items()} | images
    total = max(counts.values())
    if any(count not in (1, total) for count in counts.values()):
        listed = ", ".join(f"{count} {name}" for name, count in counts.items())
        raise ValueError(f"{listed} do not fit together; give one for all images, or one for each")
    sampler = base.sampler if sampler is None else by_name(sampler) if isinstance(sampler, str) else sampler
    if sampler.name == INVERSION:
        others = ", ".join(name for name in SAMPLERS if name != INVERSION)
        raise ValueError(f"sampler {INVERSION} runs from an image to noise; choose one of {others}")
    if config.strength is not None and image is None:
        raise ValueError(f"strength={config.strength} needs an initial image; give image=, or leave it out")
    usual = STRENGTH if image is not None and base.task == TEXT_TO_IMAGE else 1.0
    strength = usual if config.strength is None else float(config.strength)
    steps = STEPS.get(sampler.name, 50) if config.steps is None else config.steps
    plan = sampler.plan(base.schedule, steps, strength)
    _check_numbers(base, given, config)
    height, width = _size(base, config, image, controls)
    prompts, negatives, seeds = (tuple(v * total if len(v) == 1 else v) for v in given.values())
    tokenizer, texts = base.texts[0][2], given["prompts"] + given["negative"]
    excess = {} if config.weighted else {text: tokenizer.truncated(text, base.length) for text in texts}
    rows = [len(chunks(text, tokenizer, base.length)[0]) for text in texts] if config.weighted else [1]
    if (repeated := math.lcm(*rows)) > max(MOST_CHUNKS, *rows):
        found = f"prompts of {' and '.join(map(str, sorted(set(rows))))} parts are repeated to {repeated} of each"
        ways = "shorten them, or give prompts in calls of their own"
        raise ValueError(f"{found}, and {MOST_CHUNKS} is the most; {ways}")
    resolved = config.options() | {"sampler": sampler, "height": height, "width": width, "strength": strength}
    resolved |= {"guidance": float(config.guidance), "rescale": float(config.rescale), "steps": steps}
    request = Request(
        **resolved,
        prompts=prompts,
        negatives=negatives,
        seeds=tuple(map(int, seeds)),
        calls=len(plan.timesteps),
        chunks=repeated,
        guided=config.guidance != 1 and not base.distilled,
        image=image,
        mask=mask,
        truncated=tuple(
            f"prompts have {base.length - 2} tokens here; cut off the end of {text[:30] + '...'!r}: {left_out!r}"
            for text, left_out in excess.items()
            if left_out
        ),
        controls=tuple(controls),
    )
    for control in request.controls:
        control.check(base, request)
    if sum(control.has_source for control in request.controls) > 1:
        raise ValueError("two controls take features from an image (Plug-and-Play); give one of them")
    return request


def _check_numbers(base: Base, given: Mapping[str, list[Any]], config: GenerationConfig) -> None:
    tile, smallest = config.tile, (2 * OVERLAP + 1) * base.unit
    layers = min(text.num_hidden_layers for _, text, _ in base.texts)
    for seed in given["seeds"]:
        if not isinstance(seed, int | np.integer) or not 0 <= seed < 2**32:
            raise ValueError(f"seed {seed!r} has to be a whole number from 0 to {2**32 - 1}")
    if not math.isfinite(config.guidance):
        raise ValueError(f"guidance={config.guidance} has to be a number; 1 disables it, the default is {GUIDANCE}")
    if not 0 <= config.rescale <= 1:
        raise ValueError(f"rescale={config.rescale} has to lie in [0, 1]; 0 disables it, 0.7 is customary")
    if tile is not None and (tile < smallest or tile % base.unit):
        raise ValueError(f"tile={tile}: sides of tiles are multiples of {base.unit}, {smallest} or more")
    if not 0 <= config.clip_skip < layers:
        raise ValueError(f"clip_skip={config.clip_skip}: this text encoder can skip 0 to {layers - 1} layers")
    if not config.image_guidance >= 1:
        raise ValueError(f"image_guidance={config.image_guidance} has to be 1 or more; 1.5 is customary")
    if (config.guidance == 1 or base.distilled) and any(given["negative"]):
        why = "this base is distilled with guidance and" if base.distilled else "guidance=1"
        advice = "leave the negative out" if base.distilled else "raise guidance, or leave the negative out"
        raise ValueError(f"{why} makes no use of a negative prompt; {advice}")
    if (config.original is not None or any(config.crop)) and not base.sizes:
        raise ValueError("original and crop are options of SDXL; this base reads no sizes, leave them out")
    sizes = (*(config.original or (1, 1)), *config.crop)
    if len(sizes) != 4 or any(n != int(n) or n < 0 for n in sizes):
        raise ValueError(f"original={config.original}, crop={config.crop}: give two whole numbers of pixels each")


def _check_task(base: Base, config: GenerationConfig, image: np.ndarray | None, mask: np.ndarray | None) -> None:
    """Raises ValueError unless image, mask and strength are those that this kind of base reads."""
    if base.task != INPAINTING and mask is not None:
        raise ValueError(f"this base makes {base.task} and reads no mask; give an inpainting base, or leave mask out")
    if base.task == INPAINTING and (image is None or mask is None):
        raise ValueError("this base is for inpainting; give the image to repair and a mask of what is drawn anew")
    if base.task == EDITING and image is None:
        raise ValueError("this base edits images (InstructPix2Pix); give image, and what to do as the prompt")
    if base.task == EDITING and config.strength is not None:
        raise ValueError(f"strength={config.strength}: an editing base starts from noise; use image_guidance instead")
    if mask is not None and image is not None and mask.shape[1:] != image.shape[1:3]:
        sizes = "x".join(map(str, mask.shape[:0:-1])), "x".join(map(str, image.shape[2:0:-1]))
        raise ValueError(f"the mask is {sizes[0]}, the image {sizes[1]}; resize one of them")


def _check_mask(mask: Any) -> np.ndarray:
    """One mask or several, as `b h w` booleans. Raises ValueError for another shape or values outside [0, 1]."""
    array = np.asarray(mask)
    array = array[None] if array.ndim == 2 else array
    if array.ndim != 3 or 0 in array.shape:
        raise ValueError(f"mask has shape {np.shape(mask)}; masks are h w, or b h w")
    if not np.all((array >= 0) & (array <= 1)):
        raise ValueError(f"mask of {array.dtype} exceeds [0, 1]; divide bytes by 255")
    return array >= 0.5


def check_images(image: Any) -> np.ndarray:
    """One image or several, as `b h w 3` float32. Raises ValueError for another shape, type or range than [0, 1]."""
    array = np.asarray(image)
    array = array[None] if array.ndim == 3 else array
    if array.ndim != 4 or array.shape[-1] != 3 or 0 in array.shape:
        raise ValueError(f"image has shape {np.shape(image)}; images are h w 3, or b h w 3")
    if not np.issubdtype(array.dtype, np.floating) or not np.all((array >= 0) & (array <= 1)):
        raise ValueError(f"image of {array.dtype} exceeds [0, 1], or is not of floats; divide bytes by 255")
    return array.astype(np.float32)


def _size(base: Base, config: GenerationConfig, image: np.ndarray | None, controls: Sequence[Any]) -> tuple[int, int]:
    """Height and width: as given, else the image's, else the first condition's, else the base's."""
    sized = [control.picture for control in controls if control.picture is not None]
    images = sized if image is None else [image]
    own = (images[0].shape[1], images[0].shape[2]) if images else (base.side, base.side)
    sides = (own[0] if config.height is None else config.height, own[1] if config.width is None else config.width)
    size = f"{sides[1]}x{sides[0]}"
    if image is not None and sides != own:
        raise ValueError(f"image is {own[1]}x{own[0]}, the given size {size}; resize or crop it, or give its size")
    if any(side < 1 or side % base.unit for side in sides):
        nearest = "x".join(str(max(1, round(side / base.unit)) * base.unit) for side in reversed(sides))
        advice = "resize or crop the image to" if image is not None else "take"
        raise ValueError(f"size {size}: this base's sides are multiples of {base.unit}; {advice} {nearest}")
    return sides
