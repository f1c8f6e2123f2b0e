"""Wikidata's own dump: a JSON array with an entity on each line, `latest-all.json.gz` or .bz2.

    [
    {"type": "item", "id": "Q142", "labels": {"en": {"value": "France"}}, "claims": {"P36": [...]}, "sitelinks": ...},
    {"type": "property", "id": "P36", "labels": {"en": {"value": "capital"}}}
    ]

A claim's `mainsnak` holds its value: another entity, a date, an amount, a text. Left out are claims of rank
"deprecated", those without a value, and addresses and numbers of other catalogues ("external-id"). `wikidata.py` says
how facts are written; "pairs" is the default here: "France, capital: Paris, currency: euro".

The file is read twice: labels of all entities and how often each is an object, then the entities again. The labels are
held in the RAM; with `hops=2` so are the facts. Ids are the numbers of lines, so they do not depend on what is kept.

`site="enwiki"` keeps the entities that have a page in that Wikipedia: 4,947,397 in the paper.
"""

import collections
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from common.io.json_text import parse_json
from reveal.sources.records import Record, Skips, numbered_lines
from reveal.sources.wikidata import EMPTY, check_form, is_kept, linearised, listed, names_of, neighbourhood

IMAGE = "P18"
ENTITY = re.compile(r"[QPL]\d+")
LEFT_OUT = ("external-id", "url", "commonsMedia", "globe-coordinate", "geo-shape", "tabular-data", "math")
DAY, MONTH = 11, 10  # precisions of dates
Fact = tuple[str, str]  # relation, object or value


def records(
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
      hops, form: as in `wikidata.records`.
      site: of whose pages an entity needs one, such as enwiki; "": it needs none.
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
            yield Record(number, where, None, image, image, text_stays=True, fields={"text": text})
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
        if not is_kept(relation, wanted) or not isinstance(claims, list):
            continue
        stated = [claim for claim in claims if isinstance(claim, dict) and claim.get("rank") != "deprecated"]
        for claim in sorted(stated, key=lambda claim: claim.get("rank") != "preferred"):
            if text := value_of(mapping(claim.get("mainsnak")), languages):
                found.append((relation, text))
    return found


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
    claims = mapping(entity.get("claims")).get(IMAGE)
    for claim in claims if isinstance(claims, list) else ():
        snak = mapping(mapping(claim).get("mainsnak"))
        value = mapping(snak.get("datavalue")).get("value")
        if isinstance(value, str) and mapping(claim).get("rank") != "deprecated":
            return value
    return ""


def label_of(texts: Any, languages: Sequence[str]) -> str:
    """The text of {"en": {"value": ...}} in the first of the languages that it has; "" for none."""
    values = (mapping(mapping(texts).get(language)).get("value") for language in languages)
    return next((" ".join(value.split()) for value in values if isinstance(value, str) and value.strip()), "")


def mapping(value: Any) -> Mapping[str, Any]:
    """An object of the dump; an empty one is written as []."""
    return value if isinstance(value, dict) else {}
