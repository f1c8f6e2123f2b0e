"""JSON that may be damaged, or made to break its reader: every failure is a ValueError. Python's parser raises
RecursionError for some thousand nested lists, and takes half surrogate pairs, which no text can be written with.
"""

import json
import re
from typing import Any

HALF = re.compile("[\ud800-\udfff]")  # of a surrogate pair


def parse_json(text: str | bytes, where: object = "", kind: type = object, **hooks: Any) -> Any:
    """`json.loads` with these hooks, of a text or of UTF-8; half surrogate pairs become U+FFFD. Raises ValueError, also
    for a value of another `kind`, with `where` before it."""
    try:
        text = (text if isinstance(text, str) else text.decode("utf-8")).removeprefix("\ufeff")
        value = json.loads(text, **hooks)
        value = _whole(value) if "\\ud" in text or "\\uD" in text else value
        if not isinstance(value, kind):
            raise ValueError(f"{type(value).__name__}, not {kind.__name__}")
        return value
    except (ValueError, RecursionError) as error:
        reason = "too deep" if isinstance(error, RecursionError) else str(error)
        text = f"{where}: no JSON as expected ({reason}); copy or write it again" if where else reason
        raise ValueError(text) from error


def _whole(value: Any) -> Any:
    if isinstance(value, str):
        return HALF.sub("\ufffd", value)
    if isinstance(value, list):
        return [_whole(one) for one in value]
    return {_whole(name): _whole(one) for name, one in value.items()} if isinstance(value, dict) else value
