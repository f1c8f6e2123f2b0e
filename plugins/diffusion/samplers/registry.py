"""Samplers by name, and by the class that a diffusers `scheduler_config.json` names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plugins.diffusion.samplers.ddim import ddim, ddim_inversion
from plugins.diffusion.samplers.ddpm import ddpm
from plugins.diffusion.samplers.dpm import dpm
from plugins.diffusion.samplers.euler import euler, euler_ancestral, flow_euler, heun, lms
from plugins.diffusion.samplers.lcm import lcm
from plugins.diffusion.samplers.loop import Sampler
from plugins.diffusion.samplers.plms import plms
from plugins.diffusion.samplers.schedules import FlowSchedule, Schedule
from plugins.diffusion.samplers.unipc import unipc

SAMPLERS: dict[str, Sampler] = {
    "ddim": ddim,
    "ddim_inversion": ddim_inversion,
    "ddpm": ddpm,
    "plms": plms,
    "euler": euler,
    "euler_karras": euler.with_options(sigma_spacing="karras"),
    "euler_ancestral": euler_ancestral,
    "heun": heun,
    "lms": lms,
    "dpm": dpm,
    "dpm_karras": dpm.with_options(sigma_spacing="karras"),
    "dpm_sde": dpm.with_options(sde=True),
    "dpm_sde_karras": dpm.with_options(sde=True, sigma_spacing="karras"),
    "dpm_3m": dpm.with_options(order=3),
    "unipc": unipc,
    "lcm": lcm,
    "flow_euler": flow_euler,
}
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


def by_name(name: str) -> Sampler:
    """The sampler called `name`. Raises ValueError with all names for another."""
    if name not in SAMPLERS:
        raise ValueError(f"no sampler is called {name!r}; choose one of {', '.join(SAMPLERS)}")
    return SAMPLERS[name]


def from_json(mapping: Mapping[str, Any]) -> tuple[Sampler, Schedule | FlowSchedule]:
    """The sampler with its options, and the schedule, of a diffusers `scheduler_config.json`.

    Raises ValueError for a class or a value that is not built here.
    """
    name = mapping.get("_class_name")
    if name not in CLASSES:
        raise ValueError(f"scheduler class {name!r} is not supported; choose one of {', '.join(CLASSES)}")
    sampler = CLASSES[name]
    schedule = sampler.runs_on.from_json(mapping)
    return sampler.with_options(**_options(name, mapping)), schedule


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
