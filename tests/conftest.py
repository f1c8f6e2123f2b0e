"""Every test sees two CPU devices, checked shapes (jaxtyping + beartype) and warnings as errors."""

import os

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
os.environ["JAX_PLATFORMS"] = "cpu"
