"""WikiData: triples of subject, relation and object, as one item of text per subject.

    Q10993	P31	Q55983715
    Q10993	P171	Q25369

is what Wikidata5M publishes, with a tab between the three; tables of names turn the numbers into words, a line each of
number, name and other names (`wikidata5m_entity.txt`, `wikidata5m_relation.txt`). What has no name stays as it is, so
triples may be words already. An item reads "gull instance of bird . gull parent taxon Larus ."

Objects of more than 10,000 triples ("human", "male") tell nothing apart, and those triples are left out, as in the
reference (`wikidata` utilities of scenic's knowledge_visual_language). A subject's triples may lie anywhere in the
file, so all that are kept are held in the RAM: about 100 bytes each. Items have no picture. Their ids are the order in
which the subjects first appear, those that are left out counted too.
"""

from __future__ import annotations

import collections
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from reveal.memory.items import Knowledge
from reveal.sources.records import Skips, files_of, open_text


def items(
    path: str | Path,
    names: str | Path | None = None,
    relations: str | Path | None = None,
    most: int = 10_000,
    source: str = "wikidata",
    first_id: int = 0,
    skips: Skips | None = None,
) -> Iterator[Knowledge]:
    """Items.

    Args:
      path: a table of triples, a folder of them, or a pattern.
      names: table of the names of subjects and objects. relations: of relations. None: they are words already.
      most: triples that an object may be in.
      source: name of the items' source.
      first_id: of the first subject.
      skips: where lines that are no triples, and subjects of which nothing is left, are counted.
    """
    skips = skips or Skips()
    named, related = _names(names), _names(relations)
    counts = collections.Counter(triple[2] for triple in triples(path, Skips()))
    about: dict[str, list[tuple[str, str]]] = {}
    for subject, relation, thing in triples(path, skips):
        told = about.setdefault(subject, [])
        if counts[thing] <= most:
            told.append((sys.intern(relation), sys.intern(thing)))
    for number, (subject, told) in enumerate(about.items()):
        if not told:
            skips.add("of which only frequent objects are told", f"{path} subject {subject}")
            continue
        name = named.get(subject, subject)
        facts = [f"{name} {related.get(r, r)} {named.get(o, o)} ." for r, o in told]
        yield Knowledge(source, {"text": " ".join(facts)}, None, first_id + number)


def triples(path: str | Path, skips: Skips) -> Iterator[tuple[str, str, str]]:
    """The triples of all files."""
    for file in files_of(path, ".tsv", ".txt", ".tsv.gz", ".txt.gz"):
        with open_text(file) as lines:
            for number, line in enumerate(lines, 1):
                parts = [part.strip() for part in line.split("\t")]
                if len(parts) == 3 and all(parts):
                    yield parts[0], parts[1], parts[2]
                elif line.strip():
                    skips.add("that are no triples", f"{file} line {number}")


def _names(path: str | Path | None) -> Mapping[str, str]:
    """Number -> first name."""
    if path is None:
        return {}
    with open_text(Path(path)) as lines:
        split = (line.strip("\r\n").split("\t") for line in lines)
        return {parts[0]: parts[1].strip() for parts in split if len(parts) > 1 and parts[1].strip()}
