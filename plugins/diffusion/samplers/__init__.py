"""Samplers: from noise to an image by repeated calls of a diffusion model.

    sampler = samplers.by_name("dpm_karras")                     # or samplers.ddim, samplers.euler, ...
    noise = samplers.starting_noise(jax.random.key(0), (4, 64, 64, 4))
    x = sampler.start(noise, schedule, steps=25)
    latents = sampler(model, x, schedule, steps=25)              # model(x, step) -> prediction

One file per family, to read beside its paper; `sampler.py` is their common frame. A new sampler is a file with a plan
and an update, a line in SAMPLERS and, if diffusers has it, one in `scheduler_config.CLASSES`.
"""

from plugins.diffusion.samplers.ddim import ddim, ddim_inversion
from plugins.diffusion.samplers.ddpm import ddpm
from plugins.diffusion.samplers.dpm import dpm
from plugins.diffusion.samplers.euler import euler, euler_ancestral, flow_euler, heun, lms
from plugins.diffusion.samplers.lcm import lcm
from plugins.diffusion.samplers.plms import plms
from plugins.diffusion.samplers.sampler import Plan, Sampler, Step, image_keys, keys_of_seeds, starting_noise
from plugins.diffusion.samplers.scheduler_config import from_json, to_json
from plugins.diffusion.samplers.schedules import check_choice
from plugins.diffusion.samplers.unipc import unipc

__all__ = ["SAMPLERS", "Plan", "Sampler", "Step", "by_name", "ddim", "ddim_inversion", "ddpm", "dpm", "euler"]
__all__ += ["euler_ancestral", "flow_euler", "from_json", "heun", "image_keys", "keys_of_seeds", "lcm", "lms", "plms"]
__all__ += ["starting_noise", "to_json", "unipc"]

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


def by_name(name: str) -> Sampler:
    """The sampler called `name`. Raises ValueError with all names for another."""
    check_choice("sampler", name, tuple(SAMPLERS))
    return SAMPLERS[name]
