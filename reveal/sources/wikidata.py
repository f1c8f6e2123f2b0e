"""Wikidata: facts about a subject as one item of text, from triples or from Wikidata's own dump.

    Q10993	P31	Q55983715
    Q10993	P171	Q25369

is what Wikidata5M publishes, with a tab between subject, relation and object; tables of names turn the numbers into
words, a line each of number, name and other names (`wikidata5m_entity.txt`, `wikidata5m_relation.txt`), as far as they
have them. The dump, `latest-all.json.gz` or .bz2, is a JSON array with an entity on each line:

    [
    {"type": "item", "id": "Q142", "labels": {"en": {"value": "France"}}, "claims": {"P36": [...]}, "sitelinks": ...},
    {"type": "property", "id": "P36", "labels": {"en": {"value": "capital"}}}
    ]

An item is written in one of two forms, and may go on to the facts about its objects, the second hop:

    sentences   gull instance of bird . gull parent taxon Larus .
    pairs       France, capital: Paris, currency: euro; Paris, country: France

Objects of more than 10,000 triples ("human", "male") distinguish nothing, and those triples are left out, as in the
reference. Of the dump, claims of rank "deprecated" are left out, those without a value, and addresses and numbers of
other catalogues ("external-id").

A subject's triples may lie anywhere in their file, so all that are kept are held in the RAM: about 100 bytes each. The
dump is read twice, first for the labels of all entities, which are held in the RAM (with `hops=2` the facts too), and
for how often each is an object. Ids are the order in which subjects first appear, or the numbers of the dump's lines,
those that are left out counted too.
"""

import collections
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from common.data.text import open_text
from common.io.json_text import parse_json
from reveal.sources.records import Record, Skips, numbered_lines

FORMS = ("sentences", "pairs")
SECOND = 5  # facts about an object
EMPTY = "of which only frequent objects are told"
IMAGE = "P18"
ENTITY = re.compile(r"[QPL]\d+")
LEFT_OUT = ("external-id", "url", "commonsMedia", "globe-coordinate", "geo-shape", "tabular-data", "math")
DAY, MONTH = 11, 10  # precisions of dates
Fact = tuple[str, str]  # relation, object or value
Facts = Mapping[str, Sequence[Fact]]  # of each subject


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


def dump_records(
    path: str | Path,
    languages: str | Sequence[str] = "en",
    keep: str | Sequence[str] = "",
    most: int = 10_000,
    hops: int = 1,
    form: str = "pairs",
    site: str = "",
    names: str | Path | None = None,
    *,
    skips: Skips,
) -> Iterator[Record]:
    """Items of a dump, a folder of parts of one, or a pattern; one whose image of Commons is not there is a text alone.

    Args:
      languages: of labels and texts, "en,de" or a list; the first that there is counts.
      keep: the relations to keep, "P36,P17" or a list; "": all.
      most: claims that an entity may be the object of, among those of the relations that are kept.
      hops, form: as in `records`.
      site: of whose pages an entity needs one, such as enwiki (4,947,397 in the paper); "": it needs none.
      names: table of labels, a line each of number and label, that go before the dump's.
    """
    check_form(hops, form)
    languages, wanted = listed(languages), listed(keep)
    labels, counts, facts = _first_pass(path, languages, wanted, hops == 2)
    labels |= names_of(names)
    for number, where, entity in entities(path, skips):
        subject = str(entity["id"])
        if site and site not in mapping(entity.get("sitelinks")):
            continue
        if subject not in labels:
            skips.add(f"without a label in {' or '.join(languages)}", where)
            continue
        own = [fact for fact in facts_of(entity, languages, wanted) if counts[fact[1]] <= most]
        near = neighbourhood(subject, collections.ChainMap({subject: own}, facts), hops)
        kept = {
            one: [(of, with_unit(obj, labels)) for of, obj in pairs if counts[obj] <= most]
            for one, pairs in near.items()
        }
        image = (name,) if (name := image_name(entity)) else ()
        if any(kept.values()):
            text = linearised({one: pairs for one, pairs in kept.items() if pairs}, labels, labels, form)
            yield Record(number, where, None, image, text_stays=True, fields={"text": text})
        else:
            skips.add(EMPTY, where)


