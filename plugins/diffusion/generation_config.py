"""The options of a generation, each spelled once: the command, the pipeline and the checked request share them."""

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """Options of one call of a pipeline. The text under each field is also its help in `plugins generate`."""

    steps: int | None = None
    """Sampling steps from noise to image; None: 50, or 4 for the sampler lcm."""
    sampler: str | None = None
    """ddim, ddpm, plms, lcm, euler, euler_karras, euler_ancestral, heun, lms, flow_euler, dpm, dpm_karras, dpm_sde,
    dpm_sde_karras, dpm_3m or unipc; None: the base's own."""
    guidance: int | float = 7.5
    """Guidance scale; 1 (in diffusers also 0) disables guidance and halves the calls of the UNet."""
    rescale: int | float = 0.0
    """Guidance rescale in [0, 1] against over-exposure (2305.08891); 0 disables it, 0.7 is the paper's."""
    height: int | None = None
    """Height in pixels; None: the image's, or the base's."""
    width: int | None = None
    """Width in pixels; None: the image's, or the base's."""
    strength: int | float | None = None
    """Image to image: share of the steps that is run, in (0, 1]; 1 keeps almost nothing of the image. None: 0.8, for an
    inpainting base 1."""
    weighted: bool = False
    """Read (words:1.2) in prompts as weights, and all of a long prompt, in parts of the text encoder's length."""
    image_guidance: int | float = 1.5
    """InstructPix2Pix: guidance scale towards the image to edit, 1 or more; larger values keep more of it."""
    original: tuple[int, int] | None = None
    """SDXL: height and width that the image is said to have had before training resized it; None: its own."""
    crop: tuple[int, int] = (0, 0)
    """SDXL: top and left, in pixels, at which training is said to have cropped the image."""
    tile: int | None = None
    """Side, in pixels, of the tiles in which the autoencoder works, for images that do not fit into memory; colours
    differ a little from those of whole images. None: whole images."""
    clip_skip: int = 0
    """Layers of the text encoder to skip at its end; many programs count one more (their 2 is 1)."""

    def options(self) -> dict[str, Any]:
        """The fields of this class, without those that a subclass adds."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(GenerationConfig)}
