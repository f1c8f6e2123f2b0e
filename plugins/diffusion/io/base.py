"""A whole base from the files that people have: a diffusers folder, or a single file of Stable Diffusion.

`Base` is everything except the weights: architectures, tokenizers, a noise schedule and a sampler, read from headers,
so that requests are checked and `plugins info` answers before gigabytes are read. Components have to fit one another:

    tokenizer --ids--> text encoder --states--> UNet --latents--> VAE --> image

A base without a VAE works on pixels: its "latents" are images in [-1, 1].

    files = read_base("v1-5-pruned-emaonly.safetensors", tokenizer="clip-vocabulary/")   # everything except the weights
    networks = load_networks(files, "bfloat16")                                           # the weights
    save_base("out", base, networks)                                                      # a folder

| component | folder | single file (safetensors, LDM names) |
| --- | --- | --- |
| list of networks | model_index.json | the prefixes of its tensors |
| unet, vae, text_encoder, text_encoder_2 | NAME/config.json and weights | tensors; their shapes give architectures |
| tokenizer, tokenizer_2 | tokenizer/, tokenizer_2/ | not in it: given, or beside the file |
| schedule, sampler | scheduler/scheduler_config.json | not in it: beside the file, or those of SD 1.5 |
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from common.io.clip_tokenizer import END, Tokenizer
from common.io.files import atomic_output
from common.io.tensor_files import TensorFiles, about, listing, read_json
from common.nn.text_encoder import TextConfig
from common.weights.remote import local
from common.weights.shipped import Shipped
from common.weights.torch_names import fill
from plugins.diffusion.io import single_file
from plugins.diffusion.io.components import KINDS, MODULES, Component, read_component, save_component
from plugins.diffusion.io.porting import network_dtype
from plugins.diffusion.networks.tiny_vae import TinyVAEConfig
from plugins.diffusion.networks.unet_config import UNetConfig
from plugins.diffusion.networks.vae import VAEConfig
from plugins.diffusion.samplers import Sampler, by_name
from plugins.diffusion.samplers.scheduler_config import from_json, to_json
from plugins.diffusion.samplers.schedules import FlowSchedule, Schedule

INDEX = "model_index.json"  # lists a pipeline's components
WEIGHTS = Path(__file__).parents[2] / "weights"
BASES = Shipped(WEIGHTS, INDEX, "diffusion-small", "base", "a diffusers folder, a safetensors file")
SCHEDULER = "scheduler/scheduler_config.json"
BPE_FILE = "bpe_simple_vocab_16e6.txt.gz"  # OpenAI's vocabulary, in OpenCLIP's package
REQUIRED = ("unet", "scheduler")
TEXT = (("text_encoder", "tokenizer"), ("text_encoder_2", "tokenizer_2"))  # one pair at least
IGNORED = ("safety_checker", "feature_extractor", "image_encoder")
OPEN_CLIP_PAD = "!"
RGB = 3
TEXT_TO_IMAGE, INPAINTING, EDITING = "images of text", "inpainting", "editing"
OTHER_CHANNELS = {5: " (depth to image)", 7: " (an upscaler)"}  # of UNets that have no pipeline here
PIPELINES = {  # diffusers' class, for SD 1.x and 2.x, and for SDXL
    TEXT_TO_IMAGE: ("StableDiffusionPipeline", "StableDiffusionXLPipeline"),
    INPAINTING: ("StableDiffusionInpaintPipeline", "StableDiffusionXLInpaintPipeline"),
    EDITING: ("StableDiffusionInstructPix2PixPipeline", "StableDiffusionXLInstructPix2PixPipeline"),
}
REFINER = "StableDiffusionXLImg2ImgPipeline"


def tasks(channels: int) -> dict[int, str]:
    """Input channels of a UNet for latents of so many channels -> what it does."""
    return {channels: TEXT_TO_IMAGE, 2 * channels + 1: INPAINTING, 2 * channels: EDITING}


@dataclasses.dataclass(frozen=True, eq=False)
class Base:
    """`schedule` is the UNet's, `sampler` the default of calls. Raises ValueError for components that do not fit."""

    unet: UNetConfig
    vae: VAEConfig | TinyVAEConfig | None
    text_encoder: TextConfig | None  # None in SDXL's refiner
    tokenizer: Tokenizer | None
    schedule: Schedule | FlowSchedule
    sampler: Sampler
    text_encoder_2: TextConfig | None = None
    tokenizer_2: Tokenizer | None = None
    zero_empty: bool = False  # SDXL: the empty negative prompt is zeros

    def __post_init__(self):
        unet, channels = self.unet, self.channels
        if unet.in_channels not in tasks(channels) or unet.out_channels != channels:
            known = OTHER_CHANNELS.get(unet.in_channels, "")
            found = f"{unet.in_channels} channels in{known}, {unet.out_channels} out, the latents {channels}"
            supported = " or ".join(f"{number} in ({task})" for number, task in tasks(channels).items())
            raise ValueError(f"the unet has {found}; supported is {supported}")
        if not self.texts:
            raise ValueError("the base has no text encoder with its tokenizer; take both from one base")
        width, last = sum(config.hidden_size for _, config, _ in self.texts), self.texts[-1][1]
        problems = []
        if unet.cross_attention_dim != width:
            problems.append(f"the unet reads text states of {unet.cross_attention_dim}, the text_encoder has {width}")
        for kind, config, tokenizer in self.texts:
            if (largest := max(tokenizer.tokens)) >= config.vocab_size:
                found = f"the tokenizer's ids go up to {largest}"
                problems.append(f"{found}, the {kind} has {config.vocab_size} tokens")
        if unet.addition_embed_type is not None and self.sizes not in (5, 6):
            found = f"pooled text of {last.projection_dim}" if last.projected else "a text encoder without projection"
            read = f"pooled text and sizes, {unet.projection_class_embeddings_input_dim} wide"
            problems.append(f"the unet reads {read}, the base has {found}")
        if problems:
            raise ValueError(f"{'; '.join(problems)}; take both from one base")
        if self.vae is not None and not self.vae.in_channels == self.vae.out_channels == RGB:
            raise ValueError(f"the vae works on {self.vae.in_channels} channels; only RGB is supported")

    @property
    def texts(self) -> list[tuple[str, TextConfig, Tokenizer]]:
        """Each text encoder's kind, architecture and tokenizer."""
        pairs = [(kind, getattr(self, kind), getattr(self, tokenizer)) for kind, tokenizer in TEXT]
        return [pair for pair in pairs if None not in pair]

    @property
    def task(self) -> str:
        """What it does: TEXT_TO_IMAGE, INPAINTING or EDITING."""
        return tasks(self.channels)[self.unet.in_channels]

    @property
    def sizes(self) -> int:
        """Number of sizes that SDXL's networks read: 6, or 5 with an aesthetic score (the refiner); else 0."""
        unet, last = self.unet, self.texts[-1][1]
        if unet.addition_embed_type is None or not last.projected:
            return 0
        width = (unet.projection_class_embeddings_input_dim or 0) - last.projection_dim
        count, rest = divmod(width, unet.addition_time_embed_dim or 1)
        return 0 if rest else count

    @property
    def distilled(self) -> bool:
        """Whether the UNet reads the guidance scale (LCM), and so needs no second row."""
        return self.unet.time_cond_proj_dim is not None

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
        return min(config.max_position_embeddings for _, config, _ in self.texts)


