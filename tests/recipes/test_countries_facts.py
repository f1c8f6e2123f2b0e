"""Facts are the package's, oddities are counted, and made-up countries have the shape of real ones and nothing else."""

import collections
import json
import re

import cv2
import numpy as np
import pytest
from little_countries import COUNTRIES
from made_archives import write_npm
from reveal_networks import one_line

from recipes.countries import fetch
from recipes.countries.facts import DATA, MOST, RELATIONS, Atlas, alone, load, nearest, parts_of, rounded
from recipes.countries.invented import WORD, Coiner, Sounds, invent, syllables

ATLAS = Atlas.create()
TABLE = {entry["name"]: entry for entry in json.loads((DATA / "countries.json").read_text("utf-8"))["countries"]}


def known(name, relation) -> tuple[str, ...]:
    return ATLAS.answers(ATLAS.number_of[name], relation)


def test_the_counts_of_the_docstring():
    told = [country.told for country in ATLAS.countries]
    assert len(told) == ATLAS.real == len(TABLE) == 250 and ATLAS.flags.shape == (250, 48, 64, 3)
    none = {relation: sum(not facts[relation] for facts in told) for relation in RELATIONS}
    assert none == dict(name=0, region=0, languages=1, area=1, borders=85, capital=5, currency=4)
    several = {relation: sum(len(facts[relation]) > 1 for facts in told) for relation in RELATIONS}
    assert several == dict(name=0, region=0, languages=96, area=0, borders=142, capital=2, currency=20)
    assert max(len(texts) for facts in told for texts in facts.values()) == MOST
    assert sum(entry["subregion"] is None for entry in TABLE.values()) == 5
    assert len({facts["area"] for facts in told} - {()}) == 53


def test_each_fact_is_the_tables():
    for country in ATLAS.countries:
        entry = TABLE[country.name]
        assert country.told["region"][0] == (entry["subregion"] or entry["region"])
        for relation, key in (("languages",) * 2, ("borders",) * 2, ("capital",) * 2, ("currency", "currencies")):
            assert list(country.told[relation]) == entry[key][:MOST]
        if entry["area"]:
            told = float(country.told["area"][0].removesuffix(" square km").replace(",", ""))
            assert abs(told - entry["area"]) <= 0.5 * 10 ** np.floor(np.log10(entry["area"])) + 1e-9


@pytest.mark.parametrize(
    ("area", "words"), [(643801, "600,000"), (0.44, "0.4"), (2.02, "2"), (9.6, "10"), (17098242, "20,000,000")]
)
def test_areas_in_words(area, words):
    assert rounded(area) == f"{words} square km"


def test_flags_that_are_anothers_too():
    """23 in 8 groups, of which that of France is the largest."""
    parts = ATLAS.parts
    same = np.abs(parts[:, None] - parts[None]).mean(-1).max(-1) <= 0.15
    groups = {tuple(np.flatnonzero(row)) for row in same if row.sum() > 1}
    assert sum(map(len, groups)) == (~ATLAS.alone).sum() == 23 and len(groups) == 8
    names = [{ATLAS.countries[number].name for number in group} for group in groups]
    assert max(map(len, names)) == 9 and {"Chad", "Romania"} in names and {"Indonesia", "Monaco"} in names


def test_the_split_is_fixed_and_of_countries_with_a_flag_of_their_own():
    assert len(ATLAS.held_out) == 50 and ATLAS.alone[ATLAS.held_out].all() and (np.diff(ATLAS.held_out) > 0).all()
    np.testing.assert_array_equal(Atlas.create().held_out, ATLAS.held_out)
    assert list(Atlas.create(seed=1).held_out) != list(ATLAS.held_out)
    np.testing.assert_array_equal(np.sort(np.concatenate([ATLAS.sets["train"], ATLAS.held_out])), np.arange(250))
    with pytest.raises(ValueError, match="200 held out: keep to 0 to 113") as error:
        Atlas.create(held_out=200)
    assert one_line(error)


