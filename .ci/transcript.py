"""README's commands as a newcomer runs them: `python .ci/transcript.py FOLDER`, which must not exist.

Clones this repository into it and runs `make demo`, every command of README's quickstarts in their order, and
`make web`, with an empty home folder. Writes docs/transcript.md: each command with its seconds and the end of what it
printed. Stops at the first command that fails.
"""

import datetime
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHOWN = 8  # lines of a command's output
ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+/")
OTHER = ("PYTHONPATH", "VIRTUAL_ENV", "JAX_PLATFORMS", "XLA_FLAGS")  # of the environment


def main(folder: Path) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # of a program in the background it may be ignored
    folder.mkdir(parents=True)
    project, home = folder / "project", folder / "home"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(project)], check=True)
    home.mkdir()
    environment = {name: value for name, value in os.environ.items() if name not in OTHER}
    environment |= {"HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache"), "COLUMNS": "100"}
    environment["PATH"] = f"{project / '.venv/bin'}{os.pathsep}{environment['PATH']}"
    quickstarts = re.findall(r"```sh\n(.*?)```", (project / "README.md").read_text("utf-8"), flags=re.DOTALL)
    commands = [line.partition(" #")[0].strip() for block in quickstarts for line in block.splitlines()]
    sections = []
    pipes = dict(cwd=project, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    for command in ["make demo", *commands]:
        start = time.perf_counter()
        run = subprocess.run(["bash", "-c", command], **pipes)
        seconds, lines = time.perf_counter() - start, printed(run.stdout, project, home)
        print(f"{command}: {seconds:.1f} s, exit code {run.returncode}", flush=True)
        if run.returncode:
            raise SystemExit("\n".join(lines))
        sections.append(section(command, seconds, lines[-SHOWN:]))
    sections.append(section("make web", *served(project, environment)))
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=project, check=True, stdout=subprocess.PIPE)
    about = f"{datetime.date.today():%d %B %Y}, commit {commit.stdout.decode().strip()}, {os.cpu_count()} cores"
    head = f"""# The README, followed

`python .ci/transcript.py FOLDER` made this page ({about}): a fresh clone, an empty home folder, each
command of the README in its order. Seconds are of the clock; the last {SHOWN} printed lines are shown.
"""
    (ROOT / "docs" / "transcript.md").write_text("\n".join([head, *sections]), "utf-8")


def printed(output: bytes, project: Path, home: Path) -> list[str]:
    """Lines as a terminal shows them at the end, without the places of the folders."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output.decode("utf-8", "replace"))
    text = text.replace(f"{project}/", "").replace(str(project), ".").replace(str(home), "~")
    lines = [line.rstrip("\r").rpartition("\r")[2].rstrip() for line in text.split("\n")]
    return [line for line in lines if line]


def section(command: str, seconds: float, lines: list[str]) -> str:
    return "\n".join([f"{seconds:.1f} s", "", "```", f"$ {command}", *lines, "```", ""])


def served(project: Path, environment: dict[str, str]) -> tuple[float, list[str]]:
    """Seconds until the page answers, and its line; then Ctrl-C."""
    start = time.perf_counter()
    with subprocess.Popen(
        ["make", "web"], cwd=project, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        line = next(line for line in process.stdout if ADDRESS.search(line))
        address = ADDRESS.findall(line)[0]
        with urllib.request.urlopen(address) as answer:
            assert answer.status == 200
        seconds = time.perf_counter() - start
        os.killpg(process.pid, signal.SIGINT)
    return seconds, [line.strip()]


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
