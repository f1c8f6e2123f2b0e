"""A whole base from the files that people have: a diffusers folder, or a single file of Stable Diffusion.

`Base` is everything except the weights: three architectures, a tokenizer, a noise schedule and a sampler. It is small
and read from headers, so requests are checked and `plugins info` answers before gigabytes are read. Components have to
fit one another:

    tokenizer --ids--> text encoder --states--> UNet --latents--> VAE --> image

A base without a VAE works on pixels: its "latents" are images in [-1, 1].

    files = read_base("v1-5-pruned-emaonly.safetensors", tokenizer="clip-vocabulary/")   # everything except the weights
    networks = load_networks(files, "bfloat16")                                           # the weights
    save_base("out", base, networks)                                                      # a folder

| component | folder | single file (safetensors, LDM names) |
| --- | --- | --- |
| list of networks | model_index.json | the prefixes of its tensors |
| unet, vae, text_encoder | NAME/config.json and weights | tensors; architectures are inferred from their shapes |
| tokenizer | tokenizer/ | not in it: given, or beside the file |
| schedule, sampler | scheduler/scheduler_config.json | not in it: beside the file, or those of SD 1.5 |

The package ships bases as `plugins/weights/NAME/`, diffusers folders with a `model_index.json`.
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
from common.io.tensor_files import about, listing, read_json
from common.nn.text_encoder import TextConfig
from common.weights.torch_names import fill
from plugins.diffusion.io.components import KINDS, Component, read_component, save_component
from plugins.diffusion.io.porting import network_dtype
from plugins.diffusion.networks.unet_config import UNetConfig
from plugins.diffusion.networks.vae import VAEConfig
from plugins.diffusion.samplers import Sampler, by_name
from plugins.diffusion.samplers.scheduler_config import from_json, to_json
from plugins.diffusion.samplers.schedules import FlowSchedule, Schedule

WEIGHTS = Path(__file__).parents[2] / "weights"
DEFAULT = "diffusion-small"
INDEX = "model_index.json"  # lists a pipeline's components
SCHEDULER = "scheduler/scheduler_config.json"
BPE_FILE = "bpe_simple_vocab_16e6.txt.gz"  # OpenAI's vocabulary, in OpenCLIP's package
REQUIRED = ("unet", "text_encoder", "tokenizer", "scheduler")
IGNORED = ("safety_checker", "feature_extractor", "image_encoder")
OPEN_CLIP_PAD = "!"
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


class BaseFiles(NamedTuple):
    """An opened base: its path, everything except the weights, and its networks' files by kind."""

    path: Path
    base: Base
    components: Mapping[str, Component]

    @property
    def parameters(self) -> int:
        """Of all networks together."""
        return sum(component.parameters for component in self.components.values())


def names() -> list[str]:
    """Names of the shipped bases."""
    return sorted(path.parent.name for path in WEIGHTS.glob(f"*/{INDEX}"))


def find(name_or_path: str | Path | None = None) -> Path:
    """The folder of a shipped name, or the path itself; None: the default. Raises FileNotFoundError with the names."""
    wanted = DEFAULT if name_or_path is None else str(name_or_path)
    if wanted in names():
        return WEIGHTS / wanted
    path = Path(wanted)
    if name_or_path is not None and path.exists():
        return path
    shipped = ", ".join(names()) or "none is shipped"
    missing = "no base is named" if name_or_path is None else f"no base {wanted!r}"
    raise FileNotFoundError(f"{missing}: give a diffusers folder, a safetensors file, or a shipped name ({shipped})")


def read_base(
    name_or_path: str | Path | None = None,
    *,
    tokenizer: str | Path | None = None,
    prediction: str | None = None,
    variant: str | None = None,
) -> BaseFiles:
    """A base without its weights, from a shipped name, a diffusers folder or a single file; None: the shipped default.

    `tokenizer`, a folder or OpenAI's list of merges (.gz), replaces the base's own; `prediction`, the UNet's prediction
    type, the scheduler's (a single file of 2.x requires it). `variant` is "fp16" for that variant of a folder's files.
    Raises FileNotFoundError and ValueError."""
    path = find(name_or_path)
    kinds = _listed(path) if path.is_dir() else list(KINDS)
    components = {kind: read_component(kind, path, variant=variant) for kind in kinds}
    configs: dict[str, Any] = {"vae": None} | {kind: component.config for kind, component in components.items()}
    sampler, schedule = _scheduler(path, configs["unet"], prediction)
    chosen = _tokenizer(path, tokenizer, configs["text_encoder"])
    with about(path):
        return BaseFiles(path, Base(**configs, tokenizer=chosen, schedule=schedule, sampler=sampler), components)


