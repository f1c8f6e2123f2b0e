"""Wikidata's dump and triples in two hops, and WIT as tfds prepares it, on small files in exactly those formats."""

import base64
import bz2
import gzip
import json

import pytest
from own_files import items, json_lines, page, picture, questions, tfrecord
from refusal import refused

from reveal.sources import wikidata
from reveal.sources.records import MISSING, TEXT_STAYS, UNREADABLE

BLANK = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z/C/HgAGgwJ/lK3Q6wAAAABJRU5ErkJggg=="
)


def claim(kind, value, rank="normal", datatype="wikibase-item"):
    snak = {"snaktype": "value", "datatype": datatype, "datavalue": {"type": kind, "value": value}}
    return {"mainsnak": snak, "type": "statement", "rank": rank}


def of(number, rank="normal"):
    return claim("wikibase-entityid", {"entity-type": "item", "numeric-id": int(number[1:]), "id": number}, rank)


def entity(number, label="", kind="item", site="", **claims):
    labels = {"en": {"language": "en", "value": label}} if label else []
    links = {site: {"site": site, "title": label}} if site else []
    return {"type": kind, "id": number, "labels": labels, "claims": claims or [], "sitelinks": links}


NOTHING = {"mainsnak": {"snaktype": "somevalue", "datatype": "wikibase-item"}, "rank": "normal"}
ENTITIES = [
    *(entity(number, label, "property") for number, label in {"P36": "capital", "P17": "country", "P31": "is"}.items()),
    entity(
        "Q142",
        "France",
        site="enwiki",
        P36=[of("Q90", "normal"), of("Q999", "deprecated"), NOTHING],
        P31=[of("Q6256")],
        P571=[claim("time", {"time": "+0843-08-11T00:00:00Z", "precision": 11}, datatype="time")],
        P2046=[claim("quantity", {"amount": "+543965", "unit": "http://www.wikidata.org/entity/Q712226"})],
        P1448=[
            claim("monolingualtext", {"text": "France", "language": "fr"}),
            claim("monolingualtext", {"text": "Fr\nance", "language": "en"}),
        ],
        P214=[claim("string", "1234", datatype="external-id")],
        P18=[claim("string", "The flag.jpg", datatype="commonsMedia")],
    ),
    entity("Q90", "Paris", P17=[of("Q142")], P31=[of("Q515"), of("Q6256")], P206=[of("Q1471")]),
    entity("Q1471", "Seine", P17=[of("Q142"), of("Q31", "preferred")]),
    entity("Q712226", "square kilometre", P31=[of("Q6256")]),
    entity("Q31", "", P36=[of("Q90")]),
]


def dump(path, entities=ENTITIES):
    lines = ",\n".join(json.dumps(one) for one in entities)
    pack = {".gz": gzip.compress, ".bz2": bz2.compress}.get(path.suffix, bytes)
    path.write_bytes(pack(f"[\n{lines}\n]\n".encode()))
    return path


def texts(found):
    return {item.id: item.fields["text"] for item in found}


@pytest.mark.parametrize("suffix", [".json", ".json.gz", ".json.bz2"])
def test_a_dump_becomes_an_item_per_entity(tmp_path, suffix):
    found, counts = items("wikidata_dump", dump(tmp_path / f"latest-all{suffix}"), most=2)
    assert texts(found) == {
        0: "France, capital: Paris, P571: 843-08-11, P2046: 543965 square kilometre, P1448: Fr ance",
        1: "Paris, country: France, is: Q515, P206: Seine",
        2: "Seine, country: Q31, country: France",
    }
    assert counts == {wikidata.EMPTY: 1, "without a label in en": 1}


