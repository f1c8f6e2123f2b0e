"""`python -m reveal` is the `reveal` command."""

from reveal.cli import main

main()
