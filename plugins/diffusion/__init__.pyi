from . import compiled, generation_config, io, networks, pipeline, request, samplers, steering, training
from .generation_config import GenerationConfig
from .io.base import read_base
from .io.components import load_text_encoder, load_tokenizer, load_unet, load_vae, save_component
from .io.lora import Lora, merge
from .io.tokenizer import Tokenizer
from .networks.text_encoder import TextConfig, TextEncoder, TextStates
from .networks.tiny_vae import AutoencoderTiny, TinyVAEConfig
from .networks.unet import UNet, UNetConfig
from .networks.vae import AutoencoderKL, Posterior, VAEConfig
from .pipeline import Pipeline, load

__all__ = [
    "AutoencoderKL",
    "AutoencoderTiny",
    "GenerationConfig",
    "Lora",
    "Pipeline",
    "Posterior",
    "TextConfig",
    "TextEncoder",
]
__all__ += [
    "TextStates",
    "TinyVAEConfig",
    "Tokenizer",
    "UNet",
    "UNetConfig",
    "VAEConfig",
    "compiled",
    "generation_config",
]
__all__ += ["io", "load", "load_text_encoder", "load_tokenizer", "load_unet", "load_vae", "merge", "networks"]
__all__ += ["pipeline", "read_base", "request", "samplers", "save_component", "steering", "training"]
