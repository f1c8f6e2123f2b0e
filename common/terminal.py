"""Output, errors and signals of a command line program.

What the terminal's encoding lacks, line breaks and control codes (of file names) are printed escaped.
"""

import ast
import contextlib
import dataclasses
import importlib
import importlib.metadata
import inspect
import io
import itertools
import json
import os
import platform
import re
import signal
import sys
import textwrap
import threading
import typing
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import tyro

COMPLETION = ("--print-completion", "--tyro-print-completion")  # the second is tyro's own name
SHELLS = {  # what tyro's scripts lack: files, where no option and no command begins with the word
    "bash": """_files_or_{0}() {{ _tyro_{0}; [[ ${{COMPREPLY[*]}} ]] || COMPREPLY=(); }}
complete -o default -F _files_or_{0} {0}""",
    "zsh": "(( compstate[nmatches] )) || _files",
    "fish": "complete --force-files --command {0}",
}
CONFIG = (  # of the commands' parsers
    tyro.conf.OmitArgPrefixes,
    tyro.conf.DisallowNone,
    tyro.conf.FlagCreatePairsOff,
    tyro.conf.PositionalMetavarFromFieldName,
)
POSITIONAL = typing.get_args(tyro.conf.Positional[str])[1]
DEFAULT = re.compile(r"[;.]? None: ([^.]+(?:\.\d[^.]*)*)\.$")  # what a left out option does: the end of its text
PLAIN = {  # tyro's words -> a user's
    r"Error parsing (\S+).*: no type matching (.+) could be instantiated from \[(.*)\]": r"\1: \3 is no \2",
    r"Error parsing (\S+).*: Could not find valid parse for arguments: \[(.*)\]": r"\1: \2 cannot be read",
    r"(?<=\()'None', |, 'None'(?=[,)])": "",  # of choices
    r"\{FLOAT FLOAT\}": "pair of numbers",
    r"(INT\|)?FLOAT$": "number",
    r"INT$": "whole number",
}
EXHAUSTED = "RESOURCE_EXHAUSTED"  # in the text of JAX's RuntimeError for a full device, which has no class of its own
AGAIN = 0.05  # seconds after which a signal that was dropped is sent again
STOPS = ("SIGTERM", "SIGHUP")  # `kill`, the time limit of a batch system; a closed window


Flag = Annotated[bool, tyro.conf.arg(help_behavior_hint="")]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Printing:
    """Option of all commands that print."""

    json: Flag = False
    """Print one JSON object."""

    def write(self, text: str, data: Mapping[str, Any]) -> None:
        """The text, or the data as JSON in ASCII, in which the terminal has nothing to escape."""
        say(json.dumps(data, default=str) if self.json else text)


@dataclasses.dataclass(kw_only=True)
class Serving:
    """Where a page is served: options of the `web` commands."""

    port: int = 7860
    """Port to listen on; 0: any that is free."""
    host: str = "127.0.0.1"
    """Address to listen on. 0.0.0.0 lets all machines of the network in: there is no password."""


def parse(
    kind: type, arguments: Sequence[str], program: str, examples: str | None, groups: Mapping[str, Sequence[type]]
) -> Any:
    """The options of a command, a dataclass, from its arguments; exits for `--help` and for mistakes.

    The text under a field is its help; an end such as "None: 4." says what a left out option does. `groups` are bases
    whose fields have a section of the help of their own, by its title. `examples` as of `examples_of`."""
    whole, sections = _with_help(kind, groups)
    about = inspect.cleandoc(kind.__doc__ or "") + examples_of(program, examples)
    values = dict(vars(parsed(whole, arguments, program, about)))
    for name in sections:
        values |= vars(values.pop(name))
    return kind(**values)


def parsed(kind: Any, arguments: Sequence[str], program: str, about: str | None) -> Any:
    """`tyro.cli`, whose box about a mistake becomes a line."""
    box = io.StringIO()
    try:
        with contextlib.redirect_stderr(box):
            return tyro.cli(kind, args=arguments, prog=program, description=about, config=CONFIG)
    except SystemExit as stop:
        if stop.code:
            complain(f"{program.split()[0]}: {_mistake(box.getvalue())} `{program} --help` lists all options")
        raise


