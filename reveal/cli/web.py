"""`reveal web`: a page for questions about images, with the items that each answer was read from; a fact can be edited,
and the same question asked again.

It runs what `reveal ask` and `reveal add --edit` run. Edits go into a copy of the memory, one for each browser.
"""

import base64
import copy
import io
import shutil
from html import escape
from pathlib import Path
from typing import Any

from PIL import Image

from common.web import BAR, EXAMPLES, QUEUE, cancel, folder, gr, job, serve
from reveal import pretrained
from reveal.assistant import Evidence, RetrievedItem, short, text_of
from reveal.build.memory_build import add_one
from reveal.cli.commands import Web, load_assistant
from reveal.memory.folder import INDEXES, PARTIAL
from reveal.memory.memory import Memory
from reveal.two_tower_assistant import AnyAssistant

MOST_ITEMS = 10
NOT_COPIED = shutil.ignore_patterns(INDEXES, f"{PARTIAL}*")  # a copy is searched exactly
COPIES = 2  # edited memories that are searched without placing their keys anew
NEGLIGIBLE = 0.2  # effect of an item on the answer's log-probability
THUMBNAIL = 160  # longer side of an item's image in pixels
FLAG = str(EXAMPLES / "estonia.png")
CARDS = """
<style>
.cards { display: grid; gap: 12px; grid-template-columns: repeat(auto-fill, minmax(260px, 1fr)); }
.card { border: 1px solid var(--border-color-primary); border-radius: 8px; padding: 12px; display: flex; gap: 12px; }
.card img { width: 72px; flex: none; align-self: start; border: 1px solid var(--border-color-primary); }
.card div { min-width: 0; flex: 1; overflow-wrap: anywhere; }
.card small { color: var(--neutral-500); }
.card meter { width: 100%; height: 8px; }
.answer { font-size: 1.9rem; line-height: 1.3; margin: 0 0 4px; overflow-wrap: anywhere; }
</style>
"""


class Assistants:
    """The assistant of a memory, and those of the copies that browsers have edited. Raises as `reveal ask`."""

    def __init__(self, command: Web):
        self.original = str(pretrained.memory(command.memory))
        self.first = load_assistant(command, self.original)
        self.copies: dict[str, AnyAssistant] = {}  # by folder of the memory, the last used at the end

    def of(self, memory: str) -> AnyAssistant:
        """The assistant of the memory in a folder; of copies, the last `COPIES` keep their keys on the device."""
        if memory == self.original:
            return self.first
        if (mine := self.copies.pop(memory, None)) is None:
            mine = copy.copy(self.first)
            mine.memory = Memory(memory)
        self.copies[memory] = mine
        for older in list(self.copies)[:-COPIES]:
            del self.copies[older]
        return mine

    def forget(self, memory: str) -> None:
        if memory != self.original:
            self.copies.pop(memory, None)
            shutil.rmtree(Path(memory).parent, ignore_errors=True)

    def ask(
        self, image: str | None, question: str, k: int, memory: str, request: gr.Request, progress: gr.Progress = BAR
    ) -> list[Any]:
        """The answer with its items, the facts that can be edited, and the text of the first."""
        with job(request, progress):
            if image is None and not question.strip():
                raise ValueError("neither an image nor a question: give one, or both")
            evidence = self.of(memory).ask(image, question, int(k))
            if unknown := self.first.processor.unknown(question):
                gr.Warning(f"not in the network's vocabulary: {', '.join(unknown)}")
        facts: list[Any] = [(f"{one.item.id}  {short(text_of(one.item))}", one.item.id) for one in evidence.items]
        first = facts[0][1] if facts else None
        choice = gr.Dropdown(facts, value=first), gr.Group(visible=bool(facts))
        return [cards(evidence), *choice, text_of_fact(first, memory)]

    def edit(self, number: int | None, text: str, memory: str, request: gr.Request, progress: gr.Progress = BAR) -> str:
        """Puts a text in the place of an item's texts, as `reveal add --edit`, and returns the memory's folder."""
        with job(request, progress):
            if number is None or not text.strip():
                raise ValueError("no text: write what is to be known in place of this item")
            if memory == self.original:
                memory = str(shutil.copytree(self.original, folder(request) / "memory", ignore=NOT_COPIED))
            mine = self.of(memory)
            assert mine.memory is not None
            (item,) = mine.memory.items([number])
            add_one(mine.memory, item.with_text(text), mine, edit=True)
        return memory


