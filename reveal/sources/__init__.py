"""Knowledge and questions in published formats, one reader for each format.

`Items` and `Questions` know a format by the name of its reader (docs/reveal-data.md, "Published sets", has the table);
each reader's docstring says what becomes an item or a question.

    for item in Items("wikidata", "wikidata5m_all_triplet.txt", {"names": "wikidata5m_entity.txt"}): ...

Readers are generators of records, which `records` turns into items and questions. A further format is a generator and a
line in `registry`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
