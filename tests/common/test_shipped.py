"""Weights by name: shipped ones, the user's own of the same name, and unknown ones."""

from pathlib import Path

from refusal import refused

from common.weights.shipped import Shipped


def test_a_users_folder_comes_before_a_shipped_one_of_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "shipped"
    for name in ("edges", "lines", "other"):
        (folder / name).mkdir(parents=True)
        (folder / name / ("README.md" if name == "other" else "config.json")).touch()
    shipped = Shipped(folder, "config.json", "edges", "control", "a folder")
    assert shipped.names() == ["edges", "lines"]
    assert shipped.find() == shipped.find("edges") == folder / "edges"
    Path("edges").mkdir()
    assert shipped.find("edges") == Path("edges") and shipped.find() == folder / "edges"
    assert shipped.find(folder / "other") == folder / "other"
    for name, error, value in (("nowhere", FileNotFoundError, "nowhere.*edges, lines"), ("", ValueError, "''")):
        refused(error, shipped.find, name, match=value)
