"""`reveal ask`, `reveal search` and `reveal info`. What needs no network is checked first."""

from typing import TYPE_CHECKING

from common import terminal
from common.io.files import check_output_file
from common.io.images import check_writable, image_size, read_image, write_image
from common.weights import at_hand
from reveal import pretrained
from reveal.cli import commands
from reveal.cli.commands import PROGRAM, load_assistant
from reveal.memory.folder import bytes_on_disk
from reveal.memory.memory import Memory

if TYPE_CHECKING:
    from reveal.two_tower_assistant import AnyAssistant

NO_IMAGE = "-"


def search(command: commands.Search) -> None:
    if command.image is not None:
        image_size(command.image)
    if command.query and command.text:
        raise ValueError("the query text is given twice: as an argument and by --text; give one")
    text = command.query or command.text
    assistant = load_assistant(command, str(pretrained.memory(command.memory)))
    from reveal.assistant import as_json, columns, short, text_of

    found = assistant.search(command.image, text, command.k, command.source_names())
    _warn_of_unknown(assistant, text)
    rows = [(str(item.id), item.source, f"{score:.3f}", short(text_of(item))) for item, score in found]
    data = {"memory": command.memory, "items": [as_json(item) | {"score": score} for item, score in found]}
    command.write(columns(("id", "source", "score", "text"), rows), data)


def ask(command: commands.Ask) -> None:
    image = None if command.image == NO_IMAGE else command.image
    if image is not None:
        image_size(image)
    elif not command.question.strip():
        raise ValueError("neither an image nor a question: give one, or both")
    if command.sheet is not None:
        check_writable(command.sheet)
        check_output_file(command.sheet, command.overwrite)
    if command.beams is not None and command.beams < 1:
        raise ValueError(f"--beams {command.beams}: 1 (greedy) or more")
    if command.no_memory and (command.memory or command.k or command.sources):
        raise ValueError("--no-memory reads no items: leave out --memory, --sources and -k")
    if command.k == 0:
        raise ValueError("-k 0 reads no items: give 1 or more, or --no-memory")
    memory = None if command.no_memory else str(pretrained.memory(command.memory))
    assistant = load_assistant(command, memory)
    from reveal.network.generator import Decoding

    decoding = None if command.beams is None else Decoding(assistant.processor.answer_length, command.beams)
    evidence = assistant.ask(image, command.question, command.k, command.source_names(), decoding)
    _warn_of_unknown(assistant, command.question)
    if command.sheet is not None:
        from reveal.evidence_sheet import sheet

        page = sheet(evidence, None if image is None else read_image(image))
        write_image(command.sheet, page, command.overwrite)
    text = evidence.answer or "(nothing)"
    if verdict := evidence.verdict():
        text += f"\n({verdict})"
    lines = [evidence.first_hop.line()] if evidence.first_hop else []
    lines += [evidence.table()] if evidence.items else []
    command.write("\n".join([text, *(["", *lines] if lines else [])]), evidence.as_json() | {"memory": memory})


def info(command: commands.Info) -> None:
    if command.list:
        command.write(*at_hand.listing(command.memory, pretrained.DATA.parent, "reveal"))
        return
    memory = Memory(pretrained.memory(command.memory))
    manifest, layout, size = memory.manifest, memory.layout, bytes_on_disk(memory.folder)
    rows = sum(shard.rows for shard in manifest.shards)
    dead, per_item = rows - len(memory), size / max(rows, 1)
    data = {"memory": str(memory.folder), "items": len(memory), "sources": memory.sources, "version": memory.version}
    data |= {"encoder": layout.encoder, "key": [layout.key_dim, layout.key_dtype], "key_vectors": layout.key_vectors}
    data |= {"value": [*layout.value_shape, layout.value_dtype], "shards": len(manifest.shards), "dead": dead}
    data |= {"bytes": size, "bytes_per_item": per_item, "hash": manifest.hash()}
    key = f"{layout.key_vectors} x " if layout.key_vectors > 1 else ""
    key += f"{layout.key_dim // layout.key_vectors} {layout.key_dtype}"
    value = f"{'x'.join(map(str, layout.value_shape))} {layout.value_dtype}"
    lines = [
        f"{memory.folder}: {len(memory):,} items, version {memory.version}",
        *(f"  {name:20}{count:>12,}" for name, count in memory.sources.items()),
        f"encoder   {layout.encoder}",
        f"an item   key {key}, value {value}, {per_item:,.0f} bytes with all",
        f"disk      {size / 1e6:,.1f} MB in {len(manifest.shards):,} shards, {dead:,} rows deleted or edited",
        f"contents  {manifest.hash()}",
    ]
    command.write("\n".join(lines), data)


def verify(command: commands.Verify) -> None:
    memory = Memory(pretrained.memory(command.memory))
    memory.verify()
    sizes = [size for shard in memory.manifest.shards for size, _ in shard.files.values()]
    data = {"memory": str(memory.folder), "version": memory.version, "files": len(sizes), "bytes": sum(sizes)}
    text = f"{memory.folder}, version {memory.version}: {len(sizes):,} files, {sum(sizes) / 1e6:,.1f} MB as written"
    command.write(text, data)


def _warn_of_unknown(assistant: "AnyAssistant", text: str) -> None:
    if unknown := assistant.processor.unknown(text):
        terminal.complain(f"{PROGRAM}: not in the network's vocabulary: {', '.join(unknown)}")
