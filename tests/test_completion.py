"""The shells' completion of all three programs."""

import pytest

from film.cli import main as film
from plugins.cli.main import main as plugins
from reveal.cli.main import main as reveal


@pytest.mark.parametrize(("main", "words"), [(film, ["--weights"]), (plugins, ["generate"]), (reveal, ["ask"])])
def test_completion(main, words, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--tyro-print-completion", "bash"])
    assert not stop.value.code
    printed = capsys.readouterr().out
    assert all(word in printed for word in words)
