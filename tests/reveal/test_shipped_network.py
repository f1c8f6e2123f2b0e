"""What comes with the program: answers about a flag that training never asked about, and what edits make of them."""

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors import safe_open

from reveal import pretrained
from reveal.cli.main import main
from reveal.memory import Memory

FLAG = Path(__file__).parents[2] / "examples" / "estonia.png"
QUESTION, CAPITAL = "What is the capital?", "Tallinn"


@pytest.fixture(autouse=True)
def leave_the_process_alone(monkeypatch):
    monkeypatch.setattr("common.runtime.setup", lambda: None)


@pytest.fixture
def memory(tmp_path) -> Path:
    """A copy of the shipped one, to be changed."""
    return Path(shutil.copytree(pretrained.memory(), tmp_path / "memory"))


def asked(capsys, *words: str) -> dict:
    capsys.readouterr()
    main(["ask", str(FLAG), *words, "--json"])
    return json.loads(capsys.readouterr().out)


OFFLINE = """
import socket, sys


def refuse(*_):
    raise OSError("no connections here")


socket.socket.connect = socket.getaddrinfo = refuse
from reveal.cli.main import main

main(sys.argv[1:])
"""


def test_the_capital_of_a_flag_in_a_process_of_its_own_without_connections(tmp_path):
    sheet = tmp_path / "evidence.png"
    alone = {name: value for name, value in os.environ.items() if not name.startswith(("XLA", "JAX", "PYTHONPATH"))}
    words = ["ask", str(FLAG), QUESTION, "--sheet", str(sheet)]
    command = [sys.executable, "-c", OFFLINE, *words]
    ran = subprocess.run(command, capture_output=True, text=True, env=alone, check=False, timeout=300)
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert lines[0] == CAPITAL
    assert any(CAPITAL in line and "passages" in line for line in lines[1:])
    assert sheet.read_bytes()[:4] == b"\x89PNG"


def test_an_edited_fact_a_removed_one_and_one_put_back(memory, capsys):
    before = asked(capsys, QUESTION, "--memory", str(memory))
    assert before["answer"] == CAPITAL
    item = min(before["items"], key=lambda item: item["effect"])
    assert CAPITAL in item["fields"]["text"]
    text = item["fields"]["text"].replace(CAPITAL, "Lisbon")
    main(["add", str(memory), "--edit", "--id", str(item["id"]), "--text", text, "--quiet"])
    assert asked(capsys, QUESTION, "--memory", str(memory))["answer"] == "Lisbon"
    main(["remove", str(memory), str(item["id"])])
    gone = asked(capsys, QUESTION, "--memory", str(memory))
    assert gone["answer"] not in (CAPITAL, "Lisbon")
    assert item["id"] not in [other["id"] for other in gone["items"]]
    main(
        [
            "add",
            str(memory),
            "--id",
            str(item["id"]),
            "--text",
            item["fields"]["text"],
            "--image",
            str(FLAG),
            "--source",
            item["source"],
            "--quiet",
        ]
    )
    assert asked(capsys, QUESTION, "--memory", str(memory))["answer"] == CAPITAL


def test_the_card_counts_parameters_and_items():
    with safe_open(pretrained.weights(), "numpy") as file:
        count = sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
    card = (pretrained.DATA / "README.md").read_text("utf-8")
    assert (
        f"a REVEAL network of {count:,} parameters" in card and f"| {len(Memory(pretrained.memory())):,} items" in card
    )
    assert sum(file.stat().st_size for file in pretrained.DATA.rglob("*")) < 15e6
