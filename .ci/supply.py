"""What this project is made of: licences of all packages and data, and versions with hashes.

    python .ci/supply.py licences [EXTRA ...]    a table of the packages that the project needs, and of its data
    python .ci/supply.py hashes -o FILE          constraints.txt for this platform with a SHA-256 for each package

`pip install --require-hashes -r FILE` then takes nothing else. Hashes come from the index that pip is set to; the file
has no addresses. Known vulnerabilities are looked up by pip-audit in .github/workflows/ci.yml: it needs a network.
"""

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PROJECT = "film-plugins-reveal"
FREE = re.compile(
    r"MIT|BSD|Apache|ISC|PSF|Python Software|MPL|Mozilla|HPND|Zlib|Unlicense|0BSD|LGPL|CC0|CMU", re.IGNORECASE
)


def needed(extras: Sequence[str]) -> dict[str, metadata.Distribution]:
    """The project's packages, with theirs, as they are installed here."""
    found: dict[str, metadata.Distribution] = {}
    waiting = [(PROJECT, frozenset(extras))]
    while waiting:
        name, chosen = waiting.pop()
        try:
            one = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # for another platform
        if name != PROJECT and found.setdefault(one.metadata["Name"].lower(), one) is not one and not chosen:
            continue
        for text in one.requires or ():
            requirement = Requirement(text)
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *chosen)):
                key = requirement.name.lower()
                if key not in found or requirement.extras:
                    waiting.append((requirement.name, frozenset(requirement.extras)))
        found.setdefault(one.metadata["Name"].lower(), one)
    found.pop(PROJECT, None)
    return found


def licence(one: metadata.Distribution) -> str:
    """As the package states it: the expression, else classifiers, else the first line of the text."""
    fields = one.metadata
    classified = [line.split(" :: ")[-1] for line in fields.get_all("Classifier", []) if line.startswith("License ::")]
    text = fields.get("License-Expression") or " / ".join(classified) or (fields.get("License") or "").strip()
    return text.splitlines()[0][:60] if text else "not stated"


def licences(extras: Sequence[str]) -> bool:
    """Prints the tables; whether each package states a licence that is known to be free."""
    packages = needed(extras)
    print("| package | version | licence |\n| --- | --- | --- |")
    unknown = []
    for name in sorted(packages):
        stated = licence(packages[name])
        unknown += [] if FREE.search(stated) else [name]
        print(f"| {name} | {packages[name].version} | {stated} |")
    print(f"\n{len(packages)} packages; to look at by hand: {', '.join(unknown) or 'none'}\n")
    print((ROOT / "NOTICE").read_text("utf-8"))  # of data and of weights
    return not unknown


def hashes(target: Path) -> None:
    """Asks pip what it would install, and writes each version with the hash of its file."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--no-deps"]
    command += ["--prefer-binary", "--disable-pip-version-check", "-c", str(ROOT / "constraints.txt"), "--report", "-"]
    wanted = [f"{name}=={one.version}" for name, one in needed(()).items()]
    report = subprocess.run([*command, *wanted], check=True, stdout=subprocess.PIPE).stdout
    lines = []
    for entry in json.loads(report)["install"]:
        name, version = entry["metadata"]["name"], entry["metadata"]["version"]
        digest = entry["download_info"]["archive_info"]["hashes"]["sha256"]
        lines.append(f"{name.lower()}=={version} --hash=sha256:{digest}\n")
    target.write_text("".join(sorted(lines)))
    print(f"{target}: {len(lines)} packages")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("licences").add_argument("extras", nargs="*")
    commands.add_parser("hashes").add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    if options.command == "hashes":
        hashes(options.output)
    else:
        raise SystemExit(not licences(options.extras))


if __name__ == "__main__":
    main()
