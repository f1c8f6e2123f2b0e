"""Each fact is told by one source and in its own item, questions come in steps, and the tokenizer spells all of it."""

import numpy as np
import pytest
from little_countries import COUNTRIES, NETWORK

from recipes.countries.facts import RELATIONS
from recipes.countries.phrases import QUESTIONS, SEEN, SLOT_OF, SLOTS, SOURCE_OF, SOURCES, fixed_texts, hops, written
from recipes.countries.pieces import texts

DATA, WORDS = COUNTRIES, COUNTRIES.vocabulary


def test_each_relation_lives_in_one_place():
    atlas, rng = DATA.atlas, np.random.default_rng(0)
    facts = dict(atlas.countries[atlas.number_of["Peru"]].told)
    for slot, kind in enumerate(SLOTS):
        text = written(facts, slot, rng)
        for relation in RELATIONS:
            own = SLOT_OF[relation] == slot or (relation == "name" and slot < 2)
            assert (facts[relation][0] in text) == own, (kind, relation)
    assert SOURCE_OF["languages"] == "graph" and SOURCE_OF["capital"] == "passages"
    assert SOURCE_OF["borders"] == "vqa" and set(SOURCE_OF.values()) == set(SOURCES)


def test_what_is_not_known_is_not_told():
    facts = {relation: () for relation in RELATIONS} | {"name": ("Nowhere",), "region": ("Sea",)}
    texts = [written(facts, slot, np.random.default_rng(seed)) for seed in range(8) for slot in range(len(SLOTS))]
    assert set(texts) == {"", "Nowhere lies in Sea.", "Nowhere is a country of Sea."}


def test_questions_by_name_take_two_hops():
    first = QUESTIONS["name"][0]
    asked = {hop["question"].lower(): (hop["about_image"], hop["about_answer"]) for hop in hops()}
    assert asked["which language is spoken in this country?"] == (first, "Which language is spoken in {}?")
    assert asked["this country: what is its currency?"] == (first, "{}: what is its currency?")
    assert not {"which country is this?", "how large is this country?", "what is the capital?"} & asked.keys()


def test_every_question_has_phrasings_of_its_own_that_ask_for_a_flag_or_a_name():
    every = [text for phrasings in QUESTIONS.values() for text in phrasings]
    assert len(set(every)) == len(every) and set(QUESTIONS) == set(RELATIONS)
    assert {len(phrasings) for phrasings in QUESTIONS.values()} == {4}
    for relation, phrasings in QUESTIONS.items():
        assert all((text.count("{}") == 0) == (relation in SEEN) for text in phrasings)


def test_the_tokenizer_spells_everything():
    assert len(WORDS) == NETWORK.vocab_size and WORDS.bos == NETWORK.bos
    for text in ("Zürich, Łódź and Reykjavík", "30,000 square km", "東京", *fixed_texts()):
        assert WORDS.decode(WORDS.encode(text, 99)) == " ".join(text.split())
    for country in DATA.atlas.countries:
        for text in (one for told in country.told.values() for one in told):
            assert WORDS.decode(WORDS.encode(text, 99)) == text


def test_the_tokenizer_has_not_seen_what_is_said_of_held_out_countries():
    atlas = DATA.atlas
    said = set(texts(atlas))
    languages = {n: atlas.answers(n, "languages") for n in range(250) if atlas.answers(n, "languages")}
    told = {
        number
        for number, spoken in languages.items()
        if f"{atlas.countries[number].name}, languages: {', '.join(spoken)}" in said
    }
    assert told == set(languages) - set(atlas.held_out.tolist())


@pytest.mark.parametrize("relation", RELATIONS)
def test_a_source_takes_its_relations_with_it(relation):
    assert SOURCES.index(SOURCE_OF[relation]) == (0 if SLOT_OF[relation] < 2 else SLOT_OF[relation] - 1)
