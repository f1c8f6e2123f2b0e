"""What the words of `reveal` do (`cli.py`). What needs no network comes first: a mistake is answered at once."""

from __future__ import annotations

import contextlib
import errno
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import terminal
from common.io.files import check_output_file, require_file
from common.io.images import check_writable, image_size
from reveal import pretrained
from reveal.cli import main
from reveal.evidence import as_json, columns, short, text_of
from reveal.memory.engines.registry import engine_of, milvus
from reveal.memory.folder import bytes_on_disk, check_ours, discard, replace
from reveal.memory.items import Item, ids_of, is_text
from reveal.memory.manifest import NAME
from reveal.memory.store import Store
from reveal.sources.registry import items_of

if TYPE_CHECKING:
    from reveal.assistant import Assistant
    from reveal.build.report import Report
    from reveal.memory.engines.engine import Engine

NO_IMAGE = "-"
GOES_ON = "the same command goes on from the last whole file"
BUILDING = ".building"  # behind the name of a memory that is to take another's place


def build(command: main.Build) -> None:
    """Raises as `construction.build`; FileExistsError also for a memory that is there."""
    sources = [items_of(word, command.source) for word in command.inputs]
    if not sources:
        raise ValueError("nothing to build of: give a folder, an items.jsonl, or READER:PATH")
    folder = target = Path(command.output)
    if not folder.exists() and (_beside(folder) / NAME).exists():  # killed when it was about to take its place
        _beside(folder).rename(folder)
    if (folder / NAME).exists():
        if not command.overwrite:
            raise FileExistsError(
                f"{folder} holds a memory already: `reveal add` adds to it, --overwrite replaces it, or name another"
            )
        check_ours(folder)
        target = _beside(folder)
    assistant = _load(command, names=_split(command.names) or ())

    from reveal.build import memory_build

    how = {"renumber": command.renumber, "side": command.picture_side, "progress": not command.quiet}
    shard = memory_build.SHARD if command.shard is None else command.shard
    if target != folder and (target / NAME).exists():
        discard(target)  # of a program that was killed before this took the old one's place: of what, nobody knows
    with _room(target, "make room, and the same command goes on from there"), terminal.stopping(GOES_ON):
        try:
            report = memory_build.build(target, sources, assistant, **how, shard=shard)
        except (FileExistsError, memory_build.Changed):
            if not command.overwrite or (target / NAME).exists():
                raise
            discard(target)
            report = memory_build.build(target, sources, assistant, **how, shard=shard)
    if target != folder:
        said = f"{main.PROGRAM}: {folder} is being changed by another program; waiting for its end"
        with terminal.stopping(f"the new memory is whole: move {target} to {folder}"):
            replace(folder, target, lambda: terminal.complain(said))
    _tell_report(command, report, folder)


def add(command: main.Add) -> None:
    """Raises as `construction.add`."""
    one = command.text is not None or command.image is not None
    if one == bool(command.inputs) or (command.id is not None and not one):
        raise ValueError("give sources, or one item with --text, --image or both; --id is of one item")
    if command.edit and one and command.id is None:
        raise ValueError("--edit needs --id: which item to put this in the place of")
    sources = [items_of(word, command.source) for word in command.inputs]
    item = _one_item(command, Store(command.memory)) if one else None
    assistant = _load(command, command.memory)
    memory = assistant.memory
    assert memory is not None

    from reveal.build import memory_build

    how = {"edit": command.edit, "renumber": command.renumber}
    options = {"side": command.picture_side, "progress": not command.quiet}
    with _room(command.memory, "this change was not made; make room and try again"):
        if item is None:
            report = memory_build.add(memory, sources, assistant, **how, **options)
        else:
            report = memory_build.add_one(memory, item, assistant, command.edit, command.picture_side)
    _tell_report(command, report, Path(command.memory))


def remove(command: main.Remove) -> None:
    """Raises ValueError for an id that is not there; then none is taken out."""
    store = Store(command.memory)
    if not command.ids:
        raise ValueError("no item to take out: give its id, which `reveal search` and `reveal ask` print")
    store.delete(list(dict.fromkeys(command.ids)))
    count, version = len(set(command.ids)), store.manifest.version
    told = {"memory": command.memory, "removed": count, "items": len(store), "version": version}
    _tell(command.json, f"{count:,} items taken out; {command.memory}: {len(store):,} items, version {version}", told)


