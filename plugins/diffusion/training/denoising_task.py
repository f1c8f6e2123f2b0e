"""Training objective of a base model: predict the noise in a noisy image, given its caption.

    image   -> (autoencoder) -> x_0;  t, eps drawn;  x_t = alpha_t x_0 + sigma_t eps
    caption -> tokens -> text encoder -> states
    UNet(x_t, t, states) -> epsilon, v or x_0, compared with the target

(Ho et al., 2006.11239; Rombach et al., 2112.10752.) Timesteps are spread evenly over each batch, from one random shift
(Kingma et al., 2107.00630, appendix I.1), which lowers the variance of the loss. Errors are weighted by min-SNR
(2303.09556). The empty prompt, which guidance needs, comes from the data, which drop a share of the captions. Batches:

    image                          b h w 3 in [0, 1]: encoded here by the frozen autoencoder, or used as pixels, or
    latents_mean, latents_std      b h w c, not scaled: the autoencoder's output, computed once (`latent_cache.py`)
    tokens                         b n: read by the text encoder, which is trained too, or
    states                         b n d: a frozen text encoder's output, computed once
"""

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from common.checked import AtLeast0, Checked, Dtype, Named
from common.io.files import atomic_output
from common.io.images import contact_sheet
from common.nn.init import blank, init_params
from common.nn.text_encoder import TextConfig
from common.training.objectives import Scope, Term, total
from common.training.task import Batch, Context, Metrics, Params
from plugins.diffusion.io.components import MODULES, load_component, load_tokenizer, load_vae, save_component
from plugins.diffusion.networks.unet_config import UNetConfig
from plugins.diffusion.networks.vae import Autoencoder, Posterior
from plugins.diffusion.pipeline import Pipeline
from plugins.diffusion.request import make_request
from plugins.diffusion.samplers import by_name
from plugins.diffusion.samplers.schedules import Schedule
from plugins.diffusion.training.losses import Denoising, add_noise, min_snr_weight, snr, training_target

SAMPLER = by_name("dpm")  # the default of an exported base


class Denoised(NamedTuple):
    """Inputs of the losses: prediction, target, and the weight and timestep of each example, float32."""

    prediction: Float[Array, "b h w c"]
    target: Float[Array, "b h w c"]
    weight: Float[Array, " b"]
    t: Int[Array, " b"]


@dataclasses.dataclass(frozen=True)
class SampleSheet(Checked):
    """Image summary of a base in training: images of fixed prompts and seeds, a row per seed, so that runs compare."""

    prompts: Sequence[str] = ()  # none: a blank image
    seeds: int = 2
    steps: int = 20
    guidance: float = 4.0

    def __call__(self, pipeline: Pipeline, params: Mapping[str, Any]) -> Float[np.ndarray, "h w 3"]:
        """The contact sheet; `params`, by network, replace the pipeline's own."""
        if not self.prompts:
            return np.ones((1, 1, 3), np.float32)
        prompts = [prompt for _ in range(self.seeds) for prompt in self.prompts]
        seeds = [seed for seed in range(self.seeds) for _ in self.prompts]
        request = make_request(pipeline.base, prompts, seeds=seeds, steps=self.steps, guidance=self.guidance)
        images = np.concatenate(list(pipeline.run(request, params=params)))
        return contact_sheet(list(images), columns=len(self.prompts), labels=prompts)


