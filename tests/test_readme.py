"""README.md and the tutorials, followed by a newcomer: their commands, one after the other, in a folder with the
clone's examples."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
from toy import WORDS

import film
from common.io.images import read_image, shrink, write_image
from film.cli import main as film_command
from plugins.cli.main import main as plugins_command
from recipes.commands import evaluate, train
from reveal.cli.main import main as reveal_command

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PAGES = {path.stem: path.read_text() for path in [ROOT / "README.md", *sorted((ROOT / "docs/tutorials").glob("*.md"))]}
COMMANDS = {"film": film_command, "plugins": plugins_command, "reveal": reveal_command}
SHORT = [
    "trainer.steps=1",
    "optim.warmup=0",
    "trainer.progress=false",
    "trainer.evaluate_every=0",
    "data.crop=16",
    *WORDS,
]


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page, flags=re.DOTALL)


QUICKSTARTS = {f"README {number}": block for number, block in enumerate(blocks(README, "sh"))}
TUTORIALS = {name: "".join(blocks(page, "sh")) for name, page in PAGES.items() if name != "README"}


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """The files that the commands name, with photos of a few pixels."""
    folder = tmp_path_factory.mktemp("clone")
    shutil.copytree(ROOT / "examples", folder / "examples")
    shutil.copytree(ROOT / "reveal/weights/countries/memory", folder / "reveal/weights/countries/memory")
    for path in folder.glob("examples/cup_*.jpg"):
        write_image(path, shrink(read_image(path), 64), overwrite=True)
    return folder


def test_make_has_the_targets_and_the_links_lead_somewhere():
    targets = set(re.findall(r"^(\w[\w-]*):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert targets.issuperset(re.findall(r"make ([a-z-]+)", README))
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", README)]
    assert [link for link in links if link and not (ROOT / link).exists()] == []
    assert len(README.splitlines()) <= 120


@pytest.mark.slow
@pytest.mark.parametrize("commands", (QUICKSTARTS | TUTORIALS).values(), ids=(QUICKSTARTS | TUTORIALS))
def test_commands(commands, clone, tmp_path, monkeypatch, capsys):
    shutil.copytree(clone, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("common.runtime.setup", lambda **_: None)
    monkeypatch.setattr("common.training.run.setup", lambda: None)
    for line in commands.splitlines():
        program, *arguments = shlex.split(line, comments=True)
        if program == "cp":
            shutil.copytree(arguments[1], arguments[2])
        elif program == "python":
            if arguments[0] == "train.py":
                train(*arguments[1:], *SHORT)
            else:
                assert arguments[0] == "eval.py"
                evaluate(*arguments[1:], "limit=1", "++evaluation.progress=false")
        else:
            COMMANDS[program](arguments)
        if "-o" in arguments:
            assert Path(arguments[arguments.index("-o") + 1]).exists(), line
    if "Lisbon" in commands:  # what was edited is the answer
        assert "Lisbon" in capsys.readouterr().out.split("Tallinn")[-1]


@pytest.mark.slow
def test_python(clone, monkeypatch):
    monkeypatch.chdir(clone)
    x0, x1 = (read_image(f"examples/cup_{number}.jpg") for number in (0, 1))
    (block,) = blocks(README, "python")
    names = {"film": film, "x0": x0, "x1": x1}
    exec(compile(block, "README.md", "exec"), names)
    assert len(names["frames"]) == 9 and names["frames"][4].shape == x0.shape
