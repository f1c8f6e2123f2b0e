"""The options of the `plugins` commands, a dataclass for each, from which `tyro` makes command line and help."""

import dataclasses
from typing import Annotated, Literal

import tyro

from common import terminal
from common.terminal import Printing
from plugins.diffusion.generation_config import GenerationConfig

PLUG_AND_PLAY = frozenset(("plug_and_play", "layout"))  # the control that takes no plugin, and its older name
Kind = Literal["canny", "face", "holistic", "depth", "mask", "scribble"]  # of a condition


@dataclasses.dataclass(frozen=True, kw_only=True)
class BaseOptions:
    """Options for files of a base that do not contain everything."""

    tokenizer: str | None = None
    """Tokenizer of a base in a single file, which has none: a folder, OpenAI's list of merges (.gz), or an address."""
    prediction: Literal["epsilon", "v_prediction", "sample"] | None = None
    """Prediction type, in place of the scheduler's; a single file of Stable Diffusion 2.x does not contain it."""
    vae: str | None = None
    """Another autoencoder: a folder or a file, such as TAESD's, which decodes many times faster."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadOptions(BaseOptions):
    """Which base generates, and how it computes."""

    base: str | None = None
    """A folder of diffusers, a single safetensors file, an address (hf:OWNER/NAME, https://...), or a shipped name.
    None: diffusion-small."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type to compute in; bfloat16 is faster on accelerators and takes half the memory."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class WeightOptions(LoadOptions):
    """Which networks generate."""

    lora: tuple[str, ...] = ()
    """LoRA files or addresses, each with an optional weight, as in style.safetensors:0.8"""
    embedding: tuple[str, ...] = ()
    """Textual inversions, each a word for prompts: FILE, whose word is its own or its name, or WORD=FILE."""
    batch: int | None = None
    """Images computed at once. None: by size and devices."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ControlOptions:
    """What steers the base."""

    control: tuple[Kind | Literal["plug_and_play", "layout"], ...] = ()
    """Conditions to make of --image: edges, a face, a person, depth, a silhouette, outlines; or plug_and_play (formerly
    layout), which needs no plugin."""
    plugin: tuple[str, ...] = ()
    """One network for each control: a folder, a single file, an address, or a shipped name. None: the shipped ones."""
    condition: tuple[str, ...] = ()
    """One finished condition image for each plugin, in place of one made of --image."""
    control_strength: tuple[float, ...] = ()
    """Conditioning scale, one for all controls or one each; 0 disables a control. None: 1."""
    control_steps: tuple[float, float] | None = None
    """Interval of the run in which controls are applied, as in 0 0.5 for its first half. None: the whole run."""
    prompt_only: bool = False
    """Guess mode: apply controls to the conditional half of guidance only."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImagePromptOptions:
    """An image as part of the prompt."""

    image_prompt: str | None = None
    """An image of any size as part of the prompt; needs --ip-adapter."""
    ip_adapter: str | None = None
    """File of an IP-Adapter, base or plus, made for the base."""
    image_encoder: str | None = None
    """Folder of the IP-Adapter's vision tower. None: image_encoder beside its file."""
    image_prompt_strength: float = 1.0
    """Scale of the image prompt's attention; 0 disables it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class InspectionOptions:
    """What is drawn beside the images."""

    sheet: str | None = None
    """Also write a contact sheet of all images to this file."""
    preview: str | None = None
    """Image file that shows what each step predicts; replaced at every step."""
    preview_vae: str | None = None
    """A fast autoencoder for the preview (TAESD): a folder or a file. None: a linear map, coarse and blurred."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generate(WeightOptions, ControlOptions, ImagePromptOptions, InspectionOptions, Printing, GenerationConfig):
    """Generate images from a prompt."""

    prompt: str
    """Description of the image."""
    output: Annotated[str, tyro.conf.arg(aliases=["-o"])]
    """image.png, .jpg or .webp for one image; a folder, numbered by seed, for any number."""
    negative: str = ""
    """Negative prompt: description of what to avoid."""
    image: str | None = None
    """Initial image, or the image to repair or to edit; with --control and no --condition, the source of conditions."""
    mask: str | None = None
    """For an inpainting base: a grey image, white where --image is repainted."""
    seed: int = 0
    """Seed of the first image; the same seed gives the same image."""
    count: int = 1
    """Number of images, each with the next seed."""
    overwrite: bool = False
    """Replace the output if it exists."""
    quiet: bool = False
    """Print no plan and no progress bar."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Info(BaseOptions, Printing):
    """Print what a base or a plugin consists of, or list the weights on this machine. Weights are not loaded."""

    weights: tyro.conf.Positional[str | None] = None
    """A folder of diffusers, a single safetensors file, an address, or a shipped name; None: diffusion-small."""
    list: bool = False
    """List the shipped and downloaded weights on this machine, with size, licence and source."""


@dataclasses.dataclass(frozen=True)
class Verify(Printing):
    """Read all weights of a base or a plugin and compare them with their checksums."""

    weights: tyro.conf.Positional[str]
    """A folder, a safetensors file, an address, or a shipped name."""


@dataclasses.dataclass(frozen=True)
class Condition(Printing):
    """Make condition images (edges, faces, people, depth, masks, scribbles) from an image or a folder."""

    kind: tyro.conf.Positional[Kind]
    """Kind of condition."""
    input: tyro.conf.Positional[str]
    """An image, or a folder of images with its subfolders."""
    output: Annotated[str, tyro.conf.arg(aliases=["-o"])]
    """An image; for a folder a folder, where a.jpg becomes a.png. Existing files are kept."""
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
    """depth: a map (.npy, .npz or a grey image), or a folder of maps named as the images."""
    model: str | None = None
    """depth: an ONNX file that estimates it."""
    near: Literal["high", "low"] | None = None
    """depth: high for inverse depth (near pixels have high values), low for distances; None: high."""
    inflate: bool = False
    """depth: inflate the silhouette of one object on a plain background."""
    mask: str | None = None
    """mask: a grey image, white in the foreground, or a folder of them named as the images."""
    threshold: float | None = None
    """mask: distance from the background's colour, 0 to 1, above which a pixel is foreground; None: 0.1."""
    width: float | None = None
    """scribble: width of the lines, a share of the shorter side; None: 0.03."""
    blur: float | None = None
    """scribble: blur before contours are found, a share of the shorter side; None: 0.02."""
    drawing: bool = False
    """scribble: the images are drawings, strokes on a plain ground, whose strokes are used as they are."""
    overwrite: bool = False
    """Replace what exists."""
    quiet: bool = False
    """Print no progress bar and no warnings."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Export(Printing):
    """Write a plugin, its features of an image, or a network of a base as one file for other programs."""

    plugin: str | None = None
    """A MediaPipe plugin or a T2I-Adapter: a folder, a single file, or a shipped name."""
    base: str | None = None
    """A base, in place of a plugin: a folder, a single file, an address, or a shipped name."""
    part: Literal["unet", "decoder", "text_encoder"] | None = None
    """Which network of the base."""
    with_features: bool = False
    """unet: its file reads a plugin's features beside latents, time and text."""
    output: Annotated[str, tyro.conf.arg(aliases=["-o"])]
    """plugin.stablehlo, plugin.onnx, plugin.tflite, or features.safetensors."""
    format: Literal["stablehlo", "onnx", "litert", "features"] | None = None
    """Output format, which must agree with the suffix; None: taken from the suffix."""
    weights: Literal["float32", "float16", "int8"] = "float32"
    """onnx, litert: type of the stored weights; int8 only with litert."""
    size: tuple[int, ...] | None = None
    """Size of the images: one side, or width and height; None: 512, for a base its own, for features the image's."""
    picture: str | None = None
    """features: the condition image; with --size, resized to cover it and cropped at the centre."""
    strength: float | None = None
    """features: conditioning scale; None: 1, as it was trained."""
    tokenizer: str | None = None
    """Tokenizer of a base in a single file, as for `generate`."""
    overwrite: bool = False
    """Replace the output if it exists."""
    quiet: bool = False
    """Print nothing."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Web(LoadOptions):
    """Serve a page in the browser that draws, conditions and generates (needs the `demo` extra)."""

    plugin: tuple[str, ...] = ()
    """Plugins by kind of condition, as in canny=controlnet-canny/; None: those of the shipped base."""
    serving: Annotated[terminal.Serving, tyro.conf.arg(name="")] = dataclasses.field(default_factory=terminal.Serving)


GROUPS = {  # sections of the help
    "sampling": (GenerationConfig,),
    "base": (BaseOptions, LoadOptions, WeightOptions),
    "control": (ControlOptions,),
    "image_prompt": (ImagePromptOptions,),
    "inspection": (InspectionOptions,),
}
