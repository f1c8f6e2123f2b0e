"""A memory of photographs and notes without training, by the command: built, searched, asked, edited and followed."""

import copy
import itertools
import json
import os
import shutil
import threading
import time
from pathlib import Path

import numpy as np
import pillow_heif
import pytest
from assistants import mistake, output_of
from own_files import json_lines, pdf, wit_table
from PIL import Image
from published_folders import clip_folder, t5_folder
from refusal import refused

from reveal.build import folder_sync
from reveal.cli.main import main
from reveal.memory import Item, Memory
from reveal.sources import Items
from reveal.sources.documents import chunks, origin_of, records, sections
from reveal.sources.records import Skips
from reveal.two_tower_assistant import TwoTowerAssistant, sentences_of

PHOTOS, NOTES = 200, 50
COLOURS = ["red", "green", "blue", "grey", "black"]


def drawn_files(place: Path) -> None:
    """200 photographs of noise and shapes, every tenth with a caption, and 50 notes in four formats."""
    pillow_heif.register_heif_opener()
    rng, photos, notes = np.random.default_rng(0), place / "photos", place / "notes"
    for folder in (photos, notes):
        folder.mkdir(parents=True)
    for number in range(PHOTOS):
        small = rng.integers(0, 256, (4, 6, 3), dtype=np.uint8)
        suffix = ("png", "jpg", "heic", "webp")[number % 4]
        Image.fromarray(small).resize((48, 32), Image.Resampling.NEAREST).save(photos / f"{number}.{suffix}")
        if number % 10 == 0:
            (photos / f"{number}.txt").write_text(f"Vase {number} was made by potter {number}.")
    for number in range(NOTES):
        text = f"Shelf {number} holds cup {number}. It is {COLOURS[number % 5]}. Nobody knows its age."
        if number % 4 == 0:
            (notes / f"n{number}.txt").write_text(text)
        elif number % 4 == 1:
            (notes / f"n{number}.md").write_text(f"# Cup {number}\n\n{text}\n\n## Care\n\nWash it *gently*.\n")
        elif number % 4 == 2:
            page = f"<title>Cups</title><script>no()</script><h1>Cup {number}</h1><p>{text}</p>"
            (notes / f"n{number}.html").write_text(page)
        else:
            (notes / f"n{number}.pdf").write_bytes(pdf(text))
    (notes / "table.xlsx").write_bytes(b"PK")
    (notes / "broken.pdf").write_bytes(b"%PDF-1.4 cut")
    (photos / "broken.png").write_bytes(b"\x89PNG cut")


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """The files, a CLIP, a T5, and the memory `m` that the command built of them, with its report."""
    place = tmp_path_factory.mktemp("own")
    drawn_files(place)
    clip_folder(place / "clip")
    t5_folder(place / "t5", [f"Vase {n} was made by potter {n}. Question Answer Text" for n in range(100)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("common.runtime.setup", lambda: None)
        patch.setattr("reveal.pretrained.DATA", place / "nothing")
        main(["build", *map(str, (place / "photos", place / "notes")), "--encoder", str(place / "clip"), "--quiet"]
             + ["-o", str(place / "m")])  # fmt: skip
    return place


@pytest.fixture
def here(made, tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr("reveal.pretrained.DATA", tmp_path / "nothing")
    shutil.copytree(made, tmp_path / "own", symlinks=True)
    monkeypatch.chdir(tmp_path / "own")
    return tmp_path / "own"


@pytest.fixture(scope="module")
def assistant(made) -> TwoTowerAssistant:
    return TwoTowerAssistant.load(made / "clip", made / "m")


@pytest.mark.long
def test_what_was_left_out_is_said_by_name(here, capsys):
    report = output_of(capsys, "build", "photos", "notes", "--encoder", "clip", "--quiet", "-o", "again")
    assert report["counts"]["photos"] == PHOTOS and report["hash"] == Memory("m").manifest.hash()
    assert report["counts"]["notes"] >= NOTES + NOTES // 4  # Markdown has two sections
    named = {Path(name.split(" (")[0]).name for names in report["names"].values() for name in names}
    assert {"table.xlsx", "broken.pdf"} <= named
    assert any("broken.png" in name for names in report["names"].values() for name in names)
    assert sum(report["left_out"].values()) >= 3
    main(["build", "notes", "--encoder", "clip", "--quiet", "-o", "third"])
    assert "table.xlsx" in capsys.readouterr().out


@pytest.mark.long
def test_a_photograph_finds_itself_and_a_text_its_words(here, capsys):
    found = output_of(capsys, "search", "m", "--image", "photos/17.jpg", "-k", "3", "--sources", "photos")["items"]
    assert found[0]["fields"]["from"]["file"] == ["photos", "17.jpg"][1]
    for words in (["potter 20"], ["--text", "potter 20"]):
        found = output_of(capsys, "search", "m", *words, "-k", "5")["items"]
        assert any("potter 20." in item["fields"].get("text", "") for item in found)
    assert len(output_of(capsys, "search", "m", "a dog on a beach")["items"]) == 10
    everything = output_of(capsys, "search", "m", "cup", "-k", "8", "--sources", "notes", "--engine", "faiss")["items"]
    assert {item["source"] for item in everything} == {"notes"}


def test_the_answer_is_a_sentence_of_an_item(here, capsys):
    answer = output_of(capsys, "ask", "photos/30.heic", "who made this?", "--memory", "m", "--sheet", "sheet.png")
    sentences = [item["fields"].get("text", "") for item in answer["items"]]
    assert answer["answer"] and any(answer["answer"] in text for text in sentences) and answer["log_probability"] <= 0
    assert sum(item["attention"] for item in answer["items"]) == pytest.approx(1)
    assert Path("sheet.png").is_file()
    # without any text the file is the answer
    alone = output_of(capsys, "ask", "photos/31.webp", "--memory", "m", "-k", "1", "--sources", "photos")
    assert alone["answer"] == "31.webp"


def test_a_reader_writes_and_its_items_have_effects(here, capsys):
    words = ["ask", "-", "who made vase 20?", "--memory", "m", "-k", "2", "--reader", "t5"]
    one, two = (output_of(capsys, *words) for _ in range(2))
    assert output_of(capsys, *words, "--beams", "4") == one != output_of(capsys, *words, "--beams", "1")
    assert one == two and np.isfinite(one["log_probability"]) and any(item["effect"] for item in one["items"])


def test_edits_are_found_at_once(here, capsys):
    before = len(Memory("m"))
    add = output_of(capsys, "add", "m", "--text", "The zeppelin was painted by Quilla.", "--source", "notes", "--quiet")
    words = ["ask", "-", "who painted the zeppelin?", "--memory", "m"]
    assert output_of(capsys, *words)["answer"] == "The zeppelin was painted by Quilla."
    number = str(add["ids"][0])
    output_of(capsys, "add", "m", "--edit", "--id", number, "--text", "The zeppelin was painted by Oona.", "--quiet")
    assert output_of(capsys, *words)["answer"] == "The zeppelin was painted by Oona."
    main(["remove", "m", number])
    assert len(Memory("m")) == before


def test_what_another_program_deletes_during_a_search_is_searched_for_again(here, assistant, monkeypatch):
    mine, writer, search = copy.copy(assistant), Memory("m"), Memory.search
    mine.memory = Memory("m")
    best = mine.search(text="potter 20", k=3)[0][0].id

    def before_the_deletion(memory, *given):
        found = search(memory, *given)
        if writer.version == 1:
            writer.delete([best])
            writer.compact()
        return found

    monkeypatch.setattr(Memory, "search", before_the_deletion)
    found = [item.id for item, _ in mine.search(text="potter 20", k=3)]
    assert len(found) == 3 and best not in found
    best, version = found[0], writer.version
    writer.delete([best])
    assert best not in [one.item.id for one in mine.ask(None, "potter 20", k=3).items] and mine.memory.version > version


def test_folders_are_followed(here, capsys):
    assert output_of(capsys, "watch", "photos", "notes", "--memory", "m", "--once")["version"] == 1  # nothing to do
    Path("notes/n0.txt").write_text("Shelf 0 holds a trombone.")
    Path("notes/new.md").write_text("The lighthouse keeper is Ines.")
    Path("photos/5.jpg").unlink()
    report = output_of(capsys, "watch", "photos", "notes", "--memory", "m", "--once")
    assert (report["added"], report["edited"], report["removed"], report["version"]) == (2, 1, 2, 2)
    texts = {item.fields.get("text") for item in Memory("m").items(Memory("m").rows().ids)}
    assert "Shelf 0 holds a trombone." in texts and not any("cup 0." in str(text) for text in texts)
    assert output_of(capsys, "ask", "-", "who is the lighthouse keeper?", "--memory", "m")["answer"].endswith("Ines.")


def test_only_files_that_changed_are_read_again(here, capsys, monkeypatch):
    """And what is stored is read once, while this program alone changes the memory."""
    output_of(capsys, "build", "notes", "photos", "--encoder", "clip", "--quiet", "-o", "x")  # of the same version
    for file in (path for folder in ("photos", "notes") for path in Path(folder).rglob("*") if path.is_file()):
        os.utime(file, (1e9, 1e9))
    read, opened, stored = [], Path.read_bytes, []
    monkeypatch.setattr(Path, "read_bytes", lambda path: read.append(path.name) or opened(path))
    items = Memory.items
    monkeypatch.setattr(Memory, "items", lambda memory, ids: stored.append(len(ids)) or items(memory, ids))
    memory = Memory("m")
    sources = [Items("documents", name, {"source": name, "words": 48, "overlap": 9}) for name in ("photos", "notes")]
    follower = folder_sync.Follower(sources, TwoTowerAssistant.load("clip", memory))
    assert follower.sync(memory).version == 1 and len(read) >= PHOTOS + NOTES and sum(stored) == len(memory)
    stored.clear()
    for other in (Memory("x"), memory):
        assert follower.sync(other).version == 1
    assert sum(stored) == 2 * len(memory)
    for number in range(2):
        read.clear()
        stored.clear()
        Path("notes/n0.txt").write_text(f"Shelf 0 holds {number} trombones.")
        report = follower.sync(memory)
        assert (report.added, report.edited, report.removed) == (1, 1, 1) and not stored
        assert {name for name in read if not name.endswith((".npy", ".json"))} == {"n0.txt"}
    assert len(memory.items(memory.rows().ids)) == len(memory)


def test_an_empty_folder_has_no_items_and_a_missing_one_is_an_error(here, capsys):
    for file in Path("notes").iterdir():
        file.unlink()
    report = output_of(capsys, "watch", "notes", "--memory", "m", "--once")
    assert report["removed"] >= NOTES and report["counts"] == {"photos": PHOTOS, "notes": 0}
    memory = Memory("m")
    gone = [Items("documents", "photos", {"source": "photos"})]
    Path("photos").rename("elsewhere")
    assistant = TwoTowerAssistant.load("clip", memory)
    refused(FileNotFoundError, folder_sync.Follower(gone, assistant).sync, memory, match="photos")
    refused(ValueError, folder_sync.Follower, [Items("folder", "notes")], assistant, match="documents:FOLDER")
    assert len(Memory("m")) == PHOTOS


def test_a_change_is_seen_while_watching_and_beside_other_programs(here):
    sources = [Items("documents", "notes", {"source": "notes", "words": 48, "overlap": 9})]
    reports = folder_sync.Follower(sources, TwoTowerAssistant.load("clip", "m")).watch(Memory("m"))
    assert next(reports).added == 0
    Path("notes/late.txt").write_text("A late note.")  # before the next report is asked for
    assert next(reports).added == 1

    def delete_a_photograph():
        with Memory("m").changing() as change:
            change.delete([0])
            Path("notes/later.txt").write_text("A later note.")
            time.sleep(3)

    thread = threading.Thread(target=delete_a_photograph)
    thread.start()
    report = next(reports)
    thread.join()
    assert (report.added, report.version) == (1, 4)
    reports.close()


def test_from_may_be_a_field_of_anybodys_items(here, capsys):
    json_lines(Path("mail.jsonl"), [{"id": 9999, "source": "notes", "text": "Dear Ben", "from": {"name": "Ann"}}])
    output_of(capsys, "add", "m", "mail.jsonl", "--quiet")
    report = output_of(capsys, "watch", "notes", "--memory", "m", "--once")
    assert (report["version"], report["removed"]) == (2, 0)
    assert origin_of(Memory("m").items([9999])[0]) is None
    assert origin_of(Memory("m").items([0])[0])["part"] == 1


def test_sentences_that_may_be_quoted():
    for fields, sentences in (
        ({"title": "Gull", "caption": "It sat. It flew!"}, ["Gull", "It sat.", "It flew!"]),
        ({"title": "Gull", "text": ["gulls eat fish", "gulls fly"]}, ["gulls eat fish", "gulls fly"]),
        ({"title": "Gull", "text": " "}, ["Gull"]),
        ({"number": 3, "text": ""}, []),
    ):
        assert sentences_of(Item("own", fields)) == sentences


def test_keys_keep_modalities_apart(assistant):
    memory, dim = assistant.memory, assistant.config.projection_dim
    rows = memory.rows()
    keys = np.asarray(memory.keys(rows.ids))
    has_image, has_text = keys[:, 2 * dim].astype(bool), keys[:, 2 * dim + 1].astype(bool)
    assert has_image.sum() == PHOTOS and 20 <= (has_image & has_text).sum() <= 21
    lengths = np.linalg.norm(keys[:, :dim], axis=1), np.linalg.norm(keys[:, dim : 2 * dim], axis=1)
    np.testing.assert_allclose(lengths[0], has_image, atol=1e-5)
    np.testing.assert_allclose(lengths[1], has_text, atol=1e-5)


@pytest.mark.parametrize(("words", "value"), [
    (["build", "notes", "--encoder", "nowhere", "-o", "x"], "nowhere"),
    (["build", "notes", "--encoder", "t5", "-o", "x"], "t5"),
    (["build", "notes", "--reader", "t5", "-o", "x"], "--reader"),
    (["build", "notes", "--encoder", "clip", "--weights", "w", "-o", "x"], "--weights"),
    (["watch", "elsewhere", "--memory", "m"], "elsewhere"),
    (["watch", "jsonl:m/encoder.json", "--memory", "m"], "m/encoder.json is a file"),
    (["watch", "notes", "old/notes", "--memory", "m"], "documents:old/notes"),
    (["watch", "webdataset:notes", "--memory", "m"], "'cc12m'"),
    (["build", "notes", "old/notes", "--encoder", "clip", "-o", "x"], "documents:old/notes"),
    (["search", "m", "a", "--text", "b"], "--text"),
    (["search", "m"], "text"),
    (["search", "m", "x" * 400], "shorten"),
])  # fmt: skip
def test_mistakes_are_one_line(here, capsys, words, value):
    Path("old/notes").mkdir(parents=True)
    assert value in mistake(capsys, *words)
    assert not Path("x").exists()


def test_a_readers_items_have_its_source(here, capsys):
    page = {"page_url": "https://x.org/a", "page_title": "Gull", "context_page_description": "Gulls swim. Terns dive."}
    wit_table(Path("wit.tsv.gz"), [page | {"image_url": "https://x.org/a.jpg", "is_main_image": "true"}])
    report = output_of(capsys, "build", "wit:wit.tsv.gz", "--encoder", "clip", "--quiet", "-o", "x")
    assert report["counts"] == {"wit": 1}
    answer = output_of(capsys, "ask", "-", "what do gulls do?", "--memory", "x")["answer"]
    assert answer in ("Gulls swim.", "Terns dive.")
    json_lines(Path("own.jsonl"), [{"source": "birds", "text": "Terns dive."}])
    words = ["build", "own.jsonl", "--encoder", "clip", "--quiet", "-o", "y"]
    assert "--names" in mistake(capsys, *words)
    assert output_of(capsys, *words, "--names", "birds")["counts"] == {"birds": 1}


def test_an_encoder_that_moved_is_asked_for(here, capsys):
    memory = json.loads(Path("m/encoder.json").read_text())
    Path("m/encoder.json").write_text(json.dumps(memory | {"encoder": "gone"}))
    assert "--encoder" in mistake(capsys, "search", "m", "cup")
    assert output_of(capsys, "search", "m", "cup", "--encoder", "clip")["items"]


def test_passages():
    text = " ".join(f"Word {number}." for number in range(50))
    found = chunks(text, 20, 4)
    assert all(len(one.split()) <= 20 and one.endswith(".") for one in found)
    for before, after in itertools.pairwise(found):
        assert before.split()[-4:] == after.split()[:4]
    assert chunks("a b c", 3, 1) == ["a b c"] and chunks("", 3, 1) == []
    assert [len(one.split()) for one in chunks("x " * 50, 20, 5)] == [20, 20, 20]


def test_sections_of_documents(tmp_path):
    (tmp_path / "my-note.md").write_text("intro\n\n# One\n\ntext *of* one\n\n## Two\n\n- a\n- b\n")
    (tmp_path / "page.html").write_text(
        "<!doctype html><!-- c --><h2><!-- d -->A <b>b</b></h2><style>x</style><p>text<!-- e --></p>"
    )
    (tmp_path / "paper.pdf").write_bytes(pdf("inside"))
    found = sections(tmp_path / "my-note.md")
    assert [(title, " ".join(text.split())) for title, text in found] == [
        ("my note", "intro"),
        ("One", "text of one"),
        ("Two", "a b"),
    ]
    assert sections(tmp_path / "page.html") == [("page", ""), ("A b", "text")]
    assert sections(tmp_path / "paper.pdf") == [("paper, page 1", "inside")]
    (tmp_path / "paper.pdf").write_bytes(pdf("inside").replace(b"trailer\n<<", b"trailer\n\0\0"))  # pypdf's own error
    refused(ValueError, sections, tmp_path / "paper.pdf", match="no PDF")
    refused(FileNotFoundError, lambda: list(records(tmp_path / "nowhere", skips=Skips())))
    refused(ValueError, lambda: list(records(tmp_path, 5, 5, skips=Skips())), match="overlap")
