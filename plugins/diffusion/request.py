"""What is to be made, checked before anything is computed.

`make_request` turns the arguments of a call into a `Request`, with one prompt, one negative prompt and one seed for
each picture, or raises ValueError in one line. Prompts, negative prompts, seeds and pictures may each be one for all
or one each.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence, Sized
from typing import Any

import numpy as np

from plugins.diffusion.io.base import Base
from plugins.diffusion.samplers import SAMPLERS, Sampler, by_name

STEPS = 50
GUIDANCE = 7.5
STRENGTH = 0.8
BACKWARDS = "ddim_inversion"  # leads from a picture to noise


@dataclasses.dataclass(frozen=True, eq=False)
class Request:
    """Pictures to be made.

    Attributes:
      prompts, negatives, seeds: one for each picture.
      sampler, steps: how; of a run of `steps` only the last `strength` is done.
      calls: of the UNet, one after another, for each batch.
      guidance: scale; 1 leaves the negative prompts out.
      rescale: see `guidance.guide`.
      height, width: in pixels.
      image: what to start from, in [0, 1], `b h w 3` with b = 1 or one each; None: noise.
      clip_skip: layers of the text encoder to leave out at the end.
      cut: for each prompt that is too long, a line that names the words left out.
      controls: what steers the run, `plugins.control`'s.
    """

    prompts: tuple[str, ...]
    negatives: tuple[str, ...]
    seeds: tuple[int, ...]
    sampler: Sampler
    steps: int
    calls: int
    guidance: float
    rescale: float
    height: int
    width: int
    image: np.ndarray | None
    strength: float
    clip_skip: int
    cut: tuple[str, ...]
    controls: tuple[Any, ...] = ()

    @property
    def guided(self) -> bool:
        return self.guidance != 1


def make_request(
    base: Base,
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
) -> Request:
    """The request of `Pipeline.__call__`, which explains the arguments. Raises ValueError in one line."""
    given = {"prompts": _several(prompts), "negative": _several(negative), "seeds": _several(seeds)}
    picture = None if image is None else pictures_of(image)
    total = _total(given if picture is None else {**given, "image": picture})
    chosen = find_sampler(base, sampler)
    if strength is not None and picture is None:
        raise ValueError(f"strength={strength} says how much of a picture is redrawn; give image=, or leave it out")
    part = 1.0 if picture is None else STRENGTH if strength is None else float(strength)
    plan = chosen.plan(base.schedule, steps, part)
    texts = given["prompts"] + given["negative"]
    _check_numbers(base, given, guidance, rescale, clip_skip)
    height, width = _size(base, height, width, picture, controls)
    prompts, negatives, numbers = (tuple(values * total if len(values) == 1 else values) for values in given.values())
    request = Request(
        prompts=prompts,
        negatives=negatives,
        seeds=tuple(int(seed) for seed in numbers),
        sampler=chosen,
        steps=steps,
        calls=len(plan.timesteps),
        guidance=float(guidance),
        rescale=float(rescale),
        height=height,
        width=width,
        image=picture,
        strength=part,
        clip_skip=clip_skip,
        cut=tuple(line for text in dict.fromkeys(texts) if (line := _cut(base, text))),
        controls=tuple(controls),
    )
    _check_controls(base, request)
    return request


def find_sampler(base: Base, sampler: str | Sampler | None) -> Sampler:
    """The one asked for, or the base's own. Raises ValueError that lists the names."""
    found = base.sampler if sampler is None else by_name(sampler) if isinstance(sampler, str) else sampler
    if found.name == BACKWARDS:
        others = ", ".join(name for name in SAMPLERS if name != BACKWARDS)
        raise ValueError(f"sampler {BACKWARDS} leads from a picture to noise; choose one of {others}")
    return found


def _several(value: Any) -> list[Any]:
    return [value] if isinstance(value, str | int | np.integer) else list(value)


