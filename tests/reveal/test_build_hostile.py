"""`reveal build` among broken lines, damaged pictures, full disks, kills and evaluation sets: what can be used is kept,
what cannot is counted with its reason, and what stops a build is one line and exit code 2."""

import gzip
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from assistants import workplace
from own_files import json_lines, picture
from reveal.memory.shards import ShardWriter

from common.data.text import open_text
from common.io.images import write_image
from reveal.cli.main import main
from reveal.memory import Memory
from reveal.sources import wit
from reveal.sources.records import decode_picture

ROOT = Path(__file__).parents[2]
LONG = "gull " * 8000  # 40,000 characters
SERVER = "http://127.0.0.1:9"  # the port where nobody listens
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
    monkeypatch.setattr("common.runtime.setup", lambda: None)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    return workplace(tmp_path_factory.mktemp("hostile") / "made")


@pytest.fixture
def here(tmp_path, monkeypatch, made) -> Path:
    """A working folder with weights and items.jsonl."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path


def words(*sources: str, output: str = "m", **options: str | int) -> list[str]:
    given = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    return ["build", *sources, "-o", output, "--weights", "weights.safetensors", "--quiet", *given]


def told(capsys, said: list[str]) -> dict:
    capsys.readouterr()
    main([*said, "--json"])
    return json.loads(capsys.readouterr().out)


def refused(capsys, said: list[str]) -> str:
    """The one line with which the command ends with 2."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        main(said)
    line = capsys.readouterr().err
    assert stop.value.code == 2 and line.count("\n") == 1 and line.startswith("reveal: ")
    return line


