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
from types import FrameType
from typing import Any

ROOT = Path.cwd()
SYSTEMS = ("film", "plugins", "reveal", "common", "recipes")


def traced(command: list[str]) -> dict[str, set[str]]:
    """Module -> functions that `python -m COMMAND` runs."""
    passed: dict[str, set[str]] = defaultdict(set)
    known: dict[Any, str | None] = {}

    def module_of(code: Any) -> str | None:
        path = Path(code.co_filename)
        if not path.is_relative_to(ROOT) or path.relative_to(ROOT).parts[0] not in SYSTEMS:
            return None
        return ".".join(path.relative_to(ROOT).with_suffix("").parts)

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event != "call":
            return
        code = frame.f_code
        if code not in known:
            known[code] = module_of(code)
        module = known[code]
        if module is not None and code.co_name[0] != "<" and "<locals>" not in code.co_qualname:
            passed[module].add(code.co_qualname)

    module, *rest = command
    sys.argv = [module, *rest]
    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        runpy.run_module(module, run_name="__main__")
    except SystemExit as stop:
        if stop.code:
            raise
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return dict(passed)


def main() -> None:
    arguments = sys.argv[1:]
    listed = arguments[:1] == ["--list"]
    passed = traced(arguments[listed:])
    for module in sorted(passed) if listed else ():
        print(f"{module}: {', '.join(sorted(passed[module]))}")
    print(f"{len(passed)} modules, {sum(map(len, passed.values()))} functions")


if __name__ == "__main__":
    main()
