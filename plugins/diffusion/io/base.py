"""A base without its weights: three architectures, a tokenizer, a noise schedule and a sampler.

`Base` is small and read from headers (`folder.py`), so requests are checked and `plugins info` answers before gigabytes
are read. Its components have to fit one another:

    tokenizer --ids--> text encoder --states--> UNet --latents--> VAE --> image

A base without a VAE works on pixels: its "latents" are images in [-1, 1].
"""

import dataclasses

from plugins.diffusion.io.tokenizer import Tokenizer
from plugins.diffusion.networks.text_encoder import TextConfig
from plugins.diffusion.networks.unet_config import UNetConfig
from plugins.diffusion.networks.vae import VAEConfig
from plugins.diffusion.samplers import Sampler
from plugins.diffusion.samplers.schedules import FlowSchedule, Schedule

RGB = 3


@dataclasses.dataclass(frozen=True, eq=False)
class Base:
    """`schedule` is the UNet's, `sampler` the default of calls. Raises ValueError for components that do not fit."""

    unet: UNetConfig
    vae: VAEConfig | None
    text_encoder: TextConfig
    tokenizer: Tokenizer
    schedule: Schedule | FlowSchedule
    sampler: Sampler

    def __post_init__(self):
        unet, text, channels = self.unet, self.text_encoder, self.channels
        if unet.in_channels != channels or unet.out_channels != channels:
            found = f"{unet.in_channels} channels in, {unet.out_channels} out"
            known = " (9 in is an inpainting network)" if unet.in_channels == 9 else ""
            raise ValueError(f"the unet has {found}{known}, the latents {channels}; a text-to-image unet is needed")
        width, largest = unet.cross_attention_dim, max(self.tokenizer.tokens)
        if width != text.hidden_size:
            found = f"the unet reads text states of {width}, the text_encoder's have {text.hidden_size}"
            raise ValueError(f"{found}; take both from one base")
        if largest >= text.vocab_size:
            found = f"the tokenizer's ids go up to {largest}, the text_encoder has {text.vocab_size} tokens"
            raise ValueError(f"{found}; take both from one base")
        if self.vae is not None and not self.vae.in_channels == self.vae.out_channels == RGB:
            raise ValueError(f"the vae works on {self.vae.in_channels} channels; only RGB is supported")

    @property
    def channels(self) -> int:
        """Channels of the latents, or without a VAE of the pixels."""
        return RGB if self.vae is None else self.vae.latent_channels

    @property
    def unit(self) -> int:
        """Image pixels per latent pixel and side: an image's sides are multiples of it."""
        return 1 if self.vae is None else self.vae.reduction

    @property
    def side(self) -> int:
        """Side of the training images, in pixels."""
        return self.unet.sample_size * self.unit

    @property
    def length(self) -> int:
        """Tokens of a prompt, start and end included."""
        return self.text_encoder.max_position_embeddings
