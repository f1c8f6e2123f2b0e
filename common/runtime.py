"""JAX and memory settings that a program, not a library, makes once, at its start (`setup`)."""

import ctypes
import functools
import gc
import sys

import jax

from common.io.files import cache_folder

MEGABYTE = 1 << 20
LONG_COMPILATION = 1.0  # seconds; short ones leave little, and trimming also takes memory of activations
# glibc's mallopt parameters (malloc.h)
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -2, -3, -8


def setup(most_kept: int = 1024 * MEGABYTE) -> None:
    """Keeps freed buffers of up to `most_kept` bytes for the next call (CPU) but those of the compiler, and caches
    compiled programs in the user's cache folder, unless JAX has one."""
    keep_freed_memory(most_kept)
    return_compilers_memory()
    if not getattr(jax.config, "jax_compilation_cache_dir", None):
        jax.config.update("jax_compilation_cache_dir", str(cache_folder() / "xla"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def keep_freed_memory(most: int = 1024 * MEGABYTE) -> None:
    """Stops glibc from returning big buffers, such as activations, to the kernel after each call: for a 512-pixel pair
    the full FILM would cause some 640,000 page faults and two seconds of kernel time."""
    if libc := _glibc():
        libc.mallopt(M_ARENA_MAX, 1)
        libc.mallopt(M_MMAP_THRESHOLD, most)
        libc.mallopt(M_TRIM_THRESHOLD, most)
        libc.mallopt(M_TOP_PAD, min(64 * MEGABYTE, most))


@functools.cache
def return_compilers_memory() -> None:
    """Returns the memory that a long compilation has freed to the kernel, as soon as it is over (glibc). A UNet of
    Stable Diffusion leaves 200 MB in pieces too small for an activation."""
    if _glibc():
        jax.monitoring.register_event_duration_secs_listener(_trim_after_compiling)


def _trim_after_compiling(event: str, duration_secs: float, **_: str | int) -> None:
    if event == "/jax/core/compile/backend_compile_duration" and duration_secs > LONG_COMPILATION:
        ctypes.CDLL(None).malloc_trim(0)


def return_freed_memory() -> None:
    """Collects garbage and returns what is free to the kernel (glibc)."""
    gc.collect()
    if libc := _glibc():
        libc.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    """The C library if it is glibc, whose `mallopt` and `malloc_trim` others lack."""
    libc = ctypes.CDLL(None) if sys.platform.startswith("linux") else None
    return libc if hasattr(libc, "malloc_trim") else None
