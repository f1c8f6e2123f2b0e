"""Countries that do not exist, for training: 250 flags are too few to learn to compare pictures and to copy words.

Each has the shape of a real country's facts and nothing of their content: its words are made of the syllables of real
words, so that a tokenizer cuts them as it cuts real ones, and the pieces of a held-out name have all been copied
before. "Saint Kitts and Nevis" may become "Saint Mobia and Terus": words that are in three real strings or more, and
small ones, stay; every other word becomes a new one of as many syllables, two at least.

| fact | of an invented country |
| --- | --- |
| name | nobody else's |
| capital, currency | as the model country's; one currency in five is a real one |
| region | one of the real ones, or of 40 invented ones |
| languages | each a real one, or one of 400 invented ones |
| area | up to three times more or less than the model country's |
| borders | with up to eight others that come next to it in a ring, if the model country has any |

Flags are drawn by `drawing.py`. No invented country is ever in the memory that evaluation asks.
"""

from __future__ import annotations

import collections
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from recipes.countries.facts import MOST, RELATIONS, Country, rounded

WORD = re.compile(r"[^\W\d_]+")
KEPT = 3  # strings that a word has to be in to stay
REGIONS, LANGUAGES = 40, 400
REACH = 4  # places in the ring, either way
SPREAD = 0.5  # of an area, in powers of ten


def invent(real: Sequence[Country], count: int, rng: np.random.Generator) -> list[Country]:
    """So many countries, modelled on the real ones."""
    texts = {
        kind: [text for country in real for text in country.told[kind]]
        for kind in ("name", "capital", "currency", "languages", "region")
    }
    sounds = Sounds.of(word for found in texts.values() for text in found for word in WORD.findall(text))
    names, capitals, currencies, tongues, places = (Coiner(found, sounds) for found in texts.values())
    used = {country.name for country in real}
    languages = [*tongues.texts, *(tongues.like(pick(tongues.texts, rng), rng) for _ in range(LANGUAGES))]
    known = sorted(set(places.texts))
    regions = [*known, *(places.like(pick(known, rng), rng) for _ in range(REGIONS))]
    made: list[dict[str, tuple[str, ...]]] = []
    for model in (real[number] for number in rng.integers(len(real), size=count)):
        while (name := names.like(model.name, rng)) in used:
            pass
        used.add(name)
        told = dict(model.told) | {"name": (name,), "region": (pick(regions, rng),)}
        told["capital"] = tuple(capitals.like(city, rng) for city in model.told["capital"])
        told["languages"] = tuple(dict.fromkeys(pick(languages, rng) for _ in model.told["languages"]))
        told["currency"] = tuple(
            text if rng.random() < 0.2 else currencies.like(text, rng) for text in model.told["currency"]
        )
        told["area"] = tuple(rounded(size_of(text) * 10 ** rng.uniform(-SPREAD, SPREAD)) for text in told["area"])
        made.append(told)
    settle(made, rng)
    return [Country({relation: told[relation] for relation in RELATIONS}) for told in made]


def settle(made: list[dict[str, tuple[str, ...]]], rng: np.random.Generator) -> None:
    """Gives neighbours to those whose model has some: others in the ring, and both say so."""
    inland = [number for number, told in enumerate(made) if told["borders"]]
    pairs: dict[int, list[int]] = collections.defaultdict(list)
    for place, number in enumerate(inland):
        for step in range(1, REACH + 1):
            other = inland[(place + step) % len(inland)]
            if other != number and other not in pairs[number] and rng.random() < 0.6:
                pairs[number].append(other)
                pairs[other].append(number)
    for number, told in enumerate(made):
        told["borders"] = tuple(made[other]["name"][0] for other in rng.permutation(pairs[number])[:MOST])


class Sounds(NamedTuple):
    """Syllables of real words by where they stand in them."""

    first: list[str]
    middle: list[str]
    last: list[str]

    @classmethod
    def of(cls, words: Iterable[str]) -> Sounds:
        """Of words of two syllables or more, each counted once."""
        cut = [parts for word in dict.fromkeys(words) if len(parts := syllables(word)) > 1]
        return cls([p[0] for p in cut], [part for p in cut for part in p[1:-1]], [p[-1] for p in cut])

    def word(self, model: str, rng: np.random.Generator) -> str:
        """A new word of as many syllables as the model has, two at least, capital where it is."""
        inner = max(len(syllables(model)), 2) - 2
        parts = [pick(self.first, rng), *(pick(self.middle, rng) for _ in range(inner)), pick(self.last, rng)]
        made = "".join(parts).lower()
        return made.capitalize() if model[0].isupper() else made


class Coiner:
    """Makes new texts in the manner of known ones of a kind."""

    def __init__(self, texts: Iterable[str], sounds: Sounds):
        self.texts, self.sounds = list(texts), sounds
        counts = collections.Counter(word for text in set(self.texts) for word in set(WORD.findall(text)))
        self.kept = {word for word, count in counts.items() if count >= KEPT or (word.islower() and len(word) <= 3)}

    def like(self, text: str, rng: np.random.Generator) -> str:
        """Another text of this shape. Of a text of nothing but kept words the first becomes new."""
        words = WORD.findall(text)
        change = {word for word in words if word not in self.kept} or set(words[:1])
        return WORD.sub(lambda found: self.sounds.word(found[0], rng) if found[0] in change else found[0], text)


def syllables(word: str) -> list[str]:
    """ "Zimbabwe" is Zim bab we: each vowel group with what stands before it; consonants that no vowel follows go to
    the one before, and of several between two vowels all but the last."""
    plain = unicodedata.normalize("NFD", word.lower())
    plain = "".join(letter for letter in plain if not unicodedata.combining(letter))
    if len(plain) != len(word):
        return [word]
    ends = [found.end() for found in re.finditer(r"[aeiouy]+(?:[^aeiouy]+$|[^aeiouy](?=[^aeiouy]))?", plain)]
    ends = [*ends[:-1], len(word)] if ends else [len(word)]
    return [word[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def size_of(area: str) -> float:
    return float(area.removesuffix(" square km").replace(",", ""))


def pick(choices: Sequence[str], rng: np.random.Generator) -> str:
    return choices[int(rng.integers(len(choices)))]
