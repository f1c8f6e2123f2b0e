"""Diffusers' `scheduler_config.json`, a file that names a sampler and a noise schedule.

A missing key has the default of the class that wrote the file: older files leave out many. A key that asks for an
unsupported variant is refused; unknown keys are ignored.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from common.checked import check_fields
from plugins.diffusion.samplers import Sampler, by_name
from plugins.diffusion.samplers.schedules import FlowSchedule, Schedule, check_choice

# diffusers' class -> our sampler
CLASSES = {"DDIMScheduler": "ddim", "DDIMInverseScheduler": "ddim_inversion", "DDPMScheduler": "ddpm"}
CLASSES |= {"PNDMScheduler": "plms", "LCMScheduler": "lcm", "EulerDiscreteScheduler": "euler"}
CLASSES |= {"EulerAncestralDiscreteScheduler": "euler_ancestral", "HeunDiscreteScheduler": "heun"}
CLASSES |= {"LMSDiscreteScheduler": "lms", "DPMSolverMultistepScheduler": "dpm", "UniPCMultistepScheduler": "unipc"}
CLASSES |= {"FlowMatchEulerDiscreteScheduler": "flow_euler"}

# Keys of `Schedule` with the defaults of most classes, and by class the defaults that differ.
DEFAULTS = {field.name: field.default for field in dataclasses.fields(Schedule) if field.name != "sigma_spacing"}
DEFAULTS |= {"beta_start": 0.0001, "beta_end": 0.02, "beta_schedule": "linear"}
DEFAULTS |= {"steps_offset": 0, "set_alpha_to_one": True}
CLASS_DEFAULTS: dict[str, dict[str, Any]] = {
    **{name: {"clip_sample": True} for name in ("DDIMScheduler", "DDIMInverseScheduler", "DDPMScheduler")},
    "PNDMScheduler": {"set_alpha_to_one": False},
    "HeunDiscreteScheduler": {"beta_start": 0.00085, "beta_end": 0.012},
    "LCMScheduler": {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"},
}
# Other keys, with their supported values.
OFF = ("use_beta_sigmas", "use_flow_sigmas", "use_lu_lambdas", "use_dynamic_shifting", "invert_sigmas")
SUPPORTED: dict[str, tuple[Any, ...]] = dict.fromkeys((*OFF, "stochastic_sampling"), (False, None)) | {
    "shift_terminal": (None,),
    "interpolation_type": ("linear",),
    "timestep_type": ("discrete",),
    "lambda_min_clipped": (-math.inf, "-inf", None),
    "skip_prk_steps": (True,),
    "predict_x0": (True,),
    "solver_p": (None,),
}
# By class: defaults that are not supported. PNDM begins with Runge-Kutta steps, PLMS (all of Stable Diffusion's files)
# does not.
UNSUPPORTED_DEFAULTS = {"PNDMScheduler": {"skip_prk_steps": False}}
# By class: key of the file -> (our option, {its value: ours}); None: any number, taken as it is; no option: ignored.
BOOLS = {True: True, False: False}
VARIANCES = {"fixed_small": "fixed_small", "fixed_small_log": "fixed_small", "fixed_large": "fixed_large"}
OPTIONS: dict[str, dict[str, tuple[str | None, dict[Any, Any] | None]]] = {
    "DDPMScheduler": {"variance_type": ("variance", VARIANCES)},
    "DPMSolverMultistepScheduler": {
        "solver_order": ("order", None),
        "algorithm_type": ("sde", {"dpmsolver++": False, "sde-dpmsolver++": True}),
        "solver_type": ("expansion", {"midpoint": "midpoint", "heun": "heun"}),
        "lower_order_final": ("lower_order_final", BOOLS),
        "euler_at_final": ("euler_at_final", BOOLS),
        "variance_type": (None, {None: None}),
    },
    "UniPCMultistepScheduler": {
        "solver_order": ("order", None),
        "solver_type": ("variant", {"bh1": "bh1", "bh2": "bh2"}),
        "lower_order_final": ("lower_order_final", BOOLS),
        "disable_corrector": (None, {(): None}),
    },
    "LCMScheduler": {
        "original_inference_steps": ("original_steps", None),
        "timestep_scaling": ("timestep_scaling", None),
    },
}
RESPACED = {"karras": "use_karras_sigmas", "exponential": "use_exponential_sigmas"}


def from_json(mapping: Mapping[str, Any]) -> tuple[Sampler, Schedule | FlowSchedule]:
    """The sampler with its options, and the schedule. Raises ValueError for an unsupported class or value."""
    name = mapping.get("_class_name")
    if not isinstance(name, str) or name not in CLASSES:
        raise ValueError(f"scheduler class {name!r} is not supported; choose one of {', '.join(CLASSES)}")
    chosen = {}
    for key, (option, values) in OPTIONS.get(name, {}).items():
        if key not in mapping:
            continue
        value = tuple(mapping[key]) if isinstance(mapping[key], list) else mapping[key]
        if values is not None:
            check_choice(f"{name}: {key}", value, tuple(values))
        elif isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{name}: {key}={value!r} has to be a number")
        if option is not None:
            chosen[option] = value if values is None else values[value]
    return by_name(CLASSES[name]).with_options(**chosen), read_schedule(mapping)


def read_schedule(mapping: Mapping[str, Any]) -> Schedule | FlowSchedule:
    """The noise schedule alone. Raises ValueError for an unsupported value."""
    name = mapping.get("_class_name", "")
    for key, value in (UNSUPPORTED_DEFAULTS.get(name, {}) | dict(mapping)).items():
        if key in SUPPORTED and value not in SUPPORTED[key]:
            default = "" if key in mapping else f", {name}'s default,"
            rule = f"only {SUPPORTED[key][0]!r} is"
            raise ValueError(f"scheduler config: {key}={value!r}{default} is not supported; {rule}")
    spacings = [spacing for spacing, key in RESPACED.items() if mapping.get(key)]
    if len(spacings) > 1:
        raise ValueError("use_karras_sigmas and use_exponential_sigmas are both true; keep one")
    if name == "FlowMatchEulerDiscreteScheduler":
        if spacings:
            raise ValueError(f"{name} spaces its noise levels by shift only; set {RESPACED[spacings[0]]} to false")
        fields = _fields(mapping, {"num_train_timesteps": 1000, "shift": 1.0})
        check_fields(FlowSchedule, fields)
        return FlowSchedule(**fields)
    fields = _fields(mapping, DEFAULTS | CLASS_DEFAULTS.get(name, {}))
    fields["sigma_spacing"] = spacings[0] if spacings else "timesteps"
    check_fields(Schedule, fields)
    return Schedule(**fields)


def _fields(mapping: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults, replaced by what `mapping` holds."""
    return {key: default if mapping.get(key) is None else mapping[key] for key, default in defaults.items()}


