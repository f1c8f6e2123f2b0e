"""What a page shows of a memory that anybody may have written, and what it keeps of its visitors."""

import tempfile
from pathlib import Path

import pytest

pytest.importorskip("gradio")

import numpy as np
from assistants import network
from little_worlds import WORLD

from common.web import gr
from recipes.small_world.facts import SOURCES
from reveal.assistant import Assistant, Evidence, RetrievedItem, text_of
from reveal.cli import web
from reveal.cli.commands import Web
from reveal.cli.web import Assistants, cards, text_of_fact
from reveal.memory import Memory
from reveal.memory.items import Item
from reveal.processing.processor import Processor


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


@pytest.fixture
def pages(tmp_path, monkeypatch) -> Assistants:
    """Of a memory with one item; editing encodes nothing."""
    assistant = Assistant(network(), Processor(WORLD.vocabulary, SOURCES, 16, 16, 12, 3))
    layout = assistant.layout()
    memory = assistant.memory = Memory.create(tmp_path / "facts", layout)
    encoded = np.eye(1, layout.key_dim, dtype=np.float32), np.zeros((1, *layout.value_shape), np.float32)
    memory.add([Item(SOURCES[0], {"title": "Gull", "text": ["gulls eat fish", "gulls fly"], "year": 3})], *encoded)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(web, "load_assistant", lambda *_: assistant)
    monkeypatch.setattr(web, "add_one", lambda memory, item, *_, **__: memory.edit([item], *encoded))
    return Assistants(Web(memory=str(tmp_path / "facts")))


def test_a_list_of_texts_is_shown_and_edited_as_texts(pages):
    assert text_of_fact(0, pages.original) == "Gull\ngulls eat fish, gulls fly"
    assert text_of(pages.first.memory.items([0])[0]) == "Gull | gulls eat fish, gulls fly | 3"


def test_copies_of_visitors_leave_the_device_and_the_disk(pages):
    visitors = [gr.Request(session_hash=name) for name in "abcd"]
    copies = [pages.edit(0, "gulls swim", pages.original, visitor) for visitor in visitors]
    assert list(pages.copies) == copies[-web.COPIES :]
    assert pages.edit(0, "gulls dive", copies[0], visitors[0]) == copies[0]
    assert [text_of_fact(0, copy) for copy in copies[:2]] == ["gulls dive", "gulls swim"]
    assert list(pages.copies) == [copies[-1], copies[0]] and pages.of(pages.original) is pages.first
    for copy in (*copies, pages.original):
        pages.forget(copy)
    assert not pages.copies and not any(Path(copy).parent.exists() for copy in copies)
    assert text_of_fact(0, pages.original).startswith("Gull")
