"""`reveal build`, among broken lines, damaged images, full disks and kills: what can be used is built, what cannot is
counted with its reason, and what stops a build is one line and exit code 2."""

import bz2
import gzip
import importlib.util
import json
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from assistants import WEIGHTS, files, items, output_of, program, refused, workplace
from own_files import json_lines, picture

from common.data.stored import decode_picture
from common.data.text import open_text
from common.io.images import write_image
from recipes.small_world.items import WorldVocabulary
from reveal.cli.main import main
from reveal.memory import Builder, Layout, Memory
from reveal.processing.tokenizers import Words
from reveal.sources import wit
from reveal.sources.records import MISSING, UNREADABLE

LONG, SCRIPTS = "gull " * 8000, "Чайка — 鷗 — نورس"
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
PLAIN = "import sys\nfrom reveal.cli.main import main\nmain(sys.argv[1:])"
LIMITED = """
import resource, sys
from reveal.cli.main import main
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))  # as a disk that is full in the middle of a write
main(sys.argv[1:])
"""


@pytest.fixture(autouse=True)
def leave_the_process_alone(monkeypatch):
    """`setup` changes the allocator and turns on a cache in the user's home; neither ends with a test."""
    monkeypatch.setattr("common.runtime.setup", lambda: None)


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


def row_of(given: dict) -> dict[str, str]:
    return dict.fromkeys(wit.COLUMNS, "") | {"language": "en", "page_url": "x"} | given


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


def test_broken_rows_cost_themselves_alone(here, capsys):
    for name, seed in {"gull": 1, "tern": 2}.items():
        picture(here / "birds" / f"{name}.jpg", seed, (40, 60))
    whole = (here / "birds" / "gull.jpg").read_bytes()
    (here / "birds" / "cut.jpg").write_bytes(whole[:-200])
    (here / "birds" / "empty.jpg").touch()
    (here / "birds" / "text.jpg").write_text("no picture")

    def row(name: str, page: str = "A seabird") -> dict:
        return {"image_url": f"https://x.org/{name}.jpg", "context_page_description": page}

    lines = [
        row("gull", 'It says "kek" often'),
        "en\tonly\ttwo",
        row("tern") | {"caption_alt_text_description": '"a quote that never ends'},
        row("gull", SCRIPTS),
        row("lost"),
        '"' + "\t".join(row_of(row("gull")).values())[:30],
        row("cut"),
        row("empty"),
        row("text"),
        row("tern", LONG),
        row("gull", "once more"),
        "\t".join(row_of(row("tern", '"Two lines\n""with"" quotes"')).values()),
        row("gull", ""),
    ]
    lines = [line if isinstance(line, str) else "\t".join((row_of(line)).values()) for line in lines]
    (here / "wit.tsv.gz").write_bytes(gzip.compress("\n".join(["\t".join(wit.COLUMNS), *lines, ""]).encode()))
    report = output_of(capsys, *words("wit:wit.tsv.gz,images=birds,source=passages"))
    left_out = report["left_out"]
    assert left_out[MISSING] == left_out[UNREADABLE] == 1 and sorted(left_out.values()) == [1, 1, 1, 2, 2]
    found = Memory("m").items([0, 2, 3, 9, 10, 11])
    pages = ['It says "kek" often', "A seabird", SCRIPTS, LONG.strip(), "once more", 'Two lines\n"with" quotes']
    assert report["items"] == len(found) == 6 and [item.fields["page"] for item in found] == pages
    assert found[1].fields["alt"] == '"a quote that never ends'
    line = refused(capsys, *words("wit:wit.tsv.gz,images=birds,source=passages,strict=true", output="n"))
    assert "wit.tsv.gz row 2" in line


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


