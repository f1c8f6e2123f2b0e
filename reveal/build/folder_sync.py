"""A memory that follows folders: what was added, changed or deleted there since, in one change of the memory.

    Follower(sources, assistant).sync(memory)                               # once
    for report in Follower(sources, assistant).watch(memory): print(report)

Files of one name make some items, which hold their path and checksum (`sources/documents.py`); files whose checksum is
another are read again. The items of each source are compared by themselves, so the folders are those of the build.
"""

import contextlib
import dataclasses
import math
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from reveal.build.memory_build import CHANGE, Encoder, Report
from reveal.memory.engines.engine import optional
from reveal.memory.items import Item
from reveal.memory.memory import Memory
from reveal.sources import Items, Skips, documents
from reveal.sources.folder import Empty
from reveal.two_tower_assistant import AnyAssistant

QUIET = 400  # milliseconds without a further change before a change is read
Key = tuple[str, str]  # source, path in its folder


class Follower:
    """Makes a memory equal to folders of documents (else ValueError), as often as asked."""

    def __init__(self, sources: Sequence[Items], assistant: AnyAssistant, side: int | None = None):
        if other := next((source for source in sources if source.reader != "documents"), None):
            raise ValueError(f"{other.reader}:{other.path}: folders of documents are followed; give documents:FOLDER")
        self.sources, self.assistant, self.side = sources, assistant, side
        self._known: dict[Key, tuple[int, list[int]]] = {}  # checksum and ids of the items of each name
        self._state: str | None = None  # of the memory that has them: the hash of its manifest

    def sync(self, memory: Memory) -> Report:
        """Items that came otherwise (`reveal add --text`) stay. Raises FileNotFoundError for a missing folder, and as
        `memory_build.add`; then nothing is changed."""
        started, encoder = time.perf_counter(), Encoder(self.assistant, Skips(), self.side)
        written: list[int] = []
        with memory.changing() as change:
            known = self._known = self._known if self._state == memory.manifest.hash() else _origins(memory)
            followed = {source.source for source in self.sources}
            found = ((source.source, documents.checksums(Path(source.path))) for source in self.sources)
            there: dict[Key, int] = {(name, file): checksum for name, files in found for file, checksum in files}
            renewed = {key for key, checksum in there.items() if key not in known or known[key][0] != checksum}
            old = [key for key in known if key in renewed or (key[0] in followed and key not in there)]
            deleted = [number for key in old for number in known[key][1]]
            edited = sum(key in renewed for key in old if known[key][1])
            self._state = None  # if the change fails, the memory is looked through again
            change.delete(deleted)
            for key in old:
                del known[key]
            for items, keys, values in encoder.shards(self._items(renewed, encoder.skips)):
                for item, number in zip(items, change.add(items, keys, values), strict=True):
                    known.setdefault(_key(item), (there[_key(item)], []))[1].append(number)
                    written.append(number)
        for key in renewed:  # what cannot be used is not tried again until it changes
            known.setdefault(key, (there[key], []))
        self._state = memory.manifest.hash()
        counts = {"added": len(written), "edited": edited, "removed": len(deleted)}
        return Report.of(memory, started, written, encoder.skips, **counts)

    def watch(self, memory: Memory) -> Iterator[Report]:
        """`sync` now and after each change of the folders, until stopped; waits while another program changes the
        memory."""
        begun, folders = False, [source.path for source in self.sources]
        timing = {"debounce": 4 * QUIET, "step": QUIET, "rust_timeout": QUIET}
        # The folders are watched before the first `sync`, or what changes during it would be missed.
        for changes in optional("watchfiles", "documents").watch(*folders, yield_on_timeout=True, **timing):
            if changes or not begun:
                memory = Memory(memory.folder, memory.engine, memory.layout.encoder, wait=math.inf)
                self.assistant.memory = memory
                report = self.sync(memory)
                if not begun or report.added or report.removed:
                    yield report
                begun = True

    def _items(self, names: Collection[Key], skips: Skips) -> Iterator[Item]:
        for source in self.sources:
            only = {file for name, file in names if name == source.source}
            with contextlib.suppress(Empty):  # all its files were deleted meanwhile
                yield from (dataclasses.replace(item, id=None) for item in source.read(skips, only=only))


def _origins(memory: Memory) -> dict[Key, tuple[int, list[int]]]:
    known: dict[Key, tuple[int, list[int]]] = {}
    for start in range(0, len(ids := memory.rows().ids), CHANGE):
        for item in memory.items(ids[start : start + CHANGE]):
            if (origin := documents.origin_of(item)) is not None and item.id is not None:
                known.setdefault(_key(item), (origin["crc"], []))[1].append(item.id)
    return known


def _key(item: Item) -> Key:
    return item.source, str(item.fields["from"]["file"])
