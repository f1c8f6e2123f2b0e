"""FAISS: the usual library for approximate nearest neighbours on one machine (Douze et al., 2024, arXiv 2401.08281).

    memory = Memory.load("memory", engine=FaissEngine("ivfpq"))

| kind | index | what for |
| --- | --- | --- |
| `flat` | every key is compared | exact; checks the others |
| `ivfpq` | lists around centres, 4-bit product codes, refined with the keys | millions of items that cluster |
| `hnsw` | a graph | the fastest search; many minutes to build |

There is one index per source. The gate is constant within a source, so it is added to what each index has found: no
approximation can lose a trusted source. A source with too few items for its kind (`FEWEST`) is searched exactly.

**Changes.** `update` appends rows that are new or changed to the index of their source; those that are gone stay in it.
A search drops them from all candidates (`breadth`, `refine` times k), and a query that is left with fewer than k is
searched exactly: FAISS' selectors would leave HNSW with what it met on the way to where all is gone. An index is built
anew when a share of its rows is gone (`DEAD`), when `ivfpq` has outgrown its centres (`GROWTH`), and when the source
has become large enough for its kind.

**Saved.** With a `folder`, the indexes of `ivfpq` and `hnsw` are written there once built, and again when a share of
their rows is in no file (`UNSAVED`). A later program maps the file and appends what is missing (then to a copy in RAM:
FAISS cannot append to a map). `KIND-SOURCE.index` is FAISS' own file, the index' rows (`ROW`), and a line with format,
settings, FAISS' version and the CRC-32C of all before; a file that does not match that line is built anew. A row is
known by its id and `Rows.origins`, so a file of another memory or version is of less use, and never wrong.

Equal scores at the edge of the k best may fall either way: FAISS decides. The extra `faiss` installs it.
"""

import itertools
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import google_crc32c
import numpy as np
from jaxtyping import Bool, Int, Shaped, UInt64

from common.io.files import atomic_output
from reveal.memory.engines.engine import NOTHING, Rows, SearchResult, check_one_vector, check_search, merge, optional

log = logging.getLogger(__name__)

FEWEST = {"flat": 0, "ivfpq": 10_000, "hnsw": 1_000}  # the kinds
CHUNK = 65536  # keys that are copied at a time
GAP = 1024  # rows between two keys that are read along with them
PER_LIST = 1000  # items of a list of `ivfpq`, on average
TRAINING = 100  # keys a centre is found from
DEAD = 0.2  # of the rows of an index
GROWTH = 2  # times the items that `ivfpq` was trained for
UNSAVED = 0.05  # of the live rows: each program appends them anew
FORMAT = 1  # of a saved index, and of how one is built
ROW = np.dtype([("id", "<i8"), ("origin", "<u8"), ("version", "<i8")])


@dataclass(frozen=True)
class FaissConfig:
    probes: int = 32  # ivfpq: lists that are searched
    refine: int = 10  # ivfpq: candidates per result that are compared by their keys themselves
    links: int = 32  # hnsw: neighbours of a node
    breadth: int = 256  # hnsw: candidates while searching
    depth: int = 200  # hnsw: candidates while building


@dataclass(eq=False)
class Part:
    kind: str
    index: Any
    mapped: bool = False  # from a file
    rows: Shaped[np.ndarray, " n"] = field(default_factory=lambda: np.zeros(0, ROW))  # in the index' order
    live: Bool[np.ndarray, " n"] = field(default_factory=lambda: np.zeros(0, bool))
    saved: UInt64[np.ndarray, " m"] = field(default_factory=lambda: np.zeros(0, np.uint64))  # origins in the file