def _total(given: Mapping[str, Sized]) -> int:
    """How many pictures: one of each for all, or as many as pictures."""
    counts = {name: len(values) for name, values in given.items()}
    total = max(counts.values())
    if any(count not in (1, total) for count in counts.values()):
        listed = ", ".join(f"{count} {name}" for name, count in counts.items())
        raise ValueError(f"{listed} do not go together; give one for all pictures, or one for each")
    return total


def _check_numbers(
    base: Base, given: Mapping[str, list[Any]], guidance: int | float, rescale: int | float, clip_skip: int
) -> None:
    layers = base.text_encoder.num_hidden_layers
    wrong = [seed for seed in given["seeds"] if not _is_seed(seed)]
    if wrong:
        raise ValueError(f"seed {wrong[0]!r} has to be a whole number from 0 to {2**32 - 1}")
    if not math.isfinite(guidance):
        raise ValueError(f"guidance={guidance} has to be a number; 1 is none, {GUIDANCE} is customary")
    if not 0 <= rescale <= 1:
        raise ValueError(f"rescale={rescale} has to lie in [0, 1]; 0 is off, 0.7 is customary")
    if not 0 <= clip_skip < layers:
        raise ValueError(f"clip_skip={clip_skip}: of this text encoder's layers 0 to {layers - 1} can be left out")
    if guidance == 1 and any(given["negative"]):
        raise ValueError("guidance=1 makes no use of a negative prompt; raise guidance, or leave the negative out")


def _is_seed(seed: Any) -> bool:
    return isinstance(seed, int | np.integer) and not isinstance(seed, bool) and 0 <= int(seed) < 2**32


def _check_controls(base: Base, request: Request) -> None:
    """Each control looks whether it fits; two cannot both bring a picture whose features are used."""
    for control in request.controls:
        control.check(base, request)
    if sum(control.brings_source for control in request.controls) > 1:
        raise ValueError("two controls take features from a picture (Plug-and-Play); one at a time can")


def pictures_of(image: Any) -> np.ndarray:
    """One picture or several, as `b h w 3` float32. Raises ValueError in one line for anything else."""
    array = np.asarray(image)
    array = array[None] if array.ndim == 3 else array
    if array.ndim != 4 or array.shape[-1] != 3 or 0 in array.shape:
        raise ValueError(f"image has shape {np.shape(image)}; pictures are h w 3, or b h w 3")
    inside = np.issubdtype(array.dtype, np.floating) and bool(np.all((array >= 0) & (array <= 1)))
    if not inside:
        raise ValueError(f"image of {array.dtype} goes beyond [0, 1], or is not of floats; divide bytes by 255")
    return array.astype(np.float32)


def _size(
    base: Base, height: int | None, width: int | None, picture: np.ndarray | None, controls: Sequence[Any]
) -> tuple[int, int]:
    """height, width: as asked for, else the picture's, else the first condition's, else the base's."""
    given = [picture] if picture is not None else [control.picture for control in controls]
    own = (given[0].shape[1], given[0].shape[2]) if given else (base.side, base.side)
    sides = (own[0] if height is None else height, own[1] if width is None else width)
    shown = f"{sides[1]}x{sides[0]}"
    if picture is not None and sides != own:
        raise ValueError(f"image is {own[1]}x{own[0]}, asked for is {shown}; resize or crop it, or ask for its size")
    if any(side < 1 or side % base.unit for side in sides):
        near = "x".join(str(max(1, round(side / base.unit)) * base.unit) for side in reversed(sides))
        way = "resize or crop the image to" if picture is not None else "take"
        raise ValueError(f"a picture of {shown}: this base makes sides that are multiples of {base.unit}; {way} {near}")
    return sides


def _cut(base: Base, text: str) -> str | None:
    left_out = base.tokenizer.truncated(text, base.length)
    if not left_out:
        return None
    return f"prompts have {base.length - 2} tokens here; cut off the end of {text[:30] + '...'!r}: {left_out!r}"
