"""A memory that follows folders: what was added, changed or deleted there since, in one change of the memory.

    sync(memory, ["photos", "notes"], assistant)             # once
    for report in watch(memory, ["photos", "notes"], assistant): print(report)

Files of one name make some items, which hold their path and checksum (`sources/documents.py`). A file is read anew if
its checksum is another; the items of each source are compared by themselves, so the folders are those of the build.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence

from reveal.build.memory_build import CHANGE, Encoder
from reveal.build.report import Report
from reveal.memory.engines.engine import optional
from reveal.memory.items import Item
from reveal.memory.memory import Memory
from reveal.sources import Items, Skips
from reveal.sources.folder import Empty
from reveal.two_tower_assistant import AnyAssistant

QUIET = 400  # milliseconds without a further change before a change is read
Key = tuple[str, str]  # source, path in its folder


def sync(
    memory: Memory, sources: Sequence[Items], assistant: AnyAssistant, side: int | None = None, progress: bool = False
) -> Report:
    """Makes the memory equal to the folders. Items that came otherwise (`reveal add --text`) stay. Raises
    FileNotFoundError for a missing folder, and as `memory_build.add`; then nothing is changed."""
    started, encoder = time.perf_counter(), Encoder(assistant, Skips(), side, progress)
    known: dict[Key, tuple[int, list[int]]] = {}
    for start in range(0, len(ids := memory.rows().ids), CHANGE):
        for item in memory.items(ids[start : start + CHANGE]):
            origin = item.fields.get("from")
            if isinstance(origin, Mapping) and item.id is not None:
                _, numbers = known.setdefault((item.source, str(origin["file"])), (int(origin["crc"]), []))
                numbers.append(item.id)
    followed, there = {str(source.options.get("source", "own")) for source in sources}, set()
    fresh: list[Item] = []
    for (source, file), group in itertools.groupby(_items(sources, encoder.skips), _key):
        there.add((source, file))
        items = list(group)
        if (source, file) not in known or known[source, file][0] != items[0].fields["from"]["crc"]:
            fresh += items
    renewed = {_key(item) for item in fresh}
    old = [key for key in known if key in renewed or (key[0] in followed and key not in there)]
    deleted = [number for key in old for number in known[key][1]]
    written: list[int] = []
    with memory.changing() as change:
        change.delete(deleted)
        for items, keys, values in encoder.shards(fresh, len(fresh)):
            written += change.add(items, keys, values)
    counts = {"added": len(written), "edited": len(renewed & known.keys()), "removed": len(deleted)}
    return Report.of(memory, started, written, encoder.skips, **counts)


def watch(
    memory: Memory, sources: Sequence[Items], assistant: AnyAssistant, side: int | None = None
) -> Iterator[Report]:
    """`sync` now, and after each change of the folders that changes the memory, until stopped. Raises as `sync`."""
    yield sync(memory, sources, assistant, side)
    watchfiles = optional("watchfiles", "documents")
    for _ in watchfiles.watch(*(source.path for source in sources), debounce=4 * QUIET, step=QUIET):
        before, memory = memory.version, Memory(memory.folder, memory.engine)
        assistant.memory = memory
        report = sync(memory, sources, assistant, side)
        if report.version != before:
            yield report


def _items(sources: Sequence[Items], skips: Skips) -> Iterator[Item]:
    for source in sources:
        with contextlib.suppress(Empty):  # its last file was deleted, and so are its items; a missing folder is raised
            yield from (dataclasses.replace(item, id=None) for item in source.read(skips))


def _key(item: Item) -> Key:
    return item.source, str(item.fields["from"]["file"])
