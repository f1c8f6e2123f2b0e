"""A page in the browser around functions of Python, with Gradio (extra `demo`): what the pages of all systems share.

    def page() -> gr.Blocks:
        with gr.Blocks() as blocks:
            ...                                             # components
            make.click(work, inputs, outputs, concurrency_id=QUEUE)
        return blocks

    def work(photo: str, request: gr.Request, progress: gr.Progress = BAR):
        with job(request, progress) as step:                # an error of the user becomes one line on the page
            return convert(photo, folder(request), progress=step)    # step(done, total): the bar, and Cancel

`serve` listens on this machine alone, unless told otherwise, computes one job at a time, and writes into one temporary
folder, which it removes at its end. No request leaves the machine.
"""

import atexit
import contextlib
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
try:
    import gradio as gr
    from gradio import routes, themes
except ImportError as error:
    raise ImportError("a page in the browser needs Gradio: pip install 'film-plugins-reveal[demo]'") from error

from common import terminal
from common.runtime import setup

QUEUE = "work"  # `concurrency_id` of all that computes
WAITING = 16  # jobs in the queue; more are asked to come again
LARGEST = 200 << 20  # bytes of an upload
LAST_PORT = 65535
PATIENCE = 10  # seconds that the end of a server waits for its job's next step
EXAMPLES = Path(__file__).parents[1] / "examples"  # of the repository: not in a wheel
BAR = gr.Progress()
THEME = themes.Base(
    primary_hue="blue",
    neutral_hue="zinc",
    radius_size="md",
    font=["system-ui", "Segoe UI", "Roboto", "Helvetica", "Arial", "sans-serif"],
    font_mono=["ui-monospace", "Menlo", "Consolas", "monospace"],
)
STYLE = """
.gradio-container > main { max-width: 1120px !important; width: 100% !important; margin: 0 auto; }
.grid-wrap.fixed-height { max-height: none !important; }
.hint p { color: var(--neutral-500); margin: 0; }
"""


class Stopped(Exception):
    """Cancel was pressed."""


_stops: dict[str | None, threading.Event] = {}  # by the browser's session: of the job that runs


@contextlib.contextmanager
def job(request: gr.Request, progress: gr.Progress) -> Iterator[Callable[[int, int], None]]:
    """Inside, `step(done, total)` moves the bar, and raises `Stopped` once Cancel was pressed. ValueError, OSError,
    ImportError, MemoryError and a full device become a line on the page, with an upload's own name."""
    stop = _stops[request.session_hash] = threading.Event()

    def step(done: int, total: int) -> None:
        if stop.is_set():
            raise Stopped
        progress((done, total), unit="done")

    try:
        with terminal.plain_memory_errors():
            yield step
    except Exception as error:
        if stop.is_set():  # JAX wraps what is raised inside of a compiled function
            raise gr.Error("stopped", title="Cancelled", duration=3, print_exception=False) from None
        if isinstance(error, ValueError | OSError | ImportError | MemoryError):
            raise one_line(error) from error
        raise
    finally:
        _stops.pop(request.session_hash, None)


def cancel(request: gr.Request) -> None:
    """Stops this browser's job at its next step."""
    if stop := _stops.get(request.session_hash):
        stop.set()


def one_line(error: Exception) -> gr.Error:
    """What the page shows of an error of the user."""
    uploads = re.escape(os.environ.get("GRADIO_TEMP_DIR", tempfile.gettempdir()))
    text = re.sub(rf"{uploads}/(?:[^\s/]+/)*", "", str(error)) or "out of memory: give a smaller size"
    return gr.Error(text, duration=None, print_exception=False)


def folder(request: gr.Request) -> Path:
    """A new folder for the results of a job; it goes with the server."""
    return Path(tempfile.mkdtemp(prefix=f"{request.session_hash}-"))


def serve(page: Callable[[], gr.Blocks], serving: terminal.Serving, name: str) -> None:
    """Serves a page until Ctrl-C. Raises ValueError for a port that is none, OSError for one that is taken or for an
    address that is not this machine's."""
    where = f"--host {serving.host} --port {serving.port}"
    if not 0 <= serving.port <= LAST_PORT:
        raise ValueError(f"{where}: give a port from 0 (any that is free) to {LAST_PORT}")
    try:  # Gradio would try an unknown address for ever
        family, kind, *_, place = socket.getaddrinfo(serving.host, serving.port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(place)
    except OSError as error:
        way = "give an address of this machine, and --port 0 for any port"
        raise OSError(f"{where}: {error.strerror}; {way}") from error
    setup()
    before = tempfile.tempdir
    temporary = tempfile.mkdtemp(prefix="page-")
    os.environ["GRADIO_TEMP_DIR"] = tempfile.tempdir = temporary
    routes.__dict__["DEFAULT_TEMP_DIR"] = temporary  # was read when Gradio was imported
    blocks = page()
    blocks.title = name
    try:
        blocks.queue(max_size=WAITING, default_concurrency_limit=1)
        _, address, _ = blocks.launch(
            server_name=serving.host,
            server_port=serving.port or None,
            prevent_thread_lock=True,
            quiet=True,
            max_file_size=LARGEST,
            theme=THEME,
            css=STYLE,
            footer_links=[],
            show_error=True,
        )
        terminal.say(f"{name}: {address} (Ctrl-C ends it)")
        threading.Event().wait()
    finally:
        for stop in [*_stops.values()]:
            stop.set()
        blocks.close(verbose=False)
        end = time.monotonic() + PATIENCE
        while _stops and time.monotonic() < end:
            time.sleep(0.05)
        if _stops and isinstance(why := sys.exception(), KeyboardInterrupt):
            # Inside of a compilation, which nothing ends, a thread would abort the process at the end of Python.
            atexit.register(os._exit, 128 + (why.args or (signal.SIGINT,))[0])
        tempfile.tempdir = before
        os.environ.pop("GRADIO_TEMP_DIR")
        shutil.rmtree(temporary, ignore_errors=True)
