"""The options of each command of `reveal`, as dataclasses that tyro reads, and what the commands share: opening the
network and its memory, and printing text or JSON."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from common import terminal
from common.io.files import require_file
from common.io.tensor_files import read_json
from common.terminal import Flag, Printing
from common.weights.remote import is_address, local
from reveal import pretrained
from reveal.memory.folder import ENCODER

if TYPE_CHECKING:
    from reveal.memory.memory import Memory
    from reveal.two_tower_assistant import AnyAssistant

PROGRAM = "reveal"
Output = Annotated[str, tyro.conf.arg(aliases=["-o"])]
Number = Annotated[int | None, tyro.conf.arg(aliases=["-k"])]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Changing:
    """Options of all commands that change a memory."""

    memory: tyro.conf.Positional[str]
    """Folder of the memory."""
    wait: float = 0.0
    """Seconds to wait while another program changes the memory."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Network(Printing):
    """Options of all commands that need a network."""

    weights: str | None = None
    """Weights file, folder of a run, address (hf:OWNER/NAME, https://...), or shipped name; None: countries."""
    tokenizer: str | None = None
    """Tokenizer of the training, x.model or x.json; None: the one beside the weights."""
    encoder: str | None = None
    """Folder or address of a CLIP or SigLIP, in place of --weights; None: the memory's, if one made it."""
    reader: str | None = None
    """Folder or address of a T5 1.1 or FLAN-T5 that writes the answers from what --encoder finds; None: the passage is
    quoted."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Searching(Network):
    """Options of all commands that search."""

    sources: str | None = None
    """Sources to search, as in a,b; None: all."""
    k: Number = None
    """Number of items; None: 4 to read, 10 to list."""
    engine: Literal["exact", "faiss", "faiss:ivfpq", "faiss:hnsw", "milvus"] = "exact"
    """Search engine; ivfpq and hnsw are approximate."""
    milvus: str | None = None
    """Milvus server (http://host:19530) or file (keys.db), with --engine milvus."""
    milvus_token: str | None = None
    """Its token, or user:password; None: the environment's MILVUS_TOKEN."""

    def source_names(self) -> list[str] | None:
        return None if self.sources is None else split_names(self.sources)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reading:
    """Options of all commands that read items."""

    source: str | None = None
    """Source of items whose data names none."""
    renumber: Flag = False
    """Renumber items in the order in which they are read."""
    picture_side: int | None = None
    """Longest side of stored images in pixels; 0: files as they are; None: 256, or the network's side."""
    quiet: Flag = False
    """Print no progress bar and no notes."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Build(Reading, Network):
    """Build a memory from knowledge sources; an interrupted build resumes."""

    inputs: tyro.conf.Positional[tuple[str, ...]]
    """A folder of images and texts, an items.jsonl, or READER:PATH,option=value (docs/reveal-command.md)."""
    output: Output
    """Folder of the memory."""
    names: str | None = None
    """Names of the network's sources in order, as in a,b, for weights that have none."""
    vectors: int = 1
    """Vectors of an item with --encoder, 1 to 50: of its image and N - 1 crops, of its text and the first N - 1
    sentences; 5 or 10 find small objects in photos."""
    shard: int | None = None
    """Items per shard file, the most that an interruption loses; None: 16384."""
    overwrite: Flag = False
    """Replace an existing memory once the new one is complete."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Add(Changing, Reading, Network):
    """Add items to a memory, or edit some, without training."""

    inputs: tyro.conf.Positional[tuple[str, ...]] = ()
    """As for build; none with --text or --image."""
    text: str | None = None
    """Text of a single item."""
    image: str | None = None
    """Image of a single item."""
    id: int | None = None
    """Id of a single item; None: the next free one."""
    edit: Flag = False
    """Replace existing items with the same id; of a single item, --text replaces all texts and the rest stays."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Remove(Changing, Printing):
    """Delete items from a memory."""

    ids: tyro.conf.Positional[tuple[int, ...]]
    """Ids of the items."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Search(Searching):
    """List the items that match a text, an image, or both best."""

    memory: tyro.conf.Positional[str]
    """Folder of the memory."""
    query: tyro.conf.Positional[str] = ""
    """Query text."""
    text: str = ""
    """The same, as an option."""
    image: str | None = None
    """Query image."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ask(Searching):
    """Answer a question about an image, with the items that the answer was read from."""

    image: tyro.conf.Positional[str]
    """Image of the question; - for none."""
    question: tyro.conf.Positional[str] = ""
    """Question; without it, networks that were trained to describe images do so."""
    memory: str | None = None
    """Folder of the memory, or shipped name; None: countries."""
    no_memory: Flag = False
    """Answer without retrieval."""
    beams: int | None = None
    """Beam width; 1 decodes greedily; None: 4."""
    sheet: str | None = None
    """Image file to draw the answer and its items into."""
    overwrite: Flag = False
    """Replace the sheet if it exists."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verify(Printing):
    """Read all files of a memory and compare them with their checksums."""

    memory: tyro.conf.Positional[str | None] = None
    """Folder of the memory, or shipped name; None: countries."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Info(Verify):
    """Print the contents of a memory and the network that made it, or list the weights on this machine."""

    list: Flag = False
    """List the shipped and downloaded weights on this machine, with size, licence and source."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Refresh(Changing, Network):
    """Re-encode all items of a memory with other weights; the items themselves stay."""

    names: str | None = None
    """Names of the network's sources in order, as in a,b, for weights that have none."""
    quiet: Flag = False
    """No progress bar."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compact(Changing, Printing):
    """Free the space of deleted and edited items."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Watch(Network):
    """Keep a memory in sync with folders of photos and notes, until Ctrl-C."""

    inputs: tyro.conf.Positional[tuple[str, ...]]
    """The folders that the memory was built of."""
    memory: str
    """Folder of the memory."""
    once: Flag = False
    """Update the memory once, and exit."""
    picture_side: int | None = None
    """Longest side of stored images in pixels; 0: files as they are; None: 256, or the encoder's side."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Convert(Printing):
    """Make weights from published ones: T5 with a ViT, CLIP or SigLIP, or a REVEAL of scenic's."""

    paths: tyro.conf.Positional[tuple[str, ...]]
    """Folders and files to read, and at the end the file to write."""
    sources: int = 4
    """Number of knowledge sources of the network."""
    fusion_layers: int | None = None
    """Number of upper T5 encoder layers used for fusion; None: 6 of 12, 8 of 24, else half."""
    key_dim: int = 512
    """Length of keys."""
    value_tokens: int = 32
    """Tokens of a value."""
    seed: int = 0
    """Random seed of the parts that no published network has."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Type of the stored weights."""
    overwrite: Flag = False
    """Replace an existing file."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Web(Network):
    """Serve a page in the browser that answers questions (needs the `demo` extra)."""

    memory: str | None = None
    """Folder of the memory, of which a copy is edited; None: the shipped one."""
    serving: Annotated[terminal.Serving, tyro.conf.arg(name="")] = dataclasses.field(default_factory=terminal.Serving)


GROUPS = {"network": (Network,), "search": (Searching,), "item": (Reading,)}  # sections of the commands' help


def load_assistant(
    command: Network,
    memory: "str | Memory | None" = None,
    *,
    names: Sequence[str] = (),
    default_sources: Sequence[str] = (),
    vectors: int = 1,
) -> "AnyAssistant":
    """The network that a command names, with the memory, or for a new one with `vectors` in a key. What can be checked
    without JAX is checked first."""
    from reveal.memory.engines.engine import engine_of
    from reveal.memory.memory import Memory

    memory = Memory(memory) if isinstance(memory, str) else memory
    encoder, reader = published_networks(command, None if memory is None else memory.folder)
    weights = None
    if encoder is None:
        weights = require_file(pretrained.weights(command.weights))
        if command.tokenizer is not None:
            require_file(command.tokenizer)
    if isinstance(command, Searching):
        if (command.milvus is None) == (command.engine == "milvus"):
            raise ValueError("--engine milvus and --milvus URI go together: give both, or none")
        if command.milvus is None and command.milvus_token is not None:
            raise ValueError("--milvus-token is for --engine milvus: give its --milvus URI too")
        if memory is not None:
            token = os.environ.get("MILVUS_TOKEN", "") if command.milvus_token is None else command.milvus_token
            memory.engine = engine_of(command.milvus or command.engine, memory.folder, token)

    from common.runtime import setup

    setup()
    if encoder is not None:
        from reveal.two_tower_assistant import TwoTowerAssistant

        return TwoTowerAssistant.load(encoder, memory, reader, sources=names or default_sources, vectors=vectors)
    from reveal.assistant import Assistant

    return Assistant.load(weights, command.tokenizer, memory, sources=names, default_sources=default_sources)


def published_networks(command: Network, memory: Path | None) -> tuple[str | None, str | None]:
    """Folders of the encoder and the reader: those of the command, else those that the memory remembers; addresses are
    fetched. Raises ValueError for an encoder with weights, or a reader without an encoder; FileNotFoundError for a
    missing one; and as `common.weights.remote.local`."""
    known: Mapping[str, Any] = {}
    if memory is not None and (memory / ENCODER).is_file() and command.weights is None:
        known = read_json(memory / ENCODER)
    encoder, reader = command.encoder or known.get("encoder"), command.reader or known.get("reader")
    if encoder is not None and command.weights is not None:
        raise ValueError("--encoder and --weights are two networks: give one")
    if encoder is None and reader is not None:
        raise ValueError("--reader reads what --encoder finds: give the folder of a CLIP or SigLIP too")
    encoder, reader = (str(local(one, pickles=True)) if one and is_address(one) else one for one in (encoder, reader))
    for option, folder in (("--encoder", encoder), ("--reader", reader)):
        if folder is not None and not Path(folder).is_dir():
            raise FileNotFoundError(f"{folder}: no such folder; say with {option} where the network is now")
    return encoder, reader


def split_names(names: str | None) -> list[str]:
    """The names in "a,b", each once."""
    return list(dict.fromkeys(name.strip() for name in (names or "").split(",") if name.strip()))