def search(command: main.Search) -> None:
    """Raises as `Assistant.search`."""
    if command.image is not None:
        image_size(command.image)
    assistant = _load(command, command.memory)
    found = assistant.search(command.image, command.text, command.k, _sources(command))
    _warn_of_unknown(assistant, command.text)
    rows = [(str(item.id), item.source, f"{score:.3f}", short(text_of(item))) for item, score in found]
    told = {"memory": command.memory, "items": [as_json(item) | {"score": score} for item, score in found]}
    _tell(command.json, columns(("id", "source", "score", "text"), rows), told)


def ask(command: main.Ask) -> None:
    """Raises as `Assistant.ask`."""
    image = None if command.image == NO_IMAGE else command.image
    if image is not None:
        image_size(image)
    elif not command.question.strip():
        raise ValueError("neither a picture nor a question: give one, or both")
    if command.sheet is not None:
        check_writable(command.sheet)
        check_output_file(command.sheet, command.overwrite)
    if command.beams is not None and command.beams < 1:
        raise ValueError(f"--beams {command.beams}: 1 (greedy) or more")
    if command.no_memory and (command.memory or command.k or command.sources):
        raise ValueError("--no-memory reads no items: leave out --memory, --sources and -k")
    memory = None if command.no_memory else command.memory or str(pretrained.memory())
    assistant = _load(command, memory)
    from reveal.network.generator import likeliest

    how = None if command.beams is None else likeliest(assistant.inputs.answer_length, command.beams)
    told = assistant.ask(image, command.question, command.k, _sources(command), how)
    _warn_of_unknown(assistant, command.question)
    if command.sheet is not None:
        from reveal.evidence_sheet import write_sheet

        write_sheet(command.sheet, told, image, command.overwrite)
    read = [told.first_hop.line()] if told.first_hop else []
    read += [told.table()] if told.pieces else []
    text = "\n".join([told.answer or "(nothing)", *(["", *read] if read else [])])
    _tell(command.json, text, told.as_json() | {"memory": memory})


def info(command: main.Info) -> None:
    """Raises as `Store`."""
    store = Store(command.memory or pretrained.memory())
    manifest, layout, size = store.manifest, store.layout, bytes_on_disk(store.folder)
    rows = sum(shard.rows for shard in manifest.shards)
    dead, values = rows - len(store), f"{'x'.join(map(str, layout.value_shape))} {layout.value_dtype}"
    told = {
        "memory": str(store.folder),
        "items": len(store),
        "sources": manifest.counts,
        "version": manifest.version,
        "encoder": layout.encoder,
        "key": [layout.key_dim, layout.key_dtype],
        "value": [*layout.value_shape, layout.value_dtype],
        "shards": len(manifest.shards),
        "dead": dead,
        "bytes": size,
        "bytes_per_item": size / max(rows, 1),
        "hash": manifest.hash(),
    }
    lines = [f"{store.folder}: {len(store):,} items, version {manifest.version}"]
    lines += [f"  {name:20}{count:>12,}" for name, count in manifest.counts.items()]
    lines += [
        f"encoder   {layout.encoder}",
        f"an item   key {layout.key_dim} {layout.key_dtype}, value {values}, {size / max(rows, 1):,.0f} bytes with all",
        f"disk      {size / 1e6:,.1f} MB in {len(manifest.shards):,} shards, {dead:,} rows deleted or edited",
        f"contents  {manifest.hash()}",
    ]
    _tell(command.json, "\n".join(lines), told)


def refresh(command: main.Refresh) -> None:
    """Raises as `construction.refresh`."""
    store = Store(command.memory)
    assistant = _load(command, names=_split(command.names) or (), otherwise=store.layout.sources)

    from reveal.build import memory_build

    with _room(command.memory, "the memory is as it was; make room and try again"):
        report = memory_build.refresh(command.memory, assistant, progress=not command.quiet)
    _tell_report(command, report, Path(command.memory))


