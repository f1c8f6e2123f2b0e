"""The `reveal` command as a user meets it: its output is read again, a mistake is one line and changes nothing."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from assistants import WEIGHTS, files, output_of, refused, with_memory
from own_files import json_lines

from common.io.images import image_size, read_image
from reveal.assistant import Assistant
from reveal.cli.main import main
from reveal.evidence import Evidence, RetrievedItem
from reveal.memory import Item


@pytest.fixture(autouse=True)
def leave_the_process_alone(monkeypatch):
    monkeypatch.setattr("common.runtime.setup", lambda: None)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    return with_memory(tmp_path_factory.mktemp("cli") / "made", 24)


@pytest.fixture
def here(tmp_path, monkeypatch, made) -> Path:
    """A working folder with weights, items.jsonl, asked.png and the memory `facts`; and nothing that is shipped."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("reveal.pretrained.DATA", tmp_path / "nothing")
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path


def test_asking_shows_the_items_of_the_answer(here, capsys):
    words = ["ask", "asked.png", "food ?", *WEIGHTS]
    answer = output_of(capsys, *words, "--memory", "facts", "-k", "3", "--sheet", "sheet.png")
    assert answer["question"] == "food ?" and answer["answer"] and answer["log_probability"] < 0
    assert [set(item) for item in answer["items"]] == 3 * [
        {"id", "source", "fields", "picture", "score", "prior", "attention", "effect"}
    ]
    main([*words, "--memory", "facts", "-k", "3"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == answer["answer"] and lines[2].split()[:5] == ["id", "source", "score", "prior", "attention"]
    assert [int(line.split()[0]) for line in lines[3:]] == [item["id"] for item in answer["items"]]
    assert image_size("sheet.png")[0] == 960 and read_image("sheet.png").std() > 0
    assert "sheet.png" in refused(capsys, *words, "--memory", "facts", "--sheet", "sheet.png")
    alone = output_of(capsys, "ask", "-", "food ?", *WEIGHTS, "--no-memory", "--beams", "1")
    assert alone["items"] == [] and alone["memory"] is None and alone["log_probability"] < 0


def test_both_hops_are_shown(here, capsys, monkeypatch):
    item = RetrievedItem(Item("graph", {"text": "a flag"}, id=7), 0.5, 1.0, 0.25, -2.0)
    first = Evidence("which country ?", "Chad", -0.5, (item,), {"graph": 1.0}, 3)
    monkeypatch.setattr(Assistant, "ask", lambda *_: Evidence("which language ?", "", -1.5, (), {}, 0, first))
    words = ["ask", "asked.png", "which language ?", "--no-memory", *WEIGHTS]
    assert output_of(capsys, *words)["first_hop"] == first.as_json()
    main(words)
    assert capsys.readouterr().out == "(nothing)\n\nwhich country ? Chad (items 7)\n"


def test_searching(here, capsys):
    words = ["search", "facts", "--text", "food ?", *WEIGHTS]
    exact = output_of(capsys, *words)["items"]
    found = output_of(capsys, *words, "--engine", "faiss")["items"]
    assert [item["id"] for item in found] == [item["id"] for item in exact]
    assert [item["score"] for item in found] == pytest.approx([item["score"] for item in exact], abs=1e-5)
    main([*words, "-k", "2"])
    assert len(capsys.readouterr().out.splitlines()) == 3
    twice = [*words, "--sources", "graph,graph"]  # is one source, of 6 items
    assert len(output_of(capsys, *twice, "-k", "6")["items"]) == 6
    assert "1 to 6" in refused(capsys, *twice, "-k", "7")


BUILD = ["build", "-o", "m"]
SEARCH = ["search", "facts"]
ASK = ["ask", "asked.png", "food ?", "--memory", "facts"]


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (BUILD, "READER:PATH"),
        ([*BUILD, "none"], "none"),
        ([*BUILD, "asked.png"], "asked.png"),
        ([*BUILD, "witt:t.tsv"], "witt:t.tsv"),
        ([*BUILD, "wit:t.tsv,image=x"], "image"),
        ([*BUILD, "wit:t.tsv,captions=no"], "captions=no"),
        ([*BUILD, "wit:t.tsv,first_id=x"], "first_id=x"),
        ([*BUILD, "wit:none.tsv.gz"], "none.tsv.gz"),
        ([*BUILD, "unsorted.jsonl"], "id 1 comes after 5"),
        ([*BUILD, "foreign.jsonl"], "'own'"),
        ([*BUILD, "empty.jsonl"], "empty.jsonl"),
        ([*BUILD, "items.jsonl", "--names", "a,b"], "(a, b)"),
        ([*BUILD, "items.jsonl", "--picture-side", "-1"], "--picture-side -1"),
        (["add", "facts"], "--text"),
        (["add", "facts", "items.jsonl", "--text", "home"], "--text"),
        (["add", "facts", "--text", "home"], "--source"),
        (["add", "facts", "--text", "home", "--source", "web"], "'web'"),
        (["add", "facts", "--text", " ", "--source", "graph"], "item"),
        (["add", "facts", "--text", "home", "--edit"], "--id"),
        (["add", "facts", "--text", "home", "--edit", "--id", "999"], "999 first"),
        (["add", "facts", "--image", "none.png", "--source", "vqa"], "none.png"),
        (["add", "nowhere", "--text", "home"], "nowhere"),
        (SEARCH, "text"),
        ([*SEARCH, "--text", "home ?", "-k", "25"], "1 to 24"),
        ([*SEARCH, "--text", "home ?", "--sources", "web"], "'web'"),
        ([*SEARCH, "--text", "home", "--engine", "milvus"], "--milvus"),
        ([*SEARCH, "--text", "home ?", "--tokenizer", "none.json"], "none.json"),
        ([*SEARCH, "--image", "none.png"], "none.png"),
        (["ask", "none.png", "food ?", "--memory", "facts"], "none.png"),
        (["ask", "asked.png", "food food food", "--memory", "facts"], "3 tokens"),
        ([*ASK, "--sheet", "a.mp4"], "'.mp4'"),
        ([*ASK, "--beams", "0"], "--beams 0"),
        (["ask", "asked.png", "food ?", "--no-memory", "-k", "3"], "--no-memory"),
        (["ask", "-", "--memory", "facts"], "question"),
        (["ask", "asked.png", "food ?"], "--memory"),
    ],
)
def test_mistakes_are_one_line_and_change_nothing(here, capsys, words, value):
    json_lines(Path("unsorted.jsonl"), [{"id": 5, "text": "home"}, {"id": 1, "text": "food"}])
    json_lines(Path("foreign.jsonl"), [{"text": "home"}])
    Path("empty.jsonl").write_text("\n")
    before = files(Path())
    assert value in refused(capsys, *words, *WEIGHTS)
    assert {name: data for name, data in files(Path()).items() if name != "m/build.json"} == before


def test_missing_defaults_are_named(here, capsys):
    for words, value in (
        ([*SEARCH, "--text", "home ?"], "--weights"),
        (["draw"], "'draw'"),
        (["info", "more"], "more"),
        (["info"], "--memory"),
    ):
        assert value in refused(capsys, *words)


def test_the_tokenizers_program_is_a_command_too(here, capsys):
    Path("texts.txt").write_text("gulls eat fish\n")
    main(["tokenizer", "train", "texts.txt", "-o", "words.json"])
    assert capsys.readouterr().out.startswith("words.json: vocab_size=10 bos=2")


def test_help_does_not_wait_for_jax():
    script = (
        "import contextlib, sys\nfrom reveal.cli.main import main\nmain(['--help'])\n"
        "with contextlib.suppress(SystemExit):\n    main(['ask', '--help'])\n"
        "with contextlib.suppress(SystemExit):\n    main(['ask', 'none.png', 'what?'])\n"
        "print('jax' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "  build  " in result.stdout and "--no-memory" in result.stdout
    assert "none.png" in result.stderr and result.stdout.endswith("False\n")
