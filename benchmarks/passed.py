"""Count the modules and functions of the project that a command runs: a measure of how far a reader has to hop.

    python -m benchmarks.passed plugins generate --prompt "red apple" -o a.png
    python -m benchmarks.passed --list reveal ask examples/estonia.png "What is the capital?"

Runs the command in this process under `sys.setprofile` (all threads) and counts the functions that are called, without
nested ones and lambdas. `--list` prints them by module. Functions that only run during imports do not count.
"""

import runpy
import sys
import threading
from collections import defaultdict
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path.cwd()
SYSTEMS = ("film", "plugins", "reveal", "common", "recipes")


def traced(command: list[str]) -> dict[str, set[str]]:
    """Module -> functions that `python -m COMMAND` runs."""
    codes: set[CodeType] = set()

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            codes.add(frame.f_code)

    sys.argv = command
    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        runpy.run_module(command[0], run_name="__main__")
    except SystemExit as stop:
        if stop.code:
            raise
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    passed: dict[str, set[str]] = defaultdict(set)
    for code in codes:
        path = Path(code.co_filename)
        inside = path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in SYSTEMS
        if inside and code.co_name[0] != "<" and "<locals>" not in code.co_qualname:
            passed[".".join(path.relative_to(ROOT).with_suffix("").parts)].add(code.co_qualname)
    return passed


def main() -> None:
    arguments = sys.argv[1:]
    listed = arguments[0] == "--list"
    passed = traced(arguments[listed:])
    for module in sorted(passed) if listed else ():
        print(f"{module}: {', '.join(sorted(passed[module]))}")
    print(f"{len(passed)} modules, {sum(map(len, passed.values()))} functions")


if __name__ == "__main__":
    main()
