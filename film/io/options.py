"""The options of a run of `film`: what the command parses and `film.convert` takes by name.

Each group is a section of the help. An option that was not given is None, or False for a flag, so that a run can refuse
options of the other kind of source. Needs no JAX.
"""

import dataclasses
import re
from fractions import Fraction
from typing import Annotated, Any, Literal

import tyro

from common.checked import Checked, Dtype
from common.io.clip_limits import Rate
from common.terminal import Flag


def option(metavar: str, default: str, **more: Any) -> Any:
    """How an option that may be left out stands in the help."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint=f"(default: {default})", **more)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutputOptions:
    fps: Annotated[Rate | None, option("RATE", "photos 30, a video as --factor says", constructor=str)] = None
    """Frames per second: 60, 23.976 or 30000/1001. A video keeps its duration."""
    size: Annotated[str | int | None, option("SIZE", "as the input", constructor=str)] = None
    """Output size: 1080p (shorter side), 1280 (longer side) or 1280x720."""
    fit: Annotated[Literal["crop", "pad", "resize"] | None, option("crop|pad|resize", "sizes must be equal")] = None
    """How to bring photos of different sizes, or a --size of another aspect ratio, to one size."""
    codec: Annotated[str | None, option("NAME", "h264; vp9 in .webm")] = None
    """h264, hevc, av1 or vp9."""
    quality: Annotated[int | None, option("N", "visually lossless")] = None
    """CRF from 0 (best) to 51 (h264, hevc) or 63 (av1, vp9); for .webp from 0 to 100 (best)."""
    bits: Annotated[int | None, option("8|10|16", "as a video, else 8")] = None
    """Bits per sample: 8, 10 in movies, 16 in PNGs and .apng."""
    chroma: Annotated[Literal["420", "444"], option("420|444", "420")] = "420"
    """Chroma subsampling of a movie: 4:2:0 or 4:4:4; few players show 4:4:4."""
    resume: Flag = False
    """Resume the same command where it was stopped."""
    overwrite: Flag = False
    """Replace outputs that exist."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhotoOptions:
    frames: Annotated[int | None, option("N", "31")] = None
    """New frames between two consecutive photos."""
    times: Annotated[int | None, option("N", "5")] = None
    """In place of --frames: N halvings of each gap give 2^N - 1 new frames; at most 16."""
    ease: Flag = False
    """Ease in and out at each photo."""
    loop: Flag = False
    """Also interpolate from the last photo to the first, so that the clip loops without a jump."""
    align: Flag = False
    """Align hand-held photos, and crop to the area that all of them show."""
    match_exposure: Flag = False
    """Match brightness and colour of all photos to the first."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class VideoOptions:
    factor: Annotated[Rate | None, option("NUMBER", "2", constructor=str)] = None
    """Factor for the number of frames and the frame rate: 2, 2.5 or 5/2."""
    slow_motion: Flag = False
    """Keep the frame rate, so that the clip lasts --factor times as long."""
    retime: Flag = False
    """Drop repeated frames, and interpolate over the time that they filled."""
    audio: Annotated[Literal["keep", "stretch", "none"] | None, option("keep|stretch|none", "keep if it fits")] = None
    """Sound: copied without loss, stretched to the new duration, or left out."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class NetworkOptions:
    memory: Annotated[str | float | int | None, option("SIZE", "four fifths of what is free", constructor=str)] = None
    """Memory limit, such as 2GB; images that need more are computed in overlapping windows."""
    ensemble: Flag = False
    """Average over time reversal and horizontal mirroring: four times the computation, steadier frames."""
    matching: Annotated[Literal["on", "off"] | None, option("on|off", "as the weights say")] = None
    """Search the whole frames for flow where it is in doubt: for things that move farther than their own size. Networks
    of the published shape cannot."""
    flow_scale: Annotated[str | int | None, option("1/N", "1, or by --memory", constructor=str)] = None
    """Start flow estimation at 1/2, 1/4, 1/8 or 1/16 of the image's size: for large motion in large images."""
    precision: Annotated[Dtype, option("float32|bfloat16", "float32")] = "float32"
    """Type of the activations and of the colours of new frames; bfloat16 has 8 significant bits. NVIDIA GPUs multiply
    float32 as TF32 unless JAX_DEFAULT_MATMUL_PRECISION=highest."""
    batch: Annotated[int | None, option("N", "by image size and device")] = None
    """Maximum number of frame pairs computed at once; fewer if memory is short."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class InspectionOptions:
    compare: Flag = False
    """Show the plain cross-fade to the left of each frame."""
    sheet: Annotated[str | None, option("IMAGE", "none")] = None
    """Also write a contact sheet of nine frames."""
    inspect: Annotated[str | None, option("IMAGE", "none")] = None
    """Also write a sheet of the first gap: flow, warped inputs, and the weight of each input in the frame."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(Checked, OutputOptions, PhotoOptions, VideoOptions, NetworkOptions, InspectionOptions):
    """How a clip is made; `film.convert` takes the same names. ValueError for a value that an option does not take."""


def refuse(options: Options, kind: type, reason: str) -> None:
    """ValueError for an option of the group `kind` that was given."""
    for field in dataclasses.fields(kind):
        if getattr(options, field.name) != field.default:
            raise ValueError(f"--{field.name.replace('_', '-')} {reason}")


def parse_factor(factor: Rate | None) -> Fraction | None:
    """An exact factor from 4, 2.5 or "5/2". Raises ValueError for another one."""
    if factor is None:
        return None
    text = str(factor)
    if not re.fullmatch(r"\d{1,9}(\.\d{1,9})?|\d{1,9}/\d{1,9}", text) or text.endswith("/0"):
        raise ValueError(f"--factor {text}: give a number or a fraction, such as 4, 2.5 or 5/2")
    return Fraction(text)


def parse_memory(text: str | float | int) -> float:
    """Bytes of 2GB, 1.5G or 800MB (powers of 1,000); of a number, itself. ValueError for another text."""
    if not isinstance(text, str):
        return float(text)
    if found := re.fullmatch(r"(\d+(?:\.\d+)?)\s*([GM])B?", text.strip().upper()):
        return float(found[1]) * {"G": 1e9, "M": 1e6}[found[2]]
    raise ValueError(f"--memory {text}: give a size such as 2GB or 800MB")


def parse_scale(text: str | int) -> int:
    """2 of 1/2 or 2. ValueError for another text."""
    if found := re.fullmatch(r"(?:1/)?(1|2|4|8|16)", str(text).strip()):
        return int(found[1])
    raise ValueError(f"--flow-scale {text}: give 1, 1/2, 1/4, 1/8 or 1/16")
