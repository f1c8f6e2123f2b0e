"""The commands of `reveal` that change a memory: build, add, remove, refresh, compact."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import terminal
from common.io.files import require_file
from common.io.images import image_size
from reveal.cli import commands
from reveal.cli.commands import PROGRAM
from reveal.cli.opening import load_assistant, split_names, tell
from reveal.memory.folder import bytes_on_disk, check_ours, discard, replace
from reveal.memory.items import Item, ids_of, is_text
from reveal.memory.manifest import NAME
from reveal.memory.store import Store
from reveal.sources.registry import items_of

if TYPE_CHECKING:
    from reveal.build.report import Report

GOES_ON = "the same command goes on from the last whole file"
BUILDING = ".building"  # behind the name of a memory that is to take another's place


def build(command: commands.Build) -> None:
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
    assistant = load_assistant(command, names=split_names(command.names) or ())

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
        said = f"{PROGRAM}: {folder} is being changed by another program; waiting for its end"
        with terminal.stopping(f"the new memory is whole: move {target} to {folder}"):
            replace(folder, target, lambda: terminal.complain(said))
    _tell_report(command, report, folder)


def add(command: commands.Add) -> None:
    """Raises as `construction.add`."""
    one = command.text is not None or command.image is not None
    if one == bool(command.inputs) or (command.id is not None and not one):
        raise ValueError("give sources, or one item with --text, --image or both; --id is of one item")
    if command.edit and one and command.id is None:
        raise ValueError("--edit needs --id: which item to put this in the place of")
    sources = [items_of(word, command.source) for word in command.inputs]
    item = _one_item(command, Store(command.memory)) if one else None
    assistant = load_assistant(command, command.memory)
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


def remove(command: commands.Remove) -> None:
    """Raises ValueError for an id that is not there; then none is taken out."""
    store = Store(command.memory)
    if not command.ids:
        raise ValueError("no item to take out: give its id, which `reveal search` and `reveal ask` print")
    store.delete(list(dict.fromkeys(command.ids)))
    count, version = len(set(command.ids)), store.manifest.version
    told = {"memory": command.memory, "removed": count, "items": len(store), "version": version}
    tell(command.json, f"{count:,} items taken out; {command.memory}: {len(store):,} items, version {version}", told)


def refresh(command: commands.Refresh) -> None:
    """Raises as `construction.refresh`."""
    store = Store(command.memory)
    assistant = load_assistant(command, names=split_names(command.names) or (), default_sources=store.layout.sources)

    from reveal.build import memory_build

    with _room(command.memory, "the memory is as it was; make room and try again"):
        report = memory_build.refresh(command.memory, assistant, progress=not command.quiet)
    _tell_report(command, report, Path(command.memory))


def compact(command: commands.Compact) -> None:
    """Raises as `Store`."""
    store = Store(command.memory)
    before, rows = bytes_on_disk(store.folder), sum(shard.rows for shard in store.manifest.shards)
    with _room(command.memory, "the memory is as it was; make room and try again"):
        store.compact()
    size, dead, version = bytes_on_disk(store.folder), rows - len(store), store.manifest.version
    told = {"memory": command.memory, "items": len(store), "removed": dead, "version": version, "bytes": size}
    said = f"{dead:,} rows of deleted and edited items removed, {before / 1e6:,.1f} MB became {size / 1e6:,.1f} MB"
    tell(command.json, f"{said}; {command.memory}: {len(store):,} items, version {version}", told)


def _one_item(command: commands.Add, store: Store) -> Item:
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


@contextlib.contextmanager
def _room(folder: str | Path, way_out: str) -> Iterator[None]:
    """A full disk, told with what follows from it."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise OSError(f"no space left for {folder} ({error.strerror}): {way_out}") from error
        raise


def _beside(folder: Path) -> Path:
    """Where a memory is built that is to take this one's place."""
    if folder.name in ("", ".."):
        raise ValueError(f"-o {folder} is to be replaced: go out of it, and give the folder by its name")
    return folder.with_name(folder.name + BUILDING)


def _tell_report(command: Any, report: Report, folder: Path) -> None:
    told = report.at(folder)
    tell(command.json, str(told), told.as_json())