@dataclasses.dataclass(frozen=True)
class DenoisingTask(Checked):
    """The training objective of a text-to-image base model."""

    unet: UNetConfig
    schedule: Schedule = dataclasses.field(default_factory=Schedule)  # with the prediction type
    text: TextConfig | None = None  # a text encoder that is trained with the UNet; None: batches hold states
    tokenizer: str | None = None  # folder of the tokenizer of the batches' tokens; part of the exported base
    vae: str | None = None  # a folder or file of the autoencoder, which is frozen; None: the UNet works on pixels
    losses: Named[Term] = dataclasses.field(default_factory=lambda: {"denoising": Denoising()})  # added up
    metrics: Mapping[str, Term] = dataclasses.field(default_factory=dict)  # only logged
    timesteps: Literal["uniform", "cubic"] = "uniform"  # how they are drawn (`spread_timesteps`)
    min_snr: AtLeast0 = 5.0  # gamma of min-SNR weights; 0: equal weights
    # A base, as a folder or single file, whose UNet (and text encoder, where `text` is given) are trained further.
    start_from: str | None = None
    dtype: Dtype = "float32"  # of the computation; parameters and losses stay float32
    remat: bool = False  # keep only the inputs of each block of the UNet for the gradient: less memory, more time
    samples: SampleSheet = dataclasses.field(default_factory=SampleSheet)  # needs `text` and `tokenizer`

    def __post_init__(self):
        super().__post_init__()
        width = self.unet.cross_attention_dim
        if self.text is not None and self.text.hidden_size != width:
            found = f"task.text has hidden_size {self.text.hidden_size}, task.unet cross_attention_dim {width}"
            raise ValueError(f"{found}: make them equal")

    @property
    def _configs(self) -> dict[str, Any]:
        """The architectures of the trained networks."""
        return {"unet": self.unet} | ({} if self.text is None else {"text_encoder": self.text})

    @functools.cached_property
    def graphs(self) -> dict[str, nnx.GraphDef]:
        """The trained networks without their parameters."""
        return {name: blank(MODULES[type(config)], config)[0] for name, config in self._configs.items()}

    @functools.cached_property
    def autoencoder(self) -> Autoencoder | None:
        """The frozen autoencoder, loaded on first use."""
        vae = None if self.vae is None else load_vae(self.vae)
        if vae is not None and vae.config.latent_channels != self.unet.in_channels:
            found, expected = vae.config.latent_channels, self.unet.in_channels
            raise ValueError(f"task.vae={self.vae} has {found} latent channels, task.unet {expected}: give another")
        return vae

    @functools.cached_property
    def pipeline(self) -> Pipeline | None:
        """The whole base, with shapes in place of the trained parameters; None without text encoder and tokenizer."""
        if self.text is None or self.tokenizer is None:
            return None
        networks = {name: nnx.merge(*blank(MODULES[type(config)], config)) for name, config in self._configs.items()}
        tokenizer = load_tokenizer(self.tokenizer)
        return Pipeline(**networks, vae=self.autoencoder, tokenizer=tokenizer, schedule=self.schedule, sampler=SAMPLER)

    def init(self, key: PRNGKeyArray) -> Params:
        keys = dict(zip(self._configs, jax.random.split(key, len(self._configs)), strict=True))
        return {name: init_params(MODULES[type(config)], config, keys[name]) for name, config in self._configs.items()}

    def start(self) -> Params | None:
        if self.start_from is None:
            return None
        found = {name: load_component(name, self.start_from) for name in self._configs}
        for name, expected in self._configs.items():
            size = {"sample_size": expected.sample_size} if name == "unet" else {}  # the weights do not depend on it
            if dataclasses.replace(found[name].config, **size) != expected:
                raise ValueError(f"start_from={self.start_from} holds {found[name].config}, the task has {expected}")
        return {name: nnx.to_pure_dict(nnx.state(module)) for name, module in found.items()}

    def frozen(self) -> dict[str, Any]:
        return {} if self.autoencoder is None else {"vae": nnx.to_pure_dict(nnx.state(self.autoencoder))}

    def states(self, params: Params, batch: Batch) -> Float[Array, "b n d"]:
        """The UNet's context."""
        if self.text is None:
            if "states" not in batch:
                raise ValueError("batches hold no text states: give task.text, a text encoder to train with the UNet")
            return jnp.asarray(batch["states"], self.dtype)
        encoder = nnx.merge(self.graphs["text_encoder"], cast(params["text_encoder"], self.dtype))
        return encoder(batch["tokens"]).last

    def forward(self, params: Params, batch: Batch, context: Context) -> Denoised:
        """The network's prediction for each example at one timestep."""
        noisy, target, t = self.noised(self.autoencoder, batch, context)
        unet = nnx.merge(self.graphs["unet"], params["unet"])
        prediction = unet(noisy.astype(self.dtype), t, self.states(params, batch), remat=self.remat)
        return Denoised(prediction.astype(jnp.float32), target, self.weights(t), t)

    def noised(self, autoencoder: Autoencoder | None, batch: Batch, context: Context) -> tuple[Array, Array, Array]:
        """Noisy latents `b h w c`, the target of their prediction and their timesteps `b`."""
        draw, shift, noise_key = jax.random.split(context.key, 3)
        clean = latents_of(autoencoder, batch, context.frozen, draw)
        t = spread_timesteps(shift, len(clean), self.schedule.num_train_timesteps, self.timesteps)
        noise = jax.random.normal(noise_key, clean.shape, clean.dtype)
        noisy, target = (f(self.schedule, clean, noise, t) for f in (add_noise, training_target))
        return noisy, target, t

    def weights(self, t: Int[Array, " b"]) -> Float[Array, " b"]:
        """Weights of the squared errors at timesteps t."""
        if not self.min_snr:
            return jnp.ones(t.shape, jnp.float32)
        return min_snr_weight(snr(self.schedule, t), self.schedule.prediction_type, self.min_snr)

    def loss(self, params: Params, batch: Batch, context: Context) -> tuple[Float[Array, ""], Metrics]:
        scope = Scope(self.forward(params, batch, context), batch, context)
        return total(self.losses, scope, self.metrics)

    def pictures(self, params: Params, batch: Batch) -> Mapping[str, Float[np.ndarray, "h w 3"]]:
        return {} if self.pipeline is None else {"samples": self.samples(self.pipeline, jax.device_put(params))}

    def export(self, path: Path, params: Params, metadata: Mapping[str, Any]) -> Path:
        """A diffusers folder: the whole base, or without text encoder and tokenizer the UNet alone."""
        folder = path.with_suffix("")
        networks = {name: nnx.merge(graph, params[name]) for name, graph in self.graphs.items()}
        if self.pipeline is None:
            save_component(folder / "unet", networks["unet"], overwrite=True)
        else:
            dataclasses.replace(self.pipeline, **networks).save(folder, overwrite=True)
        write_metadata(folder, metadata)
        return folder


