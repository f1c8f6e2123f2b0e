"""What training a base model optimises: given words and a noisy picture, say what the noise is.

    picture -> (autoencoder) -> x_0;  t, eps drawn;  x_t = alpha_t x_0 + sigma_t eps
    words   -> tokens -> text encoder -> states
    UNet(x_t, t, states) -> epsilon, v or x_0, compared with the truth

(Ho et al., 2006.11239; Rombach et al., 2112.10752.) Timesteps are spread evenly over each batch, from one random shift
(Kingma et al., 2107.00630, appendix I.1), which lowers the variance of the loss at no cost. Errors are weighted by
min-SNR (2303.09556). The empty prompt, which guidance needs, comes from the data: they drop a share of the captions.

Batches bring

    image                          b h w 3 in [0, 1]: encoded here by the frozen autoencoder, or used as pixels, or
    latents_mean, latents_std      b h w c, not scaled: the autoencoder's answer, computed once (`cache.py`)
    tokens                         b n: read by the text encoder, which learns too, or
    states                         b n d: a frozen text encoder's answer, computed once
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from common.io.files import atomic_output
from common.training.objectives import Scope, Term, report, total
from common.training.task import Batch, Context, Metrics, Params
from plugins.diffusion.io.components import load_text_encoder, load_tokenizer, load_unet, load_vae, save_component
from plugins.diffusion.networks.text_encoder import TextConfig, TextEncoder
from plugins.diffusion.networks.unet import UNet, UNetConfig
from plugins.diffusion.networks.vae import AutoencoderKL, Posterior
from plugins.diffusion.pipeline import Pipeline
from plugins.diffusion.samplers import by_name
from plugins.diffusion.samplers.predictions import add_noise, min_snr_weight, snr, training_target
from plugins.diffusion.samplers.schedules import Schedule
from plugins.diffusion.training.losses import Denoising
from plugins.diffusion.training.summaries import SampleSheet

DTYPES = ("float32", "bfloat16")
SAMPLER = by_name("dpm")  # of an exported base, where a caller names none


class Denoised(NamedTuple):
    """What the losses look at: the answer, the truth, the weight and the timestep of each example, float32."""

    prediction: Float[Array, "b h w c"]
    target: Float[Array, "b h w c"]
    weight: Float[Array, " b"]
    t: Int[Array, " b"]


@dataclasses.dataclass(frozen=True)
class DenoisingTask:
    """The training objective of a text-to-image base model.

    Attributes:
      unet: its shape.
      schedule: the noise, and what the UNet is asked for.
      text: shape of a text encoder that learns with the UNet; None: batches bring states.
      tokenizer: folder of the tokenizer that made the batches' tokens; it goes into the exported base.
      vae: a folder or file of the autoencoder, which stays as it is; None: the UNet works on pixels.
      losses: named terms that are added up; metrics: named terms that are only logged.
      min_snr: gamma of min-SNR weights; 0 weighs all timesteps alike.
      start_from: a base, as a folder or single file, whose UNet (and text encoder, where `text` is given) are trained
        further; None starts at random.
      dtype: what the networks compute in, float32 or bfloat16. Parameters and losses stay float32.
      remat: a gradient keeps only what enters each block of the UNet: less memory, more time.
      samples: what the run's picture shows; it needs `text` and `tokenizer`.
    """

    unet: UNetConfig
    schedule: Schedule = dataclasses.field(default_factory=Schedule)
    text: TextConfig | None = None
    tokenizer: str | None = None
    vae: str | None = None
    losses: Mapping[str, Term] = dataclasses.field(default_factory=lambda: {"denoising": Denoising()})
    metrics: Mapping[str, Term] = dataclasses.field(default_factory=dict)
    min_snr: float = 5.0
    start_from: str | None = None
    dtype: str = "float32"
    remat: bool = False
    samples: SampleSheet = dataclasses.field(default_factory=SampleSheet)

    def __post_init__(self):
        if not self.losses:
            raise ValueError(
                "task.losses is empty: list at least one, for instance plugins.diffusion.training.losses.Denoising"
            )
        if self.dtype not in DTYPES:
            raise ValueError(f"task.dtype is {self.dtype!r}: choose {' or '.join(DTYPES)}")
        if self.min_snr < 0:
            raise ValueError(f"task.min_snr is {self.min_snr}: it is not negative; 0 turns it off, the paper's is 5")
        if self.text is not None and self.text.hidden_size != self.unet.cross_attention_dim:
            raise ValueError(
                f"task.text gives states of {self.text.hidden_size}, task.unet reads {self.unet.cross_attention_dim}:"
                " make hidden_size and cross_attention_dim one number"
            )

    @functools.cached_property
    def graphs(self) -> dict[str, nnx.GraphDef]:
        """The networks that learn, without their numbers."""
        return {name: nnx.graphdef(nnx.eval_shape(make)) for name, make in self._makers().items()}

    @functools.cached_property
    def autoencoder(self) -> AutoencoderKL | None:
        """Read when it is first needed."""
        vae = None if self.vae is None else load_vae(self.vae)
        if vae is not None and vae.config.latent_channels != self.unet.in_channels:
            found, asked = vae.config.latent_channels, self.unet.in_channels
            raise ValueError(f"task.vae={self.vae} has {found} latent channels, task.unet takes {asked}: give another")
        return vae

    @functools.cached_property
    def pipeline(self) -> Pipeline | None:
        """The whole base, shapes in place of the parameters that learn; None without text encoder and tokenizer."""
        if self.text is None or self.tokenizer is None:
            return None
        networks = {name: nnx.eval_shape(make) for name, make in self._makers().items()}
        tokenizer = load_tokenizer(self.tokenizer)
        return Pipeline(**networks, vae=self.autoencoder, tokenizer=tokenizer, schedule=self.schedule, sampler=SAMPLER)

    def init(self, key: PRNGKeyArray) -> Params:
        keys = jax.random.split(key, len(self.graphs))
        made = {name: make(nnx.Rngs(k)) for (name, make), k in zip(self._makers().items(), keys, strict=True)}
        return {name: nnx.to_pure_dict(nnx.state(module)) for name, module in made.items()}

    def start(self) -> Params | None:
        if self.start_from is None:
            return None
        found: dict[str, Any] = {"unet": load_unet(self.start_from)}
        if self.text is not None:
            found["text_encoder"] = load_text_encoder(self.start_from)
        for name, asked in (("unet", self.unet), ("text_encoder", self.text)):
            if name in found and found[name].config != asked:
                raise ValueError(f"start_from={self.start_from} holds {found[name].config}, the task asks for {asked}")
        return {name: nnx.to_pure_dict(nnx.state(module)) for name, module in found.items()}

    def frozen(self) -> dict[str, Any]:
        return {} if self.autoencoder is None else {"vae": nnx.to_pure_dict(nnx.state(self.autoencoder))}

    def latents(self, batch: Batch, frozen: Mapping[str, Any], key: PRNGKeyArray) -> Float[Array, "b h w c"]:
        """The pictures of a batch where diffusion runs: `latents_of`."""
        return latents_of(self.autoencoder, batch, frozen, key)

    def states(self, params: Params, batch: Batch) -> Float[Array, "b n d"]:
        """What the UNet reads of the captions."""
        if self.text is None:
            if "states" not in batch:
                raise ValueError(
                    "batches bring no text states: give task.text, a text encoder that learns with the UNet"
                )
            return jnp.asarray(batch["states"], self.dtype)
        encoder = nnx.merge(self.graphs["text_encoder"], _cast(params["text_encoder"], self.dtype))
        return encoder(batch["tokens"]).last

    def forward(self, params: Params, batch: Batch, context: Context) -> Denoised:
        """One noisy view of each example, and what the network makes of it."""
        draw, shift, noise_key = jax.random.split(context.key, 3)
        clean = self.latents(batch, context.frozen, draw)
        t = spread_timesteps(shift, len(clean), self.schedule.num_train_timesteps)
        noise = jax.random.normal(noise_key, clean.shape, clean.dtype)
        noisy, target = (f(self.schedule, clean, noise, t) for f in (add_noise, training_target))
        unet = nnx.merge(self.graphs["unet"], params["unet"])
        answer = unet(noisy.astype(self.dtype), t, self.states(params, batch), remat=self.remat)
        return Denoised(answer.astype(jnp.float32), target, self.weights(t), t)

    def weights(self, t: Int[Array, " b"]) -> Float[Array, " b"]:
        """Of each timestep's squared error."""
        if not self.min_snr:
            return jnp.ones(t.shape, jnp.float32)
        return min_snr_weight(snr(self.schedule, t), self.schedule.prediction_type, self.min_snr)

    def loss(self, params: Params, batch: Batch, context: Context) -> tuple[Float[Array, ""], Metrics]:
        scope = Scope(self.forward(params, batch, context), batch, context)
        loss, values = total(self.losses, scope)
        return loss, values | report(self.metrics, scope)

    def pictures(self, params: Params, batch: Batch) -> Mapping[str, Float[np.ndarray, "h w 3"]]:
        return {} if self.pipeline is None else {"samples": self.samples(self.pipeline, params)}

    def export(self, path: Path, params: Params, metadata: Mapping[str, Any]) -> Path:
        """A folder as diffusers saves it: the whole base, or the UNet alone where there is no more."""
        folder = path.with_suffix("")
        networks = {name: nnx.merge(graph, params[name]) for name, graph in self.graphs.items()}
        if self.pipeline is None:
            save_component(folder / "unet", networks["unet"], overwrite=True)
        else:
            dataclasses.replace(self.pipeline, **networks).save(folder, overwrite=True)
        with atomic_output(folder / "training.json", overwrite=True) as file:
            file.write_text(json.dumps(dict(metadata), indent=2, sort_keys=True) + "\n")
        return folder

    def _makers(self) -> dict[str, Any]:
        makers: dict[str, Any] = {"unet": lambda rngs=None: UNet(self.unet, rngs=rngs or nnx.Rngs(0))}
        if (text := self.text) is not None:
            makers["text_encoder"] = lambda rngs=None: TextEncoder(text, rngs=rngs or nnx.Rngs(0))
        return makers


