"""What is at hand without a network, and `--json` of commands that read shipped files."""

import pytest
from command import mistake, printed

from common.io.files import cache_folder
from common.weights import at_hand
from common.weights.model_file import save_weights
from film.cli import main as film
from plugins.cli.main import main as plugins
from reveal.cli.main import main as reveal


@pytest.fixture(autouse=True)
def no_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))


@pytest.mark.parametrize(
    ("main", "name", "licence"),
    [(film, "film-small", "Apache"), (plugins, "diffusion-small", "CC-BY-SA-4.0"), (reveal, "countries", "Apache")],
)
def test_lists(main, name, licence, capsys):
    rows = {row["name"]: row for row in printed(capsys, main, "info", "--list")["at_hand"]}
    assert all(row["source"] == "shipped" and row["licence"] for row in rows.values())
    assert licence in rows[name]["licence"] and rows[name]["bytes"] > 1_000_000
    main(["info", "--list"])
    assert name in capsys.readouterr().out
    mistake(capsys, main, ["info", name, "--list"])


def test_a_conversion_is_listed_by_what_it_was_made_of():
    path = cache_folder() / "converted" / "film-0123.safetensors"
    path.parent.mkdir(parents=True)
    about = {"kind": "film", "config": {}, "metadata": {"ported_from": "hf:who/port/film.pt"}}
    save_weights(path, {"a": [1.0]}, **about)
    (row,) = at_hand.cached("film")
    assert (row.name, row.source, row.bytes) == ("hf:who/port/film.pt", "converted", path.stat().st_size)
    assert list(at_hand.cached("reveal")) == []


@pytest.mark.parametrize(("main", "words", "keys"), [
    (film, ["info"], {"weights", "parameters", "config", "metadata"}),
    (film, ["verify"], {"files"}),
    (plugins, ["info"], {"base", "networks", "about"}),
    (plugins, ["verify", "canny-small"], {"files"}),
    (reveal, ["info"], {"memory", "items", "sources"}),
    (reveal, ["verify"], {"memory", "files"}),
])  # fmt: skip
def test_json(main, words, keys, capsys):
    assert keys <= printed(capsys, main, *words).keys()
