"""Any text is printed, and signals stop a program tidily."""

import dataclasses
import io
import os
import signal
import sys
import threading
import time
from typing import Literal

import jax
import pytest
import tyro
from command import mistake
from refusal import refused

from common import terminal

STRANGE = "größe \u3000日本 \x1b[2J \udcff \t."


@pytest.mark.parametrize(("encoding", "shown"), [
    ("utf-8", "größe \u3000日本 \\x1b[2J \\udcff \\t.\n"),
    ("ascii", "gr\\xf6\\xdfe \\u3000\\u65e5\\u672c \\x1b[2J \\udcff \\t.\n"),
])  # fmt: skip
def test_any_text_is_shown(monkeypatch, encoding, shown):
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="")
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", stream)
    terminal.say(STRANGE)
    terminal.complain(STRANGE)
    assert stream.buffer.getvalue().decode(encoding) == shown * 2  # type: ignore[attr-defined]


def test_lists_of_offenders_keep_their_lines(monkeypatch):
    assert terminal.one_line("a\nb: two\n  first\n  second") == "a\\nb: two\n  first\n  second"
    for stream, show in (("stdout", terminal.say), ("stderr", terminal.complain)):
        monkeypatch.setattr(sys, stream, None)  # no terminal at all
        show("hello")


@dataclasses.dataclass
class Move:
    """Moves things."""

    target: tyro.conf.Positional[str]
    """Where they go."""
    steps: int = 1
    """How many of them there are, which takes more than a line of a box in a terminal of eighty columns."""
    way: Literal["over", "under"] = "over"
    """Past the wall."""


@pytest.mark.parametrize(("words", "values"), [
    ([], ["TARGET"]),
    (["home", "--stops", "3"], ["--stops", "--steps"]),
    (["home", "--steps", "many"], ["--steps", "'many'"]),
    (["home", "--steps"], ["--steps"]),
    (["home", "--way", "through"], ["--way", "'through'", "'under'"]),
])  # fmt: skip
def test_a_mistake_is_a_line_that_leads_to_the_help(capsys, words, values):
    line = mistake(capsys, lambda words: terminal.parse(Move, words, "things move", None, {}), words)
    assert line.startswith("things: ") and "`things move --help`" in line
    assert [value for value in values if value not in line] == []
    assert "──" not in line and "How many" not in line


def test_a_closed_pipe_is_reported_once(monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        refused(BrokenPipeError, terminal.say, "hello")
        terminal.say("no error: closing `closed` must not fail either")


def test_signals_are_handled_for_a_while():
    for number in (signal.SIGTERM, signal.SIGHUP):
        before = signal.getsignal(number)
        with pytest.raises(KeyboardInterrupt) as stop, terminal.stoppable():
            signal.raise_signal(number)
        assert stop.value.args == (number,) and signal.getsignal(number) is before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_a_finaliser_is_not_lost(number, capsys):
    """Python prints and drops what is raised there; JAX's callback of the garbage collector is such a place."""

    class Finalised:
        def __del__(self):
            signal.raise_signal(number)

    before = sys.unraisablehook
    with pytest.raises(KeyboardInterrupt), terminal.stoppable():
        Finalised()
        time.sleep(10)
    assert sys.unraisablehook is before and capsys.readouterr().err == ""


def test_ignored_signals_and_threads_are_left_alone():
    handlers = []

    def work():
        with terminal.stoppable():
            handlers.append(signal.getsignal(signal.SIGTERM))

    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # tests/conftest.py restores it
    with terminal.stoppable():
        signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert handlers == [signal.getsignal(signal.SIGTERM)]


@pytest.mark.parametrize("error", [MemoryError(), jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")])
def test_a_full_memory_is_answered_with_advice(capsys, error):
    """The machine's or an accelerator's."""
    with pytest.raises(SystemExit) as stop, terminal.exits("prog", out_of_memory="give less"):
        raise error
    assert stop.value.code == 2 and capsys.readouterr().err == "prog: out of memory; give less\n"


def test_other_errors_of_jax_keep_their_traceback():
    with pytest.raises(jax.errors.JaxRuntimeError), terminal.exits("prog", out_of_memory="give less"):
        raise jax.errors.JaxRuntimeError("INTERNAL: our own mistake")


def test_a_small_program_that_is_stopped_is_one_line(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["prog"])
    refused(SystemExit, lambda: terminal.program(lambda: signal.raise_signal(signal.SIGINT)), match="130")
    assert capsys.readouterr().err.count("\n") == 1