def text_of_fact(number: int | None, memory: str) -> str:
    if number is None:
        return ""
    (item,) = Memory(memory).items([number])
    return "\n".join(item.texts())


def page(command: Web) -> gr.Blocks:
    """The page of a network and its memory. Raises as `Assistants`."""
    assistants = Assistants(command)
    with gr.Blocks() as blocks:
        gr.Markdown("# REVEAL\nQuestions about images, answered from a memory that you can read and change.")
        memory = gr.State(assistants.original, delete_callback=assistants.forget)
        with gr.Row():
            with gr.Column(scale=2, min_width=320):
                image = gr.Image(label="Picture", type="filepath", sources=["upload", "clipboard"], height=260)
                question = gr.Textbox(label="Question", max_length=1000, placeholder="What is the capital?")
                with gr.Accordion("More", open=False):
                    most = min(MOST_ITEMS, len(Memory(assistants.original)))
                    k = gr.Slider(1, most, min(4, most), step=1, label="Items to read")
                with gr.Row():
                    start = gr.Button("Ask", variant="primary", min_width=140)
                    stop = gr.Button("Cancel", min_width=90)
                if Path(FLAG).is_file() and command.memory is None:
                    questions = ("What is the capital?", "Which language is spoken in this country?")
                    gr.Examples([[FLAG, one] for one in questions], [image, question], label="Examples")
            with gr.Column(scale=3, min_width=320):
                answer = gr.HTML(label="Answer")
                with gr.Group(visible=False) as editor:
                    fact = gr.Dropdown([], label="Change what is known")
                    text = gr.Textbox(label="It says", lines=2, max_length=10_000)
                    save = gr.Button("Save, and ask again")
        asked = {"fn": assistants.ask, "inputs": [image, question, k, memory], "outputs": [answer, fact, editor, text]}
        shared: dict[str, Any] = {"concurrency_id": QUEUE, "show_progress_on": answer}
        works: Any = [start.click(**asked, **shared), question.submit(**asked, **shared)]
        saved = save.click(assistants.edit, [fact, text, memory], memory, **shared)
        works += [saved, saved.success(**asked, **shared)]
        fact.input(text_of_fact, [fact, memory], text, show_progress="hidden")
        stop.click(cancel, cancels=works, queue=False)
    return blocks


def cards(evidence: Evidence) -> str:
    """The answer with the verdict on it, and a card for each item: image, text, share of the attention, effect."""
    lines = [evidence.verdict(), "" if evidence.first_hop is None else evidence.first_hop.line(), "read from"]
    small = "".join(f"<p><small>{escape(line)}</small></p>" for line in lines if line)
    head = f'<p class="answer">{escape(evidence.answer or "(nothing)")}</p>{small}'
    return f'{CARDS}{head}<div class="cards">{"".join(map(_card, evidence.items))}</div>'


def _card(one: RetrievedItem) -> str:
    item, picture = one.item, ""
    if (pixels := item.pixels()) is not None:
        image, file = Image.fromarray(pixels), io.BytesIO()
        image.thumbnail((THUMBNAIL, THUMBNAIL))
        image.save(file, "PNG")
        picture = f'<img alt="" src="data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}">'
    effect = "hardly changes the answer"
    if abs(one.effect) > NEGLIGIBLE:
        effect = "supports the answer" if one.effect < 0 else "speaks against it"
    return (
        f'<div class="card">{picture}<div>{escape(short(text_of(item), 200))}<br>'
        f"<small>{item.id}, {escape(item.source)}; score {one.score:.2f}</small>"
        f'<meter min="0" max="1" value="{one.attention:.3f}" title="attention"></meter>'
        f"<small>{100 * one.attention:.0f} % of the attention; {effect} ({-one.effect:+.2f})</small></div></div>"
    )


def web(command: Web) -> None:
    """Serves the page until Ctrl-C. Raises as `page`, and OSError for a port that is taken."""
    serve(lambda: page(command), command.serving, "REVEAL")
