"""The shells' completion of all three programs, asked of bash."""

import subprocess

import pytest
from command import mistake

from film.cli import main as film
from plugins.cli.main import main as plugins
from reveal.cli.main import main as reveal

ASK = """source "$1"
COMP_WORDS=("${@:2}") COMP_CWORD=$(($# - 2))
_files_or_"$2"
printf '%s\\n' "${COMPREPLY[@]}"
"""


def completed(script, *words: str) -> set[str]:
    """What bash offers for the last word; nothing: file names."""
    done = subprocess.run(["bash", "-c", ASK, "bash", script, *words], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_commands_options_values_and_files(tmp_path, capsys):
    scripts = {}
    for name, main in {"film": film, "plugins": plugins, "reveal": reveal}.items():
        for shell in ("fish", "zsh", "bash"):
            main(["--print-completion", shell])
            scripts[name] = tmp_path / name
            scripts[name].write_text(capsys.readouterr().out)
            assert "{None}" not in scripts[name].read_text()
    assert completed(scripts["film"], "film", "in") == {"info"}
    assert completed(scripts["film"], "film", "a.jp") == set()
    assert completed(scripts["film"], "film", "a.jpg", "b.jpg", "--fit", "") == {"crop", "pad", "resize"}
    assert completed(scripts["film"], "film", "info", "--") == {"--help", "--json", "--list"}
    assert completed(scripts["plugins"], "plugins", "generate", "--q") == {"--quiet"}
    assert {"ask", "build", "watch"} < completed(scripts["reveal"], "reveal", "")


@pytest.mark.parametrize("main", [film, plugins, reveal])
def test_other_shells_are_refused(main, capsys):
    assert "tcsh" in mistake(capsys, main, ["--print-completion", "tcsh"])