class BaseFiles(NamedTuple):
    """An opened base: its path, everything except the weights, and its networks' files by kind."""

    path: Path
    base: Base
    components: Mapping[str, Component]

    @property
    def parameters(self) -> int:
        """Of all networks together."""
        return sum(component.parameters for component in self.components.values())


def read_base(
    name_or_path: str | Path | None = None,
    *,
    tokenizer: str | Path | None = None,
    prediction: str | None = None,
    variant: str | None = None,
    vae: str | Path | None = None,
) -> BaseFiles:
    """A base without its weights, from a shipped name, a diffusers folder, a file or an address; None: the default.

    `tokenizer`, a folder or OpenAI's list of merges (.gz), replaces the base's own; `prediction`, the UNet's prediction
    type, the scheduler's (a single file of 2.x requires it); `vae`, a folder or a file, the base's autoencoder, as
    TAESD does. `variant` is "fp16" for that variant of a folder's files. Raises FileNotFoundError, ValueError, and as
    `Shipped.find`."""
    path = BASES.find(name_or_path, variant=variant)
    index = _index(path) if path.is_dir() else {}
    own = {} if vae is None else {"vae": local(vae)}
    kinds = [kind for kind in KINDS if kind in {**index, **own}] if path.is_dir() else _in_single_file(path)
    components: dict[str, Component] = {}
    for kind in kinds:  # the unet first: whether a vae by itself is SDXL's goes with it
        source, xl = own.get(kind, path), kind == "vae" and components["unet"].config.addition_embed_type is not None
        components[kind] = read_component(kind, source, variant=variant if source == path else None, xl=xl)
    unet = components["unet"].config
    sampler, schedule = _scheduler(path, unet, prediction)
    second = unet.use_linear_projection and unet.addition_embed_type is None
    if path.is_file() and second and schedule.prediction_type == "v_prediction":
        unet = dataclasses.replace(unet, sample_size=UNetConfig.sd21().sample_size)
        components["unet"] = components["unet"]._replace(config=unet)
    configs: dict[str, Any] = dict.fromkeys(KINDS) | {kind: component.config for kind, component in components.items()}
    texts = [(configs[kind], name) for kind, name in TEXT if configs[kind] is not None]
    fields: dict[str, Any] = {name: _tokenizer(path, tokenizer, name, config) for config, name in texts}
    # A single file of SDXL's base, whose training dropped prompts to zeros, does not say so.
    zero = index.get("force_zeros_for_empty_prompt", len(fields) == 2)
    fields |= {"schedule": schedule, "sampler": sampler, "zero_empty": bool(zero)}
    with about(path):
        return BaseFiles(path, Base(**{"tokenizer": None, **configs, **fields}), components)


