"""A folder of your own: photographs, notes, web pages and PDFs, long texts in overlapping passages.

    photos/gull.jpg                          an image
    photos/gull.txt                          its text, as of `folder.py`: what has the same name belongs together
    notes/birds.md  page.html  paper.pdf     documents, a section or page at a time

A text is cut into passages of at most `words` words that overlap by `overlap`, at the ends of sentences where there are
any. An item's fields are

    title    heading above the passage, page of a PDF, or name of the file; none of an image's text
    text     the passage
    from     {"file": path in the folder, "part": number of the passage, "parts": how many, "crc": of the files}

`from` is no text, so no network reads it; by it `reveal watch` knows what to replace. Markdown, HTML and PDF need the
extra `documents`.
"""

import contextlib
import functools
import io
import logging
import re
import time
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from common.io.images import READABLE
from reveal.memory.engines.engine import optional
from reveal.memory.items import Item
from reveal.sources.folder import Empty, groups, image_and_texts
from reveal.sources.records import Record, Skips, attempt

TEXTS = (".txt", ".md", ".markdown", ".html", ".htm", ".pdf")
HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")
NO_TEXT = ("script", "style", "nav", "noscript", "template")  # elements of a page that nobody reads
RECENT = 2 * 10**9  # nanoseconds: the coarsest clock of a file system
SENTENCE_END = re.compile(r"[.!?][\"')\]]*$")


def records(
    path: str | Path, words: int = 100, overlap: int = 20, *, skips: Skips, only: Collection[str] | None = None
) -> Iterator[Record]:
    """The items of a folder, numbered from 0; of `only` these names (`checksums`). Raises FileNotFoundError without the
    folder, and if nothing in it can be read; ValueError unless `words` > `overlap`."""
    if not 0 <= overlap < words:
        raise ValueError(f"words={words}, overlap={overlap}: passages are longer than what they share")
    number, folder = 0, Path(path)
    for files in groups(folder, TEXTS, skips):
        if only is None or _name(folder, files) in only:
            for record in records_of(folder, files, words, overlap, skips):
                yield record._replace(number=number)
                number += 1


def records_of(folder: Path, files: list[Path], words: int, overlap: int, skips: Skips) -> Iterator[Record]:
    """The items of files of one name: the image first, with the first passage."""
    image, texts = image_and_texts(files, skips)
    name, main = _name(folder, files), image or files[0]
    if image is not None and image.is_file() and not image.stat().st_size:
        skips.add("that are empty", str(image))
        image = None
    passages: list[tuple[str, str]] = []
    checksum = _checksum(files)  # before they are read: what changes meanwhile is found later
    for file in texts:
        parts = attempt(partial(sections, file), skips, str(file), "whose text cannot be read")
        cut = [("" if image else title, one) for title, text in parts or () for one in chunks(text, words, overlap)]
        if parts is not None and not cut:
            skips.add("without any text", str(file))
        passages += cut
    for part in range(max(len(passages), image is not None)):
        fields = dict(zip(("title", "text"), passages[part], strict=True)) if passages else {}
        fields = {key: value for key, value in fields.items() if value}
        origin = {"file": name, "part": part + 1, "parts": max(len(passages), 1), "crc": checksum}
        where = f"{main}, part {part + 1}" if len(passages) > 1 else str(main)
        yield Record(0, where, image if part == 0 else None, names=(main.name,), fields={**fields, "from": origin})


def checksums(folder: Path) -> Iterator[tuple[str, int]]:
    """The name and checksum of the files of each item or passages, as their `from` has it; none of an empty folder."""
    with contextlib.suppress(Empty):
        for files in groups(folder, TEXTS, Skips()):
            yield _name(folder, files), _checksum(files)


def origin_of(item: Item) -> Mapping[str, Any] | None:
    """The item's `from`; None without one, and for another field of that name."""
    origin, types = item.fields.get("from"), {"file": str, "part": int, "crc": int}
    ours = isinstance(origin, Mapping) and all(isinstance(origin.get(name), kind) for name, kind in types.items())
    return origin if ours else None


def _name(folder: Path, files: Sequence[Path]) -> str:
    """The path of the image, else of the first text."""
    main = next((file for file in files if file.suffix.lower() in READABLE), files[0])
    return main.relative_to(folder).as_posix()


def _checksum(files: Sequence[Path]) -> int:
    """CRC-32 of the bytes of all files that can be read. A file is not read again while its size and time are the same,
    unless it was just written, since another change may have that time too."""
    checksum = 0
    for file in files:
        with contextlib.suppress(OSError):
            status = file.stat()
            crc = _crc if time.time_ns() - status.st_mtime_ns > RECENT else _crc.__wrapped__
            checksum = crc(file, status.st_size, status.st_mtime_ns, checksum)
    return checksum


@functools.lru_cache(maxsize=1 << 20)
def _crc(file: Path, size: int, modified: int, before: int) -> int:
    return zlib.crc32(file.read_bytes(), before)


def sections(file: Path) -> list[tuple[str, str]]:
    """(title, text) of each section or page. Raises OSError; ValueError for a damaged file; ImportError as
    `optional`."""
    suffix, own = file.suffix.lower(), re.sub(r"[_-]+", " ", file.stem)
    if suffix == ".pdf":
        pypdf = optional("pypdf", "documents")
        logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # what cannot be read is an error below
        content = io.BytesIO(file.read_bytes())
        try:
            pages = [page.extract_text() for page in pypdf.PdfReader(content).pages]
        except Exception as error:  # of a damaged file, of nearly any type
            raise ValueError(f"no PDF that can be read: {error or type(error).__name__}") from error
        return [(f"{own}, page {number}", text) for number, text in enumerate(pages, 1)]
    text = file.read_text("utf-8-sig", "replace")
    if suffix == ".txt":
        return [(own, text)]
    if suffix in (".md", ".markdown"):
        text = optional("markdown_it", "documents").MarkdownIt("commonmark").enable("table").render(text)
    return _html_sections(text, own)


def _html_sections(html: str, own: str) -> list[tuple[str, str]]:
    """The text below each heading, and that before the first."""
    bs4 = optional("bs4", "documents")
    page = bs4.BeautifulSoup(html, "html.parser")
    for element in page.find_all(NO_TEXT):
        element.decompose()
    title = page.title.extract().get_text(" ", strip=True) if page.title else ""
    found, heading, texts = [], title or own, []
    for string in (page.body or page).find_all(string=True):
        if isinstance(string, bs4.element.PreformattedString):  # a comment or declaration
            continue
        within = next((one for one in string.parents if one.name in HEADINGS), None)
        if within is None:
            texts.append(string)
        elif string is next(within.strings, None):
            found.append((heading, " ".join(texts)))
            heading, texts = within.get_text(" ", strip=True) or own, []
    return [*found, (heading, " ".join(texts))]


def chunks(text: str, words: int, overlap: int) -> list[str]:
    """Passages of at most `words` words, the next one beginning `overlap` words before the end of the one before."""
    found, all_words, start = [], text.split(), 0
    while start < len(all_words):
        end = min(start + words, len(all_words))
        if end < len(all_words):  # rather at the end of a sentence, if one ends in the second half
            second_half = range(end, start + max(words // 2, overlap + 1) - 1, -1)
            end = next((at for at in second_half if SENTENCE_END.search(all_words[at - 1])), end)
        found.append(" ".join(all_words[start:end]))
        start = end if end == len(all_words) else end - overlap
    return found
