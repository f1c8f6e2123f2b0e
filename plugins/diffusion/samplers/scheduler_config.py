"""Reads diffusers' `scheduler_config.json`: a class name, and keys of which older files leave out many.

Such a file names a sampler and a noise schedule together. `schedule_fields` takes the schedule's part; the sampler's
is read by `samplers/registry.py`. A missing key means the default of the class that wrote the file. A key that turns on
something that is not built here is refused; keys that nobody reads are ignored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

# What diffusers' classes assume; the second table holds where a class differs.
DEFAULTS: dict[str, Any] = {
    "num_train_timesteps": 1000,
    "beta_start": 0.0001,
    "beta_end": 0.02,
    "beta_schedule": "linear",
    "trained_betas": None,
    "rescale_betas_zero_snr": False,
    "prediction_type": "epsilon",
    "timestep_spacing": None,
    "steps_offset": 0,
    "set_alpha_to_one": True,
    "clip_sample": False,
    "clip_sample_range": 1.0,
    "thresholding": False,
    "dynamic_thresholding_ratio": 0.995,
    "sample_max_value": 1.0,
    "sigma_min": None,
    "sigma_max": None,
    "final_sigmas_type": "zero",
}
CLASS_DEFAULTS: dict[str, dict[str, Any]] = {
    "DDIMScheduler": {"clip_sample": True},
    "DDIMInverseScheduler": {"clip_sample": True},
    "DDPMScheduler": {"clip_sample": True},
    "PNDMScheduler": {"set_alpha_to_one": False},
    "HeunDiscreteScheduler": {"beta_start": 0.00085, "beta_end": 0.012},
    "LCMScheduler": {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"},
}
FLOW_CLASS = "FlowMatchEulerDiscreteScheduler"

# Keys with the values that mean what is built here.
SUPPORTED: dict[str, tuple[Any, ...]] = {
    "use_beta_sigmas": (False, None),
    "use_flow_sigmas": (False, None),
    "use_lu_lambdas": (False, None),
    "use_dynamic_shifting": (False, None),
    "invert_sigmas": (False, None),
    "stochastic_sampling": (False, None),
    "shift_terminal": (None,),
    "interpolation_type": ("linear",),
    "timestep_type": ("discrete",),
    "lambda_min_clipped": (-math.inf, "-inf", None),
    "skip_prk_steps": (True,),
    "predict_x0": (True,),
    "solver_p": (None,),
}


def schedule_fields(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `Schedule`, or of `FlowSchedule` for a flow-matching class. Raises ValueError as the module."""
    if not isinstance(mapping, Mapping):
        raise ValueError(f"a scheduler config is a JSON object, not {type(mapping).__name__}")
    refuse_unsupported(mapping)
    if mapping.get("_class_name") == FLOW_CLASS:
        if spacing_of_sigmas(mapping) != "timesteps":
            raise ValueError(f"{FLOW_CLASS} takes its noise levels from shift only; set use_karras_sigmas to false")
        fields = {"num_train_timesteps": 1000, "shift": 1.0}
    else:
        fields = DEFAULTS | CLASS_DEFAULTS.get(mapping.get("_class_name", ""), {})
    given = {key: _typed(key, mapping[key], default) for key, default in fields.items() if key in mapping}
    fields = fields | given
    return fields if "shift" in fields else fields | {"sigma_spacing": spacing_of_sigmas(mapping)}


def spacing_of_sigmas(mapping: Mapping[str, Any]) -> str:
    """ "timesteps", "karras" or "exponential". Raises ValueError if the file asks for the last two at once."""
    asked = [name for name in ("karras", "exponential") if mapping.get(f"use_{name}_sigmas")]
    if len(asked) > 1:
        raise ValueError("use_karras_sigmas and use_exponential_sigmas are both true; keep one")
    return asked[0] if asked else "timesteps"


def refuse_unsupported(mapping: Mapping[str, Any]) -> None:
    """Raises ValueError for the first key of SUPPORTED with another value."""
    for key, allowed in SUPPORTED.items():
        if key in mapping and mapping[key] not in allowed:
            raise ValueError(f"scheduler config: {key}={mapping[key]!r} is not supported; only {allowed[0]!r} is")


def _typed(key: str, value: Any, default: Any) -> Any:
    """`value`, of the default's type: JSON writes 1 for 1.0."""
    if default is None or value is None:
        return _optional(key, value, default)
    kind = type(default)
    fits = isinstance(value, (int, float) if kind is float else kind) and (kind is bool) == isinstance(value, bool)
    if not fits:
        raise ValueError(f"scheduler config: {key}={value!r} has to be of type {kind.__name__}")
    return kind(value)


def _optional(key: str, value: Any, default: Any) -> Any:
    if value is None:
        return default
    if key == "trained_betas" and isinstance(value, list | tuple):
        return tuple(_typed(key, beta, 0.0) for beta in value)
    return value if key == "timestep_spacing" else _typed(key, value, 0.0)
