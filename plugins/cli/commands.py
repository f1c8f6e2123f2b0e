"""The options of the `plugins` commands: a dataclass for each; `tyro` makes the command line and its help of them."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

import tyro

from plugins.diffusion.generation_config import GenerationConfig

PLUG_AND_PLAY = ("plug_and_play", "layout")  # the control that takes no plugin, and its older name


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generate(GenerationConfig):
    """Make images of a text."""

    prompt: str
    """What the image shows."""
    output: Annotated[str, tyro.conf.arg(aliases=["-o"])]
    """image.png, .jpg or .webp for one image; a folder, numbered by seed, for any number."""
    negative: str = ""
    """Negative prompt: what the image must not show."""
    base: str | None = None
    """A folder of diffusers, a single safetensors file, or a shipped name; None: the shipped base."""
    lora: tuple[str, ...] = ()
    """LoRA files, each with an optional weight: style.safetensors:0.8"""
    image: str | None = None
    """Initial image; with --control, the image that conditions are made of."""
    control: tuple[Literal["canny", "face", "holistic", "depth", "mask", "plug_and_play", "layout"], ...] = ()
    """What of --image is kept: edges, a face, a person, depth, a silhouette, or features (plug_and_play, also called
    layout)."""
    plugin: tuple[str, ...] = ()
    """One network for each control: a folder, a single file, or a shipped name; none: the shipped ones."""
    condition: tuple[str, ...] = ()
    """One finished condition image for each plugin, in place of one made of --image."""
    control_strength: tuple[float, ...] = ()
    """Conditioning scale, one for all controls or one each; 0 disables a control, none given is 1."""
    control_steps: tuple[float, float] | None = None
    """Share of the run in which controls act, as in 0 0.5 for its first half; None: the whole run."""
    prompt_only: bool = False
    """Apply controls to the conditional half of guidance only."""
    seed: int = 0
    """Seed of the first image; the same seed gives the same image."""
    count: int = 1
    """Number of images, each with the next seed."""
    dtype: Literal["f32", "bf16"] = "f32"
    """Type to compute in; bf16 is faster on accelerators and takes half the memory."""
    batch: int | None = None
    """Images computed at once; None: chosen by size and devices."""
    tokenizer: str | None = None
    """A tokenizer's folder or OpenAI's list of merges (.gz): a single file has none."""
    prediction: Literal["epsilon", "v_prediction", "sample"] | None = None
    """What the base predicts, in place of what its scheduler says: a single file of 2.x does not say."""
    sheet: str | None = None
    """Also write a contact sheet of all images to this file."""
    overwrite: bool = False
    """Replace the output if it exists."""
    quiet: bool = False
    """Print no plan and no progress bar."""


@dataclasses.dataclass
class Info:
    """Print what a base is: components, sizes, what it predicts. Weights are not loaded."""

    base: tyro.conf.Positional[str | None] = None
    """A folder of diffusers, a single safetensors file, or a shipped name; None: the shipped base."""
    tokenizer: str | None = None
    """A tokenizer's folder or OpenAI's list of merges (.gz): a single file has none."""
    prediction: Literal["epsilon", "v_prediction", "sample"] | None = None
    """What the base predicts, in place of what its scheduler says."""


@dataclasses.dataclass
class Condition:
    """Make condition images (edges, faces, persons, depth, masks) of an image or a folder."""

    kind: tyro.conf.Positional[Literal["canny", "face", "holistic", "depth", "mask"]]
    """Kind of condition."""
    input: tyro.conf.Positional[str]
    """An image, or a folder of images with its subfolders."""
    output: Annotated[str, tyro.conf.arg(aliases=["-o"])]
    """An image; for a folder a folder, where a.jpg becomes a.png. Existing files are not made again."""
    low: float | None = None
    """canny: lower hysteresis threshold; None: 100."""
    high: float | None = None
    """canny: upper hysteresis threshold; None: 200."""
    faces: int | None = None
    """face: number of faces, the largest first; None: 1."""
    landmarks: str | None = None
    """face, holistic: a file of landmarks (.json, .npz), or a folder of files named as the images; without it
    mediapipe finds them."""
    depth: str | None = None
    """depth: a map (.npy, .npz or a grey picture), or a folder of maps named as the images."""
    model: str | None = None
    """depth: an ONNX file that estimates it."""
    near: Literal["high", "low"] | None = None
    """depth: whether what is near has high values, as inverse depth, or low ones, as distances; None: high."""
    mask: str | None = None
    """mask: a grey image, white in the foreground, or a folder of them named as the images."""
    threshold: float | None = None
    """mask: distance from the background's colour, 0 to 1, above which a pixel is foreground; None: 0.1."""
    overwrite: bool = False
    """Replace what exists."""
    quiet: bool = False
    """Print no progress bar and no notes."""


@dataclasses.dataclass
class Export:
    """Write a trained plugin as one file for other programs, or its features of one image."""

    plugin: str
    """A MediaPipe plugin or a T2I-Adapter: a folder, a single file, or a shipped name."""
    output: Annotated[str, tyro.conf.arg(aliases=["-o"])]
    """plugin.stablehlo, plugin.onnx, or features.safetensors."""
    format: Literal["stablehlo", "onnx", "features"] | None = None
    """Format of the output; None: by its suffix."""
    size: tuple[int, ...] | None = None
    """Size of the input images: one side, or width and height; None: 512, for features the image's."""
    picture: str | None = None
    """features: the condition image; with --size, scaled to cover it and cropped from its middle."""
    strength: float | None = None
    """features: conditioning scale; None: 1, as it was trained."""
    overwrite: bool = False
    """Replace the output if it exists."""
    quiet: bool = False
    """Print nothing."""
