"""`python -m film` is the `film` command."""

from film.cli import main

main()