def test_relations_sites_and_hops_of_a_dump(tmp_path):
    path = dump(tmp_path / "latest-all.json.bz2")
    assert texts(items("wikidata_dump", path, keep="P36,P206", hops=2, first_id=10)[0]) == {
        10: "France, capital: Paris; Paris, P206: Seine",
        11: "Paris, P206: Seine",
    }
    found = texts(items("wikidata_dump", path, keep=["P36", "P17"], hops=2, form="sentences")[0])
    assert found[1] == "Paris country France ." and found[0] == "France capital Paris ."  # nothing leads back
    whole = texts(items("wikidata_dump", path, site="enwiki", hops=2, most=2)[0])
    assert list(whole) == [0] and whole[0].endswith("; Paris, is: Q515, P206: Seine")
    refused(ValueError, items, "wikidata_dump", path, hops=3, match="hops=3")


def test_languages_names_and_images_of_a_dump(tmp_path):
    def shown(number: str, name: str) -> dict:
        image = claim("string", name, datatype="commonsMedia")
        return entity(number, "France", P36=[of("Q90")], P18=[of("Q1", "deprecated"), image])

    german = shown("Q142", "The flag.jpg")
    german["labels"]["de"] = {"language": "de", "value": "Frankreich\ud83d"}
    others = [shown("Q1", "lost.png"), shown("Q2", "void.png"), entity("Q90", "Paris")]
    path = dump(tmp_path / "a.json", [german, "no entity", {"id": 3, "type": "item"}, *others])
    image = picture(tmp_path / "p" / "The_flag.jpg", 1)
    (tmp_path / "p" / "void.png").touch()
    (tmp_path / "names.txt").write_text("Q90\tParis!\nP36\thas the capital\n")
    options = {"languages": "fr,de,en", "names": tmp_path / "names.txt", "images": tmp_path / "p"}
    found, counts = items("wikidata_dump", path, **options)
    assert texts(found)[0] == "Frankreich\ufffd, has the capital: Paris!"
    assert [item.picture for item in found] == [image.read_bytes(), None, None]
    wanted = {wikidata.EMPTY: 1, "that are no entities": 2}
    assert counts == wanted | {f"{reason} {TEXT_STAYS}": 1 for reason in (MISSING, UNREADABLE)}
    for name in ("The flag.jpg", "x/The_flag.png"):
        out = json_lines(tmp_path / "e.jsonl", [{"image": name}])
        assert len(items("wikidata_dump", path, [out], **options)[0]) == 2, name
    refused(ValueError, items, "wikidata_dump", path, strict=True, match=r"a\.json line 3")
    path.write_text(path.read_text()[:40])
    assert items("wikidata_dump", path) == ([], {"that are no entities": 1})


def test_dates():
    cases = {("+1889-03-31T00:00:00Z", 11): "1889-03-31", ("+1889-03-00T00:00:00Z", 10): "1889-03"}
    cases |= {("-0044-00-00T00:00:00Z", 9): "44 BC", ("nonsense", 9): "", ("+", 9): ""}
    assert {case: wikidata.date_of(*case) for case in cases} == cases


def test_triples(tmp_path):
    path = tmp_path / "triples.tsv"
    path.write_text("\n".join(["Q1\tP1\tQ9", "Q2\tP1\tQ9", "Q3\tP1\tQ9", "Q1\tP2\tQ2", "Q2\tP2\tQ5", "no triple"]))
    (tmp_path / "names.txt").write_text("Q1\tgull\tgulls\nQ2\tfish\nQ9\tanimal\n", "utf-8")
    (tmp_path / "relations.txt").write_text("P2\teats\n", "utf-8")
    tables = {"names": tmp_path / "names.txt", "relations": tmp_path / "relations.txt"}
    found, counts = items("wikidata", path, **tables, most=2)
    assert texts(found) == {0: "gull eats fish .", 1: "fish eats Q5 ."}
    assert counts == {"that are no triples": 1, wikidata.EMPTY: 1}
    (first, *_), _ = items("wikidata", path)
    assert first.fields["text"] == "Q1 P1 Q9 . Q1 P2 Q2 ." and first.picture is None


