"""How a command talks and how it is stopped: for programs, not for libraries.

File names may hold anything: letters that the terminal's encoding lacks, bytes that are no letters, line breaks and
control codes. They are shown escaped instead of failing, breaking the line or steering the terminal.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
import unicodedata
from collections.abc import Callable, Iterator
from types import FrameType

import tyro

STOPS = ("SIGTERM", "SIGHUP")  # `kill`, a batch system's end of time; a closed window


def program(main: Callable[..., None]) -> None:
    """Runs a small program: `main`'s arguments are its words, a user's error is one line and exit code 2."""
    try:
        tyro.cli(main)
    except (ValueError, OSError) as error:
        complain(f"error: {error}")
        raise SystemExit(2) from error


def say(text: str = "", end: str = "\n") -> None:
    """`print` for any text, at once. Raises OSError (BrokenPipeError when the reader has gone)."""
    try:
        print(_shown(text, getattr(sys.stdout, "encoding", None)), end=end, flush=True)
    except OSError:
        # What is left in the buffer would fail a second time, with a traceback, when Python ends.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise


def complain(text: str) -> None:
    """A line on stderr; there is nothing to do if nobody reads it."""
    with contextlib.suppress(OSError):
        print(_shown(one_line(text), getattr(sys.stderr, "encoding", None)), file=sys.stderr, flush=True)


def one_line(text: str) -> str:
    """Escapes line breaks, except those of an indented list, which is how errors enumerate."""
    return re.sub(r"\n(?!  )", r"\\n", text)


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """SIGTERM and SIGHUP raise KeyboardInterrupt(number), so that they clean up as Ctrl-C does.

    A signal that somebody ignores or handles already (nohup, a notebook) is left alone, and so is every thread but
    the main one, in which alone Python takes signals.
    """
    numbers = [getattr(signal, name) for name in STOPS if hasattr(signal, name)]
    in_main = threading.current_thread() is threading.main_thread()
    taken = [number for number in numbers if in_main and signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, _stop)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def exits(program: str, out_of_memory: str) -> Iterator[None]:
    """What goes wrong inside becomes a line on stderr, `program: ...`, and SystemExit.

    Exit codes: 2 for an error of the user or the machine; 128 + n when stopped by signal n (130 for Ctrl-C).
    `out_of_memory` is the way out of a MemoryError that says nothing itself.
    """
    try:
        with stoppable():
            yield
            say(end="")  # a pipe that was closed shows here, not when Python ends
    except BrokenPipeError:
        raise SystemExit(128 + 13) from None  # as if by SIGPIPE: nobody reads what we say
    except (ValueError, OSError, ImportError, MemoryError) as error:
        complain(f"{program}: {error if str(error) else f'out of memory; {out_of_memory}'}")
        raise SystemExit(2) from error
    except KeyboardInterrupt as stop:
        number = stop.args[0] if stop.args else 2  # SIGINT
        complain(f"{program}: stopped; {stop.args[1] if len(stop.args) > 1 else 'nothing unfinished is left behind'}")
        raise SystemExit(128 + number) from None


@contextlib.contextmanager
def stopping(said: str) -> Iterator[None]:
    """`exits` says this of a stop inside."""
    try:
        yield
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt(*(stop.args or (2,))[:1], said) from stop


def _stop(number: int, _: FrameType | None) -> None:
    raise KeyboardInterrupt(number)


def _shown(text: str, encoding: str | None) -> str:
    unseen = {c for c in text if c != "\n" and unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")}
    plain = "".join(c.encode("unicode_escape").decode() if c in unseen else c for c in text)
    return plain.encode(encoding or "utf-8", "backslashreplace").decode(encoding or "utf-8")