def test_edited_facts_are_those_of_other_held_out_countries():
    edited, changed = ATLAS.edited(0), 0
    for number, (before, after) in enumerate(zip(ATLAS.countries, edited.countries, strict=True)):
        if number in ATLAS.held_out:
            assert after.name == before.name
            assert [bool(after.told[r]) for r in RELATIONS] == [bool(before.told[r]) for r in RELATIONS]
            changed += before.told["capital"] != after.told["capital"]
        else:
            assert after.told == before.told
    assert changed == sum(bool(ATLAS.answers(number, "capital")) for number in ATLAS.held_out)
    of_all = [sorted(atlas.answers(n, "currency") for n in ATLAS.held_out) for atlas in (ATLAS, edited)]
    assert of_all[0] == of_all[1]


def test_files_that_are_something_else(tmp_path):
    with pytest.raises(FileNotFoundError):
        load(tmp_path)
    (tmp_path / "countries.json").write_text('{"countries": [{"name": "Nowhere"}]}')
    with pytest.raises(ValueError, match="no table of countries") as error:
        load(tmp_path)
    assert one_line(error)


# ---- where they are from


def drawing(colour: str) -> bytes:
    path = f'<path fill="{colour}" d="M0 0h4v3H0z"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 4 3">{path}</svg>'.encode()


def entry(code, name, **changes) -> dict:
    plain = dict(
        capital=[""], subregion="", languages=[], currencies=[], borders=[], area=-1, region="Sea", latlng=[0, 0]
    )
    return {"cca2": code, "cca3": f"{code}Q", "name": {"common": name}, **plain, **changes}


@pytest.fixture
def archives(tmp_path, monkeypatch):
    """Two countries in packages like the real ones, whose digests are expected."""
    far = entry("ZZ", "Far", currencies={"FAR": {"name": "mark"}}, languages={"far": "Farish"}, borders=["AAQ"], area=7)
    write_npm(tmp_path, fetch.FACTS, {fetch.TABLE: json.dumps([far, entry("AA", "Alone")]).encode()})
    flags = {fetch.DRAWING.format(code): drawing(colour) for code, colour in (("zz", "#f00"), ("aa", "#00f"))}
    write_npm(tmp_path, fetch.FLAGS, flags)
    digests = {p.name: fetch.about(p, tmp_path / p.pattern)["sha256"] for p in (fetch.FACTS, fetch.FLAGS)}
    monkeypatch.setattr(fetch, "SHA256", digests)
    return tmp_path


def test_both_files_are_made_of_the_packages(archives, tmp_path):
    assert fetch.fetch(tmp_path / "out", archives) == 2
    countries, flags = load(tmp_path / "out")
    assert [country.name for country in countries] == ["Alone", "Far"]
    assert countries[0].told == dict(
        name=("Alone",), region=("Sea",), languages=(), area=(), borders=(), capital=(), currency=()
    )
    assert countries[1].told["borders"] == ("Alone",) and countries[1].told["currency"] == ("mark",)
    assert (flags[0] == (0, 0, 255)).all() and (flags[1] == (255, 0, 0)).all()
    with pytest.raises(FileExistsError):
        fetch.fetch(tmp_path / "out", archives)


def test_another_package_is_refused(archives, tmp_path, monkeypatch):
    monkeypatch.setitem(fetch.SHA256, fetch.FLAGS.name, "0" * 64)
    with pytest.raises(ValueError, match=r"flag-icons-7.5.0.tgz is not the expected one") as error:
        fetch.fetch(tmp_path / "out", archives)
    assert one_line(error) and not (tmp_path / "out").exists()


def test_a_flag_that_is_missing(archives):
    with pytest.raises(ValueError, match="no flag of xx, yy"):
        fetch.read_flags(archives / fetch.FLAGS.pattern, ["aa", "xx", "yy"])


