"""Items of the small world as items of a memory, and back to what the network reads.

What a person is shown is the text and the picture; the network reads the text's tokens. So an item that was added by
hand is as good as one of the world's own:

    Item("captions", {"text": "owner anna"}, picture)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from recipes.small_world.facts import SOURCES
from recipes.small_world.items import LENGTH, Items
from reveal.memory.items import Item
from reveal.processing.vocabulary import Vocabulary


def as_knowledge(items: Items, vocabulary: Vocabulary) -> list[Item]:
    """In the order of their ids."""
    return [
        Item(
            SOURCES[int(items.source[row])],
            {"text": vocabulary.decode(items.tokens[row])},
            items.image[row] if items.has_image[row] else None,
            int(items.id[row]),
        )
        for row in np.argsort(items.id)
    ]


def read_items(vocabulary: Vocabulary, size: int, items: Sequence[Item]) -> dict[str, np.ndarray]:
    """What `Reveal.encode_item` takes. Raises ValueError for a picture that is not uint8 RGB of `size`, and for words
    that the vocabulary has not."""
    image, has_image = np.zeros((len(items), size, size, 3), np.float32), np.zeros(len(items), bool)
    for row, item in enumerate(items):
        if item.picture is None:
            continue
        picture = item.picture
        if isinstance(picture, bytes) or picture.shape != (size, size, 3):
            told = "a file" if isinstance(picture, bytes) else list(picture.shape)
            raise ValueError(f"the picture of an item of {item.source} is {told}; give uint8 [{size} {size} 3]")
        image[row], has_image[row] = picture / np.float32(255), True
    texts = [vocabulary.encode(item.fields.get("text", ""), LENGTH) for item in items]
    return {"tokens": np.array(texts, np.int32).reshape(-1, LENGTH), "image": image, "has_image": has_image}
