"""Memory settings of a program."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from common import runtime

COMPILED = "/jax/core/compile/backend_compile_duration"


def test_only_a_long_compilation_gives_memory_back(monkeypatch):
    calls = []
    monkeypatch.setattr(runtime.ctypes, "CDLL", lambda name: SimpleNamespace(malloc_trim=calls.append))
    for event, seconds, trims in ((COMPILED, 0.1, 0), ("/jax/core/compile/jaxpr", 5.0, 0), (COMPILED, 5.0, 1)):
        runtime._trim_after_compiling(event, seconds, fun_name="f")
        assert calls == [0] * trims


PROGRAM = """
from common import runtime
runtime.LONG_COMPILATION = 0.0
trims = []
trim = runtime._trim_after_compiling
runtime._trim_after_compiling = lambda *args, **more: (trims.append(args[0]), trim(*args, **more))
runtime.setup()
runtime.setup()
import jax
jax.jit(lambda x: x * 2 + 1)(3.0)
print(trims.count("/jax/core/compile/backend_compile_duration"))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_each_compilation_trims_once(tmp_path):
    """By JAX's own event, under its present name; a second setup adds no second listener."""
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == ["1"]
