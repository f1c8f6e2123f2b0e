"""The `plugins` command: generate, condition, export, info."""
