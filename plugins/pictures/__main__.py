"""`python -m plugins.pictures FOLDER`: see `plugins.pictures.prepare`."""

from common import terminal
from plugins.pictures.prepare import main

if __name__ == "__main__":
    terminal.program(main)
