"""The `reveal` command as a user meets it: what it prints is read again, what goes wrong is one line and no change."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from assistants import items, network, save, workplace
from flax import nnx
from little_countries import COUNTRIES
from little_countries import NETWORK as LAND
from own_files import json_file, json_lines, picture, tar, wit_table

from common import terminal
from common.io.images import image_size, read_image
from reveal.cli.main import main
from reveal.memory import Memory
from reveal.memory.builder import Builder
from reveal.memory.manifest import read_manifest
from reveal.network.model import Reveal

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def leave_the_process_alone(monkeypatch):
    """`setup` changes the allocator and turns on a cache in the user's home; neither ends with a test."""
    monkeypatch.setattr("common.runtime.setup", lambda: None)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    place = workplace(tmp_path_factory.mktemp("cli") / "made")
    main(["build", str(place / "items.jsonl"), "-o", str(place / "facts"), "--weights", str(place), "--quiet"])
    return place


@pytest.fixture
def here(tmp_path, monkeypatch, made) -> Path:
    """A working folder with weights, items.jsonl, asked.png and the memory `facts`; and nothing that comes along."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("reveal.pretrained.DATA", tmp_path / "nothing")
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path


def tree(folder: Path) -> dict[str, bytes | None]:
    """All that is on disk, to the byte."""
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


def told(capsys, *words: str) -> dict:
    """What the command says with --json, and nothing else."""
    capsys.readouterr()
    main([*words, "--json"])
    said = capsys.readouterr()
    assert said.out.count("\n") == 1
    return json.loads(said.out)


def refused(capsys, *words: str, changes: bool = False) -> str:
    """What the command says when it ends with 2: one line; nothing was written."""
    before, _ = tree(Path()), capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        main(list(words))
    said = capsys.readouterr().err
    assert stop.value.code == 2 and said.count("\n") == 1 and said.startswith("reveal: ")
    assert changes or tree(Path()) == before
    return said


def with_weights(*words: str) -> list[str]:
    return [*words, "--weights", "weights.safetensors"]


def test_build_tells_what_it_read(here, capsys):
    (here / "more").mkdir()
    shutil.copytree(here, here / "more", dirs_exist_ok=True, ignore=shutil.ignore_patterns("facts", "more"))
    with (here / "more" / "items.jsonl").open("a") as file:
        file.write('no JSON\n{"id": 900, "source": "vqa", "image": "none.png"}\n{"id": 901, "source": "graph"}\n')
        file.write('{"id": 902, "source": "vqa", "image": "broken.png", "text": "friend cat"}\n')
    (here / "more" / "broken.png").write_bytes(b"\x89PNG\r\n")
    report = told(capsys, *with_weights("build", "more", "-o", "other", "--quiet"))
    assert report["added"] == report["items"] == 150 and report["version"] == 1 and report["ids"] == [0, 149]
    assert report["left_out"] == {
        "that is no JSON object": 1,
        "whose picture is not there": 1,
        "with neither text nor picture": 1,
        "whose picture is damaged": 1,
    }
    assert report["hash"] == read_manifest(Path("facts")).hash() and report["rate"] > 0
    main(with_weights("build", "more", "-o", "third", "--quiet"))
    said = capsys.readouterr().out
    assert "150 items in" in said and "left out: 1 whose picture is damaged" in said
    assert said.endswith("third: 150 items (graph 38, passages 38, captions 37, vqa 37), version 1\n")


def test_a_killed_build_goes_on_to_the_same_memory(here, capsys):
    words = with_weights("build", "items.jsonl", "-o", "again", "--shard", "40", "--quiet")
    script = ROOT / "tests" / "reveal" / "assistants.py"
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, script.parent, ROOT / "tests" / "recipes")))
    }
    killed = subprocess.run([sys.executable, str(script), *words], env=environment, check=False)
    assert killed.returncode == 9 and (here / "again" / "build.json").is_file()
    changed = [
        line.replace('"text": "', '"text": "once ')
        for line in Path("items.jsonl").read_text().splitlines(keepends=True)
    ]
    kept = Path("items.jsonl").read_text()
    Path("items.jsonl").write_text("".join(changed))
    said = refused(capsys, *words, changes=True)  # what was half written goes
    assert "the sources have changed since this build was interrupted" in said
    Path("items.jsonl").write_text(kept)
    assert "begun with another layout, or of other sources" in refused(capsys, *words, "--renumber")
    report = told(capsys, *words)
    assert report["resumed"] == 120 and report["added"] == 30 and report["items"] == 150
    whole = told(capsys, *with_weights("build", "items.jsonl", "-o", "whole", "--shard", "40", "--quiet"))
    assert report["hash"] == whole["hash"]
    assert {name: data for name, data in tree(here / "again").items() if data} == {
        name: data for name, data in tree(here / "whole").items() if data
    }


def test_a_memory_gives_way_to_another_only_when_asked(here, capsys):
    words = with_weights("build", "items.jsonl", "-o", "facts", "--quiet", "--renumber")
    assert "holds a memory already: `reveal add` adds to it, --overwrite replaces it" in refused(capsys, *words)
    Path("facts/mine.txt").touch()
    assert "facts holds mine.txt, which is no memory's; nothing was touched" in refused(capsys, *words, "--overwrite")
    Path("facts/mine.txt").unlink()
    items(here, 20)
    assert told(capsys, *words, "--overwrite")["items"] == 20
    assert len(Memory("facts")) == 20 and not list(here.glob("*.building")) and not list(here.glob(".replaced*"))
    Path("notes").mkdir()
    Path("notes/a.txt").write_text("home attic")
    assert "notes holds a.txt, which is no memory's" in refused(
        capsys, *with_weights("build", "items.jsonl", "-o", "notes", "--quiet", "--overwrite")
    )


def test_asking_shows_where_the_answer_is_from(here, capsys):
    words = with_weights("ask", "asked.png", "food ?", "--memory", "facts")
    answer = told(capsys, *words, "-k", "3", "--sheet", "sheet.png")
    assert answer["question"] == "food ?" and answer["answer"] and answer["log_probability"] < 0
    assert [set(item) for item in answer["items"]] == 3 * [
        {"id", "source", "fields", "picture", "score", "prior", "attention", "effect"}
    ]
    main([*words, "-k", "3"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == answer["answer"] and lines[2].split()[:5] == ["id", "source", "score", "prior", "attention"]
    assert [int(line.split()[0]) for line in lines[3:]] == [item["id"] for item in answer["items"]]
    assert image_size("sheet.png")[0] == 960 and read_image("sheet.png").std() > 0
    assert "sheet.png exists" in refused(capsys, *words, "--sheet", "sheet.png")
    alone = told(capsys, *with_weights("ask", "asked.png", "food ?", "--no-memory"))
    assert alone["items"] == [] and alone["memory"] is None
    assert told(capsys, *with_weights("ask", "-", "food ?", "--memory", "facts"))["answer"]


def test_both_hops_are_shown(here, capsys):
    """Of a network whose header lists the questions; `test_assistant.py` has what is asked."""
    (here / "land").mkdir()
    save(here / "land", Reveal(LAND, rngs=nnx.Rngs(0)), {}, {"processor": COUNTRIES.processor()})
    question = "Which language is spoken in this country?"
    words = ["ask", "asked.png", question, "--no-memory", "--weights", "land"]
    answer = told(capsys, *words)
    first = answer["first_hop"]
    assert first["question"] == "Which country is this?" and first["items"] == [] and first["first_hop"] is None
    assert answer["question"] == f"Which language is spoken in {first['answer']}?"
    main(words)
    said = f"{first['question']} {first['answer'] or '(nothing)'}"
    shown = capsys.readouterr().out
    terminal.say(f"{answer['answer'] or '(nothing)'}\n\n{said}")
    assert shown == capsys.readouterr().out


def test_a_memory_is_changed_and_asked_again(here, capsys):
    words = with_weights("add", "facts", "--text", "home attic", "--source", "graph", "--quiet")
    added = told(capsys, *words)
    assert added["ids"] == [150, 150] and added["items"] == 151 and added["version"] == 2
    assert told(capsys, *with_weights("search", "facts", "--text", "home ?", "-k", "151"))["items"]
    assert "id 150 is in facts already: --edit puts this item in its place" in refused(capsys, *words, "--id", "150")
    edited = told(capsys, *with_weights("add", "facts", "--edit", "--id", "3", "--text", "friend cat", "--quiet"))
    item = Memory("facts").items([3])[0]
    assert edited["edited"] == 1 and edited["items"] == 151
    assert item.fields == {"text": "friend cat"} and item.source == "vqa" and item.picture is not None
    gone = told(capsys, "remove", "facts", "150", "3", "3")
    assert gone == {"memory": "facts", "removed": 2, "items": 149, "version": 4}
    assert "1 ids are not in facts, 3 first" in refused(capsys, "remove", "facts", "3")
    about = told(capsys, "info", "facts")
    assert (about["items"], about["version"], about["dead"], about["sources"]["vqa"]) == (149, 4, 3, 36)
    assert about["bytes"] == sum(len(data or b"") for data in tree(Path("facts")).values())
    main(["info", "facts"])
    assert "facts: 149 items, version 4" in capsys.readouterr().out


def test_files_are_added_to_a_memory(here, capsys):
    words = with_weights("add", "facts", "items.jsonl", "--quiet")
    assert "150 ids of items.jsonl are in facts already, 0 first: --edit puts" in refused(capsys, *words)
    assert told(capsys, *words, "--renumber")["items"] == 300
    items(here, 152)
    report = told(capsys, *words, "--edit")
    assert report["added"] == 152 and report["edited"] == 152 and report["items"] == 300
    (here / "birds").mkdir()
    picture(here / "birds" / "gull.png")
    (here / "birds" / "gull.txt").write_text("owner anna")
    report = told(capsys, *with_weights("add", "facts", "birds", "--source", "captions", "--quiet"))
    assert report["ids"] == [300, 300] and Memory("facts").items([300])[0].fields == {"text": "owner anna"}


def test_other_weights_are_refused_and_encode_a_memory_anew(here, capsys):
    other = save_other(here, 5, key_dim=6)
    for words in (
        ["ask", "asked.png", "food ?", "--memory"],
        ["search", "--text", "food ?"],
        ["add", "--source", "vqa", "--text", "home"],
    ):
        said = refused(capsys, *words, "facts", "--weights", other)
        assert "facts was made by encoder" in said and "`reveal refresh facts` encodes it anew" in said
    before = Memory("facts")
    texts = [item.fields for item in before.items(range(150))]
    report = told(capsys, "refresh", "facts", "--weights", other, "--quiet")
    after = Memory("facts")
    assert report["added"] == report["edited"] == 150 and report["version"] == 2
    assert after.layout.key_dim == 6 and after.layout.encoder != before.layout.encoder
    assert [item.fields for item in after.items(range(150))] == texts
    assert told(capsys, "ask", "asked.png", "food ?", "--memory", "facts", "--weights", other)["items"]
    assert "encoder" in refused(capsys, *with_weights("search", "facts", "--text", "food ?"))
    told(capsys, *with_weights("refresh", "facts", "--quiet"))
    again = Memory("facts")
    np.testing.assert_allclose(again.keys(range(150)), before_keys(here), atol=1e-6)


def save_other(here: Path, seed: int, **changes) -> str:
    (here / "other").mkdir()
    save(here / "other", network(seed, **changes))
    return "other"


def before_keys(here: Path) -> np.ndarray:
    """Of the memory as the first network built it."""
    main(with_weights("build", "items.jsonl", "-o", "first", "--quiet"))
    return Memory("first").keys(range(150))


def test_published_formats_become_memories(here, capsys):
    picture(here / "gull.png", 1, (300, 600))
    one = (here / "gull.png").read_bytes()
    wit_table(here / "wit.tsv.gz", [{"image_url": "https://x.org/gull.png", "context_page_description": "A seabird"}])
    tar(here / "web.tar", {"1.png": one, "1.txt": b"a gull", "2.txt": b"no picture"})
    Path("triples.tsv").write_text("gull\teats\tfish\nno triple\ngull\tis\tbird\n")
    shutil.copy("gull.png", "COCO_000000000042.png")
    shutil.copy("gull.png", "COCO_000000000007.png")
    asked = [
        {"question_id": 1, "image_id": 42, "question": "what?"},
        {"question_id": 2, "image_id": 7, "question": "o?"},
    ]
    answers = [{"question_id": n, "answers": [{"answer": "gull"}]} for n in (1, 2)]
    json_file(here / "q.json", {"questions": asked})
    json_file(here / "a.json", {"annotations": answers})
    captions = {"images": [{"id": 42}], "annotations": [{"image_id": 42, "caption": "a bird"}]}
    json_file(here / "c.json", captions)
    read = ["wit:wit.tsv.gz,images=.,captions=false,source=passages", "webdataset:web.tar"]
    read += ["wikidata:triples.tsv,source=graph", "vqa:q.json,annotations=a.json,images=."]
    words = with_weights("build", *read, "coco:c.json,images=.", "-o", "many", "--source", "captions", "--quiet")
    report = told(capsys, *words)
    assert report["counts"] == {
        "graph": 1,
        "passages": 1,
        "captions": 4,
        "vqa": 0,
    }
    assert report["ids"] == [0, 5] and report["left_out"] == {"whose picture is not there": 1, "that are no triples": 1}
    found = Memory("many").items(range(6))
    assert [item.fields["text" if "text" in item.fields else "page"] for item in found] == [
        "A seabird",
        "a gull",
        "gull eats fish . gull is bird .",
        "Question: what? Answer: gull",
        "Question: o? Answer: gull",
        "a bird",
    ]
    assert all(item.picture is None or item.picture[:2] == b"\xff\xd8" for item in found)  # shrunk to 256 pixels
    assert max(len(item.picture or b"") for item in found) < len(one)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["build", "-o", "m"], "nothing to build of"),
        (["build", "none", "-o", "m"], "none does not exist; give a folder"),
        (
            ["build", "asked.png", "-o", "m"],
            "asked.png: say what reads it, as in wit:asked.png; readers are jsonl, folder",
        ),
        (["build", "wit:t.tsv,image=x", "-o", "m"], "image is no option; it has images, language, captions"),
        (["build", "wit:t.tsv,captions=no", "-o", "m"], "captions=no: give true or false"),
        (["build", "wit:t.tsv,first_id=x", "-o", "m"], "first_id=x: give a whole number"),
        (["build", "wit:none.tsv.gz", "-o", "m"], "none.tsv.gz: no such file"),
        (["build", "unsorted.jsonl", "-o", "m"], "unsorted.jsonl: id 1 comes after 5; in a build they rise"),
        (["build", "foreign.jsonl", "-o", "m"], "source 'own', this network knows graph, passages, captions, vqa"),
        (["build", "items.jsonl", "-o", "m", "--names", "a,b"], "2 sources (a, b) for the 4"),
        (["build", "items.jsonl", "-o", "m", "--picture-side", "-1"], "--picture-side -1"),
        (["add", "facts"], "give sources, or one item with --text"),
        (["add", "facts", "items.jsonl", "--text", "home"], "give sources, or one item"),
        (["add", "facts", "--text", "home"], "which source is it like? --source, one of graph, passages"),
        (["add", "facts", "--text", "home", "--source", "web"], "source 'web' is not in this memory"),
        (["add", "facts", "--text", "home", "--edit"], "--edit needs --id"),
        (["add", "facts", "--text", "home", "--edit", "--id", "999"], "1 ids are not in facts, 999 first"),
        (["add", "facts", "--image", "none.png", "--source", "vqa"], "none.png does not exist"),
        (["add", "nowhere", "--text", "home"], "nowhere holds no memory"),
        (["search", "facts"], "nothing to search by"),
        (["search", "facts", "--text", "home ?", "-k", "151"], "k is 151, the memory has 150 items: ask for 1 to 150"),
        (["search", "facts", "--text", "home ?", "--sources", "web"], "source 'web' is not in this memory"),
        (["search", "facts", "--text", "home", "--engine", "milvus"], "--engine milvus and --milvus URI go together"),
        (["search", "facts", "--image", "none.png"], "none.png does not exist"),
        (["ask", "none.png", "food ?", "--memory", "facts"], "none.png does not exist"),
        (["ask", "asked.png", "food food food", "--memory", "facts"], "has 3 tokens, this network reads 2: shorten it"),
        (["ask", "asked.png", "food ?", "--memory", "facts", "--sheet", "a.mp4"], "suffix '.mp4' is not one of"),
        (["ask", "asked.png", "food ?", "--no-memory", "-k", "3"], "--no-memory reads no items"),
        (["ask", "-", "--memory", "facts"], "neither a picture nor a question"),
        (["ask", "asked.png", "food ?"], "no memory comes with the program: build one, and name it with --memory"),
    ],
)
def test_mistakes_are_one_line_and_change_nothing(here, capsys, words, said):
    json_lines(Path("unsorted.jsonl"), [{"id": 5, "text": "home"}, {"id": 1, "text": "food"}])
    json_lines(Path("foreign.jsonl"), [{"text": "home"}])
    begins = words[:2] == ["build", "foreign.jsonl"] or "--names" in words or "none.tsv.gz" in str(words)
    assert said in refused(capsys, *with_weights(*words), changes=begins)


def test_what_is_missing_is_named(here, capsys):
    assert "no weights come with the program: name a file" in refused(capsys, "search", "facts", "--text", "home ?")
    assert "none.json does not exist" in refused(
        capsys, *with_weights("search", "facts", "--text", "home ?", "--tokenizer", "none.json")
    )
    assert "'draw' is no command; choose one of build, add" in refused(capsys, "draw")
    assert "holds no memory" in refused(capsys, "info", "more")


def test_a_full_disk_is_told_and_the_build_goes_on(here, capsys, monkeypatch):
    words = with_weights("build", "items.jsonl", "-o", "full", "--shard", "40", "--quiet")
    add, calls = Builder.add, []

    def full(self, *arguments):
        calls.append(1)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        add(self, *arguments)

    monkeypatch.setattr(Builder, "add", full)
    said = refused(capsys, *words, changes=True)
    assert "no space left for full" in said and "the same command goes on from there" in said
    monkeypatch.setattr(Builder, "add", add)
    report = told(capsys, *words)
    assert report["resumed"] == 40 and report["items"] == 150


def test_another_engine_finds_the_same(here, capsys):
    words = with_weights("search", "facts", "--text", "food ?")
    exact = told(capsys, *words)["items"]
    found = told(capsys, *words, "--engine", "faiss")["items"]
    assert [item["id"] for item in found] == [item["id"] for item in exact]
    assert [item["score"] for item in found] == pytest.approx([item["score"] for item in exact], abs=1e-5)


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
    assert "none.png does not exist" in result.stderr
    assert result.stdout.endswith("False\n")
