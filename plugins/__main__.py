"""`python -m plugins` is the `plugins` command."""

from plugins.cli.main import main

main()
