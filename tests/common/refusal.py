"""Errors that a user sees take one line."""

import pytest


def refused(kind, call, /, *arguments, **options) -> str:
    """The text of the error that a call raises."""
    with pytest.raises(kind) as error:
        call(*arguments, **options)
    assert "\n" not in str(error.value)
    return str(error.value)
