"""Output, errors and signals of a command line program.

File names may hold letters that the terminal's encoding lacks, bytes that are not letters, line breaks and control
codes. They are printed escaped, so that they neither fail nor break the line nor control the terminal.
"""

import contextlib
import dataclasses
import os
import re
import signal
import sys
import threading
import unicodedata
from collections.abc import Callable, Iterator
from types import FrameType

import tyro

COMPLETION = ("--tyro-print-completion", "--tyro-write-completion")  # of a shell, for a program with commands
STOPS = ("SIGTERM", "SIGHUP")  # `kill`, the time limit of a batch system; a closed window


@dataclasses.dataclass(kw_only=True)
class Serving:
    """Where a page is served: options of the `web` commands."""

    port: int = 7860
    """Port to listen on; 0: any that is free."""
    host: str = "127.0.0.1"
    """Address to listen on. 0.0.0.0 lets all machines of the network in: there is no password."""


def program(main: Callable[..., None]) -> None:
    """Runs a small program with the arguments of `main`; a user error is one line and exit code 2."""
    try:
        tyro.cli(main)
    except (ValueError, OSError) as error:
        complain(f"error: {error}")
        raise SystemExit(2) from error


def say(text: str = "", end: str = "\n") -> None:
    """`print` for any text, flushed. Raises OSError (BrokenPipeError without a reader)."""
    try:
        print(_printable(text, getattr(sys.stdout, "encoding", None)), end=end, flush=True)
    except OSError:
        # The rest of the buffer would fail a second time, with a traceback, when Python exits.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise


def complain(text: str) -> None:
    """A line on stderr, if there is a reader."""
    with contextlib.suppress(OSError):
        print(_printable(one_line(text), getattr(sys.stderr, "encoding", None)), file=sys.stderr, flush=True)


def one_line(text: str) -> str:
    """Escapes line breaks, except those of an indented list, as in errors that list offenders."""
    return re.sub(r"\n(?!  )", r"\\n", text)


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """SIGTERM and SIGHUP raise KeyboardInterrupt(number), so that they clean up as Ctrl-C does.

    Signals that are ignored or handled already (nohup, a notebook) are left alone, and so are threads but the main one,
    since Python handles signals there alone."""

    def stop(number: int, _: FrameType | None) -> None:
        raise KeyboardInterrupt(number)

    numbers = [getattr(signal, name) for name in STOPS if hasattr(signal, name)]
    in_main = threading.current_thread() is threading.main_thread()
    handled = [number for number in numbers if in_main and signal.getsignal(number) is signal.SIG_DFL]
    for number in handled:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def exits(program: str, out_of_memory: str) -> Iterator[None]:
    """Errors inside become a line on stderr, `program: ...`, and SystemExit.

    Exit codes: 2 for an error of the user or the machine; 128 + n when stopped by signal n (130 for Ctrl-C).
    `out_of_memory` is the advice for a MemoryError without text."""
    try:
        with stoppable():
            yield
            say(end="")  # raises for a closed pipe here, not at Python's exit
    except BrokenPipeError:
        raise SystemExit(128 + 13) from None  # as if by SIGPIPE
    except (ValueError, OSError, ImportError, MemoryError) as error:
        complain(f"{program}: {error if str(error) else f'out of memory; {out_of_memory}'}")
        raise SystemExit(2) from error
    except KeyboardInterrupt as stop:
        number = stop.args[0] if stop.args else 2  # SIGINT
        complain(f"{program}: stopped; {stop.args[1] if len(stop.args) > 1 else 'nothing unfinished is left behind'}")
        raise SystemExit(128 + number) from None


@contextlib.contextmanager
def stopping(message: str) -> Iterator[None]:
    """`exits` prints `message` for a stop inside."""
    try:
        yield
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt(*(stop.args or (2,))[:1], message) from stop


def _printable(text: str, encoding: str | None) -> str:
    control = {c for c in text if c != "\n" and unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")}
    plain = "".join(c.encode("unicode_escape").decode() if c in control else c for c in text)
    return plain.encode(encoding or "utf-8", "backslashreplace").decode(encoding or "utf-8")
