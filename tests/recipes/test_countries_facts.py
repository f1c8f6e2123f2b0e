"""Facts of the countries: the package's files, the split and edits, invented countries, sentences and the tokenizer."""

import dataclasses
import json
import re

import cv2
import numpy as np
import pytest
from little_worlds import COUNTRIES, COUNTRIES_NETWORK, number_of
from made_archives import write_npm
from refusal import refused

from recipes.countries import fetch, phrases, pieces
from recipes.countries.facts import DATA, MAX_ANSWERS, RELATIONS, Atlas, area_text, load
from recipes.countries.invented import WORD, Coiner, Syllables, invent, split_syllables
from recipes.countries.pieces import texts
from recipes.downloads.archives import about

ATLAS = Atlas.create()
TABLE = {entry["name"]: entry for entry in json.loads((DATA / "countries.json").read_text("utf-8"))["countries"]}
WORDS = COUNTRIES.vocabulary


def test_the_counts_of_the_docstring():
    facts = [country.facts for country in ATLAS.countries]
    assert len(facts) == ATLAS.real == len(TABLE) == 250 and ATLAS.flags.shape == (250, 48, 64, 3)
    none = {relation: sum(not one[relation] for one in facts) for relation in RELATIONS}
    assert none == dict(name=0, region=0, languages=1, area=1, borders=85, capital=5, currency=4)
    several = {relation: sum(len(one[relation]) > 1 for one in facts) for relation in RELATIONS}
    assert several == dict(name=0, region=0, languages=96, area=0, borders=142, capital=2, currency=20)
    assert max(len(answers) for one in facts for answers in one.values()) == MAX_ANSWERS
    assert sum(entry["subregion"] is None for entry in TABLE.values()) == 5
    assert len({one["area"] for one in facts} - {()}) == 53
    colours = ATLAS.grid_colours
    same = np.abs(colours[:, None] - colours[None]).mean(-1).max(-1) <= 0.15
    groups = {tuple(np.flatnonzero(row)) for row in same if row.sum() > 1}
    assert sum(map(len, groups)) == (~ATLAS.unique_flag).sum() == 23 and len(groups) == 8
    names = [{ATLAS.countries[number].name for number in group} for group in groups]
    assert max(map(len, names)) == 9 and {"Chad", "Romania"} in names and {"Indonesia", "Monaco"} in names


def test_areas():
    areas = {643801: "600,000", 0.44: "0.4", 2.02: "2", 9.6: "10", 17098242: "20,000,000"}
    assert all(area_text(area) == f"{text} square km" for area, text in areas.items())


def test_the_split_is_fixed_and_of_countries_with_unique_flags():
    assert len(ATLAS.held_out) == 50 and ATLAS.unique_flag[ATLAS.held_out].all() and (np.diff(ATLAS.held_out) > 0).all()
    np.testing.assert_array_equal(Atlas.create().held_out, ATLAS.held_out)
    assert list(Atlas.create(seed=1).held_out) != list(ATLAS.held_out)
    np.testing.assert_array_equal(np.sort(np.concatenate([ATLAS.splits["train"], ATLAS.held_out])), np.arange(250))
    refused(ValueError, Atlas.create, held_out=200, match=r"200.*113")
    other = dataclasses.replace(COUNTRIES, size=32)
    assert other.atlas is COUNTRIES.atlas and len(other.atlas.countries) == 290
    assert COUNTRIES.atlas.unique_flag[250:].sum() >= 36


def test_edits_exchange_the_facts_of_held_out_countries():
    edited, changed = ATLAS.edited(0), 0
    for number, (before, after) in enumerate(zip(ATLAS.countries, edited.countries, strict=True)):
        if number in ATLAS.held_out:
            assert after.name == before.name
            assert [bool(after.facts[r]) for r in RELATIONS] == [bool(before.facts[r]) for r in RELATIONS]
            changed += before.facts["capital"] != after.facts["capital"]
        else:
            assert after.facts == before.facts
    assert changed == sum(bool(ATLAS.answers(number, "capital")) for number in ATLAS.held_out)
    currencies = [sorted(atlas.answers(n, "currency") for n in ATLAS.held_out) for atlas in (ATLAS, edited)]
    assert currencies[0] == currencies[1]


