"""Trains the tokenizer of the countries: a SentencePiece model of 1,948 pieces.

    python -m recipes.countries.pieces --overwrite      rewrites reveal/weights/countries/spiece.model

It is trained on items, questions and answers; real ones count `REPEATS` times, so that most real names are one piece.
Of held-out countries it sees the answers, each by itself: it knows how a name is spelled, not whose capital it is. The
permutation of tokens (`data.py`) teaches a network that has never read such a name to copy it. Other characters are
encoded as bytes. With T5's 100 sentinels (`reveal.processing.tokenizers`) there are 2,048 numbers, none spare.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tyro

from common import terminal
from common.io.files import atomic_output
from recipes.countries.data import TOKENIZER, CountriesConfig
from recipes.countries.facts import ITEMS, RELATIONS, Atlas
from recipes.countries.phrases import ITEM_KINDS, QUESTIONS, item_text
from reveal.processing import tokenizers
from reveal.processing.processor import prompted

SIZE = 1948
REPEATS = 60  # of real countries


def texts(atlas: Atlas) -> Iterator[str]:
    """Items and questions about all countries but the held-out ones, and all answers."""
    held_out = set(atlas.held_out.tolist())
    for number, country in enumerate(atlas.countries):
        facts, rng = country.facts, np.random.default_rng([atlas.seed, ITEMS, number])
        lines = [answer for relation in RELATIONS for answer in facts[relation]]
        if number in held_out:
            lines *= 5  # as often as the words of other countries, which are in items and questions too
        else:
            lines += [text for kind in range(len(ITEM_KINDS)) if (text := item_text(facts, kind, rng))]
            lines += [prompted(QUESTIONS[relation][number % 4].format(facts["name"][0])) for relation in RELATIONS]
        yield from lines * (REPEATS if number < atlas.real else 1)


def main(output: tyro.conf.Positional[Path] = TOKENIZER, size: int = SIZE, overwrite: bool = False) -> None:
    """Train the tokenizer on the default world."""
    with atomic_output(output, overwrite) as temporary:  # refuses before the training
        words = texts(CountriesConfig().atlas)
        temporary.write_bytes(tokenizers.trained(words, size, byte_fallback=True, character_coverage=1.0))
    tokenizers.show(output)


if __name__ == "__main__":
    terminal.program(main)