def load_networks(files: BaseFiles, dtype: Any = jnp.float32) -> dict[str, Any]:
    """The networks by kind, their parameters as `dtype`: float32, bfloat16 or float16 (then the VAE stays float32)."""
    networks = {}
    for kind, component in files.components.items():
        with about(files.path / kind if files.path.is_dir() else files.path):
            networks[kind] = fill(KINDS[kind].module, component.config, component.tensors, network_dtype(kind, dtype))
    return networks


def _listed(folder: Path) -> list[str]:
    """The networks in a folder's model_index.json."""
    if not (folder / INDEX).is_file():
        found = listing(folder)
        raise FileNotFoundError(f"{folder}: expected {INDEX} of a diffusers pipeline, found {found}; name another")
    fields = read_json(folder / INDEX)
    listed = {key for key, value in fields.items() if isinstance(value, list) and any(value)}
    other = sorted(listed - {*REQUIRED, "vae", *IGNORED})
    missing = [name for name in REQUIRED if name not in listed]
    if other or missing:
        what = f"with {', '.join(other)}" if other else f"without {', '.join(missing)}"
        raise ValueError(
            f"{folder / INDEX}: expected a pipeline of Stable Diffusion 1.x or 2.x, found"
            f" {fields.get('_class_name')} {what}; name another folder"
        )
    return [kind for kind in KINDS if kind in listed]


def _scheduler(path: Path, unet: Any, prediction: str | None) -> tuple[Sampler, Schedule | FlowSchedule]:
    """The base's own sampler and schedule."""
    file = (path if path.is_dir() else path.parent) / SCHEDULER
    if path.is_dir() or file.is_file():
        with about(file):
            sampler, schedule = from_json(read_json(file))
    elif unet.use_linear_projection and prediction is None:
        raise ValueError(
            f"{path}: a file of 2.x does not hold its prediction type; give prediction (--prediction): epsilon for the"
            " base models, v_prediction for those of 768 pixels"
        )
    else:
        sampler, schedule = by_name("plms"), Schedule()
    if prediction is None:
        return sampler, schedule
    if not isinstance(schedule, Schedule):
        raise ValueError(f"{file}: prediction {prediction!r} does not fit a flow-matching schedule; leave it out")
    return sampler, dataclasses.replace(schedule, prediction_type=prediction)


def _tokenizer(path: Path, given: str | Path | None, text_encoder: Any) -> Tokenizer:
    """The given tokenizer, the folder's own, or one beside a single file."""
    beside = path.parent
    if given is None and path.is_file():
        found = [p for p in (beside / "tokenizer", beside / BPE_FILE, beside / "vocab.json") if p.exists()]
        if not found:
            raise FileNotFoundError(
                f"{path}: a single file holds no tokenizer; expected a folder tokenizer, {BPE_FILE} or vocab.json with"
                " merges.txt beside it, found none: put one there, or give tokenizer (--tokenizer)"
            )
        given = beside if found[0].suffix == ".json" else found[0]
    source = Path(given) if given is not None else path / "tokenizer"
    if source.suffix == ".gz":
        return Tokenizer.from_bpe_file(source, pad=OPEN_CLIP_PAD if text_encoder.hidden_act == "gelu" else END)
    return Tokenizer.from_folder(source)


def save_base(
    folder: str | Path, base: Base, networks: Mapping[str, Any], dtype: Any = None, *, overwrite: bool = False
) -> Path:
    """Write a folder that `read_base` and diffusers read; returns it. Its index is written last.

    `networks` are by kind; a VAE may be None or missing. `dtype` is of the stored weights; None: each network's own.
    Raises FileExistsError for a folder that is not empty, unless `overwrite` (other files in it stay), and ValueError
    for an option of the sampler that a scheduler file cannot hold."""
    folder = Path(folder)
    if not overwrite and folder.exists() and any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty; give another folder, or overwrite=True")
    scheduler = to_json(base.sampler, base.schedule)
    (folder / INDEX).unlink(missing_ok=True)
    libraries = {"unet": "diffusers", "vae": "diffusers", "text_encoder": "transformers"}
    index: dict[str, Any] = {"_class_name": "StableDiffusionPipeline"}  # [library, class], or two nulls for none
    for kind in KINDS:
        network = networks.get(kind)
        index[kind] = [None, None] if network is None else [libraries[kind], KINDS[kind].config.architecture]
        if network is not None:
            own = jax.tree.leaves(nnx.state(network))[0].dtype
            save_component(folder / kind, network, dtype=own if dtype is None else dtype, overwrite=overwrite)
    base.tokenizer.save(folder / "tokenizer", base.length, overwrite=overwrite)
    index |= {"tokenizer": ["transformers", "CLIPTokenizer"], "scheduler": ["diffusers", scheduler["_class_name"]]}
    index |= {name: [None, None] for name in IGNORED} | {"requires_safety_checker": False}
    for path, value in ((folder / SCHEDULER, scheduler), (folder / INDEX, index)):
        with atomic_output(path, overwrite) as temporary:
            temporary.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", "utf-8")
    return folder
