"""Refusals: an error of one line that names the wrong value."""

from collections.abc import Callable
from typing import Any

import pytest


def refused(kind: type[Exception] | tuple[type[Exception], ...], value: str, call: Callable, *arguments: Any) -> str:
    """The error of a call; the pattern `value` is in it."""
    with pytest.raises(kind, match=value) as error:
        call(*arguments)
    assert "\n" not in str(error.value)
    return str(error.value)