def _mistake(box: str) -> str:
    """The first section of a box (without UTF-8: of a title and a rule), without help texts, which are indented
    further, and Python's errors."""
    lines = [line.replace("│", " ") for line in box.splitlines()[1 if box.startswith("╭") else 2 :]]
    first = list(itertools.takewhile(lambda line: not re.search("───|---|Got errors|╰", line), lines))
    text = " ".join(line.strip() for line in first if not line.startswith(" " * 10)).rstrip(". ")
    for pattern, plain in PLAIN.items():
        text = re.sub(pattern, plain, text)
    rest = [line.strip() for line in lines[len(first) :] if line.startswith(" " * 6 + "-")]
    if "Perhaps you meant" in box and rest:
        return f"{text}; did you mean {' or '.join(line.split()[0] for line in rest)}?"
    return f"{text}; unrecognized: {' '.join(rest)};" if "Unrecognized options:" in box and rest else f"{text};"


def _with_help(kind: type, groups: Mapping[str, Sequence[type]]) -> tuple[type, list[str]]:
    """A dataclass of a command's options for tyro, with the texts of its source, and its fields that are sections."""
    texts, hints = _texts(kind), typing.get_type_hints(kind, include_extras=True)
    owners: dict[str, str] = {}  # of fields
    for title, bases in groups.items():
        for base in bases:
            if issubclass(kind, base) and base is not kind:
                owners |= dict.fromkeys(inspect.get_annotations(base), title)
    sections: dict[str, list[Any]] = {title: [] for title in ["", *owners.values()]}
    for field in dataclasses.fields(kind):
        hint = _described(field, hints[field.name], texts.get(field.name, ""))
        defaults: dict[str, Any] = {"default": field.default, "default_factory": field.default_factory}
        sections[owners.get(field.name, "")].append((field.name, hint, dataclasses.field(**defaults)))
    members = sections.pop("")
    for title, fields in sections.items():
        section = dataclasses.make_dataclass(title, fields, kw_only=True)
        members.append((f"{title}_", Annotated[section, tyro.conf.arg(name=title)]))
    return dataclasses.make_dataclass(kind.__name__, members, kw_only=True), [f"{title}_" for title in sections]


def _described(field: dataclasses.Field[Any], hint: Any, text: str) -> Any:
    """The type of an option with its help, the name of its value, and what leaving it out means."""
    shown: dict[str, Any] = {"help": text} if text else {}
    required = field.default is dataclasses.MISSING
    plain = typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint
    several = typing.get_origin(plain) is tuple and typing.get_args(plain)[-1] is ...
    if field.default in (None, (), ""):
        found = DEFAULT.search(text)
        shown["help"] = f"{text[: found.start()]}." if found else text
        shown["help_behavior_hint"] = f"(default: {found[1] if found else 'none'})"
    elif isinstance(field.default, bool) or (several and required):
        shown["help_behavior_hint"] = "(required)" if required else ""
    if several or str in (plain, *typing.get_args(plain)[:1]):
        name = field.name.replace("_", "-").upper() + " ..." * several
        optional = POSITIONAL in typing.get_args(hint) and not required
        shown["metavar"] = f"[{name}]" if optional else name
    return Annotated[hint, tyro.conf.arg(**shown)] if shown else hint


def dispatch(
    program: str,
    words: Sequence[str],
    commands: Mapping[str, tuple[type, str]],
    *,
    package: str | None,
    about: str | None,
    groups: Mapping[str, Sequence[type]],
    out_of_memory: str,
    others: Mapping[str, str] | None = None,
) -> None:
    """Runs the command that `words` begin with. `commands` has the options of each, and the module of the function of
    its name (with a dot first: of `package`), imported when it is called; `others` are commands that the caller runs
    itself, with their summaries. `about` and `groups` as of `parse`, `out_of_memory` as of `exits`."""
    name, *options = words or ["--help"]
    summaries = {known: (kind.__doc__ or "").splitlines()[0] for known, (kind, _) in commands.items()}
    summaries |= others or {}
    if name in ("-h", "--help"):
        lines = "\n".join(f"  {known:10}{summary}" for known, summary in summaries.items())
        return say(f"usage: {program} COMMAND ... (each with --help)\n\n{lines}{examples_of(program, about)}")
    if name == "--version":
        return say(versions())
    if name in COMPLETION:
        kinds = {known: _with_help(kind, groups)[0] for known, (kind, _) in commands.items()}
        return print_completion(program, options, kinds)
    if name not in commands:
        complain(f"{program}: {name!r} is no command; choose one of {', '.join(summaries)}")
        raise SystemExit(2)
    kind, module = commands[name]
    command = parse(kind, options, f"{program} {name}", about, groups)
    with exits(program, out_of_memory=out_of_memory):
        getattr(importlib.import_module(module, package), name)(command)