def compact(command: main.Compact) -> None:
    """Raises as `Store`."""
    store = Store(command.memory)
    before, rows = bytes_on_disk(store.folder), sum(shard.rows for shard in store.manifest.shards)
    with _room(command.memory, "the memory is as it was; make room and try again"):
        store.compact()
    size, dead, version = bytes_on_disk(store.folder), rows - len(store), store.manifest.version
    told = {"memory": command.memory, "items": len(store), "removed": dead, "version": version, "bytes": size}
    said = f"{dead:,} rows of deleted and edited items removed, {before / 1e6:,.1f} MB became {size / 1e6:,.1f} MB"
    _tell(command.json, f"{said}; {command.memory}: {len(store):,} items, version {version}", told)


def _load(
    command: main.Network,
    memory: str | None = None,
    *,
    names: Sequence[str] = (),
    otherwise: Sequence[str] = (),
) -> Assistant:
    """The network that a command names. What can be checked without JAX is checked first."""
    if memory is not None:
        Store(memory)
    path = require_file(_weights(command.weights))
    if command.tokenizer is not None:
        require_file(command.tokenizer)
    engine = _engine(command, memory) if isinstance(command, main.Searching) else None

    from common.runtime import setup
    from reveal.assistant import Assistant

    setup()
    how = {"engine": engine, "sources": names, "otherwise": otherwise}
    return Assistant.load(path, command.tokenizer, memory, **how)


def _weights(name: str | None) -> Path:
    if name is None:
        return pretrained.weights()
    return Path(name) / pretrained.WEIGHTS if Path(name).is_dir() else Path(name)


def _engine(command: main.Searching, memory: str | None) -> Engine | None:
    """None: the exact one, or no memory to search."""
    if (command.milvus is None) == (command.engine == "milvus"):
        raise ValueError("--engine milvus and --milvus URI go together: give both, or none")
    if memory is None:
        return None
    if command.milvus is not None:
        return milvus(command.milvus, memory)
    return engine_of(command.engine, memory)


def _one_item(command: main.Add, store: Store) -> Item:
    """The item of `reveal add --text --image`. Of an edited one a text takes the place of all texts, a picture that of
    the picture, and the rest stays."""
    ids_of([] if command.id is None else [command.id])
    before = store.items([command.id])[0] if command.edit and command.id is not None else None
    picture = None if command.image is None else require_file(command.image).read_bytes()
    if command.image is not None:
        image_size(command.image)
    fields = {} if before is None else dict(before.fields)
    if command.text is not None:
        fields = {name: value for name, value in fields.items() if not is_text(value)} | {"text": command.text}
    source = command.source or (before.source if before is not None else None)
    names: tuple[str, ...] = store.layout.sources
    if source is None and len(names) > 1:
        raise ValueError(f"which source is it like? --source, one of {', '.join(names)}")
    source = source or next(iter(names))
    store.layout.number(source)
    kept = picture if picture is not None or before is None else before.picture
    return Item(source, fields, kept, command.id)


def _warn_of_unknown(assistant: Assistant, text: str) -> None:
    if unknown := assistant.inputs.unknown(text):
        terminal.complain(f"{main.PROGRAM}: not in the network's vocabulary: {', '.join(unknown)}")


@contextlib.contextmanager
def _room(folder: str | Path, way_out: str) -> Iterator[None]:
    """A full disk, told with what follows from it."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise OSError(f"no space left for {folder} ({error.strerror}): {way_out}") from error
        raise


def _split(names: str | None) -> list[str] | None:
    return None if names is None else [name.strip() for name in names.split(",") if name.strip()]


def _sources(command: main.Searching) -> list[str] | None:
    """Each once: so many items are there to be asked for as they have."""
    names = _split(command.sources)
    return None if names is None else list(dict.fromkeys(names))


def _beside(folder: Path) -> Path:
    """Where a memory is built that is to take this one's place."""
    if folder.name in ("", ".."):
        raise ValueError(f"-o {folder} is to be replaced: go out of it, and give the folder by its name")
    return folder.with_name(folder.name + BUILDING)


def _tell_report(command: Any, report: Report, folder: Path) -> None:
    told = report.at(folder)
    _tell(command.json, str(told), told.as_json())


def _tell(as_json: bool, text: str, data: Mapping[str, Any]) -> None:
    terminal.say(json.dumps(data) if as_json else text)  # ASCII, of which a terminal shows nothing escaped
