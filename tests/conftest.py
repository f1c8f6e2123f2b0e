"""Every test sees two CPU devices, checked shapes (jaxtyping + beartype) and warnings as errors (pyproject.toml).

Set through the environment, before JAX is imported, so that programs which a test starts see the same.
"""

import ctypes
import gc
import importlib.metadata
import os
import signal
import sys
from pathlib import Path

import pytest

TWO_DEVICES = "--xla_force_host_platform_device_count=2"
# Most tests compile for longer than they compute. Without XLA's fusion emitters, which go through MLIR, that takes a
# quarter of the time, and in one LLVM module instead of many a third less again; a version of XLA that does not know a
# flag ends the process.
SHORT_COMPILATION = "--xla_backend_optimization_level=0"
if importlib.metadata.version("jaxlib").startswith("0.10."):
    SHORT_COMPILATION += " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
ROOT = Path(__file__).parents[1]

if TWO_DEVICES not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {TWO_DEVICES}".strip()
os.environ["JAX_PLATFORMS"] = "cpu"
# Compiled programs are kept for the next run. One folder per worker: JAX 0.10 does not write entries atomically.
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(ROOT / ".cache" / "jax" / os.environ.get("PYTEST_XDIST_WORKER", "single"))
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"


def foreground() -> None:
    """Under nohup or in the background SIGHUP and SIGINT are ignored, and what a test starts would inherit that."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Quick and long tests' programs are compiled without LLVM's optimisations; the slow tests' as a user's are."""
    foreground()
    if "not slow" in config.option.markexpr and "optimization_level" not in os.environ["XLA_FLAGS"]:
        os.environ["XLA_FLAGS"] += f" {SHORT_COMPILATION}"


def pytest_collection_finish() -> None:
    """What all modules have imported stays: looking through it would make every collection take half a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def signals_of_a_foreground_program():
    """Each test begins with them, whatever the one before has left."""
    yield
    foreground()


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    """Memories and weights sync each file, and no test cuts the power; `tests/faults` checks what is synced."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(autouse=True, scope="module")
def compiled_functions_of_one_module():
    """A worker that kept the compiled functions of all modules would need several gigabytes."""
    yield
    if jax := sys.modules.get("jax"):
        jax.clear_caches()
        gc.collect()
        if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):  # glibc keeps what is freed
            trim(0)