def entry(code, name, **changes) -> dict:
    plain = dict(capital=[""], subregion="", languages=[], currencies=[], borders=[], area=-1, region="Sea")
    return {"cca2": code, "cca3": f"{code}Q", "name": {"common": name}, "latlng": [0, 0], **plain, **changes}


@pytest.fixture
def packages(tmp_path):
    """Two countries in packages like the real ones."""
    far = entry("ZZ", "Far", currencies={"FAR": {"name": "mark"}}, languages={"far": "Farish"}, borders=["AAQ"], area=7)
    facts, flags = (dataclasses.replace(package, sha256="") for package in (fetch.FACTS, fetch.FLAGS))
    write_npm(tmp_path, facts, {fetch.TABLE: json.dumps([far, entry("AA", "Alone")]).encode()})
    svg = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 4 3"><path fill="{}" d="M0 0h4v3H0z"/></svg>'
    drawings = {fetch.DRAWING.format(code): svg.format(c).encode() for code, c in (("zz", "#f00"), ("aa", "#00f"))}
    write_npm(tmp_path, flags, drawings)
    return facts, flags


def test_both_files_are_made_of_the_packages(packages, tmp_path):
    assert fetch.fetch(tmp_path / "out", tmp_path, packages=packages) == 2
    countries, flags = load(tmp_path / "out")
    assert [country.name for country in countries] == ["Alone", "Far"]
    unknown = dict(languages=(), area=(), borders=(), capital=(), currency=())
    assert countries[0].facts == dict(name=("Alone",), region=("Sea",)) | unknown
    assert countries[1].facts["borders"] == ("Alone",) and countries[1].facts["currency"] == ("mark",)
    assert (flags[0] == (0, 0, 255)).all() and (flags[1] == (255, 0, 0)).all()
    refused(FileExistsError, fetch.fetch, tmp_path / "out", tmp_path, packages=packages)


def test_refused_packages_and_files(packages, tmp_path):
    archive = tmp_path / packages[1].pattern
    assert about(packages[1], archive)["sha256"] != fetch.FLAGS.sha256
    with pytest.raises(ValueError, match=r"flag-icons-7\.5\.0\.tgz"):
        fetch.fetch(tmp_path / "out", tmp_path, packages=(packages[0], fetch.FLAGS))
    assert not (tmp_path / "out").exists()
    refused(FileNotFoundError, load, tmp_path)


def test_thumbnails_and_stacks():
    half = np.zeros((192, 256, 4), np.uint8)
    half[:, :128] = (0, 0, 255, 255)  # BGRA; the other half is transparent
    shown = fetch.thumbnail(cv2.imencode(".png", half)[1].tobytes())
    assert (shown[:, :32] == (255, 0, 0)).all() and (shown[:, 32:] == 255).all()
    flags = np.random.default_rng(0).integers(0, 256, (19, 48, 64, 3), np.uint8)
    np.testing.assert_array_equal(fetch.unstack_flags(fetch.stack_flags(flags), 19), flags)
    refused(ValueError, fetch.unstack_flags, fetch.stack_flags(flags), 33)


def test_invented_countries():
    made = [invent(ATLAS.countries, count, np.random.default_rng(0)) for count in (200, 5, 5)]
    assert [one.facts for one in made[1]] == [one.facts for one in made[2]]
    names = [country.name for country in made[0]]
    assert len(set(names)) == 200 and not set(names) & set(TABLE)
    borders = [country.facts["borders"] for country in made[0]]
    assert all(set(own) <= set(names) - {name} for own, name in zip(borders, names, strict=True))
    assert 0.2 < np.mean([not own for own in borders]) < 0.5
    capitals = {city for country in made[0] for city in country.facts["capital"]}
    assert not capitals & {city for entry in TABLE.values() for city in entry["capital"]}


