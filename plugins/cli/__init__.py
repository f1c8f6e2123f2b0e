"""The `plugins` command: generate, info, verify, condition, export, web."""