def load_networks(files: BaseFiles, dtype: Any = jnp.float32) -> dict[str, Any]:
    """The networks by kind, their parameters as `dtype`: float32, bfloat16 or float16 (then the VAE stays float32)."""
    networks = {}
    for kind, component in files.components.items():
        with about(files.path / kind if files.path.is_dir() else files.path):
            network = MODULES[type(component.config)]
            networks[kind] = fill(network, component.config, component.tensors, network_dtype(kind, dtype))
    return networks


def _index(folder: Path) -> dict[str, Any]:
    """A folder's model_index.json, without components that are null."""
    if not (folder / INDEX).is_file():
        raise FileNotFoundError(f"{folder}: no {INDEX} of a diffusers pipeline, but {listing(folder)}; name another")
    fields = read_json(folder / INDEX)
    listed = {key for key, value in fields.items() if isinstance(value, list) and any(value)}
    pairs = [pair for pair in TEXT if set(pair) <= listed]
    other = sorted(listed - {*REQUIRED, *sum(pairs, ()), "vae", *IGNORED})
    missing = [name for name in (*REQUIRED, *(() if pairs else TEXT[0])) if name not in listed]
    if other or missing:
        what = f"with {', '.join(other)}" if other else f"without {', '.join(missing)}"
        expected = f"expected a pipeline of Stable Diffusion 1.x, 2.x or XL, found {fields.get('_class_name')} {what}"
        raise ValueError(f"{folder / INDEX}: {expected}; name another folder")
    return {key: value for key, value in fields.items() if not isinstance(value, list) or any(value)}


def _in_single_file(path: Path) -> list[str]:
    """The networks of a single file; one that is missing is reported when it is read."""
    keys = set(TensorFiles(path))
    texts = [kind for kind, _ in TEXT if single_file.prefix_of(kind, keys) is not None]
    return ["unet", "vae", *(texts or ["text_encoder"])]


def _scheduler(path: Path, unet: Any, prediction: str | None) -> tuple[Sampler, Schedule | FlowSchedule]:
    """The base's own sampler and schedule."""
    file = (path if path.is_dir() else path.parent) / SCHEDULER
    if path.is_dir() or file.is_file():
        with about(file):
            sampler, schedule = from_json(read_json(file))
    elif unet.addition_embed_type is not None:
        sampler, schedule = by_name("euler"), Schedule(timestep_spacing="leading")
    elif unet.use_linear_projection and prediction is None:
        ways = "give prediction (--prediction): epsilon for the base models, v_prediction for those of 768 pixels"
        raise ValueError(f"{path}: a file of 2.x holds no prediction type; {ways}; or put {SCHEDULER} beside it")
    else:
        sampler, schedule = by_name("plms"), Schedule()
    if prediction is None:
        return sampler, schedule
    if not isinstance(schedule, Schedule):
        raise ValueError(f"{file}: prediction {prediction!r} does not fit a flow-matching schedule; leave it out")
    return sampler, dataclasses.replace(schedule, prediction_type=prediction)


