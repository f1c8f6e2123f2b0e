"""`python -m recipes.captioned_pictures FOLDER`: see `recipes.captioned_pictures.prepare`."""

from common import terminal
from recipes.captioned_pictures.prepare import main

if __name__ == "__main__":
    terminal.program(main)