def started(script: str, said: list[str], code: int) -> str:
    """What a program of its own prints as errors, that ends with `code`."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ended = subprocess.run([sys.executable, "-c", script, *said], env=environment, check=False, capture_output=True)
    assert ended.returncode == code, ended.stderr.decode()
    return ended.stderr.decode()


def wit_lines(path: Path, *lines: str | dict) -> Path:
    """A table of rows and of raw lines, after its header."""
    rows = [line if isinstance(line, str) else "\t".join((row_of(line)).values()) for line in lines]
    path.write_bytes(gzip.compress("\n".join(["\t".join(wit.COLUMNS), *rows, ""]).encode()))
    return path


def row_of(given: dict) -> dict[str, str]:
    return dict.fromkeys(wit.COLUMNS, "") | {"language": "en", "page_url": "x"} | given


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
        row("gull", "Чайка — 鷗 — نورس"),
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
    wit_lines(here / "wit.tsv.gz", *lines)
    report = told(capsys, words("wit:wit.tsv.gz,images=birds,source=passages"))
    assert report["left_out"] == {
        "that have not 17 columns": 2,
        "whose picture is not there": 1,
        "whose picture cannot be read": 1,
        "without text": 1,
        "whose picture is damaged": 2,
    }
    found = Memory("m").items([0, 2, 3, 9, 10, 11])
    assert report["items"] == len(found) == 6 and [item.fields["page"] for item in found] == [
        'It says "kek" often',
        "A seabird",
        "Чайка — 鷗 — نورس",
        LONG.strip(),
        "once more",
        'Two lines\n"with" quotes',
    ]
    assert found[1].fields["alt"] == '"a quote that never ends'
    said = refused(capsys, words("wit:wit.tsv.gz,images=birds,source=passages,strict=true", output="n"))
    assert "wit.tsv.gz row 2: that have not 17 columns; mend it" in said


@pytest.mark.parametrize("suffix", [".gz", ".bz2"])
def test_a_packed_file_that_was_cut_short_is_told(tmp_path, suffix):
    import bz2

    pack = {".gz": gzip.compress, ".bz2": bz2.compress}[suffix]
    text = "".join(f"line {number} {np.sqrt(number)}\n" for number in range(5000))
    path = tmp_path / f"a.tsv{suffix}"
    path.write_bytes(pack(text.encode()))
    with open_text(path) as lines:
        assert "".join(lines) == text
    path.write_bytes(pack(text.encode())[:-4000])
    with (
        pytest.raises(ValueError, match=rf"a\.tsv{suffix} is damaged or cut short .*copy it again"),
        open_text(path) as file,
    ):
        list(file)


def test_quotes_and_lines_of_a_table():
    full = "\t".join("abcdefghijklmnopq")
    tail = "\t".join("bcdefghijklmnopq")
    cases = {
        full: [17],
        f"\n{full}\r\n": [17],
        f'"a"\t{tail}': [17],
        f'x\t"a\nb"\t{tail[2:]}': [17],
        f'"a\t{tail}\n{full}': [17, 17],
        f'"a\nb\n{full}': [1, 1, 17],
        f'{full[:-1]}"q\n{full}': [17, 17],
        f'{full[:-1]}"q\nr"': [17],
    }
    for text, counts in cases.items():
        assert [len(row) for row in wit.cells(text.splitlines(keepends=True))] == counts, text


def test_a_server_that_is_not_there_is_one_line(here, capsys):
    if importlib.util.find_spec("pymilvus") is None:  # in this process its import would take the captured stderr
        pytest.skip("needs the extra milvus")
    told(capsys, words("items.jsonl"))
    asked = ["search", "m", "--text", "food ?", "--weights", "weights.safetensors"]
    said = started(PLAIN, [*asked, "--engine", "milvus", "--milvus", SERVER], 2)
    assert said.startswith(f"reveal: Milvus at {SERVER}") and said.count("\n") == 1
    assert "check that it runs, or take another engine" in said


def full_disk(*arguments):
    raise OSError(28, "No space left on device")


def test_a_full_disk_stops_a_build_that_goes_on(here, capsys, monkeypatch):
    build = words("items.jsonl", shard=40)
    with monkeypatch.context() as patch:
        append, calls = ShardWriter.append, []

        def third(self, *arguments):
            calls.append(1)
            (full_disk if len(calls) == 3 else append)(self, *arguments)

        patch.setattr(ShardWriter, "append", third)
        said = refused(capsys, build)
    assert "no space left for m (No space left on device): make room, and the same command goes on" in said
    assert not list(here.rglob(".partial-*")) and (here / "m" / "build.json").is_file()
    report = told(capsys, build)
    assert report["resumed"] == 40 and report["items"] == 150
    assert report["hash"] == told(capsys, words("items.jsonl", shard=40, output="n"))["hash"]


def test_a_write_that_breaks_off_leaves_no_half_shard(here, capsys):
    noise = np.random.default_rng(0).random((1200, 1200, 3), np.float32)
    entries = [{"id": 0, "source": "vqa", "text": "home"}, {"id": 1, "source": "vqa", "image": "noise.jpg"}]
    write_image(here / "noise.jpg", noise)
    json_lines(here / "large.jsonl", entries)
    build = words("large.jsonl", picture_side=0, shard=1)
    said = started(LIMITED, build, 2)
    assert "no space left for m (File too large)" in said and said.count("\n") == 1
    assert [path.name for path in (here / "m").iterdir() if path.is_dir()] == ["v00001-00000"]
    report = told(capsys, build)
    assert (report["resumed"], report["added"]) == (1, 1)


def test_a_build_that_was_killed_goes_on_to_the_same_memory_and_report(here, capsys):
    lines = [json.loads(line) for line in Path("items.jsonl").read_text().splitlines()]
    (here / "half.png").write_bytes(
        (here / lines[-1]["image"]).read_bytes()[:50] if "image" in lines[-1] else b"\x89PNG"
    )
    broken = {"id": 7, "source": "vqa", "image": "half.png"}
    json_lines(here / "items.jsonl", [broken if entry["id"] == 7 else entry for entry in lines])
    build = words("items.jsonl", shard=40)
    started(KILLED, build, -signal.SIGKILL)
    assert list((here / "m").glob(".partial-*"))
    assert not (here / "m" / "manifest.json").exists()
    report = told(capsys, build)
    once = told(capsys, words("items.jsonl", shard=40, output="n"))
    assert 0 < report["resumed"] < 149 and report["resumed"] + report["added"] == once["items"] == 149
    assert report["hash"] == once["hash"] and report["left_out"] == once["left_out"] == {"whose picture is damaged": 1}
    assert not list(here.rglob(".partial-*")) and not (here / "m" / "build.json").exists()


def test_plain_pictures_are_read_as_by_the_slow_way(tmp_path):
    """A picture has the same pixels from bytes, which take a shorter way, as from a file."""
    rng = np.random.default_rng(0)
    for name, channels in {"a.jpg": 3, "grey.jpg": 1}.items():
        write_image(tmp_path / name, np.repeat(rng.random((33, 47, channels), np.float32), 3 // channels, 2))
        path = tmp_path / name
        np.testing.assert_array_equal(decode_picture(path.read_bytes(), "x"), decode_picture(path, "x"))
    with pytest.raises(ValueError, match="the picture of x is damaged or cut short"):
        decode_picture((tmp_path / "a.jpg").read_bytes()[:-300], "x")
