"""`python -m plugins` is the `plugins` command."""

from plugins.cli import main

main()