def to_json(sampler: Sampler, schedule: Schedule | FlowSchedule) -> dict[str, Any]:
    """The inverse of `from_json`. Raises ValueError for an option that such a file cannot hold."""
    name = next((name for name, known in CLASSES.items() if known == sampler.name), None)
    if name is None:
        raise ValueError(f"sampler {sampler.name} has no class in diffusers; choose one of {', '.join(CLASSES)}")
    fields = {key: value for key, value in dataclasses.asdict(schedule).items() if value is not None}
    own, options = fields.pop("sigma_spacing", "timesteps"), dict(sampler.options)
    spacing = options.pop("sigma_spacing", None) or own
    written = {"_class_name": name, **fields, **({RESPACED[spacing]: True} if spacing in RESPACED else {})}
    written |= {key: SUPPORTED[key][0] for key in UNSUPPORTED_DEFAULTS.get(name, {})}
    for key, (option, values) in OPTIONS.get(name, {}).items():
        if option in options:
            value = options.pop(option)
            written[key] = value if values is None else next(theirs for theirs, ours in values.items() if ours == value)
    if options:
        option, value = next(iter(options.items()))
        raise ValueError(f"{name} has no key for {option}={value!r}; leave the option out, and give it to the calls")
    return {key: list(value) if isinstance(value, tuple) else value for key, value in written.items()}
