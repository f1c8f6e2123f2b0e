"""Colour of video: RGB <-> Y'CbCr, brightness Y' and two colour differences. Four tags of the file say how:

| tag | says | e.g. |
| --- | --- | --- |
| matrix | the weights: Y' = Kr R' + Kg G' + Kb B' | BT.709 (1), BT.601 (5, 6), BT.2020 (9) |
| range | codes of black and white: 16..235 (limited) or 0..255 (full), times 2^(bits-8) | 1, 2 |
| primaries | which red, green and blue | BT.709 (1), BT.2020 (9) |
| transfer | the curve between light and R'G'B' | BT.709 (1), PQ (16) |

Matrix and range are undone when a frame is read and done again when one is written. Primaries and curve are only
carried along: images hold the R'G'B' of the file. Numbers are those of ITU-T H.273, as in FFmpeg; 2 is "unspecified"
(of the range: 0). swscale converts. Into 16 bits it is exact to 0.06/1023, if white is known: 8-bit and limited-range
sources are shifted up, so that white is 65280 (measured; FFmpeg 8.1).
"""

import dataclasses

import numpy as np
from av.video.frame import VideoFrame
from av.video.reformatter import ColorRange, Colorspace, Interpolation
from jaxtyping import Float, UInt16

from common.io.images import to_uint8

LIMITED, FULL = 1, 2
SHIFTED_WHITE = 255 << 8
MATRICES = {  # MatrixCoefficients of H.273 that swscale knows
    1: Colorspace.ITU709,
    4: Colorspace.FCC,
    5: Colorspace.ITU601,
    6: Colorspace.ITU601,
    7: Colorspace.SMPTE240M,
    9: Colorspace.BT2020,
    10: Colorspace.BT2020,
}
# Without these swscale is inexact (white decodes as 253) and takes chroma from every other pixel.
_SCALER = (
    Interpolation.BICUBIC | Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INT | Interpolation.FULL_CHR_H_INP
)


@dataclasses.dataclass(frozen=True)
class Colour:
    """The four tags; the default is BT.709, limited range: what every player takes."""

    matrix: int = 1
    range: int = LIMITED
    primaries: int = 1
    transfer: int = 1

    @property
    def storable(self) -> bool:
        """Whether Y'CbCr can be made with this matrix; not so for RGB sources (0) and rare matrices."""
        return self.matrix in MATRICES


def frame_colour(frame: VideoFrame) -> Colour:
    """The tags of a decoded frame. Matrix and range are always known, as players guess them: without a tag BT.709 for
    HD and BT.601 below, limited range; full range in the formats that have no other."""
    name = frame.format.name
    if frame.format.is_rgb or name == "pal8":
        return Colour(0, FULL, frame.color_primaries, frame.color_trc)
    short, long = sorted((frame.width, frame.height))
    matrix = frame.colorspace if frame.colorspace in MATRICES else 1 if long >= 1280 or short > 576 else 6
    full = frame.color_range == ColorRange.JPEG or name.startswith(("yuvj", "gray"))
    return Colour(matrix, FULL if full else LIMITED, frame.color_primaries, frame.color_trc)


def to_rgb(frame: VideoFrame, size: tuple[int, int]) -> Float[np.ndarray, "h w 3"]:
    """A decoded frame as an image in [0, 1] of `size` (width, height), with all its bits; alpha over white."""
    colour, bits = frame_colour(frame), frame.format.components[0].bits
    alpha = frame.format.name == "pal8" or any(component.is_alpha for component in frame.format.components)
    pixels = frame.to_ndarray(
        width=size[0],
        height=size[1],
        format="rgba64le" if alpha else "rgb48le",
        interpolation=_SCALER,
        src_colorspace=MATRICES.get(colour.matrix),
        src_color_range=ColorRange(colour.range) if colour.matrix else None,
        dst_color_range=ColorRange.JPEG if colour.matrix else None,
    )
    white = (2**bits - 1) << (16 - bits) if colour.matrix else 65535
    if bits == 8 or colour.range == LIMITED:
        white = SHIFTED_WHITE
    image = pixels.astype(np.float32)
    image *= np.float32(1 / white)
    np.minimum(image, 1, out=image)
    if alpha:
        opacity = image[..., 3:]
        image = image[..., :3] * opacity + (1 - opacity)
    return image


def from_rgb(image: Float[np.ndarray, "h w 3"], pixel_format: str, colour: Colour) -> VideoFrame:
    """An image in [0, 1] (clipped) as a frame of `pixel_format`, Y'CbCr or RGB; `colour` must be `storable` for
    Y'CbCr. 8-bit formats are made from 8 bits, rounded to nearest; deeper ones from 16."""
    if pixel_format == "rgb48be":
        return VideoFrame.from_ndarray(_to_uint16(image, 65535), "rgb48be")
    if "10" in pixel_format:
        frame = VideoFrame.from_ndarray(_to_uint16(image, SHIFTED_WHITE), "rgb48le")
    else:
        frame = VideoFrame.from_ndarray(to_uint8(image), "rgb24")
    if not pixel_format.startswith("yuv"):
        return frame.reformat(format=pixel_format)
    target = dict(dst_colorspace=MATRICES[colour.matrix], dst_color_range=ColorRange(colour.range))
    return frame.reformat(format=pixel_format, **target, interpolation=_SCALER)


def _to_uint16(image: Float[np.ndarray, "h w 3"], white: int) -> UInt16[np.ndarray, "h w 3"]:
    return np.rint(np.clip(image, 0, 1) * np.float32(white)).astype(np.uint16)
