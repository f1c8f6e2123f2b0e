"""The build backend (PEP 517): setuptools, and a wheel whose names collide with nothing in a user's environment.

In the repository `common`, `configs`, `plugins`, `train.py` and `eval.py` stand at the top. Many projects have modules
of these names, and a wheel that installed them would take their place, or they its. So the wheel has one package:

    repository            wheel
    film, reveal          film, reveal
    common, configs,      film_plugins_reveal.common, .configs,
    plugins               .plugins                                   from film_plugins_reveal import plugins
    train.py, eval.py     film_plugins_reveal.train, .eval           python -m film_plugins_reveal.train experiment=...

Import statements and the targets of commands are rewritten; no other line is. Names in configs and in headers of
weights stay those of the repository (`common.training.config.HOME`). An editable install keeps the repository's names.
"""

import base64
import hashlib
import re
import zipfile
from pathlib import Path

from setuptools import build_meta
from setuptools.build_meta import (  # noqa: F401  # hooks of PEP 517; there is none for the metadata of the wheel alone
    build_editable,
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
)

PACKAGE = "film_plugins_reveal"
MOVED = ("common", "configs", "plugins", "train", "eval")
STATEMENT = re.compile(rf"^(\s*from )({'|'.join(MOVED)})(?=[. ])", re.MULTILINE)
PLAIN = re.compile(rf"^(\s*)import ({'|'.join(MOVED)})$", re.MULTILINE)
COMMAND = re.compile(rf"(= )({'|'.join(MOVED)})(?=[.:])")


def build_wheel(directory, config_settings=None, metadata_directory=None):
    """Setuptools' wheel, with its files moved and rewritten as the module says."""
    name = build_meta.build_wheel(directory, config_settings)
    path = Path(directory) / name
    with zipfile.ZipFile(path) as wheel:
        files = {member: wheel.read(member) for member in wheel.namelist()}
    moved = {f"{PACKAGE}/__init__.py": b'"""Control plugins, configs, training and what the systems share."""\n'}
    for member, data in files.items():
        top = member.split("/")[0].removesuffix(".py")
        if member.endswith((".py", ".pyi")):
            data = rewritten(member, data.decode()).encode()
        elif member.endswith(".dist-info/entry_points.txt"):
            data = COMMAND.sub(rf"\1{PACKAGE}.\2", data.decode()).encode()
        elif member.endswith(".dist-info/top_level.txt"):
            data = "\n".join(["film", PACKAGE, "reveal", ""]).encode()
        moved[f"{PACKAGE}/{member}" if top in MOVED else member] = data
    record = next(member for member in moved if member.endswith(".dist-info/RECORD"))
    moved[record] = "".join([*map(_row, moved.items()), f"{record},,\n"]).encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for member, data in moved.items():
            wheel.writestr(zipfile.ZipInfo(member, (1980, 1, 1, 0, 0, 0)), data, zipfile.ZIP_DEFLATED)
    return name


def rewritten(name: str, text: str) -> str:
    """A module with its imports of moved modules under their new names; ValueError for one of another form."""
    text = PLAIN.sub(rf"\1from {PACKAGE} import \2", STATEMENT.sub(rf"\1{PACKAGE}.\2", text))
    if left := re.search(rf"^\s*import .*\b({'|'.join(MOVED)})\b.*$", text, re.MULTILINE):
        raise ValueError(f"{name}: write {left[0].strip()!r} as `from ... import ...`, which the wheel can rewrite")
    return text


def _row(member: tuple[str, bytes]) -> str:
    """A line of RECORD, but of RECORD itself."""
    name, data = member
    if name.endswith(".dist-info/RECORD"):
        return ""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}\n"
