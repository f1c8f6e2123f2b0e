"""WikiData: triples of subject, relation and object, as one item of text per subject.

    Q10993	P31	Q55983715
    Q10993	P171	Q25369

is what Wikidata5M publishes, with a tab between the three; tables of names turn the numbers into words, a line each of
number, name and other names (`wikidata5m_entity.txt`, `wikidata5m_relation.txt`). What has no name stays as it is.
`wikidata_dump` reads Wikidata's own files. An item is written in one of two forms, and may go on to the facts about its
objects, the second hop:

    sentences   gull instance of bird . gull parent taxon Larus .
    pairs       France, capital: Paris, currency: euro; Paris, country: France

Objects of more than 10,000 triples ("human", "male") distinguish nothing, and those triples are left out, as in the
reference. A subject's triples may lie anywhere in the file, so all that are kept are held in the RAM: about 100 bytes
each. Ids are the order in which the subjects first appear, those that are left out counted too."""

import collections
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from common.data.text import open_text
from reveal.sources.records import Record, Skips, numbered_lines

FORMS = ("sentences", "pairs")
SECOND = 5  # facts about an object
EMPTY = "of which only frequent objects are told"
Facts = Mapping[str, Sequence[tuple[str, str]]]  # subject -> relation, object


def records(
    path: str | Path,
    names: str | Path | None = None,
    relations: str | Path | None = None,
    most: int = 10_000,
    keep: str | Sequence[str] = "",
    hops: int = 1,
    form: str = "sentences",
    *,
    skips: Skips,
) -> Iterator[Record]:
    """Items of a table of triples, a folder of them, or a pattern.

    Args:
      names, relations: tables of the names of subjects and objects, and of relations; None: they are words already.
      most: triples that an object may be in, among those of the relations that are kept.
      keep: the relations to keep, "P36,P17" or a list, as the triples have them; "": all.
      hops: 2 adds the facts about the objects, up to `SECOND` of each.
      form: one of `FORMS`.
    """
    check_form(hops, form)
    wanted, subject_names, relation_names = listed(keep), names_of(names), names_of(relations)
    counts = collections.Counter(obj for _, relation, obj in triples(path, Skips()) if is_kept(relation, wanted))
    facts: dict[str, list[tuple[str, str]]] = {}
    for subject, relation, obj in triples(path, skips):
        own = facts.setdefault(subject, [])
        if counts[obj] <= most and is_kept(relation, wanted):
            own.append((sys.intern(relation), sys.intern(obj)))
    for number, (subject, own) in enumerate(facts.items()):
        if own:
            text = linearised(neighbourhood(subject, facts, hops), subject_names, relation_names, form)
            yield Record(number, f"{path} subject {subject}", fields={"text": text})
        else:
            skips.add(EMPTY, f"{path} subject {subject}")


def triples(path: str | Path, skips: Skips) -> Iterator[tuple[str, str, str]]:
    for where, line in numbered_lines(path, ".tsv", ".txt", ".tsv.gz", ".txt.gz"):
        parts = [part.strip() for part in line.split("\t")]
        if len(parts) == 3 and all(parts):
            yield parts[0], parts[1], parts[2]
        elif line.strip():
            skips.add("that are no triples", where)


def neighbourhood(subject: str, facts: Facts, hops: int) -> dict[str, list[tuple[str, str]]]:
    """The facts about a subject, and with 2 hops about each of its objects, but not those that lead back to it."""
    found = {subject: list(facts[subject])}
    if hops == 2:
        for _, obj in facts[subject]:
            pairs = [fact for fact in facts.get(obj, ()) if fact[1] != subject]
            if pairs and obj not in found:
                found[obj] = pairs[:SECOND]
    return found


def linearised(facts: Facts, names: Mapping[str, str], relations: Mapping[str, str], form: str = "sentences") -> str:
    """Facts as a text (module docstring); what has no name is called as it is."""
    named = [
        (names.get(subject, subject), [(relations.get(of, of), names.get(obj, obj)) for of, obj in pairs])
        for subject, pairs in facts.items()
    ]
    if form == "sentences":
        return " ".join(f"{name} {relation} {obj} ." for name, pairs in named for relation, obj in pairs)
    return "; ".join(", ".join([name, *(f"{relation}: {obj}" for relation, obj in pairs)]) for name, pairs in named)


def check_form(hops: int, form: str) -> None:
    if hops not in (1, 2) or form not in FORMS:
        raise ValueError(f"hops={hops}, form={form}: hops is 1 or 2, form one of {', '.join(FORMS)}")


def listed(names: str | Sequence[str]) -> tuple[str, ...]:
    """The parts of "a,b", or of a list."""
    parts = names.split(",") if isinstance(names, str) else names
    return tuple(part.strip() for part in parts if part.strip())


def is_kept(relation: str, wanted: Sequence[str]) -> bool:
    return not wanted or relation in wanted


def names_of(path: str | Path | None) -> Mapping[str, str]:
    """Number -> first name, of a table."""
    if path is None:
        return {}
    with open_text(Path(path)) as lines:
        split = (line.strip("\r\n").split("\t") for line in lines)
        return {parts[0]: parts[1].strip() for parts in split if len(parts) > 1 and parts[1].strip()}
