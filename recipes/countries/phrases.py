"""What is said about a country, by whom, and how one asks: the sentences of items and questions.

| relation  | source     | the item                                                           | asked with |
| --------- | ---------- | ------------------------------------------------------------------ | ---------- |
| name      | `passages` | flag, "Chad lies in Middle Africa. Its capital is N'Djamena."      | a flag     |
| region    | `passages` | (the same item)                                                    | a flag     |
| capital   | `passages` | (the same item)                                                    | a flag     |
| area      | `captions` | flag, "the flag of a country of 1,000,000 square km"; no name      | a flag     |
| borders   | `vqa`      | flag, "Which country does it border? Cameroon, Libya"; no name     | a flag     |
| languages | `graph`    | "Chad, languages: French, Arabic"; no flag                         | the name   |
| currency  | `graph`    | "Chad, currency: Central African CFA franc"; no flag               | the name   |

The first five are one hop from a flag. The last two are two hops: no item has both the flag and the answer, so the
name has to be asked for first and put into the second question. `hops` lists these questions for the processor.

A country has up to five items, one for each of `SLOTS`; one about which nothing is known does not exist. Every
relation has several phrasings; a question is put in one that is drawn, an item was written in one drawn for ever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from recipes.countries.facts import RELATIONS

SOURCES = ("graph", "passages", "captions", "vqa")
SLOTS = ("languages", "currency", "passage", "caption", "vqa")  # a country's items
SOURCE_OF_SLOT = np.array([0, 0, 1, 2, 3])
SLOT_OF = {"name": 2, "region": 2, "capital": 2, "area": 3, "borders": 4, "languages": 0, "currency": 1}
SOURCE_OF = {relation: SOURCES[SOURCE_OF_SLOT[slot]] for relation, slot in SLOT_OF.items()}
SEEN = ("name", "region", "capital", "area", "borders")  # asked about a flag; the others by name
QUESTIONS: Mapping[str, tuple[str, ...]] = {
    "name": (
        "Which country is this?",
        "Whose flag is this?",
        "What country does this flag belong to?",
        "Name the country with this flag.",
    ),
    "region": (
        "In which part of the world is it?",
        "Where in the world is this country?",
        "In what region does this country lie?",
        "What part of the world is this flag from?",
    ),
    "capital": (
        "What is the capital?",
        "What is the capital of this country?",
        "Which city is its capital?",
        "Name the capital of this country.",
    ),
    "area": (
        "How large is this country?",
        "What is its area?",
        "How many square km does it have?",
        "How big is the country with this flag?",
    ),
    "borders": (
        "Which country does it border?",
        "Name a neighbour of this country.",
        "What country is next to it?",
        "Which neighbour does this country have?",
    ),
    "languages": (
        "Which language is spoken in {}?",
        "What do people speak in {}?",
        "Name a language of {}.",
        "{}: what is its language?",
    ),
    "currency": (
        "What is the currency of {}?",
        "What money is used in {}?",
        "Name the currency of {}.",
        "{}: what is its currency?",
    ),
}
OF_THIS = "this country"  # stands for the name where a question is about a flag
PASSAGES = (
    "{name} lies in {region}. Its capital is {capital}.",
    "{name} is a country of {region} with the capital {capital}.",
    "In {region} lies {name}. The capital is {capital}.",
    "This is {name}, in {region}; {capital} is its capital.",
)
SILENT = ("{name} lies in {region}.", "{name} is a country of {region}.")  # where no capital is known
CAPTIONS = ("the flag of a country of {}", "flag, {}", "a country of {} and its flag", "this country has {}")
TRIPLE = "{name}, {relation}: {answers}"


def item_id(country: Any, slot: Any) -> Any:
    """The number of an item; for numbers, and for arrays that broadcast."""
    return country * len(SLOTS) + slot


def question_id(country: Any, relation: Any) -> Any:
    """The number of a question, in whatever words; as `item_id`."""
    return country * len(RELATIONS) + relation


def written(told: Mapping[str, Sequence[str]], slot: int, rng: np.random.Generator) -> str:
    """The text of one of a country's items, "" if there is nothing to tell. Takes as much chance either way."""
    kind, (choice,) = SLOTS[slot], rng.integers(4, size=1)
    name, answers = told["name"][0], {relation: ", ".join(texts) for relation, texts in told.items()}
    if kind == "passage":
        sentence = PASSAGES[choice] if answers["capital"] else SILENT[choice % len(SILENT)]
        return sentence.format(**answers)
    if kind == "caption":
        return CAPTIONS[choice].format(answers["area"]) if answers["area"] else ""
    if kind == "vqa":
        return f"{QUESTIONS['borders'][choice]} {answers['borders']}" if answers["borders"] else ""
    return TRIPLE.format(name=name, relation=kind, answers=answers[kind]) if answers[kind] else ""


def asked_of(relation: str, name: str, choice: int) -> str:
    """A question in the words of the given phrasing; `name` matters where the question is put by name."""
    return QUESTIONS[relation][choice].format(name)


def hops() -> list[dict[str, str]]:
    """The questions about a flag that take two hops, as a processor's description has them."""
    return [
        {"question": text.format(OF_THIS), "about_image": QUESTIONS["name"][0], "about_answer": text}
        for relation in RELATIONS
        if relation not in SEEN
        for text in QUESTIONS[relation]
    ]


def fixed_texts() -> list[str]:
    """All words that are said of no country in particular."""
    phrasings = [text for relation in RELATIONS for text in QUESTIONS[relation]]
    sentences = [text.format(name="", region="", capital="") for text in (*PASSAGES, *SILENT)]
    return [
        *(text.format("") for text in (*phrasings, *CAPTIONS)),
        *sentences,
        *(TRIPLE.format(name="", relation=relation, answers="") for relation in SLOTS[:2]),
        OF_THIS,
        "square km",
    ]