def test_what_is_transparent_becomes_white():
    half = np.zeros((192, 256, 4), np.uint8)
    half[:, :128] = (0, 0, 255, 255)  # BGRA
    shown = fetch.thumbnail(cv2.imencode(".png", half)[1].tobytes())
    assert (shown[:, :32] == (255, 0, 0)).all() and (shown[:, 32:] == 255).all()


def test_a_sheet_of_flags_comes_apart_again():
    flags = np.random.default_rng(0).integers(0, 256, (19, 48, 64, 3), np.uint8)
    np.testing.assert_array_equal(fetch.flags_of(fetch.sheet_of(flags), 19), flags)
    with pytest.raises(ValueError, match="a sheet of 33 flags is 144 high"):
        fetch.flags_of(fetch.sheet_of(flags), 33)


# ---- what is invented


def made(count=200, seed=0):
    return invent(ATLAS.countries, count, np.random.default_rng(seed))


def test_invented_countries_have_names_of_their_own_and_neighbours_among_themselves():
    others = made()
    names = [country.name for country in others]
    assert len(set(names)) == 200 and not set(names) & set(TABLE)
    assert all(set(country.told["borders"]) <= set(names) - {country.name} for country in others)
    assert 0.2 < np.mean([not country.told["borders"] for country in others]) < 0.5
    assert [country.told for country in made(5)] == [country.told for country in made(5)]
    capitals = {city for country in others for city in country.told["capital"]}
    assert not capitals & {city for entry in TABLE.values() for city in entry["capital"]}


def test_invented_words_are_made_of_the_syllables_of_real_ones():
    texts = [text for entry in TABLE.values() for text in (entry["name"], *entry["capital"])]
    words = {word for text in texts for word in WORD.findall(text)}
    sounds = Sounds.of(sorted(words))
    rng = np.random.default_rng(0)
    for word in ("Zimbabwe", "islands", "Chad"):
        new = sounds.word(word, rng)
        assert new[0].isupper() == word[0].isupper() and len(new) >= 2
        assert new.lower() in {(a + b).lower() for a in sounds.first for b in sounds.last} or len(syllables(word)) > 2


def test_common_words_stay_where_they_are():
    coiner = Coiner([entry["name"] for entry in TABLE.values()], Sounds.of(["Kenya", "Malta", "Zimbabwe"]))
    made = coiner.like("Saint Kitts and Nevis", np.random.default_rng(0))
    assert re.fullmatch(r"Saint [A-Z]\w+ and [A-Z]\w+", made) and "Kitts" not in made and "Nevis" not in made
    assert coiner.like("Cook Islands", np.random.default_rng(0)).endswith(" Islands")


@pytest.mark.parametrize(
    ("word", "parts"),
    [
        ("Zimbabwe", "Zim bab we"),
        ("Kyrgyzstan", "Kyr gyz stan"),
        ("Chad", "Chad"),
        ("Curaçao", "Cu ra çao"),
        ("Zzz", "Zzz"),
    ],
)
def test_syllables(word, parts):
    assert syllables(word) == parts.split()


# ---- distances


def test_nearest_ones_are_in_order():
    line = np.array([[0.0], [1.0], [3.0], [3.5]])
    assert nearest(line, 2).tolist() == [[1, 2], [0, 2], [3, 1], [2, 1]]


def test_a_flag_is_alone_unless_all_its_parts_are_anothers():
    flags = np.full((3, 48, 64, 3), 100, np.uint8)
    flags[1] += 30  # all a little lighter
    flags[2, 20:30, 20:30] = 0  # something on it
    assert alone(parts_of(flags)).tolist() == [False, False, True]


def test_the_default_world_is_shared():
    other = type(COUNTRIES)(size=32, invented=40)
    assert other.atlas is COUNTRIES.atlas and len(other.atlas.countries) == 290
    counts = collections.Counter(COUNTRIES.atlas.alone[250:].tolist())
    assert counts[True] >= 36
