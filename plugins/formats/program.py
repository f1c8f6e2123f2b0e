"""A function of JAX with named inputs and outputs, and its StableHLO file.

    program = Program(network.encode, {"picture": Input((64, 64, 3))}, ("feature_0", "feature_1"))
    stablehlo(program, rows=1)          # this module;   onnx_graph.onnx(program), litert.litert(program): the others

A `Program` is what all three formats are made from. Its function takes its inputs by name and closes over its weights,
which become constants of the file. The number of rows of its batched inputs is free in StableHLO and ONNX, fixed in
LiteRT. Images are `b h w c` here; ONNX, whose runtimes have kernels for channels first, gets them as `b c h w`. The
StableHLO file is `jax.export`'s (the portable module in `.mlir_module_serialized`) with its shapes and platforms.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp

from common.io.files import require_file

PLATFORMS = ("cpu", "cuda", "tpu")
Weights = Literal["float32", "float16", "int8"]
ROWS = "b"  # the batch's name in files


@dataclasses.dataclass(frozen=True)
class Input:
    """Shape and type of an input; `batched`: the number of rows comes before the shape."""

    shape: tuple[int, ...]
    dtype: Any = jnp.float32
    batched: bool = True

    def abstract(self, rows: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((rows, *self.shape) if self.batched else self.shape, self.dtype)


@dataclasses.dataclass(frozen=True)
class Program:
    """`function(**inputs)` returns a tuple, an array for each name of `outputs`."""

    function: Callable[..., tuple[jax.Array, ...]]
    inputs: Mapping[str, Input]
    outputs: Sequence[str]
    about: str = ""

    def by_position(self, *values: jax.Array) -> Any:
        return self.function(**dict(zip(self.inputs, values, strict=True)))

    def abstract(self, rows: int | None) -> dict[str, jax.ShapeDtypeStruct]:
        """The inputs for that many rows; None: any number."""
        free = jax.export.symbolic_shape(ROWS)[0] if rows is None else rows
        return {name: value.abstract(free) for name, value in self.inputs.items()}


def stablehlo(program: Program, rows: int | None = None, platforms: Sequence[str] = PLATFORMS) -> bytes:
    """The file, for that many rows (None: any). `platforms` are some of cpu, cuda, rocm, tpu. With several, the
    program's first argument is the index of the one it runs on, which JAX fills in; other readers take a single one."""
    export = jax.export.export(jax.jit(program.by_position), platforms=tuple(platforms))
    return bytes(export(*program.abstract(rows).values()).serialize())


def read_stablehlo(path: str | Path) -> Callable[..., tuple[jax.Array, ...]]:
    """The program of a StableHLO file, a function of its inputs in order. Raises FileNotFoundError, ValueError."""
    data = require_file(path).read_bytes()
    try:
        return jax.jit(jax.export.deserialize(bytearray(data)).call)
    except Exception as error:  # the deserializer raises errors of many types
        raise ValueError(f"{path} is no file of `plugins export` ({type(error).__name__}); export it again") from error
