"""The commands of `reveal` that change a memory: build, add, remove, refresh, compact."""

import contextlib
import dataclasses
import errno
import json
import math
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from common import terminal
from common.io.files import atomic_output, require_file
from common.io.images import image_size
from common.io.tensor_files import read_json
from reveal import pretrained
from reveal.cli import commands
from reveal.cli.commands import PROGRAM, load_assistant, published_networks, split_names
from reveal.memory.folder import ENCODER, bytes_on_disk, check_ours, discard, replace
from reveal.memory.items import Item, ids_of
from reveal.memory.manifest import NAME
from reveal.memory.memory import Memory
from reveal.sources.registry import Items, items_of

if TYPE_CHECKING:
    from reveal.build.memory_build import Report

RESUMES = "the same command resumes after the last whole file"
MOST_VECTORS = 50  # the whole and crops in a grid of 7 x 7; a build has views of hundreds of items in RAM
BUILDING = ".building"  # suffix of a memory that is to take another's place


def build(command: commands.Build) -> None:
    """Raises as `memory_build.build`; FileExistsError also for a memory that is there."""
    if not command.inputs:
        raise ValueError("no sources to build from: give a folder, an items.jsonl, or READER:PATH")
    encoder, reader = published_networks(command, None)
    if not 1 <= command.vectors <= MOST_VECTORS or (command.vectors > 1 and encoder is None):
        raise ValueError(f"--vectors {command.vectors}: give 1 to {MOST_VECTORS}, and above 1 only with --encoder")
    sources = _sources(command.inputs, command.source, encoder)
    folder = target = Path(command.output)
    if not folder.exists() and (_beside(folder) / NAME).exists():  # killed when it was about to take its place
        _beside(folder).rename(folder)
    if (folder / NAME).exists():
        if not command.overwrite:
            raise FileExistsError(f"{folder} holds a memory: `reveal add` adds to it, --overwrite replaces it")
        check_ours(folder)
        target = _beside(folder)
    own = [] if encoder is None else dict.fromkeys(source.source for source in sources)
    assistant = load_assistant(command, names=split_names(command.names) or [*own], vectors=command.vectors)

    from reveal.build import memory_build

    options = {"side": command.picture_side, "progress": not command.quiet, "renumber": command.renumber}
    options |= {} if command.shard is None else {"shard": command.shard}
    run = partial(memory_build.build, target, sources, assistant, **options)
    if target != folder and (target / NAME).exists():
        discard(target)  # complete, but killed before it took the other's place: its sources are not known
    with _room(target, "make room, and the same command resumes"), terminal.stopping(RESUMES):
        try:
            report = run()
        except (FileExistsError, memory_build.Changed):
            if not command.overwrite or (target / NAME).exists():
                raise
            discard(target)
            report = run()
    _remember(target, encoder, reader)
    if target != folder:
        waiting = f"{PROGRAM}: {folder} is being changed by another program; waiting for its end"
        with terminal.stopping(f"the new memory is complete: move {target} to {folder}, if it is still there"):
            replace(folder, target, lambda: terminal.complain(waiting))
    _write_report(command, report, str(folder))


def add(command: commands.Add) -> None:
    single = command.text is not None or command.image is not None
    if single == bool(command.inputs) or (command.id is not None and not single):
        raise ValueError("give sources, or one item with --text, --image or both; --id is of one item")
    if command.edit and single and command.id is None:
        raise ValueError("--edit needs --id, the item to replace")
    memory = _own(command.memory, command.wait)
    encoder, _ = published_networks(command, memory.folder)
    sources = _sources(command.inputs, command.source, encoder)
    item = _single_item(command, memory) if single else None
    assistant = load_assistant(command, memory)

    from reveal.build import memory_build

    with _room(command.memory, "this change was not made; make room and try again"):
        if item is None:
            options = {"edit": command.edit, "renumber": command.renumber, "side": command.picture_side}
            report = memory_build.add(memory, sources, assistant, **options, progress=not command.quiet)
        else:
            report = memory_build.add_one(memory, item, assistant, command.edit, command.picture_side)
    _write_report(command, report, command.memory)


def watch(command: commands.Watch) -> None:
    memory = _own(command.memory, wait=math.inf)
    encoder, _ = published_networks(command, memory.folder)
    if encoder is None or not command.inputs:
        raise ValueError("give the folders, and a memory that was built with --encoder: others have no such items")
    sources = _sources(command.inputs, None, encoder)
    for source in sources:
        if Path(source.path).is_file():
            raise ValueError(f"{source.path} is a file, and folders are followed: add it with `reveal add`")
        memory.layout.number(source.source)
    assistant = load_assistant(command, memory)

    from reveal.build import folder_sync

    follower = folder_sync.Follower(sources, assistant, command.picture_side)
    with terminal.stopping("the memory is as of the last report"):
        for report in [follower.sync(memory)] if command.once else follower.watch(memory):
            _write_report(command, report, command.memory)


def _own(name: str, wait: float = 0) -> Memory:
    """Opens a memory to change it. Raises ValueError for the name of the shipped one."""
    if pretrained.is_shipped(name):
        way_out = f"copy it (cp -r {pretrained.memory()} facts), and change the copy"
        raise ValueError(f"{name} is the shipped memory: {way_out}")
    return Memory(name, wait=wait)


