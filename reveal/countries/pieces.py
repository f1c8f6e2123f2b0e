"""The tokenizer of the countries: 1,436 pieces that spell any text.

    python -m reveal.countries.pieces                  writes reveal/countries/data/spiece.model anew

Its texts are all items and answers of the countries that training asks about, real and invented, so held-out names
have no pieces made for them: they are spelt with those of the others, each of which has been copied many times. What
no piece spells is written in bytes.

1,436 pieces and T5's 100 sentinels (`reveal.tokenizers`) make 1,536 numbers, 12 times 128, with none to spare.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tyro

from common import terminal
from common.files import atomic_output
from reveal import tokenizers
from reveal.countries.facts import DATA, ITEMS, RELATIONS, Atlas
from reveal.countries.phrases import QUESTIONS, SLOTS, written
from reveal.prompts import asked

MODEL = DATA / "spiece.model"
SIZE = 1436


def texts(atlas: Atlas) -> Iterator[str]:
    """What is said of all but the held-out countries, and how one asks."""
    for number in np.concatenate([atlas.sets["train"], atlas.sets["invented"]]):
        told, rng = atlas.countries[number].told, np.random.default_rng([atlas.seed, ITEMS, int(number)])
        yield from (text for slot in range(len(SLOTS)) if (text := written(told, slot, rng)))
        yield from (answer for relation in RELATIONS for answer in told[relation])
        for relation in RELATIONS:
            yield asked(QUESTIONS[relation][number % 4].format(told["name"][0]))


def main(output: tyro.conf.Positional[Path] = MODEL, size: int = SIZE, overwrite: bool = False) -> None:
    """Train the tokenizer on the default world."""
    from reveal.countries.data import CountriesConfig

    trained = tokenizers.trained(texts(CountriesConfig().atlas), size, byte_fallback=True, character_coverage=1.0)
    with atomic_output(output, overwrite) as temporary:
        temporary.write_bytes(trained)
    tokenizers.show(output)


if __name__ == "__main__":
    terminal.program(main)
