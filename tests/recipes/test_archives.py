"""Archives are got from a folder or by their tools, read as streams and never unpacked."""

import pytest
from made_archives import deb_bytes, tar_bytes, write_wheel

from recipes.downloads import archives
from recipes.downloads.archives import Package


def one_line(error) -> str:
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("kind", ["npm", "deb"])
def test_only_plain_wanted_members_are_read_and_nothing_is_written(tmp_path, kind):
    files = {"./usr/a.png": b"one", "./usr/b.txt": b"two", "../../escaped.png": b"three"}
    links = [("./usr/c.png", "/etc/hostname")]
    if kind == "npm":
        path, content = tmp_path / "x.tgz", tar_bytes(files, "w:gz", links)
    else:
        path, content = tmp_path / "x.deb", deb_bytes(tar_bytes(files, "w:xz", links))
    path.write_bytes(content)
    found = dict(archives.members(path, lambda name: name.endswith(".png")))
    assert found == {"usr/a.png": b"one", "../../escaped.png": b"three"}
    assert list(tmp_path.rglob("*")) == [path]
    assert not (tmp_path.parents[1] / "escaped.png").exists()


def test_a_wheel_is_read_as_the_others_are_however_its_name_is_spelled(tmp_path):
    package = Package("wheel", "some-video", "1.1", "")
    path = write_wheel(tmp_path, package, {"x/a.png": b"one", "x/b.txt": b"two", "x/sub/": b""})
    (tmp_path / "some_video-1.12-py3-none-any.whl").write_text("another version")
    assert archives.obtain(package, tmp_path / "scratch", tmp_path) == path
    assert package.command[1:4] == ["-m", "pip", "download"] and package.command[-1] == "some-video==1.1"
    assert list(archives.members(path, lambda name: not name.endswith(".txt"))) == [("x/a.png", b"one")]
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ValueError, match=r"whl is damaged or cut short"):
        list(archives.members(path, lambda _: True))


def test_an_older_package_is_gzipped(tmp_path):
    (tmp_path / "x.deb").write_bytes(deb_bytes(tar_bytes({"./a": b"one"}, "w:gz"), "data.tar.gz"))
    assert list(archives.members(tmp_path / "x.deb", lambda _: True)) == [("a", b"one")]


GOOD_DEB = deb_bytes(tar_bytes({"./a": bytes(5000)}, "w:xz"))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x.deb", b"<html>not found</html>", "no Debian package"),
        ("x.deb", GOOD_DEB[:80], "cut short"),
        ("x.deb", GOOD_DEB[:-60], "damaged or cut short"),
        ("x.deb", deb_bytes(b"?", "data.tar.zst"), "data.tar.zst"),
        ("x.tgz", b"<html>not found</html>", "damaged or cut short"),
    ],
)
def test_a_file_that_is_no_such_archive(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError) as error:
        list(archives.members(tmp_path / name, lambda _: True))
    assert words in one_line(error)
    assert name in one_line(error)


def program(folder, name, text):
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_the_folder_of_archives_is_looked_at_first_then_the_tool_is_asked(tmp_path, monkeypatch):
    package, scratch = Package("npm", "@who/pic-tures", "1.2.0", ""), tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("PATH", str(tmp_path))
    program(tmp_path, "npm", '[ "$*" = "pack --silent @who/pic-tures@1.2.0" ] && echo new > who-pic-tures-1.2.0.tgz')
    assert archives.obtain(package, scratch, tmp_path) == scratch / "who-pic-tures-1.2.0.tgz"
    (tmp_path / "who-pic-tures-1.2.0.tgz").write_text("mine")
    assert archives.obtain(package, scratch, tmp_path) == tmp_path / "who-pic-tures-1.2.0.tgz"


@pytest.mark.parametrize(
    ("script", "words"), [(None, "no program `apt-get`"), ("echo E: gone >&2; exit 100", "E: gone")]
)
def test_a_package_that_cannot_be_got(tmp_path, monkeypatch, script, words):
    monkeypatch.setenv("PATH", str(tmp_path))
    if script:
        program(tmp_path, "apt-get", script)
    with pytest.raises(ConnectionError) as error:
        archives.obtain(Package("deb", "old-photographs", "", ""), tmp_path)
    assert all(word in one_line(error) for word in (words, "old-photographs_*.deb", "--archives"))
