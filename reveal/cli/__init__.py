"""The `reveal` command."""