class FaissEngine:
    """One FAISS index per source, in the host's RAM, or mapped from `folder` (new ones need its parent).

    Raises ValueError for another kind than the table's, and ImportError without the extra."""

    def __init__(self, kind: str = "flat", config: FaissConfig | None = None, folder: str | Path | None = None):
        if kind not in FEWEST:
            raise ValueError(f"kind {kind!r} is not one of FaissEngine: choose one of {', '.join(FEWEST)}")
        self.kind, self.config, self._faiss = kind, config or FaissConfig(), optional("faiss", "faiss")
        self._folder = None if folder is None or kind == "flat" else Path(folder)
        self._parts: dict[int, Part] = {}  # of the sources that have items
        self._memory, self._sources, self._version, self._width = "", 0, 0, 0

    def update(self, rows: Rows, sources: int, version: int) -> None:
        check_one_vector(rows, self)
        self._sources = 0  # an update that fails leaves rows of two versions
        if rows.memory != self._memory:  # equal ids and versions of another memory have other keys
            for part in self._parts.values():
                part.rows["version"] = NOTHING
            self._memory = rows.memory
        origins = np.zeros(len(rows), np.uint64) if rows.origins is None else rows.origins()
        for number in range(sources):
            at = np.flatnonzero(rows.source == number)
            if not len(at):
                self._parts.pop(number, None)
                continue
            wanted = np.zeros(len(at), ROW)
            wanted["id"], wanted["origin"], wanted["version"] = rows.ids[at], origins[at], rows.versions[at]
            self._bring(number, wanted, rows, at)
            self._save(number)
        self._sources, self._version, self._width = sources, version, rows.key_dim

    def search(
        self, queries: Any, k: int, *, sources: Sequence[int] | None = None, log_gate: Any = None
    ) -> SearchResult:
        queries, chosen, gate = check_search(queries, k, sources, log_gate, self._width, self._sources)
        nothing = np.zeros((len(queries), 0), np.int64)
        found = [(nothing, nothing.astype(np.float32), nothing)]  # ids, scores, sources of each index
        for number in self._parts.keys() & set(chosen):
            ids, scores = self._search(self._parts[number], queries, k)
            found.append((ids, scores + gate[:, [number]], np.full_like(ids, number)))
        ids, scores, origins = (np.concatenate(parts, axis=1) for parts in zip(*found, strict=True))
        return merge(ids, scores, origins, k, self._version)

    def _search(self, part: Part, queries: np.ndarray, k: int) -> tuple[Any, Any]:
        """Ids and scores of the k best live rows; of all, if there are fewer."""
        faiss, config, index = self._faiss, self.config, part.index
        count = int(np.count_nonzero(part.live))
        k, all_live = min(k, count), count == len(part.live)
        live = None if all_live else faiss.IDSelectorBitmap(np.packbits(part.live, bitorder="little"))
        exactly = faiss.SearchParameters(sel=live)
        if part.kind == "flat":
            keys, wide, options = index, k, exactly
        elif part.kind == "hnsw":
            keys, wide = faiss.downcast_index(index.storage), max(config.breadth, 2 * k)
            options = faiss.SearchParametersHNSW(efSearch=wide)
        else:
            keys, wide = faiss.downcast_index(index.refine_index), max(config.refine, 2) * k
            # with more probes than lists the fast scan finds anything at all, and does not say so
            lists = faiss.SearchParametersIVF(nprobe=min(config.probes, faiss.extract_index_ivf(index).nlist))
            factor = config.refine if all_live else 1
            options = faiss.IndexRefineSearchParameters(k_factor=factor, base_index_params=lists)
        scores, at = index.search(queries, k if all_live else min(wide, len(part.live)), params=options)
        gone = (at < 0) | ~part.live[at]
        order = np.argsort(gone, axis=1, kind="stable")[:, :k]
        scores, at, gone = (np.take_along_axis(found, order, axis=1) for found in (scores, at, gone))
        if len(few := np.flatnonzero(gone.any(axis=1))):
            scores[few], at[few] = keys.search(queries[few], k, params=exactly)
        return np.where(at < 0, NOTHING, part.rows["id"][at]), scores

    def _bring(self, number: int, wanted: np.ndarray, rows: Rows, at: np.ndarray) -> None:
        """Makes the index of a source one of the rows `wanted`, which are the rows `at` of all."""
        kind = self.kind if len(at) >= FEWEST[self.kind] else "flat"
        part = self._parts.pop(number, None)
        place = self._places(part, wanted, kind, rows)
        if place is None:
            part = self._read(number, rows.key_dim)
            place = self._places(part, wanted, kind, rows)
        if part is None or place is None:
            part, place = Part(kind, self._empty(kind, rows, at)), np.full(len(at), NOTHING)
        self._parts[number] = part
        kept, missing = np.flatnonzero(place != NOTHING), np.flatnonzero(place == NOTHING)
        part.rows[place[kept]] = wanted[kept]
        if len(missing) and part.mapped:
            writer, reader = self._faiss.VectorIOWriter(), self._faiss.VectorIOReader()
            self._faiss.write_index(part.index, writer)
            reader.data.swap(writer.data)  # `serialize_index` and `deserialize_index` copy it twice more
            part.index, part.mapped = self._faiss.read_index(reader), False
        added = len(part.rows)
        place[missing] = added + np.arange(len(missing))
        part.rows = np.append(part.rows, wanted[missing])
        try:
            for start in range(0, len(missing), CHUNK):
                part.index.add(_keys(rows, at[missing[start : start + CHUNK]]))
                added = min(added + CHUNK, len(part.rows))
        finally:  # rows that cannot be read leave index and `rows` alike; one that is stopped while it adds does not
            part.rows = part.rows[:added]
        part.live = np.zeros(len(part.rows), bool)
        part.live[place] = True

    def _places(self, part: Part | None, wanted: np.ndarray, kind: str, rows: Rows) -> np.ndarray | None:
        """Where the index has each of the rows `wanted`, or -1; None: it is to be built anew."""
        if part is None:
            return None
        own, index = part.rows, part.index
        if index.ntotal != len(own) or index.d != rows.key_dim or part.kind != kind != "flat":
            return None
        at = np.searchsorted(wanted["id"], own["id"]).clip(max=len(wanted) - 1)
        same = (own["origin"] == wanted["origin"][at]) & (own["origin"] != 0)
        same |= own["version"] == wanted["version"][at]
        same = np.flatnonzero(same & (own["id"] == wanted["id"][at]))
        place = np.full(len(wanted), NOTHING)
        place[at[same]] = same
        lists = self._faiss.extract_index_ivf(index).nlist if part.kind == "ivfpq" else np.inf
        dead = len(own) - np.count_nonzero(place != NOTHING)
        return None if dead > DEAD * len(own) or len(wanted) > GROWTH * PER_LIST * lists else place

    def _empty(self, kind: str, rows: Rows, at: np.ndarray) -> Any:
        faiss, width, config = self._faiss, rows.key_dim, self.config
        if kind == "flat":
            return faiss.IndexFlatIP(width)
        if kind == "hnsw":
            index = faiss.IndexHNSWFlat(width, config.links, faiss.METRIC_INNER_PRODUCT)
            index.hnsw.efConstruction = config.depth
            return index
        lists = max(16, len(at) // PER_LIST)
        codes = width // 2 if width % 2 == 0 else width  # two numbers in 4 bits, or one
        index = faiss.index_factory(width, f"IVF{lists},PQ{codes}x4fsr,RFlat", faiss.METRIC_INNER_PRODUCT)
        count = min(len(at), TRAINING * lists)
        index.train(_keys(rows, np.sort(np.random.default_rng(0).choice(at, count, replace=False))))
        return index

    def _read(self, number: int, width: int) -> Part | None:
        """The saved index of a source; None where there is none, or it is of no use."""
        if self._folder is None or not (path := self._folder / f"{self.kind}-{number}.index").is_file():
            return None
        try:
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                end = status.st_size - len(self._last_line(google_crc32c.Checksum(), width))
                if self._last_line(_checksum(file, end), width) != file.read():
                    raise ValueError("damaged, or of other settings or versions")
                index = self._faiss.read_index(str(path), self._faiss.IO_FLAG_MMAP_IFC)
                file.seek(end - ROW.itemsize * index.ntotal)
                rows = np.fromfile(file, ROW, index.ntotal)
                if not os.path.samestat(status, path.stat()):
                    raise ValueError("another program has just replaced it")
        except (OSError, RuntimeError, ValueError) as error:  # RuntimeError is FAISS'
            log.warning("%s is not used and is built anew: %s", path, error)
            return None
        rows["version"] = NOTHING  # of whichever memory saved it
        return Part(self.kind, index, True, rows, saved=rows["origin"].copy())

    def _save(self, number: int) -> None:
        """Writes an index, if a share of its rows is in no file. A folder that cannot be written is left alone."""
        part, origins = self._parts[number], self._parts[number].rows["origin"]
        known = np.count_nonzero(part.live[: len(part.saved)] & (part.saved == origins[: len(part.saved)]))
        count = np.count_nonzero(part.live)
        if self._folder is None or part.kind == "flat" or not origins.any() or count - known <= UNSAVED * count:
            return
        part.saved = origins.copy()  # if it fails, it is not tried again after each change
        path = self._folder / f"{self.kind}-{number}.index"
        try:
            self._folder.mkdir(exist_ok=True)  # and no parents: a memory that another program has removed stays so
            with atomic_output(path, overwrite=True) as temporary, temporary.open("wb") as file:
                checksum = google_crc32c.Checksum()

                def write(data: bytes) -> None:
                    file.write(data)
                    checksum.update(data)

                # FAISS' own files say nothing if the last bytes do not fit on the disk
                self._faiss.write_index(part.index, self._faiss.PyCallbackIOWriter(write, CHUNK))
                write(part.rows.tobytes())
                file.write(self._last_line(checksum, part.index.d))
        except (OSError, RuntimeError) as error:
            log.warning("the index is not saved, so the next program builds it anew: %s", error)

    def _last_line(self, checksum: google_crc32c.Checksum, width: int) -> bytes:
        built = f"{self.kind} of {width} numbers, {self.config.links} links, depth {self.config.depth}"
        check = checksum.digest().hex()
        return f"\nFormat {FORMAT}, {built}, FAISS {self._faiss.__version__}, CRC-32C {check}\n".encode()


def _keys(rows: Rows, at: Int[np.ndarray, " m"]) -> np.ndarray:
    """float32 keys of rising rows. At most CHUNK are read at a time, and those of a long gap are not."""
    keys = np.empty((len(at), rows.key_dim), np.float32)
    cuts = np.flatnonzero((np.diff(at) > GAP) | (np.diff(at // CHUNK) > 0)) + 1
    for start, stop in itertools.pairwise([0, *cuts.tolist(), len(at)]):
        own = at[start:stop]
        keys[start:stop] = rows.keys(int(own[0]), int(own[-1]) + 1)[own - own[0]]
    return keys


def _checksum(file: BinaryIO, end: int) -> google_crc32c.Checksum:
    """The CRC-32C of a file from its start to `end`."""
    found = google_crc32c.Checksum()
    for start in range(0, end, CHUNK):
        found.update(file.read(min(CHUNK, end - start)))
    return found
