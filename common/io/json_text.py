"""JSON that may be damaged, or made to break its reader: every failure is a ValueError.

Python's parser raises RecursionError for some thousand nested lists, and takes half surrogate pairs, which no text can
be written with.
"""

import json
import re
from typing import Any

HALF = re.compile("[\ud800-\udfff]")  # of a surrogate pair


def parse_json(text: str, **hooks: Any) -> Any:
    """`json.loads` with these hooks; half surrogate pairs become U+FFFD. Raises ValueError."""
    try:
        value = json.loads(text, **hooks)
        return _whole(value) if "\\ud" in text or "\\uD" in text else value
    except RecursionError:
        raise ValueError("too deep") from None


def _whole(value: Any) -> Any:
    if isinstance(value, str):
        return HALF.sub("\ufffd", value)
    if isinstance(value, list):
        return [_whole(one) for one in value]
    return {_whole(name): _whole(one) for name, one in value.items()} if isinstance(value, dict) else value
