"""What a page shows of a memory that anybody may have written."""

import pytest

pytest.importorskip("gradio")

from reveal.assistant import Evidence, RetrievedItem
from reveal.cli.web import cards
from reveal.memory.items import Item


def test_texts_of_a_memory_cannot_become_markup():
    script = "<img src=x onerror=alert(1)>"
    first = Evidence(script, script, -1.0, (), {}, 1)
    item = Item(script, {"text": script, "more": [script]}, None, 3)
    page = cards(Evidence(script, script, -1.0, (RetrievedItem(item, 0.5, 1.0, 0.2, -1.0),), {}, 1, first))
    assert "<img" not in page and page.count("&lt;img src=x") >= 5


def test_the_page_says_how_sure_the_answer_is():
    sure, unsure = (Evidence("who", "me", -1.0, (), {}, 1, probability=p, doubted=p < 0.5) for p in (0.93, 0.12))
    assert "93 %" in cards(sure) and "12 %" in cards(unsure) and "not in this memory" in cards(unsure)
    assert "%" not in cards(Evidence("who", "me", -1.0, (), {}, 1)).split("</style>")[1]
