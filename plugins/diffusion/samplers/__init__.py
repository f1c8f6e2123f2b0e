"""Samplers: from noise to a picture by asking a diffusion model again and again.

    sampler = samplers.by_name("dpm_karras")                     # or samplers.ddim, samplers.euler, ...
    noise = samplers.starting_noise(jax.random.key(0), (4, 64, 64, 4))
    x = sampler.start(noise, schedule, steps=25)
    latents = sampler(model, x, schedule, steps=25)              # model(x, step) -> prediction

One file per family, each with its paper; `loop.py` has what they share.
"""

from plugins.diffusion.samplers.ddim import ddim, ddim_inversion
from plugins.diffusion.samplers.ddpm import ddpm
from plugins.diffusion.samplers.dpm import dpm
from plugins.diffusion.samplers.draws import image_keys, keys_of_seeds, starting_noise
from plugins.diffusion.samplers.euler import euler, euler_ancestral, flow_euler, heun, lms
from plugins.diffusion.samplers.lcm import lcm
from plugins.diffusion.samplers.loop import Sampler
from plugins.diffusion.samplers.plan import Plan, Step
from plugins.diffusion.samplers.plms import plms
from plugins.diffusion.samplers.registry import SAMPLERS, by_name, from_json
from plugins.diffusion.samplers.unipc import unipc

__all__ = [
    "SAMPLERS",
    "Plan",
    "Sampler",
    "Step",
    "by_name",
    "ddim",
    "ddim_inversion",
    "ddpm",
    "dpm",
    "euler",
    "euler_ancestral",
    "flow_euler",
    "from_json",
    "heun",
    "image_keys",
    "keys_of_seeds",
    "lcm",
    "lms",
    "plms",
    "starting_noise",
    "unipc",
]
