"""BM25 over the texts of a memory: names, numbers and rare words, which embeddings blur (Robertson & Zaragoza, 2009).

It reads all texts into RAM when it is made, so it is for memories of up to `MOST` items. The library is bm25s.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from reveal.memory.memory import Memory

MOST = 200_000  # items
BATCH = 4096  # payloads that are read at a time


class Keywords:
    """The index of one version of a memory."""

    def __init__(self, memory: Memory):
        import bm25s

        self.manifest, rows = memory.manifest, memory.rows()
        self._ids, self._sources = rows.ids, rows.source
        starts = range(0, len(rows), BATCH)
        texts = [" ".join(one.texts()) for start in starts for one in memory.items(rows.ids[start : start + BATCH])]
        tokens: Any = bm25s.tokenize(texts, stopwords="en", show_progress=False)
        self._index, self._index.vocab_dict = bm25s.BM25(), {}
        if tokens.vocab:
            self._index.index(tokens, show_progress=False)

    def search(self, text: str, k: int, sources: Sequence[int] | None = None) -> Int[np.ndarray, " n"]:
        """Ids of the at most k best items that have a word of the text, best first."""
        import bm25s

        words: Any = bm25s.tokenize(text, stopwords="en", return_ids=False, show_progress=False)[0]
        known = [word for word in words if word in self._index.vocab_dict]
        if not known:
            return np.zeros(0, np.int64)
        scores = self._index.get_scores(known)
        if sources is not None:
            scores = np.where(np.isin(self._sources, sources), scores, 0)
        best = np.argsort(-scores, kind="stable")[:k]
        return self._ids[best[scores[best] > 0]]