def test_invented_words_are_made_of_real_syllables():
    texts = [text for entry in TABLE.values() for text in (entry["name"], *entry["capital"])]
    syllables = Syllables.of(sorted({word for text in texts for word in WORD.findall(text)}))
    known = {(a + b).lower() for a in syllables.first for b in syllables.last}
    rng = np.random.default_rng(0)
    for word in ("Zimbabwe", "islands", "Chad"):
        new = syllables.word(word, rng)
        assert new[0].isupper() == word[0].isupper() and len(new) >= 2
        assert new.lower() in known or len(split_syllables(word)) > 2
    coiner = Coiner([entry["name"] for entry in TABLE.values()], Syllables.of(["Kenya", "Malta", "Zimbabwe"]))
    new = coiner.like("Saint Kitts and Nevis", np.random.default_rng(0))
    assert re.fullmatch(r"Saint [A-Z]\w+ and [A-Z]\w+", new) and "Kitts" not in new and "Nevis" not in new
    assert coiner.like("Cook Islands", np.random.default_rng(0)).endswith(" Islands")


def test_syllables():
    for parts in ("Zim bab we", "Kyr gyz stan", "Chad", "Cu ra çao", "Zzz"):
        assert split_syllables(parts.replace(" ", "")) == parts.split()


def test_each_relation_is_in_one_item():
    facts, rng = ATLAS.countries[number_of(ATLAS, "Peru")].facts, np.random.default_rng(0)
    for kind in range(len(phrases.ITEM_KINDS)):
        text = phrases.item_text(facts, kind, rng)
        told = {relation for relation in RELATIONS if facts[relation][0] in text}
        assert told == {r for r in RELATIONS if phrases.KIND_OF[r] == kind or (r == "name" and kind < 2)}
    relations = ("languages", "capital", "area", "borders")
    assert [phrases.SOURCE_OF[relation] for relation in relations] == list(phrases.SOURCES)
    unknown = {relation: () for relation in RELATIONS} | {"name": ("Nowhere",), "region": ("Sea",)}
    made = {phrases.item_text(unknown, kind, np.random.default_rng(seed)) for seed in range(8) for kind in range(5)}
    assert made == {"", "Nowhere lies in Sea.", "Nowhere is a country of Sea."}
    items = COUNTRIES.memory_items()
    assert len(items) == 250 + 249 + 165 + 249 + 246 and [i.id for i in items] == sorted({i.id for i in items})
    assert all((item.picture is None) == (item.source == "graph") and item.fields["text"] for item in items)


@pytest.mark.long
def test_the_tokenizer_spells_everything_and_has_not_seen_held_out_facts():
    assert len(WORDS) == COUNTRIES_NETWORK.vocab_size and WORDS.bos == COUNTRIES_NETWORK.bos
    answers = [text for one in COUNTRIES.atlas.countries for right in one.facts.values() for text in right]
    for text in ("Zürich, Łódź and Reykjavík", "30,000 square km", "東京", *phrases.fixed_texts(), *answers):
        assert WORDS.decode(WORDS.encode(text, 99)) == " ".join(text.split())
    lines, atlas = set(texts(COUNTRIES.atlas)), COUNTRIES.atlas
    known = [n for n in range(250) if atlas.answers(n, "languages")]
    triples = [f"{atlas.countries[n].name}, languages: {', '.join(atlas.answers(n, 'languages'))}" for n in known]
    seen = {n for n, triple in zip(known, triples, strict=True) if triple in lines}
    assert seen == set(known) - set(atlas.held_out.tolist())
    items = COUNTRIES.items
    assert items.tokens.shape[1] == 40 and not items.tokens[:, -1].any()  # no item is cut
    np.testing.assert_array_equal(items.has_image, items.source > 0)


def test_no_tokenizer_is_trained_and_nothing_fetched_over_what_exists(tmp_path, monkeypatch):
    monkeypatch.setattr(pieces.tokenizers, "trained", lambda *_, **__: pytest.fail("trained"))
    monkeypatch.setattr(fetch, "obtain", lambda *_: pytest.fail("downloaded"))
    (tmp_path / "spiece.model").write_text("mine")
    refused(FileExistsError, pieces.main, tmp_path / "spiece.model", match=r"spiece\.model")
    refused(FileExistsError, fetch.fetch, tmp_path, match=r"spiece\.model")