def _tokenizer(path: Path, given: str | Path | None, name: str, text_encoder: TextConfig) -> Tokenizer:
    """The given tokenizer, the folder's own (`name`), or one beside a single file."""
    beside = path.parent
    if given is None and path.is_file():
        places = [beside / known for known in (name, "tokenizer", BPE_FILE, "vocab.json")]
        found = next((place for place in places if place.exists()), None)
        if found is None:
            expected = f"a folder tokenizer, {BPE_FILE} or vocab.json with merges.txt beside it"
            way = "put one there, or give tokenizer (--tokenizer)"
            raise FileNotFoundError(f"{path}: a single file holds no tokenizer; expected {expected}, found none: {way}")
        given = beside if found.suffix == ".json" else found
    source = local(given) if given is not None else path / name
    pad = OPEN_CLIP_PAD if text_encoder.hidden_act == "gelu" else END
    if source.suffix == ".gz":
        return Tokenizer.from_bpe_file(source, pad=pad)
    tokenizer = Tokenizer.from_folder(source)
    own = source.name == name or name == "tokenizer"
    return tokenizer if own else Tokenizer(tokenizer.vocab, tokenizer.merges, pad=pad)  # SDXL's two differ in padding


def read_tokenizer(name_or_path: str | Path | None = None) -> Tokenizer:
    """The tokenizer of a base's first text encoder, or from a folder of its own; errors as `read_base`."""
    path = BASES.find(name_or_path)
    if path.is_dir():
        return Tokenizer.from_folder(path)
    kinds = _in_single_file(path)
    kind, name = next((kind, name) for kind, name in TEXT if kind in kinds)
    return _tokenizer(path, None, name, read_component(kind, path).config)


def save_base(
    folder: str | Path, base: Base, networks: Mapping[str, Any], dtype: Any = None, *, overwrite: bool = False
) -> Path:
    """Write a folder that `read_base` and diffusers read; returns it. Its index is written last.

    `networks` are by kind; a VAE may be None or missing. `dtype` is of the stored weights; None: each network's own.
    Raises FileExistsError for a folder that is not empty, unless `overwrite` (other files in it stay), and ValueError
    for an option of the sampler that a scheduler file cannot hold, and for a tokenizer with words of its own."""
    folder = Path(folder)
    if words := [word for _, _, tokenizer in base.texts for word in tokenizer.words]:
        raise ValueError(f"the embedding {words[0]!r} has no place in a folder of diffusers; save the base without it")
    if not overwrite and folder.exists() and any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty; give another folder, or overwrite=True")
    scheduler = to_json(base.sampler, base.schedule)
    (folder / INDEX).unlink(missing_ok=True)
    refiner = base.sizes == 5 and base.task == TEXT_TO_IMAGE
    pipeline = REFINER if refiner else PIPELINES[base.task][base.sizes > 0]
    index: dict[str, Any] = {"_class_name": pipeline}  # of components [library, class], or two nulls for none
    for kind in KINDS:
        network = networks.get(kind)
        if kind == "text_encoder_2" and network is None:
            continue
        index[kind] = [None, None]
        if network is not None:
            library = "transformers" if kind.startswith("text_encoder") else "diffusers"
            index[kind] = [library, getattr(network.config, "class_name", network.config.architecture)]
            own = jax.tree.leaves(nnx.state(network))[0].dtype
            save_component(folder / kind, network, dtype=own if dtype is None else dtype, overwrite=overwrite)
    for _, name in TEXT:
        tokenizer = getattr(base, name)
        if tokenizer is not None:
            tokenizer.save(folder / name, base.length, overwrite=overwrite)
            index[name] = ["transformers", "CLIPTokenizer"]
    index |= {"scheduler": ["diffusers", scheduler["_class_name"]]} | {name: [None, None] for name in IGNORED}
    if base.sizes:
        index |= {"force_zeros_for_empty_prompt": base.zero_empty, "tokenizer": index.get("tokenizer", [None, None])}
        index |= {"requires_aesthetics_score": True} if refiner else {}
    else:
        index["requires_safety_checker"] = False
    for path, value in ((folder / SCHEDULER, scheduler), (folder / INDEX, index)):
        with atomic_output(path, overwrite) as temporary:
            temporary.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", "utf-8")
    return folder
