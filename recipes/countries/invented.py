"""Invented countries for training: 250 flags and names are too few to learn comparing pictures and copying words.

Each is modelled on a real country and shares the structure of its facts, not their content. "Saint Kitts and Nevis" may
become "Saint Mobia and Terus": words that occur in three real texts or more, and short lower-case ones, stay; every
other word is replaced by one of as many syllables of real words, two at least, so that the tokenizer splits them alike.

| fact | of an invented country |
| --- | --- |
| name | unique |
| capital, currency | as many as the model's; one currency in five is real |
| region | a real one, or one of 40 invented ones |
| languages | each real, or one of 400 invented ones |
| area | up to three times more or less than the model's |
| borders | if the model has any: with up to eight neighbours in a ring of invented countries |
"""

import collections
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from recipes.countries.facts import MAX_ANSWERS, RELATIONS, Country, area_text

WORD = re.compile(r"[^\W\d_]+")
KEPT = 3  # texts in which a word has to occur to stay
REGIONS, LANGUAGES = 40, 400
REACH = 4  # distance of neighbours in the ring, either way
SPREAD = 0.5  # of an area, in powers of ten


def invent(real: Sequence[Country], count: int, rng: np.random.Generator) -> list[Country]:
    """`count` countries, modelled on the real ones."""
    texts = {
        kind: [text for country in real for text in country.facts[kind]]
        for kind in ("name", "capital", "currency", "languages", "region")
    }
    syllables = Syllables.of(word for found in texts.values() for text in found for word in WORD.findall(text))
    names, capitals, currencies, tongues, places = (Coiner(found, syllables) for found in texts.values())
    used = {country.name for country in real}
    languages = [*tongues.texts, *(tongues.like(pick(tongues.texts, rng), rng) for _ in range(LANGUAGES))]
    known = sorted(set(places.texts))
    regions = [*known, *(places.like(pick(known, rng), rng) for _ in range(REGIONS))]
    made: list[dict[str, tuple[str, ...]]] = []
    for model in (real[number] for number in rng.integers(len(real), size=count)):
        name = names.like(model.name, rng)
        while name in used:
            name = names.like(model.name, rng)
        used.add(name)
        facts = dict(model.facts) | {"name": (name,), "region": (pick(regions, rng),)}
        facts["capital"] = tuple(capitals.like(city, rng) for city in model.facts["capital"])
        facts["languages"] = tuple(dict.fromkeys(pick(languages, rng) for _ in model.facts["languages"]))
        facts["currency"] = tuple(
            text if rng.random() < 0.2 else currencies.like(text, rng) for text in model.facts["currency"]
        )
        areas = [float(text.removesuffix(" square km").replace(",", "")) for text in facts["area"]]
        facts["area"] = tuple(area_text(area * 10 ** rng.uniform(-SPREAD, SPREAD)) for area in areas)
        made.append(facts)
    add_borders(made, rng)
    return [Country({relation: facts[relation] for relation in RELATIONS}) for facts in made]


def add_borders(made: list[dict[str, tuple[str, ...]]], rng: np.random.Generator) -> None:
    """Replaces the model's neighbours by others in the ring; borders are mutual."""
    ring = [number for number, facts in enumerate(made) if facts["borders"]]
    pairs: dict[int, list[int]] = collections.defaultdict(list)
    for place, number in enumerate(ring):
        for step in range(1, REACH + 1):
            other = ring[(place + step) % len(ring)]
            if other != number and other not in pairs[number] and rng.random() < 0.6:
                pairs[number].append(other)
                pairs[other].append(number)
    for number, facts in enumerate(made):
        facts["borders"] = tuple(made[other]["name"][0] for other in rng.permutation(pairs[number])[:MAX_ANSWERS])


class Syllables(NamedTuple):
    """Syllables of real words by position."""

    first: list[str]
    middle: list[str]
    last: list[str]

    @classmethod
    def of(cls, words: Iterable[str]) -> "Syllables":
        """Of words of two syllables or more, each counted once."""
        cut = [parts for word in dict.fromkeys(words) if len(parts := split_syllables(word)) > 1]
        return cls([p[0] for p in cut], [part for p in cut for part in p[1:-1]], [p[-1] for p in cut])

    def word(self, model: str, rng: np.random.Generator) -> str:
        """A new word of as many syllables as the model, two at least, with its capitalisation."""
        inner = max(len(split_syllables(model)), 2) - 2
        parts = [pick(self.first, rng), *(pick(self.middle, rng) for _ in range(inner)), pick(self.last, rng)]
        made = "".join(parts).lower()
        return made.capitalize() if model[0].isupper() else made


class Coiner:
    """Makes new texts modelled on known ones of a kind."""

    def __init__(self, texts: Iterable[str], syllables: Syllables):
        self.texts, self.syllables = list(texts), syllables
        counts = collections.Counter(word for text in set(self.texts) for word in set(WORD.findall(text)))
        self.kept = {word for word, count in counts.items() if count >= KEPT or (word.islower() and len(word) <= 3)}

    def like(self, text: str, rng: np.random.Generator) -> str:
        """Another text with this structure. If all words would stay, the first is replaced."""
        words = WORD.findall(text)
        change = {word for word in words if word not in self.kept} or set(words[:1])
        return WORD.sub(lambda found: self.syllables.word(found[0], rng) if found[0] in change else found[0], text)


def split_syllables(word: str) -> list[str]:
    """ "Zimbabwe" is Zim bab we: a vowel group with the consonants before it. Of several consonants between two vowels
    all but the last belong to the syllable before, as do those at the end of the word."""
    plain = unicodedata.normalize("NFD", word.lower())
    plain = "".join(letter for letter in plain if not unicodedata.combining(letter))
    if len(plain) != len(word):
        return [word]
    ends = [found.end() for found in re.finditer(r"[aeiouy]+(?:[^aeiouy]+$|[^aeiouy](?=[^aeiouy]))?", plain)]
    ends = [*ends[:-1], len(word)] if ends else [len(word)]
    return [word[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def pick(choices: Sequence[str], rng: np.random.Generator) -> str:
    return choices[int(rng.integers(len(choices)))]