def test_triples_in_two_hops_and_pairs(tmp_path):
    path = tmp_path / "triples.tsv"
    path.write_text("France\tcapital\tParis\nParis\tcountry\tFrance\nParis\triver\tSeine\nFrance\tis\tcountry\n")
    two = texts(items("wikidata", path, hops=2, form="pairs")[0])
    assert two[0] == "France, capital: Paris, is: country; Paris, river: Seine"
    assert two[1] == "Paris, country: France, river: Seine; France, is: country"
    sentences = texts(items("wikidata", path, hops=2)[0])[0]
    assert sentences == "France capital Paris . France is country . Paris river Seine ."
    found, counts = items("wikidata", path, keep="river", form="pairs")
    assert texts(found) == {1: "Paris, river: Seine"} and counts == {wikidata.EMPTY: 1}
    refused(ValueError, items, "wikidata", path, form="verse", match="form=verse")


def test_wit_of_tfds(tmp_path):
    image = picture(tmp_path / "p" / "gull.jpg", 1)
    place = tmp_path / "wit" / "1.1.0"
    shards = [place / f"wit-train.tfrecord-0000{number}-of-00002" for number in (0, 1)]
    tfrecord(shards[0], page("gull"), page("möwe", language="de"), b"\xff\xff")
    tfrecord(shards[1], page("lost"), page("gull", caption_alt_text_description="a gull"))
    tfrecord(place / "wit-val.tfrecord-00000-of-00001", page("tern"))
    found, counts = items("wit_tfds", place, images=tmp_path / "p")
    assert [(item.id, item.fields["page"]) for item in found] == [(0, "About gull"), (4, "About gull")]
    assert found[1].fields["alt"] == "a gull" and found[0].picture == image.read_bytes()
    assert counts == {"that are no tf.train.Example": 1, MISSING: 1}
    assert [item.fields["page"] for item in items("wit_tfds", place, split="val")[0]] == ["About tern"]
    ((asked,), _) = questions("wit_tfds", place, images=tmp_path / "p", first_id=100)
    assert (asked.id, asked.gold, asked.answers) == (104, 104, ("a gull",))
    out = json_lines(tmp_path / "e.jsonl", [{"image": "https://x.org/tern.jpg"}])
    assert items("wit_tfds", place, [out], split="val")[0] == []
    refused(FileNotFoundError, items, "wit_tfds", place, split="test", match="'test'")
    shards[0].unlink()
    refused(FileNotFoundError, items, "wit_tfds", place, match="00000-of-00002")


def test_wit_kaggle_has_its_images(tmp_path):
    image = picture(tmp_path / "gull.jpg", 1).read_bytes()
    caption = {"caption_title_and_reference_description": "Gull [SEP] a gull at sea"}
    shown, blank = page("gull", image=image, **caption), page("tern", image=BLANK)
    path = tfrecord(tmp_path / "wit_kaggle-train.tfrecord-00000-of-00001", shown, blank)
    (first, second), _ = items("wit_tfds", path)
    assert first.picture == image and first.fields["caption"] == "a gull at sea" and second.picture is None
    ((asked,), _) = questions("wit_tfds", tmp_path)
    assert asked.image == image and asked.answers == ("a gull at sea",)
    path.write_bytes(path.read_bytes()[:-7])
    refused(ValueError, items, "wit_tfds", tmp_path, match=path.name)


def test_a_damaged_record_is_counted(tmp_path):
    path = tfrecord(tmp_path / "wit-train.tfrecord-00000-of-00001", page("gull"), page("tern"), page("auk"))
    path.write_bytes(path.read_bytes().replace(b"About tern", b"about tern"))
    found, counts = items("wit_tfds", tmp_path)
    assert [item.fields["page"] for item in found] == ["About gull", "About auk"]
    assert counts == {"that are damaged": 1}


def test_array_records(tmp_path):
    module = pytest.importorskip("array_record.python.array_record_module")
    path = tmp_path / "wit-train.array_record-00000-of-00001"
    writer = module.ArrayRecordWriter(str(path), "group_size:1")
    for name in ("gull", "tern"):
        writer.write(page(name))
    writer.close()
    assert [item.fields["page"] for item in items("wit_tfds", tmp_path)[0]] == ["About gull", "About tern"]
    path.write_bytes(path.read_bytes()[:-1000])
    refused(ValueError, items, "wit_tfds", tmp_path, match=path.name)
