"""What is at hand without a network (`info --list`): weights that are shipped, converted from another program's,
downloaded from `https://...`, or in the cache of the hub. What a download is for only the command that reads it knows:
it stands in the lists of all systems.
"""

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from common.io.files import cache_folder
from common.io.tensor_files import TensorFiles
from common.weights.remote import ADDRESS_FILE

CARD = "README.md"
LICENCE = re.compile(r"^\| (?:weights )?licence \| (.+?) \|$", re.MULTILINE)  # of our own cards


class AtHand(NamedTuple):
    name: str  # what options take: a shipped name, a path or an address
    source: str
    bytes: int
    licence: str  # "": not known here
    path: str


def shipped(weights: Path) -> Iterator[AtHand]:
    """Of the folders in a package's `weights`, each with a model card."""
    for card in sorted(weights.glob(f"*/{CARD}")):
        folder, licence = card.parent, LICENCE.search(card.read_text("utf-8"))
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and path != card)
        yield AtHand(folder.name, "shipped", size, licence[1] if licence else "", str(folder))


def cached(kind: str) -> Iterator[AtHand]:
    """What was fetched, and converted for the system `kind`."""
    for path in sorted((cache_folder() / "converted").glob(f"{kind}-*.safetensors")):
        origin = str(json.loads(TensorFiles(path).metadata().get("metadata", "{}")).get("ported_from", path))
        yield AtHand(origin, "converted", path.stat().st_size, "", str(path))
    for address in sorted((cache_folder() / "downloads").glob(f"*{ADDRESS_FILE}")):
        if (path := address.with_name(address.name.removesuffix(ADDRESS_FILE))).is_file():
            yield AtHand(address.read_text("utf-8"), "downloaded", path.stat().st_size, "", str(path))
    yield from _of_the_hub()


def _of_the_hub() -> Iterator[AtHand]:
    from huggingface_hub import constants, errors, scan_cache_dir
    from huggingface_hub.repocard import metadata_load

    try:
        cache = scan_cache_dir(constants.HF_HUB_CACHE)
    except errors.CacheNotFound:
        return
    for repo in sorted(cache.repos, key=lambda repo: repo.repo_id):
        for revision in sorted(repo.revisions, key=lambda revision: revision.commit_hash):
            name = sorted(revision.refs)[0] if revision.refs else revision.commit_hash
            card, licence = revision.snapshot_path / CARD, ""
            with contextlib.suppress(Exception):  # of whatever someone wrote there
                licence = str((metadata_load(card) or {}).get("license") or "")
            address = f"hf:{repo.repo_id}" + f"@{name}" * (name != "main")
            yield AtHand(address, "hub", revision.size_on_disk, licence, str(revision.snapshot_path))


def listing(given: str | None, weights: Path, kind: str) -> tuple[str, dict[str, Any]]:
    """All weights on this machine for a system, as a table and JSON. Raises ValueError for a name beside `--list`."""
    if given is not None:
        raise ValueError(f"--list lists all weights on this machine: leave out {given}")
    rows = [*shipped(weights), *cached(kind)]
    cells = [("name", "source", "MB", "licence")]
    cells += [(row.name, row.source, f"{row.bytes / 1e6:,.1f}", row.licence or "not known here") for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(3)]
    text = "\n".join(f"{a:{widths[0]}}  {b:{widths[1]}}  {c:>{widths[2]}}  {d}" for a, b, c, d in cells)
    return text, {"at_hand": [row._asdict() for row in rows]}
