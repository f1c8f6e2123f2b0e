"""Diffusers' `scheduler_config.json`: one file that names a sampler and a noise schedule together.

`from_json` reads it, `to_json` writes it. A missing key means the default of the class that wrote the file: older files
leave out many. A key that turns on something that is not built here is refused; keys that nobody reads are ignored.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from plugins.diffusion.samplers.ddim import ddim, ddim_inversion
from plugins.diffusion.samplers.ddpm import ddpm
from plugins.diffusion.samplers.dpm import dpm
from plugins.diffusion.samplers.euler import euler, euler_ancestral, flow_euler, heun, lms
from plugins.diffusion.samplers.lcm import lcm
from plugins.diffusion.samplers.plms import plms
from plugins.diffusion.samplers.sampler import Sampler
from plugins.diffusion.samplers.schedules import FlowSchedule, Schedule
from plugins.diffusion.samplers.unipc import unipc

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


def read_schedule(mapping: Mapping[str, Any]) -> Schedule | FlowSchedule:
    """The noise schedule alone. Raises ValueError for a value that asks for something else than is built here."""
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
    if "shift" in fields:
        return FlowSchedule(**fields)
    return Schedule(**fields, sigma_spacing=spacing_of_sigmas(mapping))


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


CLASSES: dict[str, Sampler] = {
    "DDIMScheduler": ddim,
    "DDIMInverseScheduler": ddim_inversion,
    "DDPMScheduler": ddpm,
    "PNDMScheduler": plms,
    "EulerDiscreteScheduler": euler,
    "EulerAncestralDiscreteScheduler": euler_ancestral,
    "HeunDiscreteScheduler": heun,
    "LMSDiscreteScheduler": lms,
    "DPMSolverMultistepScheduler": dpm,
    "UniPCMultistepScheduler": unipc,
    "LCMScheduler": lcm,
    "FlowMatchEulerDiscreteScheduler": flow_euler,
}

# Per class: key of the file -> (our option, what each value means; None: the value itself). Other values are refused.
OPTIONS: dict[str, dict[str, tuple[str | None, dict[Any, Any] | None]]] = {
    "DDPMScheduler": {
        "variance_type": (
            "variance",
            {"fixed_small": "fixed_small", "fixed_small_log": "fixed_small", "fixed_large": "fixed_large"},
        )
    },
    "DPMSolverMultistepScheduler": {
        "solver_order": ("order", None),
        "algorithm_type": ("sde", {"dpmsolver++": False, "sde-dpmsolver++": True}),
        "solver_type": ("expansion", {"midpoint": "midpoint", "heun": "heun"}),
        "lower_order_final": ("lower_order_final", {True: True, False: False}),
        "euler_at_final": ("euler_at_final", {True: True, False: False}),
        "variance_type": (None, {None: None}),
    },
    "UniPCMultistepScheduler": {
        "solver_order": ("order", None),
        "solver_type": ("variant", {"bh1": "bh1", "bh2": "bh2"}),
        "lower_order_final": ("lower_order_final", {True: True, False: False}),
        "disable_corrector": (None, {(): None}),
    },
    "LCMScheduler": {
        "original_inference_steps": ("original_steps", None),
        "timestep_scaling": ("timestep_scaling", None),
    },
}


def from_json(mapping: Mapping[str, Any]) -> tuple[Sampler, Schedule | FlowSchedule]:
    """The sampler with its options, and the schedule, of a diffusers `scheduler_config.json`.

    Raises ValueError for a class or a value that is not built here.
    """
    name = mapping.get("_class_name")
    if name not in CLASSES:
        raise ValueError(f"scheduler class {name!r} is not supported; choose one of {', '.join(CLASSES)}")
    sampler = CLASSES[name]
    return sampler.with_options(**_options(name, mapping)), read_schedule(mapping)


def _options(name: str, mapping: Mapping[str, Any]) -> dict[str, Any]:
    chosen = {}
    for key, (option, meanings) in OPTIONS.get(name, {}).items():
        if key not in mapping:
            continue
        value = tuple(mapping[key]) if isinstance(mapping[key], list) else mapping[key]
        if meanings is not None and value not in meanings:
            known = ", ".join(repr(each) for each in meanings)
            raise ValueError(f"{name}: {key}={mapping[key]!r} is not supported; choose one of {known}")
        if meanings is None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise ValueError(f"{name}: {key}={mapping[key]!r} has to be a number")
        if option is not None:
            chosen[option] = value if meanings is None else meanings[value]
    return chosen


RESPACED = {"karras": "use_karras_sigmas", "exponential": "use_exponential_sigmas"}


def to_json(sampler: Sampler, schedule: Schedule | FlowSchedule) -> dict[str, Any]:
    """The inverse of `from_json`. Raises ValueError for an option that such a file cannot hold."""
    name = next((name for name, known in CLASSES.items() if known.name == sampler.name), None)
    if name is None:
        raise ValueError(f"sampler {sampler.name} has no class in diffusers; choose one of {', '.join(CLASSES)}")
    fields = {key: value for key, value in dataclasses.asdict(schedule).items() if value is not None}
    chosen = dict(sampler.options)
    spacing = chosen.pop("sigma_spacing", None) or fields.pop("sigma_spacing", "timesteps")
    fields.pop("sigma_spacing", None)
    respaced = {RESPACED[spacing]: True} if spacing in RESPACED else {}
    written = {"_class_name": name, **fields, **respaced, **_options_of(name, chosen)}
    return {key: list(value) if isinstance(value, tuple) else value for key, value in written.items()}


def _options_of(name: str, chosen: dict[str, Any]) -> dict[str, Any]:
    """The sampler's options in the words of its class."""
    words = {}
    for key, (option, meanings) in OPTIONS.get(name, {}).items():
        if option in chosen:
            value = chosen.pop(option)
            theirs = [word for word, ours in (meanings or {value: value}).items() if ours == value]
            words[key] = theirs[0]
    if chosen:
        option, value = next(iter(chosen.items()))
        raise ValueError(f"{name} has no key for {option}={value!r}; leave the option out, and give it to the calls")
    return words