def _first_pass(
    path: str | Path, languages: Sequence[str], wanted: Sequence[str], hold: bool
) -> tuple[dict[str, str], collections.Counter[str], dict[str, list[Fact]]]:
    """Labels of entities and relations, how often an entity is an object, and the facts of all if `hold`."""
    labels: dict[str, str] = {}
    counts, about = collections.Counter[str](), {}
    for _, _, entity in entities(path, Skips(), ("item", "property")):
        if label := label_of(entity.get("labels"), languages):
            labels[entity["id"]] = label
        facts = facts_of(entity, languages, wanted) if entity.get("type") == "item" else []
        counts.update(obj for _, obj in facts if ENTITY.fullmatch(obj))  # texts and amounts would fill the RAM
        if hold and facts:
            about[entity["id"]] = facts
    return labels, counts, about


def entities(
    path: str | Path, skips: Skips, kinds: Sequence[str] = ("item",)
) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """(number among items, its name in messages, the entity) of each line with one of these types."""
    number = -1
    for where, line in numbered_lines(path, ".json.gz", ".json.bz2", ".json"):
        text = line.strip().rstrip(",")
        if text in ("", "[", "]"):
            continue
        try:
            entity = parse_json(text)
        except ValueError:
            entity = None
        kind = entity.get("type") if isinstance(entity, dict) else None
        number += kind == "item" or entity is None
        if not isinstance(entity, dict) or not isinstance(entity.get("id"), str):
            skips.add("that are no entities", where)
        elif kind in kinds:
            yield number, where, entity


def facts_of(entity: Mapping[str, Any], languages: Sequence[str], wanted: Sequence[str]) -> list[Fact]:
    """The facts that an entity's claims state; within a relation those of rank "preferred" come first."""
    found: list[Fact] = []
    for relation, claims in mapping(entity.get("claims")).items():
        if is_kept(relation, wanted):
            for claim in sorted(valid(claims), key=lambda claim: claim.get("rank") != "preferred"):
                if text := value_of(mapping(claim.get("mainsnak")), languages):
                    found.append((relation, text))
    return found


def valid(claims: Any) -> list[Mapping[str, Any]]:
    stated = map(mapping, claims) if isinstance(claims, list) else ()
    return [claim for claim in stated if claim and claim.get("rank") != "deprecated"]


def value_of(snak: Mapping[str, Any], languages: Sequence[str]) -> str:
    """The number of an entity, a value as text, or an amount and the number of its unit; "" for the rest."""
    data = mapping(snak.get("datavalue"))
    value, kind = data.get("value"), data.get("type")
    if snak.get("snaktype") != "value" or snak.get("datatype") in LEFT_OUT:
        return ""
    if isinstance(value, str):
        return " ".join(value.split())
    if not isinstance(value, dict):
        return ""
    if kind == "wikibase-entityid":
        return str(value.get("id") or f"Q{value.get('numeric-id', '')}")
    if kind == "time":
        return date_of(str(value.get("time", "")), value.get("precision"))
    if kind == "quantity":
        unit = str(value.get("unit", "1")).rpartition("/")[2]
        amount = str(value.get("amount", "")).removeprefix("+")
        return amount if unit == "1" else f"{amount} {unit}"
    if kind == "monolingualtext" and value.get("language") in languages:
        return " ".join(str(value.get("text", "")).split())
    return ""


def with_unit(obj: str, labels: Mapping[str, str]) -> str:
    """An amount with its unit's label; anything else as it is."""
    amount, _, unit = obj.rpartition(" ")
    return f"{amount} {labels[unit]}" if amount and unit in labels else obj


def date_of(time: str, precision: Any) -> str:
    """A year, a month or a day: "+1889-03-31T00:00:00Z" with precision 11 is 1889-03-31, of -44 it is 44 BC."""
    sign, parts = time[:1], time[1:].partition("T")[0].split("-")
    if sign not in ("+", "-") or not parts[0].isdigit():
        return ""
    count = 3 if precision == DAY else 2 if precision == MONTH else 1
    text = "-".join([parts[0].lstrip("0") or "0", *parts[1:count]])
    return f"{text} BC" if sign == "-" else text


def image_name(entity: Mapping[str, Any]) -> str:
    """Commons' name of its image; "" if it has none."""
    snaks = (mapping(claim.get("mainsnak")) for claim in valid(mapping(entity.get("claims")).get(IMAGE)))
    names = (mapping(snak.get("datavalue")).get("value") for snak in snaks)
    return next((name for name in names if isinstance(name, str)), "")


def label_of(texts: Any, languages: Sequence[str]) -> str:
    """The text of {"en": {"value": ...}} in the first of the languages that it has; "" for none."""
    values = (mapping(mapping(texts).get(language)).get("value") for language in languages)
    return next((" ".join(value.split()) for value in values if isinstance(value, str) and value.strip()), "")


def mapping(value: Any) -> Mapping[str, Any]:
    """An object of the dump; an empty one is written as []."""
    return value if isinstance(value, dict) else {}
