"""Samplers: from noise to an image by repeated calls of a diffusion model.

    sampler = samplers.by_name("dpm_karras")                     # or samplers.ddim, samplers.euler, ...
    noise = samplers.starting_noise(jax.random.key(0), (4, 64, 64, 4))
    x = sampler.start(noise, schedule, steps=25)
    latents = sampler(model, x, schedule, steps=25)              # model(x, step) -> prediction

One file per family, to read beside its papers and imported on first use; `sampler.py` is their common frame. A new
sampler is a plan and an update, a name in SAMPLERS and, if diffusers has it, a line in `scheduler_config.CLASSES`.
"""

import importlib

from plugins.diffusion.samplers.sampler import Plan, Sampler, Step, image_keys, keys_of_seeds, starting_noise, steps_of
from plugins.diffusion.samplers.schedules import check_choice

__all__ = ["SAMPLERS", "Plan", "Sampler", "Step", "by_name"]
__all__ += ["image_keys", "keys_of_seeds", "starting_noise", "steps_of"]

SAMPLERS: dict[str, str] = {  # name -> module of this package
    **dict.fromkeys(("ddim", "ddim_inversion", "ddpm", "plms", "lcm"), "discrete"),
    **dict.fromkeys(("euler", "euler_karras", "euler_ancestral", "heun", "lms", "flow_euler"), "continuous"),
    **dict.fromkeys(("dpm", "dpm_karras", "dpm_sde", "dpm_sde_karras", "dpm_3m", "unipc"), "solvers"),
}


def by_name(name: str) -> Sampler:
    """The sampler called `name`. Raises ValueError with all names for another."""
    check_choice("sampler", name, tuple(SAMPLERS))
    return getattr(importlib.import_module(f"{__name__}.{SAMPLERS[name]}"), name)


def __getattr__(name: str) -> Sampler:
    if name not in SAMPLERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return by_name(name)
