"""All pages in one, each under a tab: `make web`, or `python examples/web.py --port 8000`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import tyro

from common import terminal
from common.web import gr, serve
from film import web as film
from plugins.cli import web as plugins
from plugins.cli.commands import Web as PluginsWeb
from reveal.cli import web as reveal
from reveal.cli.commands import Web as RevealWeb


def page() -> gr.Blocks:
    pages = [film.page(), plugins.page(PluginsWeb()), reveal.page(RevealWeb())]
    return gr.TabbedInterface(pages, ["FILM", "Control plugins", "REVEAL"])


def main(serving: tyro.conf.OmitArgPrefixes[terminal.Serving]) -> None:
    """Serve the pages of all three systems."""
    serve(page, serving, "FILM, control plugins and REVEAL")


if __name__ == "__main__":
    terminal.program(main, "the page is closed")
