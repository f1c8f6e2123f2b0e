"""What all tests of REVEAL share."""

import pytest


@pytest.fixture(autouse=True)
def leave_the_process_alone(monkeypatch):
    """`setup` changes the allocator and turns on a cache in the user's home; neither ends with a test."""
    monkeypatch.setattr("common.runtime.setup", lambda: None)
