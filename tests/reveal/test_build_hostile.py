"""`reveal build`, among broken lines, damaged images, full disks and kills: what can be used is built, what cannot is
counted with its reason, and what stops a build is one line and exit code 2."""

import bz2
import gzip
import json
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from assistants import WEIGHTS, items, mistake, output_of, program, workplace
from command import tree
from own_files import json_lines

from common.data.text import open_text
from recipes.small_world.items import WorldVocabulary
from reveal.cli.main import main
from reveal.memory import Memory
from reveal.processing.tokenizers import Words
from reveal.sources.records import MISSING

KILLED = """
import os, signal, sys
from reveal.cli.main import main
from reveal.memory.shards import ShardWriter
append, calls = ShardWriter.append, []
def dying(self, *arguments):
    append(self, *arguments)
    calls.append(1)
    if len(calls) == 4:
        os.kill(os.getpid(), signal.SIGKILL)
ShardWriter.append = dying
main(sys.argv[1:])
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    return workplace(tmp_path_factory.mktemp("build") / "made")


@pytest.fixture
def here(tmp_path, monkeypatch, made) -> Path:
    """A working folder with weights and items.jsonl of 150 items."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path


def words(*sources: str, output: str = "m", **options: str | int) -> list[str]:
    given = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    return ["build", *sources, "-o", output, *WEIGHTS, "--quiet", *given]


def stop(*_):
    raise KeyboardInterrupt


def test_a_report_is_of_all_that_was_read(here, capsys):
    with Path("items.jsonl").open("a") as file:
        file.write('no JSON\n{"id": 900, "source": "vqa", "image": "none.png"}\n{"id": 901, "source": "graph"}\n')
        file.write('{"id": 902, "source": "vqa", "image": "broken.png", "text": "friend cat"}\n')
    Path("broken.png").write_bytes(b"\x89PNG\r\n")
    report = output_of(capsys, *words("."))
    assert report["added"] == report["items"] == 150 and report["version"] == 1 and report["ids"] == [0, 149]
    left_out = report["left_out"]
    assert left_out[MISSING] == 1 and list(left_out.values()) == 4 * [1]
    assert report["hash"] == Memory("m").manifest.hash() and report["rate"] > 0
    main(words(".", output="third"))
    shown = capsys.readouterr().out
    assert "third: 150 items" in shown and all(f"1 {reason}" in shown for reason in left_out) and "vqa 37" in shown


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".bz2", bz2.compress)])
def test_a_packed_file_that_was_cut_short_is_named(tmp_path, suffix, pack):
    data = pack("".join(f"line {number} {np.sqrt(number)}\n" for number in range(5000)).encode())
    path = tmp_path / f"a.tsv{suffix}"
    path.write_bytes(data)
    with open_text(path) as lines:
        assert len(list(lines)) == 5000
    path.write_bytes(data[:-4000])
    with pytest.raises(ValueError, match=rf"a\.tsv{suffix}"), open_text(path) as file:
        list(file)


@pytest.mark.long
def test_a_killed_build_resumes_to_the_same_memory_and_report(here, capsys):
    lines = [json.loads(line) for line in Path("items.jsonl").read_text().splitlines()]
    (here / "half.png").write_bytes((here / "asked.png").read_bytes()[:50])
    broken = {"id": 7, "source": "vqa", "image": "half.png"}
    json_lines(here / "items.jsonl", [broken if entry["id"] == 7 else entry for entry in lines])
    build = words("items.jsonl", shard=40)
    program(KILLED, build, -signal.SIGKILL)
    assert list((here / "m").glob(".partial-*")) and (here / "m" / "build.json").is_file()
    assert not (here / "m" / "manifest.json").exists()
    kept = Path("items.jsonl").read_text()
    Path("items.jsonl").write_text(kept.replace('"text": "', '"text": "once '))
    assert "item" in mistake(capsys, *build)  # the sources are others
    Path("items.jsonl").write_text(kept)
    known = WorldVocabulary.of_world().words
    Words((*known[:-2], *known[:-3:-1])).save("turned.json")
    for change in (["--renumber"], ["--tokenizer", "turned.json"]):
        assert "build.json" in mistake(capsys, *build, *change)
    report = output_of(capsys, *build)
    once = output_of(capsys, *words("items.jsonl", shard=40, output="n"))
    assert 0 < report["resumed"] < 149 and report["resumed"] + report["added"] == once["items"] == 149
    assert report["hash"] == once["hash"] and report["left_out"] == once["left_out"] != {}
    assert tree(here / "m") == tree(here / "n") and "build.json" not in tree(here / "m")


def test_a_memory_gives_way_to_another_only_when_asked(here, capsys):
    items(here, 20)
    build = words("items.jsonl", output="facts")
    assert output_of(capsys, *build)["items"] == 20
    items(here, 8)
    assert "facts" in mistake(capsys, *build)
    build.append("--overwrite")
    Path("facts/mine.txt").touch()
    assert "mine.txt" in mistake(capsys, *build)
    Path("facts/mine.txt").unlink()
    assert output_of(capsys, *build)["items"] == len(Memory("facts")) == 8
    assert not list(here.glob("*.building")) and not list(here.glob(".replaced*"))
    Path("notes").mkdir()
    Path("notes/a.txt").write_text("home attic")
    assert "a.txt" in mistake(capsys, *words("items.jsonl", output="notes"), "--overwrite")


def test_a_build_that_was_stopped_before_it_replaced_another(here, capsys, monkeypatch):
    items(here, 20)
    build = words("items.jsonl", output="facts")
    output_of(capsys, *build)
    with monkeypatch.context() as patch:
        patch.setattr("reveal.cli.changes.replace", stop)
        with pytest.raises(SystemExit):
            main([*build, "--overwrite"])
    assert (here / "facts.building" / "manifest.json").is_file()
    items(here, 8)
    assert output_of(capsys, *build, "--overwrite")["items"] == 8 and not (here / "facts.building").exists()
    Path("facts").rename("facts.building")  # killed between the two renames
    assert "facts" in mistake(capsys, *build) and len(Memory("facts")) == 8
    monkeypatch.chdir(here / "facts")
    within = ["build", "../items.jsonl", "-o", ".", "--weights", "../weights.safetensors", "--overwrite"]
    assert "-o ." in mistake(capsys, *within)
