"""ICC profiles, built here from the fields of ICC.1:2022."""

import struct

from PIL import ImageCms

from common.io.srgb import SRGB_TO_XYZ

WHITE = (0.9642, 1.0, 0.8249)  # D50
SRGB_CURVE = (2.4, 1 / 1.055, 0.055 / 1.055, 1 / 12.92, 0.04045)  # parametric: g, a, b, c, d


def _fixed(values) -> bytes:
    return struct.pack(f">{len(values)}i", *(round(value * 65536) for value in values))


def _curve(parameters) -> bytes:
    if len(parameters) == 1:
        return b"curv" + struct.pack(">IIH", 0, 1, round(parameters[0] * 256)) + bytes(2)
    return b"para" + struct.pack(">IHH", 0, 3, 0) + _fixed(parameters)


def matrix_profile(curve, primaries=SRGB_TO_XYZ.T) -> bytes:
    """RGB of one curve for all channels, and the XYZ of red, green and blue."""
    tags = {b"wtpt": b"XYZ " + bytes(4) + _fixed(WHITE)}
    for name, primary in zip((b"r", b"g", b"b"), primaries, strict=True):
        tags |= {name + b"TRC": _curve(curve), name + b"XYZ": b"XYZ " + bytes(4) + _fixed(primary)}
    return _profile(b"RGB ", tags)


def _profile(space: bytes, tags: dict[bytes, bytes]) -> bytes:
    table, data, start = struct.pack(">I", len(tags)), b"", 132 + 12 * len(tags)
    for name, value in tags.items():
        table += struct.pack(">4sII", name, start + len(data), len(value))
        data += value
    size = start + len(data)
    fields = (size, b"none", 0x04000000, b"mntr", space, b"XYZ ", 2026, 1, 1, 0, 0, 0, b"acsp")
    header = struct.pack(">I4sI4s4s4s6H4s", *fields)
    return header + bytes(28) + _fixed(WHITE) + bytes(48) + table + data


P3 = matrix_profile(SRGB_CURVE, [(0.5151, 0.2412, -0.0011), (0.2920, 0.6922, 0.0419), (0.1571, 0.0666, 0.7841)])
ADOBE = matrix_profile(
    (2.19921875,), [(0.60974, 0.31111, 0.01947), (0.20528, 0.62567, 0.06087), (0.14919, 0.06322, 0.74457)]
)
GREY = _profile(b"GRAY", {b"wtpt": b"XYZ " + bytes(4) + _fixed(WHITE), b"kTRC": _curve((1.8,))})
SRGB = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
