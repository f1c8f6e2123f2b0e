"""A sampler and its schedule -> the `scheduler_config.json` that `samplers.from_json` and diffusers read."""

from __future__ import annotations

import dataclasses
from typing import Any

from plugins.diffusion.samplers import Sampler
from plugins.diffusion.samplers.registry import CLASSES, OPTIONS
from plugins.diffusion.samplers.schedules import FlowSchedule, Schedule

RESPACED = {"karras": "use_karras_sigmas", "exponential": "use_exponential_sigmas"}


def scheduler_json(sampler: Sampler, schedule: Schedule | FlowSchedule) -> dict[str, Any]:
    """The inverse of `samplers.from_json`. Raises ValueError for an option that such a file cannot hold."""
    name = next((name for name, known in CLASSES.items() if known.name == sampler.name), None)
    if name is None:
        raise ValueError(f"sampler {sampler.name} has no class in diffusers; choose one of {', '.join(CLASSES)}")
    fields = {key: value for key, value in dataclasses.asdict(schedule).items() if value is not None}
    chosen = dict(sampler.options)
    spacing = chosen.pop("sigma_spacing", None) or fields.pop("sigma_spacing", "timesteps")
    fields.pop("sigma_spacing", None)
    respaced = {RESPACED[spacing]: True} if spacing in RESPACED else {}
    written = {"_class_name": name, **fields, **respaced, **_options(name, chosen)}
    return {key: list(value) if isinstance(value, tuple) else value for key, value in written.items()}


def _options(name: str, chosen: dict[str, Any]) -> dict[str, Any]:
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
