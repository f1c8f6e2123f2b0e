"""The TensorFlow program of FILM, for `benchmarks/film.py`; needs TensorFlow, tensorflow-addons and NumPy alone.

`benchmarks/film.py --reference CLONE` runs it as a process of its own, with the Python of another environment. Both
programs draw the same weights and frames here. Each line on stdin asks for one run, and is answered by a line of JSON.
"""

import itertools
import json
import resource
import sys
import time
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

ALIGN = 64  # the program pads sides to multiples, with zeros


def variable(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Weights by name: He-normal kernels, small biases."""
    values = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape)
    scale = np.sqrt(2 / np.prod(shape[:-1])) if len(shape) > 1 else 0.05
    return (values * scale).astype(np.float32)


def pair(height: int, width: int) -> list[np.ndarray]:
    """Two frames [h w 3] of a pattern that moves 6 px to the right and 3 px up."""
    y, x = (axis[..., None] for axis in np.ogrid[:height, :width])
    period = np.array([23, 37, 53])
    waves = [np.sin(6.28 * (x - 6 * t) / period) + np.cos(6.28 * (y + 3 * t) / period[::-1]) for t in (0, 1)]
    return [(0.5 + 0.2 * wave).astype(np.float32) for wave in waves]


def serve(run: Callable[[], Any], report: Callable[[], dict]) -> None:
    """Runs once, and then once for each line of stdin; prints seconds and CPU seconds of each run, and `report` at
    the end of stdin."""
    for _ in itertools.chain([""], sys.stdin):
        start, used = time.perf_counter(), time.process_time()
        run()
        print(json.dumps({"seconds": time.perf_counter() - start, "cpu": time.process_time() - used}), flush=True)
    print(json.dumps(report()), flush=True)


def peak() -> float:
    """Of this process, in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main(clone: str, width: int, height: int, times: int) -> None:
    """The published network on a pair, halved `times` times: each in-between frame is a run on its two neighbours, as
    in the program's `eval/util.py`."""
    sys.path.insert(0, clone)
    import tensorflow as tf  # pyright: ignore[reportMissingImports]
    from models.film_net import interpolator, options  # pyright: ignore[reportMissingImports]

    config = options.Options(
        pyramid_levels=7, flow_convs=[3, 3, 3, 3], flow_filters=[32, 64, 128, 256], filters=64, use_aux_outputs=False
    )
    image = tf.keras.Input((None, None, 3))
    model = interpolator.create_model(image, tf.keras.Input((None, None, 3)), tf.keras.Input((1,)), config)
    for weight in model.variables:
        weight.assign(variable(weight.name.removesuffix(":0"), tuple(weight.shape)))
    padding = [(-side % ALIGN // 2, -side % ALIGN - -side % ALIGN // 2) for side in (height, width)]
    frames = [tf.constant(np.pad(frame, (*padding, (0, 0)))[None]) for frame in pair(height, width)]
    middle = tf.function(lambda x0, x1: model({"x0": x0, "x1": x1, "time": tf.fill([1, 1], 0.5)})["image"])

    def between(x0: Any, x1: Any, depth: int) -> None:
        image = middle(x0, x1)
        if depth > 1:
            between(x0, image, depth - 1)
            between(image, x1, depth - 1)
        image.numpy()

    def report() -> dict:
        on_gpu = tf.config.list_physical_devices("GPU")
        used = tf.config.experimental.get_memory_info("GPU:0")["peak"] / 2**30 if on_gpu else peak()
        return {"peak": used, "mean": float(tf.reduce_mean(middle(*frames)))}

    serve(lambda: between(*frames, times), report)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
