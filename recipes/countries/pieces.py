"""The tokenizer of the countries: 1,948 pieces that spell any text.

    python -m recipes.countries.pieces                  writes reveal/weights/countries/spiece.model anew

Its texts are items, questions and answers, real ones `OFTEN` times each, so that most real names are one piece, as most
English words are one of T5's. Of held-out countries it sees the words, each by itself, and nothing that is said with
them: it knows how a name is written, not whose capital it is. The network has not been asked for such a name, nor has
it written one; that it can is what pieces that change places are for (`data.py`). Invented words take three or four
pieces, so longer answers are learnt as well. What no piece spells is written in bytes.

1,948 pieces and T5's 100 sentinels (`reveal.processing.tokenizers`) make 2,048 numbers, 16 times 128, with none to spare.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tyro

from common import terminal
from common.io.files import atomic_output
from recipes.countries.data import MODEL, CountriesConfig
from recipes.countries.facts import ITEMS, RELATIONS, Atlas
from recipes.countries.phrases import QUESTIONS, SLOTS, written
from reveal.processing import tokenizers
from reveal.processing.processor import prompted

SIZE = 1948
OFTEN = 60


def texts(atlas: Atlas) -> Iterator[str]:
    """What is said of all countries but the held-out ones and how one asks about them; all answers."""
    held_out = set(atlas.held_out.tolist())
    for number, country in enumerate(atlas.countries):
        told, rng = country.told, np.random.default_rng([atlas.seed, ITEMS, number])
        said = [answer for relation in RELATIONS for answer in told[relation]]
        if number in held_out:
            said *= 5  # others' words are in their items and questions too
        else:
            said += [text for slot in range(len(SLOTS)) if (text := written(told, slot, rng))]
            said += [prompted(QUESTIONS[relation][number % 4].format(told["name"][0])) for relation in RELATIONS]
        yield from said * (OFTEN if number < atlas.real else 1)


def main(output: tyro.conf.Positional[Path] = MODEL, size: int = SIZE, overwrite: bool = False) -> None:
    """Train the tokenizer on the default world."""
    trained = tokenizers.trained(texts(CountriesConfig().atlas), size, byte_fallback=True, character_coverage=1.0)
    with atomic_output(output, overwrite) as temporary:
        temporary.write_bytes(trained)
    tokenizers.show(output)


if __name__ == "__main__":
    terminal.program(main)
