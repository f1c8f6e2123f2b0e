"""Every test sees two CPU devices, checked shapes (jaxtyping + beartype) and warnings as errors (pyproject.toml).

Set through the environment, before JAX is imported, so that programs which a test starts see the same.
"""

import os
from pathlib import Path

TWO_DEVICES = "--xla_force_host_platform_device_count=2"
ROOT = Path(__file__).parents[1]

if TWO_DEVICES not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {TWO_DEVICES}".strip()
os.environ["JAX_PLATFORMS"] = "cpu"
# Compiled programs are kept for the next run. One folder per worker: JAX 0.10 does not write entries atomically.
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(ROOT / ".cache" / "jax" / os.environ.get("PYTEST_XDIST_WORKER", "single"))
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.2"
