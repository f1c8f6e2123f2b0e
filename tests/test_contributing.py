"""The worked examples of CONTRIBUTING.md run as they are written."""

import re
import shlex
from pathlib import Path

import pytest
from toy import WORDS

from recipes.commands import train
from reveal.sources.registry import Items

ROOT = Path(__file__).parents[1]
SECTIONS = re.split(r"^## ", (ROOT / "CONTRIBUTING.md").read_text(), flags=re.MULTILINE)[1:]
EXAMPLES = {section.split("\n")[0]: section for section in SECTIONS if "```python" in section}
MODULE = re.compile(r"# (\w+\.py)\n")


def blocks(section: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", section, flags=re.DOTALL)


def write_modules(section: str, folder: Path) -> list[str]:
    """Writes the blocks that begin with a file's name; returns the others."""
    code = blocks(section, "python")
    for block in code:
        if name := MODULE.match(block):
            (folder / name[1]).write_text(block)
    return [block for block in code if not MODULE.match(block)]


@pytest.mark.parametrize("title", EXAMPLES)
def test_example_runs(title, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(Items, "READERS", dict(Items.READERS))
    calls = write_modules(EXAMPLES[title], tmp_path)
    assert calls
    for call in calls:
        assert "assert" in call
        exec(compile(call, f"CONTRIBUTING.md: {title}", "exec"), {})


@pytest.mark.long
def test_a_loss_is_trained_by_its_name(tmp_path, monkeypatch):
    section = EXAMPLES["Add a loss"]
    write_modules(section, tmp_path)
    (command,) = blocks(section, "sh")
    program, script, *overrides = shlex.split(command)
    assert (program, script) == ("python", "train.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("common.training.run.setup", lambda: None)
    short = ["name=edges", "trainer.steps=1", "trainer.progress=false", "data.crop=16"]
    train(*overrides, *short, "~task.losses.vgg", "~task.losses.style", *WORDS)
    (metrics,) = tmp_path.glob("runs/*/metrics.jsonl")
    assert '"edges"' in metrics.read_text()