def write_metadata(folder: Path, metadata: Mapping[str, Any]) -> None:
    """Writes `training.json` beside the weights that a task has exported."""
    with atomic_output(folder / "training.json", overwrite=True) as file:
        file.write_text(json.dumps(dict(metadata), indent=2, sort_keys=True) + "\n")


def latents_of(
    autoencoder: Autoencoder | None, batch: Batch, frozen: Mapping[str, Any], key: PRNGKeyArray
) -> Float[Array, "b h w c"]:
    """Scaled latents of a batch, with the parameters `frozen["vae"]`; without an autoencoder pixels in [-1, 1]."""
    if "latents_mean" in batch:
        mean, std = (batch[f"latents_{name}"].astype(jnp.float32) for name in ("mean", "std"))
        drawn = Posterior(mean, 2 * jnp.log(std)).sample(key)
    elif autoencoder is None:
        return 2 * jnp.asarray(batch["image"]) - 1
    else:
        vae = nnx.merge(nnx.graphdef(autoencoder), frozen["vae"])
        drawn = vae.encode(2 * jnp.asarray(batch["image"]) - 1).sample(key)
    if autoencoder is None:
        raise ValueError("batches hold latents, so task.vae has to name their autoencoder")
    return autoencoder.to_latents(drawn)


def spread_timesteps(key: PRNGKeyArray, count: int, steps: int, kind: str = "uniform") -> Int[Array, " {count}"]:
    """`count` timesteps of 0 .. steps - 1 in random order, one from each of `count` equal strata. `kind`: uniform, or
    cubic: t = (1 - u^3) steps (T2I-Adapter, 2302.08453, section 3.4), 69 % in the noisiest third."""
    shift, order = jax.random.split(key)
    fractions = (jnp.arange(count) + jax.random.uniform(shift)) / count
    t = jax.random.permutation(order, jnp.minimum((fractions * steps).astype(jnp.int32), steps - 1))
    if kind == "uniform":
        return t
    return jnp.minimum((steps * (1 - ((t + 0.5) / steps) ** 3)).astype(jnp.int32), steps - 1)


def cast(params: Params, dtype: str) -> Params:
    """Parameters as `dtype`; integers stay."""
    return jax.tree.map(lambda leaf: leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, params)
