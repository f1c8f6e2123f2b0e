"""The sentences of items and questions.

| relation  | source     | item                                                               | given    |
| --------- | ---------- | ------------------------------------------------------------------ | -------- |
| name      | `passages` | flag, "Chad lies in Middle Africa. Its capital is N'Djamena."      | flag     |
| region    | `passages` | (the same item)                                                    | flag     |
| capital   | `passages` | (the same item)                                                    | flag     |
| area      | `captions` | flag, "the flag of a country of 1,000,000 square km"; no name      | flag     |
| borders   | `vqa`      | flag, "Which country does it border? Cameroon, Libya"; no name     | flag     |
| languages | `graph`    | "Chad, languages: French, Arabic"; no flag                         | name     |
| currency  | `graph`    | "Chad, currency: Central African CFA franc"; no flag               | name     |

The last two are two hops from a flag: no item has both the flag and the answer, so a first question is for the name,
which is put into the second. `hops` lists these questions for the processor. A country has up to five items, one of
each of `ITEM_KINDS`. The phrasing of a question is drawn each time, that of an item once.
"""

from typing import Any

import numpy as np

from recipes.countries.facts import RELATIONS, Facts

SOURCES = ("graph", "passages", "captions", "vqa")
ITEM_KINDS = ("languages", "currency", "passage", "caption", "vqa")
SOURCE_OF_KIND = np.array([0, 0, 1, 2, 3])
KIND_OF = {"name": 2, "region": 2, "capital": 2, "area": 3, "borders": 4, "languages": 0, "currency": 1}
SOURCE_OF = {relation: SOURCES[SOURCE_OF_KIND[kind]] for relation, kind in KIND_OF.items()}
BY_FLAG = ("name", "region", "capital", "area", "borders")  # questions about the other relations contain the name


def texts_in(block: str) -> tuple[str, ...]:
    """The texts of a block, which "|" separates."""
    return tuple(" ".join(text.split()) for text in block.split("|"))


QUESTIONS: dict[str, tuple[str, ...]] = {
    "name": texts_in("""Which country is this? | Whose flag is this? | What country does this flag belong to? |
        Name the country with this flag."""),
    "region": texts_in("""In which part of the world is it? | Where in the world is this country? |
        In what region does this country lie? | What part of the world is this flag from?"""),
    "capital": texts_in("""What is the capital? | What is the capital of this country? | Which city is its capital? |
        Name the capital of this country."""),
    "area": texts_in("""How large is this country? | What is its area? | How many square km does it have? |
        How big is the country with this flag?"""),
    "borders": texts_in("""Which country does it border? | Name a neighbour of this country. |
        What country is next to it? | Which neighbour does this country have?"""),
    "languages": texts_in("""Which language is spoken in {}? | What do people speak in {}? | Name a language of {}. |
        {}: what is its language?"""),
    "currency": texts_in("""What is the currency of {}? | What money is used in {}? | Name the currency of {}. |
        {}: what is its currency?"""),
}
THIS_COUNTRY = "this country"  # in place of the name in questions about a flag
PASSAGES = (
    "{name} lies in {region}. Its capital is {capital}.",
    "{name} is a country of {region} with the capital {capital}.",
    "In {region} lies {name}. The capital is {capital}.",
    "This is {name}, in {region}; {capital} is its capital.",
)
PASSAGES_WITHOUT_CAPITAL = ("{name} lies in {region}.", "{name} is a country of {region}.")
CAPTIONS = ("the flag of a country of {}", "flag, {}", "a country of {} and its flag", "this country has {}")
TRIPLE = "{name}, {relation}: {answers}"


def item_id(country: Any, kind: Any) -> Any:
    """The id of an item, for numbers and for arrays that broadcast."""
    return country * len(ITEM_KINDS) + kind


def item_text(facts: Facts, kind: int, rng: np.random.Generator) -> str:
    """The text of an item, "" where the fact is unknown. Draws the same amount from `rng` either way."""
    name, choice = ITEM_KINDS[kind], int(rng.integers(4, size=1)[0])
    answers = {relation: ", ".join(texts) for relation, texts in facts.items()}
    if name == "passage":
        sentence = PASSAGES[choice] if answers["capital"] else PASSAGES_WITHOUT_CAPITAL[choice % 2]
        return sentence.format(**answers)
    fact = answers[{"caption": "area", "vqa": "borders"}.get(name, name)]
    if name == "caption":
        text = CAPTIONS[choice].format(fact)
    elif name == "vqa":
        text = f"{QUESTIONS['borders'][choice]} {fact}"
    else:
        text = TRIPLE.format(name=facts["name"][0], relation=name, answers=fact)
    return text if fact else ""


def hops() -> list[dict[str, str]]:
    """The questions about a flag that take two hops, for the processor."""
    return [
        {"question": text.format(THIS_COUNTRY), "about_image": QUESTIONS["name"][0], "about_answer": text}
        for relation in RELATIONS
        if relation not in BY_FLAG
        for text in QUESTIONS[relation]
    ]


def fixed_texts() -> list[str]:
    """All texts that contain no fact: their tokens are never permuted."""
    questions = [text for relation in RELATIONS for text in QUESTIONS[relation]]
    return [
        *(text.format("") for text in (*questions, *CAPTIONS)),
        *(text.format(name="", region="", capital="") for text in (*PASSAGES, *PASSAGES_WITHOUT_CAPITAL)),
        *(TRIPLE.format(name="", relation=relation, answers="") for relation in ITEM_KINDS[:2]),
        THIS_COUNTRY,
        "square km",
    ]