def _remember(memory: Path, encoder: str | None, reader: str | None) -> None:
    """Writes which published networks made a memory, or that none did."""
    if encoder is None:
        (memory / ENCODER).unlink(missing_ok=True)
    else:
        folders = {"encoder": str(Path(encoder).resolve()), "reader": reader and str(Path(reader).resolve())}
        with atomic_output(memory / ENCODER, overwrite=True) as temporary:
            temporary.write_text(json.dumps(folders) + "\n", "utf-8")


def _sources(arguments: Sequence[str], source: str | None, encoder: str | None) -> list[Items]:
    """What the arguments name. For an encoder folders are documents in passages that its text tower reads whole, each
    a source with the folder's name. Raises ValueError for two folders of one source, unless `source` asks for it."""
    most_words, sources = 0, []
    if encoder is not None:
        from common.nn.two_towers import TwoTowerConfig

        config = TwoTowerConfig.from_json(read_json(Path(encoder) / "config.json"))
        most_words = max(int(config.text_length / 1.6), 4)  # 1.6 tokens each, with a title
    for one in (items_of(argument, source) for argument in arguments):
        if most_words and one.reader in ("folder", "documents"):
            name = source or Path(one.path).resolve().name
            options = {"words": most_words, "overlap": most_words // 5, "source": name, **one.options}
            one = dataclasses.replace(one, reader="documents", options=options)
            same = [other for other in sources if (other.reader, other.source) == (one.reader, one.source)]
            if same and source is None:
                both = f"{same[0].path} and {one.path} are both source {one.source!r}"
                raise ValueError(f"{both}: give one a source of its own, documents:{one.path},source=NAME")
        sources.append(one)
    return sources


def remove(command: commands.Remove) -> None:
    memory, ids = _own(command.memory, command.wait), list(dict.fromkeys(command.ids))
    if not ids:
        raise ValueError("no item to remove: give its id, which `reveal search` and `reveal ask` print")
    memory.delete(ids)
    _write_change(command, memory, f"{len(ids):,} removed", len(ids))


def refresh(command: commands.Refresh) -> None:
    memory = _own(command.memory, command.wait)
    encoder, reader = published_networks(command, memory.folder)
    command = dataclasses.replace(command, encoder=encoder, reader=reader)
    layout, names = memory.layout, split_names(command.names)
    assistant = load_assistant(command, names=names, default_sources=layout.sources, vectors=layout.key_vectors)

    from reveal.build import memory_build

    with _room(command.memory, "the memory is as it was; make room and try again"):
        report = memory_build.refresh(memory, assistant, progress=not command.quiet)
    _remember(memory.folder, encoder, reader)
    _write_report(command, report, command.memory)


def compact(command: commands.Compact) -> None:
    memory = _own(command.memory, command.wait)
    before, rows = bytes_on_disk(memory.folder), sum(shard.rows for shard in memory.manifest.shards)
    with _room(command.memory, "the memory is as it was; make room and try again"):
        memory.compact()
    after, dead = bytes_on_disk(memory.folder), rows - len(memory)
    text = f"{dead:,} rows of deleted and edited items removed, {before / 1e6:,.1f} MB became {after / 1e6:,.1f} MB"
    _write_change(command, memory, text, dead, bytes=after)


def _write_change(command: commands.Remove | commands.Compact, memory: Memory, done: str, removed: int, **more: int):
    data = {"memory": command.memory, "removed": removed, "items": len(memory), "version": memory.version}
    command.write(f"{done}; {command.memory}: {len(memory):,} items, version {memory.version}", data | more)


def _single_item(command: commands.Add, memory: Memory) -> Item:
    """The item of `reveal add`: --text takes the place of an edited one's texts, --image of its image; the rest
    stays."""
    ids, names = ids_of([] if command.id is None else [command.id]), memory.layout.sources
    item = memory.items(ids)[0] if command.edit else Item("", id=command.id)
    if command.image is not None:
        item = dataclasses.replace(item, picture=require_file(command.image).read_bytes())
        image_size(command.image)
    if command.text is not None:
        item = item.with_text(command.text)
    source = command.source or item.source or (names[0] if len(names) == 1 else "")
    if not source:
        raise ValueError(f"the item has no source: give --source, one of {', '.join(names)}")
    memory.layout.number(source)
    return dataclasses.replace(item, source=source)


@contextlib.contextmanager
def _room(folder: str | Path, way_out: str) -> Iterator[None]:
    """Adds to the error of a full disk what the user can do."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise OSError(f"no space left for {folder} ({error.strerror}): {way_out}") from error
        raise


def _beside(folder: Path) -> Path:
    """The folder in which the memory is built that will replace the one in `folder`."""
    if folder.name in ("", ".."):
        raise ValueError(f"-o {folder} is to be replaced: go out of it, and give the folder by its name")
    return folder.with_name(folder.name + BUILDING)


def _write_report(command: commands.Printing, report: "Report", folder: str) -> None:
    report = dataclasses.replace(report, memory=folder)
    command.write(str(report), report.as_json())
