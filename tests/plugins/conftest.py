"""What the tests of the `plugins` command share. Its own imports wait: shapes are checked in modules imported later."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def leave_the_process_alone(monkeypatch):
    """`setup` changes the allocator and turns on a cache in the user's home; neither ends with a test."""
    monkeypatch.setattr("plugins.cli.generate.setup", lambda: None)


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """A base as a folder. Not to be written to."""
    from tiny_base import diffusion_base

    return diffusion_base().save(tmp_path_factory.mktemp("bases") / "base")
