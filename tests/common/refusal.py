"""Errors that a user sees take one line."""

import pytest


def refused(kind, call, /, *arguments, match=None, **options) -> str:
    """The text of the error that a call raises; the pattern `match` is in it."""
    with pytest.raises(kind, match=match) as error:
        call(*arguments, **options)
    assert "\n" not in str(error.value)
    return str(error.value)