def test_images_are_decoded_alike_from_bytes_and_from_files(tmp_path):
    rng = np.random.default_rng(0)
    for name, channels in {"a.jpg": 3, "grey.jpg": 1}.items():
        path = tmp_path / name
        write_image(path, np.repeat(rng.random((33, 47, channels), np.float32), 3 // channels, 2))
        np.testing.assert_array_equal(decode_picture(path.read_bytes(), "x"), decode_picture(path, "x"))
    with pytest.raises(ValueError, match="item 7"):
        decode_picture((tmp_path / "a.jpg").read_bytes()[:-300], "item 7")


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
    assert "item" in refused(capsys, *build)  # the sources are others
    Path("items.jsonl").write_text(kept)
    known = WorldVocabulary.of_world().words
    Words((*known[:-2], *known[:-3:-1])).save("turned.json")
    for change in (["--renumber"], ["--tokenizer", "turned.json"]):
        assert "build.json" in refused(capsys, *build, *change)
    report = output_of(capsys, *build)
    once = output_of(capsys, *words("items.jsonl", shard=40, output="n"))
    assert 0 < report["resumed"] < 149 and report["resumed"] + report["added"] == once["items"] == 149
    assert report["hash"] == once["hash"] and report["left_out"] == once["left_out"] != {}
    assert files(here / "m") == files(here / "n") and "build.json" not in files(here / "m")


def test_a_full_disk_leaves_no_half_shard_and_the_build_resumes(here, capsys):
    entries = [{"id": 0, "source": "vqa", "text": "home"}, {"id": 1, "source": "vqa", "image": "noise.jpg"}]
    write_image(here / "noise.jpg", np.random.default_rng(0).random((1200, 1200, 3), np.float32))
    json_lines(here / "large.jsonl", entries)
    build = words("large.jsonl", picture_side=0, shard=1)
    line = program(LIMITED, build, 2)
    assert "for m (File too large)" in line and line.count("\n") == 1
    assert [path.name for path in (here / "m").iterdir() if path.is_dir()] == ["v00001-00000"]
    assert not list(here.rglob(".partial-*")) and (here / "m" / "build.json").is_file()
    report = output_of(capsys, *build)
    assert (report["resumed"], report["added"]) == (1, 1)


def test_a_memory_gives_way_to_another_only_when_asked(here, capsys):
    items(here, 20)
    build = words("items.jsonl", output="facts")
    assert output_of(capsys, *build)["items"] == 20
    items(here, 8)
    assert "facts" in refused(capsys, *build)
    build.append("--overwrite")
    Path("facts/mine.txt").touch()
    assert "mine.txt" in refused(capsys, *build)
    Path("facts/mine.txt").unlink()
    assert output_of(capsys, *build)["items"] == len(Memory("facts")) == 8
    assert not list(here.glob("*.building")) and not list(here.glob(".replaced*"))
    Path("notes").mkdir()
    Path("notes/a.txt").write_text("home attic")
    assert "a.txt" in refused(capsys, *words("items.jsonl", output="notes"), "--overwrite")


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
    assert "facts" in refused(capsys, *build) and len(Memory("facts")) == 8
    monkeypatch.chdir(here / "facts")
    within = ["build", "../items.jsonl", "-o", ".", "--weights", "../weights.safetensors", "--overwrite"]
    assert "-o ." in refused(capsys, *within)


def test_a_second_build_into_a_folder_leaves_the_first_alone(here, capsys):
    items(here, 3)
    output_of(capsys, *words("items.jsonl", output="facts"))
    for target in ("m", "facts.building"):
        first = Builder(target, Layout("e", ("kg",), 2, (1, 1)))
        build = words("items.jsonl", output=target.removesuffix(".building"))
        assert target in refused(capsys, *build, "--overwrite")
        assert first.finish().version == 1


def test_a_server_that_is_not_there_is_one_line(here, capsys):
    if importlib.util.find_spec("pymilvus") is None:  # in this process its import would take the captured stderr
        pytest.skip("needs the extra milvus")
    items(here, 3)
    output_of(capsys, *words("items.jsonl"))
    server = "http://127.0.0.1:9"  # nobody listens at the port
    search = ["search", "m", "--text", "food ?", *WEIGHTS, "--engine", "milvus", "--milvus", server]
    line = program(PLAIN, search, 2)
    assert line.startswith("reveal: ") and server in line and line.count("\n") == 1
