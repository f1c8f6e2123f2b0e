"""Fetches the training film: Big Buck Bunny, 1280x720, 24 frames a second, 14,315 frames, 50 MB.

Big Buck Bunny is (c) copyright 2008, Blender Foundation, www.bigbuckbunny.org, licensed under Creative Commons
Attribution 3.0 (https://creativecommons.org/licenses/by/3.0/). The copy is in the source distribution of the Python
package `moviepy` 2.2.1; its SHA-256 is checked.

    python -m recipes.film_small.fetch_film
"""

from pathlib import Path

from common import terminal
from common.io.files import atomic_output
from recipes.downloads.archives import Package, check_sha256, read_packages

PACKAGE = Package(
    "source", "moviepy", "2.2.1", "CC-BY-3.0", "c80cb56815ece94e5e3e2d361aa40070eeb30a09d23a24c4e684d03e16deacb1"
)
FOLDER = "moviepy-2.2.1/docs/_static/medias/getting_started/moviepy_10_minutes"
MEMBER = f"{FOLDER}/moviepy_10_minutes.zip/moviepy_10_minutes/resources/bbb.mp4"
SHA256 = "475fbbf34c4c367998f80c29ea03b15a743941179b12da3373fc6706e68621d0"


def fetch_film(folder: str | Path = "data") -> Path:
    """`folder`/bbb.mp4, downloaded unless it is there. ConnectionError, ValueError for another film."""
    target = Path(folder) / "bbb.mp4"
    if target.is_file():
        check_sha256(target.read_bytes(), SHA256, str(target))
        return target
    ((package, _, files),) = read_packages({PACKAGE: [MEMBER]})
    if MEMBER not in files:
        raise ValueError(f"{package.name} holds no {MEMBER}: version {package.version} is needed")
    check_sha256(files[MEMBER].content, SHA256, MEMBER)
    with atomic_output(target) as part:
        part.write_bytes(files[MEMBER].content)
    return target


def main(folder: Path = Path("data")) -> None:
    """Download Big Buck Bunny (CC-BY-3.0, Blender Foundation) to FOLDER/bbb.mp4, unless it is there."""
    terminal.say(str(fetch_film(folder)))


if __name__ == "__main__":
    terminal.program(main)
