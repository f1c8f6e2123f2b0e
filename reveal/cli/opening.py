"""What several commands of `reveal` share: opening the network, and printing text or JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import terminal
from common.io.files import require_file
from reveal import pretrained
from reveal.cli import commands
from reveal.memory.engines.registry import engine_of, milvus
from reveal.memory.store import Store

if TYPE_CHECKING:
    from reveal.assistant import Assistant
    from reveal.memory.engines.engine import Engine


def load_assistant(
    command: commands.Network,
    memory: str | None = None,
    *,
    names: Sequence[str] = (),
    default_sources: Sequence[str] = (),
) -> Assistant:
    """The network that a command names. What can be checked without JAX is checked first."""
    store = None if memory is None else Store(memory)
    path = require_file(_weights(command.weights))
    if command.tokenizer is not None:
        require_file(command.tokenizer)
    engine = _engine(command, memory) if isinstance(command, commands.Searching) else None

    from common.runtime import setup
    from reveal.assistant import Assistant

    setup()
    how = {"engine": engine, "sources": names, "default_sources": default_sources}
    return Assistant.load(path, command.tokenizer, store, **how)


def _weights(name: str | None) -> Path:
    if name is None:
        return pretrained.weights()
    return Path(name) / pretrained.WEIGHTS if Path(name).is_dir() else Path(name)


def _engine(command: commands.Searching, memory: str | None) -> Engine | None:
    """None: the exact one, or no memory to search."""
    if (command.milvus is None) == (command.engine == "milvus"):
        raise ValueError("--engine milvus and --milvus URI go together: give both, or none")
    if memory is None:
        return None
    if command.milvus is not None:
        return milvus(command.milvus, memory)
    return engine_of(command.engine, memory)


def split_names(names: str | None) -> list[str] | None:
    return None if names is None else [name.strip() for name in names.split(",") if name.strip()]


def tell(as_json: bool, text: str, data: Mapping[str, Any]) -> None:
    terminal.say(json.dumps(data) if as_json else text)  # ASCII, of which a terminal shows nothing escaped
