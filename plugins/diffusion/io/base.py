"""What a base is, apart from its weights: three architectures, a tokenizer, a noise schedule and a sampler.

`Base` is small and read in no time (`folder.py`), so requests are checked and `plugins info` answers before gigabytes
are touched. Its parts have to fit one another:

    tokenizer --numbers--> text encoder --states--> UNet --latents--> VAE --> picture

A base without a VAE works on pixels: its "latents" are pictures in [-1, 1].
"""

from __future__ import annotations

import dataclasses

from plugins.diffusion.io.tokenizer import Tokenizer
from plugins.diffusion.networks.text_encoder import TextConfig
from plugins.diffusion.networks.unet_config import UNetConfig
from plugins.diffusion.networks.vae_config import VAEConfig
from plugins.diffusion.samplers import Sampler
from plugins.diffusion.samplers.schedules import FlowSchedule, Schedule

RGB = 3


@dataclasses.dataclass(frozen=True, eq=False)
class Base:
    """Raises ValueError in one line for parts that do not fit.

    Attributes:
      unet, vae, text_encoder: architectures; no VAE: the UNet works on pixels.
      tokenizer: of the text encoder.
      schedule: what the UNet was trained on.
      sampler: used where no other is asked for.
    """

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
        if unet.cross_attention_dim != text.hidden_size:
            raise ValueError(
                f"the unet reads text states of {unet.cross_attention_dim}, the text_encoder gives {text.hidden_size};"
                " take both from one base"
            )
        if max(self.tokenizer.tokens) >= text.vocab_size:
            raise ValueError(
                f"the tokenizer gives numbers up to {max(self.tokenizer.tokens)}, the text_encoder knows"
                f" {text.vocab_size}; take both from one base"
            )
        if self.vae is not None and not self.vae.in_channels == self.vae.out_channels == RGB:
            raise ValueError(f"the vae works on {self.vae.in_channels} channels; only RGB pictures are made")

    @property
    def channels(self) -> int:
        """Of latents, or of pixels where there are none."""
        return RGB if self.vae is None else self.vae.latent_channels

    @property
    def unit(self) -> int:
        """Pixels per latent pixel and side: a picture's sides are multiples of it."""
        return 1 if self.vae is None else self.vae.reduction

    @property
    def side(self) -> int:
        """Of the pictures that it was trained on, in pixels."""
        return self.unet.sample_size * self.unit

    @property
    def length(self) -> int:
        """Tokens in a row, start and end included."""
        return self.text_encoder.max_position_embeddings
