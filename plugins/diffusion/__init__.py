"""The base model that plugins attach to: Stable Diffusion 1.x and 2.x in JAX.

Names are imported when they are first used (PEP 562), as in `film`: the command answers without waiting for JAX.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.lazy import lazy

if TYPE_CHECKING:
    from plugins.diffusion.folder import load, read_base
    from plugins.diffusion.loading import load_text_encoder, load_tokenizer, load_unet, load_vae
    from plugins.diffusion.lora import Lora, merge
    from plugins.diffusion.pipeline import Pipeline
    from plugins.diffusion.saving import save_component
    from plugins.diffusion.text import TextConfig, TextEncoder, TextStates
    from plugins.diffusion.tokenizer import Tokenizer
    from plugins.diffusion.unet import UNet, UNetConfig
    from plugins.diffusion.vae import AutoencoderKL, Posterior, VAEConfig

__all__ = [
    "AutoencoderKL",
    "Lora",
    "Pipeline",
    "Posterior",
    "TextConfig",
    "TextEncoder",
    "TextStates",
    "Tokenizer",
    "UNet",
    "UNetConfig",
    "VAEConfig",
    "load",
    "load_text_encoder",
    "load_tokenizer",
    "load_unet",
    "load_vae",
    "merge",
    "read_base",
    "save_component",
]

_HOMES = {
    "AutoencoderKL": "vae",
    "Lora": "lora",
    "Pipeline": "pipeline",
    "Posterior": "vae",
    "TextConfig": "text",
    "TextEncoder": "text",
    "TextStates": "text",
    "Tokenizer": "tokenizer",
    "UNet": "unet",
    "UNetConfig": "unet",
    "VAEConfig": "vae",
    "load": "folder",
    "load_text_encoder": "loading",
    "load_tokenizer": "loading",
    "load_unet": "loading",
    "load_vae": "loading",
    "merge": "lora",
    "read_base": "folder",
    "save_component": "saving",
}

__getattr__, __dir__ = lazy(__name__, __all__, _HOMES)
