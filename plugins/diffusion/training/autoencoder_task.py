"""Training objective of an autoencoder: reconstruct the image from latents that are suited to diffusion.

    image -> encoder -> mean and variance of each latent -> a sample -> decoder -> image

Sampling makes the decoder tolerate small errors in the latents, such as those of a diffusion model; the KL term keeps
mean and variance bounded (Rombach et al., 2112.10752, section 3.1). Published autoencoders add an adversarial loss,
which this task omits.
"""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from common.io.images import contact_sheet
from common.nn.init import blank, init_params
from common.perceptual.vgg_weights import load_vgg
from common.training.objectives import L1, Psnr, Scope, Term, total
from common.training.task import Batch, Context, Metrics, Params
from plugins.diffusion.io.components import save_component
from plugins.diffusion.networks.vae import AutoencoderKL, Posterior, VAEConfig
from plugins.diffusion.training.denoising_task import write_metadata
from plugins.diffusion.training.losses import Kl, LatentStd

PREDICTION = "output.image"
TARGET = "batch.image"


class Reconstruction(NamedTuple):
    """Inputs of the losses: the image in [0, 1] (not clipped), its latents, their distribution."""

    image: Float[Array, "b h w 3"]
    latents: Float[Array, "b h2 w2 c"]
    posterior: Posterior


@dataclasses.dataclass(frozen=True)
class AutoencoderTask:
    """An autoencoder's training objective. Batches hold `image`, `b h w 3` in [0, 1]."""

    vae: VAEConfig
    losses: Mapping[str, Term] = dataclasses.field(  # added up
        default_factory=lambda: {"l1": L1(PREDICTION, TARGET), "kl": Kl()}  # type: ignore[dict-item]
    )
    metrics: Mapping[str, Term] = dataclasses.field(  # only logged
        default_factory=lambda: {"psnr": Psnr(PREDICTION, TARGET), "latent_std": LatentStd()}  # type: ignore[dict-item]
    )
    networks: Mapping[str, str] = dataclasses.field(default_factory=dict)  # files, as in `FilmTask` of film.training
    rows: int = 8  # examples in the image summary

    @functools.cached_property
    def graphdef(self) -> nnx.GraphDef[AutoencoderKL]:
        return blank(AutoencoderKL, self.vae)[0]

    @functools.cached_property
    def reconstruct(self) -> Any:
        """`forward`, compiled once for all image summaries."""
        return jax.jit(self.forward, static_argnums=2)

    def init(self, key: PRNGKeyArray) -> Params:
        return {"vae": init_params(AutoencoderKL, self.vae, key)}

    def start(self) -> None:
        return None

    def frozen(self) -> dict[str, Any]:
        return {name: load_vgg(path) for name, path in self.networks.items()}

    def forward(
        self, params: Params, image: Float[Array | np.ndarray, "b h w 3"], key: PRNGKeyArray | None
    ) -> Reconstruction:
        """Reconstruct through sampled latents, or without a key through the most probable ones."""
        vae = nnx.merge(self.graphdef, params["vae"])
        posterior = vae.encode(2 * jnp.asarray(image) - 1)
        latents = posterior.mean if key is None else posterior.sample(key)
        return Reconstruction((vae.decode(latents) + 1) / 2, latents, posterior)

    def loss(self, params: Params, batch: Batch, context: Context) -> tuple[Float[Array, ""], Metrics]:
        scope = Scope(self.forward(params, batch["image"], context.key), batch, context)
        return total(self.losses, scope, self.metrics)

    def pictures(self, params: Params, batch: Batch) -> Mapping[str, Float[np.ndarray, "h w 3"]]:
        image = np.asarray(batch["image"][: self.rows], np.float32)
        output = np.asarray(self.reconstruct(params, image, None).image)
        pairs = [one for pair in zip(image, np.clip(output, 0, 1), strict=True) for one in pair]
        return {"reconstructions": contact_sheet(pairs, columns=8)}

    def export(self, path: Path, params: Params, metadata: Mapping[str, Any]) -> Path:
        """A diffusers folder that holds `vae`, with the config's scaling factor (measured by `latent_cache.py`)."""
        folder = path.with_suffix("")
        save_component(folder / "vae", nnx.merge(self.graphdef, params["vae"]), overwrite=True)
        write_metadata(folder, metadata)
        return folder