def print_completion(program: str, shell: Sequence[str], commands: Mapping[str, type], main: type = object) -> None:
    """A script by which a shell (bash, zsh or fish) completes a program's commands, with the options of each, those of
    `main` without a command, and files."""
    if len(shell) != 1 or shell[0] not in SHELLS:
        complain(f"{program}: {COMPLETION[0]} {' '.join(shell)}: give one of {', '.join(SHELLS)}")
        raise SystemExit(2)
    kinds = tuple(Annotated[kind, tyro.conf.subcommand(name)] for name, kind in commands.items())
    command = ("command", typing.Union[(*kinds, None)], dataclasses.field(default=None))
    whole = dataclasses.make_dataclass(program, [command], bases=(main,), frozen=main is not object)
    script = io.StringIO()
    with contextlib.redirect_stdout(script), contextlib.suppress(SystemExit):
        parsed(whole, [COMPLETION[1], *shell], program, None)
    without_none = script.getvalue().replace(", 'None'", "").replace("'None', ", "")
    say(without_none + SHELLS[shell[0]].format(program))


def versions() -> str:
    """Of this project, Python and JAX, and JAX's devices."""
    import jax

    devices = ", ".join(sorted({device.device_kind for device in jax.devices()}))
    ours = importlib.metadata.version("film-plugins-reveal")
    return f"film-plugins-reveal {ours}, Python {platform.python_version()}, JAX {jax.__version__}, on {devices}"


def examples_of(program: str, text: str | None) -> str:
    """Of a module's docstring, the indented lines that begin with a program, under a title; "" if there is none."""
    lines = [line for line in (text or "").splitlines() if line.startswith(f"    {program} ")]
    return "\n".join(["\n\nExamples:", *lines]) if lines else ""


def _texts(kind: type) -> dict[str, str]:
    """The texts under the fields of a dataclass and its bases, as in the source."""
    texts = {}
    for base in reversed(kind.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        for statement, after in pairwise(typing.cast(ast.ClassDef, tree).body):
            if isinstance(statement, ast.AnnAssign) and isinstance(after, ast.Expr):
                name, text = ast.unparse(statement.target), ast.literal_eval(after.value)
                texts[name] = " ".join(str(text).split())
    return texts


def program(main: Callable[..., None], stopped: str = "run it again to finish") -> None:
    """Runs a small program with the arguments of `main`; errors as of `exits`, Ctrl-C with what `stopped` says."""
    path = Path(sys.argv[0])
    name = path.parent.name if path.stem == "__main__" else path.stem
    with exits(name, out_of_memory="give less, or close other programs"), stopping(stopped):
        tyro.cli(main)


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
    """SIGTERM and SIGHUP raise KeyboardInterrupt(number), so that they clean up as Ctrl-C does. Signals that are
    ignored or handled already (nohup, a notebook) are left alone, and so are threads but the main one.

    Python drops what is raised in a finaliser or a callback of the garbage collector, and JAX has such a callback: a
    signal that was dropped there is sent again."""

    def stop(number: int, _: FrameType | None) -> None:
        raise KeyboardInterrupt(number)

    def dropped(error: Any) -> None:
        if not issubclass(error.exc_type, KeyboardInterrupt):
            before(error)
            return
        number = ((error.exc_value and error.exc_value.args) or (signal.SIGINT,))[0]
        threading.Timer(AGAIN, os.kill, (os.getpid(), number)).start()  # when the callback has ended

    before = sys.unraisablehook
    numbers = [getattr(signal, name) for name in STOPS if hasattr(signal, name)]
    in_main = threading.current_thread() is threading.main_thread()
    handled = [number for number in numbers if in_main and signal.getsignal(number) is signal.SIG_DFL]
    for number in handled:
        signal.signal(number, stop)
    if in_main:
        sys.unraisablehook = dropped
    try:
        yield
    finally:
        if in_main:
            sys.unraisablehook = before
        for number in handled:
            signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def plain_memory_errors(text: str = "") -> Iterator[None]:
    """A full device raises MemoryError(text) inside."""
    try:
        yield
    except RuntimeError as error:
        if EXHAUSTED not in str(error):
            raise
        raise MemoryError(text) from error


@contextlib.contextmanager
def exits(program: str, out_of_memory: str) -> Iterator[None]:
    """Errors inside become a line on stderr, `program: ...`, and SystemExit: 2 for an error of the user or the machine;
    128 + n when stopped by signal n (130 for Ctrl-C). `out_of_memory` is the advice for a MemoryError without text, and
    for a full device."""
    try:
        with stoppable(), plain_memory_errors():
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
