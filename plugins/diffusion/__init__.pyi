from . import compiled, generation_config, io, networks, pipeline, programs, request, samplers, steering, training
from .compiled import TextStates
from .generation_config import GenerationConfig
from .io.base import read_base
from .io.components import (
    TextConfig,
    TextEncoder,
    Tokenizer,
    load_text_encoder,
    load_tokenizer,
    load_unet,
    load_vae,
    save_component,
)
from .io.lora import Lora, merge
from .io.textual_inversion import TextualInversion
from .networks.tiny_vae import AutoencoderTiny, TinyVAEConfig
from .networks.unet import UNet, UNetConfig
from .networks.vae import AutoencoderKL, Posterior, VAEConfig
from .pipeline import Pipeline, load

__all__ = ["AutoencoderKL", "AutoencoderTiny", "GenerationConfig", "Lora", "Pipeline", "Posterior", "TextConfig"]
__all__ += ["TextEncoder", "TextStates", "TextualInversion", "TinyVAEConfig", "Tokenizer", "UNet", "UNetConfig"]
__all__ += [
    "VAEConfig",
    "compiled",
    "generation_config",
    "io",
    "load",
    "load_text_encoder",
    "load_tokenizer",
    "load_unet",
    "load_vae",
    "merge",
]
__all__ += [
    "networks",
    "pipeline",
    "programs",
    "read_base",
    "request",
    "samplers",
    "save_component",
    "steering",
    "training",
]
