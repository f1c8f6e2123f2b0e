"""`reveal ask`, `reveal search` and `reveal info`. What needs no network is checked first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from common import terminal
from common.io.files import check_output_file
from common.io.images import check_writable, image_size
from reveal import pretrained
from reveal.cli import commands
from reveal.cli.commands import PROGRAM
from reveal.cli.opening import load_assistant, split_names, tell
from reveal.evidence import as_json, columns, short, text_of
from reveal.memory.folder import bytes_on_disk
from reveal.memory.store import Store

if TYPE_CHECKING:
    from reveal.assistant import Assistant

NO_IMAGE = "-"


def search(command: commands.Search) -> None:
    """Raises as `Assistant.search`."""
    if command.image is not None:
        image_size(command.image)
    assistant = load_assistant(command, command.memory)
    found = assistant.search(command.image, command.text, command.k, _sources(command))
    _warn_of_unknown(assistant, command.text)
    rows = [(str(item.id), item.source, f"{score:.3f}", short(text_of(item))) for item, score in found]
    told = {"memory": command.memory, "items": [as_json(item) | {"score": score} for item, score in found]}
    tell(command.json, columns(("id", "source", "score", "text"), rows), told)


def ask(command: commands.Ask) -> None:
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
    assistant = load_assistant(command, memory)
    from reveal.network.generator import likeliest

    how = None if command.beams is None else likeliest(assistant.processor.answer_length, command.beams)
    told = assistant.ask(image, command.question, command.k, _sources(command), how)
    _warn_of_unknown(assistant, command.question)
    if command.sheet is not None:
        from reveal.evidence_sheet import write_sheet

        write_sheet(command.sheet, told, image, command.overwrite)
    read = [told.first_hop.line()] if told.first_hop else []
    read += [told.table()] if told.pieces else []
    text = "\n".join([told.answer or "(nothing)", *(["", *read] if read else [])])
    tell(command.json, text, told.as_json() | {"memory": memory})


def info(command: commands.Info) -> None:
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
    tell(command.json, "\n".join(lines), told)


def _warn_of_unknown(assistant: Assistant, text: str) -> None:
    if unknown := assistant.processor.unknown(text):
        terminal.complain(f"{PROGRAM}: not in the network's vocabulary: {', '.join(unknown)}")


def _sources(command: commands.Searching) -> list[str] | None:
    """Each once: so many items are there to be asked for as they have."""
    names = split_names(command.sources)
    return None if names is None else list(dict.fromkeys(names))
