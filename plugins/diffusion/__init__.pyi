# ruff: noqa: I001
# fmt: off
from . import compiled as compiled, generation_config as generation_config, io as io, networks as networks
from . import pipeline as pipeline, programs as programs, request as request, samplers as samplers
from . import steering as steering, training as training
from .compiled import TextStates as TextStates
from .generation_config import GenerationConfig as GenerationConfig
from .io.base import read_base as read_base
from .io.components import TextConfig as TextConfig, TextEncoder as TextEncoder, Tokenizer as Tokenizer
from .io.components import load_text_encoder as load_text_encoder, load_tokenizer as load_tokenizer
from .io.components import load_unet as load_unet, load_vae as load_vae, save_component as save_component
from .io.lora import Lora as Lora, merge as merge
from .io.textual_inversion import TextualInversion as TextualInversion
from .networks.tiny_vae import AutoencoderTiny as AutoencoderTiny, TinyVAEConfig as TinyVAEConfig
from .networks.unet import UNet as UNet, UNetConfig as UNetConfig
from .networks.vae import AutoencoderKL as AutoencoderKL, Posterior as Posterior, VAEConfig as VAEConfig
from .pipeline import Pipeline as Pipeline, load as load
