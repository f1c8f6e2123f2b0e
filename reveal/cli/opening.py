"""Shared by the commands of `reveal`: opening the network and its memory, and printing text or JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import terminal
from common.io.files import require_file
from reveal import pretrained
from reveal.cli import commands
from reveal.memory.engines.engine import engine_of, milvus
from reveal.memory.memory import Memory

if TYPE_CHECKING:
    from reveal.assistant import Assistant


def load_assistant(
    command: commands.Network,
    memory: str | Memory | None = None,
    *,
    names: Sequence[str] = (),
    default_sources: Sequence[str] = (),
) -> Assistant:
    """The network that a command names, with the memory. What can be checked without JAX is checked first."""
    memory = Memory(memory) if isinstance(memory, str) else memory
    weights = pretrained.weights() if command.weights is None else Path(command.weights)
    weights = require_file(weights / pretrained.WEIGHTS if weights.is_dir() else weights)
    if command.tokenizer is not None:
        require_file(command.tokenizer)
    if isinstance(command, commands.Searching):
        if (command.milvus is None) == (command.engine == "milvus"):
            raise ValueError("--engine milvus and --milvus URI go together: give both, or none")
        if memory is not None:
            uri, folder = command.milvus, memory.folder
            memory.engine = engine_of(command.engine, folder) if uri is None else milvus(uri, folder)

    from common.runtime import setup
    from reveal.assistant import Assistant

    setup()
    return Assistant.load(weights, command.tokenizer, memory, sources=names, default_sources=default_sources)


def split_names(names: str | None) -> list[str]:
    """The names in "a,b", each once."""
    parts = () if names is None else (name.strip() for name in names.split(","))
    return list(dict.fromkeys(filter(None, parts)))


def write_result(as_json: bool, text: str, data: Mapping[str, Any]) -> None:
    terminal.say(json.dumps(data) if as_json else text)  # JSON in ASCII: the terminal has nothing to escape
