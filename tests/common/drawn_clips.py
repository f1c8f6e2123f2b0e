"""Clips drawn for tests: pictures of known motion, encoded by PyAV in any form, with a tone."""

from fractions import Fraction

import av
import numpy as np

from common.io.images import to_uint8

NTSC, PAL = Fraction(24000, 1001), Fraction(25)
BLACK = np.zeros((8, 8, 3), np.float32)
SOURCE = {"crf": "1", "preset": "ultrafast"}  # of x264: all but lossless


def moving(count, height=48, width=64):
    """A red square that moves 3 pixels a frame over a gradient."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    for index in range(count):
        frame = np.stack([x / width, y / height, np.full_like(x, 0.5)], axis=-1)
        frame[10:30, 3 * index : 3 * index + 20] = (1, 0.2, 0.1)
        yield frame


def gradient(index=0, height=48, width=64):
    """Red to the right, green downwards, blue with time; uint8."""
    y, x = np.mgrid[0:height, 0:width]
    return np.stack([x * 255 // width, y * 255 // height, np.full_like(x, 10 * index % 256)], -1).astype(np.uint8)


def encoded(
    path, images, rate=PAL, codec="libx264", pixels="yuv420p", times=(), sound=0, tone="aac", prepare=None, **tags
):
    """A clip of uint8 (or uint16) images; `times` are ticks of `rate`; `sound` seconds of sound in the codec `tone`."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate, options=SOURCE if codec == "libx264" else {})
        stream.height, stream.width = images[0].shape[:2]
        stream.pix_fmt = pixels
        for name, value in {"colorspace": 1, **tags}.items():
            setattr(stream.codec_context, name, value)
        if prepare:
            prepare(stream)
        if sound:
            audio = container.add_stream(tone, rate=48000, layout="mono")
            for start in range(0, int(48000 * sound), 960):
                wave = np.sin(np.arange(start, start + 960) / 20).astype(np.float32)[None] / 2
                frame = av.AudioFrame.from_ndarray(wave, "fltp", "mono")
                frame.rate, frame.pts = 48000, start
                if audio.format.name != "fltp":
                    frame = av.AudioResampler(audio.format.name, "mono", 48000).resample(frame)[0]
                container.mux(audio.encode(frame))
            container.mux(audio.encode())
        for index, image in enumerate(images):
            source = "rgb48le" if image.dtype == np.uint16 else ("rgba" if image.shape[-1] == 4 else "rgb24")
            space = {6: "ITU601", 9: "BT2020"}.get(tags.get("colorspace", 1), "ITU709")
            frame = av.VideoFrame.from_ndarray(image, source)
            frame = frame.reformat(format=pixels, dst_colorspace=space, dst_color_range=tags.get("color_range", 1))
            frame.pts, frame.time_base = (times or range(len(images)))[index], 1 / rate
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def filmed(path, count=60, tone="aac"):
    """A clip with sound that starts two frames before the pictures."""
    images = [to_uint8(image) for image in moving(count)]
    return encoded(path, images, NTSC, times=range(2, count + 2), sound=(count + 2) / NTSC, tone=tone)
