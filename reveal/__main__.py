"""`python -m reveal` is the `reveal` command."""

from reveal.cli.main import main

main()
