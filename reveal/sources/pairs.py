"""Images of the web with the text that stood beside them: CC12M's table, and tars as img2dataset packs them.

The table (Changpinyo et al., CVPR 2021) is a line of address and caption, with a tab between them and no header:

    https://x.org/gull.jpg	a gull over the sea

Tars (WebDataset) hold members that share their name up to the first dot, one after the other:

    000000007.jpg    000000007.txt    000000007.json: {"caption": ..., "url": ..., "key": ...}

The caption is that of .txt, else of .json. A tar is read from front to back; of an image that only a question names,
its place is kept, not its bytes. Both make items (the paper has 10,009,901 of CC12M) and images to describe. Ids are
the numbers of lines, or of samples."""

import contextlib
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from common.data.files import files_of
from common.data.stored import Member
from common.data.tar import IMAGES, key_and_suffix, members
from common.io.json_text import parse_json
from reveal.sources.records import MISSING, Record, Skips, numbered_lines

NO_CAPTION = "without caption"


def table(path: str | Path, *, skips: Skips) -> Iterator[Record]:
    """The lines of a table; images are found by the name or a hash of their address."""
    for number, (where, line) in enumerate(numbered_lines(path, ".tsv", ".tsv.gz")):
        address, _, text = line.strip("\r\n").partition("\t")
        yield Record(number, where, find=(address,), **_caption(text))


def tars(path: str | Path, *, skips: Skips) -> Iterator[Record]:
    """The samples of tars. Raises ValueError for one that is compressed or cut short."""
    number = -1
    for file in files_of(path, ".tar"):
        for key, sample in groupby(members(file), key=lambda member: key_and_suffix(member.member)[0]):
            by_suffix = {key_and_suffix(member.member)[1]: member for member in sample}
            number += 1
            image = next((by_suffix[suffix] for suffix in IMAGES if suffix in by_suffix), None)
            about = _about(by_suffix)
            # With a suffix: keys are running numbers, which are not COCO's.
            names = (f"{key}.jpg" if image is None else image.member, str(about.get("url", "")))
            record = Record(number, f"{file} sample {key}", image, names=names, **_caption(about.get("caption")))
            yield record if image else record._replace(fault=MISSING)


def _caption(text: Any) -> dict[str, Any]:
    if not isinstance(text, str) or not text.strip():
        return {"fault": NO_CAPTION}
    return {"fields": {"text": text.strip()}, "answers": (text.strip(),)}


def _about(by_suffix: dict[str, Member]) -> dict[str, Any]:
    """The object in .json of a sample; its caption is that of .txt if there is one."""
    about: Any = {}
    if "json" in by_suffix:
        with contextlib.suppress(ValueError):
            about = parse_json(by_suffix["json"].read().decode("utf-8", "replace"))
    about = about if isinstance(about, dict) else {}
    if "txt" in by_suffix:
        about["caption"] = by_suffix["txt"].read().decode("utf-8-sig", "replace")
    return about
