"""Prompts with weights, and prompts longer than the text encoder's rows.

    a (red:1.3) apple on a [table]      -> [("a ", 1.0), ("red", 1.3), (" apple on a ", 1.0), ("table", 1 / 1.1)]

Brackets are those of the programs that people share prompts from: `(words:1.3)` gives a weight, `(words)` means 1.1,
`[words]` 1 / 1.1, brackets inside one another multiply, and a backslash before a bracket makes it text.

Tokens beyond a row's 75 go into further rows, *chunks*, each with a start and an end of its own and encoded by itself;
the UNet attends to all states, one behind the other. In a batch each prompt's states are repeated to the least common
multiple of their chunks, 64 at most, which leaves the softmax of its attention as it is. A token's weight w moves its
states away from those of the empty prompt at the same place, e + w (z - e).
"""

import itertools
import math
import re

import numpy as np
from jaxtyping import Float32, Int32

from common.io.clip_tokenizer import Tokenizer

STRONGER = 1.1  # of a pair of round brackets without a number
LARGEST = 5.0  # a larger weight is taken for a typing error
PIECES = re.compile(r"\\[()\[\]\\]|\(|\[|:\s*([+-]?(?:\d+\.?\d*|\.\d+))\s*\)|\)|\]|[^\\()\[\]:]+|.", re.DOTALL)


def weighted_parts(prompt: str) -> list[tuple[str, float]]:
    """The prompt's text in parts with their weights, as long as can be, for each is encoded by itself. Raises
    ValueError for a weight outside [0, 5]; a bracket without its partner is closed at the end, or is text."""
    parts: list[tuple[str, float]] = []
    opened: list[tuple[str, int]] = []  # brackets, and the number of parts before each

    def close(bracket: str, factor: float) -> bool:
        if not opened or opened[-1][0] != bracket:
            return False
        _, start = opened.pop()
        parts[start:] = [(text, weight * factor) for text, weight in parts[start:]]
        return True

    for piece in PIECES.finditer(prompt):
        text, number = piece[0], piece[1]
        if text in "([":
            opened.append((text, len(parts)))
            continue
        closes = (number is not None and close("(", float(number))) or (text == ")" and close("(", STRONGER))
        if not closes and not (text == "]" and close("[", 1 / STRONGER)):
            parts.append((text[1:] if text[0] == "\\" and len(text) == 2 else text, 1.0))
    for bracket, _ in list(opened[::-1]):
        close(bracket, STRONGER if bracket == "(" else 1 / STRONGER)
    if wrong := [weight for _, weight in parts if not (math.isfinite(weight) and 0 <= weight <= LARGEST)]:
        raise ValueError(f"weight {wrong[0]:g} in {prompt[:40]!r} has to lie in [0, {LARGEST:g}]; 1 is without weight")
    alike = (list(group) for _, group in itertools.groupby(parts, lambda part: part[1]))
    return [("".join(text for text, _ in group), group[0][1]) for group in alike]


def chunks(
    prompt: str, tokenizer: Tokenizer, length: int
) -> tuple[Int32[np.ndarray, "n length"], Float32[np.ndarray, "n length"]]:
    """Rows of tokens of a prompt, one of them at least, and the weight of each token."""
    ids, weights = [], []
    for text, weight in weighted_parts(prompt):
        own = tokenizer.encode(text)[1:-1]
        ids += own
        weights += [weight] * len(own)
    room = length - 2
    number = max(1, -(-len(ids) // room))
    tokens = np.full((number, length), tokenizer.pad_id, np.int32)
    factors = np.ones((number, length), np.float32)
    for i in range(number):
        own = ids[i * room : (i + 1) * room]
        tokens[i, : len(own) + 2] = [tokenizer.start_id, *own, tokenizer.end_id]
        factors[i, 1 : len(own) + 1] = weights[i * room : (i + 1) * room]
    return tokens, factors
