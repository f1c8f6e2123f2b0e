"""The shipped network and memory: answers about a flag that training never asked about, and how edits change them."""

import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from assistants import mistake, output_of
from safetensors import safe_open

from reveal import pretrained
from reveal.cli.main import main
from reveal.memory import Memory

FLAG = str(Path(__file__).parents[2] / "examples" / "estonia.png")
QUESTION, CAPITAL = "What is the capital?", "Tallinn"
OFFLINE = """
import socket, sys
def refuse(*_):
    raise OSError("no connections here")
socket.socket.connect = socket.getaddrinfo = refuse
from reveal.cli.main import main
main(sys.argv[1:])
training_only = ("common.training", "reveal.training", "reveal.sources", "reveal.build", "recipes")
assert not [name for name in sys.modules if name.startswith(training_only)]
"""


@pytest.mark.long
def test_the_capital_of_a_flag_in_a_process_of_its_own_without_connections(tmp_path):
    sheet = tmp_path / "evidence.png"
    alone = {name: value for name, value in os.environ.items() if not name.startswith(("XLA", "JAX", "PYTHONPATH"))}
    command = [sys.executable, "-c", OFFLINE, "ask", FLAG, QUESTION, "--sheet", str(sheet)]
    ran = subprocess.run(command, capture_output=True, text=True, env=alone, check=False, timeout=300)
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert lines[0] == CAPITAL
    assert any(CAPITAL in line and "passages" in line for line in lines[1:])
    assert sheet.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.long
def test_an_edited_fact_a_removed_one_and_one_put_back(tmp_path, capsys):
    memory = str(shutil.copytree(pretrained.memory(), tmp_path / "memory"))

    def ask() -> dict:
        return output_of(capsys, "ask", FLAG, QUESTION, "--memory", memory)

    before = ask()
    assert before["answer"] == CAPITAL
    item = min(before["items"], key=lambda item: item["effect"])
    text, number = item["fields"]["text"], str(item["id"])
    assert CAPITAL in text
    main(["add", memory, "--edit", "--id", number, "--text", text.replace(CAPITAL, "Lisbon"), "--quiet"])
    assert ask()["answer"] == "Lisbon"
    main(["remove", memory, number])
    gone = ask()
    assert gone["answer"] not in (CAPITAL, "Lisbon") and item["id"] not in [other["id"] for other in gone["items"]]
    main(["add", memory, "--id", number, "--text", text, "--image", FLAG, "--source", item["source"], "--quiet"])
    assert ask()["answer"] == CAPITAL


def test_the_shipped_memory_has_a_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    about = output_of(capsys, "info", pretrained.DATA.name)
    assert about == output_of(capsys, "info") and about["memory"] == str(pretrained.memory())
    assert output_of(capsys, "verify", pretrained.DATA.name)["memory"] == about["memory"]
    assert "cp -r" in mistake(capsys, "remove", pretrained.DATA.name, "1")
    Path(pretrained.DATA.name).mkdir()  # a folder of the user's comes first
    assert pretrained.memory(pretrained.DATA.name) == Path(pretrained.DATA.name)


def test_the_card_counts_parameters_and_items():
    with safe_open(pretrained.weights(), "numpy") as file:
        count = sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
    card, memory = (pretrained.DATA / "README.md").read_text("utf-8"), Memory(pretrained.memory())
    assert f"{count:,} parameters" in card and f"{len(memory):,} items" in card
    memory.verify()
    assert sum(file.stat().st_size for file in pretrained.DATA.rglob("*")) < 15e6
