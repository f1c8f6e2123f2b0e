"""What a program does once at its start, so that JAX runs well on the machine at hand.

Libraries should leave this to programs: `film`, `train.py`, `eval.py` and the benchmarks call `setup`.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from pathlib import Path

import jax

MEGABYTE = 1 << 20
LONG_COMPILATION = 1.0  # seconds; small ones leave little, and trimming takes the activations' memory too
# glibc's mallopt parameters (malloc.h)
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -2, -3, -8


def setup() -> None:
    """Keeps freed memory for the next call (CPU), but not the compiler's, and compiled programs for the next start."""
    keep_freed_memory()
    return_compilers_memory()
    cache_compiled_programs()


def keep_freed_memory(most: int = 1024 * MEGABYTE) -> None:
    """Stops glibc from handing big buffers back to the kernel after each call.

    Every activation of a convolution network is such a buffer; a 512-pixel pair of the full FILM causes some 640,000
    page faults and two seconds of kernel time without this. No effect on other C libraries.
    """
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt"):
        return
    limit = min(most, 2**31 - 1)
    for parameter, value in (
        (M_ARENA_MAX, 1),
        (M_MMAP_THRESHOLD, limit),
        (M_TRIM_THRESHOLD, limit),
        (M_TOP_PAD, 64 * MEGABYTE),
    ):
        libc.mallopt(parameter, value)


@functools.cache
def return_compilers_memory() -> None:
    """From here on, hands the kernel what a long compilation has freed, as soon as it is over.

    A UNet of Stable Diffusion leaves 200 MB in pieces too small for an activation. No effect on other C libraries.
    """
    if sys.platform.startswith("linux") and hasattr(ctypes.CDLL(None), "malloc_trim"):
        jax.monitoring.register_event_duration_secs_listener(_trim_after_compiling)


def _trim_after_compiling(event: str, duration_secs: float, **_: str | int) -> None:
    if event == "/jax/core/compile/backend_compile_duration" and duration_secs > LONG_COMPILATION:
        ctypes.CDLL(None).malloc_trim(0)


def cache_compiled_programs() -> None:
    """Persistent compilation cache in the user's cache folder, unless JAX was told another one."""
    if getattr(jax.config, "jax_compilation_cache_dir", None):
        return
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    jax.config.update("jax_compilation_cache_dir", str(Path(base) / "film-plugins-reveal" / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
