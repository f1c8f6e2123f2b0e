"""Any function of JAX as a LiteRT file (TensorFlow Lite's format, `.tflite`; extra `litert`), for phones and boards.

    path.write_bytes(litert(program, "int8"))
    run = open_litert(path, threads=2);   outputs = run(picture=images)           # {name: array}

`jax2tf` wraps the program's StableHLO as one operation of TensorFlow, whose converter lowers it to LiteRT's operators.
Only exporting takes TensorFlow. Inputs and outputs keep their names; all shapes are fixed, the number of rows too.

| weights | stored as | arithmetic |
| --- | --- | --- |
| float32 | they are | float32 |
| float16 | half precision, all other constants too | float32 on a CPU, half on a GPU |
| int8 | 8 bits and a scale per output channel; small ones float32 | integer products; maps are rounded while it runs |

Programs are lowered for an accelerator, so that a convolution in as many groups as channels is an operator of its own.
"""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from common.io.files import require_file
from plugins.formats.program import Program, Weights

LOWERED_FOR = "tpu"  # see `lax.platform_dependent` in `plugins/control/mediapipe.py`
INSTALL = 'pip install "film-plugins-reveal[litert]"'


def litert(program: Program, weights: Weights = "float32", rows: int = 1) -> bytes:
    """The file, for that many rows. Raises ImportError without TensorFlow."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        import tensorflow as tf
        from jax.experimental import jax2tf
    except ImportError as error:
        found = f"TensorFlow cannot be imported ({error})"
        raise ImportError(f"LiteRT files are written by TensorFlow: {found}; {INSTALL}") from error
    abstract = program.abstract(rows)
    lowered = jax2tf.convert(program.by_position, with_gradient=False, native_serialization_platforms=(LOWERED_FOR,))
    signature = [tf.TensorSpec(value.shape, value.dtype, name=name) for name, value in abstract.items()]

    def call(*values: Any) -> dict[str, Any]:
        return dict(zip(program.outputs, lowered(*values), strict=True))

    module: Any = tf.Module()
    module.call = tf.function(call, input_signature=signature, autograph=False)
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(module, folder, signatures=module.call.get_concrete_function())
        converter = tf.lite.TFLiteConverter.from_saved_model(folder)
        if weights != "float32":
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        if weights == "float16":
            converter.target_spec.supported_types = [tf.float16]
        return bytes(converter.convert())


def open_litert(path: str | Path, threads: int = 1) -> Callable[..., dict[str, np.ndarray]]:
    """The program of a LiteRT file, a function of its inputs by name. Raises FileNotFoundError, ImportError,
    ValueError."""
    require_file(path)
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ImportError as error:
        raise ImportError(f"{path} is run by ai-edge-litert, which cannot be imported ({error}); {INSTALL}") from error
    try:
        return Interpreter(str(path), num_threads=threads).get_signature_runner()
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"{path} is no LiteRT file ({' '.join(str(error).split())[:120]}); export it again") from error