def latents_of(
    autoencoder: AutoencoderKL | None, batch: Batch, frozen: Mapping[str, Any], key: PRNGKeyArray
) -> Float[Array, "b h w c"]:
    """Scaled latents of a batch, with the parameters `frozen["vae"]`; without an autoencoder pixels in [-1, 1]."""
    if "latents_mean" in batch:
        spread = batch["latents_mean"].astype(jnp.float32), 2 * jnp.log(batch["latents_std"].astype(jnp.float32))
        drawn = Posterior(*spread).sample(key)
    elif autoencoder is None:
        return 2 * jnp.asarray(batch["image"]) - 1
    else:
        vae = nnx.merge(nnx.graphdef(autoencoder), frozen["vae"])
        drawn = vae.encode(2 * jnp.asarray(batch["image"]) - 1).sample(key)
    if autoencoder is None:
        raise ValueError("batches bring latents, so task.vae has to name the autoencoder that they are of")
    return autoencoder.to_latents(drawn)


def spread_timesteps(key: PRNGKeyArray, count: int, steps: int) -> Int[Array, " {count}"]:
    """`count` timesteps of 0 .. steps - 1, one from each of as many equal parts; each alone is uniform.

    Which example gets which part is drawn too: neighbours in a batch may be alike."""
    shift, order = jax.random.split(key)
    places = (jnp.arange(count) + jax.random.uniform(shift)) / count
    return jax.random.permutation(order, jnp.minimum((places * steps).astype(jnp.int32), steps - 1))


def _cast(params: Params, dtype: str) -> Params:
    return jax.tree.map(lambda leaf: leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, params)
